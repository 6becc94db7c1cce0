"""Cases that Naiad, timely and differential dataflow publish: their inputs, and what comes out."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import networkx as nx
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import timely_spark as ts
from timely_spark.testing import Simulation, run

EACH_WORKERS = pytest.mark.parametrize("workers", [1, 2, 3])


class Barrier(ts.Vertex):
    """timely's tests/barrier.rs: asks for 0 and 1 (iterations), and at each for the next one, up to 100."""

    def __init__(self) -> None:
        self.times: list[int] = []

    def on_recv(self, edge: int, time: Any, batch: pa.Table) -> None:
        if not self.times and time[1] == 0:
            self.notify_at(time)
            self.notify_at(ts.Time(time.epoch, 1))

    def on_notify(self, time: Any) -> None:
        assert time[1] not in self.times, "each time once"
        self.times.append(time[1])
        if time[1] < 99:
            self.notify_at(ts.Time(time.epoch, time[1] + 1))
        else:
            self.send_by(1, time, pa.table({"iterations": [len(self.times)]}))


@EACH_WORKERS
def test_barrier(workers: int) -> None:
    flow = ts.Dataflow("barrier")
    scope = flow.scope.inner()
    variable = scope.variable(flow.input("x", "iterations long").broadcast())
    back, out = flow.vertex(Barrier(), variable, ["iterations long"] * 2)
    variable.feed(back)
    out.leave().capture("out")

    assert run(flow, {"x": [[0]]}, workers=workers)["out"].rows() == {0: [(100,)] * workers}


@pytest.mark.slow
@pytest.mark.parametrize("ports", [1, 30, 300])
def test_shape_of_one_vertex_with_many_ports(ports: int) -> None:
    class Wide(ts.Vertex):
        def on_recv(self, edge: int, time: Any, batch: pa.Table) -> None:
            self.send_by(edge, time, batch)

    flow = ts.Dataflow("wide")
    x = flow.input("x", "n long")
    outs = flow.vertex(Wide(), [x] * ports, ["n long"] * ports)
    outs[0].concat(*outs[1:]).group_by("n").count().capture("out") if ports > 1 else outs[0].group_by(
        "n"
    ).count().capture("out")

    assert run(flow, {"x": [[7]]}, workers=2)["out"].rows() == {0: [(7, ports)]}


def test_chain() -> None:
    def chain(records: range, *steps: Callable[[int], int]) -> list[Any]:
        flow = ts.Dataflow("chain")
        stream: ts.Stream = flow.input("x", "n long")
        for step in steps:
            stream = stream.map(lambda row, step=step: step(row.n), "n long")
        stream.capture("out")
        return [n for (n,) in run(flow, {"x": [records]})["out"].rows()[0]]

    assert chain(range(10), lambda n: n + 1, lambda n: n * 2, lambda n: n + 10) == [
        (n + 1) * 2 + 10 for n in range(10)
    ]
    five = chain(
        range(5), lambda n: n + 1, lambda n: n * 2, lambda n: n + 3, lambda n: n * 4, lambda n: n + 5
    )
    assert five == [((n + 1) * 2 + 3) * 4 + 5 for n in range(5)]


def test_initial_notification() -> None:
    """0..10 at 0; asked for from the start: 0; each batch asks for 1. Fires at 0 and at 1."""

    class Initial(ts.Vertex):
        initial = (0,)

        def on_recv(self, edge: int, time: Any, batch: pa.Table) -> None:
            self.notify_at(ts.Time(1))

        def on_notify(self, time: Any) -> None:
            self.send_by(0, time, pa.table({"at": [time.epoch]}))

    flow = ts.Dataflow("initial")
    flow.vertex(Initial(), flow.input("x", "n long", epochs="manual"), "at long").capture("out")

    assert run(flow, {"x": [range(10), []]})["out"].rows() == {0: [(0,)], 1: [(1,)]}


@EACH_WORKERS
def test_probe(workers: int) -> None:
    flow = ts.Dataflow("probe")
    flow.input("x", "n long", epochs="manual").exchange("n").probe("probe")
    simulation = Simulation(flow, workers=workers)
    for round_ in range(10):
        assert simulation.result.frontier["probe"] == [[round_]], (
            "less_equal(round), and not less_than(round)"
        )
        simulation.advance_to("x", round_ + 1)
        simulation.run()
    assert not simulation.result.complete
    simulation.close("x")
    simulation.run()
    assert simulation.result.frontier["probe"] == []
    assert simulation.result.complete


