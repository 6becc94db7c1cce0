"""Delta tables of a catalog as sources, and writes that another writer interrupts."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from pyspark.sql import SparkSession

import timely_spark as ts
from tests.support.tables import rows_of
from timely_spark.runtime.errors import OutputMismatch, TableUnsupported
from timely_spark.runtime.sinks import delta
from timely_spark.runtime.sinks.delta import DeltaSink, _tried
from timely_spark.runtime.sinks.delta_upsert import Upsert


def run(flow: ts.Dataflow, spark: SparkSession, checkpoint: str) -> Any:
    query = flow.start(spark, checkpoint=checkpoint, workers=1, trigger="available_now")
    query.await_termination()
    return query


@pytest.fixture
def table(spark: SparkSession) -> Any:
    name = "spark_catalog.default.followed"
    spark.sql(f"drop table if exists {name}")
    properties = "tblproperties (delta.enableChangeDataFeed = true)"
    spark.sql(f"create table {name} (k long, v string) using delta {properties}")
    spark.sql(f"insert into {name} values (1, 'a'), (2, 'b')")
    yield name
    spark.sql(f"drop table {name}")


@pytest.mark.campaign
def test_a_table_of_a_catalog_and_its_changes(spark: SparkSession, checkpoint: str, table: str) -> None:
    def now() -> list[tuple[Any, ...]]:
        flow = ts.Dataflow("followed")
        rows = flow.table("rows", table, changes=True).collection(diff="diff")
        rows.count("n", keys="v").changes("diff").capture("out")
        query = run(flow, spark, checkpoint)
        return sorted(map(tuple, (row.values() for row in ts.snapshot(query.captured("out")).to_pylist())))

    assert now() == [("a", 1), ("b", 1)]
    spark.sql(f"update {table} set v = 'b' where k = 1")
    spark.sql(f"optimize {table}")
    spark.sql(f"insert into {table} values (3, 'c')")
    assert now() == [("b", 2), ("c", 1)]
    times = [row.timestamp for row in spark.sql(f"describe history {table}").orderBy("version").collect()]
    flow = ts.Dataflow("later")
    flow.table("version", table, changes=True, from_version=2).capture("by version")
    flow.table("time", table, changes=True, from_time=str(times[2])).capture("by time")
    path = spark.sql(f"describe detail {table}").first().location
    flow.delta("path", path, changes=True, from_time=str(times[2])).capture("by path and time")
    query = run(flow, spark, f"{checkpoint}-later")
    for captured in map(query.captured, ("by version", "by time", "by path and time")):
        rows = (tuple(row.values())[1:] for row in captured.table().to_pylist())
        assert sorted(rows) == [(1, "a", -1), (1, "b", 1), (3, "c", 1)]
    flow = ts.Dataflow("wrong")
    for read, place in ((flow.table, table), (flow.delta, path)):
        with pytest.raises(ts.TimelyError, match="from_time='now': None beside from_version was expected"):
            read("rows", place, from_version=1, from_time="now")
        for time in ("soon", "yesterday"):  # Spark reads the second one, as of today
            with pytest.raises(ts.TimelyError, match=f"from_time='{time}': a time as text was expected"):
                read("rows", place, from_time=time)
    with pytest.raises(
        TableUnsupported, match=r"(?s)table default.nothing cannot be read.*Hint: check the name"
    ):
        ts.Dataflow("none").table("rows", "default.nothing")


@pytest.mark.campaign
def test_a_query_between_tables_that_are_optimized_clustered_and_vacuumed(
    spark: SparkSession, checkpoint: str, table: str
) -> None:
    target = f"{checkpoint}-copy"
    flow = ts.Dataflow("copied")
    copied = flow.table("rows", table, changes=True).collection(diff="diff")
    copied.changes("diff").to_delta(target, keys="k", diff="diff")
    query = flow.start(spark, checkpoint=checkpoint, workers=1)
    confs = {
        "spark.databricks.delta.retentionDurationCheck.enabled": "false",
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",  # tasks of VACUUM: 10,000
    }
    for conf, value in confs.items():
        spark.conf.set(conf, value)
    try:
        spark.sql(f"update {table} set v = concat(v, '!') where k = 1")
        spark.sql(f"insert into {table} values (10, 'c'), (20, 'd')")
        query.process_all_available()
        spark.sql(f"alter table delta.`{target}` cluster by (k)")
        for kept in (table, f"delta.`{target}`"):
            spark.sql(f"optimize {kept}")
            spark.sql(f"vacuum {kept} retain 0 hours")
    finally:
        for conf in confs:
            spark.conf.unset(conf)
    spark.sql(f"delete from {table} where k in (2, 10)")
    query.process_all_available()
    query.stop()

    assert rows_of(target, "k", "v") == [(1, "a!"), (20, "d")]


@pytest.mark.campaign
def test_tables_are_optimized_and_vacuumed_in_a_loop_while_epochs_are_written(
    spark: SparkSession, checkpoint: str
) -> None:
    epochs = 15
    flow = ts.Dataflow("beside")
    numbers = flow.input("numbers", "n long")
    numbers.to_delta(f"{checkpoint}-log", name="log")
    places = {"log": f"{checkpoint}-log", "now": f"{checkpoint}-now"}
    last = (
        numbers.map(lambda row: (row.n % 3, row.n), "k long, v long", name="keyed")
        .collection()
        .max("v", keys="k")
    )
    last.changes("diff").to_delta(places["now"], keys="k", diff="diff", name="now")
    query = flow.start(spark, checkpoint=checkpoint, workers=1)
    ended, failed, rounds = threading.Event(), list[Exception](), list[str]()

    def maintain(place: str) -> None:
        try:
            spark.sql(f"optimize delta.`{place}`")
            spark.sql(f"vacuum delta.`{place}`")
        except Exception as error:  # noqa: BLE001 - checked below
            failed.append(error)
        rounds.append(place)

    def loop() -> None:
        while not ended.is_set():
            for place in places.values():
                maintain(place)

    maintaining = threading.Thread(target=loop)
    tasks_of_vacuum = "spark.sql.sources.parallelPartitionDiscovery.parallelism"  # 10,000
    spark.conf.set(tasks_of_vacuum, "2")
    numbers.send([0])
    assert query.wait_for(timeout=120)
    maintaining.start()
    try:
        for n in range(1, epochs):
            numbers.send([n])
            assert query.wait_for(timeout=120)
    finally:
        ended.set()
        maintaining.join()
        spark.conf.unset(tasks_of_vacuum)
    query.stop()

    assert rows_of(places["log"], "n") == [(n,) for n in range(epochs)]
    assert rows_of(places["now"], "k", "v") == [
        (n % 3, n) for n in sorted(range(epochs - 3, epochs), key=lambda n: n % 3)
    ]
    assert len(rounds) > 1
    assert len(failed) < len(rounds), failed


def test_an_interrupted_write_is_tried_again_a_few_times() -> None:
    class MetadataChangedException(Exception):
        pass

    changed = ValueError("[DELTA_SCHEMA_CHANGE_SINCE_ANALYSIS] The schema of your Delta table has changed")
    tried: list[int] = []

    def write() -> None:
        tried.append(len(tried))
        if len(tried) < 3 or len(tried) > 5:
            raise MetadataChangedException if len(tried) % 2 else changed

    _tried(write)
    assert len(tried) == 3
    tried.extend(range(7))
    with pytest.raises(ValueError, match="SCHEMA_CHANGE"):
        _tried(write)
    assert len(tried) == 20


@pytest.mark.parametrize("keys", [(), ("k",)])
def test_a_write_that_another_table_interrupts_is_not_tried_on_that_one(
    keys: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    class MetadataChangedException(Exception):
        pass

    table = mock.MagicMock()
    merge = table.alias().merge().whenMatchedUpdate().whenNotMatchedInsert()
    merge.execute.side_effect = save = mock.Mock(side_effect=MetadataChangedException)
    own = mock.Mock(side_effect=[None, OutputMismatch.lost("t")])
    methods = {"_check_own": own, "_properties": mock.Mock(), "_save": save, "_table": lambda *_: table}
    for name, method in methods.items():
        monkeypatch.setattr(DeltaSink, name, method)
    monkeypatch.setattr(delta, "_with_epochs", mock.MagicMock())
    monkeypatch.setattr(Upsert, "last_of", lambda _, frame: frame)
    monkeypatch.setattr(delta, "applied", lambda *_: nullcontext([]))

    with pytest.raises(OutputMismatch):
        DeltaSink("t", keys).deliver(
            mock.Mock(), 1, [SimpleNamespace(epoch=1, is_empty=False, is_large=True)]
        )  # type: ignore[list-item]
    assert save.call_count == 1


@pytest.mark.parametrize(
    ("by_deltalake", "by_spark", "own"),
    [
        ({"owner": "me", "more": "1"}, None, True),
        ({"owner": "another"}, None, False),
        ({}, None, False),
        (None, {"owner": "me", "more": "1"}, True),  # deltalake cannot read the table
        (None, {"owner": "another"}, False),
        (None, None, False),  # there is none
    ],
)
def test_a_table_is_the_outputs_own_by_its_properties(
    by_deltalake: Any,
    by_spark: Any,
    own: bool,  # noqa: FBT001
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(delta, "properties", lambda folder: by_deltalake)
    monkeypatch.setattr(DeltaSink, "_exists", lambda *_: by_spark is not None)
    session = mock.Mock()
    session.sql.return_value.collect.return_value = list((by_spark or {}).items())
    sink = DeltaSink("/tables/t", _own={"owner": "me"}, _folder="/tables/t")
    with nullcontext() if own else pytest.raises(OutputMismatch):
        sink._check_own(sink._properties(session))
    assert session.sql.called == (by_spark is not None)
