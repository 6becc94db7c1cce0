"""Every law on the page has tests, and they exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "laws.md").read_text(encoding="utf-8")
CITED = sorted(set(re.findall(r"`(tests/\S+?)::(\w+)`", PAGE)))


@pytest.mark.parametrize(("path", "name"), CITED, ids=lambda part: part)
def test_a_cited_test_exists(path: str, name: str) -> None:
    module = ast.parse((ROOT / path).read_text(encoding="utf-8"))

    assert name in {node.name for node in module.body if isinstance(node, ast.FunctionDef)}
    assert name.startswith("test_")


def test_each_section_cites_one_and_nothing_else_looks_like_a_citation() -> None:
    sections = PAGE.split("\n## ")[1:]

    assert [section.splitlines()[0] for section in sections if "::test_" not in section] == []
    assert PAGE.count("`tests/") == len(re.findall(r"`tests/\S+?::\w+`", PAGE))
