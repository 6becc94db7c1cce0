"""A collection as a Delta table of what it is now: kept by what changes in it, deletions too."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from chispa import assert_df_equality
from pyspark.sql import SparkSession

import timely_spark as ts
from tests.runtime.test_delta_local import CASES, changing, parts, upserting
from tests.support import tables
from tests.support.tables import prepared, records, rows_of
from timely_spark.errors import GraphError, SchemaError
from timely_spark.runtime.sinks.delivery import Delivery, to_frame
from timely_spark.runtime.sinks.delta import DeltaSink
from timely_spark.runtime.sinks.delta_upsert import PLACE, RANK, Upsert
from timely_spark.runtime.sinks.sink import STAMP
from timely_spark.testing import Simulation

CHANGES = pa.schema([("k", pa.int64()), ("v", pa.string()), ("diff", pa.int64())])


def current(spark: SparkSession, path: Path, *, epoch: bool | None = None) -> DeltaSink:
    return prepared(spark, DeltaSink(str(path), keys=("k",), diff="diff", epoch=epoch), CHANGES)


def part(epoch: int, *rows: tuple[Any, ...]) -> Delivery:
    return tables.part(epoch, records(CHANGES, *rows))


def deliver(spark: SparkSession, sink: DeltaSink, epoch: int, *rows: tuple[Any, ...]) -> None:
    sink.deliver(spark, epoch, [part(epoch, *rows)])


@pytest.mark.parametrize("stamped", [pytest.param(False, marks=pytest.mark.campaign), True])
def test_an_epoch_of_changes_is_taken_in_once(
    stamped: bool,  # noqa: FBT001
    spark: SparkSession,
    tmp_path: Path,
) -> None:
    second = [(1, "a", -1), (1, "z", 1), (2, "b", -1), (3, "c", 1)]
    sink = current(spark, tmp_path, epoch=stamped or None)
    deliver(spark, sink, 0, (1, "a", 1), (2, "b", 1))
    deliver(spark, sink, 1, *second)
    deliver(spark, current(spark, tmp_path), 1, *second)  # a restart that asks for no epochs
    deliver(spark, current(spark, tmp_path), 2, (4, "d", 1))

    rows = [(1, 1, "z"), (1, 3, "c"), (2, 4, "d")]
    assert rows_of(tmp_path) == (rows if stamped else [row[1:] for row in rows])


@pytest.mark.campaign
def test_a_table_may_be_made_before_with_partitions_and_properties(
    spark: SparkSession, tmp_path: Path
) -> None:
    now, log = tmp_path / "now", tmp_path / "log"
    spark.sql(
        f"CREATE TABLE delta.`{now}` (k BIGINT COMMENT 'the key', v STRING) USING delta PARTITIONED BY (v) "
        "TBLPROPERTIES ('delta.appendOnly' = 'false', 'team' = 'graphs')"
    )
    spark.sql(
        f"CREATE TABLE delta.`{log}` (epoch BIGINT, k BIGINT, v STRING, diff BIGINT) "
        "USING delta CLUSTER BY (k)"
    )
    sinks = [DeltaSink(str(now), keys=("k",), diff="diff"), DeltaSink(str(log))]
    for sink in sinks:
        prepared(spark, sink, CHANGES)
        deliver(spark, sink, 0, (1, "a", 1), (2, "b", 1))
        deliver(spark, sink, 1, (2, "b", -1), (3, "c", 1))

    assert rows_of(now) == [(1, "a"), (3, "c")]
    assert rows_of(log) == [(0, 1, "a", 1), (0, 2, "b", 1), (1, 2, "b", -1), (1, 3, "c", 1)]
    detail = spark.sql(f"DESCRIBE DETAIL delta.`{now}`").collect()[0]
    assert detail["partitionColumns"] == ["v"]
    assert detail["properties"]["team"] == "graphs"
    assert spark.sql(f"DESCRIBE DETAIL delta.`{log}`").collect()[0]["clusteringColumns"] == ["k"]


def test_a_table_that_a_dying_run_makes_while_the_next_one_starts_is_its_own(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    current(spark, tmp_path)
    looks = iter([None])
    properties = DeltaSink._properties
    monkeypatch.setattr(DeltaSink, "_properties", lambda *args: next(looks, ...) and properties(*args))

    deliver(spark, current(spark, tmp_path), 0, (1, "a", 1))

    assert rows_of(tmp_path, "k", "v") == [(1, "a")]


def test_a_table_that_a_killed_run_has_begun_to_make_is_made(spark: SparkSession, tmp_path: Path) -> None:
    table = tmp_path / "begun"
    (table / "_delta_log").mkdir(parents=True)

    deliver(spark, current(spark, table), 0, (1, "a", 1))

    assert rows_of(table, "k", "v") == [(1, "a")]


@pytest.mark.campaign  # the commit of several epochs below has it, too
def test_keys_that_do_not_tell_records_apart_are_an_error(spark: SparkSession, tmp_path: Path) -> None:
    sink = current(spark, tmp_path / "now", epoch=True)
    deliver(spark, sink, 0, (1, "a", 1))

    for second in ([(1, "b", 1)], [(2, "b", 1), (2, "c", 1)]):
        with pytest.raises(SchemaError) as error:
            deliver(spark, sink, 1, *second)
        what = f'{sink.target}: {{"k":{second[0][0]}}} are the keys of more than one record'
        assert str(error.value) == f"{what}\nHint: give keys that tell the records apart."
    assert rows_of(tmp_path / "now") == [(0, 1, "a")]


def test_keys_are_checked_at_each_epoch_of_a_commit_of_several(spark: SparkSession, tmp_path: Path) -> None:
    """The later epoch removes one of two records: its row alone says nothing of the other one."""
    sink = current(spark, tmp_path / "now")
    deliver(spark, sink, 0, (1, "a", 1))

    for first, second in (([(1, "b", 1)], (1, "a", -1)), ([(2, "b", 1), (2, "c", 1)], (2, "b", -1))):
        with pytest.raises(SchemaError, match="are the keys of more than one record"):
            sink.deliver(spark, 2, [part(1, *first), part(2, second)])
    assert rows_of(tmp_path / "now") == [(1, "a")]
    gone, moved = part(1, (1, "a", -1), (3, "x", 1)), part(3, (1, "b", -1), (1, "c", 1), (3, "x", -1))
    sink.deliver(spark, 3, [gone, part(2, (1, "b", 1)), moved])
    assert rows_of(tmp_path / "now") == [(1, "c")]


@pytest.mark.parametrize("keys", [("k",), ()])
def test_an_epoch_that_comes_again_in_another_group_is_written_once(
    keys: tuple[str, ...], spark: SparkSession, tmp_path: Path
) -> None:
    """A batch delivers epochs 0 to 2, runs again, is stopped before epoch 2 is complete, and goes on."""

    def started() -> DeltaSink:
        sink = DeltaSink(str(tmp_path), keys=keys, diff="diff" if keys else None)
        return prepared(spark, sink, CHANGES)

    first, second, third, fourth = (part(epoch, (epoch, "a", 1)) for epoch in range(4))
    started().deliver(spark, 2, [first, second, third])
    again = started()
    again.deliver(spark, 1, [first, second])
    again.deliver(spark, 3, [third, fourth])

    assert rows_of(tmp_path, "k", "v") == [(epoch, "a") for epoch in range(4)]


@pytest.mark.campaign
@pytest.mark.share(4)
@pytest.mark.parametrize(("keys", "diff", "epoch"), CASES)
def test_spark_and_deltalake_write_the_same_table(
    keys: tuple[str, ...],
    diff: bool,  # noqa: FBT001
    epoch: bool,  # noqa: FBT001
    spark: SparkSession,
    tmp_path: Path,
) -> None:
    sinks = [upserting(tmp_path / name, keys, diff=diff, epoch=epoch) for name in ("spark", "deltalake")]
    sinks[0]._folder = None
    for version, delivery in enumerate(changing(keys, diff=diff, seed=7, epochs=3)):
        for sink, session in zip(sinks, (spark, None), strict=True):
            sink.deliver(session, version, parts(delivery, diff=diff))  # type: ignore[arg-type]
    tables = [spark.read.format("delta").load(str(tmp_path / name)) for name in ("spark", "deltalake")]
    assert tables[0].schema == tables[1].schema
    rows = [table.selectExpr("to_json(struct(*), map('ignoreNullFields', 'false'))") for table in tables]
    assert_df_equality(*rows, ignore_row_order=True)


def test_the_last_records_of_a_large_epoch_are_those_of_a_small_one(spark: SparkSession) -> None:
    draw, schema = random.Random(5), pa.schema([(STAMP, pa.int64()), ("k", pa.float64()), *[*CHANGES][1:]])
    records = pa.Table.from_pylist(
        [
            {STAMP: draw.randint(0, 3), "k": draw.choice([None, 0.0, -0.0, float("nan"), 1.5]), "v": str(n)}
            | {"diff": draw.choice([None, -1, 1, 2])}
            for n in range(40)
        ],
        schema,
    )
    frame = to_frame(spark, records.append_column(PLACE, pa.array(range(40), pa.int64())))
    for diff in ("diff", None):
        upsert = Upsert(keys=["k"], diff=diff, columns=["k", "v"], epoch=True)
        of_spark = upsert.last_of(frame).drop(PLACE, RANK).toPandas()
        ours = upsert.last(records).to_pandas()
        assert sorted(map(repr, of_spark.itertuples(index=False))) == sorted(
            map(repr, ours.itertuples(index=False))
        )


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_of_several_records_of_a_key_the_last_one_sent_is_the_last(workers: int) -> None:
    """All records of a key are on one worker: what the workers hand over follows one after the other."""
    flow = ts.Dataflow("now")
    flow.input("x", "k long, v long").to_delta("now", keys="k", name="now")
    simulation = Simulation(flow, workers=workers, seed=None)
    for number in range(7):
        simulation.send("x", [(0, 2 * number), (0, 2 * number + 1)])
    simulation.run()

    (epoch,) = simulation.captured["now"].epochs.values()
    assert epoch["v"].to_pylist() == [*range(14)]


@pytest.mark.campaign
def test_odd_names_are_names(spark: SparkSession, tmp_path: Path) -> None:
    keys = ("it's", "a,b;{}", "s.x", "k`y\n", "_change_type")
    values = ('"v"', "()=\t", "s", "_metadata", "_commit_version")
    inner = pa.struct([("x", pa.string())])
    columns = [*((key, pa.int64()) for key in keys), *((value, inner) for value in values)]
    schema = pa.schema([*columns, ("d d", pa.int64())])
    sink = prepared(spark, DeltaSink(str(tmp_path / "now"), keys=keys, diff="d d"), schema)
    for epoch, given in enumerate(
        [[(1, "a", 1), (2, "b", 1), (3, "c", 1)], [(1, "a", -1), (1, "z", 1), (2, "b", -1), (4, "n", 1)]]
    ):
        rows = [
            dict.fromkeys(keys, k) | {value: {"x": v} for value in values} | {"d d": d} for k, v, d in given
        ]
        sink.deliver(spark, epoch, [tables.part(epoch, pa.Table.from_pylist(rows, schema))])
    now = sorted(map(tuple, spark.read.format("delta").load(str(tmp_path / "now")).collect()))
    assert [(set(row[:5]), {value.x for value in row[5:]}) for row in now] == [
        ({1}, {"z"}),
        ({3}, {"c"}),
        ({4}, {"n"}),
    ]


@pytest.mark.parametrize("columns", ["EPOCH long", "DIFF long", "s struct<A: long, a: long>"])
def test_names_that_differ_in_case_only_are_refused_when_the_flow_is_built(columns: str) -> None:
    flow = ts.Dataflow("bad")
    with pytest.raises(SchemaError, match=r"it ignores case.*\nHint: rename one"):
        flow.input("x", f"k long, {columns}").distinct().to_delta("x", keys="k", diff="diff", epoch=True)


def test_a_current_table_has_epochs_if_they_are_asked_for() -> None:
    x = ts.Dataflow("epochs").input("x", "k long, epoch long")

    x.to_delta("now", keys="k")  # the stream's own
    with pytest.raises(SchemaError, match="'epoch'"):
        x.to_delta("now", keys="k", epoch=True)
    with pytest.raises(GraphError, match=r"(?s)epoch=False without keys.*Hint"):
        x.to_delta("log", epoch=False)
    with pytest.raises(GraphError, match=r"(?s)epoch=False with release='arrival'.*Hint"):
        x.to_delta("early", keys="k", epoch=False, release="arrival")


@pytest.mark.campaign
def test_log_and_table_agree(spark: SparkSession, checkpoint: str, tmp_path: Path) -> None:
    flow = ts.Dataflow("degrees")
    sent = flow.input("edges", "src long, dst long, diff long")
    changes = sent.collection(diff="diff").count("degree", keys="src").changes()
    changes.to_delta(str(tmp_path / "log"))
    changes.to_delta(str(tmp_path / "now"), keys="src", diff="diff")
    with flow.start(spark, checkpoint=checkpoint, workers=2) as query:
        for batch, degrees in [
            ([(1, 2, 1), (1, 3, 1), (4, 1, 1)], [(1, 2), (4, 1)]),
            ([(1, 2, -1), (5, 5, 2), (4, 1, -1)], [(1, 1), (5, 2)]),
        ]:
            sent.send(batch)
            assert query.wait_for(timeout=60)
            log = ts.snapshot(spark.read.format("delta").load(str(tmp_path / "log")))
            assert sorted(map(tuple, log.collect())) == degrees
            assert rows_of(tmp_path / "now") == degrees


def test_what_cannot_count_is_no_diff() -> None:
    x = ts.Dataflow("bad").input("x", "k long, v string, diff long")

    with pytest.raises(SchemaError, match=r"(?s)diff='v' is a column of string.*Hint"):
        x.to_delta("nowhere", keys="k", diff="v")
    with pytest.raises(SchemaError, match=r"(?s)diff='diff' is a key, too \(.*\nHint"):
        x.to_delta("nowhere", keys=["k", "diff"], diff="diff")
    with pytest.raises(SchemaError, match="is a column already"):
        x.to_delta("nowhere", diff="diff")
