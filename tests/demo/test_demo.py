"""The demonstration: the graph that it reads, the page that it writes, and a small run of it."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import timely_spark as ts
from tests.support.tables import rows_of
from timely_spark.__main__ import main
from timely_spark.demo import flow as demo
from timely_spark.demo.picture import rings

SOURCES = {
    "root/__init__.py": "import near.sub, near\nimport elsewhere",
    "root/own.py": "from . import __init__\nfrom near import sub, name",
    "near/__init__.py": "import large, far",
    "near/sub.py": "from __future__ import annotations\nfrom ..too_far import x",
    "large/__init__.py": "import hidden",
    "large/more.py": "",
    "far.py": "import unread",
    "hidden/__init__.py": "",
    "near/broken.py": "def",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in SOURCES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


def test_the_graph_is_what_the_root_imports_within_the_limit(folder: Path) -> None:
    graph = demo.read_graph(folder, "root", 6)

    edges = {
        (graph.names[a], graph.names[b])
        for a, b in zip(graph.edges["src"].to_pylist(), graph.edges["dst"].to_pylist(), strict=True)
    }
    assert graph.names[graph.root] == "root"
    assert {edge for edge in edges if not edge[1].startswith((".", "__future__"))} == {
        ("root", "near.sub"),
        ("root", "near"),
        ("root", "elsewhere"),
        ("root.own", "root"),
        ("root.own", "near.sub"),
        ("root.own", "near"),
        ("near", "large"),
        ("near", "far"),
    }


def test_rings_have_a_dot_for_each_node_and_are_well_formed() -> None:
    names = [f"{'<&'[i % 2]}{i % 9}.m{i}" for i in range(50)]

    drawn = ET.fromstring(rings(names, {i: i % 4 for i in range(0, 50, 2)}))

    titles = {title.text for title in drawn.iter("{http://www.w3.org/2000/svg}title")}
    assert titles == set(names[::2])


@pytest.mark.parametrize("epochs", ["0", "-1", "x"])
def test_a_wrong_number_is_refused(epochs: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["demo", "--epochs", epochs])
    assert f"{epochs!r} is not a number of at least 1" in capsys.readouterr().err


@pytest.mark.spark
def test_a_run_agrees_with_networkx_and_leaves_a_page_and_a_table(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("delta", reason="needs jars that are made for another Spark")
    draw = np.random.default_rng(3).integers(0, 40, (60, 2))
    edges = pa.table({"src": draw[:, 0], "dst": draw[:, 1]})
    graph = demo.ImportGraph([f"package{i % 5}.m{i}" for i in range(40)], edges, int(draw[0, 0]))

    shown = demo.run(spark, graph, tmp_path / "graph", workers=2, epochs=2)

    printed = capsys.readouterr().out
    assert "networkx agrees" in printed
    page = shown.read_text(encoding="utf-8")
    ET.fromstring(page.removeprefix("<!DOCTYPE html>"))
    assert page.count("<svg") == 3
    assert rows_of(tmp_path / "graph" / "components")


def test_an_answer_that_is_not_checked_is_said_to_be(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    graph = demo.ImportGraph(["a", "b"], pa.table({"src": [0], "dst": [1]}), 0)
    for networkx, says in ((False, "not checked"), (True, "networkx agrees")):
        monkeypatch.setattr(demo, "_has", lambda _, there=networkx: there)
        demo._check(graph, {0: 0, 1: 0}, {0: 0, 1: 1})
        assert says in capsys.readouterr().out
    with pytest.raises(ts.TimelyError, match="networkx does not agree"):
        demo._check(graph, {0: 0, 1: 1}, {0: 0, 1: 1})
