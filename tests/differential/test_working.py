"""The working set of a reduction: numbers of rows, and results of integers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from timely_spark.differential import working
from timely_spark.differential.reducers import GROUP, Count, Extreme, Logic, Threshold, presence
from timely_spark.differential.trace import DIFF
from timely_spark.differential.working import (
    Numbering,
    RowsByKey,
    Side,
    Values,
    WorkingSet,
    consolidated_rows,
)
from timely_spark.state import Arrangement, hashing
from timely_spark.state.arrow import FEW, numbers
from timely_spark.state.row_times import with_time
from timely_spark.times import Time

KEYS = st.lists(st.one_of(st.none(), st.integers(-3, 30)), max_size=30)


@pytest.mark.slow
@given(st.lists(KEYS, max_size=6), st.integers(1, 5))
def test_rows_are_numbered_in_the_order_of_their_first_occurrence_also_if_hashes_collide(
    batches: list[list[int | None]], hashes: int
) -> None:
    def few(table: pa.Table, columns: Any) -> Any:
        return hashing.hashes(table, columns) % np.uint64(hashes)

    for text in (False, True):
        numbering, known = Numbering(["k"]), dict[Any, int]()
        with pytest.MonkeyPatch.context() as patched:
            if text:  # integers are told apart by their hashes alone
                patched.setattr(working, "hashes", few)
            for batch in batches:
                values = [None if key is None else str(key) for key in batch] if text else batch
                column = pa.array(values, pa.string() if text else pa.int64())
                ids, groups, fresh, _, made = numbering.of(pa.table({"k": column}))
                which = ids[groups.of]

                assert fresh["k"].to_pylist() == numbering.rows(made)["k"].to_pylist()
                assert not {*fresh["k"].to_pylist()} & {*known}
                known |= dict(zip(fresh["k"].to_pylist(), made.tolist(), strict=True))
                assert which.tolist() == [known[value] for value in values]
        assert sorted(known.values()) == [*range(len(known))]
        if not batches:
            continue
        shuffled = np.random.default_rng(len(known)).permutation(len(known))
        in_order = sorted(known, key=known.__getitem__)
        assert numbering.rows(shuffled)["k"].to_pylist() == [in_order[n] for n in shuffled]


def test_the_rows_of_a_key_are_those_that_came_last() -> None:
    stored, last, draw = RowsByKey(), dict[int, list[int]](), np.random.default_rng(0)
    assert stored.of(np.array([7])) == []
    for n in (40, 0, FEW, 3 * FEW, 40, 3 * FEW, *[FEW] * 9):
        keys = draw.permutation(np.flatnonzero(draw.random(99) < 0.5))
        which, values = np.sort(draw.integers(len(keys), size=n)), draw.integers(1000, size=n)
        stored.replace(keys, [which, values] if n else [])
        last |= {key: values[which == at].tolist() for at, key in enumerate(keys.tolist())}
        at, rows = stored.of(present := np.array(sorted(last)))
        assert [rows[at == key].tolist() for key in range(len(present))] == [last[key] for key in present]
    assert stored.of(np.zeros(0, np.int64)) == stored.of(np.array([10_000])) == []


ROWS = st.lists(st.tuples(st.integers(0, 4), st.integers(-5, 5), st.integers(-2, 3)), min_size=1, max_size=40)


@pytest.mark.parametrize(
    "logic",
    [
        Extreme(("k",), "v", greatest=False),
        Extreme(("k",), "v", greatest=True),
        Count(("k",), "n"),
        Threshold(("k",), presence),
    ],
    ids=lambda logic: type(logic).__name__,
)
@given(ROWS)
def test_results_of_integers_are_those_of_tables(logic: Logic, given: list[tuple[int, int, int]]) -> None:
    extreme = isinstance(logic, Extreme)
    labels = [[key, value if extreme else 0, weight] for key, value, weight in given]
    rows = consolidated_rows([[*np.array(labels, np.int64).T]])
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


def test_a_time_of_another_context_is_interesting_where_it_joins_one_of_this() -> None:
    """Per key the contexts are those of its own records, each once, from its first iteration there on."""
    logic = Extreme(("k",), "v", greatest=False)

    def rows(*pairs: tuple[int, int]) -> pa.Table:
        k, v = zip(*pairs, strict=True)
        return pa.table({"k": k, "v": v, DIFF: np.ones(len(k), np.int64)})

    trace = Arrangement(("k",))
    for time in (Time(0, 5, 2), Time(0, 5, 8), Time(0, 9, 4), Time(0, 1, 7)):
        trace.insert(with_time(rows((1, 5)), time))
    trace.insert(with_time(rows((2, 5)), Time(0, 6, 0)))
    sides = [Side(one, Values(plain=True)) for one in (trace, Arrangement(("k",)))]
    work = WorkingSet(logic, Time(1, 3, 0), sides[0], sides[1], indexed=False)
    added = rows((1, 7), (2, 6), (3, 1))

    changed, interesting = work.changes(Time(1, 3, 3), [added.select(["k"])], added)

    assert changed is not None
    assert sorted(changed["v"].to_pylist()) == [1, 6, 7]
    assert sorted((moment, keys["k"].to_pylist()) for moment, keys in interesting) == [
        ([1, 5, 3], [1]),
        ([1, 6, 3], [2]),
        ([1, 9, 4], [1]),
    ]
