"""Moves: workers leave a process that stays slow (Naiad section 3.5), where tasks stay on a cluster.

Two tasks host two workers. From some epoch on, one of their processes is stopped for 80 of each 100 ms.
`ours` is an epoch after the worker has left it; the baseline is one of the same flow whose workers stay.
Each epoch is the same work, 20 ms of a core for each worker, and all counts are checked.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

import timely_spark as ts
from benchmarks import harness
from benchmarks.harness import Report, median, quantile
from tests.support.standalone import Cluster
from timely_spark.coordinator import placement

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Seconds of a core for each worker and epoch; that the process runs, and is stopped.
WORK, RUNS, STOPPED = 0.02, 0.02, 0.08
#: Records of an epoch.
RECORDS = 20


def working(_: Any, batch: pa.Table, *, folder: str) -> pa.Table:
    """Work for so long on a core, in a process that it notes."""
    Path(folder, str(os.getpid())).touch()
    began = time.thread_time()
    while time.thread_time() - began < WORK:
        sum(range(1000))
    return batch


@contextmanager
def often_stopped(process: int) -> Iterator[None]:
    """While the body runs, a process is stopped again and again."""
    ended = threading.Event()

    def pulses() -> None:
        while not ended.wait(RUNS):
            os.kill(process, signal.SIGSTOP)
            ended.wait(STOPPED)
            os.kill(process, signal.SIGCONT)

    thread = threading.Thread(target=pulses)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def measured(session: SparkSession, epochs: int, *, moves: bool) -> tuple[list[float], list[float], int]:
    """Milliseconds of epochs: of undisturbed ones, and of the last ones while a process is stopped.

    Returns:
        These, and the number of epochs until a worker has left the process.
    """
    noted, took, before = harness.folder(), list[float](), 0
    placement.SLOW = 2.0 if moves else float("inf")
    flow = ts.Dataflow("moves")
    records = flow.input("x", "key long").unary(partial(working, folder=str(noted)), "key long", by="key")
    records.group_by("key").count().capture("out")
    with flow.start(session, checkpoint=str(harness.folder()), workers=2, resident=True) as query:

        def run(number: int) -> None:
            for _ in range(number):
                began = time.perf_counter()
                flow.handle("x").send(pa.table({"key": range(RECORDS)}))
                harness.answered(query, "out")
                took.append(1000 * (time.perf_counter() - began))

        run(1)  # a micro-batch
        for path in noted.iterdir():
            path.unlink()
        run(epochs)
        undisturbed = took[-epochs // 2 :]
        slow = max(int(path.name) for path in noted.iterdir())
        with often_stopped(slow):
            while moves and not query.status["slow"]:
                assert "tasks of Spark's that stay" in query.status["residency"], query.status["residency"]
                run(1)
            before = len(took) - 1 - epochs
            run(epochs)
        answers = query.captured("out").rows()
    assert [rows for _, rows in sorted(answers.items())] == [
        [(key, n + 1) for key in range(RECORDS)] for n in range(len(took))
    ]
    return undisturbed, took[-epochs // 2 :], before


def run(quick: bool) -> Report:
    """Measure, and write the report."""
    report, epochs = Report("moves", "Moves: workers leave a slow process", quick=quick), 10 if quick else 20
    with Cluster(harness.folder() / "cluster", workers=3) as cluster:
        confs = {
            "spark.master": cluster.url,
            "spark.executor.memory": "512m",
            "spark.executorEnv.PYTHONPATH": str(harness.ROOT),
            "spark.sql.shuffle.partitions": "2",
        }
        session = harness.spark("moves", confs=confs)
        try:
            (even, moved, before), (_, stayed, _) = (
                measured(session, epochs, moves=moves) for moves in (True, False)
            )
        finally:
            session.stop()
    case = "an epoch, a process is stopped four fifths of the time"
    for name, q in (("p50", 0.5), ("p95", 0.95)):
        report.add(
            f"{case}: {name}",
            ours=quantile(moved, q),
            baseline=quantile(stayed, q),
            against="workers do not move",
            note=f"left after {before} epochs",
        )
    report.note(f"Undisturbed, in two processes, an epoch takes {median(even):.0f} ms.")
    report.write()
    return report
