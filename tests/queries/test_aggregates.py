"""Aggregates of longs beyond 2^53, which no double holds exactly, and beyond 2^62, which no product does."""

from __future__ import annotations

import statistics
from datetime import datetime
from typing import Any

import pyarrow as pa
import pytest

import timely_spark as ts
from timely_spark.errors import VertexError
from timely_spark.testing import run

LONGS = [2**53 + 1, 2**53 + 3, 2**62 + 1, 3]
AGGREGATES: dict[str, Any] = {
    "avg(n)": statistics.fmean(LONGS),
    "avg(DISTINCT n)": statistics.fmean(LONGS),
    "sum(DISTINCT n)": sum(LONGS),
    "stddev(n)": statistics.stdev(LONGS),
    "var_pop(n)": statistics.pvariance(LONGS),
    "median(n)": float(2**53 + 2),
    "percentile_cont(0.5) WITHIN GROUP (ORDER BY n)": float(2**53 + 2),
    "percentile_disc(0.5) WITHIN GROUP (ORDER BY n)": float(2**53),
    "approx_percentile(n, 0.5)": 2**53 + 1,
}
OVER = ["avg(n)", "stddev(n)", "var_pop(n)"]

#: y and x of some pairs, and of pairs of which none or one is without null
PAIRS = "VALUES (1, 2), (2, 3), (4, 4), (NULL, 1), (2, NULL) AS t(y, x)"
OF_PAIRS: dict[str, tuple[Any, Any, Any]] = {
    "corr": (0.9819805060619659, None, None),
    "covar_pop": (1.0, None, 0.0),
    "covar_samp": (1.5, None, None),
    "regr_count": (3, 0, 1),
    "regr_avgx": (3.0, None, 2.0),
    "regr_avgy": (7 / 3, None, 1.0),
    "regr_sxx": (2.0, None, 0.0),
    "regr_syy": (14 / 3, None, 0.0),
    "regr_sxy": (3.0, None, 0.0),
    "regr_slope": (1.5, None, None),
    "regr_intercept": (-13 / 6, None, None),
    "regr_r2": (27 / 28, None, None),
}
#: in Spark
ROWS: dict[str, Any] = {
    "SELECT skewness(a), kurtosis(a) FROM VALUES (2), (3), (7), (2)": (
        1.027209706036234,
        -0.7820069204152249,
    ),
    "SELECT skewness(a), kurtosis(a) FROM VALUES (0.1), (0.1), (0.1)": (None, None),
    "SELECT count(DISTINCT a, b), count(DISTINCT a), sum(b) FROM VALUES (1, 2), (1, NULL), (3, NULL)": (
        1,
        2,
        2,
    ),
    "SELECT corr(a, 7) FROM VALUES (1), (2)": (None,),  # an error in Spark
    "SELECT regr_slope(7, a), regr_intercept(7, a), regr_r2(7, a) FROM VALUES (1), (2)": (0.0, 7.0, 1.0),
    "SELECT mode(a), mode() WITHIN GROUP (ORDER BY a DESC) FROM VALUES (1), (3), (2), (3), (2)": (2, 3),
    "SELECT mode(a, true) FROM VALUES (NULL), (NULL), ('a'), ('B')": ("B",),
    "SELECT bit_and(a), bit_or(a), bit_xor(a) FROM VALUES (1), (2), (3), (-3), (NULL)": (0, -1, -3),
    "SELECT bit_and(a), bit_or(a), bit_xor(a), mode(a) FROM VALUES (1) WHERE a > 1": (None,) * 4,
    "SELECT bit_xor(a), bit_xor(DISTINCT a), bit_xor(a + 0) FROM VALUES (1), (1), (2)": (2, 3, 2),
    "SELECT try_sum(a), try_avg(a) FROM VALUES (9223372036854775807), (1)": (None, 4.611686018427388e18),
    "SELECT try_sum(a), try_avg(a) FROM VALUES (99999999999999999999999999999999999999BD), (1)": (None, None),
    "SELECT percentile(a, array(0.25, 0.5)), approx_percentile(a, array(0, 1)) FROM VALUES (0), (1), (2)": (
        [0.5, 1.0],
        [0, 2],
    ),
    "SELECT percentile(a, array(0.5)), max_by(a, a, 2), max_by(a, b, 2) FROM VALUES (NULL, 1)": (
        None,
        None,
        [None],
    ),
    "SELECT max_by(a, b, 2), min_by(a, b, 2), min_by(a, b, 9) FROM VALUES (1, 7), (3, 5), (NULL, 6), (3,5)": (
        [1, None],
        [3, 3],
        [3, 3, None, 1],
    ),
    "SELECT try_sum(a), try_sum(DISTINCT a) FROM VALUES (9223372036854775807), (1), (-2)": (2**63 - 2,) * 2,
}


def answer(query: str, longs: list[int]) -> Any:
    flow = ts.Dataflow("longs")
    x = flow.input("x", "n long").collection()
    ts.sql(query, x=x).changes().capture("out")
    return run(flow, {"x": [longs]})["out"].rows()[0][0][0]


