"""Capture and replay: epoch e of the replay is epoch e of the capture, on any workers, after any crash."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import timely_spark as ts
from tests.support import engine
from tests.support.published import bare_context, complete_epoch
from timely_spark.errors import BadArgument, GraphError, TimelyError
from timely_spark.runtime.errors import BadFile, OutputMismatch, TableTaken
from timely_spark.runtime.query.driver import Driver
from timely_spark.runtime.query.resident import ResidentInputs
from timely_spark.runtime.sinks.capture_folder import CaptureFolderSink
from timely_spark.runtime.sinks.outputs import outputs_of
from timely_spark.runtime.sources import file_readers
from timely_spark.runtime.sources.file_readers import ReplayReader
from timely_spark.runtime.sources.folder import Folder
from timely_spark.runtime.sources.present import present
from timely_spark.runtime.storage.deliveries import Deliveries
from timely_spark.runtime.storage.files import Files
from timely_spark.testing import Simulation, run

EDGES = [[(0, 1, 1), (1, 2, 1)], [], [(2, 3, 1), (1, 2, -1)], [(1, 2, 1), (3, 0, 1)], []]


def capturing(path: Path, *, overwrite: bool = False) -> ts.Dataflow:
    flow = ts.Dataflow("captures")
    edges = flow.input("edges", "src long, dst long, diff int", epochs="manual").collection(diff="diff")
    edges.distinct(name="once").capture_to(path, overwrite=overwrite, name="shared").capture("out")
    return flow


def reach(edges: ts.Collection) -> ts.Collection:
    """The nodes that 0 reaches, by a loop."""
    nodes = edges.where(pc.field("src") == 0).select(node="src").distinct(name="start")

    def step(near: ts.Collection) -> ts.Collection:
        inner = edges.enter(near.scope)
        found = near.join(inner.select(node="src", to="dst"), on="node").select(node="to")
        return found.concat(nodes.enter(near.scope)).distinct(name="near")

    return nodes.iterate(step)


def replaying(path: Path) -> ts.Dataflow:
    flow = ts.Dataflow("replays")
    reach(flow.replay("edges", path).collection(diff="diff")).capture("reached")
    return flow


def direct() -> dict[int, list[Any]]:
    """The answer of one flow without a capture; its last epoch is that of `advance_to` before `close`."""
    flow = ts.Dataflow("direct")
    edges = flow.input("edges", "src long, dst long, diff int", epochs="manual").collection(diff="diff")
    reach(edges.distinct()).capture("reached")
    return run(flow, {"edges": [*EDGES, []]})["reached"].rows()


# -- in the simulator ----------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.share(2)
@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(n, marks=pytest.mark.campaign) for n in (2, 3, 4, 5))])
def test_a_replay_beside_the_running_capture_has_its_epochs_under_any_schedule(
    seed: int, tmp_path: Path
) -> None:
    draw = random.Random(seed)
    crashes = draw.choice([0.0, 0.4])
    first = Simulation(capturing(tmp_path), workers=2, seed=seed, crashes=crashes)
    second = Simulation(replaying(tmp_path), workers=draw.choice([1, 3, 8]), seed=seed + 100, crashes=crashes)
    for epoch, rows in enumerate(EDGES):
        if rows:
            first.send("edges", rows)
        first.advance_to("edges", epoch + 1)
        for _ in range(draw.randint(0, 6)):
            draw.choice([first, second]).step()
    first.close("edges")
    first.run()
    second.run()

    assert second.captured["reached"].rows() == direct()
    assert second.result.complete, "the end of the capture completes the replay"


def test_the_frontier_of_a_replay_is_that_of_the_capture(tmp_path: Path) -> None:
    first = Simulation(capturing(tmp_path), workers=2)
    flow = ts.Dataflow("replays")
    probe = flow.replay("edges", tmp_path).probe("seen")
    second = Simulation(flow, workers=3)
    second.run()
    assert second.result.frontier[probe.name] == [[0]]

    for epoch in range(1, 4):
        first.advance_to("edges", epoch)
        first.run()
        second.run()
        assert second.result.frontier[probe.name] == first.result.frontier["out"] == [[epoch]]

    first.close("edges")
    first.run()
    second.run()
    assert second.result.frontier[probe.name] == []


def test_epochs_that_the_capture_skips_are_empty(tmp_path: Path) -> None:
    first, flow = Simulation(capturing(tmp_path)), ts.Dataflow("replays")
    flow.replay("edges", tmp_path).capture("out")
    complete_epoch(first, 1000, [(1, 2, 1)], "edges")

    rows = run(flow, {})["out"].rows()
    assert {epoch: found for epoch, found in rows.items() if found} == {1000: [(1, 2, 1)]}


def test_replays_join_inputs_with_manual_epochs_and_no_others(tmp_path: Path) -> None:
    run(capturing(tmp_path), {"edges": [[(1, 2, 1)], [(1, 3, 1)]]})
    flow = ts.Dataflow("both")
    edges = flow.replay("edges", tmp_path)
    names = flow.input("names", "src long, name string", epochs="manual")
    names.join(edges, on="src").select("name", "dst").capture("named")
    assert run(flow, {"names": [[], [(1, "a")]]})["named"].rows() == {0: [], 1: [("a", 2), ("a", 3)]}

    with pytest.raises(GraphError, match="use one kind of epoch"):
        flow.input("clocked", "n long")


def test_a_replay_has_the_stream_s_own_types(tmp_path: Path) -> None:
    kinds = "epoch long, b binary, t timestamp, m map<string, long>, a array<struct<x: int>>, d decimal(9, 2)"
    first = ts.Dataflow("first")
    schema = first.input("x", kinds).capture_to(tmp_path).schema
    Simulation(first)
    assert ts.Dataflow("second").replay("x", tmp_path).schema == schema


# -- mistakes ------------------------------------------------------------------------------------------------


def test_a_folder_without_a_capture_is_refused_when_the_flow_is_built(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match=r"has no capture \(.*test_replay.py:\d+\)[\s\S]*Hint: start the flow"):
        ts.Dataflow("early").replay("x", tmp_path)


def test_another_flow_s_capture_is_replaced_only_when_asked(tmp_path: Path) -> None:
    run(capturing(tmp_path), {"edges": EDGES})
    with pytest.raises(TableTaken, match="overwrite=True"):
        Simulation(capturing(tmp_path))
    Simulation(capturing(tmp_path, overwrite=True))
    assert [path.name for path in tmp_path.iterdir() if not path.name.startswith("_")] == []
    assert not (tmp_path / "_complete").exists()

    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("mine")
    with pytest.raises(OutputMismatch, match=r"notes\.txt"):
        Simulation(capturing(tmp_path / "other"))


def test_a_capture_in_a_loop_or_without_a_path_is_refused(tmp_path: Path) -> None:
    x: Any = ts.Dataflow("wrong").input("x", "n long")
    with pytest.raises(GraphError, match="inside loop"):
        x.enter(x.scope.inner(name="loop")).capture_to(tmp_path)
    with pytest.raises(BadArgument, match="path"):
        x.capture_to(7)


# -- the reader, under Spark's protocol ----------------------------------------------------------------------


def written(path: Path, epochs: int, *, identity: str = "one", overwrite: bool = False) -> CaptureFolderSink:
    """A capture of empty epochs."""
    flow = ts.Dataflow("x")
    flow.input("n", "n long").capture_to(path, overwrite=overwrite, name="shared")
    output = outputs_of(flow.compile(), flow.outputs)[0]
    sink = output.sink
    assert isinstance(sink, CaptureFolderSink)
    sink.prepare(None, output, "", identity)  # type: ignore[arg-type]
    sink.claim(None, output)
    for epoch in range(epochs):
        sink.write(epoch, pa.table({"n": pa.array([epoch], pa.int64())}))
    return sink


@pytest.fixture
def polls(tmp_path: Path) -> Callable[..., Any]:
    written(tmp_path, 3)
    flow = ts.Dataflow("replays")
    flow.replay("n", tmp_path).capture("out")
    context = bare_context()

    def poll(start: dict[str, Any] | None = None, *, now: bool = False) -> tuple[ReplayReader, Any]:
        found = ReplayReader(context, flow.frames["n"], lambda _: 0)
        if now:
            found.fix_end()
        return found, found.latest_offset(start or found.initial_offset())

    return poll


def test_a_batch_reads_some_bytes_but_one_epoch_at_least(
    polls: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_readers, "_REPLAYED", 1)
    _, one = polls()
    assert (one["epoch"], one["epochs"], one["complete"]) == (0, 1, 0)
    again, two = polls(one)
    shares = again.shares(one, two)
    assert [part.path[-7:] for share in shares for part in share.parts] == ["1.arrow"]
    assert [share.progress for share in shares] == [2]

    written(tmp_path, 0).complete()
    _, three = polls(two)
    assert (three["epoch"], three["complete"]) == (2, 1)
    assert polls(three)[1] == three


def test_with_available_now_what_comes_later_is_not_read(polls: Any, tmp_path: Path) -> None:
    now, end = polls(now=True)
    written(tmp_path, 5).complete()
    assert now.latest_offset(end) == end
    assert polls(end)[1]["epoch"] == 4


def test_a_wait_for_a_capture_needs_its_last_epoch_and_its_end(polls: Any, tmp_path: Path) -> None:
    source: Any = polls()[0].source
    offsets = [{"epoch": epoch, "complete": end} for epoch, end in ((1, 0), (2, 0), (3, 0), (2, 1))]
    open_ = present(source, "n", Files(str(tmp_path)))
    written(tmp_path, 0).complete()
    ended = present(source, "n", Files(str(tmp_path)))

    assert [open_(offset) for offset in offsets] == [False, True, True, True]
    assert [ended(offset) for offset in offsets[:2] + offsets[3:]] == [False, False, True]


def test_a_listing_that_misses_an_epoch_ends_before_it(polls: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = Folder.files
    missed = ["epoch-00000000000000000001.arrow"]

    def racing(folder: Folder) -> Any:
        """The first listing misses a file that appeared during it."""
        files = [file for file in listed(folder) if not (missed and file.path.endswith(missed[0]))]
        missed.clear()
        return files

    monkeypatch.setattr(Folder, "files", racing)
    assert polls()[1]["epochs"] == 3, "the second listing has it"


def test_epochs_are_in_order_however_a_folder_lists_its_files(
    polls: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, listed = polls()[0].source, Folder.files
    for turned in (1, -1):
        monkeypatch.setattr(Folder, "files", lambda folder, turned=turned: [*listed(folder)][::turned])
        assert [at for at, _ in source.after(-1).epochs] == [0, 1, 2]


def test_epochs_that_are_gone_and_another_capture_are_told(polls: Any, tmp_path: Path) -> None:
    found, end = polls()
    Files(tmp_path).remove("epoch-00000000000000000001.arrow")
    with pytest.raises(BadFile, match=r"had 3 epochs from 0 to 2.*it has 2 of them"):
        found.shares(found.initial_offset(), end)

    written(tmp_path, 5, identity="other", overwrite=True)
    with pytest.raises(BadFile, match=r"has the capture of checkpoint other; epochs were read of one"):
        polls(end)
    with pytest.raises(BadFile, match="reads epoch, but its position"):
        polls({"files": 3})
    shutil.rmtree(tmp_path)
    with pytest.raises(BadFile, match=r"no capture any more; epochs were read of one[\s\S]*Hint: restore"):
        polls(end)


# -- the runtime, without a JVM ------------------------------------------------------------------------------


def test_the_runtime_captures_exactly_once_and_replays_on_other_workers(begin: Any, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    flow = capturing(shared)
    process = begin(flow, workers=2)
    handle = process.handles["edges"]
    for epoch, rows in enumerate(EDGES[:3]):
        if rows:
            handle.send(rows)
        handle.advance_to(epoch + 1)
    while process.poll() is not None:
        frame = process.run()
        process.driver(frame, process.next)  # delivered; then the process is killed before the commit
        process = begin(flow, workers=2)
        if process.world.offset(process.next) is not None:
            process.finish(process.run())
    names = sorted(path.name for path in shared.iterdir() if path.suffix == ".arrow" and path.name[0] == "e")
    assert names == [f"epoch-{epoch:020d}.arrow" for epoch in range(3)]

    handle = process.handles["edges"]
    for epoch, rows in enumerate(EDGES[3:], 3):
        if rows:
            handle.send(rows)
        handle.advance_to(epoch + 1)
    handle.close()
    process.batches()
    assert (shared / "_complete").exists()


@pytest.mark.slow
def test_the_runtime_replays(begin: Any, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    first = Simulation(capturing(shared), workers=2)
    flow = replaying(shared)
    process = begin(flow, workers=3)
    for epoch, rows in enumerate(EDGES):
        if rows:
            first.send("edges", rows)
        first.advance_to("edges", epoch + 1)
        first.run()
        if epoch % 2:
            process.batches()
            process = begin(flow, workers=3)
    first.close("edges")
    first.run()
    process = begin(flow, workers=3)
    process.batches()

    newest, _ = process.context.log.newest_before(process.next)
    assert newest.coordinator["inputs"] == {"edges": None}
    released: dict[int, set[Any]] = {}
    for _, table in Deliveries(process.context.log.checkpoint, "reached").read():
        for row in table.to_pylist():
            at, *values = row.values()
            released.setdefault(at, set()).add(tuple(values))
    assert released == {epoch: set(rows) for epoch, rows in direct().items() if rows}


def test_a_micro_batch_that_stays_replays_what_is_captured_meanwhile(
    begin: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared, left = tmp_path / "shared", [*enumerate(EDGES)]
    first = Simulation(capturing(shared), workers=1)

    def capture() -> None:
        epoch, rows = left.pop(0)
        if rows:
            first.send("edges", rows)
        first.advance_to("edges", epoch + 1)
        if not left:
            first.close("edges")
        first.run()

    def wait(inputs: ResidentInputs, _: float) -> bool:
        capture()  # after the last one the flow is complete
        inputs._readers["edges"].look_again()
        return True

    capture()
    flow = ts.Dataflow("stays")
    flow.replay("edges", shared).capture("out")
    process = begin(flow, workers=1, rounds=100)
    process.driver = Driver(replace(process.context, resident=1e9), process.driver.outputs)
    monkeypatch.setattr(ResidentInputs, "wait", wait)
    assert process.batch()
    assert (left, process.next) == ([], 1)
    assert process.newest().batch >= 2
    rows = {epoch: sorted(rows) for epoch, rows in process.captured().items() if rows}
    assert rows == {epoch: sorted(rows) for epoch, rows in enumerate(EDGES) if rows}


@pytest.mark.slow
@pytest.mark.share(2)
@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(n, marks=pytest.mark.campaign) for n in (2, 3))])
def test_a_replay_beside_a_capture_that_is_killed_stalled_and_rescaled(seed: int, tmp_path: Path) -> None:
    calls: list[Any] = []
    for epoch, rows in enumerate(EDGES):
        calls += [("send", (rows,))] if rows else []
        calls.append(("advance_to", (epoch + 1,)))
    odds = engine.Odds(kill=0.02, lose=0.02, stall=0.005, rescale=0.3)
    sends = {"edges": [*calls, ("close", ())]}
    draw, shared = random.Random(seed), tmp_path / "shared"
    world = engine.World(capturing(shared), str(tmp_path / "state"), sends, odds=odds, seed=seed)
    replays: list[Simulation] = []

    def committed(batch: int) -> None:
        if not replays:
            replays.append(Simulation(replaying(shared), workers=draw.choice([1, 3]), seed=seed))
        if draw.random() < 0.7:
            replays[0].run()

    world.committed = committed
    world.live()
    replays[0].run()

    assert replays[0].captured["reached"].rows() == direct()
    assert replays[0].result.complete


def test_a_replay_is_not_added_to_a_flow_whose_first_epochs_are_over(begin: Any, tmp_path: Path) -> None:
    def flow(*, more: bool) -> ts.Dataflow:
        made = ts.Dataflow("grows")
        made.input("edges", "n long", epochs="manual").capture("out")
        if more:
            made.replay("more", tmp_path / "shared").capture("other")
        return made

    Simulation(capturing(tmp_path / "shared"))
    process = begin(flow(more=False))
    process.handles["edges"].send([1])
    process.handles["edges"].advance_to(1)
    process.batches()
    with pytest.raises(TimelyError, match=r"'more'.*, a replay, is new"):
        begin(flow(more=True))
