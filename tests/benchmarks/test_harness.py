"""The harness: a query that does not answer gives no figure."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import pytest

from benchmarks.harness import answered
from benchmarks.machine import ROOT


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
