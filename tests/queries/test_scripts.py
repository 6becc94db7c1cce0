"""Scripts of views, files of SQL, plans as text, and what is refused."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import timely_spark as ts
from tests.support.sql_text import read_sql
from timely_spark.__main__ import main
from timely_spark.compiler.pushdown import needed
from timely_spark.errors import BadArgument, ExpressionError, GraphError, SqlError, VertexError
from timely_spark.pipeline import PARTS, read_pipeline
from timely_spark.queries.scripts import planned, table_view
from timely_spark.queries.unique import unique_columns
from timely_spark.runtime.storage.files import Files
from timely_spark.sql import bind
from timely_spark.sql.parse import exp, parse_query

EDGES = "src bigint, dst bigint, w bigint"


def collection():
    return ts.Dataflow("queries").input("edges", EDGES).collection()


def test_views_of_a_script_read_those_before_them_and_share_what_they_read():
    flow = ts.Dataflow("views")
    flow.input("edges", "src bigint, dst bigint, diff bigint")
    views = flow.sql("""
        CREATE VIEW two(a, b) AS SELECT x.src, y.dst FROM edges x JOIN edges y ON x.dst = y.src;
        CREATE TEMPORARY VIEW n AS SELECT count(*) AS n FROM two;
        CREATE OR REPLACE VIEW m AS SELECT max(b) AS m FROM two;
    """)
    assert list(views) == ["two", "n", "m"]
    for name, view in views.items():
        view.changes().capture(f"of {name}")
    joins = [stage for stage in flow.graph.stages if stage.operator == "join"]
    assert len(joins) == 1
    made = ts.testing.run(flow, {"edges": [[(1, 2, 1), (2, 3, 1)], [(1, 2, -1)]]})
    assert made["of two"].rows() == {0: [(1, 3, 1)], 1: [(1, 3, -1)]}
    assert made["of n"].rows() == {0: [(1, 1)], 1: [(0, 1), (1, -1)]}
    assert made["of m"].rows() == {0: [(3, 1)], 1: [(None, 1), (3, -1)]}


def test_a_script_has_comments_anywhere_and_names_with_schemas():
    flow = ts.Dataflow("comments")
    flow.input("edges", "src bigint, dst bigint, diff bigint")
    views = flow.sql("""-- the views
        CREATE VIEW main.loops AS SELECT src FROM edges WHERE src = dst; -- those to themselves
        /* and how many */
        CREATE VIEW n(n COMMENT 'it''s a count') AS SELECT count(*) FROM main.loops;
        -- the end
        """)
    assert list(views) == ["main.loops", "n"]
    views["n"].changes().capture("n")
    assert ts.testing.run(flow, {"edges": [[(1, 1, 1), (1, 2, 1)]]})["n"].rows() == {0: [(1, 1)]}


def test_a_parameter_may_be_called_as_a_keyword_is():
    tree = parse_query("SELECT a FROM t WHERE a > :from AND (b < :on) ORDER BY a LIMIT :limit")
    assert {str(one.this) for one in tree.find_all(exp.Placeholder)} == {"from", "on", "limit"}


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("SELECT (a.src, b.w) AS x FROM edges a JOIN edges b ON a.src = b.dst", ["src", "w"]),
        (
            "SELECT (src, sum(w), rank() OVER (ORDER BY src)) AS x FROM edges GROUP BY src",
            ["src", "col2", "col3"],
        ),
        ("SELECT src AS y, (y, (SELECT max(w) FROM edges), w AS z) AS x FROM edges", ["y", "col2", "z"]),
        # Spark has one name twice
        ("SELECT max((a.src, b.SRC)) AS x FROM edges a, edges b", ["src", "col2"]),
        ("SELECT struct(a.*, b.w) AS x FROM edges a, edges b", ["src", "dst", "w", "col4"]),
    ],
)
def test_a_field_has_the_name_of_a_column_as_it_is_written(query, names):
    relation, _ = planned(query, {"edges": collection()})
    assert [one.name for one in relation.schema.field("x").type] == names


@pytest.mark.parametrize(
    "query",
    [
        "SELECT CASE WHEN x.then > 1 THEN 2 END FROM t",
        "SELECT CASE WHEN x.as THEN CAST(x.when AS int) END AS else FROM t",
        "SELECT a, count(*) FROM t GROUP BY all, a",
        "SELECT a AS as, r'as' AS x FROM t WHERE r'as' = 'as' AND s.where ORDER BY s.on",
        "SELECT sum(a) OVER w FROM t ORDER BY a WINDOW w AS (ORDER BY a) LIMIT 1",
        "SELECT sum(a) OVER w AS s FROM t QUALIFY s > 1 WINDOW w AS (ORDER BY a)",
    ],
)
def test_words_of_clauses_may_be_names_and_a_window_behind_others(query):
    assert parse_query(query)


def test_a_view_reads_those_before_it_and_not_itself():
    for query, hint in (
        ("CREATE VIEW v AS SELECT * FROM v", "the tables are edges"),
        ("CREATE VIEW v AS SELECT * FROM x; CREATE VIEW x AS SELECT 1", "write CREATE VIEW x before it"),
    ):
        with pytest.raises(SqlError, match=rf"(?s)no table [vx],.*Hint: {hint}"):
            planned(query, {"edges": collection()})


def test_a_script_keeps_nothing():
    flow = ts.Dataflow("kept")
    flow.input("edges", EDGES)
    with pytest.raises(SqlError, match=r"(?s)MATERIALIZED VIEW in a script.*Hint: .*run FILE.*to_delta"):
        flow.sql("CREATE MATERIALIZED VIEW v LOCATION '/v' AS SELECT src FROM edges")


def test_the_steps_of_a_query_are_named_after_it():
    for name, unnamed in (("degrees", 0), (None, 2)):
        edges = collection()
        degrees = ts.sql("SELECT src, count(*) AS n FROM edges GROUP BY src", name=name, edges=edges)
        degrees.changes().capture("out")
        edges.distinct().capture("once")
        assert len(edges.index.flow.compile(1).unnamed) == unnamed
    edges = collection()
    ts.sql("SELECT src FROM edges", name="same", edges=edges)
    with pytest.raises(GraphError, match=r"step 'same' has the name of the step at .*test_scripts.py"):
        ts.sql("SELECT dst FROM edges", name="same", edges=edges)
    for wrong in (3, "", "a/b"):
        with pytest.raises(GraphError, match=r"step name .*test_scripts.py.*\nHint: use letters"):
            ts.sql("SELECT src FROM edges", name=wrong, edges=collection())


def test_several_joins_of_one_table_share_an_arrangement():
    query = "SELECT a.src FROM edges a JOIN edges b ON a.dst = b.src JOIN edges c ON b.dst = c.src"
    edges = collection()
    assert "arranged by (src), for several joins" in ts.explain_sql(query, edges=edges)
    ts.sql(query, edges=edges)
    assert [one.operator for one in edges.stream.flow.graph.stages].count("arrange") == 1


@pytest.mark.slow
def test_a_cycle_is_one_join_if_it_is_asked_for():
    triangle = "SELECT {} a.w FROM edges a JOIN edges b ON a.dst = b.src JOIN edges c ON b.dst = c.src AND {}"
    edges = collection()
    plan = ts.explain_sql(triangle.format("/*+ WCOJ */", "c.dst = a.src"), edges=edges)
    assert "CyclicJoin" in plan
    assert "RelationJoin" not in plan
    assert "CyclicJoin" not in ts.explain_sql(triangle.format("", "c.dst = a.src"), edges=edges)
    inner = triangle.format("/*+ WCOJ */", "c.dst = a.src")
    plan = ts.explain_sql(triangle.format("", f"c.dst = a.src WHERE a.w IN ({inner})"), edges=edges)
    assert plan.count("CyclicJoin") == 1


def test_a_column_of_nulls_in_values_has_no_type_of_its_own():
    query = "SELECT coalesce(x, n) AS x, n FROM (VALUES (1, NULL), (2, NULL)) v(x, n)"
    assert ts.sql(query, edges=collection()).schema.types == [pa.int32(), pa.null()]


@pytest.mark.parametrize(
    ("condition", "reason"),
    [
        (
            "c.dst < a.src",
            "as no three tables of plain columns are joined in a cycle by equal columns of one type",
        ),
        ("c.d = a.d", "of one type; d_3 = d compares double"),
        ("c.d = a.src", "of one type; d_3 = src compares double with bigint"),
        ("c.dst = a.src", "as no three tables of plain columns are"),
    ],
)
def test_a_hint_that_changes_nothing_is_told_with_its_reason(condition, reason):
    edges = ts.Dataflow("x").input("edges", "src long, dst long, d double, l array<int>").collection()
    query = (
        "SELECT /*+ WCOJ */ a.d FROM edges a JOIN edges b ON a.dst = b.src JOIN edges c ON b.dst = c.src AND "
    )
    plan = ts.explain_sql(query + condition, edges=edges)
    assert "Note: the hint WCOJ changes nothing, as " in plan
    assert reason in plan


@pytest.mark.parametrize(
    ("read", "expected"),
    [
        ("(SELECT dst, w + 1 AS x FROM edges)", (4, 6)),  # computed
        ("(SELECT dst, w AS `left x` FROM edges)", (3, 5)),  # the name that the left side's `x` gets
    ],
)
def test_a_shared_arrangement_may_have_any_columns(read, expected):
    flow = ts.Dataflow("shared")
    edges, pairs = flow.input("edges", EDGES).collection(), flow.input("pairs", "x long, y long").collection()
    query = (
        "SELECT a.* EXCEPT (dst), b.* EXCEPT (dst) FROM pairs p "
        f"JOIN {read} a ON p.x = a.dst JOIN {read} b ON p.y = b.dst"
    )
    ts.sql(query, edges=edges, pairs=pairs).changes().capture("out")
    assert [one.operator for one in flow.graph.stages].count("arrange") == 1
    made = ts.testing.run(flow, {"edges": [[(1, 2, 3), (1, 4, 5)]], "pairs": [[(2, 4)]]})
    assert made["out"].rows() == {0: [(*expected, 1)]}


def test_exchanges_are_named_and_those_that_are_elided():
    query = (
        "SELECT a.src, m FROM edges a JOIN (SELECT src, max(dst) AS m FROM edges GROUP BY src) b USING (src)"
    )

    plan = ts.explain_sql(query, edges=collection())

    assert (
        "RelationJoin inner, src = src_2: stores both sides by src; exchanged by src, elided by src_2" in plan
    )
    assert "by src; exchanged by src" in next(line for line in plan.splitlines() if "Aggregation" in line)
    assert "exchanged to one worker" in ts.explain_sql("SELECT sum(w) FROM edges", edges=collection())
    assert "exchanged" not in ts.explain_sql("SELECT src FROM edges WHERE dst > 1", edges=collection())


def test_columns_that_nothing_reads_are_dropped_before_they_are_stored():
    plan = ts.explain_sql("SELECT a.src FROM edges a JOIN edges b ON a.dst = b.src", edges=collection())
    assert "w" not in plan.replace("rows", "").replace("worker", "").split()


def test_files_are_read_by_conditions_of_a_view(tmp_path):
    pq.write_table(pa.table({"src": [1], "dst": [2], "w": [3]}), tmp_path / "a.parquet")
    flow = ts.Dataflow("files")
    flow.files("edges", tmp_path)
    query = "SELECT src FROM edges WHERE w > 2 AND src % 2 = 1 AND dst IN (1, 2)"
    flow.sql(f"CREATE VIEW some AS {query}")["some"].changes().capture("out")
    read = needed(flow.compile(2), "edges")
    assert str(read.condition).startswith("((w > 2) and if_else(is_valid(dst), is_in(dst,")
    assert f"TableScan edges: reads rows where {read.condition}" in ts.explain_sql(query, edges=collection())
    of_one_reader = "SELECT a.src FROM edges a JOIN edges b ON a.src = b.dst WHERE a.w > 2"
    assert " where " not in ts.explain_sql(of_one_reader, edges=collection())
    # a condition that each reader has is tested once
    for more in ("b.w > 2", "b.dst < 7 AND b.w > 2", "b.dst < 7 AND b.w > 2 AND a.src > 1"):
        plan = ts.explain_sql(f"{of_one_reader} AND {more}", edges=collection())
        assert plan.count("TableScan") == 1
        assert "TableScan edges: reads rows where (w > 2)" in plan
    assert ts.explain_sql("SELECT src FROM edges", edges=collection()).endswith("TableScan edges: reads src")


@pytest.mark.parametrize(
    ("query", "unique"),
    [
        ("SELECT src, count(*) AS n FROM edges GROUP BY src", {"src"}),
        ("SELECT count(*) AS n FROM edges", set()),
        ("SELECT n FROM (SELECT src, count(*) AS n FROM edges GROUP BY src)", None),
        ("SELECT DISTINCT src, dst FROM edges", {"src", "dst"}),
        ("SELECT src FROM edges", None),
        ("SELECT src, dst, grouping_id() AS g FROM edges GROUP BY ROLLUP (src, dst)", {"src", "dst", "g"}),
        ("SELECT src, dst FROM edges GROUP BY ROLLUP (src, dst)", None),
        ("SELECT src FROM edges UNION ALL SELECT src FROM edges", None),
        (
            "WITH RECURSIVE r AS (SELECT src FROM edges UNION SELECT src + 1 FROM r) SELECT * FROM r",
            {"src"},
        ),
        (  # `b` has each row of `a`, which are not unique
            (
                "WITH RECURSIVE a(x) AS (SELECT src FROM edges UNION ALL SELECT x + 1 FROM b WHERE x < 2), "
                "b(x) AS (SELECT x FROM a WHERE x < 2) SELECT x FROM b"
            ),
            None,
        ),
    ],
)
def test_the_columns_that_tell_rows_apart_are_seen_from_the_query(query, unique):
    relation, _ = planned(query, {"edges": collection()})
    assert unique_columns(relation) == unique


REFUSED = [
    (
        "SELECT (WITH RECURSIVE r(y) AS (SELECT w UNION SELECT y + 1 FROM r) SELECT y FROM r) FROM edges",
        "w of a query around a recursion",
        "read its table in the recursion, and keep the column there",
    ),
    ("SELECT x FROM edges", "no column x", "the columns are: src, dst, w"),
    ("SELECT srcc FROM edges", "no column srcc", "did you mean src?"),
    ("SELECT src FROM edge", "no table edge", "did you mean edges?"),
    ("SELECT * FROM (WITH q AS (SELECT 1) SELECT * FROM q) x, q", "no table q", "the tables are edges"),
    ("SELECT arg_maxx(w, src) FROM edges", "no function 'arg_maxx'", "did you mean array_max?"),
    ("SELECT collect_lst(w) FROM edges", "no function 'collect_lst'", "did you mean collect_list?"),
    ("SELECT w -> 'a' FROM edges", "a -> 'b' is not supported", "get_json_object"),
    ("SELECT CAST(DATE '2024-01-01' AS int)", "date cannot be cast to int", "unix_date"),
    (
        "SELECT CAST(INTERVAL '1' DAY AS string)",
        "cannot be cast to string",
        "take its parts, as by extract(DAY",
    ),
    (
        "SELECT (w, 1) = (1, 1) FROM edges",
        "struct<w:bigint,col2:int>",
        "cast the fields to one type, as in (1, 5L)",
    ),
    ("SELECT array(w) + 1 FROM edges", "+ of (array<bigint>, int)", "give it values of one type"),
    # Spark takes AS and WHERE for names here, and fails by the third
    ("SELECT src AS, w FROM edges", "AS without a name", "of keywords in `...`"),
    ("SELECT src FROM edges WHERE", "WHERE before the end", "of keywords in `...`"),
    ("SELECT src:w FROM edges", ":w is not a name", "of a map m['a']"),
    ("SELECT src AS 'x' FROM edges", "a text or a number is not one", "Spark's SQL"),
    ("WITH r AS (SELECT 1 UNION SELECT * FROM r) SELECT * FROM r", "no table r", "WITH RECURSIVE"),
    ("SELECT src FROM edges a, edges b", "src is ambiguous", "write one of a.src, b.src"),
    (
        "SELECT 1 FROM edges a LEFT JOIN edges b ON a.w = b.w WHERE src > 1",
        "src is ambiguous",
        "one of a.src, b",
    ),
    ("SELECT 1 FROM edges a, edges b GROUP BY 1 HAVING src > 1", "src is ambiguous", "write one of a.src"),
    ("SELECT src, count(*) FROM edges", "src is neither in GROUP BY", "any_value(src)"),
    ("SELECT src, summ(abs(w)) FROM edges GROUP BY src", "no function 'summ'", "did you mean sum?"),
    ("SELECT a FROM (SELECT src AS a, dst AS A FROM edges)", "a is ambiguous", "name of its own by AS"),
    (
        "SELECT src FROM (SELECT dst AS src FROM edges AS)",
        "AS, or names of columns, without the name",
        "in `...`",
    ),
    ("SELECT (SELECT max(src) + dst FROM edges) FROM edges", "dst is neither in GROUP BY", "any_value(dst)"),
    ("SELECT max(w) AS dst, dst FROM edges GROUP BY src", "dst is neither in GROUP BY", "any_value(dst)"),
    ("SELECT src FROM edges HAVING src > 1", "src is neither in GROUP BY", "any_value(src)"),
    ("SELECT src FROM edges WHERE count(*) > 1", "where no aggregate may be", "HAVING"),
    (
        "SELECT src FROM edges WHERE rank() OVER (ORDER BY w) = 1",
        "where no window function may be",
        "QUALIFY",
    ),
    ("SELECT max(sum(w)) FROM edges GROUP BY src", "SUM(w) in another aggregate", "subquery of FROM"),
    ("SELECT FROM edges", "SELECT of no columns", "write *"),
    ("SELECT union FROM edges", "SELECT of no columns", "in backticks"),
    ("SELECT src, join FROM edges", "JOIN without FROM, in line 1, column 23", "in backticks"),
    ("SELECT sum(distinct) FROM edges", "DISTINCT of no value", "in backticks"),
    ("SELECT 1 FROM edges OUTER JOIN edges b ON edges.src = b.dst", "OUTER JOIN", "LEFT, RIGHT, FULL"),
    ("SELECT src FROM edges JOIN edges ON true", "src is ambiguous", "name of its own by AS"),
    ("SELECT src FROM edges WHERE src IN ()", "IN without values", "write a value"),
    ("SELECT [src] FROM edges", "[...] without an array", "names are in `...`"),
    ("EXPLAIN SELECT src FROM edges", "this is not understood", "Spark's SQL"),
    ("SELECT src FROM edges WHERE src", "is bigint, not boolean", "write a condition"),
    ("SELECT x FROM (SELECT w AS x FROM edges) WHERE x", "`x` is bigint, not boolean", "write a condition"),
    (  # a column that the join has dropped
        "SELECT 1 FROM edges a JOIN edges b ON a.src = b.dst WHERE b.dst + a.w",
        "`src` + `w` is bigint, not boolean, in line 1, column 59",
        "write a condition",
    ),
    ("SELECT grouping(src) FROM edges GROUP BY src", "without grouping sets", "ROLLUP"),
    ("SELECT src FROM edges LATERAL VIEW explode(src) AS x", "explode of bigint", "array or a map"),
    ("SELECT explode(array(src), array(dst)) FROM edges", "explode of 2 arguments", "one array"),
    ("SELECT * FROM range(1000000)", "range of 1,000,000 rows", "table"),
    ("SELECT * FROM range(-5, 9223372036854775807)", "range of 9,223,372,036,854,775,812 rows", "table"),
    ("SELECT * FROM range(1, 5, 0)", "step 0", "step"),
    ("SELECT * EXCEPT (weight) FROM edges", "EXCEPT of weight, which the star has not", "of the star"),
    ("SELECT * EXCEPT (w, src, dst) FROM edges", "EXCEPT of all columns", "leave one"),
    ("SELECT histogram_numeric(src, 2) FROM edges", "histogram_numeric is not kept up", "reduce_batches"),
    ("SELECT histogram_numeric(src, 2) OVER () FROM edges", "OVER is not kept up to date", "rank"),
    ("SELECT src FROM edges QUALIFY src > 1", "QUALIFY without a function OVER a window", "write WHERE"),
    (
        "SELECT nth_value(w, 1) FILTER (WHERE w > 1) OVER (ORDER BY w) FROM edges",
        "nth_value with FILTER",
        "number",
    ),
    ("SELECT src > ALL (SELECT dst FROM edges) FROM edges", "with ANY or ALL rows of a query", "IN (SELECT"),
    ("SELECT src FROM edges ORDER BY srcc", "no column srcc", "did you mean src?"),
    ("SELECT src FROM edges UNION SELECT dst FROM edges ORDER BY 2", "ORDER BY 2", "number"),
    ("SELECT src FROM edges SORT BY src", "SORT BY is not supported", "no order"),
    ("SELECT * FROM edges TABLESAMPLE (10 PERCENT)", "TABLESAMPLE", "hash"),
    ("SELECT src FROM edges UNION SELECT src, dst FROM edges", "1 and 2 columns", "as many"),
    ("SELECT percentile(src, 0.5, dst) FROM edges", "percentile with the argument dst", "leave it out"),
    ("SELECT max_by(src, dst, 0) FROM edges", "max_by of 0 rows", "from 1 to 100000"),
    (
        "SELECT lag(w) FILTER (WHERE src > 1) OVER (ORDER BY w) FROM edges",
        "lag with FILTER OVER",
        "subquery with WHERE",
    ),
    ("SELECT max(src, dst) OVER () FROM edges", "max of 2 arguments", "give 1"),
    ("SELECT row_number() OVER () FROM edges", "without ORDER BY", "ordered"),
    ("SELECT (SELECT src, dst FROM edges) FROM edges", "2 columns where one value belongs", "one column"),
    ("SELECT * FROM edges LIMIT -1", "LIMIT is -1", "whole number"),
    ("SELECT src FROM edges WHERE w BETWEEN SYMMETRIC 3 AND 1", "SYMMETRIC in BETWEEN", "leave it out"),
    ("SELECT src FROM edges VERSION AS OF 3", "VERSION in TABLE", "leave it out"),
    (
        "WITH RECURSIVE r AS (SELECT src FROM edges UNION SELECT w FROM r) CYCLE src SET c USING p SELECT 1",
        "SEARCH in WITH",
        "leave it out",
    ),
    ("SELECT * FROM edges LIMIT 50%", "LIMIT by percent", "QUALIFY"),
    ("SELECT * FROM edges ORDER BY w FETCH FIRST 2 ROWS WITH TIES", "WITH TIES", "QUALIFY"),
    ("SELECT src FROM edges; SELECT dst FROM edges", "2 statements", "flow.sql"),
    ("SELECT * FROM edges UNPIVOT ((v, x) FOR k IN (src, dst))", "3 names for 2 columns", "each column"),
    (
        "SELECT src, (SELECT max(e.w) FROM edges f WHERE f.src = e.dst) FROM edges e",
        "max of columns of the query around only",
        "aggregate in that query",
    ),
    ("SELECT array(SELECT dst FROM edges) FROM edges", "a query as an argument", "collect_list"),
    (
        "SELECT session_window(w, '5 minutes') FROM edges",
        "not a key of one table's groups",
        "GROUP BY session",
    ),
    (
        "SELECT count(*) FROM edges a JOIN edges b USING (w) GROUP BY session_window(a.w, '5 minutes')",
        "not a key of one table's groups",
        "a subquery that joins several",
    ),
    ("SELECT count(*) FROM edges GROUP BY session_window(w)", "a session of another form", "'10 minutes'"),
    ("SELECT window(w, '5 parsecs') FROM edges", "a window of '5 parsecs'", "minute"),
    ("SELECT window(w, '1.5 hours') FROM edges", "a window of '1.5 hours'", "minute"),
    (
        "WITH RECURSIVE r(a) AS (SELECT 1 UNION SELECT 2, 3 UNION SELECT src FROM r, edges) SELECT * FROM r",
        "1 and 2 columns",
        "as many",
    ),
    (
        "SELECT sum(w) OVER (ORDER BY src, dst RANGE 1 PRECEDING) FROM edges",
        "RANGE with a distance of other than one number",
        "ROWS",
    ),
    (
        "SELECT sum(w) OVER (ORDER BY w ROWS BETWEEN UNBOUNDED FOLLOWING AND 1 FOLLOWING) FROM edges",
        "a frame that ends before it begins",
        "1 PRECEDING AND 1 FOLLOWING",
    ),
    (
        "SELECT sum(w) OVER (ORDER BY w RANGE BETWEEN 1 FOLLOWING AND 1 PRECEDING) FROM edges",
        "a frame that ends before it begins",
        "1 PRECEDING AND 1 FOLLOWING",
    ),
    (
        "SELECT sum(w) OVER (ORDER BY w RANGE INTERVAL '1' MONTH PRECEDING) FROM edges",
        "a frame of INTERVAL '1' MONTH bigint",
        "a whole number of rows",
    ),
    (
        "SELECT sum(w) OVER (ORDER BY w ROWS BETWEEN 1.5 PRECEDING AND CURRENT ROW) FROM edges",
        "a frame of 1.5 rows",
        "a whole number of rows",
    ),
    (
        "SELECT sum(w) OVER (ORDER BY w RANGE BETWEEN INTERVAL 1 YEAR PRECEDING AND 1 FOLLOWING) FROM edges",
        "a frame of months and of another unit",
        "at both ends",
    ),
    ("SELECT lag(w) FROM edges", "LAG(`w`) is of several rows", "write f(...) OVER (ORDER BY ...)"),
    ("SELECT row_number() FROM edges", "no function 'row_number'", "write row_number() OVER"),
    ("SELECT w FORM edges", "'edges' is not expected here", "Spark's SQL"),
    ("SELECT rank(w) OVER (ORDER BY src) FROM edges", "rank with an argument", "order its window"),
    ("SELECT * FROM edges PIVOT (sum(w) FOR src IN (1) GROUP BY dst)", "GROUP in PIVOT", "leave it out"),
    ("SELECT lag(w, 1.5) OVER (ORDER BY src) FROM edges", "lag by 1.5", "whole number"),
    (
        "SELECT sum(w) OVER v FROM edges WINDOW v AS (ORDER BY w), V AS (ORDER BY src)",
        "two windows V",
        "another name",
    ),
    ("SELECT rank() OVER (ORDER BY w ROWS 1 PRECEDING) FROM edges", "rank of a frame", "leave the frame out"),
    ("SELECT lag(w) OVER v FROM edges WINDOW v AS (ORDER BY w ROWS 1 PRECEDING)", "lag of a frame", "leave"),
    (
        "SELECT w FROM edges GROUP BY w HAVING rank() OVER (ORDER BY w) = 1",
        "RANK() OVER (ORDER BY w) where no window function may be",
        "QUALIFY",
    ),
    (
        "SELECT CAST(w AS string), count(*) FROM edges GROUP BY 1 HAVING w > '5'",
        "w is string in the result and bigint in the input",
        "as Spark compares it as bigint",
    ),
    (
        "SELECT src, avg(w) AS w FROM edges GROUP BY src HAVING w + 1 > 4.33",
        "w is double in the result and bigint in the input",
        "another alias",
    ),
    (
        "SELECT src, avg(w) AS w, avg(dst) AS dst FROM edges GROUP BY src HAVING w > dst + 0.5",
        "w is double in the result and bigint in the input",
        "another alias",
    ),
    ("SELECT first(w, src) OVER (ORDER BY src) FROM edges", "first of 2 arguments", "give 1"),
    ("SELECT dst, every(src > 1) OVER () FROM edges GROUP BY dst", "src is neither in GROUP BY", "any_value"),
    ("SELECT dst, every(src > 1, dst) FROM edges GROUP BY dst", "every of 2 arguments", "give 1"),
    ("SELECT var_samp(true) FROM edges", "var_samp of boolean", "numbers"),
    ("SELECT src FROM edges JOIN", "a name is missing here", "Spark's SQL"),
    ("FROM edges |> AGGREGATE sum(w) AS w GROUP BY 1", "pipes (|>) are not supported", "Spark's SQL"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("query", "problem", "hint"), REFUSED)
def test_what_is_refused_shows_its_place_and_what_to_write(query, problem, hint):
    with pytest.raises(SqlError) as caught:
        ts.sql(query, edges=collection())
    text = str(caught.value)
    assert problem in text
    assert hint in text.partition("Hint: ")[2]
    assert ", in line 1, column " in text


@pytest.mark.slow
def test_a_union_of_many_queries_is_one_step():
    text = ts.explain_sql(" UNION ALL ".join(["SELECT src FROM edges"] * 300), edges=collection())
    assert text.count("Concat") == 1


@pytest.mark.slow
def test_many_conditions_are_one_filter(shallow):
    every = range(shallow)
    flow = ts.Dataflow("many")
    edges = flow.input("edges", EDGES).collection()
    each = " AND ".join(f"src <> {n}" for n in every)
    some = " OR ".join(f"src = {n}" for n in every)
    rest = ts.sql(f"SELECT src FROM edges WHERE {each} AND NOT ({some})", edges=edges)
    of_strings = edges.where(f"CASE WHEN {some} THEN {each} ELSE true END")
    assert len([stage for stage in flow.graph.stages if stage.operator == "where"]) == 2
    rest.changes().capture("rest")
    of_strings.changes().capture("of strings")
    results = ts.testing.run(flow, {"edges": [[(n, 0, 0) for n in (7, shallow - 1, shallow)]]})
    assert results["rest"].rows() == {0: [(shallow, 1)]}
    assert results["of strings"].rows() == {0: [(shallow, 0, 0, 1)]}


def test_a_condition_that_may_fail_is_tested_behind_those_before_it():
    text = "SELECT src FROM edges WHERE dst <> 0 AND w > 0 AND 1 / dst < 1 AND w < 9"
    plan = ts.explain_sql(text, edges=collection())
    assert [line.strip() for line in plan.splitlines()[1:4]] == [
        "Selection `w` < 9",
        "Selection 1 / `dst` < 1",
        "Selection `dst` <> 0 AND `w` > 0",
    ]
    # with the names of its query
    plan = ts.explain_sql("SELECT x FROM (SELECT dst AS x FROM edges) WHERE 1 / x < 1", edges=collection())
    assert "Selection 1 / `x` < 1" in plan


def test_an_error_of_a_record_has_the_names_of_the_query():
    edges = collection()
    ratio = ts.sql("SELECT x.w / y.w AS ratio FROM edges x JOIN edges y ON x.dst = y.src", edges=edges)
    ratio.changes().capture("ratio")
    with pytest.raises(VertexError, match=r"`w` / `y`\.`w`: division by zero"):
        ts.testing.run(edges.index.flow, {"edges": [[(1, 2, 1), (2, 3, 0)]]})


def test_a_join_by_null_safe_equality_has_a_key():
    query = "SELECT x.src FROM edges x JOIN edges y ON x.src <=> y.dst"
    assert "stores both sides by src" in ts.explain_sql(query, edges=collection())


def test_a_table_whose_name_another_one_has_in_other_cases_is_refused():
    with pytest.raises(SqlError, match="edges may be Edges or EDGES, in line 1, column 15"):
        ts.sql("SELECT * FROM edges", Edges=collection(), EDGES=collection())


def test_a_query_without_tables_is_refused():
    for read in (ts.sql, ts.explain_sql, ts.Dataflow("empty").sql):
        with pytest.raises(GraphError, match=r"there are no tables \(.*test_scripts"):
            read("CREATE VIEW one AS SELECT 1 AS n")


def test_a_query_is_one_text_with_one_query():
    for read in (ts.sql, ts.explain_sql):
        with pytest.raises(SqlError, match="0 statements"):
            read(" ", edges=collection())
    for read in (ts.sql, ts.explain_sql, ts.Dataflow("views").sql):
        with pytest.raises(BadArgument, match=r"sql=None: a text was expected \(.*test_scripts"):
            read(None, edges=collection())
    with pytest.raises(SqlError, match="a query before other statements, in line 1, column 8"):
        ts.explain_sql("SELECT src FROM edges; SELECT dst FROM edges", edges=collection())


def test_fields_of_names_that_the_select_list_hides_are_compared():
    flow = ts.Dataflow("fields")
    t = flow.input("t", "k long, s struct<a: long>, u struct<a: long>").collection()
    query = "SELECT k, max(s) AS s, max(u) AS u FROM t GROUP BY k HAVING s.a > u.a"
    ts.sql(query, t=t).changes().capture("out")
    rows = [(1, {"a": 2}, {"a": 1}), (1, {"a": 0}, {"a": 0}), (2, {"a": 1}, {"a": 1})]
    assert ts.testing.run(flow, {"t": [rows]})["out"].rows() == {0: [(1, {"a": 2}, {"a": 1}, 1)]}


def test_a_scalar_subquery_with_several_rows_is_an_error_of_the_epoch():
    flow = ts.Dataflow("several")
    edges = flow.input("edges", EDGES).collection()
    ts.sql("SELECT src, (SELECT dst FROM edges) AS d FROM edges", edges=edges).changes().capture("out")
    with pytest.raises(ts.TimelyError, match="several rows where one value belongs"):
        ts.testing.run(flow, {"edges": [[(1, 2, 0), (2, 3, 0)]]})


SCRIPT = """
CREATE VIEW near AS
WITH RECURSIVE r(x) AS (
  SELECT src FROM edges
  UNION
  SELECT dst FROM r JOIN edges
    ON x = src)
