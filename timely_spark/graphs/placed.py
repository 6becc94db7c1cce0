"""Connected components over edges that have places: a forest in each place, and a small one of their trees.

Any places give the same components; good ones, of edges that are near each other, make few trees.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from timely_spark.authors import (
    DIFF,
    Arrangement,
    BufferingVertex,
    Indices,
    Partition,
    Partitioner,
    States,
    changes,
    numbers,
)
from timely_spark.graphs.affected import Affected, summed, unique
from timely_spark.graphs.forest import Forest, components, spanning_forest
from timely_spark.graphs.pairs import in_bytes, insert_pairs, pairs_of, states_with
from timely_spark.graphs.places import PLACE, with_places
from timely_spark.streams import Stream
from timely_spark.times import Timestamp


class _LocalForests(BufferingVertex):
    """A spanning forest for each place; send the changes of its nodes' labels."""

    def __init__(self, ends: tuple[str, str], kind: pa.DataType, *, tells_negative: bool) -> None:
        super().__init__()
        self.ends, self.kind, self.tells_negative = ends, kind, tells_negative
        #: by place the edges, nodes and members of its `Forest`, which stays when it has no edges
        self.forests: dict[int, list[Arrangement]] = {}

    def on_complete(self, time: Timestamp, *batches: list[pa.Table]) -> None:
        if not batches[0]:
            return
        edges = pa.concat_tables(batches[0])
        place = numbers(edges, PLACE)
        order = np.argsort(place, kind="stable")
        edges, place = edges.select([*self.ends, DIFF]).take(pa.array(order)), place[order]
        starts = np.flatnonzero(changes(place))
        labels = []
        for start, end in zip(starts, [*starts[1:], len(place)], strict=True):
            forest, at = Forest(self.ends, self.kind), int(place[start])
            if at in self.forests:
                forest.edges, forest.nodes, forest.members = self.forests[at]
            nodes, _ = forest.update(edges.slice(start, end - start))
            if self.tells_negative and nodes.negative is not None:
                self._context.negative(time, nodes.negative)
            self.forests[at] = [forest.edges, forest.nodes, forest.members]
            labels.append(nodes.relabelled("label"))
        self.send_by(0, time, pa.concat_tables(labels))

    def present(self) -> list[pa.Table]:
        """Changes whose sums are the present edges, the lesser end first."""
        forest, edges = Forest(self.ends, self.kind), []
        for forest.edges, *_ in self.forests.values():
            edges += forest.present()
        return edges

    def repartition(self, states: States, workers: int, partition: Partitioner) -> States:
        """Move whole forests, each with its place."""
        parts = [{"buffered": state["buffered"]} for state in states]
        moved = super().repartition(parts, workers, partition)
        forests = {at: one for state in states for at, one in state["forests"].items()}
        states_with = [{at: one for at, one in forests.items() if at % workers == w} for w in range(workers)]
        return [{**part, "forests": forests} for part, forests in zip(moved, states_with, strict=True)]


class _LeastLabels(BufferingVertex):
    """Send the least label of each node, and pairs of it with the node's other labels."""

    def __init__(self, kind: pa.DataType) -> None:
        super().__init__()
        self.kind = kind
        #: the labels of each node, and in how many places it has each
        self.labels = Arrangement(("node",), within=("label",))

    def on_complete(self, time: Timestamp, *batches: list[pa.Table]) -> None:
        if not batches[0]:
            return
        rows, nodes = pa.concat_tables(batches[0]), Affected(self.kind)
        node, label = nodes.numbers(rows.column("node"), rows.column("label"))
        node, label, diff = summed(node, label, numbers(rows, DIFF))
        which = unique(len(nodes), node)
        before = pairs_of(self.labels, nodes, which)
        new = not len(self.labels)
        after = node[diff > 0], label[diff > 0]
        insert_pairs(self.labels, nodes, node, label, in_bytes(diff))
        if not new:
            after = pairs_of(self.labels, nodes, which)
        self._send(time, nodes, before, after)

    def _send(
        self,
        time: Timestamp,
        nodes: Affected,
        before: tuple[Indices, Indices],
        after: tuple[Indices, Indices],
    ) -> None:
        ranks, least, others = nodes.ranks(), [], []
        for labels, diff in ((before, -1), (after, 1)):
            order = np.lexsort((ranks[labels[1]], labels[0]))
            node, label = labels[0][order], labels[1][order]
            first = changes(node)
            representative = label[first][np.cumsum(first) - 1]
            least.append((node[first], label[first], np.full(first.sum(), diff)))
            others.append((representative[~first], label[~first], np.full((~first).sum(), diff)))
        for edge, (names, parts) in enumerate(((("node", "label"), least), (("low", "high"), others))):
            one, other, total = summed(*(np.concatenate(column) for column in zip(*parts, strict=True)))
            if len(one):
                self.send_by(edge, time, pa.table([nodes.of(one), nodes.of(other), total], [*names, DIFF]))


