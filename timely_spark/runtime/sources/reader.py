"""`Reader`: what is new in a journaled source, and the rows of it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import pyarrow as pa

from timely_spark.errors import with_hint
from timely_spark.runtime.errors import BadFile
from timely_spark.runtime.run_context import RunContext
from timely_spark.runtime.sources.account import write_names, write_waiting
from timely_spark.runtime.sources.arrivals import File, Part, quarantined, split_files
from timely_spark.runtime.sources.skipped import Skipped
from timely_spark.runtime.storage.log import FIRST
from timely_spark.worker import pack_quarantined

Offset = dict[str, Any]
SeenChanges = Callable[[str | None], int]
"""How many changes were seen in a folder until now: `Wakeup.changes`."""

#: Looking for new input takes at most one part in so many of the time, if nothing announces any.
_IDLE = 10
#: (checkpoint, source, column) that this process has warned about.
_warned_columns: set[tuple[str, str, str]] = set()


@dataclass(frozen=True, slots=True)
class FilesShare:
    """The files that one task reads; `number` is the same when the batch is read again."""

    number: int
    parts: list[Part]
    #: The epoch to which a replay advances the input; None if the input is closed; 0 if another task
    #: advances it.
    progress: int | None = 0
    #: the quarantined files of the batch
    bad: Sequence[File] = ()
    #: the Delta version of each file, if that may be skipped
    versions: Mapping[str, int] | None = None

    @property
    def size(self) -> int:
        """Bytes to read."""
        return sum(part.end - part.start for part in self.parts)


class Reader:
    """Finds what is new, and reads what is between two offsets; each subclass is for one kind of source."""

    #: The number in an offset by which the kinds of sources differ.
    counts: ClassVar[str]
    #: The type of that number, or of those numbers.
    count: ClassVar[type] = int

    def __init__(self, context: RunContext, source: Any, changes: SeenChanges) -> None:
        self.context, self.source = context, source
        self._name: str = source.name
        #: How many changes were seen in folders, and in the source's when it was looked at last.
        self._changes, self._seen = changes, 0
        #: When the source may be looked at again, if nothing announces new input.
        self._next_look = 0.0
        #: The newest manifest that was seen, and the offsets in it.
        self._newest: int | None = None
        self._resident: Mapping[str, Offset] = {}
        #: How much was there at the last look that no batch has begun to read; and as last written.
        self._waiting = 0
        self._written: int | None = None

    @property
    def limited(self) -> bool:
        """Whether the source has a limit of what one batch reads."""
        return False

    def fix_end(self) -> None:
        """Read what is there now, and nothing later."""
        with self.context.reporting():
            self._fix_end()

    def latest_offset(self, start: Offset, *, unlimited: bool = False) -> Offset:
        """The offset after the next batch; `start` if there is nothing new.

        Args:
            start: the offset after the batch before.
            unlimited: whether the source's limit does not hold.
        """
        with self.context.reporting():
            self._check_kind(start)
            read = self._read_to(start)
            end = self._next(read, unlimited=unlimited)
            if self._waiting != self._written:
                write_waiting(self.context.log.files, self._name, self._waiting)
                self._written = self._waiting
            if end == read:
                return start
            return end if read is start else {**end, "after": read}

    def _check_kind(self, offset: Offset) -> None:
        """Check that an offset in the checkpoint is one of this kind of source."""
        if not isinstance(offset.get(self.counts), self.count):
            reads = f"source {self._name!r} reads {self.counts}"
            msg = f"{reads}, but its position in the checkpoint is {offset!r}"
            hint = "keep the kind of the source, or use a new checkpoint."
            raise BadFile(msg, where=self.source.where, hint=hint)

    def _read_to(self, start: Offset) -> Offset:
        """The offset up to which the source was read: resident batches go on after Spark's offset."""
        context = self.context
        positions = [start]
        if self._name in context.read_offsets:
            positions.append(dict(context.read_offsets[self._name]))
        # a run in which no micro-batch stays repeats what an earlier run has begun, too
        stays = context.resident or context.continued != FIRST
        if stays and (newest := context.log.newest(self._newest)) is not None:
            if newest != self._newest:
                manifest = context.log.read(newest)
                self._newest, self._resident = newest, {} if manifest is None else manifest.sources
            positions += [dict(self._resident[self._name])] if self._name in self._resident else []
        return max(positions, key=self.position)

    def initial_offset(self) -> Offset:
        """The offset before the first batch."""
        raise NotImplementedError

    def commit(self, end: Offset) -> None:
        """Micro-batches up to `end` are committed; of a resident one, the driver says what is read."""
        if not self.context.resident:
            with self.context.reporting():
                self.forget(end)

    def forget(self, end: Offset) -> None:
        """Let go of what is needed only to read again what is before `end`."""

    def _fix_end(self) -> None:
        raise NotImplementedError

    def _next(self, start: Offset, *, unlimited: bool) -> Offset:
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
        before, self._seen = self._seen, self._changes(self.source.watched)
        return self._seen != before or time.monotonic() >= self._next_look

    def shares(self, start: Offset, end: Offset) -> Sequence[Any]:
        """The shares of the tasks between two offsets; one at least, which reports the epoch."""
        start = self._begins(start, end)
        with self.context.reporting():
            files = [file for file in self._files(start, end) if file.path not in self._skipped.files]
        good = [file for file in files if file.bad is None]
        shares = split_files(good, self.source.tasks, divisible=self.source.folder.divisible) or [[]]
        bad = [file for file in files if file.bad is not None]
        return [FilesShare(n, parts, bad=() if n else bad) for n, parts in enumerate(shares)]

    def _begins(self, start: Offset, end: Offset) -> Offset:
        """The offset after which the batch up to `end` begins."""
        with self.context.reporting():
            self._check_kind(end)
        own = self.context.read_offsets.get(self._name, start)
        return min(end, max(start, end.get("after", start), dict(own), key=self.position), key=self.position)

    def position(self, offset: Offset) -> int:
        """How far an offset has read: later ones have larger numbers."""
        return int(offset[self.counts])

    @cached_property
    def _skipped(self) -> Skipped:
        return Skipped.of(self.context.log.files, self._name)

    def _warn_of_columns(self, path: str, names: list[str], lacks: list[str]) -> None:
        """Warn, once in a process, of columns that are new in a file and are not read."""
        source = self.context.checkpoint, self._name
        if new := [name for name in names if (*source, name) not in _warned_columns]:
            _warned_columns.update((*source, name) for name in new)
            text = f"source {self._name!r}: columns {new} of {path} are not read: it was built without them"
            text += f". The file lacks {lacks}, which is null in its rows." if lacks else "."
            hint = "an input of another name, with them in files(schema=...), reads them from the start."
            self.context.log_message(logging.WARNING, "%s", with_hint(text, hint))
            first = f"first in {path}" + (f", which lacks {', '.join(lacks)}" if lacks else "")
            write_names(self.context.log.files, "columns", self._name, dict.fromkeys(new, first))

    def read(self, share: Any) -> Iterator[pa.RecordBatch]:
        """The packed rows of one share, in a task."""
        with self.context.task(packs=True):
            yield from self.packed(share)

    def packed(self, share: Any) -> Iterator[pa.RecordBatch]:
        """The packed rows of one share, in any process."""
        source, schema = self.source, self.context.plan.source(self._name).stage.outputs[0]
        folder = source.folder
        if share.versions is not None:
            folder = replace(folder, versions=share.versions)
        rows = folder.read(
            share.parts,
            schema,
            source.columns,
            source.condition,
            source.computed,
            unknown=self._warn_of_columns,
        )
        yield from self.context.pack(self._name, rows, share.number)
        if share.bad:
            bad = pack_quarantined(self.context.plan, self._name, quarantined(share.bad))
            yield from self.context.labelled(bad).to_batches()
