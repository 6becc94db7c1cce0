"""Imported arrangements: the files of another flow, mapped, with the records at each epoch from then on."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import fs

import timely_spark as ts
from tests.support.published import complete_epoch, drawn_changes, rows_at
from tests.support.rescaling import move
from timely_spark.errors import GraphError, VertexError
from timely_spark.runtime.errors import BadFile
from timely_spark.runtime.storage import files
from timely_spark.runtime.storage import published as module
from timely_spark.runtime.storage.cache import PLACE
from timely_spark.runtime.storage.files import Files
from timely_spark.runtime.storage.stores import Remote
from timely_spark.state import hashing
from timely_spark.testing import Simulation, run

pytestmark = pytest.mark.usefixtures("small_snapshots")


def publishing(path: Path, **options: Any) -> ts.Dataflow:
    flow = ts.Dataflow("publishes")
    rows = flow.input("x", "k long, v long, d long", epochs="manual").collection(diff="d")
    rows.arrange("k").publish(path, name="shared", **options)
    return flow


def importing(path: Path) -> ts.Dataflow:
    """A join that reads the arrangement, a reduction that does, and the records."""
    flow = ts.Dataflow("imports")
    rows = flow.import_arrangement(path, "given")
    asked = flow.input("asked", "k long, d long", epochs="manual").collection(diff="d")
    asked.join(rows, on="k").changes().capture("joined")
    rows.count("n").changes().capture("counts")
    rows.changes().capture("rows")
    return flow


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2, *(pytest.param(n, marks=pytest.mark.campaign) for n in (3, 4, 5))])
def test_joins_and_reductions_are_those_of_the_records_at_each_epoch(seed: int, tmp_path: Path) -> None:
    draw = random.Random(seed)
    crashes = draw.choice([0.0, 0.3])
    first = Simulation(publishing(tmp_path), workers=2, seed=seed, crashes=crashes)
    readers: list[Simulation] = []
    there: set[tuple[int, int]] = set()
    asked: list[tuple[int, int]] = [(draw.randrange(6), 1) for _ in range(12)]
    truth: dict[int, set[tuple[int, int]]] = {}
    mapped = False
    for epoch in range(12):
        complete_epoch(first, epoch, drawn_changes(draw, there, keys=6, values=30, most=9))
        truth[epoch] = set(there)
        if epoch in {2, 7}:
            reader = Simulation(
                importing(tmp_path), workers=draw.choice([1, 2, 3]), seed=epoch, crashes=crashes
            )
            readers.append(reader)
            for at, row in enumerate(asked):
                reader.send("asked", [row], epoch=at)
            reader.close("asked")
        for reader in readers:
            if draw.random() < 0.6:
                reader.run()
            if not crashes and draw.random() < 0.3:
                reader.step()  # what was sent is packed for the workers there were
                move(reader, importing(tmp_path), draw.choice([1, 2, 3]))
        mapped = mapped or any(b"snapshot-" in (state or b"") for one in readers for state in one.states)
    first.close("x")
    first.run()

    assert mapped, "a worker's state names the file that it has mapped"
    for reader in readers:
        reader.run()
        assert reader.result.complete
        begun = min(epoch for epoch, table in reader.captured["rows"].epochs.items() if table.num_rows)
        for epoch in range(begun, 12):
            rows = truth[epoch]
            keys = [key for key, _ in asked[: epoch + 1]]
            assert rows_at(reader.captured["rows"], epoch) == sorted(rows)
            assert rows_at(reader.captured["joined"], epoch) == sorted(
                (k, v) for key in keys for k, v in rows if k == key
            )
            counts = {(k, sum(one == k for one, _ in rows)) for k, _ in rows}
            assert rows_at(reader.captured["counts"], epoch) == sorted(counts)


def published(path: Path, rows: int, **options: Any) -> Simulation:
    """A flow that has published some rows, and a snapshot of them."""
    first = Simulation(publishing(path, **options))
    for epoch, batch in enumerate(([(n, n, 1) for n in range(rows)], [])):
        complete_epoch(first, epoch, batch)
    return first


@pytest.mark.parametrize(("changes", "merged", "workers"), [(1, 0, 3), (30, 1, 1)])
def test_other_workers_have_all_records(changes: int, merged: int, workers: int, tmp_path: Path) -> None:
    """Also where one of the workers, the last, has merged what it mapped."""

    def mapping() -> int:
        return sum(b"snapshot-" in (state or b"") for state in reader.states)

    first, reader = published(tmp_path, 40), Simulation(importing(tmp_path), workers=7)
    reader.run()
    shares = hashing.hashes(pa.table({"k": range(40)}), ["k"]) % 7
    key = shares.tolist().index(6)
    rows = [(key, 100 + n, 1) for n in range(changes)]
    complete_epoch(first, 2, rows)
    reader.run()
    assert mapping() == 7 - merged
    move(reader, importing(tmp_path), workers)
    assert mapping() == (0 if merged else workers)
    complete_epoch(first, 3, [(39, 7, 1)])
    reader.send("asked", [(39, 1), (key, 1)])
    reader.close("asked")
    reader.run()

    records = Counter([*((n, n) for n in range(40)), *(row[:2] for row in rows), (39, 7)])
    assert rows_at(reader.captured["rows"]) == sorted(records)
    assert rows_at(reader.captured["joined"]) == sorted(row for row in records if row[0] in {key, 39})
    assert rows_at(reader.captured["counts"]) == sorted(Counter(k for k, _ in records).items())


@pytest.mark.slow
def test_nothing_of_the_file_is_copied_until_the_changes_outweigh_it(tmp_path: Path) -> None:
    first = published(tmp_path, 5_000)
    flow = ts.Dataflow("looks up")
    asked = flow.input("asked", "k long", epochs="manual").collection()
    asked.join(flow.import_arrangement(tmp_path, "given"), on="k").changes().capture("found")
    reader = Simulation(flow, workers=2)
    reader.send("asked", [7, 4_999, 9_000], epoch=1)
    reader.advance_to("asked", 3)
    reader.run()

    assert rows_at(reader.captured["found"], 1) == [(7, 7), (4999, 4999)]
    assert sum(len(state or b"") for state in reader.states) < 20_000, "5,000 rows of three longs are 120 kB"

    complete_epoch(first, 2, [(n, n, 1) for n in range(5_000, 11_000)])
    reader.run()
    assert rows_at(reader.captured["found"], 2) == [(7, 7), (4999, 4999), (9000, 9000)]
    assert not any(b"snapshot-" in (state or b"") for state in reader.states)
    reader.send("asked", [8, 10_999], epoch=3)
    reader.close("asked")
    first.close("x")
    first.run()
    reader.run()
    assert rows_at(reader.captured["found"]) == [(n, n) for n in (7, 8, 4999, 9000, 10999)]


def test_a_join_hashes_no_key_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    published(tmp_path, 5_000)
    flow = ts.Dataflow("looks up")
    asked = flow.input("asked", "k long", epochs="manual").collection()
    asked.join(flow.import_arrangement(tmp_path, "given"), on="k").changes().capture("found")
    reader, hashed = Simulation(flow, workers=2), list[int]()
    mix = hashing.mix
    monkeypatch.setattr(hashing, "mix", lambda keys: hashed.append(len(keys)) or mix(keys))
    reader.send("asked", [7, 4_999, 9_000], epoch=0)
    reader.advance_to("asked", 2)
    reader.run()

    assert rows_at(reader.captured["found"]) == [(7, 7), (4999, 4999)]
    assert 0 < sum(hashed) < 100


def test_in_a_region_each_of_its_workers_has_a_share(tmp_path: Path) -> None:
    published(tmp_path, 40)
    flow = ts.Dataflow("some workers")
    with flow.region("two", workers=[1, 3]):
        flow.import_arrangement(tmp_path, "given").count("n").changes().capture("counts")
    reader = Simulation(flow, workers=4)
    reader.run()
    assert rows_at(reader.captured["counts"]) == [(n, 1) for n in range(40)]
    move(reader, flow, 5)
    reader.run()


@pytest.mark.slow
def test_a_snapshot_that_is_mapped_stays_until_the_lease_runs_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def epochs(start: int, end: int) -> None:
        for epoch in range(start, end):
            complete_epoch(first, epoch, [(n, epoch, 1) for n in range(40 + epoch)])

    first = published(tmp_path, 40, lease="1 minute")
    reader = Simulation(importing(tmp_path))
    reader.run()
    mapped = [name for name in Files(tmp_path).names(".") if name.startswith("snapshot-")]
    assert len(mapped) == 1
    for epoch in range(2, 10):
        epochs(epoch, epoch + 1)
        reader.run()
    assert mapped[0] in Files(tmp_path).names("."), "also behind newer ones"
    assert len([name for name in Files(tmp_path).names(".") if name.startswith("epoch-")]) < 6

    now = module.time.time()
    monkeypatch.setattr(module.time, "time", lambda: now + 61)
    epochs(10, 13)
    assert mapped[0] not in Files(tmp_path).names("."), "a reader that is gone harms nobody"
    with pytest.raises(BadFile, match=r"as a sum only[\s\S]*Hint: start it with a new checkpoint.*lease"):
        reader.run()


def test_a_mapped_file_that_is_gone_is_told_with_what_to_do(tmp_path: Path) -> None:
    published(tmp_path, 40)
    reader = Simulation(importing(tmp_path), rounds_per_batch=1)
    reader.run()
    module._opened.cache_clear()
    for path in tmp_path.glob("snapshot-*"):
        path.unlink()
    reader.send("asked", [(3, 1)])
    with pytest.raises(
        (BadFile, VertexError),
        match=r"'given'[\s\S]*snapshot-[\s\S]*longer than the lease[\s\S]*Hint: .*new checkpoint",
    ):
        reader.run()


def test_a_damaged_file_is_told_by_name(tmp_path: Path) -> None:
    published(tmp_path, 40)
    for path in tmp_path.glob("snapshot-*"):
        path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ts.TimelyError, match=r"snapshot-.*arrow"):
        Simulation(importing(tmp_path)).run()


def test_mistakes(tmp_path: Path) -> None:
    plain = ts.Dataflow("plain")
    rows = plain.input("x", "k long, d long", epochs="manual").collection(diff="d")
    rows.publish(tmp_path / "plain")
    rows.changes().capture_to(tmp_path / "stream")
    run(plain, {"x": [[(1, 1)]]})
    flow = ts.Dataflow("imports")
    with pytest.raises(BadFile, match=r"not arranged[\s\S]*Hint: .*arrange\(keys\)\.publish"):
        flow.import_arrangement(tmp_path / "plain", "rows")
    with pytest.raises(BadFile, match=r"a stream or collection, not an arrangement"):
        flow.import_arrangement(tmp_path / "stream", "rows")
    with pytest.raises(BadFile, match="has no capture"):
        flow.import_arrangement(tmp_path / "nothing", "rows")
    with pytest.raises(GraphError, match=r"of flow 'imports', .* of 'plain'[\s\S]*import_arrangement"):
        flow.input("y", "k long", epochs="manual").collection().join(rows, on="k")


def test_a_collection_that_is_published_by_other_keys_later_is_sorted_again(tmp_path: Path) -> None:
    published(tmp_path, 40)
    source: Any = importing(tmp_path).frames["given"]
    about = source.arranged()
    name = next(path.name for path in tmp_path.glob("snapshot-*"))
    schema = module.pa.schema([("k", "int64"), ("v", "int64"), (ts.authors.DIFF, "int64")])
    for keys in (("k",), ("v", "k")):
        hashed, rows, distinct = source.opened(about)(name, schema, keys)
        assert distinct
        assert (hashed == module.hashes(rows, keys)).all()
        assert (hashed[1:] >= hashed[:-1]).all()
        assert sorted(rows["v"].to_pylist()) == list(range(40))


def test_a_snapshot_of_a_new_capture_is_not_the_copy_of_an_older_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copies of remote files are kept by name, and a capture in the same place has the same names."""
    published(tmp_path / "shared", 40)
    source: Any = importing(tmp_path / "shared").frames["given"]
    opened, keys = source.opened(source.arranged()), ("k",)
    (path,) = (tmp_path / "shared").glob("snapshot-*")
    schema = module.pa.schema([("k", "int64"), ("v", "int64"), (ts.authors.DIFF, "int64")])
    monkeypatch.setenv(PLACE, str(tmp_path / "cache"))
    monkeypatch.setattr(files, "connect", lambda place: (Remote(fs.LocalFileSystem()), place))
    assert opened(path.name, schema, keys).rows["v"].to_pylist()
    content = path.read_bytes()
    published(tmp_path / "another", 50)
    path.write_bytes(next((tmp_path / "another").glob("snapshot-*")).read_bytes())
    assert path.read_bytes() != content
    assert sorted(opened(path.name, schema, keys).rows["v"].to_pylist()) == list(range(50))


def test_a_replay_of_an_arranged_collection_is_that_of_any(tmp_path: Path) -> None:
    published(tmp_path, 3)
    flow = ts.Dataflow("replays")
    flow.replay("rows", tmp_path).capture("out")
    reader = Simulation(flow)
    reader.run()
    found = [row for rows in reader.captured["out"].rows().values() for row in rows]
    assert sorted(found) == [(n, n, 1) for n in range(3)]
