"""The law: at every time an output has come to what a batch program makes of what its inputs have come to."""

from __future__ import annotations

import itertools
import sys
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import timely_spark as ts
from timely_spark.differential import DIFF
from timely_spark.state import hashing
from timely_spark.worker import Budget

# Programs are nested tuples; each part is a collection of records (a, b), both in 0..3 or null. They are run
# as collections, and by `Batch` on counters: as the definition of each operator says, with no times at all.

pytestmark = pytest.mark.filterwarnings("ignore:step .*more was removed")  # the law is of these, too

Records = Counter[Any]
SCHEMA = "a long, b long, d long"

LEAVES = st.sampled_from(["x", "y", "variable", "other", "late"])
UNARY = [
    "count", "sum", "mean", "min", "max", "top", "distinct", "twice", "reduce", "reduce_batches", "negate",
    "swap", "where", "spread", "same", "all_count", "all_sum", "all_min", "all_top",
]  # fmt: skip
BINARY = [
    "concat", "minus", "join", "semijoin", "antijoin", "union", "intersect", "subtract", "broadcast", "asof",
    "triangles",
]  # fmt: skip


def extended(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    iterations = st.integers(1, 3)
    return st.one_of(
        st.tuples(st.sampled_from(UNARY), st.booleans(), inner),
        st.tuples(st.sampled_from(BINARY), st.booleans(), inner, inner),
        st.tuples(st.just("outer"), st.sampled_from(["left", "right", "outer"]), inner, inner),
        st.tuples(st.just("skewed"), st.sampled_from(["inner", "left", "right", "outer"]), inner, inner),
        st.tuples(st.just("until"), iterations, inner, inner),
        st.tuples(st.just("iterate"), iterations, st.booleans(), inner, inner),
        st.tuples(st.just("mutual"), iterations, inner, inner, inner, inner),
        st.tuples(st.sampled_from(["reach", "least"]), st.booleans(), inner, inner),
    )


PROGRAMS = st.recursive(LEAVES, extended, max_leaves=7).filter(lambda program: not isinstance(program, str))
VALUES = st.sampled_from([None, 0, 1, 2, 3])
CHANGES = st.lists(st.tuples(VALUES, VALUES, st.integers(-2, 2)), max_size=5)
EPOCHS = st.lists(CHANGES, min_size=1, max_size=4)
BUDGETS = st.sampled_from([None, Budget(steps=1), Budget(steps=7), Budget(bytes=1)])


def at_most(iterations: int | None) -> dict[str, Any]:
    """A loop's limit, at which it may end with records left."""
    return {"max_iterations": iterations, "on_limit": iterations and "return"}


def low(column: str) -> Any:
    """Two bits of it."""
    return pc.bit_wise_and(pc.field(column), 3)


def clipped(counts: Any) -> Any:
    return np.clip(counts, -2, 2)


def summary(_: Any, records: list[Any]) -> list[tuple[int]]:
    return [(len(records) & 3,), (len({*records}) & 3,)]


def different(table: pa.Table) -> pa.Table:
    counted = table.group_by("a").aggregate([([], "count_all")])
    return pa.table({"a": counted["a"], "b": pc.bit_wise_and(counted["count_all"], 3)})


class Program:
    """What computes a program of its inputs x and y, with a method for each operator."""

    x: Any
    y: Any
    #: by loop around, innermost last: its scope or iteration, and its variables
    loops: list[tuple[Any, list[Any]]]

    def __call__(self, program: Any) -> Any:
        if isinstance(program, str):
            return getattr(self, program)
        name, *parts = program
        return getattr(self, name)(*parts)

    @property
    def variable(self) -> Any:
        return self.loops[-1][1][0] if self.loops else self.x

    @property
    def other(self) -> Any:
        if self.loops and len(self.loops[-1][1]) > 1:
            return self.loops[-1][1][1]
        return self.loops[-2][1][0] if len(self.loops) > 1 else self.y


# -- as collections ------------------------------------------------------------------------------------------


@dataclass
class Build(Program):
    """A program as collections."""

    x: ts.Collection
    y: ts.Collection
    #: by loop around, innermost last: its scope and its variables
    loops: list[tuple[ts.Scope, list[ts.Collection]]] = field(default_factory=list)
    #: what is arranged already, by its program and where it is
    indexed: dict[Any, ts.Collection] = field(default_factory=dict)

    @property
    def scope(self) -> ts.Scope:
        return self.loops[-1][0] if self.loops else self.x.scope

    def here(self, collection: ts.Collection) -> ts.Collection:
        return collection if collection.scope == self.scope else collection.enter(self.scope)

    def arranged(self, program: Any, *, shared: bool) -> ts.Collection:
        made = self(program)
        if not shared:
            return made
        key = (program, made.scope if isinstance(program, str) else len(self.indexed))
        if key not in self.indexed:
            self.indexed[key] = made.arrange("a")
        return self.indexed[key]

    @property
    def late(self) -> ts.Collection:
        if not self.loops:
            return self.x
        outer = self.x.enter(self.loops[-2][0]) if len(self.loops) > 1 else self.x
        return outer.enter_at(self.scope, pc.coalesce(low("b"), pc.scalar(0)))

    def count(self, shared: Any, of: Any) -> Any:
        return (
            self.arranged(of, shared=shared).count(keys=None if shared else "a").select("a", b=low("count"))
        )

    def sum(self, shared: Any, of: Any) -> Any:
        return self.arranged(of, shared=shared).sum("b", keys="a").select("a", b=low("b"))

    def mean(self, shared: Any, of: Any) -> Any:
        mean = self.arranged(of, shared=shared).mean("b", keys="a")
        return mean.select("a", b=pc.bit_wise_and(pc.floor(pc.field("b")).cast("int64"), 3))

    def min(self, shared: Any, of: Any) -> Any:
        return self.arranged(of, shared=shared).min("b", keys="a", skew=None if shared else [0])

    def max(self, shared: Any, of: Any) -> Any:
        return self.arranged(of, shared=shared).max("b", keys="a")

    def top(self, shared: Any, of: Any) -> Any:
        return self.arranged(of, shared=shared).top_k(2, "b", keys="a")

    def distinct(self, _: Any, of: Any) -> Any:
        return self(of).distinct()

    def twice(self, _: Any, of: Any) -> Any:
        return self(of).threshold(lambda counts: counts >= 2)

    def reduce(self, shared: Any, of: Any) -> Any:
        return self.arranged(of, shared=shared).reduce(summary, "b long", keys="a")

    def reduce_batches(self, shared: Any, of: Any) -> Any:
        return self.arranged(of, shared=shared).reduce_batches(different, "b long", keys="a")

    def negate(self, _: Any, of: Any) -> Any:
        return self(of).negate()

    def swap(self, _: Any, of: Any) -> Any:
        return self(of).select(a="b", b="a")

    def where(self, _: Any, of: Any) -> Any:
        return self(of).where(pc.field("b") > 1)

    def spread(self, _: Any, of: Any) -> Any:
        return self(of).flat_map(lambda row: [(row.a, n) for n in range(row.b or 0)], "a long, b long")

    def same(self, _: Any, of: Any) -> Any:
        return self(of).map(lambda row: (row.b, row.b), "a long, b long").consolidate()

    def all_count(self, _: Any, of: Any) -> Any:
        return self(of).count().select(a=low("count"), b=low("count"))

    def all_sum(self, _: Any, of: Any) -> Any:
        return self(of).sum("a").select(a=low("a"), b=low("a"))

    def all_min(self, _: Any, of: Any) -> Any:
        return self(of).min("a").select(a="a", b="a")

    def all_top(self, _: Any, of: Any) -> Any:
        return self(of).top_k(2, "b", descending=False)

    def concat(self, _: Any, left: Any, right: Any) -> Any:
        return self(left).concat(self(right))

    def minus(self, _: Any, left: Any, right: Any) -> Any:
        return self(left).concat(self(right).negate())

    def join(self, shared: Any, left: Any, right: Any) -> Any:
        one = self(left).select("a", c="b")
        pairs = (one.arrange("a") if shared else one).join(self.arranged(right, shared=shared), on="a")
        return pairs.select(a="c", b="b").threshold(clipped)

    def semijoin(self, shared: Any, left: Any, right: Any) -> Any:
        return self.arranged(left, shared=shared).semijoin(self(right), on="a")

    def antijoin(self, shared: Any, left: Any, right: Any) -> Any:
        keys = self(right).select("a").distinct()
        return self(left).antijoin(keys.arrange("a") if shared else keys, on="a", unique=True)

    def broadcast(self, shared: Any, left: Any, right: Any) -> Any:
        pairs = self(left).select("a", c="b").broadcast_join(self(right), on="a", by="c" if shared else None)
        return pairs.select(a="c", b="b").threshold(clipped)

    def asof(self, forward: Any, left: Any, right: Any) -> Any:
        other, direction = self(right).select("a", "b", c="b"), "forward" if forward else "backward"
        return self(left).asof_join(other, "b", by="a", direction=direction).select("a", b="c")

    def triangles(self, _: Any, left: Any, right: Any) -> Any:
        one, other = self(left), self(right)
        found = ts.wcoj(
            [(one, {"a": "p", "b": "q"}), (other, {"a": "q", "b": "r"}), (one, {"a": "r", "b": "p"})]
        )
        return found.select(a="p", b="r").threshold(clipped)

    def skewed(self, how: Any, left: Any, right: Any) -> Any:
        return self.outer(how, left, right, skew=[0, 2])

    def outer(self, how: Any, left: Any, right: Any, **skew: Any) -> Any:
        made = self(left).select("a", c="b").join(self(right), on="a", how=how, **skew)
        both = pc.bit_wise_xor(pc.coalesce(pc.field("c"), 1), pc.coalesce(pc.field("b"), 2))
        return made.select("a", b=both).threshold(clipped)

    def union(self, all_: Any, left: Any, right: Any) -> Any:
        return self(left).union(self(right), all=all_).threshold(clipped)

    def intersect(self, all_: Any, left: Any, right: Any) -> Any:
        return self(left).intersect(self(right), all=all_)

    def subtract(self, all_: Any, left: Any, right: Any) -> Any:
        return self(left).subtract(self(right), all=all_)

    def iteration(self, step: Any, variable: Any) -> Any:
        self.loops.append((variable.scope, [variable]))
        made = self(step)
        self.loops.pop()
        return made

    def iterate(self, iterations: Any, consolidate: Any, initial: Any, step: Any) -> Any:
        iteration = partial(self.iteration, step)
        return self.here(self(initial)).iterate(iteration, consolidate=consolidate, **at_most(iterations))

    def until(self, iterations: Any, initial: Any, step: Any) -> Any:
        def enough(before: Any, after: Any) -> Any:
            return before.concat(after).where(pc.field("a") == 3).count().where(pc.field("count") >= 2)

        return self.here(self(initial)).iterate_until(
            partial(self.iteration, step), enough, **at_most(iterations)
        )

    def mutual(self, iterations: Any, one: Any, two: Any, step_one: Any, step_two: Any) -> Any:
        initial = [self.here(self(one)), self.here(self(two))]
        scope = self.scope.inner(**at_most(iterations))
        variables = [each.variable(scope) for each in initial]
        self.loops.append((scope, list(variables)))
        results = [self.here(self(step)) for step in (step_one, step_two)]
        for variable, result in zip(variables, results, strict=True):
            variable.set(result)
        self.loops.pop()
        return results[0].leave()

    def once(self, edges: Any) -> Any:
        return "distinct", False, edges

    def reach(self, shared: Any, roots: Any, edges: Any) -> Any:
        start, links = self.here(self(roots).distinct()), self.arranged(self.once(edges), shared=shared)

        def hop(near: Any) -> Any:
            return near.select(c="a", a="b").join(links, on="a").select(a="c", b="b").concat(start).distinct()

        return start.iterate(hop)

    def least(self, shared: Any, labels: Any, edges: Any) -> Any:
        start, links = self.here(self(labels).distinct()), self.arranged(self.once(edges), shared=shared)

        def hop(best: Any) -> Any:
            targets = best.select("a", c="b").join(links, on="a").select(a="b", b="c")
            return targets.concat(start).min("b", keys="a")

        return start.min("b", keys="a").iterate(hop)


# -- by definition -------------------------------------------------------------------------------------------


def there(records: Records) -> Records:
    return Counter({record: n for record, n in records.items() if n > 0})


def some(records: Records) -> Records:
    return Counter({record: n for record, n in records.items() if n})


def added(*parts: Any) -> Records:
    total: Records = Counter()
    for part in parts:
        for record, n in part:
            total[record] += n
    return some(total)


def by_key(records: Records) -> dict[Any, dict[Any, int]]:
    groups: dict[Any, dict[Any, int]] = defaultdict(dict)
    for (a, b), n in records.items():
        groups[a][b] = n
    return groups


def bits(n: int | None) -> int | None:
    return None if n is None else n & 3


def totals(values: Any) -> tuple[int, int] | None:
    """The sum and the number of (value, count) without null; None if these and the number of all are 0."""
    values = list(values)
    valid = [(value, n) for value, n in values if value is not None]
    sums = sum(value * n for value, n in valid), sum(n for _, n in valid)
    return sums if any(sums) or sum(n for _, n in values) else None


def total(values: Any) -> list[int | None]:
    """The sum of (value, count), as a list of none or one; a balance may be negative."""
    if (sums := totals(values)) is None:
        return []
    return [bits(sums[0]) if any(sums) else None]


def last(value: int | None) -> tuple[bool, int]:
    """For sorting: nulls come last."""
    return value is None, value or 0


@dataclass
class Batch(Program):
    """A program, computed of what its inputs have come to."""

    x: Records
    y: Records
    #: by loop around, innermost last: the iteration and the variables
    loops: list[tuple[int, list[Records]]] = field(default_factory=list)

    @property
    def late(self) -> Records:
        if not self.loops:
            return self.x
        return Counter({(a, b): n for (a, b), n in self.x.items() if (b or 0) <= self.loops[-1][0]})

    def per_key(self, of: Any, function: Callable[[Records], Any]) -> Records:
        groups = by_key(self(of))
        return added(((a, b), 1) for a, held in groups.items() for b in function(Counter(held)))

    def count(self, _: Any, of: Any) -> Records:
        return self.per_key(of, lambda held: [bits(n)] if (n := sum(held.values())) else [])

    def sum(self, _: Any, of: Any) -> Records:
        return self.per_key(of, lambda held: total(held.items()))

    def mean(self, _: Any, of: Any) -> Records:
        def mean(held: Records) -> list[int | None]:
            if (sums := totals(held.items())) is None:
                return []
            return [sums[0] // sums[1] & 3 if sums[1] else None]

        return self.per_key(of, mean)

    def min(self, _: Any, of: Any, best: Any = min) -> Records:
        def least(held: Records) -> list[int]:
            values = [b for b in there(held) if b is not None]
            return [best(values)] if values else []

        return self.per_key(of, least)

    def max(self, _: Any, of: Any) -> Records:
        return self.min(_, of, max)

    def top(self, _: Any, of: Any) -> Records:
        def first(held: Records) -> list[Any]:
            return sorted(there(held).elements(), key=lambda b: -1 if b is None else b, reverse=True)[:2]

        return self.per_key(of, first)

    def distinct(self, _: Any, of: Any) -> Records:
        return Counter(dict.fromkeys(there(self(of)), 1))

    def twice(self, _: Any, of: Any) -> Records:
        return Counter({record: 1 for record, n in self(of).items() if n >= 2})

    def reduce(self, _: Any, of: Any) -> Records:
        def made(held: Records) -> list[int]:
            held = there(held)
            return [sum(held.values()) & 3, len(held) & 3] if held else []

        return self.per_key(of, made)

    def reduce_batches(self, _: Any, of: Any) -> Records:
        return self.per_key(of, lambda held: [len(there(held)) & 3] if there(held) else [])

    def negate(self, _: Any, of: Any) -> Records:
        return Counter({record: -n for record, n in self(of).items()})

    def swap(self, _: Any, of: Any) -> Records:
        return Counter({(b, a): n for (a, b), n in self(of).items()})

    def where(self, _: Any, of: Any) -> Records:
        return Counter({(a, b): n for (a, b), n in self(of).items() if (b or 0) > 1})

    def spread(self, _: Any, of: Any) -> Records:
        return added(((a, each), n) for (a, b), n in self(of).items() for each in range(b or 0))

    def same(self, _: Any, of: Any) -> Records:
        return added(((b, b), n) for (_, b), n in self(of).items())

    def all_count(self, _: Any, of: Any) -> Records:
        n = sum(self(of).values())
        return Counter({(bits(n), bits(n)): 1} if n else {})

    def all_sum(self, _: Any, of: Any) -> Records:
        return Counter({(each, each): 1 for each in total((a, n) for (a, _), n in self(of).items())})

    def all_min(self, _: Any, of: Any) -> Records:
        values = added((a, n) for (a, _), n in self(of).items())
        return Counter({(a, a): 1 for a in [min([a for a in there(values) if a is not None], default=None)]
                        if a is not None})  # fmt: skip

    def all_top(self, _: Any, of: Any) -> Records:
        return Counter(sorted(there(self(of)).elements(), key=lambda r: (last(r[1]), last(r[0])))[:2])

    def concat(self, _: Any, left: Any, right: Any) -> Records:
        return added(self(left).items(), self(right).items())

    def minus(self, _: Any, left: Any, right: Any) -> Records:
        return added(self(left).items(), self.negate(_, right).items())

    def pairs(self, left: Records, right: Records) -> Any:
        return (
            ((c, b), n * m)
            for (a, c), n in left.items()
            for (other, b), m in right.items()
            if a == other is not None
        )

    def join(self, _: Any, left: Any, right: Any) -> Records:
        made = added(self.pairs(self(left), self(right)))
        return Counter({record: max(-2, min(n, 2)) for record, n in made.items()})

    def broadcast(self, _: Any, left: Any, right: Any) -> Records:
        return self.join(_, left, right)

    def asof(self, forward: Any, left: Any, right: Any) -> Records:
        others = by_key(there(self(right)))

        def nearest(a: Any, b: Any) -> Any:
            if a is None or b is None:
                return None
            near = [c for c in others.get(a, {}) if c is not None and (c >= b if forward else c <= b)]
            return (min if forward else max)(near, default=None)

        return added(((a, nearest(a, b)), n) for (a, b), n in self(left).items())

    def triangles(self, _: Any, left: Any, right: Any) -> Records:
        one, other = self(left), self(right)
        found = added(
            ((p, r), n * m * k)
            for (p, q), n in one.items()
            for (q2, r), m in other.items()
            if p is not None and q is not None and q == q2 and r is not None and (k := one.get((r, p), 0))
        )
        return Counter({record: max(-2, min(n, 2)) for record, n in found.items()})

    def skewed(self, how: Any, left: Any, right: Any) -> Records:
        return self.outer(how, left, right)

    def semijoin(self, _: Any, left: Any, right: Any) -> Records:
        keys = there(added((a, n) for (a, _), n in self(right).items()))
        return Counter({(a, b): n for (a, b), n in self(left).items() if a is not None and a in keys})

    def antijoin(self, _: Any, left: Any, right: Any) -> Records:
        return added(self(left).items(), [(r, -n) for r, n in self.semijoin(_, left, right).items()])

    def outer(self, how: Any, left: Any, right: Any) -> Records:
        ours, theirs = self(left), self(right)

        def both(a: Any, c: Any, b: Any) -> Any:
            return a, (1 if c is None else c) ^ (2 if b is None else b)

        pairs = [
            (both(a, c, b), n * m)
            for (a, c), n in ours.items()
            for (other, b), m in theirs.items()
            if a == other is not None
        ]
        if how in {"left", "outer"}:
            pairs += [(both(a, c, None), n) for (a, c), n in self.antijoin(None, left, right).items()]
        if how in {"right", "outer"}:
            pairs += [(both(a, None, b), n) for (a, b), n in self.antijoin(None, right, left).items()]
        return Counter({record: max(-2, min(n, 2)) for record, n in added(pairs).items()})

    def compared(self, left: Any, right: Any, function: Callable[[int, int], int]) -> Records:
        ours, theirs = there(self(left)), there(self(right))
        return some(Counter({r: function(ours[r], theirs[r]) for r in {*ours, *theirs}}))

    def union(self, all_: Any, left: Any, right: Any) -> Records:
        return self.compared(left, right, lambda n, m: min(n + m, 2 if all_ else 1))

    def intersect(self, all_: Any, left: Any, right: Any) -> Records:
        return self.compared(left, right, lambda n, m: min(n, m) if all_ else n > 0 and m > 0)

    def subtract(self, all_: Any, left: Any, right: Any) -> Records:
        return self.compared(left, right, lambda n, m: max(n - m, 0) if all_ else n > 0 and m == 0)

    def iterations(self, limit: int) -> list[int]:
        """Whatever enters later than the last iteration takes part in what leaves."""
        return [*range(limit - 1), 3]

    def iterate(self, iterations: Any, _: Any, initial: Any, step: Any) -> Records:
        variable = self(initial)
        for iteration in self.iterations(iterations):
            self.loops.append((iteration, [variable]))
            variable = self(step)
            self.loops.pop()
        return variable

    def until(self, iterations: Any, initial: Any, step: Any) -> Records:
        variable = self(initial)
        for iteration in self.iterations(iterations):
            self.loops.append((iteration, [variable]))
            before, variable = variable, self(step)
            self.loops.pop()
            if sum(n for (a, _), n in (*before.items(), *variable.items()) if a == 3) >= 2:
                break
        return variable

    def mutual(self, iterations: Any, one: Any, two: Any, step_one: Any, step_two: Any) -> Records:
        variables = [self(one), self(two)]
        for iteration in self.iterations(iterations):
            self.loops.append((iteration, variables))
            variables = [self(step_one), self(step_two)]
            self.loops.pop()
        return variables[0]

    def until_fixed(self, variable: Records, step: Any) -> Records:
        while (after := step(variable)) != variable:
            variable = after
        return variable

    def reach(self, _: Any, roots: Any, edges: Any) -> Records:
        start, links = self.distinct(_, roots), self.distinct(_, edges)

        def hop(near: Records) -> Records:
            targets = self.pairs(Counter({(b, a): n for (a, b), n in near.items()}), links)
            return Counter(dict.fromkeys(there(added(targets, start.items())), 1))

        return self.until_fixed(start, hop)

    def least(self, _: Any, labels: Any, edges: Any) -> Records:
        start, links = self.distinct(_, labels), self.distinct(_, edges)

        def smallest(records: Records) -> Records:
            groups = by_key(there(records))
            values = {a: [b for b in held if b is not None] for a, held in groups.items()}
            return Counter({(a, min(of)): 1 for a, of in values.items() if of})

        def hop(best: Records) -> Records:
            targets = added(self.pairs(best, links))
            return smallest(
                added([((node, label), n) for (label, node), n in targets.items()], start.items())
            )

        return self.until_fixed(smallest(start), hop)


# -- the law -------------------------------------------------------------------------------------------------


def flow_of(program: Any, epochs: Any = "manual") -> ts.Dataflow:
    flow = ts.Dataflow("program")
    x, y = (flow.input(name, SCHEMA, epochs=epochs).collection(diff="d") for name in ("x", "y"))
    Build(x, y)(program).changes().capture("out")
    return flow


def expected(program: Any, epochs: int, x: list[Records], y: list[Records]) -> list[Records]:
    def at(of: list[Records], epoch: int) -> Records:
        return of[min(epoch, len(of) - 1)]

    return [Batch(at(x, epoch), at(y, epoch))(program) for epoch in range(epochs)]


HOW: dict[str, Any] = {
    "workers": st.integers(1, 4),
    "seed": st.one_of(st.none(), st.integers(0, 10**6)),
    "together": st.booleans(),
    "budget": BUDGETS,
}


def check_epochs(program: Any, x: Any, y: Any, *, play: Any, came_to: Any, **how: Any) -> None:
    got = came_to(play(flow_of(program), {"x": x, "y": y}, **how)["out"])

    assert got == expected(program, max(len(x), len(y)), came_to(x), came_to(y))


@pytest.mark.slow
@given(program=PROGRAMS, x=EPOCHS, y=EPOCHS, **HOW)
def test_any_program_gives_at_every_epoch_what_a_batch_program_gives(
    *, play: Any, came_to: Any, **drawn: Any
) -> None:
    check_epochs(play=play, came_to=came_to, **drawn)


@pytest.mark.campaign
@pytest.mark.timeout(3600)
@settings(max_examples=2000)
@given(program=PROGRAMS, x=EPOCHS, y=EPOCHS, crashes=st.sampled_from([0, 0.1]), **HOW)
def test_so_it_does_at_length(*, play: Any, came_to: Any, **drawn: Any) -> None:
    check_epochs(play=play, came_to=came_to, **drawn)


@pytest.mark.slow
@settings(max_examples=settings().max_examples // 2)
@given(program=PROGRAMS, x=EPOCHS, y=EPOCHS, workers=st.integers(1, 3), few=st.sampled_from([1, 3]))
def test_keys_of_one_hash_are_distinguished(
    program: Any, x: Any, y: Any, *, workers: int, few: int, play: Any, came_to: Any
) -> None:
    hashes, exact = hashing.hashes, hashing.exact
    with pytest.MonkeyPatch.context() as patch:
        for module in [module for name, module in sys.modules.items() if name.startswith("timely_spark.")]:
            if vars(module).get("hashes") is hashes:
                patch.setattr(module, "hashes", lambda *of: hashes(*of) % np.uint64(few))
            if vars(module).get("exact") is exact:
                patch.setattr(module, "exact", lambda *_: False)

        got = came_to(play(flow_of(program), {"x": x, "y": y}, workers=workers)["out"])

    assert got == expected(program, max(len(x), len(y)), came_to(x), came_to(y))


@pytest.mark.slow
@settings(max_examples=settings().max_examples // 2)
@given(program=PROGRAMS, x=EPOCHS, y=EPOCHS, workers=st.integers(1, 3), seed=st.integers(0, 10**6))
def test_crashes_change_nothing(program: Any, x: Any, y: Any, *, play: Any, came_to: Any, **how: Any) -> None:
    got = came_to(play(flow_of(program), {"x": x, "y": y}, together=True, crashes=0.2, **how)["out"])

    assert got == expected(program, max(len(x), len(y)), came_to(x), came_to(y))


@pytest.mark.slow
@settings(max_examples=settings().max_examples // 2)
@given(
    program=PROGRAMS,
    x=EPOCHS,
    y=EPOCHS,
    workers=st.integers(1, 4),
    seed=st.one_of(st.none(), st.integers(0, 10**6)),
    together=st.booleans(),
)
def test_so_it_is_by_the_clock(program: Any, x: Any, y: Any, *, came_to: Any, **how: Any) -> None:
    epochs = max(len(x), len(y))

    rows_out = ts.testing.run(flow_of(program, "clock"), {"x": x, "y": y}, **how)["out"].rows()

    assert not any(changes for epoch, changes in rows_out.items() if epoch >= epochs)
    got = came_to(rows_out.get(epoch, []) for epoch in range(epochs))
    assert got == expected(program, epochs, came_to(x), came_to(y))


# -- and inside of loops, at every time ----------------------------------------------------------------------


class Stamped(ts.Vertex):
    """Says with each change when it comes: t0, t1, t2."""

    def on_recv(self, edge: int, time: Any, batch: pa.Table) -> None:
        for i, value in enumerate(time.encode()):
            batch = batch.append_column(f"t{i}", pa.array([value] * batch.num_rows, pa.int64()))
        self.send_by(0, time, batch)


def tap(collection: ts.Collection, name: str) -> None:
    """Capture what comes in a loop in a loop, with its times."""
    schema = f"a long, b long, {DIFF} long, t0 long, t1 long, t2 long"
    stamped = collection.stream.flow.vertex(Stamped(), collection.stream, schema)
    stamped.leave().leave().capture(name)


def at_times(rows: list[list[Any]]) -> dict[tuple[int, ...], Records]:
    """What stamped changes have come to at each time there is, and at all joins of times."""
    changes = [row for epoch in rows for row in epoch]
    ends = [max([row[i] for row in changes], default=0) + 1 for i in (3, 4, 5)]
    return {time: acc(changes, time) for time in itertools.product(*map(range, ends))}


def acc(changes: list[Any], time: tuple[int, ...]) -> Records:
    return added(
        ((a, b), n) for a, b, n, *when in changes if all(s <= t for s, t in zip(when, time, strict=True))
    )


def late_inputs(flow: ts.Dataflow) -> list[ts.Collection]:
    """Inputs in a loop in a loop, where they change at times of which none is before the other."""
    outer = flow.scope.inner(name="outer")
    inner = outer.inner(name="inner")
    inputs = (flow.input(name, "a long, b long, i long, j long, d long", epochs="manual") for name in "xy")
    late = [each.collection(diff="d").enter_at(outer, "i").enter_at(inner, "j") for each in inputs]
    return [each.select("a", "b") for each in late]


LAPS = st.integers(0, 2)
LATE = st.lists(
    st.lists(st.tuples(VALUES, VALUES, LAPS, LAPS, st.integers(-2, 2)), max_size=6), min_size=1, max_size=3
)


def check_times(program: Any, x: Any, y: Any, *, play: Any, **how: Any) -> None:
    flow = ts.Dataflow("late")
    inputs = late_inputs(flow)
    for name, late in zip("xy", inputs, strict=True):
        tap(late, f"{name} late")
    tap(Build(*inputs)(program), "out")

    rows_out = play(flow, {"x": x, "y": y}, **how)

    changes = {name: [row for epoch in rows for row in epoch] for name, rows in rows_out.items()}
    times = at_times([[row for rows in changes.values() for row in rows]])
    for time in times:
        batch = Batch(acc(changes["x late"], time), acc(changes["y late"], time))
        assert acc(changes["out"], time) == batch(program), time


@pytest.mark.slow
@given(program=PROGRAMS, x=LATE, y=LATE, **HOW)
def test_so_it_is_at_times_of_which_none_is_before_the_other(*, play: Any, **drawn: Any) -> None:
    check_times(play=play, **drawn)


@pytest.mark.campaign
@pytest.mark.timeout(3600)
@settings(max_examples=2000)
@given(program=PROGRAMS, x=LATE, y=LATE, crashes=st.sampled_from([0, 0.1]), **HOW)
def test_so_it_is_there_at_length(*, play: Any, **drawn: Any) -> None:
    check_times(play=play, **drawn)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*UNARY, *BINARY])
@settings(max_examples=settings().max_examples // 10)
@given(
    x=EPOCHS,
    y=EPOCHS,
    shared=st.booleans(),
    workers=st.integers(1, 3),
    seed=st.one_of(st.none(), st.integers(0, 10**6)),
    together=st.booleans(),
)
def test_so_it_is_with_what_goes_round(
    name: str, x: Any, y: Any, *, shared: bool, play: Any, **how: Any
) -> None:
    program = (name, shared, "variable", "other") if name in BINARY else (name, shared, "variable")
    flow = ts.Dataflow("round")
    given_ = [flow.input(name, SCHEMA, epochs="manual").collection(diff="d") for name in ("x", "y")]
    build = Build(*given_)

    def within(outside: ts.Collection) -> ts.Collection:
        def iteration(inside: ts.Collection) -> ts.Collection:
            build.loops = [(outside.scope, [outside]), (inside.scope, [inside])]
            made = build(program)
            tap(inside, "variable")
            tap(outside.enter(inside.scope), "other")
            tap(made, "out")
            build.loops = []
            return made.concat(outside)

        return outside.iterate(iteration, **at_most(3)).distinct()

    given_[0].concat(given_[1]).iterate(within, **at_most(3)).changes().capture("result")

    rows_out = play(flow, {"x": x, "y": y}, **how)

    changes = {name: [row for epoch in rows for row in epoch] for name, rows in rows_out.items()}
    del changes["result"]
    for time in at_times([[row for rows in changes.values() for row in rows]]):
        batch = Batch(Counter(), Counter(), [])
        batch.loops = [(0, [acc(changes["other"], time)]), (0, [acc(changes["variable"], time)])]
        assert acc(changes["out"], time) == batch(program), time


@pytest.mark.slow
def test_what_iterations_undo_does_not_leave() -> None:
    flow = ts.Dataflow("path")
    edges = flow.input("edges", "src long, dst long, diff long").collection(diff="diff")
    links = edges.concat(edges.select(src="dst", dst="src"))
    labels = links.select(node="src", label="src")

    def least(found: ts.Collection) -> ts.Collection:
        moved = found.join(links, left="node", right="src").select("label", node="dst")
        return moved.select("node", "label").concat(labels).min("label", keys="node")

    labels.iterate(least).stream.select("node", "label").capture("left")
    path = [(node, node + 1, 1) for node in range(12)]  # its last node has twelve labels, one after the other
    cut = [(5, 6, -1)]

    left = ts.testing.run(flow, {"edges": [path, cut]}, workers=2)["left"].rows()

    assert sorted(left[0]) == [(node, 0) for node in range(13)]
    assert sorted(left[1]) == sorted((node, label) for node in range(6, 13) for label in (0, 6))
