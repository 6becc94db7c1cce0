"""The page of expressions lists the functions that there are; `python -m tests.sql.test_page` writes it."""

from __future__ import annotations

import textwrap
from pathlib import Path

import timely_spark.sql.expressions  # noqa: F401 - it enters all of them
from timely_spark.sql.binder import SPECIAL
from timely_spark.sql.forms import CHANGING
from timely_spark.sql.registry import FUNCTIONS

PAGE = Path(__file__).parents[2] / "docs" / "expressions.md"
#: operators that look like functions
SYNTAX = {"cast", "div", "in", "not"}


def listed() -> str:
    """All functions, in lines of the page."""
    names = sorted(name for name in {*FUNCTIONS, *SPECIAL} - {*CHANGING} - SYNTAX if name.isidentifier())
    return textwrap.fill(", ".join(f"`{name}`" for name in [*names, "if", "extract"]), 150)


def test_the_page_lists_the_functions() -> None:
    _, _, functions = PAGE.read_text(encoding="utf-8").partition("## Functions\n\n")

    assert functions.strip() == listed()
    assert functions.count("`") // 2 >= 150


if __name__ == "__main__":
    text, head, _ = PAGE.read_text(encoding="utf-8").partition("## Functions\n\n")
    PAGE.write_text(f"{text}{head}{listed()}\n", encoding="utf-8")
