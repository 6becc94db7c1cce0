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
