"""Waits of a person: seconds from a start to a table, from `kill -9` to the next epoch, to a first result.

Each side of a turn is a process of its own, with a session of `ts.configure` after `prepare --delta`. A row
is the median of the turns, which begin with either side in turn. A program counts the words of Parquet files
into a Delta table. Plain Spark does the same by `groupBy().count()` in complete mode. Both sessions have
Spark's UI. The clock begins when the process does. It ends when another process can read the row, or when the
line is printed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

import timely_spark as ts
from benchmarks import harness
from benchmarks.harness import ROOT, Report

OURS, SPARK = "ours", "spark"
UI = {"spark.ui.enabled": "true"}
#: Seconds between two looks at a table, those after which a wait has failed, and looks at a page.
EVERY, MOST, LOOKS = 0.05, 120.0, 5
#: By case, what plain Spark does instead; empty if it has nothing of the kind.
CASES = {
    "start of a job to its first table": "`groupBy().count()` into Delta",
    "`kill -9` and a restart to the next epoch": "`groupBy().count()` into Delta",
    "first result in a notebook": "`groupBy().count()` into memory",
    "`query.stop()`": "`StreamingQuery.stop()`",
    "a page of a running query": "its page in Spark's UI",
    "`python -m timely_spark status`": "a session that reads `statestore`",
    "`python -m timely_spark ui` to its first page": "",
}


# -- what a process does -------------------------------------------------------------------------------------


def job(side: str, folder: Path) -> None:
    """Keep the table; print the address of the query's page, and go on until the process is ended."""
    session = harness.spark("waits", delta=True, confs=UI)
    if side == OURS:
        flow = ts.Dataflow("waits")
        words = flow.files("words", str(folder / "in"), schema="word long")
        words.group_by("word").count("count").to_delta(str(folder / "table"), keys="word", name="table")
        query = flow.start(session, checkpoint=str(folder / "checkpoint"), workers=2)
        print(query.ui(), flush=True)
        query.await_termination()
    else:
        counted = session.readStream.schema("word long").parquet(str(folder / "in")).groupBy("word").count()
        written = counted.writeStream.outputMode("complete").format("delta")
        plain = written.option("checkpointLocation", str(folder / "checkpoint")).start(str(folder / "table"))
        print(f"{session.sparkContext.uiWebUrl}/StreamingQuery/statistics/?id={plain.runId}", flush=True)
        plain.awaitTermination()


def notebook(side: str, folder: Path) -> None:
    """Print a first result, and then the seconds of a stop."""
    session = harness.spark("waits", confs=UI)
    if side == OURS:
        flow = ts.Dataflow("waits")
        words = flow.files("words", str(folder / "in"), schema="word long")
        words.group_by("word").count("count").capture("counts")
        query = flow.start(session, workers=2)
        harness.answered(query)
        print(query.captured("counts").rows(), flush=True)
        stop = query.stop
    else:
        counted = session.readStream.schema("word long").parquet(str(folder / "in")).groupBy("word").count()
        plain = counted.writeStream.outputMode("complete").format("memory").queryName("counts").start()
        plain.processAllAvailable()
        print(session.table("counts").collect(), flush=True)
        stop = plain.stop
    time.sleep(1)  # a person looks at it: no batch runs
    began = time.perf_counter()
    stop()
    print(time.perf_counter() - began, flush=True)


def state(side: str, folder: Path) -> None:
    """Print what plain Spark shows of a checkpoint."""
    del side
    session = harness.spark("waits")
    assert session.streams.active == []  # Spark begins what reads states when it is asked for its queries
    session.read.format("statestore").load(str(folder / "checkpoint")).show()


# -- the clock -----------------------------------------------------------------------------------------------


@contextmanager
def process(*command: str) -> Iterator[subprocess.Popen[str]]:
    """A Python process of its own group, which `kill -9` ends."""
    running = subprocess.Popen(
        [sys.executable, "-m", *command],
        cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    try:
        yield running
    finally:
        with suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGKILL)
        running.wait()
        assert running.stdout is not None
        running.stdout.close()


def program(part: Callable[[str, Path], None], side: str, folder: Path) -> Any:
    """A part of this module, as a process."""
    return process("benchmarks.waits", part.__name__, side, str(folder))


def line(running: subprocess.Popen[str]) -> str:
    """The next line that a process prints."""
    assert running.stdout is not None
    text = running.stdout.readline().strip()
    assert text, f"{running.args} has ended without a line"
    return text


def arrives(folder: Path, word: int) -> None:
    """A file with one word, there at once."""
    (folder / "in").mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"word": [word]}), folder / "new")
    (folder / "new").rename(folder / "in" / f"{word}.parquet")


def until_in_table(folder: Path, word: int) -> None:
    """Wait until a reader of the table sees a word."""
    limit = time.monotonic() + MOST
    while time.monotonic() < limit:
        with suppress(DeltaError):  # there is no table yet
            if word in DeltaTable(folder / "table").to_pyarrow_table(columns=["word"])["word"].to_pylist():
                return
        time.sleep(EVERY)
    msg = f"{word} was not in the table within {MOST:g} s"
    raise TimeoutError(msg)


def page(url: str) -> float:
    """The seconds of one load of a page."""
    began = time.perf_counter()
    with urllib.request.urlopen(url, timeout=MOST) as answer:
        answer.read()
    return time.perf_counter() - began


def waits(side: str) -> dict[str, float]:
    """The seconds of each wait, on one side."""
    folder, seconds, cases = harness.folder(), dict[str, float](), iter(CASES)
    for word in (1, 2):
        arrives(folder, word)
        began = time.perf_counter()
        with program(job, side, folder) as running:
            until_in_table(folder, word)
            seconds[next(cases)] = time.perf_counter() - began
            if word == 2:
                url = line(running)
                looks = harness.median(page(url) for _ in range(LOOKS))

    began = time.perf_counter()
    with program(notebook, side, folder) as running:
        line(running)
        seconds[next(cases)] = time.perf_counter() - began
        seconds[next(cases)] = float(line(running))
    seconds[next(cases)] = looks

    checkpoint = str(folder / "checkpoint")
    began = time.perf_counter()
    with (
        process("timely_spark", "status", checkpoint) if side == OURS else program(state, side, folder)
    ) as running:
        output, _ = running.communicate(timeout=MOST)
    assert running.returncode == 0, output
    seconds[next(cases)] = time.perf_counter() - began

    if side == OURS:
        began = time.perf_counter()
        with process("timely_spark", "ui", checkpoint, "--port", "0") as running:
            page(line(running).split()[0])
            seconds[next(cases)] = time.perf_counter() - began
    return seconds


def run(quick: bool) -> Report:
    report = Report("waits", "Waits of a person", quick=quick)
    for name in ("SPARK_HOME", "SPARK_SUBMIT_OPTS"):
        os.environ.pop(name, None)
    os.environ["XDG_DATA_HOME"] = str(harness.folder())
    command = [sys.executable, "-m", "timely_spark", "prepare", "--delta"]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE)
    orders = ((OURS, SPARK), (SPARK, OURS), (OURS, SPARK))
    turns = [{side: waits(side) for side in order} for order in orders[: 1 if quick else None]]
    for case, against in CASES.items():
        baseline = harness.median(turn[SPARK][case] for turn in turns) if against else None
        ours = harness.median(turn[OURS][case] for turn in turns)
        report.add(case, ours=ours, baseline=baseline, against=against, unit="s")
    report.write()
    return report


if __name__ == "__main__":
    {part.__name__: part for part in (job, notebook, state)}[sys.argv[1]](sys.argv[2], Path(sys.argv[3]))
