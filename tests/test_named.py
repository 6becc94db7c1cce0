"""Every public operator takes a name, and names its parts after it: so any flow may be changed and go on."""

from __future__ import annotations

import inspect
import json
import re
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import timely_spark as ts
from tests.support.rescaling import continued
from tests.support.turns import in_turn
from timely_spark.coordinator.migration import FlowChanged
from timely_spark.differential import CollectionVariable
from timely_spark.operators.finalise import finalise_graph
from timely_spark.operators.group_by import Grouped
from timely_spark.testing import Simulation

Build = Callable[[Any, Any], Any]


class Pass(ts.Vertex):
    """Passes on what comes, and keeps how much it was."""

    def __init__(self) -> None:
        self.rows = 0

    def on_recv(self, edge: int, time: Any, batch: pa.Table) -> None:
        self.rows += batch.num_rows
        self.send_by(0, time, batch)


def same(time: Any, *batches: pa.Table) -> pa.Table:
    return batches[0]


def either(side: int, time: Any, batch: pa.Table) -> pa.Table:
    return batch


def scope_of(x: Any) -> ts.Scope:
    return x.scope.inner(name="loop")  # type: ignore[no-any-return]


def down(x: ts.Stream) -> ts.Stream:
    """One less, as long as there is something."""
    return x.select(k="k", v=pc.field("v") - 1, name="less").where(pc.field("v") >= 0, name="left")


def fed(x: ts.Stream) -> ts.Stream:
    variable = scope_of(x).variable(x, name="it")
    variable.feed(down(variable))
    return variable.leave(name="out-of-it")


def less(x: ts.Collection) -> ts.Collection:
    return x.select(k="k", v=pc.field("v") - 1, name="less").where(pc.field("v") >= 0, name="left")


def around(x: ts.Collection) -> ts.Collection:
    variable = x.variable(scope_of(x), name="it")
    variable.set(less(variable).concat(x, name="all").distinct(name="once"))
    return variable.leave(name="out-of-it")


def hop(x: ts.Collection, y: ts.Collection) -> Callable[[ts.Collection], ts.Collection]:
    """What uses a collection of outside, arranged there, and what the loop began with."""
    links = y.arrange("k", name="links")

    def step(near: ts.Collection) -> ts.Collection:
        onward = near.join(links, left="v", right="k", name="onward").select(k="k", v="w", name="ends")
        return onward.concat(x, name="with").distinct(name="near")

    return step


def nothing(*_: Any) -> None:
    return None


