"""Collections against their definitions: sums over all times, at every time, whatever compaction does.

The reference has changes, `{(time, record): difference}`, but no traces, frontiers or order of arrival:

- the accumulation of A at t is the sum of its changes at all times s <= t;
- a reduction by f has at t the change f(A up to t) - (its own changes before t);
- a join has at t the sum of A(s1) * B(s2) over all s1, s2 with s1 join s2 = t;
- a loop is the solution of V = enter(initial) + delay(step(V) - enter(initial)); step(V) leaves, without the
  iteration.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import timely_spark as ts
from tests.differential.test_law import LATE, Build, late_inputs, tap
from tests.differential.test_law import Batch as BatchProgram
from tests.support.turns import HOW
from timely_spark.differential import trace
from timely_spark.state import row_times
from timely_spark.state.arrangement import Arrangement
from timely_spark.state.batch import Batch
from timely_spark.times import only_epochs

Time = tuple[int, ...]
Changes = Counter[tuple[Time, Any]]


# -- the definitions -----------------------------------------------------------------------------------------


def up_to(changes: Changes, time: Time) -> Counter[Any]:
    """The accumulation at a time."""
    total: Counter[Any] = Counter()
    for (at, record), n in changes.items():
        if all(s <= t for s, t in zip(at, time, strict=True)):
            total[record] += n
    return Counter({record: n for record, n in total.items() if n})


def later(*times: Time) -> Time:
    """The join of times: the least that is at or after each."""
    return tuple(map(max, *times))


def reduced(function: Callable[..., Counter[Any]], *inputs: Changes) -> Changes:
    """Changes that sum up, at every time, to a function of the inputs' accumulations."""
    moments = {time for changes in inputs for time, _ in changes}
    while not moments.issuperset(joined := {later(*pair) for pair in itertools.combinations(moments, 2)}):
        moments |= joined
    made: Changes = Counter()
    for time in sorted(moments):  # a time that is before another one is sorted before it
        after = function(*(up_to(changes, time) for changes in inputs))
        after.subtract(up_to(made, time))
        made.update({(time, record): n for record, n in after.items() if n})
    return made


def joined(left: Changes, right: Changes) -> Changes:
    """Records (c, b) for (a, c) and (a, b)."""
    made: Changes = Counter()
    for ((s, (a, c)), n), ((t, (other, b)), m) in itertools.product(left.items(), right.items()):
        if a == other is not None:
            made[later(s, t), (c, b)] += n * m
    return made


def added(one: Changes, two: Changes, sign: int = 1) -> Changes:
    made = Counter(one)
    made.update({key: sign * n for key, n in two.items()})
    return made


def moved(changes: Changes, move: Callable[[Time], Time | None]) -> Changes:
    made: Changes = Counter()
    for (time, record), n in changes.items():
        if (to := move(time)) is not None:
            made[to, record] += n
    return made


@dataclass
class Reference:
    """A program of `test_law.py`, by these definitions."""

    x: Changes
    y: Changes
    variables: list[Changes] = field(default_factory=list)

    def __call__(self, program: Any) -> Changes:
        """The program's changes, in the loops around it."""
        if isinstance(program, str):
            outer = {"variable": [self.x, *self.variables][-1], "x": self.x, "y": self.y}
            others = [self.y, self.y, *self.variables]
            found = outer[program] if program in outer else others[-2]
            depth = len(self.variables) + 3
            return moved(found, lambda time: time + (0,) * (depth - len(time)))
        name, how, *parts = program
        if name == "iterate":
            return self.iterated(how, *parts[1:])
        inputs = [self(part) for part in parts]
        if name == "concat":
            return added(*inputs)
        if name == "join":
            return reduced(clipped, joined(*inputs))
        of = "x" if len(inputs) == 1 else ("x", "y")
        none: Counter[Any] = Counter()
        return reduced(
            lambda *totals: BatchProgram(*totals, *[none][: 2 - len(totals)])((name, how, *of)), *inputs
        )

    def iterated(self, iterations: int, initial: Any, step: Any) -> Changes:
        entered = moved(self(initial), lambda time: (*time, 0))

        def delay(time: Time) -> Time | None:
            return (*time[:-1], time[-1] + 1) if time[-1] + 1 < iterations else None

        variable = entered
        for _ in range(iterations):  # after n times it is right up to iteration n
            self.variables.append(variable)
            result = self(step)
            self.variables.pop()
            variable = added(entered, moved(added(result, entered, -1), delay))
        return moved(result, lambda time: time[:-1])


def clipped(records: Counter[Any]) -> Counter[Any]:
    return Counter({record: max(-2, min(n, 2)) for record, n in records.items()})


# -- programs, inputs, and what we make of them --------------------------------------------------------------

LEAVES = st.sampled_from(["x", "y", "variable", "variable", "other"])
UNARY = ["count", "sum", "min", "top", "distinct", "reduce", "negate", "swap", "where", "all_count"]
BINARY = ["concat", "concat", "join", "join", "subtract"]


def extended(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.tuples(st.sampled_from(UNARY), st.booleans(), inner),
        st.tuples(st.sampled_from(BINARY), st.booleans(), inner, inner),
        st.tuples(st.just("iterate"), st.integers(1, 3), st.booleans(), inner, inner),
    )


PROGRAMS = st.recursive(LEAVES, extended, max_leaves=6).filter(lambda program: not isinstance(program, str))


def flow_of(program: Any) -> ts.Dataflow:
    """The program in a loop in a loop, where its inputs change at times of which none is before the other."""
    flow = ts.Dataflow("definitions")
    tap(Build(*late_inputs(flow))(program), "out")
    return flow


