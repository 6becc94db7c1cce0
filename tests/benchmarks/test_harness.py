"""The harness: a query that does not answer gives no figure."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from unittest import mock

import pytest

from benchmarks.harness import answered
from benchmarks.machine import ROOT

IMPORT = re.compile(r"^ *from (timely_spark[\w.]*) import (\([^)]*\)|.*)$", re.MULTILINE)


def test_a_query_that_does_not_answer_is_an_error() -> None:
    query = mock.Mock(**{"wait_for.return_value": False, "exception.return_value": ValueError("failed")})
    query.name = "counts"

    with pytest.raises(TimeoutError, match="no answer of 'counts' in 3 s") as error:
        answered(query, "out", timeout=3)

    assert isinstance(error.value.__cause__, ValueError)
    query.wait_for.assert_called_once_with("out", epoch=None, timeout=3)


def test_all_benchmarks_wait_by_the_harness() -> None:
    waits = [path.name for path in Path(ROOT, "benchmarks").glob("*.py") if ".wait_for(" in path.read_text()]

    assert waits == ["harness.py"]


def test_what_benchmarks_take_from_the_package_is_there() -> None:
    """Nobody imports a benchmark until it is run."""
    imports = [
        (path.name, module, name)
        for path in Path(ROOT, "benchmarks").rglob("*.py")
        for module, names in IMPORT.findall(path.read_text(encoding="utf-8"))
        for name in re.findall(r"\w+(?= as|,|\n|$)", names.strip("()"))
    ]

    assert len(imports) > 50
    lacking = [each for each in imports if not hasattr(importlib.import_module(each[1]), each[2])]
    assert lacking == []
