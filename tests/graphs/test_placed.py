"""Components spread over all workers by places: against networkx, whatever the places are."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import networkx as nx
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import timely_spark as ts
from tests.graphs.test_components import LONGS
from tests.support.accumulated import after_each
from tests.support.rescaling import answers, move
from timely_spark.authors import DIFF, computed
from timely_spark.coordinator.migration import FlowChanged
from timely_spark.graphs import components, contraction, placed, places
from timely_spark.graphs.placed import components_of_labels, forests_by_place
from timely_spark.graphs.places import PLACE, PLACES, in_places
from timely_spark.testing import Simulation
from timely_spark.worker import Worker

Changes = list[tuple[Any, Any, int]]


def connected(edges: list[tuple[Any, Any]]) -> Iterable[tuple[Any, Any]]:
    for one in nx.connected_components(nx.Graph(edges)):
        least = min(one)
        yield from ((node, least) for node in one)


def spread_components(edges: ts.Collection) -> ts.Collection:
    return ts.graphs.connected_components(edges, spread=True)


def spread_flow(kind: str = "long") -> ts.Dataflow:
    flow = ts.Dataflow("spread")
    edges = flow.input("edges", f"src {kind}, dst {kind}, diff long").collection(diff="diff")
    spread_components(edges).changes().capture("out")
    return flow


class Live:
    """A simulation whose accumulated answer is checked after each epoch."""

    def __init__(self, flow: ts.Dataflow, workers: int) -> None:
        self.flow, self.simulation = flow, Simulation(flow, workers=workers)
        self.edges, self.labels, self.seen = Counter[tuple[Any, Any]](), Counter[tuple[Any, Any]](), 0

    def vertices(self, step: str) -> list[Any]:
        plan, blobs = self.simulation.plan, self.simulation.blobs
        states = enumerate(self.simulation.states)
        return [Worker(plan, state, n, blobs).vertex(plan.by_name[step]) for n, state in states if state]

    def send(self, changes: Changes) -> int:
        """The number of rounds that an epoch takes."""
        before = self.simulation.rounds
        for a, b, diff in changes:
            self.edges[min(a, b), max(a, b)] += diff
        self.simulation.send("edges", changes)
        self.simulation.run()
        tables = list(self.simulation.captured["out"].epochs.values())
        for table in tables[self.seen :]:
            for node, label, diff in zip(*(column.to_pylist() for column in table.columns), strict=True):
                self.labels[node, label] += diff
        self.seen = len(tables)
        self.labels = Counter({pair: n for pair, n in self.labels.items() if n})
        present = [edge for edge, n in self.edges.items() if n > 0]
        assert self.labels == Counter(connected(present))
        return self.simulation.rounds - before


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Hubs of few edges, and contraction of few nodes, by all workers until so many clusters are left."""

    def set_(degree: int, many: int, gathered: int = 0) -> None:
        monkeypatch.setattr(places, "_DEGREE", degree)
        monkeypatch.setattr(places, "_MANY", many)
        monkeypatch.setattr(places, "_GATHERED", gathered)

    return set_