#: what is made of streams and of collections
BOTH: dict[str, Build] = {
    "map": lambda x, _: x.map(lambda row: (row.k, row.v), "k long, v long", name="it"),
    "select": lambda x, _: x.select("k", w="v", name="it"),
    "where": lambda x, _: x.where(pc.field("v") > 0, name="it"),
    "filter": lambda x, _: x.filter(lambda row: row.v > 0, name="it"),
    "flat_map": lambda x, _: x.flat_map(lambda row: [row, row], "k long, v long", name="it"),
    "map_batches": lambda x, _: x.map_batches(lambda batch: batch, "k long, v long", name="it"),
    "distinct": lambda x, _: x.distinct(name="it"),
    "leave": lambda x, _: x.enter(scope_of(x), name="in").leave(name="it"),
    "probe": lambda x, _: (x.probe(name="it"), x)[1],
    "inspect": lambda x, _: x.inspect(name="it"),
    "capture": lambda x, _: x.capture(name="it"),
    "to_memory": lambda x, _: x.to_memory(name="it"),
    "subscribe": lambda x, _: x.subscribe(nothing, name="it"),
    "foreach_epoch": lambda x, _: x.foreach_epoch(nothing, name="it"),
    "to_files": lambda x, _: x.to_files("/nowhere", name="it"),
    "to_kafka": lambda x, _: x.to_kafka("topic", "nowhere:1", key="k", name="it"),
    "capture_to": lambda x, _: x.capture_to(tempfile.mkdtemp(), name="it"),
}
#: by class and method: what is made of two streams (k long, v long), or collections of (k, v) and (k, w)
STREAMS: dict[str, Build] = {
    **BOTH,
    "select_many": lambda x, _: x.select_many(lambda row: [row], "k long, v long", name="it"),
    "exchange": lambda x, _: x.exchange("v", name="it"),
    "broadcast": lambda x, _: x.broadcast(name="it"),
    "concat": lambda x, y: x.concat(y, name="it"),
    "delay": lambda x, _: x.delay(1, name="it"),
    "expire": lambda x, _: x.expire(after=1, name="it"),
    "distinct per time": lambda x, _: x.distinct(per="time", name="it"),
    "min of all": lambda x, _: x.min("v", name="it"),
    "min": lambda x, _: x.select("k", "v", w="v", name="wide").min("v", keys="k", name="it"),
    "max": lambda x, _: x.max("k", keys="v", name="it"),
    "settle": lambda x, _: x.distinct(name="d").settle(name="it"),
    "aggregate": lambda x, _: x.aggregate(total=("sum", "v"), name="it"),
    "aggregate to a mean": lambda x, _: x.aggregate(mean=("mean", "v"), name="it"),
    "join": lambda x, y: x.join(y.select("k", w="v", name="right"), on="k", name="it"),
    "unary": lambda x, _: x.unary(same, "k long, v long", name="it"),
    "binary": lambda x, y: x.binary(y, either, "k long, v long", name="it"),
    "unary_notify": lambda x, _: x.unary_notify(same, "k long, v long", name="it"),
    "binary_notify": lambda x, y: x.binary_notify(y, same, "k long, v long", name="it"),
    "enter": lambda x, _: x.enter(scope_of(x).inner(name="inner"), name="it").leave(name="a").leave(name="b"),
    "loop": lambda x, _: x.loop(lambda n: (down(n), n), name="it"),
    "to_delta": lambda x, _: x.to_delta("/nowhere", name="it"),
    "collection": lambda x, _: x.collection(diff="v", name="it").stream,
    "upserts": lambda x, _: x.upserts("k", "v", name="it").stream,
}
for path in sorted((Path(__file__).parent / "operators").glob("test_*.py")):
    if "\nTRIED = " in path.read_text(encoding="utf-8"):  # an operator whose test says how to try it
        STREAMS |= import_module(f"tests.operators.{path.stem}").TRIED
