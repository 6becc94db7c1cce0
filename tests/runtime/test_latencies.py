"""How long batches took: classes of durations instead of each of them."""

from __future__ import annotations

import json
import random

import timely_spark as ts
from tests.support.stepper import Begin
from timely_spark.runtime.handle.status import Status
from timely_spark.runtime.storage.latencies import QUANTILES, Latencies


def test_a_quantile_is_at_most_nine_per_cent_too_high() -> None:
    draw = random.Random(3)
    for size in (1, 2, 10, 999, 3000):
        took = sorted(draw.lognormvariate(2.5, 1) for _ in range(size))
        latencies = Latencies()
        for each in took:
            latencies = latencies.plus(each)
        assert latencies.count == size
        for part in QUANTILES.values():
            exact = next(each for n, each in enumerate(took, 1) if n >= part * size)
            assert 0.999 * exact <= (latencies.quantile(part) or 0) <= 1.1 * exact
    assert len(latencies.counts) < 100, "however many batches there are"
    assert Latencies().quantile(0.5) is None
    assert Latencies().plus(0).quantile(0.5) == 0.1, "a batch that takes no time has the least duration"


def test_each_run_counts_its_own_batches(begin: Begin) -> None:
    flow = ts.Dataflow("timed")
    flow.input("x", "k long").group_by("k").count().capture("out")
    process = begin(flow)
    for n in range(3):
        process.feed("x", [n])
    first = process.newest()
    assert first.took.count == first.batch + 1 >= 3

    again = begin(flow)
    again.handles["x"].send([7])
    done = again.batches()
    status = Status.of(again.context.checkpoint)
    assert status.after.manifest.took.count == done
    assert json.loads(status.json())["batch_ms"]["batches"] == done
    assert f"{done} batch{'es' * (done != 1)}: median " in str(status)
