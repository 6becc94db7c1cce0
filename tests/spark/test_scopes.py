"""Inner times on Spark: pairs of times, stopped in the middle, and gone on with other workers."""

from __future__ import annotations

from time import sleep
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import timely_spark as ts
from timely_spark.errors import TimelyError
from timely_spark.times import Descending, RefinedTime


class Kept(ts.Vertex):
    """Keeps records by their time, until that is complete; then sends them in one line each."""

    def __init__(self) -> None:
        self.rows: dict[Any, list[int]] = {}

    def on_recv(self, edge: int, time: Any, batch: pa.Table) -> None:
        self.rows.setdefault(time, []).extend(batch["n"].to_pylist())
        self.notify_at(time)

    def on_notify(self, time: Any) -> None:
        urgency = time.counters[0]
        self.send_by(0, time, [(n, urgency.number, time.epoch) for n in sorted(self.rows.pop(time, []))])

    def repartition(self, states: Any, workers: int, partition: Any) -> Any:
        made: list[dict[Any, list[int]]] = [{} for _ in range(workers)]
        for state in states:
            for time, rows in state["rows"].items():
                for part, table in zip(made, partition(0, pa.table({"n": rows})), strict=True):
                    part.setdefault(time, []).extend(table["n"].to_pylist())
        return [{"rows": rows} for rows in made]


class Rated(ts.Vertex):
    """Forwards jobs by output 0; and, when a time is complete, its rates by output 1."""

    def __init__(self) -> None:
        self.rates: dict[Any, list[int]] = {}

    def on_recv(self, edge: int, time: Any, batch: pa.Table) -> None:
        if edge == 0:
            self.send_by(0, time, batch)
            return
        self.rates.setdefault(time, []).extend(batch["n"].to_pylist())
        self.notify_at(time)

    def on_notify(self, time: Any) -> None:
        self.send_by(1, time, [(n,) for n in self.rates.pop(time, [])])

    def repartition(self, states: Any, workers: int, partition: Any) -> Any:
        rates = {time: rows for state in states for time, rows in state["rates"].items()}
        return [{"rates": {} if worker else rates} for worker in range(workers)]


def flow_of(time: Any = Descending) -> ts.Dataflow:
    flow = ts.Dataflow("urgent")
    jobs = flow.input("jobs", "n long, urgency long", epochs="manual")
    scope = flow.scope.inner(name="by_urgency", time=time)
    urgent = scope.enter(jobs, at="urgency").select("n").exchange("n")
    kept = flow.vertex(Kept(), urgent, "n long, urgency long, epoch long", by="n", name="kept")
    kept.leave().capture("done")
    counts = urgent.group_by("n").count(name="counts")
    counts.exchange("count").unary_notify(lambda _, rows: rows, counts.schema, by="count").leave().capture(
        "counts"
    )
    rates = flow.scope.inner(name="rates", time=int).input("rate", "n long", at="n", epochs="manual").leave()
    summaries = {(0, 1): None, (1, 0): None}
    both = [jobs.select("n"), rates]
    rated = flow.vertex(Rated(), both, ["n long"] * 2, by=["n", "n"], summaries=summaries)
    rated[0].capture("rated")
    rated[1].capture("rates seen")
    jobs.select("n").loop(lambda n: n.select(n="n").distinct(name="once")).capture("looped")
    return flow


def test_inner_times_survive_a_restart_in_the_middle_with_other_workers(
    spark: SparkSession, checkpoint: str
) -> None:
    flow = flow_of()
    flow.handle("jobs").send([(1, 5), (2, 9), (3, 1)])  # before the start, so that the first batch has them
    flow.handle("rate").send([7])
    with flow.start(spark, checkpoint=checkpoint, workers=2, rounds_per_batch=1) as query:
        while query.rounds == 0:  # then the records are at their inner times, and the epoch is open
            assert query.is_active
            sleep(0.01)
        assert query.captured("done").rows() == {}
        why = query.why(0)
        assert not why.complete
        assert "(0, Descending(" in str(why)

    with pytest.raises(TimelyError, match="by_urgency"):  # its times would mean something else
        flow_of(int).start(spark, checkpoint=checkpoint, workers=2)

    flow = flow_of()
    with flow.start(spark, checkpoint=checkpoint, workers=3) as query:
        flow.handle("jobs").send([(1, 9), (4, 9)])
        flow.handle("jobs").advance_to(1)
        flow.handle("jobs").send([(1, 7)])
        flow.handle("jobs").close()
        for name in ("done", "counts", "looped", "rated"):
            assert query.wait_for(name, epoch=1, timeout=120)
        assert {e: sorted(rows) for e, rows in query.captured("done").rows().items()} == {
            0: [(1, 5, 0), (1, 9, 0), (2, 9, 0), (3, 1, 0), (4, 9, 0)],
            1: [(1, 7, 1)],
        }
        # at (0, 9) one 1, at (0, 5) two; and at (1, 7) two, at its join with (0, 5) three
        assert sorted(query.captured("counts").rows()[0]) == [(1, 1), (1, 2), (2, 1), (3, 1), (4, 1)]
        assert sorted(query.captured("counts").rows()[1]) == [(1, 2), (1, 3)]
        assert query.captured("looped").rows() == {0: [(1,), (2,), (3,), (4,)], 1: []}
        # no path leads there from the rates, whose epoch 0 is still open
        assert sorted(query.captured("rated").rows()[0]) == [(1,), (1,), (2,), (3,), (4,)]
        assert query.captured("rated").rows()[1] == [(1,)]
        assert query.captured("rates seen").rows() == {}
        flow.handle("rate").advance_to(1)
        assert query.wait_for(timeout=120)
        assert query.captured("rates seen").rows() == {0: [(7,)]}


def test_the_simulator_says_the_same() -> None:
    jobs = [[(1, 5), (2, 9), (3, 1), (1, 9), (4, 9)], [(1, 7)]]
    found = ts.testing.run(flow_of(), {"jobs": jobs, "rate": [[7], []]}, workers=3, seed=1)
    assert sorted(found["counts"].rows()[1]) == [(1, 2), (1, 3)]
    assert RefinedTime(1, Descending(7)).join(RefinedTime(0, Descending(5))) == RefinedTime(1, Descending(5))
