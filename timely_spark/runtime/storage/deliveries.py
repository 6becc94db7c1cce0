"""The deliveries of `capture` and `to_memory` in the checkpoint: a chain, in which each names the one before.

Delivery v is `<v>.arrow`. Small ones that no batch delivers again are merged into `<first>-<last>.arrow`,
also with the merged file before them if that is at most twice as large. So each record is written O(log n)
times for n deliveries, and a reader has few files to open.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pyarrow as pa

from timely_spark.errors import LogDamaged
from timely_spark.runtime.storage.files import HEAD, Files, quoted
from timely_spark.runtime.storage.merged_files import MergedFiles, Span

#: Deliveries are merged when there are so many, into files of at most so many bytes.
EVERY, MOST = 256, 16 << 20


@dataclass
class Deliveries:
    """The deliveries of one output. Each names the one before it, so a missing delivery is noticed."""

    checkpoint: str
    output: str
    #: The newest delivery that this object wrote.
    _last: int | None = field(default=None, repr=False)
    #: The version that `merge` was last called with.
    _before: int = field(default=-1, repr=False)
    #: The number of later versions until `merge` lists the folder again.
    _countdown: int = field(default=0, repr=False)
    #: The last delivery of those that `merge` leaves as they are, because they are large.
    _stays: int = field(default=-1, repr=False)

    @cached_property
    def _folder(self) -> MergedFiles:
        return MergedFiles(Files(self.checkpoint).below("timely"), f"captured/{quoted(self.output)}")

    def write(self, version: int, table: pa.Table) -> None:
        """Write a delivery; a repeated delivery writes the same file."""
        before = self._last
        if before is None or before >= version:
            earlier = (each.last for each in self._folder.listed() if each.last < version)
            before = max(earlier, default=None)
        head = {HEAD: json.dumps({"after": before}).encode()}
        self._folder.files.write_table(self._folder.name(version), table.replace_schema_metadata(head))
        self._last = version

    def read(self, last: int | None = None, *, after: int = -1) -> Iterator[tuple[int, pa.Table]]:
        """The deliveries after a version, in order, whether or not they are merged.

        Args:
            last: a version that must exist.
            after: only later versions are read. If `last` alone is later, no folder is listed.
        """
        folder = self._folder
        if last is not None and 0 <= after < last and (table := self._newest(last, after)) is not None:
            yield last, table.replace_schema_metadata(None)
            return
        listed = folder.listed()
        self._check(listed, last)
        rest = [each for each in listed if each.last > after]
        while rest:
            if (table := folder.files.table(folder.name(*rest[0]))) is None:
                listed = folder.listed()
                if rest[0] in listed:
                    raise LogDamaged.no_file(folder.files.root, folder.name(*rest[0]))
                rest = [each for each in listed if each.last > after]  # it has just been merged
                continue
            head = self._head(rest.pop(0), table)
            self._check(listed, head["after"])
            table, start = table.replace_schema_metadata(None), 0
            for version, rows in head["deliveries"]:
                if version > after:
                    yield version, table.slice(start, rows)
                start, after = start + rows, max(after, version)

    def _newest(self, last: int, after: int) -> pa.Table | None:
        """The file of a version, if it is the only one after another."""
        if (table := self._folder.files.table(self._folder.name(last))) is None:
            return None
        before = self._head(Span(last, last), table)["after"]
        return table if before is not None and before <= after else None

    def schema(self) -> pa.Schema | None:
        """The columns of the newest delivery, without that of epochs; None if there is no delivery."""
        if not (listed := self._folder.listed()):
            return None
        name = self._folder.name(*listed[-1])
        return self._folder.files.existing(name, self._folder.files.schema(name)).remove(0)

    def check(self, version: int) -> None:
        """Check that a delivery exists."""
        self._check(self._folder.listed(), version)

    def merge(self, before: int) -> None:
        """Merge the deliveries before a version once there are `EVERY`; none of them is delivered again."""
        self._countdown -= before != self._before
        self._before = before
        if self._countdown > 0:
            return
        listed = self._folder.listed()
        least = max([self._stays, *(each.last for each in listed if each.is_merged)])
        old = [each for each in listed if least < each.last < before]
        self._countdown = EVERY - len(old)
        if self._countdown > 0:
            return
        self._countdown, size = EVERY, sum(map(self._size, old))
        if size > MOST:
            self._stays = old[-1].last
            return
        tables = [self._folder.table(*each) for each in old]
        for each in reversed(listed[: listed.index(old[0])]):
            own = self._size(each)
            if not each.is_merged or own > 2 * size or own + size > MOST:
                break
            old, tables, size = [each, *old], [self._folder.table(*each), *tables], size + own
        heads = list(map(self._head, old, tables))
        deliveries = [delivery for head in heads for delivery in head["deliveries"]]
        head = {HEAD: json.dumps({"after": heads[0]["after"], "deliveries": deliveries}).encode()}
        table = pa.concat_tables(tables).combine_chunks().replace_schema_metadata(head)
        self._folder.merge(Span(old[0].first, old[-1].last), table)

    @staticmethod
    def forget(files: Files, delivered: Mapping[str, int]) -> None:
        """Remove what was captured after the last delivery of each output: a flow that goes back repeats it.

        Args:
            files: `RoundLog.files` of the checkpoint.
            delivered: by output the version of its last delivery.
        """
        last = {quoted(output): version for output, version in delivered.items()}
        for name in files.names("captured"):
            folder = MergedFiles(files, name)
            for span in folder.present():
                if span.first > last.get(name.rpartition("/")[2], -1):
                    files.remove(folder.name(*span))

    def _size(self, of: Span) -> int:
        return self._folder.files.size(self._folder.name(*of)) or 0

    def _head(self, of: Span, table: pa.Table) -> dict[str, Any]:
        """The delivery before a file's, and the versions and numbers of rows of those in it."""
        head = self._folder.files.head(self._folder.name(*of), table.schema)
        return {"after": head.get("after"), "deliveries": head.get("deliveries", [[of.last, table.num_rows]])}

    def _check(self, listed: list[Span], version: int | None) -> None:
        if version is not None and not any(each.first <= version <= each.last for each in listed):
            raise LogDamaged.no_file(self._folder.files.root, self._folder.name(version))
