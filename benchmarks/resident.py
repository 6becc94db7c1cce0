"""Epochs inside a micro-batch that stays, beside one micro-batch for each: from a send to the subscriber.

Breadth-first search of a random graph, kept by a handle of edges: one insert or delete at a time, then 1,000
of each. The same flow, session and changes, resident and not; each change waits for its answer. Resident, the
changes go on for ten minutes, over twenty micro-batches: the gaps between them are in the figures, as is what
grows meanwhile; the first, tenth and thousandth are rows of their own. Then: from the rename of a file to the
Delta commit of its epoch (`commit_every=0`); from a message to the one that answers it, through a running
count and through a loop; fresh questions; `stop`; large epochs, which must not be slower; an idle query; and
one change where executors are processes of their own: of a local-cluster, whose driver hosts the workers, and
of a standalone cluster, where tasks that stay do. Differential (Rust) and Pathway have the same single
changes in memory. A run takes about 20 minutes.
"""

from __future__ import annotations

import queue
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import timely_spark as ts
from benchmarks import harness
from benchmarks.baselines import built
from benchmarks.engine import differential
from benchmarks.executors import session as session_of
from benchmarks.harness import Report, median, quantile
from benchmarks.resources import Resources, files, shares, size
from tests.support.broker import Broker
from tests.support.standalone import Cluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WORKERS = 2
AGAINST = "a micro-batch an epoch"
QUANTILES = {"median": 0.5, "p99": 0.99, "p99.9": 0.999}
AIMS = {"median": 12.0, "p99": 40.0, "p99.9": 200.0}
#: What `start` gets for each side.
SIDES: dict[bool, dict[str, Any]] = {False: {"resident": False}, True: {}}
#: Seconds after which a flow at rest runs no micro-batch any more, and seconds that it is looked at then.
RESTS, LOOKS = 75.0, 30.0
#: How much longer changes go on where a micro-batch stays: twenty of them, which stay 30 seconds each.
LONGER = 20


@dataclass
class Search:
    """A breadth-first search that is kept while edges come and go."""

    session: SparkSession
    nodes: int
    edges: int
    options: dict[str, Any] = field(kw_only=True)
    answered: queue.Queue[float] = field(default_factory=queue.Queue)

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(5)
        self.src, self.dst = self.random.integers(0, self.nodes, (2, self.edges))
        flow = ts.Dataflow("search")
        self.sent = flow.input("edges", "src long, dst long, diff long")
        roots = flow.input("roots", "node long")
        near = ts.graphs.bfs(self.sent.collection(diff="diff"), roots.collection())
        near.changes().subscribe(lambda *_: self.answered.put(time.perf_counter()))
        near.capture("near")
        roots.send([(0,)])
        self.sent.send(self.changed(self.src, self.dst, 1))
        checkpoint = str(harness.folder() / "checkpoint")
        began = time.perf_counter()
        self.query = flow.start(self.session, checkpoint=checkpoint, workers=WORKERS, **self.options)
        #: milliseconds from the start of the query to the answer for the whole graph
        self.load = 1000 * (self.answered.get(timeout=600) - began)
        harness.answered(self.query)

    @staticmethod
    def changed(src: Any, dst: Any, diff: int) -> pa.Table:
        return pa.table({"src": src, "dst": dst, "diff": np.full(len(src), diff)})

    def change(self, inserts: int, deletes: int, *, at: int) -> float:
        """The milliseconds from a send of inserts and deletes to the subscriber."""
        new = self.random.integers(0, self.nodes, (2, inserts))
        old = slice(at, at + deletes)
        parts = [self.changed(*new, 1), self.changed(self.src[old], self.dst[old], -1)]
        while not self.answered.empty():
            self.answered.get()
        began = time.perf_counter()
        self.sent.send(pa.concat_tables(parts))
        return 1000 * (self.answered.get(timeout=120) - began)


