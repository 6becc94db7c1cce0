"""A spanning forest maintained under insertions and deletions of edges, and its connected components.

Each worker maintains a forest of its partition of the edges and sends only the forest's changes: at most one
edge per node. One worker maintains a forest of those. No loop is needed, however long the paths are.

The edges are partitioned in blocks, so that the edges of a node are on about sqrt(2 * workers) workers: the
forests have at most so many edges for each node.
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
    Mask,
    Partition,
    Partitioner,
    Stateless,
    States,
    algorithm,
    caller,
    check_columns,
    consolidate,
    describe,
    flat,
    numbers,
    same,
)
from timely_spark.errors import SchemaError
from timely_spark.graphs.affected import NO_NODE, REMOVED, Affected, latest_rows, ordered, summed, unique
from timely_spark.graphs.pairs import both_ways, in_bytes, insert_pairs, pairs_of, states_with
from timely_spark.graphs.spanning import Rooted, along_paths, rooted_forest, shallow_forest
from timely_spark.streams import Stream
from timely_spark.times import Timestamp

#: A detached subtree is walked level by level: at most `_LEVELS` levels, plus one per `_PER_LEVEL` nodes of
#: the state, and at most `_FEW` nodes or an eighth of all. Beyond, the rest of the tree is detached at once.
_LEVELS = 64
_PER_LEVEL = 2048
_FEW = 4096
#: A tree that loses an edge keeps the larger side as it is if the other one, from the edge on, has at most
#: `_STEPS` levels with at most `_NEAR` entries each; and the path to be reversed at most `_STEPS` nodes.
_STEPS = 8
_NEAR = 256
#: Whether a node has an edge is first looked for in so many entries of each batch.
_SAMPLE = 8
#: At least so many changes make the forest anew, if they are more than its edges; one that removes an edge
#: counts as `_REMOVAL` others.
_MANY = 1 << 16
_REMOVAL = 16


class OrderedEnds(Stateless):
    """Order the ends of each edge, so that both directions of an edge are equal.

    A stage of its own: a stream that is partitioned by one end as given is not so by the ends in order.
    """

    def __init__(self, ends: tuple[str, str], kind: pa.DataType) -> None:
        self.ends, self.kind = ends, kind

    def apply(self, batch: pa.Table) -> tuple[pa.Table, ...]:
        a, b = (flat(batch.column(end)) for end in self.ends)
        if pa.types.is_floating(self.kind):  # -0.0 is 0.0, and all NaN are one
            zero, nan = (pa.scalar(float(value), self.kind) for value in ("0", "nan"))
            a, b = (pc.if_else(pc.is_nan(end), nan, pc.add(end, zero)) for end in (a, b))
        ends = dict(zip(self.ends, ordered(a, b), strict=True))
        return (pa.table({**ends, **{name: batch.column(name) for name in batch.schema.names[2:]}}),)


class Forest(BufferingVertex):
    """A rooted spanning forest of the present edges; an update writes only the affected nodes.

    Invariant: the root of each tree is its least node, and the label of all its nodes; every other node has
    a parent of smaller rank, to which there is an edge.
    """

    def __init__(self, ends: tuple[str, str], kind: pa.DataType) -> None:
        super().__init__()
        self.ends, self.kind = ends, kind
        #: the multiplicity of each edge, from either end; of a self-loop once
        self.edges = Arrangement(("node",), within=("other",))
        #: rows of nodes; the last one of each counts. DIFF: 1 if it adds one, -1 if it removes it, else 0
        self.nodes = Arrangement(("node",))
        #: the nodes of each label
        self.members = Arrangement(("label",), within=("node",))

    def update(self, changes: pa.Table) -> tuple[Affected, pa.Table]:
        """Apply changes of edges. Returns the affected nodes, and the self-loops added or removed."""
        nodes = Affected(self.kind)
        if not len(self.edges) or self._is_replaced_by(changes):
            return nodes, self._load(nodes, changes)
        a, b, added = self._count(nodes, changes)
        loop = a == b
        loops = self._table(nodes.of(a[loop]), nodes.of(b[loop]), np.where(added, 1, -1)[loop])
        ends = unique(len(nodes), a, b)
        self._look_up(nodes, ends)
        nodes.detached[ends[~nodes.stored[ends]]] = True

        removed = ~added & ~loop
        children = np.concatenate([b[removed & (nodes.parent[b] == a)], a[removed & (nodes.parent[a] == b)]])
        with_added = unique(len(nodes), a[added], b[added])
        alive = np.zeros(len(nodes), np.bool_)
        alive[with_added] = True
        roots = ends[(nodes.parent[ends] == ends) & ~alive[ends]]
        if len(children) == 1 and self._reroot(nodes, int(children[0])):
            children = children[:0]
        x, y = self._detach(nodes, children)
        with_edge = self._with_edge(nodes, roots)
        alive = np.zeros(len(nodes), np.bool_)
        alive[x] = alive[with_added] = alive[with_edge] = True
        isolated = np.concatenate([roots[~alive[roots]], np.flatnonzero(nodes.detached & ~alive)])
        nodes.detached[isolated] = False
        nodes.label[isolated] = nodes.parent[isolated] = nodes.rank[isolated] = NO_NODE
        self._reattach(nodes, np.concatenate([x, a[added]]), np.concatenate([y, b[added]]))
        self._store(nodes)
        return nodes, loops

    def _is_replaced_by(self, changes: pa.Table) -> bool:
        """Whether to make the forest anew takes less than to change it."""
        if changes.num_rows < _MANY:
            return False
        diff = numbers(consolidate(changes), DIFF)  # an edge that comes back in the same epoch stays
        return bool(2 * (len(diff) + _REMOVAL * np.count_nonzero(diff < 0)) > len(self.edges))

    def _load(self, nodes: Affected, changes: pa.Table) -> pa.Table:
        """Make the forest of all edges anew. Its trees are shallow: later removals detach less."""
        every = pa.concat_tables([*Forest.present(self), changes])
        a, b = nodes.numbers(*(every.column(end) for end in self.ends))
        self._look_up(nodes, np.arange(len(nodes)))
        count, old = in_bytes(numbers(every, DIFF)), every.num_rows - changes.num_rows
        before = a[:old] == b[:old]
        before = np.bincount(a[:old][before], count[:old][before], len(nodes)) > 0
        added = both_ways(a[old:], b[old:], count[old:])
        a, b, count = both_ways(a, b, count) if old else added
        if count.min(initial=0) < 0:
            ranks = nodes.ranks()
            once = (count < 0) & (ranks[a] <= ranks[b])
            x, y = a[once], b[once]
            self._find_negative(nodes, x, y, count[once], self._multiplicity(nodes, x, y))
        x, y = (a, b) if (count > 0).all() else (a[count > 0], b[count > 0])
        starts = np.append(0, np.cumsum(np.bincount(x, minlength=len(nodes))))
        present, after = np.flatnonzero(np.diff(starts)), np.bincount(x[x == y], minlength=len(nodes)) > 0
        tie = (nodes.hashes() >> np.uint64(44)).astype(np.int64)
        forest = shallow_forest(starts, y, nodes.ranks(), tie, _LEVELS)
        rows = (nodes.label, forest.root), (nodes.parent, forest.parent), (nodes.rank, forest.rank)
        for row, of_all in rows:
            row[:] = NO_NODE
            row[present] = of_all[present]
        insert_pairs(self.edges, nodes, *added[:2], in_bytes(added[2]))
        del a, b, x, y, added  # rows of nodes get their memory
        self._store(nodes)
        loops = np.flatnonzero(before != after)
        return self._table(nodes.of(loops), nodes.of(loops), np.where(after, 1, -1)[loops])

    # -- edges -----------------------------------------------------------------------------------------------

    def _count(self, nodes: Affected, changes: pa.Table) -> tuple[Indices, Indices, Mask]:
        """Update the multiplicities. Returns the edges that appear or disappear, and whether each appears."""
        a, b = nodes.numbers(*(changes.column(end) for end in self.ends))
        a, b, diff = summed(a, b, numbers(changes, DIFF))
        before, back = self._multiplicity(nodes, a, b), a != b
        small = in_bytes(diff)
        either = np.append(a, b[back]), np.append(b, a[back])
        insert_pairs(self.edges, nodes, *either, np.append(small, small[back]))
        self._find_negative(nodes, a, b, before + diff, before)
        changed = (before > 0) != (before + diff > 0)
        return a[changed], b[changed], before[changed] <= 0

    def _find_negative(
        self, nodes: Affected, a: Indices, b: Indices, after: Indices, before: Any = 0
    ) -> None:
        """Find the edges whose multiplicities become negative."""
        became = (after < 0) & (before >= 0)
        if became.any():
            nodes.negative = self._table(nodes.of(a[became]), nodes.of(b[became]), after[became])

    def _multiplicity(self, nodes: Affected, a: Indices, b: Indices) -> Indices:
        """The multiplicities of edges."""
        total, h = np.zeros(len(a), np.int64), nodes.hashes()
        if len(self.edges):
            pairs = pa.table({"node": nodes.of(a), "other": nodes.of(b)})
            probe, stored = self.edges.matches(pairs, pairs.column_names, self.edges.paired(h[a], h[b]))
            if len(probe):
                np.add.at(total, probe, numbers(stored, DIFF))
        return total

    def _with_edge(self, nodes: Affected, which: Indices) -> Indices:
        """Those of some nodes that have an edge. For most nodes a few of their entries show it."""
        if not len(which) or not len(self.edges):
            return which[:0]
        keys = pa.table({"node": nodes.of(which)})
        probe, stored = self.edges.matches(keys, ["node"], nodes.hashes()[which], most=_SAMPLE)
        (other,) = nodes.numbers(stored.column("other"))
        sampled = which[probe[self._multiplicity(nodes, which[probe], other) > 0]]
        rest, _ = pairs_of(self.edges, nodes, which[~np.isin(which, sampled)])
        return np.append(sampled, rest)

    def present(self) -> list[pa.Table]:
        """Changes whose sums are the present edges, the lesser end first."""
        return [self._undirected(part) for part in self.edges.batches()]

    def _undirected(self, edges: pa.Table) -> pa.Table:
        """Each edge once, the lesser end first."""
        low, high = ordered(flat(edges.column("node")), flat(edges.column("other")))
        from_low = same(edges, pa.table({"low": low}), ["node"], ["low"])
        return self._table(low, high, numbers(edges, DIFF).astype(np.int64)).filter(pa.array(from_low))

    def _table(self, a: pa.Array, b: pa.Array, diff: Indices) -> pa.Table:
        return pa.table({self.ends[0]: a, self.ends[1]: b, DIFF: diff})

    # -- nodes -----------------------------------------------------------------------------------------------

    def _look_up(self, nodes: Affected, which: Indices) -> None:
        """Look up the rows of nodes that were not looked up before."""
        which = which[~nodes.looked_up[which]]
        nodes.looked_up[which] = True
        if not len(which) or not len(self.nodes):
            return
        keys = pa.table({"node": nodes.of(which)})
        probe, stored = self.nodes.lookup(keys, ["node"], nodes.hashes()[which])
        if not len(probe):
            return
        rank = numbers(stored, "rank")
        last = np.append(probe[1:] != probe[:-1], True) & (rank != REMOVED)
        stored, which = stored.filter(last), which[probe[last]]
        label, parent = nodes.numbers(stored.column("label"), stored.column("parent"))
        nodes.stored[which] = True
        nodes.label[which] = nodes.old_label[which] = label
        nodes.parent[which] = nodes.old_parent[which] = parent
        nodes.rank[which] = nodes.old_rank[which] = rank[last]

    def _members(self, nodes: Affected, labels: Indices) -> Indices:
        """All nodes with these labels, their rows looked up."""
        _, members = pairs_of(self.members, nodes, labels)
        self._look_up(nodes, members)
        return members

    def _store(self, nodes: Affected) -> None:
        """Write the rows of the nodes that changed, and their labels' members."""
        which = np.flatnonzero(nodes.changed)
        stored, removed = nodes.stored[which], nodes.label[which] == NO_NODE
        label, parent = (np.where(removed, which, column[which]) for column in (nodes.label, nodes.parent))
        rows = pa.table(
            {
                "node": nodes.of(which),
                "label": nodes.of(label),
                "parent": nodes.of(parent),
                "rank": np.where(removed, REMOVED, nodes.rank[which]),
                DIFF: (1 - stored - removed).astype(np.int8),
            }
        )
        self.nodes.insert(rows, nodes.hashes()[which], latest_rows)
        moved = nodes.label[which] != nodes.old_label[which]
        leave, join = which[moved & stored], which[moved & ~removed]
        label = np.append(nodes.old_label[leave], nodes.label[join])
        diff = np.repeat(np.array([-1, 1], np.int8), [len(leave), len(join)])
        insert_pairs(self.members, nodes, label, np.append(leave, join), diff)

    # -- trees -----------------------------------------------------------------------------------------------

    def _reroot(self, nodes: Affected, child: int) -> bool:
        """Reroot a subtree that lost its parent, at another edge to the rest of its tree, if that is small.

        A hub then keeps its children: only the path from the new edge up to `child` is reversed. The rest
        gets the least ranks and the path the next ones; `child` and all nodes below it keep theirs.
        """
        level = rest = np.array([nodes.parent[child]])
        edges: list[tuple[Indices, Indices]] = []
        for _ in range(_STEPS):
            keys = pa.table({"node": nodes.of(level)})
            if self.edges.at_most(keys, ["node"], nodes.hashes()[level]).sum() > _NEAR:
                return False
            x, y = pairs_of(self.edges, nodes, level)
            self._look_up(nodes, unique(len(nodes), y))
            edges.append((x, y))
            tree = ((nodes.parent[y] == x) | (nodes.parent[x] == y)) & (y != child)
            level = np.setdiff1d(y[tree], rest)
            rest = np.append(rest, level)
            if not len(level):
                break
        else:
            return False
        x, y = (np.concatenate(column) for column in zip(*edges, strict=True))
        leads = (nodes.label[y] == nodes.label[child]) & ~np.isin(y, rest)
        x, y = x[leads], y[leads]
        if not len(x):
            return False
        first = np.argmin(nodes.rank[y])
        path = [int(y[first])]
        while path[-1] != child and len(path) < _STEPS:
            path.append(int(nodes.parent[path[-1]]))
            self._look_up(nodes, np.array(path[-1:]))
        up, inner = np.arange(len(nodes)), np.zeros(len(nodes), np.int64)
        up[rest] = nodes.parent[rest]
        inner[rest] = up[rest] != rest
        depth = along_paths(up, inner)
        lowest = depth[x[first]] + 1
        if path[-1] != child or lowest + len(path) - 1 > nodes.rank[child]:
            return False
        nodes.rank[rest] = depth[rest]
        nodes.rank[path[:-1]] = lowest + np.arange(len(path) - 1)
        nodes.parent[path] = [x[first], *path[:-1]]
        return True

    def _detach(self, nodes: Affected, orphans: Indices) -> tuple[Indices, Indices]:
        """Find new parents for nodes that lost theirs, and detach those without one. Returns their edges.

        A neighbour of smaller rank is not a descendant, so it may be the parent if it is not detached itself.
        """
        edges = [(np.zeros(0, np.int64), np.zeros(0, np.int64))]
        levels, most = _LEVELS + len(self.nodes) // _PER_LEVEL, max(_FEW, len(self.nodes) // 8)
        visited = 0
        for level in range(levels + 1):
            if not len(orphans):
                break
            visited += len(orphans)
            deep = level == levels or visited > most
            if deep:
                labels = unique(len(nodes), nodes.label[orphans])
                tree = self._members(nodes, labels)
                tree = tree[nodes.rank[tree] >= nodes.rank[orphans].min()]
                orphans = tree[~nodes.detached[tree] & (nodes.parent[tree] != tree)]
            x, y = pairs_of(self.edges, nodes, orphans)
            self._look_up(nodes, unique(len(nodes), y))
            if not deep:
                fits = (
                    (nodes.label[x] == nodes.label[y]) & (nodes.rank[y] < nodes.rank[x]) & ~nodes.detached[y]
                )
                child, parent = x[fits], y[fits]
                by_rank = np.argsort(-nodes.rank[parent], kind="stable")
                nodes.parent[orphans] = NO_NODE
                nodes.parent[child[by_rank]] = parent[by_rank]  # the last write has the least rank
                orphans = orphans[nodes.parent[orphans] == NO_NODE]
            nodes.detached[orphans] = True
            detached = nodes.detached[x]
            x, y = x[detached], y[detached]
            edges.append((x, y))
            orphans = unique(len(nodes), y[(nodes.parent[y] == x) & ~nodes.detached[y]])
        return np.concatenate([x for x, _ in edges]), np.concatenate([y for _, y in edges])

    def _reattach(self, nodes: Affected, x: Indices, y: Indices) -> None:
        """Reattach the detached nodes by the edges (x, y), and merge trees; roots are the least nodes."""
        # edges of the old forest first, so that the forest changes as little as possible
        old = (nodes.old_parent[x] == y) | (nodes.old_parent[y] == x)
        x, y = np.concatenate([x[old], x[~old]]), np.concatenate([y[old], y[~old]])
        detached = nodes.detached.copy()
        forest = self._rooted(nodes, detached, x, y)
        merged = np.flatnonzero((forest.via >= 0) & ~detached)
        if len(merged):  # trees that lose their label: reattach all their nodes, by the same edges
            tree = self._members(nodes, merged)
            tree = tree[~nodes.detached[tree] & (nodes.label[tree] != NO_NODE)]
            detached = nodes.detached.copy()
            detached[tree] = True
            chosen = forest.via[forest.via >= 0]
            inner = tree[nodes.parent[tree] != tree]
            x = np.concatenate([inner, x[chosen]])
            y = np.concatenate([nodes.parent[inner], y[chosen]])
            forest = self._rooted(nodes, detached, x, y)
        via, root = forest.via, forest.root
        which = np.flatnonzero(detached)
        parent, child = which.copy(), via[which] >= 0
        edge = via[which[child]]
        parent[child] = x[edge] + y[edge] - which[child]
        up, weight = np.arange(len(nodes)), np.zeros(len(nodes), np.int64)
        up[which] = parent
        weight[which[child]] = np.where(detached[parent], 0, nodes.rank[parent])[child] + 1
        rank = along_paths(up, weight)
        nodes.label[which], nodes.parent[which], nodes.rank[which] = root[which], up[which], rank[which]

    @staticmethod
    def _rooted(nodes: Affected, detached: Mask, x: Indices, y: Indices) -> Rooted:
        """A forest of the detached nodes and the other trees; each of those counts as one node, its root."""
        tree = np.where(detached, np.arange(len(nodes)), nodes.label)
        return rooted_forest(len(nodes), tree[x], tree[y], nodes.ranks())


