"""A cold first epoch: where the time of a new session goes, each case in a process and JVM of its own.

Parts: the session; `start()`; the first epoch; the tenth. Beside seconds stand those of processor time, by
the process that took it: with two cores, the seconds are at least half of their sum. Cases: counts of a few
words, the same by `groupBy().count()`, and components of a random graph, loaded at once. Each runs as Spark
is installed, and again after `python -m timely_spark prepare`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import timely_spark as ts
from benchmarks import harness
from benchmarks.harness import ROOT, Report
from benchmarks.resources import processors
from benchmarks.scaling import random_edges

#: by case and part: seconds, and processor time by process
Parts = dict[str, dict[str, float]]


def measured(case: str, records: int) -> Parts:
    """The parts of one case, in this fresh process."""
    parts: Parts = {}
    last = [time.perf_counter(), processors()]

    def end(part: str) -> None:
        now = time.perf_counter(), processors()
        by = {name: seconds - last[1].get(name, 0.0) for name, seconds in now[1].items()}
        parts[part] = {"seconds": now[0] - last[0], **by}
        last[:] = now

    session = harness.spark("cold")
    end("session")
    run = {"counts": counts, "groupBy().count()": native, "components": components}[case]
    epoch, stop = run(session, records)
    end("start()")
    epoch()
    end("first epoch")
    for _ in range(8):
        epoch()
    end("eight more")
    epoch()
    end("tenth epoch")
    stop()
    session.stop()
    return parts


Running = tuple[Callable[[], object], Callable[[], object]]


def counts(session: Any, records: int) -> Running:
    """Counts of a few words."""
    flow = ts.Dataflow("counts")
    words = flow.input("words", "word long")
    words.group_by("word").count("n").capture("out")
    query = flow.start(session, workers=2)

    def epoch() -> None:
        words.send([(1,), (2,)])
        harness.answered(query)

    return epoch, query.stop


def native(session: Any, records: int) -> Running:
    """The same by Spark alone."""
    folder = harness.folder() / "words"
    folder.mkdir()
    words = session.readStream.schema("word long").parquet(str(folder))
    counted = words.groupBy("word").count().writeStream.outputMode("update").format("noop")
    query = counted.option("checkpointLocation", str(harness.folder() / "checkpoint")).start()
    number = iter(range(1000))

    def epoch() -> None:
        pq.write_table(pa.table({"word": [1, 2]}), folder / f"{next(number)}.parquet")
        query.processAllAvailable()

    return epoch, query.stop


def components(session: Any, records: int) -> Running:
    """Components of a graph, loaded at once, and then of an edge more."""
    flow = ts.Dataflow("components")
    edges = flow.input("edges", "src long, dst long")
    ts.graphs.connected_components(edges.collection()).changes().capture("out")
    query = flow.start(session, workers=2)
    tables = iter(
        [random_edges(records // 5, records), *(random_edges(records // 5, 1, seed=n) for n in range(2, 20))]
    )

    def epoch() -> None:
        edges.send(next(tables))
        harness.answered(query)

    return epoch, query.stop


def run(quick: bool) -> Report:
    report = Report("cold", "A cold first epoch: where the time of a new session goes", quick=quick)
    records = 50_000 if quick else 5_000_000
    environment = {
        name: at for name, at in os.environ.items() if name not in ("SPARK_HOME", "SPARK_SUBMIT_OPTS")
    }
    for prepared in (False, True):
        environment["XDG_DATA_HOME"] = str(harness.folder() / f"prepared {prepared}")
        if prepared:
            began, command = time.perf_counter(), [sys.executable, "-m", "timely_spark", "prepare"]
            subprocess.run(command, cwd=ROOT, env=environment, check=True, stdout=subprocess.PIPE)
            report.add("prepare, once", ours=time.perf_counter() - began, unit="s")
        for case in ("counts", "groupBy().count()", "components"):
            command = [sys.executable, "-m", "benchmarks.cold", case, str(records)]
            out = subprocess.run(
                command, cwd=ROOT, env=environment, check=True, stdout=subprocess.PIPE, text=True
            ).stdout
            parts: Parts = json.loads(out.splitlines()[-1])
            name = f"{case} of {records:,} edges" if case == "components" else case
            _rows(report, f"{name}, prepared" if prepared else name, parts)
    report.write()
    return report


def _rows(report: Report, name: str, parts: Parts) -> None:
    for part, took in parts.items():
        cpu = ", ".join(f"{who} {took[who]:.1f}" for who in took if who != "seconds")
        if part != "eight more":
            report.add(f"{name}: {part}", ours=took["seconds"], unit="s", note=f"processor time: {cpu}")
    first = parts["start()"]["seconds"] + parts["first epoch"]["seconds"]
    aim = "" if name.startswith("groupBy") else "<=5"
    report.add(f"{name}: start and first epoch", ours=first, unit="s", aim=aim)


if __name__ == "__main__":
    print(json.dumps(measured(sys.argv[1], int(sys.argv[2]))))