def add(
    report: Report, case: str, took: Mapping[bool, list[float]], *, first: int = 0, aim: str = ""
) -> None:
    """A row: medians of epochs in a stay and of micro-batches, each without its first ones."""
    ours, baseline = (median(took[resident][first:]) for resident in (True, False))
    report.add(case, ours=ours, baseline=baseline, against=AGAINST, aim=aim)


def one_change(report: Report, session: SparkSession, *, nodes: int, edges: int, seconds: float) -> None:
    """One change after the other, and larger ones."""
    single: dict[bool, list[float]] = {}
    many: dict[bool, list[float]] = {}
    for resident in (False, True):
        search = Search(session, nodes, edges, options=SIDES[resident])
        counts = {
            "files": lambda at=search.query.checkpoint: files(at),
            "MB on disk": lambda at=search.query.checkpoint: size(at) / 1e6,
        }
        with Resources(counts, every=10.0) as resources:  # to look takes as long as an epoch
            lasts = seconds * (LONGER if resident else 1)
            times, until = single.setdefault(resident, []), time.monotonic() + lasts
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
    for number in (1, 10, 1000):
        near = [single[side][max(0, number - 3) : number + 2] for side in (True, False)]
        if number == 1:
            near = [single[side][:1] for side in (True, False)]
        if near[0]:  # in 30 seconds there are fewer than a thousand micro-batches
            report.add(
                f"change {number:,} after the load", ours=median(near[0]),
                baseline=median(near[1]) if near[1] else None, against=AGAINST if near[1] else "",
            )  # fmt: skip
    for system, took in in_memory(report, search, changes=min(1000, len(single[True]))).items():
        for name in ("median", "p99"):
            report.add(
                f"one change, beside a program in memory, {name}", against=system,
                ours=quantile(single[True], QUANTILES[name]), baseline=quantile(took, QUANTILES[name]),
                epochs=len(took),
            )  # fmt: skip
    add(report, "1,000 inserts and deletes, median", many)
    report.add(
        "changes, one after the other", ours=len(single[True]) / lasts, baseline=len(single[False]) / seconds,
        against=AGAINST, unit="epochs/s", aim=">=60",
    )  # fmt: skip
    for name in ("driver", "JVM", "Python workers", *counts):
        growth, level = resources.growth(name)
        report.note(f"{name}, last {lasts / 2:.0f} s of changes: {level:,.1f}, {growth:+,.2f} a minute.")


def in_memory(report: Report, search: Search, *, changes: int) -> dict[str, list[float]]:
    """Milliseconds of single changes of the same graph in systems without a disk; of those that run here."""
    if report.quick:
        return {}
    (folder := harness.folder()).mkdir(exist_ok=True)
    load = np.column_stack([search.src, search.dst])
    for number in range(1 + changes):
        ends, diff = (load, 1) if not number else (load[number : number + 1], -1)
        if number and number % 2 == 0:
            ends, diff = search.random.integers(0, search.nodes, (1, 2)), 1
        rows = np.column_stack([ends, np.tile([1, diff], (len(ends), 1))])  # edges have a weight there
        rows.astype("<i4").tofile(folder / f"{number:04}.bin")
    took = {"differential (Rust)": [each for each, *_ in differential("bfs", folder, 1 + changes, report)]}
    try:
        lines = built.in_pathway("pathway_search.py", str(folder), str(search.nodes), threads=WORKERS)
        took["Pathway"] = [each["seconds"] for each in lines]
    except subprocess.CalledProcessError as error:
        report.note(f"Pathway was not measured: {error}.")
    return {system: [1000 * seconds for seconds in times[1:]] for system, times in took.items() if times}


