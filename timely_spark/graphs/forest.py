"""A spanning forest that is kept as edges come and go; and the connected components it tells.

Each worker keeps a forest of the edges partitioned to it, and passes on its changes only: so many edges
become at most as many as there are nodes, and one worker keeps a forest of those. However long the paths
are, nothing goes around in rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from timely_spark.differential.trace import DIFF, consolidate, numbers
from timely_spark.errors import GraphError, SchemaError
from timely_spark.graph import Partition, Vertex, caller, check_columns, composed, describe
from timely_spark.graphs.affected import NOBODY, Affected, added_up, ordered, unique
from timely_spark.graphs.spanning import Rooted, along_paths, breadth_first, rooted_forest
from timely_spark.operators.aggregate import ALL
from timely_spark.operators.rows import computed
from timely_spark.worker.arrangement import Arrangement, paired
from timely_spark.worker.keys import Hashes, Indices, Mask, exact, flat, group, same
from timely_spark.worker.partitioning import repartition

if TYPE_CHECKING:
    from timely_spark.streams import Stream

#: so many levels of a tree fall one after the other, and one more for each so many nodes there are; or so
#: many nodes, and an eighth of all. Then all of the tree that is as deep falls at once, which is less work.
_LEVELS = 64
_PER_LEVEL = 2048
_FEW = 4096
_GONE = -1


class _Forest(Vertex):
    """A rooted spanning forest of the edges that are there, in state that costs what changes.

    Invariant: the root of each tree is its least node, and the label of all its nodes; every other node has
    a parent of smaller rank, to which there is an edge.
    """

    def __init__(self, ends: tuple[str, str], kind: pa.DataType) -> None:
        self.ends, self.kind = ends, kind
        #: by time, what came at it
        self.waiting: dict[Any, list[pa.Table]] = {}
        #: how often each edge is there; from either end, a loop once
        self.edges = Arrangement(("node",), within=("other",))
        #: rows of nodes; the last one counts. DIFF: whether the node has come (1), is gone (-1), or stays
        self.nodes = Arrangement(("node",))
        #: for each label the nodes that have it
        self.members = Arrangement(("label",), within=("node",))

    def before_exchange(self, edge: int, batch: pa.Table) -> pa.Table:
        """Edges with their ends in order, so that both directions of an edge are one."""
        a, b = (flat(batch.column(end)) for end in self.ends)
        if pa.types.is_floating(self.kind):  # -0.0 is 0.0
            zero = pa.scalar(0, self.kind)
            a, b = pc.add(a, zero), pc.add(b, zero)
        made = dict(zip(self.ends, ordered(a, b), strict=True))
        return pa.table({**made, **{name: batch.column(name) for name in batch.schema.names[2:]}})

    def on_recv(self, edge: int, time: Any, batch: pa.Table) -> None:
        """Keep the changes, and wait."""
        self.waiting.setdefault(time, []).append(batch)
        self.notify_at(time)

    def update(self, changes: pa.Table) -> tuple[Affected, pa.Table]:
        """Take in changes of edges: what became of the nodes they touch; and loops that come or go."""
        nodes = Affected(self.kind)
        a, b, comes = self._count(nodes, changes)
        loop = a == b
        loops = self._table(nodes.of(a[loop]), nodes.of(b[loop]), np.where(comes, 1, -1)[loop])
        ends = unique(len(nodes), a, b)
        self._ask(nodes, ends)
        new = ends[~nodes.known[ends]]
        nodes.detached[new] = True

        cut = ~comes & ~loop
        below = np.concatenate([b[cut & (nodes.parent[b] == a)], a[cut & (nodes.parent[a] == b)]])
        kept = unique(len(nodes), a[comes], b[comes])
        alive = np.zeros(len(nodes), np.bool_)
        alive[kept] = True
        roots = ends[(nodes.parent[ends] == ends) & ~alive[ends]]
        x, y = self._fall(nodes, below)
        with_edge, _ = _related(self.edges, nodes, roots)
        alive = np.zeros(len(nodes), np.bool_)
        alive[x] = alive[kept] = alive[with_edge] = True
        gone = np.concatenate([roots[~alive[roots]], np.flatnonzero(nodes.detached & ~alive)])
        nodes.detached[gone] = False
        nodes.label[gone] = nodes.parent[gone] = nodes.rank[gone] = NOBODY
        self._hang(nodes, np.concatenate([x, a[comes]]), np.concatenate([y, b[comes]]))
        self._keep(nodes)
        return nodes, loops

    # -- edges -----------------------------------------------------------------------------------------------

    def _count(self, nodes: Affected, changes: pa.Table) -> tuple[Indices, Indices, Mask]:
        """Count edges: which ones come, or else go."""
        a, b = nodes.numbers(*(changes.column(end) for end in self.ends))
        a, b, diff = added_up(a, b, numbers(changes, DIFF))
        before, h = np.zeros(len(a), np.int64), nodes.hashes()
        if len(self.edges):
            pairs = pa.table({"node": nodes.of(a), "other": nodes.of(b)})
            probe, found = self.edges.lookup(pairs, pairs.column_names, paired(h[a], h[b]))
            if len(probe):
                np.add.at(before, probe, numbers(found, DIFF))
        back = a != b
        small = _small(diff)
        either = np.append(a, b[back]), np.append(b, a[back])
        _relate(self.edges, nodes, *either, np.append(small, small[back]))
        changed = (before > 0) != (before + diff > 0)
        return a[changed], b[changed], before[changed] <= 0

    def _table(self, a: pa.Array, b: pa.Array, diff: Indices) -> pa.Table:
        return pa.table({self.ends[0]: a, self.ends[1]: b, DIFF: diff})

    # -- nodes -----------------------------------------------------------------------------------------------

    def _ask(self, nodes: Affected, which: Indices) -> None:
        """Look up the rows of nodes, where that was not done before."""
        which = which[~nodes.asked[which]]
        nodes.asked[which] = True
        if not len(which) or not len(self.nodes):
            return
        asked = pa.table({"node": nodes.of(which)})
        probe, found = self.nodes.lookup(asked, ["node"], nodes.hashes()[which])
        if not len(probe):
            return
        rank = numbers(found, "rank")
        last = np.append(probe[1:] != probe[:-1], True) & (rank != _GONE)
        found, who = found.filter(last), which[probe[last]]
        label, parent = nodes.numbers(found.column("label"), found.column("parent"))
        nodes.known[who] = True
        nodes.label[who] = nodes.old_label[who] = label
        nodes.parent[who] = nodes.old_parent[who] = parent
        nodes.rank[who] = nodes.old_rank[who] = rank[last]

    def _members(self, nodes: Affected, labels: Indices) -> Indices:
        """All nodes that have some labels, their rows looked up."""
        _, who = _related(self.members, nodes, labels)
        self._ask(nodes, who)
        return who

    def _keep(self, nodes: Affected) -> None:
        """Write the rows of nodes that changed, and under which label they are found."""
        who = np.flatnonzero(nodes.changed)
        known, gone = nodes.known[who], nodes.label[who] == NOBODY
        label, parent = (np.where(gone, who, column[who]) for column in (nodes.label, nodes.parent))
        rows = pa.table(
            {
                "node": nodes.of(who),
                "label": nodes.of(label),
                "parent": nodes.of(parent),
                "rank": np.where(gone, _GONE, nodes.rank[who]),
                DIFF: (1 - known - gone).astype(np.int8),
            }
        )
        self.nodes.insert(rows, nodes.hashes()[who], _latest)
        moved = nodes.label[who] != nodes.old_label[who]
        leave, join = who[moved & known], who[moved & ~gone]
        label = np.append(nodes.old_label[leave], nodes.label[join])
        diff = np.repeat(np.array([-1, 1], np.int8), [len(leave), len(join)])
        _relate(self.members, nodes, label, np.append(leave, join), diff)

    # -- trees -----------------------------------------------------------------------------------------------

    def _fall(self, nodes: Affected, cut: Indices) -> tuple[Indices, Indices]:
        """Give nodes that were cut off other parents; those that find none fall. All edges of the fallen.

        A neighbour of smaller rank is no descendant, so it may be a parent, unless it has fallen itself.
        """
        edges = [(np.zeros(0, np.int64), np.zeros(0, np.int64))]
        levels, most = _LEVELS + len(self.nodes) // _PER_LEVEL, max(_FEW, len(self.nodes) // 8)
        asked = 0
        for level in range(levels + 1):
            if not len(cut):
                break
            asked += len(cut)
            deep = level == levels or asked > most
            if deep:
                labels = unique(len(nodes), nodes.label[cut])
                tree = self._members(nodes, labels)
                tree = tree[nodes.rank[tree] >= nodes.rank[cut].min()]
                cut = tree[~nodes.detached[tree] & (nodes.parent[tree] != tree)]
            x, y = _related(self.edges, nodes, cut)
            self._ask(nodes, unique(len(nodes), y))
            if not deep:
                fits = (
                    (nodes.label[x] == nodes.label[y]) & (nodes.rank[y] < nodes.rank[x]) & ~nodes.detached[y]
                )
                child, parent = x[fits], y[fits]
                by_rank = np.argsort(-nodes.rank[parent], kind="stable")
                nodes.parent[cut] = NOBODY
                nodes.parent[child[by_rank]] = parent[by_rank]  # the last one written has the least rank
                cut = cut[nodes.parent[cut] == NOBODY]
            nodes.detached[cut] = True
            falls = nodes.detached[x]
            x, y = x[falls], y[falls]
            edges.append((x, y))
            cut = unique(len(nodes), y[(nodes.parent[y] == x) & ~nodes.detached[y]])
        return np.concatenate([x for x, _ in edges]), np.concatenate([y for _, y in edges])

    def _hang(self, nodes: Affected, x: Indices, y: Indices) -> None:
        """Hang what has fallen, and trees that have become one, by the edges (x, y), onto the least node."""
        # edges of the forest as it was go first: so it changes no more than it must
        was = (nodes.old_parent[x] == y) | (nodes.old_parent[y] == x)
        x, y = np.concatenate([x[was], x[~was]]), np.concatenate([y[was], y[~was]])
        loose = nodes.detached.copy()
        forest = self._rooted(nodes, loose, x, y)
        merged = np.flatnonzero((forest.via >= 0) & ~loose)
        if len(merged):  # trees whose labels go: their nodes hang anew, by the same edges
            tree = self._members(nodes, merged)
            tree = tree[~nodes.detached[tree] & (nodes.label[tree] != NOBODY)]
            loose = nodes.detached.copy()
            loose[tree] = True
            chosen = forest.via[forest.via >= 0]
            inner = tree[nodes.parent[tree] != tree]
            x = np.concatenate([inner, x[chosen]])
            y = np.concatenate([nodes.parent[inner], y[chosen]])
            forest = self._rooted(nodes, loose, x, y)
        via, root = forest.via, forest.root
        who = np.flatnonzero(loose)
        parent, hung = who.copy(), via[who] >= 0
        edge = via[who[hung]]
        parent[hung] = x[edge] + y[edge] - who[hung]
        up, weight = np.arange(len(nodes)), np.zeros(len(nodes), np.int64)
        up[who] = parent
        weight[who[hung]] = np.where(loose[parent], 0, nodes.rank[parent])[hung] + 1
        rank = along_paths(up, weight)
        if not nodes.known.any():  # shallow trees fall less far
            up, rank = breadth_first(up, x, y, _LEVELS, (nodes.hashes() >> np.uint64(44)).astype(np.int64))
        nodes.label[who], nodes.parent[who], nodes.rank[who] = root[who], up[who], rank[who]

    @staticmethod
    def _rooted(nodes: Affected, loose: Mask, x: Indices, y: Indices) -> Rooted:
        """A forest of loose nodes, and of trees that stand: each of those is one node, that of its label."""
        of = np.where(loose, np.arange(len(nodes)), nodes.label)
        return rooted_forest(len(nodes), of[x], of[y], nodes.places())


class _SpanningForest(_Forest):
    """Says which edges the forest of a worker gains and loses; and all loops, which hold nodes too."""

    announces = True

    def __init__(self, ends: tuple[str, str], kind: pa.DataType) -> None:
        super().__init__(ends, kind)
        #: edges that came from other workers and are not in the state yet; and what those had said of them
        self.moved: list[pa.Table] = []
        self.said: list[pa.Table] = []

    def on_notify(self, time: Any) -> None:
        """Send what changed at `time`."""
        came = [*self.moved, *self.waiting.pop(time, [])]
        if not came:
            return
        nodes, loops = self.update(pa.concat_tables(came))
        made = pa.concat_tables([self._changes(nodes), loops])
        if self.said:
            said = pa.concat_tables(self.said)
            said = said.set_column(2, DIFF, pc.negate(said.column(DIFF)))
            made = consolidate(pa.concat_tables([made, said]))
        self.moved, self.said = [], []
        if made.num_rows:
            self.send_by(0, time, made)

    def _changes(self, nodes: Affected) -> pa.Table:
        who = np.flatnonzero(nodes.parent != nodes.old_parent)
        parent = np.concatenate([nodes.old_parent[who], nodes.parent[who]])
        who, diff = np.tile(who, 2), np.repeat([-1, 1], len(who))
        hung = (parent != NOBODY) & (parent != who)
        low, high = np.minimum(who, parent), np.maximum(who, parent)
        low, high, diff = added_up(low[hung], high[hung], diff[hung])
        return self._table(*ordered(nodes.of(low), nodes.of(high)), diff)

    def repartition(
        self,
        states: Sequence[Mapping[str, Any]],
        workers: int,
        partition: Callable[[int, pa.Table], list[pa.Table]],
    ) -> Sequence[Mapping[str, Any]]:
        """A worker's new edges are a load, of which what the old workers said has been said already."""
        parts = [
            {
                "waiting": state["waiting"],
                "moved": [*state["moved"], *map(self._undirected, state["edges"].batches())],
                "said": [*state["said"], *self._forest(state["nodes"], state["edges"])],
            }
            for state in states
        ]
        return repartition(self, parts, workers, partition)

    def _forest(self, nodes: Arrangement, edges: Arrangement) -> list[pa.Table]:
        """What was said in all."""
        if not nodes.parts:
            return []
        h = np.concatenate([part.hashes for part in nodes.parts])
        order = np.argsort(h, kind="stable")
        _, rows = _latest(h[order], pa.concat_tables(nodes.batches()).take(order))
        hung = ~same(rows, rows, ["node"], ["parent"])
        a, b = ordered(*(flat(rows.column(name).filter(pa.array(hung))) for name in ("node", "parent")))
        loops = pa.concat_tables(map(self._undirected, edges.batches()))
        loops = consolidate(loops.filter(pa.array(same(loops, loops, self.ends[:1], self.ends[1:]))))
        loops = loops.filter(pc.greater(loops.column(DIFF), 0))
        trees = self._table(a, b, np.ones(len(a), np.int64))
        return [trees, loops.set_column(2, DIFF, pa.array(np.ones(loops.num_rows, np.int64)))]

    def _undirected(self, edges: pa.Table) -> pa.Table:
        """As they came: the lesser end first."""
        low, high = ordered(flat(edges.column("node")), flat(edges.column("other")))
        once = same(edges, pa.table({"low": low}), ["node"], ["low"])
        return self._table(low, high, numbers(edges, DIFF).astype(np.int64)).filter(pa.array(once))


