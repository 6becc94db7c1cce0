"""The campaign can tell: what it wraps exists, and a runtime that is broken on purpose is found out."""

from __future__ import annotations

import importlib
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tests.support import child, points, verdict
from tests.support.campaign import Chain, Params
from timely_spark.runtime.sinks.sink import CaptureSink
from timely_spark.runtime.storage.log import RoundLog

LOOPING = Params("looping", workers=2, rounds=3)


@pytest.mark.parametrize("call", points.CALLS, ids=lambda call: call.name)
def test_every_point_is_a_function_of_the_runtime(call: points.Call) -> None:
    importlib.import_module(points.RUNTIME + call.module)

    owner, name = points.owner_of(call)

    assert callable(getattr(owner, name))


def test_a_point_that_is_gone_is_an_error() -> None:
    with pytest.raises(AttributeError, match="no_such"):
        points.owner_of(points.Call("x", "storage.log", "RoundLog.no_such", str))


def test_counts_orders_and_marks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    killed: list[tuple[str, str]] = []
    monkeypatch.setattr(points, "act", lambda victim, _run, point, _detail: killed.append((point, victim)))
    (tmp_path / "checkpoint").mkdir()
    points.Run(tmp_path, 0, [("a.before", 2, "driver"), ("a.before", 3, "python")]).write()

    for point in ("a.before", "b.before", "a.before", "a.before", "a.before"):
        points.reached(tmp_path / "checkpoint", point)

    assert killed == [("a.before", "driver"), ("a.before", "python")], "each once"
    run = points.run_of(str(tmp_path / "checkpoint"))
    assert run is not None
    assert run.counts() == {"a.before": 4, "b.before": 1}


def test_rows_are_compared_as_bags() -> None:
    one, two = pa.table({"n": [1, 2, 2]}), pa.table({"n": [2, 1, 2]})

    assert verdict.differences({"out": verdict.Rows(one)}, {"out": verdict.Rows(two)}) == []
    assert verdict.differences({"out": verdict.Rows(one)}, {"out": verdict.Rows(two.slice(1))}) == [
        "out: lost 1 rows [(2,)], 0 too many []"
    ]
    assert verdict.differences({"out": 1}, {}) == ["out: only in the unfailed run"]


# -- runs in the session of the other tests ------------------------------------------------------------------


def run_twice(spark: SparkSession, home: Path) -> Chain:
    """A run to the end, and its last batch again."""
    chain = Chain(LOOPING, home)
    for _ in range(2):
        points.Run(home).write()
        child.run(spark, home, vars(LOOPING))
        chain.forget_commit()
    return chain


@pytest.fixture(scope="module")
def expected(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> verdict.Outcome:
    """What an unfailed run leaves."""
    home = tmp_path_factory.mktemp("unfailed") / "home"
    Chain(LOOPING, home)
    points.Run(home).write()
    child.run(spark, home, vars(LOOPING))
    return verdict.outcome(home)


@pytest.mark.campaign
def test_a_batch_that_runs_again_changes_nothing(
    spark: SparkSession, expected: verdict.Outcome, tmp_path: Path
) -> None:
    chain = run_twice(spark, tmp_path / "home")

    assert chain.replays == 2
    assert chain.differences(expected) == []


@pytest.mark.campaign
def test_a_sink_that_ignores_its_version_is_found_out(
    spark: SparkSession, expected: verdict.Outcome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deliver, calls = CaptureSink.deliver, Counter[int]()

    def again(sink: Any, session: Any, version: int, parts: Any) -> None:
        deliver(sink, session, version + 1000 * calls[version], parts)
        calls[version] += 1

    monkeypatch.setattr(CaptureSink, "deliver", again)
    chain = run_twice(spark, tmp_path / "home")

    assert any(line.startswith("captured/near/10") for line in chain.differences(expected))


@pytest.mark.campaign
def test_a_restart_from_an_older_manifest_is_found_out(
    spark: SparkSession, expected: verdict.Outcome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    newest_before = RoundLog.newest_before
    monkeypatch.setattr(
        RoundLog, "newest_before", lambda log, batch: newest_before(log, batch - 1 if batch > 1 else batch)
    )
    chain = run_twice(spark, tmp_path / "home")

    assert any(line.startswith(("progress/", "rounds")) for line in chain.differences(expected))


@pytest.mark.campaign
def test_a_manifest_that_is_not_written_whole_is_found_out(
    spark: SparkSession, expected: verdict.Outcome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = RoundLog.write

    def in_part(log: RoundLog, manifest: Any, rows: pa.Table) -> None:
        write(log, manifest, rows if manifest.runnable else rows.slice(1))

    monkeypatch.setattr(RoundLog, "write", in_part)
    chain = run_twice(spark, tmp_path / "home")

    assert any(line.startswith("workers with state") for line in chain.differences(expected))


@pytest.mark.campaign
def test_files_that_nothing_refers_to_are_found(
    spark: SparkSession, expected: verdict.Outcome, tmp_path: Path
) -> None:
    chain = Chain(LOOPING, tmp_path / "home")
    points.Run(chain.home).write()
    child.run(spark, chain.home, vars(LOOPING))
    root = chain.home / "checkpoint" / "timely"
    (root / "blobs" / "0-1-0-7-0badcafe").write_bytes(b"orphan")
    (root / "rounds" / ".half.tmp").write_bytes(b"half")
    lost = next(file for file in root.glob("captured/near/*.arrow"))
    lost.unlink()

    assert chain.differences(expected) == [
        f"captured/near/{lost.stem}: only in the unfailed run",
        "blobs/0-1-0-7-0badcafe: nothing refers to it",
        "checkpoint/timely/rounds/.half.tmp: nobody finished it",
    ]
