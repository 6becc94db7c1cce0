"""Pregel: against networkx, and an interpreter of supersteps in plain Python, while graphs change."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from math import inf
from typing import Any

import networkx as nx
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import timely_spark as ts
from tests.support.accumulated import after_each
from tests.support.turns import in_turn
from timely_spark.errors import GraphError, NoSuchMethod, SchemaError, TimelyError
from timely_spark.testing import Simulation, run

Epochs = list[list[tuple[Any, ...]]]
N = 9


def changing(seed: int, *, nodes: int = N, edges: int = 14, epochs: int = 4) -> dict[str, Epochs]:
    """Nodes and weighted edges that come and go, edges also in parallel and to nodes that are gone."""
    draw = np.random.default_rng(seed)
    there: list[tuple[int, ...]] = []
    given: dict[str, Epochs] = {"nodes": [], "edges": []}
    present = set[int]()
    for epoch in range(epochs):
        flips = range(nodes) if epoch == 0 else {int(draw.integers(nodes))}
        given["nodes"].append([(n, -1 if n in present else 1) for n in flips])
        present ^= set(flips)
        now = []
        for _ in range(edges if epoch == 0 else 3):
            if epoch and draw.random() < 0.5:
                now.append((*there.pop(int(draw.integers(len(there)))), -1))
            else:
                there.append((*draw.integers(0, nodes, 2).tolist(), int(draw.integers(1, 9))))
                now.append((*there[-1], 1))
        given["edges"].append(now)
    return given


def check(
    program: Callable[[ts.Collection, ts.Collection], ts.Collection],
    oracle: Callable[[set[int], list[tuple[int, int, int]]], Iterable[tuple[Any, ...]]],
    inputs: dict[str, Epochs],
    **how: Any,
) -> None:
    """The nodes after each epoch are those of the oracle."""
    flow = ts.Dataflow("pregel")
    nodes = flow.input("nodes", "node long, diff long").collection(diff="diff")
    edges = flow.input("edges", "src long, dst long, w long, diff long").collection(diff="diff")
    program(nodes, edges).changes().capture("out")
    rows = run(flow, inputs, **how)["out"].rows()
    totals = (after_each(of, len(inputs["nodes"])) for of in (rows, inputs["nodes"], inputs["edges"]))
    for epoch, (found, present, links) in enumerate(zip(*totals, strict=True)):
        there = {node for (node,) in present.elements()}
        expected = oracle(there, [edge for edge in links.elements() if {*edge[:2]} <= there])
        assert found == Counter(expected), f"epoch {epoch}"


SCHEDULES = [
    {"workers": 2, "seed": 1},
    {"workers": 1},
    {"workers": 3, "seed": 2, "together": True},
    {"workers": 8},
]


def distances(nodes: ts.Collection, edges: ts.Collection) -> ts.Collection:
    """GraphX's example: a node computes when a shorter path arrives."""
    best = pc.min_element_wise(pc.field("d"), pc.field("msg"))
    there = pc.field("src_d") + pc.field("w")
    return ts.pregel(
        nodes,
        edges,
        with_vertex_column={"d": (pc.if_else(pc.field("node") == 0, 0.0, inf), best)},
        send_msg_to_dst=pc.if_else(there < pc.field("dst_d"), there, pa.scalar(None, pa.float64())),
        agg_msgs="min",
        initial_msg=inf,
        halt=pc.scalar(True),  # noqa: FBT003
    ).nodes


def dijkstra(nodes: set[int], edges: list[tuple[int, int, int]]) -> Iterable[tuple[int, float]]:
    graph = nx.MultiDiGraph()
    graph.add_nodes_from(nodes)
    graph.add_weighted_edges_from(edges)
    far = nx.single_source_dijkstra_path_length(graph, 0) if 0 in nodes else {}
    return [(node, float(far.get(node, inf))) for node in nodes]


def least(nodes: ts.Collection, edges: ts.Collection) -> ts.Collection:
    """The least node of each component, by a function of one node, and messages in both directions."""
    labelled = nodes.select("node", label="node")
    return ts.pregel(
        labelled,
        edges,
        vprog=lambda row: row.label if row.msg is None else min(row.label, row.msg),
        send_msg_to_dst="src_label",
        send_msg_to_src="dst_label",
        agg_msgs="min",
    ).nodes


