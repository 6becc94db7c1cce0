"""Stragglers (Naiad section 3.5): what skewed keys, a pausing worker and a hanging task cost.

1. Skew. Running counts as in `exchange`: keys drawn evenly, half of all records with one key, and by Zipf's
   law (the most frequent key has 18 % of the records); Spark's own count reads the same files. "Uncombined"
   is a vertex that takes each record as it is: nothing can be added up before the exchange, and the worker
   of the hot key does three quarters of the work; with more workers it would still do half of it. In a loop:
   a sum per key and iteration; half of what is dealt on goes to one key.
2. A pausing worker: in one iteration of 20 the worker of one key sleeps. A micro-batch waits for its slowest
   task, and the next one begins after it, in asynchronous loops, too: no worker runs ahead of another. So a
   pause costs what it lasts, once for all workers that pause in the same round; Naiad's workers, which do not
   wait for each other, lose it only where others need the result. `recent_progress` names the worker.
3. Speculation, on a standalone cluster of two workers with addresses of their own (Spark starts no second
   attempt on the address of the first, so never in local-cluster mode): the first attempt of one task hangs.
   The second one runs beside it on the other worker; whichever Spark takes, the answer is checked.
"""

from __future__ import annotations

import time as clock
import uuid
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

import timely_spark as ts
from benchmarks import exchange, harness
from benchmarks.exchange import CORES, TURN, Side
from benchmarks.harness import Report, median, quantile
from benchmarks.loops import as_flow
from tests.support.standalone import Cluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PRIME, FAN = 1_000_003, 4
#: A pause of so many seconds, in one iteration of so many.
PAUSE, OFTEN = 0.2, 20
VALUES = "key long, value long"


# -- skew ----------------------------------------------------------------------------------------------------


def draws(keys: int, rows: int, epochs: int) -> dict[str, list[pa.Array]]:
    """For each kind of skew every key once, then epochs of `rows` records."""
    random = np.random.default_rng(keys)

    def even() -> np.ndarray:
        return random.integers(0, keys, rows)

    kinds = {
        "even": even,
        "half on one key": lambda: np.where(random.random(rows) < 0.5, 0, even()),
        "Zipf": lambda: (random.zipf(1.2, rows) - 1) % keys,
    }
    once = pa.array(np.arange(keys))
    return {name: [once, *(pa.array(drawn()) for _ in range(epochs))] for name, drawn in kinds.items()}


def uncombined(spark: SparkSession, side: Side) -> None:
    """Counts of each epoch, by a vertex to which every record travels as it is."""
    files = spark.readStream.schema("key long").option("maxFilesPerTrigger", CORES)
    flow = ts.Dataflow("uncombined")
    keys = flow.source("keys", files.parquet(f"{side.folder}/turn-*"))
    keys.unary(tally, "key long, count long", by="key").probe("done")
    query = flow.start(spark, checkpoint=str(harness.folder()))
    side.stop, side.progress = query.stop, lambda: query._query.recentProgress  # noqa: SLF001


def tally(time: Any, batch: pa.Table) -> pa.Table:
    """How often each key comes."""
    counted = batch.group_by("key", use_threads=False).aggregate([([], "count_all")])
    return counted.rename_columns(["key", "count"])


def skew(report: Report, spark: SparkSession, *, quick: bool) -> None:
    """Epochs of counts."""
    keys, rows, epochs = (20_000, 200_000, 2 * TURN) if quick else (100_000, 1_000_000, 4 * TURN)
    by_draw = {
        name: exchange.measure(
            spark, {"ours": exchange.ours, "native": exchange.native, "uncombined": uncombined}, drawn
        )
        for name, drawn in draws(keys, rows, epochs).items()
        if not (quick and name == "Zipf")
    }
    for name, took in by_draw.items():
        case, ours = f"counts, {rows:,} rows, {name}", median(took["ours"])
        p95 = quantile(took["ours"], 0.95)
        report.add(case, ours=ours, baseline=median(took["native"]), against="native, the same keys", p95=p95)
        if name != "even":
            for side in ("ours", "native", "uncombined"):
                report.add(
                    case if side == "ours" else f"{case}: {side}",
                    ours=median(took[side]),
                    baseline=median(by_draw["even"][side]),
                    against=f"{side}, even",
                    aim=">=0.83x" if side == "ours" else "",
                    p95=quantile(took[side], 0.95),
                )


# -- iterations ----------------------------------------------------------------------------------------------