def test_a_node_with_one_label_in_several_places_stays_until_it_has_lost_all() -> None:
    flow = ts.Dataflow("labels")
    labels = flow.input("labels", "node long, label long, diff long").collection(diff="diff").stream
    components_of_labels(labels).capture("out")
    others = [(node, node, 1) for node in range(10, 50)]  # so that later changes are batches of their own
    epochs = [
        [(0, 0, 1), (3, 0, 1), (3, 3, 1), (8, 3, 1), (35, 60, 1), (36, 61, 1), *others],
        [(3, 3, 1), (35, 60, -1)],
        [(3, 3, 1), (36, 61, -1)],
        [(3, 3, -3)],
    ]

    rows = ts.testing.run(flow, {"labels": epochs}, workers=1)["out"].rows()
    assert sorted(rows.pop(0)) == sorted([(0, 0, 1), (3, 0, 1), (8, 0, 1), *others])
    assert {epoch: sorted(changes) for epoch, changes in rows.items() if changes} == {
        3: [(8, 0, -1), (8, 3, 1)],
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    "seed", [*range(3), *(pytest.param(n, marks=pytest.mark.campaign) for n in range(3, 60))]
)
def test_components_follow_edges_that_come_and_go(seed, follows, changing, few) -> None:
    few([1, 2, 1000][seed % 3], [1, 3, 100][seed // 2 % 3], [0, 1 << 16, 5][seed % 3])
    edges = changing(*[(8, 10, 4), (14, 20, 4), (40, 60, 3)][seed % 3], seed=seed, changes=[4, 12][seed % 2])
    how = [{}, {"crashes": 0.2}, {"together": True}][seed % 3]

    follows(spread_components, connected, {"edges": (LONGS, edges)}, workers=1 + seed % 4, seed=seed, **how)


def check_given_places(epochs: list[list[tuple[int, int, int, int]]], workers: int) -> None:
    """Check the components of changes of edges (a, b, place, diff) after each epoch."""
    flow = ts.Dataflow("given")
    edges = flow.input("edges", "a long, b long, place long, diff long").collection(diff="diff").stream
    named = computed(edges, "a", "b", {PLACE: pc.field("place"), DIFF: DIFF}, own=(PLACE, DIFF))
    labels, _ = forests_by_place(named.scope.inner(watched=False).enter(named))
    components_of_labels(labels.leave()).capture("out")

    made = ts.testing.run(flow, {"edges": epochs}, workers=workers)["out"].rows()

    edges = [[(a, b, diff) for a, b, _, diff in rows] for rows in epochs]
    for found, counts in zip(after_each(made, len(edges)), after_each(edges), strict=True):
        assert found == Counter(connected([*counts]))


@pytest.mark.slow
@settings(max_examples=settings().max_examples // 10)
@given(
    place=st.sampled_from(["one", "random", "each"]),
    workers=st.integers(1, 3),
    draw=st.randoms(use_true_random=False),
)
def test_any_places_give_the_same_components(place: str, workers: int, draw: random.Random) -> None:
    at: dict[tuple[int, int], int] = {}
    counts, epochs = Counter[tuple[int, int]](), []
    for _ in range(4):
        rows = []
        for _ in range(8):
            gone = counts and draw.random() < 0.5
            edge = draw.choice(sorted(counts)) if gone else tuple(sorted(draw.choices(range(9), k=2)))
            at.setdefault(edge, {"one": 5, "random": draw.randrange(4), "each": len(at)}[place])
            rows.append((*edge, at[edge], -counts[edge] if gone else 1))
            counts[edge] += rows[-1][-1]
            counts = +counts
        epochs.append(rows)
    check_given_places(epochs, workers)


@pytest.mark.slow
def test_nodes_that_several_places_have_join_these() -> None:
    rows = [(1, 2, 0, 1), (2, 3, 1, 1), (2, 4, 2, 1), (5, 6, 2, 1), (3, 7, 3, 1), (8, 9, 4, 1)]
    gone = [(a, b, place, -1) for a, b, place, _ in rows]
    check_given_places([rows, gone[:2], rows[:1], gone[:1] + gone[2:], rows], workers=1)


@pytest.mark.campaign
@pytest.mark.slow
def test_a_hub_of_texts_loses_half_of_its_edges_and_gets_them_back(few) -> None:
    few(20, 10)
    live = Live(spread_flow("string"), 5)
    rays = [("hub", f"n{i}", 1) for i in range(60)]
    live.send([*rays, ("hub", "hub", 1), *((f"n{i}", f"n{i + 1}", 1) for i in range(0, 60, 6))])
    live.send([(b, a, -1) for a, b, _ in rays[::2]])
    live.send(rays[::2])
    live.send([(a, b, -n) for (a, b), n in live.edges.items()])
    assert not live.labels


def sizes(simulation: Simulation) -> list[int]:
    return [len(state or b"") for state in simulation.states]


@pytest.mark.slow
def test_a_path_is_cut_in_the_middle_and_joined_again() -> None:
    n, workers = 5_000, 4
    node = np.random.default_rng(0).permutation(n).tolist()
    live = Live(spread_flow(), workers)
    assert live.send(list(zip(node[:-1], node[1:], [1] * (n - 1), strict=True))) <= 22
    cut = (node[n // 2], node[n // 2 + 1])
    assert live.send([(*cut, -1)]) <= 8
    assert live.send([(*cut, 1)]) <= 8
    assert live.send([(node[0], n, 1), (n + 1, n + 2, 1)]) <= 9


@pytest.mark.campaign
def test_a_path_of_a_million_nodes_is_cut_in_the_middle() -> None:
    """As arrays: each node has the least of its side of the cut."""
    n, half = 1_000_000, 500_000
    node = np.random.default_rng(1).permutation(n)
    simulation = Simulation(spread_flow(), workers=16)
    label = np.zeros(n, np.int64)

    def send(src: Any, dst: Any, diff: int) -> int:
        before = simulation.rounds
        edges = {"src": src, "dst": dst, "diff": np.full(len(src), diff)}
        simulation.send(simulation.plan.sources[0], pa.table(edges))
        simulation.run()
        return simulation.rounds - before

    def answers() -> Any:
        table = pa.concat_tables(simulation.captured["out"].epochs.values())
        found, diff = np.zeros(n, np.int64), table["diff"].to_numpy()
        np.add.at(found, table["node"].to_numpy(), diff * table["component"].to_numpy())
        count = np.bincount(table["node"].to_numpy(), weights=diff, minlength=n)
        assert (count == 1).all()
        return found

    send(node[:-1], node[1:], 1)
    assert (answers() == 0).all()
    cut = node[half - 1 : half], node[half : half + 1]
    assert send(*cut, -1) <= 10
    sides = node[:half], node[half:]
    for side in sides:
        label[side] = side.min()
    assert (answers() == label).all()
    assert send(*cut, 1) <= 10
    assert (answers() == 0).all()


@pytest.mark.slow
def test_a_window_slides_and_leaves_no_state() -> None:
    live, kept = Live(spread_flow(), 2), []
    for epoch in range(9):
        first = 20 * epoch
        come = [(first + i, first + i + 7, 1) for i in range(20)]
        gone = [(a - 60, b - 60, -1) for a, b, _ in come] if epoch >= 3 else []
        live.send(come + gone)
        kept.append(sum(sizes(live.simulation)))
    assert max(kept[6:]) < 1.2 * max(kept[3:6])


@pytest.mark.slow
@pytest.mark.parametrize(
    "shape", ["path", pytest.param("random", marks=pytest.mark.campaign), "star", "skewed"]
)
def test_workers_have_equal_shares(shape: str) -> None:
    n, draw = 8_000, np.random.default_rng(1)
    node = draw.permutation(n)
    a, b = {
        "path": (node[:-1], node[1:]),
        "random": draw.integers(0, n, (2, 2 * n)),
        "star": (np.full(n - 1, node[0]), node[1:]),
        "skewed": node[(n * draw.random((2, 2 * n)) ** 4).astype(np.int64)],
    }[shape]
    simulation = Simulation(spread_flow(), workers=16)
    simulation.send("edges", pa.table({"src": a, "dst": b, "diff": np.ones(len(a), np.int64)}))
    simulation.run()

    each = sizes(simulation)
    assert max(each) < 1.5 * np.mean(each)
    (found,) = simulation.captured["out"].epochs.values()
    assert Counter(zip(found["node"].to_pylist(), found["component"].to_pylist(), strict=True)) == Counter(
        connected(list(zip(a.tolist(), b.tolist(), strict=True)))
    )


@pytest.mark.slow
def test_another_number_of_workers_changes_no_answer(few) -> None:
    few(5, 10)
    draw, live = random.Random(3), Live(spread_flow(), 3)
    for workers in (3, 7, 2, 1, 4):
        if workers != 3:
            move(live.simulation, live.flow, workers)
        come = [(draw.randrange(60), draw.randrange(60), 1) for _ in range(50)]
        gone = [(*edge, -n) for edge, n in draw.sample(sorted(live.edges.items()), len(live.edges) // 3) if n]
        live.send(come + gone)


@pytest.mark.campaign  # another number of workers changes no answer, too
@pytest.mark.slow
def test_workers_change_while_an_epoch_gets_its_places(few) -> None:
    """Up to the labels' broadcast, which must have arrived."""
    few(5, 1)
    edges = [
        [(a, (7 * a + 3) % 40, 1) for a in range(40)],
        [(a, (7 * a + 3) % 40, -1) for a in range(0, 40, 3)],
    ]
    expected, batches = answers(spread_flow(), {"edges": edges}, [2])
    assert batches > 20
    for stop in range(1, 26, 12):
        got, _ = answers(spread_flow(), {"edges": edges}, [2, 3], stops=lambda at, stop=stop: at == stop)
        assert got == expected


def test_positions_are_distinct_and_near_each_other() -> None:
    """One worker's contraction of a path: nearly all neighbours are in one of 16 intervals."""
    n = 4096
    nodes = np.sort(np.random.default_rng(2).integers(0, 1 << 63, n).astype(np.uint64))
    path = np.random.default_rng(3).permutation(nodes)
    both = np.append(path[:-1], path[1:]), np.append(path[1:], path[:-1])
    at = contraction.node_rows(nodes, both[0])

    starts = contraction.arrange(nodes, np.ones(n, np.int64), at, both[1], 0).number

    assert sorted(starts.tolist()) == list(range(n))
    place = starts[np.searchsorted(nodes, path)] * 16 // n
    assert (place[1:] != place[:-1]).sum() < 160


def test_each_level_of_a_contraction_leaves_less_than_two_thirds_of_the_clusters() -> None:
    """Those of a node that no other looks at have links, too."""
    draw, n = np.random.default_rng(4), 4096
    nodes = np.sort(draw.integers(0, 1 << 63, n).astype(np.uint64))
    at, other = np.append(*(ends := draw.integers(0, n, (2, 2 * n)))), nodes[np.append(*ends[::-1])]
    graph = contraction.linked(nodes, np.ones(n, np.int64), at[nodes[at] != other], other[nodes[at] != other])
    for number in range(5):
        level, messages = contraction.choose(graph, number)
        level, clusters, messages = contraction.contracted(level, messages)
        assert len(clusters.nodes) < len(graph.nodes) * 2 // 3
        graph = contraction.relinked(clusters, messages)


def test_small_pieces_move_to_where_a_neighbour_stays() -> None:
    """In place 1 the nodes 10 and 11 are a piece that may move; 20 may not, 30 is joined."""
    edges = [(10, 11, 1, 3), (10, 12, 3, 3), (11, 13, 2, 2), (20, 21, 2, 0), (30, 31, 2, 3), (30, 32, 1, 2)]
    home, other, place, bits = (np.array(column) for column in zip(*edges, strict=True))

    moves = contraction.moves_of(
        contraction.Messages(np.ones(len(home), np.uint64), home.astype(np.uint64), other, place << 2 | bits)
    )

    assert dict(zip(moves.to.tolist(), moves.number.tolist(), strict=True)) == {10: 2, 11: 2}


def places_of(epochs: list[Changes], workers: int) -> list[list[tuple[int, int, int, int]]]:
    """By epoch the changes of edges, each with its place."""
    flow = ts.Dataflow("places")
    edges = flow.input("edges", "a long, b long, diff long").collection(diff="diff").stream
    in_places(edges, lambda placed: (placed, None)).capture("out")
    made = ts.testing.run(flow, {"edges": epochs}, workers=workers)["out"].rows()
    return [made.get(epoch, []) for epoch in range(len(epochs))]


def test_edges_that_come_to_a_component_get_its_place() -> None:
    """Whichever end is their home; up to three steps from what was there."""
    to_known = [(n % 2, n, 1) for n in range(2, 20)]
    first, more = places_of([[(0, 1, 1)], [*to_known, *((n, n + 20, 1) for _, n, _ in to_known)]], workers=1)

    assert len(more) == 36
    assert {place for *_, place, _ in more} == {place for *_, place, _ in first}


def test_the_edges_of_a_hub_have_the_places_of_their_other_ends(few) -> None:
    few(10, 256)
    apart = [(2 * n, 2 * n + 1, 1) for n in range(1, 20)]
    rays = [(n % 2, n, 1) for edge in apart for n in edge[:2]]
    first, more = places_of([apart, [*rays, (0, 1, 1)]], workers=2)

    of_ends = {end: place for *edge, place, _ in first for end in edge}
    assert {b: place for _, b, place, _ in more if b != 1} == of_ends
    assert len(more) == len(rays) + 1, "the edge between two hubs has a place, too"


def test_the_nodes_of_a_long_path_share_places_with_their_neighbours() -> None:
    n = 1000
    node = np.random.default_rng(0).permutation(n).tolist()
    (rows,) = places_of([list(zip(node[:-1], node[1:], [1] * (n - 1), strict=True))], workers=1)

    ends = {(end, place) for *edge, place, _ in rows for end in edge}
    assert len(ends) < 1.15 * n, "by their hashes nearly all nodes would be in two places"
    assert max(Counter(place for _, place in ends).values()) < 4 * n / PLACES


@pytest.mark.slow
def test_an_edge_keeps_its_place_while_it_exists(few) -> None:
    few(3, 4)
    draw, counts = random.Random(1), Counter[tuple[int, int]]()
    epochs: list[Changes] = []
    for _ in range(12):
        rows: Changes = []
        for _ in range(10):
            gone = counts and draw.random() < 0.5
            a, b = draw.choice(sorted(counts)) if gone else sorted(draw.choices(range(15), k=2))
            rows.append((a, b, -1 if gone else 1))
            counts[a, b] += rows[-1][2]
            counts = +counts
        epochs.append(rows)

    made = places_of(epochs, workers=3)

    total, before = Counter[tuple[int, int, int]](), Counter[tuple[int, int]]()
    for epoch, rows in enumerate(epochs):
        for a, b, place, diff in made[epoch]:
            assert 0 <= place < PLACES
            total[a, b, place] += diff
        before.update({(a, b): 0 for a, b, _ in rows})
        for a, b, diff in rows:
            before[a, b] += diff
        present = {key: n for key, n in total.items() if n}
        assert {(a, b): n for (a, b, _), n in present.items()} == {e: n for e, n in before.items() if n}
        assert len({key[:2] for key in present}) == len(present)


@pytest.fixture
def from_three(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ts.Dataflow]:
    """A flow that gives nodes places with three workers or more."""
    monkeypatch.setattr(components, "_MANY", 3)

    def flow(kind: str = "long") -> ts.Dataflow:
        flow = ts.Dataflow("ways")
        edges = flow.input("edges", f"src {kind}, dst {kind}, diff long").collection(diff="diff")
        ts.graphs.connected_components(edges).changes().capture("out")
        return flow

    return flow


def test_many_workers_give_nodes_places_and_few_do_not() -> None:
    flow = ts.Dataflow("default")
    edges = flow.input("edges", "src long, dst long").collection()
    ts.graphs.connected_components(edges).changes().capture("out")
    with flow.region("small", workers=[0]):
        ts.graphs.connected_components(edges).changes().capture("few")

    fifteen, sixteen = (flow.compile(n) for n in (15, 16))

    assert [node.name for node in fifteen.nodes[:2]] == ["spanning_forest", "label_components"]
    assert {*sixteen.by_name} - {*fifteen.by_name} > {"by_place.loop.place", "by_place.name_components"}
    assert "small.label_components" in sixteen.by_name, "one worker of a region has no use for places"
    assert repr(flow) == "Dataflow('default'; inputs: edges; outputs: out, few)"


@pytest.mark.slow
def test_another_number_of_workers_takes_the_other_way(from_three, few) -> None:
    few(5, 1000)
    draw, live = random.Random(4), Live(from_three("string"), 2)
    for workers in (3, 1, 4):
        come = [(f"n{draw.randrange(20)}", f"n{draw.randrange(20)}", 1) for _ in range(16)]
        live.send(come + [(*edge, -n) for edge, n in live.edges.items() if n and draw.random() < 0.4])
        move(live.simulation, live.flow, workers)
        assert ("by_place.loop.place" in live.simulation.plan.by_name) == (workers >= 3)
        live.send([("a", "a", 1)])
        *_, changes = live.simulation.captured["out"].epochs.values()
        assert changes.num_rows <= 1, "the other way sends nothing again"
        live.send([("a", "a", -1)])


@pytest.mark.slow
@pytest.mark.parametrize("workers", [(2, 3), (3, 2)])
def test_all_edges_go_in_the_first_epoch_of_the_other_way(from_three, workers: tuple[int, int]) -> None:
    live = Live(from_three(), workers[0])
    live.send([(n, n + 1, 1) for n in range(5)])
    move(live.simulation, live.flow, workers[1])
    move(live.simulation, live.flow, 4)  # once more, before any edge has come: it stays as it is
    live.send([(n, n + 1, -1) for n in range(5)])
    assert not live.labels
    assert live.send([(1, 2, 1)])
    assert sizes(live.simulation)


@pytest.mark.slow
@pytest.mark.parametrize("stop", [5, *(pytest.param(n, marks=pytest.mark.campaign) for n in (2, 12))])
def test_the_way_stays_while_an_epoch_is_under_way(from_three, stop: int) -> None:
    come = [(a, (7 * a + 3) % 20, 1) for a in range(20)]
    edges = [come, [(a, b, -1) for a, b, _ in come[::3]]]
    expected, _ = answers(from_three(), {"edges": edges}, [2])
    got, _ = answers(from_three(), {"edges": edges}, [3, 2], stops=lambda at: at == stop)
    assert got == expected


def test_a_late_epoch_is_not_taken_for_an_endless_loop() -> None:
    """The loop that gives places counts on from epoch to epoch."""
    flow = ts.Dataflow("late")
    edges = flow.input("edges", "src long, dst long", epochs="manual").collection()
    spread_components(edges).changes().capture("out")
    simulation = Simulation(flow, workers=2)
    simulation.send("edges", [(1, 2)], epoch=400)
    simulation.advance_to("edges", 401)
    simulation.run()
    assert simulation.captured["out"].rows()[400] == [(1, 1, 1), (2, 1, 1)]
    assert simulation.coordinator.loops.reached == {}, "so cancel() bounds no loop by it"


@pytest.fixture
def drifting(monkeypatch: pytest.MonkeyPatch, few) -> list[Changes]:
    """A path of sixty nodes in four places, whose edges others replace."""
    few(20, 8)
    monkeypatch.setattr(placed, "_NEWS", 0)
    monkeypatch.setattr(places, "PLACES", 4)
    draw, path = random.Random(5), [(n, n + 1, 1) for n in range(59)]
    changes, counts = [path], Counter({edge[:2]: 1 for edge in path})
    for _ in range(2):
        gone = [(*edge, -n) for edge, n in counts.items() if draw.random() < 0.4]
        come = [(*sorted(draw.choices(range(60), k=2)), 1) for _ in gone]
        for a, b, diff in (epoch := [*gone, *come]):
            counts[a, b] += diff
        counts = +counts
        changes.append(epoch)
    return changes


@pytest.mark.slow
def test_all_edges_get_other_places_when_many_were_replaced(drifting) -> None:
    """Deletions stay exact in that epoch and in later ones."""
    live, again = Live(spread_flow(), 3), []
    for changes in drifting:
        live.send(changes)
        again.append(max(vertex.run for vertex in live.vertices("loop.place")) % 2)
    assert sum(again[:-1]) > 0
    live.send([(*edge, -n) for edge, n in live.edges.items() if n])
    assert not live.labels


@pytest.mark.parametrize(("runs", "valid"), [([1, 0, 1], [0, 2]), ([2, 0, 2], [0, 1, 2])])
def test_other_workers_get_all_edges_and_the_places_that_are_valid(runs: list[int], valid: list[int]) -> None:
    """Where two of three workers place all edges again, the places of the third are void."""
    states = []
    for n, run in enumerate(runs):
        vertex = places._Places(("src", "dst"))
        vertex.run, edges = run, pa.table({"src": [n], "dst": [n + 10], DIFF: [1]})
        vertex.moved = [places.homed(edges, vertex.ends)]
        vertex.places.insert(pa.table({places.TO: pa.array([n], pa.uint64()), PLACE: [n], DIFF: [1]}))
        vertex.nodes, vertex.ends_of = np.array([n, n + 5], np.uint64), np.ones(2, np.int64)
        vertex.place = np.array([n, places.NEW])
        states.append(vertex.checkpoint())

    moved = places._Places(("src", "dst")).repartition(states, 2, lambda _, table: [table, table.slice(0, 0)])

    first, _ = moved
    assert [part["src"].to_pylist() for part in first["moved"]] == [[0], [1], [2]]
    assert sorted(row for part in first["places"].batches() for row in part[PLACE].to_pylist()) == valid
    assert [part[PLACE].to_pylist() for part in first["changes"]] == [[n, n + 5] for n in valid]
    assert [(state["run"], state["rescaled"]) for state in moved] == [(max(runs), True)] * 2


@pytest.mark.campaign
@pytest.mark.slow
def test_workers_change_while_all_edges_get_other_places(drifting) -> None:
    inputs = {"edges": drifting}
    expected, batches = answers(spread_flow(), inputs, [3])
    moved = 0
    for stop in range(0, batches, 3):
        try:
            got, _ = answers(spread_flow(), inputs, [3, 2], stops=lambda at, stop=stop: at == stop)
        except FlowChanged as error:  # noqa: PERF203 - each stop is a run
            refused = str(error)
            assert "every worker has a copy" in refused
        else:
            assert got == expected
            moved += 1
    assert moved > batches // 6
