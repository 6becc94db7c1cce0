"""Runs flows to their ends, each on its own checkpoint, in a session that somebody may kill.

A home has `run.json` (which scenario, workers, rounds per batch, master), `input/`, and from then on
`checkpoint/`. A run that was killed is started again with the same homes. The process is a fork of one that
has imported all this (`tests.support.campaign`), as are Spark's Python processes, which are of its session.
"""

from __future__ import annotations

import json
import os
import tempfile
import threading
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import timely_spark as ts
from tests.support import points
from tests.support.flows import SCENARIOS, Scenario
from tests.support.forks import forked_by
from tests.support.sessions import SHORT
from timely_spark.coordinator import RoundLimits
from timely_spark.errors import Where
from timely_spark.runtime import start
from timely_spark.runtime.query import rounds
from timely_spark.runtime.sources.folder import FileSource, Folder

CONFS = SHORT | {
    "spark.sql.streaming.pollingDelay": "5ms",
    "spark.driver.memory": "700m",
    "spark.executor.memory": "512m",
}
#: Files of a home, by which the campaign knows what has become of a start.
ENDED, FAILED = "ended", "failed"


def start_session(master: str, home: Path, *, delta: bool) -> SparkSession:
    """A tuned session that leaves its files with the run."""
    java = f"{os.environ['SPARK_SUBMIT_OPTS']} -Djava.io.tmpdir={os.environ['TMPDIR']}"
    confs = CONFS | {
        "spark.sql.warehouse.dir": str(home / "warehouse"),
        "spark.local.dir": os.environ["TMPDIR"],
        "spark.driver.extraJavaOptions": java,
        "spark.executor.extraJavaOptions": java,
    }
    builder = SparkSession.builder.master(master).appName("chaos").config(map=confs)
    return ts.configure(builder, delta=delta).getOrCreate()


def run(spark: SparkSession, home: Path, params: dict[str, Any]) -> None:
    """Starts the flow, or resumes it, and waits for its end."""
    scenario = SCENARIOS[params["scenario"]]
    if scenario.stays and params["master"].startswith("local-cluster"):
        for module in (start, rounds):  # as if its executors were on other machines: tasks host the workers
            module.on_one_machine = lambda _: False  # type: ignore[attr-defined]
    flow = scenario.build(home)
    frames: dict[str, Any] = {
        source: spark.readStream.schema(columns)
        .option("maxFilesPerTrigger", 1)
        .parquet(str(home / "input" / source))
        for source, columns in scenario.columns().items()
    }
    if frames:  # one of the sources is read as files
        source = next(iter(frames))
        folder = Folder.of(source, Where(__file__, 1), home / "input" / source, "parquet", None)
        frames[source] = FileSource(folder, files_per_epoch=1)
    done = points.watch(home)
    query = flow.start(
        spark,
        checkpoint=str(home / "checkpoint"),
        workers=params["workers"],
        rounds_per_batch=None if scenario.stays else params["rounds"],
        resident=True if scenario.stays else None,
        partitions=params["partitions"],
        sources=frames,
        trigger="available_now" if scenario.by_batch else None,
    )
    if scenario.by_batch:
        query.await_termination()
    else:
        say(flow, query, scenario)
    if (error := query.exception()) is not None:
        raise error
    done.set()


def say(flow: ts.Dataflow, query: Any, scenario: Scenario) -> None:
    """Goes on with the script where its durable entries end."""
    durable = sum(flow.handle(name).sent for name in {name for name, *_ in scenario.script})
    for name, verb, argument in scenario.script[durable:]:
        getattr(flow.handle(name), verb)(argument)
        if scenario.stays and verb == "advance_to":
            query.wait_for("told", epoch=argument - 1)
        else:
            time.sleep(0.05)  # so that not all of it joins one batch
    query.process_all_available()
    query.stop()


def run_all(spark: SparkSession, homes: Sequence[Path]) -> None:
    """Run flows one after the other; of one that fails the reason is written down."""
    for home in homes:
        try:
            run(spark, home, json.loads((home / "run.json").read_text()))
        except Exception:  # noqa: BLE001, PERF203 - the campaign reads it
            (home / FAILED).write_text(traceback.format_exc())
        else:
            (home / ENDED).touch()


def main(homes: Sequence[Path], local: Path, log: Path) -> None:
    """Run flows in one session of Spark and of processes: scenarios side by side, a scenario's in a row.

    It prints into a file, and has a folder of its own for what is temporary.
    """
    os.setsid()
    printed = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(printed, stream)
    os.chdir(local)
    tempfile.tempdir = os.environ["TMPDIR"] = str(local)
    params = [json.loads((home / "run.json").read_text()) for home in homes]
    master, parallel = params[0]["master"], params[0]["parallel"]
    if not master.startswith("local-cluster"):  # where executors are looked for by their Python processes
        os.environ["PYSPARK_PYTHON"] = str(forked_by(local))
    points.ROLE = "driver"
    rounds.SMALL = RoundLimits(exchanged=-1) if parallel else RoundLimits()
    delta = any(SCENARIOS[each["scenario"]].delta for each in params)
    spark = start_session(master, homes[0], delta=delta)
    rows: dict[str, list[Path]] = {}
    for home, each in zip(homes, params, strict=True):
        rows.setdefault(each["scenario"], []).append(home)
    threads = [threading.Thread(target=run_all, args=(spark, row)) for row in rows.values()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    jvm = spark.sparkContext._gateway.proc
    spark.stop()
    jvm.stdin.close()  # it ends
    jvm.wait()