def components(nodes: set[int], edges: list[tuple[int, int, int]]) -> Iterable[tuple[int, int]]:
    graph = nx.Graph([edge[:2] for edge in edges])
    graph.add_nodes_from(nodes)
    return [(node, min(part)) for part in nx.connected_components(graph) for node in part]


@pytest.mark.slow
def test_crashes_change_nothing() -> None:
    check(least, components, changing(3), workers=2, seed=3, crashes=0.1)


@pytest.mark.slow
def test_ranks_as_in_graphframes() -> None:
    graph = nx.gnp_random_graph(20, 0.2, seed=2, directed=True)
    graph.add_edges_from((node, (node + 1) % 20) for node in range(20))
    flow = ts.Dataflow("ranks")
    edges = flow.input("edges", "a long, b long").collection()
    nodes = edges.count("degree", keys="a")
    ranks = ts.pregel(
        nodes,
        edges,
        with_vertex_column={
            "rank": (1 / 20, pc.coalesce(pc.field("msg"), pc.scalar(0.0)) * 0.85 + pc.scalar(0.15 / 20))
        },
        send_msg_to_dst=pc.field("src_rank") / pc.field("src_degree").cast("double"),
        agg_msgs="sum",
        max_iterations=40,
        node="a",
        src="a",
        dst="b",
    )
    ranks.nodes.capture("out")

    rows = run(flow, {"edges": [list(graph.edges)]}, workers=2)["out"].rows()

    assert {node: rank for node, _, rank, _ in rows[0]} == pytest.approx(
        nx.pagerank(graph, tol=1e-12, max_iter=500), abs=1e-4
    )
    assert len(rows[0]) == 20


def core(nodes: ts.Collection, edges: ts.Collection) -> ts.Collection:
    """The nodes of the 2-core of an undirected graph: a node with one neighbour leaves, with its edges."""
    ends = edges.where(pc.field("src") != pc.field("dst"))
    both = ends.select("src", "dst").concat(ends.select(src="dst", dst="src")).distinct()
    there = both.semijoin(nodes, left="src", right="node").semijoin(nodes, left="dst", right="node")

    def leave(nodes: ts.Collection, edges: ts.Collection) -> tuple[ts.Collection, ts.Collection]:
        stay = nodes.where(pc.field("neighbours") > 1)
        return stay, edges.semijoin(stay, left="src", right="node").semijoin(stay, left="dst", right="node")

    return ts.pregel(
        nodes,
        there,
        with_vertex_column={"neighbours": (pc.scalar(2), pc.coalesce(pc.field("msg"), pc.scalar(0)))},
        send_msg_to_dst=pc.scalar(1),
        mutate=leave,
    ).nodes.select("node")


def core_of(nodes: set[int], edges: list[tuple[int, int, int]]) -> Iterable[tuple[int]]:
    graph = nx.Graph([(a, b) for a, b, _ in edges if a != b])
    return [(node,) for node in nx.k_core(graph, 2)]


PROGRAMS: dict[str, Any] = {
    "shortest paths as in GraphX": (distances, dijkstra, changing(1)),
    "components": (least, components, changing(2)),
    "nodes and edges leave": (core, core_of, changing(4, edges=16)),
}


@pytest.mark.slow
@pytest.mark.share(2)
@pytest.mark.parametrize(("how", "name"), in_turn(SCHEDULES, [*PROGRAMS]))
def test_a_program_computes_at_each_epoch_what_it_is_to(how: dict[str, Any], name: str) -> None:
    check(*PROGRAMS[name], **how)


def test_a_mutated_graph_leaves_without_the_changes_of_single_supersteps() -> None:
    flow = ts.Dataflow("counted")
    nodes, edges = flow.input("nodes", "node long").collection(), flow.input("edges", "src long, dst long")
    counted = {"n": (pc.scalar(0), pc.field("n") + pc.scalar(1))}
    made = ts.pregel(
        nodes,
        edges.collection(),
        with_vertex_column=counted,
        send_msg_to_dst=pc.scalar(1),
        mutate=lambda nodes, edges: (nodes, edges),
        max_iterations=5,
    )
    made.nodes.stream.capture("out")

    found = ts.testing.run(flow, {"nodes": [[1, 2]], "edges": [[(1, 2), (2, 1)]]})

    assert found["out"].rows() == {0: [(1, 5, 1), (2, 5, 1)]}


