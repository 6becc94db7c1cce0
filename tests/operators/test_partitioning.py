"""Partition functions of the user, guarantees of vertices, and regions on some of the workers."""

from __future__ import annotations

from typing import Any

import networkx as nx
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import timely_spark as ts
from tests.operators.test_route import Where
from tests.support.rescaling import move
from timely_spark.errors import BadArgument, GraphError, SchemaError, VertexError
from timely_spark.testing import Simulation, run

N = pc.field("n")
VALUES = [0, 1, 5, 8, -1, -7, 2**62, None]


def exchanges(flow: ts.Dataflow, workers: int = 3) -> int:
    """Those between workers, which cost a round."""
    return sum(c.exchange is not None and c.source is not None for c in flow.compile(workers).channels)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2, 3, 8])
@pytest.mark.parametrize("kind", ["int64", "int8", "uint64"])
def test_a_record_goes_to_the_worker_of_its_number(workers: int, kind: str) -> None:
    if kind == "uint64":
        values: Any = [2**64 - 1, 7, None]
    else:
        values = [n for n in VALUES if kind == "int64" or n is None or n < 100]
    flow = ts.Dataflow("h")
    rows = flow.input("x", pa.schema({"n": kind}))
    rows = rows if kind == "int8" else rows.exchange("n").distinct()
    flow.vertex(Where(), rows.exchange(by=N), pa.schema({"n": kind, "at": "int64"}), name="v").capture("a")
    flow.vertex(Where(), rows, pa.schema({"n": kind, "at": "int64"}), by=N, name="w").capture("b")
    outputs = run(flow, {"x": [pa.table({"n": pa.array(values, kind)})]}, workers=workers)

    expected = sorted(((n, (n or 0) % workers) for n in values), key=str)
    for name in "ab":
        assert sorted(outputs[name].rows()[0], key=str) == expected


def test_an_exchange_by_the_same_function_is_elided() -> None:
    flow = ts.Dataflow("elided")
    rows = flow.input("x", "n long").exchange("n").distinct()
    first = flow.vertex(Where(), rows.exchange(by=N), "n long, at long", by=pc.field("n"), name="first")
    assert exchanges(flow) == 1
    first.exchange(by=N).capture("again")  # nobody says that the vertex keeps n where it is
    assert exchanges(flow) == 2


def test_wrong_partition_functions_are_refused() -> None:
    x = ts.Dataflow("wrong").input("x", "n long, word string")
    with pytest.raises(
        SchemaError, match=r"(?s)of type (float|double), not an integer.*test_partitioning.py.*Hint: cast"
    ):
        x.exchange(by=N * 0.5)
    with pytest.raises(
        SchemaError, match=r"(?s)has no value in records of \(n int64, word.*Hint: use the columns"
    ):
        x.unary(lambda time, batch: batch, "n long", by=pc.field("m"))
    with pytest.raises(GraphError, match=r"(?s)keys=\['n'\].*Hint: give columns, or"):
        x.exchange("n", by=N)
    with pytest.raises(SchemaError, match=r"(?s)of type string, not an integer.*Hint: cast"):
        x.exchange(by="word")


class Doubled(ts.Vertex):
    """Keeps k, or not."""

    def __init__(self, by: int) -> None:
        self.by = by

    def on_recv(self, edge: int, time: Any, batch: pa.Table) -> None:
        self.send_by(0, time, pa.table({"k": pc.add(batch["k"], self.by), "n": batch["k"]}))


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2, 3, 8])
def test_behind_a_guarantee_there_is_no_exchange(workers: int) -> None:
    def build(by: int, guarantees: str | None) -> ts.Dataflow:
        flow = ts.Dataflow("guarantees")
        keys = flow.input("x", "k long")
        doubled = flow.vertex(
            Doubled(by), keys, "k long, n long", by="k", guarantees=guarantees, name="doubled"
        )
        doubled.group_by("k").count("rows").capture("out")
        return flow

    data = {"x": [[1, 2, 3, 3], [3, 4, 5, 6]]}
    plain, promised = build(0, None), build(0, "k")
    assert (
        run(promised, data, workers=workers)["out"].rows() == run(plain, data, workers=workers)["out"].rows()
    )
    assert (exchanges(plain), exchanges(promised)) == (1, 0)
    if workers == 1:
        return
    with pytest.raises(
        VertexError, match=r"(?s)'doubled' guarantees .* by k, and worker . sends records of worker.*Hint"
    ) as raised:
        run(build(1, "k"), data, workers=workers)
    assert "test_partitioning.py" in str(raised.value)


def test_a_guarantee_names_columns_of_the_output() -> None:
    flow = ts.Dataflow("guarantees")
    with pytest.raises(SchemaError, match=r"asks for columns \['m'\], output 0 has"):
        flow.vertex(Doubled(0), flow.input("x", "k long"), "k long, n long", by="k", guarantees="m")


