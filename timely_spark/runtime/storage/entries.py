"""Entries: the calls of an input handle, in memory (`Buffer`) or as files in the round log (`Journal`).

Before a start a handle appends to a `Buffer`. A start makes a `Journal` in the log of its checkpoint, writes
the buffered entries there, and gives the journal to the handle once Spark has accepted the query. So a start
that fails leaves the handle unchanged.
"""

from __future__ import annotations

import contextlib
import json
import math
import time
import uuid
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

import pyarrow as pa

from timely_spark.errors import LogDamaged
from timely_spark.runtime.errors import EpochClosed, SentElsewhere
from timely_spark.runtime.storage.files import HEAD, quoted
from timely_spark.runtime.storage.log import RoundLog

#: Seconds between two sends that a journal distinguishes, and how many it remembers.
_MOMENT, _SENDS = 0.01, 10_000


@dataclass(frozen=True, slots=True)
class Entry:
    """One call of a handle. `epoch`: the epoch sent to or advanced to; None with clock epochs."""

    kind: Literal["send", "advance", "close", "skipped"]
    epoch: int | None
    table: pa.Table
    #: Identifies the entry, so that an interrupted handle recognises its own entry in the log.
    id: str = field(default_factory=lambda: uuid.uuid4().hex)


@dataclass(frozen=True, slots=True)
class Position:
    """The position of a handle."""

    #: The earliest epoch that a send can join (manual epochs).
    epoch: int = 0
    closed: bool = False
    #: The number of durable entries, which is the number of the next one.
    sent: int = 0
    #: The last epoch that has records (manual epochs); -1 if none has.
    last: int = -1

    def after(self, entry: Entry) -> Position:
        """The position after an entry."""
        epoch = entry.epoch if entry.kind == "advance" and entry.epoch is not None else self.epoch
        last = -1 if entry.kind != "send" or entry.epoch is None else entry.epoch
        return Position(epoch, self.closed or entry.kind == "close", self.sent + 1, max(self.last, last))


class Running(Protocol):
    """A query, as a handle sees it."""

    @property
    def is_active(self) -> bool: ...
    @property
    def name(self) -> str | None: ...
    @property
    def checkpoint(self) -> str: ...
    def stop(self) -> None: ...


class Buffer:
    """The entries of a handle that no query reads yet, in memory."""

    log: RoundLog | None = None
    query: Running | None = None

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self._position = Position()
        #: The number of the first entry that a start began to write, by checkpoint.
        self.begun: dict[str, int] = {}

    @property
    def position(self) -> Position:
        """The position of the handle; no entry is durable."""
        return replace(self._position, sent=0)

    def append(self, entry: Entry) -> None:
        """Append an entry."""
        self.entries.append(entry)
        self._position = self._position.after(entry)

    def recover(self) -> None:
        """Do nothing: an interrupt does no harm here."""