class _Components(_Forest):
    """Says which node gains and loses which component. All edges come to one worker."""

    def on_notify(self, time: Any) -> None:
        """Send what changed at `time`."""
        if not (came := self.waiting.pop(time, [])):
            return
        nodes, _ = self.update(pa.concat_tables(came))
        who = np.flatnonzero(nodes.label != nodes.old_label)
        leave, join = who[nodes.old_label[who] != NOBODY], who[nodes.label[who] != NOBODY]
        if len(who):
            made = {
                "node": nodes.of(np.concatenate([leave, join])),
                "component": nodes.of(np.concatenate([nodes.old_label[leave], nodes.label[join]])),
                DIFF: np.repeat([-1, 1], [len(leave), len(join)]),
            }
            self.send_by(0, time, pa.table(made))

    def repartition(
        self,
        states: Sequence[Mapping[str, Any]],
        workers: int,
        partition: Callable[[int, pa.Table], list[pa.Table]],
    ) -> Sequence[Mapping[str, Any]]:
        """The one worker's state goes where its records go now."""
        (state,) = states
        places = partition(0, pa.table({ALL: pa.array([0], pa.int8())}))
        return [state if place.num_rows else {} for place in places]


def _relate(state: Arrangement, nodes: Affected, one: Indices, two: Indices, diff: npt.NDArray[Any]) -> None:
    """Take pairs into an index of pairs."""
    (first, second), h = (*state.keys, *state.within), nodes.hashes()
    pairs = pa.table({first: nodes.of(one), second: nodes.of(two), DIFF: diff})
    state.insert(pairs, paired(h[one], h[two]), _compact)


