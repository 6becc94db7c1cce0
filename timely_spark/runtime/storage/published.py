"""`Published`: a capture that stays short: a snapshot, the epochs after it, and its readers' holds.

A snapshot at epoch s has the sum of all changes up to s. A reader begins with the newest snapshot, and
continues with the epochs after it. The reader's hold is the epoch up to which it has read: no later file is
removed. A hold that is not renewed expires.

One call of `compact` writes a snapshot, and a later call removes the files that the snapshot replaces, if no
hold is older. So a snapshot that is still the newest one after a reader has placed its hold stays.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from dataclasses import dataclass
from sys import maxsize

import pyarrow as pa

from timely_spark.differential.trace import DIFF, consolidate
from timely_spark.errors import LogDamaged
from timely_spark.runtime.storage.files import Files
from timely_spark.state.arrow import from_bytes

#: Says that a folder is published. Readers of the folder ignore names that begin with an underscore.
_DECLARED = "_published.json"
_HOLD = re.compile(r"_hold-(\w+)\.json")
_NAME = re.compile(r"(epoch|snapshot)-(\d{20})\.arrow")
#: The bytes of a file of Arrow's before its stream.
_MAGIC = 8
#: Epochs of fewer bytes are not worth a snapshot.
SMALL = 1 << 20


@dataclass(frozen=True, slots=True)
class Published:
    """The folder of a published collection."""

    files: Files
    #: Seconds after which a reader that gives no sign of life is gone.
    lease: float
    #: The column of differences.
    diff: str

    @classmethod
    def of(cls, files: Files) -> Published | None:
        """The published collection in a folder; None if there is none, or a capture that keeps all epochs."""
        found = files.json(_DECLARED)
        return None if found is None else cls(files, found["lease"], found["diff"])

    def declare(self) -> None:
        """Say that the folder is published."""
        self.files.write_json(_DECLARED, {"lease": self.lease, "diff": self.diff}, durable=True)

    # -- readers ---------------------------------------------------------------------------------------------

    def begin(self, reader: str) -> int:
        """Hold the newest snapshot, and what comes after it; returns its epoch, or -1 if there is none."""
        while True:
            chosen = self.newest()
            self.hold(reader, chosen)
            if self.newest() == chosen:
                return chosen

    def newest(self) -> int:
        """The epoch of the newest snapshot; -1: there is none."""
        return max(_numbered(self.files.names("."), "snapshot"), default=-1)

    def hold(self, reader: str, epoch: int) -> None:
        """Hold all that comes after an epoch, and a snapshot at it; also a sign of life."""
        self.files.write_json(f"_hold-{reader}.json", {"epoch": epoch, "renewed": time.time()})

    def held(self, reader: str) -> int | None:
        """The epoch of a reader's hold; None if it has none."""
        found = self.files.json(f"_hold-{reader}.json")
        return None if found is None else int(found["epoch"])

    def release(self, reader: str) -> None:
        """Give up a hold."""
        self.files.remove(f"_hold-{reader}.json")

    def holds(self) -> dict[str, int]:
        """The holds by reader. Those of readers that are gone are removed."""
        holds = {}
        for reader in [found[1] for name in self.files.names(".") if (found := _HOLD.fullmatch(name))]:
            if (hold := self.files.json(f"_hold-{reader}.json")) is None:
                continue
            if time.time() - hold["renewed"] > self.lease:
                self.release(reader)
            else:
                holds[reader] = int(hold["epoch"])
        return holds

    # -- compaction ------------------------------------------------------------------------------------------

    def compact(self, small: int = SMALL) -> None:
        """Remove what the newest snapshot has; write another one if the epochs after it have grown as large.

        Up to the least hold. So an epoch is written a few times, however many there are (amortised).
        """
        names = self.files.names(".")
        epochs, snapshots = _numbered(names, "epoch"), _numbered(names, "snapshot")
        newest, least = max(snapshots, default=-1), min(self.holds().values(), default=maxsize)
        if least >= newest:
            for epoch, name in [*epochs.items(), *snapshots.items()]:
                if epoch < newest or (epoch == newest and name in epochs.values()):
                    self.files.remove(name)
        more = [epoch for epoch in sorted(epochs) if newest < epoch <= least]
        base = [snapshots[newest]] if snapshots else []
        added = [epochs[epoch] for epoch in more]
        if added and self._bytes(added) >= self._bytes(base) + small:
            self._write(more[-1], [*base, *added])

    def _bytes(self, names: Iterable[str]) -> int:
        return sum(self.files.size(name) or 0 for name in names)

    def _table(self, name: str) -> pa.Table:
        content = pa.py_buffer(self.files.found(name, self.files.read(name)))
        try:
            return from_bytes(content.slice(_MAGIC))
        except (pa.ArrowException, ValueError, OSError) as error:
            raise LogDamaged.unreadable(self.files.root, name, error) from error

    def _write(self, epoch: int, names: Iterable[str]) -> None:
        table = pa.concat_tables([self._table(name) for name in names])
        columns = table.schema.names
        total = consolidate(table.rename_columns([DIFF if name == self.diff else name for name in columns]))
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(total.rename_columns(columns).cast(table.schema))
        self.files.write(f"snapshot-{epoch:020d}.arrow", sink.getvalue(), durable=True)


def epoch_of(path: str) -> int:
    """The epoch of a file of a capture, or the one up to which it has all; -1: it is another file.

    >>> epoch_of("/shared/epoch-00000000000000000007.arrow"), epoch_of("/shared/_schema.arrow")
    (7, -1)
    """
    found = _NAME.fullmatch(path.rpartition("/")[2])
    return -1 if found is None else int(found[2])


def is_snapshot(path: str) -> bool:
    """Whether a file of a capture is a snapshot."""
    return path.rpartition("/")[2].startswith("snapshot-")


def _numbered(names: Iterable[str], kind: str) -> dict[int, str]:
    """The files of a kind, by epoch."""
    found = ((_NAME.fullmatch(name), name) for name in names)
    return {int(match[2]): name for match, name in found if match and match[1] == kind}
