"""The rows between sources, workers and driver: worker, kind, meta as JSON, an Arrow batch."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pyarrow as pa

ROWS = pa.schema(
    [("worker", pa.int32()), ("kind", pa.string()), ("meta", pa.string()), ("payload", pa.binary())]
)
"""Columns: worker (receiver or sender, from 0), kind, meta (JSON), payload (Arrow IPC stream or null).

Kinds of rows to a worker: ``input``, ``advance`` (of a handle), ``message``, ``header``; from a worker:
``message``, ``output``, ``report``, ``error``.
"""

Row = tuple[int, str, dict[str, Any] | str, bytes | None]


def text(meta: dict[str, Any]) -> str:
    """A row's meta as JSON."""
    return json.dumps(meta, separators=(",", ":"), sort_keys=True)


def as_rows(rows: Iterable[Row]) -> pa.Table:
    """Rows as a table of schema `ROWS`."""
    listed = list(rows)
    return pa.table(
        [
            pa.array([row[0] for row in listed], pa.int32()),
            pa.array([row[1] for row in listed], pa.string()),
            pa.array([row[2] if isinstance(row[2], str) else text(row[2]) for row in listed], pa.string()),
            pa.array([row[3] for row in listed], pa.binary()),
        ],
        schema=ROWS,
    )


def read_rows(table: pa.Table) -> list[tuple[int, str, dict[str, Any], Any]]:
    """The rows of a table of schema `ROWS`; payloads are Arrow buffers, not copied."""
    if table.num_rows == 0:
        return []
    workers = table.column("worker").to_pylist()
    kinds = table.column("kind").to_pylist()
    metas = table.column("meta").to_pylist()
    payloads = [
        scalar.as_buffer() if scalar.is_valid else None
        for chunk in table.column("payload").chunks
        for scalar in chunk
    ]
    return [(w, k, json.loads(m), p) for w, k, m, p in zip(workers, kinds, metas, payloads, strict=True)]
