"""Connected components over edges that have places: a forest in each place, and a small one of their trees.

Any places give the same components; good ones, of edges that are near each other, make few trees.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
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
    consolidate,
    numbers,
)
from timely_spark.graphs.affected import Affected, summed, unique
from timely_spark.graphs.forest import Forest, components, negated, spanning_forest
from timely_spark.graphs.pairs import in_bytes, insert_pairs, pairs_of, states_with
from timely_spark.graphs.places import OF, PLACE, TO, homed, homed_schema, in_places
from timely_spark.streams import Stream
from timely_spark.times import Timestamp

#: a worker tells how many trees it has if that differs by more, and by an eighth, from what it has told
_NEWS = 32


class _LocalForests(BufferingVertex):
    """A spanning forest for each place; send the changes of its nodes' labels.

    When edges have come and gone, near nodes are in many places, whose forests then have many trees. Workers
    tell each other how many; if these are twice as many as after all edges got places, all get others.

    Inputs: edges with places, and what workers tell. Outputs: labels, edges that are to get other places,
    and what this worker tells.
    """

    def __init__(self, ends: tuple[str, str], kind: pa.DataType, *, tells_negative: bool) -> None:
        super().__init__(inputs=2)
        self.ends, self.kind, self.tells_negative = ends, kind, tells_negative
        #: the edges, nodes and members of each place's `Forest`, which stays when it has no edges
        self.forests: dict[int, list[Arrangement]] = {}
        #: the numbers of nodes and trees of each place
        self.sizes: dict[int, tuple[int, int]] = {}
        #: the numbers that each worker has told last
        self.reported: dict[int, tuple[int, int]] = {}
        #: of the trees that there were after all edges had got places; 0 if none have yet
        self.trees = 0

    def on_complete(self, time: Timestamp, *batches: list[pa.Table]) -> None:
        """The edges of an epoch, or what workers tell after it."""
        if batches[0]:
            self._update(time, pa.concat_tables(batches[0]))
            nodes, trees = np.sum([*self.sizes.values()], axis=0).tolist()
            _, before = self.reported.get(self.worker, (0, 0))
            if abs(trees - before) > _NEWS + before // 8:
                self.send_by(2, time, pa.table([[self.worker], [nodes], [trees]], schema=_REPORTS))
        if batches[1]:
            worker, *sizes = pa.concat_tables(batches[1]).to_pydict().values()
            self.reported |= dict(zip(worker, zip(*sizes, strict=True), strict=True))
            nodes, trees = np.sum([*self.reported.values()], axis=0).tolist()
            if not self.trees:
                self.trees = trees
            elif trees > 2 * self.trees + nodes // 32:
                self._place_again(time)

    def _update(self, time: Timestamp, edges: pa.Table) -> None:
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
            each, trees = self.sizes.get(at, (0, 0))
            more, roots = nodes.grown()
            self.sizes[at] = each + more, trees + roots
        self.send_by(0, time, pa.concat_tables(labels))

    def _place_again(self, time: Timestamp) -> None:
        """Let all edges enter once more, and take back all labels."""
        if edges := self.present():
            self.send_by(1, time, homed(consolidate(pa.concat_tables(edges)), self.ends))
            labels = [part for *_, members in self.forests.values() for part in members.batches()]
            columns = pa.concat_tables(labels, promote_options="permissive")
            self.send_by(0, time, negated(columns.select(["node", "label", DIFF])))
        self.forests, self.sizes, self.reported, self.trees = {}, {}, {}, 0

    def present(self) -> list[pa.Table]:
        """Changes whose sums are the present edges, the lesser end first."""
        forest, edges = Forest(self.ends, self.kind), []
        for forest.edges, *_ in self.forests.values():
            edges += forest.present()
        return edges

    def repartition(self, states: States, workers: int, partition: Partitioner) -> States:
        """Move whole forests, each with its place."""
        moved = super().repartition([{"buffered": state["buffered"]} for state in states], workers, partition)
        trees = max(state.get("trees", 0) for state in states)
        forests, sizes = (
            {at: one for state in states for at, one in state[name].items()} for name in ("forests", "sizes")
        )
        own = [[at for at in forests if at % workers == w] for w in range(workers)]
        return [
            {
                **part,
                "forests": {at: forests[at] for at in places},
                "sizes": {at: sizes[at] for at in places},
                "trees": trees,
            }
            for part, places in zip(moved, own, strict=True)
        ]


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
            different = changes(node) | changes(label)
            node, label = node[different], label[different]
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
        old, other = self._component(nodes, labels), unique(len(nodes), named)
        insert_pairs(self.components, nodes, named, component, in_bytes(more))
        new = self._component(nodes, labels)
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
        """The component of each label, which is given by its number."""
        label, component = pairs_of(self.components, nodes, labels)
        components = np.arange(len(nodes))
        components[label] = component
        return components


_REPORTS = pa.schema([("worker", pa.int64()), ("nodes", pa.int64()), ("trees", pa.int64())])


def spread_components(edges: Stream, *, tells_negative: bool = False, name: str | None = None) -> Stream:
    """The `components` of a `spanning_forest`, with the nodes spread over all workers."""
    labels = in_places(edges, partial(forests_by_place, tells_negative=tells_negative))
    return components_of_labels(labels, name=name)


def forests_by_place(placed: Stream, *, tells_negative: bool = False) -> tuple[Stream, Stream]:
    """Changes of nodes' labels in each place, of edges in a loop; and edges that are to get other places."""
    ends, kind = (placed.schema.names[0], placed.schema.names[1]), placed.schema.field(0).type
    reports = placed.scope.variable(_REPORTS)
    labels, again, tells = placed.then(
        "local_forests",
        [
            pa.schema([("node", kind), ("label", kind), (DIFF, pa.int64())]),
            homed_schema(ends, kind),
            _REPORTS,
        ],
        others=[reports],
        vertex=_LocalForests(ends, kind, tells_negative=tells_negative),
        requires=[
            Partition((PLACE,), computed=PLACE, expression=pc.field(PLACE)),
            Partition((), broadcast=True),
        ],
        own=(TO, OF),
    )
    reports.feed(tells)
    return labels, again


def components_of_labels(labels: Stream, *, name: str | None = None) -> Stream:
    """For each node the least node of its component, from changes of its labels in several places."""
    kind = labels.schema.field("node").type
    of_node = [pa.schema([("node", kind), (to, kind), (DIFF, pa.int64())]) for to in ("label", "component")]
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
