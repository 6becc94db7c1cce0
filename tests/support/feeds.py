"""Folders and tables that are written while a flow runs, without Spark; and what a flow must have read."""

from __future__ import annotations

import json
import random
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from timely_spark.runtime.sources.account import Account

Record = tuple[int, int]


class Counts(NamedTuple):
    """What became of all that an input was given: files or entries, and records."""

    listed: int
    entered: int
    quarantined: int
    rows: int

    @classmethod
    def of(cls, account: Account) -> Counts:
        return cls(account.listed, account.entered, account.quarantined, account.rows)


class Feed(ABC):
    """What another program writes: some records at a time, by chance in a file that nobody can read."""

    def __init__(self, folder: Path, draw: random.Random, names: tuple[str, str]) -> None:
        self.folder, self.draw, self.names = folder, draw, names
        #: what is to come; None: a file that nobody can read
        self.left = [self.records() for _ in range(draw.randint(1, 8))]
        #: by path what was written
        self.written: dict[str, list[Record] | None] = {}
        folder.mkdir(parents=True)

    def records(self) -> list[Record] | None:
        """The records of a file."""
        return [
            (self.draw.randint(0, 9), self.draw.randint(0, 99)) for _ in range(self.draw.choice([1, 5, 40]))
        ]

    def arrive(self) -> None:
        """Write what comes next."""
        path, records = self.folder / f"{len(self.written)}.parquet", self.left.pop()
        if records is None:
            path.write_bytes(b"PAR1 half of a file")
        else:
            columns = zip(*records, strict=True)
            pq.write_table(pa.table(dict(zip(self.names, map(list, columns), strict=True))), path)
        self.written[str(path)] = records
        self.publish(path)

    @abstractmethod
    def publish(self, path: Path) -> None:
        """Let others see the file."""

    def given(self) -> Counts:
        """What the flow must say at the end: without files records are counted."""
        return Counts(0, 0, 0, sum(len(records or ()) for records in self.written.values()))

    def of(self, paths: list[str]) -> list[Record]:
        """The records of files that can be read."""
        return [record for path in paths for record in self.written[path] or ()]


class FolderFeed(Feed):
    """Files in a folder, some of them half."""

    def records(self) -> list[Record] | None:
        return None if self.draw.random() < 0.2 else super().records()

    def publish(self, path: Path) -> None:
        """It is there."""

    def given(self) -> Counts:
        good = [records for records in self.written.values() if records is not None]
        return Counts(len(self.written), len(good), len(self.written) - len(good), sum(map(len, good)))


class TableFeed(Feed):
    """Versions of a Delta table, whose log is written by hand."""

    def __init__(self, folder: Path, draw: random.Random, names: tuple[str, str]) -> None:
        super().__init__(folder, draw, names)
        self.versions = 0
        (folder / "_delta_log").mkdir()
        fields = [{"name": name, "type": "long", "nullable": True, "metadata": {}} for name in names]
        schema = json.dumps({"type": "struct", "fields": fields})
        self.commit(
            {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}},
            {"metaData": {"schemaString": schema, "configuration": {}}},
        )

    def commit(self, *actions: dict[str, Any]) -> None:
        """A version."""
        name = f"{self.versions:020}.json"
        (self.folder / "_delta_log" / name).write_text("".join(f"{json.dumps(each)}\n" for each in actions))
        self.versions += 1

    def publish(self, path: Path) -> None:
        about = {
            "size": path.stat().st_size,
            "partitionValues": {},
            "modificationTime": 1,
            "dataChange": True,
        }
        self.commit({"add": {"path": path.name, **about}})


class FrameFeed(Feed):
    """Rows of a DataFrame, which Spark reads, and counts in an offset of its own."""

    def arrive(self) -> None:
        self.written[str(len(self.written))] = self.left.pop()

    def publish(self, path: Path) -> None:
        """There is no file."""

    def between(self, start: int, end: int) -> list[str]:
        """What came between two offsets."""
        return [*self.written][start:end]
