"""Spanning forests and connected components under insertions and deletions: against networkx per epoch."""

from __future__ import annotations

import itertools
import json
import random
from collections import Counter
from datetime import date
from decimal import Decimal
from typing import Any
from unittest import mock

import networkx as nx
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import timely_spark as ts
from tests.support.rescaling import move
from tests.support.turns import in_turn
from timely_spark.coordinator.migrate import Migrator
from timely_spark.coordinator.migration import FlowChanged
from timely_spark.differential.trace import DIFF
from timely_spark.errors import GraphError, SchemaError
from timely_spark.graphs import forest as module
from timely_spark.graphs import spanning
from timely_spark.graphs.forest import components, spanning_forest
from timely_spark.graphs.spanning import rooted_forest, shallow_forest
from timely_spark.state.arrangement import Arrangement
from timely_spark.state.hashing import hashes
from timely_spark.testing import Simulation

Edge = tuple[Any, Any]
Changes = list[tuple[Any, Any, int]]


def graph_flow(kind: str = "long") -> ts.Dataflow:
    flow = ts.Dataflow("graph")
    edges = flow.input("edges", f"a {kind}, b {kind}, diff long").collection(diff="diff")
    forest = spanning_forest(edges.stream, name="leaf")
    forest.capture("forest")
    components(forest, name="least").capture("components")
    return flow


def undirected(a: Any, b: Any) -> Edge:
    return (a, b) if (a is None, a) <= (b is None, b) else (b, a)


class Oracle:
    """The graph after each epoch, and the accumulated outputs."""

    def __init__(self) -> None:
        self.counts: Counter[Edge] = Counter()
        self.forest: Counter[Edge] = Counter()
        self.components: Counter[Edge] = Counter()

    def graph(self) -> nx.Graph:
        graph = nx.Graph()
        graph.add_edges_from(edge for edge, count in self.counts.items() if count > 0)
        return graph

    def check(self, changes: Changes, forest: Changes, labels: Changes, *, workers: int) -> tuple[int, int]:
        """The number of edges that changed; and of the forest's edges that changed."""
        before = self.graph()
        for a, b, diff in changes:
            self.counts[undirected(a, b)] += diff
        graph = self.graph()
        for accumulated, made in ((self.forest, forest), (self.components, labels)):
            assert max(Counter(row[:2] for row in made).values(), default=1) == 1, "consolidated"
            for one, other, diff in made:
                accumulated[one, other] += diff
            assert set(accumulated.values()) <= {0, 1}

        chosen = {edge for edge, count in self.forest.items() if count}
        assert chosen <= {undirected(*edge) for edge in graph.edges}
        spanned = nx.Graph(list(chosen))
        parts = sorted(map(sorted_nodes, nx.connected_components(graph)))
        assert sorted(map(sorted_nodes, nx.connected_components(spanned))) == parts
        trees = sum(a != b for a, b in chosen)
        assert len(graph) - len(parts) <= trees <= workers * len(graph)
        if workers == 1:
            assert trees == len(graph) - len(parts), "a forest"

        least = {(node, part[0]) for part in parts for node in part}
        assert {pair for pair, count in self.components.items() if count} == least
        return len(set(map(frozenset, before.edges)) ^ set(map(frozenset, graph.edges))), len(forest)


def sorted_nodes(nodes: Any) -> list[Any]:
    return sorted(nodes, key=lambda node: (node is None, node))


def check_run(epochs: list[Changes], *, kind: str = "long", workers: int = 1, **options: Any) -> list[Any]:
    made = ts.testing.run(graph_flow(kind), {"edges": epochs}, workers=workers, **options)
    forest, labels = made["forest"].rows(), made["components"].rows()
    oracle = Oracle()
    return [
        oracle.check(changes, forest.get(epoch, []), labels.get(epoch, []), workers=workers)
        for epoch, changes in enumerate(epochs)
    ]


changes = st.lists(
    st.tuples(st.integers(0, 9), st.integers(0, 9), st.sampled_from([1, 1, 1, -1, -1, 2, -2])), max_size=12
)


