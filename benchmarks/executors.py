"""Executors: the same epochs with 1, 2 and 4 of them, in a local-cluster and in a standalone cluster.

All on this machine, so executors do not add cores beyond it; they add processes, and rounds whose tasks reach
each other over sockets only. An executor has one core and a JVM of its own. In a standalone cluster tasks
stay; in a local-cluster the driver hosts the workers. Four workers each time; results are compared. `in
threads` is the same in `local[2]`, one JVM with two cores.

Beside each stands what `predicted` says of so many processes, with the error: the rounds, the seconds of an
epoch, and the processor time of the Python processes, which does not depend on how many cores there are. The
prediction leaves out the input's way through Spark to the workers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa

import timely_spark as ts
from benchmarks import harness
from benchmarks.harness import Report, median
from benchmarks.loops import Run, as_flow
from benchmarks.predicted import Path, Prices, simulated
from tests.support.standalone import Cluster
from timely_spark.runtime.session import slots

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WORKERS = 4
Flow = tuple[Callable[[], ts.Dataflow], Callable[[int, int], pa.Table]]
RECORDS = {"words": 1_000_000, "pagerank": 200_000}


@contextmanager
def session(master: str, executors: int) -> Iterator[SparkSession]:
    """A session of so many executors with a core each, all of them there; 0: of threads."""
    confs: dict[str, Any] = {
        "spark.master": master,
        "spark.cores.max": executors,
        "spark.executor.cores": 1,
        "spark.executor.memory": "512m",
        "spark.executorEnv.PYTHONPATH": str(harness.ROOT),
        "spark.scheduler.minRegisteredResourcesRatio": 1,  # nothing runs before all executors are there
    }
    spark = harness.spark("executors", confs=confs if executors else {})
    try:
        spark.range(1).count()
        if executors:
            assert slots(spark) == executors, (slots(spark), executors)
        yield spark
    finally:
        spark.stop()


def on_executors(report: Report, flows: Mapping[str, Flow], prices: Prices, *, quick: bool) -> None:
    """Rows of each flow, for each kind of cluster and number of executors."""
    counts, epochs = ((1, 2), 2) if quick else ((1, 2, 4), 5)
    data = {
        name: [flow(20_000 if quick else RECORDS[name], epoch) for epoch in range(epochs)]
        for name, (_, flow) in flows.items()
    }

    def measured(master: str, executors: int = 0) -> dict[str, Run]:
        stays = True if master.startswith("spark:") else None  # as it does elsewhere
        with session(master, executors) as spark:
            return {
                name: as_flow(spark, build(), data[name], workers=WORKERS, resident=stays)
                for name, (build, _) in flows.items()
            }

    threads = measured("local[2]")
    most = counts[-1]
    with Cluster(harness.folder() / "cluster", workers=most) as cluster:
        runs = {("standalone", count): measured(cluster.url, count) for count in counts}
    runs |= {("local-cluster", count): measured(f"local-cluster[{count},1,1024]", count) for count in counts}
    paths = {
        (name, count): simulated(build, data[name], WORKERS, count)
        for name, (build, _) in flows.items()
        for count in counts
    }
    for (kind, count), by_name in runs.items():
        for name, run in by_name.items():
            assert run.results == threads[name].results, f"{name} has another result on {kind}, {count}"
            took, alone = median(run.times[1:]), median(threads[name].times[1:])
            case = f"{name}, {data[name][0].num_rows:,} records, {kind}, {count} executors"
            report.add(
                case,
                ours=took,
                baseline=median(runs[kind, 1][name].times[1:]),
                against="1 executor",
                note=f"{took / alone:.2f} times what it takes in threads; {WORKERS} workers, equal results",
                threads=alone,
                rounds=run.rounds,
            )
            beside_prediction(report, case, run, paths[name, count], prices)


def beside_prediction(report: Report, case: str, run: Run, paths: Sequence[Path], prices: Prices) -> None:
    """Rows of an epoch's seconds and processor time, whose baselines are the predicted ones."""
    seconds = [sum(path.parts(prices).values()) for path in paths]
    processor = [path.processor(prices) for path in paths]
    for what, times, predicted in (
        ("epoch", run.times, seconds),
        ("processor time of Python", run.processor, processor),
    ):
        took, expected = median(times[1:]), 1000 * median(predicted)
        report.add(
            f"{case}, {what}",
            ours=took,
            baseline=expected,
            against="predicted",
            note=f"predicted {expected / took - 1:+.0%}; {run.rounds} rounds, predicted {paths[-1].rounds}",
        )
