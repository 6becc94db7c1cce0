"""The round log: one manifest per micro-batch, read by the next batch, by restarts and by watchers.

Under `<checkpoint>/timely/`, in Arrow and JSON; nothing here is ever unpickled:
    flow.json                the identity of the checkpoint; written once
    lock                     held by the running driver, on a local file system
    terms/<t>.json           one for each start; the highest term owns the checkpoint
    flows/<fingerprint>.json the flows that wrote manifests, one for each form and number of workers
    rounds/<t>/<N>.arrow     manifest N, by the run of term t: rows = the input of batch N+1, and references
                             of states; schema metadata = everything else
    epochs/<N>.json          where resident batch N reads its inputs to, written before it runs
    outputs/<t>-<N>-<rows>.arrow  output records after batch N whose epoch is not complete
    blobs/<t>-...            large states, messages and outputs
    inputs/<name>/<k>.arrow  entries of input handles, in order
    files/<name>/<k>.arrow   files of the batches of a file source; <j>-<k>.arrow: of several old batches
    ignored/<name>-...json   names of a file source that are not read, and why: for people
    skipped/<name>.json      files, entries and versions of an input that are never read, by order of a user
    captured/<name>/<v>.arrow deliveries of `capture` and `to_memory`; <v>-<w>.arrow: several old ones
    cancels/<k>.json         canceled epochs, and the batch in which each takes effect
    cuts/<N>-<round>-<worker>.json  where a command ended a round of batch N early
    peers/<t>-<N>-...json    addresses of the tasks of a parallel stage, while it runs
    live/<t>-<process>.json  what the running micro-batch has done so far, if it takes long
    failures/<t>.json        the error that ended the run of term t
    hours.json               what the flow had done at each hour of the last day, to compare with

The last line of each file is a checksum of its name and content; a blob has its checksum in its name.

Spark numbers micro-batches. Each has one batch of the flow, or many if it stays resident, so batches have
numbers of their own; each manifest says which micro-batch it is of. A micro-batch that runs again runs its
first batch again, and overwrites the manifest of that batch. No other batch has read the manifest: Spark's
offset log has its offset only after the commit. If later batches of the micro-batch have manifests, the
micro-batch continues after the last of these.

A run writes manifests under its own term only, so a run that was presumed dead cannot overwrite manifests of
its successor. `epochs/<N>.json` has one name for all terms, and is created exclusively: of two runs, one
alone can begin resident batch N. Manifests have no gaps (`align`), so the newest one is found by looking for
the next number, without listing.
"""

from __future__ import annotations

import os
import secrets
import shlex
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from sys import maxsize
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from timely_spark.errors import LogDamaged
from timely_spark.runtime.errors import LostOwnership, OtherFlow
from timely_spark.runtime.storage.blobs import files_of
from timely_spark.runtime.storage.deliveries import Deliveries
from timely_spark.runtime.storage.files import HEAD, Files, quoted
from timely_spark.runtime.storage.hours import HOUR, remember
from timely_spark.runtime.storage.manifest import FORMAT, Manifest
from timely_spark.runtime.storage.spark_log import SparkLog, StoredOffset
from timely_spark.runtime.storage.states import State, StateRefs
from timely_spark.state.bounds import parse_json
from timely_spark.worker import wire
from timely_spark.worker.wire import Header, Message


def stop_file(term: int | None) -> str:
    """The file that asks the run of a term to rest between two micro-batches, so that it can be stopped."""
    return f"terms/stop-{term}"


def failure_file(term: int | None) -> str:
    """The file with the error that ended the run of a term."""
    return f"failures/{term}.json"


#: The manifest that exists before any batch has run.
FIRST = -1
#: The next term is drawn from so many, where files are not created exclusively.
_DRAWN = 1 << 20
_NESTED = ("captured", "files", "inputs", "rounds")
#: Folders in which files are written after `flow.json` only.
_IDENTIFIED = ("blobs", "failures", "flows", "inputs", "rounds", "terms")
_FOLDERS = (
    "blobs",
    "cancels",
    "cuts",
    "epochs",
    "failures",
    "flows",
    "ignored",
    "live",
    "outputs",
    "peers",
    "skipped",
    "terms",
    "topics",
    *_NESTED,
)


