"""Consolidated changes: each row once, with its total, in the order in which the rows are looked for."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from timely_spark.differential.trace import DIFF, consolidate
from timely_spark.state.hashing import hashes

CHANGE = st.tuples(st.integers(-3, 3), st.integers(-2, 2), st.sampled_from([-1, 1, 2]))


@pytest.mark.parametrize("kind", [pa.int8(), pa.int64(), pa.string(), pa.uint64()], ids=str)
@given(changes=st.lists(CHANGE, max_size=40))
def test_it_does_not_depend_on_the_order_and_that_may_be_of_hashes(kind: pa.DataType, changes: Any) -> None:
    nodes = pa.array([node % 7 for node, *_ in changes], pa.int64()).cast(kind)
    values, diffs = (pa.array([change[at] for change in changes], pa.int64()) for at in (1, 2))
    table = pa.table({"value": values, "node": nodes, DIFF: diffs})
    ordered = consolidate(table, ["node"])

    totals: Counter[Any] = Counter()
    for value, node, diff in zip(*table.to_pydict().values(), strict=True):
        totals[value, node] += diff
    rows = list(zip(*ordered.to_pydict().values(), strict=True))
    assert sorted(rows) == sorted((*row, total) for row, total in totals.items() if total)
    assert sorted(rows) == sorted(zip(*consolidate(table).to_pydict().values(), strict=True))
    if pa.types.is_signed_integer(kind):
        places = list(zip(hashes(ordered, ["node"]).tolist(), ordered["value"].to_pylist(), strict=True))
        assert places == sorted(places)
