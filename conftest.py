"""Which files of the project have examples that are tests: this folder's hooks hold for the package, too."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from _pytest.doctest import DoctestModule

import timely_spark.graphs  # noqa: F401 - before pytest imports a file of the package that is named alone
from tests.support.examples import of_running_query

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(file_path: Path) -> Iterator[list[pytest.Collector]]:
    """Look for docstrings' examples in files that have some, which is a fifth of the collection's time."""
    collectors = yield
    if file_path.suffix == ".py" and (b">>> " not in file_path.read_bytes() or of_running_query(file_path)):
        return [one for one in collectors if not isinstance(one, DoctestModule)]
    return collectors
