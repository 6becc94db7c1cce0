"""Sessions: versions, settings, and what is left behind in the user's."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlparse

import pyspark
import pytest
from pyspark.sql import SparkSession

import timely_spark as ts
from timely_spark.runtime.errors import SparkMissing
from timely_spark.runtime.run_context import labels, murmur3
from timely_spark.runtime.session import (
    applied,
    configure,
    on_one_machine,
    own_settings,
    register,
    require_spark,
    tune,
)
from timely_spark.runtime.sinks.memory import MemorySource


@pytest.mark.parametrize("version", ["3.5.1", "4.0.1", "4.1.0.dev1"])
def test_an_old_spark_is_named(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyspark, "__version__", version)

    with pytest.raises(SparkMissing, match=version):
        require_spark()


def test_a_missing_spark_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)

    with pytest.raises(SparkMissing, match=r"timely-spark\[spark\]"):
        require_spark()


def test_configure_keeps_what_the_user_has_set() -> None:
    builder = SparkSession.Builder()
    builder.config("spark.ui.enabled", "true").config("spark.driver.extraJavaOptions", "-Xss16m")
    options = configure(builder)._options

    assert options["spark.ui.enabled"] == "true"
    both = "-Xss16m -Djdk.lang.Process.launchMechanism=VFORK"
    assert options["spark.executor.extraJavaOptions"] == both.split(" ", 1)[1] + " -Xss16m"
    driver, quiet = options["spark.driver.extraJavaOptions"].rsplit(" ", 1)
    assert driver.startswith(f"{both} -XX:Tier4InvocationThreshold=")
    assert Path(urlparse(quiet.removeprefix("-Dlog4j2.configurationFile=")).path).is_file()
    assert options["spark.ui.showConsoleProgress"] == "false"
    assert options["spark.hadoop.fs.file.impl"].endswith("RawLocalFileSystem")


def test_logging_of_one_s_own_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key, own = "spark.driver.extraJavaOptions", "-Dlog4j2.configurationFile=mine.xml"
    assert "log4j2.properties" not in configure(SparkSession.Builder().config(key, own))._options[key]
    assert "log4j" not in configure(SparkSession.Builder(), quiet=False)._options[key]

    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    (tmp_path / "log4j2.xml").touch()
    assert "log4j" not in configure(SparkSession.Builder())._options[key]


def test_raw_files_are_not_for_rocksdb() -> None:
    builder = SparkSession.Builder().config(
        "spark.sql.streaming.stateStore.providerClass", "org.apache...RocksDBStateStoreProvider"
    )

    assert "spark.hadoop.fs.file.impl" not in configure(builder)._options


#: what a session may have for its other queries, and a flow's query fails with
OTHERS = {
    "streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "streaming.stateStore.checkpointFormatVersion": "2",
    "streaming.stateStore.encodingFormat": "avro",
    "streaming.offsetLog.formatVersion": "2",
    "streaming.queryEvolution.enableSourceEvolution": "true",
    "execution.arrow.maxRecordsPerBatch": "0",
}


@pytest.mark.parametrize(
    "keys", [[*OTHERS], *(pytest.param([key], marks=pytest.mark.campaign) for key in OTHERS)], ids=len
)
def test_settings_for_other_queries_are_not_the_flow_s(
    spark: SparkSession, checkpoint: str, tmp_path: Path, keys: list[str]
) -> None:
    session, folder = spark.newSession(), str(tmp_path / "in")
    settings = {f"spark.sql.{key}": OTHERS[key] for key in keys}
    for key, value in settings.items():
        session.conf.set(key, value)
    for n in range(3):
        spark.range(n, n + 1).write.mode("append").parquet(folder)
        reader = session.readStream.schema("id long")
        if "streaming.queryEvolution.enableSourceEvolution" in keys:
            reader = reader.name("ids")
        flow = ts.Dataflow("other_settings")
        x = flow.input("x", "id long")
        x.exchange("id").concat(flow.source("files", reader.parquet(folder))).capture("out")
        with flow.start(
            session, checkpoint=checkpoint, workers=2, resident=None if n % 2 else False
        ) as query:
            x.send([10 + n])
            assert query.wait_for(timeout=60)
            epochs = query.captured("out").rows().values()
            assert sorted(row for epoch in epochs for row in epoch) == [
                (i + k,) for i in (0, 10) for k in range(n + 1)
            ]
    assert {key: session.conf.get(key) for key in settings} == settings


def test_old_dates_are_written_in_one_calendar() -> None:
    """Small epochs are written by deltalake, which has Arrow's calendar and says nothing of it in files."""
    legacy = {
        f"spark.sql.parquet.{kind}RebaseModeInWrite": mode
        for kind, mode in {"datetime": "LEGACY", "int96": "EXCEPTION"}.items()
    }
    session: Any = SimpleNamespace(conf=legacy)
    assert own_settings(session, local=False) == dict.fromkeys(legacy, "CORRECTED")


