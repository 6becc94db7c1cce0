"""The cookbook: each page has all its parts, the index has each page, and its programs start on Spark."""

from __future__ import annotations

import io
import re
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import timely_spark as ts
from tests.docs.test_examples import _program, folder, shared  # noqa: F401 - fixtures

COOKBOOK = Path(__file__).parents[2] / "docs" / "cookbook"
PAGES = {
    page.stem: page.read_text(encoding="utf-8") for page in COOKBOOK.glob("*.md") if page.stem != "index"
}
#: The tables that a page reads on Spark, its inputs' columns, and the table that it keeps.
READ = re.compile(r'readStream\.table\("(\w+)"\)')
INPUT = re.compile(r'flow\.input\("(\w+)", "([^"]+)"')
KEPT = re.compile(r'"out/(\w+)"')
STARTED = sorted(page for page, text in PAGES.items() if "def on_spark(" in text and KEPT.search(text))


@pytest.mark.parametrize("page", sorted(PAGES))
def test_a_page_has_input_program_picture_output_and_cost(page: str) -> None:
    parts = ["\n|---|", "\n```mermaid\n", "\n```python\n", "\n```\n\n```\n", " costs.** ", "**On Spark.** "]
    missing = [part for part in parts if part not in PAGES[page]]

    assert missing == ([] if page != "migrate" else ["**On Spark.** "])  # all of that page is on Spark


def test_the_index_has_every_page_with_names_that_it_uses() -> None:
    index = (COOKBOOK / "index.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| .* \| (.*) \| \[[^\]]+\]\(([\w-]+)\.md\) \|$", index, re.MULTILINE)

    assert sorted(page for _, page in rows) == sorted(PAGES)
    words = {page: {*re.findall(r"\w+", text)} for page, text in PAGES.items()}
    named = {(page, name) for cell, page in rows for name in re.findall(r"`(?:ts\.|query\.)?(\w+)", cell)}
    assert {(page, name) for page, name in named if name not in words[page]} == set()


@pytest.mark.slow
def test_the_nearest_shops_are_those_before_their_distances_are_rounded() -> None:
    names: dict[str, Any] = {"__name__": "__main__"}
    with redirect_stdout(io.StringIO()):
        exec(compile(_program(PAGES["nearest"]), "nearest.py", "exec"), names)
    shops = [("a", 1.04, 0.0), ("b", 1.02, 0.0), ("c", 1.01, 0.0), ("d", 10.04, 0.0)]
    flow = ts.Dataflow("shops")
    customers, offers = (
        flow.input(name, f"{name} string, x double, y double").collection() for name in ("who", "shop")
    )
    names["nearest"](customers, offers).capture("nearest")
    out = ts.testing.run(flow, {"who": [[("ann", 0.0, 0.0), ("eve", 10.0, 9.0)]], "shop": [shops]})

    rows = ts.snapshot(out["nearest"]).to_pylist()
    assert sorted((row["who"], row["shop"]) for row in rows) == [("ann", "b"), ("ann", "c"), ("eve", "d")]


@pytest.mark.campaign  # tests/test_maintained.py keeps an algorithm, one of two inputs, and a query in SQL
@pytest.mark.usefixtures("shared")
@pytest.mark.parametrize("page", STARTED)
def test_a_page_keeps_on_spark_the_table_that_it_shows(page: str, spark: SparkSession) -> None:
    names: dict[str, Any] = {"__name__": "__main__"}
    with redirect_stdout(io.StringIO()):
        exec(compile(_program(PAGES[page]), f"{page}.py", "exec"), names)
    schemas, read = dict(INPUT.findall(PAGES[page])), READ.findall(PAGES[page])
    kept = KEPT.findall(PAGES[page].split("def on_spark(")[1])[0]
    out = names["out"] if not isinstance(names["out"], dict) else names["out"][kept]
    try:
        for name in read:
            rows = [
                row if isinstance(row, tuple) else (row,) for rows in names["inputs"][name] for row in rows
            ]
            spark.createDataFrame(rows, schemas[name]).write.format("delta").saveAsTable(name)
        query = names["on_spark"](spark)
        query.process_all_available()
        query.stop()
        table = spark.read.format("delta").load(f"out/{kept}").drop("epoch").toArrow()
    finally:
        for name in read:
            spark.sql(f"DROP TABLE IF EXISTS {name}")

    order = [(column, "ascending") for column in table.schema.names]
    expected = ts.snapshot(out)
    assert expected.num_rows
    assert (
        table.select(expected.schema.names).sort_by(order).to_pylist() == expected.sort_by(order).to_pylist()
    )
