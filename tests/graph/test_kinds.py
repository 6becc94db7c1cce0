"""A stage is treated by its kind alone, whatever its name."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import timely_spark as ts
from timely_spark.graph import Kind

#: what vertices may be called: after each kind, and after what operators show in `explain`
NAMES = [*(kind.name.title() for kind in Kind), "Settle", "Distinct", "Loop", "Arrange", "Collection"]


def passing(name: str) -> ts.Vertex:
    """A vertex of a class of that name, which passes on what comes."""

    def on_recv(self: Any, edge: int, time: Any, batch: pa.Table) -> None:
        self.send_by(0, time, batch)

    made = type(name, (ts.Vertex,), {"on_recv": on_recv})
    return made()  # type: ignore[no-any-return]


@pytest.mark.slow
@pytest.mark.share(4)
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("name", NAMES)
def test_a_users_vertex_may_have_any_class_name(name: str, workers: int) -> None:
    flow = ts.Dataflow("flow")
    x = flow.input("x", "n long")
    before = flow.vertex(passing(name), x, "n long", by="n")

    def step(n: ts.Stream) -> tuple[ts.Stream, ts.Stream]:
        inside = flow.vertex(passing(name), n, "n long")
        return inside.map(lambda row: row.n - 1, "n long").where(lambda row: row.n >= 0), inside

    down = before.loop(step)
    flow.vertex(passing(name), down.distinct(), "n long").capture("out")
    assert passing(name).__class__.__name__.lower() in {stage.operator for stage in flow.graph.stages}
    assert name.lower() in flow.to_mermaid()
    made = ts.testing.run(flow, {"x": [[2, 3], [5]]}, workers=workers, seed=3)
    assert made["out"].rows() == {0: [(n,) for n in range(4)], 1: [(4,), (5,)]}


def test_a_users_vertex_called_source_is_no_input_of_the_plan() -> None:
    flow = ts.Dataflow("flow")
    flow.vertex(passing("Source"), flow.input("x", "n long"), "n long").capture("out")

    assert flow.compile(2).sources == ("x",)
    assert [stage.kind for stage in flow.graph.stages] == [Kind.SOURCE, Kind.VERTEX, Kind.OUTPUT]


def test_a_kind_moves_records_or_ends_a_flow_or_neither() -> None:
    assert {kind for kind in Kind if kind.is_end} == {Kind.OUTPUT, Kind.INSPECT, Kind.PROBE}
    neither = {kind for kind in Kind if not kind.is_end and not kind.is_routing}
    assert neither == {Kind.SOURCE, Kind.VERTEX, Kind.SELECT}
