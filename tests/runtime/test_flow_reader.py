"""The flow's source over a real log: what it reads, up to where, and what it removes."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import timely_spark as ts
from tests.support.stepper import Begin, Stepper
from timely_spark.errors import LogDamaged, Where
from timely_spark.runtime.errors import LostOwnership, SentElsewhere
from timely_spark.runtime.query import flow_reader
from timely_spark.runtime.query.flow_reader import FlowReader
from timely_spark.runtime.run_context import packed_sources
from timely_spark.runtime.sources.folder import FileSource, Folder
from timely_spark.runtime.storage.entries import skip_entry
from timely_spark.runtime.storage.files import Files
from timely_spark.runtime.storage.log import FIRST, RoundLog, stop_file
from timely_spark.worker import ROWS, wire
from timely_spark.worker.wire import Advance, InputBatch


def two_inputs() -> ts.Dataflow:
    flow = ts.Dataflow("two")
    x, y = flow.input("x", "k long"), flow.input("y", "k long")
    x.concat(y).exchange("k").map(lambda row: row.k + 1, "k long").exchange("k").distinct().capture("out")
    return flow


def read(reader: FlowReader, start: Any, end: Any) -> pa.Table:
    return pa.Table.from_batches(list(reader.between(start, end)), schema=ROWS)


def sent(table: pa.Table) -> list[tuple[str, int]]:
    """Of the rows of inputs, (source, which entry)."""
    return sorted({(batch.source, batch.seq) for _, batch in wire.read(table, InputBatch)})


def fresh(process: Stepper) -> FlowReader:
    """A reader as Spark makes one in another process."""
    from timely_spark.runtime.run_context import RunContext

    return FlowReader(RunContext.from_option(process.context.to_option()))


def test_a_flow_with_nothing_to_do_has_no_next_batch(begin: Begin) -> None:
    process = begin(two_inputs())
    start = process.reader.initial_offset()

    assert start == {"round": FIRST - 1, "inputs": {"x": -1, "y": -1}, "sources": {}}
    for at in (start, {**start, "after": {"x": -1}}):  # after resident batches
        end = process.reader.latest_offset(at)
        assert end == at
        assert process.reader.shares(at, end) == []


def test_work_of_a_flow_that_has_run_no_batch_is_work(begin: Begin) -> None:
    """A start may leave some, in the manifest before the first batch."""
    process = begin(two_inputs())
    start, (manifest, rows) = process.reader.initial_offset(), process.context.log.newest_before(0)
    process.context.log.write(replace(manifest, runnable=True), rows)

    assert process.reader.latest_offset(start) == start | {"round": FIRST}


def test_an_entry_that_a_user_has_skipped_is_no_input(begin: Begin) -> None:
    process = begin(two_inputs())
    for k in range(3):
        process.handles["x"].send([k])
    skip_entry(process.context.log, "x", 1)
    start = process.reader.initial_offset()
    end = process.reader.latest_offset(start)

    assert end["inputs"]["x"] == 2
    rows = read(process.reader, start, end)
    assert sent(rows) == [("x", 0), ("x", 2)]
    assert not [*wire.read(rows, Advance)]


def test_what_was_sent_is_read_in_order_and_again_the_same(begin: Begin) -> None:
    process = begin(two_inputs())
    start = process.reader.initial_offset()
    process.handles["x"].send([1])
    process.handles["x"].send([2])
    process.handles["y"].send([3])
    end = process.reader.latest_offset(start)
    first = read(process.reader, start, end)

    assert end == {"round": FIRST - 1, "inputs": {"x": 1, "y": 0}, "sources": {}}
    assert sent(first) == [("x", 0), ("x", 1), ("y", 0)]
    assert read(process.reader, start, end).equals(first)
    assert read(fresh(process), start, end).equals(first)
    middle = {"round": FIRST - 1, "inputs": {"x": 0, "y": -1}}
    assert sent(read(process.reader, start, middle)) == [("x", 0)]
    assert sent(read(process.reader, middle, end)) == [("x", 1), ("y", 0)]
    process.handles["y"].send([4])
    assert sent(read(process.reader, start, end)) == sent(first)  # later ones are the next batch's
    assert process.reader.latest_offset(end)["inputs"] == {"x": 1, "y": 1}


def test_a_batch_takes_so_many_entries_and_bytes_and_one_at_least(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = begin(two_inputs())
    for n in range(7):
        process.handles["x"].send([n])
    start = process.reader.initial_offset()
    monkeypatch.setattr(flow_reader, "MAX_ENTRIES", 3)
    ends = []
    at = start
    for _ in range(4):
        at = process.reader.latest_offset(at)
        ends.append(at["inputs"]["x"])
    assert ends == [2, 5, 6, 6]

    monkeypatch.setattr(flow_reader, "MAX_ENTRIES", 1000)
    size = flow_reader.entry_size(process.context.log, "x", 0)
    assert size is not None
    monkeypatch.setattr(flow_reader, "MAX_BYTES", 2 * size)
    assert process.reader.latest_offset(start)["inputs"]["x"] == 1
    monkeypatch.setattr(flow_reader, "MAX_BYTES", 1)  # larger than a batch may be: by itself
    assert process.reader.latest_offset(start)["inputs"]["x"] == 0


def test_what_a_round_left_is_read_by_the_next_and_nothing_of_states(begin: Begin) -> None:
    process = begin(two_inputs(), workers=3)
    process.handles["x"].send(list(range(20)))
    process.batch()
    start = process.world.offset(0)
    assert start is not None
    end = process.reader.latest_offset(start)
    table = read(process.reader, start, end)

    assert end == {"round": 0, "inputs": {"x": 0, "y": -1}, "sources": {}}
    assert set(table.column("kind").to_pylist()) <= {"message", "header", "state"}
    assert "message" in table.column("kind").to_pylist()
    assert set(table.column("worker").to_pylist()) <= set(process.context.labels)
    assert read(fresh(process), start, end).equals(table)
    process.batches()
    manifest, rows_left = process.context.log.newest_before(process.next)
    assert not manifest.runnable
    assert rows_left.num_rows  # the states
    at = process.world.offset(process.next - 1)
    for reader in (process.reader, fresh(process)):
        reader.fix_end()
        assert reader.latest_offset(at) == at  # and a manifest without rows for anybody is no next batch
        process_end = reader.latest_offset(at)
        assert process_end["round"] < process.next - 1


def test_after_a_manifest_without_rows_what_is_sent_is_read_alone(begin: Begin) -> None:
    process = begin(two_inputs())
    process.feed("x", [1])
    at = process.world.offset(process.next - 1)
    assert at is not None
    process.reader.latest_offset(at)
    process.handles["y"].send([1])
    end = process.reader.latest_offset(at)

    assert end == {"round": at["round"], "inputs": {"x": 0, "y": 0}, "sources": {}}
    kinds = read(process.reader, at, end).column("kind").to_pylist()
    assert set(kinds) == {"tick", "input"}


def test_only_the_last_of_several_manifests_counts(begin: Begin) -> None:
    process = begin(two_inputs(), workers=3)
    process.handles["x"].send(list(range(20)))
    process.batch()
    process.batch()
    first, second = process.world.offset(0), process.world.offset(1)
    assert first is not None
    assert second is not None
    both = read(process.reader, {**first, "round": FIRST - 1}, second)

    assert both.equals(read(process.reader, first, second))


def test_a_manifest_that_is_not_there_is_named(begin: Begin) -> None:
    process = begin(two_inputs())
    start = process.reader.initial_offset()

    with pytest.raises(LogDamaged):
        read(process.reader, start, {**start, "round": 7})


def test_inputs_that_the_flow_has_no_longer_stay_where_they_were(begin: Begin) -> None:
    process = begin(two_inputs())
    process.handles["x"].send([1])
    start = {"round": FIRST - 1, "inputs": {"x": -1, "y": -1, "gone": 4}, "sources": {}}
    end = process.reader.latest_offset(start)

    assert end["inputs"] == {"x": 0, "y": -1, "gone": 4}
    assert sent(read(process.reader, start, end)) == [("x", 0)]
    assert sent(read(process.reader, {**start, "inputs": {"gone": 1}}, end)) == [("x", 0)]  # as is a new one


@pytest.mark.slow
def test_entries_go_when_no_batch_that_is_kept_can_read_them(begin: Begin) -> None:
    process = begin(two_inputs(), keep=2)
    there = lambda: process.context.log.files.numbers("inputs/x")  # noqa: E731
    for n in range(8):
        process.handles["x"].send([n])
        assert process.batch()
        # what the batches after the oldest manifest read, and one before: a handle is told by it
        oldest = process.context.log.read(n).kept_from - 1
        assert oldest >= n - 4
        assert there() == list(range(max(0, oldest), n + 1))


@pytest.mark.slow
@pytest.mark.parametrize("sent", [0, 1])
def test_a_handle_that_others_have_overtaken_sends_nothing(begin: Begin, sent: int) -> None:
    process = begin(two_inputs(), keep=1)
    old = ts.Dataflow("two").input("x", "k long").handle
    for _ in range(sent):
        process.feed("x", [-1])
    old.open(process.context.log)
    for n in range(8):
        process.feed("x", [n])
    before = process.context.log.files.numbers("inputs/x")
    assert before[0] > sent, "the number that it writes next was removed"

    with pytest.raises(SentElsewhere, match=f"entry {sent} was sent by another process"):
        old.send([100])

    assert process.context.log.files.numbers("inputs/x") == before
    old.open(process.context.log)
    old.send([100])
    process.batches()
    assert (101,) in [row for rows in process.captured().values() for row in rows]


@pytest.mark.slow
def test_a_flow_that_reads_an_entry_at_once_has_not_overtaken_its_handle(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = begin(two_inputs(), keep=1)
    write, read = Files.write_table, list[int]()

    def read_at_once(files: Files, name: str, table: pa.Table, **options: Any) -> None:
        write(files, name, table, **options)
        if name.startswith("inputs/x/"):
            process.batch()
            read.append(process.context.log.taken("x"))

    monkeypatch.setattr(Files, "write_table", read_at_once)
    for n in range(6):
        process.handles["x"].send([n])

    assert read == [*range(6)]
    assert process.context.log.files.numbers("inputs/x")[-1] == 5


def test_a_start_while_a_handle_sends_misses_no_entry(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    """A listing may have a file that came meanwhile, and lack one that came before it."""
    process = begin(two_inputs())
    for n in range(3):
        process.handles["x"].send([n])
    log, numbers = process.context.log, Files.numbers
    monkeypatch.setattr(Files, "numbers", lambda files, folder: [n for n in numbers(files, folder) if n != 1])
    assert log.entries("x") == [0, 2]
    log.files.remove("inputs/x/1.arrow")
    with pytest.raises(LogDamaged, match=r"does not hold inputs/x/1\.arrow"):
        log.entries("x")


@pytest.mark.slow
def test_a_restarted_driver_removes_what_the_one_before_left(begin: Begin) -> None:
    process = begin(two_inputs(), keep=1)
    for n in range(6):
        process.handles["x"].send([n])
        process.batch()
    process.context.log._oldest.clear()  # as in another process
    process.handles["x"].send([6])
    process.batch()

    assert process.context.log.files.numbers("inputs/x") == [4, 5, 6]


def test_a_reader_that_lost_its_checkpoint_reads_nothing_new(begin: Begin) -> None:
    process = begin(two_inputs())
    process.handles["x"].send([1])
    RoundLog(process.context.log.checkpoint).claim({"run": "another"})

    with pytest.raises(LostOwnership):
        process.reader.latest_offset(process.reader.initial_offset())


class Clock:
    """Time that passes by sleeping."""

    def __init__(self) -> None:
        self.now, self.slept = 0.0, 0.0
        self.on_sleep: Any = lambda: None
        self.wakeup: Any = None

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.slept += seconds
        self.on_sleep()


class Wakeup:
    """What wakes the reader: a test, when it says so."""

    complete = True

    def __init__(self, clock: Clock) -> None:
        self.clock, self.woken, self.waits = clock, False, 0

    def wait(self, timeout: float) -> bool:
        self.waits += 1
        until = self.clock.now + timeout
        while not self.woken and (left := until - self.clock.now) > 0:
            self.clock.sleep(max(min(left, 0.01), 1e-9))  # sums of floats do not end exactly
        woken, self.woken = self.woken, False
        return woken


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The readers' clock."""
    clock = Clock()
    monkeypatch.setattr(flow_reader, "time", clock)
    clock.wakeup = Wakeup(clock)
    monkeypatch.setattr(flow_reader, "Wakeup", lambda *_, **__: clock.wakeup)
    return clock


