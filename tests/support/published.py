"""Rows that come and go in what one flow publishes and others read, and what a capture has of them."""

from __future__ import annotations

import random
import tempfile
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import timely_spark as ts
from timely_spark.runtime.storage.files import Files
from timely_spark.testing import Simulation


def drawn_changes(
    draw: random.Random, present: set[tuple[int, int]], *, keys: int, values: int, most: int
) -> list[tuple[int, int, int]]:
    """At most two rows go, and at most so many of (key, value) come; `present` is kept up to date."""
    removed = draw.sample(sorted(present), min(len(present), draw.randint(0, 2)))
    added = {(draw.randrange(keys), draw.randrange(values)) for _ in range(draw.randint(0, most))} - present
    present.difference_update(removed)
    present.update(added)
    return [*((*row, 1) for row in added), *((*row, -1) for row in removed)]


def complete_epoch(flow: Simulation, epoch: int, rows: list[Any], name: str = "x") -> None:
    """Send the rows of an epoch, which ends, and do all that there is to do."""
    flow.send(name, rows, epoch=epoch)
    flow.advance_to(name, epoch + 1)
    flow.run()


def rows_at(captured: Any, at: int | None = None) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in ts.snapshot(captured, at=at).to_pylist())


def bare_context() -> Any:
    """As much of a run's context as the reader of a folder asks for."""
    return SimpleNamespace(
        log=SimpleNamespace(files=Files(tempfile.mkdtemp())),
        resident=0.0,
        read_offsets={},
        continued=-1,
        reporting=nullcontext,
        checkpoint="/c",
    )
