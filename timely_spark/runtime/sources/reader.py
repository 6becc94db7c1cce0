"""The sources of files: read and packed by Spark's tasks.

The offset of a folder is `{"files": k}`: batches 0 to k of the source's journal have been read. A batch is in
the journal before its offset is in Spark's log, and durably before a task reads it. So a replay reads the
same files, and a restart continues from the journal.

Each offset also has the source's name, by which `by_input` finds it among those of a batch. If resident
batches have read more than Spark's last offset has, the next offset has `"after"`: where its batch begins.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property, partial
from itertools import accumulate
from typing import Any, ClassVar

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxFiles,
    SupportsTriggerAvailableNow,
)

from timely_spark.errors import with_hint
from timely_spark.runtime.errors import BadFile
from timely_spark.runtime.run_context import RunContext
from timely_spark.runtime.sources.account import write_ignored, write_names
from timely_spark.runtime.sources.arrivals import File, Part, Unread, quarantined, split_files
from timely_spark.runtime.sources.delta_log import DeltaLog, DeltaSource
from timely_spark.runtime.sources.journal import FileJournal
from timely_spark.runtime.sources.replay import CapturedEpochs, ReplaySource
from timely_spark.runtime.sources.skipped import Skipped
from timely_spark.runtime.sources.wakeup import Wakeup
from timely_spark.runtime.storage.published import Published, epoch_of
from timely_spark.runtime.storage.spark_log import INPUT
from timely_spark.worker import pack_input, pack_quarantined

Offset = dict[str, Any]

#: Looking for new files takes at most one part in so many of the time, if nothing tells of any.
_IDLE = 10
#: The log has so many names of one listing.
_TOLD = 10
#: One batch replays at most so many bytes of files, but one epoch at least.
_REPLAYED = 64 << 20
#: (source, column) of which this process has warned.
_told_columns: set[tuple[str, str]] = set()


class ReadPartition(InputPartition):
    """The files that one task reads; the number `value` is the same when the batch is read again."""

    def __init__(
        self, value: int, parts: list[Part], progress: int | None = 0, bad: pa.Table | None = None
    ) -> None:
        super().__init__(value)
        self.parts = parts
        #: what the flow is told of quarantined files
        self.bad = bad
        #: The epoch to which a replay advances the input; None if the input is closed; 0: another task does.
        self.progress = progress
        #: by file its Delta version, if that may be skipped
        self.versions: Mapping[str, int] | None = None


class Reader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads the files between two offsets in tasks; each subclass lists those of one kind of source."""

    #: The number in an offset by which the kinds of sources differ.
    counts: ClassVar[str]

    def __init__(self, context: RunContext, source: Any) -> None:
        self.context, self.source = context, source
        #: When the source may be looked at again, if nothing tells of something new.
        self._next_look = 0.0
        #: The newest manifest that was seen, and the offsets in it.
        self._newest: int | None = None
        self._resident: Mapping[str, Offset] = {}

    @property
    def _name(self) -> str:
        name: str = self.source.name
        return name

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Read what is there now, and nothing later."""
        with self.context.reporting():
            self._end_here()

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        """The offset after the next batch; `start` if there is nothing new."""
        with self.context.reporting():
            if not isinstance(start.get(self.counts), int):
                reads = f"source {self._name!r} reads {self.counts}"
                msg = f"{reads}, but its position in the checkpoint is {start!r}"
                hint = "keep the kind of the source, or use a new checkpoint."
                raise BadFile(msg, where=self.source.where, hint=hint)
            read = self._read_to(start)
            end = self._next(read, limit)
            if end == read:
                return start
            after = {} if read is start else {"after": read}
            return {**end, INPUT: self._name, **after}

    def _read_to(self, start: Offset) -> Offset:
        """The offset up to which the source was read: resident batches go on after Spark's offset."""
        context = self.context
        found = [start, *([start["after"]] if "after" in start else [])]
        if self._name in context.read_offsets:
            found.append(dict(context.read_offsets[self._name]))
        if context.resident and (newest := context.log.newest(self._newest)) is not None:
            if newest != self._newest:
                manifest = context.log.read(newest)
                self._newest, self._resident = newest, {} if manifest is None else manifest.sources
            found += [dict(self._resident[self._name])] if self._name in self._resident else []
        return max(found, key=self._count)

    def initialOffset(self) -> Offset:  # noqa: N802
        """The offset before the first batch."""
        return {**self._begin(), INPUT: self._name}

    def commit(self, end: Offset) -> None:
        """Micro-batches up to `end` are committed; of a resident one, the driver says what is read."""
        if not self.context.resident:
            with self.context.reporting():
                self.forget(end)

    def forget(self, end: Offset) -> None:
        """Let go of what is needed only to read again what is before `end`."""

    def _begin(self) -> Offset:
        raise NotImplementedError

    def _end_here(self) -> None:
        raise NotImplementedError

    def _next(self, start: Offset, limit: ReadLimit) -> Offset:
        raise NotImplementedError

    def _files(self, start: Offset, end: Offset) -> list[File]:
        """The files between two offsets, in order."""
        raise NotImplementedError

    @contextmanager
    def _looking(self) -> Iterator[None]:
        """Look at the source."""
        began = time.monotonic()
        yield
        ended = time.monotonic()
        self._next_look = ended + (_IDLE - 1) * (ended - began)

    def look_again(self) -> None:
        """Something may be new: the next question looks at the source."""
        self._next_look = 0.0

    def _due(self) -> bool:
        """Whether to look: when something has changed, else in at most one part in `_IDLE` of the time."""
        return time.monotonic() >= self._next_look or self._wakeup.wait(0)

    @cached_property
    def _wakeup(self) -> Wakeup:
        tell = partial(self.context.log_message, logging.WARNING, "%s")
        return Wakeup([] if self.source.watched is None else [self.source.watched], tell=tell)

    def partitions(self, start: Offset, end: Offset) -> Sequence[ReadPartition]:
        """The shares of the tasks between two offsets; one at least, which reports the epoch."""
        start = self._begins(start, end)
        with self.context.reporting():
            files = [file for file in self._files(start, end) if file.path not in self._skipped.files]
        good = [file for file in files if file.bad is None]
        shares = split_files(good, self.source.tasks, divisible=self.source.folder.divisible) or [[]]
        bad = quarantined(files)
        return [ReadPartition(n, parts, bad=None if n else bad) for n, parts in enumerate(shares)]

    def _begins(self, start: Offset, end: Offset) -> Offset:
        """The offset after which the batch up to `end` begins."""
        own = self.context.read_offsets.get(self._name, start)
        return min(end, max(start, end.get("after", start), dict(own), key=self._count), key=self._count)

    def _count(self, offset: Offset) -> int:
        return int(offset[self.counts])

    @cached_property
    def _skipped(self) -> Skipped:
        return Skipped.of(self.context.log.files, self._name)

    def _warn_of_columns(self, path: str, names: list[str]) -> None:
        """Warn, once in a process, of columns that are new in a file and are not read."""
        new = [name for name in names if (self._name, name) not in _told_columns]
        if new:
            _told_columns.update((self._name, name) for name in new)
            text = f"source {self._name!r}: columns {new} of {path} are not read: it was built without them."
            hint = "an input of another name, with them in files(schema=...), reads them from the start."
            self.context.log_message(logging.WARNING, "%s", with_hint(text, hint))
            write_names(self.context.log.files, "columns", self._name, dict.fromkeys(new, f"first in {path}"))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The packed rows of one share."""
        assert isinstance(partition, ReadPartition)
        with self.context.task():
            yield from self.packed(partition)

    def packed(self, partition: ReadPartition) -> Iterator[pa.RecordBatch]:
        """The packed rows of one share, in any process."""
        source, schema = self.source, self.context.plan.source(self._name).stage.outputs[0]
        folder = source.folder
        if partition.versions is not None:
            folder = replace(folder, versions=partition.versions)
        rows = folder.read(
            partition.parts,
            schema,
            source.columns,
            source.condition,
            source.computed,
            unknown=self._warn_of_columns,
        )
        yield from self.context.pack(self._name, rows, partition.value)
        if partition.bad:
            bad = pack_quarantined(self.context.plan, self._name, partition.bad)
            yield from self.context.labelled(bad).to_batches()


class Ignored:
    """What a source's folder has and is not read: said once in the log, and kept for `Account`."""

    def __init__(self, context: RunContext, source: str) -> None:
        self._context, self._source = context, source
        self._last: dict[str, str] = {}

    def report(self, found: dict[str, str]) -> None:
        """Report the names of a listing, and why they are not read."""
        if found == self._last:
            return
        new = sorted(found.keys() - self._last.keys())
        for name in new[:_TOLD]:
            self._context.log_message(logging.WARNING, "source %r: %s %s", self._source, name, found[name])
        if len(new) > _TOLD:
            text = "source %r: %d more names are not read; python -m timely_spark status has some"
            self._context.log_message(logging.WARNING, text, self._source, len(new) - _TOLD)
        write_ignored(self._context.log.files, self._source, found)
        self._last = found


