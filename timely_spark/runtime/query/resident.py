"""`ResidentInputs`: what a flow's own inputs have, read by the driver while a micro-batch stays resident.

These are the inputs with a journal: entries of handles, files, tables, topics, captures. They have the same
readers between micro-batches, so a batch reads the same rows in either process.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from timely_spark.errors import LogDamaged
from timely_spark.runtime.process import in_thread
from timely_spark.runtime.query.flow_reader import SMALL_ENTRIES, next_entries, packed_entries, wakeup_of
from timely_spark.runtime.run_context import RunContext
from timely_spark.runtime.sources.file_readers import readers_of
from timely_spark.runtime.sources.reader import Reader
from timely_spark.runtime.sources.wakeup import Wakeup
from timely_spark.runtime.storage.manifest import Manifest
from timely_spark.worker import ROWS

#: Bytes of files, tables and topics that this process reads at a time; tasks read more in parallel.
SMALL_BYTES = 4 << 20
#: Seconds to wait where nothing escapes the wake-up.
LONG = 0.25


@dataclass(frozen=True, slots=True)
class Ends:
    """The end of a batch in the inputs: the last entry of each handle, the offset of each other input."""

    entries: Mapping[str, int]
    sources: Mapping[str, Mapping[str, Any]]

    @classmethod
    def of(cls, manifest: Manifest) -> Ends:
        """The end of the batch of a manifest."""
        return cls(manifest.entries, manifest.sources)

    def encode(self) -> dict[str, Any]:
        """The ends as JSON."""
        return {"entries": dict(self.entries), "sources": dict(self.sources)}


@dataclass
class ResidentInputs:
    """The inputs of a flow, apart from Spark's DataFrames."""

    context: RunContext

    @cached_property
    def _readers(self) -> dict[str, Reader]:
        # the watch begins when it is asked for: tasks have readers, too
        return readers_of(self.context, lambda folder: self._wakeup.changes(folder))  # noqa: PLW0108

    @cached_property
    def _wakeup(self) -> Wakeup:
        """Told of entries, of what sources watch, and of commands, which are files."""
        return wakeup_of(self.context, "inputs", "terms", "cancels")

    def wait(self, seconds: float) -> bool:
        """Wait until an input or a command may be new; False after so many seconds, or `LONG`."""
        complete = self.context.log.files.local and self._wakeup.complete
        return self._wakeup.wait(LONG if complete else seconds)

    def available(self, read: Ends) -> tuple[Ends, bool]:
        """The end of a batch after `read`; and whether this process may run so large a one.

        Files are in their journal when this returns.
        """
        entries, sources, sent, size = dict(read.entries), dict(read.sources), 0, 0
        for name in self.context.inputs:
            last, entry_bytes = next_entries(self.context.log, name, entries.get(name, -1))
            if entry_bytes:
                entries[name], sent = last, sent + entry_bytes
        for name, reader in self._readers.items():
            before = dict(sources.get(name) or reader.initial_offset())
            end = reader.latest_offset(before)
            if end != before:
                sources[name] = end
                size += sum(share.size for share in reader.shares(before, end))
        return Ends(entries, sources), sent <= SMALL_ENTRIES and size <= SMALL_BYTES

    def begin(self, batch: int, ends: Ends) -> Future[dict[str, Any]]:
        """Write, exclusively and durably, where a batch reads the inputs to, while its rounds run.

        The disk takes as long as a small batch. Nothing of the batch may be released before the result.
        """
        return in_thread(self._thread, partial(self.context.log.begin, batch, ends.encode()))

    @cached_property
    def _thread(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(1, "timely-begin")

    def check(self, batch: int, read: Ends, ends: Ends) -> None:
        """Check the recorded ends of a batch: they are not before what was `read`, or it would be read again.

        Raises:
            LogDamaged: the record is one of another checkpoint, or of another time.
        """
        behind = [name for name, last in read.entries.items() if ends.entries.get(name, -1) < last]
        for name, start in read.sources.items():
            if (reader := self._readers.get(name)) is not None:
                end = ends.sources.get(name) or reader.initial_offset()
                behind += [name] if reader.position(dict(end)) < reader.position(dict(start)) else []
        if behind:
            reason = f"it ends before what was read of {', '.join(map(repr, behind))}"
            raise LogDamaged.unreadable(self.context.log.files.root, f"epochs/{batch}.json", reason)

    def rows(self, read: Ends, ends: Ends) -> pa.Table:
        """The packed rows between two positions, by worker."""
        tables = [ROWS.empty_table()]
        for name, last in ends.entries.items():
            if (first := read.entries.get(name, -1) + 1) <= last and name in self.context.inputs:
                tables.append(packed_entries(self.context, name, range(first, last + 1)).cast(ROWS))
        labels = pa.array(self.context.labels, pa.int32())
        for name, end in ends.sources.items():
            if name in self._readers and end != read.sources.get(name):
                reader = self._readers[name]
                start = dict(read.sources.get(name) or reader.initial_offset())
                batches = [each for share in reader.shares(start, dict(end)) for each in reader.packed(share)]
                table = pa.Table.from_batches(batches, ROWS)
                tables.append(table.set_column(0, ROWS.field(0), pc.index_in(table.column("worker"), labels)))
        return pa.concat_tables(tables)

    def forget(self, manifest: Manifest) -> None:
        """Let go of what is needed only to read again what is before a manifest's ends."""
        for name, end in manifest.sources.items():
            if name in self._readers:
                self._readers[name].forget(dict(end))
