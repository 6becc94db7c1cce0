"""A job whose epochs run in tasks that stay on executors, one of which is killed once in between.

job.py FOLDER: the tasks note there which executors they ran in, and that one was killed.
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
from timely_spark.runtime.query import rounds, staying
from timely_spark.runtime.session import slots

EPOCHS = 24


def main(folder: str) -> None:
    """Run it; prints what was reached, and how long an epoch took, which nobody asserts."""
    staying.BEGIN = rounds.REPLACED = 200.0  # however long the machine takes to start an executor

    def noted(batch: pa.Table) -> pa.Table:
        from pyspark import BarrierTaskContext, TaskContext

        if isinstance(TaskContext.get(), BarrierTaskContext):
            executor = executor_of(os.getpid())
            Path(folder, f"executor-{executor}").touch()
            killed = Path(folder, "killed")
            if EPOCHS // 2 in batch["node"].to_pylist() and not killed.exists():
                killed.touch()
                os.kill(executor, signal.SIGKILL)
                os.kill(os.getpid(), signal.SIGKILL)  # which would run on for a moment
        return batch

    spark = ts.configure(SparkSession.builder.appName("staying")).getOrCreate()
    until = time.monotonic() + 200
    while slots(spark) < 3 and time.monotonic() < until:
        time.sleep(0.1)
    flow = ts.Dataflow("path")
    edges = flow.input("edges", "src long, dst long")
    roots = flow.input("roots", "node long")

    def hop(reached: ts.Stream) -> ts.Stream:
        links = reached.scope.enter(edges)
        targets = reached.join(links, left=["node"], right=["src"], name="hop").select(node="dst")
        return targets.map_batches(noted, "node long").concat(reached).distinct(name="near")

    roots.loop(hop, name="hops").capture("out")
    took = []
    with flow.start(spark, checkpoint=f"{folder}/checkpoint", workers=4, resident=True) as query:
        roots.send([0])
        query.wait_for()
        for number in range(EPOCHS):
            began = time.perf_counter()
            edges.send([(number, number + 1)])
            query.wait_for()
            took.append(1000 * (time.perf_counter() - began))
        reached = sorted(node for rows in query.captured("out").rows().values() for (node,) in rows)
        print("reached all", reached == list(range(EPOCHS + 1)))
        print("epochs", query.last_progress.epoch + 1)
        print("micro-batches", len(list(Path(folder, "checkpoint", "offsets").glob("[0-9]*"))))
        print("residency", query.status["residency"])
        print(f"median {statistics.median(took):.1f} ms", flush=True)
    spark.stop()


def executor_of(pid: int) -> int:
    """The executor's JVM to which a Python worker belongs."""
    while b"CoarseGrainedExecutorBackend" not in Path(f"/proc/{pid}/cmdline").read_bytes():
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[1])
    return pid


if __name__ == "__main__":
    main(*sys.argv[1:])