class FilesReader(Reader):
    """Answers Spark's polls by listing a folder."""

    counts = "files"
    _available_now = False

    @cached_property
    def _journal(self) -> FileJournal:
        return FileJournal(self.context.log.files, self._name)

    @cached_property
    def _unread(self) -> Unread:
        return Unread(self._journal.seen())

    @cached_property
    def _ignored(self) -> Ignored:
        return Ignored(self.context, self._name)

    def _end_here(self) -> None:
        self._list()
        self._available_now = True

    def _begin(self) -> Offset:
        return {"files": -1}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """A limit if the source has one: Spark asks for everything with some triggers."""
        if self.source.files_per_epoch is not None:
            return ReadMaxFiles(self.source.files_per_epoch)
        if self.source.max_bytes_per_epoch is not None:
            return ReadMaxBytes(self.source.max_bytes_per_epoch)
        return ReadAllAvailable()

    def _next(self, start: Offset, limit: ReadLimit) -> Offset:
        number = start["files"]
        if self.context.resident and self._journal.is_behind():  # another process lists in resident batches
            self._start_again()
        if number > self._journal.last:
            self._journal.batch(number)  # which is missing
        if number < self._journal.last:  # the batch was planned before a restart
            return {"files": number + 1}
        unlimited = isinstance(limit, ReadAllAvailable)
        most_files = None if unlimited else self.source.files_per_epoch
        most_bytes = None if unlimited else self.source.max_bytes_per_epoch
        files = self._there(most_files, most_bytes)
        if not files and not self._available_now and self._due():
            self._list()
            files = self._there(most_files, most_bytes)
        if not files:
            return start
        if self.source.on_bad_file == "quarantine":
            files = self._checked(files)
        self.context.log.check_owner()
        try:
            self._journal.append(files)
        except FileExistsError:  # written by a run that lost the checkpoint a moment ago
            self._start_again()
        return {"files": number + 1}

    def _start_again(self) -> None:
        """Read the journal again."""
        for name in ("_journal", "_unread"):
            self.__dict__.pop(name, None)

    def _there(self, most_files: int | None, most_bytes: int | None) -> list[File]:
        """The next files that have not been removed since they were listed."""
        while files := self._unread.next(most_files, most_bytes):
            gone = self.source.folder.gone(files)
            for path in sorted(gone):
                text = "source %r: %s was removed before it was read"
                self.context.log_message(logging.WARNING, text, self._name, path)
            if there := [file for file in files if file.path not in gone]:
                return there
        return []

    def _checked(self, files: list[File]) -> list[File]:
        """The files with the reasons why some cannot be read: decided once, before the journal has them."""
        schema = self.context.plan.source(self._name).stage.outputs[0]
        check = partial(self.source.folder.why_bad, schema=schema, columns=self.source.columns)
        with ThreadPoolExecutor(max(1, self.source.tasks)) as threads:
            reasons = list(threads.map(check, files))
        bad = {file.path: reason for file, reason in zip(files, reasons, strict=True) if reason is not None}
        for path, reason in bad.items():
            text = "source %r: %s is quarantined: %s"
            self.context.log_message(logging.WARNING, text, self._name, path, reason)
        if bad:
            write_names(self.context.log.files, "quarantined", self._name, bad)
        return [file._replace(bad=bad.get(file.path)) for file in files]

    def _list(self) -> None:
        with self._looking():
            files, ignored = self.source.folder.listing()
            self._ignored.report(ignored | self._unread.enter(files))

    def _files(self, start: Offset, end: Offset) -> list[File]:
        numbers = range(start["files"] + 1, end["files"] + 1)
        self._journal.wait()
        return [file for number in numbers for file in self._journal.batch(number)]

    def forget(self, end: Offset) -> None:
        """Merge the batches of the journal that no retained batch can read again."""
        self._journal.merge(end["files"] - self.context.keep)


