"""The deliveries of `capture` and `to_memory` in the checkpoint: one file each, in a chain."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa

from timely_spark.errors import LogDamaged
from timely_spark.runtime.storage.files import HEAD, Files, quoted
from timely_spark.runtime.storage.log import captured_file


@dataclass
class Deliveries:
    """The deliveries of one output. Each names the one before it, so a missing delivery is noticed."""

    checkpoint: str
    output: str
    #: The newest delivery that this object wrote.
    _last: int | None = field(default=None, repr=False)

    @property
    def files(self) -> Files:
        """The files of the round log."""
        return Files(self.checkpoint).below("timely")

    def write(self, version: int, table: pa.Table) -> None:
        """Write a delivery; a repeated delivery writes the same file."""
        files = self.files
        before = self._last
        if before is None or before >= version:
            before = max((each for each in self._versions(files) if each < version), default=None)
        head = {HEAD: json.dumps({"after": before}).encode()}
        metadata = {**(table.schema.metadata or {}), **head}
        files.write_table(captured_file(self.output, version), table.replace_schema_metadata(metadata))
        self._last = version

    def read(self, last: int | None = None, *, after: int = -1) -> Iterator[tuple[int, pa.Table]]:
        """The deliveries after a version, in order; `last` is a version that must exist."""
        files = self.files
        self._check(files, last)
        for version in self._versions(files):
            if version <= after:
                continue
            name = captured_file(self.output, version)
            table = files.existing(name, files.table(name))
            self._check(files, files.head(name, table.schema).get("after"))
            metadata = {key: value for key, value in table.schema.metadata.items() if key != HEAD}
            yield version, table.replace_schema_metadata(metadata or None)

    def _versions(self, files: Files) -> list[int]:
        return files.numbers(f"captured/{quoted(self.output)}")

    def _check(self, files: Files, version: int | None) -> None:
        if version is not None and not files.exists(captured_file(self.output, version)):
            raise LogDamaged.no_file(files.root, captured_file(self.output, version))
