"""The house rules of CONTRIBUTING.md that a machine can check, beyond what ruff and mypy say."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest

import timely_spark

PACKAGE = Path(__file__).parents[1] / "timely_spark"
MODULES = sorted(PACKAGE.rglob("*.py"))

LONGEST = 600
SAYING_NOTHING = {"utils", "util", "helpers", "common", "misc", "core"}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_a_module_is_named_after_a_concept_short_and_documented(path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    names = {part.strip("_") for part in path.relative_to(PACKAGE).with_suffix("").parts}

    assert ast.get_docstring(ast.parse(source)), "has no docstring"
    assert "\nfrom __future__ import annotations\n" in source
    assert len(source.splitlines()) <= LONGEST
    assert names.isdisjoint(SAYING_NOTHING)


def test_public_names_are_sorted_as_ruff_sorts_them() -> None:
    names = list(timely_spark.__all__)

    # constants, then classes, then functions
    assert names == sorted(names, key=lambda name: (not name.isupper(), not name[0].isupper(), name))


@pytest.mark.parametrize("name", [name for name in timely_spark.__all__ if name != "__version__"])
def test_a_public_name_explains_itself_with_an_example(name: str) -> None:
    thing = getattr(timely_spark, name)
    # its own words, not those that a class inherits; a constant is explained by its class
    says_its_own = inspect.isclass(thing) or inspect.isroutine(thing) or inspect.ismodule(thing)
    words = (thing if says_its_own else type(thing)).__doc__ or ""

    assert words.strip(), "has no docstring"
    assert ">>> " in words, "has no runnable example"
