"""Cases whose answers are published, or can be had elsewhere: graphs that change, documents' examples."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import networkx as nx
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import timely_spark as ts
from timely_spark.differential import DIFF
from timely_spark.differential.trace import insert
from timely_spark.state import Arrangement
from timely_spark.state.row_times import times_of
from timely_spark.times import Antichain, Time

Changes = list[list[tuple[int, int, int]]]


# -- graphs --------------------------------------------------------------------------------------------------


def sliding(nodes: int, edges: int, rounds: int, seed: int = 0) -> Changes:
    """A random multigraph; each round has a new edge and deletes the oldest."""
    draw = random.Random(seed)
    drawn = [(draw.randrange(nodes), draw.randrange(nodes)) for _ in range(edges + rounds)]
    first = [(*edge, 1) for edge in drawn[:edges]]
    return [first, *([(*drawn[edges + r], 1), (*drawn[r], -1)] for r in range(rounds))]


def rewired(nodes: int, edges: int, rounds: int, seed: int = 0) -> Changes:
    """A simple undirected graph; each round replaces some edges by others."""
    draw = random.Random(seed)
    every = [(a, b) for a in range(nodes) for b in range(a + 1, nodes)]
    there = set(draw.sample(every, edges))
    made = [[(*edge, 1) for edge in sorted(there)]]
    for _ in range(rounds):
        out = set(draw.sample(sorted(there), edges // 5))
        new = set(draw.sample(sorted(set(every) - there), edges // 5))
        there = there - out | new
        made.append([*((*edge, -1) for edge in sorted(out)), *((*edge, 1) for edge in sorted(new))])
    return made


def graphs(changes: Changes) -> Iterator[tuple[Counter[tuple[int, int]], nx.DiGraph]]:
    """The edges with their multiplicities after each round, and as a graph."""
    there: Counter[tuple[int, int]] = Counter()
    for changed in changes:
        for src, dst, n in changed:
            there[src, dst] += n
        there = +there
        yield there, nx.DiGraph(list(there))


def edges_of(flow: ts.Dataflow) -> ts.Collection:
    return flow.input("edges", "src long, dst long, diff long", epochs="manual").collection(diff="diff")


def distances() -> ts.Dataflow:
    """How many nodes there are at each distance from node 1."""
    flow = ts.Dataflow("bfs")
    edges = edges_of(flow)
    roots = flow.input("roots", "node long, distance long", epochs="manual").collection()

    def hop(near: ts.Collection) -> ts.Collection:
        targets = near.join(edges, left="node", right="src")
        further = targets.select(node="dst", distance=pc.add(pc.field("distance"), 1))
        return further.concat(roots).min("distance", keys="node")

    roots.iterate(hop).count("nodes", keys="distance").changes().capture("out")
    return flow


def trimmed(cycle: ts.Collection, edges: ts.Collection) -> ts.Collection:
    """The edges, turned round, whose ends get the same label when the least spreads along `cycle`."""
    nodes = edges.select(node="dst", label="dst").min("label", keys="node")

    def spread(labels: ts.Collection) -> ts.Collection:
        targets = labels.join(cycle, left="node", right="src").select(node="dst", label="label")
        return targets.concat(nodes).min("label", keys="node")

    labels = nodes.iterate(spread)
    ends = edges.join(labels.select(src="node", one="label"), on="src")
    ends = ends.join(labels.select(dst="node", other="label"), on="dst")
    return ends.where(pc.equal(pc.field("one"), pc.field("other"))).select(src="dst", dst="src")


def strong() -> ts.Dataflow:
    """The edges on cycles: forward and backward trimming, until nothing changes."""
    flow = ts.Dataflow("scc")
    edges = edges_of(flow)

    def trim(inside: ts.Collection) -> ts.Collection:
        forward = edges.enter(inside.scope)
        return trimmed(trimmed(inside, forward), forward.select(src="dst", dst="src"))

    edges.iterate(trim).changes().capture("out")
    return flow


def colours() -> ts.Dataflow:
    """Each node has the least colour that no neighbour of lower number has."""
    flow = ts.Dataflow("colours")
    edges = edges_of(flow)
    nodes = (
        edges.select(node="src")
        .concat(edges.select(node="dst"))
        .distinct()
        .select("node", colour=pc.scalar(0))
    )

    def least_free(_: Any, taken: list[Any]) -> list[int]:
        used = {one.colour for one in taken}
        return [next(colour for colour in range(len(used) + 1) if colour not in used)]

    def paint(colours: ts.Collection) -> ts.Collection:
        lower = colours.join(edges, left="node", right="src").select(node="dst", colour="colour")
        every = lower.concat(nodes.select("node", colour=pc.scalar(-1)))
        return every.reduce(least_free, "colour long", keys="node")

    nodes.iterate(paint).changes().capture("out")
    return flow


def same_component(there: Counter[tuple[int, int]], graph: nx.DiGraph) -> Counter[Any]:
    of = {node: i for i, nodes in enumerate(nx.strongly_connected_components(graph)) for node in nodes}
    return Counter({(a, b): n for (a, b), n in there.items() if of[a] == of[b]})


def at_distance(_: Any, graph: nx.DiGraph) -> Counter[Any]:
    found = nx.single_source_shortest_path_length(graph, 1) if 1 in graph else {1: 0}
    return Counter(dict.fromkeys(Counter(found.values()).items(), 1))


def greedily(_: Any, graph: nx.DiGraph) -> Counter[Any]:
    colour: dict[int, int] = {}
    for node in sorted(graph):
        used = {colour[other] for other in graph.predecessors(node)}
        colour[node] = next(c for c in range(len(used) + 1) if c not in used)
    assert all(colour[a] != colour[b] for a, b in graph.edges), "no edge is in conflict"
    return Counter(dict.fromkeys(colour.items(), 1))


CASES = [
    (distances, at_distance, sliding, [(10, 20, 20), (100, 200, 3), (100, 2000, 1)]),
    (strong, same_component, sliding, [(10, 20, 4), (100, 200, 1)]),
    (colours, greedily, rewired, [(10, 20, 5), (60, 200, 2)]),
]
LARGE = [
    (distances, at_distance, sliding, [(10, 20, 1000), (100, 200, 10), (100, 2000, 1)]),
    (strong, same_component, sliding, [(10, 20, 1000), (100, 200, 10), (100, 2000, 1)]),
    (colours, greedily, rewired, [(30, 100, 100), (1000, 5000, 10)]),
]


def cases(of: Any) -> list[Any]:
    return [
        pytest.param(*case, size, id=f"{case[0].__name__}-{'-'.join(map(str, size))}")
        for *case, sizes in of
        for size in sizes
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("made", "oracle", "drawn", "size"), cases(CASES))
def test_a_graph_that_changes_is_at_every_round_what_it_is_alone(
    made: Any, oracle: Any, drawn: Any, size: Any, *, play: Any, came_to: Any
) -> None:
    check(made(), oracle, drawn(*size), play, came_to, workers=3)


@pytest.mark.campaign
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize(("made", "oracle", "drawn", "size"), cases(LARGE))
def test_so_it_is_in_full_size(
    made: Any, oracle: Any, drawn: Any, size: Any, *, play: Any, came_to: Any, together: bool
) -> None:
    check(made(), oracle, drawn(*size, seed=1), play, came_to, workers=3, together=together)


def check(flow: ts.Dataflow, oracle: Any, changes: Changes, play: Any, came_to: Any, **how: Any) -> None:
    roots = [] if flow.name != "bfs" else [("roots", [[(1, 0)]])]
    inputs: dict[str, Any] = {"edges": changes, **dict(roots)}

    got = came_to(play(flow, inputs, **how)["out"])

    assert len(got) == len(changes)
    for epoch, (there, graph) in enumerate(graphs(changes)):
        assert got[epoch] == oracle(there, graph), epoch


@pytest.mark.slow
def test_of_several_epochs_in_flight_each_gets_its_own_answer(play: Any, came_to: Any) -> None:
    for seed in range(2):
        changes = sliding(8, 12, 5, seed)
        check(distances(), at_distance, changes, play, came_to, workers=2, seed=seed, together=True)
        check(
            colours(), greedily, rewired(8, 12, 4, seed), play, came_to, workers=2, seed=seed, together=True
        )
        if not seed:
            check(strong(), same_component, changes[:3], play, came_to, workers=2, seed=seed, together=True)


def test_one_triangle() -> None:
    flow = ts.Dataflow("triangles")
    edges = flow.input("edges", "a long, b long").collection().arrange("a")
    wedges = edges.select("a", "b").join(edges.select(b="a", c="b"), on="b")
    closed = edges.select("a", c="b").distinct().arrange(["a", "c"])
    wedges.semijoin(closed, on=["a", "c"]).select("a", "b", "c").changes().capture("out")

    rows_out = ts.testing.run(flow, {"edges": [[(0, 1), (1, 2), (0, 2)]]}, workers=3)["out"].rows()

    assert rows_out == {0: [(0, 1, 2, 1)]}


# -- the documents' examples ---------------------------------------------------------------------------------


def rows_out(make: Any, **inputs: Any) -> list[Any]:
    """What one epoch of inputs, each of long columns, comes to."""
    flow = ts.Dataflow("case")
    given = [flow.input(name, ts_schema(rows)).collection() for name, rows in inputs.items()]
    make(*given).changes().capture("out")
    return ts.testing.run(flow, {name: [rows] for name, rows in inputs.items()}, workers=2)["out"].rows()[0]


def ts_schema(rows: list[Any]) -> pa.Schema:
    kinds = {int: pa.int64(), str: pa.string()}
    first = rows[0] if isinstance(rows[0], tuple) else (rows[0],)
    return pa.schema([(name, kinds[type(value)]) for name, value in zip("kvw", first, strict=False)])


LEFT, RIGHT = [(0, 0), (1, 2)], [(0, "a"), (1, "B")]


def test_joins_of_the_documents() -> None:
    def join_map(left: ts.Collection, right: ts.Collection) -> ts.Collection:
        return left.join(right.select("k", w="v"), on="k").select(
            n=pc.add(pc.field("k"), pc.field("v")), w="w"
        )

    def pairs(left: ts.Collection, right: ts.Collection) -> ts.Collection:
        return left.join(right.select("k", w="v"), on="k")

    assert rows_out(pairs, x=LEFT, y=RIGHT) == [(0, 0, "a", 1), (1, 2, "B", 1)]
    assert rows_out(join_map, x=LEFT, y=RIGHT) == [(0, "a", 1), (3, "B", 1)]
    assert rows_out(lambda left, keys: left.semijoin(keys, on="k"), x=LEFT, y=[0]) == [(0, 0, 1)]
    assert rows_out(lambda left, keys: left.antijoin(keys, on="k"), x=LEFT, y=[0]) == [(1, 2, 1)]


def test_a_reduction_to_the_least_as_often_as_there_are_different_ones() -> None:
    def least(_: Any, records: list[Any]) -> list[int]:
        return [min(record.v for record in records)] * len(records)

    rows = [(0, 0), (1, 2), (1, 1)]
    assert rows_out(lambda x: x.reduce(least, "v long", keys="k"), x=rows) == [(0, 0, 1), (1, 1, 2)]


def test_collections_of_the_documents() -> None:
    def odds(x: ts.Collection) -> ts.Collection:
        return x.where(pc.equal(pc.bit_wise_and(pc.field("k"), 1), 1))

    def evens(x: ts.Collection) -> ts.Collection:
        return x.filter(pc.equal(pc.bit_wise_and(pc.field("k"), 1), 0))

    def late(x: ts.Collection) -> ts.Collection:
        return x.enter_at(x.scope.inner(), "k").leave()

    numbers, every = list(range(10)), [(n, 1) for n in range(10)]
    assert rows_out(lambda x: odds(x).concat(evens(x)), x=numbers) == every
    assert rows_out(lambda x: odds(x).negate().concat(x), x=numbers) == every[::2]
    assert rows_out(lambda x: x.concat(x.negate()).consolidate(), x=numbers) == []
    assert rows_out(late, x=numbers) == every
    assert rows_out(lambda x: x.enter(x.scope.inner()).leave(), x=numbers) == every


def test_a_history_has_each_change_at_its_time() -> None:
    history = Arrangement(["k"])
    for epoch, (k, v, n) in enumerate([(1, 2, 1), (2, 3, 1), (2, 3, -1)]):
        insert(history, pa.table({"k": [k], "v": [v], DIFF: [n]}), Time(epoch), since=0)

    _, rows = history.lookup(pa.table({"k": [1, 2]}), ["k"])
    times, rows = times_of(rows, 1)

    found = sorted(zip(times[:, 0].tolist(), *(rows[c].to_pylist() for c in ("k", "v", DIFF)), strict=True))
    assert found == [(0, 1, 2, 1), (1, 2, 3, 1), (2, 2, 3, -1)]


def test_times_of_the_documents() -> None:
    a, b = Time(3, 7), Time(4, 6)
    assert (a.join(b), a.meet(b)) == (Time(4, 7), Time(3, 6))
    joins = [one.join(other) for one in (a, b) for other in (Time(5, 6),)]
    assert set(Antichain([a, b])) == {a, b}
    assert Time(5, 6) in joins
    assert set(Antichain([Time(4, 7), Time(5, 6), Time(5, 7)])) == {Time(4, 7), Time(5, 6)}