@pytest.mark.parametrize(
    ("complete", "dataframe", "last"),
    [(True, False, [0.32, 0.64, 0.64]), (False, False, [0.16] * 3), (True, True, [0.16] * 3)],
)
def test_an_idle_reader_pauses_longer_and_longer_up_to_a_limit(
    begin: Begin,
    clock: Clock,
    complete: bool,  # noqa: FBT001 - whether all that arrives wakes it
    dataframe: bool,  # noqa: FBT001 - Spark polls it between two pauses only
    last: list[float],
) -> None:
    flow = two_inputs()
    if dataframe:
        flow.source("z", "k long").capture("seen")
    process = begin(flow)
    clock.wakeup.complete = complete
    reader, start = fresh(process), process.reader.initial_offset()
    pauses = []
    for _ in range(10):
        clock.slept, clock.wakeup.waits = 0.0, 0
        assert reader.latest_offset(start) == start
        pauses.append(round(clock.slept, 6))
        assert clock.wakeup.waits <= (1 if complete else 9), "each looks at all inputs"

    assert pauses == [0, 0.005, 0.01, 0.02, 0.04, 0.08, 0.16, *last]


@pytest.mark.parametrize("complete", [True, False])
def test_a_pause_ends_when_something_is_sent_and_the_next_is_short(
    begin: Begin,
    clock: Clock,
    complete: bool,  # noqa: FBT001 - drawn
) -> None:
    process = begin(two_inputs())
    clock.wakeup.complete = complete
    reader, start = fresh(process), process.reader.initial_offset()
    for _ in range(9):
        reader.latest_offset(start)
    clock.slept = 0.0

    def send() -> None:
        if not process.handles["x"].sent:
            process.handles["x"].send([1])
            clock.wakeup.woken = complete  # the checkpoint's folder is watched

    clock.on_sleep = send
    end = reader.latest_offset(start)

    assert end["inputs"]["x"] == 0
    assert clock.slept < 0.05  # of 0.16, or 0.64
    clock.slept = 0.0
    reader.latest_offset(end)
    assert clock.slept == 0