class _SpanningForest(Forest):
    """Send the edges that a worker's forest gains and loses, and all self-loops, which also keep nodes."""

    announces = True

    def __init__(self, ends: tuple[str, str], kind: pa.DataType, *, tells_negative: bool) -> None:
        super().__init__(ends, kind)
        #: whether edges whose multiplicities become negative are a mistake
        self.tells_negative = tells_negative
        #: after a rescale, edges of other workers that are not in the state yet
        self.moved: list[pa.Table] = []
        #: and the forest edges that those workers had sent of them
        self.sent: list[pa.Table] = []

    def on_complete(self, time: Timestamp, *batches: list[pa.Table]) -> None:
        edges = [*self.moved, *batches[0]]
        if not edges:
            return
        nodes, loops = self.update(pa.concat_tables(edges))
        if self.tells_negative and nodes.negative is not None:
            self._context.negative(time, nodes.negative)
        changes = pa.concat_tables([self._changes(nodes), loops])
        if self.sent:
            changes = consolidate(pa.concat_tables([changes, *map(negated, self.sent)]))
        self.moved, self.sent = [], []
        if changes.num_rows:
            self.send_by(0, time, changes)

    def _changes(self, nodes: Affected) -> pa.Table:
        child = np.flatnonzero(nodes.parent != nodes.old_parent)
        parent = np.concatenate([nodes.old_parent[child], nodes.parent[child]])
        child, diff = np.tile(child, 2), np.repeat([-1, 1], len(child))
        edge = (parent != NO_NODE) & (parent != child)
        low, high = np.minimum(child, parent), np.maximum(child, parent)
        low, high, diff = summed(low[edge], high[edge], diff[edge])
        return self._table(*ordered(nodes.of(low), nodes.of(high)), diff)

    def repartition(self, states: States, workers: int, partition: Partitioner) -> States:
        """Let each new worker insert its edges again, and subtract the forest edges that were sent before."""
        parts = [
            {
                "buffered": state["buffered"],
                "moved": [*state["moved"], *map(self._undirected, state["edges"].batches())],
                "sent": [*state["sent"], *self._forest(state["nodes"], state["edges"])],
            }
            for state in states
        ]
        return super().repartition(parts, workers, partition)

    def take_over(self, before: Mapping[str, Sequence[Any]], partition: Partitioner) -> States:
        """Let each worker insert the edges of the forests of all places."""
        forests = [*before.get("local_forests", ()), *before.get("place", ())]
        return states_with("moved", (part for forest in forests for part in forest.present()), partition)

    def present(self) -> list[pa.Table]:
        """Also those of other workers."""
        return [*super().present(), *self.moved]

    def _forest(self, nodes: Arrangement, edges: Arrangement) -> list[pa.Table]:
        """The forest edges and self-loops that a worker has sent in total."""
        if not nodes.parts:
            return []
        h = np.concatenate([part.row_hashes for part in nodes.parts])
        order = np.argsort(h, kind="stable")
        _, rows = latest_rows(h[order], pa.concat_tables(nodes.batches()).take(order))
        child = ~same(rows, rows, ["node"], ["parent"])
        a, b = ordered(*(flat(rows.column(name).filter(pa.array(child))) for name in ("node", "parent")))
        loops = pa.concat_tables(map(self._undirected, edges.batches()))
        loops = consolidate(loops.filter(pa.array(same(loops, loops, self.ends[:1], self.ends[1:]))))
        loops = loops.filter(pc.greater(loops.column(DIFF), 0))
        trees = self._table(a, b, np.ones(len(a), np.int64))
        return [trees, loops.set_column(2, DIFF, pa.array(np.ones(loops.num_rows, np.int64)))]