class RoundLog:
    """The round log of one checkpoint. All state is in files, so every process has an object of its own."""

    def __init__(
        self, checkpoint: str | os.PathLike[str], term: int | None = None, first: int = FIRST
    ) -> None:
        #: The term of the run that reads and writes; None means a watcher, which only reads.
        self.term = term
        #: The run writes manifests from this batch on.
        self.first = first
        files = Files(checkpoint)
        #: What Spark itself has written.
        self.spark = SparkLog(files)
        self.checkpoint = files.location
        self.files = files.below("timely")
        #: The oldest entry of each input that may still exist.
        self._oldest: dict[str, int] = {}
        #: What each output captured.
        self._captured: dict[str, Deliveries] = {}
        #: The batch of the last manifest that this object has written; None before the first.
        self.written: int | None = None
        #: The last hour that it has remembered; None before the first.
        self._hour: int | None = None
        #: Notified of each manifest that this object has written.
        self._writes = threading.Condition()

    # -- the identity of the checkpoint ----------------------------------------------------------------------
    def identity(self) -> dict[str, Any] | None:
        """The identity of the checkpoint: format, id, name, partitions. None means a new checkpoint."""
        name, root = "flow.json", self.files.root
        try:
            content = self.files.json(name)
        except LogDamaged:
            self._check_unsealed(self.files.read(name))
            raise
        if content is None:
            if any(map(self.files.names, _IDENTIFIED)) or self.spark.is_of_a_flow():
                raise LogDamaged.no_file(root, name)
            return None
        if content.get("format") != FORMAT:
            raise OtherFlow.format_is(root, content.get("format"), FORMAT)
        kinds = {"id": str, "name": str, "partitions": int}
        if any(not isinstance(content.get(key), kind) for key, kind in kinds.items()):
            raise LogDamaged.unreadable(
                root, name, f"it has {sorted(content)}, expected were {sorted(kinds)}"
            )
        if not _is_uuid(content["id"]):  # the id is written into table properties and SQL
            raise LogDamaged.unreadable(root, name, f"its id {content['id']!r} is not a UUID")
        owner = self.owner()
        if owner.get("checkpoint", content["id"]) != content["id"]:
            reason = f"it is of checkpoint {content['id']}, and the runs here are of {owner['checkpoint']}"
            raise LogDamaged.unreadable(root, name, reason)
        return content

    def _check_unsealed(self, text: bytes | None) -> None:
        """Check whether a file without a checksum is of a format before 4."""
        try:
            version = parse_json(text or b"").get("format")
        except (ValueError, AttributeError):
            return
        if version != FORMAT:
            raise OtherFlow.format_is(self.files.root, version, FORMAT)

    # -- terms -----------------------------------------------------------------------------------------------
    def claim(self, run: dict[str, Any]) -> RoundLog:
        """The log for a new run, which owns the checkpoint from now on; `run` describes the run.

        If two runs claim it at the same moment, the run of the higher term owns it.

        Raises:
            FileExistsError: another run claimed the checkpoint at the same moment.
            LogDamaged: the term of a run that wrote manifests is missing.
        """
        terms, written = self.files.numbers("terms"), self.files.numbers("rounds")
        if written and written[-1] > max(terms, default=-1):
            raise LogDamaged.no_file(self.files.root, f"terms/{written[-1]}.json")
        term = max(terms, default=-1) + 1
        if not self.files.exclusive:  # then two starts at one moment would both have the next one
            term += secrets.randbelow(_DRAWN)
        identity = self.files.json("flow.json") or {}
        run = run | ({"checkpoint": identity["id"]} if "id" in identity else {})
        self.files.write_json(f"terms/{term}.json", run, durable=True, new=True)
        for old in terms[:-1]:
            self.files.remove(f"terms/{old}.json")
        return RoundLog(self.checkpoint, term)

    def owner(self) -> dict[str, Any]:
        """The run that claimed the checkpoint last."""
        terms = self.files.numbers("terms")
        return (self.files.json(f"terms/{terms[-1]}.json") if terms else None) or {}

    def check_owner(self) -> None:
        """Check that no later run has claimed the checkpoint."""
        if self.term is not None and max(self.files.numbers("terms"), default=self.term) > self.term:
            raise LostOwnership.to(self.checkpoint, term=self.term, owner=self.owner())

    @cached_property
    def _earlier(self) -> dict[int, int]:
        """The manifests of earlier terms: for each batch the last term that wrote one.

        A run that had lost the checkpoint may have written batches after those of a newer term. They do not
        count, unless Spark has committed their micro-batch and no newer term has a batch of it.
        """
        latest = {batch: term for term, batches in self._by_term().items() for batch in batches}
        newest: dict[int, int] = {}
        own = FIRST
        for batch in sorted(latest):
            if latest[batch] >= max(newest.values(), default=0):
                newest[batch], own = latest[batch], batch
            elif (
                self._manifest(newest[own], own).micro_batch
                < self._manifest(latest[batch], batch).micro_batch
                <= self.committed()
            ):
                newest[batch] = latest[batch]
        return newest

    def _manifest(self, term: int, batch: int) -> Manifest:
        name = f"rounds/{term}/{batch}.arrow"
        return Manifest.of(self.files, name, self.files.existing(name, self.files.schema(name)))

    def _by_term(self) -> dict[int, list[int]]:
        terms = [t for t in self.files.numbers("rounds") if self.term is None or t < self.term]
        return {term: self.files.numbers(f"rounds/{term}") for term in terms}

    def _names(self, batch: int) -> Iterator[str]:
        """The files that may have manifest `batch`, in order of preference."""
        if self.term is not None and batch >= self.first:
            yield f"rounds/{self.term}/{batch}.arrow"
        if batch in self._earlier and (
            self.term is None or batch < self.first or self._was_committed(batch)
        ):  # Spark may have committed the micro-batch of a killed driver a moment later
            yield self._earlier_file(batch)

    def _earlier_file(self, batch: int) -> str:
        return f"rounds/{self._earlier[batch]}/{batch}.arrow"

    def _was_committed(self, batch: int) -> bool:
        """Whether Spark has committed the micro-batch of a manifest of an earlier term."""
        if not self.files.exists(self._earlier_file(batch)):
            return False
        return self.spark.files.exists(f"commits/{self._earlier_manifest(batch).micro_batch}")

    def _earlier_manifest(self, batch: int) -> Manifest:
        return self._manifest(self._earlier[batch], batch)

    # -- manifests -------------------------------------------------------------------------------------------
    def write(self, manifest: Manifest, rows: pa.Table) -> None:
        """Write a manifest and its rows, atomically."""
        schema = rows.schema.with_metadata({HEAD: manifest.encode()})
        self.files.write_table(f"rounds/{self.term}/{manifest.batch}.arrow", rows.cast(schema))
        if manifest.batch > FIRST and self._hour != manifest.written // HOUR:
            self._hour = remember(self.files, manifest)
        with self._writes:
            self.written = manifest.batch
            self._writes.notify_all()

    def wait(self, seen: int | None, seconds: float) -> None:
        """Wait until `written` is not `seen` any more, at most so many seconds."""
        with self._writes:
            self._writes.wait_for(lambda: self.written != seen, seconds)

    def has(self, batch: int) -> bool:
        """Whether manifest `batch` exists."""
        return any(map(self.files.exists, self._names(batch)))

    def read(self, batch: int) -> Manifest | None:
        """Manifest `batch`, without its rows."""
        for name in self._names(batch):
            if (schema := self.files.schema(name)) is not None:
                return Manifest.of(self.files, name, schema)
        return None

    def manifest_and_rows(self, batch: int) -> tuple[Manifest, pa.Table] | None:
        """Manifest `batch` and its rows: messages and headers for batch + 1, and all workers' states."""
        for name in self._names(batch):
            if (table := self.files.table(name)) is not None:
                return Manifest.of(self.files, name, table.schema), table.replace_schema_metadata(None)
        return None

    def flow(self, manifest: Manifest) -> dict[str, Any]:
        """The flow that wrote a manifest: its description, the plan's summary, and a sketch."""
        name = f"flows/{manifest.plan}.json"
        return dict(self.files.existing(name, self.files.json(name)))

    def feedback(self, batch: int) -> pa.Table | None:
        """The rows of manifest `batch` for batch + 1: those of the workers that run, which have a header."""
        if (read := self.manifest_and_rows(batch)) is None:
            return None
        _, rows = read
        running = wire.only(rows, Header).column("worker").combine_chunks()
        return rows.filter(pc.is_in(rows.column("worker"), running))

    def newest_before(self, batch: int) -> tuple[Manifest, pa.Table]:
        """The manifest of batch - 1 and its rows. In a replay the batch's own manifest may exist, too."""
        if (read := self.manifest_and_rows(batch - 1)) is None:
            raise LogDamaged.no_manifest(self.files.root, batch - 1)
        return read

    def _batches(self) -> list[int]:
        """The batches that may have a manifest, ascending."""
        if self.term is None:  # a watcher sees the manifests of the last run
            return next(filter(None, reversed(self._by_term().values())), [])
        return sorted({*self.files.numbers(f"rounds/{self.term}"), *self._earlier})

    def header_and_state(self, micro_batch: int, worker: int) -> tuple[int, Header, State | None]:
        """The first batch of a micro-batch, and the header and state of a worker without a header row."""
        manifest, rows = self.before(micro_batch)
        return manifest.batch + 1, Header.decode(manifest.header), StateRefs.of(rows).by_worker.get(worker)

    def before(self, micro_batch: int) -> tuple[Manifest, pa.Table]:
        """The newest manifest of the micro-batches before one, and its rows."""
        newest = self.newest()
        batch = FIRST if newest is None else newest
        while True:
            manifest, rows = self.newest_before(batch + 1)
            if manifest.micro_batch < micro_batch:
                return manifest, rows
            batch -= 1

    def newest(self, hint: int | None = None) -> int | None:
        """The id of the newest manifest; with `hint`, a manifest that exists, found without listing.

        The process that writes the manifests of this term looks into no folder.
        """
        if self.written is not None:
            return self.written
        if hint is None or not self.has(hint):
            exists = self.has if self.term is not None else (lambda _: True)
            return next(filter(exists, reversed(self._batches())), None)
        while self.has(hint + 1):
            hint += 1
        return hint

    def chosen(self) -> tuple[Manifest, pa.Table] | None:
        """Before a start: the manifest to continue from, by Spark's own log, and its rows.

        None if the checkpoint is new.
        """
        offsets, commits = self.spark.offsets, self.spark.commits
        last = offsets[-1] if offsets else FIRST
        written = {batch: self._earlier_manifest(batch) for batch in sorted(self._earlier)}
        self.spark.check({each.micro_batch: each.offsets for each in written.values()})
        needed = last if not offsets or (commits and commits[-1] >= last) else last - 1
        newest = max((batch for batch, each in written.items() if _ended(each, needed, last)), default=None)
        if newest is None and not offsets and not self._earlier:
            return None
        # micro-batches that Spark ran without this package (an offline repartition) must have read no input
        done = FIRST if newest is None else written[newest].micro_batch
        no_input = newest is not None and all(
            self.spark.ends(batch) == self.spark.ends(batch - 1) for batch in range(done + 1, needed + 1)
        )
        if newest is None or not no_input:
            raise LogDamaged.no_manifest(self.files.root, needed)
        name = self._earlier_file(newest)
        table = self.files.existing(name, self.files.table(name))
        manifest = Manifest.of(self.files, name, table.schema)
        self._check_gaps(manifest.kept_from, newest)
        for output, version in manifest.captured.items():
            self.deliveries(output).check(version)
        if done < needed:
            manifest = replace(manifest, micro_batch=needed, garbage=[], offsets=self.spark.text(needed))
        return manifest, table.replace_schema_metadata(None)

    def _check_gaps(self, first: int, last: int) -> None:
        """Check that no manifest is missing between others: manifests are removed in order."""
        for batch in range(min(batch for batch in self._earlier if first <= batch), last):
            if batch not in self._earlier:
                raise LogDamaged.no_manifest(self.files.root, batch)

    def align(self) -> int | None:
        """Before a start: fit the manifests to Spark's own log; returns the batch to continue from, if any.

        Manifests of micro-batches that are not in Spark's log (rolled back by hand) are removed, and so are
        the ends of resident batches after them, and what was captured in them. If there is no newer
        manifest, the one to continue from is written again under the run's own term, so that a later
        manifest of a run that has lost the checkpoint does not count.
        """
        if (chosen := self.chosen()) is None:
            return None
        manifest, rows = chosen
        terms = {
            batch: term
            for batch, term in self._earlier.items()
            if manifest.kept_from <= batch and self._earlier_manifest(batch).micro_batch <= self.planned()
        }
        for term, batches in self._by_term().items():
            for batch in batches:
                if term < terms.get(batch, maxsize):
                    self.files.remove(f"rounds/{term}/{batch}.arrow")
            self.files.drop(f"rounds/{term}")  # if it is empty
        # only a micro-batch that runs again has begun a batch that has no manifest
        runs_again = manifest.micro_batch > self.committed()
        for batch in self.files.numbers("epochs"):
            if batch > manifest.batch + runs_again:
                self.files.remove(f"epochs/{batch}.json")
        self._earlier = terms
        Deliveries.forget(self.files, self._earlier_manifest(max(terms)).captured)
        newest = manifest.batch == max(terms)  # Spark may still commit the micro-batch of a newer one
        self.first = manifest.batch + (not newest)
        if newest:
            self.write(manifest, rows)
        return manifest.batch

    # -- resident batches ------------------------------------------------------------------------------------
    def begin(self, batch: int, ends: dict[str, Any]) -> dict[str, Any]:
        """Write, exclusively and durably, where a resident batch reads its inputs to; before it runs.

        Returns:
            The ends of the batch: other ones if an earlier attempt at the batch has begun it.

        Raises:
            LostOwnership: a later run has begun the batch.
        """
        assert self.term is not None
        self.check_owner()
        term = self.term
        begun = self.files.write_once(f"epochs/{batch}.json", {"term": term, "ends": ends})
        if begun["term"] > term:
            raise LostOwnership.to(self.checkpoint, term=term, owner=self.owner())
        return dict(begun["ends"])

    def begun(self, batch: int) -> dict[str, Any] | None:
        """Where a resident batch reads its inputs to, if an attempt at it has begun; else None."""
        content = self.files.json(f"epochs/{batch}.json")
        return None if content is None else dict(content["ends"])

    def planned(self) -> int:
        """The last batch that Spark's own log has: Spark writes offset N before it runs batch N."""
        return max(self.spark.offsets, default=FIRST)

    def read_to(self, batch: int) -> tuple[dict[str, int], dict[str, StoredOffset]]:
        """By Spark's own log: the last entry of each input, and the offset of each other one, in a batch."""
        offset = self.spark.flow_offset(batch)
        return ({}, {}) if offset is None else (offset["inputs"], offset["sources"])

    def taken(self, name: str) -> int:
        """The last entry of an input that the flow has read; -1 if it has read none."""
        offsets = self.spark.offsets
        offset = self.spark.flow_offset(offsets[-1]) if offsets else None
        newest = self.newest()
        manifest = None if newest is None else self.read(newest)
        entries = {} if manifest is None or not offsets else manifest.entries
        return max(-1 if offset is None else offset["inputs"].get(name, -1), entries.get(name, -1))

    def entries(self, name: str) -> list[int]:
        """The numbers of an input's entries, which have no gaps; the last one that was read is kept."""
        folder = f"inputs/{quoted(name)}"
        numbers, taken = self.files.numbers(folder), self.taken(name)
        needed = {*range(numbers[0], numbers[-1])} if numbers else set()
        for number in sorted((needed | ({taken} - {-1})).difference(numbers)):
            # while a handle sends, a listing may have an entry and lack the one before
            if not self.files.exists(f"{folder}/{number}.arrow"):
                with self.reading_entry(name, number):
                    raise LogDamaged.no_file(self.files.root, f"{folder}/{number}.arrow")
        return numbers

    @contextmanager
    def reading_entry(self, name: str, number: int) -> Iterator[None]:
        """Name the command that skips an entry, in errors of reading it."""
        try:
            yield
        except LogDamaged as error:
            options = f"--entry {number} --input {shlex.quote(name)}"
            command = f"python -m timely_spark skip {shlex.quote(self.checkpoint)} {options}"
            hint = f"restore it from a backup; or, unless a complete batch has read it, skip it: {command}"
            raise LogDamaged(error.message, where=error.where, hint=hint) from error

    def at_the_end(self, batch: int) -> bool:
        """Whether the question of the flow's source began this batch, and no source has new rows in it."""
        new, old = self.spark.flow_offset(batch), self.spark.flow_offset(batch - 1)
        if new is None or old is None or self.spark.ends(batch)[1:] != self.spark.ends(batch - 1)[1:]:
            return False
        return "asked" in new and new == old | {"asked": new["asked"]} != old

    def committed(self) -> int:
        """The last batch that Spark has committed; -1 if it has committed none."""
        return max(self.spark.commits, default=FIRST)

    # -- outputs of open epochs ------------------------------------------------------------------------------
    def write_outputs(self, batch: int, table: pa.Table) -> str:
        """Write output records of epochs that are not complete after `batch`; returns the file's name."""
        name = f"outputs/{self.term}-{batch}-{table.num_rows}.arrow"
        self.files.write_table(name, table)
        return name

    def outputs(self, name: str) -> pa.Table:
        """Read a file of `write_outputs`."""
        return self.files.existing(name, self.files.table(name))

    # -- removal ---------------------------------------------------------------------------------------------
    def prune(self, manifest: Manifest, *, keep: int, seconds: float = 0.0) -> Manifest:
        """Remove manifests before `manifest.batch - keep`, with all that only they need; a few per call.

        That is their `garbage`, and the entries of handles that were read before them. What outputs captured
        before them is merged. Manifests that were written in the last `seconds` are kept, too.
        """
        until = min(max(manifest.batch - keep, manifest.kept_from), manifest.kept_from + 4)
        for batch in range(manifest.kept_from, until):
            if (old := self.read(batch)) is not None:  # else an interrupted removal had removed it
                if abs(manifest.written - old.written) < seconds:
                    until = batch
                    break
                for name, last in old.entries.items():
                    self._remove_entries(name, last)
                for name, last in old.captured.items():
                    self.deliveries(name).merge(last)
                for name in (*old.garbage, *([f"epochs/{batch}.json"] if old.resident else [])):
                    self.files.remove(name)
            for term in {self.term, self._earlier.get(batch, self.term)}:
                self.files.remove(f"rounds/{term}/{batch}.arrow")
        return replace(manifest, kept_from=until)

    def _remove_entries(self, name: str, last: int) -> None:
        """Remove the entries before `last`, which stays: a restarted handle reads its position from it."""
        folder = f"inputs/{quoted(name)}"
        if name not in self._oldest:
            self._oldest[name] = min(self.files.numbers(folder), default=0)  # once per run
        for number in range(self._oldest[name], last):
            self.files.remove(f"{folder}/{number}.arrow")
        self._oldest[name] = max(self._oldest[name], last)

    def deliveries(self, output: str) -> Deliveries:
        """What an output captured."""
        return self._captured.setdefault(output, Deliveries(self.checkpoint, output))

    def sweep(self) -> None:
        """Before a start: remove files of killed processes that are half written, or in no manifest."""
        nested = [name for folder in _NESTED for name in self.files.names(folder)]
        for folder in (".", *_FOLDERS, *nested):
            self.files.tidy(folder)
        for folder in ("offsets", "commits"):  # Spark refuses to start with an unfinished offsets/0
            self.spark.files.tidy(folder)
        needed = self._needed()
        for name in (
            name for folder in ("outputs", "blobs", "live", "peers") for name in self.files.names(folder)
        ):
            term = name.partition("/")[2].partition("-")[0]
            # files of later terms are of a newer start, if this one was suspended
            if name not in needed and term.isdecimal() and int(term) < (self.term or 0):
                self.files.remove(name)

    def _needed(self) -> set[str]:
        """The files that manifests refer to."""
        needed: set[str] = set()
        for batch in self._earlier:  # including one that Spark may commit a moment later
            name = self._earlier_file(batch)
            if (rows := self.files.table(name)) is not None:
                manifest = Manifest.of(self.files, name, rows.schema)
                needed.update(manifest.garbage)
                needed |= files_of(wire.only(rows, Message))
                needed.update(file for state in StateRefs.of(rows).by_worker.values() for file in state.files)
                for epochs in manifest.unreleased.values():
                    needed.update(name for files in epochs.values() for name in files)
        for name in self.files.names("outputs"):
            if name in needed:
                needed |= files_of(self.outputs(name))
        return needed


def _ended(manifest: Manifest, needed: int, last: int) -> bool:
    """Whether a flow may continue from a manifest: of a micro-batch that need not run again, or resident."""
    return manifest.micro_batch <= (last if manifest.resident else needed)


def _is_uuid(text: str) -> bool:
    try:
        return str(uuid.UUID(text)) == text
    except ValueError:
        return False


def row_count(outputs_file: str) -> int:
    """The number of rows in a file of `write_outputs`."""
    return int(outputs_file.rpartition("-")[2].partition(".")[0])
