"""The sources of files: read and packed by Spark's tasks.

The offset of a folder is `{"files": k}`: batches 0 to k of the source's journal have been read. A batch is in
the journal before its offset is in Spark's log, and durably before a task reads it. So a replay reads the
same files, and a restart continues from the journal.

If resident batches have read more than Spark's last offset has, the next offset has `"after"`: where its
batch begins.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property, partial
from itertools import accumulate
from typing import Any

import pyarrow as pa

from timely_spark.runtime.process import in_thread
from timely_spark.runtime.run_context import RunContext
from timely_spark.runtime.sources.account import write_ignored, write_names
from timely_spark.runtime.sources.arrivals import File, Unread, split_files
from timely_spark.runtime.sources.delta_log import DeltaLog, DeltaSource
from timely_spark.runtime.sources.journal import FileJournal
from timely_spark.runtime.sources.kafka import KafkaSource
from timely_spark.runtime.sources.kafka_reader import KafkaReader
from timely_spark.runtime.sources.reader import FilesShare, Offset, Reader, SeenChanges
from timely_spark.runtime.sources.replay import CapturedEpochs, ReplaySource
from timely_spark.runtime.storage.published import Published, epoch_of
from timely_spark.worker import pack_input

#: The log has so many names of one listing.
_LOGGED = 10
#: One batch replays at most so many bytes of files, but one epoch at least.
_REPLAYED = 64 << 20


class FilesReader(Reader):
    """Finds what is new by listing a folder."""

    counts = "files"
    _available_now = False
    #: The names in the last listing that are not read, each with the reason; None before the first listing.
    _ignored: Mapping[str, str] | None = None

    #: The last batch of the journal that was there when this object looked first.
    _earlier: int | None = None

    @cached_property
    def _journal(self) -> FileJournal:
        journal = FileJournal(self.context.log.files, self._name)
        self._earlier = journal.last if self._earlier is None else self._earlier
        return journal

    @cached_property
    def _unread(self) -> Unread:
        return Unread(self._journal.identities())

    def _fix_end(self) -> None:
        self._list()
        self._available_now = True

    def initial_offset(self) -> Offset:
        return {"files": -1}

    @property
    def limited(self) -> bool:
        return (self.source.files_per_epoch, self.source.max_bytes_per_epoch) != (None, None)

    def _next(self, start: Offset, *, unlimited: bool) -> Offset:
        number = start["files"]
        if self.context.resident and self._journal.is_behind():  # another process lists in resident batches
            self._start_again()
        if number > self._journal.last:
            self._journal.batch(number)  # which is missing
        if number < self._journal.last:  # the batch was planned before a restart
            return {"files": number + 1}
        most_files = None if unlimited else self.source.files_per_epoch
        most_bytes = None if unlimited else self.source.max_bytes_per_epoch
        files = self._present(most_files, most_bytes)
        if not files and not self._available_now and self._due():
            self._list()
            files = self._present(most_files, most_bytes)
        self._waiting = len(self._unread)
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

    def _present(self, most_files: int | None, most_bytes: int | None) -> list[File]:
        """The next files that have not been removed since they were listed."""
        while files := self._unread.next(most_files, most_bytes):
            sizes = self.source.folder.sizes(files)
            self._unread.forget(removed := {path for path, size in sizes.items() if size is None})
            for path in sorted(removed):
                text = "source %r: %s was removed before it was read"
                self.context.log_message(logging.WARNING, text, self._name, path)
            if present := [file for file in files if file.path not in removed]:
                return present
        return []

    def _checked(self, files: list[File]) -> list[File]:
        """The files with the reasons why some cannot be read: decided once, before the journal has them."""
        schema = self.context.plan.source(self._name).stage.outputs[0]
        check = partial(self.source.folder.why_bad, schema=schema, columns=self.source.columns)
        with ThreadPoolExecutor(self.source.tasks) as threads:
            checks = [in_thread(threads, partial(check, file)) for file in files]
            reasons = [each.result() for each in checks]
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
            self._report(ignored | self._unread.enter(files))

    def _report(self, ignored: Mapping[str, str]) -> None:
        """Log what is in the folder and is not read, once, and store it for `Account`."""
        if ignored == self._ignored:
            return
        new = sorted(ignored.keys() - (self._ignored or {}).keys())
        for name in new[:_LOGGED]:
            self.context.log_message(logging.WARNING, "source %r: %s %s", self._name, name, ignored[name])
        if len(new) > _LOGGED:
            text = "source %r: %d more names are not read; python -m timely_spark status has some"
            self.context.log_message(logging.WARNING, text, self._name, len(new) - _LOGGED)
        write_ignored(self.context.log.files, self._name, ignored)
        self._ignored = ignored

    def _files(self, start: Offset, end: Offset) -> list[File]:
        numbers = range(start["files"] + 1, end["files"] + 1)
        self._journal.wait()
        files = [file for number in numbers for file in self._journal.batch(number)]
        if self._earlier is None or start["files"] >= self._earlier:
            return files
        # since an earlier run a damaged file may have been restored, with another size
        sizes = self.source.folder.sizes(files)
        return [file._replace(size=sizes[file.path] or file.size) for file in files]

    def forget(self, end: Offset) -> None:
        """Merge the batches of the journal that no retained batch can read again."""
        self._journal.merge(end["files"] - self.context.keep)


class DeltaReader(Reader):
    """Finds what is new by looking for the next version of a Delta table that has rows.

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
        """The version of each file that can be skipped."""
        return {}

    def _fix_end(self) -> None:
        self._target = self.source.log.newest()

    def initial_offset(self) -> Offset:
        return {"version": (self.source.from_version or 0) - 1}

    def _next(self, start: Offset, *, unlimited: bool) -> Offset:
        log = self.source.log
        if self._is_first(start):
            newest = log.newest() if self._target is None else self._target
            return self._offset(newest) if log.snapshot(newest, self._columns) else start
        if self._target is None and not self._due():
            return start
        with self._looking():
            end, count = max(start["version"], self._empty), 0
            while count < self.source.versions_per_epoch and end != self._target and log.has(end + 1):
                end += 1
                count += bool(self._version(start, end))
            if not count:
                self._empty = end
                if end == self._checked and log.has(end):
                    return start
                log.check_reachable(end + 1)
                self._checked = end
            log.check_same(start["version"], start.get("commit"))
            more = count and end != self._target and log.has(end + 1)
            self._waiting = (log.newest() if self._target is None else self._target) - end if more else 0
        return self._offset(end) if count else start

    @property
    def _columns(self) -> pa.Schema:
        """The columns of the table when the flow was built."""
        return self.context.plan.source(self._name).stage.outputs[0]

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
        return [file for version in versions for file in self._version(start, version, self._columns)]

    def shares(self, start: Offset, end: Offset) -> Sequence[FilesShare]:
        """The shares of the tasks, which know the versions of files for their errors."""
        self._versions.clear()
        shares, versions = super().shares(start, end), self._versions
        return [
            replace(share, versions={p.path: versions[p.path] for p in share.parts if p.path in versions})
            for share in shares
        ]

    def _version(self, start: Offset, version: int, expected: pa.Schema | None = None) -> list[File]:
        """The files of a version; none if it is skipped."""
        if version in self._skipped.versions:
            return []
        log: DeltaLog = self.source.log
        if start["version"] > self.initial_offset()["version"]:  # it can be skipped once a batch is complete
            log = replace(log, folder=replace(log.folder, versions={log.commit(version): version}))
            files = log.files(version, expected)
            self._versions |= {file.path: version for file in files}
            return files
        return log.files(version, expected)