def test_after_a_batch_without_messages_there_is_no_pause(begin: Begin, clock: Clock) -> None:
    process = begin(two_inputs())
    reader, start = fresh(process), process.reader.initial_offset()
    for _ in range(8):
        reader.latest_offset(start)
    process.feed("x", [1])
    at = process.world.offset(process.next - 1)
    assert at is not None
    clock.slept = 0.0

    assert reader.latest_offset(at) == at
    assert clock.slept == 0


def test_a_pause_ends_when_a_source_may_have_something_new(begin: Begin, clock: Clock) -> None:
    process = begin(two_inputs())
    reader, start = fresh(process), process.reader.initial_offset()

    def paused() -> float:
        clock.slept = 0.0
        assert reader.latest_offset(start) == start
        return clock.slept

    assert [round(paused(), 6) for _ in range(8)] == [0, 0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32]
    clock.on_sleep = lambda: setattr(clock.wakeup, "woken", True)
    assert 0 < paused() < 0.05  # of 0.64
    clock.on_sleep = lambda: None
    assert [round(paused(), 6) for _ in range(3)] == [0, 0.005, 0.01]  # the file may not be listed yet
    clock.wakeup.woken = True  # after the answer, perhaps before the other sources were polled
    assert [round(paused(), 6) for _ in range(3)] == [0, 0, 0.005]