def iterations(count: int, keys: int, *, hot: bool = False, pause: float = 0.0) -> ts.Dataflow:
    """A sum per key in each iteration, dealt to other keys in the next. Columns: key long, value long."""
    flow = ts.Dataflow("iterations")

    def iteration(dealt: ts.Stream) -> tuple[ts.Stream, ts.Stream]:
        summed = dealt.group_by("key").aggregate(value=("sum", "value"), per="time", name="summed")
        shares = summed.unary(partial(deal, keys=keys, hot=hot, pause=pause), VALUES, name="deal")
        return shares, summed.unary(partial(last, count=count), VALUES, name="last")

    flow.input("x", VALUES).loop(iteration, max_iterations=count, on_limit="return").capture("out")
    return flow


def deal(time: Any, batch: pa.Table, *, keys: int, hot: bool, pause: float) -> pa.Table:
    """Each value to FAN keys; with `hot` every second one of these is key 0, whose worker may pause."""
    key, value = batch["key"].to_numpy(), batch["value"].to_numpy() % PRIME
    if pause and time[-1] % OFTEN == OFTEN // 2 and not key.all():
        clock.sleep(pause)
    return pa.table({"key": targets(key, keys, hot=hot), "value": np.tile(value, FAN)})


def targets(key: np.ndarray, keys: int, *, hot: bool) -> np.ndarray:
    """To which keys a key sends."""
    to = [(7 * key + 11 * turn) % keys for turn in range(FAN)]
    return np.concatenate([np.zeros_like(key) if hot and turn % 2 else each for turn, each in enumerate(to)])


def last(time: Any, batch: pa.Table, *, count: int) -> pa.Table | None:
    """What the last iteration has summed."""
    return batch if time[-1] == count - 1 else None


def start_values(keys: int, epoch: int) -> pa.Table:
    """An epoch of the loop."""
    return pa.table({"key": np.arange(keys), "value": np.arange(keys) * (epoch + 1) % PRIME})


def expected(count: int, keys: int, epoch: int, *, hot: bool) -> list[tuple[int, int]]:
    """What the loop answers for an epoch."""
    key, value = (start_values(keys, epoch)[name].to_numpy() for name in ("key", "value"))
    for _ in range(count - 1):
        to, dealt = targets(key, keys, hot=hot), np.tile(value % PRIME, FAN)
        total = np.bincount(to, dealt, keys).astype(np.int64)
        key = np.unique(to)
        value = total[key]
    return list(zip(key.tolist(), value.tolist(), strict=True))


def skewed_loop(report: Report, spark: SparkSession, *, quick: bool) -> None:
    """The same loop, its records sent evenly and half of them to one key, in turns."""
    count, keys = (5, 5_000) if quick else (20, 50_000)
    took: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(1 if quick else 3):
        for hot in took:
            run = as_flow(spark, iterations(count, keys, hot=hot), [start_values(keys, e) for e in range(3)])
            assert run.results == [expected(count, keys, e, hot=hot) for e in range(3)]
            took[hot] += run.times[1:]
    report.add(
        f"a loop of {count} iterations, {FAN * keys:,} records each, half on one key",
        ours=median(took[True]),
        baseline=median(took[False]),
        against="ours, even",
        aim=">=0.83x",
        p95=quantile(took[True], 0.95),
    )


# -- a pausing worker ----------------------------------------------------------------------------------------


def pauses(report: Report, spark: SparkSession, *, quick: bool) -> None:
    """Rounds of a loop, a micro-batch each, with and without pauses; and many rounds in a micro-batch."""
    count = 20 if quick else 100
    turns = 1 if quick else 4
    paused, steady = rounds(spark, count, turns)
    for name, q in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99)):
        report.add(
            f"a worker pauses {1000 * PAUSE:.0f} ms in a round of {OFTEN}: {name}",
            ours=quantile([each.duration_ms for each in paused], q),
            baseline=quantile([each.duration_ms for each in steady], q),
            against="no pauses",
        )
    slow = [each.slowest[0] for each in paused if each.slowest[1] >= 1000 * PAUSE]
    report.note(
        f"{turns * (count // OFTEN)} pauses of one worker; recent_progress shows {len(slow)} rounds in which "
        f"a worker took as long, and names {sorted(set(slow))} for them."
    )
    data = [start_values(64, epoch) for epoch in range(2 if quick else 4)]
    ours, without = (
        as_flow(spark, iterations(count, 64, pause=pause), data).times[1:] for pause in (PAUSE, 0.0)
    )
    report.add(
        f"the same, {count} rounds in a micro-batch, all",
        ours=median(ours),
        baseline=median(without),
        against="no pauses",
        note=f"of which pauses: {1000 * PAUSE * (count // OFTEN):.0f} ms",
    )