class DeltaReader(Reader):
    """Answers Spark's polls by looking for the next version of a Delta table that has rows.

    Its offset is `{"version": v, "commit": id}`: the versions up to v have been read, which was that commit.
    The table's own log is the journal.
    """

    counts = "version"
    #: With availableNow, the newest version at the start.
    _target: int | None = None
    #: The newest version that was seen, after the offset, to have no rows.
    _empty = -1
    #: The version after which none was missing.
    _checked: int | None = None

    @cached_property
    def _versions(self) -> dict[str, int]:
        """By file its version, if that can be skipped."""
        return {}

    def _end_here(self) -> None:
        self._target = self.source.log.newest()

    def _begin(self) -> Offset:
        return {"version": (self.source.from_version or 0) - 1}

    def _next(self, start: Offset, limit: ReadLimit) -> Offset:
        log = self.source.log
        if self._is_first(start):
            newest = log.newest() if self._target is None else self._target
            return self._offset(newest) if log.snapshot(newest) else start
        if self._target is None and not self._due():
            return start
        with self._looking():
            end, found = max(start["version"], self._empty), 0
            while found < self.source.versions_per_epoch and end != self._target and log.has(end + 1):
                end += 1
                found += bool(self._version(start, end))
            if not found:
                self._empty = end
                if end == self._checked and log.has(end):
                    return start
                log.check_reachable(end + 1)
                self._checked = end
            log.check_same(start["version"], start.get("commit"))
        return self._offset(end) if found else start

    def _offset(self, version: int) -> Offset:
        return {"version": version, "commit": self.source.log.commit_id(version)}

    def _is_first(self, start: Offset) -> bool:
        return self.source.from_version is None and start["version"] == -1

    def _files(self, start: Offset, end: Offset) -> list[File]:
        log = self.source.log
        log.check_same(end["version"], end.get("commit"))
        if self._is_first(start):
            return list(log.snapshot(end["version"]))
        versions = range(start["version"] + 1, end["version"] + 1)
        expected = self.context.plan.source(self._name).stage.outputs[0]
        return [file for version in versions for file in self._version(start, version, expected)]

    def partitions(self, start: Offset, end: Offset) -> Sequence[ReadPartition]:
        """The shares of the tasks, which know the versions of files for their errors."""
        self._versions.clear()
        shares = super().partitions(start, end)
        for share in shares:
            share.versions = {p.path: self._versions[p.path] for p in share.parts if p.path in self._versions}
        return shares

    def _version(self, start: Offset, version: int, expected: pa.Schema | None = None) -> list[File]:
        """The files of a version; none if it is skipped."""
        if version in self._skipped.versions:
            return []
        log: DeltaLog = self.source.log
        if start["version"] > self._begin()["version"]:  # it can be skipped once a batch is complete
            log = replace(log, folder=replace(log.folder, versions={log.commit(version): version}))
            files = log.files(version, expected)
            self._versions |= {file.path: version for file in files}
            return files
        return log.files(version, expected)


