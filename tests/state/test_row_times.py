"""Histories: the times of stored rows, of any kind, and their compaction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from timely_spark.state.grouping import Groups
from timely_spark.state.hashing import hashes
from timely_spark.state.row_times import RowTimes, advanced, compaction, epochs_of, times_of, with_time
from timely_spark.times import LEXICOGRAPHIC, PRODUCT, Lexicographic, Time


@dataclass(frozen=True)
class Named:
    """A time whose second coordinate is a text, compared by its length."""

    epoch: int
    name: str

    def less_equal(self, other: Named) -> bool:
        return self.epoch <= other.epoch and len(self.name) <= len(other.name)

    def join(self, other: Named) -> Named:
        return Named(max(self.epoch, other.epoch), max(self.name, other.name, key=len))

    def encode(self) -> list[Any]:
        return [self.epoch, self.name]


class NamedTimes:
    """As much of a kind of time as histories ask of it."""

    def epoch(self, *_: Any) -> Any:
        raise NotImplementedError

    identity = enter = leave = feedback = delay = coarse = epoch

    def decode(self, data: Any) -> Named:
        return Named(*data)

    def advance(self, time: Named, since: int) -> Named:
        return Named(max(time.epoch, since), time.name)


NAMED: Any = NamedTimes()
TIMES: dict[str, Any] = {
    "product": (PRODUCT, Time),
    "lexicographic": (LEXICOGRAPHIC, Lexicographic),
    "text": (NAMED, lambda a, b, _: Named(a, "x" * b)),
}
few = st.tuples(*[st.integers(0, 3)] * 3)


def stored(kind: str, drawn: list[tuple[int, int, int]]) -> tuple[Any, list[Any], pa.Table]:
    """A kind of time, the times, and a row for each, numbered."""
    times, make = TIMES[kind]
    made = [make(*each) for each in drawn]
    rows = [with_time(pa.table({"row": [i]}), time) for i, time in enumerate(made)]
    return times, made, pa.concat_tables(rows)


@pytest.mark.parametrize("kind", TIMES)
@given(drawn=st.lists(few, min_size=1, max_size=8), at=few)
def test_times_of_rows_compare_and_join_as_each_time_does(
    kind: str, drawn: list[tuple[int, int, int]], at: tuple[int, int, int]
) -> None:
    times, made, table = stored(kind, drawn)
    time = TIMES[kind][1](*at)
    found, rows = RowTimes.of(table, times)
    assert rows.column_names == ["row"]
    assert found.less_equal(time).tolist() == [each.less_equal(time) for each in made]
    parts = [(moment, row) for moment, part in found.joins(time, rows) for row in part["row"].to_pylist()]
    assert sorted(row for _, row in parts) == list(range(len(made)))
    assert {row: moment for moment, row in parts} == {i: each.join(time) for i, each in enumerate(made)}
    mask = np.arange(len(made)) % 2 == 0
    assert found.filter(mask).less_equal(time).tolist() == [each.less_equal(time) for each in made[::2]]


@pytest.mark.parametrize("kind", TIMES)
@given(
    drawn=st.lists(few, min_size=1, max_size=8),
    later=st.lists(few, min_size=1, max_size=4),
    since=st.integers(0, 5),
)
def test_no_later_time_tells_an_advanced_time_from_its_original(
    kind: str, drawn: list[tuple[int, int, int]], later: list[tuple[int, int, int]], since: int
) -> None:
    times, _, table = stored(kind, drawn)
    before, _ = RowTimes.of(table, times)
    after, rows = RowTimes.of(advanced(table, times, since), times)
    assert rows["row"].to_pylist() == list(range(len(drawn)))
    if since > 1:
        assert not after.less_equal(TIMES[kind][1](since - 2, 9, 9)).any(), "so that times become equal"
    for a, b, c in later:
        time = TIMES[kind][1](since + a, b, c)
        assert after.less_equal(time).tolist() == before.less_equal(time).tolist()


def test_an_advanced_epoch_stays_before_what_is_still_to_come() -> None:
    table = pa.concat_tables([with_time(pa.table({"row": [i]}), Time(i)) for i in range(6)])
    assert epochs_of(advanced(table, PRODUCT, 4)).tolist() == [3, 3, 3, 3, 4, 5]


def test_rows_from_outside_a_loop_are_at_its_first_iteration() -> None:
    times, rows = times_of(with_time(pa.table({"row": [1, 2]}), Time(7)), 3)
    assert (times.tolist(), rows.to_pydict()) == ([[7, 0, 0]] * 2, {"row": [1, 2]})


@pytest.mark.parametrize("keys", [pa.array([1, 1, 2, 1]), pa.array(["a", "a", "b", "a"])])
def test_rows_that_become_equal_are_folded(keys: pa.Array) -> None:
    table = pa.table({"k": keys, "n": [1, 2, 4, 8]})
    table = pa.concat_tables([with_time(table.slice(i, 1), Time(at)) for i, at in enumerate([0, 1, 1, 5])])
    hashed = hashes(table, ["k"])
    order = np.argsort(hashed, kind="stable")

    def add(rows: pa.Table, groups: Groups) -> tuple[Any, pa.Table]:
        total = pa.array(groups.totals(rows["n"].to_numpy()))
        return groups.firsts, rows.take(pa.array(groups.firsts)).set_column(1, "n", total)

    h, folded = compaction(3, PRODUCT, ["k"], add)(hashed[order], table.take(order))
    assert h.tolist() == hashes(folded, ["k"]).tolist()
    assert sorted(zip(*folded.to_pydict().values(), strict=True)) == [
        (keys[0].as_py(), 3, 2), (keys[0].as_py(), 8, 5), (keys[2].as_py(), 4, 2)
    ]  # fmt: skip

    # different keys of one hash stay apart
    _, kept = compaction(9, PRODUCT, ["k"], add)(np.zeros(4, np.uint64), table)
    if pa.types.is_string(keys.type):
        assert sorted(kept["n"].to_pylist()) == [4, 11]


def test_without_a_fold_rows_only_advance() -> None:
    table = with_time(pa.table({"row": [1, 1]}), Time(2))
    h, kept = compaction(9, PRODUCT)(np.zeros(2, np.uint64), table)
    assert (len(h), kept.to_pydict()) == (2, {"row": [1, 1], "__timely_time0": [8, 8]})
