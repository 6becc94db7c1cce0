"""Queries over tables whose rows arrive in random epochs: what is left after the last one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

import timely_spark as ts
from timely_spark.queries.scripts import build_all

DIFF = "diff of the row"


def scattered(table: pa.Table, seed: int, epochs: int | None) -> list[pa.Table]:
    """A table's rows in random epochs; a third is deleted and sent again, and rows come that go again.

    With `None` one row comes in each epoch, and two more for each that is deleted and sent again.
    """
    of, rows = np.random.default_rng(seed), table.num_rows
    changes: list[tuple[Any, int, int]] = []
    for row in range(rows):
        times = of.random(3) if epochs is None else of.integers(0, epochs, 3)
        for time, diff in zip(sorted(times) if of.random() < 1 / 3 else times[:1], (1, -1, 1), strict=False):
            changes.append((time, row, diff))
    changes.sort(key=lambda one: one[0])
    parts = (
        [[one] for one in changes]
        if epochs is None
        else [[one for one in changes if one[0] == epoch] for epoch in range(epochs)]
    )
    made = []
    for part in parts:
        diffs = pa.array([diff for _, _, diff in part], pa.int64())
        made.append(table.take(pa.array([row for _, row, _ in part], pa.int64())).append_column(DIFF, diffs))
    return made or [table.append_column(DIFF, pa.array([], pa.int64()))]


def last_epoch(
    queries: Sequence[Any],
    tables: Mapping[str, pa.Table],
    *,
    views: Any = None,
    seed: int = 0,
    epochs: int | None = 3,
    workers: int = 2,
) -> list[pa.Table]:
    """For each query, a text or a bound one, its rows after the last epoch."""
    flow = ts.Dataflow("outside")
    given = {}
    for name, table in tables.items():
        schema = table.schema.append(pa.field(DIFF, pa.int64()))
        given[name] = flow.input(name, schema, epochs="manual").collection(diff=DIFF)
    if views is None:
        made = [ts.sql(query, **given) for query in queries]
    else:
        made = build_all(list(queries), given, [None] * len(queries))
    for number, one in enumerate(made):
        one.changes().capture(f"out {number}")
    sent = {name: scattered(table, seed + n, epochs) for n, (name, table) in enumerate(tables.items())}
    result = ts.testing.run(flow, sent, workers=workers, seed=seed)
    return [whole(result[f"out {number}"]) for number in range(len(made))]


def whole(captured: Any) -> pa.Table:
    """The rows that all changes of a capture leave."""
    table = captured.table()
    *columns, diffs = (table.column(name) for name in captured.schema.names)
    total: Counter[str] = Counter()
    places: dict[str, int] = {}
    rows = zip(*(one.to_pylist() for one in columns), strict=True) if columns else iter(())
    for place, (row, diff) in enumerate(zip(rows, diffs.to_pylist(), strict=False)):
        total[repr(row)] += diff
        places[repr(row)] = place
    assert all(n >= 0 for n in total.values()), "a row is there less than never"
    kept = [places[key] for key, n in total.items() for _ in range(n)]
    return table.select(captured.schema.names[:-1]).take(pa.array(kept, pa.int64()))
