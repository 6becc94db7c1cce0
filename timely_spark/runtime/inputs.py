"""Input handles: what a user's process sends into a running flow, durable before `send` returns."""

from __future__ import annotations

import json
from dataclasses import dataclass
from threading import Lock
from typing import Any, Literal

import pyarrow as pa

from timely_spark.graph import caller
from timely_spark.graph.schema import SchemaLike, as_schema, as_table
from timely_spark.runtime.errors import EpochClosed, LogDamaged, SentElsewhere
from timely_spark.runtime.files import quoted
from timely_spark.runtime.log import FIRST, RoundLog
from timely_spark.times import as_epoch

_KEY = b"timely"


@dataclass(frozen=True, slots=True)
class Entry:
    """One thing said by a handle. `epoch` is where the handle stands after it; None on the flow's clock."""

    kind: Literal["send", "advance", "close"]
    epoch: int | None
    table: pa.Table


class InputHandle:
    """The user's end of an input (Naiad section 4.1: OnNext, OnCompleted).

    By default it follows the flow's clock: what was sent since the last micro-batch joins the next epoch.
    With `epochs="manual"` the user says which epoch records belong to, and when no more will come for it.

    What is sent before the query starts is kept and written when it starts. From then on a send is durable
    when it returns: after a crash it is in the flow, once. One process at a time may send into an input.

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
        self._lock = Lock()
        self._log: RoundLog | None = None
        #: Said before the query started, in order.
        self._waiting: list[Entry] = []
        self._epoch = 0
        self._closed = False
        #: Number of the next entry; all below it are durable.
        self._next = 0
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
                self._epoch = epoch

    def close(self) -> None:
        """Promises that nothing more will be sent at all (manual epochs only). Closing again does nothing."""
        if self.epochs == "clock":
            raise EpochClosed.by_the_clock(self.name, "close")
        with self._lock:
            if not self._closed:
                self._say(Entry("close", self._epoch, self.schema.empty_table()))
                self._closed = True

    @property
    def epoch(self) -> int:
        """The earliest epoch that a send can join; after a restart the first one not durably closed."""
        if self.epochs == "manual" or self._log is None:
            return self._epoch
        self._seen = self._log.newest(self._seen)
        return (
            FIRST + 1 if self._seen is None else self._seen + 1
        )  # the clock stands one past the newest batch

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called, now or before a restart."""
        return self._closed

    @property
    def sent(self) -> int:
        """How many entries are durable: the number that the flow will have taken when it has caught up."""
        return self._next

    def __repr__(self) -> str:
        return f"InputHandle({self.name!r}, epochs={self.epochs!r}, epoch={self.epoch})"

    # -- the runtime's ---------------------------------------------------------------------------------------
    def open(self, log: RoundLog, stands: int | None = 0) -> None:
        """Finds what is durable and writes what was said before the start.

        Args:
            log: the flow's.
            stands: the epoch of the input in the flow.
        """
        with self._lock:
            numbers = log.files.numbers(f"inputs/{quoted(self.name)}")
            self._next = numbers[-1] + 1 if numbers else 0
            # from what this log says alone: the flow may have run on another checkpoint before
            durable, closed = 0, False
            if self.epochs == "manual":
                first = {"stands": stands or 0, "closed": stands is None}
                head = _head(log, self.name, numbers[-1]) if numbers else first
                head["stands"] = max(head["stands"], stands or 0)
                durable, closed = self._resume(head)
            self._log, self._epoch, self._closed, self._seen = log, durable, closed, None
            waiting, self._waiting = self._waiting, []
            for entry in waiting:
                self._say(entry)
                if entry.kind == "advance" and entry.epoch is not None:
                    self._epoch = entry.epoch
                self._closed = self._closed or entry.kind == "close"

    def _resume(self, head: dict[str, Any]) -> tuple[int, bool]:
        durable, closed = int(head["stands"]), bool(head["closed"])
        early = [entry.epoch for entry in self._waiting if entry.epoch is not None and entry.epoch < durable]
        if early or (closed and self._waiting):
            self._waiting = []
            raise (
                EpochClosed.entirely(self.name)
                if closed
                else EpochClosed.on_input(self.name, asked=early[0], epoch=durable)
            )
        return durable, closed

    def _say(self, entry: Entry) -> None:
        if self._log is None:
            self._waiting.append(entry)
            return
        # Where the handle stands after it is in every entry, so that the newest alone is enough for a
        # restart.
        stands = self._epoch if entry.kind == "send" else entry.epoch
        head = {"kind": entry.kind, "epoch": entry.epoch, "stands": stands, "closed": entry.kind == "close"}
        table = entry.table.replace_schema_metadata({_KEY: json.dumps(head).encode()})
        # `new`: a second process that sends into the same input is told, not overwritten
        try:
            self._log.files.write_table(_file(self.name, self._next), table, durable=True, new=True)
        except FileExistsError:
            raise SentElsewhere.entry(self.name, self._next) from None
        self._next += 1

    def _check_open(self) -> None:
        if self._closed:
            raise EpochClosed.entirely(self.name)


def read_entry(log: RoundLog, name: str, number: int) -> Entry:
    """An entry."""
    table = log.files.table(_file(name, number))
    if table is None:
        raise LogDamaged.no_file(log.files.root, _file(name, number))
    head = json.loads(table.schema.metadata[_KEY])
    return Entry(head["kind"], head["epoch"], table.replace_schema_metadata(None))


def _head(log: RoundLog, name: str, number: int) -> dict[str, Any]:
    schema = log.files.schema(_file(name, number))
    if schema is None:
        raise LogDamaged.no_file(log.files.root, _file(name, number))
    return dict(json.loads(schema.metadata[_KEY]))


def entry_size(log: RoundLog, name: str, number: int) -> int | None:
    """Bytes of an entry; None where there is none (yet)."""
    return log.files.size(_file(name, number))


def remove_entry(log: RoundLog, name: str, number: int) -> None:
    """Removes an entry that no batch will read again."""
    log.files.remove(_file(name, number))


def _file(name: str, number: int) -> str:
    return f"inputs/{quoted(name)}/{number}.arrow"
