"""State that expires: sliding windows over epochs, and keys dropped when their session ends.

Expiry is by logical time: it depends on the epochs of the records alone, never on when rounds ran. Outermost
scope only, where any two times can be compared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from timely_spark.errors import GraphError, SchemaError
from timely_spark.graph import Partitioner, States, Vertex, caller, integer, operator, word
from timely_spark.state.arrangement import Arrangement
from timely_spark.state.arrow import Hashes, Indices, replaced
from timely_spark.state.buffering import BufferingVertex
from timely_spark.state.grouping import group
from timely_spark.state.repartition import repartition
from timely_spark.state.row_times import EPOCH, epochs_of, with_time
from timely_spark.streams import Stream
from timely_spark.times import Timestamp

Per: TypeAlias = Literal["accumulated", "time"]
"""The records up to each time, or those of the time alone."""


class Expire(Vertex):
    """Pass each record, and retract it a number of epochs later."""

    def __init__(self, after: int, diff: str) -> None:
        self.after, self.diff = after, diff
        #: the last epoch whose records were retracted
        self.retracted = -1
        #: the records by epoch; those of retracted epochs stay until compaction drops them
        self.state = Arrangement((EPOCH,))

    def on_recv(self, edge: int, time: Timestamp, batch: pa.Table) -> None:
        """Pass the batch, and store it."""
        if self.diff not in batch.schema.names:
            batch = batch.append_column(self.diff, pa.array(np.ones(batch.num_rows, np.int32)))
        self.state.insert(with_time(batch, time))
        self.notify_at(self._context.times.epoch(time.epoch + self.after))
        self.send_by(0, time, batch)

    def on_notify(self, time: Timestamp) -> None:
        """Retract the records of the epoch that leaves the window."""
        self.retracted = time.epoch - self.after
        rows = self.state.take([self.retracted])
        if not rows.num_rows:
            return
        diffs = rows.column(self.diff)
        try:
            negated = pc.negate_checked(diffs)
        except pa.ArrowInvalid:  # the least number has no positive one
            msg = f"a record has {pc.min(diffs)} in {self.diff!r}, and {diffs.type} lacks what retracts it"
            raise SchemaError(msg, hint=f"split it into records of a greater {self.diff!r} each.") from None
        self.send_by(0, time, replaced(rows, self.diff, negated))

    def repartition(self, states: States, workers: int, partition: Partitioner) -> States:
        """Drop retracted records: another worker may still be notified of their epoch."""
        open_ = [{"state": state["state"].later(state.get("retracted", self.retracted))} for state in states]
        return repartition(self, open_, workers, partition)


class Sessions(BufferingVertex):
    """Let the vertex class that follows in the bases aggregate each key's records per session.

    Its `combine` makes one row per key, or more where one cannot hold the sum. A key's session ends when more
    than `expire` epochs pass without a record of the key, as in a session window. Epochs are processed whole
    and in order, so sessions depend on times alone.
    """

    #: per key its session's aggregate and last epoch; of several rows of a key the latest counts
    state: Arrangement
    combine: Callable[[int, pa.Table], pa.Table]

    def __init__(self, expire: int, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.expire = expire

    def changes(self, total: pa.Table, batch: pa.Table, probe: Indices, stored: pa.Table) -> pa.Table:
        """The rows to send for an epoch.

        Args:
            total: the session's aggregate of each key in the epoch.
            batch: the epoch's own aggregates, a row per key.
            probe: for each row of `stored` the row of its key in `batch`.
            stored: the aggregates, before the epoch, of the sessions that continue.
        """
        raise NotImplementedError

    def on_complete(self, time: Timestamp, *batches: list[pa.Table]) -> None:
        """Continue, or begin, the session of each key in the epoch."""
        if not batches[0]:
            return
        batch = self.combine(0, pa.concat_tables(batches[0]))
        if not batch.num_rows:
            return
        keys = self.state.keys
        firsts = group(batch, keys).firsts
        each = batch if len(firsts) == batch.num_rows else batch.take(firsts)
        self.state.expire(time.epoch - self.expire)
        probe, stored = self.state.lookup(each, keys)
        if len(probe):
            order = np.lexsort((epochs_of(stored), probe))
            last = order[np.append(np.diff(probe[order]) != 0, [True])]
            probe, stored = probe[last], stored.take(last).select(batch.schema.names)
        total = self.combine(0, pa.concat_tables([stored, batch])) if len(probe) else batch
        self.state.insert(with_time(total, time), compact=partial(latest, keys))
        self.send_by(0, time, self.changes(total, each, probe, stored))


def latest(keys: Sequence[str], hashed: Hashes, table: pa.Table) -> tuple[Hashes, pa.Table]:
    """The row of each key with the latest epoch."""
    by_epoch = np.argsort(-epochs_of(table), kind="stable")
    groups = group(table.select(list(keys)).take(by_epoch), keys, hashed[by_epoch])
    rows = np.sort(by_epoch[groups.firsts])
    return hashed[rows], table.take(rows)


def check_per(operator: str, per: Any) -> None:
    """Check `per`: the records up to each time, or those of the time alone."""
    hint = 'a column called "per" is written aggregate({"per": ...}).' if operator == "aggregate" else ""
    word("per", per, get_args(Per), step=operator, error=SchemaError, hint=hint)


def options_text(*, per: Per = "accumulated", expire: int | None = None) -> str:
    """`per` and `expire` in a step's `detail`, where they are not the defaults."""
    return (", per time" if per == "time" else "") + (f", expire {expire}" if expire is not None else "")


