"""Latency from the arrival of a file to the Delta commit of its epoch, and what grows meanwhile.

Every half second a small Parquet file of words appears by rename. Ours counts words (`source`, one exchange,
`group_by().aggregate()`) into `to_delta`; the baseline is the same count as a plain streaming query in update
mode, whose foreachBatch appends to Delta with the same guarantee (txnAppId, txnVersion). One after the other,
in one session, with the same confs. A file's latency is from its rename to the mtime of the `_delta_log` file
that commits the epoch which holds it (found by that file's txn version, and by the largest file number that
the table shows for that epoch). Ours first runs through more epochs than anything is kept for (100 batches),
each as soon as the one before is committed: the files kept for a rollback have reached their steady number.

"growth" is the slope of the second half, in percent of the level there per minute: what is flat is near 0.
The table itself grows with every epoch; so, for ten minutes, does the file source's own log of files seen.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

import timely_spark as ts
from benchmarks import harness
from benchmarks.harness import BASELINE, OURS, Report, quantile
from benchmarks.resources import Resources, files
from timely_spark.runtime.session import DELTA, FILE_MANAGER, PARTITIONS, applied

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

EVERY = 0.5
WORDS = 1000
PER_FILE = 200
SCHEMA = "word string, file long"
#: Batches for which everything is kept.
KEPT = 100
#: Spark deletes old state in bursts, by default once a minute: too seldom to see it at rest in two.
MAINTAINED = {"spark.sql.streaming.stateStore.maintenanceInterval": "10s"}
QUANTILES = {"median": 0.5, "p95": 0.95, "p99": 0.99}
MEMORY = ("driver", "JVM", "Python workers")
FILES = ("our log", "Spark's log and state")


@dataclass
class Feed:
    """A folder into which numbered files of words appear."""

    folder: Path
    seed: int = 7
    #: number -> when it appeared
    arrived: dict[int, float] = field(default_factory=dict)

    def send(self) -> int:
        number = len(self.arrived)
        random_ = random.Random(self.seed + number)
        words = [f"word{int(WORDS * random_.random() ** 2)}" for _ in range(PER_FILE)]
        columns = [pa.array(words), pa.array([number] * PER_FILE, pa.int64())]
        temporary = self.folder / f".{number}.tmp"  # Spark does not see what begins with a dot
        pq.write_table(pa.table(columns, names=["word", "file"]), temporary)
        temporary.rename(self.folder / f"{number:06}.parquet")
        self.arrived[number] = time.time()
        return number


class Side:
    """A query that counts words into a table, fed by a folder of its own."""

    def __init__(self, session: SparkSession) -> None:
        self.session, self.root = session, harness.folder()
        self.table, self.checkpoint = self.root / "table", self.root / "checkpoint"
        (self.root / "in").mkdir()
        self.feed = Feed(self.root / "in")
        #: epoch -> when it was committed
        self.commits: dict[int, float] = {}
        self._version = 0
        self.query = self.start(session.readStream.schema(SCHEMA).parquet(str(self.root / "in")))

    def start(self, words: DataFrame) -> Any:
        raise NotImplementedError

    def look(self) -> int:
        """Notes new commits of epochs; how many there are."""
        while (entry := self.table / "_delta_log" / f"{self._version:020}.json").exists():
            for line in entry.read_text(encoding="utf-8").splitlines():
                if "txn" in (action := json.loads(line)):
                    self.commits[action["txn"]["version"]] = entry.stat().st_mtime
            self._version += 1
        return len(self.commits)

    def warm(self, epochs: int) -> None:
        """Runs so many epochs, one file each, back to back."""
        for number in range(1, epochs + 1):
            self.feed.send()
            limit = time.monotonic() + 120
            while self.look() < number:
                if time.monotonic() > limit or not self.query.isActive:
                    msg = f"epoch {number} was not committed: {self.query.exception()}"
                    raise TimeoutError(msg)
                time.sleep(0.01)

    def steady(self, seconds: float) -> Resources:
        """A file each half second; the resources taken meanwhile."""
        first = len(self.feed.arrived)
        counts: dict[str, Callable[[], float]] = {
            "our log": lambda: files(self.checkpoint / "timely"),
            "Spark's log and state": lambda: files(
                *(self.checkpoint / f for f in ("offsets", "commits", "state"))
            ),
            "source's log": lambda: files(self.checkpoint / "sources"),
            "table": lambda: files(self.table),
        }
        with Resources(counts) as resources:
            until = time.monotonic() + seconds
            due = time.monotonic()
            while time.monotonic() < until:
                self.feed.send()
                due += EVERY
                time.sleep(max(0.0, due - time.monotonic()))
        self.measured = range(first, len(self.feed.arrived))
        time.sleep(5 * EVERY)
        self.query.processAllAvailable()
        self.query.stop()
        self.look()
        return resources

    def latencies(self) -> list[tuple[float, float]]:
        """Of each measured file: (seconds since the first, seconds until its epoch was committed)."""
        newest = self.session.read.format("delta").load(str(self.table)).groupBy("epoch").agg({"file": "max"})
        last = sorted((row[1], row[0]) for row in newest.collect())
        points, at = [], 0
        for number in self.measured:
            while last[at][0] < number:
                at += 1
            arrived = self.feed.arrived[number]
            since = arrived - self.feed.arrived[self.measured[0]]
            points.append((since, self.commits[last[at][1]] - arrived))
        return points


class Ours(Side):
    def start(self, words: DataFrame) -> Any:
        flow = ts.Dataflow("words")
        counted = flow.source("words", words).group_by("word").aggregate(count="count", file=("max", "file"))
        counted.to_delta(str(self.table), name="counts")
        return flow.start(self.session, checkpoint=str(self.checkpoint), workers=2, partitions=2)


class Plain(Side):
    def start(self, words: DataFrame) -> Any:
        from pyspark.sql import functions as f

        counted = words.groupBy("word").agg(f.count("*").alias("count"), f.max("file").alias("file"))
        with applied(self.session, {PARTITIONS: "2", **FILE_MANAGER, **DELTA}):
            writer: DataStreamWriter = counted.writeStream.outputMode("update").foreachBatch(self.append)
            return writer.option("checkpointLocation", str(self.checkpoint)).start()

    def append(self, frame: DataFrame, batch: int) -> None:
        from pyspark.sql import functions as f

        writer = frame.select(f.lit(batch).cast("long").alias("epoch"), "word", "count", "file").write
        writer = writer.format("delta").mode("append").option("txnAppId", str(self.root))
        writer.option("txnVersion", batch).save(str(self.table))


def run(quick: bool) -> Report:
    """Measure, and write the report."""
    report = Report("latency", "From arrival to the Delta commit, and what grows", quick=quick)
    session = harness.spark("latency", delta=True, confs=MAINTAINED)
    seconds = (6.0, 5.0) if quick else (120.0, 60.0)
    ours = Ours(session)
    ours.warm(2 if quick else KEPT + 10)
    taken = ours.steady(seconds[0])
    plain = Plain(session)
    plain.warm(2 if quick else 20)
    plain_taken = plain.steady(seconds[1])
    own, baseline = ours.latencies(), plain.latencies()
    for name, q in QUANTILES.items():
        report.add(
            f"latency, {name}",
            ours=1000 * quantile([ms for _, ms in own], q),
            baseline=1000 * quantile([ms for _, ms in baseline], q),
            against="plain streaming query",
        )
    for who, points, side in (("ours", own, ours), ("the plain query", baseline, plain)):
        report.note(f"{who}: {len(points)} files in {_epochs(side)} epochs.")
    _growth(report, taken, plain_taken, ours)
    report.plot("latency", lambda axes: _draw_latency(axes, own, baseline))
    report.plot("growth", lambda axes: _draw_growth(axes, taken), size=(7, 7))
    report.write()
    session.stop()
    return report


def _epochs(side: Side) -> int:
    began = side.feed.arrived[side.measured[0]]
    return sum(at >= began for at in side.commits.values())


def _growth(report: Report, taken: Resources, plain: Resources, ours: Side) -> None:
    for name in (*MEMORY, *FILES):
        growth, level = taken.growth(name)
        baseline, their_level = plain.growth(name)
        unit = "MB" if name in MEMORY else "files"
        percent = 100 * growth / level if level else 0.0
        of_theirs = "" if not their_level else f"; plain query: {baseline:+.1f} at {their_level:.0f}"
        report.add(
            f"growth of {name}", ours=percent, unit="%/min", aim="" if report.quick else "<=3",
            note=f"{growth:+.1f} {unit}/min at {level:.0f} {unit}{of_theirs}",
        )  # fmt: skip
    for name in ("source's log", "table"):
        (growth, _), (baseline, _) = taken.growth(name), plain.growth(name)
        report.note(f"Files of the {name}: {growth:+.0f} per minute, the plain query's {baseline:+.0f}.")
    if report.quick:
        report.note(
            f"{len(ours.commits)} epochs are too few for growth to mean anything; the full run tells."
        )


def _draw_latency(axes: Any, ours: list[tuple[float, float]], baseline: list[tuple[float, float]]) -> None:
    for name, points, colour in (("plain query", baseline, BASELINE), ("ours", ours, OURS)):
        axes.plot(*zip(*points, strict=True), ".", color=colour, label=name, markersize=4)
    axes.set_xlabel("arrival, seconds")
    axes.set_ylabel("seconds until the commit")
    axes.set_ylim(bottom=0)
    axes.legend()


def _draw_growth(axes: Any, taken: Resources) -> None:
    figure = axes.figure
    figure.clear()
    upper, lower = figure.subplots(2, 1, sharex=True)
    for name in MEMORY:
        upper.plot(*zip(*taken.series(name), strict=True), label=name)
    for name in (*FILES, "source's log", "table"):
        lower.plot(*zip(*taken.series(name), strict=True), label=name)
    upper.set_ylabel("resident MB")
    lower.set_ylabel("files")
    lower.set_xlabel("seconds")
    for one in (upper, lower):
        one.set_ylim(bottom=0)
        one.legend(fontsize=8)