class Journal:
    """The entries of a handle in the log of a checkpoint: an entry is durable when `append` returns.

    It is made with the `epoch` of the input in the flow (None if it is closed), and with the entries from
    before the start.
    """

    def __init__(self, name: str, log: RoundLog, *, epochs: str, epoch: int | None, buffer: Buffer) -> None:
        self.name, self.log, self.epochs = name, log, epochs
        self.query: Running | None = None
        #: Whether the checkpoint is deleted when the query ends.
        self.forgotten = False
        #: The entry whose write has begun, and was perhaps interrupted.
        self._interrupted: Entry | None = None
        numbers = log.entries(name)
        self.first = numbers[-1] + 1 if numbers else 0
        # from this log only: the handle may have been used with another checkpoint before
        self.position = Position(sent=self.first)
        if epochs == "manual":
            head = {"stands": 0, "closed": epoch is None, "last": -1}
            head |= _head(self.log, self.name, numbers[-1]) if numbers else {}
            self.position = Position(
                max(int(head["stands"]), epoch or 0), bool(head["closed"]), self.first, int(head["last"])
            )
        #: When entries were sent (seconds of the monotonic clock), and the position behind them.
        self._sends: deque[tuple[float, Position]] = deque([(-math.inf, self.position)], maxlen=_SENDS)
        self._buffer = buffer
        written = {_head(self.log, self.name, number)["id"] for number in range(self._begun(), self.first)}
        self._unwritten = [entry for entry in buffer.entries if entry.id not in written]
        self._check(self._unwritten)

    def _begun(self) -> int:
        return self._buffer.begun.get(self.log.checkpoint, self.first)

    def _check(self, entries: Sequence[Entry]) -> None:
        early = [e.epoch for e in entries if e.epoch is not None and e.epoch < self.position.epoch]
        if entries and self.position.closed:
            raise EpochClosed.entirely(self.name)
        if early:
            raise EpochClosed.on_input(self.name, asked=early[0], epoch=self.position.epoch)

    def write(self) -> None:
        """Write the buffered entries; the handle keeps its buffer until it gets this journal."""
        if self._unwritten:
            self._buffer.begun.setdefault(self.log.checkpoint, self.first)
        for entry in self._unwritten:
            self.append(entry)

    def undo(self) -> None:
        """After a failed start: remove the buffered entries from the log, if no batch has read them."""
        first = self._begun()
        if self.log.taken(self.name) >= first:
            return  # a query has run; another start on this checkpoint recognises the entries by their ids
        self.recover()
        for number in reversed(range(first, self.position.sent)):
            remove_entry(self.log, self.name, number)
        self._buffer.begun.pop(self.log.checkpoint, None)

    def append(self, entry: Entry) -> None:
        """Write an entry; call `recover` first if the last write was interrupted."""
        position = self.position.after(entry)
        # Every entry has the handle's position, so a restart reads the newest entry only.
        head = {"kind": entry.kind, "epoch": entry.epoch, "stands": position.epoch, "closed": position.closed}
        head |= {"last": position.last} if self.epochs == "manual" else {}
        table = entry.table.replace_schema_metadata({HEAD: json.dumps(head | {"id": entry.id}).encode()})
        self._interrupted = entry
        number = self.position.sent
        if not self._put(entry, number, table):
            self._interrupted = None
            msg = f"Input {self.name!r}: entry {number} was sent by another process; this one is not."
            hint = "let one process at a time send into an input; a new start continues after it."
            raise SentElsewhere(msg, hint=hint)
        self._move_to(position)
        self._interrupted = None

    def _put(self, entry: Entry, number: int, table: pa.Table) -> bool:
        """Write the file of an entry; whether the flow will read it: another process may have sent one."""
        if self._is_behind(number):
            return False
        try:  # `new`: overwrite nothing
            self.log.files.write_table(_file(self.name, number), table, durable=True, new=True)
        except FileExistsError:  # some network file systems raise this after creating the link
            return self._is_written(entry)
        # since just now; the flow may have read this entry meanwhile, but none after it
        if self._is_behind(number) and self.log.taken(self.name) > number:
            remove_entry(self.log, self.name, number)
            return False
        return True

    def _is_behind(self, number: int) -> bool:
        """Whether the flow has read and removed an entry of this number: another one would not be read.

        Entries are removed in order, and the last one that was read stays.
        """
        if number == 0:
            return self.log.taken(self.name) >= 0
        if entry_size(self.log, self.name, number - 1) is not None:
            return False
        if not self.log.files.exists("flow.json"):  # nobody has sent: the checkpoint was removed
            raise LogDamaged.no_file(self.log.files.root, "flow.json")
        return True

    def _move_to(self, position: Position) -> None:
        self.position, now = position, time.monotonic()
        before, _ = self._sends[-1]
        if now - before < _MOMENT:  # counts as sent together with the one before
            self._sends[-1] = before, position  # at once: another thread may ask meanwhile
        else:
            self._sends.append((now, position))

    def as_of(self, seconds: float) -> Position:
        """A position behind all entries that were sent at least so many seconds ago."""
        until = time.monotonic() - seconds
        sends = self._sends.copy()  # another thread may send meanwhile
        return next((position for at, position in reversed(sends) if at <= until), sends[0][1])

    def recover(self) -> None:
        """After an interrupted `append`: find out whether the entry was written."""
        if self._interrupted is not None and self._is_written(self._interrupted):
            self._move_to(self.position.after(self._interrupted))
        self._interrupted = None

    def _is_written(self, entry: Entry) -> bool:
        number = self.position.sent
        exists = entry_size(self.log, self.name, number) is not None
        return exists and bool(_head(self.log, self.name, number)["id"] == entry.id)


