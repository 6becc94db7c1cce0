"""Inputs of sizes that `docs/sizing.md` names: many files, one large file, a large record, many columns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pytest

import timely_spark as ts
from tests.support.engine import Process, World
from tests.support.feeds import FolderFeed

pytestmark = pytest.mark.campaign
MB = 10**6


class Written(FolderFeed):
    """A folder that nobody writes any more."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.left, self.written = folder, [], {}


def rows(flow: ts.Dataflow, tmp_path: Path, sends: dict[str, Any], feeds: Any = None) -> dict[int, list[Any]]:
    """The output `out` of a flow on the runtime without a JVM."""
    world = World(flow, str(tmp_path / "checkpoint"), sends, feeds=feeds, workers=2)
    world.live()
    process = Process(world)
    process.start()
    return process.captured()


def of_folder(tmp_path: Path) -> dict[int, list[Any]]:
    """By key the number of records and their sum, of the files in `in`."""
    flow = ts.Dataflow("sums")
    read = flow.files("in", tmp_path / "in", schema="k long, v long", format="csv")
    read.group_by("k").aggregate(n="count", total=("sum", "v")).capture("out")
    return rows(flow, tmp_path, {}, {"in": Written(tmp_path / "in")})


def sums(n: int) -> list[tuple[int, int, int]]:
    """Of the numbers below n by their rest of 7."""
    return [(k, len(range(k, n, 7)), sum(range(k, n, 7))) for k in range(7)]


def test_ten_thousand_files_in_an_epoch(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for n in range(10_000):
        (tmp_path / "in" / f"{n}.csv").write_text(f"k,v\n{n % 7},{n}\n")
    assert of_folder(tmp_path) == {0: sums(10_000)}


def test_a_file_of_half_a_gigabyte(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    path, n, part = tmp_path / "in" / "large.csv", 50 * MB, MB
    with pyarrow.csv.CSVWriter(path, pa.schema([("k", pa.int64()), ("v", pa.int64())])) as writer:
        for first in range(0, n, part):
            v = np.arange(first, first + part)
            writer.write_table(pa.table({"k": v % 7, "v": v}))
    assert path.stat().st_size > 500 * MB
    assert of_folder(tmp_path) == {0: sums(n)}


def test_a_record_of_a_hundred_megabytes(tmp_path: Path) -> None:
    flow = ts.Dataflow("long")
    texts = flow.input("x", "k long, text string")
    texts.max("text", keys="k").select("k", first="left(text, 1)", n="length(text)").capture("out")
    first, then = [(1, "a" * 100 * MB)], [(1, "b" * 100 * MB), (2, "c")]
    assert rows(flow, tmp_path, {"x": [("send", (first,)), ("send", (then,))]}) == {
        0: [(1, "a", 100 * MB)],
        1: [(1, "b", 100 * MB), (2, "c", 1)],
    }


def test_five_thousand_columns(tmp_path: Path) -> None:
    flow, n = ts.Dataflow("wide"), 5_000
    wide = flow.input("x", ", ".join(f"c{i} long" for i in range(n)))
    totals = {f"t{i}": ("sum", f"c{i}") for i in range(2, n)}
    wide.distinct().group_by("c1").aggregate(**totals).capture("out")
    sends = [("send", ([(*range(n),)] * 2,)), ("send", ([(0, *range(n - 1))],))]
    assert rows(flow, tmp_path, {"x": sends}) == {0: [(*range(1, n),)], 1: [(*range(n - 1),)]}
