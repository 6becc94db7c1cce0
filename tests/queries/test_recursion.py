"""`WITH RECURSIVE` under insertions and deletions: at each epoch the answer of a new run on the tables."""

from __future__ import annotations

import warnings

import pytest

import timely_spark as ts
from tests.support.duck import SEEDS, compare, history
from timely_spark.errors import LimitReached, SqlError
from timely_spark.queries.recursion import take_clauses

GRAPH = {"edges": "src bigint, dst bigint, w bigint", "roots": "node bigint"}

#: ours, and DuckDB's where it differs
SAME = [
    (
        """WITH RECURSIVE near(node) AS (
             SELECT node FROM roots UNION SELECT dst FROM near JOIN edges ON near.node = edges.src)
           SELECT * FROM near""",
        None,
    ),
    (
        """WITH RECURSIVE closure AS (
             SELECT src, dst FROM edges
             UNION SELECT c.src, e.dst FROM closure c, edges e WHERE c.dst = e.src)
           SELECT * FROM closure WHERE src <> dst""",
        None,
    ),
    (
        """WITH RECURSIVE hops(node, n) AS (
             SELECT node, 0 FROM roots
             UNION ALL SELECT e.dst, n + 1 FROM hops JOIN edges e ON node = e.src WHERE n < 3)
           SELECT node, min(n), count(*) FROM hops GROUP BY node""",
        None,
    ),
    (
        "WITH RECURSIVE s(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < 7) SELECT sum(n) FROM s",
        None,
    ),
    (  # the rows of the recursion, as they are
        """WITH RECURSIVE near(node) AS (
             SELECT node FROM near UNION SELECT node + (SELECT node) FROM roots UNION SELECT dst FROM edges)
           SELECT node / 2 FROM near""",
        "SELECT node / 2 FROM (SELECT 2 * node AS node FROM roots UNION SELECT dst FROM edges)",
    ),
    (  # between two other steps, and through a second name
        """WITH RECURSIVE halves AS (SELECT src DIV 2 AS a, dst AS b FROM edges),
             hops(a, b) AS (SELECT halves.a, reach.b FROM halves JOIN reach ON halves.b = reach.a),
             reach(a, b) AS (SELECT a, b FROM halves UNION SELECT a, b FROM hops)
           SELECT a + 1, b FROM reach""",
        """WITH RECURSIVE halves AS (SELECT src // 2 AS a, dst AS b FROM edges), reach(a, b) AS (
             SELECT a, b FROM halves
             UNION SELECT halves.a, reach.b FROM halves JOIN reach ON halves.b = reach.a)
           SELECT a + 1, b FROM reach""",
    ),
    (  # the step first
        """WITH RECURSIVE near(node) AS (
             SELECT dst FROM near JOIN edges ON near.node = edges.src UNION SELECT node FROM roots)
           SELECT * FROM near""",
        """WITH RECURSIVE near(node) AS (
             SELECT node FROM roots UNION SELECT dst FROM near JOIN edges ON near.node = edges.src)
           SELECT * FROM near""",
    ),
    (  # a key without a loop
        """WITH RECURSIVE best(node, d) USING KEY (node, min(d)) AS (
             SELECT src, w FROM edges WHERE w IS NOT NULL UNION SELECT dst, w FROM edges WHERE w IS NOT NULL)
           SELECT * FROM best""",
        """SELECT node, min(d) FROM (
             SELECT src AS node, w AS d FROM edges UNION SELECT dst, w FROM edges)
           WHERE d IS NOT NULL GROUP BY node""",
    ),
    (  # a recursion in a recursion, before its parts
        """WITH RECURSIVE far(node, n) AS (
             WITH RECURSIVE near(node) AS (
               SELECT node FROM roots UNION SELECT dst FROM near JOIN edges ON near.node = edges.src)
             SELECT node, 0 FROM near
             UNION ALL SELECT dst, n + 1 FROM far JOIN edges ON far.node = edges.src WHERE n < 2)
           SELECT node, n, count(*) FROM far GROUP BY node, n""",
        None,
    ),
    (  # the inner name hides the outer one, which is no recursion then
        """WITH RECURSIVE near(node) AS (
             WITH RECURSIVE near(node) AS (
               SELECT node FROM roots UNION SELECT dst FROM near JOIN edges ON near.node = edges.src)
             SELECT node FROM near UNION ALL SELECT node + 1 FROM near)
           SELECT * FROM near""",
        """WITH RECURSIVE near(node) AS (
             SELECT node FROM roots UNION SELECT dst FROM near JOIN edges ON near.node = edges.src)
           SELECT node FROM near UNION ALL SELECT node + 1 FROM near""",
    ),
    (  # two steps
        """WITH RECURSIVE linked(node) AS (
             SELECT node FROM roots
             UNION SELECT dst FROM linked JOIN edges ON node = src
             UNION SELECT src FROM linked JOIN edges ON node = dst)
           SELECT * FROM linked""",
        """WITH RECURSIVE linked(node) AS (
             SELECT node FROM roots
             UNION (SELECT CASE WHEN node = src THEN dst ELSE src END
                    FROM linked JOIN edges ON node = src OR node = dst))
           SELECT * FROM linked""",
    ),
    (  # not linear: the closure joined with itself is the same
        """WITH RECURSIVE closure(a, b) AS (
             SELECT src, dst FROM edges
             UNION SELECT x.a, y.b FROM closure x JOIN closure y ON x.b = y.a)
           SELECT * FROM closure""",
        """WITH RECURSIVE closure(a, b) AS (
             SELECT src, dst FROM edges
             UNION SELECT x.a, y.dst FROM closure x JOIN edges y ON x.b = y.src)
           SELECT * FROM closure""",
    ),
    (  # same generation
        """WITH RECURSIVE same(a, b) AS (
             SELECT x.dst, y.dst FROM edges x JOIN edges y ON x.src = y.src
             UNION SELECT x.dst, y.dst FROM same s JOIN edges x ON s.a = x.src JOIN edges y ON s.b = y.src)
           SELECT a, count(*) FROM same GROUP BY a""",
        None,
    ),
    (  # a recursive name in EXISTS
        """WITH RECURSIVE near(node) AS (
             SELECT node FROM roots
             UNION SELECT dst FROM edges WHERE EXISTS (SELECT 1 FROM near WHERE near.node = edges.src))
           SELECT * FROM near""",
        """WITH RECURSIVE near(node) AS (
             SELECT node FROM roots UNION SELECT dst FROM near JOIN edges ON near.node = edges.src)
           SELECT * FROM near""",
    ),
    (  # subqueries of other tables, which are asked for rows of the recursion
        """WITH RECURSIVE near(node) AS (
             SELECT node FROM roots
             UNION SELECT dst FROM near JOIN edges ON near.node = edges.src
             WHERE NOT EXISTS (SELECT 1 FROM roots r WHERE r.node = dst + 1)
               AND (SELECT count(*) FROM edges e WHERE e.src = near.node) < 3)
           SELECT * FROM near""",
        None,
    ),
    (
        """WITH RECURSIVE hops(node, n) AS (
             SELECT node, 0 FROM roots
             UNION ALL SELECT (SELECT max(dst) FROM edges WHERE src = node), n + 1 FROM hops
             WHERE n < 3 AND EXISTS (SELECT 1 FROM edges WHERE src = node AND w > n - 2))
           SELECT node, n, count(*) FROM hops GROUP BY node, n""",
        None,
    ),
    (  # a query that reads the result twice, and one that recurses over it
        """WITH RECURSIVE near(node) AS (
             SELECT node FROM roots UNION SELECT dst FROM near JOIN edges ON near.node = edges.src),
           back(node) AS (
             SELECT node FROM near UNION SELECT src FROM back JOIN edges ON back.node = edges.dst)
           SELECT count(*), (SELECT count(*) FROM near) FROM back""",
        None,
    ),
    (
        """WITH RECURSIVE far(node) AS (
             SELECT node FROM roots UNION SELECT dst FROM far LEFT JOIN edges ON far.node = edges.src)
           SELECT n.node FROM roots n WHERE n.node NOT IN (SELECT node FROM far WHERE node > 2)""",
        None,
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_a_recursion_is_at_each_epoch_what_duckdb_answers(seed):
    ours, theirs = zip(*((one, other or one) for one, other in SAME), strict=True)
    compare(ours, history(seed, tables=GRAPH, rows=5), oracle=theirs, tables=GRAPH, seed=seed)


MINIMUM = """WITH RECURSIVE dist(node, d) AS (
    SELECT node, min(d) FROM (
      SELECT node, 0L AS d FROM roots
      UNION ALL SELECT e.dst, dist.d + e.w FROM dist JOIN weighed e ON dist.node = e.src) GROUP BY node),
  weighed AS (SELECT src, dst, w + 2 AS w FROM edges WHERE w IS NOT NULL)
SELECT * FROM dist"""
KEYED = """WITH RECURSIVE dist(node, d) USING KEY (NODE, min(D)) AS (
    SELECT node, 0L FROM roots
    UNION SELECT e.dst, dist.d + e.w + 2 FROM dist JOIN edges e ON dist.node = e.src WHERE e.w IS NOT NULL)
SELECT * FROM dist"""
BOUNDED = """WITH RECURSIVE dist(node, d) AS (
    SELECT node, 0 FROM roots
    UNION SELECT e.dst, dist.d + e.w + 2 FROM dist JOIN edges e ON dist.node = e.src
    WHERE e.w IS NOT NULL AND dist.d + e.w + 2 < 40)
SELECT node, min(d) FROM dist GROUP BY node"""


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_a_minimum_in_the_loop_is_that_of_all_paths(seed):
    changes = history(seed, tables=GRAPH, rows=6)
    compare([MINIMUM, KEYED], changes, oracle=[BOUNDED, BOUNDED], tables=GRAPH, seed=seed)


MUTUAL = """WITH RECURSIVE
  even(node) AS (SELECT node FROM roots UNION SELECT dst FROM odd JOIN edges ON odd.node = edges.src),
  odd(node) AS (SELECT dst FROM even JOIN edges ON even.node = edges.src)
SELECT 'even' AS what, node FROM even UNION ALL SELECT 'odd', node FROM (SELECT DISTINCT node FROM odd)"""
PARITY = """WITH RECURSIVE walk(node, odd) AS (
    SELECT node, false FROM roots UNION SELECT dst, NOT odd FROM walk JOIN edges ON node = src)
SELECT CASE WHEN odd THEN 'odd' ELSE 'even' END, node FROM walk"""
#: for each root its component, by a recursion inside the body of another
NESTED = """WITH RECURSIVE wide(node) AS (
    SELECT node FROM roots
    UNION SELECT node FROM (
      WITH RECURSIVE deep(node) AS (
        SELECT node FROM wide UNION SELECT dst FROM deep JOIN edges ON deep.node = edges.src)
      SELECT node FROM deep)
    UNION SELECT src FROM wide JOIN edges ON wide.node = edges.dst)
SELECT node FROM wide"""


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_names_recurse_through_each_other_and_inside_each_other(seed):
    changes = history(seed, tables=GRAPH, rows=4)
    linked = next(theirs for ours, theirs in SAME if "linked(node)" in ours)
    compare([MUTUAL, NESTED], changes, oracle=[PARITY, linked], tables=GRAPH, seed=seed)


def run(query, rows=((1, 2, 1), (2, 3, 1), (3, 1, 1))):
    flow = ts.Dataflow("recursion")
    edges = flow.input("edges", "src bigint, dst bigint, w bigint").collection()
    ts.sql(query, edges=edges).changes().capture("out")
    return ts.testing.run(flow, {"edges": [list(rows)]})["out"].rows()[0]


LEVELS = """WITH RECURSIVE walk(node, n) {} AS (
    SELECT 1L, 0 UNION ALL SELECT dst, n + 1 FROM walk JOIN edges ON node = src) SELECT n FROM walk"""


@pytest.mark.slow
def test_a_limit_ends_the_recursion_or_is_an_error():
    assert run(LEVELS.format("RETURN AT RECURSION LIMIT 4")) == [(n, 1) for n in range(5)]
    with pytest.raises(LimitReached):
        run(LEVELS.format("MAX RECURSION LEVEL 4"))
    path = ((1, 2, 1), (2, 3, 1), (3, 4, 1))
    assert run(LEVELS.format("MAX RECURSION LEVEL 3"), path) == [(n, 1) for n in range(4)]
    with pytest.raises(LimitReached):
        run(LEVELS.format("MAX RECURSION LEVEL 2"), path)


@pytest.mark.parametrize(
    ("query", "place", "hint"),
    [
        (
            "WITH RECURSIVE r AS (SELECT src FROM edges UNION ALL SELECT a.src FROM r a, r b) SELECT 1",
            "2 recursive references",
            "write UNION",
        ),
        (
            "WITH RECURSIVE r AS (SELECT src FROM edges UNION ALL SELECT src + 1 FROM r) SELECT 1",
            "whose step keeps each row never ends",
            "write a condition",
        ),
        (
            "WITH RECURSIVE r AS (SELECT src FROM edges UNION ALL SELECT DISTINCT src FROM r) SELECT 1",
            "whose step applies DISTINCT to its own rows",
            "write UNION",
        ),
        (
            "WITH RECURSIVE r AS (SELECT src FROM edges UNION ALL SELECT sum(src) FROM r) TABLE r",
            "whose step applies the aggregate sum to its own rows",
            "write UNION",
        ),
        (
            "WITH RECURSIVE r AS (SELECT src FROM edges UNION SELECT count(*) FROM r)\nSELECT * FROM r",
            "r reads itself through the aggregate count",
            "MAX RECURSION LEVEL",
        ),
        (
            (
                "WITH RECURSIVE r AS (SELECT src FROM edges UNION (SELECT dst FROM edges EXCEPT\n"
                "SELECT src FROM r)) SELECT * FROM r"
            ),
            "r reads itself through EXCEPT",
            "MAX RECURSION LEVEL",
        ),
        (
            (
                "WITH RECURSIVE r AS (SELECT src FROM edges UNION SELECT dst FROM edges\n"
                "WHERE NOT EXISTS (SELECT 1 FROM r WHERE r.src = edges.dst)) SELECT * FROM r"
            ),
            "NOT EXISTS",
            "MAX RECURSION LEVEL",
        ),
        ("WITH RECURSIVE r AS (SELECT a FROM r) SELECT * FROM r", "r has no start", "begin with a SELECT"),
        (
            "WITH RECURSIVE r(a, b) AS (SELECT src FROM edges UNION SELECT a FROM r) SELECT * FROM r",
            "2 names for 1 columns",
            "name each column",
        ),
        (
            (
                "WITH RECURSIVE r(k, v) USING KEY (k) AS (SELECT src, dst FROM edges\n"
                "UNION SELECT k, v FROM r) SELECT * FROM r"
            ),
            "USING KEY (k) leaves out v",
            "min(column)",
        ),
        (
            "WITH RECURSIVE r(k, v) USING KEY (k, v, min(V)) AS (SELECT src, dst FROM edges) SELECT * FROM r",
            "USING KEY (k, v, min(V)) names other columns, or one twice",
            "min(column)",
        ),
    ],
)
def test_what_has_no_fixed_point_is_refused_with_its_place(query, place, hint):
    with pytest.raises(SqlError) as caught:
        run(query)
    assert place in str(caught.value)
    assert hint in str(caught.value)
    assert ", in line 1, column " in str(caught.value)
    assert "^" in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("step", "drops"),
    [
        ("v + w", None),
        ("v + w WHERE v + w < 40 AND w IS NOT NULL AND v IS NOT NULL", None),
        ("v + w WHERE 40 >= v", None),
        ("v + w WHERE v > 9", "`v` > 9"),
        ("v + w WHERE 40 - v < 9 OR w > 1", "40 - `v` < 9"),
        ("v + w WHERE v % 2 = 0", "`v` % 2 = 0"),
        ("v + w WHERE v = w", "v = w"),
    ],
)
def test_a_step_that_may_drop_a_row_that_improves_warns(step, drops):
    value, _, where = step.partition(" WHERE ")
    query = f"""WITH RECURSIVE r(k, v) USING KEY (k, min(v)) AS (SELECT 1L, 0L UNION
        SELECT dst, {value} FROM r JOIN edges ON k = src WHERE {where or "true"}) SELECT * FROM r"""
    edges = ts.Dataflow("recursion").input("edges", "src bigint, dst bigint, w bigint").collection()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ts.sql(query, edges=edges)
    assert [drops in str(one.message) for one in caught] == [True] * (drops is not None)


def test_a_loop_that_takes_back_is_bounded_and_warns():
    query = """WITH RECURSIVE r MAX RECURSION LEVEL 50 AS (SELECT src FROM edges
        UNION (SELECT dst FROM edges EXCEPT SELECT src FROM r WHERE src > 100)) SELECT * FROM r"""
    with pytest.warns(UserWarning, match="reads itself through EXCEPT"):
        assert run(query) == [(1, 1), (2, 1), (3, 1)]


_EDGES, _ONE = {"edges": "x int, y int"}, {"t": "v int"}
_STAFF = [
    *[
        (1, "Onkar", None),
        (2, "Isaac", 1),
        (3, "Jack", 1),
        (4, "Aditya", 1),
        (5, "Albert", 1),
        (6, "Alex", 2),
    ],
    *[(7, "Brian", 2), (8, "Harry", 3), (9, "Paul", 3), (10, "Kunal", 4), (11, "Pranav", 5)],
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("query", "schemas", "epochs", "changes"),
    [
        ("v(v) AS (SELECT v FROM v UNION SELECT 1) SELECT v FROM v", _ONE, [[]], [[(1, 1)]]),
        (
            "v(v) AS (SELECT v FROM v UNION SELECT v FROM t) SELECT v FROM v",
            _ONE,
            [[], [(1, 1)], [(2, 1)]],
            [[], [(1, 1)], [(2, 1)]],
        ),
        (
            """x(v) AS (SELECT v DIV 2 FROM t), v(v) AS (SELECT v FROM v UNION SELECT v FROM x)
            SELECT v + 1 FROM v""",
            _ONE,
            [[], [(1, 1)], [(2, 1)]],
            [[], [(1, 1)], [(2, 1)]],
        ),
        (
            """closure(x, y) AS (SELECT x, y FROM edges UNION SELECT x, y FROM step),
            step(x, y) AS (SELECT edges.x, closure.y FROM edges JOIN closure ON edges.y = closure.x)
            SELECT x, y FROM closure""",
            _EDGES,
            [[], [(0, 1, 1)], [(1, 2, 1)], [(0, 1, -1)]],
            [[], [(0, 1, 1)], [(0, 2, 1), (1, 2, 1)], [(0, 1, -1), (0, 2, -1)]],
        ),
        (  # of a view that reads the closure, and is read by it
            """hops(a, b) AS (SELECT e.x, r.b FROM edges e JOIN reachable r ON e.y = r.a),
            reachable(a, b) AS (SELECT x, y FROM edges UNION SELECT a, b FROM hops) SELECT a, b FROM hops""",
            _EDGES,
            [[(0, 1, 1), (1, 2, 1)], [(2, 3, 1)]],
            [[(0, 2, 1)], [(0, 3, 1), (1, 3, 1)]],
        ),
        (
            """fact(n, factorial) AS (SELECT 1, 5 UNION ALL SELECT n + 1, factorial * n FROM fact WHERE n < 5)
            SELECT n, factorial FROM fact""",
            _ONE,
            [[]],
            [[(1, 5, 1), (2, 5, 1), (3, 10, 1), (4, 30, 1), (5, 120, 1)]],
        ),
        (
            "tens(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM tens WHERE n < 10) SELECT n FROM tens",
            _ONE,
            [[]],
            [[(n, 1) for n in range(1, 11)]],
        ),
        (
            """s(id, name, manager, level) AS (SELECT id, name, manager, 0 FROM emp WHERE manager IS NULL
            UNION ALL SELECT e.id, e.name, e.manager, s.level + 1 FROM emp e JOIN s ON s.id = e.manager)
            SELECT id, level FROM s""",
            {"emp": "id int, name string, manager int"},
            [[(*one, 1) for one in _STAFF]],
            [[(one, (one > 1) + (one > 5), 1) for one, _, _ in _STAFF]],
        ),
    ],
)
def test_recursive_views_have_the_changes_of_feldera(query, schemas, epochs, changes):
    """Feldera's own tests of views that recurse: see tests/oracle/outside/NOTICE."""
    ((name, schema),) = schemas.items()
    flow = ts.Dataflow("views")
    table = flow.input(name, f"{schema}, diff bigint").collection(diff="diff")
    ts.sql(f"WITH RECURSIVE {query}", **{name: table}).changes().capture("out")

    rows = ts.testing.run(flow, {name: epochs})["out"].rows()

    assert [sorted(rows.get(epoch, [])) for epoch in range(len(epochs))] == changes


@pytest.mark.parametrize("word", ["'all'", "'window'", "'TABLE'", '"all"'])
def test_a_text_that_is_a_word_of_a_clause_stays_a_text(word: str) -> None:
    query = f"SELECT {word} AS x; WITH RECURSIVE r(k, v) USING KEY (k, min(v)) AS (SELECT 1) SELECT * FROM r"
    cleared, (clause,) = take_clauses(query)
    assert cleared == query.replace("USING KEY (k, min(v))", " " * 21)
    assert query[clause.start :].startswith("USING KEY")