COLLECTIONS: dict[str, Build] = {
    **BOTH,
    "expect": lambda x, _: x.expect("it", "v > 1", action="quarantine").quarantined,
    "concat": lambda x, y: x.concat(y.select("k", v="w", name="same"), name="it"),
    "negate": lambda x, _: x.negate(name="it"),
    "consolidate": lambda x, _: x.consolidate(name="it"),
    "join": lambda x, y: x.arrange("k", name="x-by-k").join(y.arrange("k", name="y-by-k"), on="k", name="it"),
    "join how": lambda x, y: x.join(y, on="k", how="outer", name="it"),
    "window": lambda x, _: x.window("v", ts.every(2), name="it"),
    "asof_join": lambda x, y: x.asof_join(y.select("k", v="w", u="w", name="times"), "v", by="k", name="it"),
    "window of sessions": lambda x, _: x.window("v", ts.sessions(2), keys="k", name="it"),
    "union": lambda x, y: x.union(y.select("k", v="w", name="same"), name="it"),
    "intersect": lambda x, y: x.intersect(y.select("k", v="w", name="same"), name="it"),
    "subtract": lambda x, y: x.subtract(y.select("k", v="w", name="same"), all=True, name="it"),
    "map_reduce": lambda x, _: x.map_reduce(
        lambda row: [row],
        lambda k, rows: [len(rows)],
        mapped="k long, v long",
        reduced="n long",
        keys="k",
        name="it",
    ),
    "iterate_until": lambda x, _: x.iterate_until(
        less, lambda before, after: after.where(pc.field("v") > 5, name="high"), name="it"
    ),
    "broadcast_join": lambda x, y: x.broadcast_join(y, on="k", name="it"),
    "semijoin": lambda x, y: x.semijoin(y, on="k", name="it"),
    "antijoin": lambda x, y: x.antijoin(y.enter(scope_of(x), name="in"), on="k", name="it").leave(
        name="out-of-it"
    ),
    "reduce": lambda x, _: x.reduce(lambda _, rows: [len(rows)], "n long", keys="k", name="it"),
    "reduce_batches": lambda x, _: x.reduce_batches(
        lambda table: table.group_by("k").aggregate([("v", "max")]).rename_columns(["k", "m"]),
        "m long",
        keys="k",
        name="it",
    ),
    "count": lambda x, _: x.count(name="it"),
    "sum": lambda x, _: x.sum("v", name="it"),
    "mean": lambda x, _: x.mean("v", name="it"),
    "min": lambda x, _: x.min("v", name="it"),
    "max": lambda x, _: x.max("v", keys="k", name="it"),
    "top_k": lambda x, _: x.top_k(2, "v", name="it"),
    "threshold": lambda x, _: x.threshold(lambda counts: counts > 1, name="it"),
    "arrange": lambda x, _: x.arrange("k", name="it"),
    "iterate": lambda x, y: x.iterate(hop(x, y), name="it"),
    "enter_at": lambda x, _: x.enter_at(scope_of(x), "v", name="it").leave(name="out-of-it"),
    "enter": lambda x, _: x.arrange("k", name="a").enter(scope_of(x), name="it").leave(name="out-of-it"),
    "variable": lambda x, _: around(x),
    "changes": lambda x, _: (x.changes(name="it"), x)[1],
    "to_delta": lambda x, _: x.to_delta("/nowhere", keys=["k", "v"], name="it"),
    "publish": lambda x, _: x.publish(tempfile.mkdtemp(), name="it"),
}
GRAPHS: dict[str, Build] = {
    "connected_components": lambda x, _: ts.graphs.connected_components(x, src="k", dst="v", name="it"),
    "strongly_connected_components": lambda x, _: ts.graphs.strongly_connected_components(
        edges=x, src="k", dst="v", name="it"
    ),
    "bfs": lambda x, y: ts.graphs.bfs(x, y, src="k", dst="v", node="w", name="it"),
    "sssp": lambda x, y: ts.graphs.sssp(x, y, src="k", dst="v", weight="v", node="w", name="it"),
    "pagerank": lambda x, _: ts.graphs.pagerank(x, 3, src="k", dst="v", unit=100, name="it"),
    "pagerank in shares": lambda x, y: ts.graphs.pagerank(
        x, 3, nodes=y, node="w", dangling="spread", start="uniform", src="k", dst="v", name="it"
    ),
    "pagerank in steps": lambda x, _: ts.graphs.pagerank(
        x, None, src="k", dst="v", tolerance=100_000, name="it"
    ),
    "triangles": lambda x, _: ts.graphs.triangles(x, src="k", dst="v", name="it"),
    "lcc": lambda x, y: ts.graphs.lcc(x, True, nodes=y, src="k", dst="v", node="w", name="it"),  # noqa: FBT003
    "cdlp": lambda x, y: ts.graphs.cdlp(x, 3, nodes=y, src="k", dst="v", node="w", name="it"),
    "label_propagation": lambda x, y: ts.graphs.label_propagation(
        x, y, iterations=3, src="k", dst="v", node="w", label="k", name="it"
    ),
    "motifs": lambda x, y: ts.graphs.motifs(
        x, "a->b, b->c, !c->a", nodes=y, src="k", dst="v", node="w", name="it"
    ),
    "landmarks": lambda x, y: ts.graphs.landmarks(x, y, weight="v", src="k", dst="v", node="w", name="it"),
    "distance_bounds": lambda x, y: ts.graphs.distance_bounds(
        x.select(node="k", landmark="v", distance="v", name="near"), y, src="k", dst="w", name="it"
    ),
    "stable_matching": lambda x, _: ts.graphs.stable_matching(
        x.select(src="k", dst="v", src_rank="v", dst_rank="k", name="pairs"), name="it"
    ),
    "minimum_spanning_forest": lambda x, _: ts.graphs.minimum_spanning_forest(
        x, weight="v", src="k", dst="v", name="it"
    ),
    "betweenness": lambda x, y: ts.graphs.betweenness(
        x, directed=True, samples=y, src="k", dst="v", node="w", name="it"
    ),
    "k_core": lambda x, _: ts.graphs.k_core(x, 2, src="k", dst="v", name="it"),
    "core_numbers": lambda x, _: ts.graphs.core_numbers(x, src="k", dst="v", name="it"),
    "maximal_independent_set": lambda x, y: ts.graphs.maximal_independent_set(
        x, nodes=y, src="k", dst="v", node="w", name="it"
    ),
    "colouring": lambda x, y: ts.graphs.colouring(x, nodes=y, src="k", dst="v", node="w", name="it"),
}
LIBRARIES: dict[str, Build] = {
    "pregel": lambda x, y: ts.pregel(
        x.count("v", keys="k", name="n"), y, vprog=lambda row: row.v, send_msg_to_dst="src_v", initial_msg=1,
        aggregators={"all": ("sum", pc.field("v"))}, node="k", src="k", dst="w", max_iterations=3, name="it",
    ).nodes,
    "pregel with mutations": lambda x, y: ts.pregel(
        x.count("v", keys="k", name="n"), y, vprog=lambda row: row.v, send_msg_to_src="dst_v",
        halt=pc.field("v") > 1, mutate=lambda nodes, edges: (nodes, edges.distinct(name="once2")),
        node="k", src="k", dst="w", max_iterations=3, name="it",
    ).nodes,
}  # fmt: skip
OTHERS: dict[str, Build] = {
    "all_reduce": lambda x, _: ts.all_reduce(
        x.map(lambda row: ([row.k, row.v],), "a array<long>", name="arrays"), "a", parts=3, name="it"
    ).map(lambda row: row.a[0], "n long", name="first"),
    "wcoj": lambda x, y: ts.wcoj(
        [(x.collection(name="xs"), {"k": "a", "v": "b"}), (y.collection(name="ys"), {"k": "b", "v": "c"})],
        name="it",
    ).stream,
    "Grouped.aggregate": lambda x, _: x.group_by().aggregate(t=("sum", "v"), name="it"),
    "Grouped.reduce": lambda x, _: x.group_by("k").reduce(lambda _, rows: [len(rows)], "n long", name="it"),
    "Grouped.reduce_batches": lambda x, _: x.group_by().reduce_batches(
        lambda table: pa.table({"n": [table.num_rows]}), "n long", name="it"
    ),
    "Grouped.count": lambda x, _: x.group_by("k").count(name="it"),
    "Dataflow.vertex": lambda x, y: x.flow.vertex(Pass(), [x, y], "k long, v long", name="it"),
    "Scope.inner": lambda x, _: x.enter(x.scope.inner(name="it"), name="in").leave(name="out-of-it"),
    "Scope.enter": lambda x, _: scope_of(x).enter(x, name="it").leave(name="out-of-it"),
    "Scope.variable": lambda x, _: fed(x),
    "components in a loop": lambda x, _: x.collection(name="edges").iterate(
        lambda edges: ts.graphs.connected_components(edges, src="k", dst="v", name="it").select(
            k="node", v="component", name="again"
        ),
        max_iterations=2,
        name="iterations",
    ).stream,
}  # fmt: skip
#: what is made of operators, and takes longer
COMPOSED = {*GRAPHS.values(), *LIBRARIES.values(), OTHERS["components in a loop"]}
#: what adds no step of its own, or always has a name, or is what operators are made of
WITHOUT = {
    "Stream": {"group_by", "then", "check_outside"},
    "Collection": {"like", "together"},
    "Variable": {"feed"},
    "CollectionVariable": {"set"},
    "Scope": {"input", "region"},
    "Grouped": set(),
    "Input": {"send", "advance_to", "close"},
    "Dataflow": {
        "input",
        "source",
        "files",
        "delta",
        "kafka",
        "table",
        "replay",
        "import_arrangement",
        "region",
        "handle",
        "compile",
        "sql",
        "start",
        "explain",
        "to_mermaid",
        "to_svg",
    },
}


