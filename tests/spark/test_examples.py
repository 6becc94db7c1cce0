"""The examples in the docstrings of a running query's methods, as one program."""

from __future__ import annotations

import doctest
from importlib import import_module
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.support.examples import MODULES

#: they send more, or end the query, and so come last
LAST = ("Query.step", "Query.close", "Query.stop")


@pytest.mark.spark
def test_the_examples_of_a_running_query_say_what_it_answers(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    modules = [import_module(f"timely_spark.runtime.handle.{name}") for name in MODULES]
    examples = [one for module in modules for one in doctest.DocTestFinder(exclude_empty=True).find(module)]
    examples.sort(key=lambda one: _place(one.name))
    names, failures = {"spark": spark}, list[str]()
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    try:
        for one in examples:
            one.globs = names
            runner.run(one, out=failures.append, clear_globs=False)
    finally:
        if "query" in names:
            names["query"].stop()

    assert not failures, "".join(failures)
    assert runner.tries > 40


def _place(name: str) -> tuple[int, int]:
    """The query's own example comes first."""
    short = name.partition(".handle.")[2].partition(".")[2]
    return (0 if short == "Query" else 2 if short in LAST else 1, LAST.index(short) if short in LAST else 0)