class _Components(Forest):
    """Send the changes of each node's component. All edges are on one worker."""

    def __init__(self, ends: tuple[str, str], kind: pa.DataType) -> None:
        super().__init__(ends, kind)
        #: the components that the steps by place had sent, before the flow changed to this step
        self.sent: list[pa.Table] = []

    def on_complete(self, time: Timestamp, *batches: list[pa.Table]) -> None:
        if not batches[0] and not self.sent:
            return
        changes = []
        if batches[0]:
            nodes, _ = self.update(pa.concat_tables(batches[0]))
            changes = [nodes.relabelled("component")]
        if self.sent:
            changes = [consolidate(pa.concat_tables([*changes, *map(negated, self.sent)]))]
            self.sent = []
        if changes[0].num_rows:
            self.send_by(0, time, changes[0])

    def answers(self) -> list[pa.Table]:
        """Changes whose sums are the components that were sent."""
        members = pa.schema([("node", self.kind), ("component", self.kind), (DIFF, pa.int64())])
        sent = [part.select(["node", "label", DIFF]) for part in self.members.batches()]
        return [*(part.rename_columns(members.names).cast(members) for part in sent), *self.sent]

    def take_over(self, before: Mapping[str, Sequence[Any]], partition: Partitioner) -> States:
        """Subtract what the vertices that name components have sent."""
        named = before.get("name_components", ())
        return states_with("sent", (part for one in named for part in one.answers()), partition)

    def repartition(self, states: States, workers: int, partition: Partitioner) -> States:
        """Move the one worker's state to the worker that now gets all edges."""
        (state,) = states
        places = partition(0, pa.table({"any": [0]}))
        return [state if place.num_rows else {} for place in places]


