"""`Published`: a capture that stays short: a snapshot, the epochs after it, and its readers' holds.

A snapshot at epoch s has the sum of all changes up to s. A reader begins with the newest snapshot, and
continues with the epochs after it. The reader's hold is the epoch up to which it has read: no later file is
removed. A hold that is not renewed expires.

One call of `compact` writes a snapshot, and a later call removes the files that the snapshot replaces, if no
hold is older. So a snapshot that is still the newest one after a reader has placed its hold stays.

Each snapshot of an arranged collection is sorted by H of the keys, and has H in a column: other flows map the
file, and look records up in place (`MappedSnapshots`). Such a reader's hold names the snapshot, too.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from sys import maxsize

import pyarrow as pa

from timely_spark.differential.imported import Sorted
from timely_spark.differential.trace import DIFF, consolidate
from timely_spark.errors import LogDamaged, Where
from timely_spark.runtime.errors import BadFile
from timely_spark.runtime.storage.cache import Stamp
from timely_spark.runtime.storage.files import Files
from timely_spark.state.arrow import Hashes, from_bytes, numbers
from timely_spark.state.grouping import in_order
from timely_spark.state.hashing import HASH, hashes

#: Says that a folder is published. Readers of the folder ignore names that begin with an underscore.
_DECLARED = "_published.json"
_HOLD = re.compile(r"_hold-(\w+)\.json")
_NAME = re.compile(r"(epoch|snapshot)-(\d{20})\.arrow")
#: The bytes of a file of Arrow's before its stream.
_MAGIC = 8
#: Epochs of fewer bytes are not worth a snapshot.
SMALL = 1 << 20
#: The keys of a sorted snapshot, in the metadata of its schema; its column `HASH` has H of the keys.
_KEYS = b"timely_keys"
_LAPSED = (
    "start this flow with a new checkpoint, which imports again; publish(lease=) must be longer than it may "
    "be away."
)


@dataclass(frozen=True, slots=True)
class Published:
    """The folder of a published collection."""

    files: Files
    #: Seconds after which a reader that gives no sign of life counts as ended.
    lease: float
    #: The column of differences.
    diff: str
    #: The columns by which the collection is arranged; none if it is not.
    keys: tuple[str, ...] = ()

    @classmethod
    def of(cls, files: Files) -> Published | None:
        """The published collection in a folder; None if there is none, or a capture that keeps all epochs."""
        data = files.json(_DECLARED)
        if data is None:
            return None
        return cls(files, data["lease"], data["diff"], tuple(data.get("keys", ())))

    def declare(self) -> None:
        """Say that the folder is published."""
        about = {"lease": self.lease, "diff": self.diff, "keys": self.keys}
        self.files.write_json(_DECLARED, about, durable=True)

    # -- readers ---------------------------------------------------------------------------------------------

    def begin(self, reader: str, *, maps: bool = False) -> int:
        """Hold the newest snapshot, and what comes after it; returns its epoch, or -1 if there is none.

        Args:
            maps: whether the reader keeps the snapshot mapped.
        """
        while True:
            chosen = self.newest()
            self.hold(reader, chosen, base=chosen if maps else -1)
            if self.newest() == chosen:
                return chosen

    def newest(self) -> int:
        """The epoch of the newest snapshot; -1 before the first one."""
        return max(_numbered(self.files.names("."), "snapshot"), default=-1)

    def hold(self, reader: str, epoch: int, *, base: int = -1) -> None:
        """Hold all that comes after an epoch, and a snapshot at it; also a sign of life.

        Args:
            base: the epoch of the snapshot that the reader has mapped; -1 if it maps none.
        """
        content = {"epoch": epoch, "base": base, "renewed": time.time()}
        # half of one, after a loss of power, would stop the publisher
        self.files.write_json(f"_hold-{reader}.json", content, durable=True)

    def held(self, reader: str) -> int | None:
        """The epoch of a reader's hold; None if it has none."""
        lease = self.files.json(f"_hold-{reader}.json")
        return None if lease is None else int(lease["epoch"])

    def release(self, reader: str) -> None:
        """Give up a hold."""
        self.files.remove(f"_hold-{reader}.json")

    def holds(self) -> dict[str, int]:
        """The epochs of the holds by reader. Those of ended readers are removed."""
        return {reader: epoch for reader, (epoch, _) in self._holds().items()}

    def _holds(self) -> dict[str, tuple[int, int]]:
        """The holds by reader: the epoch, and the snapshot that is mapped."""
        holds = {}
        for reader in [match[1] for name in self.files.names(".") if (match := _HOLD.fullmatch(name))]:
            if (hold := self.files.json(f"_hold-{reader}.json")) is None:
                continue
            epoch, base, age = int(hold["epoch"]), int(hold["base"]), time.time() - hold["renewed"]
            if age > self.lease:
                self.release(reader)
                continue
            if age < -self.lease:  # the clock was set back: count the lease from now
                self.hold(reader, epoch, base=base)
            holds[reader] = epoch, base
        return holds

    # -- compaction ------------------------------------------------------------------------------------------

    def compact(self, small: int = SMALL) -> None:
        """Remove what the newest snapshot has; write another one if the epochs after it have grown as large.

        Up to the least hold. So an epoch is written a few times, however many there are (amortised).
        """
        names = self.files.names(".")
        epochs, snapshots = _numbered(names, "epoch"), _numbered(names, "snapshot")
        holds = self._holds().values()
        newest, least = max(snapshots, default=-1), min((epoch for epoch, _ in holds), default=maxsize)
        if least >= newest:
            mapped = {snapshots.get(base) for _, base in holds}
            for epoch, name in [*epochs.items(), *snapshots.items()]:
                if (epoch < newest or (epoch == newest and name in epochs.values())) and name not in mapped:
                    self.files.remove(name)
        more = [epoch for epoch in sorted(epochs) if newest < epoch <= least]
        base = [snapshots[newest]] if snapshots else []
        added = [epochs[epoch] for epoch in more]
        if added and self._bytes(added) >= self._bytes(base) + small:
            self._write(more[-1], [*base, *added])

    def _bytes(self, names: Iterable[str]) -> int:
        return sum(self.files.size(name) or 0 for name in names)

    def _table(self, name: str) -> pa.Table:
        content = pa.py_buffer(self.files.existing(name, self.files.read(name)))
        try:
            table = from_bytes(content.slice(_MAGIC))
        except (pa.ArrowException, ValueError, OSError) as error:
            raise LogDamaged.unreadable(self.files.root, name, error) from error
        columns = [column for column in table.schema.names if column != HASH]
        return table.select(columns).replace_schema_metadata(None)

    def _write(self, epoch: int, names: Iterable[str]) -> None:
        table = pa.concat_tables([self._table(name) for name in names])
        columns = table.schema.names
        total = consolidate(table.rename_columns([DIFF if name == self.diff else name for name in columns]))
        total = total.rename_columns(columns).cast(table.schema)
        if self.keys:
            hashed, total = _sorted(total, self.keys)
            about = {_KEYS: json.dumps(self.keys)}
            total = total.append_column(HASH, pa.array(hashed)).replace_schema_metadata(about)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, total.schema) as writer:
            writer.write_table(total.combine_chunks())
        self.files.write(f"snapshot-{epoch:020d}.arrow", sink.getvalue(), durable=True)


