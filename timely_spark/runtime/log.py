"""The round log: what each micro-batch leaves behind for the next one, for a restart, and for watchers.

Under `<checkpoint>/timely/`:
    flow.json              which flow this is, its workers and their labels; written once
    owner                  the run that may write now; the newest start takes it
    plans/<hash>.pkl       the compiled flow, for the Python processes of this run
    rounds/<N>.arrow       manifest N: rows = what batch N+1 reads back, and where states are;
                           schema metadata = everything else
    blobs/...              states of workers, where they are large
    outputs/<N>.arrow      what batch N put out for epochs that were not complete after it
    inputs/<name>/<k>.arrow  what the user sent, in order
    failure.pkl            the error that ended the last run

Manifest N is overwritten when batch N runs again: its offset is in no offset log entry before commit N, so
nobody has read it. Manifests have no gaps (`align`), so the newest one is found by asking for the next, never
by listing.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field, fields, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from timely_spark.runtime.errors import LogDamaged, OtherFlow
from timely_spark.runtime.files import Files, local_path
from timely_spark.runtime.states import KEPT, State, States

FORMAT = 2
#: The manifest that exists before any batch has run.
FIRST = -1
_KEY = b"timely"


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What is known after micro-batch `batch`; the rows for the next round stand in the same file."""

    batch: int
    #: Fingerprint of the plan that wrote it.
    plan: str
    #: The run (one start) that wrote it.
    run: str
    #: Snapshot of the coordinator, so that any process can go on from here.
    coordinator: dict[str, Any]
    #: The round header of batch + 1, for workers that get rows but no header row.
    header: str
    #: Whether the next round has rows; if not, this manifest never becomes an offset.
    runnable: bool
    #: (output, epoch) delivered by this batch, in order.
    released: list[tuple[str, int]]
    #: Per probe and output: the times that may still appear there.
    frontier: dict[str, list[Any]]
    #: All inputs are closed and nothing is left.
    complete: bool
    #: output -> epoch -> the batches whose `outputs/` file holds parts of it.
    unreleased: dict[str, dict[str, list[int]]]
    #: (file, batch after which nothing refers to it): kept until no retained manifest needs it.
    spent: list[tuple[str, int]]
    #: The oldest manifest that may still exist.
    kept_from: int
    #: Rounds run since the checkpoint was made.
    rounds: int
    #: How many rounds batch + 1 may take: said beforehand, so that it takes the same path when it runs again.
    rounds_ahead: int
    late: dict[str, int] = field(default_factory=dict)
    stats: dict[str, Any] = field(default_factory=dict)
    format: int = FORMAT

    def encode(self) -> bytes:
        """JSON."""
        return json.dumps(
            {each.name: getattr(self, each.name) for each in fields(self)}, separators=(",", ":")
        ).encode()

    @classmethod
    def decode(cls, text: bytes) -> Manifest:
        """The reverse; refuses a format of another version."""
        found = json.loads(text)
        if found.get("format") != FORMAT:
            raise OtherFlow.format_is(found.get("format"), FORMAT)
        found["released"] = [(name, epoch) for name, epoch in found["released"]]
        found["spent"] = [(file, batch) for file, batch in found["spent"]]
        return cls(**found)


