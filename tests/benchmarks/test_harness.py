"""The harness: a query that does not answer gives no figure."""

from __future__ import annotations

import ast
import importlib
from functools import cache
from pathlib import Path
from symtable import symtable
from unittest import mock

import pytest

from benchmarks.harness import answered
from benchmarks.machine import ROOT

#: Whose changes a benchmark does not notice.
OURS = {"timely_spark", "benchmarks", "tests"}


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
    """And from one another and from tests: nobody imports a benchmark until it is run."""
    names = [
        (path.name, *each)
        for path in Path(ROOT, "benchmarks").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        for each in _names(node)
    ]

    assert {module.split(".")[0] for _, module, _ in names} == OURS
    lacking = [each for each in names if not _is_there(*each[1:])]
    assert lacking == []


def _names(node: ast.AST) -> list[tuple[str, str]]:
    """Modules of ours, each with a name that is taken from it."""
    match node:
        case ast.ImportFrom(module=str(module), names=names) if module.split(".")[0] in OURS:
            return [(module, alias.name) for alias in names]
        case ast.Attribute(value=ast.Name(id="ts"), attr=name):
            return [("timely_spark", name)]
    return []


@cache
def _bound(module: str) -> set[str]:
    """What a module of benchmarks or tests binds and has in it; importing them all takes seconds."""
    path = Path(ROOT, *module.split("."))
    inside = {one.stem for one in path.glob("*.py")}
    source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    symbols = symtable(source.read_text(encoding="utf-8"), str(source), "exec").get_symbols()
    return inside | {one.get_name() for one in symbols if one.is_assigned() or one.is_imported()}


def _is_there(module: str, name: str) -> bool:
    if module.startswith("timely_spark"):
        return hasattr(importlib.import_module(module), name)
    return name in _bound(module)