@pytest.mark.slow
@given(
    epochs=st.lists(changes, max_size=6),
    workers=st.integers(1, 4),
    seed=st.integers(0, 99),
    many=st.sampled_from([1, 8, module._MANY]),
)
def test_at_every_epoch_the_components_are_those_of_the_present_edges(
    epochs: list[Changes], workers: int, seed: int, many: int
) -> None:
    with mock.patch.object(module, "_MANY", many):
        check_run(epochs, workers=workers, seed=seed)


def churn(seed: int, *, nodes: int, epochs: int, size: int) -> list[Changes]:
    """Random insertions and deletions of edges, in either direction."""
    draw, counts, made = random.Random(seed), Counter[Edge](), []
    for _ in range(epochs):
        rows: Changes = []
        for _ in range(size):
            if counts and draw.random() < 0.5:
                edge = draw.choice(sorted(counts))
                rows.append((*draw.choice([edge, edge[::-1]]), draw.choice([-1, -counts[edge]])))
            else:
                rows.append((draw.randrange(nodes), draw.randrange(nodes), draw.choice([1, 1, 1, 2])))
            counts[undirected(*rows[-1][:2])] += rows[-1][2]
            counts = Counter({edge: count for edge, count in counts.items() if count})
        made.append(rows)
    return made


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.campaign) for n in (1, 2))])
@pytest.mark.parametrize(("levels", "few"), [(1, 4096), (64, 2), (64, 4096)])
def test_a_forest_changes_little_per_edge(
    seed: int, levels: int, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_LEVELS", levels)
    monkeypatch.setattr(module, "_FEW", few)
    counted = check_run(churn(seed, nodes=30, epochs=25, size=15))

    edges, forest = map(sum, zip(*counted, strict=True))
    assert forest < 1.5 * edges


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 3])
def test_a_forest_may_be_made_anew_in_each_epoch(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MANY", 1)
    monkeypatch.setattr(module, "_REMOVAL", 1 << 20)

    made: list[int] = []
    shallow = module.shallow_forest
    monkeypatch.setattr(module, "shallow_forest", lambda *args: (made.append(1), shallow(*args))[1])

    check_run(churn(3, nodes=12, epochs=15, size=9), workers=workers)
    assert len(made) >= 15

    made.clear()
    back = [(a, a + 1, sign) for a in range(9) for sign in (-1, 1)]
    check_run([[(a, a + 1, 1) for a in range(30)], back], workers=1)
    assert len(made) == 2, "of each vertex the first load: what comes back in an epoch changes nothing"


@pytest.mark.slow
def test_a_tree_that_is_detached_at_once_keeps_all_its_edges_but_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_LEVELS", 0)
    draw = random.Random(4)
    edges = sorted({undirected(*draw.sample(range(60), 2)) for _ in range(200)})
    removals = [[(*edge, -1)] for edge in draw.sample(edges, 30)]

    counted = check_run([[(*edge, 1) for edge in edges], *removals])

    assert max(forest for _, forest in counted[1:]) == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", ["string", "int", "float", "double", "date", "binary", "boolean", "decimal(9, 2)"]
)
def test_nodes_are_of_any_type_that_can_be_a_key(kind: str) -> None:
    makes = {"string": str, "binary": lambda n: b"%d" % n, "decimal(9, 2)": Decimal, "boolean": bool}
    makes["date"] = lambda n: date(2000, 1, 1 + n)
    values = [makes.get(kind, int)(n) for n in range(2 if kind == "boolean" else 12)]
    named = [
        [(values[a % len(values)], values[b % len(values)], diff) for a, b, diff in rows]
        for rows in churn(3, nodes=12, epochs=8, size=6)
    ]

    check_run(named, kind=kind, workers=2)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "end"), [("tinyint", 120), ("smallint", 20_000), ("bigint", 2**40)])
def test_nodes_span_the_whole_range_of_their_type(kind: str, end: int) -> None:
    draw = random.Random(end)
    near = range(-min(end, 20_000), min(end, 20_000))
    edges = [(draw.choice(near), draw.choice(near), 1) for _ in range(min(len(near), 5_000))]

    check_run([[*edges, (-end, end, 1)], [(-end, end, -1)]], kind=kind, workers=2)