# -- regions -------------------------------------------------------------------------------------------------


def reach(workers: list[int] | None, region: str = "part") -> ts.Dataflow:
    flow = ts.Dataflow("reach")
    edges, roots = flow.input("edges", "src long, dst long"), flow.input("roots", "node long")

    def hop(reached: ts.Stream) -> ts.Stream:
        targets = reached.join(reached.scope.enter(edges), left=["node"], right=["src"], name="hops")
        return targets.select(node="dst").concat(reached).distinct(name="near")

    with flow.region(region, workers=workers):
        near = roots.loop(hop, name="loop")
    near.select(n="node", parity=pc.bit_wise_and(pc.field("node"), 1)).group_by("parity").count(
        "rows", name="counted"
    ).capture("counts")
    near.capture("near")
    return flow


EDGES = [(i, i + 1) for i in range(12)] + [(20, 21), (3, 40), (40, 1)]


@pytest.mark.slow
@pytest.mark.share(2)
@pytest.mark.parametrize("workers", [1, 2, 3, 8])
def test_a_region_on_some_workers_gives_the_same_answer(workers: int) -> None:
    data = {"edges": [EDGES[:6], EDGES[6:]], "roots": [[0], [20]]}
    expected = run(reach(None), data, workers=workers)
    nodes = [node for rows in expected["near"].rows().values() for (node,) in rows]
    graph = nx.DiGraph(EDGES)
    assert set(nodes) == {0, 20} | nx.descendants(graph, 0) | nx.descendants(graph, 20)
    for only in ([0], [workers - 1], sorted({0, workers - 1})):
        outputs = run(reach(only), data, workers=workers)
        for name in ("near", "counts"):
            assert outputs[name].rows() == expected[name].rows()


@pytest.mark.slow
def test_a_loop_on_one_worker_is_one_round() -> None:
    rounds = {}
    for only in (None, [2]):
        simulation = Simulation(reach(only), workers=4, seed=1)
        simulation.send("edges", EDGES)
        simulation.send("roots", [0])
        simulation.run()
        rounds[str(only)] = simulation.rounds
    assert rounds["[2]"] < 5 < rounds["None"]


def test_a_region_gets_records_on_its_workers_only_also_after_a_rescale() -> None:
    flow = ts.Dataflow("where")
    with flow.region("two", workers=[1, 2]):
        seen = flow.input("x", "n long").distinct(name="seen")
        flow.vertex(Where(), seen, "n long, at long", name="where").capture("out")
    simulation = Simulation(flow, workers=3)
    for workers, numbers in ((3, range(20)), (5, range(10, 40)), (4, range(50))):
        if workers != 3:
            move(simulation, flow, workers)
        simulation.send("x", list(numbers))
        simulation.run()
    rows = [row for rows in simulation.captured["out"].rows().values() for row in rows]
    assert sorted(n for n, _ in rows) == list(range(50))
    assert {at for _, at in rows} == {1, 2}


def test_steps_are_named_after_their_region_and_drawn_with_it() -> None:
    flow = reach(None)
    names = [stage.name for stage in flow.graph.stages]
    assert {"edges", "roots", "part.loop.hops", "part.loop.near", "counted"} <= set(names)
    assert flow.compile().by_name["part.loop.near"].stage.scope.name == "part.loop"
    assert "part.loop" in flow.to_mermaid()
    flow = ts.Dataflow("nested")
    with flow.region("a"), flow.region("b"):
        one = flow.input("x", "n long").distinct(name="one")
    with pytest.raises(GraphError, match="has the name of the step at"), flow.region("a"):
        pass
    assert (one.name, one.distinct(name="one").name) == ("a.b.one", "one")


def test_wrong_regions_are_refused() -> None:
    flow = ts.Dataflow("wrong")
    for workers in ([], [0, 0], [-1], ["a"]):
        with pytest.raises(BadArgument, match="workers="), flow.region("r", workers=workers):  # type: ignore[arg-type]
            pass
    x = flow.input("x", "n long")
    with flow.region("r", workers=[0, 4]):
        x.distinct(name="seen").capture("out")
    with pytest.raises(
        GraphError, match=r"(?s)'r.seen' is in a region on workers \(0, 4\); the flow has 4.*Hint"
    ):
        flow.compile(4)
    assert flow.compile(5)
    with flow.region("s", workers=[0]):
        flow.vertex(Where(), x, "n long, at long", name="where").capture("where")
    with pytest.raises(
        GraphError, match=r"(?s)'s.where' .* gets records from any worker.*Hint: say by which"
    ):
        flow.compile(5)