def grown(nodes: ts.Collection, edges: ts.Collection) -> ts.Collection:
    """Each node with a message below 3 makes another one, behind it."""

    def grow(nodes: ts.Collection, edges: ts.Collection) -> tuple[ts.Collection, ts.Collection]:
        young = nodes.where((pc.field("depth") < 3) & (pc.field("node") < 1000 * 3))
        born = young.select(node=pc.field("node") + 1000, depth=pc.field("depth"))
        behind = young.select(src="node", dst=pc.field("node") + 1000, w=pc.scalar(1))
        kept = nodes.concat(born.antijoin(nodes, on="node", unique=True))
        return kept, edges.concat(behind).distinct()

    longer = pc.coalesce(pc.field("msg") + pc.scalar(1), pc.field("depth"))
    return ts.pregel(
        nodes,
        edges.where(pc.scalar(False)),  # noqa: FBT003
        with_vertex_column={"depth": (pc.scalar(0), longer)},
        send_msg_to_dst="src_depth",
        agg_msgs="max",
        mutate=grow,
    ).nodes


@pytest.mark.slow
@pytest.mark.parametrize("how", SCHEDULES[:2])
def test_nodes_and_edges_are_added(how: dict[str, Any]) -> None:
    def oracle(nodes: set[int], _: Any) -> Iterable[tuple[int, int]]:
        return [(node + 1000 * depth, depth) for node in nodes for depth in range(4)]

    check(grown, oracle, changing(5, epochs=2), **how)


def interpreted(
    nodes: dict[int, int], edges: list[tuple[int, int, int]], supersteps: int
) -> list[tuple[int, int]]:
    """The supersteps of `program`, word by word."""
    value, computed, halted = dict(nodes), set(nodes), set[int]()
    for _ in range(supersteps):
        total = sum(value.values())
        messages = Counter[int]()
        for a, b, w in edges:
            if a in computed and value[a] % 5 != 4:
                messages[b] += value[a] + w
        received = {b for a, b, _ in edges if a in computed and value[a] % 5 != 4 and b in value}
        computed = received | (set(value) - halted)
        value = {
            n: (v * 3 + (messages[n] if n in received else 1) + total) % 11 if n in computed else v
            for n, v in value.items()
        }
        halted = (halted - computed) | {n for n in computed if value[n] % 3 == 0}
    return sorted(value.items())


def program(nodes: ts.Collection, edges: ts.Collection, supersteps: int) -> ts.Collection:
    """Messages, aggregators and votes to halt, by a function of batches."""

    def compute(batch: pa.Table) -> Any:
        frame = batch.to_pandas()
        frame["v"] = ((frame.v * 3 + frame.msg.fillna(1) + frame.total) % 11).astype("int64")
        return frame

    mod = lambda n, by: n - pc.divide(n, pc.scalar(by)) * pc.scalar(by)  # noqa: E731
    v = pc.field("src_v")
    return ts.pregel(
        nodes,
        edges,
        compute=compute,
        send_msg_to_dst=pc.if_else(mod(v, 5) == 4, pa.scalar(None, pa.int64()), v + pc.field("w")),
        aggregators={"total": ("sum", pc.field("v"))},
        halt=mod(pc.field("v"), 3) == 0,
        max_iterations=supersteps,
    ).nodes


@pytest.mark.slow
@settings(max_examples=settings().max_examples // 2)
@given(
    edges=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(0, 3)), max_size=12),
    more=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(0, 3)), max_size=4),
    values=st.dictionaries(st.integers(0, 5), st.integers(0, 10), max_size=6),
    supersteps=st.integers(1, 6),
    workers=st.sampled_from([1, 2, 3]),
)
def test_supersteps_are_those_of_an_interpreter(edges, more, values, supersteps, workers) -> None:
    flow = ts.Dataflow("law")
    nodes = flow.input("nodes", "node long, v long").collection()
    links = flow.input("edges", "src long, dst long, w long, diff long").collection(diff="diff")
    program(nodes, links, supersteps).changes().capture("out")
    changes = [(*edge, 1) for edge in more] + [(*edge, -1) for edge in edges[::2]]

    epochs = {"nodes": [list(values.items()), []], "edges": [[(*edge, 1) for edge in edges], changes]}
    out = run(flow, epochs, workers=workers)["out"]

    for at, there in ((0, edges), (1, edges[1::2] + more)):
        found = sorted((row["node"], row["v"]) for row in ts.snapshot(out, at=at).to_pylist())
        present = [edge for edge in there if edge[0] in values]
        assert found == interpreted(values, present, supersteps)


