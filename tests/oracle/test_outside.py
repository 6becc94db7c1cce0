"""Queries of other systems' tests have their answers: rows come in random epochs, and some go and come again.

A recursion runs at once and row by row, too. What comes of each file is a line of `outside/counts.txt`: what
is accepted stays so, and what differs is told there. `outside/NOTICE` says where the files are from, and
`python -m tests.support.outside spark tests/oracle/outside/spark.tar.xz` why each query is refused.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.outside.cases import Tally
from tests.support.outside.duck import logic
from tests.support.outside.spark import spark

FOLDER = Path(__file__).parent / "outside"
#: some seconds of the campaign's minutes
EVERY_RUN = ("exists-having", "in-multiple-columns", "inner-join", "unpivot")


def counts() -> dict[str, dict[str, str]]:
    """The lines of `counts.txt` by system and file."""
    systems: dict[str, dict[str, str]] = {}
    for line in (FOLDER / "counts.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            of = systems.setdefault(line.strip("[]"), {})
        elif not line.startswith("#"):
            of[line.partition(":")[0]] = line
    return systems


COUNTS = counts()


@pytest.mark.slow
@pytest.mark.share(1)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in EVERY_RUN else pytest.mark.campaign) for name in COUNTS["spark"]],
)
def test_queries_have_the_answers_of_spark(name: str) -> None:
    tally = Tally()
    spark(FOLDER / "spark.tar.xz", [name], 1, tally)
    assert tally.lines() == [COUNTS["spark"][name]]


@pytest.mark.campaign
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("system", "name"),
    [(system, name) for system, of in COUNTS.items() if system != "spark" for name in of],
)
def test_queries_of_logic_tests_have_the_answers_of_duckdb(system: str, name: str) -> None:
    tally = Tally()
    logic(FOLDER / f"{system}.tar.xz", ["duckdb", f"{name}.*"], 1, tally)
    assert tally.lines() == [COUNTS[system][name]]