SELECT x
FROM r
WHERE 10 / x > 1;
CREATE VIEW counted AS
SELECT x,
  count(*) OVER (PARTITION BY x) AS n
FROM near
JOIN edges ON x = src;
"""


#: by clause of the script the word of a step
CLAUSES = {
    "WHERE 10 / x > 1;": "where",
    "SELECT dst FROM r JOIN edges": "join",
    "WITH RECURSIVE r(x) AS (": "distinct",
    "count(*) OVER (PARTITION BY x) AS n": "over",
    "JOIN edges ON x = src;": "join",
}


def check_clauses(flow, file):
    """Check that steps name the line of their clause."""
    text = file.read_text(encoding="utf-8").splitlines()
    steps = {}
    for one in flow.graph.stages:
        if one.where.column is not None:
            assert one.where.file == str(file)
            steps.setdefault(text[one.where.line - 1].strip(), []).append(one.name)
    for line, step in CLAUSES.items():
        assert any(step in name for name in steps[line])


def test_a_step_names_the_clause_that_it_comes_from(tmp_path):
    flow = ts.Dataflow("program")
    flow.input("edges", "src long, dst long")
    flow.sql(SCRIPT)["counted"].changes().capture("out")
    check_clauses(flow, Path(__file__))

    file = tmp_path / "views.sql"
    table = "CREATE TABLE edges (src bigint, dst bigint) USING csv LOCATION '/in';"
    kept = "MATERIALIZED VIEW counted TBLPROPERTIES ('keys' = 'x, n')"
    file.write_text(table + SCRIPT.replace("VIEW counted", kept))
    flow, _ = read_pipeline(file, {}).flow()
    assert {one.where.file for one in flow.graph.stages} == {str(file)}
    check_clauses(flow, file)


def test_an_error_of_a_query_names_the_line_and_the_column():
    flow = ts.Dataflow("quotients")
    edges = flow.input("edges", EDGES).collection()
    written = ts.sql(
        """SELECT src
        FROM edges
        WHERE 10 / src > 1""",
        edges=edges,
    )
    line = sys._getframe().f_lineno - 3
    written.changes().capture("out")
    with pytest.raises(ts.TimelyError, match=re.escape(f"({__file__}:{line}:15)")):
        ts.testing.run(flow, {"edges": [[(0, 1, 1)]]})
    with pytest.raises(SqlError, match=re.escape(f"({__file__}:{sys._getframe().f_lineno + 1}:30)")):
        ts.sql("SELECT count(sre) FROM edges", edges=edges)
    # a text that the program computes has the line of the call
    with pytest.raises(SqlError, match=re.escape(f"({__file__}:{sys._getframe().f_lineno + 1})")):
        ts.sql(f"SELECT count(sre) FROM {'edges'} ", edges=edges)


@pytest.mark.parametrize("over", ["", " OVER ()"])
@pytest.mark.parametrize(
    "aggregate", ["sum(CAST(1e37 * src AS decimal(38, 0)))", "avg(CAST(1e27 * src AS decimal(38, 10)))"]
)
def test_a_sum_or_average_with_too_many_digits_is_an_error_of_the_epoch(aggregate, over):
    flow = ts.Dataflow("digits")
    edges = flow.input("edges", EDGES).collection()
    ts.sql(f"SELECT {aggregate}{over} AS s FROM edges", edges=edges).changes().capture("out")
    with pytest.raises(ts.TimelyError, match=r"beyond 38 digits|too large for decimal\(38,"):
        ts.testing.run(flow, {"edges": [[(1, 1, 0), (9, 2, 0)]]})


FILE = """
CREATE TABLE edges (src bigint, dst bigint, diff bigint) USING csv OPTIONS (path '{folder}');
CREATE VIEW far AS SELECT * FROM edges WHERE dst >= :least;
CREATE MATERIALIZED VIEW degrees LOCATION :out AS SELECT src, count(*) AS n FROM far GROUP BY src;
"""


@pytest.mark.slow
def test_a_file_of_sql_is_a_flow(tmp_path, capsys):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.csv").write_text("src,dst,diff\n1,2,1\n")
    file = tmp_path / "degrees.sql"
    file.write_text(FILE.format(folder=tmp_path / "in"))
    made = read_sql(file.read_text(), {"least": "2", "out": str(tmp_path / "out")})
    assert made.outputs == {"degrees": (str(tmp_path / "out"), ())}
    flow, views = made.flow()
    views["degrees"].changes().capture("seen")
    seen = ts.testing.run(flow, {"edges": [[(1, 2, 1), (1, 1, 1), (1, 5, 1)], [(1, 5, -1)]]})["seen"]
    assert seen.rows() == {0: [(1, 2, 1)], 1: [(1, 1, 1), (1, 2, -1)]}

    for text, shown in (("007", "'007'"), ("-1.50", "-1.50"), ("2024-01-31", "'2024-01-31'"), (".5", ".5")):
        assert main(["run", str(file), "--explain", "--set", f"least={text}", "--set", "out=x"]) == 0
        assert f"`dst` >= {shown}" in capsys.readouterr().out
    assert main(["run", str(file), "--explain", "--set", "least=2", "--set", "out=x"]) == 0
    assert "Aggregation count(*) by src" in capsys.readouterr().out
    assert main(["sql", str(file), "--explain"]) == 1
    assert "no value for :least" in capsys.readouterr().err
    assert main(["run", str(file), "--set", "least=2", "--set", "out=x"]) == 1
    assert "--checkpoint" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("CREATE TABLE t (a int) USING orc LOCATION 'x'", "t USING orc"),
        ("CREATE TABLE t (a int) USING csv", "t has no place"),
        ("CREATE TABLE t (a int) USING csv OPTIONS (path 'x', sep ';')", "t has options sep"),
        ("CREATE TABLE t (a int) USING csv OPTIONS (path 'x', header 'false')", "t has options header"),
        (
            "CREATE MATERIALIZED VIEW r PARTITIONED BY (a) AS SELECT 1 AS a",
            "r has the clause PARTITIONED BY",
        ),
        ("CREATE MATERIALIZED VIEW r TBLPROPERTIES ('key' = 'a') AS SELECT 1 AS a", "r has properties key"),
        (
            "CREATE MATERIALIZED VIEW r SCHEDULE EVERY 1 HOUR AS SELECT 1 AS a",
            "not understood, in line 1, column 28",
        ),
        ("CREATE VIEW v AS SELECT 1 AS a\nCREATE VIEW w AS SELECT 1 AS a", "in line 2, column 1"),
        ("DROP TABLE t", "DROP TABLE in a file of SQL"),
    ],
)
def test_a_wrong_file_is_refused(text, problem):
    with pytest.raises(SqlError, match=problem):
        read_sql(text)


def test_a_kept_view_with_equal_rows_is_refused(tmp_path):
    text = """CREATE TABLE edges (src bigint) USING csv LOCATION '/x';
        CREATE MATERIALIZED VIEW r LOCATION '/y' AS SELECT src FROM edges"""
    (tmp_path / "a.csv").write_text("src\n1\n")
    with pytest.raises(SqlError, match="r may have equal rows"):
        read_sql(text.replace("/x", str(tmp_path))).flow()
    kept = text.replace("LOCATION '/y'", "LOCATION '/y' TBLPROPERTIES ('keys' = 'src')")
    flow, _ = read_sql(kept.replace("/x", str(tmp_path))).flow()
    assert "table r" in repr(flow)
    assert "kept in /y by src" in read_sql(kept).explain()
    with pytest.raises(SqlError, match=r"(?s)r has no column srcc, .* one of its keys.*did you mean src"):
        read_sql(kept.replace("'src'", "'srcc'")).explain()


def test_a_kept_view_has_any_names(tmp_path):
    (tmp_path / "a.csv").write_text("src,dst\n1,2\n")
    text = f"""CREATE TABLE raw.edges (src bigint, dst bigint) USING csv LOCATION '{tmp_path}'; -- the edges
        CREATE MATERIALIZED VIEW main.r AS SELECT src, max(dst) - src AS diff FROM raw.edges GROUP BY src"""
    pipeline = read_sql(text)
    assert "main.r (SQL:2) reads raw.edges; kept in main.r by src" in pipeline.explain()
    flow, views = pipeline.flow()
    assert views["main.r"].schema.names == ["src", "diff"]
    assert "table main_r" in repr(flow)


def test_clauses_that_only_describe_a_table_are_read(tmp_path):
    (tmp_path / "a.csv").write_text("src,dst\n1,2\n")
    text = f"""CREATE EXTERNAL TABLE IF NOT EXISTS edges (
          src bigint NOT NULL, dst bigint COMMENT 'a node', PRIMARY KEY (src))
        USING csv OPTIONS (header 'true') LOCATION '{tmp_path}' COMMENT 'the edges';
        CREATE TEMPORARY VIEW v COMMENT 'all' AS SELECT * FROM edges;
        CREATE MATERIALIZED VIEW r LOCATION '/y' COMMENT 'pairs' AS SELECT DISTINCT src FROM v"""
    assert read_sql(text).flow()[1]["r"].schema.names == ["src"]


def test_a_function_of_the_user_is_called_in_queries():
    ts.function("twice_of_it", "bigint", lambda n: pc.multiply(n, 2))
    flow = ts.Dataflow("functions")
    edges = flow.input("edges", EDGES).collection()
    query = "SELECT src, sum(twice_of_it(w)) AS w FROM edges GROUP BY src HAVING twice_of_it(src) > 2"
    ts.sql(query, edges=edges).changes().capture("out")
    assert ts.testing.run(flow, {"edges": [[(1, 2, 3), (2, 2, 3), (2, 1, 4)]]})["out"].rows() == {
        0: [(2, 14, 1)]
    }


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        (lambda _: 5, "TypeError: 'int' object is not iterable"),
        (lambda n: n[9], "IndexError"),
        (lambda n: pa.array(["x"] * len(n), pa.string()), "ArrowInvalid: Failed to parse string: 'x'"),
        (lambda _: pa.array([1, 2]), "returned 2 values for 1 rows"),
    ],
)
def test_a_function_that_fails_is_named(function, problem):
    ts.function("wrong_one", "bigint", function)
    expression = bind("wrong_one(w)", pa.schema([("w", pa.int64())]))
    rows = pa.table({"w": pa.array([3], pa.int64())})
    with pytest.raises(ExpressionError, match=rf"(?s)WRONG_ONE\(w\): wrong_one .*{problem}.*Hint: .*value"):
        expression.evaluate(rows)


@pytest.mark.slow
def test_the_package_of_expressions_does_not_hide_the_function_sql():
    code = (
        "import timely_spark.sql.functions; from timely_spark.sql import bind; import timely_spark as ts;"
        "from timely_spark import sql; assert sql is ts.sql and callable(sql), sql"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_table_is_found_by_its_view():
    assert table_view("edges", collection()).names == ("src", "dst", "w")


def test_joins_of_a_file_begin_with_the_smallest_table_and_keep_their_order(tmp_path):
    for name, rows in {"large": 400, "middle": 40, "small": 2}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.csv").write_text("k,v\n" + "".join(f"{n},{n}\n" for n in range(rows)))
    text = "".join(
        f"CREATE TABLE {name} (k bigint, v bigint) USING csv LOCATION '{tmp_path}/{name}';"
        for name in ("large", "middle", "small")
    )
    text += f"""CREATE MATERIALIZED VIEW r LOCATION '{tmp_path}/r' AS
      SELECT DISTINCT * FROM large l JOIN middle m ON l.k = m.k JOIN small s ON l.v = s.k"""

    def scans(checkpoint=None):
        return re.findall("TableScan (\\w+)", read_sql(text).explain(checkpoint))

    assert scans() == ["small", "large", "middle"]
    assert read_sql(text).flow()[1]["r"].schema.names == ["k", "v", "k_2", "v_2", "k_3", "v_3"]
    # a checkpoint has the sizes of its first start
    files = Files(tmp_path / "check")
    files.write_json(PARTS, {"parts": [], "sizes": {"large": 1, "middle": 2, "small": 3}})
    assert scans(tmp_path / "check") == ["large", "middle", "small"]
    files.write_json(PARTS, {"parts": []})
    assert scans(tmp_path / "check") == ["large", "middle", "small"]


def test_all_pairs_are_not_made_if_an_equality_with_several_tables_joins_them():
    query = "SELECT count(*) FROM edges a, edges b, edges c WHERE b.src = c.src AND a.w = b.w + c.w"
    assert "all pairs" not in ts.explain_sql(query, edges=collection())
    assert "all pairs" in ts.explain_sql(query.replace("a.w =", "a.w <"), edges=collection())
