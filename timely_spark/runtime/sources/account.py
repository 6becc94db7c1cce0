"""`Account`: what became of all that a flow's inputs were given, read from a checkpoint by any process.

Law: `listed == entered + quarantined + skipped`, in files, entries, epochs or messages, each once; and
the records of what has entered are `rows`; `late` of them were late. What waits is not listed yet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from timely_spark.errors import LogDamaged
from timely_spark.runtime.sources.journal import FileCounts
from timely_spark.runtime.sources.skipped import Skipped
from timely_spark.runtime.storage.entries import entry_size
from timely_spark.runtime.storage.files import Files, quoted
from timely_spark.runtime.storage.log import RoundLog
from timely_spark.runtime.storage.manifest import Manifest
from timely_spark.show.table import counted

_Kind: TypeAlias = Literal["quarantined", "columns", "lost"]
#: So many names are kept for people to look at; and so many entries that wait are counted.
_NAMES, _WAITING = 100, 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """The account of all that one input was given, up to the micro-batch of a manifest.

    `Account.of(log, manifest, inputs)` reads the accounts of all inputs: a small file for each source of
    files, and one of Spark's log. Compare `listed` with what was there (files by their identity, the entries
    that a handle has sent, epochs of a capture), `entered` with what the flow must have, and `rows` with
    their records. `rows` counts what the tasks read: not the row groups of Parquet that the flow's first
    `where` excludes.
    """

    #: what is counted; None means rows only, of a Spark DataFrame or a Delta table
    unit: Literal["file", "entry", "epoch", "message"] | None = None
    listed: int = 0
    entered: int = 0
    quarantined: int = 0
    #: by `python -m timely_spark skip`
    skipped: int = 0
    #: records that have entered, and of these the late ones
    rows: int = 0
    late: int = 0
    #: how many names in a folder are not read, as links to files that are
    ignored: int = 0
    #: the files, entries, epochs, messages or Delta versions that no batch has begun to read: of a handle at
    #: most 1,000; of other sources as of the last look; 0 for a Spark DataFrame, as Spark does not say
    waiting: int = 0
    #: why files, entries or columns are not read, by their names; of some if there are many
    names: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, log: RoundLog, manifest: Manifest, inputs: Sequence[Sequence[str]]) -> dict[str, Account]:
        """The accounts by input.

        Args:
            inputs: `log.flow(manifest)["described"]["inputs"]`, or `plan.described()["inputs"]`.
        """
        accounts = {}
        for name, _, kind in inputs:
            last = manifest.entries.get(name, -1) if kind == "handle" else None
            accounts[name] = cls(
                **_counted(log.files, manifest, name, manifest.sources.get(name) if last is None else last),
                waiting=_waiting(log, name, last),
                rows=manifest.read.get(name, 0),
                late=manifest.late.get(name, 0),
            )
        return accounts

    @property
    def backlog(self) -> str:
        """What waits, in words; empty if nothing does."""
        return counted(self.waiting, self.unit or "version") if self.waiting else ""

    def __str__(self) -> str:
        parts = [counted(self.entered, self.unit)] if self.unit is not None else []
        parts += [counted(self.rows, "record")] if self.unit != "message" else []
        counts = {
            "late": self.late,
            "quarantined": self.quarantined,
            "skipped": self.skipped,
            "names ignored": self.ignored,
        }
        parts += [f"{count:,} {what}" for what, count in counts.items() if count]
        return ", ".join([*parts, *[f"{self.backlog} waiting"] * bool(self.waiting)])


def _counted(files: Files, manifest: Manifest, name: str, offset: Any) -> dict[str, Any]:
    """The counts of an input at its offset, or at the number of a handle's last entry."""
    skipped = Skipped.of(files, name)
    match offset:
        case int():
            left_out = sum(number <= offset for number in skipped.entries)
            return {
                "unit": "entry",
                "listed": offset + 1,
                "entered": offset + 1 - left_out,
                "skipped": left_out,
                "names": skipped.names,
            }
        case {"offsets": _}:
            read, bad = manifest.read.get(name, 0), manifest.quarantined.get(name, 0)
            return {
                "unit": "message",
                "listed": read + bad,
                "entered": read,
                "quarantined": bad,
                "names": _names(files, "lost", name),
            }
        case {"epochs": int(epochs)}:
            return {"unit": "epoch", "listed": epochs, "entered": epochs}
        case {"files": int(until)}:
            counts = FileCounts.of(files, name, until)
            left_out = sum(batch <= until for batch in skipped.files.values())
            ignored = _shown(files, _file("ignored", name)) or {"count": 0, "names": {}}
            other = _names(files, "quarantined", name) | _names(files, "columns", name)
            return {
                "unit": "file",
                "listed": counts.listed,
                "entered": counts.entered - left_out,
                "quarantined": counts.quarantined,
                "skipped": left_out,
                "ignored": ignored["count"],
                "names": other | skipped.names | ignored["names"],
            }
    return {"skipped": len(skipped.names), "names": skipped.names}


def _waiting(log: RoundLog, name: str, last: int | None) -> int:
    """A handle's entries after the `last` one that was read; of other inputs (None) what was seen last."""
    if last is None:
        return int((_shown(log.files, _file("waiting", name)) or {"count": 0})["count"])
    later = range(last + 1, last + 1 + _WAITING)
    return next((n for n, number in enumerate(later) if entry_size(log, name, number) is None), _WAITING)


def write_waiting(files: Files, source: str, count: int) -> None:
    """Write how much of a source is unread, if that has changed."""
    _write_changed(files, _file("waiting", source), {"count": count}, {"count": 0})


def write_ignored(files: Files, source: str, names: Mapping[str, str]) -> None:
    """Write which names in the folder of a source are not read, and why."""
    content = {"count": len(names), "names": dict(sorted(names.items())[:_NAMES])}
    _write_changed(files, _file("ignored", source), content, {"count": 0, "names": {}})


def _write_changed(files: Files, name: str, content: dict[str, Any], missing: dict[str, Any]) -> None:
    """Write a file if it has other content; `missing` is that of a file that was not written yet."""
    if (_shown(files, name) or missing) != content:
        files.write_json(name, content)


def _shown(files: Files, name: str) -> dict[str, Any] | None:
    """The content of a file for people; None if it is missing, or damaged: the next write mends it."""
    try:
        return files.json(name)
    except LogDamaged:
        return None


def write_names(files: Files, kind: _Kind, source: str, names: Mapping[str, str]) -> None:
    """Add names of a source that are not read, and why, to those of before."""
    some = list((_names(files, kind, source) | dict(names)).items())[-_NAMES:]
    files.write_json(_file(kind, source), {"names": dict(some)})


def _names(files: Files, kind: _Kind, source: str) -> dict[str, str]:
    """What `write_names` has written."""
    return dict((_shown(files, _file(kind, source)) or {"names": {}})["names"])


def _file(kind: str, source: str) -> str:
    return f"ignored/{quoted(source)}-{kind}.json"
