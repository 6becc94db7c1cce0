"""Places of edges: nodes that are near each other get one place, and each edge the place of one of its ends.

A node gets its place once, and keeps it while it has edges: that of a neighbour, or by contraction;
until all edges enter once more, when many were replaced. Nodes are known by their hashes here; two nodes of
one hash share a place. *Any* place is right: it only decides how many trees the forests of all places have,
and so what a change costs.

An epoch is one run through a loop. Its iterations are numbered from 0:

0. At the *home* of each edge, its end of greater hash: known homes give their edges places, new ones wait.
   Each home tells its place to the other end.
1. New ends take the place of a neighbour, and tell those that wait.
2. New homes do the same,
3. and so do their new neighbours. If few are left, each takes a place by the least hash around it. If they
   are as many as in a load, the other iterations contract them (`contraction`). Then pieces of few nodes,
   connected by the edges of their place, move to where a neighbour is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from timely_spark.authors import (
    DIFF,
    Arrangement,
    BufferingVertex,
    Hashes,
    Indices,
    Mask,
    Partition,
    Partitioner,
    States,
    changes,
    hashes,
    in_order,
    numbers,
)
from timely_spark.graphs.affected import summed
from timely_spark.graphs.contraction import (
    ODD,
    SHARED,
    Level,
    LocalGraph,
    Messages,
    arrange,
    choose,
    contains,
    contracted,
    divide,
    linked,
    moves_of,
    node_rows,
    relinked,
    starts_of,
    union,
)
from timely_spark.graphs.forest import OrderedEnds
from timely_spark.graphs.pairs import compact, states_with
from timely_spark.streams import Stream
from timely_spark.times import Time, Timestamp

#: the column with the place of an edge
PLACE = "__timely_place"
#: The number of places, whatever the number of workers is: worker w has the places p with p % workers == w.
PLACES = 64
#: the node at which an edge or message arrives; the other end, or the sender
TO, OF = "__timely_to", "__timely_of"
#: in place of a place: the node has none yet; it is a hub, whose edges have the places of their other ends
NEW, HUB = -2, -1
#: a node that comes with more homed edges is a hub
_DEGREE = 1024
#: a worker contracts its new nodes if they are at least as many
_MANY = 256
#: How often pieces of few nodes move at most; no more once one node moves for so many positions.
_MOVES, _SETTLED = 4, 256
#: so many clusters are contracted once more and then arranged by one worker
_GATHERED = 1 << 17
#: Epoch e begins at iteration e * _SPAN, so that epochs pass one after the other. If all edges get other
#: places in it, they enter after _AGAIN more.
_SPAN, _AGAIN = 128, 64
_U = np.uint64


class _Homed(OrderedEnds):
    """Order the ends of each edge, and add their hashes: that of its home, the greater, and the other one."""

    def apply(self, batch: pa.Table) -> tuple[pa.Table, ...]:
        return (homed(super().apply(batch)[0], self.ends),)


def homed(edges: pa.Table, ends: tuple[str, str]) -> pa.Table:
    """Edges with the hashes of their homes, and of the other ends."""
    a, b = (hashes(edges, [end]) for end in ends)
    return edges.append_column(TO, pa.array(np.maximum(a, b))).append_column(OF, pa.array(np.minimum(a, b)))


class _Places(BufferingVertex):
    """Give edges places. A worker has the nodes whose hashes are its number, modulo the workers.

    Inputs: edges, and messages. Outputs: edges with places, edges to their other ends, and messages.
    """

    def __init__(self, ends: tuple[str, str]) -> None:
        super().__init__(inputs=2)
        self.ends = ends
        #: the place of each node, with the number of edges that it ends as multiplicity
        self.places = Arrangement((TO,), within=(PLACE,))
        #: what is in the loop: twice an epoch, and 1 more where all edges get other places in it
        self.run = -1
        #: whether the number of workers has changed meanwhile
        self.rescaled = False
        #: the changes of `places` in that epoch
        self.changes: list[pa.Table] = []
        #: edges of another way, which are to enter
        self.moved: list[pa.Table] = []
        #: edges whose homes have no places yet
        self.waiting: list[pa.Table] = []
        #: the nodes that are new in the epoch, in order; their places, and of how many edges each is an end
        self.nodes = np.zeros(0, np.uint64)
        self.place = self.ends_of = np.zeros(0, np.int64)
        #: links of new nodes
        self.links = (np.zeros(0, np.uint64), np.zeros(0, np.uint64))
        self.levels: list[Level] = []
        self.graph: LocalGraph | None = None
        #: how many levels all workers contract, and whether one of them then goes on with few clusters
        self.top, self.gathers = SHARED, False
        #: the first position of each node of `graph`, then its place; and the number of all positions
        self.starts = np.zeros(0, np.int64)
        self.positions = 0
        #: which nodes of `graph` may move
        self.moving = np.zeros(0, np.bool_)
        #: of their homed edges the number of the node, the other end and its place
        self.others = (self.starts, self.links[0], self.starts)

    def on_recv(self, edge: int, time: Timestamp, batch: pa.Table) -> None:
        """Buffer the batch; edges that enter, until all earlier epochs have left the loop."""
        first = Time(time.epoch, time.epoch * _SPAN)
        super().on_recv(edge, time if time.order_key() > first else first, batch)

    def on_notify(self, time: Timestamp) -> None:
        """One iteration; or the epoch in which edges of another way enter begins."""
        first = Time(time.epoch, time.epoch * _SPAN)
        if time.order_key() < first.order_key():
            self.notify_at(first)
        else:
            super().on_notify(time)

    def on_complete(self, time: Timestamp, *batches: list[pa.Table]) -> None:
        iteration = time.order_key()[1] - time.epoch * _SPAN
        again = iteration > _AGAIN
        iteration -= again * (1 + _AGAIN)
        self._begin(time, 2 * time.epoch + again)
        settled = np.count_nonzero(self.place != NEW)
        edges, sent = (pa.concat_tables(tables) if tables else None for tables in batches)
        messages = _received(sent)
        if iteration == 0 and self.moved:
            edges, self.moved = pa.concat_tables([*self.moved, *batches[0]]), []
        if iteration == 0 and edges is not None:
            self._enter(time, edges)
        elif iteration == 1:
            self._meet(time, messages)
        elif iteration in {2, 3}:
            self._adopt(time, messages, answer=iteration == 2)
        if iteration >= 3:
            self._contract(time, iteration - 3, messages)
        if edges is not None and iteration:
            self._place(time, edges)
        if settled != np.count_nonzero(self.place != NEW):
            self._place_waiting(time)
        if (self.place == NEW).any():  # in iteration 2 only messages are looked at
            self.notify_at(Time(time.epoch, time.order_key()[1] + max(1, 3 - iteration)))

    def _begin(self, time: Timestamp, run: int) -> None:
        """After another run store its nodes; after another number of workers let the edges pass that wait."""
        if run != self.run or self.rescaled:
            self._end()
            if run % 2 and run != self.run:
                self.places = Arrangement((TO,), within=(PLACE,))
            self.run, self.rescaled = run, False
            self._place_waiting(time)

    # -- edges ---------------------------------------------------------------------------------------------

    def _enter(self, time: Timestamp, edges: pa.Table) -> None:
        """Look up the homes of the epoch's edges, and tell the other ends."""
        home, other, diff = (numbers(edges, name) for name in (TO, OF, DIFF))
        nodes, ids = np.unique(home, return_inverse=True)
        place = self._place_before(nodes)
        new = place == NEW
        place[new & (np.bincount(ids, minlength=len(nodes)) > _DEGREE)] = HUB
        count = np.bincount(ids, weights=diff, minlength=len(nodes)).astype(np.int64)
        self._count(nodes, place, count, new)
        link = place[ids] == NEW
        self._link(home[link], other[link])
        order = in_order(other * ODD + home)  # equal pairs together; in which order does not matter
        first = np.flatnonzero(changes(other[order]) | changes(home[order]))
        one = order[first]
        self._send(
            time, Messages(other[one], home[one], place[ids[one]], np.add.reduceat(diff[order], first))
        )
        self._place(time, edges, place[ids])

    def _place(self, time: Timestamp, edges: pa.Table, place: Indices | None = None) -> None:
        """Send edges whose homes have places; those of hubs to their other ends; let the others wait.

        An edge between two hubs has a place by its hash.

        Args:
            place: those of the homes; None means that they are looked up.
        """
        home, other = numbers(edges, TO), numbers(edges, OF)
        place = self._now(home) if place is None else place
        hub = place == HUB
        place = np.where(hub & (home <= other), ((home ^ other) % _U(PLACES)).astype(np.int64), place)
        hub &= home > other
        placed = place >= 0
        if placed.any():
            ready = edges.select([*self.ends, DIFF]).append_column(PLACE, pa.array(place))
            # at the time at which they are used: they hold up no notification while they are sent
            self.send_by(0, all_placed(time), _where(ready, placed).select([*self.ends, PLACE, DIFF]))
        if hub.any():
            swapped = _where(edges, hub)
            ends = {TO: swapped.column(OF), OF: swapped.column(TO)}
            columns = {name: ends.get(name, swapped.column(name)) for name in edges.schema.names}
            self.send_by(1, time, pa.table(columns))
        if (rest := ~placed & ~hub).any():
            self.waiting.append(_where(edges, rest))

    def _place_waiting(self, time: Timestamp) -> None:
        waiting, self.waiting = self.waiting, []
        for part in waiting:
            self._place(time, part)

    # -- nodes ---------------------------------------------------------------------------------------------

    def _place_before(self, nodes: Hashes) -> Indices:
        """The places of distinct nodes before the epoch; `NEW` of those that have none."""
        place = np.full(len(nodes), NEW)
        if len(self.places) and len(nodes):
            probe, rows = self.places.lookup(pa.table({TO: nodes}), [TO])
            which, at, _ = summed(probe, numbers(rows, PLACE) - HUB, numbers(rows, DIFF))
            place[which] = at + HUB
        return place

    def _now(self, nodes: Hashes) -> Indices:
        """The places of nodes; `NEW` of those that have none yet."""
        at = node_rows(self.nodes, nodes)
        place = np.full(len(nodes), NEW)
        place[at >= 0] = self.place[at[at >= 0]]
        if (at < 0).any():
            different, ids = np.unique(nodes[at < 0], return_inverse=True)
            place[at < 0] = self._place_before(different)[ids]
        return place

    def _count(self, nodes: Hashes, place: Indices, ends: Indices, new: Mask) -> None:
        """Count the ends of edges at nodes; some nodes are new."""
        ends_at = pa.table({TO: nodes, PLACE: place, DIFF: ends})
        self.changes.append(_where(ends_at, ~new))
        nodes, place, ends = nodes[new], place[new], ends[new]
        every, *rows_of = union(self.nodes, nodes)
        places, counts = np.full(len(every), NEW), np.zeros(len(every), np.int64)
        sides = (self.place, self.ends_of), (place, ends)
        for rows, (at, number) in zip(rows_of, sides, strict=True):
            places[rows] = np.maximum(places[rows], at)
            counts[rows] += number
        self.nodes, self.place, self.ends_of = every, places, counts

    def _link(self, node: Hashes, other: Hashes) -> None:
        self.links = np.append(self.links[0], node), np.append(self.links[1], other)

    def _meet(self, time: Timestamp, received: Messages) -> None:
        """New ends of edges take the place of a home that has one; answer homes that have none."""
        nodes, ids = np.unique(received.to, return_inverse=True)
        at = node_rows(self.nodes, nodes)
        place = np.where(at >= 0, self.place[at] if len(self.place) else NEW, NEW)
        place[at < 0] = self._place_before(nodes[at < 0])
        new = (at >= 0) | (place == NEW)
        hub = new & (np.bincount(ids, minlength=len(nodes)) > _DEGREE)
        place[hub] = HUB
        count = np.bincount(ids, weights=received.amount, minlength=len(nodes)).astype(np.int64)
        self._count(nodes, place, count, new)
        offered = (received.number >= 0) & (place[ids] == NEW)
        self._take(received.to[offered], received.of[offered], received.number[offered])
        place = self._now(nodes)[ids]
        link = (place == NEW) & (received.number == NEW)
        self._link(received.to[link], received.of[link])
        answer = (place != NEW) & (received.number == NEW)
        self._tell(time, received.of[answer], received.to[answer], place[answer])

    def _adopt(self, time: Timestamp, received: Messages, *, answer: bool) -> None:
        """New nodes take the place of a neighbour; their neighbours without a place are received."""
        offered = received.number >= 0
        before = self.place.copy()
        self._take(received.to[offered], received.of[offered], received.number[offered])
        hubs = np.unique(received.of[received.number == HUB])
        node, other = self.links
        keep = ~np.isin(other, hubs)
        self.links = node[keep], other[keep]
        if answer and (settled := self.nodes[(before == NEW) & (self.place >= 0)]).size:
            node, other = self.links
            tells = np.isin(node, settled) & ~np.isin(other, received.of)
            self._tell(time, other[tells], node[tells], self._now(node[tells]))

    def _take(self, nodes: Hashes, neighbours: Hashes, place: Indices) -> None:
        """Give new nodes without a place that of the neighbour of least hash."""
        at = node_rows(self.nodes, nodes)
        at, neighbours, place = at[at >= 0], neighbours[at >= 0], place[at >= 0]
        order = np.argsort(neighbours, kind="stable")[::-1]
        taken = np.full(len(self.nodes), NEW)
        taken[at[order]] = place[order]  # the last write is that of the least
        self.place = np.where(self.place == NEW, taken, self.place)

    def _end(self) -> None:
        """Store the nodes of the epoch."""
        rows = pa.table({TO: self.nodes, PLACE: self.place, DIFF: self.ends_of})
        rows = pa.concat_tables([*self.changes, rows])
        rows = _where(rows, numbers(rows, DIFF) != 0)
        self.places.insert(rows, None, compact)
        self.changes, self.nodes = [], self.nodes[:0]
        self.place, self.ends_of = self.place[:0], self.ends_of[:0]
        self.links = self.nodes, self.nodes
        self.top, self.gathers = SHARED, False

    # -- contraction ---------------------------------------------------------------------------------------

    def _contract(self, time: Timestamp, step: int, received: Messages) -> None:
        """One step of the contraction of the nodes that are left; few nodes take places by hashes."""
        if step == 0:
            self._take_up()
        level, odd = divmod(step, 2)
        if odd and level < self.top:
            self._count_clusters(level, received)
        follow = step - 3 * self.top - 1
        if step == 2 * self.top and self.gathers:
            self._arrange(time, received)
        elif follow > 0 and follow % 3 == 2:
            self._move(time, received)
        if not (left := self.place == NEW).any():
            return
        if self.graph is None:  # another number of workers since
            self.place[left] = (self.nodes[left] % _U(PLACES)).astype(np.int64)
        elif step <= 2 * self.top:
            self._level(time, level, received, odd=bool(odd))
        elif step <= 3 * self.top + 1:
            self._divide(time, received, first=step == 2 * self.top + 1)
        elif follow > 0:
            self._follow(time, follow, received)

    def _take_up(self) -> None:
        """Make the graph of the nodes that are left, unless they are few."""
        left = self.place == NEW
        nodes = self.nodes[left]
        at = node_rows(nodes, self.links[0])
        node, other = (column[at >= 0] for column in self.links)
        self.graph, self.links, at = None, (node, other), at[at >= 0]
        if len(nodes) < _MANY:
            least = nodes.copy()
            np.minimum.at(least, at, other)
            self.place[left] = (least % _U(PLACES)).astype(np.int64)
        else:
            weight = np.maximum(1, self.ends_of[left])  # places shall have equally many edges
            self.graph = linked(nodes, weight, at, other)

    def _level(self, time: Timestamp, level: int, received: Messages, *, odd: bool) -> None:
        """One of two steps of a level, or the end of the last. All workers get the numbers of clusters."""
        assert self.graph is not None
        if level == self.top:
            if not self.gathers:
                self._tell_workers(time, len(self.graph.nodes), self.graph.weight.sum())
        elif odd:
            self.levels[-1], self.graph, messages = contracted(self.levels[-1], received)
            if level + 1 < self.top:
                self._send(time, messages)
            elif self.gathers:
                self._send(time, _gathered(self.graph, messages))
        else:
            self.graph = relinked(self.graph, received) if level else self.graph
            last, messages = choose(self.graph, level)
            self.levels.append(last)
            self._send(time, messages)
            self._tell_workers(time, len(last.nodes), last.weight.sum())

    def _tell_workers(self, time: Timestamp, count: int, weight: int) -> None:
        """Tell all workers how many clusters are here, and their weight in all."""
        to = np.arange(self.workers, dtype=np.uint64)
        counts, weights = (np.full(self.workers, n) for n in (count, weight))
        self._send(time, Messages(to, np.full_like(to, self.worker), counts, weights))

    def _count_clusters(self, level: int, received: Messages) -> None:
        """If few clusters are left in all, this level is the last one before one worker arranges them."""
        counts = received.to < self.workers
        self.positions = int(received.amount[counts].sum())
        if received.number[counts].sum() <= _GATHERED:
            self.top, self.gathers = level + 1, True

    def _arrange(self, time: Timestamp, received: Messages) -> None:
        """In the worker that has all clusters: send each one the start of its interval."""
        gathered = received.to == 0
        if not gathered.any():
            return
        of, weight = received.of[gathered], received.amount[gathered]
        number = received.number[gathered].view(np.uint64)
        clusters = weight > 0
        order = in_order(of[clusters])
        nodes = of[clusters][order]
        at = node_rows(nodes, number[~clusters])
        self._send(time, arrange(nodes, weight[clusters][order], at, of[~clusters], self.top))

    def _divide(self, time: Timestamp, received: Messages, *, first: bool) -> None:
        """From the last level back to the first."""
        assert self.graph is not None
        if first and not self.gathers:
            weight = self.graph.weight
            before = int(received.amount[received.of < self.worker].sum())
            self.starts = before + np.cumsum(weight) - weight
        elif first:
            at = node_rows(self.graph.nodes, received.to)
            self.starts = np.full(len(self.graph.nodes), -1)
            self.starts[at[at >= 0]] = received.number[at >= 0]
        else:
            level = self.levels.pop()
            self.starts = starts_of(level, self.graph.nodes, self.starts, received)
            self.graph = LocalGraph(level.nodes, level.weight, self.starts[:0], level.nodes[:0])
        if self.levels:
            self._send(time, divide(self.levels[-1], self.graph.nodes, self.starts))
            return
        nodes = self.graph.nodes
        by_hash = (nodes % _U(PLACES)).astype(np.int64)
        place = np.where(self.starts >= 0, self.starts * PLACES // max(1, self.positions), by_hash)
        self.starts = np.minimum(place, PLACES - 1)  # places, from now on
        self._follow(time, 0, received)

    def _follow(self, time: Timestamp, step: int, received: Messages) -> None:
        """Let the pieces of few nodes move, several times; then the places are final.

        Every third step other ends that may have moved tell homes their places; in the next the homes send
        edges that may have moved to their places, which in the one after that tell the homes where to move
        (`_move`). All nodes may have moved before the first time.
        """
        assert self.graph is not None
        nodes, place, (node, other) = self.graph.nodes, self.starts, self.links
        at = node_rows(nodes, received.to)
        here = at >= 0
        at = at[here]
        if step == 0:
            node, other = node[node < other], other[node < other]
            self.links, self.moving = (node, other), np.ones(len(nodes), np.bool_)
        elif step % 3 == 0:
            place[at] = received.number[here]
            self.moving = np.zeros(len(nodes), np.bool_)
            self.moving[at] = True
            moved = int(received.number[received.to < self.workers].sum())
            if step == 3 * _MOVES or moved * _SETTLED <= self.positions:
                self.place[node_rows(self.nodes, nodes)] = place
                self.graph, self.starts, self.links = None, place[:0], (nodes[:0], nodes[:0])
                self.moving, self.others = self.moving[:0], (place[:0], nodes[:0], place[:0])
                return
        if step % 3 == 0:
            at = node_rows(nodes, node)
            tells = self.moving[at]
            self._tell(time, other[tells], node[tells], place[at[tells]])
        elif step % 3 == 1:
            self._send_edges(time, at, received.of[here], received.number[here])

    def _send_edges(self, time: Timestamp, at: Indices, other: Hashes, number: Indices) -> None:
        """Send homed edges of nodes that may move, and those to such nodes, to the places of their homes.

        Args:
            at: for each other end that may have moved the number of the home.
            number: the place of the other end.
        """
        assert self.graph is not None
        nodes, place = self.graph.nodes, self.starts
        last_at, last_other, last_number = (column[self.moving[self.others[0]]] for column in self.others)
        stays = last_at
        if len(last_at):  # not the first time
            (stays,) = (~contains(other * ODD + nodes[at], last_other * ODD + nodes[last_at])).nonzero()
        moved = np.append(np.zeros(len(stays), np.int64), np.ones(len(at), np.int64))
        at, other = np.append(last_at[stays], at), np.append(last_other[stays], other)
        number = np.append(last_number[stays], number)
        homes = self.moving[at]
        self.others = at[homes], other[homes], number[homes]
        goes = homes | (number == place[at])
        at, amount = at[goes], (number << 2 | homes << 1 | moved)[goes]
        self._send(time, Messages(place[at].astype(_U), nodes[at], other[goes].view(np.int64), amount))

    def _move(self, time: Timestamp, received: Messages) -> None:
        """Tell the homes of small pieces where to move, and all workers how many there are."""
        moves = moves_of(received)
        self._send(time, moves)
        self._tell_workers(time, len(moves.to), 0)

    def _tell(self, time: Timestamp, to: Hashes, neighbours: Hashes, number: Indices) -> None:
        self._send(time, Messages(to, neighbours, number, np.zeros(len(to), np.int64)))

    def _send(self, time: Timestamp, received: Messages) -> None:
        if len(received.to):
            columns = (received.to, received.of, received.number, received.amount)
            self.send_by(2, time, pa.table([*columns], schema=_MESSAGES))

    def present(self) -> list[pa.Table]:
        """The edges that are to enter."""
        return [part.select([*self.ends, DIFF]) for part in self.moved]

    def take_over(self, before: Mapping[str, Sequence[Any]], partition: Partitioner) -> States:
        """Let the edges of all forests enter."""
        forests = before.get("spanning_forest", ())
        edges = (homed(part, self.ends) for forest in forests for part in forest.present())
        return states_with("moved", edges, partition)

    def repartition(self, states: States, workers: int, partition: Partitioner) -> States:
        """Move nodes and edges by their hashes. Those that are being contracted take places by these."""
        names = ("buffered", "places", "changes", "moved", "waiting")
        parts: list[dict[str, Any]] = []
        run = max(state.get("run", -1) for state in states)
        for state in states:
            if run % 2 and state.get("run") != run:  # these places are void
                parts.append({name: state[name] for name in ("buffered", "moved")})
                continue
            new = {name: state[name] for name in ("nodes", "place", "ends_of")}
            place = np.where(new["place"] == NEW, (new["nodes"] % _U(PLACES)).astype(np.int64), new["place"])
            counts = pa.table({TO: new["nodes"], PLACE: place, DIFF: new["ends_of"]})
            parts.append({name: state[name] for name in names} | {"changes": [*state["changes"], counts]})
        moved = super().repartition(parts, workers, partition)
        return [{**state, "run": run, "rescaled": True} for state in moved]


_MESSAGES = pa.schema(
    [("to", pa.uint64()), ("of", pa.uint64()), ("number", pa.int64()), ("amount", pa.int64())]
)


def _gathered(graph: LocalGraph, links: Messages) -> Messages:
    """Clusters and their links, for one worker."""
    zeros = np.zeros(len(graph.nodes) + len(links.to), np.int64)
    number = np.append(zeros[: len(graph.nodes)], links.to.view(np.int64))
    amount = np.append(graph.weight, zeros[: len(links.to)])
    return Messages(zeros.view(np.uint64), np.append(graph.nodes, links.of), number, amount)


def _received(sent: pa.Table | None) -> Messages:
    table = _MESSAGES.empty_table() if sent is None else sent
    to, sender, number, amount = (numbers(table, name) for name in table.schema.names)
    return Messages(to, sender, number, amount)


def _where(table: pa.Table, rows: Mask) -> pa.Table:
    return table if rows.all() else table.filter(pa.array(rows))


def all_placed(time: Timestamp) -> Time:
    """The time in the loop by which all edges have places that enter in this epoch, or once more in it."""
    first = time.epoch * _SPAN
    again = time.order_key()[1] > first + _AGAIN
    return Time(time.epoch, first + (_SPAN if again else _AGAIN) - 1)


def homed_schema(ends: Sequence[str], kind: pa.DataType) -> pa.Schema:
    """The columns of edges with the hashes of their homes."""
    return pa.schema(
        [*((end, kind) for end in ends), (DIFF, pa.int64()), (TO, pa.uint64()), (OF, pa.uint64())]
    )


def in_places(edges: Stream, use: Callable[[Stream], tuple[Stream, Stream | None]]) -> Stream:
    """What is made of changes of edges, the lesser end first, with a column `PLACE`: an edge keeps its place.

    Args:
        use: gets the edges, in a loop. Returns a stream that leaves it; and edges with the hashes of their
            homes that are to get other places, or None. These are all edges, at one iteration of an epoch.
    """
    ends, kind = (edges.schema.names[0], edges.schema.names[1]), edges.schema.field(0).type
    columns = homed_schema(ends, kind)
    edges = edges.then("home", [columns], vertex=_Homed(ends, kind), own=(TO, OF))[0]
    loop = edges.scope.inner(watched=False)
    at_ends, messages = loop.variable(edges), loop.variable(_MESSAGES)
    by = [Partition((end,), computed=end, expression=pc.field(end)) for end in (TO, "to")]
    placed, to_ends, sent = at_ends.then(
        "place",
        [
            pa.schema([(ends[0], kind), (ends[1], kind), (PLACE, pa.int64()), (DIFF, pa.int64())]),
            columns,
            _MESSAGES,
        ],
        others=[messages],
        vertex=_Places(ends),
        requires=by,
        own=(PLACE,),
    )
    result, again = use(placed)
    at_ends.feed(to_ends if again is None else to_ends.concat(again))
    messages.feed(sent)
    return result.leave()