def test_null_is_a_node_after_all_others() -> None:
    epochs = [[(None, 2, 1), (None, 5, 1)], [(2, None, -1), (None, None, 1)], [(5, None, -1), (5, 5, 1)]]
    made = ts.testing.run(graph_flow(), {"edges": epochs}, workers=2)["components"].rows()

    assert made == {
        0: [(None, 2, 1), (2, 2, 1), (5, 2, 1)],
        1: [(None, 2, -1), (None, 5, 1), (2, 2, -1), (5, 2, -1), (5, 5, 1)],
        2: [(None, None, 1), (None, 5, -1)],
    }


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.campaign) for n in (1, 2))])
def test_crashes_and_schedules_do_not_change_the_result(seed: int) -> None:
    check_run(churn(seed, nodes=20, epochs=12, size=8), workers=3, seed=seed, crashes=0.3)


@pytest.mark.slow
def test_epochs_in_flight_together_are_sent_one_by_one() -> None:
    check_run(churn(5, nodes=15, epochs=10, size=8), workers=3, seed=5, together=True)


def test_an_edge_added_and_removed_in_one_epoch_changes_nothing() -> None:
    made = ts.testing.run(graph_flow(), {"edges": [[(1, 2, 1), (2, 1, -1)], [(1, 1, -1)], [(1, 1, 1)]]})

    assert [rows for output in made.values() for rows in output.rows().values()] == [[]] * 6


def test_an_edge_may_come_hundreds_of_times() -> None:
    first = [(1, 2, 1)] * 300 + [(2, 1, 1)] * 5 + [(3, 3, 1)] * 200 + [(4, 3, 1), (2, 3, 1), (3, 4, 1)]

    check_run([first, [(1, 2, -304), (3, 3, -199), (3, 4, -1)], [(2, 1, -1), (4, 3, -1)], [(3, 2, -1)]])


@pytest.mark.slow
def test_a_path_loses_and_regains_edges_in_many_places() -> None:
    n, draw = 600, random.Random(1)
    path = [(i, i + 1, 1) for i in range(n)]
    draw.shuffle(path)
    removals = [draw.sample(range(n), k) for k in (1, 7, 40)]
    epochs = [path]
    for removed in removals:
        epochs += [[(i, i + 1, -1) for i in removed], [(i + 1, i, 1) for i in removed]]

    check_run(epochs, workers=2)


def test_a_star_loses_rays_and_then_its_centre() -> None:
    rays = [(50, i, 1) for i in range(100) if i != 50]
    rim = [(i, (i + 1) % 100, 1) for i in range(0, 100, 2)]

    check_run([rays, [(50, 7, -1), (50, 0, -1)], rim, [(a, b, -1) for a, b, _ in rays if b not in {0, 7}]])


@pytest.mark.slow
def test_a_skewed_graph_shrinks_to_nothing() -> None:
    draw = np.random.default_rng(2)
    a, b = np.zeros((2, 2000), np.int64)
    for _ in range(9):  # R-MAT
        quarter = draw.choice(4, 2000, p=[0.57, 0.19, 0.19, 0.05])
        a, b = 2 * a + quarter // 2, 2 * b + quarter % 2
    edges = list(zip(a.tolist(), b.tolist(), strict=True))
    order = draw.permutation(len(edges)).reshape(8, -1)

    check_run(
        [[(*edge, 1) for edge in edges], *([(*edges[i], -1) for i in part] for part in order)], workers=3
    )


@pytest.mark.parametrize("shape", ["star", "path"])
def test_a_subtree_that_comes_off_affects_no_node_of_the_rest(shape: str) -> None:
    """Also where it is a large part of the tree, or a deep one."""
    hub, below = [(0, n, 1) for n in range(1, 1000)], [1, *range(1000, 1050 if shape == "path" else 1300)]
    parents = below[:-1] if shape == "path" else [1] * (len(below) - 1)
    forest = module.Forest(("a", "b"), pa.int64())

    def affected(rows: Changes) -> int:
        columns = map(list, zip(*rows, strict=True))
        return len(forest.update(pa.table(dict(zip(["a", "b", DIFF], columns, strict=True))))[0])

    affected(hub + [(a, b, 1) for a, b in zip(parents, below[1:], strict=True)])
    assert affected([(0, 1, -1)]) < len(below) + 10, "the hub, and a few of its neighbours"


