"""The figures of README and of docs/alternatives.md are those of the committed results."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.figures import END, TABLES


@pytest.mark.parametrize(("page", "begin", "made"), TABLES)
def test_a_table_says_what_the_results_say(page: Path, begin: str, made: Callable[[], str]) -> None:
    text = page.read_text(encoding="utf-8")

    shown = text.split(begin)[1].split(END)[0]

    assert shown == made(), "run python -m benchmarks.figures"