def _related(state: Arrangement, nodes: Affected, of: Indices) -> tuple[Indices, Indices]:
    """For some different nodes those that an index of pairs has with them: the pairs."""
    if not len(of) or not len(state):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    asked = pa.table({"node": nodes.of(of)})
    probe, found = state.lookup(asked, ["node"], nodes.hashes()[of])
    (two,) = nodes.numbers(found.column(state.within[0]))
    diff = numbers(found, DIFF)
    if (diff > 0).all():
        return of[probe], two
    one, two, totals = added_up(of[probe], two, diff)
    return one[totals > 0], two[totals > 0]


def _compact(hashed: Hashes, table: pa.Table) -> tuple[Hashes, pa.Table]:
    """Add up the weights of equal pairs; most have no equal, and are left as they are."""
    again = hashed[1:] == hashed[:-1]
    if not again.any():
        return hashed, table
    rows = np.flatnonzero(np.append(again, False) | np.append(False, again))
    groups = group(table.take(rows), table.schema.names[:2], hashed[rows])
    weights = numbers(table, DIFF).astype(np.int64)
    totals = np.add.reduceat(weights[rows[groups.order]], groups.starts)
    keep = np.ones(len(hashed), np.bool_)
    keep[rows] = False
    keep[rows[groups.firsts]] = totals != 0
    weights[rows[groups.firsts]] = totals
    table = table.filter(pa.array(keep)).set_column(2, DIFF, pa.array(_small(weights[keep])))
    return hashed[keep], table