@pytest.mark.parametrize("package", ["delta", "kafka"])
def test_executors_are_not_sent_what_spark_has(package: str) -> None:
    if package == "delta":
        pytest.importorskip("delta")
    excluded = configure(SparkSession.Builder(), **{package: True})._options["spark.jars.excludes"].split(",")

    assert "org.apache.hadoop:hadoop-client-runtime" in excluded
    assert "spark.jars.excludes" not in configure(SparkSession.Builder())._options


def test_confs_are_set_for_the_start_only(spark: SparkSession) -> None:
    key, new = "spark.sql.shuffle.partitions", "spark.sql.streaming.pollingDelay"
    before = spark.conf.get(key)
    with applied(spark, {key: "7", new: "20ms", "spark.sql.warehouse.dir": "elsewhere"}) as unset:
        assert spark.conf.get(key) == "7"
        assert [line.partition(":")[0] for line in unset] == ["spark.sql.warehouse.dir"]
    assert spark.conf.get(key) == before
    assert spark.conf.get(new, None) in {None, "10ms", "10"}


def test_confs_of_two_starts_at_once_are_restored(spark: SparkSession) -> None:
    key = "spark.sql.shuffle.partitions"
    before, entered = spark.conf.get(key), threading.Event()

    def start() -> None:
        with applied(spark, {key: "9"}):
            entered.set()

    other = threading.Thread(target=start)
    with applied(spark, {key: "7"}):
        other.start()
        assert not entered.wait(0.5)
        assert spark.conf.get(key) == "7"
    other.join()
    assert entered.is_set()
    assert spark.conf.get(key) == before


def test_tune_reports_settings_that_it_could_not_set(spark: SparkSession) -> None:
    before = spark.conf.get("spark.sql.shuffle.partitions")
    missed = tune(spark)
    spark.conf.set("spark.sql.shuffle.partitions", before)

    assert all("session starts" in line for line in missed)


@pytest.mark.parametrize(
    ("master", "one"), [("local[2]", True), ("local-cluster[2,1,1024]", True), ("yarn", False)]
)
def test_a_flow_without_a_checkpoint_stays_on_one_machine(master: str, *, one: bool) -> None:
    assert on_one_machine(SimpleNamespace(sparkContext=SimpleNamespace(master=master))) is one
    assert not on_one_machine(SimpleNamespace()), "Connect"


def test_labels_spread_as_spark_places_them(spark: SparkSession) -> None:
    from pyspark.sql import functions as f

    for workers, partitions in ((8, 2), (5, 3), (4, 8)):
        keys = labels(workers, partitions)
        frame = spark.createDataFrame([(key,) for key in keys], "worker int")
        rows = frame.select(f.hash("worker"), f.expr(f"pmod(hash(worker), {partitions})")).collect()

        assert [row[0] for row in rows] == [murmur3(key) for key in keys]
        assert [row[1] for row in rows] == [worker % partitions for worker in range(workers)]


def test_a_second_session_has_data_sources_of_its_own(spark: SparkSession) -> None:
    other = spark.newSession()
    try:
        for session in (spark, other, spark):
            register(session, MemorySource)
        options = {"checkpoint": "/nowhere", "output": "none"}
        frames = [
            session.read.format(MemorySource.name()).schema("n long").options(**options).load()
            for session in (spark, other)
        ]
        assert [frame.columns for frame in frames] == [["n"], ["n"]]
    finally:
        spark.createDataFrame([], "any int")  # is the active one again


@pytest.mark.campaign
@pytest.mark.timeout(900)
def test_twenty_flows_run_in_one_session(spark: SparkSession, tmp_path: Path) -> None:
    queries, inputs = [], []
    for number in range(20):
        flow = ts.Dataflow(f"flow {number}")
        inputs.append(flow.input("x", "n long"))
        counts = inputs[-1].collection().count("times", keys="n")
        counts.select("n", "times", flow=f"{number}").capture("out")
        queries.append(flow.start(spark, checkpoint=str(tmp_path / str(number)), workers=2))
    try:
        for round_ in range(3):
            for number, x in enumerate(inputs):
                x.send([number, round_])
            answers = [query.ask("out", fresh=True, timeout=300) for query in queries]
        for number, answer in enumerate(answers):
            expected = Counter([number, 0, number, 1, number, 2])
            assert answer.rows() == sorted((n, times, number) for n, times in expected.items())
    finally:
        for query in queries:
            query.stop()