def _sorted(table: pa.Table, keys: Sequence[str]) -> tuple[Hashes, pa.Table]:
    """The rows in the order of H of the keys, and H of each."""
    hashed = hashes(table, keys)
    order = in_order(hashed)
    return hashed[order], table.take(pa.array(order))


@dataclass(frozen=True)
class MappedSnapshots:
    """Opens the snapshots of an arranged collection for another flow's workers, in any process."""

    location: str
    #: The column of differences.
    diff: str
    #: The name and the line of the input.
    source: str
    where: Where

    def __call__(self, path: str, schema: pa.Schema, keys: tuple[str, ...]) -> Sorted:
        """The rows of a snapshot, mapped, sorted by H of the keys; once for each process and file."""
        name = path.rpartition("/")[2]
        # a new capture in the folder may write another snapshot of the same name
        return _opened(self, name, schema, keys, Files(self.location).version(name))


@lru_cache(maxsize=4)
def _opened(
    snapshots: MappedSnapshots, name: str, schema: pa.Schema, keys: tuple[str, ...], version: Stamp | None
) -> Sorted:
    """The rows of one version of a file, validated."""
    files = Files(snapshots.location)
    if (content := files.buffer(name, version)) is None:
        held = "which it has mapped, and was removed: it gave no sign of life for longer than the lease"
        msg = f"input {snapshots.source!r}: {files.root} had {name}, {held}"
        raise BadFile(msg, where=snapshots.where, hint=_LAPSED)
    try:
        table = pa.ipc.open_file(content).read_all()
        table.validate(full=True)
    except (pa.ArrowException, ValueError, OSError) as error:
        raise LogDamaged.unreadable(files.root, name, error) from error
    metadata = table.schema.metadata or {}
    columns = [snapshots.diff if column == DIFF else column for column in schema.names]
    rows = table.select(columns).rename_columns(schema.names).cast(schema)
    if metadata.get(_KEYS) != json.dumps(keys).encode():  # it was published by other keys then
        hashed, rows = _sorted(rows, keys)
    else:
        hashed = numbers(table, HASH)
    if (hashed[1:] < hashed[:-1]).any():
        raise LogDamaged.unreadable(files.root, name, "its rows are not in the order of their hashes")
    return Sorted(hashed, rows, distinct=bool((hashed[1:] > hashed[:-1]).all()))


def epoch_of(path: str) -> int:
    """The epoch of a file of a capture, or the one up to which it has all; -1 if it is another file.

    >>> epoch_of("/shared/epoch-00000000000000000007.arrow"), epoch_of("/shared/_schema.arrow")
    (7, -1)
    """
    match = _NAME.fullmatch(path.rpartition("/")[2])
    return -1 if match is None else int(match[2])


def is_snapshot(path: str) -> bool:
    """Whether a file of a capture is a snapshot."""
    return path.rpartition("/")[2].startswith("snapshot-")


def _numbered(names: Iterable[str], kind: str) -> dict[int, str]:
    """The files of a kind, by epoch."""
    matches = ((_NAME.fullmatch(name), name) for name in names)
    return {int(match[2]): name for match, name in matches if match and match[1] == kind}
