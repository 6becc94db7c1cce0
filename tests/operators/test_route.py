"""exchange, broadcast, concat, delay, enter, leave, and loops."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import timely_spark as ts
from timely_spark.errors import GraphError, SchemaError
from timely_spark.testing import Simulation, run


class Where(ts.Vertex):
    """On which worker a record is."""

    def on_recv(self, edge: int, time: Any, batch: pa.Table) -> None:
        self.send_by(0, time, pa.table({"n": batch["n"], "at": [self.worker] * batch.num_rows}))


def places(build: Any, workers: int) -> list[tuple[int, int]]:
    flow = ts.Dataflow("places")
    flow.vertex(Where(), build(flow.input("x", "n long")), "n long, at long").capture("out")
    return run(flow, {"x": [[1, 2, 3, 4, 1, 2, 3, 4]]}, workers=workers)["out"].rows()[0]


@pytest.mark.parametrize("workers", [1, 2, 3, 8])
def test_exchange_brings_equal_keys_to_one_worker(workers: int) -> None:
    rows = places(lambda x: x.exchange("n"), workers)

    assert len(rows) == 8
    assert len(set(rows)) == 4
    if workers > 1:
        assert len({at for _, at in rows}) > 1


@pytest.mark.parametrize("workers", [1, 3])
def test_broadcast_sends_each_record_to_every_worker(workers: int) -> None:
    assert places(lambda x: x.broadcast(), workers) == sorted(
        (n, w) for n in (1, 1, 2, 2, 3, 3, 4, 4) for w in range(workers)
    )
    flow = ts.Dataflow("copies")
    x = flow.input("x", "n long")
    x.broadcast().group_by("n").count().capture("out")
    x.group_by("n").count("c").broadcast(name="late").exchange("n").aggregate(total=("sum", "c")).capture(
        "behind"
    )
    result = run(flow, {"x": [[5]]}, workers=workers)
    assert result["out"].rows() == {0: [(5, workers)]}
    assert result["behind"].rows() == {0: [(workers,)]}


def test_concat_requires_one_schema() -> None:
    flow = ts.Dataflow("concat")
    x = flow.input("x", "n long")

    with pytest.raises(SchemaError, match=r"(?s)n int64.*m int64.*Hint"):
        x.concat(flow.input("y", "m long"))


def test_delay_shifts_epochs() -> None:
    flow = ts.Dataflow("delay")
    x = flow.input("x", "n long")
    x.delay(2).concat(x).group_by("n").aggregate(n_="count", per="time").capture("out")

    assert run(flow, {"x": [[1], [], [1], [2]]}, workers=2)["out"].rows() == {
        0: [(1, 1)], 1: [], 2: [(1, 2)], 3: [(2, 1)]
    }  # fmt: skip
    with pytest.raises(GraphError, match="an integer from 0 on"):
        x.delay(-1)


def test_max_iterations_is_how_often_the_step_is_applied() -> None:
    for most in (1, 2, 5):
        flow = ts.Dataflow("iterations")
        step = lambda x: x.map(lambda row: row.n + 1, "n long")  # noqa: E731
        flow.input("x", "n long").loop(step, max_iterations=most, on_limit="return").capture("out")
        for workers in (1, 2):
            rows = run(flow, {"x": [[0]]}, workers=workers)["out"].rows()
            assert rows == {0: [(i + 1,) for i in range(most)]}


def test_a_loop_may_read_outer_streams_and_several_streams_may_leave() -> None:
    flow = ts.Dataflow("several")
    limit = flow.input("limit", "n long, until long")

    def step(x: ts.Stream) -> tuple[ts.Stream, ...]:
        limited = x.join(x.scope.enter(limit), on=["n"])
        parts = limited.map(lambda row: (row.n, row.v + 1, row.until), "n long, v long, until long").branch(
            lambda row: row.v < row.until
        )
        return parts.trues.select("n", "v"), parts.trues.select("v"), parts.falses.select("n", "v")

    some, last = flow.input("x", "n long, v long").loop(step)
    some.capture("some")
    last.capture("last")
    for workers in (1, 3):
        result = run(flow, {"x": [[(1, 0), (2, 5)]], "limit": [[(1, 3), (2, 7)]]}, workers=workers)
        assert result["some"].rows() == {0: [(1,), (2,), (6,)]}
        assert result["last"].rows() == {0: [(1, 3), (2, 7)]}


@pytest.mark.slow
def test_three_nested_loops() -> None:
    flow = ts.Dataflow("three")

    def nest(x: ts.Stream, depth: int) -> ts.Stream:
        if depth == 0:
            return x.map(lambda row: row.n + 1, "n long").exchange("n")
        return x.loop(
            lambda inner: nest(inner, depth - 1), max_iterations=2, on_limit="return", name=f"loop{depth}"
        )

    nest(flow.input("x", "n long"), 3).distinct().capture("out")
    expected = run(flow, {"x": [[0]]})["out"].rows()
    assert expected[0][-1] == (8,)
    for workers in (2, 3):
        for seed in (None, 5):
            assert run(flow, {"x": [[0]]}, workers=workers, seed=seed)["out"].rows() == expected


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda x: x.leave(), "is in no loop"),
        (lambda x: x.scope.variable("n long"), "the outermost scope is not a loop"),
        (lambda x: x.scope.inner(max_iterations=0), "max_iterations=0"),
        (lambda x: x.loop(lambda n: None), "loop: the step returned None, not a stream"),
        (lambda x: x.loop(lambda n: n.capture()), "is inside loop"),
        (lambda x: x.scope.inner().variable(x).feed(x), "is in no loop"),
        (lambda x: x.concat("y"), "got a str|'str'"),
        (lambda x: x.scope.enter(x.scope.inner().enter(x)), "not around"),
    ],
)
def test_invalid_arguments_are_refused_when_the_graph_is_built(build: Any, message: str) -> None:
    with pytest.raises(ts.TimelyError, match=f"(?s)({message}).*Hint: "):
        build(ts.Dataflow("bad").input("x", "n long"))


def test_a_variable_is_fed_once_and_with_its_own_schema() -> None:
    flow = ts.Dataflow("feed")
    scope = flow.scope.inner()
    variable = scope.variable(flow.input("x", "n long"))
    with pytest.raises(SchemaError, match=r"(?s)m int64.*n int64.*Hint"):
        variable.feed(variable.select(m="n"))
    variable.feed(variable)
    with pytest.raises(GraphError, match="fed already"):
        variable.feed(variable)


@pytest.mark.slow
def test_a_loop_that_never_ends_is_reported_by_the_simulator() -> None:
    flow = ts.Dataflow("endless")
    flow.input("x", "n long").loop(lambda x: x.map(lambda row: row.n + 1, "n long").exchange("n")).capture(
        "out"
    )
    simulation = Simulation(flow, workers=2)
    simulation.send("x", [1])

    with pytest.raises(ts.TimelyError, match=r"(?s)still runs after 3 batches.*\nHint"):
        simulation.run(limit=3)


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("made", [lambda x: x.distinct(), lambda x: x.loop(lambda n: n.distinct())])
def test_each_copy_of_a_record_that_is_not_final_counts(made: Any, workers: int) -> None:
    flow = ts.Dataflow("copies")
    made(flow.input("x", "n long")).broadcast().capture("out")

    out = ts.testing.run(flow, {"x": [[1, 1, 2]]}, workers=workers)["out"].rows()
    assert out == {0: [(n,) for n in (1, 2) for _ in range(workers)]}
