"""Inputs that are added to a flow, removed, and come back: nothing of them is lost, or read twice."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import timely_spark as ts
from tests.support import engine
from tests.support.stepper import Begin, Stepper
from timely_spark.coordinator.migration import FlowChanged
from timely_spark.errors import LogDamaged
from timely_spark.runtime.errors import BadFile, OutputMismatch
from timely_spark.runtime.handle.log_view import LogView
from timely_spark.runtime.handle.sent import Sent
from timely_spark.runtime.storage.entries import close_source
from timely_spark.worker import ROWS


@pytest.fixture
def reads(tmp_path: Path) -> Callable[..., ts.Dataflow]:
    """A flow that reads folders, each with one file."""

    def flow_of(*names: str, epoch: str | None = None, counts: str = "", **more: Any) -> ts.Dataflow:
        flow = ts.Dataflow("several")
        for name in names:
            folder = tmp_path / "in" / name
            folder.mkdir(parents=True, exist_ok=True)
            if not list(folder.iterdir()) and name != "empty":
                put(folder, "7,1")
            source = flow.files(name, folder, format="csv", schema="k long, day long", epoch=epoch, **more)
            source.capture(f"{name}-out")
            if counts:
                counted = source if counts == "stream" else source.quarantined
                counted.aggregate(n="count", name=f"{name}-count").capture(f"{name}-n")
        return flow

    return flow_of


def put(folder: Path, *rows: str) -> None:
    (folder / f"{len(list(folder.iterdir()))}.csv").write_text("\n".join(["k,day", *rows, ""]))


def test_a_wait_ends_also_if_what_was_added_has_nothing_yet(begin: Begin, reads: Any) -> None:
    begin(reads("a")).batches()
    flow = reads("a", "empty")
    process = begin(flow)
    process.batches()
    view = LogView(process.context)
    assert Sent(process.world.plan, view, [], dict(flow.frames), None).taken()()


@pytest.mark.slow
def test_an_input_with_records_in_a_batch_that_runs_again_is_not_removed(
    begin: Begin, reads: Any, tmp_path: Path
) -> None:
    process = begin(reads("a", "b"))
    process.batches()
    put(tmp_path / "in" / "a", "8,1")
    assert process.poll() is not None  # the process ends before the batch has run
    with pytest.raises(FlowChanged, match="input 'a' is removed, and a batch that runs again reads it"):
        begin(reads("b"))
    begin(reads("a"))  # of b the batch has nothing

    process = begin(reads("a", "b"))
    process.finish(process.run())
    process.batches()
    begin(reads("b")).batches()
    process = begin(reads("a", "b"))
    process.batches()
    assert process.newest().sources == {"a": {"files": 1}, "b": {"files": 0}}
    assert process.newest().read["b"] == 1, "it goes on where it was"


def test_so_is_one_with_records_in_a_resident_batch_that_has_begun(begin: Begin, reads: Any) -> None:
    process = begin(reads("a", "b"))
    process.batches()
    stand = process.newest()
    ends = {"entries": stand.entries, "sources": stand.sources | {"a": {"files": 1}}}
    process.context.log.begin(stand.batch + 1, ends)
    with pytest.raises(FlowChanged, match="input 'a' is removed"):
        begin(reads("b"))


def test_a_source_that_was_closed_comes_back_closed(begin: Begin, reads: Any, tmp_path: Path) -> None:
    process = begin(reads("a", "b", epoch="day"))
    process.batches()
    close_source(process.context.log, "a")
    process.batches()
    assert process.newest().coordinator["inputs"]["a"] is None
    begin(reads("b", epoch="day")).batches()
    process = begin(reads("a", "b", epoch="day"))
    put(tmp_path / "in" / "a", "7,9")
    process.batches()
    assert process.newest().coordinator["inputs"]["a"] is None
    assert process.newest().frontier["a-out"] == []


def test_the_first_epoch_of_an_added_source_may_be_far_above_those_of_others(
    begin: Begin, reads: Any, tmp_path: Path
) -> None:
    begin(reads("b", epoch="day")).batches()
    (tmp_path / "in" / "a").mkdir()
    put(tmp_path / "in" / "a", f"7,{1 << 50}")
    process = begin(reads("b", "a", epoch="day"))
    process.batches()
    assert not process.newest().late


@pytest.mark.parametrize("epochs", [(None, "day"), ("day", "k"), ("day", None)])
def test_a_source_keeps_its_kind_of_epochs(begin: Begin, reads: Any, epochs: Any) -> None:
    begin(reads("a", epoch=epochs[0])).batches()
    with pytest.raises(FlowChanged, match="its epochs and origin were"):
        begin(reads("a", epoch=epochs[1]))


@pytest.mark.slow
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


def captured(process: Stepper, name: str) -> dict[int, list[Any]]:
    """The epochs of an output that have records."""
    epochs = process.captured(name)
    return {epoch: rows for epoch, rows in epochs.items() if rows}


@pytest.mark.slow
@pytest.mark.parametrize("counts", ["stream", "quarantined"])
def test_a_count_of_an_input_that_comes_back_lacks_the_past(
    begin: Begin, reads: Any, tmp_path: Path, counts: str
) -> None:
    more = {"on_bad_file": "quarantine"} if counts == "quarantined" else {}
    if more:
        (tmp_path / "in" / "a").mkdir(parents=True)
        (tmp_path / "in" / "a" / "0.csv").write_text("k,day\n1,2,3\n")
    begin(reads("a", "b", **more)).batches()
    begin(reads("b", **more)).batches()
    begin(reads("a", "b", **more)).batches()
    with pytest.raises(FlowChanged, match="new: step 'a-count'"):
        begin(reads("a", "b", counts=counts, **more))


def test_row_groups_that_no_step_needed_have_passed_too(begin: Begin, tmp_path: Path) -> None:
    def flow(*, counts: bool) -> ts.Dataflow:
        made = ts.Dataflow("pushed")
        source = made.files("a", tmp_path / "a", schema="k long")
        source.where(pc.field("k") > 100, name="large").capture("out")
        if counts:
            source.aggregate(n="count", name="count").capture("n")
        return made

    (tmp_path / "a").mkdir()
    pq.write_table(pa.table({"k": [1, 2]}), tmp_path / "a" / "0.parquet")
    process = begin(flow(counts=False))
    process.batches()
    assert not process.newest().read["a"]
    with pytest.raises(FlowChanged, match="new: step 'count'"):
        begin(flow(counts=True))


@pytest.mark.slow
def test_an_output_that_comes_back_delivers_no_epoch_again(begin: Begin, reads: Any) -> None:
    def flow(*names: str) -> ts.Dataflow:
        made: ts.Dataflow = reads(*names)
        x = made.input("slow", "k long")
        less = lambda n: n.exchange("k").map(lambda r: r.k - 1, "k long", name="less")  # noqa: E731
        x.loop(lambda n: less(n).where(pc.field("k") >= 0, name="more"), name="loop").capture("looped")
        return made

    process = begin(flow("a", "b"))
    process.handles["slow"].send([50])
    for _ in range(3):
        process.batch()
    assert captured(process, "a-out") == {0: [(7, 1)]}
    begin(flow("b")).batch()
    process = begin(flow("a", "b"))
    process.batches()
    assert captured(process, "a-out") == {0: [(7, 1)]}


def manual(*names: str) -> ts.Dataflow:
    flow = ts.Dataflow("manual")
    for name in names:
        flow.input(name, "k long", epochs="manual").capture(f"{name}-out")
    return flow


def test_a_handle_comes_back_where_it_was(begin: Begin) -> None:
    process = begin(manual("x", "y"))
    process.handles["y"].advance_to(9)
    process.batches()
    process = begin(manual("x"))
    process.handles["x"].advance_to(3)
    process.batches()
    process = begin(manual("x", "y"))
    assert (
        process.newest().coordinator["inputs"]
        == {"x": 3, "y": process.handles["y"].epoch}
        == {"x": 3, "y": 9}
    )


def test_unread_entries_of_a_handle_that_comes_back_must_fit(begin: Begin) -> None:
    process = begin(manual("x", "y"))
    process.batches()
    process.handles["y"].send([1], epoch=8)
    process.handles["y"].send([1])
    process = begin(manual("x"))
    process.handles["x"].advance_to(7)
    process.batches()
    with pytest.raises(FlowChanged, match="unread entry 1 is of epoch 0, and epoch 6 may be complete"):
        begin(manual("x", "y"))
    other = manual("x")
    other.input("y", "k long, w long", epochs="manual").capture("y-out")
    with pytest.raises(FlowChanged, match="entry 0 has the columns k int64, the input k int64, w int64"):
        begin(other)


@pytest.mark.slow
@pytest.mark.parametrize("output", ["capture", "to_files", "capture_to"])
@pytest.mark.parametrize("removed", [False, True])
def test_a_stored_output_keeps_its_columns(
    begin: Begin, tmp_path: Path, output: str, *, removed: bool
) -> None:
    def flow(*columns: str) -> ts.Dataflow:
        made = ts.Dataflow("stored")
        x = made.input("x", "k long, v long")
        x.capture("all")
        if columns:
            place = [str(tmp_path / "out")] * (output != "capture")
            getattr(x.select(*columns), output)(*place, name="out")
        return made

    process = begin(flow("k"))
    process.feed("x", [(1, 2)])
    if removed:
        begin(flow()).batches()
    with pytest.raises(OutputMismatch, match=r"'out' has stored epochs with the columns k int64.*k int64, v"):
        begin(flow("k", "v"))
    begin(flow("k")).batches()


@pytest.mark.parametrize("kind", [pa.map_(pa.string(), pa.int64()), pa.list_(pa.int64(), 1)])
def test_columns_of_parquet_are_those_of_the_stored_output(begin: Begin, tmp_path: Path, kind: Any) -> None:
    """A reader of Parquet has other names than one of Arrow files for what is in maps and some lists."""
    pq.write_table(pa.table({"m": pa.array([None], kind)}), tmp_path / "a.parquet")

    def flow() -> ts.Dataflow:
        flow = ts.Dataflow("nested")
        x = flow.input("x", pq.read_schema(tmp_path / "a.parquet"))
        x.capture("out")
        x.to_files(str(tmp_path / "out"), name="files")
        x.select(k="1").group_by("k").aggregate(every=("collect", "k"), name="lists").capture("all")
        return flow

    for _ in range(2):
        process = begin(flow())
        process.feed("x", [(None,)])
        process.batches()


def test_a_capture_that_comes_back_has_all_epochs_or_is_refused(begin: Begin, tmp_path: Path) -> None:
    """A replay takes an epoch that the capture skipped for an empty one."""

    def flow(*, captured: bool) -> ts.Dataflow:
        made = ts.Dataflow("stored")
        x = made.input("x", "k long", epochs="manual")
        x.capture("all")
        if captured:
            x.capture_to(tmp_path / "shared", name="shared")
        return made

    for epoch, captured in enumerate([True, False]):
        process = begin(flow(captured=captured))
        process.handles["x"].send([epoch])
        process.handles["x"].advance_to(epoch + 1)
        process.batches()
    with pytest.raises(FlowChanged, match=r"(?s)step 'shared' .*depend on records.*new_steps=\"empty\""):
        begin(flow(captured=True))


def test_a_capture_that_has_ended_gets_no_later_epoch(begin: Begin, tmp_path: Path) -> None:
    """Its readers have closed their inputs, and would not see it."""

    def flow(*names: str) -> ts.Dataflow:
        made = ts.Dataflow("ends")
        inputs = [made.input(name, "k long", epochs="manual") for name in names]
        inputs[0].concat(*inputs[1:], name="all").capture_to(tmp_path / "shared", name="shared")
        return made

    process = begin(flow("x"))
    process.handles["x"].send([1])
    process.handles["x"].close()
    process.batches()
    process = begin(flow("x", "y"))
    process.handles["y"].send([2])
    process.handles["y"].advance_to(process.handles["y"].epoch + 1)
    with pytest.raises(OutputMismatch, match=r"(?s)has the end of its capture.*epoch 1 comes.*Hint"):
        process.batches()


@pytest.mark.slow
def test_late_rows_of_a_closed_source_are_not_lost_by_a_change(
    begin: Begin, reads: Any, tmp_path: Path
) -> None:
    def flow(*names: str) -> ts.Dataflow:
        made: ts.Dataflow = reads(*names, epoch="day")
        return made

    process = begin(flow("a", "b"))
    process.batches()
    close_source(process.context.log, "a")
    process.batches()
    late = ts.Dataflow("several")
    source = late.files("a", tmp_path / "in" / "a", format="csv", schema="k long, day long", epoch="day")
    source.late.capture("a-late")
    for between in ([], [flow("b")]):
        for each in between:
            begin(each).batches()
        process = begin(late)
        put(tmp_path / "in" / "a", f"{len(between)},9")
        process.batches()
    assert [row for rows in captured(process, "a-late").values() for row in rows] == [(0, 9), (1, 9)]


def test_a_flow_that_stays_after_a_run_that_did_not_can_be_killed(begin: Begin, reads: Any) -> None:
    process = begin(reads("a"))
    process.batches()
    process = begin(reads("a", "b"))
    process.context = process.driver.context = replace(process.context, resident=1e9)
    process.driver.__post_init__()
    newest = process.newest()
    rows = engine.Frame(ROWS.empty_table(), process)
    process.world.plan_batch(process.next, process.world.offset(process.next - 1) | {"wake": newest.batch})
    last = process.driver._restored(process.context.log, process.next)
    process.driver._first(rows, last, rows.rows, process.next, 0.0)
    assert begin(reads("a", "b")).newest().micro_batch == process.next, "it is there, and may run again"


def test_what_resident_batches_read_of_an_added_source_is_not_read_again(begin: Begin, reads: Any) -> None:
    begin(reads("a")).batches()
    process = begin(reads("a", "empty"))
    start = process.world.offset(process.next - 1)
    process.reader._look(-1)
    assert process.reader._new(start["sources"], unlimited=False) == {"empty": {"files": -1}}
    stand = process.newest()
    process.reader._manifest = replace(stand, sources=stand.sources | {"empty": {"files": 0}})
    assert process.reader._new(start["sources"], unlimited=False) == {}
