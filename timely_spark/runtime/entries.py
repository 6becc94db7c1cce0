"""Entries: what a handle says, one file each in the round log; and the ends that a handle speaks into.

Before a start that is `Waiting`, a list in memory. A start makes a `Durable` end in the log of its
checkpoint, writes there what waits, and gives it to the handle when Spark has accepted the query, not
earlier: a start that fails leaves the handle as it was.
"""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

import pyarrow as pa

from timely_spark.errors import LogDamaged
from timely_spark.runtime.errors import EpochClosed, SentElsewhere
from timely_spark.runtime.files import HEAD, quoted
from timely_spark.runtime.log import RoundLog


@dataclass(frozen=True, slots=True)
class Entry:
    """One thing said by a handle. `epoch` is where the handle stands after it; None on the flow's clock."""

    kind: Literal["send", "advance", "close"]
    epoch: int | None
    table: pa.Table
    #: Tells it from all others: a handle that was interrupted knows its own entry again.
    id: str = field(default_factory=lambda: uuid.uuid4().hex)


@dataclass(frozen=True, slots=True)
class Stand:
    """Where a handle stands."""

    #: The earliest epoch that a send can join (manual epochs).
    epoch: int = 0
    closed: bool = False
    #: Number of the next entry; all below it are durable.
    sent: int = 0

    def after(self, entry: Entry) -> Stand:
        """Where the handle stands after an entry."""
        epoch = entry.epoch if entry.kind == "advance" and entry.epoch is not None else self.epoch
        return Stand(epoch, self.closed or entry.kind == "close", self.sent + 1)


class Running(Protocol):
    """A query, as a handle sees it."""

    @property
    def is_active(self) -> bool:
        """Whether it is running."""

    @property
    def name(self) -> str | None:
        """Its name in Spark."""

    @property
    def checkpoint(self) -> str:
        """Its checkpoint."""

    def stop(self) -> None:
        """Stops it."""


class Waiting:
    """The end of a handle that no query reads: entries wait in memory, in order, for a start."""

    log: RoundLog | None = None
    query: Running | None = None

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self._stand = Stand()
        #: Checkpoints where a start was interrupted while it wrote the entries -> number of the first one.
        self.begun: dict[str, int] = {}

    @property
    def stand(self) -> Stand:
        """Where the handle stands; nothing of it is durable."""
        return replace(self._stand, sent=0)

    def say(self, entry: Entry) -> None:
        """Keeps an entry."""
        self.entries.append(entry)
        self._stand = self._stand.after(entry)

    def settle(self) -> None:
        """Nothing to do."""