def large(report: Report, session: SparkSession, *, rows: int, nodes: int, edges: int, runs: int) -> None:
    """Epochs of many rows, and loads of a graph: Spark's tasks read them, in a micro-batch of their own."""
    table = pa.table({"word": np.char.mod("w%d", np.arange(rows) % 1000)})
    epochs: dict[bool, list[float]] = {False: [], True: []}
    loads: dict[bool, list[float]] = {False: [], True: []}
    for resident in (False, True) * runs:
        with counting(session, resident=resident) as (_, words, released):
            began = time.perf_counter()
            words.send(table)
            released.get(timeout=600)
            epochs[resident].append(1000 * (time.perf_counter() - began))
        search = Search(session, nodes, edges, options=SIDES[resident])
        loads[resident].append(search.load)
        search.query.stop()
    for case, took in ((f"an epoch of {rows:,} rows", epochs), (f"load of {edges:,} edges", loads)):
        add(report, case, took, aim=">=0.95x")


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
            session, checkpoint=str(root / "checkpoint"), workers=WORKERS, commit_every=0, **SIDES[resident]
        )
        for number in range(files + 3):
            pq.write_table(pa.table({"word": [f"w{number % 7}"] * 200}), root / "part")
            began = time.time()
            (root / "part").rename(root / "in" / f"{number}.parquet")
            harness.answered(query)
            newest = max((root / "table" / "_delta_log").glob("*.json"))
            took.setdefault(resident, []).append(1000 * (newest.stat().st_mtime - began))
            time.sleep(0.05)
        query.stop()
    add(report, "file to Delta commit, median", took, first=3, aim="<=60")


@contextmanager
def counting(session: SparkSession, *, resident: bool) -> Iterator[tuple[Any, Any, queue.Queue[int]]]:
    """A query that counts words and tells of each epoch, and its input; it has run an epoch."""
    released: queue.Queue[int] = queue.Queue()
    flow = ts.Dataflow("counts")
    words = flow.input("words", "word string")
    counts = words.group_by("word").count()
    counts.subscribe(lambda epoch, _: released.put(epoch))
    words.collection().count("n", keys="word").capture("counts")
    checkpoint = str(harness.folder() / "checkpoint")
    query = flow.start(session, checkpoint=checkpoint, workers=WORKERS, **SIDES[resident])
    words.send(["a"])
    released.get(timeout=120)
    yield query, words, released
    query.stop()


def questions(report: Report, session: SparkSession, *, asked: int) -> None:
    """A send, and the answer to a fresh question about it."""
    took: dict[bool, list[float]] = {}
    for resident in (False, True):
        with counting(session, resident=resident) as (query, words, _):
            for number in range(asked + 3):
                began = time.perf_counter()
                words.send([f"w{number}"])
                answer = query.ask("counts", [f"w{number}"], keys="word", fresh=True)
                took.setdefault(resident, []).append(1000 * (time.perf_counter() - began))
                assert answer.table.num_rows == 1, answer
                time.sleep(0.02)
    add(report, "a fresh question, median", took, first=3, aim="<=15")


def stops(report: Report, session: SparkSession, *, runs: int) -> None:
    """A call of `stop` after an epoch, in the middle of a stay."""
    took: dict[bool, list[float]] = {False: [], True: []}
    for resident in (False, True) * runs:
        with counting(session, resident=resident) as (query, words, released):
            words.send(["b"])
            released.get(timeout=120)
            began = time.perf_counter()
            query.stop()
            took[resident].append(1000 * (time.perf_counter() - began))
    add(report, "stop(), median", took, aim="<=100")


def rests(report: Report, session: SparkSession) -> None:
    """The share of a core that a query with nothing to do takes, all processes: in a stay, and afterwards."""
    with counting(session, resident=True) as (_, words, released):
        words.send(["b"])
        released.get(timeout=120)
        for name, waits, looks in (("in a stay", 2.0, 20.0), ("at rest", RESTS, LOOKS)):
            time.sleep(waits)
            taken = {who: 100 * share for who, share in shares(looks).items()}
            report.add(f"an idle query, {name}", ours=sum(taken.values()), unit="% of a core", aim="<=1")
            report.note(f"{name}: {', '.join(f'{who} {share:.2f} %' for who, share in taken.items())}.")