@pytest.mark.slow
@pytest.mark.parametrize("aggregate", AGGREGATES)
def test_longs_that_no_double_holds_are_rounded(aggregate: str) -> None:
    assert answer(f"SELECT {aggregate} FROM x", LONGS) == pytest.approx(AGGREGATES[aggregate], rel=1e-15)


@pytest.mark.parametrize("aggregate", OVER)
def test_longs_in_windows_are_rounded(aggregate: str) -> None:
    over = answer(f"SELECT {aggregate} OVER (PARTITION BY 1) FROM x", LONGS)
    assert over == pytest.approx(AGGREGATES[aggregate], rel=1e-15)


def test_a_sum_of_distinct_longs_beyond_64_bits_is_refused() -> None:
    four = [2**61 + n for n in range(4)]
    with pytest.raises(VertexError, match=r"(?s)step 'aggregate'.*a sum of longs is beyond 64 bits\nHint: "):
        answer("SELECT sum(DISTINCT n) FROM x", four)
    assert answer("SELECT sum(DISTINCT n) FROM x", [*four[:3], four[0]]) == sum(four[:3])


@pytest.mark.slow
def test_functions_of_pairs_are_sparks() -> None:
    wheres = ("true", "false", "x = 2")
    parts = [f"{function}(y, x) FILTER (WHERE {one})" for function in OF_PAIRS for one in wheres]
    values = [one for three in OF_PAIRS.values() for one in three]
    expected = [one if one is None else pytest.approx(one, rel=1e-14) for one in values]
    answers = row(f"SELECT {', '.join(parts)} FROM {PAIRS}")
    assert dict(zip(parts, answers, strict=True)) == dict(zip(parts, expected, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("query", ROWS)
def test_an_aggregate_has_the_row_of_spark(query: str) -> None:
    before, where, after = query.partition(" WHERE ")
    names = "a, b" if "," in before.partition("VALUES (")[2].partition(")")[0] else "a"
    assert row(f"{before} AS t({names}){where}{after}") == ROWS[query]


def test_the_aggregate_of_null_has_the_type_of_spark() -> None:
    x = ts.Dataflow("nulls").input("x", "n long").collection()
    calls = [
        "max(NULL)",
        "any_value(NULL)",
        "max_by(NULL, n)",
        "max(NULL) OVER ()",
        "collect_list(NULL)",
        "sum(NULL)",
    ]
    kinds = [str(ts.sql(f"SELECT {one} AS v FROM x", x=x).schema.field("v").type) for one in calls]
    assert kinds == ["null"] * 4 + ["list<element: null>", "double"]
    assert row("SELECT max(NULL), mode(NULL), size(collect_list(NULL)), string_agg(n) FROM x") == (
        None,
        None,
        0,
        "1",
    )


def test_a_sum_that_is_too_large_is_null_in_its_group_alone() -> None:
    flow = ts.Dataflow("groups")
    x = flow.input("x", "k int, n long").collection()
    ts.sql("SELECT k, try_sum(n) AS s FROM x GROUP BY k", x=x).changes().capture("out")
    rows = [(k, 2**62) for k in (1, 1, 2, 3, 4, 4, 4)]
    sums = {1: None, 2: 2**62, 3: 2**62, 4: None}
    assert {k: s for k, s, _ in run(flow, {"x": [rows]})["out"].rows()[0]} == sums


CALLS = ("window({}, '2 minutes', '1 minute')", "session_window({}, '1 minute')")


@pytest.mark.slow
def test_a_window_has_the_type_of_its_time_whose_name_may_be_any() -> None:
    flow = ts.Dataflow("windows")
    x = flow.input("x", "w timestamp_ntz, i timestamp").collection()
    for name, zone in (("w", None), ("i", "UTC")):
        for call in CALLS:
            key = call.format(name)
            made = ts.sql(f"SELECT {key}.end, count(*) AS n FROM x GROUP BY {key}", x=x)
            assert made.schema.field("end").type == pa.timestamp("us", zone)
            made.changes().capture(key)
    at = datetime.fromisoformat("2024-01-01T00:00:30+00:00")
    out = run(flow, {"x": [[(at.replace(tzinfo=None), at)]]})
    for name in ("w", "i"):
        slid, ended = (out[call.format(name)].rows()[0] for call in CALLS)
        assert [str(row[0])[11:19] for row in slid] == ["00:01:00", "00:02:00"]
        assert [str(row[0])[11:19] for row in ended] == ["00:01:30"]


def row(query: str) -> tuple[Any, ...]:
    """The one row of a query that reads no input."""
    flow = ts.Dataflow("row")
    x = flow.input("x", "n long").collection()
    ts.sql(query, x=x).changes().capture("out")
    ((*values, _),) = run(flow, {"x": [[1]]})["out"].rows()[0]
    return tuple(values)