class _Named(BufferingVertex):
    """Send the component of each node: that of its label, or the label itself. Each worker has all labels."""

    def __init__(self, kind: pa.DataType) -> None:
        super().__init__(inputs=2)
        self.kind = kind
        #: the nodes of each label
        self.members = Arrangement(("label",), within=("node",))
        #: the component of each label that is joined with others
        self.components = Arrangement(("label",), within=("component",))
        #: the components that another way has sent of the nodes here
        self.sent: list[pa.Table] = []

    def on_complete(self, time: Timestamp, *batches: list[pa.Table]) -> None:
        nodes = Affected(self.kind)
        node, label, diff = self._changes(nodes, batches[0], "node", "label")
        named, component, more = self._changes(nodes, batches[1], "node", "component")
        past, label_then, times_then = self._changes(nodes, self.sent, "node", "component")
        self.sent = []
        labels = unique(len(nodes), label, named)
        old = self._component(nodes, labels)
        insert_pairs(self.components, nodes, named, component, in_bytes(more))
        new = self._component(nodes, labels)
        other = unique(len(nodes), named)
        renamed, member = pairs_of(self.members, nodes, other[old[other] != new[other]])
        insert_pairs(self.members, nodes, label.copy(), node.copy(), in_bytes(diff))
        changed = summed(
            np.concatenate([member, member, node, past]),
            np.concatenate([old[renamed], new[renamed], new[label], label_then]),
            np.concatenate([np.full(len(member), -1), np.full(len(member), 1), diff, -times_then]),
        )
        if len(changed[0]):
            columns = {"node": nodes.of(changed[0]), "component": nodes.of(changed[1])}
            self.send_by(0, time, pa.table({**columns, DIFF: changed[2]}))

    def repartition(self, states: States, workers: int, partition: Partitioner) -> States:
        """Repartition the nodes; each worker gets a copy of the labels."""
        parts = [{name: state[name] for name in ("buffered", "members", "sent")} for state in states]
        moved = super().repartition(parts, workers, partition)
        labels = max((state["components"] for state in states), key=len).batches()
        copies = [Arrangement(("label",), labels, within=("component",)) for _ in range(workers)]
        return [{**part, "components": copy} for part, copy in zip(moved, copies, strict=True)]

    def answers(self) -> list[pa.Table]:
        """Changes whose sums are the components that were sent."""
        schema = pa.schema([("node", self.kind), ("component", self.kind), (DIFF, pa.int64())])
        answers = self.sent
        for part in self.members.batches():
            nodes = Affected(self.kind)
            node, label, diff = self._changes(nodes, [part], "node", "label")
            component = self._component(nodes, unique(len(nodes), label))[label]
            answers = [*answers, pa.table([nodes.of(node), nodes.of(component), diff], schema=schema)]
        return answers

    def take_over(self, before: Mapping[str, Sequence[Any]], partition: Partitioner) -> States:
        """Subtract what the vertex that labels components has sent."""
        labelled = before.get("label_components", ())
        return states_with("sent", (part for one in labelled for part in one.answers()), partition)

    def _changes(
        self, nodes: Affected, batches: list[pa.Table], *names: str
    ) -> tuple[Indices, Indices, Indices]:
        if not batches:
            return (np.zeros(0, np.int64),) * 3
        rows = pa.concat_tables(batches)
        one, other = nodes.numbers(*(rows.column(name) for name in names))
        return summed(one, other, numbers(rows, DIFF))

    def _component(self, nodes: Affected, labels: Indices) -> Indices:
        """By number of a label its component."""
        label, component = pairs_of(self.components, nodes, labels)
        components = np.arange(len(nodes))
        components[label] = component
        return components


def spread_components(edges: Stream, *, tells_negative: bool = False, name: str | None = None) -> Stream:
    """The `components` of a `spanning_forest`, with the nodes spread over all workers."""
    return components_by_place(with_places(edges), tells_negative=tells_negative, name=name)


def components_by_place(placed: Stream, *, tells_negative: bool = False, name: str | None = None) -> Stream:
    """For each node the least node of its component, from changes of edges that have places."""
    ends, kind = (placed.schema.names[0], placed.schema.names[1]), placed.schema.field(0).type
    of_node = [pa.schema([("node", kind), (to, kind), (DIFF, pa.int64())]) for to in ("label", "component")]
    labels = placed.then(
        "local_forests",
        of_node[:1],
        vertex=_LocalForests(ends, kind, tells_negative=tells_negative),
        requires=[Partition((PLACE,), computed=PLACE, expression=pc.field(PLACE))],
    )[0]
    least, pairs = labels.then(
        "least_labels",
        [of_node[0], pa.schema([("low", kind), ("high", kind), (DIFF, pa.int64())])],
        vertex=_LeastLabels(kind),
        keyed=("node",),
    )
    return least.then(
        "name_components",
        of_node[1:],
        others=[components(spanning_forest(pairs))],
        name=name,
        vertex=_Named(kind),
        requires=[Partition(("node",)), Partition((), broadcast=True)],
        guarantees=("node",),
    )[0]
