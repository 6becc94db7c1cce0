"""A published collection: a flow attaches at any time, and has the records at each epoch from then on."""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

import timely_spark as ts
from tests.support.published import bare_context, complete_epoch, drawn_changes, rows_at
from tests.support.tables import part
from timely_spark.errors import BadArgument
from timely_spark.runtime.errors import BadFile
from timely_spark.runtime.sinks.capture_folder import CaptureFolderSink
from timely_spark.runtime.sources.file_readers import ReplayReader
from timely_spark.runtime.storage import published as module
from timely_spark.runtime.storage.files import Files
from timely_spark.runtime.storage.published import Published
from timely_spark.testing import Simulation, run

pytestmark = pytest.mark.usefixtures("small_snapshots")


def publishing(path: Path, **options: Any) -> ts.Dataflow:
    flow = ts.Dataflow("publishes")
    rows = flow.input("x", "k long, v long, d long", epochs="manual").collection(diff="d")
    rows.distinct(name="once").publish(path, name="shared", **options).capture("out")
    return flow


def importing(path: Path) -> ts.Dataflow:
    flow = ts.Dataflow("imports")
    rows = flow.replay("given", path).collection(diff="diff")
    rows.changes().capture("rows")
    rows.count("n", keys="k").capture("counts")
    return flow


@pytest.mark.slow
@pytest.mark.share(2)
@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(n, marks=pytest.mark.campaign) for n in (2, 3))])
def test_who_attaches_late_has_the_records_of_each_epoch_from_then_on(seed: int, tmp_path: Path) -> None:
    draw = random.Random(seed)
    crashes = draw.choice([0.0, 0.3])
    first = Simulation(publishing(tmp_path), workers=2, seed=seed, crashes=crashes)
    readers: list[Simulation] = []
    there: set[tuple[int, int]] = set()
    truth: dict[int, list[tuple[Any, ...]]] = {}
    for epoch in range(16):
        complete_epoch(first, epoch, drawn_changes(draw, there, keys=4, values=9, most=3))
        truth[epoch] = sorted(there)
        if draw.random() < 0.2:
            readers.append(
                Simulation(importing(tmp_path), workers=draw.choice([1, 3, 8]), seed=epoch, crashes=crashes)
            )
        for reader in readers:
            if draw.random() < 0.5:
                reader.run()
    first.close("x")
    first.run()
    readers.append(Simulation(importing(tmp_path), workers=3))

    for reader in readers:
        reader.run()
        assert reader.result.complete
        captured = reader.captured["rows"]
        begun = min(epoch for epoch, table in captured.epochs.items() if table.num_rows)
        for epoch in range(begun, 16):
            assert rows_at(captured, epoch) == truth[epoch], (begun, epoch)
    assert min(readers[-1].captured["rows"].epochs) >= 0
    assert Published(Files(tmp_path), 1, "diff").holds() == {}, "who has read all holds nothing"


@pytest.mark.slow
def test_the_folder_stays_short_unless_somebody_holds_it(tmp_path: Path) -> None:
    def epochs(number: int, start: int) -> None:
        for epoch in range(start, start + number):
            complete_epoch(first, epoch, [(1, 1, 1 if epoch % 2 == 0 else -1)])

    def files() -> list[str]:
        return [path.name for path in tmp_path.iterdir() if path.name.startswith(("epoch", "snapshot"))]

    first = Simulation(publishing(tmp_path))
    epochs(20, 0)
    assert len(files()) < 8
    reader = Simulation(importing(tmp_path))
    reader.step()
    read = max(Published(Files(tmp_path), 600, "diff").holds().values())
    epochs(20, 20)
    assert len(files()) >= 20, "nothing that the reader needs is removed"
    assert max(Published(Files(tmp_path), 600, "diff").holds().values()) == read
    reader.run()
    epochs(4, 40)
    assert len(files()) < 12
    assert rows_at(reader.captured["rows"], 39) == []


