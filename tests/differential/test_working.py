"""The working set of a reduction: numbers of rows, and results of integers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from timely_spark.differential import working
from timely_spark.differential.reducers import GROUP, Count, Extreme, Logic, Threshold, present
from timely_spark.differential.trace import DIFF
from timely_spark.differential.working import Numbering, consolidated
from timely_spark.state import keys
from timely_spark.state.keys import numbers

KEYS = st.lists(st.one_of(st.none(), st.integers(-3, 30)), max_size=30)


@given(st.lists(KEYS, max_size=6), st.integers(1, 5))
def test_rows_are_numbered_in_the_order_of_their_first_occurrence_also_if_hashes_collide(
    batches: list[list[int | None]], hashes: int
) -> None:
    def few(table: pa.Table, columns: Any) -> Any:
        return keys.hashes(table, columns) % np.uint64(hashes)

    for text in (False, True):
        numbering, known = Numbering(["k"]), dict[Any, int]()
        with pytest.MonkeyPatch.context() as patched:
            if text:  # integers are told apart by their hashes alone
                patched.setattr(working, "hashes", few)
            for batch in batches:
                values = [None if key is None else str(key) for key in batch] if text else batch
                column = pa.array(values, pa.string() if text else pa.int64())
                which, fresh, _, made = numbering.of(pa.table({"k": column}))

                assert fresh["k"].to_pylist() == [numbering.table["k"][n].as_py() for n in made]
                assert not {*fresh["k"].to_pylist()} & {*known}
                known |= dict(zip(fresh["k"].to_pylist(), made.tolist(), strict=True))
                assert which.tolist() == [known[value] for value in values]
        assert sorted(known.values()) == [*range(len(known))]


ROWS = st.lists(st.tuples(st.integers(0, 4), st.integers(-5, 5), st.integers(-2, 3)), min_size=1, max_size=40)


@pytest.mark.parametrize(
    "logic",
    [
        Extreme(("k",), "v", greatest=False),
        Extreme(("k",), "v", greatest=True),
        Count(("k",), "n"),
        Threshold(("k",), present),
    ],
    ids=lambda logic: type(logic).__name__,
)
@given(ROWS)
def test_results_of_integers_are_those_of_tables(logic: Logic, given: list[tuple[int, int, int]]) -> None:
    extreme = isinstance(logic, Extreme)
    labels = [[key, value if extreme else 0, weight] for key, value, weight in given]
    rows = consolidated([[*np.array(labels, np.int64).T]])
    fields = [pa.field("v", pa.int64())] if extreme else []
    table = pa.table({GROUP: rows[0], **({"v": rows[1]} if extreme else {}), DIFF: rows[2]})
    expected = logic.results(pa.table({"k": np.arange(5)}), table)

    made = logic.numbered(rows, fields)

    assert made is not None
    (groups, values, weights), columns = made
    assert groups.tolist() == numbers(expected, GROUP).tolist()
    assert weights.tolist() == numbers(expected, DIFF).tolist()
    assert [column.name for column in columns] == expected.schema.names[1:-1]
    for column in columns:
        assert values.tolist() == numbers(expected, column.name).tolist()
