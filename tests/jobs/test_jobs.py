"""The jobs as a person runs them, on small inputs; and their flows against independent answers."""

from __future__ import annotations

import argparse
import gzip
import importlib
import io
import os
import random
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr
from pathlib import Path
from runpy import run_path
from threading import Thread, current_thread
from types import SimpleNamespace
from typing import Any

import networkx as nx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from chispa import assert_df_equality
from pyarrow import csv
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

import timely_spark as ts
from tests.support.accumulated import after_each
from tests.support.tables import rows_of

ROOT = Path(__file__).parents[2]
JOBS = ROOT / "jobs"
TEXTS = [
    "To be, or not to be: that is the question.\nto_be 2b",
    "Äpfel ÄPFEL; İstanbul\n\nthe question",
    "",
    "nothing new under the sun",
]


def submitted(name: str, *args: Any) -> subprocess.CompletedProcess[str]:
    """Run a job by spark-submit with the tuned properties."""
    import pyspark

    home = Path(pyspark.__file__).parent
    conf = ROOT / "conf" / "timely.properties"
    packages = ["--packages", "io.delta:delta-spark_4.2_2.13:4.4.0", "--py-files", str(JOBS / "cli.py")]
    local = ["--master", "local[2]", "--properties-file", str(conf), *packages]
    return subprocess.run(
        ["bash", str(home / "bin" / "spark-submit"), *local, str(JOBS / f"{name}.py"), *map(str, args)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run a job as the main program, which must end with exit code 2 before Spark starts; what it says."""

    def started(*_: Any) -> None:
        raise AssertionError

    def run(name: str, *args: Any, cwd: Path = ROOT) -> str:
        monkeypatch.chdir(cwd)
        monkeypatch.setattr(SparkSession, "getActiveSession", lambda: None)  # that of other tests
        monkeypatch.setattr(SparkSession, "_instantiatedSession", None)
        monkeypatch.setattr(SparkSession.Builder, "getOrCreate", started)
        monkeypatch.setattr(sys, "argv", [name, *map(str, args)])
        with pytest.raises(SystemExit, match="2"):
            run_path(str(JOBS / f"{name}.py"), run_name="__main__")
        return capsys.readouterr().err

    return run


def write_texts(folder: Path) -> list[Counter[str]]:
    """Text files, in the order in which Spark takes them; the words of each."""
    folder.mkdir()
    for i, text in enumerate(TEXTS):
        file = folder / f"{i}.txt"
        file.write_text(text, encoding="utf-8")
        os.utime(file, (1_600_000_000 + i,) * 2)
    return [Counter(word.lower() for word in re.findall(r"\w+", text)) for text in TEXTS]


@pytest.mark.parametrize(
    "name",
    sorted({path.stem for path in JOBS.glob("*.py") if "\ndef main(" in path.read_text("utf-8")} - {"look"}),
)
def test_every_job_that_runs_a_query_shows_how_far_it_is(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    with pytest.raises(SystemExit):
        importlib.import_module(name).main()

    assert "--progress" in capsys.readouterr().out


@pytest.mark.campaign  # tests/cluster does the same on a cluster
@pytest.mark.timeout(240)
def test_word_count_by_spark_submit(spark: SparkSession, tmp_path: Path) -> None:
    words = write_texts(tmp_path / "in")
    args = ["--input", tmp_path / "in", "--output", tmp_path / "out", "--checkpoint", tmp_path / "ck"]

    done = submitted("wordcount", *args, "--files-per-epoch", 1, "--workers", 2)

    assert done.returncode == 0, done.stderr
    # a micro-batch of an empty file alone brings Spark nothing to read: its number is used up, and no epoch
    assert re.findall(r"^epoch (\d+): 1 round,", done.stdout, re.MULTILINE) == ["0", "1", "3"]
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


def write_parquet(folder: Path, epoch: int, rows: list[tuple[int, ...]], *columns: str) -> None:
    """A file of edges; the files in the order in which Spark takes them."""
    folder.mkdir(exist_ok=True)
    table = {
        name: pa.array(ids, pa.int32()) for name, ids in zip(columns, zip(*rows, strict=True), strict=True)
    }
    pq.write_table(pa.table(table), folder / f"{epoch}.parquet")
    os.utime(folder / f"{epoch}.parquet", (1_600_000_000 + epoch,) * 2)


@pytest.mark.timeout(240)
def test_components_of_a_graph_that_grows_and_shrinks(
    spark: SparkSession, tmp_path: Path, here: Callable[..., str]
) -> None:
    grown = [random_edges(60, 40, seed) for seed in range(2)]
    epochs = [[(*edge, 1) for edge in edges] for edges in grown]
    epochs += [[*((*edge, -1) for edge in grown[0] + grown[1][:9]), (77, 77, 2)], [(77, 77, -2)]]
    for epoch, rows in enumerate(epochs):
        write_parquet(
            tmp_path / "in", epoch, [(dst, src, diff) for src, dst, diff in rows], "dst", "src", "diff"
        )
    args = ["--edges", tmp_path / "in", "--output", tmp_path / "out", "--files-per-epoch", 1, "--workers", 3]

    printed = here("connected_components", *args, "--progress")

    assert re.search(r"^connected_components.*: ended, batch 3", printed, re.MULTILINE)
    seen = re.findall(r"^epoch (\d+): ", printed, re.MULTILINE)
    assert seen == [*"0123"]
    table = spark.read.format("delta").load(str(tmp_path / "out"))
    assert [(field.name, field.dataType.simpleString()) for field in table.schema] == [
        ("epoch", "bigint"), ("node", "bigint"), ("component", "bigint"), ("diff", "int")
    ]  # fmt: skip
    changes = [row.asDict() for row in table.collect()]
    for epoch, edges in enumerate(after_each(epochs)):
        there = [*edges]
        total: Counter[tuple[int, int]] = Counter()
        for row in changes:
            if row["epoch"] <= epoch:
                total[row["node"], row["component"]] += row["diff"]
        assert {key: n for key, n in total.items() if n} == dict.fromkeys(components(there).items(), 1)


@pytest.mark.campaign  # `test_what_cannot_be_an_edge_is_shown` in every run
def test_bad_edges_lose_nothing(spark: SparkSession, tmp_path: Path, here: Callable[..., str]) -> None:
    """A null among the ids stops the job; with the file mended it goes on to the whole answer."""
    (tmp_path / "in").mkdir()
    file = tmp_path / "in" / "0.csv"
    args = ["--edges", tmp_path / "in", "--format", "csv", "--output", tmp_path / "out"]
    file.write_text("src,dst\n1,2\n3,\n")
    with pytest.raises(ts.TimelyError, match="'src': 3, 'dst': None}: dst is null or negative"):
        here("connected_components", *args)

    file.write_text("src,dst\n1,2\n3,2\n")
    here("connected_components", *args)
    assert rows_of(tmp_path / "out") == [(0, 1, 1, 1), (0, 2, 1, 1), (0, 3, 1, 1)]


def test_an_epoch_is_told_once_and_no_epoch_too(capsys: pytest.CaptureFixture[str]) -> None:
    import cli

    args = argparse.Namespace(progress=False)
    done = [SimpleNamespace(epoch=epoch, rounds=2, milliseconds=9) for epoch in (0, 0, 1)]
    for epochs, says in (
        (done, "epoch 0: 2 rounds, 9 ms\nepoch 1: 2 rounds, 9 ms\n"),
        ([], "no new input\n"),
    ):
        query: Any = SimpleNamespace(epochs=lambda e=epochs: iter(e), await_termination=int)
        cli.report(query, args)
        assert capsys.readouterr() == (says, "")


def test_a_job_says_what_it_waits_for_beside_its_answers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import cli

    def configure(*_: Any, **__: Any) -> Any:
        cli.say("fetching jars")
        session = SimpleNamespace(version="4.2.0", createDataFrame=lambda *_: users.append(current_thread()))
        return SimpleNamespace(getOrCreate=lambda: session)

    monkeypatch.setattr(ts, "configure", configure)
    monkeypatch.setattr(cli, "quietly", lambda: redirect_stderr(io.StringIO()))
    users: list[Thread] = []
    cli.session("counts")
    assert users == [current_thread()], "the session is the active one of this thread"
    query: Any = SimpleNamespace(epochs=lambda: iter([]), await_termination=int)
    cli.report(query, argparse.Namespace(progress=False, follow=True, checkpoint="ck"))

    printed = capsys.readouterr()
    assert printed.out == "no new input\n"
    assert re.sub(r"\d+ s;", "7 s;", printed.err).splitlines() == [
        "counts: starting Spark",
        "fetching jars",
        "counts: Spark 4.2.0 has started after 7 s; a first epoch takes seconds more",
        "it runs until Ctrl-C; `python -m timely_spark status ck` shows how far it is",
    ]


def test_a_changed_job_finds_the_state_of_each_step() -> None:
    """A start warns of steps with state and without a name, which a user of a job cannot give."""
    from entity_resolution import entities, records_of
    from import_cycles import READ, import_cycles
    from k_exposure import k_exposure
    from mentions import mentions
    from pagerank import pagerank
    from shortest_paths import shortest_paths
    from wordcount import word_count

    flow = ts.Dataflow("jobs")
    edges = flow.input("roads", "src long, dst long, w long").collection()
    posts, keys = flow.input("posts", "user string, text string, at long"), [["email"], ["phone"]]
    records = records_of(flow.input("records", "id long, email string, phone string"), "id", keys)
    lines, files = flow.input("lines", "value string"), flow.input("files", READ).collection()
    follows = flow.input("follows", "user string, followed string, at long")
    answers: dict[str, Callable[[], Any]] = {
        "words": lambda: word_count(lines),
        "ranks": lambda: pagerank(edges, 3, 0.85),
        "hops": lambda: shortest_paths(edges, [1], None),
        "ways": lambda: shortest_paths(edges, [1], "w"),
        "cycles": lambda: import_cycles(files),
        "exposure": lambda: k_exposure(posts, follows),
        "top": lambda: mentions(posts)[1],
        "people": lambda: entities(records, keys, 10)[0],
    }
    for name, answer in answers.items():
        with flow.region(name):
            answer().capture()

    assert flow.compile().unnamed == ()


def test_what_cannot_be_an_edge_is_shown() -> None:
    from edges import checked

    good = pa.table({"src": [0], "dst": [1], "diff": [-1]})
    assert checked(good) is good
    for bad, says in [
        ({"src": [1, -2], "dst": [1, 1]}, r"'src': -2.*src is null or negative"),
        (
            {"src": [1], "dst": [1], "diff": pa.array([None], pa.int64())},
            r"(?s)diff is not an integer.*mend the file",
        ),
    ]:
        with pytest.raises(ts.TimelyError, match=says):
            checked(pa.table(bad))


@pytest.mark.campaign
@pytest.mark.timeout(240)
def test_shortest_paths_go_on_after_a_stop(
    spark: SparkSession, tmp_path: Path, here: Callable[..., str]
) -> None:
    (tmp_path / "in").mkdir()
    args = ["--edges", tmp_path / "in", "--format", "csv", "--weight", "km"]
    args += ["--output", tmp_path / "out", "--current", tmp_path / "now"]
    (tmp_path / "in" / "0.csv").write_text("1,2,9.5,1\n1,3,2,1\n3,2,1.5,1\n7,2,1e3,1\n")
    here("shortest_paths", *args, "--from", 1, 7, 99)
    assert rows_of(tmp_path / "now") == [(0, 1, 0.0), (0, 2, 3.5), (0, 3, 2.0), (0, 7, 0.0)]

    here("shortest_paths", *args, "--from", 7, 1, 99)  # nothing new
    (tmp_path / "in" / "1.csv").write_text("1,3,2,-1\n99,1,5,1\n")
    here("shortest_paths", *args, "--from", 1, 7, 99)

    now = {row[1:]: row[0] for row in rows_of(tmp_path / "now")}
    assert {*now} == {(1, 0.0), (2, 9.5), (7, 0.0), (99, 0.0)}
    assert now[2, 9.5] > now[1, 0.0] == 0
    log = ts.snapshot(spark.read.format("delta").load(str(tmp_path / "out")))
    assert {*map(tuple, log.collect())} == {*now}
    with pytest.raises(ts.TimelyError, match="shortest_paths, sources"):
        here("shortest_paths", *args, "--from", 1)


def changed(epochs: list[list[tuple[int, int, int]]]) -> Iterator[nx.MultiDiGraph]:
    """The graph after each epoch of (src, dst, diff)."""
    return (nx.MultiDiGraph([*edges.elements()]) for edges in after_each(epochs))


@pytest.mark.slow
def test_ranks_and_distances_are_those_of_networkx() -> None:
    import pagerank
    import shortest_paths

    draw = random.Random(3)
    grown = [(*edge, 1) for edge in random_edges(30, 90, 3)]
    epochs = [grown, [(src, dst, -1) for src, dst, _ in draw.sample(grown, 40)] + [(0, 1, 1), (0, 0, -5)]]
    flow = ts.Dataflow("both")
    edges = flow.input("edges", "src long, dst long, diff long").collection(diff="diff")
    pagerank.pagerank(edges, 30, 0.85).changes().capture("rank")
    shortest_paths.shortest_paths(edges, [3, 4], None).changes().capture("paths")
    with pytest.warns(UserWarning, match="more was removed than inserted: {'src': 0, 'dst': 0}"):
        result = ts.testing.run(flow, {"edges": epochs}, workers=2)

    epochs[1] = [row for row in epochs[1] if row != (0, 0, -5)]  # taken away without having been there
    ranks, paths = Counter[Any](), Counter[Any]()
    for epoch, graph in enumerate(changed(epochs)):
        for total, name in ((ranks, "rank"), (paths, "paths")):
            total.update({row[:2]: row[2] for row in result[name].rows()[epoch] if row[2] > 0})
            total.subtract({row[:2]: 1 for row in result[name].rows()[epoch] if row[2] < 0})
        found = dict(pair for pair, count in ranks.items() if count)
        sinks = [node for node in graph if not graph.out_degree(node)]
        expected = nx_ranks(graph, 30)
        assert found == pytest.approx(expected, abs=1e-3)
        assert sinks or sum(found.values()) == pytest.approx(len(graph), abs=1e-2)
        near = nx.multi_source_dijkstra_path_length(graph, {3, 4} & {*graph}, weight=None)
        assert dict(pair for pair, count in paths.items() if count) == near


def nx_ranks(graph: nx.MultiDiGraph, iterations: int) -> dict[int, float]:
    """PageRank by the power method; what a node without successors has goes nowhere."""
    rank = dict.fromkeys(graph, 1.0)
    for _ in range(iterations):
        rank = {
            node: 0.15 + sum(0.85 * rank[src] / graph.out_degree(src) for src, _ in graph.in_edges(node))
            for node in graph
        }
    return rank


def test_an_error_is_one_line_and_an_exit_code(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import cli

    def fails() -> None:
        message = "no such thing. Hint: none."
        raise ts.TimelyError(message)

    for started, code in ((object(), "1"), (None, "2")):
        monkeypatch.setattr(SparkSession, "getActiveSession", lambda started=started: started)
        with pytest.raises(SystemExit, match=code):
            cli.run(fails)
        assert capsys.readouterr().err == "error: no such thing. Hint: none.\n"

    def unreadable() -> None:
        Path("/no/such/file").read_text(encoding="utf-8")

    with pytest.raises(SystemExit, match="2"):
        cli.run(unreadable)
    assert "'/no/such/file'" in capsys.readouterr().err

    def refused() -> None:  # by Spark
        message = "[PATH_NOT_FOUND] Path does not exist: s3://nowhere."
        raise AnalysisException(message)

    with pytest.raises(SystemExit, match="1"):
        cli.run(refused)
    says = "error: AnalysisException: [PATH_NOT_FOUND] Path does not exist: s3://nowhere.\n"
    assert capsys.readouterr().err == says


def test_a_checkpoint_of_other_arguments_is_refused_before_spark_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from edges import dataflow

    args = argparse.Namespace(checkpoint="ck", current=None)
    monkeypatch.setattr(ts, "inspect", lambda _: SimpleNamespace(flow="ranks, iterations 20, current"))
    with pytest.raises(ts.TimelyError, match=r"'ranks, iterations 20, current', .* 'ranks, iterations 5'"):
        dataflow("ranks", args, iterations=5)

    args.current = "now"
    assert dataflow("ranks", args, iterations=20).name == "ranks, iterations 20, current"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "args", "says"),
    [
        ("look", [str(ROOT)], "is not a Delta table: there is no"),
        ("look", ["/no/such/place"], "'/no/such/place' is not a Delta table"),
        ("wordcount", ["--input", "/no/such/place"], "'/no/such/place' is not a directory"),
        ("connected_components", ["--edges", "/no/such/place"], "'/no/such/place' is not a directory"),
        ("wordcount", ["--input", "/tmp", "--workers", "0"], "'0' is not a number of at least 1"),
        ("wordcount", [], "--input"),
        ("pagerank", ["--edges", "/tmp", "--damping", "1"], "'1' is not a number from 0 up and below 1"),
        ("shortest_paths", ["--edges", "/tmp", "--from", "-1"], "--from"),
        ("kmeans", ["--digits", "16"], "'16' is not a number from 1 to 15"),
        ("import_cycles", ["--root", "/no/such/place"], "'/no/such/place' is not a directory"),
    ],
)
def test_bad_arguments_are_reported_at_once(
    name: str, args: list[str], says: str, tmp_path: Path, refused: Callable[..., str]
) -> None:
    assert says in refused(name, *args, "--output", tmp_path / "out", "--checkpoint", tmp_path / "ck")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("places", "says"),
    [
        ({"output": "in"}, "--output '{in}' is --edges '{in}'"),
        ({"output": "o", "checkpoint": "o"}, "--output '{o}' is --checkpoint '{o}'"),
        ({"current": "o"}, "--output '{o}' is --current '{o}'"),
        ({"checkpoint": "in/ck"}, "--checkpoint '{in/ck}' is inside of --edges '{in}'"),
        ({"checkpoint": "o/ck"}, "--checkpoint '{o/ck}' is inside of --output '{o}'"),
        ({"output": "file"}, "argument --output: '{file}' is a file, no directory"),
        ({"checkpoint": "file"}, "argument --checkpoint: '{file}' is a file, no directory"),
    ],
)
def test_no_place_is_read_and_written_or_twice(
    places: dict[str, str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import edges

    (tmp_path / "in").mkdir()
    (tmp_path / "file").touch()
    of = {"edges": "in", "output": "o", "checkpoint": "ck", **places}
    given = [text for name, place in of.items() for text in (f"--{name}", str(tmp_path / place))]
    with pytest.raises(SystemExit, match="2"):
        edges.arguments("").parse_args(given)
    expected = re.sub(r"\{(.*?)\}", lambda found: str(tmp_path / found[1]), says)
    assert expected in capsys.readouterr().err
    rest = ["--edges", str(tmp_path / "in"), "--checkpoint", str(tmp_path / "ck")]
    for table in ("s3://bucket/in", "catalog.schema.in", str(tmp_path / "in2")):
        assert edges.arguments("").parse_args([*rest, "--output", table]).output == table
    for table in ("out", ".", ".."):  # not in a catalog
        assert edges.arguments("").parse_args([*rest, "--output", table]).output == f"./{table}"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "args", "says"),
    [
        ("connected_components", ["--edges", "bad", "--format", "csv"], "edges need (src long, dst long"),
        ("pagerank", ["--edges", "other"], "edges need (src long, dst long"),
        ("shortest_paths", ["--edges", "bad", "--format", "delta", "--from", "1"], "_delta_log"),
        ("mentions", ["--posts", "json"], "each line is an object with user, text"),
        (
            "k_exposure",
            ["--posts", "json", "--follows", "json"],
            "an object with user, text, at",
        ),
        ("entity_resolution", ["--records", "bad", "--format", "csv", "--keys", "no"], "--id and --keys"),
        ("kmeans", ["--data", "nothing"], "each line is 'label 1:value"),
        ("kmeans", ["--clusters", "1000"], "give fewer clusters"),
        ("logistic_regression", ["--label", "no"], "--label"),
        ("graphalytics", ["--graph", "nothing", "--algorithm", "BFS"], "there is no file nothing.properties"),
    ],
)
def test_wrong_inputs_are_wrong_arguments(
    name: str,
    args: list[str],
    says: str,
    tmp_path: Path,
    refused: Callable[..., str],
) -> None:
    contents = {"bad/a.csv": "a,b\n1,2\n", "json/a.json": '{"user": 1}\n'}
    (tmp_path / "other").mkdir()
    pq.write_table(pa.table({"a": [1]}), tmp_path / "other" / "a.parquet")
    for file, text in contents.items():
        (tmp_path / file).parent.mkdir()
        (tmp_path / file).write_text(text)
    written = (
        ["--output", "out", "--checkpoint", "ck"] if name not in {"kmeans", "logistic_regression"} else []
    )
    written = ["--checkpoint", "ck"] if name == "mentions" else written
    printed = refused(name, *args, *(written[:2] if name == "graphalytics" else written), cwd=tmp_path)
    assert "Traceback" not in printed
    assert says in printed
    assert not {"out", "ck"} & {path.name for path in tmp_path.iterdir()}


def test_wrong_columns_are_reported_before_the_start(tmp_path: Path) -> None:
    from edges import read_edges

    pq.write_table(pa.table({"from": [1], "dst": ["x"]}), tmp_path / "0.parquet")
    with pytest.raises(ts.TimelyError, match=r"edges need \(src long, dst long, diff long\)"):
        read_edges(ts.Dataflow("edges"), str(tmp_path), "parquet", None)
    (tmp_path / "0.csv").write_text("a,b\n1,2\n")
    with pytest.raises(ts.TimelyError, match="begins with"):
        read_edges(ts.Dataflow("edges"), str(tmp_path), "csv", None)
    (tmp_path / "0.csv").write_text("dst,src,diff\n1,2,1\n")
    with pytest.raises(ts.TimelyError, match=r"begins with .*edges need \(src long, dst long, km double"):
        read_edges(ts.Dataflow("edges"), str(tmp_path), "csv", None, "km")
    assert read_edges(ts.Dataflow("edges"), str(tmp_path), "csv", None).schema.names == ["src", "dst"]


@pytest.mark.parametrize(
    ("files", "columns"),
    [
        ({"a.csv": b"src,dst\n1,2\n", "b.csv": b"dst,diff,src\n3,-1,4\n"}, None),
        ({"a.csv": b"src,dst\n1,2\n", "0.csv": b"", "_b.csv": b"junk"}, None),
        ({"a.csv.gz": gzip.compress(b"src,dst,age\n1,2,3\n")}, None),
        ({"a.txt": b"1,2,1\n"}, ["src", "dst", "diff"]),
        ({"a.txt": b"1,2\n"}, ["src", "dst"]),
        ({}, ["src", "dst"]),
    ],
)
def test_names_of_columns_of_csv_are_those_of_the_newest_file(
    tmp_path: Path, files: dict[str, bytes], columns: list[str] | None
) -> None:
    from edges import _csv_names

    for second, (name, content) in enumerate(files.items()):
        (tmp_path / name).write_bytes(content)
        os.utime(tmp_path / name, (second, second))
    assert _csv_names(str(tmp_path), None) == columns


@pytest.mark.parametrize("form", ["csv", "parquet"])
@pytest.mark.parametrize("newest", ["with", "without"])
def test_files_of_edges_without_diff_add_them(tmp_path: Path, form: str, newest: str) -> None:
    """In whichever order they arrive, also after the start."""
    from edges import read_edges

    from timely_spark.runtime.sources.arrivals import Part

    def write(name: str, age: int, **columns: list[int]) -> None:
        path = tmp_path / name
        (pq.write_table if form == "parquet" else csv.write_csv)(pa.table(columns), path)
        os.utime(path, (age, age))

    write("with", 2 if newest == "with" else 1, src=[1, 1, 3], dst=[2, 2, 4], diff=[1, -1, 2])
    write("without", 1 if newest == "with" else 2, dst=[6, 8], src=[5, 7])
    flow = ts.Dataflow("edges")
    read_edges(flow, str(tmp_path), form, None).changes("diff").capture("out")
    write("later", 3, src=[5], dst=[6], diff=[-1])
    folder: Any = flow.frames["edges"].folder
    schema, folder = folder.inspect("src long, dst long, diff long")
    parts = [Part(file.path, 0, file.size) for file in folder.files()]
    read = pa.Table.from_batches(folder.read(parts, schema, schema.names))
    out = ts.testing.run(flow, {"edges": [read.to_pylist()]})["out"].rows()[0]
    assert sorted(out) == [(3, 4, 2), (7, 8, 1)]


def test_columns_are_those_of_the_newest_file_or_those_to_come(tmp_path: Path) -> None:
    import posts
    from edges import _source

    (tmp_path / "in").mkdir()
    kinds = {"user": "string", "text": "string", "at": "long"}
    assert posts.read(ts.Dataflow("posts"), "posts", str(tmp_path / "in"), None, kinds).schema.names == [
        *kinds
    ]

    def columns() -> list[str]:
        return _source(ts.Dataflow("edges"), str(tmp_path / "in"), "parquet", None, None).schema.names

    assert columns() == ["src", "dst", "diff"]
    pq.write_table(pa.table({"src": [1], "dst": [2], "diff": [-1]}), tmp_path / "in" / "part-0")
    assert columns() == ["src", "dst", "diff"]  # whatever the file is called
    (tmp_path / "in" / "part-0").write_text("damaged")
    assert columns() == ["src", "dst", "diff"]  # it is told when it is read: an order may skip it by then


def test_imports_are_found_with_their_names(tmp_path: Path) -> None:
    from timely_spark.demo.imports import meant, packages

    package = tmp_path / "pack" / "age"
    package.mkdir(parents=True)
    (tmp_path / "pack" / "__init__.py").write_text("from . import age\nimport os.path")
    (package / "__init__.py").write_text("from ..other import thing\nfrom pack import age as again")
    (package / "broken.py").write_text("print 'two'")
    ((name, modules),) = packages(tmp_path, "pack", 10)
    assert name == "pack"
    assert {(module, meant(name, modules) or name) for module in modules for name in modules[module]} == {
        ("pack", "pack.age"), ("pack", "os.path"), ("pack.age", "pack.other:thing"), ("pack.age", "pack.age")
    }  # fmt: skip
