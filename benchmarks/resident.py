"""Epochs inside a micro-batch that stays, beside one micro-batch for each: from a send to the subscriber.

Breadth-first search of a random graph, kept by a handle of edges: one insert or delete at a time, then 1,000
of each. The same flow, session and changes, resident and not; each change waits for its answer. Resident, the
changes go on over several micro-batches, so that the gaps between them are in the figures. Then: from the
rename of a file to the Delta commit of its epoch (`commit_every=0`), and small epochs one after the other.
"""

from __future__ import annotations

import queue
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import timely_spark as ts
from benchmarks import harness
from benchmarks.harness import Report, median, quantile

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WORKERS = 2
AGAINST = "a micro-batch an epoch"
QUANTILES = {"median": 0.5, "p99": 0.99, "p99.9": 0.999}
AIMS = {"median": 12.0, "p99": 40.0, "p99.9": 200.0}


@dataclass
class Search:
    """A breadth-first search that is kept while edges come and go."""

    session: SparkSession
    nodes: int
    edges: int
    resident: bool = field(kw_only=True)
    told: queue.Queue[float] = field(default_factory=queue.Queue)

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(5)
        self.src, self.dst = self.random.integers(0, self.nodes, (2, self.edges))
        flow = ts.Dataflow("search")
        self.sent = flow.input("edges", "src long, dst long, diff long")
        roots = flow.input("roots", "node long")
        near = ts.graphs.bfs(self.sent.collection(diff="diff"), roots.collection())
        near.changes().subscribe(lambda *_: self.told.put(time.perf_counter()))
        roots.send([(0,)])
        self.sent.send(self.changed(self.src, self.dst, 1))
        checkpoint = str(harness.folder() / "checkpoint")
        self.query = flow.start(
            self.session, checkpoint=checkpoint, workers=WORKERS, resident=None if self.resident else False
        )
        self.told.get(timeout=600)
        self.query.wait_for(timeout=600)

    @staticmethod
    def changed(src: Any, dst: Any, diff: int) -> pa.Table:
        return pa.table({"src": src, "dst": dst, "diff": np.full(len(src), diff)})

    def change(self, inserts: int, deletes: int, *, at: int) -> float:
        """The milliseconds from a send of inserts and deletes to the subscriber."""
        new = self.random.integers(0, self.nodes, (2, inserts))
        old = slice(at, at + deletes)
        parts = [self.changed(*new, 1), self.changed(self.src[old], self.dst[old], -1)]
        while not self.told.empty():
            self.told.get()
        began = time.perf_counter()
        self.sent.send(pa.concat_tables(parts))
        return 1000 * (self.told.get(timeout=120) - began)


def one_change(report: Report, session: SparkSession, *, nodes: int, edges: int, seconds: float) -> None:
    """One change after the other, and larger ones."""
    single: dict[bool, list[float]] = {}
    many: dict[bool, list[float]] = {}
    for resident in (False, True):
        search = Search(session, nodes, edges, resident=resident)
        times, until = single.setdefault(resident, []), time.monotonic() + seconds
        while time.monotonic() < until:
            times.append(search.change(*((1, 0) if len(times) % 2 else (0, 1)), at=len(times)))
            time.sleep(0.002)
        at = len(times)
        many[resident] = [search.change(1000, 1000, at=at + 1000 * n) for n in range(6)]
        search.query.stop()
    for name, q in QUANTILES.items():
        report.add(
            f"one change, {name}", ours=quantile(single[True], q), baseline=quantile(single[False], q),
            against=AGAINST, aim=f"<={AIMS[name]}", epochs=len(single[True]),
        )  # fmt: skip
    ours, baseline = median(many[True]), median(many[False])
    report.add("1,000 inserts and deletes, median", ours=ours, baseline=baseline, against=AGAINST)


def file_to_delta(report: Report, session: SparkSession, *, files: int) -> None:
    """From the rename of a file to the Delta commit of its epoch."""
    took: dict[bool, list[float]] = {}
    for resident in (False, True):
        root = harness.folder()
        (root / "in").mkdir()
        flow = ts.Dataflow("files")
        read = flow.files("read", root / "in", schema="word string")
        read.group_by("word").count().to_delta(str(root / "table"))
        query = flow.start(
            session, checkpoint=str(root / "checkpoint"), workers=WORKERS, commit_every=0,
            resident=None if resident else False,
        )  # fmt: skip
        for number in range(files + 3):
            pq.write_table(pa.table({"word": [f"w{number % 7}"] * 200}), root / "part")
            began = time.time()
            (root / "part").rename(root / "in" / f"{number}.parquet")
            query.wait_for(timeout=120)
            newest = max((root / "table" / "_delta_log").glob("*.json"))
            took.setdefault(resident, []).append(1000 * (newest.stat().st_mtime - began))
            time.sleep(0.05)
        query.stop()
    ours, baseline = (median(took[resident][3:]) for resident in (True, False))
    report.add("file to Delta commit, median", ours=ours, baseline=baseline, against=AGAINST, aim="<=60")


def sustained(report: Report, session: SparkSession, *, seconds: float) -> None:
    """Small epochs, each sent when the one before has been told."""
    rates = {}
    for resident in (False, True):
        told: queue.Queue[int] = queue.Queue()
        flow = ts.Dataflow("counts")
        words = flow.input("words", "word string")
        words.group_by("word").count().subscribe(lambda epoch, _, told=told: told.put(epoch))
        query = flow.start(
            session, checkpoint=str(harness.folder() / "checkpoint"), workers=WORKERS,
            resident=None if resident else False,
        )  # fmt: skip
        words.send(["a"])
        told.get(timeout=120)
        epochs, until = 0, time.monotonic() + seconds
        while time.monotonic() < until:
            words.send([f"w{epochs % 100}"])
            told.get(timeout=120)
            epochs += 1
        query.stop()
        rates[resident] = epochs / seconds
    report.add(
        "small epochs, one after the other", ours=rates[True], baseline=rates[False], against=AGAINST,
        unit="epochs/s", aim=">=60",
    )  # fmt: skip


def run(quick: bool) -> None:
    report = Report("resident", "Epochs inside a micro-batch that stays", quick=quick)
    session = harness.spark("resident", delta=True)
    nodes, edges = (10_000, 50_000) if quick else (100_000, 500_000)
    one_change(report, session, nodes=nodes, edges=edges, seconds=10 if quick else 100)
    file_to_delta(report, session, files=5 if quick else 40)
    sustained(report, session, seconds=5 if quick else 60)
    report.write()