def checked_expire(operator: str, stream: Stream, expire: Any, *, per: Per = "accumulated") -> int | None:
    """Check `expire`, and that the stream's times are epochs; None if state does not expire."""
    argument = "after" if operator == "expire" else "expire"
    if expire is None and argument == "expire":
        return None
    hint = "give a number of epochs."
    if operator == "aggregate":
        hint += ' A column called "expire" is written aggregate({"expire": ...}).'
    number = integer(argument, expire, step=operator, error=GraphError, hint=hint)
    if per != "accumulated":
        msg = f"{operator}: expire={expire} with per={per!r}, which stores nothing across times"
        raise GraphError(msg, where=caller(), hint="leave one of them out.")
    stream.check_outside(operator, epochs="state expires by epochs")
    return number


@operator(Stream)
def expire(stream: Stream, after: int, *, diff: str = "diff", name: str | None = None) -> Stream:
    """A sliding window: retract each record `after` epochs after its own.

    A record of epoch e passes at once with diff +1, and again with diff -1 when epoch ``e + after`` is
    complete. So the sum of `diff` up to an epoch counts the records of the last `after` epochs. Retracted
    records leave the state. The inputs decide how long an epoch is: with ``epoch="minute"`` the window is in
    minutes. By the clock an epoch is a batch, including one that only runs a loop, and retractions wait
    for the next batch with input.

    Give the same number to ``aggregate(expire=...)``, which then drops keys whose window is empty.
    `aggregate` adds up counts and sums with the sign of `diff`. Other operators of streams, such as
    `distinct` and `min`, refuse retractions (`join` refuses them from both sides). Operators of collections
    undo what is retracted, as in ``.expire(2).collection(diff="diff").min("v", keys="k")``. Sums are exact,
    and one of doubles is rounded once: nothing of what has left a window is in its sum, neither a NaN nor
    what was rounded. A key whose values have all left has the sum 0, not null. A decimal times its `diff`
    must fit the column's type, and a record with a double comes less than 2 ** 31 - 1 times.

    Args:
        after: the window's length in epochs, at least 1.
        diff: the column of multiplicities. If the stream has this column, it is a collection of changes: each
            record passes unchanged, and its negation retracts it.

    **Columns:** out: the stream's own, and `diff` int if it is new.

    Example:
        The count of each word in the last two minutes; `aggregate` subtracts what is retracted:

        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("window")
        >>> words = flow.input("words", "word string", epochs="manual")
        >>> last = words.expire(after=2).group_by("word").aggregate(times="count", expire=2)
        >>> _ = last.capture("out")
        >>> ts.testing.run(flow, {"words": [["to", "be"], ["to"], []]})["out"].rows()
        {0: [('be', 1), ('to', 1)], 1: [('to', 2)], 2: [('be', 0), ('to', 1)], 3: [('to', 0)]}

    Raises:
        GraphError: `after` is not an integer of at least 1; the stream is in a loop; or the flow has times
            of its own kind.
        SchemaError: the stream's column `diff` is not of a signed number type.
    """
    after = checked_expire("expire", stream, after) or 0
    schema = stream.schema
    if not isinstance(diff, str):
        msg = f"expire: diff={diff!r} is not a column's name"  # type: ignore[unreachable] # reached without a type checker
        raise SchemaError(msg, where=caller(), hint="leave it out, or give a text.")
    if diff not in schema.names:
        schema = schema.append(pa.field(diff, pa.int32()))
    kind = schema.field(diff).type
    if not (pa.types.is_signed_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)):
        msg = f"expire: column {diff!r} is {kind}, and retractions need a sign"
        hint = "name another column with diff=..., which is added if it is missing."
        raise SchemaError(msg, where=caller(), hint=hint)
    return stream.then(
        "expire",
        [schema],
        name=name,
        vertex=Expire(after, diff),
        keeps={column: column for column in schema.names if column != diff},
        detail=f"after {after}",
        parameters={"after": after, "diff": diff},
    )[0]
