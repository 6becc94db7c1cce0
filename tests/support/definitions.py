"""The results of operators on streams by their definitions, at times of any lawful kind."""

from __future__ import annotations

import functools
import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import pyarrow.compute as pc
from hypothesis import Phase, settings

import timely_spark as ts
from timely_spark.times import Antichain

Items = Counter[tuple[Any, tuple[int, int]]]
"""Records (key, value), each with its time and how often it is there."""


def closed(times: set[Any]) -> set[Any]:
    """The times, and all joins of several of them."""
    joins: set[Any] = set()
    for time in times:
        joins |= {time, *(time.join(other) for other in joins)}
    return joins


def of_key(items: Items, key: Any) -> dict[Any, list[int]]:
    """A key's values by time."""
    values: dict[Any, list[int]] = {}
    for (time, (k, v)), n in items.items():
        if k == key:
            values.setdefault(time, []).extend([v] * n)
    return values


def keys(items: Items) -> set[int]:
    return {k for _, (k, _) in items}


def distinct(items: Items) -> Items:
    results = Items()
    for record in {record for _, record in items}:
        results.update((time, record) for time in Antichain(time for time, other in items if other == record))
    return results


def best(items: Items, choose: Callable[..., int]) -> Items:
    results = Items()
    for key in keys(items):
        by_time = of_key(items, key)
        for time, values in by_time.items():
            before = [v for at, vs in by_time.items() if at != time and at.less_equal(time) for v in vs]
            if not before or choose([*before, *values]) != choose(before):
                results[time, (key, choose(values))] += 1
    return results


def added(items: Items, total: Callable[[list[int]], int], *, accumulate: bool = True) -> Items:
    results = Items()
    for key in keys(items):
        by_time = of_key(items, key)
        for time in closed(set(by_time)) if accumulate else by_time:
            values = [
                v for at, vs in by_time.items() if at == time or accumulate for v in vs if at.less_equal(time)
            ]
            results[time, (key, total(values))] += 1
    return results


def joined(items: Items, *, accumulate: bool = True) -> Items:
    results = Items()
    for (at, (k, v)), n in items.items():
        for (time, (key, value)), m in items.items():
            if k == key and (accumulate or at == time):
                results[at.join(time), (k, v + 10 * value)] += n * m
    return results


def shifted(items: Items) -> Items:
    results = Items()
    for (time, (k, v)), n in items.items():
        results[time, ((k + 1) % 3, v)] += n
    return results


def shift(stream: ts.Stream) -> ts.Stream:
    return stream.map(lambda row: ((row.k + 1) % 3, row.v), "k long, v long")


def paired(stream: ts.Stream, per: str) -> ts.Stream:
    pairs = stream.join(stream.select(k="k", w="v"), on="k", per=per)
    return pairs.select(k="k", v=pc.add(pc.field("v"), pc.multiply(pc.field("w"), 10)))


def by_function(time: Any, batch: Any) -> list[tuple[int, int]]:
    sums: dict[int, int] = {}
    for row in batch.to_pylist():
        sums[row["k"]] = sums.get(row["k"], 0) + row["v"]
    return list(sums.items())


Operator = tuple[Callable[[ts.Stream], ts.Stream], Callable[[Items], Items]]

OPERATORS: dict[str, Operator] = {
    "shift": (shift, shifted),
    "twice": (lambda s: s.concat(s), lambda items: items + items),
    "distinct": (lambda s: s.distinct(), distinct),
    "min": (lambda s: s.min("v", keys="k"), functools.partial(best, choose=min)),
    "max": (lambda s: s.max("v", keys="k"), functools.partial(best, choose=max)),
    "sum": (lambda s: s.group_by("k").aggregate(v=("sum", "v")), functools.partial(added, total=sum)),
    "count": (lambda s: s.group_by("k").count("v"), functools.partial(added, total=len)),
    "sum per time": (
        lambda s: s.group_by("k").aggregate(v=("sum", "v"), per="time"),
        functools.partial(added, total=sum, accumulate=False),
    ),
    "join": (lambda s: paired(s, "accumulated"), joined),
    "join per time": (lambda s: paired(s, "time"), functools.partial(joined, accumulate=False)),
    "unary": (lambda s: s.unary(lambda _, batch: batch, "k long, v long", by="k"), Items),
    "unary_notify": (
        lambda s: s.unary_notify(by_function, "k long, v long", by="k"),
        functools.partial(added, total=sum, accumulate=False),
    ),
    "binary_notify": (
        lambda s: s.binary_notify(
            shift(s), lambda time, _, batch: by_function(time, batch), "k long, v long", by=("k", "k")
        ),
        lambda items: added(shifted(items), sum, accumulate=False),
    ),
    "exchange": (lambda s: s.exchange("v"), Items),
}
#: of tests of flows with all operators: the example alone, and more in a campaign
FEW = settings(
    max_examples=settings().max_examples // 10,
    phases=[*Phase] if settings().max_examples > 100 else [Phase.explicit],
)
ITERATIONS = 2


def looped(step: Callable[[Items], Items], times: Any, depth: int = 0) -> Callable[[Items], Items]:
    """A loop of `ITERATIONS` iterations: the records of one iteration are the input of the next one.

    `times`: the kind of time around the loop, with so many coordinates beside the epoch.
    """
    enter, feedback, leave = times.enter(depth), times.feedback(depth + 1), times.leave(depth + 1)

    def answer(items: Items) -> Items:
        seen, left = Items(), Items()
        begins = Items({(enter.results_in(time), record): n for (time, record), n in items.items()})
        for _ in range(ITERATIONS):
            seen += begins
            fresh = {time.encode()[-1] for time, _ in begins}
            new = Items({item: n for item, n in shifted(step(seen)).items() if item[0].encode()[-1] in fresh})
            for (time, record), n in new.items():
                left[leave.results_in(time), record] += n
            begins = Items({(feedback.results_in(time), record): n for (time, record), n in new.items()})
        return left

    return answer


def with_time(time: Any, batch: Any) -> list[tuple[int, int, str]]:
    return [(row["k"], row["v"], json.dumps(time.encode())) for row in batch.to_pylist()]