@pytest.mark.slow
def test_a_node_that_halted_before_sends_nothing_and_one_that_halts_sends_for_the_last_time() -> None:
    """All halt in supersteps 1 and 2. Node 0 sends 2, then 3 for the last time, which wakes node 1."""
    flow = ts.Dataflow("halted")
    nodes = flow.input("nodes", "node long, v long").collection()
    edges = flow.input("edges", "src long, dst long").collection()
    ts.pregel(
        nodes,
        edges,
        with_vertex_column={"v": ("abs(v)", "v + coalesce(msg, 1)")},  # texts in SQL
        send_msg_to_dst="CASE WHEN dst_v >= 0 THEN src_v END",
        agg_msgs="sum",
        halt="v >= 3",
        max_iterations=4,
    ).nodes.changes().capture("out")

    made = run(flow, {"nodes": [[(0, 2), (1, 3), (2, 0)]], "edges": [[(0, 1), (0, 2)]]}, workers=2)["out"]

    assert {row["node"]: row["v"] for row in ts.snapshot(made).to_pylist()} == {0: 3, 1: 8, 2: 5}


def ring(size: int) -> tuple[ts.Dataflow, dict[str, Epochs]]:
    flow = ts.Dataflow("ring")
    nodes = flow.input("nodes", "node long").collection()
    edges = flow.input("edges", "src long, dst long").collection()
    spread = {
        "seen": (pc.field("node") == 0, pc.field("seen") | (pc.coalesce(pc.field("msg"), pc.scalar(0)) > 0))
    }
    ts.pregel(
        nodes, edges, with_vertex_column=spread, send_msg_to_dst=pc.field("src_seen").cast("int64")
    ).nodes.changes().capture("out")
    return flow, {"nodes": [list(range(size))], "edges": [[(n, (n + 1) % size) for n in range(size)]]}


@pytest.mark.slow
def test_a_superstep_has_one_exchange() -> None:
    flow, epochs = ring(20)
    simulation = Simulation(flow, workers=8)
    for name, (records,) in epochs.items():
        simulation.send(name, records)
    simulation.run()

    assert len(simulation.captured["out"].rows()[0]) == 20
    assert simulation.rounds <= 20 + 3


def test_one_key_has_one_record() -> None:
    flow = ts.Dataflow("twice")
    nodes = flow.input("nodes", "node long, v long").collection()
    edges = flow.input("edges", "src long, dst long").collection()
    ts.pregel(nodes, edges, vprog=lambda row: row.v, send_msg_to_dst="src_v").nodes.capture("out")

    with pytest.raises(
        TimelyError, match=r"(?s)node \{'node': 1\} has several records.*int64\).*Hint"
    ) as told:
        run(flow, {"nodes": [[(1, 2), (1, 3)]], "edges": [[]]})

    assert "__timely" not in str(told.value)


def test_a_function_returns_a_row_for_each_node() -> None:
    flow = ts.Dataflow("fewer")
    nodes = flow.input("nodes", "node long, v long").collection()
    edges = flow.input("edges", "src long, dst long").collection()
    ts.pregel(nodes, edges, compute=lambda t: t.slice(1), send_msg_to_dst="src_v").nodes.capture("out")

    with pytest.raises(TimelyError, match=r"(?s)superstep.*0 rows for 1 nodes.*Hint"):
        run(flow, {"nodes": [[(1, 2)]], "edges": [[]]})


def test_nulls_and_empty_graphs() -> None:
    flow = ts.Dataflow("nulls")
    nodes = flow.input("nodes", "node string, v long").collection()
    edges = flow.input("edges", "src string, dst string").collection()
    program = {"v": (pc.field("v"), pc.coalesce(pc.field("msg"), pc.field("v")))}
    made = ts.pregel(nodes, edges, with_vertex_column=program, send_msg_to_dst="src_v", max_iterations=1)
    made.nodes.changes().capture("ns")
    made.edges.changes().capture("es")

    epochs = {
        "nodes": [[], [("a", 1), (None, 2), ("b", None)]],
        "edges": [[("a", "b"), (None, "b")], [("b", "a"), ("a", "gone")]],
    }
    out = run(flow, epochs, workers=2)

    assert out["ns"].rows() == {0: [], 1: [("a", 1, 1), ("b", 1, 1)]}
    assert out["es"].rows() == {0: [("a", "b", 1)], 1: [("a", "gone", 1), ("b", "a", 1)]}


