"""Input handles, by which a user's process sends records into a running flow, durably."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from threading import RLock
from typing import Any, Literal

import pyarrow as pa

from timely_spark.graph import SchemaLike, as_schema, as_table, caller, with_checked_arguments
from timely_spark.runtime.errors import EpochClosed
from timely_spark.runtime.storage.entries import Buffer, Entry, Journal, Running
from timely_spark.runtime.storage.log import FIRST, RoundLog
from timely_spark.times import as_epoch


@with_checked_arguments
class InputHandle:
    """The user's end of an input (Naiad section 4.1: OnNext, OnCompleted).

    By default it follows the flow's clock: records sent since the last batch join the next epoch. With
    `epochs="manual"` the user names the epoch of the records, and closes epochs with `advance_to`.

    Records sent before the query starts are buffered, and written at the start. From then on a send is
    durable when it returns: after a crash its records enter the flow exactly once. An interrupted send is
    written whole or not at all; `sent` shows which. One process at a time may send into an input.

    After the query has ended, sends are still durable in its checkpoint, for the next start. A query without
    a checkpoint loses all sends when it ends; later sends are buffered for the next start.

    Args:
        name: the input's name in the flow.
        schema: DDL, an Arrow schema, or a mapping of names to types.
        epochs: "clock" or "manual".

    Example:
        >>> roots = InputHandle("roots", "node long", epochs="manual")
        >>> roots.send([(1,), (2,)])
        >>> roots.advance_to(1)
        >>> roots.epoch
        1
    """

    def __init__(
        self, name: str, schema: SchemaLike, *, epochs: Literal["clock", "manual"] = "clock"
    ) -> None:
        self.name = name
        self.schema: pa.Schema = as_schema(schema)
        self.epochs = epochs
        #: A further check of what is sent.
        self.check: Callable[[pa.Table], object] = lambda _: None
        #: Held during each call, and during a start.
        self._lock = RLock()
        self._target: Buffer | Journal = Buffer()
        #: The newest manifest that was seen.
        self._newest: int | None = None

    # -- the user's verbs ------------------------------------------------------------------------------------
    def send(self, records: Any, *, epoch: int | None = None) -> None:
        """Send records: rows (tuples, dicts or scalars), a pandas DataFrame, or an Arrow table.

        Args:
            records: the records; columns are matched by name if they have names.
            epoch: with manual epochs, a later epoch than the current one; the handle does not advance.

        Raises:
            EpochClosed: the epoch, or the input, is closed.
            InvalidTime: `epoch` is not an epoch.
            SchemaError: the records do not fit the input's schema.
        """
        table = as_table(records, self.schema)
        self.check(table)
        if epoch is not None:
            epoch = as_epoch(epoch, f"send(epoch=) on input {self.name!r}", caller())
        with self._lock:
            self._check_open()
            if self.epochs == "clock":
                if epoch is not None:
                    raise EpochClosed.by_the_clock(self.name, f"send(epoch={epoch})")
                self._append(Entry("send", None, table))
                return
            at = self._epoch if epoch is None else epoch
            if at < self._epoch:
                raise EpochClosed.on_input(self.name, asked=at, epoch=self._epoch)
            self._append(Entry("send", at, table))

    def advance_to(self, epoch: int) -> None:
        """Promise to send no more records for epochs below `epoch` (manual epochs only).

        Raises:
            EpochClosed: `epoch` is below the current one, or the input is closed.
            InvalidTime: `epoch` is not an epoch.
        """
        if self.epochs == "clock":
            raise EpochClosed.by_the_clock(self.name, "advance_to")
        epoch = as_epoch(epoch, f"advance_to on input {self.name!r}", caller())
        with self._lock:
            self._check_open()
            if epoch < self._epoch:
                raise EpochClosed.on_input(self.name, asked=epoch, epoch=self._epoch)
            if epoch > self._epoch:
                self._append(Entry("advance", epoch, self.schema.empty_table()))

    def close(self) -> None:
        """Promise to send no more records (manual epochs only). Closing again does nothing."""
        if self.epochs == "clock":
            raise EpochClosed.by_the_clock(self.name, "close")
        with self._lock:
            self._recover()
            if not self._target.position.closed:
                self._append(Entry("close", self._epoch, self.schema.empty_table()))

    def close_at(self, journal: Journal) -> bool:
        """Close the input if the handle still writes to `journal`; returns whether it does."""
        with self._lock:
            self._recover()
            if self._target is journal:
                self.close()
            return self._target is journal

    @property
    def epoch(self) -> int:
        """The earliest epoch that a send can join; after a restart the first one not durably closed."""
        self._recover()
        if self.epochs == "manual" or self._log is None:
            return self._epoch
        self._newest = self._log.newest(self._newest)
        return (FIRST if self._newest is None else self._newest) + 1

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called, now or before a restart."""
        self._recover()
        return self._target.position.closed

    @property
    def sent(self) -> int:
        """The number of durable entries, which the flow has read or will read."""
        self._recover()
        return self._target.position.sent

    def __repr__(self) -> str:
        return f"InputHandle({self.name!r}, epochs={self.epochs!r}, epoch={self.epoch})"

    # -- the runtime's ---------------------------------------------------------------------------------------
    @property
    def query(self) -> Running | None:
        """The running query that the handle sends to."""
        query = self._target.query
        return query if query is not None and _is_running(query) else None

    def journal(self, log: RoundLog, epoch: int | None = 0) -> Journal:
        """A journal of this input, at `epoch` in the flow, for `bind`; the handle does not change."""
        self._recover()
        buffer = self._target if isinstance(self._target, Buffer) else Buffer()
        return Journal(self.name, log, epochs=self.epochs, epoch=epoch, buffer=buffer)

    def bind(self, journal: Journal, query: Running | None = None, *, forgotten: bool = False) -> None:
        """Write to a journal from now on; it is `forgotten` if its checkpoint is deleted with the query."""
        journal.query, journal.forgotten = query, forgotten
        self._target, self._newest = journal, None

    def unbinding(self) -> Callable[[], None]:
        """A function that undoes the next `bind`."""
        return partial(setattr, self, "_target", self._target)

    def open(self, log: RoundLog, epoch: int | None = 0) -> None:
        """Bind the handle to a log at once, without a query."""
        with locked([self]):
            journal = self.journal(log, epoch)
            journal.write()
            self.bind(journal)

    @property
    def _log(self) -> RoundLog | None:
        return self._target.log

    @property
    def _epoch(self) -> int:
        return self._target.position.epoch

    def _append(self, entry: Entry) -> None:
        self._target.append(entry)

    def _recover(self) -> None:
        with self._lock:
            target = self._target
            query = target.query if isinstance(target, Journal) and target.forgotten else None
            if query is not None and not _is_running(query):
                self._target = target = Buffer()
            target.recover()

    def _check_open(self) -> None:
        self._recover()
        if self._target.position.closed:
            raise EpochClosed.entirely(self.name)


@contextmanager
def locked(handles: Sequence[InputHandle]) -> Iterator[None]:
    """Lock handles against calls and starts of other threads."""
    with ExitStack() as stack:
        for handle in handles:
            stack.enter_context(handle._lock)  # noqa: SLF001 - the handle's own module
        yield


def _is_running(query: Running) -> bool:
    try:
        return query.is_active
    except Exception:  # noqa: BLE001 - the JVM or the Connect server has stopped, and with it the query
        return False
