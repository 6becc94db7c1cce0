"""State that ends: windows over epochs, and keys that are forgotten when nothing touches them.

All by logical time: what is forgotten depends on the epochs of the records alone, never on when rounds ran.
Time must be that of the outermost scope, where any two epochs can be compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from timely_spark.errors import GraphError, SchemaError
from timely_spark.graph import Vertex, caller
from timely_spark.times import is_whole, only_epochs
from timely_spark.worker.arrangement import EPOCH, Arrangement
from timely_spark.worker.keys import Hashes, Indices, flat, group
from timely_spark.worker.partitioning import Partitioner, repartition

if TYPE_CHECKING:
    from timely_spark.streams import Stream


def in_epoch(table: pa.Table, epoch: int) -> pa.Table:
    """The table with its epoch for every row."""
    return table.append_column(EPOCH, pa.array(np.full(table.num_rows, epoch, np.int64)))


def epochs_of(table: pa.Table) -> Indices:
    """The epochs of rows that `in_epoch` gave."""
    epochs: Indices = flat(table.column(EPOCH)).to_numpy()
    return epochs


class Expire(Vertex):
    """Pass each record on, and take it back a number of epochs later."""

    def __init__(self, after: int, diff: str) -> None:
        self.after, self.diff = after, diff
        #: the last epoch that was taken back
        self.over = -1
        #: what came in later epochs, and for some time what came before; all of an epoch lies together
        self.state = Arrangement((EPOCH,))

    def on_recv(self, edge: int, time: Any, batch: pa.Table) -> None:
        """Pass on, and keep."""
        if self.diff not in batch.schema.names:
            batch = batch.append_column(self.diff, pa.array(np.ones(batch.num_rows, np.int32)))
        self.state.insert(in_epoch(batch, time.epoch))
        self.notify_at(self._context.times.epoch(time.epoch + self.after))
        self.send_by(0, time, batch)

    def on_notify(self, time: Any) -> None:
        """Take back what came as many epochs ago."""
        self.over = time.epoch - self.after
        at, rows = self.state.lookup(pa.table({EPOCH: [self.over]}), [EPOCH])
        if not len(at):
            return
        self.state.expire(self.over + 1)
        rows = rows.drop_columns([EPOCH])
        place = rows.schema.get_field_index(self.diff)
        taken = pc.negate_checked(rows.column(place))
        self.send_by(0, time, rows.set_column(place, rows.schema.field(place), taken))

    def repartition(self, states: Sequence[Mapping[str, Any]], workers: int, partition: Partitioner) -> Any:
        """Without what was taken back: another worker may be notified of that epoch yet."""
        held = []
        for state in states:
            tables = state["state"].batches()
            later = [table.filter(pc.field(EPOCH) > state.get("over", self.over)) for table in tables]
            held.append({"state": Arrangement((EPOCH,), later)})
        return repartition(self, held, workers, partition)


class Runs(Vertex):
    """Keep for each key what its records come to, until none has come for a number of epochs.

    A run of a key is a longest sequence of epochs with records of it in which no two that follow each other
    lie further apart than `expire`; each run starts anew. Epochs are taken whole and in order, so a run is a
    matter of times alone.
    """

    repartition = repartition

    def __init__(self, keys: Sequence[str], expire: int) -> None:
        self.keys, self.expire = tuple(keys), expire
        #: per key what its run has come to, with the run's last epoch. Of several rows of a key the last
        #: holds.
        self.state = Arrangement(self.keys)
        #: by time, what came at it
        self.waiting: dict[Any, list[pa.Table]] = {}

    def combine(self, edge: int, batch: pa.Table) -> pa.Table:
        """What records, or what they have come to, come to together: one row per key."""
        raise NotImplementedError

    def news(self, total: pa.Table, new: pa.Table, probe: Indices, known: pa.Table) -> pa.Table:
        """What to send of an epoch.

        Args:
            total: what each touched key's run has come to.
            new: what the epoch alone comes to.
            probe: for each of `known` its row in `new`.
            known: what the runs that go on had come to before.
        """
        raise NotImplementedError

    def on_recv(self, edge: int, time: Any, batch: pa.Table) -> None:
        """Keep until the epoch is complete."""
        self.waiting.setdefault(time, []).append(self.combine(0, batch))
        self.notify_at(time)

    def on_notify(self, time: Any) -> None:
        """Go on with the runs of the keys that an epoch touched, or begin new ones."""
        if not (came := self.waiting.pop(time, None)):
            return
        new = came[0] if len(came) == 1 else self.combine(0, pa.concat_tables(came))
        if not new.num_rows:
            return
        probe, known = self.state.lookup(new, self.keys)
        if len(probe):
            epochs = epochs_of(known)
            order = np.lexsort((epochs, probe))
            last = order[np.append(np.diff(probe[order]) != 0, [True])]
            last = last[epochs[last] >= time.epoch - self.expire]
            probe, known = probe[last], known.take(last).select(new.schema.names)
        total = self.combine(0, pa.concat_tables([known, new])) if len(probe) else new
        self.state.expire(time.epoch + 1 - self.expire)
        self.state.insert(in_epoch(total, time.epoch), compact=self._compact)
        self.send_by(0, time, self.news(total, new, probe, known))

    def _compact(self, hashed: Hashes, table: pa.Table) -> tuple[Hashes, pa.Table]:
        latest = np.argsort(-epochs_of(table), kind="stable")
        groups = group(table.select(list(self.keys)).take(latest), self.keys, hashed[latest])
        rows = np.sort(latest[groups.firsts])
        return hashed[rows], table.take(rows)


def check_expire(operator: str, stream: Stream, expire: Any, *, per: str = "accumulated") -> None:
    """Refuse a number of epochs that is none, and where times are more than epochs.

    Raises:
        GraphError: it is no whole number of at least 1; or the stream is in a loop, or asks for each time by
            itself; or the flow has times of its own kind.
    """
    where = caller()
    if not is_whole(expire, least=1):
        said = "after" if operator == "expire" else "expire"
        hint = "give a number of epochs, whole and from 1 on, below 2**62."
        msg = f"{operator} ({where}): {said}={expire!r}. Hint: {hint}"
        if operator == "aggregate":
            msg += ' A column called "expire" is written aggregate({"expire": ...}).'
        raise GraphError(msg)
    if per != "accumulated":
        msg = (
            f"{operator} ({where}): expire={expire} with per={per!r}, which keeps nothing from one time to "
            "the next. Hint: leave one of them out."
        )
        raise GraphError(msg)
    if stream.stage.scope.parent is not None:
        msg = (
            f"{operator} ({where}): {stream.name!r} is inside loop {stream.stage.scope.name!r}, where times "
            "are no mere epochs and nothing can expire. "
            "Hint: let it expire before it enters the loop, or once it has left."
        )
        raise GraphError(msg)
    if not only_epochs(stream.flow.graph.times):
        msg = (
            f"{operator} ({where}): {stream.name!r} has times of the flow's own kind, "
            f"{type(stream.flow.graph.times).__name__}, of which several may lie in one epoch, and state "
            "expires by epochs. Hint: leave it out, or use the kind of time that Dataflow has by default."
        )
        raise GraphError(msg)


def expire(stream: Stream, after: int, *, diff: str = "diff", name: str | None = None) -> Stream:
    """Let each record count for `after` epochs: what sums up `diff` has a sliding window.

    A record of epoch e is passed at once with diff +1, and again at epoch ``e + after``, when that is
    complete, with diff -1: so summed up to an epoch, `diff` counts the records of the last `after` epochs.
    What has been taken back is kept no longer. An epoch has the length its inputs give it: with
    ``epoch="minute"`` a window is of minutes; by the clock an epoch is a micro-batch, one that only turns a
    loop included, and what an epoch ends is said, at that epoch, with the next batch that brings input.

    Give the same number to ``aggregate(expire=...)``, and a key whose window is empty is forgotten there too.

    Args:
        stream: any outside loops.
        after: for how many epochs, from 1 on.
        diff: the column that counts. If the stream has it already, it is a collection: each record then
            passes as it is, and is taken back by its opposite.
        name: the step's name.

    **Columns:** out: the stream's own, and `diff` int if it is new.

    Example:
        How often each word came in the last two minutes:

        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("window")
        >>> words = flow.input("words", "word string", epochs="manual")
        >>> last = words.expire(after=2).group_by("word").aggregate(times=("sum", "diff"), expire=2)
        >>> _ = last.capture("out")
        >>> ts.testing.run(flow, {"words": [["to", "be"], ["to"], []]})["out"].rows()
        {0: [('be', 1), ('to', 1)], 1: [('to', 2)], 2: [('be', 0), ('to', 1)], 3: [('to', 0)]}

    Raises:
        GraphError: `after` is no whole number from 1 on, or the stream is in a loop, or the flow has times of
            its own kind.
        SchemaError: the stream's column `diff` holds no numbers with a sign.
    """
    check_expire("expire", stream, after)
    schema = stream.schema
    if not isinstance(diff, str):
        msg = (  # type: ignore[unreachable] # whoever writes without a type checker gets here
            f"expire ({caller()}): diff={diff!r} is no column's name. Hint: leave it out, or give a text."
        )
        raise SchemaError(msg)
    if diff not in schema.names:
        schema = schema.append(pa.field(diff, pa.int32()))
    kind = schema.field(diff).type
    if not (pa.types.is_signed_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)):
        msg = (
            f"expire ({caller()}): column {diff!r} is {kind}, and what is taken back needs a sign. "
            "Hint: name another column with diff=..., which is made if it is not there."
        )
        raise SchemaError(msg)
    return stream.then(
        "expire",
        [schema],
        name=name,
        vertex=Expire(int(after), diff),
        keeps={column: column for column in schema.names if column != diff},
        detail=f"after {after}",
        parameters={"after": int(after), "diff": diff},
    )[0]
