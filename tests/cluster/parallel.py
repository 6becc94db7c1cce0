"""A job whose loop runs in parallel tasks of two executors, one of which is killed once in the middle.

job.py FOLDER: the tasks note there which executors they ran in, and that one was killed.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

import timely_spark as ts
from timely_spark.coordinator import Bound
from timely_spark.runtime.query import rounds
from timely_spark.runtime.session import slots

LENGTH = 60


def main(folder: str) -> None:
    rounds.SMALL = Bound(exchanged=-1)  # every exchange counts as large
    rounds.REPLACED = 200.0  # however long the machine takes to start an executor

    def noted(batch: pa.Table) -> pa.Table:
        from pyspark import BarrierTaskContext, TaskContext

        if isinstance(TaskContext.get(), BarrierTaskContext):
            executor = executor_of(os.getpid())
            Path(folder, f"executor-{executor}").touch()
            killed = Path(folder, "killed")
            if not killed.exists() and pc.max(batch["node"]).as_py() == LENGTH // 2:
                killed.touch()
                os.kill(executor, signal.SIGKILL)
        return batch

    spark = ts.configure(SparkSession.builder.appName("parallel")).getOrCreate()
    until = time.monotonic() + 200
    while slots(spark) < 2 and time.monotonic() < until:
        time.sleep(0.1)
    flow = ts.Dataflow("path")
    edges = flow.input("edges", "src long, dst long")
    roots = flow.input("roots", "node long")

    def hop(reached: ts.Stream) -> ts.Stream:
        links = reached.scope.enter(edges)
        targets = reached.join(links, left=["node"], right=["src"], name="hop").select(node="dst")
        return targets.map_batches(noted, "node long").concat(reached).distinct(name="near")

    roots.loop(hop, name="hops").capture("out")
    with flow.start(spark, checkpoint=f"{folder}/checkpoint", workers=4) as query:
        edges.send([(i, i + 1) for i in range(2 * LENGTH)])
        roots.send([0])
        query.wait_for()
        roots.send([LENGTH * 2])
        query.wait_for()
        reached = sorted(node for rows in query.captured("out").rows().values() for (node,) in rows)
        print("reached all", reached == list(range(2 * LENGTH + 1)))
        print("rounds", query.rounds, "batches", query.last_progress.epoch + 1, flush=True)
    spark.stop()


def executor_of(pid: int) -> int:
    """The executor's JVM to which a Python worker belongs."""
    while b"CoarseGrainedExecutorBackend" not in Path(f"/proc/{pid}/cmdline").read_bytes():
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[1])
    return pid


if __name__ == "__main__":
    main(*sys.argv[1:])
