"""A job whose loop runs in tasks of several executors, one of which is killed once in between.

killed.py KIND FOLDER: of KIND "parallel" large rounds run in tasks, of "staying" all epochs in staying tasks.
With "decommissioned" the executor gets the signal by which a node that is to go takes leave, and the job
rests for more than a minute after that.
The tasks note in the folder which executors they ran in, and that one was killed.
"""

from __future__ import annotations

import os
import signal
import statistics
import sys
import time
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

import timely_spark as ts
from timely_spark.coordinator import RoundLimits
from timely_spark.runtime.query import rounds, staying
from timely_spark.runtime.session import slots

LENGTH, EPOCHS = 60, 24
SIGNALS = {"parallel": signal.SIGKILL, "staying": signal.SIGKILL, "decommissioned": signal.SIGPWR}


def main(kind: str, folder: str) -> None:
    """Run it; prints what was reached, and of staying tasks how long an epoch took, which nobody asserts."""
    staying.BEGIN = rounds.REPLACED = 200.0  # however long the machine takes to start an executor
    fatal, needed = (LENGTH // 2, 2) if kind == "parallel" else (EPOCHS // 2, 3)

    def noted(batch: pa.Table) -> pa.Table:
        from pyspark import BarrierTaskContext, TaskContext

        if isinstance(TaskContext.get(), BarrierTaskContext):
            executor = executor_of(os.getpid())
            Path(folder, f"executor-{executor}").touch()
            killed = Path(folder, "killed")
            if fatal in batch["node"].to_pylist() and not killed.exists():
                killed.touch()
                os.kill(executor, SIGNALS[kind])
                if SIGNALS[kind] == signal.SIGKILL:
                    os.kill(os.getpid(), signal.SIGKILL)  # which would run on for a moment
        return batch

    spark = ts.configure(SparkSession.builder.appName(kind)).getOrCreate()
    until = time.monotonic() + 200
    while slots(spark) < needed and time.monotonic() < until:
        time.sleep(0.1)
    flow = ts.Dataflow("path")
    edges = flow.input("edges", "src long, dst long")
    roots = flow.input("roots", "node long")

    def hop(reached: ts.Stream) -> ts.Stream:
        links = reached.scope.enter(edges)
        targets = reached.join(links, left=["node"], right=["src"], name="hop").select(node="dst")
        return targets.map_batches(noted, "node long").concat(reached).distinct(name="near")

    roots.loop(hop, name="hops").capture("out")
    run, resident = (in_parallel, None) if kind == "parallel" else (by_epochs, True)
    with flow.start(spark, checkpoint=f"{folder}/checkpoint", workers=4, resident=resident) as query:
        last = run(query, edges, roots)
        if kind == "decommissioned":
            last = after_a_rest(query, edges, last)
        reached = sorted(node for rows in query.captured("out").rows().values() for (node,) in rows)
        print("reached all", reached == list(range(last + 1)))
        print("rounds", query.rounds)
        print("epochs", query.last_progress.epoch + 1)
        print("micro-batches", len(list(Path(folder, "checkpoint", "offsets").glob("[0-9]*"))))
        print("residency", query.status["residency"], flush=True)
    spark.stop()


def in_parallel(query: ts.Query, edges: ts.Input, roots: ts.Input) -> int:
    """One long loop, and one root more."""
    rounds.SMALL = RoundLimits(exchanged=-1)  # every exchange counts as large
    edges.send([(i, i + 1) for i in range(2 * LENGTH)])
    for root in (0, 2 * LENGTH):
        roots.send([root])
        query.wait_for()
    return 2 * LENGTH


def by_epochs(query: ts.Query, edges: ts.Input, roots: ts.Input) -> int:
    """An epoch for each edge."""
    roots.send([0])
    query.wait_for()
    took = []
    for number in range(EPOCHS):
        began = time.perf_counter()
        edges.send([(number, number + 1)])
        query.wait_for()
        took.append(1000 * (time.perf_counter() - began))
    print(f"median {statistics.median(took):.1f} ms")
    return EPOCHS


def after_a_rest(query: ts.Query, edges: ts.Input, number: int) -> int:
    """The tasks are given back, and taken again for the next epoch."""
    tracker = SparkSession.active().sparkContext.statusTracker()
    jobs = tracker.getJobIdsForGroup(query.run_id)
    print("jobs-at-work", len(tracker.getActiveJobsIds()))
    time.sleep(staying.IDLE)
    until = time.monotonic() + 60
    while tracker.getActiveJobsIds() and time.monotonic() < until:
        time.sleep(0.1)
    print("jobs-at-rest", len(tracker.getActiveJobsIds()))
    edges.send([(number, number + 1)])
    query.wait_for()
    print("jobs-since", len(tracker.getJobIdsForGroup(query.run_id)) - len(jobs))
    return number + 1


def executor_of(pid: int) -> int:
    """The executor's JVM to which a Python worker belongs."""
    while b"CoarseGrainedExecutorBackend" not in Path(f"/proc/{pid}/cmdline").read_bytes():
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[1])
    return pid


if __name__ == "__main__":
    main(*sys.argv[1:])