def given_changes(epochs: list[Any]) -> Changes:
    changes: Changes = Counter()
    for epoch, rows in enumerate(epochs):
        for a, b, i, j, n in rows:
            changes[(epoch, i, j), (a, b)] += n
    return changes


def check(program: Any, x: Any, y: Any, **how: Any) -> None:
    out = ts.testing.run(flow_of(program), {"x": x, "y": y}, **how)["out"]
    found: Changes = Counter()
    for rows in out.rows().values():
        for a, b, n, *time in rows:
            found[tuple(time), (a, b)] += n
    expected = Reference(given_changes(x), given_changes(y))(program)

    assert {key: n for key, n in found.items() if n} == {key: n for key, n in expected.items() if n}


DRAWN: dict[str, Any] = {"program": PROGRAMS, "x": LATE, "y": LATE, **HOW}


@pytest.mark.slow
@given(**DRAWN)
def test_changes_are_those_of_the_definitions_at_every_time(**drawn: Any) -> None:
    check(**drawn)


@pytest.mark.campaign
@pytest.mark.timeout(3600)
@settings(max_examples=1000)
@given(**DRAWN)
def test_they_are_in_many_programs(**drawn: Any) -> None:
    check(**drawn)


# -- compaction as an adversary ------------------------------------------------------------------------------


@contextmanager
def adversary(draw: random.Random, beyond: int = 0) -> Iterator[Counter[str]]:
    """Histories are represented anew at any time: in any way that no later time can tell from the first.

    A change before the frontier moves to any other epoch before it, and may be split in two, at different
    epochs, of which one takes back what the other has too much. With `beyond`, changes also move past it.
    """
    did: Counter[str] = Counter()
    compaction, insert = trace.compaction, Arrangement.insert

    def advanced(table: pa.Table, kind: Any, since: int) -> pa.Table:
        assert only_epochs(kind)
        epochs = row_times.epochs_of(table)
        anywhere = np.array([draw.randrange(since + beyond) for _ in epochs] if since else epochs, np.int64)
        before = epochs < since
        did["moved"] += int((before & (anywhere != epochs)).sum())
        at = table.schema.get_field_index(row_times.EPOCH)
        return table.set_column(at, row_times.EPOCH, pa.array(np.where(before, anywhere, epochs)))

    def splitting(since: int, *args: Any) -> Any:
        compact = compaction(since, *args)

        def split(hashed: Any, table: pa.Table) -> Any:
            hashed, table = compact(hashed, table)
            early = row_times.epochs_of(table) < since
            which = np.repeat(
                np.arange(len(early)), 1 + (early & (np.array([draw.random() < 0.3 for _ in early], bool)))
            )
            again = np.concatenate([which[1:] == which[:-1], [False]]) if len(which) else np.zeros(0, bool)
            second = np.concatenate([[False], which[1:] == which[:-1]]) if len(which) else again
            did["split"] += int(second.sum())
            table, by = table.take(pa.array(which)), draw.choice([-2, -1, 1])
            for column in trace.weights_of(table):
                # the first of the two has too much, which the second takes back
                weights = trace.numbers(table, column)
                table = trace.replaced(
                    table, column, np.where(second, -by, np.where(again, weights + by, weights))
                )
            return hashed[which], advanced(table, args[0], since)

        return split

    def insert_and_compact(
        self: Arrangement, table: pa.Table, hashed: Any = None, compact: Any = None
    ) -> None:
        insert(self, table, hashed, compact)
        for parts in [self.recent, *self.lanes] if compact is not None else ():
            for at in range(len(parts)) if draw.random() < 0.5 else ():
                made, rows = compact(parts[at].row_hashes, parts[at].table)
                parts[at] = Batch.of(made, rows.combine_chunks())
            parts[:] = [part for part in parts if len(part)]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_times, "advanced", advanced)
        patch.setattr(trace, "compaction", splitting)
        patch.setattr(Arrangement, "insert", insert_and_compact)
        yield did


@pytest.mark.slow
@given(adverse=st.integers(0, 10**6), **DRAWN)
def test_histories_may_be_represented_in_any_way_up_to_the_frontier(adverse: int, **drawn: Any) -> None:
    with adversary(random.Random(adverse)):
        check(**drawn)


@pytest.mark.campaign
@pytest.mark.timeout(3600)
@settings(max_examples=1000)
@given(adverse=st.integers(0, 10**6), **DRAWN)
def test_they_may_in_many_programs(adverse: int, **drawn: Any) -> None:
    with adversary(random.Random(adverse)):
        check(**drawn)


#: a join, a reduction and a loop over records that come and go in each of six epochs
EXAMPLES = [
    ("join", False, "x", "y"),
    ("join", True, ("min", True, "x"), "y"),
    (
        "iterate",
        3,
        True,
        "x",
        ("distinct", False, ("concat", False, "variable", ("join", False, "variable", "y"))),
    ),
]
COME_AND_GO = [
    [(a, a + epoch & 3, 0, 0, 1 if epoch % 2 == 0 else -1) for a in range(4)] for epoch in range(6)
]


@pytest.mark.slow
@pytest.mark.parametrize("program", EXAMPLES, ids=lambda program: program[0])
def test_the_adversary_moves_and_splits_and_is_not_seen(program: Any) -> None:
    with adversary(random.Random(0)) as did:
        check(program, COME_AND_GO, COME_AND_GO[::-1], workers=2)

    assert min(did["moved"], did["split"]) > 10, did


@pytest.mark.slow
@pytest.mark.parametrize("program", EXAMPLES, ids=lambda program: program[0])
def test_an_adversary_that_goes_beyond_the_frontier_is_seen(program: Any) -> None:
    with pytest.raises(AssertionError), adversary(random.Random(0), beyond=2):  # noqa: PT012
        for _ in range(5):
            check(program, COME_AND_GO, COME_AND_GO[::-1], workers=2)
