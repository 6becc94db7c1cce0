"""Arguments of the same kind are checked alike, wherever they are given: numpy's numbers are numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import timely_spark as ts


def edges() -> Any:
    return ts.Dataflow("x").input("x", "src long, dst long").collection()


def stream() -> Any:
    return ts.Dataflow("x").input("x", "src long, dst long")


def vectors() -> Any:
    return ts.Dataflow("x").input("x", "v array<double>")


def twice(table: Any) -> Any:
    return table


def nearest(**options: Any) -> Any:
    ours = stream()
    return ours.asof_join(ours.flow.input("y", "src long, n long"), "src", **options)


def files(**options: Any) -> Any:
    return ts.Dataflow("x").files("x", "folder", schema="n long", **options)


INTEGERS: dict[str, Callable[[Any], object]] = {
    "workers": lambda n: ts.testing.run(stream().capture("out").flow, {}, workers=n),
    "limit": lambda n: ts.testing.Simulation(stream().capture("out").flow).run(n),
    "k of k_core": lambda n: ts.graphs.k_core(edges(), n),
    "iterations of pagerank": lambda n: ts.graphs.pagerank(edges(), iterations=n),
    "unit of pagerank": lambda n: ts.graphs.pagerank(edges(), unit=n),
    "tolerance of pagerank": lambda n: ts.graphs.pagerank(edges(), iterations=None, tolerance=n),
    "iterations of cdlp": lambda n: ts.graphs.cdlp(edges(), iterations=n),
    "k of top_k": lambda n: stream().top_k(n, "dst", keys="src"),
    "k of a collection's top_k": lambda n: edges().top_k(n, "dst", keys="src"),
    "max_iterations": lambda n: stream().loop(lambda hops: hops, max_iterations=n),
    "expire": lambda n: stream().expire(n),
    "expire of min": lambda n: stream().min("dst", keys="src", expire=n),
    "epochs of delay": lambda n: stream().delay(n or -1),
    "step of every": lambda n: edges().window("src", ts.every(n)),
    "gap of sessions": lambda n: edges().window("src", ts.sessions(n), keys="dst"),
    "lateness of window": lambda n: stream().window("src", ts.every(1), lateness=n or -1),
    "tolerance of asof_join": lambda n: nearest(tolerance=n or -1),
    "expire of asof_join": lambda n: nearest(expire=n),
    "files_per_epoch": lambda n: files(files_per_epoch=n),
    "max_bytes_per_epoch": lambda n: files(max_bytes_per_epoch=n),
    "max_jump": lambda n: files(epoch="n", max_jump=n),
    "up_to": lambda n: stream().count_distinct("n", keys="src", up_to=n),
    "rows of call": lambda n: stream().call(twice, "n long", rows=n),
    "attempts of pipe": lambda n: stream().pipe("cat", "n long", attempts=n),
    "parts of all_reduce": lambda n: ts.all_reduce(vectors(), "v", parts=n),
}
WRONG = [0, -1, 1.0, np.float64(1), "1", True, np.True_, [1]]


@pytest.mark.slow
@pytest.mark.parametrize("what", INTEGERS)
def test_an_integer_may_be_one_of_numpy(what: str) -> None:
    for number in (3, np.int64(3), np.uint8(3)):
        INTEGERS[what](number)


@pytest.mark.slow
@pytest.mark.share(3)
@pytest.mark.parametrize("what", INTEGERS)
@pytest.mark.parametrize("wrong", WRONG, ids=repr)
def test_anything_else_is_refused_with_the_line(what: str, wrong: Any) -> None:
    if what == "parts of all_reduce" and wrong == [1]:
        return  # the keys of the parts
    with pytest.raises(ts.TimelyError, match=r"(?s)test_arguments\.py:\d+.*Hint: "):
        INTEGERS[what](wrong)


@pytest.mark.parametrize("number", [np.int64(3), np.uint8(3)])
def test_an_integer_of_numpy_is_stored_as_an_int(number: Any) -> None:
    read = files(files_per_epoch=number, max_bytes_per_epoch=number, epoch="n", max_jump=number)
    source = read.flow.frames["x"]
    expire = stream().min("dst", keys="src", expire=number).stage.vertex.expire
    stored = [source.files_per_epoch, source.max_bytes_per_epoch, read.stage.max_jump, expire]
    assert [(type(one), one) for one in stored] == [(int, 3)] * 4


@pytest.mark.parametrize("kind", [np.float32, np.float64, float])
def test_a_fraction_may_be_one_of_numpy(kind: type[Any]) -> None:
    assert ts.graphs.pagerank(edges(), damping=kind(0.85)).stream.schema.names
    flow = stream().capture("out").flow
    assert ts.testing.run(flow, {}, crashes=kind(0.5), seed=1) == ts.testing.run(flow, {})


def test_a_seed_of_numpy_draws_what_the_int_draws() -> None:
    seeds = 3, np.int64(3)
    one, other = (ts.testing.Simulation(stream().capture("out").flow, seed=seed) for seed in seeds)
    assert one.schedule.random.getstate() == other.schedule.random.getstate()