def test_a_removed_node_is_forgotten_only_with_the_row_that_added_it() -> None:
    node = pa.array([1, 1, 2, 3, 3])  # 1 came and went, 2 came before, 3 came and changed
    diff = pa.array([1, -1, -1, 1, 0], pa.int8())
    rank = pa.array([0, module.REMOVED, module.REMOVED, 0, 4])
    rows = pa.table({"node": node, "label": node, "parent": node, "rank": rank, DIFF: diff})
    _, kept = module.latest_rows(hashes(rows, ["node"]), rows)
    assert kept.select(["node", "rank", DIFF]).to_pylist() == [
        {"node": 2, "rank": module.REMOVED, DIFF: -1},
        {"node": 3, "rank": 4, DIFF: 1},
    ]


@pytest.mark.slow
def test_the_rows_of_a_node_sum_to_whether_it_is_present() -> None:
    """A node that comes again has its own row of removal before it, in another part of the state."""
    rows, forest = [(i, i + 1, 1) for i in range(60)], module._Components(("a", "b"), pa.int64())
    rounds = [rows, *([(i, i + 1, diff)] for i in (59, 30, 0) for diff in (-1, 1, -1, 1))]
    rounds.append([(i, i + 1, -1) for i in range(60)])
    present: Counter[Edge] = Counter()
    for changed in [*rounds, rows]:
        columns = dict(zip(["a", "b", DIFF], map(list, zip(*changed, strict=True)), strict=True))
        nodes, _ = forest.update(pa.table(columns))
        old = {end for edge, n in present.items() if n > 0 for end in edge}
        for a, b, diff in changed:
            present[a, b] += diff
        new = {end for edge, n in present.items() if n > 0 for end in edge}
        values = nodes.values.to_pylist()
        assert {values[i] for i in range(len(nodes)) if nodes.old_label[i] >= 0} <= old
        assert new - old <= {values[i] for i in range(len(nodes)) if nodes.old_label[i] < 0 <= nodes.label[i]}
        sums: Counter[int] = Counter()
        for part in forest.nodes.batches():
            for row in part.to_pylist():
                sums[row["node"]] += row[DIFF]
        assert {node: n for node, n in sums.items() if n} == dict.fromkeys(new, 1)


@pytest.mark.slow
def test_removed_edges_leave_no_state() -> None:
    epochs = [[(i, i + 1, 1), *([(i - 3, i - 2, -1)] if i >= 3 else [])] for i in range(40)]
    simulation = Simulation(graph_flow(), workers=1)
    sizes = []
    for rows in epochs:
        simulation.send("edges", rows)
        simulation.run()
        sizes.append(len(simulation.states[0] or b""))

    assert max(sizes) == pytest.approx(max(sizes[:20]), rel=0.2)


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "forest", "state"), [(8, 4.5, 1.4), (32, 9, 2)])
def test_forests_of_many_workers_have_few_edges(workers: int, forest: float, state: float) -> None:
    """A node is in about sqrt(2 * workers) forests. By the hash of edges it is in nearly all of them."""
    nodes, draw = 2000, np.random.default_rng(0)
    a, b = draw.integers(0, nodes, (2, 20 * nodes))
    edges = pa.table({"a": a, "b": b, "diff": np.ones(len(a), np.int64)})
    alone, many = (Simulation(graph_flow(), workers=each) for each in (1, workers))
    for simulation in (alone, many):
        simulation.send("edges", edges)
        simulation.run()

    assert many.captured["forest"].epochs[0].num_rows <= forest * nodes
    sizes = [sum(len(each or b"") for each in simulation.states) for simulation in (alone, many)]
    assert sizes[1] <= state * sizes[0]
    assert many.captured["components"].rows() == alone.captured["components"].rows()


def test_a_checkpoint_with_edges_dealt_out_by_pairs_is_refused() -> None:
    simulation = Simulation(graph_flow(), workers=3)
    simulation.send("edges", [(1, 2, 1), (2, 3, 1)])
    simulation.run()
    old = json.loads(json.dumps(simulation.plan.described()).replace(" in blocks", ""))

    with pytest.raises(FlowChanged, match=r"partitioned was \['by a, b'\], is \['by a, b in blocks'\]"):
        Migrator(
            old,
            graph_flow().compile(3),
            json.loads(json.dumps(simulation.coordinator.encode())),
            simulation.states,
            pa.concat_tables(simulation.waiting),
            simulation.blobs,
        ).migration()


