"""The round log: what each micro-batch leaves behind for the next one, for a restart, and for watchers.

Under `<checkpoint>/timely/`, in Arrow and JSON; nothing here is ever unpickled:
    flow.json                which checkpoint this is; written once
    lock                     held by the living driver, on a local file system
    terms/<t>.json           who started: a start takes the next term, and the highest one owns the checkpoint
    flows/<fingerprint>.json the flows that wrote manifests, one for each form and number of workers
    rounds/<t>/<N>.arrow     manifest N, by the run of term t: rows = what batch N+1 reads back, and where
                             states are; schema metadata = everything else
    outputs/<t>-<N>-<rows>.arrow  what waits after batch N for its epoch to be complete
    blobs/<t>-...            states, messages and outputs, where they are large
    inputs/<name>/<k>.arrow  what the user sent, in order
    captured/<name>/<v>.arrow what `capture` and `to_memory` have kept, delivery by delivery
    cancels/<k>.json         epochs whose loops are to end, and with which batch they do
    failures/<t>.json        the error that ended the run of term t

Each file has a checksum of its name and content as its last line; that of a blob stands in its name.

Manifest N is overwritten when batch N runs again: its offset is in no offset log entry before commit N, so
nobody has read it. A run writes manifests under its own term only, so one that was given up for dead and
wakes up overwrites nothing of its successor's. Manifests have no gaps (`align`), so the newest one is found
by asking for the next, never by listing.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from timely_spark.errors import LogDamaged
from timely_spark.runtime.blobs import files_of
from timely_spark.runtime.errors import LostOwnership, OtherFlow
from timely_spark.runtime.files import HEAD, Files, quoted
from timely_spark.runtime.states import KEPT, State, States

FORMAT = 4
#: The manifest that exists before any batch has run.
FIRST = -1
_NESTED = ("captured", "inputs", "rounds")
_FOLDERS = ("blobs", "cancels", "failures", "flows", "outputs", "terms", *_NESTED)


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
    #: captured output -> the version of its last delivery.
    captured: dict[str, int]
    #: output -> epoch -> the files of `outputs/` that hold parts of it.
    unreleased: dict[str, dict[str, list[str]]]
    #: Files that nothing after this batch refers to: they go with this manifest.
    gone: list[str]
    #: The oldest manifest that may still exist.
    kept_from: int
    #: Rounds run since the checkpoint was made.
    rounds: int
    #: How many rounds batch + 1 may take: said beforehand, so that it takes the same path when it runs again.
    rounds_ahead: int
    late: dict[str, int] = field(default_factory=dict)
    #: Records that the limits of loops have dropped, by loop, since the flow began.
    cut_off: dict[str, int] = field(default_factory=dict)
    stats: dict[str, Any] = field(default_factory=dict)
    format: int = FORMAT

    def encode(self) -> bytes:
        """JSON."""
        return json.dumps(
            {each.name: getattr(self, each.name) for each in fields(self)}, separators=(",", ":")
        ).encode()

    @classmethod
    def of(cls, files: Files, name: str, schema: pa.Schema) -> Manifest:
        """The manifest in a file.

        Raises:
            OtherFlow: its format is that of another version.
            LogDamaged: there is none.
        """
        found = files.head(name, schema)
        if found.get("format") != FORMAT:
            raise OtherFlow.format_is(found.get("format"), FORMAT)
        try:
            found["released"] = [(name, epoch) for name, epoch in found["released"]]
            return cls(**found)
        except (TypeError, ValueError, KeyError) as error:
            raise LogDamaged.unreadable(files.root, name, error) from error


class RoundLog:
    """The log of one checkpoint; holds no state but its place, so every process may have its own.

    Args:
        checkpoint: its place.
        term: of the run that reads and writes; None: of somebody who only looks.
        first: the first batch whose manifest that run writes.
    """

    def __init__(self, checkpoint: str, term: int | None = None, first: int = FIRST) -> None:
        self.term, self.first = term, first
        self._spark = Files(checkpoint)
        self.checkpoint = self._spark.location
        self.files = self._spark.below("timely")

    # -- which checkpoint it is ------------------------------------------------------------------------------
    def identity(self) -> dict[str, Any] | None:
        """What the checkpoint says of itself: format, id, name, partitions. None: it is a new one.

        Raises:
            OtherFlow: its format is that of another version.
            LogDamaged: that is gone, damaged, or another checkpoint's.
        """
        name, root = "flow.json", self.files.root
        try:
            found = self.files.json(name)
        except LogDamaged:
            self._check_unsealed(self.files.read(name))
            raise
        if found is None:
            if self.files.numbers("terms") or self.files.numbers("rounds"):
                raise LogDamaged.no_file(root, name)
            return None
        if found.get("format") != FORMAT:
            raise OtherFlow.format_is(found.get("format"), FORMAT)
        kinds = {"id": str, "name": str, "partitions": int}
        if any(not isinstance(found.get(key), kind) for key, kind in kinds.items()):
            raise LogDamaged.unreadable(root, name, f"it has {sorted(found)}, expected were {sorted(kinds)}")
        if not _is_uuid(found["id"]):  # it goes into properties of tables, and into SQL
            raise LogDamaged.unreadable(root, name, f"its id {found['id']!r} is no UUID")
        owner = self.owner()
        if owner.get("checkpoint", found["id"]) != found["id"]:
            reason = f"it is of checkpoint {found['id']}, and the runs here are of {owner['checkpoint']}"
            raise LogDamaged.unreadable(root, name, reason)
        return found

    @staticmethod
    def _check_unsealed(text: bytes | None) -> None:
        """Formats before 4 had no checksums."""
        try:
            version = json.loads(text or b"").get("format")
        except (ValueError, AttributeError):
            return
        if version != FORMAT:
            raise OtherFlow.format_is(version, FORMAT)

    # -- terms -----------------------------------------------------------------------------------------------
    def claim(self, run: dict[str, Any]) -> RoundLog:
        """The log for a new run, which owns the checkpoint from now on; `run` tells who it is.

        Raises:
            FileExistsError: somebody else claimed it at the same moment.
            LogDamaged: the term of a run that wrote manifests is gone.
        """
        terms, written = self.files.numbers("terms"), self.files.numbers("rounds")
        if written and written[-1] > max(terms, default=-1):
            raise LogDamaged.no_file(self.files.root, f"terms/{written[-1]}.json")
        term = terms[-1] + 1 if terms else 0
        identity = self.files.json("flow.json") or {}
        run = run | ({"checkpoint": identity["id"]} if "id" in identity else {})
        self.files.write_json(f"terms/{term}.json", run, durable=True, new=True)
        for old in terms[:-1]:
            self.files.remove(f"terms/{old}.json")
        return RoundLog(self.checkpoint, term)

    def owner(self) -> dict[str, Any]:
        """Who claimed the checkpoint last."""
        terms = self.files.numbers("terms")
        return (self.read_json(f"terms/{terms[-1]}.json") if terms else None) or {}

    def check_owner(self) -> None:
        """Checks that nobody has claimed the checkpoint since.

        Raises:
            LostOwnership: somebody has.
        """
        if self.term is not None and max(self.files.numbers("terms"), default=self.term) > self.term:
            raise LostOwnership.to(self.checkpoint, term=self.term, owner=self.owner())

    @cached_property
    def _earlier(self) -> dict[int, int]:
        """The manifests of earlier terms: for each batch the last term that wrote one."""
        return {batch: term for term, batches in self._by_term().items() for batch in batches}

    def _by_term(self) -> dict[int, list[int]]:
        terms = [t for t in self.files.numbers("rounds") if self.term is None or t < self.term]
        return {term: self.files.numbers(f"rounds/{term}") for term in terms}

    def _names(self, batch: int) -> Iterator[str]:
        """Where manifest `batch` may be, in the order of preference."""
        if self.term is not None and batch >= self.first:
            yield f"rounds/{self.term}/{batch}.arrow"
        if batch in self._earlier and (
            self.term is None or batch < self.first or self._spark.exists(f"commits/{batch}")
        ):  # a driver that was killed may have had its batch committed after all, a moment later
            yield f"rounds/{self._earlier[batch]}/{batch}.arrow"

    # -- manifests -------------------------------------------------------------------------------------------
    def write(self, manifest: Manifest, rows: pa.Table) -> None:
        """Makes the manifest and its rows visible, at once."""
        schema = rows.schema.with_metadata({HEAD: manifest.encode()})
        self.files.write_table(f"rounds/{self.term}/{manifest.batch}.arrow", rows.cast(schema))

    def has(self, batch: int) -> bool:
        """Whether manifest `batch` exists."""
        return any(map(self.files.exists, self._names(batch)))

    def read(self, batch: int) -> Manifest | None:
        """Manifest `batch`, its rows unread."""
        for name in self._names(batch):
            if (schema := self.files.schema(name)) is not None:
                return Manifest.of(self.files, name, schema)
        return None

    def read_whole(self, batch: int) -> tuple[Manifest, pa.Table] | None:
        """Manifest `batch` and all its rows: what batch + 1 reads back, and the states that are kept."""
        for name in self._names(batch):
            if (table := self.files.table(name)) is not None:
                return Manifest.of(self.files, name, table.schema), table.replace_schema_metadata(None)
        return None

    def feedback(self, batch: int) -> pa.Table | None:
        """What batch + 1 reads back."""
        found = self.read_whole(batch)
        return None if found is None else found[1].filter(pc.not_equal(found[1].column("kind"), KEPT))

    def newest_before(self, batch: int) -> tuple[Manifest, pa.Table]:
        """The manifest before a batch, and its rows (a replay does not see its own).

        Raises:
            LogDamaged: it is not there. An older one would not do: batches in between have read input.
        """
        if (found := self.read_whole(batch - 1)) is None:
            raise LogDamaged.no_manifest(self.files.root, batch - 1)
        return found

    def _known(self) -> list[int]:
        if self.term is None:  # whoever only looks sees what the last run has written
            return next(filter(None, reversed(self._by_term().values())), [])
        own = self.files.numbers(f"rounds/{self.term}")
        return [batch for batch in {*own, *self._earlier} if self.has(batch)]

    def left(self, batch: int, worker: int) -> tuple[str, State | None]:
        """What was left for a worker that nothing woke: the header, and where its state is, if it has one."""
        manifest, rows = self.newest_before(batch)
        mine = rows.filter(pc.equal(rows.column("worker"), worker))
        return manifest.header, States.of(mine).known.get(worker)

    def newest(self, hint: int | None = None) -> int | None:
        """Id of the newest manifest; from `hint`, one that exists, by asking for the next ones."""
        if hint is None or not self.has(hint):
            return max(self._known(), default=None)
        while self.has(hint + 1):
            hint += 1
        return hint

    def chosen(self) -> tuple[Manifest, pa.Table] | None:
        """Before a start: the manifest that counts, by Spark's own log, and its rows; None: a new checkpoint.

        Raises:
            LogDamaged: it is not there.
        """
        offsets, commits = self._spark.numbers("offsets"), self._spark.numbers("commits")
        last = offsets[-1] if offsets else FIRST
        needed = last if not offsets or (commits and commits[-1] >= last) else last - 1
        known = max((batch for batch in self._earlier if batch <= needed), default=None)
        if known is None and not offsets and not self._earlier:
            return None
        # ids that Spark used up without us (an offline repartition) read nothing new
        same = known is not None and all(
            self._read_by(batch) == self._read_by(batch - 1) for batch in range(known + 1, needed + 1)
        )
        if known is None or not same:
            raise LogDamaged.no_manifest(self.files.root, needed)
        name = f"rounds/{self._earlier[known]}/{known}.arrow"
        if (table := self.files.table(name)) is None:
            raise LogDamaged.no_file(self.files.root, name)
        manifest = Manifest.of(self.files, name, table.schema)
        self._check_gaps(manifest.kept_from, known)
        for output, version in manifest.captured.items():
            if not self.files.exists(file := captured_file(output, version)):
                raise LogDamaged.no_file(self.files.root, file)
        if known < needed:
            manifest = replace(manifest, batch=needed, gone=[])
        return manifest, table.replace_schema_metadata(None)

    def _check_gaps(self, first: int, last: int) -> None:
        """Checks that no manifest is missing between others: they are removed in order, the oldest first."""
        there = [batch for batch in self._earlier if first <= batch <= last]
        for batch in range(min(there), last):
            if batch not in self._earlier:
                raise LogDamaged.no_manifest(self.files.root, batch)

    def align(self) -> int | None:
        """Before a start: fits the manifests to Spark's own log, and tells which one counts; None: none yet.

        Batches that Spark has forgotten (rolled back by hand) lose their manifests, so that nobody takes them
        for the newest; ids that Spark used up without us get a copy of the newest. From then on the run
        writes its own.

        Raises:
            LogDamaged: the manifest that counts is not there.
        """
        if (chosen := self.chosen()) is None:
            self.first = FIRST
            return None
        manifest, rows = chosen
        last = max(self._spark.numbers("offsets"), default=FIRST)
        for term, batches in self._by_term().items():
            if not batches:
                self.files.drop(f"rounds/{term}")
            for batch in batches:
                if not manifest.kept_from <= batch <= last or term < self._earlier[batch]:
                    self.files.remove(f"rounds/{term}/{batch}.arrow")
        self._earlier = {b: term for b, term in self._earlier.items() if manifest.kept_from <= b <= last}
        self.first = manifest.batch + 1
        if manifest.batch not in self._earlier:
            self.first = max(self._earlier) + 1
            for batch in range(self.first, manifest.batch + 1):
                self.write(replace(manifest, batch=batch), rows)
        return manifest.batch

    def spark_batch(self) -> int:
        """The batch that Spark is running, by its own log (it writes offset N before it runs batch N)."""
        return max(self._spark.numbers("offsets"), default=0)

    def spark_offset(self, batch: int) -> tuple[int, dict[str, int]] | None:
        """(batch, entries taken of each input up to and with it), by Spark's own log; or None."""
        for line in self._read_by(batch):
            found = json.loads(line) if line.startswith(b'{"') else {}
            if "round" in found and "inputs" in found:
                return batch, found["inputs"]
        return None

    def taken(self, name: str) -> int:
        """The last entry of an input that the flow has taken, by Spark's own log; -1: none."""
        offsets = self._spark.numbers("offsets")
        found = self.spark_offset(offsets[-1]) if offsets else None
        return -1 if found is None else found[1].get(name, -1)

    def entries(self, name: str) -> list[int]:
        """The numbers of an input's entries that are there.

        Raises:
            LogDamaged: one is missing: the last that was taken stays, and there are no gaps behind the first.
        """
        folder = f"inputs/{quoted(name)}"
        numbers, taken = self.files.numbers(folder), self.taken(name)
        needed = {*range(numbers[0], numbers[-1])} if numbers else set()
        if missing := (needed | ({taken} - {-1})).difference(numbers):
            raise LogDamaged.no_file(self.files.root, f"{folder}/{min(missing)}.arrow")
        return numbers

    def at_the_end(self, batch: int) -> bool:
        """Whether the feedback source asked with this batch, in which no other has brought anything."""
        now, before = self._read_by(batch), self._read_by(batch - 1)
        if len(now) != len(before):
            return False
        changed = [(a, b) for a, b in zip(before, now, strict=True) if a != b]
        if len(changed) != 1 or not all(line.startswith(b'{"') for line in changed[0]):
            return False
        old, new = map(json.loads, changed[0])
        return "asked" in new and old.get("asked") != new["asked"]

    def _read_by(self, batch: int) -> list[bytes]:
        """Up to where each source was read by a batch and those before it, in Spark's words."""
        return (self._spark.read(f"offsets/{batch}") or b"").splitlines()[2:]

    def used_by_spark(self) -> bool:
        """Whether some streaming query has already run on this checkpoint."""
        return bool(self._spark.numbers("offsets"))

    # -- outputs that wait for their epoch -------------------------------------------------------------------
    def write_outputs(self, batch: int, table: pa.Table) -> str:
        """Keeps parts of epochs that are not complete after `batch`; tells the file."""
        name = f"outputs/{self.term}-{batch}-{table.num_rows}.arrow"
        self.files.write_table(name, table)
        return name

    def outputs(self, name: str) -> pa.Table:
        """What `write_outputs` wrote."""
        if (table := self.files.table(name)) is None:
            raise LogDamaged.no_file(self.files.root, name)
        return table

    # -- what nobody needs any more --------------------------------------------------------------------------
    def prune(self, manifest: Manifest, *, keep: int) -> Manifest:
        """Removes manifests before `manifest.batch - keep`, with what was gone then; a few per call."""
        until = min(max(manifest.batch - keep, manifest.kept_from), manifest.kept_from + 4)
        for batch in range(manifest.kept_from, until):
            gone = old.gone if (old := self.read(batch)) is not None else []
            terms = {self.term, self._earlier.get(batch, self.term)}
            # stopped in between, it is done again
            for name in (*gone, *(f"rounds/{term}/{batch}.arrow" for term in terms)):
                self.files.remove(name)
        return replace(manifest, kept_from=until)

    def sweep(self) -> None:
        """Before a start: removes what killed processes left, half written or known to no manifest."""
        nested = [name for folder in _NESTED for name in self.files.names(folder)]
        for folder in (".", *_FOLDERS, *nested):
            self.files.tidy(folder)
        for folder in ("offsets", "commits"):  # on an unfinished offsets/0 Spark would refuse to start
            self._spark.tidy(folder)
        needed = self._needed()
        for name in (*self.files.names("outputs"), *self.files.names("blobs")):
            term = name.partition("/")[2].partition("-")[0]
            # what the own term has written is that of a newer start's, if this one hangs here
            if name not in needed and term.isdecimal() and int(term) < (self.term or 0):
                self.files.remove(name)

    def _needed(self) -> set[str]:
        """The files that some manifest needs."""
        needed: set[str] = set()
        for batch, term in self._earlier.items():  # also one that Spark may commit a moment later
            name = f"rounds/{term}/{batch}.arrow"
            if (rows := self.files.table(name)) is not None:
                manifest = Manifest.of(self.files, name, rows.schema)
                needed.update(manifest.gone)
                needed |= files_of(rows.filter(pc.equal(rows.column("kind"), "message")))
                needed.update(file for state in States.of(rows).known.values() for file in state.files)
                for epochs in manifest.unreleased.values():
                    needed.update(name for files in epochs.values() for name in files)
        for name in self.files.names("outputs"):
            if name in needed:
                needed |= files_of(self.outputs(name))
        return needed

    # -- small files -----------------------------------------------------------------------------------------
    def read_json(self, name: str) -> dict[str, Any] | None:
        """A small JSON file."""
        return self.files.json(name)

    def read_json_there(self, name: str) -> dict[str, Any]:
        """A small JSON file that must be there."""
        if (found := self.read_json(name)) is None:
            raise LogDamaged.no_file(self.files.root, name)
        return found

    def write_json(self, name: str, content: dict[str, Any]) -> None:
        """A small JSON file."""
        self.files.write_json(name, content)


def captured_file(output: str, version: int) -> str:
    """Where a delivery of a captured output is kept."""
    return f"captured/{quoted(output)}/{version}.arrow"


def _is_uuid(text: str) -> bool:
    try:
        return str(uuid.UUID(text)) == text
    except ValueError:
        return False


def rows_of(outputs_file: str) -> int:
    """How many rows a file of `write_outputs` has."""
    return int(outputs_file.rpartition("-")[2].partition(".")[0])