def public(of: Any) -> Iterator[str]:
    for name in dir(of):
        if not name.startswith("_") and inspect.isfunction(getattr(of, name)):
            yield name


@pytest.mark.parametrize(
    ("of", "covered"),
    [
        (ts.Stream, STREAMS), (ts.Collection, COLLECTIONS), (ts.Scope, OTHERS), (Grouped, OTHERS),
        (ts.Dataflow, OTHERS), (ts.Variable, STREAMS), (ts.Input, STREAMS), (CollectionVariable, COLLECTIONS),
    ],
)  # fmt: skip
def test_every_public_operator_takes_a_name_and_is_tried_here(of: Any, covered: Any) -> None:
    name = "CollectionVariable" if of is CollectionVariable else of.__name__
    without = {each for one in of.__mro__ for each in WITHOUT.get(one.__name__, ())} | WITHOUT[name]
    for method in set(public(of)) - without:
        assert "name" in inspect.signature(getattr(of, method)).parameters, f"{name}.{method} takes no name"
        assert method in covered or f"{name}.{method}" in covered, f"{name}.{method} is not tried"


def test_every_algorithm_takes_a_name_and_is_tried_here() -> None:
    tried = set(GRAPHS) - {"pagerank in shares", "pagerank in steps"}
    assert tried == set(ts.graphs.__all__), "add a line to GRAPHS"
    for name in ts.graphs.__all__:
        assert "name" in inspect.signature(getattr(ts.graphs, name)).parameters


