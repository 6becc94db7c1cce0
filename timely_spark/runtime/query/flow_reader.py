"""`FlowReader`: what a micro-batch reads: the last round's messages, entries of handles, journaled sources.

Its offset is `{"round": M, "inputs": {name: k}, "sources": {name: offset}}`: manifest M, the inputs' entries
up to k, and the sources up to these offsets have been read. A manifest without rows does not become an
offset. So an idle flow runs no batches, and under `availableNow` the query stops at quiescence. (Spark asks
AvailableNow sources to fix their end at the start. Journaled sources do; rounds go on until no work is left,
because loops create new work.)

What resident batches read is in their manifests, not in offsets. If they have read more than the offset
before, the next offset has `"after": {name: k}`: its batch reads the entries after k. An offset with `"wake"`
begins a micro-batch without rows, in which the driver stays and reads the entries itself.
"""

from __future__ import annotations

import logging
import pickle
import time
from collections.abc import Iterator, Mapping
from functools import cached_property, partial
from typing import Any

import pyarrow as pa
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxFiles

from timely_spark.errors import LogDamaged
from timely_spark.runtime.query.live import packing
from timely_spark.runtime.query.rest import rest, yields
from timely_spark.runtime.run_context import RunContext
from timely_spark.runtime.sources.file_readers import readers_of
from timely_spark.runtime.sources.reader import Offset, Reader
from timely_spark.runtime.sources.wakeup import Wakeup
from timely_spark.runtime.storage.entries import entry_size, read_entry
from timely_spark.runtime.storage.log import FIRST, RoundLog
from timely_spark.runtime.storage.manifest import Manifest
from timely_spark.runtime.storage.stores import make_folder
from timely_spark.worker import pack_input
from timely_spark.worker.epoch_columns import by_column

#: One batch reads at most so many entries and bytes of one input.
MAX_ENTRIES, MAX_BYTES = 1000, 64 << 20
#: A resident micro-batch reads entries itself up to so many bytes at a time. In another micro-batch one
#: process packs so many, too: up to here the way through Spark costs more than its tasks save.
SMALL_ENTRIES = 16 << 20
#: Seconds between two answers of "nothing new"; the pause doubles while the flow is idle, and becomes longest
#: where all that arrives ends it.
SHORTEST_PAUSE, LONGEST_PAUSE, LONGEST_IF_WOKEN = 0.005, 0.16, 0.64