def rounds(spark: SparkSession, count: int, turns: int) -> tuple[list[Any], list[Any]]:
    """The progress of each round of some epochs, with pauses and without, in turns; the first ones warm."""
    sides = [(iterations(count, 64, pause=pause), list[Any]()) for pause in (PAUSE, 0.0)]
    with ExitStack() as running:
        queries = [
            running.enter_context(
                flow.start(
                    spark,
                    checkpoint=str(harness.folder()),
                    workers=2,
                    name=f"iterations-{number}",
                    rounds_per_batch=1,
                )
            )
            for number, (flow, _) in enumerate(sides)
        ]
        for epoch in range(1 + turns):
            for query, (flow, seen) in zip(queries, sides, strict=True):
                before = query.rounds
                flow.handle("x").send(start_values(64, epoch))
                harness.answered(query, "out")
                clock.sleep(0.2)  # Spark's own progress of the last batch
                answer = query.captured("out").rows().popitem()[1]
                assert answer == expected(count, 64, epoch, hot=False)
                new = [each for each in query.recent_progress if each.rounds > before]
                seen += [each for each in new if epoch and each.duration_ms and each.slowest]
    return sides[0][1], sides[1][1]


# -- speculation ---------------------------------------------------------------------------------------------


def hanging(time: Any, batch: pa.Table, *, seconds: float, marks: str) -> pa.Table:
    """Marks every attempt that has key 0; the first attempt of epoch 1 or later hangs there."""
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is not None and time.epoch and not batch["key"].to_numpy().all():
        Path(marks, f"{context.attemptNumber()}-{uuid.uuid4()}").touch()
        if context.attemptNumber() == 0:
            clock.sleep(seconds)
    return batch


def speculated(cluster: Cluster, *, on: bool, seconds: float) -> tuple[float, int]:
    """Milliseconds of an epoch in which a task hangs, and how many attempts there were of it."""
    confs = {
        "spark.master": cluster.url,
        "spark.executor.memory": "512m",
        "spark.executorEnv.PYTHONPATH": str(harness.ROOT),
        "spark.sql.shuffle.partitions": "2",
        "spark.speculation": str(on).lower(),
        "spark.speculation.quantile": "0.5",
        "spark.speculation.multiplier": "2",
    }
    session = harness.spark("speculation", confs=confs)
    marks = harness.folder()
    keys = np.arange(1000)
    flow = ts.Dataflow("hanging")
    hung = flow.input("x", "key long").unary(
        partial(hanging, seconds=seconds, marks=str(marks)), "key long", by="key"
    )
    hung.group_by("key").count().capture("out")
    try:
        with flow.start(session, checkpoint=str(harness.folder()), workers=2) as query:
            for _ in range(2):
                began = clock.perf_counter()
                flow.handle("x").send(pa.table({"key": keys}))
                harness.answered(query, "out")
                took = 1000 * (clock.perf_counter() - began)
            answers = list(query.captured("out").rows().values())
        assert answers == [[(key, times) for key in keys.tolist()] for times in (1, 2)]
    finally:
        session.stop()
    return took, sum(1 for _ in marks.iterdir())


def speculation(report: Report, *, quick: bool) -> None:
    """The same hanging task, with speculation and without."""
    seconds = 4.0 if quick else 10.0
    with Cluster(harness.folder() / "cluster") as cluster:
        (on, attempts), (off, alone) = (speculated(cluster, on=on, seconds=seconds) for on in (True, False))
    assert (attempts > 1, alone) == (True, 1), (attempts, alone)
    report.add(
        f"a task's first attempt hangs {seconds:.0f} s, speculation on",
        ours=on,
        baseline=off,
        against="speculation off",
        note=f"{attempts} attempts, the same answer",
    )


def run(quick: bool) -> Report:
    """Measure, and write the report."""
    report = Report("stragglers", "Stragglers: skew, pauses, hanging tasks", quick=quick)
    # an idle query looks for new files rarely, so that it takes nothing from the one whose turn it is
    confs = {"spark.sql.streaming.pollingDelay": "100ms", "spark.driver.memory": "4g"}
    spark = harness.spark("stragglers", cores=CORES, confs=confs)
    skew(report, spark, quick=quick)
    skewed_loop(report, spark, quick=quick)
    pauses(report, spark, quick=quick)
    spark.stop()
    speculation(report, quick=quick)
    report.write()
    return report
