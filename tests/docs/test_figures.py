"""README's figures are those of the committed results."""

from __future__ import annotations

from benchmarks.figures import BEGIN, END, README, table


def test_the_table_of_readme_says_what_the_results_say():
    text = README.read_text(encoding="utf-8")

    shown = text.split(BEGIN)[1].split(END)[0]

    assert shown == table(), "run python -m benchmarks.figures"