class FlowReader:
    """Answers Spark's polls from the log, without listing it, and from the readers of the flow's sources."""

    def __init__(self, context: RunContext) -> None:
        self.context, self.log = context, context.log
        #: The newest manifest that was seen, and its number.
        self._manifest: Manifest | None = None
        self._newest = FIRST
        self._pause = 0.0
        self._available_now = False

    @cached_property
    def readers(self) -> Mapping[str, Reader]:
        """The readers of the sources that this package reads, by input."""
        # the watch begins when it is asked for: tasks have readers, too
        return readers_of(self.context, lambda folder: self._wakeup.changes(folder))  # noqa: PLW0108

    @property
    def limit(self) -> ReadLimit:
        """All, or less: sources have limits of their own, and Spark asks for all with some triggers."""
        limited = any(reader.limited for reader in self.readers.values())
        return ReadMaxFiles(1) if limited else ReadAllAvailable()

    def fix_end(self) -> None:
        """Read what the sources have now, and run to quiescence without pauses."""
        self._available_now = True
        for reader in self.readers.values():
            reader.fix_end()

    def initial_offset(self) -> Offset:
        """The offset before the first manifest, all entries, and all that sources have."""
        sources = {name: reader.initial_offset() for name, reader in self.readers.items()}
        return {"round": FIRST - 1, "inputs": dict.fromkeys(self.context.inputs, -1), "sources": sources}

    def latest_offset(self, start: Offset, *, unlimited: bool = False) -> Offset:
        """The end of the next batch; `start` if there is nothing to do.

        Args:
            start: the end of the batch before.
            unlimited: whether the limits of sources do not hold.
        """
        with self.context.reporting():
            rest(self.context)
            end = self._end(start, unlimited=unlimited)
            if end == start and self._available_now:
                end = self._question(start)
            elif end == start and self._wait(start):
                end = self._end(start, unlimited=unlimited)
            self.log.check_owner()
        if end != start:
            self._pause = 0.0
        return end

    def commit(self, end: Offset) -> None:
        """Micro-batches up to `end` are committed."""
        for name, reader in self.readers.items():
            if name in end["sources"]:
                reader.commit(end["sources"][name])

    def shares(self, start: Offset, end: Offset) -> list[bytes]:
        """The shares of the tasks between two offsets; the same ones after a restart, in another process."""
        shares: list[tuple[str | None, Any]] = []
        if (start["round"], start["inputs"]) != (end["round"], end["inputs"]):
            shares.append((None, (start, end)))
        for name, reader in self.readers.items():
            before = start["sources"].get(name) or reader.initial_offset()
            if (at := end["sources"].get(name, before)) != before:
                shares += [(name, share) for share in reader.shares(before, at)]
        return list(map(pickle.dumps, shares))

    def read(self, share: bytes) -> Iterator[pa.RecordBatch]:
        """The packed rows of one share, in a task."""
        name, own = pickle.loads(share)
        with packing(self.context):
            if name is not None:
                yield from self.readers[name].read(own)
                return
            with self.context.task(packs=True):
                yield from self.between(*own)

    def between(self, start: Offset, end: Offset) -> Iterator[pa.RecordBatch]:
        """Exactly the rows that the log has between two offsets.

        Only the manifest at `end` is read: it has all messages for the next round, and no manifest with rows
        is ever skipped.
        """
        tables = []
        if start["round"] != end["round"] >= self.context.planned - 1:  # an earlier run continued after it
            if (rows := self.log.feedback(end["round"])) is None:
                raise LogDamaged.no_manifest(self.log.files.root, end["round"] + 1)
            tables.append(rows)
        read = start["inputs"], end.get("after", {}), self.context.read_entries
        for name, last in end["inputs"].items():
            first = max(entries.get(name, -1) for entries in read) + 1
            if first <= last and name in self.context.inputs:  # an earlier flow may have had other inputs
                tables.append(packed_entries(self.context, name, range(first, last + 1)))
        if tables:
            yield from self.context.labelled(pa.concat_tables(tables)).to_batches()

    def _end(self, start: Offset, *, unlimited: bool) -> Offset:
        """The offset of everything that can be read now."""
        self._look(start["round"])
        before = {name: value for name, value in start.items() if name != "after"}
        manifest = self._manifest
        runnable = manifest is not None and manifest.runnable and self._newest > start["round"]
        end = before | {"round": self._newest if runnable else start["round"]}
        # offsets of removed inputs and sources stay: a later flow may have them again
        end["sources"] = start["sources"] | self._new(start["sources"], unlimited=unlimited)
        read, news, size = self._last_read(start), dict[str, int](), 0
        for name in sorted(read):
            last, entry_bytes = next_entries(self.log, name, read[name])
            if self._available_now or self._pause >= LONGEST_PAUSE:
                self._check_next(name, last + 1)
            if last > read[name] or name not in start["inputs"]:
                news[name] = last
            size += entry_bytes
        if self._stays(start, size):
            return end | {"wake": self._newest}
        end["inputs"] = start["inputs"] | news
        if end == before:
            return start
        after = {name: read[name] for name in news if read[name] > start["inputs"].get(name, -1)}
        return end | ({"after": after} if after else {})

    def _last_read(self, start: Offset) -> dict[str, int]:
        """The last entry that was read of each input that has entries."""
        resident = {} if self._manifest is None else self._manifest.entries
        read = start["inputs"], resident, self.context.read_entries
        return {name: max(entries.get(name, -1) for entries in read) for name in self.context.inputs}

    def _new(self, start: Mapping[str, Offset], *, unlimited: bool) -> dict[str, Offset]:
        """The ends of the sources that have something new, or that were never looked at."""
        ends, present = {}, {*start, *(self._manifest.sources if self._manifest is not None else ())}
        for name, reader in self.readers.items():
            before = start.get(name) or reader.initial_offset()
            end = reader.latest_offset(before, unlimited=unlimited)
            if end != before or name not in present:
                ends[name] = end
        return ends

    def _look(self, least: int) -> None:
        """Look for the newest manifest; `least` was there."""
        least = max(self._newest, least)
        newest = self.log.newest(least)
        if (newest is None or newest < least) and not self.log.has(least):  # the newest is never pruned
            self.log.check_owner()  # a later run may have removed this run's files
            raise LogDamaged.no_manifest(self.log.files.root, least)
        if newest is not None and (newest != self._newest or self._manifest is None):
            # a batch has run: the answer to the first poll after a batch has no pause
            self._newest, self._pause = newest, 0.0
            self._manifest = self.log.read(newest)

    def _stays(self, start: Offset, size: int) -> bool:
        """Whether a micro-batch begins in which the driver stays: for entries, or because one has just ended.

        If nothing has happened in that one, the query rests.
        """
        if not self.context.resident or self._available_now or start.get("wake") == self._newest:
            return False
        manifest = self._manifest
        if (
            manifest is None
            or self._newest == FIRST
            or manifest.not_resident
            or not (size or manifest.worked)
        ):
            return False
        return size <= SMALL_ENTRIES and not yields(self.context)

    def _question(self, start: Offset) -> Offset:
        """With availableNow and an epoch column: an offset that finds out whether the sources are exhausted.

        Only Spark knows whether DataFrames are exhausted. The new offset makes Spark run a batch. If that
        batch has no rows of any source, by Spark's offset log, the driver ends the epochs that have begun; a
        replay of the batch reads the same log. If the batch has rows, the question is asked again later.
        """
        columns = [source.name for source in self.context.plan.inputs if by_column(source.epochs)]
        manifest = self._manifest
        if manifest is None or not columns or start.get("asked") == self._newest:
            return start
        stand, begun = manifest.coordinator["inputs"], manifest.coordinator["begun"]
        if any(stand[name] is not None and stand[name] <= begun for name in columns):
            return start | {"asked": self._newest}
        return start

    def _check_next(self, name: str, number: int) -> None:
        """Check that no entry is missing before a later one: the input would never advance."""
        later = entry_size(self.log, name, number + 1)
        if later is not None and entry_size(self.log, name, number) is None:
            self.log.check_owner()  # a later run may have removed this run's files
            read_entry(self.log, name, number)

    def _wait(self, start: Offset) -> bool:
        """Pause before answering "nothing new", unless something may be new; pauses grow in an idle flow.

        Spark polls its sources one after the other, so a pause also delays the DataFrames of Spark's among
        them: it stays short if there is one.
        """
        wakeup = self._wakeup
        until = time.monotonic() + self._pause
        complete = self.log.files.local and wakeup.complete
        beat = self._pause if complete else max(0.002, self._pause / 8)
        longest = LONGEST_IF_WOKEN if complete and not self._has_dataframes else LONGEST_PAUSE
        self._pause = min(max(2 * self._pause, SHORTEST_PAUSE), longest)
        next_entries = {name: last + 1 for name, last in self._last_read(start).items()}
        while (remaining := until - time.monotonic()) > 0:
            if wakeup.wait(min(beat, remaining)):
                self._pause = 0.0
                return True
            if any(entry_size(self.log, *entry) is not None for entry in next_entries.items()):
                return True
        return False

    @cached_property
    def _has_dataframes(self) -> bool:
        return any(source.stage.origin == "dataframe" for source in self.context.plan.inputs)

    @cached_property
    def _wakeup(self) -> Wakeup:
        """Told of what arrives from now on, and of commands: the first answer has no pause."""
        return wakeup_of(self.context, *["inputs"] * bool(self.context.inputs), "terms")