def negated(changes: pa.Table) -> pa.Table:
    """The opposite changes, of two columns."""
    return changes.set_column(2, DIFF, pc.negate(changes.column(DIFF).cast(pa.int64())))


@algorithm
def spanning_forest(stream: Stream, *, tells_negative: bool = False, name: str | None = None) -> Stream:
    """Maintain a spanning forest of each worker's edges, undirected, as edges are added and removed.

    The forest depends on the order of past changes. An added edge changes at most two forest edges. All
    self-loops pass, as one may be the only edge of a node. The edges of all workers' forests connect the same
    nodes as the input. A node is on about sqrt(2 * workers) workers, with at most one edge per node and
    worker. Not for use inside a loop.

    The changes at a time are sent once, when the time is complete.

    Args:
        stream: changes to a collection of edges; an edge is present while its multiplicity is positive.
        tells_negative: whether a negative multiplicity is a mistake, which the log reports.

    **Columns:** out as in: two ends, in order, and `DIFF`, which is 1 or -1.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("forest")
        >>> edges = flow.input("edges", "a long, b long, n long").collection(diff="n").stream
        >>> _ = spanning_forest(edges).capture("out")
        >>> changes = [[(1, 2, 1), (2, 3, 1)], [(1, 3, 1)], [(2, 1, -1)]]
        >>> ts.testing.run(flow, {"edges": changes})["out"].rows()
        {0: [(1, 2, 1), (2, 3, 1)], 1: [], 2: [(1, 2, -1), (1, 3, 1)]}
    """
    ends, kind = _checked("spanning_forest", stream)
    in_order = stream.then("ordered", [stream.schema], vertex=OrderedEnds(ends, kind))[0]
    return in_order.then(
        "spanning_forest",
        [stream.schema],
        name=name,
        vertex=_SpanningForest(ends, kind, tells_negative=tells_negative),
        requires=[Partition(ends, blocks=True)],
    )[0]


