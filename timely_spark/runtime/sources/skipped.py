"""`Skipped`: the files, entries of handles and Delta versions that a user told a flow never to read.

The decision is for what no committed micro-batch has read, and is made while the flow does not run. So every
later attempt reads the same.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace

from timely_spark.runtime.errors import BadFile, CheckpointInUse, OtherFlow
from timely_spark.runtime.sources.journal import FileJournal
from timely_spark.runtime.storage.entries import skip_entry
from timely_spark.runtime.storage.files import Files, quoted
from timely_spark.runtime.storage.lock import Lock
from timely_spark.runtime.storage.log import RoundLog
from timely_spark.runtime.storage.manifest import Manifest


@dataclass(frozen=True, slots=True)
class Skipped:
    """The files, entries and versions of one input that are never read."""

    #: the batch of the journal of each path; -1 for other sources than files
    files: Mapping[str, int] = field(default_factory=dict)
    entries: tuple[int, ...] = ()
    versions: tuple[int, ...] = ()

    @classmethod
    def of(cls, files: Files, source: str) -> Skipped:
        """The record of a checkpoint about an input."""
        data = files.json(_file(source))
        if data is None:
            return cls()
        return cls(dict(data["files"]), tuple(data["entries"]), tuple(data["versions"]))

    def write(self, files: Files, source: str) -> None:
        """Write it, durably."""
        files.write_json(_file(source), json.loads(json.dumps(asdict(self))), durable=True)

    @property
    def names(self) -> dict[str, str]:
        """Why each name is not read."""
        numbers = [f"entry {n}" for n in self.entries] + [f"version {n}" for n in self.versions]
        return dict.fromkeys([*self.files, *numbers], "was skipped")


def skip(
    checkpoint: str, *, file: str | None, entry: int | None, version: int | None, source: str | None
) -> str:
    """Skip a file, an entry or a Delta version that no committed micro-batch has read; says what was done.

    Args:
        file: its path, or the end of it from a folder's name on.
        source: the name of the input; None means the only one that can be meant.

    Raises:
        BadFile: there is no such thing to be read, or it was read already.
        CheckpointInUse: the flow is running.
    """
    log = RoundLog(checkpoint)
    if log.identity() is None or (batch := log.newest()) is None or (manifest := log.read(batch)) is None:
        raise OtherFlow.none_at(log.checkpoint)
    lock = Lock(log.files)
    if not lock.acquire():
        raise CheckpointInUse.by(log.checkpoint, log.owner())
    try:
        inputs = log.flow(manifest)["described"]["inputs"]
        origin = "handle" if entry is not None else "journal"
        names = [name for name, _, other in inputs if other == origin and source in {None, name}]
        chosen = log.chosen()
        done = manifest if chosen is None else chosen[0]
        offsets = done.sources
        if entry is not None:
            return _entry(log, names, entry, done)
        if version is not None:
            return _version(
                log, [name for name in names if "version" in offsets.get(name, {})], offsets, version
            )
        return _path(log, names, offsets, file or "")
    finally:
        lock.release()


def _entry(log: RoundLog, names: list[str], number: int, done: Manifest) -> str:
    name = _only(names, "a handle")
    read = done.entries.get(name, -1)
    if number <= read:
        raise _already(("entry", number), name, read)
    newest = max([log.taken(name), *log.files.numbers(f"inputs/{quoted(name)}")])
    if number > newest:  # it would leave a gap before it, with which no flow starts
        msg = f"input {name!r} has no entry {number}: the newest is {newest}"
        raise BadFile(msg, hint="give the number that the flow's error names.")
    skip_entry(log, name, number)
    before = Skipped.of(log.files, name)
    replace(before, entries=tuple(sorted({*before.entries, number}))).write(log.files, name)
    return f"entry {number} of input {name!r} is skipped; its file is in skipped/"


def _version(log: RoundLog, names: list[str], offsets: Mapping[str, Mapping[str, int]], version: int) -> str:
    name = _only(names, "a Delta table whose first version was read")
    if version <= (read := offsets[name]["version"]):
        raise _already(("version", version), name, read)
    before = Skipped.of(log.files, name)
    replace(before, versions=tuple(sorted({*before.versions, version}))).write(log.files, name)
    return f"version {version} of source {name!r} is skipped; those up to {read} were read"


def _path(log: RoundLog, names: list[str], offsets: Mapping[str, Mapping[str, int]], file: str) -> str:
    files: list[tuple[str, str, int]] = []
    planned: list[str] = []
    for name in names:
        read = offsets.get(name, {}).get("files", -1)
        for path, batch in _journaled(log, name):
            if path == file or path.endswith(f"/{file.lstrip('/')}"):
                if batch <= read:
                    raise _already(("file", path), name, None)
                files.append((name, path, batch))
            elif batch > read:
                planned.append(path)
    if len(files) != 1:
        msg = f"{len(files) or 'no'} files called {file!r} are planned and not read"
        hint = f"give one of them: {', '.join(sorted(planned)[:5]) or 'there is none'}."
        if files:
            hint = f"give the whole path: {', '.join(path for _, path, _ in files)}; or --input."
        raise BadFile(msg, hint=hint)
    ((name, path, batch),) = files
    before = Skipped.of(log.files, name)
    replace(before, files={**before.files, path: batch}).write(log.files, name)
    return f"{path} of source {name!r} is skipped"


def _journaled(log: RoundLog, name: str) -> Iterator[tuple[str, int]]:
    """The files in the batches of a journal that were not merged."""
    numbers = log.files.numbers(f"files/{quoted(name)}")
    if numbers:
        journal = FileJournal(log.files, name)
        for batch in range(journal.first, journal.last + 1):
            yield from ((each.path, batch) for each in journal.batch(batch) if each.bad is None)


def _only(names: list[str], what: str) -> str:
    if len(names) == 1:
        return names[0]
    msg = f"the flow has {len(names) or 'no'} inputs that can be meant: {what} is needed"
    raise BadFile(msg, hint=f"name it: --input {' or '.join(sorted(names)) or 'NAME'}.")


def _already(what: tuple[str, object], source: str, read: int | None) -> BadFile:
    """The error that a complete batch has read it; `read`: the last number that was read, None for files."""
    msg = f"{what[0]} {what[1]} of input {source!r} was read by a batch that is complete"
    if read is not None:
        msg += f": the next one is {read + 1}"
    return BadFile(msg, hint="skip what a batch that failed wants to read: the flow's error names it.")


def _file(source: str) -> str:
    return f"skipped/{quoted(source)}.json"
