"""Each relational operator of SQL, under insertions and deletions, at each epoch as DuckDB's answer."""

from __future__ import annotations

import re
from datetime import datetime

import pyarrow as pa
import pytest

import timely_spark as ts
from tests.support.duck import SEEDS, compare, flow_of, history
from timely_spark.errors import SqlError

PLAIN = [
    "SELECT * FROM t",
    "SELECT a, c FROM t WHERE b > 1 AND (c = 'a' OR d IS NULL)",
    "SELECT a + 1 AS x, b * 2 AS y, -a AS z, a % 3 AS m FROM t",
    "SELECT t.*, 7 AS seven FROM t WHERE NOT (a = 1)",
    "SELECT a, a AS again, b FROM t",
    "SELECT CASE WHEN a > 2 THEN 'big' WHEN a IS NULL THEN NULL ELSE 'small' END AS size FROM t",
    "SELECT coalesce(a, b, 0) AS x FROM t WHERE a IN (1, 2, NULL) OR b NOT IN (1, 3)",
    "SELECT a FROM t WHERE b BETWEEN 0 AND 2 AND c > 'a'",
    "SELECT DISTINCT a, c FROM t",
    "SELECT DISTINCT d FROM t WHERE d > 0.0",
    "SELECT x.a FROM (SELECT a, b FROM t WHERE a > 0) AS x WHERE x.b < 4",
    "SELECT x FROM (SELECT a, b FROM t) AS s(x, y) WHERE y > 0",
    (
        "WITH s AS (SELECT a, b FROM t), r AS (SELECT a FROM s WHERE b > 0) SELECT r.a, s.b FROM r JOIN"
        " s ON r.a = s.a"
    ),
    "SELECT * FROM (VALUES (1, 'x'), (2, NULL)) AS v(n, s)",
    "SELECT v.n, t.b FROM (VALUES (1), (2)) AS v(n) JOIN t ON v.n = t.a",
    "SELECT 1 AS one, 'a' AS two",
]
JOINS = [
    "SELECT t.a, t.b, u.b FROM t JOIN u ON t.a = u.a",
    "SELECT * FROM t JOIN u ON t.a = u.a AND t.b < u.b",
    "SELECT t.a, u.e FROM t, u WHERE t.a = u.a AND u.e > t.b",
    "SELECT t.a, u.b FROM t, u WHERE t.a IS NOT DISTINCT FROM u.a AND u.b IS NOT DISTINCT FROM t.b",
    "SELECT t.a, t.b, u.b FROM t LEFT JOIN u ON u.a IS NOT DISTINCT FROM t.a",
    "SELECT t.a, u.a FROM t FULL JOIN u ON t.a IS NOT DISTINCT FROM u.a AND t.b > 0",
    "SELECT t.a, u.a FROM t FULL JOIN u ON t.a + 1 IS NOT DISTINCT FROM u.a",
    "SELECT a, b FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.a IS NOT DISTINCT FROM t.a AND u.b = t.b)",
    "SELECT t.a, u.a FROM t LEFT JOIN u ON t.a = u.a",
    "SELECT t.a, t.c, u.c FROM t LEFT JOIN u ON t.a = u.a AND t.c = u.c",
    "SELECT t.a, u.b FROM t LEFT JOIN u ON t.a = u.a AND u.b > t.b",
    "SELECT t.a, u.b FROM t LEFT JOIN u ON t.a = u.a AND u.b > 1",
    "SELECT t.a, u.b FROM t LEFT JOIN u ON t.a = u.a AND t.b > 1",
    "SELECT t.a, u.b FROM t RIGHT JOIN u ON t.a = u.a",
    "SELECT t.a, u.b FROM t RIGHT JOIN u ON t.a = u.a AND t.b > u.b",
    "SELECT t.a, t.b, u.a, u.b FROM t FULL JOIN u ON t.a = u.a",
    "SELECT t.a, u.a FROM t FULL JOIN u ON t.a = u.a AND t.b = 1 AND u.b < 3",
    "SELECT t.a, u.a FROM t CROSS JOIN u WHERE t.a > 3",
    "SELECT t.a, u.a FROM t JOIN u ON t.a < u.a",
    "SELECT t.a, u.a FROM t LEFT JOIN u ON t.a < u.a",
    "SELECT t.a, u.a FROM t FULL JOIN u ON t.a < u.a",
    "SELECT a, t.b, u.b FROM t JOIN u USING (a)",
    "SELECT a, c, t.b, u.b FROM t LEFT JOIN u USING (a, c)",
    "SELECT a, t.b, u.b FROM t RIGHT JOIN u USING (a)",
    "SELECT a, t.b, u.b FROM t FULL JOIN u USING (a)",
    "SELECT * FROM t JOIN u USING (a)",
    "SELECT * FROM t FULL JOIN u USING (a)",
    "SELECT * FROM u, (t FULL JOIN u AS v USING (a)) WHERE u.b = t.b",
    "SELECT * FROM u FULL JOIN edges ON e = dst, (t AS x JOIN t AS y USING (a, b)) WHERE u.b = x.b",
    "SELECT * FROM (SELECT a, b FROM t) x NATURAL JOIN (SELECT a, e FROM u) y",
    "SELECT x.a, y.b, z.e FROM t x JOIN t y ON x.b = y.a JOIN u z ON y.b = z.a",
    "SELECT x.a FROM t x, t y, u z WHERE x.a = y.b AND y.a = z.a AND z.e > 0",
    "SELECT x.a, z.e FROM t x LEFT JOIN t y ON x.a = y.b LEFT JOIN u z ON y.a = z.a",
    "SELECT t.a FROM t JOIN u ON t.a + 1 = u.b * 2",
    "SELECT t.a FROM t JOIN u ON t.a = u.e",
    "SELECT t.a, u.b FROM t JOIN u ON t.a = u.a AND t.a = u.b",
    "SELECT t.a, u.b FROM t LEFT JOIN u ON t.a = u.a WHERE u.b IS NULL",
    "SELECT t.a, t.b, u.b FROM t LEFT JOIN u ON t.a = u.a AND u.e IN (SELECT dst FROM edges)",
    "SELECT t.a, u.a FROM t RIGHT JOIN u ON t.a = u.a AND t.b = (SELECT max(b) FROM t)",
    "SELECT t.a, w, e FROM t JOIN u ON t.a = u.a AND u.b IN (SELECT w FROM edges) FULL JOIN edges ON t.b = w",
    "SELECT t.a, t.b, u.b FROM t FULL JOIN u ON t.b = u.b AND u.a NOT IN (SELECT src FROM edges WHERE w > 1)",
    "SELECT t.a, u.b FROM t LEFT JOIN u ON t.a = u.a WHERE t.b = 2",
    "SELECT t.a FROM t JOIN u ON t.c = u.c AND t.d > u.e",
    "SELECT t.a, w FROM t LEFT JOIN u ON t.a = u.a RIGHT JOIN edges ON t.b = src WHERE (t.b > 0) IS NOT NULL",
    (
        "SELECT t.a, w FROM t LEFT JOIN u ON t.a = u.a FULL JOIN edges ON t.b = src LEFT JOIN u x ON w = x.a"
        " WHERE t.b > 0"
    ),
    "SELECT t.a, u.b FROM t LEFT JOIN (u JOIN edges ON u.a = src AND u.b IN (SELECT b FROM t)) ON t.a = u.a",
    "SELECT x, e FROM ((SELECT c, a, b FROM t) UNPIVOT (x FOR k IN (b, a)) AS q LEFT JOIN u ON q.x = u.a)",
    "SELECT s, d FROM ((SELECT c, a, b FROM u) PIVOT (sum(b) FOR c IN ('a')) AS q(k, s) JOIN t ON s = d)",
    "SELECT t.a, u.b, w FROM t LEFT JOIN u JOIN edges ON u.a = src ON t.a = u.a",
    "SELECT t.a, u.b, w FROM t FULL JOIN u LEFT JOIN edges ON u.a = src ON t.b = u.b",
    "SELECT x.a, e, w FROM t x, u, edges WHERE u.a = src AND x.b = u.b + w",
    "SELECT x.a, y.b FROM t x, t y, u, edges WHERE x.b < y.b AND u.a = src AND y.a = u.b - w",
    "SELECT t.a, u.b FROM t JOIN u ON (t.a = u.a AND t.b > 0) OR (t.a = u.a AND u.b > 2)",
    (
        "SELECT a.src, b.dst, c.dst FROM edges a JOIN edges b ON a.dst = b.src JOIN edges c ON b.dst ="
        " c.src AND c.dst = a.src"
    ),
]
SEMI = [
    ("SELECT a, b FROM t LEFT SEMI JOIN u ON t.a = u.a", "SELECT a, b FROM t SEMI JOIN u ON t.a = u.a"),
    ("SELECT a, b FROM t LEFT ANTI JOIN u ON t.a = u.a", "SELECT a, b FROM t ANTI JOIN u ON t.a = u.a"),
    (
        "SELECT a, b FROM t LEFT SEMI JOIN u ON t.a = u.a AND t.b < u.b",
        "SELECT a, b FROM t SEMI JOIN u ON t.a = u.a AND t.b < u.b",
    ),
    (
        "SELECT a, b FROM t LEFT ANTI JOIN u ON t.a = u.a AND t.b < u.b",
        "SELECT a, b FROM t ANTI JOIN u ON t.a = u.a AND t.b < u.b",
    ),
    (
        "SELECT (SELECT sum(e) FROM u LEFT ANTI JOIN (SELECT a FROM u WHERE b = t.b) x ON u.a < x.a) FROM t",
        "SELECT (SELECT sum(e) FROM u ANTI JOIN (SELECT a FROM u WHERE b = t.b) x ON u.a < x.a) FROM t",
    ),
    ("SELECT a FROM t LEFT ANTI JOIN u ON t.b < u.b", "SELECT a FROM t ANTI JOIN u ON t.b < u.b"),
    ("SELECT a, b FROM t EXCEPT SELECT a, b FROM u", None),
    ("SELECT a, b FROM t MINUS SELECT a, b FROM u", "SELECT a, b FROM t EXCEPT SELECT a, b FROM u"),
]
SETS = [
    "SELECT a, b FROM t UNION SELECT a, b FROM u",
    "SELECT a, b FROM t UNION ALL SELECT a, b FROM u",
    "SELECT a, b FROM t INTERSECT SELECT a, b FROM u",
    "SELECT a FROM t INTERSECT ALL SELECT a FROM u",
    "SELECT a FROM t EXCEPT ALL SELECT b FROM u",
    "SELECT a FROM t UNION ALL SELECT e FROM u",
    "SELECT a AS x FROM t UNION SELECT d FROM t",
    "SELECT a FROM t UNION (SELECT a FROM u EXCEPT SELECT b FROM u)",
    "SELECT a, b FROM t UNION ALL SELECT a, b FROM t",
    "SELECT s.a, count(*) FROM (SELECT a FROM t UNION ALL SELECT a FROM u) s GROUP BY s.a",
]
GROUPS = [
    "SELECT a, count(*) AS n, count(b) AS m, sum(b) AS s, min(b) AS x, max(c) AS y FROM t GROUP BY a",
    "SELECT a, avg(b) AS m, avg(d) AS n, sum(d) AS s FROM t GROUP BY a",
    "SELECT count(*) AS n, sum(a) AS s, max(a) AS m, count(DISTINCT a) AS d FROM t",
    "SELECT count(*) AS n, sum(a) AS s, min(d) AS m FROM t WHERE a > 100",
    "SELECT a, min(b) FROM t GROUP BY a",
    "SELECT a, max(d) FROM t GROUP BY a",
    "SELECT a, count(*) FROM t GROUP BY a HAVING count(*) > 1",
    "SELECT a FROM t GROUP BY a HAVING sum(b) > 2 AND min(c) IS NOT NULL",
    "SELECT a + 1 AS x, count(*) FROM t GROUP BY a + 1",
    "SELECT a % 2 AS p, sum(b + 1) AS s FROM t GROUP BY p",
    "SELECT a > 1, ((a + b) * 2), 1 + (a + b) * 2 FROM t GROUP BY ((a > 1)), ((a + b) * 2)",
    "SELECT a, c, count(*) FROM t GROUP BY 1, 2",
    "SELECT sum(b) * 2 + count(*) AS x, a + 1 AS y FROM t GROUP BY a",
    "SELECT a, count(DISTINCT b) AS n, sum(DISTINCT b) AS s, avg(DISTINCT b) AS m FROM t GROUP BY a",
    "SELECT a, count(*) FILTER (WHERE b > 1) AS n, sum(b) FILTER (WHERE c = 'a') AS s FROM t GROUP BY a",
    (  # of one NaN DuckDB's var_pop is 0
        "SELECT c, stddev(b), variance(x), stddev_pop(b), var_pop(x) FROM (SELECT *, nullif(d, 'NaN') AS x"
        " FROM t) GROUP BY c"
    ),
    "SELECT c, bool_and(a > 1), bool_or(b > 2) FROM t GROUP BY c",
    "SELECT max(a), min(a) FROM t",
    "SELECT a, max(a) AS m, sum(a) AS s FROM t GROUP BY a",
    "SELECT x.n, count(*) FROM (SELECT a, count(*) AS n FROM t GROUP BY a) x GROUP BY x.n",
    "SELECT t.c, sum(u.e) FROM t JOIN u ON t.a = u.a GROUP BY t.c",
    "SELECT count(*) FROM t JOIN u ON t.a = u.a",
    "SELECT t.a, count(u.a) FROM t LEFT JOIN u ON t.a = u.a GROUP BY t.a",
    "SELECT DISTINCT count(*) AS n FROM t GROUP BY a",
    "SELECT c FROM t GROUP BY c",
    "SELECT count(*), max(a) FROM t WHERE a > 100 GROUP BY GROUPING SETS (())",
    "SELECT a, b, count(*) FROM t GROUP BY GROUPING SETS ((a), (a, b))",
    "SELECT a, c, count(*), sum(b) FROM t GROUP BY ROLLUP (a, c) HAVING count(*) > 0",
    "SELECT a, c, max(b) FROM t GROUP BY CUBE (a, c) HAVING count(*) > 0",
    "SELECT count(*) FROM (SELECT a FROM t UNION SELECT a FROM u)",
    "SELECT sum(n) FROM (SELECT count(*) AS n FROM t UNION ALL SELECT count(*) FROM u)",
    "SELECT a, median(b) FROM t GROUP BY a",
    "SELECT a FROM (SELECT a, count(*) AS n FROM t GROUP BY a)",
    "SELECT a, min(b), max(d), sum(b), count(DISTINCT c), sum(DISTINCT b), count(*) FROM t GROUP BY a",
    "SELECT min(c), count(DISTINCT a), count(DISTINCT c), avg(d), var_pop(b) FROM t WHERE b > 0",
    "SELECT a, (SELECT max(e) - count(DISTINCT b) + sum(e) FROM u WHERE u.a = t.a) FROM t",
    (
        "SELECT c, covar_samp(e, b), covar_pop(b, e), regr_sxx(e, b), regr_syy(e, b), regr_sxy(e, b),"
        " stddev(b), variance(DISTINCT e), max(b) FROM u GROUP BY c"
    ),
]
SUBQUERIES = [
    "SELECT c FROM t GROUP BY c HAVING EXISTS (SELECT 1 FROM u WHERE u.b > max(t.b))",
    "SELECT a FROM t GROUP BY a HAVING (SELECT count(*) FROM u WHERE u.e < min(t.b) AND u.a = t.a) < 2",
    "SELECT a FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.a = t.a)",
    "SELECT a FROM t WHERE NOT EXISTS (SELECT 1 FROM u WHERE u.a = t.a)",
    "SELECT a FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.a = t.a AND u.b > t.b)",
    "SELECT a FROM t WHERE NOT EXISTS (SELECT * FROM u WHERE u.b > t.b OR u.a IS NULL)",
    "SELECT a FROM t WHERE EXISTS (SELECT 1 FROM u WHERE e > 3)",
    "SELECT a FROM t WHERE NOT EXISTS (SELECT 1 FROM u WHERE e > 3)",
    "SELECT a FROM t WHERE a IN (SELECT a FROM u)",
    "SELECT a FROM t WHERE a NOT IN (SELECT a FROM u WHERE a IS NOT NULL)",
    "SELECT a FROM t WHERE a NOT IN (SELECT a FROM u)",
    "SELECT a FROM t WHERE a NOT IN (SELECT a FROM u WHERE a > 100)",
    "SELECT a FROM t WHERE a IN (SELECT u.a FROM u WHERE u.b = t.b)",
    "SELECT a FROM t WHERE a NOT IN (SELECT u.a FROM u WHERE u.b = t.b)",
    "SELECT a FROM t WHERE (a, b) IN (SELECT a, b FROM u)",
    "SELECT a FROM t WHERE (a, a) IN (SELECT a, b FROM u)",
    "SELECT e FROM u WHERE e IN (SELECT a FROM t)",
    "SELECT e FROM u WHERE e NOT IN (SELECT a FROM t WHERE t.b = u.b)",
    "SELECT a, a IN (SELECT a FROM u) AS found FROM t",
    "SELECT a FROM t WHERE a > 2 OR a IN (SELECT b FROM u)",
    "SELECT a FROM t WHERE a > 2 OR EXISTS (SELECT 1 FROM u WHERE u.b = t.b)",
    # two columns around the subquery that are one
    (
        "SELECT x.a, y.b, EXISTS (SELECT 1 FROM t WHERE t.b > x.a AND t.a < y.b AND t.a <> y.a)"
        " FROM u AS x JOIN u AS y ON x.a = y.b"
    ),
    (
        "SELECT x.a, y.b, x.e NOT IN (SELECT b FROM t WHERE t.b > x.a AND t.a < y.b AND t.a <> y.a)"
        " FROM u AS x JOIN u AS y ON x.a = y.b"
    ),
    "SELECT a, (SELECT max(e) FROM u) AS m FROM t",
    "SELECT a, (SELECT count(*) FROM u WHERE u.a = t.a) AS n FROM t",
    "SELECT a, (SELECT sum(e) + 1 FROM u WHERE u.a = t.a AND u.b < t.b) AS n FROM t",
    "SELECT a FROM t WHERE b > (SELECT avg(b) FROM u)",
    "SELECT a FROM t WHERE b >= (SELECT max(b) FROM t x WHERE x.a = t.a)",
    "SELECT a, count(*) FROM t GROUP BY a HAVING count(*) > (SELECT count(*) FROM u WHERE u.a = t.a)",
    (
        "SELECT a FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.a = t.a AND EXISTS (SELECT 1 FROM edges"
        " WHERE src = u.b AND dst = t.b))"
    ),
    "SELECT a FROM t WHERE EXISTS (SELECT a FROM u WHERE u.a = t.a GROUP BY a HAVING count(*) > 1)",
    "SELECT a, (SELECT min(x.n) FROM (SELECT count(*) AS n FROM u GROUP BY a) x) FROM t",
    "SELECT t.a, s.e FROM t, LATERAL (SELECT max(e) AS e FROM u WHERE u.a = t.a) s",
    "SELECT t.a, s.e FROM t, LATERAL (SELECT e FROM u WHERE u.a = t.a) s",
    "SELECT t.a, s.e FROM t LEFT JOIN LATERAL (SELECT e FROM u WHERE u.a = t.a) s ON true",
    "SELECT t.a, s.e FROM t LEFT JOIN LATERAL (SELECT e FROM u WHERE e > 2) s ON true",
    "SELECT t.a, s.e FROM t, LATERAL (SELECT e FROM u WHERE u.a = t.a ORDER BY e DESC, b, c LIMIT 1) s",
    "SELECT a FROM t WHERE a = (SELECT e FROM u WHERE u.a = t.a ORDER BY e LIMIT 1)",
    (
        "SELECT a FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.a = t.a UNION ALL SELECT 1 FROM edges"
        " WHERE src = t.a)"
    ),
    "SELECT a FROM t WHERE EXISTS (SELECT 1 FROM u FULL JOIN edges ON u.a = src WHERE w = t.b)",
    "SELECT a, (SELECT count(*) FROM u RIGHT JOIN edges ON u.a = src AND u.b = t.b) FROM t",
    "SELECT a, (SELECT count(*) FROM edges LEFT JOIN (SELECT * FROM u WHERE b = t.b) x ON a = src) FROM t",
    (
        "SELECT a, (SELECT max(w) FROM (SELECT * FROM u WHERE u.a = t.a) x FULL JOIN (SELECT * FROM edges"
        " WHERE src = t.b) y ON x.b = dst AND x.e IN (SELECT e FROM u WHERE u.a = t.b)) FROM t"
    ),
    "SELECT a, (SELECT sum(w) FROM edges JOIN (u FULL JOIN t x ON e = x.a AND u.b = t.b) ON e = w) FROM t",
    "SELECT a FROM t WHERE EXISTS ((SELECT b FROM u WHERE u.a = t.a) EXCEPT (SELECT w FROM edges))",
]
WINDOWS = [
    "SELECT sum(b) OVER w, sum(b) OVER v FROM t WINDOW w AS (PARTITION BY a), v AS (w)",
    "SELECT a, b, row_number() OVER (PARTITION BY a ORDER BY b, c, d) AS n FROM t",
    "SELECT a, b, rank() OVER (ORDER BY b) AS r, dense_rank() OVER (ORDER BY b) AS d FROM t",
    "SELECT a, sum(b) OVER (PARTITION BY a) AS s, count(*) OVER () AS n FROM t",
    "SELECT a, b, sum(b) OVER (PARTITION BY a ORDER BY b) AS s FROM t",
    (
        "SELECT a, sum(b) OVER (PARTITION BY a ORDER BY b, c, d ROWS BETWEEN 1 PRECEDING AND 1"
        " FOLLOWING) AS s FROM t"
    ),
    "SELECT a, min(d) OVER (ORDER BY a, b, c, d ROWS BETWEEN 2 PRECEDING AND CURRENT ROW) AS s FROM t",
    (
        "SELECT a, avg(b) OVER (PARTITION BY c ORDER BY a RANGE BETWEEN UNBOUNDED PRECEDING AND CURRENT"
        " ROW) AS s FROM t"
    ),
    "SELECT a, lag(b) OVER (ORDER BY a, b, c, d) AS p, lead(b, 2, -7) OVER (ORDER BY a, b, c, d) AS q FROM t",
    (
        "SELECT a, first_value(b) OVER (PARTITION BY a ORDER BY b, c, d) AS f, last_value(b) OVER"
        " (PARTITION BY a ORDER BY b) AS l FROM t"
    ),
    (
        "SELECT a, ntile(3) OVER (ORDER BY a, b, c, d) AS n, percent_rank() OVER (ORDER BY a) AS p,"
        " cume_dist() OVER (ORDER BY a) AS q FROM t"
    ),
    "SELECT a, b FROM t QUALIFY row_number() OVER (PARTITION BY a ORDER BY b DESC, c, d) = 1",
    "SELECT a, sum(sum(b)) OVER () AS s FROM t GROUP BY a",
    (
        "SELECT a, stddev(b) OVER (PARTITION BY a), variance(b) OVER (ORDER BY b), stddev_pop(b * 0.1) OVER"
        " (ORDER BY a, b, c, d ROWS 2 PRECEDING), var_pop(b) FILTER (WHERE a > 0) OVER () FROM t"
    ),
    "SELECT median(b) OVER (PARTITION BY c), count(DISTINCT a) OVER (ORDER BY b) FROM t",
    "SELECT a, rank() OVER (ORDER BY count(*) DESC) AS r FROM t GROUP BY a",
    "SELECT a, count(*) OVER w AS n, max(c) OVER w AS m FROM t WINDOW w AS (PARTITION BY a)",
    "SELECT a, b FROM t ORDER BY a, b LIMIT 3",
    "SELECT a, b FROM t ORDER BY a DESC, b LIMIT 3 OFFSET 2",
    "SELECT b FROM t ORDER BY a NULLS LAST, b, c, d LIMIT 4",
    "SELECT a, count(*) AS n FROM t GROUP BY a ORDER BY n DESC, a LIMIT 2",
    "SELECT a FROM t UNION SELECT b FROM u ORDER BY a LIMIT 3",
    "SELECT x.a FROM (SELECT a, b FROM t ORDER BY b DESC, a LIMIT 3) x JOIN u ON x.a = u.a",
]