@pytest.mark.slow
@pytest.mark.parametrize("shape", ["path", "star"])
def test_long_paths_take_no_more_rounds_than_short_ones(shape: str) -> None:
    n = 100_000
    node = np.random.default_rng(0).permutation(n)
    ends = (node[:-1], node[1:]) if shape == "path" else (np.full(n - 1, node[0]), node[1:])
    simulation = Simulation(graph_flow(), workers=4)

    def send(a: Any, b: Any, diff: int) -> int:
        before = simulation.rounds
        simulation.send("edges", pa.table({"a": a, "b": b, "diff": np.full(len(a), diff)}))
        simulation.run()
        return simulation.rounds - before

    assert send(*ends, 1) <= 2
    loaded = simulation.captured["components"].epochs[0]
    assert loaded.num_rows == n
    assert set(loaded["component"].to_pylist()) == {0}

    assert send(ends[0][n // 2 :][:1], ends[1][n // 2 :][:1], -1) <= 2
    (last,) = (table for epoch, table in simulation.captured["components"].epochs.items() if epoch)
    left = [
        set(last.filter(pa.array(last[DIFF].to_numpy() == diff))["component"].to_pylist()) for diff in (-1, 1)
    ]
    assert left[0] == {0}
    assert len(left[1]) == (shape == "path"), "a removed leaf has no component"


@pytest.mark.slow
def test_nodes_that_need_more_bits_than_those_before_join_them() -> None:
    narrow = [(a, (7 * a + 3) % 40, 1) for a in range(40)]
    wide = [(a, 2**40 + a % 5, 1) for a in range(0, 40, 3)]
    simulation, oracle = Simulation(graph_flow(), workers=2), Oracle()
    sent = ("forest", "components")
    epochs = [narrow, wide, [(b, a, -1) for a, b, _ in narrow[::2]], [(a, b, -1) for a, b, _ in wide]]
    for epoch, rows in enumerate(epochs):
        if epoch == 2:
            move(simulation, graph_flow(), 3)
        before = {name: set(simulation.captured[name].epochs) for name in sent}
        simulation.send("edges", rows)
        simulation.run()
        made = [
            [
                tuple(row.values())
                for at, table in simulation.captured[name].epochs.items()
                if at not in before[name]
                for row in table.to_pylist()
            ]
            for name in sent
        ]
        oracle.check(rows, *made, workers=3)


@pytest.mark.slow
@pytest.mark.parametrize("steps", [[2, 3, 1, 4], [1, 2], [4, 4, 2, 2]])
@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.campaign) for n in (1, 2))])
def test_rescaling_continues_from_the_forests_that_were_sent(steps: list[int], seed: int) -> None:
    simulation, oracle = Simulation(graph_flow(), workers=steps[0]), Oracle()
    seen = dict.fromkeys(("forest", "components"), 0)
    for part, workers in enumerate(steps):
        if part:
            move(simulation, graph_flow(), workers)
        for rows in churn(10 * seed + part, nodes=25, epochs=4, size=20):
            simulation.send("edges", rows)
            simulation.run()
            made = []
            for name in seen:
                tables = list(simulation.captured[name].epochs.values())
                made.append(
                    [tuple(row.values()) for table in tables[seen[name] :] for row in table.to_pylist()]
                )
                seen[name] = len(tables)
            oracle.check(rows, *made, workers=max(steps))


@pytest.mark.slow
@pytest.mark.parametrize(("in_flight", "seed"), in_turn([False, True], range(6)))
def test_after_rescaling_workers_without_edges_send_their_changes_too(seed: int, *, in_flight: bool) -> None:
    draw = random.Random(seed)
    edges = sorted({undirected(draw.randrange(10), draw.randrange(10)) for _ in range(22)})
    simulation, there, components = Simulation(graph_flow(), workers=2), nx.Graph(edges), Counter[Edge]()
    simulation.send("edges", [(*edge, 1) for edge in edges])
    simulation.step() if in_flight else simulation.run()
    move(simulation, graph_flow(), 5)
    for edge in draw.sample(edges, len(edges)):
        simulation.send("edges", [(*edge, -1)])
        simulation.run()
        there.remove_edge(*edge)
        there.remove_nodes_from(list(nx.isolates(there)))
        components.clear()
        for table in simulation.captured["components"].epochs.values():
            for row in table.to_pylist():
                components[row["node"], row["component"]] += row[DIFF]
        least = {(node, min(part)) for part in nx.connected_components(there) for node in part}
        assert {pair for pair, count in components.items() if count} == least


