"""The figures of README and of pages are those of the committed results."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.figures import END, TABLES
from benchmarks.machine import ROOT


@pytest.mark.parametrize(("page", "begin", "made"), TABLES)
def test_a_table_says_what_the_results_say(page: Path, begin: str, made: Callable[[], str]) -> None:
    text = page.read_text(encoding="utf-8")

    shown = text.split(begin)[1].split(END)[0]

    assert shown == made(), "run python -m benchmarks.figures"


@pytest.mark.parametrize("page", ["asking", "naiad"])
def test_a_page_has_the_measured_times_of_questions(page: str) -> None:
    lines = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8").splitlines()
    text = " ".join(line for line in lines if page == "asking" or line.startswith("| Fig. 8"))
    rows = json.loads((ROOT / "benchmarks/results/asking.json").read_text(encoding="utf-8"))["rows"]
    ours = {row["case"]: f"{row['ours']:.0f} ms" for row in rows}
    cases = [f"{kind}, {share}" for kind in ("fresh", "stale") for share in ("median", "p95")]
    cases += ["1,000 look-ups a second, p99"] if page == "asking" else []

    assert [(case, ours[case]) for case in cases if ours[case] not in text] == []
