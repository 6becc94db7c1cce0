"""Input handles: what a user's process sends into a running flow, durable before `send` returns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from threading import RLock
from typing import Any, Literal

import pyarrow as pa

from timely_spark.graph import caller
from timely_spark.graph.schema import SchemaLike, as_schema, as_table
from timely_spark.runtime.entries import Durable, Entry, Running, Waiting
from timely_spark.runtime.errors import EpochClosed
from timely_spark.runtime.log import FIRST, RoundLog
from timely_spark.times import as_epoch


class InputHandle:
    """The user's end of an input (Naiad section 4.1: OnNext, OnCompleted).

    By default it follows the flow's clock: what was sent since the last micro-batch joins the next epoch.
    With `epochs="manual"` the user says which epoch records belong to, and when no more will come for it.

    What is sent before the query starts waits, and is written when it starts. From then on a send is durable
    when it returns: after a crash it is in the flow, once. Interrupted, it is there whole or not at all:
    `sent` tells. One process at a time may send into an input.

    When the query has ended, what is sent goes on to be durable in its checkpoint, for the next start there.
    A query without a checkpoint is forgotten when it ends, with all that was sent to it; what is sent then
    waits for the next start, as before the first one.

    Example:
        >>> roots = InputHandle("roots", "node long", epochs="manual")
        >>> roots.send([(1,), (2,)])
        >>> roots.advance_to(1)
        >>> roots.epoch
        1

    Args:
        name: the input's name in the flow.
        schema: DDL, an Arrow schema, or a mapping of names to types.
        epochs: "clock" or "manual".
    """

    def __init__(
        self, name: str, schema: SchemaLike, *, epochs: Literal["clock", "manual"] = "clock"
    ) -> None:
        self.name = name
        self.schema: pa.Schema = as_schema(schema)
        self.epochs = epochs
        #: Held while something is said, and while a start is under way.
        self._lock = RLock()
        self._end: Waiting | Durable = Waiting()
        #: A manifest that exists, from where to look for newer ones.
        self._seen: int | None = None

    # -- the user's verbs ------------------------------------------------------------------------------------
    def send(self, records: Any, *, epoch: int | None = None) -> None:
        """Sends records: rows (tuples, dicts or scalars), a pandas DataFrame, or an Arrow table.

        Args:
            records: what to send; columns are matched by name where there are names.
            epoch: with manual epochs, a later epoch than the current one; the handle does not move.

        Raises:
            EpochClosed: the epoch, or the input, is closed.
            InvalidTime: `epoch` is no epoch.
            SchemaError: the records do not fit the input's schema.
        """
        table = as_table(records, self.schema)
        if epoch is not None:
            epoch = as_epoch(epoch, f"send(epoch=) on input {self.name!r}", caller())
        with self._lock:
            self._check_open()
            if self.epochs == "clock":
                if epoch is not None:
                    raise EpochClosed.by_the_clock(self.name, f"send(epoch={epoch})")
                self._say(Entry("send", None, table))
                return
            at = self._epoch if epoch is None else epoch
            if at < self._epoch:
                raise EpochClosed.on_input(self.name, asked=at, epoch=self._epoch)
            self._say(Entry("send", at, table))

    def advance_to(self, epoch: int) -> None:
        """Promises that nothing more will be sent for epochs below `epoch` (manual epochs only).

        Raises:
            EpochClosed: `epoch` lies below the current one, or the input is closed.
            InvalidTime: `epoch` is no epoch.
        """
        if self.epochs == "clock":
            raise EpochClosed.by_the_clock(self.name, "advance_to")
        epoch = as_epoch(epoch, f"advance_to on input {self.name!r}", caller())
        with self._lock:
            self._check_open()
            if epoch < self._epoch:
                raise EpochClosed.on_input(self.name, asked=epoch, epoch=self._epoch)
            if epoch > self._epoch:
                self._say(Entry("advance", epoch, self.schema.empty_table()))

    def close(self) -> None:
        """Promises that nothing more will be sent at all (manual epochs only). Closing again does nothing."""
        if self.epochs == "clock":
            raise EpochClosed.by_the_clock(self.name, "close")
        with self._lock:
            self._settle()
            if not self._end.stand.closed:
                self._say(Entry("close", self._epoch, self.schema.empty_table()))

    def close_at(self, end: Durable) -> bool:
        """Closes the input as `close` does, if the handle still sends to `end`; whether it does."""
        with self._lock:
            self._settle()
            if self._end is end:
                self.close()
            return self._end is end

    @property
    def epoch(self) -> int:
        """The earliest epoch that a send can join; after a restart the first one not durably closed."""
        self._settle()
        if self.epochs == "manual" or self._log is None:
            return self._epoch
        self._seen = self._log.newest(self._seen)
        return (
            FIRST + 1 if self._seen is None else self._seen + 1
        )  # the clock stands one past the newest batch

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called, now or before a restart."""
        self._settle()
        return self._end.stand.closed

    @property
    def sent(self) -> int:
        """How many entries are durable: the number that the flow will have taken when it has caught up."""
        self._settle()
        return self._end.stand.sent

    def __repr__(self) -> str:
        return f"InputHandle({self.name!r}, epochs={self.epochs!r}, epoch={self.epoch})"

    # -- the runtime's ---------------------------------------------------------------------------------------
    @property
    def query(self) -> Running | None:
        """The living query that the handle sends to."""
        query = self._end.query
        return query if query is not None and _lives(query) else None

    def opening(self, log: RoundLog, stands: int | None = 0) -> Durable:
        """An end in a log, for `bind`; the handle stays as it is.

        Args:
            log: the flow's.
            stands: the epoch of the input in the flow.

        Raises:
            EpochClosed: something waits for an epoch that is closed in the flow.
        """
        self._settle()
        waiting = self._end if isinstance(self._end, Waiting) else Waiting()
        return Durable(self.name, log, epochs=self.epochs, stands=stands, waiting=waiting)

    def bind(self, end: Durable, query: Running | None = None, *, forgotten: bool = False) -> None:
        """From now on the handle sends there.

        Args:
            end: where everything that waited has been written.
            query: the query that reads it.
            forgotten: whether nobody can go on from there when the query has ended.
        """
        end.query, end.forgotten = query, forgotten
        self._end, self._seen = end, None

    def unbinding(self) -> Callable[[], None]:
        """What gives the handle back its present end."""
        before = self._end

        def unbind() -> None:
            self._end = before

        return unbind

    def open(self, log: RoundLog, stands: int | None = 0) -> None:
        """Binds the handle to a log at once, with no query."""
        with held([self]):
            end = self.opening(log, stands)
            end.write()
            self.bind(end)

    @property
    def _log(self) -> RoundLog | None:
        return self._end.log

    @property
    def _epoch(self) -> int:
        return self._end.stand.epoch

    def _say(self, entry: Entry) -> None:
        self._end.say(entry)

    def _settle(self) -> None:
        with self._lock:
            end = self._end
            if isinstance(end, Durable) and end.forgotten and end.query is not None and not _lives(end.query):
                self._end = end = Waiting()
            end.settle()

    def _check_open(self) -> None:
        self._settle()
        if self._end.stand.closed:
            raise EpochClosed.entirely(self.name)


@contextmanager
def held(handles: Sequence[InputHandle]) -> Iterator[None]:
    """Lets nobody else say anything with these handles, or start a query with them, for a while."""
    with ExitStack() as stack:
        for handle in handles:
            stack.enter_context(handle._lock)  # noqa: SLF001 - the handle's own module
        yield


def _lives(query: Running) -> bool:
    try:
        return query.is_active
    except Exception:  # noqa: BLE001 - the JVM, or the Connect server, is gone, and the query with it
        return False