def test_capture_and_replay() -> None:
    flow = ts.Dataflow("capture")
    flow.input("x", "n long").capture("out")
    first = run(flow, {"x": [range(5), range(5, 10)]})["out"]
    again = run(flow, {"x": list(first.epochs.values())})["out"]

    assert again.rows() == first.rows() == {0: [(n,) for n in range(5)], 1: [(n,) for n in range(5, 10)]}
    assert first.table().to_pydict() == {"epoch": [0] * 5 + [1] * 5, "n": list(range(10))}


@EACH_WORKERS
def test_accumulate_count_and_aggregate(workers: int) -> None:
    flow = ts.Dataflow("aggregate")
    x = flow.input("x", "n long")
    x.aggregate(total=("sum", "n"), count="count").capture("all")
    by = x.select("n", odd=pc.bit_wise_and(pc.field("n"), 1)).group_by("odd")
    by.aggregate(total=("sum", "n"), count="count", name="by").capture("parts")
    result = run(flow, {"x": [range(10)]}, workers=workers)

    assert result["all"].rows() == {0: [(45, 10)]}
    assert result["parts"].rows() == {0: [(0, 20, 5), (1, 25, 5)]}


@pytest.mark.slow
@EACH_WORKERS
def test_feedback(workers: int) -> None:
    """0..10 at 0 circulate, each iteration one later, until iteration 100."""
    flow = ts.Dataflow("feedback")
    x = flow.input("x", "n long")
    iterations = x.loop(
        lambda n: n.exchange("n").unary(lambda time, batch: batch, "n long"),
        max_iterations=100,
        on_limit="return",
    )
    iterations.group_by("n").count().capture("out")

    assert run(flow, {"x": [range(10)]}, workers=workers)["out"].rows() == {0: [(n, 100) for n in range(10)]}


def test_distinct() -> None:
    flow = ts.Dataflow("distinct")
    x = flow.input("x", "n long")
    x.distinct().capture("out")
    x.distinct(name="both").group_by("n").count().capture("counts")
    both = [[0, 1, 2, 2, 2, 3, 3, 4, 0, 0, 3, 4, 4, 5, 7, 7]]
    for workers in (1, 2, 3):
        result = run(flow, {"x": both}, workers=workers)
        assert result["out"].rows() == {0: [(n,) for n in (0, 1, 2, 3, 4, 5, 7)]}
        assert result["counts"].rows() == {0: [(n, 1) for n in (0, 1, 2, 3, 4, 5, 7)]}


@pytest.mark.slow
@EACH_WORKERS
def test_word_count_of_rounds(workers: int) -> None:
    flow = ts.Dataflow("wordcount")
    flow.input("x", "word string").group_by("word").count().capture("out")

    rows = run(flow, {"x": [["round"]] * 10}, workers=workers)["out"].rows()
    assert rows == {epoch: [("round", epoch + 1)] for epoch in range(10)}


