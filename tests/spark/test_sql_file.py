"""A file of SQL keeps a recursive view in a Delta table, and continues from its checkpoint."""

from __future__ import annotations

import pytest

import timely_spark as ts
from timely_spark.sql_file import read_sql

pytestmark = pytest.mark.spark

RINGS = """
CREATE TABLE transfers (payer bigint, payee bigint, amount bigint, diff bigint)
  USING csv LOCATION '{folder}/in';
CREATE MATERIALIZED VIEW rings LOCATION '{folder}/rings' AS
WITH RECURSIVE reach(a, b) AS (
  SELECT payer, payee FROM transfers WHERE amount >= 1000
  UNION SELECT reach.a, t.payee FROM reach JOIN transfers t ON reach.b = t.payer WHERE t.amount >= 1000)
SELECT x.a AS account, min(x.b) AS ring FROM reach x JOIN reach y ON x.a = y.b AND x.b = y.a GROUP BY x.a
"""


def test_rings_of_transfers_follow_the_files(spark, tmp_path):
    def start(sql):
        flow, _ = read_sql(sql.format(folder=tmp_path)).flow("rings", spark=spark)
        return flow.start(spark, checkpoint=str(tmp_path / "check"), workers=2, trigger="available_now")

    def run(name, rows, sql=RINGS):
        (tmp_path / "in").mkdir(exist_ok=True)
        text = "payer,payee,amount,diff\n" + "".join(f"{','.join(map(str, row))}\n" for row in rows)
        (tmp_path / "in" / f".{name}").write_text(text)
        (tmp_path / "in" / f".{name}").rename(tmp_path / "in" / f"{name}.csv")
        start(sql).await_termination()
        table = spark.read.format("delta").load(str(tmp_path / "rings"))
        return sorted((row.account, row.ring) for row in table.collect())

    ring = [(1, 2, 5000, 1), (2, 3, 5000, 1), (3, 1, 5000, 1), (3, 4, 9000, 1), (4, 3, 10, 1)]
    assert run("a", ring) == [(1, 1), (2, 1), (3, 1)]
    assert run("b", [(3, 1, 5000, -1), (4, 3, 2000, 1)]) == [(3, 3), (4, 3)]

    # another text of the same plan continues; a view that would lack the past is refused, with what is new
    assert run("c", [(5, 6, 9000, 1)], RINGS.replace("x.a", "x . a")) == [(3, 3), (4, 3)]
    more = "; CREATE MATERIALIZED VIEW paid LOCATION '{folder}/paid' AS SELECT payer, sum(amount) AS a "
    with pytest.raises(ts.TimelyError, match=r"(?s)new: step 'aggregate'.*Hint: .*new_steps"):
        start(RINGS + more + "FROM transfers GROUP BY payer")