def wakeup_of(context: RunContext, *own: str) -> Wakeup:
    """The changes of all that sources watch, and of files in folders of the round log."""
    sources, files = context.sources.values(), context.log.files
    folders = [source.watched for source in sources if source.watched is not None]
    for name in own if files.local else ():
        make_folder(folder := files.path(name))
        folders.append(folder)
    tell = partial(context.log_message, logging.WARNING, "%s")
    return Wakeup(folders, [source.watch for source in sources], tell=tell)


def next_entries(log: RoundLog, name: str, read: int) -> tuple[int, int]:
    """The last entry that one batch reads after the entry `read`, and the bytes of all that it reads."""
    last, size = read, 0
    for number in range(read + 1, read + 1 + MAX_ENTRIES):
        entry_bytes = entry_size(log, name, number)
        # one entry is always read, however large
        if entry_bytes is None or (size + entry_bytes > MAX_BYTES and size):
            break
        last, size = number, size + entry_bytes
    return last, size


def packed_entries(context: RunContext, name: str, numbers: range) -> pa.Table:
    """The packed rows of entries of a handle, by worker."""
    entries = ((number, read_entry(context.log, name, number)) for number in numbers)
    with context.reporting():
        sent = [(number, e.kind, e.epoch, e.table) for number, e in entries if e.kind != "skipped"]
        return pack_input(context.plan, name, sent)
