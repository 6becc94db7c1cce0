"""Inputs that are added to a flow, removed, and come back: nothing of them is lost, or read twice."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import timely_spark as ts
from tests.support.stepper import Begin, Stepper
from timely_spark.coordinator.migrate import FlowChanged
from timely_spark.errors import LogDamaged
from timely_spark.runtime.errors import BadFile
from timely_spark.runtime.handle.log_view import LogView
from timely_spark.runtime.handle.sent import Sent
from timely_spark.runtime.storage.entries import close_source
from timely_spark.runtime.storage.manifest import Manifest


@pytest.fixture
def reads(tmp_path: Path) -> Callable[..., ts.Dataflow]:
    """A flow that reads folders, each with one file."""

    def flow_of(*names: str, epoch: str | None = None, **more: Any) -> ts.Dataflow:
        flow = ts.Dataflow("several")
        for name in names:
            folder = tmp_path / "in" / name
            folder.mkdir(parents=True, exist_ok=True)
            if not list(folder.iterdir()) and name != "empty":
                put(folder, "7,1")
            source = flow.files(name, folder, format="csv", schema="k long, day long", epoch=epoch, **more)
            source.group_by("k").count(name=f"{name}-counts").capture(f"{name}-out")
        return flow

    return flow_of


def put(folder: Path, *rows: str) -> None:
    (folder / f"{len(list(folder.iterdir()))}.csv").write_text("\n".join(["k,day", *rows, ""]))


def manifest(process: Stepper) -> Manifest:
    log = process.context.log
    newest = log.read(log.newest() or 0)
    assert newest is not None
    return newest


def test_a_wait_ends_also_if_what_was_added_has_nothing_yet(begin: Begin, reads: Any) -> None:
    begin(reads("a")).batches()
    flow = reads("a", "empty")
    process = begin(flow)
    process.batches()
    view = LogView(process.context)
    assert Sent(process.world.plan, view, [], dict(flow.frames), None).taken()()


def test_an_input_with_records_in_a_batch_that_runs_again_is_not_removed(
    begin: Begin, reads: Any, tmp_path: Path
) -> None:
    process = begin(reads("a", "b"))
    process.batches()
    put(tmp_path / "in" / "a", "8,1")
    assert process.poll() is not None  # the process ends before the batch has run
    with pytest.raises(FlowChanged, match="input 'a' is removed, and a batch that runs again has its"):
        begin(reads("b"))
    begin(reads("a"))  # of b the batch has nothing

    process = begin(reads("a", "b"))
    process.finish(process.run())
    process.batches()
    begin(reads("b")).batches()
    process = begin(reads("a", "b"))
    process.batches()
    assert manifest(process).sources == {"a": {"files": 1}, "b": {"files": 0}}
    assert "b" not in manifest(process).read, "it goes on where it was"


def test_so_is_one_with_records_in_a_resident_batch_that_has_begun(begin: Begin, reads: Any) -> None:
    process = begin(reads("a", "b"))
    process.batches()
    stand = manifest(process)
    ends = {"entries": stand.entries, "sources": stand.sources | {"a": {"files": 1}}}
    process.context.log.begin(stand.batch + 1, ends)
    with pytest.raises(FlowChanged, match="input 'a' is removed"):
        begin(reads("b"))


def test_a_source_that_was_closed_comes_back_closed(begin: Begin, reads: Any, tmp_path: Path) -> None:
    process = begin(reads("a", "b", epoch="day"))
    process.batches()
    close_source(process.context.log, "a")
    process.batches()
    assert manifest(process).coordinator["inputs"]["a"] is None
    begin(reads("b", epoch="day")).batches()
    process = begin(reads("a", "b", epoch="day"))
    put(tmp_path / "in" / "a", "7,9")
    process.batches()
    assert manifest(process).coordinator["inputs"]["a"] is None
    assert manifest(process).frontier["a-out"] == []


def test_the_first_epoch_of_an_added_source_may_be_far_above_those_of_others(
    begin: Begin, reads: Any, tmp_path: Path
) -> None:
    begin(reads("b", epoch="day")).batches()
    (tmp_path / "in" / "a").mkdir()
    put(tmp_path / "in" / "a", f"7,{1 << 50}")
    process = begin(reads("b", "a", epoch="day"))
    process.batches()
    assert not manifest(process).late


@pytest.mark.parametrize("epochs", [(None, "day"), ("day", "k"), ("day", None)])
def test_a_source_keeps_its_kind_of_epochs(begin: Begin, reads: Any, epochs: Any) -> None:
    begin(reads("a", epoch=epochs[0])).batches()
    with pytest.raises(FlowChanged, match="its epochs and origin were"):
        begin(reads("a", epoch=epochs[1]))


@pytest.mark.parametrize(
    "wrong",
    [
        {"b": {"files": 0}},
        {"a": {"files": 1}, "b": {"files": -1}},
        {"a": {"files": "1"}, "b": {"files": 0}},
        {"a": {"version": 3}, "b": {"files": 0}},
        {"a": "1", "b": {"files": 0}},
        [],
    ],
    ids=str,
)
def test_the_offset_of_a_source_that_cannot_follow_the_one_before_is_named(
    begin: Begin, reads: Any, tmp_path: Path, wrong: Any
) -> None:
    process = begin(reads("a", "b"))
    process.batches()
    put(tmp_path / "in" / "a", "8,1")
    planned = process.poll()
    assert planned is not None
    file = tmp_path / "offsets" / str(process.next)
    file.write_text(file.read_text().replace(json.dumps(planned), json.dumps(planned | {"sources": wrong})))
    with pytest.raises(LogDamaged, match=rf"offsets/{process.next} cannot be read: (it is older|its first)"):
        begin(reads("a", "b"))


def test_a_source_of_another_kind_is_told_before_a_planned_batch_is_read(
    begin: Begin, reads: Any, tmp_path: Path
) -> None:
    process = begin(reads("a"))
    process.batches()
    put(tmp_path / "in" / "a", "8,1")
    planned = process.poll()
    reader = process.reader.readers["a"]
    with pytest.raises(BadFile, match=r"reads files, but its position in the checkpoint is {'version': 3}"):
        reader.shares({"version": 2}, {"version": 3})
    assert planned is not None
