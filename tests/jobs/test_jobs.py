"""The jobs as a person runs them, on small inputs; and their flows against independent answers."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import networkx as nx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from chispa import assert_df_equality
from pyspark.sql import SparkSession

import timely_spark as ts

ROOT = Path(__file__).parents[2]
JOBS = ROOT / "jobs"
TEXTS = [
    "To be, or not to be: that is the question.\nto_be 2b",
    "Äpfel ÄPFEL; İstanbul\n\nthe question",
    "",
    "nothing new under the sun",
]


@pytest.fixture(autouse=True)
def _jobs_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(JOBS))


def job(name: str, *args: Any, submit: bool = False) -> subprocess.CompletedProcess[str]:
    """Run a job as a process: by Python, or by spark-submit with the tuned properties."""
    command = [sys.executable, str(JOBS / f"{name}.py"), *map(str, args)]
    if submit:
        import pyspark

        home = Path(pyspark.__file__).parent
        conf = ROOT / "conf" / "timely.properties"
        packages = ["--packages", "io.delta:delta-spark_4.2_2.13:4.4.0", "--py-files", str(JOBS / "cli.py")]
        local = ["--master", "local[2]", "--properties-file", str(conf), *packages]
        command = [
            "bash",
            str(home / "bin" / "spark-submit"),
            *local,
            str(JOBS / f"{name}.py"),
            *map(str, args),
        ]
    return subprocess.run(
        command,
        env=os.environ | {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def write_texts(folder: Path) -> list[Counter[str]]:
    """Text files, in the order in which Spark takes them; the words of each."""
    folder.mkdir()
    for i, text in enumerate(TEXTS):
        file = folder / f"{i}.txt"
        file.write_text(text, encoding="utf-8")
        os.utime(file, (1_600_000_000 + i,) * 2)
    return [Counter(word.lower() for word in re.findall(r"\w+", text)) for text in TEXTS]


@pytest.mark.campaign  # tests/cluster does the same on a cluster
@pytest.mark.timeout(240)
def test_word_count_by_spark_submit(spark: SparkSession, tmp_path: Path) -> None:
    words = write_texts(tmp_path / "in")
    args = ["--input", tmp_path / "in", "--output", tmp_path / "out", "--checkpoint", tmp_path / "ck"]

    done = job("wordcount", *args, "--files-per-epoch", 1, "--workers", 2, submit=True)

    assert done.returncode == 0, done.stderr
    # a micro-batch of an empty file alone brings Spark nothing to read: its number is used up, and no epoch
    assert re.findall(r"^epoch (\d+): 1 rounds", done.stdout, re.MULTILINE) == ["0", "1", "3"]
    total: Counter[str] = Counter()
    expected = []
    for epoch, new in enumerate(words):
        total.update(new)
        expected += [(epoch, word, total[word]) for word in new]
    table = spark.read.format("delta").load(str(tmp_path / "out"))
    answer = spark.createDataFrame(expected, "epoch long, word string, count long")
    assert_df_equality(table, answer, ignore_row_order=True, ignore_nullable=True)


def random_edges(n: int, m: int, seed: int) -> list[tuple[int, int]]:
    draw = random.Random(seed)
    return [(draw.randrange(n), draw.randrange(n)) for _ in range(m)]


def components(edges: list[tuple[int, int]]) -> dict[int, int]:
    parts = nx.connected_components(nx.Graph(edges))
    return {node: least for part in parts for least in [min(part)] for node in part}


def components_query(
    spark: SparkSession, folder: Path, form: str, checkpoint: str, files: int | None
) -> ts.Query:
    import connected_components as cc
    from pyspark import cloudpickle

    cloudpickle.register_pickle_by_value(cc)  # as --py-files would do, or running it as the main program
    flow = ts.Dataflow("connected_components")
    edges = flow.source("edges", cc.read_edges(spark, str(folder / "in"), form, files))
    edges = edges.map_batches(cc.checked, cc.EDGES)
    cc.connected_components(edges).to_delta(str(folder / "out"), diff="diff")
    return flow.start(spark, checkpoint=checkpoint, workers=3, trigger="available_now")


@pytest.mark.spark
@pytest.mark.timeout(240)
def test_components_of_a_growing_graph(spark: SparkSession, tmp_path: Path, checkpoint: str) -> None:
    epochs = [random_edges(60, 25, seed) for seed in range(4)] + [[(7, 7), (7, 7)]]
    (tmp_path / "in").mkdir()
    for i, edges in enumerate(epochs):
        file = tmp_path / "in" / f"{i}.parquet"
        columns = {
            name: pa.array(ids, pa.int32())
            for name, ids in zip(("dst", "src"), zip(*edges, strict=True), strict=True)
        }
        pq.write_table(pa.table(columns), file)
        os.utime(file, (1_600_000_000 + i,) * 2)

    query = components_query(spark, tmp_path, "parquet", checkpoint, 1)
    seen = [done.epoch for done in query.epochs()]
    query.await_termination()

    assert seen == [0, 1, 2, 3, 4]
    table = spark.read.format("delta").load(str(tmp_path / "out"))
    assert [(field.name, field.dataType.simpleString()) for field in table.schema] == [
        ("epoch", "bigint"), ("node", "bigint"), ("component", "bigint"), ("diff", "int")
    ]  # fmt: skip
    changes = [row.asDict() for row in table.collect()]
    so_far: list[tuple[int, int]] = []
    for epoch, new in enumerate(epochs):
        so_far += new
        total: Counter[tuple[int, int]] = Counter()
        for row in changes:
            if row["epoch"] <= epoch:
                total[row["node"], row["component"]] += row["diff"]
        assert {key: n for key, n in total.items() if n} == dict.fromkeys(components(so_far).items(), 1)


def test_bad_edges_lose_nothing(spark: SparkSession, tmp_path: Path, checkpoint: str) -> None:
    """A null among the ids stops the job; with the file mended it goes on to the whole answer."""
    (tmp_path / "in").mkdir()
    file = tmp_path / "in" / "0.csv"
    file.write_text("src,dst\n1,2\n3,\n")
    query = components_query(spark, tmp_path, "csv", checkpoint, None)
    with pytest.raises(ts.TimelyError, match="'src': 3, 'dst': None}: dst is null or negative"):
        query.await_termination()

    file.write_text("src,dst\n1,2\n3,2\n")
    components_query(spark, tmp_path, "csv", checkpoint, None).await_termination()
    rows = spark.read.format("delta").load(str(tmp_path / "out")).collect()
    assert sorted(map(tuple, rows)) == [(0, 1, 1, 1), (0, 2, 1, 1), (0, 3, 1, 1)]


def test_an_error_is_one_line_and_an_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    import cli

    def fails() -> None:
        message = "no such thing. Hint: none."
        raise ts.TimelyError(message)

    with pytest.raises(SystemExit, match="1"):
        cli.run(fails)
    assert capsys.readouterr().err == "error: no such thing. Hint: none.\n"


@pytest.mark.parametrize(
    ("name", "args", "says"),
    [
        ("wordcount", ["--input", "/no/such/place"], "'/no/such/place' is no directory"),
        ("connected_components", ["--edges", "/no/such/place"], "'/no/such/place' is no directory"),
        ("wordcount", ["--input", "/tmp", "--workers", "0"], "'0' is not a number of at least 1"),
        ("wordcount", [], "--input"),
    ],
)
def test_bad_arguments_are_told_at_once(name: str, args: list[str], says: str, tmp_path: Path) -> None:
    done = job(name, *args, "--output", tmp_path / "out", "--checkpoint", tmp_path / "ck")
    assert done.returncode == 2
    assert says in done.stderr
    assert not list(tmp_path.iterdir())


def test_wrong_columns_are_told_before_the_start(spark: SparkSession, tmp_path: Path) -> None:
    import connected_components as cc

    pq.write_table(pa.table({"from": [1], "dst": ["x"]}), tmp_path / "0.parquet")
    with pytest.raises(ts.TimelyError, match="edges need"):
        cc.read_edges(spark, str(tmp_path), "parquet", None)
    (tmp_path / "0.csv").write_text("a,b\n1,2\n")
    with pytest.raises(ts.TimelyError, match="begins with"):
        cc.read_edges(spark, str(tmp_path), "csv", None)


def test_imports_are_found_with_their_names(tmp_path: Path) -> None:
    import run

    package = tmp_path / "pack" / "age"
    package.mkdir(parents=True)
    (tmp_path / "pack" / "__init__.py").write_text("from . import age\nimport os.path")
    (package / "__init__.py").write_text("from ..other import thing\nfrom pack import age as again")
    (package / "broken.py").write_text("print 'two'")
    assert set(run.imports(tmp_path)) == {
        ("pack", "pack.age"), ("pack", "os.path"), ("pack.age", "pack.other"), ("pack.age", "pack.age")
    }  # fmt: skip