def _check(queries, seed, oracle=None):
    compare(queries, history(seed), oracle=oracle, seed=seed)


@pytest.mark.slow
@pytest.mark.share(6)
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    "queries",
    [PLAIN, JOINS, SETS, GROUPS, SUBQUERIES, WINDOWS],
    ids=["plain", "joins", "sets", "groups", "subqueries", "windows"],
)
def test_a_query_is_at_each_epoch_what_duckdb_answers(queries, seed):
    _check(queries, seed)


def test_an_approximate_percentile_of_texts_is_one_of_numbers():
    query = "SELECT approx_percentile(c, 0.5) AS x, approx_percentile(a, 0.5) AS y FROM t"
    assert [one.type for one in ts.sql(query, **flow_of()[1]).schema] == [pa.float64(), pa.int32()]


@pytest.mark.slow
@pytest.mark.parametrize("cast", ["CAST(u.e AS string)", "try_cast((e) AS string)", "e::string", "string(e)"])
def test_a_column_that_is_cast_keeps_its_name_as_in_spark(cast):
    # of the texts the least is '-1'
    ours = f"SELECT e FROM (SELECT {cast} FROM u WHERE e IS NOT NULL ORDER BY e LIMIT 2)"
    duck = "SELECT CAST(e AS string) AS x FROM u WHERE e IS NOT NULL ORDER BY x LIMIT 2"
    groups = f"SELECT {cast}, count(*) FROM u GROUP BY {cast} HAVING e IS NOT NULL"
    same = "SELECT CAST(e AS string) AS x, count(*) FROM u GROUP BY x HAVING x IS NOT NULL"
    compare([ours, groups], history(3), oracle=[duck, same])


