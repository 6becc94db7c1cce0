"""The deliveries of `capture` and `to_memory` in the checkpoint: a chain, in which each names the one before.

Delivery v is `<v>.arrow`. Small ones that no batch delivers again are merged into `<first>-<last>.arrow`,
also with the merged file before them if that is at most twice as large. So each record is written O(log n)
times for n deliveries, and a reader has few files to open.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa

from timely_spark.errors import LogDamaged
from timely_spark.runtime.storage.files import HEAD, Files, quoted

#: Deliveries are merged when there are so many, into files of at most so many bytes.
EVERY, MOST = 256, 16 << 20
_NAMED = re.compile(r"(\d+)(?:-(\d+))?\.arrow", re.ASCII)


class DeliveryFile(NamedTuple):
    """A file of the deliveries from one version to another."""

    first: int
    last: int

    @property
    def is_merged(self) -> bool:
        """Whether the file was written by `Deliveries.merge`."""
        return self.first != self.last


@dataclass
class Deliveries:
    """The deliveries of one output. Each names the one before it, so a missing delivery is noticed."""

    checkpoint: str
    output: str
    #: The newest delivery that this object wrote.
    _last: int | None = field(default=None, repr=False)
    #: Of `merge`: the version that it was last called with; how many later ones until it looks at the folder;
    #: and the last delivery that stays as it is, because those up to it are large, or of several schemas.
    _before: int = field(default=-1, repr=False)
    _left: int = field(default=0, repr=False)
    _stays: int = field(default=-1, repr=False)

    @property
    def files(self) -> Files:
        """The files of the round log."""
        return Files(self.checkpoint).below("timely")

    def write(self, version: int, table: pa.Table) -> None:
        """Write a delivery; a repeated delivery writes the same file."""
        files = self.files
        before = self._last
        if before is None or before >= version:
            before = max((each.last for each in self._listed(files) if each.last < version), default=None)
        head = {HEAD: json.dumps({"after": before}).encode()}
        metadata = {**(table.schema.metadata or {}), **head}
        name = self._name(DeliveryFile(version, version))
        files.write_table(name, table.replace_schema_metadata(metadata))
        self._last = version

    def read(self, last: int | None = None, *, after: int = -1) -> Iterator[tuple[int, pa.Table]]:
        """The deliveries after a version, in order, whether or not they are merged.

        Args:
            last: a version that must exist.
            after: only later versions are read.
        """
        files = self.files
        listed = self._listed(files)
        self._check(files, listed, last)
        left = [each for each in listed if each.last > after]
        while left:
            if (table := files.table(self._name(left[0]))) is None:
                listed = self._listed(files)
                if left[0] in listed:
                    raise LogDamaged.no_file(files.root, self._name(left[0]))
                left = [each for each in listed if each.last > after]  # it has just been merged
                continue
            file = left.pop(0)
            head = self._head(files, file, table)
            self._check(files, listed, head["after"])
            metadata = {key: value for key, value in table.schema.metadata.items() if key != HEAD}
            table = table.replace_schema_metadata(metadata or None)
            start = 0
            for version, rows in head["deliveries"]:
                if version > after:
                    yield version, table.slice(start, rows)
                start, after = start + rows, max(after, version)

    def check(self, version: int) -> None:
        """Check that a delivery is there."""
        files = self.files
        self._check(files, self._listed(files), version)

    def merge(self, before: int) -> None:
        """Merge the deliveries before a version, none of which is delivered again, once they are `EVERY`."""
        self._left -= before != self._before
        self._before = before
        if self._left > 0:
            return
        files = self.files
        listed = self._listed(files)
        least = max([self._stays, *(each.last for each in listed if each.is_merged)])
        old = [each for each in listed if least < each.last < before]
        self._left = EVERY - len(old)
        if self._left > 0:
            return
        self._left, size = EVERY, self._size(files, old)
        tables = [self._table(files, each) for each in old] if size <= MOST else []
        if not tables or not all(table.schema.equals(tables[0].schema) for table in tables):
            self._stays = old[-1].last
            return
        for each in reversed(listed[: listed.index(old[0])]):
            own = self._size(files, [each])
            if not each.is_merged or own > 2 * size or own + size > MOST:
                break
            if not (table := self._table(files, each)).schema.equals(tables[0].schema):
                break
            old, tables, size = [each, *old], [table, *tables], size + own
        heads = [self._head(files, each, table) for each, table in zip(old, tables, strict=True)]
        deliveries = [delivery for head in heads for delivery in head["deliveries"]]
        head = {HEAD: json.dumps({"after": heads[0]["after"], "deliveries": deliveries}).encode()}
        table = pa.concat_tables(tables).combine_chunks()
        merged = DeliveryFile(old[0].first, old[-1].last)
        metadata = {**(table.schema.metadata or {}), **head}
        files.write_table(self._name(merged), table.replace_schema_metadata(metadata), durable=True)
        for each in self._found(files):  # also what a process left that was killed here
            if each != merged and merged.first <= each.first and each.last <= merged.last:
                files.remove(self._name(each))

    def _name(self, file: DeliveryFile) -> str:
        stem = f"{file.first}-{file.last}" if file.is_merged else file.last
        return f"captured/{quoted(self.output)}/{stem}.arrow"

    def _size(self, files: Files, of: list[DeliveryFile]) -> int:
        return sum(files.size(self._name(each)) or 0 for each in of)

    def _table(self, files: Files, of: DeliveryFile) -> pa.Table:
        return files.existing(self._name(of), files.table(self._name(of)))

    def _head(self, files: Files, of: DeliveryFile, table: pa.Table) -> dict[str, Any]:
        """The delivery before a file's, and the versions and numbers of rows of those in it."""
        head = files.head(self._name(of), table.schema)
        return {"after": head.get("after"), "deliveries": head.get("deliveries", [[of.last, table.num_rows]])}

    def _found(self, files: Files) -> list[DeliveryFile]:
        """All files, also those that a merged one has replaced, which come after it."""
        names = files.names(f"captured/{quoted(self.output)}")
        matches = [_NAMED.fullmatch(name.rpartition("/")[2]) for name in names]
        present = [DeliveryFile(int(match[1]), int(match[2] or match[1])) for match in matches if match]
        return sorted(present, key=lambda each: (each.first, -each.last))

    def _listed(self, files: Files) -> list[DeliveryFile]:
        """The files that have each delivery once, in order."""
        listed: list[DeliveryFile] = []
        for each in self._found(files):
            if not listed or each.last > listed[-1].last:  # else a merged file has it
                listed.append(each)
        return listed

    def _check(self, files: Files, listed: list[DeliveryFile], version: int | None) -> None:
        if version is not None and not any(each.first <= version <= each.last for each in listed):
            raise LogDamaged.no_file(files.root, self._name(DeliveryFile(version, version)))
