"""Two queries of one session: one captures, the other replays, while both run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.compute as pc
import pytest

import timely_spark as ts
from timely_spark.runtime.errors import EpochClosed
from timely_spark.runtime.storage.published import Published

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


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


def test_a_query_attaches_to_one_that_has_long_been_running(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Published.compact, "__defaults__", (0,))  # snapshots of small epochs, too
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
