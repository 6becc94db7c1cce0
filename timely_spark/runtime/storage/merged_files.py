"""Numbered files that are merged: `7.arrow`, and `3-9.arrow` instead of those from one number to another."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa

from timely_spark.runtime.storage.files import Files

_NAME = re.compile(r"(\d+)(?:-(\d+))?\.arrow", re.ASCII)


class Span(NamedTuple):
    """The numbers that a file has, from the first to the last."""

    first: int
    last: int

    @property
    def is_merged(self) -> bool:
        """Whether several files were merged into this one."""
        return self.first != self.last


@dataclass(frozen=True)
class MergedFiles:
    """The numbered files of a folder. A process that is killed while it merges loses nothing."""

    files: Files
    folder: str

    def name(self, first: int, last: int | None = None) -> str:
        """The name of the file with a number, or with those of a span: `name(*span)`."""
        return f"{self.folder}/{first if last in {None, first} else f'{first}-{last}'}.arrow"

    def table(self, first: int, last: int | None = None) -> pa.Table:
        """The table in a file, which must exist; arguments as those of `name`."""
        name = self.name(first, last)
        return self.files.existing(name, self.files.table(name))

    def listed(self) -> list[Span]:
        """The files that have each number once, in order; lists the folder."""
        return current(self.present())

    def present(self) -> list[Span]:
        """All files, also those that a merged one has replaced; lists the folder."""
        matches = [_NAME.fullmatch(name.rpartition("/")[2]) for name in self.files.names(self.folder)]
        return [Span(int(match[1]), int(match[2] or match[1])) for match in matches if match]

    def merge(self, span: Span, table: pa.Table) -> None:
        """Write a merged file, then remove those that it replaces."""
        self.files.write_table(self.name(*span), table, durable=True)
        self.tidy(self.present())

    def tidy(self, present: Iterable[Span]) -> None:
        """Remove those of the present files that a merged one has replaced."""
        for span in set(present).difference(current(present)):
            self.files.remove(self.name(*span))


def current(present: Iterable[Span]) -> list[Span]:
    """The files that have each number once, in order."""
    files: list[Span] = []
    for span in sorted(present, key=lambda each: (each.first, -each.last)):
        if not files or span.last > files[-1].last:  # else a merged file has it
            files.append(span)
    return files
