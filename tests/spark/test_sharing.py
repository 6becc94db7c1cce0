"""Two queries of one session: one captures, the other replays, while both run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.compute as pc
import pytest

import timely_spark as ts
from timely_spark.runtime.errors import EpochClosed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("small_snapshots")]


def test_a_query_replays_what_another_one_captures(spark: SparkSession, tmp_path: Path) -> None:
    first = ts.Dataflow("first")
    x = first.input("x", "n long", epochs="manual")
    x.distinct().capture_to(tmp_path, name="shared")
    with first.start(spark, workers=2, name="first") as captures:
        second = ts.Dataflow("second")
        down = second.replay("x", tmp_path)
        down.loop(lambda n: n.where(pc.field("n") > 0).select(n=pc.subtract(pc.field("n"), 1))).capture("out")
        with second.start(spark, workers=3, name="second") as replays:
            x.send([2, 2])
            x.advance_to(2)
            assert replays.wait_for("out", epoch=1, timeout=60)
            assert captures.is_active
            with pytest.raises(EpochClosed, match="replays a capture"):
                replays.close("x")
            x.send([1])
            x.close()
            assert replays.wait_for("out", epoch=2, timeout=60)
            assert replays.captured("out").rows() == {0: [(0,), (1,)], 1: [], 2: [(0,)]}


def test_a_query_attaches_to_one_that_has_long_been_running(spark: SparkSession, tmp_path: Path) -> None:
    first = ts.Dataflow("first")
    x = first.input("x", "n long, diff long", epochs="manual")
    x.collection(diff="diff").publish(tmp_path, name="published")
    with first.start(spark, workers=2, name="publishes") as publishes:
        for epoch in range(4):
            x.send([(epoch, 1), *([(epoch - 1, -1)] if epoch else [])])
            x.advance_to(epoch + 1)
        assert publishes.wait_for(epoch=3, timeout=60)
        second = ts.Dataflow("second")
        second.replay("x", tmp_path).collection(diff="diff").count("n").capture("size")
        with second.start(spark, workers=2, name="imports") as imports:
            assert imports.wait_for("size", epoch=3, timeout=60)
            assert ts.snapshot(imports.captured("size"), at=3).to_pylist() == [{"n": 1}]
            x.send([(7, 1)])
            x.close()
            assert imports.wait_for("size", epoch=4, timeout=60)
            assert ts.snapshot(imports.captured("size")).to_pylist() == [{"n": 2}]
    assert any(path.name.startswith("snapshot-") for path in tmp_path.iterdir())


def test_a_query_maps_the_arrangement_of_another_one(spark: SparkSession, tmp_path: Path) -> None:
    first = ts.Dataflow("first")
    x = first.input("x", "k long, v long, diff long", epochs="manual")
    x.collection(diff="diff").arrange("k").publish(tmp_path / "published", name="by_key")
    checkpoint = str(tmp_path / "imports")

    def importing() -> tuple[ts.Dataflow, ts.Input]:
        second = ts.Dataflow("second")
        asked = second.input("asked", "k long", epochs="manual")
        rows = second.import_arrangement(publishes, "by_key")
        asked.collection().join(rows, on="k").changes().capture("found")
        return second, asked

    with first.start(spark, workers=2, name="publishes") as publishes:
        x.send([(n, n * n, 1) for n in range(100)])
        x.advance_to(1)
        x.send([(7, 49, -1)])
        x.advance_to(2)
        assert publishes.wait_for(epoch=1, timeout=60)
        with pytest.raises(ts.TimelyError, match="no published collection 'other'"):
            ts.Dataflow("wrong").import_arrangement(publishes, "other")
        flow, asked = importing()
        with flow.start(spark, workers=2, name="imports", checkpoint=checkpoint) as imports:
            asked.send([3, 7])
            asked.advance_to(2)
            assert imports.wait_for("found", epoch=1, timeout=60)
            assert ts.snapshot(imports.captured("found"), at=1).to_pylist() == [{"k": 3, "v": 9}]
        x.send([(7, 0, 1), (3, 9, -1)])
        x.advance_to(3)
        assert publishes.wait_for(epoch=2, timeout=60)
        flow, asked = importing()  # on other workers, which map the same file
        with flow.start(spark, workers=3, name="imports", checkpoint=checkpoint) as imports:
            asked.send([5], epoch=2)
            asked.advance_to(3)
            assert imports.wait_for("found", epoch=2, timeout=60)
            found = ts.snapshot(imports.captured("found"), at=2).to_pylist()
    assert sorted((row["k"], row["v"]) for row in found) == [(5, 25), (7, 0)]