def test_a_reader_that_is_gone_loses_its_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = Simulation(publishing(tmp_path, lease="1 minute"))
    for epoch in range(8):
        complete_epoch(first, epoch, [(epoch, 1, 1)])
        if epoch == 0:
            reader = Simulation(importing(tmp_path))
            reader.run()
    published = Published.of(Files(tmp_path))
    assert published is not None
    assert published.lease == 60.0
    assert list(published.holds().values()) == [0]
    now = module.time.time()
    monkeypatch.setattr(module.time, "time", lambda: now + 61)
    complete_epoch(first, 8, [(9, 1, 1)])
    assert published.holds() == {}
    with pytest.raises(BadFile, match=r"as a sum only, 0 was read last[\s\S]*Hint: .*lease"):
        reader.run()


def test_a_hold_ends_after_its_lease_when_the_clock_is_set_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    published, clock = Published(Files(tmp_path), 60.0, "diff"), [1e9]
    monkeypatch.setattr(module, "time", SimpleNamespace(time=lambda: clock[0]))
    published.hold("r", 3, base=2)
    clock[0] -= 86_400
    assert published.holds() == {"r": 3}
    clock[0] += 61
    assert published.holds() == {}


def test_a_hold_is_on_the_disk(tmp_path: Path, synced: list[str]) -> None:
    """Half a hold, after a loss of power, would stop the flow that publishes."""
    Published(Files(tmp_path), 60.0, "diff").hold("reader", 3)
    assert synced[-1] == str(tmp_path)


def test_epochs_that_became_a_sum_are_missed_by_who_began_before_any_sum(tmp_path: Path) -> None:
    first = Simulation(publishing(tmp_path))
    for epoch in range(8):
        complete_epoch(first, epoch, [(epoch, 1, 1)])
    source: Any = importing(tmp_path).frames["given"]

    for since in (-1, 0):
        with pytest.raises(BadFile, match=r"as a sum only, 1 was read last"):
            source.after(1, since)
    assert source.after(7, -1).epochs == []


def test_a_snapshot_that_is_chosen_while_another_one_is_written_is_not_removed(tmp_path: Path) -> None:
    files = Files(tmp_path)
    published = Published(files, 600, "diff")

    def epoch(number: int) -> None:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, pa.schema([("n", pa.int64()), ("diff", pa.int64())])) as writer:
            writer.write_table(pa.table({"n": [number], "diff": [1]}))
        files.write(f"epoch-{number:020d}.arrow", sink.getvalue())
        published.compact()

    epoch(0)

    class Busy(Published):
        """The publisher works between the two looks of a reader."""

        def hold(self, reader: str, at: int, *, base: int = -1) -> None:
            if at == 0:
                epoch(1)
                epoch(2)
            super().hold(reader, at, base=base)

    held = Busy(files, 600, "diff").begin("me")
    assert held == published.newest() > 0
    for number in range(3, 9):
        epoch(number)
    names = files.names(".")
    assert f"snapshot-{held:020d}.arrow" in names
    assert {f"epoch-{number:020d}.arrow" for number in range(held + 1, 9)} <= {*names}


def test_a_query_begins_with_the_snapshot_and_holds_what_it_has_not_committed(tmp_path: Path) -> None:
    first = Simulation(publishing(tmp_path))
    for epoch in range(4):
        complete_epoch(first, epoch, [(epoch, 1, 1)])
    published: Any = Published.of(Files(tmp_path))
    context = bare_context()
    source: Any = importing(tmp_path).frames["given"]
    newest = published.newest()

    def poll(start: Any = None) -> tuple[ReplayReader, Any]:
        reader = ReplayReader(context, source, lambda _: 0)
        return reader, reader.latest_offset(start or reader.initial_offset())

    def read(start: Any, end: Any) -> list[str]:
        found = ReplayReader(context, source, lambda _: 0).shares(start, end)
        return [Path(part.path).name for share in found for part in share.parts]

    reader, end = poll()
    planned = read(reader.initial_offset(), end)
    assert (end["epoch"], end["since"]) == (3, newest)
    assert f"snapshot-{newest:020d}.arrow" in planned
    complete_epoch(first, 4, [(9, 9, 1)])
    assert read(reader.initial_offset(), end) == planned, "a batch that runs again reads the same files"
    assert list(published.holds().values()) == [newest]
    reader.commit(end)
    assert list(published.holds().values()) == [3]
    again, later = poll(end)
    assert (later["epoch"], later["epochs"]) == (4, end["epochs"] + 1)
    assert list(published.holds().values()) == [3], "after a restart, too"
    first.close("x")
    first.run()
    again, last = poll(later)
    again.commit(last)
    assert last["complete"]
    assert published.holds() == {}