@dataclass(frozen=True)
class Case:
    """What is made of two streams, or of two collections."""

    build: Build
    collections: bool = False


def built(case: Case, *, more: bool = False) -> ts.Dataflow:
    """A flow with an output of what is made; `more`: with unnamed steps and outputs before it and behind."""
    flow = ts.Dataflow("flow")
    x, y = (flow.input(name, "k long, v long", epochs="manual") for name in "xy")
    if more:
        x.where(pc.field("v") > 0).select("k", "v").distinct().exchange("v").concat(y).capture()
        x.collection().distinct().count(keys="k").join(y.collection(), on="k").changes().capture()
        x.loop(lambda n: n.where(pc.field("v") < 0)).capture()
    if case.collections:
        made = case.build(x.collection(name="xs"), y.select("k", w="v", name="w").collection(name="ys"))
        made = made.changes(name="changes")
    else:
        made = case.build(x, y)
    made.capture("out")
    if more:
        made.select(made.schema.names[0]).capture("again")
        made.exchange().capture("third")
    return flow


def send(simulation: Simulation, epoch: int) -> None:
    """Things come; and, to collections of which `v` says how many, some go."""
    rows = {"x": [(1, 2), (2, 3), (3, 1), (4, 0), (3, 1)], "y": [(1, 1), (2, 4)]}
    for name, some in rows.items():
        simulation.send(name, [((k + epoch) % 5, v) for k, v in some], epoch=epoch)
        simulation.advance_to(name, epoch + 1)
    simulation.step()


def in_mid_epoch(case: Case) -> Simulation:
    """An epoch of which messages are in flight."""
    old = Simulation(built(case), workers=2, seed=7)
    send(old, 0)
    return old


