"""Entities that follow their records: beside Splink on its own data, and of very many records.

- *Splink* scores its own example data: 50,000 records come in ten batches, and some leave. Ours: Splink
  scores the pairs of new records, and `ts.entities` gets these, and those that go. Theirs: Splink scores and
  clusters all present records again. Both must have the same partition. Where Splink is not installed, or its
  data cannot be had, a note says so.
- *Many records*: entities of one to five records, loaded from a file on Spark; then epochs of 1,000 new
  records, each with a pair, while 100 pairs go. `python -m benchmarks.entities 10000000` says how many.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import timely_spark as ts
from benchmarks import harness
from benchmarks.alone import Engine
from benchmarks.harness import Report, median

SEED, BATCHES, LEAVES, THRESHOLD = 20_13, 10, 0.02, 0.95
PAIR = {"a": pa.int64(), "b": pa.int64(), "score": pa.float64()}
PAIRS = "a long, b long, score double, diff long"
COME, GO, EPOCHS = 1_000, 100, 10


def entities_of(pairs: ts.Collection) -> ts.Collection:
    """The entity of each record, with ids that stay."""
    return ts.entities(pairs, threshold=THRESHOLD, name="people").members


# -- beside Splink -------------------------------------------------------------------------------------------


def beside_splink(report: Report) -> None:
    """A row for a batch, and one for the ids that change."""
    try:
        from benchmarks.baselines.splink_pairs import Splink

        splink = Splink("fake_1000" if report.quick else "historical_50k", THRESHOLD)
    except ImportError:
        report.note("Splink was not measured: pip install 'splink>=5,<6' in this environment.")
        return
    except OSError as error:
        report.note(f"Splink was not measured, its example data cannot be had: {error}.")
        return
    random = np.random.default_rng(SEED)
    flow = ts.Dataflow("people")
    entities_of(flow.input("pairs", PAIRS).collection(diff="diff")).changes().capture("members")
    engine, held = Engine(flow, 1), pa.schema(PAIR).empty_table()
    present = np.zeros(0, np.int64)
    seconds: dict[str, list[float]] = {"score": [], "ours": [], "again": []}
    changed, entity, cluster = [0, 0], dict[int, str](), dict[int, int]()
    for new in np.array_split(random.permutation(splink.records), BATCHES):
        leaves = present[random.random(len(present)) < LEAVES]
        present = np.setdiff1d(present, leaves)
        with clocked(seconds["score"]):
            come = splink.pairs_of(new, present)
        with clocked(seconds["ours"]):
            gone = held.filter(pc.or_(*(pc.is_in(held[end], pa.array(leaves)) for end in ("a", "b"))))
            out = engine.epoch(pairs=pa.concat_tables([with_diff(come, 1), with_diff(gone, -1)]))
        held = pa.concat_tables([held, come])
        held = held.filter(
            pc.and_(*(pc.is_in(held[end], pa.array(np.append(present, new))) for end in ("a", "b")))
        )
        present = np.append(present, new)
        before, entity = entity, updated(entity, out)
        with clocked(seconds["again"]):
            last, cluster = cluster, splink.again(present)
        assert groups(entity) == groups({one: cluster[one] for one in entity}), "another partition"
        for side, (old, now) in enumerate(((before, entity), (last, cluster))):
            changed[side] += sum(old[one] != now[one] for one in before if one in old and one in entity)
    ours = [a + b for a, b in zip(seconds["score"], seconds["ours"], strict=True)]
    case, against = (
        f"{len(splink.records):,} records in {BATCHES} batches, {held.num_rows:,} pairs",
        "Splink again",
    )
    late = slice(BATCHES // 2, None)
    report.add(
        f"{case}: a late batch, scores included",
        ours=median(ours[late]),
        baseline=median(seconds["again"][late]),
        against=against,
        unit="s",
    )
    report.add(f"{case}: its clustering alone", ours=median(seconds["ours"][late]), unit="s")
    report.add(
        "ids that changed in all batches", ours=changed[0], baseline=changed[1], against=against, unit="rows"
    )
    report.note(f"Splink {splink.version} on {splink.data}; after each batch its partition is the same.")


@contextmanager
def clocked(seconds: list[float]) -> Iterator[None]:
    """Add how long a block took."""
    began = time.perf_counter()
    yield
    seconds.append(time.perf_counter() - began)


def with_diff(pairs: pa.Table, diff: int) -> pa.Table:
    """Pairs that come or go."""
    return pairs.append_column("diff", pa.array(np.full(pairs.num_rows, diff)))


def updated(entity: dict[int, str], out: Sequence[pa.Table]) -> dict[int, str]:
    """The entities after the changes of an epoch."""
    rows = [row for table in out for row in zip(*table.to_pydict().values(), strict=True)]
    gone = {record for record, _, diff in rows if diff < 0}
    stay = {record: name for record, name in entity.items() if record not in gone}
    return stay | {record: name for record, name, diff in rows if diff > 0}


def groups(of: Mapping[int, Any]) -> set[frozenset[int]]:
    """The records that are together, whatever the names of their groups."""
    together: dict[Any, set[int]] = {}
    for record, name in of.items():
        together.setdefault(name, set()).add(record)
    return {frozenset(group) for group in together.values()}


# -- many records --------------------------------------------------------------------------------------------


def chains(records: int, random: np.random.Generator) -> pa.Table:
    """Pairs of neighbours within entities of one to five records, whose numbers are mixed."""
    starts = np.cumsum(random.integers(1, 6, records))
    linked = ~np.isin(np.arange(1, records), starts)
    numbers = random.permutation(records)
    a, b = numbers[:-1][linked], numbers[1:][linked]
    return table(a, b, random, 1)


def table(a: np.ndarray, b: np.ndarray, random: np.random.Generator, diff: int) -> pa.Table:
    """Scored pairs."""
    score = random.integers(95, 100, len(a)) / 100
    return pa.table({"a": a, "b": b, "score": score, "diff": np.full(len(a), diff)})


def many(report: Report, records: int) -> None:
    """Rows for the load, for new records, and for the state."""
    random, folder = np.random.default_rng(SEED), harness.folder()
    loaded = chains(records, random)
    pq.write_table(loaded, folder / "0000.parquet", row_group_size=1 << 20)
    spark = harness.spark("entities", confs={"spark.driver.memory": "8g"})
    flow = ts.Dataflow("people")
    files = flow.files("loaded", folder, schema=PAIRS).collection(diff="diff")
    handle = flow.input("pairs", PAIRS)
    entities_of(files.concat(handle.collection(diff="diff"))).probe("done")
    began = time.perf_counter()
    with flow.start(spark, checkpoint=str(harness.folder()), workers=2) as query:
        harness.answered(query, "done", timeout=3600)
        load = time.perf_counter() - began
        took = []
        for epoch in range(EPOCHS):
            new = records + COME * epoch + np.arange(COME)
            come = table(new, random.integers(0, records, COME), random, 1)
            gone = loaded.slice(GO * epoch, GO)
            gone = gone.set_column(3, "diff", pa.array(np.full(GO, -1)))
            began = time.perf_counter()
            handle.send(pa.concat_tables([come, gone]))
            harness.answered(query, "done")
            took.append(1000 * (time.perf_counter() - began))
        size = sum(query.last_progress.state_bytes.values())
    spark.stop()
    shown = f"{records:,} records, {loaded.num_rows:,} pairs"
    report.add(f"{shown}: load, with the start", ours=load, unit="s")
    report.add(f"{shown}: {COME:,} new records, {GO} pairs go", ours=median(took), slowest=max(took))
    report.add(f"{shown}: state", ours=size / records, unit="bytes a record")


def run(quick: bool) -> Report:
    """Measure, and write the report."""
    return measured(20_000 if quick else 1_000_000, quick=quick)


def measured(records: int, *, quick: bool) -> Report:
    """The report, for so many records."""
    report = Report("entities", "Entities: ids that stay while records come and go", quick=quick)
    beside_splink(report)
    many(report, records)
    report.write()
    return report


if __name__ == "__main__":
    measured(int(sys.argv[1]), quick=False)
