"""What the tasks of a source need not read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest

import timely_spark as ts
from timely_spark.compiler.pushdown import Needed, needed

ALL = ("a", "b", "c", "d")
A, B, C = (pc.field(name) for name in "abc")


@pytest.mark.parametrize(
    ("use", "columns", "condition"),
    [
        (lambda s: s.select("b"), "b", None),
        (lambda s: s.select(x=pc.add(C, A), y="c"), "ac", None),
        (lambda s: s.select(x=pc.field(1)), "abcd", None),
        (lambda s: s.where(B > 1).select("a"), "ab", B > 1),
        (lambda s: s.where(B > 1).where(C < 2).select("a").where(A > 9), "abc", (B > 1) & (C < 2) & (A > 9)),
        (lambda s: s.select("a", b="c").where(A > 1).where(B > 2), "ac", A > 1),
        (lambda s: s.select(a=A + 1).where(A > 1), "a", None),
        (lambda s: s.flat_map(lambda row: [row], "a long").where(A > 1), "abcd", None),
        (lambda s: s.collection().where(B > 1).select("a").changes(), "ab", B > 1),
        (lambda s: s.collection(diff="d").where(B > 1).select("a").changes(), "abd", B > 1),
        (lambda s: s.where(lambda row: row.b > 1).select("a").where(A > 1), "abcd", A > 1),
        (lambda s: s.select("a", "b").select("a"), "a", None),
        (lambda s: s.map_batches(lambda t: t, "a long, b long, c long, d long").select("a"), "abcd", None),
        (lambda s: s.branch(B > 1).falses.select("a"), "ab", None),
        (lambda s: s.select("a").concat(s.select(a="b")), "ab", None),
        (lambda s: s.where(B > 1).select("a").concat(s.select(a="c")), "abc", None),
        (lambda s: s.select(one=pc.scalar(1)), "a", None),
    ],
)
def test_columns_and_conditions(use: Callable[[Any], Any], columns: str, condition: Any) -> None:
    flow = ts.Dataflow("needed")
    use(flow.source("in", "a long, b long, c long, d long")).capture("out")
    found = needed(flow.compile(2), "in")

    assert found.columns == tuple(columns)
    assert str(found.condition) == str(condition)


def test_conditions_of_floats_are_not_compared_with_statistics_which_leave_nan_out() -> None:
    flow = ts.Dataflow("floats")
    source = flow.source("in", "a double, b struct<x float>, c array<double>, d long")
    rows = source.where(A != 7).where(pc.struct_field(B, "x") < 1).where(pc.list_value_length(C) > 1)
    rows.where(pc.field("d") > 1).select("d").capture("out")

    assert str(needed(flow.compile(2), "in").condition) == str(pc.field("d") > 1)


def test_columns_of_quarantined_files_are_none_of_the_files(tmp_path: Path) -> None:
    flow = ts.Dataflow("needed")
    source = flow.files("in", tmp_path, schema="a long, path long", on_bad_file="quarantine")
    source.where(A > 1).select("a").capture("out")
    source.quarantined.where(pc.field("size") > 1).select("path").capture("bad")

    found = needed(flow.compile(2), "in")
    assert (found.columns, str(found.condition)) == (("a",), str(A > 1))


def test_with_an_epoch_column_all_records_and_that_column_are_needed() -> None:
    flow = ts.Dataflow("needed")
    source = flow.source("in", "a long, b long, c long, d long", epoch="d")
    source.where(B > 1).select("a").capture("out")
    source.late.select("c").capture("late")

    assert needed(flow.compile(2), "in") == Needed(("a", "b", "c", "d"), None)