def topics(report: Report, session: SparkSession, *, messages: int) -> None:
    """From a message to the one that answers it: through a running count by key, and through a loop."""
    from confluent_kafka import Consumer, Producer

    (folder := harness.folder()).mkdir(exist_ok=True)
    with Broker(folder) as broker:
        for case, aim in (("count by key", "<=25"), ("hops of a loop", "<=40")):
            took: dict[bool, list[float]] = {}
            for resident in (False, True):
                name = f"{case.partition(' ')[0]}-{resident}".lower()
                producer = Producer({"bootstrap.servers": broker.servers, "linger.ms": 0})
                producer.produce(f"in-{name}", b'{"k": 1}')
                producer.flush()
                flow = ts.Dataflow(name)
                read = flow.kafka("read", f"in-{name}", broker.servers, schema="k long")
                if case == "count by key":
                    answer = read.group_by("k").count()
                else:
                    answer = read.loop(_fewer, name="hops").where("k = 0")
                answer.to_kafka(f"out-{name}", broker.servers, name="out")
                options = {"auto.offset.reset": "earliest", "topic.metadata.refresh.interval.ms": 500}
                # the flow makes the topic
                consumer = Consumer({"bootstrap.servers": broker.servers, "group.id": name, **options})
                consumer.subscribe([f"out-{name}"])
                query = flow.start(
                    session,
                    checkpoint=str(harness.folder() / "checkpoint"),
                    workers=WORKERS,
                    **SIDES[resident],
                )
                for number in range(messages + 3):
                    began = time.perf_counter()
                    if number:  # the first one is there already
                        producer.produce(f"in-{name}", b'{"k": %d}' % (1 + number % 5))
                        producer.flush()
                    until = time.monotonic() + 120
                    while (got := consumer.poll(0.005)) is None or got.error():
                        if time.monotonic() > until:
                            msg = f"{case}: no answer to message {number}: {query.exception()}"
                            raise TimeoutError(msg)
                    took.setdefault(resident, []).append(1000 * (time.perf_counter() - began))
                    time.sleep(0.02)
                query.stop()
                consumer.close()
            add(report, f"Kafka to Kafka, {case}", took, first=3, aim=aim)


def _fewer(near: ts.Stream) -> ts.Stream:
    """A message counts down to 0."""
    return near.where("k > 0").map(lambda row: row.k - 1, "k long")


def on_clusters(report: Report, *, nodes: int, edges: int, seconds: float) -> None:
    """One change, where executors are processes."""
    with Cluster(harness.folder() / "cluster", workers=3) as cluster:
        for name, master in (("a local-cluster", "local-cluster[3,1,1024]"), ("a cluster", cluster.url)):
            took: dict[bool, list[float]] = {}
            for resident in (False, True):
                with session_of(master, 3) as session:
                    options = {"resident": resident} if master == cluster.url else SIDES[resident]
                    search, until = Search(session, nodes, edges, options=options), time.monotonic() + seconds
                    times = took.setdefault(resident, [])
                    while time.monotonic() < until:
                        times.append(search.change(*((1, 0) if len(times) % 2 else (0, 1)), at=len(times)))
                    search.query.stop()
            add(report, f"one change on {name}", took, first=1, aim="<=40")


def run(quick: bool) -> None:
    report = Report("resident", "Epochs inside a micro-batch that stays", quick=quick)
    session = harness.spark("resident", delta=True, kafka=True)
    nodes, edges = (10_000, 50_000) if quick else (100_000, 500_000)
    one_change(report, session, nodes=nodes, edges=edges, seconds=1 if quick else 30)
    file_to_delta(report, session, files=5 if quick else 40)
    questions(report, session, asked=10 if quick else 100)
    stops(report, session, runs=1 if quick else 7)
    rows, runs = (100_000, 1) if quick else (1_000_000, 4)
    large(report, session, rows=rows, nodes=nodes, edges=edges, runs=runs)
    if not quick:
        rests(report, session)  # before there are clients of Kafka
    topics(report, session, messages=5 if quick else 60)
    session.stop()
    on_clusters(
        report,
        nodes=nodes // 10 if quick else nodes,
        edges=edges // 10 if quick else edges,
        seconds=3 if quick else 12,
    )
    report.write()
