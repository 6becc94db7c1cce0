"""The queries of Materialize and Feldera on their page: their recursion, run by DuckDB and here."""

from __future__ import annotations

import re
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

import timely_spark as ts

PAGE = (Path(__file__).parents[2] / "docs" / "from-materialize.md").read_text(encoding="utf-8")
MATERIALIZE, FELDERA = re.findall(r"```sql\n(.*?);\n```", PAGE, re.DOTALL)
EPOCHS = [[(1, 2, 1), (2, 1, 1), (2, 3, 1)], [(2, 3, -1)], [(1, 4, 1), (4, 5, 1)]]


def standard(query: str) -> str:
    """The query with the heads of standard SQL in place of those of its product."""
    query = re.sub(r"CREATE MATERIALIZED VIEW near AS\s", "", query)
    query = query.replace("MUTUALLY RECURSIVE near (node bigint)", "RECURSIVE near(node)")
    declared = re.fullmatch(r"DECLARE RECURSIVE VIEW near\(node BIGINT\);\s*(.*)", query, re.DOTALL)
    return f"WITH RECURSIVE near(node) AS ({declared[1]}) SELECT node FROM near" if declared else query


@pytest.mark.slow
@pytest.mark.parametrize("query", [MATERIALIZE, FELDERA], ids=["Materialize", "Feldera"])
def test_their_recursion_gives_what_duckdb_and_this_library_give(query: str) -> None:
    flow = ts.Dataflow("near")
    edges = flow.input("edges", "src long, dst long, diff long").collection(diff="diff")
    ts.sql(standard(query), edges=edges).capture("near")
    out = ts.testing.run(flow, {"edges": EPOCHS})["near"]

    for epoch in range(len(EPOCHS)):
        present = {row[:2] for rows in EPOCHS[: epoch + 1] for row in rows if row[2] > 0}
        present -= {row[:2] for rows in EPOCHS[: epoch + 1] for row in rows if row[2] < 0}
        with duckdb.connect() as connection:
            connection.register(
                "edges", pa.table({"src": [a for a, _ in present], "dst": [b for _, b in present]})
            )
            expected = sorted(connection.execute(standard(query)).fetchall())
        now = sorted((row["node"],) for row in ts.snapshot(out, at=epoch).to_pylist())
        assert now == expected
