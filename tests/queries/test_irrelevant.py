"""Changes behind the first rows, and between the least and greatest values, cost no look at others."""

from __future__ import annotations

import pytest

import timely_spark as ts
from tests.support.duck import compare, history
from timely_spark.differential import reduce
from timely_spark.queries.aggregates import SqlAggregates
from timely_spark.testing import Simulation

QUERIES = [
    "SELECT * FROM t ORDER BY d NULLS FIRST, b DESC NULLS LAST, a NULLS FIRST, c NULLS FIRST LIMIT 3",
    "SELECT a, c FROM t ORDER BY c DESC NULLS LAST, a NULLS FIRST LIMIT 2 OFFSET 2",
    "SELECT b, n FROM (SELECT b, count(*) AS n FROM u GROUP BY b) ORDER BY n DESC, b NULLS FIRST LIMIT 2",
    "SELECT min(a) AS x, max(b) AS y, max(c) AS z FROM t",
    "SELECT a, min(c) AS x, max(c) AS y, max(b) AS z FROM t GROUP BY a",
    "SELECT a, max(d) AS y FROM t GROUP BY a",
    "SELECT c, min(d) AS x FROM t GROUP BY c",
    "SELECT min(d) AS x, max(d) AS y FROM t WHERE a > 0",
    "SELECT * FROM u QUALIFY row_number() OVER (PARTITION BY a ORDER BY c NULLS FIRST, b DESC, e DESC) = 1",
    "SELECT a, n FROM (SELECT a, row_number() OVER (ORDER BY a) n FROM u) WHERE a > 0 AND 3 > n::long",
    "SELECT b, n FROM (SELECT a + 1 AS b, row_number() OVER (ORDER BY a) n FROM u) WHERE n BETWEEN 2 AND 4",
    "SELECT t.a, (SELECT max(u.b) FROM u WHERE u.a = t.a) AS x FROM t",
]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.campaign) for n in range(1, 12))])
def test_answers_are_those_of_duckdb(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reduce, "_MANY", 1)
    compare(QUERIES, history(seed, epochs=8 if seed else 4, rows=12), seed=seed)


def loaded(text: str) -> Simulation:
    """A query on 2,000 rows with two keys."""
    flow = ts.Dataflow("many")
    x = flow.input("x", "k long, v double, diff long").collection(diff="diff")
    ts.sql(text, x=x).changes().capture("out")
    simulation = Simulation(flow)
    simulation.send("x", [(n % 2, float(n), 1) for n in range(2000)])
    simulation.run()
    return simulation


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        "SELECT min(v) AS x, max(v) AS y FROM x",
        "SELECT k, min(v) AS x FROM x GROUP BY k",
        "SELECT * FROM x ORDER BY v, k DESC LIMIT 5",
        "SELECT * FROM x QUALIFY row_number() OVER (PARTITION BY k ORDER BY v) < 3",
        "SELECT k, v FROM (SELECT k, v, row_number() OVER (ORDER BY v) AS n FROM x) WHERE n <= 4 AND k > 0",
    ],
)
def test_a_change_behind_the_first_rows_looks_at_none(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    simulation = loaded(text)
    looked, at = [], reduce.Reduce._at
    monkeypatch.setattr(
        reduce.Reduce,
        "_at",
        lambda self, time, keys, added: looked.extend(added or []) or at(self, time, keys, added),
    )
    simulation.send("x", [(1, 1001.0, -1), (0, 1500.5, 1), (1, 999.0, 1)])
    simulation.run()

    assert not looked


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        "SELECT k, min(v) AS x, sum(v) AS y, max(v) AS z, count(*) AS n FROM x GROUP BY k",
        "SELECT k, stddev(v) AS x, var_pop(v) AS y, corr(v, k) AS z, regr_slope(v, k) AS s FROM x GROUP BY k",
        "SELECT count(DISTINCT v) AS x, sum(DISTINCT k) AS y, avg(v) AS z, min(v) AS m FROM x",
    ],
)
def test_sums_beside_others_read_few_rows(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    simulation = loaded(text)
    rows, results = [], SqlAggregates.results
    monkeypatch.setattr(
        SqlAggregates,
        "results",
        lambda self, keys, inputs: rows.append(inputs.num_rows) or results(self, keys, inputs),
    )
    simulation.send("x", [(1, 1001.0, -1), (0, 1500.5, 1)])
    simulation.run()

    assert 0 < max(rows) < 20