@algorithm
def components(stream: Stream, *, name: str | None = None) -> Stream:
    """For each node the least node of its connected component, as edges are added and removed.

    All edges go to one worker, so use it behind `spanning_forest`, which leaves few. A node is present while
    it has an edge, or a self-loop. Not for use inside a loop.

    The changes at a time are sent once, when the time is complete.

    Args:
        stream: changes to a collection of undirected edges; an edge is present while its multiplicity is
            positive.

    **Columns:** out: ``node``, ``component``, `DIFF`: changes, consolidated for each time.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("components")
        >>> edges = flow.input("edges", "a long, b long, n long").collection(diff="n").stream
        >>> _ = components(spanning_forest(edges)).capture("out")
        >>> changes = [[(1, 2, 1), (3, 2, 1)], [(1, 2, -1)]]
        >>> ts.testing.run(flow, {"edges": changes}, workers=2)["out"].rows()
        {0: [(1, 1, 1), (2, 1, 1), (3, 1, 1)], 1: [(1, 1, -1), (2, 1, -1), (2, 2, 1), (3, 1, -1), (3, 2, 1)]}
    """
    ends, kind = _checked("components", stream)
    stream = stream.then("ordered", [stream.schema], vertex=OrderedEnds(ends, kind))[0]
    schema = pa.schema([("node", kind), ("component", kind), (DIFF, pa.int64())])
    return stream.then(
        "label_components",
        [schema],
        name=name,
        vertex=_Components(ends, kind),
        keyed=(),  # all edges go to one worker
    )[0]


def _checked(step: str, stream: Stream) -> tuple[tuple[str, str], pa.DataType]:
    """The names of the two end columns, and their type."""
    schema = stream.schema
    kinds = [schema.field(end).type for end in schema.names[:2]]
    if len(schema) != 3 or kinds[0] != kinds[1] or schema.field(2) != pa.field(DIFF, pa.int64()):
        msg = f"{step} got a stream of ({describe(schema)})"
        raise SchemaError(msg, where=caller(), hint=f"give edges: two columns of one type, and {DIFF}")
    ends = schema.names[0], schema.names[1]
    check_columns(step, schema, ends, keys=True)
    stream.check_outside(step)
    return ends, kinds[0]
