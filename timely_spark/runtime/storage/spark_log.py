"""`SparkLog`: what Spark itself writes into a checkpoint, validated before it is used.

Spark writes `metadata`, `offsets/<N>` (the end of each source's input in batch N, before the batch runs) and
`commits/<N>`, without checksums. So each manifest has the text of its batch's offsets, and a start compares.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from timely_spark.errors import LogDamaged
from timely_spark.runtime.storage.files import Files

#: The first line of offsets and commits.
_VERSION = re.compile(r"v\d+")
#: The offset of Spark's source of files.
_LISTED = re.compile(r'{"logOffset":(-?\d+)}')
StoredOffset = Mapping[str, Any]
"""The end offset of a source, as it is in Spark's log."""


class SparkLog:
    """Spark's own files of a checkpoint."""

    def __init__(self, files: Files) -> None:
        self.files = files

    @property
    def offsets(self) -> list[int]:
        """The batches that Spark has planned, ascending."""
        return self.files.numbers("offsets")

    @property
    def commits(self) -> list[int]:
        """The batches that Spark has committed, ascending."""
        return self.files.numbers("commits")

    def text(self, batch: int) -> str | None:
        """The offsets of a batch as Spark wrote them; None if there are none."""
        return self._text(f"offsets/{batch}")

    def ends(self, batch: int) -> list[str]:
        """The end offset of each source in a batch."""
        return _lines(self.text(batch) or "")[2:]

    def flow_offset(self, batch: int) -> dict[str, Any] | None:
        """The end offset of the flow's own source in a batch; None if the batch lacks it, or is missing."""
        ends, name = self.ends(batch), f"offsets/{batch}"
        end = self._json(name, ends[0]) if ends and ends[0].startswith("{") else {}
        if not {"round", "inputs", "sources"} <= end.keys():
            return None
        inputs, sources = end["inputs"], end["sources"]
        if not (
            isinstance(inputs, dict)
            and all(type(n) is int for n in (end["round"], *inputs.values()))
            and isinstance(sources, dict)
            and all(isinstance(each, dict) for each in sources.values())
        ):
            raise self._unreadable(name, f"its first source has the offset {ends[0]}")
        return end

    def is_of_a_flow(self) -> bool:
        """Whether a flow started the query that wrote the newest offsets."""
        try:
            return bool(self.offsets) and self.flow_offset(self.offsets[-1]) is not None
        except LogDamaged:
            return False

    def check(self, recorded: dict[int, str | None]) -> None:
        """Before a start: check all files that Spark, or this package, reads when it restarts.

        Args:
            recorded: for each batch with a manifest, the offsets that Spark gave it; None if the manifest has
                none.
        """
        offsets, commits = self.offsets, self.commits
        last = offsets[-1] if offsets else -1
        # Spark writes offsets N, then manifest N is written, then Spark writes commit N
        if (behind := max([-1, *commits, *([] if offsets else recorded)])) > last:
            raise LogDamaged.no_file(self.files.root, f"offsets/{behind}")
        if not offsets:
            return
        self._json("metadata", self.files.existing("metadata", self._content("metadata")))
        if not commits and last > 0:
            raise LogDamaged.no_file(self.files.root, f"commits/{last - 1}")
        if commits:
            name = f"commits/{commits[-1]}"
            self.files.existing(name, self._text(name))
        for batch in range(max(0, last - 1), last + 1):
            name = f"offsets/{batch}"
            text = self.files.existing(name, self.text(batch))
            if (expected := recorded.get(batch)) is not None and text != expected:
                reason = f"it is not what Spark gave to batch {batch}, which manifest {batch} has"
                raise self._unreadable(name, reason)
        if last > 0:
            self._check_order(last)
        for source, end in enumerate(self.ends(last)):
            self._check_listed(source, end)

    def _check_order(self, batch: int) -> None:
        """Check that a batch, which may have no manifest yet, begins where the batch before it has ended."""
        name, before = f"offsets/{batch}", f"offsets/{batch - 1}"
        if self.text(batch) == self.text(batch - 1):  # texts have the time at which Spark wrote them
            raise self._unreadable(name, f"it is a copy of {before}")
        if len(self.ends(batch)) != len(self.ends(batch - 1)):
            reason = f"it has {len(self.ends(batch))} sources, and {before} has {len(self.ends(batch - 1))}"
            raise self._unreadable(name, reason)
        now, old = self.flow_offset(batch), self.flow_offset(batch - 1)
        if (now is None) != (old is None):
            raise self._unreadable(name, f"{'it' if now is None else before} has no offset of the flow")
        if now is None or old is None:
            return
        if any(_is_behind(now[part], old[part]) for part in ("round", "inputs", "sources")):
            raise self._unreadable(name, f"it is older than {before}")

    def _check_listed(self, source: int, end: str) -> None:
        """Check the lists of the files that a source of Spark's has read, up to its offset `end`."""
        match = _LISTED.fullmatch(end)
        if match is None or (last := int(match[1])) < 0:
            return
        folder, folders = f"sources/{source}", self.files.names("sources")
        if folder not in folders and any(not name[8:].isdecimal() for name in folders):
            return  # a source with a name of its own, `readStream.name`, has a folder of that name
        names = {name.rpartition("/")[2] for name in self.files.names(folder)}
        merged = [batch for batch in range(last + 1) if f"{batch}.compact" in names]
        for batch in range(max(merged, default=0), last + 1):
            name = f"{folder}/{batch}" + ".compact" * (batch in merged)
            version, *entries = _lines(self.files.existing(name, self._content(name)))
            if not _VERSION.fullmatch(version):
                raise self._unreadable(name, f"it begins with {version[:20]!r}")
            for entry in entries:
                self._json(name, entry)

    def _text(self, name: str) -> str | None:
        """The content of a file of offsets or commits; None if there is no such file."""
        if (text := self._content(name)) is None:
            return None
        version, *rest = _lines(text)
        if not _VERSION.fullmatch(version) or not rest:
            raise self._unreadable(name, f"it begins with {version[:20]!r}")
        self._json(name, rest[0] or "{}")
        return text

    def _content(self, name: str) -> str | None:
        content = self.files.read(name)
        try:
            return None if content is None else content.decode()
        except UnicodeDecodeError as error:
            raise self._unreadable(name, error) from error

    def _json(self, name: str, text: str) -> dict[str, Any]:
        return self.files.parsed(name, text.encode())

    def _unreadable(self, name: str, reason: object) -> LogDamaged:
        return LogDamaged.unreadable(self.files.root, name, reason)


def _is_behind(now: Any, old: Any) -> bool:
    """Whether a number in an offset is less than in the one before, is missing, or is not a number."""
    if isinstance(old, dict):
        pairs = ((now.get(key), end) for key, end in old.items() if key != "after")
        return not isinstance(now, dict) or any(_is_behind(*pair) for pair in pairs)
    if isinstance(old, list):
        return not isinstance(now, list) or len(now) < len(old) or any(map(_is_behind, now, old))
    return isinstance(old, int) and (type(now) is not int or now < old)


def _lines(text: str) -> list[str]:
    return text.removesuffix("\n").split("\n")
