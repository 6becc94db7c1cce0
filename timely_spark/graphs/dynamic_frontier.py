"""PageRank by a dynamic frontier: a change recomputes only the ranks that it may move noticeably."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from timely_spark.authors import (
    DIFF,
    BufferingVertex,
    Indices,
    Mask,
    Partition,
    Partitioner,
    States,
    flat,
    numbers,
    ranges,
    transient,
)
from timely_spark.differential import Collection
from timely_spark.errors import SchemaError
from timely_spark.graphs.affected import summed, unique
from timely_spark.times import Timestamp

if TYPE_CHECKING:
    import pandas as pd

#: Ranks are in parts of a unit, so that hubs are precise: a hub's rank moves in steps of its degree.
BITS = 11
#: What a worker knows of each node, by the node's number.
_OF_NODES = ("rank", "total", "reported", "present", "moved", "start", "degree")


class DynamicFrontier(BufferingVertex):
    """The ranks of a worker's nodes, and their edges as arrays; an iteration is one exchange of sums.

    A rank moves on when it differs from what the node now gets by more than the tolerance. Then the change of
    its share goes along each of its edges.

    Invariant: between iterations `total` is the sum of the shares of all edges to a node, and a share is a
    function of the rank and degree of the edge's source. So what a rank lacks is known exactly, whatever was
    computed before, and errors do not add up over epochs.

    Inputs: 0, changes of edges; 1, nodes that come and go; 2, sums of changed shares. Outputs: 0, changes of
    ranks; 1, sums.
    """

    _transient = frozenset({"_context", "_index"})

    def __init__(self, kind: pa.DataType, unit: int, share: tuple[int, int], tolerance: int) -> None:
        super().__init__(inputs=3)
        self.least = (unit << BITS) * (share[1] - share[0]) // share[1]
        self.share = share
        #: a unit less, as ranks are rounded down to units when they are sent
        self.tolerance = (tolerance - 1) << BITS
        #: a rank moves by more than this for each edge: then all ranks together come nearer by half of it
        self.by_degree = -(-2 * share[1] // (share[1] - share[0]))
        #: the nodes by number, also those of other workers to which there are edges
        self.values = pa.table({"node": pa.array([], kind)})
        self._index: pd.Index[Any] | None = None
        self.rank, self.total, self.start, self.degree = np.zeros((4, 0), np.int64)
        #: the rank that was sent last, in units; -1 if none was
        self.reported = np.zeros(0, np.int64)
        #: whether the node is present, and whether its rank has changed since it was sent
        self.present, self.moved = np.zeros((2, 0), np.bool_)
        #: from `start` on, as many as its degree: the targets of a node's edges; old rows remain a while
        self.targets = np.zeros(0, np.int64)

    def on_notify(self, time: Timestamp) -> None:
        """Take an iteration of the earliest epoch; others wait."""
        after = self._context.times.decode([time.epoch, time.order_key()[-1] + 1])
        if self._context.compaction_frontier() < time.epoch:
            self.notify_at(after)
            return
        ready = [at for at in self.buffered if at.epoch == time.epoch and at.less_equal(time)]
        arrived = [self.buffered.pop(at) for at in ready]
        links, nodes, sums = ([table for batch in arrived for table in batch[edge]] for edge in range(3))
        got = [self._change_nodes(nodes), self._add_sums(sums)]
        sources, *sent = self._change_edges(links)
        moved = self._move_ranks(unique(len(self.rank), *got, sources))
        if len(moved[0]):
            self.notify_at(after)
            sent.append(self._along(*moved))
        self._send_sums(time, sent)
        if not len(moved[0]):
            self._send_ranks(time)

    # -- what arrives ----------------------------------------------------------------------------------------

    def _change_nodes(self, tables: Sequence[pa.Table]) -> Indices:
        """Add and remove nodes. Returns them."""
        if not tables:
            return np.zeros(0, np.int64)
        changes = pa.concat_tables(tables)
        nodes = self._numbers(changes.column("node"))
        self.present[nodes] = numbers(changes, DIFF) > 0
        self.moved[nodes] = True
        return nodes

    def _add_sums(self, tables: Sequence[pa.Table]) -> Indices:
        """Add sums of changed shares. Returns their nodes."""
        if not tables:
            return np.zeros(0, np.int64)
        sums = pa.concat_tables(tables)
        nodes = self._numbers(sums.column("to"))
        np.add.at(self.total, nodes, sums.column("amount").to_numpy())
        return nodes

    def _change_edges(self, tables: Sequence[pa.Table]) -> tuple[Any, ...]:
        """Change edges. The sources of these; the shares that are lost, and those that are got instead."""
        if not tables:
            return (np.zeros(0, np.int64),)
        changes = pa.concat_tables(tables)
        ends = self._numbers(pa.chunked_array([*changes.column("src").chunks, *changes.column("dst").chunks]))
        src, dst = ends[: len(changes)], ends[len(changes) :]
        nodes = unique(len(self.rank), src)
        lost = self._along(nodes, -self._shares(nodes))
        rows = np.repeat(nodes, self.degree[nodes]), lost[0], np.ones(len(lost[0]), np.int64)
        every = zip(rows, (src, dst, numbers(changes, DIFF)), strict=True)
        src, dst, count = summed(*(np.concatenate(both) for both in every))
        if (count < 0).any():
            at = np.flatnonzero(count < 0)[0]
            edge = [self.values["node"][int(end[at])].as_py() for end in (src, dst)]
            msg = f"pagerank: edge {edge[0]!r} to {edge[1]!r} was removed more often than it was added"
            raise SchemaError(msg, hint="ignore such edges by edges.threshold(partial(np.maximum, 0)).")
        self.degree[nodes] = np.bincount(src, count, len(self.rank)).astype(np.int64)[nodes]
        self.start[nodes] = len(self.targets) + np.cumsum(self.degree[nodes]) - self.degree[nodes]
        self.targets = np.append(self.targets, np.repeat(dst, count))
        return nodes, lost, self._along(nodes, self._shares(nodes))

    # -- ranks -----------------------------------------------------------------------------------------------

    def _move_ranks(self, nodes: Indices) -> tuple[Indices, Indices]:
        """Those of the nodes whose rank moves, and the change of their share."""
        due, rank = np.where(self.present[nodes], self.least + self.total[nodes], 0), self.rank[nodes]
        if (due < 0).any():  # more than 2^63 parts
            msg = "pagerank: a rank is too large"
            raise SchemaError(msg, hint="give a smaller unit.")
        moves = np.abs(due - rank) > np.maximum(self.tolerance, self.by_degree * self.degree[nodes])
        moves |= (due != rank) & ((due == 0) | (rank == 0))  # nodes that come and go
        nodes, due = nodes[moves], due[moves]
        before = self._shares(nodes)
        self.rank[nodes] = due
        self.moved[nodes] = True
        return nodes, self._shares(nodes) - before

    def _shares(self, nodes: Indices) -> Indices:
        """The rank that goes along each edge of the nodes, rounded down."""
        numerator, denominator = self.share
        by = np.maximum(self.degree[nodes], 1) * denominator
        quotient, rest = np.divmod(self.rank[nodes], by)  # so that no product is too large
        shares: Indices = quotient * numerator + rest * numerator // by
        return shares

    def _along(self, nodes: Indices, amounts: Indices) -> tuple[Indices, Indices]:
        """The target of each edge of the nodes, with the node's amount."""
        degree = self.degree[nodes]
        return self.targets[ranges(self.start[nodes], degree)], np.repeat(amounts, degree)

    def _send_sums(self, time: Timestamp, sent: Sequence[tuple[Indices, Indices]]) -> None:
        """Send the sum of the amounts for each target."""
        if not sent:
            return
        to, amounts = (np.concatenate(parts) for parts in zip(*sent, strict=True))
        if 8 * len(to) < len(self.rank):
            nodes, to = np.unique(to, return_inverse=True)
        else:
            nodes = np.arange(len(self.rank))
        sums = np.zeros(len(nodes), np.int64)
        np.add.at(sums, to, amounts)
        some = np.flatnonzero(sums)
        self.send_by(1, time, pa.table({"to": self._of(nodes[some]), "amount": sums[some]}))

    def _send_ranks(self, time: Timestamp) -> None:
        """Send the changes of ranks, and forget rows in disuse."""
        nodes = np.flatnonzero(self.moved)
        self.moved[nodes] = False
        now = np.where(self.present[nodes], self.rank[nodes] >> BITS, -1)
        nodes, now = nodes[now != self.reported[nodes]], now[now != self.reported[nodes]]
        old = self.reported[nodes]
        self.reported[nodes] = now
        removed, added = np.flatnonzero(old >= 0), np.flatnonzero(now >= 0)
        changes = {
            "node": self._of(np.concatenate([nodes[removed], nodes[added]])),
            "rank": np.concatenate([old[removed], now[added]]),
            DIFF: np.repeat([-1, 1], [len(removed), len(added)]),
        }
        self.send_by(0, time, pa.table(changes))
        if len(self.targets) + len(self.rank) > 2 * (2 * self.degree.sum() + self.present.sum()):
            self._compact()

    # -- nodes -----------------------------------------------------------------------------------------------

    def _numbers(self, column: pa.ChunkedArray) -> Indices:
        """The numbers of nodes; new ones get the next numbers."""
        import pandas as pd

        values = flat(column)
        if pa.types.is_floating(values.type):  # -0.0 is 0.0
            values = pc.add(values, pa.scalar(0, values.type))
        if self._index is None:
            self._index = pd.Index(flat(self.values["node"]).to_pandas())
        numbers = self._index.get_indexer(pd.Index(values.to_pandas()))
        if (numbers < 0).any():
            new = values.filter(pa.array(numbers < 0)).unique()
            self.values = pa.table({"node": pa.concat_arrays([flat(self.values["node"]), new])})
            for name in _OF_NODES:
                own = getattr(self, name)
                more = np.full(len(new), -1 if name == "reported" else 0, own.dtype)
                setattr(self, name, np.append(own, more))
            self._index = None
            return self._numbers(pa.chunked_array([values]))
        return numbers

    def _of(self, nodes: Indices) -> pa.ChunkedArray:
        return self.values["node"].take(pa.array(nodes))

    def _compact(self) -> None:
        """Forget removed edges, and nodes without any trace."""
        nodes = np.flatnonzero(self.degree)
        targets, _ = self._along(nodes, nodes)
        used: Mask = self.present | (self.degree > 0) | (self.reported >= 0) | (self.total != 0)
        used[targets] = True
        self.start[nodes] = np.cumsum(self.degree[nodes]) - self.degree[nodes]
        self.targets = (np.cumsum(used) - 1)[targets]
        self.values, self._index = self.values.filter(pa.array(used)), None
        for name in _OF_NODES:
            setattr(self, name, getattr(self, name)[used])

    def repartition(self, states: States, workers: int, partition: Partitioner) -> States:
        """Each node with what is known of it, and its edges, goes to its new worker."""
        waiting = [{"buffered": state["buffered"]} for state in states if "buffered" in state]
        repartitioned = list(super().repartition(waiting, workers, partition)) if waiting else [{}] * workers
        parts: list[list[pa.Table]] = [[] for _ in range(workers)]
        for state in states:
            for worker, part in enumerate(partition(1, self._with(state).rows())):
                parts[worker].append(part)
        return [
            {**repartitioned[worker], **self._with({}).of_rows(rows)} for worker, rows in enumerate(parts)
        ]

    def _with(self, state: Any) -> DynamicFrontier:
        vertex = DynamicFrontier(self.values.schema.field("node").type, 0, self.share, 1)
        vars(vertex).update({**vars(self), **state, "_index": None})
        return vertex

    def rows(self) -> pa.Table:
        """The state of each node of the worker, with the targets of its edges."""
        own = np.flatnonzero(self.present | (self.degree > 0) | (self.reported >= 0) | (self.total != 0))
        targets, _ = self._along(own, own)
        offsets = pa.array(np.append(0, np.cumsum(self.degree[own])).astype(np.int32))
        edges = pa.ListArray.from_arrays(offsets, flat(self._of(targets)))
        values = {name: getattr(self, name)[own] for name in _OF_NODES}
        return pa.table({"node": self._of(own), **values, "targets": edges})

    def of_rows(self, tables: Sequence[pa.Table]) -> dict[str, Any]:
        """The state of a worker with these nodes."""
        table = pa.concat_tables(tables)
        at = self._numbers(table["node"])
        self.targets = self._numbers(pa.chunked_array([flat(table["targets"]).flatten()]))
        for name in _OF_NODES:
            getattr(self, name)[at] = table[name].to_numpy()
        self.start[at] = np.cumsum(self.degree[at]) - self.degree[at]
        return {name: getattr(self, name) for name in ("values", "targets", *_OF_NODES)}


def by_frontier(
    edges: Collection,
    nodes: Collection,
    unit: int,
    share: tuple[int, int],
    tolerance: int,
    *,
    name: str | None,
) -> Collection:
    """The ranks of the nodes, up to the tolerance. See `pagerank`."""
    edges.stream.check_outside("pagerank", epochs="ranks with a tolerance depend on past epochs")
    kind, loop = edges.schema.field("src").type, edges.scope.inner()
    sums = pa.schema([("to", kind), ("amount", pa.int64())])
    variable = loop.variable(sums)
    ranks, sent = loop.enter(edges.stream).then(
        "frontier",
        [pa.schema([("node", kind), ("rank", pa.int64()), (DIFF, pa.int64())]), sums],
        others=[loop.enter(nodes.stream), variable],
        vertex=DynamicFrontier(kind, unit, share, tolerance),
        requires=[Partition(("src",)), Partition(("node",)), Partition(("to",))],
        guarantees=("node",),
        parameters={"unit": unit, "share": list(share), "tolerance": tolerance},
    )
    variable.feed(sent)
    return transient(edges.like(ranks.leave(name=name)))