class Durable:
    """The end of a handle in the log of a checkpoint: an entry is durable when `say` returns.

    Args:
        name: the input.
        log: the flow's.
        epochs: of the input.
        stands: the epoch of the input in the flow; None: it is closed.
        waiting: what was said before the start.

    Raises:
        EpochClosed: something waits for an epoch that is closed in the flow.
    """

    def __init__(
        self, name: str, log: RoundLog, *, epochs: str, stands: int | None, waiting: Waiting
    ) -> None:
        self.name, self.log, self.epochs = name, log, epochs
        self.query: Running | None = None
        #: Whether nobody can go on from the log once the query has ended.
        self.forgotten = False
        #: The entry that is being written, or was when an interrupt came.
        self._attempt: Entry | None = None
        numbers = log.entries(name)
        self.first = numbers[-1] + 1 if numbers else 0
        # from what this log says alone: the flow may have run on another checkpoint before
        self.stand = Stand(sent=self.first)
        if epochs == "manual":
            head = self._head(numbers[-1]) if numbers else {"stands": 0, "closed": stands is None}
            self.stand = Stand(max(int(head["stands"]), stands or 0), bool(head["closed"]), self.first)
        self._waiting = waiting
        there = {self._head(number)["id"] for number in range(self._begun(), self.first)}
        self._unwritten = [entry for entry in waiting.entries if entry.id not in there]
        self._check(self._unwritten)

    def _begun(self) -> int:
        return self._waiting.begun.get(self.log.checkpoint, self.first)

    def _check(self, entries: Sequence[Entry]) -> None:
        early = [e.epoch for e in entries if e.epoch is not None and e.epoch < self.stand.epoch]
        if entries and self.stand.closed:
            raise EpochClosed.entirely(self.name)
        if early:
            raise EpochClosed.on_input(self.name, asked=early[0], epoch=self.stand.epoch)

    def write(self) -> None:
        """Writes what waits; until the handle is given this end, it waits all the same."""
        if self._unwritten:
            self._waiting.begun.setdefault(self.log.checkpoint, self.first)
        for entry in self._unwritten:
            self.say(entry)

    def undo(self) -> None:
        """After a start that failed: removes what waits from the log again, if no batch has taken it."""
        first = self._begun()
        found = self.log.spark_offset(self.log.spark_batch())
        if found is not None and found[1].get(self.name, -1) >= first:
            return  # a query did run; another start on this checkpoint knows the entries again by their ids
        self.settle()
        for number in reversed(range(first, self.stand.sent)):
            remove_entry(self.log, self.name, number)
        self._waiting.begun.pop(self.log.checkpoint, None)

    def say(self, entry: Entry) -> None:
        """Writes an entry; after one that was interrupted, `settle` comes first.

        Raises:
            SentElsewhere: another process has written one of this number.
        """
        stand = self.stand.after(entry)
        # Where the handle stands is in every entry, so that the newest alone is enough for a restart.
        head = {"kind": entry.kind, "epoch": entry.epoch, "stands": stand.epoch, "closed": stand.closed}
        table = entry.table.replace_schema_metadata({HEAD: json.dumps(head | {"id": entry.id}).encode()})
        self._attempt = entry
        # `new`: a second process that sends into the same input is told, not overwritten
        try:
            self.log.files.write_table(self._file(stand.sent - 1), table, durable=True, new=True)
        except FileExistsError:  # some network file systems say so of a link that they have just made
            if not self._is_there(entry):
                self._attempt = None
                raise SentElsewhere.entry(self.name, stand.sent - 1) from None
        self.stand = stand
        self._attempt = None

    def settle(self) -> None:
        """After a `say` that was interrupted: finds out whether the entry is there."""
        if self._attempt is not None and self._is_there(self._attempt):
            self.stand = self.stand.after(self._attempt)
        self._attempt = None

    def _is_there(self, entry: Entry) -> bool:
        number = self.stand.sent
        there = entry_size(self.log, self.name, number) is not None
        return there and bool(self._head(number)["id"] == entry.id)

    def _head(self, number: int) -> dict[str, Any]:
        schema = self.log.files.schema(self._file(number))
        if schema is None:
            raise LogDamaged.no_file(self.log.files.root, self._file(number))
        return {"id": None} | self.log.files.head(self._file(number), schema)

    def _file(self, number: int) -> str:
        return _file(self.name, number)


def close_source(log: RoundLog, name: str) -> None:
    """Closes a source with epochs of a column, durably, from any process; closing again does nothing."""
    if log.files.numbers(f"inputs/{quoted(name)}"):
        return
    head = {"kind": "close", "epoch": None, "stands": 0, "closed": True, "id": uuid.uuid4().hex}
    table = pa.schema([]).with_metadata({HEAD: json.dumps(head).encode()}).empty_table()
    with contextlib.suppress(FileExistsError):  # somebody else has closed it just now
        log.files.write_table(_file(name, 0), table, durable=True, new=True)


def read_entry(log: RoundLog, name: str, number: int) -> Entry:
    """An entry."""
    table = log.files.table(_file(name, number))
    if table is None:
        raise LogDamaged.no_file(log.files.root, _file(name, number))
    head = log.files.head(_file(name, number), table.schema)
    return Entry(head["kind"], head["epoch"], table.replace_schema_metadata(None), head.get("id", ""))


def entry_size(log: RoundLog, name: str, number: int) -> int | None:
    """Bytes of an entry; None where there is none (yet)."""
    return log.files.size(_file(name, number))


def remove_entry(log: RoundLog, name: str, number: int) -> None:
    """Removes an entry that no batch will read again."""
    log.files.remove(_file(name, number))


def _file(name: str, number: int) -> str:
    return f"inputs/{quoted(name)}/{number}.arrow"