def test_a_query_with_qualify_may_be_a_value_without_a_name():
    query = "SELECT DISTINCT CAST(TIMESTAMP '2024-03-02 23:59:59' AS string) FROM u"
    value = f"({query} QUALIFY row_number() OVER (ORDER BY a) = 1)"
    name = ts.sql(f"SELECT a, {value} FROM t", **flow_of()[1]).schema.names[1]
    assert name.endswith("qualify row_number() over (order by a) = 1)")


def test_a_field_that_is_cast_has_no_name_as_in_spark():
    with pytest.raises(SqlError, match="no column a"):
        ts.sql(
            "SELECT a FROM (SELECT CAST(s.a AS string) FROM (SELECT struct(a) AS s FROM t))", **flow_of()[1]
        )


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_times_in_every_unit_are_spark_microseconds(unit):
    flow = ts.Dataflow("units")
    schemas = [
        pa.schema([("c", pa.timestamp(one)), ("s", kind)])
        for one, kind in ((unit, pa.large_string()), ("us", pa.string()))
    ]
    t, u = (flow.input(name, of).collection() for name, of in zip("tu", schemas, strict=True))
    frame = "OVER (ORDER BY c RANGE BETWEEN INTERVAL '90' MINUTE PRECEDING AND CURRENT ROW)"
    queries = {
        "frames": f"SELECT hour(c), count(*) {frame} FROM t",
        "joined": "SELECT hour(t.c), u.s FROM t JOIN u USING (c, s)",
        "among": "SELECT s, s FROM t WHERE c IN (SELECT c FROM u) AND s > 'a'",
        "both": "SELECT * FROM t UNION SELECT * FROM u EXCEPT SELECT c, string_agg(s) FROM t GROUP BY c",
    }
    for name, query in queries.items():
        ts.sql(query, t=t, u=u).changes().capture(name)
    rows = [(datetime(2024, 1, 1, hour), "ab"[hour > 0]) for hour in (0, 1, 3)]  # noqa: DTZ001
    made = ts.testing.run(flow, {"t": [rows], "u": [rows]})
    assert {name: made[name].rows().get(0, []) for name in queries} == {
        "frames": [(0, 1, 1), (1, 2, 1), (3, 1, 1)],
        "joined": [(0, "a", 1), (1, "b", 1), (3, "b", 1)],
        "among": [("b", "b", 2)],
        "both": [],
    }