class ReplayReader(Reader):
    """Answers Spark's polls by listing the folder of a capture.

    Its offset is `{"epoch": e, "epochs": n, "complete": 0 or 1, "capture": id}`: the n epochs up to e have
    been read. The folder is its own journal: an epoch never changes its records, and epochs appear in order.
    """

    counts = "epoch"
    #: With availableNow, what was there at the start.
    _target: CapturedEpochs | None = None
    #: When the hold in a published folder was renewed.
    _renewed = 0.0

    def _end_here(self) -> None:
        since, published = -1, self.source.published
        if published is not None:
            if published.held(self._reader) is None:
                published.begin(self._reader)  # so that what is there now stays
            since = published.newest()
        self._target = self.source.after(-1, since)

    @property
    def _reader(self) -> str:
        """The name of this flow's hold."""
        return hashlib.sha256(f"{self.context.checkpoint}/{self._name}".encode()).hexdigest()[:16]

    def _since(self, start: Offset, published: Published) -> int:
        """The snapshot with which this flow begins; its hold is renewed."""
        if start["epoch"] < 0 and "since" not in start:
            return published.begin(self._reader)
        if time.monotonic() - self._renewed > published.lease / 10:
            held = published.held(self._reader)
            published.hold(self._reader, start["epoch"] if held is None else held)
            self._renewed = time.monotonic()
        return int(start.get("since", -1))

    def forget(self, end: Offset) -> None:
        """Move the hold of this flow to `end`: earlier epochs are not read again."""
        if (published := self.source.published) is not None:
            if end["complete"]:
                published.release(self._reader)
            else:
                published.hold(self._reader, end["epoch"])

    def _begin(self) -> Offset:
        return {"epoch": -1, "epochs": 0, "complete": 0}

    def _next(self, start: Offset, limit: ReadLimit) -> Offset:
        if start["complete"] or (self._target is None and not self._due()):
            return start
        with self._looking():
            capture: Any = start.get("capture") or self.source.capture()
            self.source.check_same(capture)
            published = self.source.published
            since = {} if published is None else {"since": self._since(start, published)}
            found = self.source.after(start["epoch"], **since)
        epochs = found.epochs
        if self._target is not None:
            last = max((at for at, _ in self._target.epochs), default=-1)
            epochs, found = [each for each in epochs if each[0] <= last], self._target
        sizes = accumulate(file.size for _, file in epochs)
        read = max(1, sum(size <= _REPLAYED for size in sizes)) if epochs else 0
        complete = found.complete and read == len(epochs)
        if not read and not complete:
            return start
        if read < len(epochs):
            self._next_look = 0.0
        last = epochs[read - 1][0] if read else start["epoch"]
        end = {"epoch": last, "epochs": start["epochs"] + read, "complete": int(complete)}
        return {**end, "capture": capture, **since}

    def partitions(self, start: Offset, end: Offset) -> Sequence[ReadPartition]:
        """The shares of the tasks: whole epochs. The first one also reports the progress."""
        start = self._begins(start, end)
        with self.context.reporting():
            number = end["epochs"] - start["epochs"]
            since = end.get("since", -1)
            files = [file for _, file in self.source.between(start["epoch"], end["epoch"], number, since)]
            files = [file for file in files if file.path not in self._skipped.files]
        progress = None if end["complete"] else end["epoch"] + 1
        first, *others = split_files(files, self.source.tasks, divisible=False) or [[]]
        shares = [ReadPartition(0, first, progress)]
        for parts in others:
            shares.append(ReadPartition(shares[-1].value + len(shares[-1].parts), parts))
        return shares

    def packed(self, partition: ReadPartition) -> Iterator[pa.RecordBatch]:
        """The packed rows of the epochs, each a shard of its own, and the progress."""
        name, context, source = self._name, self.context, self.source
        schema = context.plan.source(name).stage.outputs[0]
        for shard, part in enumerate(partition.parts, partition.value):
            rows = source.folder.read([part], schema, source.columns)
            yield from context.pack(name, rows, shard, epoch=epoch_of(part.path))
        if partition.progress != 0:
            to = partition.progress
            progress = pack_input(context.plan, name, [(0, "advance" if to else "close", to, None)])
            yield from context.labelled(progress).to_batches()


def reader_of(context: RunContext, name: str) -> Reader:
    """The reader of an input, for any process."""
    source = context.sources[name]
    kinds: dict[type[Any], type[Reader]] = {DeltaSource: DeltaReader, ReplaySource: ReplayReader}
    return kinds.get(type(source), FilesReader)(context, source)
