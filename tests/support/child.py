"""Runs flows to their ends, each on its own checkpoint, in a session that somebody may kill.

    python -m tests.support.child HOME...

A home has `run.json` (which scenario, workers, rounds per batch, master), `input/`, and from then on
`checkpoint/`. A run that was killed is started again with the same command.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import timely_spark as ts
from tests.support import points
from tests.support.flows import SCENARIOS, Scenario
from tests.support.sessions import SHORT
from timely_spark.coordinator import Bound
from timely_spark.errors import Where
from timely_spark.runtime import start
from timely_spark.runtime.query import rounds
from timely_spark.runtime.sources.folder import FileSource, Folder

CONFS = SHORT | {
    "spark.sql.streaming.pollingDelay": "5ms",
    "spark.driver.memory": "700m",
    "spark.executor.memory": "512m",
}
#: of tests/conftest.py, for the executors, too
JAVA = os.environ.get("SPARK_SUBMIT_OPTS", "")


def start_session(master: str, home: Path, *, delta: bool) -> SparkSession:
    """A tuned session that leaves its files with the run."""
    confs = CONFS | {
        "spark.sql.warehouse.dir": str(home / "warehouse"),
        "spark.local.dir": os.environ["TMPDIR"],
        "spark.driver.extraJavaOptions": f"{JAVA} -Djava.io.tmpdir={os.environ['TMPDIR']}",
        "spark.executor.extraJavaOptions": f"{JAVA} -Djava.io.tmpdir={os.environ['TMPDIR']}",
    }
    builder = SparkSession.builder.master(master).appName("chaos").config(map=confs)
    return ts.configure(builder, delta=delta).getOrCreate()


def run(spark: SparkSession, home: Path, params: dict[str, Any]) -> None:
    """Starts the flow, or resumes it, and waits for its end."""
    scenario = SCENARIOS[params["scenario"]]
    rounds.SMALL = Bound(exchanged=-1) if params["parallel"] else Bound()
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


def main() -> None:
    """All the runs, in one session."""
    homes = [Path(home) for home in sys.argv[1:]]
    params = [json.loads((home / "run.json").read_text()) for home in homes]
    points.ROLE = "driver"
    delta = any(SCENARIOS[each["scenario"]].delta for each in params)
    spark = start_session(params[0]["master"], homes[0], delta=delta)
    for home, each in zip(homes, params, strict=True):
        run(spark, home, each)
    jvm = spark.sparkContext._gateway.proc
    spark.stop()
    jvm.stdin.close()  # it ends
    jvm.wait()


if __name__ == "__main__":
    main()
