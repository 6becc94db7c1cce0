"""Queries of Spark's own tests have its answers: rows come in random epochs, and some go and come again.

What comes of each file is a line of `outside/counts.txt`: what is accepted stays so, and what differs is told
there. `python -m tests.support.outside spark tests/oracle/outside/spark.tar.xz` prints these lines, and why
each query is refused. `outside/NOTICE` says where the files are from.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.outside.cases import Tally
from tests.support.outside.spark import spark

FOLDER = Path(__file__).parent / "outside"
LINES = (FOLDER / "counts.txt").read_text(encoding="utf-8").splitlines()
COUNTS = {line.partition(":")[0]: line for line in LINES if not line.startswith("#")}
#: some seconds of the campaign's minutes
EVERY_RUN = ("exists-basic", "in-having", "inner-join", "unpivot")


@pytest.mark.slow
@pytest.mark.share(1)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in EVERY_RUN else pytest.mark.campaign) for name in COUNTS],
)
def test_queries_have_the_answers_of_spark(name: str) -> None:
    tally = Tally()
    spark(FOLDER / "spark.tar.xz", [name], 1, tally)
    assert tally.lines() == [COUNTS[name]]
