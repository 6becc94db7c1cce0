"""Every law on the page has tests, and the tests that a page cites exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "laws.md").read_text(encoding="utf-8")


def names_in(path: str) -> set[str]:
    """The tests of a file."""
    functions = [node for node in ast.parse((ROOT / path).read_text(encoding="utf-8")).body
                 if isinstance(node, ast.FunctionDef)]  # fmt: skip
    return {function.name for function in functions if function.name.startswith("test_")}


@pytest.mark.slow
def test_cited_tests_exist() -> None:
    text = PAGE + (ROOT / "docs" / "naiad.md").read_text(encoding="utf-8")
    cited = [one.partition("::") for one in sorted(set(re.findall(r"`(tests/[^`]+)`", text)))]
    assert len(cited) > 80

    names = {path: names_in(path) for path, *_ in cited}
    assert [path for path in names if not names[path]] == []
    assert [(path, name) for path, _, name in cited if name and name not in names[path]] == []


def test_each_section_cites_one_and_nothing_else_looks_like_a_citation() -> None:
    sections = PAGE.split("\n## ")[1:]

    assert [section.splitlines()[0] for section in sections if "::test_" not in section] == []
    assert PAGE.count("`tests/") == len(re.findall(r"`tests/\S+?::\w+`", PAGE))
