"""Checks of user-defined times: their laws, on a few sample times."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import product
from typing import Any

from timely_spark.times.lexicographic import LEXICOGRAPHIC
from timely_spark.times.product import PRODUCT
from timely_spark.times.timestamp import Times


def only_epochs(times: Times) -> bool:
    """Whether the times outside of loops are plain epochs, which are totally ordered.

    >>> only_epochs(PRODUCT), only_epochs(LEXICOGRAPHIC)
    (True, True)
    """
    return times in (PRODUCT, LEXICOGRAPHIC)


def broken_law(times: Times) -> str | None:
    """A law that some sample times of a kind break, in words; None means all samples keep all laws.

    >>> from timely_spark.times import NestedTimes, Summary, Time
    >>> class Late(Time):
    ...     @property
    ...     def epoch(self):
    ...         return self[0] + 1
    >>> broken_law(NestedTimes(Late, Summary))
    'epoch(0).epoch is 1, and must be 0'
    """
    try:
        return None if only_epochs(times) else next(_broken(times), None)
    except Exception as error:  # noqa: BLE001 - any error of the user's class
        return f"{type(error).__name__}: {error}"


def _broken(times: Times) -> Iterator[str]:
    epochs = [times.epoch(n) for n in range(3)]
    iteration = times.feedback(1)
    inside: list[Any] = [times.enter(0).results_in(time) for time in epochs]
    iterations: list[Any] = [iteration.results_in(time) for time in inside]
    for n, time in enumerate(epochs):
        if time.epoch != n:
            yield f"epoch({n}).epoch is {time.epoch!r}, and must be {n}"
        if times.leave(1).results_in(inside[n]) != time:
            yield f"to enter a loop and to leave it does not lead from {time!r} back to it"
        if inside[n] == iterations[n] or not inside[n].less_equal(iterations[n]):
            yield f"an iteration must lead to a later time than {inside[n]!r}"
    for (m, a), (n, b) in product(enumerate(epochs), repeat=2):
        if a.less_equal(b) != (m <= n):
            yield f"epoch({m}) <= epoch({n}) is {a.less_equal(b)}"
    for depth, kind in enumerate((epochs, [*inside, *iterations])):
        for time in kind:
            yield from _time(times, time, depth)
        for a, b in product(kind, repeat=2):
            yield from _pair(a, b)
    yield from _paths(times.identity(0), times.enter(0), times.leave(1), iteration, times.delay(0, 1))


def _paths(*paths: Any) -> Iterator[str]:
    for path in paths:
        if " at 0x" in repr(path):
            yield f"repr() of the path {path!r} is another one in each process, and a restart compares it"


def _time(times: Times, time: Any, depth: int) -> Iterator[str]:
    key = time.order_key()
    if not isinstance(key, tuple) or len(key) != 1 + depth:
        yield f"{time!r}.order_key() is {key!r}, and must be a tuple of {1 + depth}: one entry per coordinate"
    encoded = time.encode()
    if times.decode(json.loads(json.dumps(encoded))) != time:
        yield f"{time!r} is encoded as {encoded!r}, which is not decoded to it"
    if type(time) is not type(times.epoch(0)) or type(time) in {int, str, tuple}:
        yield f"{time!r} must be of the one class of its own that all times of the kind are of"
    if times.identity(depth).results_in(time) != time:
        yield f"identity({depth}).results_in({time!r}) is another time"
    if not times.coarse(time, frozenset(range(depth))).less_equal(time):
        yield f"coarse({time!r}, ...) is not before it"


def _pair(a: Any, b: Any) -> Iterator[str]:
    before = a.less_equal(b)
    if before and a.epoch > b.epoch:
        yield f"{a!r} <= {b!r}, though of a later epoch"
    if before and a != b and not a.order_key() < b.order_key():
        yield f"{a!r} < {b!r}, and their order_key() say otherwise"
    if before and b.less_equal(a) and hash(a) != hash(b):
        yield f"{a!r} and {b!r} are each before the other, and must be equal"
    both = a.join(b)
    if not (a.less_equal(both) and b.less_equal(both)) or (before and both != b):
        yield f"{a!r}.join({b!r}) is {both!r}, not their least upper bound"
