"""TPC-DS's 99 queries: rows come in random epochs, some go and come again, and the last epoch is DuckDB's.

`outside/NOTICE` says where the queries and the rows are from.
"""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from tests.support.outside.cases import Tally
from tests.support.outside.duck import tpcds

ARCHIVE = Path(__file__).parent / "outside" / "tpcds.tar.xz"
#: in these a sum is divided by one that is 0: Spark has an error, DuckDB null
FAILED = {36, 90}


@pytest.mark.campaign  # TPC-H's queries and Spark's own statements are compared in every run
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("numbers", [range(n, min(n + 12, 100)) for n in range(1, 100, 12)], ids=str)
def test_queries_have_the_answers_of_duckdb(numbers: range, tmp_path: Path) -> None:
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    tally = Tally()

    tpcds(tmp_path, [*map(str, numbers)], 1, tally)

    assert {where: dict(of) for where, of in tally.counts.items()} == {
        f"TPC-DS {number}": {"FAILED" if number in FAILED else "same": 1} for number in numbers
    }