class ReplayReader(Reader):
    """Finds what is new by listing the folder of a capture.

    Its offset is `{"epoch": e, "epochs": n, "complete": 0 or 1, "capture": id}`: the n epochs up to e have
    been read. The folder is its own journal: an epoch never changes its records, and epochs appear in order.
    """

    counts = "epoch"
    #: With availableNow, what was there at the start.
    _target: CapturedEpochs | None = None
    #: When the hold in a published folder was renewed.
    _renewed = float("-inf")

    def _fix_end(self) -> None:
        since, published = -1, self.source.published
        if published is not None:
            if published.held(self._reader) is None:
                self.source.begin(published, self._reader)  # so that what is there now stays
            since = published.newest()
        self._target = self.source.after(-1, since)

    @property
    def _reader(self) -> str:
        """The name of this flow's hold."""
        return hashlib.sha256(f"{self.context.checkpoint}/{self._name}".encode()).hexdigest()[:16]

    def _since(self, start: Offset, published: Published) -> int:
        """The snapshot with which this flow begins; its hold is renewed."""
        if start["epoch"] < 0 and "since" not in start:
            return int(self.source.begin(published, self._reader))
        if time.monotonic() - self._renewed > published.lease / 10:
            held = published.held(self._reader)
            at = start["epoch"] if held is None else held
            self.source.hold(published, self._reader, at, start.get("since", -1))
            self._renewed = time.monotonic()
        return int(start.get("since", -1))

    def forget(self, end: Offset) -> None:
        """Move the hold of this flow to `end`: earlier epochs are not read again."""
        if (published := self.source.published) is not None:
            if end["complete"]:
                published.release(self._reader)
            else:
                self.source.hold(published, self._reader, end["epoch"], end.get("since", -1))

    def initial_offset(self) -> Offset:
        return {"epoch": -1, "epochs": 0, "complete": 0}

    def _next(self, start: Offset, *, unlimited: bool) -> Offset:
        if start["complete"] or (self._target is None and not self._due()):
            return start
        with self._looking():
            capture: Any = start.get("capture") or self.source.capture()
            self.source.check_same(capture)
            published = self.source.published
            since = {} if published is None else {"since": self._since(start, published)}
            captured = self.source.after(start["epoch"], **since)
        epochs = captured.epochs
        if self._target is not None:
            last = max((at for at, _ in self._target.epochs), default=-1)
            epochs, captured = [each for each in epochs if each[0] <= last], self._target
        sizes = accumulate(file.size for _, file in epochs)
        read = max(1, sum(size <= _REPLAYED for size in sizes)) if epochs else 0
        complete, self._waiting = captured.complete and read == len(epochs), len(epochs) - read
        if not read and not complete:
            return start
        if read < len(epochs):
            self.look_again()
        last = epochs[read - 1][0] if read else start["epoch"]
        end = {"epoch": last, "epochs": start["epochs"] + read, "complete": int(complete)}
        return {**end, "capture": capture, **since}

    def shares(self, start: Offset, end: Offset) -> Sequence[FilesShare]:
        """The shares of the tasks: whole epochs. The first one also reports the progress."""
        start = self._begins(start, end)
        with self.context.reporting():
            number = end["epochs"] - start["epochs"]
            since = end.get("since", -1)
            files = [file for _, file in self.source.between(start["epoch"], end["epoch"], number, since)]
            files = [file for file in files if file.path not in self._skipped.files]
        progress = None if end["complete"] else end["epoch"] + 1
        first, *others = split_files(files, self.source.tasks, divisible=False) or [[]]
        shares = [FilesShare(0, first, progress)]
        for parts in others:
            shares.append(FilesShare(shares[-1].number + len(shares[-1].parts), parts))
        return shares

    def packed(self, share: FilesShare) -> Iterator[pa.RecordBatch]:
        """The packed rows of the epochs, each a shard of its own, and the progress."""
        name, context, source = self._name, self.context, self.source
        schema = context.plan.source(name).stage.outputs[0]
        for shard, part in enumerate(share.parts, share.number):
            rows = source.read(part, schema, source.columns)
            yield from context.pack(name, rows, shard, epoch=epoch_of(part.path))
        if share.progress != 0:
            to = share.progress
            progress = pack_input(context.plan, name, [(0, "advance" if to else "close", to, None)])
            yield from context.labelled(progress).to_batches()


def readers_of(context: RunContext, changes: SeenChanges) -> dict[str, Reader]:
    """The readers of the sources that this package reads, by input; for any process."""
    kinds: dict[type[Any], type[Reader]] = {
        DeltaSource: DeltaReader,
        KafkaSource: KafkaReader,
        ReplaySource: ReplayReader,
    }
    return {
        name: kinds.get(type(source), FilesReader)(context, source, changes)
        for name, source in context.sources.items()
    }