ALL = {
    **{f"Stream.{name}": Case(build) for name, build in STREAMS.items()},
    **{f"Collection.{name}": Case(build, collections=True) for name, build in COLLECTIONS.items()},
    **{f"graphs.{name}": Case(build, collections=True) for name, build in GRAPHS.items()},
    **{name: Case(build, collections=True) for name, build in LIBRARIES.items()},
    **{name: Case(build) for name, build in OTHERS.items()},
}


@pytest.mark.slow
@pytest.mark.share(8)
@pytest.mark.parametrize("case", ALL.values(), ids=ALL)
def test_all_that_an_operator_makes_has_a_name_of_the_users(case: Case) -> None:
    flow = built(case)

    assert " at 0x" not in json.dumps(flow.compile(2).described()), "another process has other addresses"
    steps = finalise_graph(flow.graph).stages
    assert [stage.name for stage in steps if not stage.named] == []
    assert any(stage.name.split(".")[-1] == "it" or "it" in stage.name.split(".") for stage in steps)
    assert len({stage.name for stage in steps}) == len(steps)
    changed = finalise_graph(built(case, more=True).graph).stages
    assert {stage.name for stage in steps} <= {stage.name for stage in changed}


@pytest.mark.slow
@pytest.mark.share(16)
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=name, marks=[pytest.mark.campaign] if case.build in COMPOSED else [])
        for name, case in ALL.items()
    ],
)
def test_a_flow_whose_steps_are_named_goes_on_with_more_steps_and_outputs(case: Case) -> None:
    kept = Simulation(built(case), workers=2)
    send(kept, 0)
    kept.run()
    before = set(kept.captured["out"].rows())
    new, _ = continued(kept, built(case, more=True), 2, empty=True)
    for simulation in (new, kept):
        send(simulation, 1)
        simulation.run()

    rows = kept.captured["out"].rows()
    assert {0, 1} <= set(rows)
    assert new.captured["out"].rows() == {epoch: rows[epoch] for epoch in rows if epoch not in before}


#: whose answer is another with another number of workers: each has a copy; or where copies are in flight
COPIES = ["Stream.broadcast", "Stream.window", "Stream.window of sessions", "all_reduce"]


#: numbers of workers, and whether there are more steps
CHANGES = [(1, False), (3, False), (2, True)]


@pytest.mark.slow
@pytest.mark.share(16)
@pytest.mark.parametrize(
    ("name", "workers", "more"),
    [*in_turn([name for name in ALL if name not in COPIES], CHANGES), *((name, 2, True) for name in COPIES)],
)
def test_an_epoch_that_had_begun_ends_alike_with_other_workers_and_with_more_steps_or_is_refused(
    name: str, workers: int, *, more: bool
) -> None:
    case = ALL[name]
    kept, old = Simulation(built(case), workers=2), in_mid_epoch(case)
    assert old.waiting
    try:
        new, _ = continued(old, built(case, more=more), workers, empty=True)
    except FlowChanged as refused:
        if more and re.search("over a new channel|has changed: partitioned was", str(refused)):
            return
        if not more and name == "Dataflow.vertex":  # its state has no repartition()
            return
        raise
    for epoch in (0, 1):
        send(kept, epoch)
        kept.run()
    send(new, 1)
    new.run()
    assert {**old.captured["out"].rows(), **new.captured["out"].rows()} == kept.captured["out"].rows()


@pytest.mark.parametrize(
    "loop",
    [
        lambda x, step: x.loop(step, name="up"),
        lambda x, step: x.collection().iterate(step, name="up"),
        lambda x, step: x.collection().iterate_until(step, lambda _, after: after, name="up"),
    ],
)
def test_the_steps_of_a_loops_body_have_the_names_that_the_user_gives(loop: Build) -> None:
    made = ts.Dataflow("body")

    def step(x: Any) -> Any:
        x.distinct(name="inner").leave().capture("out")
        return x.distinct()

    loop(made.input("x", "n long"), step).capture("end")
    names = {stage.name: stage.named for stage in made.graph.stages}
    assert names["up.inner"]
    assert names["out"]
    assert not all(names[name] for name in names if name.startswith("up.distinct")), "the body's has no name"