class RoundLog:
    """The log of one checkpoint; holds no state but its place, so every process may have its own."""

    def __init__(self, checkpoint: str) -> None:
        self.checkpoint = local_path(checkpoint)
        self.files = Files(os.path.join(self.checkpoint, "timely"))
        self._spark = Files(self.checkpoint)

    # -- manifests -------------------------------------------------------------------------------------------
    def write(self, manifest: Manifest, rows: pa.Table) -> None:
        """Makes the manifest and its rows visible, at once."""
        schema = rows.schema.with_metadata({_KEY: manifest.encode()})
        self.files.write_table(_round(manifest.batch), rows.cast(schema))

    def has(self, batch: int) -> bool:
        """Whether manifest `batch` exists."""
        return self.files.exists(_round(batch))

    def read(self, batch: int) -> Manifest | None:
        """Manifest `batch`, its rows unread."""
        schema = self.files.schema(_round(batch))
        return None if schema is None else Manifest.decode(schema.metadata[_KEY])

    def rows(self, batch: int) -> pa.Table | None:
        """All rows of a manifest: what batch + 1 reads back, and the states that are kept."""
        table = self.files.table(_round(batch))
        return None if table is None else table.replace_schema_metadata(None)

    def feedback(self, batch: int) -> pa.Table | None:
        """What batch + 1 reads back."""
        rows = self.rows(batch)
        return None if rows is None else rows.filter(pc.not_equal(rows.column("kind"), KEPT))

    def states(self, batch: int) -> States:
        """Where the states are after a batch."""
        rows = self.rows(batch)
        return States() if rows is None else States.of(rows)

    def is_runnable(self, batch: int) -> bool:
        """Whether batch + 1 has anything to read back."""
        manifest = self.read(batch)
        return manifest is not None and manifest.runnable

    def newest_before(self, batch: int) -> Manifest:
        """The newest manifest with an id below `batch` (a replayed batch does not see its own)."""
        if (manifest := self.read(batch - 1)) is not None:
            return manifest
        older = [n for n in self.files.numbers("rounds") if n < batch]
        if not older or (manifest := self.read(older[-1])) is None:
            raise LogDamaged.no_manifest(self.files.root, batch)
        return manifest

    def left(self, batch: int, worker: int) -> tuple[str, State | None]:
        """What was left for a worker that nothing woke: the header, and a state to adopt, if there is one."""
        manifest = self.newest_before(batch)
        states = self.states(manifest.batch)
        return manifest.header, states.known[worker] if worker in states.carried else None

    def newest(self, hint: int | None = None) -> int | None:
        """Id of the newest manifest; from `hint`, one that exists, by asking for the next ones."""
        if hint is None or not self.has(hint):
            found = self.files.numbers("rounds")
            return found[-1] if found else None
        while self.has(hint + 1):
            hint += 1
        return hint

    def align(self) -> None:
        """Before a start: fits the manifests to Spark's own log.

        Batches that Spark has forgotten (rolled back by hand) lose their manifests, so that nobody takes them
        for the newest; ids that Spark used up without us (an offline repartition) get a copy of the newest.
        """
        offsets, commits = self._spark.numbers("offsets"), self._spark.numbers("commits")
        rounds = self.files.numbers("rounds")
        last = offsets[-1] if offsets else FIRST
        for batch in rounds:
            if batch > last:
                self.files.remove(_round(batch))
        needed = last if not offsets or (commits and commits[-1] >= last) else last - 1
        known = [n for n in rounds if n <= needed]
        if known and known[-1] < needed:
            manifest, rows = self.read(known[-1]), self.rows(known[-1])
            if manifest is not None and rows is not None:
                for batch in range(known[-1] + 1, needed + 1):
                    self.write(replace(manifest, batch=batch), rows)

    def spark_batch(self) -> int:
        """The batch that Spark is running, by its own log (it writes offset N before it runs batch N)."""
        return max(self._spark.numbers("offsets"), default=0)

    def spark_offset(self, batch: int) -> tuple[int, dict[str, int]] | None:
        """(batch, entries taken of each input up to and with it), by Spark's own log; or None."""
        text = self._spark.read(f"offsets/{batch}")
        for line in (text or b"").splitlines()[1:]:
            found = json.loads(line) if line.startswith(b'{"') else {}
            if "round" in found and "inputs" in found:
                return batch, found["inputs"]
        return None

    def used_by_spark(self) -> bool:
        """Whether some streaming query has already run on this checkpoint."""
        return bool(self._spark.numbers("offsets"))

    # -- outputs that wait for their epoch -------------------------------------------------------------------
    def write_outputs(self, batch: int, table: pa.Table) -> None:
        """Parts of epochs that are not complete after `batch`."""
        self.files.write_table(outputs_file(batch), table)

    def outputs(self, batch: int) -> pa.Table:
        """What `write_outputs` wrote."""
        name = outputs_file(batch)
        if (table := self.files.table(name)) is None:
            raise LogDamaged.no_file(self.files.root, name)
        return table

    def prune(self, manifest: Manifest, *, keep: int) -> Manifest:
        """Removes what only batches before `manifest.batch - keep` needed; at most a few files per call."""
        oldest = manifest.batch - keep
        until = min(max(oldest, manifest.kept_from), manifest.kept_from + 4)
        for batch in range(manifest.kept_from, until):
            self.files.remove(_round(batch))
        spent = []
        for file, delivered in manifest.spent:
            if delivered < oldest:
                self.files.remove(file)
            else:
                spent.append((file, delivered))
        return replace(manifest, kept_from=until, spent=spent)

    def sweep(self) -> None:
        """Before a start: removes blobs that no manifest knows: of batches that ran again differently."""
        needed: set[str] = set()
        for batch in self.files.numbers("rounds"):
            if (manifest := self.read(batch)) is not None:
                needed.update(file for file, _ in manifest.spent)
                needed.update(file for state in self.states(batch).known.values() for file in state.files)
        for name in self.files.names("blobs"):
            if name not in needed:
                self.files.remove(name)

    # -- small files -----------------------------------------------------------------------------------------
    def read_json(self, name: str) -> dict[str, Any] | None:
        """A small JSON file."""
        found = self.files.read(name)
        return None if found is None else dict(json.loads(found))

    def write_json(self, name: str, content: dict[str, Any]) -> None:
        """A small JSON file."""
        self.files.write(name, json.dumps(content, indent=1).encode())

    def owner(self) -> str:
        """The run that may write."""
        return (self.files.read("owner") or b"").decode()

    def take(self, run: str) -> None:
        """Makes `run` the only one that may write."""
        self.files.write("owner", run.encode())


def outputs_file(batch: int) -> str:
    """Where the outputs of a batch wait."""
    return f"outputs/{batch}.arrow"


def _round(batch: int) -> str:
    return f"rounds/{batch}.arrow"