def test_a_reader_is_told_of_files_and_entries(begin: Begin, tmp_path: Path) -> None:
    process = begin(two_inputs())
    source = FileSource(Folder.of("in", Where("job.py", 1), tmp_path, "csv", None))
    process.context = replace(process.context, packed_sources=packed_sources({"in": source}))
    wakeup = fresh(process)._wakeup
    assert not wakeup.wait(0)
    (tmp_path / "a.csv").touch()
    assert wakeup.wait(5)
    process.handles["x"].send([1])
    assert wakeup.wait(5)
    process.context.log.files.write(stop_file(process.context.term), b"")
    assert wakeup.wait(5)
    wakeup.close()


def test_with_available_now_there_are_no_pauses(begin: Begin, clock: Clock) -> None:
    process = begin(two_inputs())
    for _ in range(8):
        process.reader.latest_offset(process.reader.initial_offset())

    assert clock.slept == 0


def test_an_entry_removed_while_the_query_runs_is_an_error(begin: Begin) -> None:
    process = begin(two_inputs())
    for n in range(3):
        process.handles["x"].send([n])
    process.context.log.files.remove("inputs/x/1.arrow")
    reader = fresh(process)
    at = reader.latest_offset(reader.initial_offset())
    assert at["inputs"]["x"] == 0
    assert reader.latest_offset(at) == at
    reader._pause = flow_reader.LONGEST_PAUSE  # nothing has happened for a while: time to look
    with pytest.raises(LogDamaged, match=r"inputs/x/1\.arrow"):
        reader.latest_offset(at)
    reader.fix_end()
    with pytest.raises(LogDamaged, match=r"inputs/x/1\.arrow"):
        reader.latest_offset(at)


def test_folders_that_are_made_to_be_watched_are_not_for_everybody(begin: Begin) -> None:
    process, before = begin(two_inputs()), os.umask(0)
    try:
        flow_reader.wakeup_of(process.context, "inputs", "cancels").close()
    finally:
        os.umask(before)
    for folder in ("inputs", "cancels"):
        assert Path(process.context.log.files.path(folder)).stat().st_mode & 0o777 == 0o770


def test_the_newest_manifest_removed_while_the_query_runs_is_an_error(begin: Begin) -> None:
    process = begin(two_inputs())
    process.feed("x", [1])
    newest = process.next - 1
    process.context.log.files.remove(f"rounds/{process.context.term}/{newest}.arrow")
    with pytest.raises(LogDamaged, match=f"manifest of batch {newest}"):
        process.poll()
    assert process.context.failure() is not None
