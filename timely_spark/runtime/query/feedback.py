"""The feedback source: brings messages of the last round, and entries of handles, into the next micro-batch.

Its offset is `{"round": M, "inputs": {name: k}}`: manifest M and the inputs' entries up to k have been read.
A manifest without rows does not become an offset. So an idle flow runs no batches, and under `availableNow`
the query stops at quiescence. (Spark asks AvailableNow sources to fix their end offset at the start; here the
end moves on until no work is left, because loops create new work.)
"""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from collections.abc import Iterator
from functools import cached_property, partial
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import SimpleDataSourceStreamReader
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow

from timely_spark.errors import LogDamaged
from timely_spark.runtime.query.rest import rest
from timely_spark.runtime.run_context import RunContext
from timely_spark.runtime.sources.wakeup import Wakeup
from timely_spark.runtime.storage.entries import entry_size, read_entry, remove_entry
from timely_spark.runtime.storage.files import quoted
from timely_spark.runtime.storage.log import FIRST
from timely_spark.worker import pack_input
from timely_spark.worker.columns import by_column

Offset = dict[str, Any]

#: One batch reads at most so many entries and bytes of one input.
MAX_ENTRIES, MAX_BYTES = 1000, 64 << 20
#: Seconds between two answers of "nothing new"; the pause doubles while the flow is idle.
SHORTEST_PAUSE, LONGEST_PAUSE = 0.005, 0.16


class FeedbackReader(SimpleDataSourceStreamReader, SupportsTriggerAvailableNow):
    """Answers Spark's polls from the log, without listing it."""

    def __init__(self, context: RunContext) -> None:
        self.context, self.log = context, context.log
        #: The newest manifest that was seen.
        self._newest = FIRST
        #: The newest manifest that was seen to have no rows.
        self._empty: int | None = None
        self._pause = 0.0
        self._available_now = False
        #: Offsets of committed batches; entries below the oldest one can be removed.
        self._committed: deque[Offset] = deque()
        #: Per input: the oldest entry that may still exist.
        self._oldest: dict[str, int] = {}

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
        if end["round"] != start["round"]:
            if (rows := self.log.feedback(end["round"])) is None:
                raise LogDamaged.no_manifest(self.log.files.root, end["round"] + 1)
            tables.append(rows)
        for name, last in end["inputs"].items():
            first = start["inputs"].get(name, -1) + 1
            if first <= last and name in self.context.inputs:  # an earlier flow may have had other inputs
                tables.append(self._packed(name, range(first, last + 1)))
        batches = self.context.labelled(pa.concat_tables(tables)).to_batches() if tables else []
        return iter(batches)  # an iterator that copy.copy can take: Spark's wrapper does

    def commit(self, end: Offset) -> None:
        """Batches up to `end` are committed: remove the entries that no retained batch can read again."""
        self._committed.append(end)
        if len(self._committed) <= self.context.keep:
            return
        done = self._committed.popleft()
        for name, last in done["inputs"].items():
            if name not in self._oldest:
                numbers = self.log.files.numbers(f"inputs/{quoted(name)}")  # once per run
                self._oldest[name] = min(numbers, default=0)
            # entry `last` stays: a restarted handle reads its position from it
            for number in range(self._oldest[name], last):
                remove_entry(self.log, name, number)
            self._oldest[name] = max(self._oldest[name], last)

    def _end(self, start: Offset) -> Offset:
        """The offset of everything that can be read now."""
        seen = max(self._newest, start["round"])
        newest = self.log.newest(seen)
        if (newest is None or newest < seen) and not self.log.has(seen):  # the newest is never pruned
            self._raise_damaged(LogDamaged.no_manifest(self.log.files.root, seen))
        if newest is not None and newest != self._newest:
            # a batch has run: the answer to the first poll after a batch has no pause
            self._newest, self._pause = newest, 0.0
        batch = start["round"]
        if self._newest > batch and self._newest != self._empty:
            manifest = self.log.read(self._newest)
            if manifest is not None and manifest.runnable:
                batch = self._newest
            else:
                self._empty = self._newest
        entries = {name: self._last(name, start) for name in sorted(self.context.inputs)}
        # offsets of removed inputs stay: a later flow may have the inputs again
        return start | {"round": batch, "inputs": start["inputs"] | entries}

    def _question(self, start: Offset) -> Offset:
        """With availableNow and an epoch column: an offset that finds out whether the sources are exhausted.

        Only Spark knows whether they are. The new offset makes Spark run a batch. If that batch has no rows
        of any source, by Spark's offset log, the driver ends the epochs that have begun; a replay of the
        batch reads the same log. If the batch has rows, the question is asked again later.
        """
        columns = [source.name for source in self.context.plan.inputs if by_column(source.epochs)]
        if not columns or start.get("asked") == self._newest:
            return start
        if (manifest := self.log.read(self._newest)) is None:
            return start
        stand, begun = manifest.coordinator["inputs"], manifest.coordinator["begun"]
        if any(stand[name] is not None and stand[name] <= begun for name in columns):
            return start | {"asked": self._newest}
        return start

    def _last(self, name: str, start: Offset) -> int:
        last: int = start["inputs"].get(name, -1)
        first, size = last + 1, 0
        for number in range(first, first + MAX_ENTRIES):
            entry_bytes = entry_size(self.log, name, number)
            # one entry is always read, however large
            if entry_bytes is None or ((size := size + entry_bytes) > MAX_BYTES and number > first):
                break
            last = number
        if self._available_now or self._pause >= LONGEST_PAUSE:
            self._check_next(name, last + 1)
        return last

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
        stays short, and ends when one of them may have something new.
        """
        wakeup = self._wakeup
        until = time.monotonic() + self._pause
        beat = self._pause if self.log.files.local and wakeup.complete else max(0.002, self._pause / 8)
        self._pause = min(max(2 * self._pause, SHORTEST_PAUSE), LONGEST_PAUSE)
        while (left := until - time.monotonic()) > 0:
            woken = wakeup.wait(min(beat, left))
            end = self._end(start) if self.context.inputs else start
            if woken:
                self._pause = 0.0
            if woken or end != start:
                return end
        return start

    @cached_property
    def _wakeup(self) -> Wakeup:
        """Told of what arrives from now on: the first answer has no pause."""
        sources, files = self.context.sources.values(), self.log.files
        folders = [source.watched for source in sources if source.watched is not None]
        if self.context.inputs and files.local:
            os.makedirs(entries := files.path("inputs"), exist_ok=True)
            folders.append(entries)
        tell = partial(self.context.log_message, logging.WARNING, "%s")
        return Wakeup(folders, [source.watch for source in sources], tell=tell)

    def _packed(self, name: str, numbers: range) -> pa.Table:
        entries = ((number, read_entry(self.log, name, number)) for number in numbers)
        with self.context.reporting():
            sent = [(number, e.kind, e.epoch, e.table) for number, e in entries if e.kind != "skipped"]
            return pack_input(self.context.plan, name, sent)
