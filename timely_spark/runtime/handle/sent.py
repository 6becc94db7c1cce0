"""`Sent`: all that the inputs have at a moment, and which epochs it is in: what `wait_for` waits for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from timely_spark.compiler.plan import Plan
from timely_spark.runtime.handle.idle import Idle
from timely_spark.runtime.handle.log_view import LogView
from timely_spark.runtime.sources.present import Read, last_captured, present
from timely_spark.runtime.sources.replay import ReplaySource
from timely_spark.runtime.sources.source import JournaledSource
from timely_spark.runtime.storage.entries import Journal, entry_size
from timely_spark.runtime.storage.manifest import Manifest
from timely_spark.worker.epoch_columns import by_column


@dataclass(frozen=True, slots=True)
class Open:
    """Records that no answer can have: their epoch is not closed."""

    #: the last epoch that has records
    epoch: int
    #: the first epoch that each input has not closed, if that keeps `epoch` open
    inputs: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Sent:
    """The contents of a running flow's inputs: entries of handles, files, versions, captured epochs.

    Only Spark knows what its own sources have. A micro-batch that begins later has read all of it; so has the
    newest one if Spark finds nothing more.
    """

    plan: Plan
    watch: LogView
    inputs: Sequence[Journal]
    #: what each input reads, if no handle sends to it
    sources: Mapping[str, object] = field(default_factory=dict)
    idle: Idle | None = None

    def epoch(self, names: Sequence[str], seconds: float = 0.0) -> Callable[[], int | None]:
        """A function that returns the epoch until which outputs have everything; None means not known yet.

        Args:
            names: outputs and probes; inputs that lead to none of them do not count.
            seconds: of handles, what they have sent until so long ago.
        """
        reaching = self._reaching(names)
        if any(self._epochs(name) == "manual" for name in reaching):
            last = self._closed(reaching, seconds)
            return lambda: last
        read, epochs = self._read_by(reaching, seconds), list[int]()

        def epoch() -> int | None:
            if not epochs and read(newest := self.watch.newest()):
                epochs.append(newest.batch if self.plan.clocked else _ended(newest.coordinator, reaching))
            return epochs[0] if epochs else None

        return epoch

    def taken(self) -> Callable[[], bool]:
        """A function that returns whether a batch has read all that handles and files have now."""
        read = self._read_by({*self.plan.sources}, 0.0, spark=False)
        return lambda: read(self.watch.newest())

    def records(self, names: Sequence[str], seconds: float = 0.0) -> int:
        """The last epoch to which handles with manual epochs have sent records; -1 if none has."""
        return max((journal.as_of(seconds).last for journal in self._journals(names)), default=-1)

    def open(self, names: Sequence[str], seconds: float = 0.0) -> Open | None:
        """The records that outputs cannot have until an input closes their epoch; None if there are none."""
        last = self.records(names, seconds)
        now = {journal.name: journal.position for journal in self._journals(names)}
        open_ = {name: each.epoch for name, each in now.items() if not each.closed and each.epoch <= last}
        return Open(last, open_) if open_ else None

    def _journals(self, names: Sequence[str]) -> list[Journal]:
        reaching = self._reaching(names)
        return [journal for journal in self.inputs if journal.name in reaching]

    def _reaching(self, names: Sequence[str]) -> set[str]:
        """The inputs that lead to outputs or probes."""
        nodes = [self.plan.by_name[name] for name in names]
        places = [at for node in nodes for at in (node.arrives, *(at for at, _ in node.ports))]
        return {each.source.name for at in places for each in self.plan.entries_to.get(at, ())}

    def _epochs(self, name: str) -> str:
        return self.plan.source(name).epochs

    def _closed(self, reaching: set[str], seconds: float) -> int:
        """The last epoch that all inputs with manual epochs have closed, replays among them."""
        first_open, last = list[int](), -1
        for journal in self.inputs:
            if journal.name in reaching:
                position = journal.as_of(seconds)
                last = max(last, position.last, position.epoch)
                first_open += [] if position.closed else [position.epoch]
        for name, source in self.sources.items():
            if name in reaching and isinstance(source, ReplaySource):
                epoch, complete = last_captured(source)
                last = max(last, epoch)
                first_open += [] if complete else [epoch + 1]
        if not first_open:
            return last
        return min(first_open) - 1

    def _read_by(
        self, reaching: set[str], seconds: float, *, spark: bool = True
    ) -> Callable[[Manifest], bool]:
        """A function of a manifest: whether everything was read up to its batch."""
        log = self.watch.log
        entries = {j.name: j.as_of(seconds).sent for j in self.inputs if j.name in reaching}
        for name in reaching:
            if by_column(self._epochs(name)):  # its only entry is that it is closed
                entries[name] = int(entry_size(log, name, 0) is not None)
        read: dict[str, Read] = {}
        foreign = False
        for name, source in self.sources.items():
            if name in reaching and isinstance(source, JournaledSource) and self._lists_files:
                read[name] = present(source, name, log.files)
            elif name in reaching:
                foreign = spark
        # The one after those that are committed may have been planned just before now. A manifest tells less:
        # that of a micro-batch in which nothing happens replaces the one before, unseen.
        begun = log.committed() + 2 if foreign else 0
        idle = self.idle.since_now() if foreign and self.idle is not None else (lambda: True)

        def covers(manifest: Manifest) -> bool:
            if not all(manifest.entries.get(name, -1) + 1 >= sent for name, sent in entries.items()):
                return False
            own = manifest.sources
            if not all(name in own and each(own[name]) for name, each in read.items()):
                return False
            return manifest.micro_batch >= begun or idle()

        return covers

    @property
    def _lists_files(self) -> bool:
        """Whether this process sees the files that the query's driver lists."""
        return self.idle is None or not self.idle.remote


def _ended(coordinator: Mapping[str, Any], reaching: set[str]) -> int:
    """The last epoch that all inputs with a column of epochs have ended."""
    now = coordinator["inputs"]
    open_ = [now[name] for name in reaching if now.get(name) is not None]
    return min(open_) - 1 if open_ else int(coordinator["begun"])
