"""Each line of the page's list is kept up to date."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import duckdb
import pytest

from tests.support.duck import answers, at, expected, history

PAGE = Path(__file__).parents[2] / "docs" / "sql.md"


def examples() -> dict[str, str]:
    """What the list has, each with its query."""
    _, _, text = PAGE.read_text(encoding="utf-8").partition("## What is kept up to date")
    return dict(re.findall(r"(?m)^\| (.*) \| `(.*)` \|$", text.partition("## Recursion")[0]))


PARTS = 6


@pytest.mark.slow
@pytest.mark.share(PARTS)
@pytest.mark.parametrize("part", range(PARTS))
def test_each_line_of_the_list_is_what_a_new_run_and_duckdb_answer(part: int) -> None:
    queries, changes = [*examples().values()][part::PARTS], history(5, epochs=3)
    assert len(queries) > 50 / PARTS
    ours = answers(queries, changes, seed=5)
    last = {name: [[(*row, 1) for row in at(each, 2)]] for name, each in changes.items()}
    assert [epochs[-1] for epochs in ours] == [epochs[0] for epochs in answers(queries, last, workers=1)]
    duck = [expected(queries, changes, epoch, refused=duckdb.Error) for epoch in range(3)]
    compared = 0
    for query, epochs, *theirs in zip(queries, ours, *duck, strict=True):
        if None not in theirs:  # it has another syntax
            assert epochs == theirs, query
            compared += 1
    assert compared > 30 / PARTS
    assert all(isinstance(one, Counter) for epochs in ours for one in epochs)