@pytest.mark.slow
@EACH_WORKERS
def test_loopdemo_collatz(workers: int) -> None:
    flow = ts.Dataflow("collatz")

    def step(x: ts.Stream) -> tuple[ts.Stream, ts.Stream]:
        nexts = x.exchange("n").map(
            lambda r: (r.start, r.n // 2 if r.n % 2 == 0 else 3 * r.n + 1), "start long, n long"
        )
        parts = nexts.branch(pc.field("n") == 1)
        return parts.falses, parts.trues

    flow.input("x", "start long, n long").loop(step).capture("out")

    rows = run(flow, {"x": [[(n, n) for n in range(1, 40)]]}, workers=workers)["out"].rows()
    assert rows == {0: [(n, 1) for n in range(1, 40)]}


class UnionFind(ts.Vertex):
    """timely's example: passes on the edges that join two trees of its forest."""

    def __init__(self) -> None:
        self.roots: dict[int, int] = {}

    def find(self, node: int) -> int:
        while (root := self.roots.setdefault(node, node)) != node:
            node = root
        return node

    def on_recv(self, edge: int, time: Any, batch: pa.Table) -> None:
        kept = []
        for a, b in zip(batch["src"].to_pylist(), batch["dst"].to_pylist(), strict=True):
            x, y = self.find(a), self.find(b)
            if x != y:
                self.roots[max(x, y)] = min(x, y)
                kept.append({"src": a, "dst": b})
        self.send_by(0, time, pa.Table.from_pylist(kept, schema=batch.schema))


@EACH_WORKERS
def test_unionfind_leaves_a_forest(workers: int) -> None:
    r = random.Random(3)
    epochs = [[(r.randrange(60), r.randrange(60)) for _ in range(20)] for _ in range(3)]
    flow = ts.Dataflow("unionfind")
    each = flow.vertex(
        UnionFind(), flow.input("x", "src long, dst long"), "src long, dst long", by=[["src"]], name="each"
    )
    whole = each.select("src", "dst", all=pc.scalar(0))
    forest = flow.vertex(
        UnionFind(), whole.exchange("all").select("src", "dst"), "src long, dst long", name="whole"
    )
    forest.capture("out")

    edges = [
        edge for rows in run(flow, {"x": epochs}, workers=workers)["out"].rows().values() for edge in rows
    ]
    graph = nx.Graph([edge for rows in epochs for edge in rows])
    assert len(edges) == graph.number_of_nodes() - nx.number_connected_components(graph)
    assert nx.is_forest(nx.Graph(edges))
    assert list(nx.connected_components(nx.Graph(edges)))


class PageRank(ts.Vertex):
    """timely's example: 1000 to begin with, 5/6 go over the out-edges; no change below 6 is applied."""

    def __init__(self) -> None:
        self.out: dict[int, list[int]] = {}
        self.ranks: Counter[int] = Counter()
        self.pending: dict[Any, Counter[int]] = {}
        self.notes = 0

    def on_recv(self, edge: int, time: Any, batch: pa.Table) -> None:
        changes = self.pending.setdefault(time, Counter())
        for a, b in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            if edge == 0:
                self.out.setdefault(a, []).append(b)
                changes[a] += 0
            else:
                changes[a] += b
        self.notify_at(time)

    def shares(self, node: int) -> dict[int, int]:
        targets = self.out.get(node, [])
        return {target: self.ranks[node] * 5 // (6 * len(targets)) for target in targets}

    def on_notify(self, time: Any) -> None:
        sent: Counter[int] = Counter()
        for node, change in sorted(self.pending.pop(time).items()):
            if node not in self.ranks:
                self.ranks[node] = 1000
                sent.update(self.shares(node))
            if abs(change) >= 6:
                before = self.shares(node)
                self.ranks[node] += change
                sent.update(self.shares(node))
                sent.subtract(before)
        rows = [{"node": node, "change": n} for node, n in sorted(sent.items()) if n]
        self.send_by(
            0,
            time,
            pa.Table.from_pylist(rows, schema=pa.schema([("node", pa.int64()), ("change", pa.int64())])),
        )
        self.send_by(1, time, pa.table({"node": list(self.ranks), "change": list(self.ranks.values())}))


@pytest.mark.slow
def test_pagerank_quiesces_and_depends_on_no_number_of_workers() -> None:
    r = random.Random(1)
    edges = list({(r.randrange(20), r.randrange(20)) for _ in range(60)})
    answers = []
    for workers in (1, 2, 3):
        flow = ts.Dataflow("pagerank")
        scope = flow.scope.inner()
        changes = scope.variable("node long, change long")
        links = scope.enter(flow.input("edges", "src long, dst long"))
        back, ranks = flow.vertex(
            PageRank(), [links, changes], ["node long, change long"] * 2, by=[["src"], ["node"]], name="rank"
        )
        changes.feed(back)
        ranks.unary(lambda time, batch: batch, "node long, change long").leave().capture("out")
        simulation = Simulation(flow, workers=workers)
        simulation.send("edges", edges)
        simulation.run(limit=500)
        last: dict[int, set[int]] = {}
        for node, rank in simulation.captured["out"].rows()[0]:
            last.setdefault(node, set()).add(rank)
        answers.append(last)

    assert answers[0] == answers[1] == answers[2]
    assert set(answers[0]) == {a for a, _ in edges} | {b for _, b in edges}


# -- Naiad ---------------------------------------------------------------------------------------------------


class NaiadWordCount(ts.Vertex):
    """Examples/WordCount: at OnNotify one (word, count so far) for each word that changed."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.changed: dict[Any, set[str]] = {}

    def on_recv(self, edge: int, time: Any, batch: pa.Table) -> None:
        self.counts.update(batch["word"].to_pylist())
        self.changed.setdefault(time, set()).update(batch["word"].to_pylist())
        self.notify_at(time)

    def on_notify(self, time: Any) -> None:
        words = sorted(self.changed.pop(time))
        self.send_by(0, time, pa.table({"word": words, "count": [self.counts[word] for word in words]}))


@EACH_WORKERS
def test_naiad_word_count(workers: int) -> None:
    flow = ts.Dataflow("naiad")
    words = flow.input("lines", "line string").select_many(lambda row: row.line.split(), "word string")
    flow.vertex(NaiadWordCount(), words, "word string, count long", by=[["word"]]).capture("out")
    words.group_by("word").count().capture("ours")
    result = run(flow, {"lines": [["to be or not to be"], [], ["be quiet"]]}, workers=workers)

    assert result["out"].rows() == result["ours"].rows()
    assert result["out"].rows() == {
        0: [("be", 2), ("not", 1), ("or", 1), ("to", 2)], 1: [], 2: [("be", 3), ("quiet", 1)]
    }  # fmt: skip


class KeyValue(ts.Vertex):
    """Examples/KeyValueLookup: stores on one input, answers the latest stored value on the other."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self.asked: dict[Any, list[str]] = {}

    def on_recv(self, edge: int, time: Any, batch: pa.Table) -> None:
        if edge == 0:
            self.values.update(zip(batch["k"].to_pylist(), batch["v"].to_pylist(), strict=True))
        else:
            self.asked.setdefault(time, []).extend(batch["k"].to_pylist())
            self.notify_at(time)

    def on_notify(self, time: Any) -> None:
        keys = self.asked.pop(time)
        self.send_by(
            0, time, pa.table({"k": keys, "v": pa.array([self.values.get(k) for k in keys], pa.string())})
        )


@EACH_WORKERS
def test_naiad_key_value_lookup_needs_both_inputs_advanced(workers: int) -> None:
    flow = ts.Dataflow("lookup")
    stores = flow.input("stores", "k string, v string", epochs="manual")
    asks = flow.input("asks", "k string", epochs="manual")
    flow.vertex(KeyValue(), [stores, asks], "k string, v string", by=[["k"], ["k"]]).capture("out")
    simulation = Simulation(flow, workers=workers)
    simulation.send("stores", [("a", "1"), ("b", "1")])
    simulation.send("asks", ["a", "c"])
    simulation.advance_to("asks", 1)
    simulation.run()
    assert simulation.captured["out"].rows() == {}
    simulation.advance_to("stores", 1)
    simulation.run()
    assert simulation.captured["out"].rows() == {0: [("a", "1"), ("c", None)]}
    simulation.send("stores", [("a", "2")])
    simulation.send("asks", ["a"])
    simulation.advance_to("asks", 2)
    simulation.advance_to("stores", 2)
    simulation.run()
    assert simulation.captured["out"].rows()[1] == [("a", "2")]


@pytest.mark.slow
@EACH_WORKERS
def test_naiad_throughput_conserves_the_count(workers: int) -> None:
    flow = ts.Dataflow("throughput")
    sent = flow.input("x", "n long").exchange("n").flat_map(lambda row: [row.n, row.n + 1], "n long")
    sent.exchange("n").map(lambda row: row.n, "n long").aggregate(count="count").capture("out")

    assert run(flow, {"x": [range(1000), range(500)]}, workers=workers)["out"].rows() == {
        0: [(2000,)],
        1: [(3000,)],
    }


@pytest.mark.slow
@EACH_WORKERS
def test_naiad_latency_k_iterations_are_k_notifications(workers: int) -> None:
    k = 30
    flow = ts.Dataflow("latency")

    def iteration(x: ts.Stream) -> ts.Stream:
        return x.unary_notify(lambda time, batch: pa.table({"to": range(workers)}), "to long", by=["to"])

    flow.input("x", "to long").loop(iteration, max_iterations=k, on_limit="return").aggregate(
        count="count"
    ).capture("out")
    simulation = Simulation(flow, workers=workers)
    simulation.send("x", range(64))
    simulation.run()
    notes = sum(result.stats.get("notifications", 0) for _, result in simulation.log)

    assert 0 < notes - 1 <= k * workers
    assert notes - 1 >= k
    assert sorted(simulation.captured["out"].epochs) == [0]


@EACH_WORKERS
def test_two_inputs_each_answer_for_what_the_other_has(workers: int) -> None:
    """dd-searchindex: a new query over old documents, and a new document over old queries."""
    flow = ts.Dataflow("search")
    docs, queries = flow.input("docs", "doc long, word string"), flow.input("queries", "q long, word string")
    docs.join(queries, on=["word"]).select("q", "doc").capture("out")
    rows = run(
        flow,
        {"docs": [[(1, "x"), (2, "y")], [], [(3, "x")]], "queries": [[], [(9, "x")], []]},
        workers=workers,
    )

    assert rows["out"].rows() == {0: [], 1: [(9, 1)], 2: [(9, 3)]}


def test_join_reference_cases_of_differential() -> None:
    flow = ts.Dataflow("join")
    left, right = flow.input("l", "k long, a long"), flow.input("r", "k long, b string")
    left.join(right, on=["k"]).capture("out")
    inputs: Any = {"l": [[(0, 0), (1, 2)]], "r": [[(0, "a"), (1, "B")]]}

    assert run(flow, inputs)["out"].rows() == {0: [(0, 0, "a"), (1, 2, "B")]}