def test_a_table_of_other_types_is_joined_to_results_by_a_query_of_it():
    kinds = {
        "s": pa.large_string(),
        "b": pa.large_binary(),
        "n": pa.uint8(),
        "l": pa.large_list(pa.large_string()),
    }
    flow = ts.Dataflow("large")
    t = flow.input("t", pa.schema([*kinds.items()])).collection()
    result, same = ts.sql("SELECT s, b, n, l FROM t WHERE s > 'a'", t=t), ts.sql("SELECT * FROM t", t=t)
    with pytest.raises(ts.TimelyError, match=r"n uint8.*\nHint: .*the same types"):
        result.concat(t)
    result.concat(same).changes().capture("both")
    result.join(same, on=["s", "b"], how="semi").changes().capture("semi")
    outputs = ts.testing.run(flow, {"t": [[("a", b"x", 1, ["y"]), ("b", b"x", 2, None)]]})
    assert outputs["both"].rows() == {0: [("a", b"x", 1, ["y"], 1), ("b", b"x", 2, None, 2)]}
    assert outputs["semi"].rows() == {0: [("b", b"x", 2, None, 1)]}


def test_subqueries_without_aliases_are_joined_by_using():
    natural = "SELECT * FROM (SELECT a, b FROM t) NATURAL FULL JOIN (SELECT a, e FROM u)"
    _check([natural, "SELECT a, b, e FROM (SELECT a, b FROM t) JOIN (SELECT a, e FROM u) USING (a)"], 0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_semi_and_anti_joins_are_duckdbs(seed):
    _check([ours for ours, _ in SEMI], seed, [theirs or ours for ours, theirs in SEMI])


DEEP = {
    "terms": (" + ".join(["a"] * 400), "an expression is too deep, in line 1, column "),
    "calls": ("abs(" * 100 + "a" + ")" * 100, "this is nested too deeply, in line 1, column 404"),
    "queries": ("(SELECT " * 300 + "1" + ")" * 300, "this is nested too deeply, in line 1, column "),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", DEEP)
def test_what_is_too_deep_is_told_with_its_place(what):
    expression, problem = DEEP[what]
    flow = ts.Dataflow("deep")
    t = flow.input("t", "a int").collection()
    for call in (lambda text: ts.sql(text, t=t), lambda text: flow.sql(f"CREATE VIEW v AS {text}")):
        with pytest.raises(
            SqlError, match=re.escape(problem).replace("404", r"\d+") + r"(?s:.*)Hint: compute"
        ):
            call(f"SELECT {expression} AS x FROM t")
    with pytest.raises(SqlError, match="too deep"):
        t.select(x=DEEP["terms"][0])