def close_source(log: RoundLog, name: str) -> None:
    """Close a source with an epoch column, durably, from any process; closing again does nothing."""
    if log.files.numbers(f"inputs/{quoted(name)}"):
        return
    head = {"kind": "close", "epoch": None, "stands": 0, "closed": True, "id": uuid.uuid4().hex}
    table = pa.schema([]).with_metadata({HEAD: json.dumps(head).encode()}).empty_table()
    with contextlib.suppress(FileExistsError):  # another process has closed the source just now
        log.files.write_table(_file(name, 0), table, durable=True, new=True)


def read_entry(log: RoundLog, name: str, number: int) -> Entry:
    """Read an entry.

    Raises:
        LogDamaged: it cannot be read; the hint has the command by which a flow goes on without it.
    """
    file = _file(name, number)
    with log.reading_entry(name, number):
        table = log.files.existing(file, log.files.table(file))
        head = log.files.head(file, table.schema)
    return Entry(head["kind"], head["epoch"], table.replace_schema_metadata(None), head.get("id", ""))


def unread(log: RoundLog, name: str, after: int) -> Iterator[tuple[int, int | None, pa.Schema]]:
    """The entries after one that send or advance: their numbers, epochs and columns."""
    while entry_size(log, name, after := after + 1) is not None:
        file = _file(name, after)
        with log.reading_entry(name, after):
            schema = log.files.existing(file, log.files.schema(file))
            head = log.files.head(file, schema)
        if head["kind"] in {"send", "advance"}:
            yield after, head["epoch"], schema


def _head(log: RoundLog, name: str, number: int) -> dict[str, Any]:
    """What an entry says besides its records."""
    file = _file(name, number)
    with log.reading_entry(name, number):
        return {"id": None} | log.files.head(file, log.files.existing(file, log.files.schema(file)))


def skip_entry(log: RoundLog, name: str, number: int) -> None:
    """Replace an entry, perhaps a damaged or missing one, by one that says nothing; the old file is kept."""
    file, before = _file(name, number), _file(name, number - 1)
    if (content := log.files.read(file)) is not None:
        log.files.write(f"skipped/{quoted(name)}-{number}.arrow", content)
    head: dict[str, Any] = {"stands": 0, "closed": False}
    if number and (schema := log.files.schema(before)) is not None:
        head |= log.files.head(before, schema)
    head |= {"kind": "skipped", "epoch": None, "id": uuid.uuid4().hex}
    table = pa.schema([]).with_metadata({HEAD: json.dumps(head).encode()}).empty_table()
    log.files.write_table(file, table, durable=True)


def entry_size(log: RoundLog, name: str, number: int) -> int | None:
    """The size of an entry in bytes; None if there is no such entry."""
    return log.files.size(_file(name, number))


def arrived(log: RoundLog, before: Mapping[str, int], read: Mapping[str, int]) -> float | None:
    """When the first of the entries was sent that a batch has read, in seconds since 1970.

    None if it has read none, or if the storage is not on this machine.

    Args:
        before: by input the last entry that was read before.
        read: and with the batch.
    """
    first = {name: before.get(name, -1) + 1 for name in read}
    new = (_file(name, number) for name, number in first.items() if number <= read[name])
    return min((at for file in new if (at := log.files.written(file)) is not None), default=None)


def remove_entry(log: RoundLog, name: str, number: int) -> None:
    """Remove an entry that no batch will read again."""
    log.files.remove(_file(name, number))


def _file(name: str, number: int) -> str:
    return f"inputs/{quoted(name)}/{number}.arrow"