def test_with_available_now_a_snapshot_that_has_all_epochs_is_read(tmp_path: Path) -> None:
    first = Simulation(publishing(tmp_path))
    complete_epoch(first, 0, [(1, 1, 1)])
    published: Any = Published.of(Files(tmp_path))
    published.compact()
    assert [name for name in published.files.names(".") if name[0] != "_"] == [f"snapshot-{0:020d}.arrow"]
    context = bare_context()
    reader = ReplayReader(context, importing(tmp_path).frames["given"], lambda _: 0)  # type: ignore[arg-type]
    reader.fix_end()
    complete_epoch(first, 1, [(2, 2, 1)])

    end = reader.latest_offset(reader.initial_offset())

    assert (end["epoch"], end["epochs"]) == (0, 1)
    assert len(reader.shares(reader.initial_offset(), end)) == 1


def test_mistakes(tmp_path: Path) -> None:
    rows = ts.Dataflow("wrong").input("x", "n long").collection()
    with pytest.raises(BadArgument, match="lease='soon'"):
        rows.publish(tmp_path, lease="soon")
    with pytest.raises(BadArgument, match="path"):
        rows.publish(7)  # type: ignore[arg-type]


def test_a_new_checkpoint_replaces_what_is_there(tmp_path: Path) -> None:
    run(publishing(tmp_path), {"x": [[(1, 1, 1)], [(2, 1, 1)]]})
    run(publishing(tmp_path, overwrite=True), {"x": [[(7, 1, 1)]]})

    found = run(importing(tmp_path), {})["rows"]

    assert rows_at(found) == [(7, 1)]


def test_a_look_at_the_holds_renews_none_and_ends_at_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr(module.time, "time", lambda: now[0])
    shared, real = Published(Files(tmp_path), 10.0, "diff"), Files.json
    for reader, epoch in (("a", 1), ("b", 2)):
        shared.hold(reader, epoch)
        now[0] += 6
    assert shared.holds() == {"b": 2}
    shared.hold("a", 3)
    with monkeypatch.context() as patched:  # it is removed when its name has been listed
        patched.setattr(Files, "json", lambda files, name: None if "-a." in name else real(files, name))
        assert shared.holds() == {"b": 2}
    now[0] += 6
    assert shared.holds() == {"a": 3}


def test_what_is_delivered_is_kept_short_for_the_holds_of_readers(tmp_path: Path) -> None:
    sink = CaptureFolderSink(str(tmp_path), lease=600, diff="diff")
    empty = pa.table({"n": pa.array([], pa.int64()), "diff": pa.array([], pa.int64())})
    output: Any = SimpleNamespace(name="shared", schema=empty.schema, resumed=False)
    sink.prepare(None, output, "/nowhere", "one")
    sink.claim(None, output)
    published = Published(Files(tmp_path), 600, "diff")

    def deliver(epochs: range) -> int:
        for epoch in epochs:
            sink.deliver(None, epoch, [part(epoch, empty)])  # type: ignore[arg-type]
        return len([*tmp_path.glob("epoch-*")])

    assert deliver(range(20)) < 8
    flow = ts.Dataflow("reads")
    source: Any = flow.replay("n", tmp_path).flow.frames["n"]
    source.hold(published, "reader", 19, -1)
    assert published.holds() == {"reader": 19}
    assert deliver(range(20, 40)) >= 20