FINE: dict[str, Any] = {"vprog": lambda row: row.v, "send_msg_to_dst": "src_v"}


def test_a_text_names_a_column_and_a_part_is_taken() -> None:
    flow = ts.Dataflow("texts")
    nodes, edges = flow.input("nodes", "node string, v long"), flow.input("edges", "src string, dst string")
    graph = ts.pregel(
        nodes.collection(),
        edges.collection(),
        with_vertex_column={
            "least": ("node", pc.min_element_wise(pc.field("least"), pc.field("msg"))),
            "kind": (pc.scalar("v"), "kind"),
        },
        send_msg_to_dst="src_least",
        agg_msgs="min",
        aggregators={"most": ("max", "v")},
    )
    graph.nodes.capture("out")

    made = ts.testing.run(flow, {"nodes": [[("a", 1), ("b", 2)]], "edges": [[("a", "b")]]})["out"]
    assert made.rows() == {0: [("a", 1, "a", "v", 1), ("b", 2, "a", "v", 1)]}
    with pytest.raises(NoSuchMethod, match=r"Graph has no 'capture' \(.*\n?.*parts: nodes, edges"):
        graph.capture("whole")  # type: ignore[attr-defined]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"send_msg_to_dst": None}, "no message is sent"),
        ({"vprog": None}, "must be one of"),
        ({"compute": lambda t: t}, "must be one of"),
        ({"vprog": 3}, "not a function"),
        ({"vprog": None, "with_vertex_column": {"v": 1}}, "has 1"),
        (
            {"vprog": None, "with_vertex_column": {"v": (1.5, pc.field("msg").cast("int64"))}},
            "v double.*v int64",
        ),
        ({"vprog": None, "with_vertex_column": {"v": (1, pc.field("nothing"))}}, "nothing"),
        ({"vprog": None, "with_vertex_column": {"v": ("vv", pc.field("v"))}}, "vv"),
        ({"aggregators": {"t": ("sum", "vv")}}, "vv"),
        ({"agg_msgs": "median"}, "aggregate 'median'"),
        ({"agg_msgs": lambda m: 3}, "not a collection"),
        ({"send_msg_to_dst": {"a": "src_v", "b": "src_v"}}, "columns \\['a', 'b'\\]"),
        ({"send_msg_to_dst": "rank"}, "rank"),
        ({"aggregators": {"v": ("sum", pc.field("v"))}}, "columns of the nodes already"),
        ({"aggregators": {"t": ("sum", pc.field("w"))}}, "w"),
        ({"aggregators": {"msg": ("sum", pc.field("v"))}}, "of the messages, and"),
        ({"halt": pc.field("v")}, "not a condition"),
        ({"halt": pc.field("w") > 1}, "halt"),
        ({"halt": "w > 1"}, "halt.*w"),
        ({"halt": True}, "halt=True is not an expression"),
        ({"send_msg_to_dst": "src_rank + 1"}, "send_msg_to_dst.*src_rank"),
        ({"mutate": 1}, "not a function"),
        ({"max_iterations": 0}, "max_iterations"),
        ({"src": "gone"}, "gone"),
    ],
)
def test_wrong_arguments_are_refused(wrong: dict[str, Any], says: str) -> None:
    flow = ts.Dataflow("refused")
    nodes = flow.input("nodes", "node long, v long").collection()
    edges = flow.input("edges", "src long, dst long").collection()

    with pytest.raises((GraphError, SchemaError), match=rf"(?s){says}.*test_pregel.*Hint"):
        ts.pregel(nodes, edges, **FINE | wrong)


def test_other_types_of_ends_are_refused() -> None:
    flow = ts.Dataflow("refused")
    nodes = flow.input("nodes", "node string").collection()
    edges = flow.input("edges", "src long, dst long").collection()

    with pytest.raises(SchemaError, match=r"(?s)string, int64, int64.*Hint"):
        ts.pregel(nodes, edges, **FINE)
    with pytest.raises(GraphError, match=r"(?s)got a Stream.*Hint"):
        ts.pregel(nodes.stream, edges, **FINE)
