"""The feedback source: brings messages of the last round, and entries of handles, into the next micro-batch.

Its offset is `{"round": M, "inputs": {name: k}}`: manifest M and the inputs' entries up to k have been read.
With hot keys that the run has found, `"spread"` says how many of each step spread the batch's entries.
A manifest without rows does not become an offset. So an idle flow runs no batches, and under `availableNow`
the query stops at quiescence. (Spark asks AvailableNow sources to fix their end offset at the start; here the
end moves on until no work is left, because loops create new work.)

What resident batches read is in their manifests, not in offsets. If they have read more than the offset
before, the next offset has `"after": {name: k}`: its batch reads the entries after k. An offset with `"wake"`
begins a micro-batch without rows, in which the driver stays and reads the entries itself.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator, Mapping
from functools import cached_property, partial
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import SimpleDataSourceStreamReader
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow

from timely_spark.errors import LogDamaged
from timely_spark.runtime.query.rest import rest, yields
from timely_spark.runtime.run_context import RunContext
from timely_spark.runtime.sources.wakeup import Wakeup
from timely_spark.runtime.storage.entries import entry_size, read_entry
from timely_spark.runtime.storage.log import FIRST
from timely_spark.runtime.storage.manifest import Manifest
from timely_spark.worker import pack_input
from timely_spark.worker.epoch_columns import by_column

Offset = dict[str, Any]

#: One batch reads at most so many entries and bytes of one input.
MAX_ENTRIES, MAX_BYTES = 1000, 64 << 20
#: A resident micro-batch reads entries itself up to so many bytes at a time. One process packs entries in a
#: micro-batch, too, whose way through Spark costs more than its tasks save up to here.
SMALL_ENTRIES = 16 << 20
#: Seconds between two answers of "nothing new"; the pause doubles while the flow is idle, and becomes longest
#: where all that arrives ends it.
SHORTEST_PAUSE, LONGEST_PAUSE, LONGEST_IF_WOKEN = 0.005, 0.16, 0.64


class FeedbackReader(SimpleDataSourceStreamReader, SupportsTriggerAvailableNow):
    """Answers Spark's polls from the log, without listing it."""

    def __init__(self, context: RunContext) -> None:
        self.context, self.log = context, context.log
        #: The newest manifest that was seen, and its number.
        self._manifest: Manifest | None = None
        self._newest = FIRST
        self._pause = 0.0
        self._available_now = False

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Run to quiescence, without pauses."""
        self._available_now = True

    def initialOffset(self) -> Offset:  # noqa: N802
        """The offset before the first manifest and all entries."""
        return {"round": FIRST - 1, "inputs": dict.fromkeys(self.context.inputs, -1)}

    def read(self, start: Offset) -> tuple[Iterator[Any], Offset]:
        """All rows after `start`, and the offset of their end."""
        rest(self.context)
        end = self._end(start)
        if end == start:
            end = self._question(start) if self._available_now else self._wait(start)
        with self.context.reporting():
            self.log.check_owner()
        if end == start:
            return iter([]), start
        self._pause = 0.0
        return self.readBetweenOffsets(start, end), end

    def readBetweenOffsets(self, start: Offset, end: Offset) -> Iterator[Any]:  # noqa: N802
        """Exactly the rows between two offsets; also after a restart, in another process.

        Only the manifest at `end` is read: it has all messages for the next round, and no manifest with rows
        is ever skipped.
        """
        tables = []
        if "spread" in end:
            self._spread(end["spread"])
        if start["round"] != end["round"] >= self.context.planned - 1:  # an earlier run continued after it
            if (rows := self.log.feedback(end["round"])) is None:
                raise LogDamaged.no_manifest(self.log.files.root, end["round"] + 1)
            tables.append(rows)
        read = start["inputs"], end.get("after", {}), self.context.read_entries
        for name, last in end["inputs"].items():
            first = max(entries.get(name, -1) for entries in read) + 1
            if first <= last and name in self.context.inputs:  # an earlier flow may have had other inputs
                tables.append(packed_entries(self.context, name, range(first, last + 1)))
        batches = self.context.labelled(pa.concat_tables(tables)).to_batches() if tables else []
        return iter(batches)  # an iterator that copy.copy can take: Spark's wrapper does

    def _end(self, start: Offset) -> Offset:
        """The offset of everything that can be read now."""
        self._look(start["round"])
        before = {name: value for name, value in start.items() if name != "after"}
        manifest = self._manifest
        runnable = manifest is not None and manifest.runnable and self._newest > start["round"]
        end = before | {"round": self._newest if runnable else start["round"]}
        entries = {} if manifest is None else manifest.entries
        read, news, size = dict[str, int](), dict[str, int](), 0
        for name in sorted(self.context.inputs):
            own = self.context.read_entries.get(name, -1)
            read[name] = max(start["inputs"].get(name, -1), entries.get(name, -1), own)
            last, entry_bytes = self._last(name, read[name])
            if last > read[name] or name not in start["inputs"]:
                news[name] = last
            size += entry_bytes
        if self._stays(start, size):
            return end | {"wake": self._newest}
        # offsets of removed inputs stay: a later flow may have the inputs again
        end["inputs"] = start["inputs"] | news
        if end == before:
            return start
        after = {name: read[name] for name in news if read[name] > start["inputs"].get(name, -1)}
        spread = {} if manifest is None else {step: len(keys) for step, keys in manifest.spread.items()}
        return end | {name: value for name, value in (("after", after), ("spread", spread)) if value}

    def _spread(self, numbers: Mapping[str, int]) -> None:
        """Let the plan spread the hot keys that were found before a batch: by step the first so many."""
        newest = self.log.newest()
        manifest = None if newest is None else self.log.read(newest)
        keys = {} if manifest is None else manifest.spread
        self.context.plan.spread({step: keys.get(step, [])[:n] for step, n in numbers.items()})

    def _look(self, least: int) -> None:
        """Look for the newest manifest; `least` was there."""
        seen = max(self._newest, least)
        newest = self.log.newest(seen)
        if (newest is None or newest < seen) and not self.log.has(seen):  # the newest is never pruned
            self._raise_damaged(LogDamaged.no_manifest(self.log.files.root, seen))
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

        Only Spark knows whether they are. The new offset makes Spark run a batch. If that batch has no rows
        of any source, by Spark's offset log, the driver ends the epochs that have begun; a replay of the
        batch reads the same log. If the batch has rows, the question is asked again later.
        """
        columns = [source.name for source in self.context.plan.inputs if by_column(source.epochs)]
        if not columns or start.get("asked") == self._newest:
            return start
        if (manifest := self._manifest) is None:
            return start
        stand, begun = manifest.coordinator["inputs"], manifest.coordinator["begun"]
        if any(stand[name] is not None and stand[name] <= begun for name in columns):
            return start | {"asked": self._newest}
        return start

    def _last(self, name: str, read: int) -> tuple[int, int]:
        """The last entry that one batch reads after the entry `read`, and the bytes of all."""
        last, size = read, 0
        for number in range(read + 1, read + 1 + MAX_ENTRIES):
            entry_bytes = entry_size(self.log, name, number)
            # one entry is always read, however large
            if entry_bytes is None or (size + entry_bytes > MAX_BYTES and number > read + 1):
                break
            last, size = number, size + entry_bytes
        if self._available_now or self._pause >= LONGEST_PAUSE:
            self._check_next(name, last + 1)
        return last, size

    def _check_next(self, name: str, number: int) -> None:
        """Check that no entry is missing before a later one: the input would never advance."""
        later = entry_size(self.log, name, number + 1)
        if later is not None and entry_size(self.log, name, number) is None:
            with self.context.reporting():
                self.log.check_owner()  # a later run may have removed this run's files
                read_entry(self.log, name, number)

    def _raise_damaged(self, error: LogDamaged) -> None:
        with self.context.reporting():
            self.log.check_owner()  # a later run may have removed this run's files
            raise error

    def _wait(self, start: Offset) -> Offset:
        """Pause before answering "nothing new", until an input has something; pauses grow in an idle flow.

        Spark polls its sources one after the other, so a pause also delays the flow's other sources: it
        ends when one of them may have something new, and stays short if one is a DataFrame of Spark's.
        """
        wakeup = self._wakeup
        until = time.monotonic() + self._pause
        complete = self.log.files.local and wakeup.complete
        beat = self._pause if complete else max(0.002, self._pause / 8)
        longest = LONGEST_IF_WOKEN if complete and not self._has_dataframes else LONGEST_PAUSE
        self._pause = min(max(2 * self._pause, SHORTEST_PAUSE), longest)
        while (left := until - time.monotonic()) > 0:
            woken = wakeup.wait(min(beat, left))
            end = self._end(start) if self.context.inputs else start
            if woken:
                self._pause = 0.0
            if woken or end != start:
                return end
        return start

    @cached_property
    def _has_dataframes(self) -> bool:
        inputs = (source for source in self.context.plan.inputs if not source.stage.handle)
        return any(source.name not in self.context.sources for source in inputs)

    @cached_property
    def _wakeup(self) -> Wakeup:
        """Told of what arrives from now on, and of commands: the first answer has no pause."""
        return wakeup_of(self.context, *["inputs"] * bool(self.context.inputs), "terms")


def wakeup_of(context: RunContext, *own: str) -> Wakeup:
    """The changes of all that sources watch, and of files in folders of the round log."""
    sources, files = context.sources.values(), context.log.files
    folders = [source.watched for source in sources if source.watched is not None]
    for name in own if files.local else ():
        os.makedirs(folder := files.path(name), exist_ok=True)
        folders.append(folder)
    tell = partial(context.log_message, logging.WARNING, "%s")
    return Wakeup(folders, [source.watch for source in sources], tell=tell)


def packed_entries(context: RunContext, name: str, numbers: range) -> pa.Table:
    """The packed rows of entries of a handle, by worker."""
    entries = ((number, read_entry(context.log, name, number)) for number in numbers)
    with context.reporting():
        sent = [(number, e.kind, e.epoch, e.table) for number, e in entries if e.kind != "skipped"]
        return pack_input(context.plan, name, sent)
