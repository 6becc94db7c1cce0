"""`ReplaySource`: the epochs that another flow captures, in order, and whether there are more to come."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa

from timely_spark.differential.imported import FILE, Opened
from timely_spark.runtime.errors import BadFile
from timely_spark.runtime.sinks.capture_folder import END_OF_WINDOWS, SCHEMA
from timely_spark.runtime.sinks.folder import COMPLETE, OWNER
from timely_spark.runtime.sources.arrivals import File, Part
from timely_spark.runtime.sources.folder import FileSource
from timely_spark.runtime.storage.files import Files
from timely_spark.runtime.storage.published import MappedSnapshots, Published, epoch_of, is_snapshot


class CapturedEpochs(NamedTuple):
    """The epochs that a capture has written after an epoch."""

    #: (epoch, file), in order
    epochs: list[tuple[int, File]]
    #: Whether there is no later epoch.
    complete: bool


@dataclass(frozen=True)
class ReplaySource(FileSource):
    """A source that replays the epochs that `CaptureFolderSink` writes; errors are `BadFile`.

    Args:
        maps: whether the workers map the snapshot with which the flow begins: it is read as one row, which
            has its name in column `FILE`.
    """

    maps: bool = False

    def schema(self) -> pa.Schema:
        """The schema of the captured stream."""
        schema = self._schema().remove_metadata()
        return schema.append(pa.field(FILE, pa.string())) if self.maps else schema

    @property
    def end_of_windows(self) -> int:
        """The epoch in which windows of the captured stream close at the end."""
        return int((self._schema().metadata or {}).get(END_OF_WINDOWS, 0))

    def _schema(self) -> pa.Schema:
        if (empty := self._files.table(SCHEMA)) is None:
            raise self._none()
        return empty.schema

    def read(self, part: Part, schema: pa.Schema, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """The rows of an epoch, or of a snapshot."""
        if self.maps and is_snapshot(part.path):
            row = pa.table({FILE: [part.path.rpartition("/")[2]]}, schema=pa.schema([schema.field(FILE)]))
            every = [row[FILE] if name == FILE else pa.nulls(1, schema.field(name).type) for name in columns]
            return iter(pa.table(every, schema=pa.schema(map(schema.field, columns))).to_batches())
        return self.folder.read([part], schema, columns)

    def begin(self, published: Published, reader: str) -> int:
        """Hold the newest snapshot for a reader; see `Published.begin`."""
        return published.begin(reader, maps=self.maps)

    def hold(self, published: Published, reader: str, epoch: int, since: int) -> None:
        """Hold what comes after an epoch, and the snapshot `since`, if it is mapped."""
        published.hold(reader, epoch, base=since if self.maps else -1)

    def arranged(self) -> Published:
        """The published collection, which must be arranged."""
        if (declared := self.published) is not None and declared.keys:
            return declared
        what = "a stream or collection" if declared is None else "a collection that was not arranged"
        hint = "in the other flow, write collection.arrange(keys).publish(path); or read it by replay()."
        self.schema()  # raises if there is nothing
        msg = f"{self.folder.path} has {what}, not an arrangement"
        raise self.folder.error(msg, hint)

    def opened(self, about: Published) -> Opened:
        """A reader that maps the snapshots of an arranged collection, in any process."""
        return MappedSnapshots(self.folder.path, about.diff, self.name, self.where)

    def capture(self) -> str:
        """The id of the capture, another one for each checkpoint of the flow that captures."""
        if (capture := self._capture()) is None:
            raise self._none()
        return capture

    def _capture(self) -> str | None:
        content = self._files.read(OWNER)
        return None if content is None else str(self._files.parsed(OWNER, content)["checkpoint"])

    def check_same(self, capture: str) -> None:
        """Check that the folder still has the capture whose epochs were read."""
        if (now := self._capture()) == capture:
            return
        if now is None:
            present, action = "no capture any more", "restore the folder and start again; or "
        else:
            present, action = f"the capture of checkpoint {now}", ""
        what = f"{self.folder.path} has {present}; epochs were read of {capture}"
        hint = f"{action}start this flow with a new checkpoint, or capture to another folder."
        raise self.folder.error(what, hint)

    @property
    def published(self) -> Published | None:
        """The holds of the readers of a capture that is kept short."""
        return Published.of(self._files)

    def after(self, epoch: int, since: int = -1) -> CapturedEpochs:
        """The epochs after `epoch` that are there; those up to `since` are in one snapshot."""
        complete = self._files.exists(COMPLETE)  # before the listing: all files were there before the mark
        files = self._listed(epoch, since)
        if files and not complete:
            # a listing may miss a file that appears meanwhile, and have a later one: what was there at the
            # end of the first listing is in the second
            last = files[-1][0]
            files = [(at, file) for at, file in self._listed(epoch, since) if at <= last]
        return CapturedEpochs(files, complete)

    def between(self, start: int, end: int, number: int, since: int = -1) -> list[tuple[int, File]]:
        """The `number` epochs after `start` up to `end`."""
        files = [(at, file) for at, file in self._listed(start, since) if at <= end]
        if len(files) != number:
            msg = (
                f"{self.folder.path} had {number} epochs from {start + 1} to {end}, which are planned; now "
                f"it has {len(files)} of them"
            )
            hint = "restore them and start again; remove files only when all flows have replayed them."
            raise self.folder.error(msg, hint)
        return files

    def _listed(self, epoch: int, since: int) -> list[tuple[int, File]]:
        files = [(at, file) for file in self.folder.files() if (at := epoch_of(file.path)) >= 0]
        newest = max((at for at, file in files if is_snapshot(file.path)), default=-1)
        if newest > max(epoch, since) >= 0 and epoch >= 0:
            msg = f"{self.folder.path} has epochs up to {newest} as a sum only, {epoch} was read last"
            hint = "start it with a new checkpoint; publish(lease=) must be longer than it may be away."
            raise self.folder.error(msg, hint)
        return sorted(
            (at, file)
            for at, file in files
            if (at == since > epoch if is_snapshot(file.path) else at > max(epoch, since))
        )

    @property
    def _files(self) -> Files:
        return Files(self.folder.path)

    def _none(self) -> BadFile:
        hint = "start the flow with capture_to(path) first; its first epoch need not be complete."
        return self.folder.error(f"{self.folder.path} has no capture", hint)