@pytest.mark.slow
@pytest.mark.parametrize("workers", [2, 3])
def test_edges_that_are_partitioned_by_one_end_are_exchanged(workers: int) -> None:
    """Both directions of an edge get to one worker, and stay together when the flow is rescaled."""
    flow = ts.Dataflow("partitioned")
    edges = flow.input("edges", "a long, b long, diff long").collection(diff="diff")
    by_end = edges.antijoin(flow.input("gone", "b long").collection(), on="b")
    ts.graphs.connected_components(by_end, src="a", dst="b").capture("components")
    simulation = Simulation(flow, workers=workers)
    simulation.send("edges", [(100 + node, node, 1) for node in range(20)])
    simulation.run()
    simulation.send("edges", [(node, 100 + node, -1) for node in range(10)])
    simulation.run()
    move(simulation, flow, workers + 1)
    simulation.send("edges", [(100 + node, node, -1) for node in range(10, 20)])
    simulation.run()
    assert ts.snapshot(simulation.captured["components"]).num_rows == 0


@pytest.mark.parametrize(
    ("n", "workers"), [(2_000, 1), *(pytest.param(50_000, n, marks=pytest.mark.slow) for n in (1, 4))]
)
def test_a_hub_that_loses_an_edge_does_not_cost_its_degree(
    n: int, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    touched = [0]
    matches, insert = Arrangement.matches, Arrangement.insert

    def matched(self: Arrangement, *arguments: Any, **options: Any) -> Any:
        found = matches(self, *arguments, **options)
        touched[0] += len(found[0])
        return found

    def inserted(self: Arrangement, table: pa.Table, *arguments: Any) -> None:
        touched[0] += table.num_rows
        insert(self, table, *arguments)

    hub = 10
    leaves = np.delete(np.arange(1, n), hub - 1)
    edges = [(np.full(n - 2, hub), leaves), (leaves[:-1:2], leaves[1::2]), ([1, 1, 0], [100, 101, 1])]
    a, b = (np.concatenate(ends) for ends in zip(*edges, strict=True))
    simulation = Simulation(graph_flow(), workers=workers)
    simulation.send("edges", pa.table({"a": a, "b": b, "diff": np.ones(len(a), np.int64)}))
    simulation.run()
    monkeypatch.setattr(Arrangement, "matches", matched)
    monkeypatch.setattr(Arrangement, "insert", inserted)

    not_in_tree, children, parent = [100], [7, n // 2, n - 1], [1]
    for leaf in [*not_in_tree, *children, *(parent if workers == 1 else ())]:
        touched[0] = 0
        simulation.send("edges", [(hub, leaf, -1)])
        simulation.run()
        assert touched[0] < 200, leaf
    left = ts.snapshot(simulation.captured["components"], diff=DIFF)
    assert left.num_rows == n
    assert set(left["component"].to_pylist()) == {0}

    touched[0] = 0
    simulation.send("edges", [(0, 1, -1)])
    simulation.run()
    assert touched[0] > n, "all nodes have another component now"


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.campaign) for n in (1,))])
@pytest.mark.parametrize("near", [0, 4, 1000])
def test_a_subtree_is_rerooted_whatever_the_rest_of_its_tree_may_cost(
    seed: int, near: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_NEAR", near)
    draw = random.Random(seed)
    edges = sorted({undirected(*draw.sample(range(30), 2)) for _ in range(60)})
    epochs = [[(*edge, 1) for edge in edges]]
    epochs += [[(*edge, sign)] for edge in draw.choices(edges, k=20) for sign in (-1, 1)]

    check_run(epochs)


def test_inside_a_loop_it_is_refused() -> None:
    edges = ts.Dataflow("graph").input("edges", "a long, b long, diff long").collection(diff="diff").stream

    with pytest.raises(GraphError, match="inside loop"):
        edges.loop(spanning_forest)


@pytest.mark.parametrize("schema", ["a long, b int", "a long, b long, c long", "a long"])
def test_edges_have_two_ends_of_one_type_and_a_diff(schema: str) -> None:
    edges = ts.Dataflow("graph").input("edges", schema).collection().stream

    for step in (spanning_forest, components):
        with pytest.raises(SchemaError, match="two columns of one type"):
            step(edges)


@given(
    n=st.integers(1, 20),
    ends=st.lists(st.tuples(st.integers(0, 19), st.integers(0, 19)), max_size=40),
    key=st.randoms(),
)
def test_a_rooted_forest_is_the_one_of_least_edges(
    n: int, ends: list[tuple[int, int]], key: random.Random
) -> None:
    pairs = [(a % n, b % n) for a, b in ends]
    a, b = np.array(pairs, np.int64).reshape(-1, 2).T
    keys = list(range(n))
    key.shuffle(keys)
    made = rooted_forest(n, a, b, np.array(keys))

    graph = nx.MultiGraph()
    graph.add_nodes_from(range(n))
    graph.add_weighted_edges_from((x, y, i) for i, (x, y) in enumerate(pairs))
    least = {int(data["weight"]) for *_, data in nx.minimum_spanning_edges(graph, data=True, keys=True)}
    assert set(made.via[made.via >= 0].tolist()) == least
    for part in nx.connected_components(graph):
        assert {int(made.root[v]) for v in part} == {min(part, key=keys.__getitem__)}
    for v in range(n):
        steps, at = 0, v
        while made.via[at] >= 0:
            at, steps = int(a[made.via[at]] + b[made.via[at]]) - at, steps + 1
            assert steps < n
        assert at == made.root[v]


@given(
    n=st.integers(1, 24),
    ends=st.lists(st.tuples(st.integers(0, 23), st.integers(0, 23)), max_size=40),
    most=st.integers(1, 6),
    tries=st.integers(1, 4),
    draw=st.randoms(),
)
@example(n=5, ends=[(0, 1), (1, 2), (2, 3), (3, 4)], most=1, tries=2, draw=random.Random(1))
def test_a_shallow_forest_is_breadth_first_as_far_as_it_is_shallow(
    n: int, ends: list[tuple[int, int]], most: int, tries: int, draw: random.Random
) -> None:
    graph = nx.Graph()
    graph.add_nodes_from(range(n))
    graph.add_edges_from((a % n, b % n) for a, b in ends)
    lists = [sorted(graph[v]) for v in range(n)]
    starts, to = np.cumsum([0, *map(len, lists)]), np.array([u for each in lists for u in each], np.int64)
    key = np.array(draw.sample(range(100), n))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spanning, "_TRIES", tries)
        made = shallow_forest(starts, to, key, np.arange(n), most)

    for part in nx.connected_components(graph):
        root = min(part, key=key.__getitem__)
        distances = nx.single_source_shortest_path_length(graph, root)
        for v in part:
            assert made.root[v] == root
            parent = int(made.parent[v])
            assert (parent == v) == (v == root)
            if v != root:
                assert graph.has_edge(v, parent)
                assert made.rank[parent] < made.rank[v]
            if distances[v] <= most:
                assert made.rank[v] >> 20 == distances[v]
                assert v == root or distances[parent] == distances[v] - 1
            else:
                assert made.rank[v] >> 20 > most


def test_a_level_is_searched_from_the_side_that_has_fewer_vertices(monkeypatch: pytest.MonkeyPatch) -> None:
    searched, neighbours = [0], spanning._Growing._neighbours

    def counted(self: Any, vertices: Any) -> Any:
        pairs = neighbours(self, vertices)
        searched[0] += len(pairs[0])
        return pairs

    monkeypatch.setattr(spanning._Growing, "_neighbours", counted)
    graph = nx.star_graph(10)  # of whose rays one leads to a clique, and this to leaves
    graph.add_edges_from((1, n) for n in range(11, 111))
    graph.add_edges_from(itertools.combinations(range(11, 111), 2))
    graph.add_edges_from((11, n) for n in range(111, 261))
    lists = [sorted(graph[v]) for v in range(261)]
    starts, to = np.cumsum([0, *map(len, lists)]), np.array([u for each in lists for u in each], np.int64)

    made = shallow_forest(starts, to, np.arange(261), np.zeros(261, np.int64))

    assert np.bincount(made.rank >> 20).tolist() == [1, 10, 100, 150]
    assert searched[0] < 1_000 < len(to)