def _small(weights: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The same numbers in one byte each, if they go there."""
    small = weights.astype(np.int8)
    return small if (small == weights).all() else weights


def _latest(hashed: Hashes, table: pa.Table) -> tuple[Hashes, pa.Table]:
    """The last row of each node; of a node that came and went nothing is left."""
    again = hashed[1:] == hashed[:-1]
    if not exact(table, ["node"]):
        again &= same(table.slice(0, len(again)), table.slice(1), ["node"], ["node"])
    if not again.any():
        return hashed, table
    last = np.append(~again, True)
    total = np.add.reduceat(numbers(table, DIFF), np.flatnonzero(np.append(True, ~again)))
    keep = np.flatnonzero(last)
    rank = numbers(table, "rank")[keep]
    some = (rank != _GONE) | (total != 0)
    place = table.schema.get_field_index(DIFF)
    table = table.take(keep[some]).set_column(place, DIFF, pa.array(total[some], pa.int8()))
    return hashed[keep[some]], table


def spanning_forest(stream: Stream, *, name: str | None = None) -> Stream:
    """Keep a spanning forest of each worker's edges, undirected, as edges come and go.

    Which edges they are depends on what came before. An edge that comes changes at most two edges of the
    forest. Loops are passed on, as they may be all that holds a node. The edges of all workers' forests
    connect the same nodes as those of the input, and are at most as many per worker as there are nodes. Not
    for use inside a loop.

    Waits: what changed at a time is sent once, when the time is complete.

    Args:
        stream: changes to a collection of edges; an edge is there while its count is positive.
        name: the step's name.

    **Columns:** out as in: two ends, in order, and `DIFF`, which is 1 or -1.

    Raises:
        GraphError: the stream is inside a loop.
        SchemaError: it has other columns than two of one type that can be keys, and `DIFF`.

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
    return stream.then(
        "spanning_forest",
        [stream.schema],
        name=name,
        vertex=_SpanningForest(ends, kind),
        requires=[Partition(ends)],
        guarantees=ends,
    )[0]


@composed
def components(stream: Stream, *, name: str | None = None) -> Stream:
    """Tell for each node the least node of its connected component, as edges come and go.

    All edges come to one worker, so let there be few: those of `spanning_forest`. A node is there while an
    edge touches it, a loop included. Not for use inside a loop.

    Waits: what changed at a time is sent once, when the time is complete.

    Args:
        stream: changes to a collection of edges, undirected; an edge is there while its count is positive.
        name: the step's name.

    **Columns:** out: ``node``, ``component``, `DIFF`: changes, consolidated for each time.

    Raises:
        GraphError: the stream is inside a loop.
        SchemaError: it has other columns than two of one type that can be keys, and `DIFF`.

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
    schema = pa.schema([("node", kind), ("component", kind), (DIFF, pa.int64())])
    together = {ALL: pc.scalar(pa.scalar(0, pa.int8()))}
    return computed(stream, *stream.schema.names, together, own=(ALL,)).then(
        "label_components",
        [schema],
        name=name,
        vertex=_Components(ends, kind),
        requires=[Partition((ALL,))],
        guarantees=(),  # all on one worker
    )[0]


def _checked(step: str, stream: Stream) -> tuple[tuple[str, str], pa.DataType]:
    """The columns of the ends, and their type."""
    schema, scope = stream.schema, stream.stage.scope
    kinds = [schema.field(end).type for end in schema.names[:2]]
    if len(schema) != 3 or kinds[0] != kinds[1] or schema.field(2) != pa.field(DIFF, pa.int64()):
        msg = f"{step} ({caller()}) got a stream of ({describe(schema)})."
        raise SchemaError(msg, hint=f"give edges: two columns of one type, and {DIFF}")
    ends = schema.names[0], schema.names[1]
    check_columns(step, schema, ends, keys=True)
    if scope.parent is not None:
        msg = f"{step} ({caller()}): {stream.name!r} is in loop {scope.name!r}, not in the outermost scope."
        raise GraphError(msg, hint="leave the loop first")
    return ends, kinds[0]
