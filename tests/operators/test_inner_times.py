"""What scopes refuse is there in loops and in scopes of numbers: feedback, and collections in an order."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import networkx as nx
import pyarrow as pa
import pytest

import timely_spark as ts
from tests.support.orders import Version
from timely_spark.times import Descending


class Settle(ts.Vertex):
    """Nodes at the iteration that is their distance; an edge leads as many iterations on as it is long."""

    def __init__(self) -> None:
        self.edges: dict[int, list[tuple[int, int]]] = {}
        self.distance: dict[int, int] = {}
        self.waiting: dict[ts.Time, set[int]] = {}

    def on_recv(self, edge: int, time: Any, batch: pa.Table) -> None:
        if edge == 0:
            for src, dst, length in zip(*batch.to_pydict().values(), strict=True):
                self.edges.setdefault(src, []).append((dst, length))
        else:
            self.waiting.setdefault(time, set()).update(batch["node"].to_pylist())
            self.notify_at(time)

    def on_notify(self, time: Any) -> None:
        epoch, at = time
        for node in self.waiting.pop(time) - self.distance.keys():
            self.distance[node] = at
            self.send_by(1, time, [(node, at)])
            for to, length in self.edges.get(node, ()):
                self.send_by(0, ts.Time(epoch, at + length - 1), [(to,)])  # the feedback adds 1


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_a_loop_has_inner_times_that_a_feedback_increases(seed: int) -> None:
    """Shortest paths by buckets: each node is settled once, without a correction."""
    draw = random.Random(seed)
    edges = [(draw.randrange(20), draw.randrange(20), draw.randrange(1, 9)) for _ in range(50)]
    roots = [(draw.randrange(20), draw.randrange(9)) for _ in range(2)]
    flow = ts.Dataflow("buckets")
    loop = flow.scope.inner(name="buckets")
    lengths = loop.enter(flow.input("edges", "src long, dst long, length long"))
    start = loop.enter(flow.input("roots", "node long, distance long"), at="distance").select("node")
    near = loop.variable(start)
    outputs = ["node long", "node long, distance long"]
    sent, settled = flow.vertex(Settle(), [lengths, near], outputs, by=["src", "node"], name="settle")
    near.feed(sent)
    settled.leave().capture("distances")

    results = ts.testing.run(flow, {"edges": [edges], "roots": [roots]}, workers=3, seed=seed)

    graph = nx.DiGraph()
    for src, dst, length in [*edges, *(("root", node, distance) for node, distance in roots)]:
        if not graph.has_edge(src, dst) or graph[src][dst]["length"] > length:
            graph.add_edge(src, dst, length=length)
    expected = nx.single_source_dijkstra_path_length(graph, "root", weight="length")
    assert results["distances"].rows()[0] == sorted((n, d) for n, d in expected.items() if n != "root")


def timed(time: Any, batch: pa.Table) -> Iterator[tuple[int, ...]]:
    """The records with their time, as numbers."""
    for record in zip(*batch.to_pydict().values(), strict=True):
        yield (*(n for at in time for n in ([at] if isinstance(at, int) else at.encode())), *record)


#: by type of inner time: scopes of numbers with the same order, an expression for each
ORDERS: dict[str, tuple[Any, list[str], list[str], Callable[[tuple[int, ...]], tuple[int, ...]]]] = {
    "descending": (Descending, ["a"], ["9 - a"], lambda at: (9 - at[0],)),
    "partial": (Version, ["a", "b"], ["a", "b"], lambda at: at),
}


@pytest.mark.slow
@pytest.mark.share(3)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("seed", range(3))
def test_a_collection_among_numbers_has_the_counts_of_a_stream_among_times_of_their_order(
    order: str, seed: int
) -> None:
    kind, at, numbers, numbered = ORDERS[order]
    draw = random.Random(seed)
    epochs = [[(draw.randrange(3), draw.randrange(4), draw.randrange(4)) for _ in range(6)] for _ in range(3)]
    columns = ", ".join(f"t{i} long" for i in range(1 + len(at))) + ", k long, count long"
    flow = ts.Dataflow("orders")
    x = flow.input("x", "k long, a long, b long")
    own = x.enter(flow.scope.inner(time=kind), at=at).group_by("k").count()
    own.unary(lambda time, batch: list(timed(time, batch)), columns).leave().capture("own")
    changes, scope = x.collection(), flow.scope
    for number in numbers:
        changes = changes.enter_at(scope := scope.inner(time=int), number)
    counts = changes.select("k").count(keys="k").changes()
    counts = counts.unary(lambda time, batch: list(timed(time, batch)), f"{columns}, diff long")
    for _ in numbers:
        counts = counts.leave()
    counts.capture("numbers")

    results = ts.testing.run(flow, {"x": epochs}, workers=2, seed=seed)

    changed = [line for lines in results["numbers"].rows().values() for line in lines]
    lines = [line for lines in results["own"].rows().values() for line in lines]
    assert len(lines) >= 10
    for epoch, *inner, k, count in lines:
        present = Counter[int]()
        for at_epoch, *at_inner, key, n, diff in changed:
            before = all(one <= other for one, other in zip(at_inner, numbered(tuple(inner)), strict=True))
            present[n] += diff * (key == k and at_epoch <= epoch and before)
        assert +present == {count: 1}
