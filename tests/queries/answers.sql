-- Queries over the tables of test_answers.py, each with its rows in Spark.

-- grouping sets: one that is listed twice is there twice

SELECT a, b, count(*) FROM u GROUP BY a, b, ROLLUP(a, b)
----
1 2 1
1 2 1
1 2 1
2 3 1
2 3 1
2 3 1
2 NULL 1
2 NULL 1
2 NULL 1

SELECT a, b, count(*) FROM t GROUP BY a, b GROUPING SETS ((a), ())
----
1 NULL 2
2 NULL 1
NULL NULL 1
NULL NULL 4

SELECT grouping(a) AS g, a, count(*) FROM u GROUP BY ROLLUP(a) ORDER BY g + 1 DESC, CASE WHEN g = 0 THEN a END LIMIT 2
----
0 1 1
1 NULL 3

SELECT a, count(*) FROM t WHERE a > 100 GROUP BY ROLLUP(a)
----

SELECT count(*) FROM t WHERE a > 100 GROUP BY ALL
----
0

SELECT count(*), grouping_id() FROM t WHERE a > 100 GROUP BY GROUPING SETS (()) HAVING grouping_id() = 0
----
0 0

-- keys and arguments that are subqueries

SELECT (SELECT max(e) FROM u) AS s, count(*) FROM t GROUP BY s
----
7 4

SELECT sum((SELECT max(e) FROM u WHERE u.a = t.a)) FROM t
----
17

SELECT c, count(*) FILTER (WHERE a IN (SELECT a FROM u WHERE b = 3)) FROM t GROUP BY c
----
NULL 0
x 1
y 0

-- decimals, lists, maps

SELECT any(a > 1), every(a > 0) FROM t
----
true true

SELECT sum(p), avg(p), sum(DISTINCT p), avg(-p) FROM t
----
6.75 2.250000 6.75 -2.250000

SELECT a, sum(p), avg(CAST(p AS decimal(30, 10))) FROM t GROUP BY a
----
1 3.75 1.87500000000000
2 NULL NULL
NULL 3.00 3.00000000000000

SELECT a, size(collect_list(b)), array_join(collect_set(c), '-') FROM t GROUP BY a
----
1 2 x-y
2 1 x
NULL 0

SELECT count(*) FROM (SELECT l, m FROM t GROUP BY ALL)
----
4

SELECT l[0], count(*) FROM (SELECT l FROM t UNION ALL SELECT l FROM t WHERE a = 1) WHERE size(l) > 0 GROUP BY l
----
1 2
3 1

SELECT x.b FROM t x JOIN t y ON x.l = y.l
----
1
2
NULL

SELECT s.f, s.g[1] FROM VALUES (named_struct('f', 1, 'g', array(1, 2))), (NULL) v(s)
----
1 2
NULL NULL

-- functions that make rows

SELECT a, x FROM t LATERAL VIEW explode(l) e AS x
----
1 1
1 2
NULL 3

SELECT b, x FROM t LATERAL VIEW OUTER explode(l) AS x WHERE a IS NOT NULL
----
1 1
1 2
2 NULL
3 NULL

SELECT b, k, v FROM t LATERAL VIEW OUTER explode(m) e AS k, v
----
1 k 1
2 j 3
2 k 2
3 NULL NULL
NULL NULL NULL

SELECT x, y FROM t LATERAL VIEW explode(l) AS x LATERAL VIEW explode(array(x, x + 1)) AS y WHERE a = 1
----
1 1
1 2
2 2
2 3

SELECT a, explode(l) FROM t
----
1 1
1 2
NULL 3

SELECT a, posexplode(l) AS (p, x) FROM t
----
1 0 1
1 1 2
NULL 0 3

SELECT * FROM explode(array(1, 2)) AS q(z)
----
1
2

SELECT a, q.z FROM t, LATERAL explode(l) AS q(z)
----
1 1
1 2
NULL 3

SELECT inline(array(named_struct('x', 1, 'y', 'a'), named_struct('x', 2, 'y', 'b')))
----
1 a
2 b

SELECT * FROM range(3), range(1, 7, 3) r
----
0 1
0 4
1 1
1 4
2 1
2 4

-- joins in parentheses, conditions with subqueries, names that are there twice

SELECT t.b, u.e, z.e FROM (t JOIN u ON t.a = u.a) LEFT JOIN u z ON z.b = u.b
----
1 5 5
2 5 5
3 6 6
3 7 NULL

SELECT j.a, e FROM ((SELECT a FROM t) ss JOIN (SELECT a AS q, e FROM u) uu ON ss.a = uu.q) j
----
1 5
1 5
2 6
2 7

SELECT count(*) FROM ((u x CROSS JOIN u y) CROSS JOIN u z) JOIN u w ON w.a = x.a
----
45

SELECT t.b, u.e FROM t JOIN u ON t.a = u.a AND u.e IN (SELECT max(e) FROM u)
----
3 7

SELECT * FROM (SELECT e FROM u) x JOIN (SELECT e FROM u) x ON true WHERE true
----
5 5
5 6
5 7
6 5
6 6
6 7
7 5
7 6
7 7

-- subqueries of FROM that read the tables around

SELECT t.b, s.* FROM t, LATERAL (SELECT sum(n) FROM (SELECT count(*) n FROM u WHERE u.a = t.a)) s
----
1 1
2 1
3 2
NULL 0

SELECT t.b, s.* FROM t, LATERAL (SELECT x.n, y.m FROM (SELECT count(*) n FROM u WHERE u.a = t.a) x, (SELECT max(e) m FROM u WHERE u.b = t.b) y) s
----
1 1 NULL
2 1 5
3 2 6
NULL 0 NULL

SELECT t.b, s.e FROM t LEFT JOIN LATERAL (SELECT e, b FROM u WHERE u.a = t.a) s ON s.b = t.b + 1
----
1 5
2 NULL
3 NULL
NULL NULL

SELECT t.b, s.a FROM t, LATERAL (SELECT a) s
----
1 1
2 1
3 2
NULL NULL

-- a step that keeps left rows is linear

WITH RECURSIVE r(a, n) AS (SELECT a, 0 FROM u UNION ALL SELECT r.a, n + 1 FROM r LEFT JOIN t ON t.b = r.a WHERE n < 2) SELECT n, count(*) FROM r GROUP BY n
----
0 3
1 3
2 3

WITH RECURSIVE r(a, n) AS (SELECT a, 0 FROM u UNION ALL SELECT r.a + 1, n + 1 FROM r LEFT SEMI JOIN t ON t.b = r.a) SELECT * FROM r
----
1 0
2 0
2 0
2 1
3 1
3 1
3 2
4 2
4 2
4 3

-- IN of several columns: null where a row may be equal

SELECT a, b FROM t WHERE (a, b) NOT IN (SELECT a, b FROM u)
----
1 1

SELECT b, (a, b) IN (SELECT a, b FROM u WHERE b IS NOT NULL AND u.a = t.a), (a, a) NOT IN (SELECT a, b FROM u WHERE e < 0) FROM t
----
1 false true
2 true true
3 true true
NULL false true

-- windows: distances, nulls that are passed over, decimals

SELECT b, sum(b) OVER (ORDER BY b RANGE BETWEEN 1 PRECEDING AND CURRENT ROW) FROM t
----
1 1
2 3
3 5
NULL NULL

SELECT d, count(*) OVER (ORDER BY d RANGE BETWEEN 3.0 PRECEDING AND 1 FOLLOWING), count(*) OVER (ORDER BY d DESC RANGE BETWEEN 3 PRECEDING AND CURRENT ROW) FROM t
----
1.0 2 2
2.0 2 2
5.0 2 1
9.0 1 1

SELECT x, count(*) OVER (ORDER BY x RANGE BETWEEN 2 PRECEDING AND CURRENT ROW), count(*) OVER (ORDER BY x RANGE BETWEEN CURRENT ROW AND 2 FOLLOWING) FROM VALUES (-9), (-2), (-1), (1), (9) AS v(x)
----
-1 2 2
-2 1 2
-9 1 1
1 2 1
9 1 1

SELECT x, count(*) OVER (ORDER BY x DESC RANGE BETWEEN 1 PRECEDING AND 1 FOLLOWING), count(*) OVER (ORDER BY x NULLS LAST RANGE BETWEEN 1 PRECEDING AND 1 FOLLOWING) FROM VALUES (double('NaN')), (double('NaN')), (double('Infinity')), (1.0D), (NULL) AS v(x)
----
1.0 1 1
Infinity 1 1
NULL 1 1
NaN 2 2
NaN 2 2

SELECT day(x), count(*) OVER (ORDER BY x RANGE INTERVAL '1' DAY PRECEDING) FROM (SELECT make_date(2024, 1, b) AS x FROM t)
----
1 1
2 2
3 2
NULL 1

SELECT p, count(*) OVER (ORDER BY p RANGE BETWEEN 0.75 PRECEDING AND 0.75 FOLLOWING), avg(p) OVER (ORDER BY p ROWS 1 PRECEDING), sum(p) OVER () FROM t
----
1.50 2 1.500000 6.75
2.25 3 1.875000 6.75
3.00 2 2.625000 6.75
NULL 1 NULL 6.75

SELECT d, lag(b) IGNORE NULLS OVER (ORDER BY d), lead(b) IGNORE NULLS OVER (ORDER BY d), lag(c, 2) IGNORE NULLS OVER (ORDER BY d) FROM t
----
1.0 NULL 3 NULL
2.0 1 2 NULL
5.0 3 NULL x
9.0 2 NULL x

-- windows of time

SELECT minute(window.start), minute(window.end), count(*) FROM (SELECT to_timestamp(concat('2024-01-01 00:0', b, ':30')) AS ts FROM t) GROUP BY window(ts, '2 minutes')
----
0 2 1
2 4 2

SELECT minute(window.start), n FROM (SELECT window, count(*) AS n FROM (SELECT to_timestamp(concat('2024-01-01 00:0', b, ':30')) AS ts FROM t) GROUP BY window(ts, '2 minutes', '1 minute'))
----
0 1
1 2
2 2
3 1

-- PIVOT

SELECT * FROM (SELECT a, c, b FROM t) PIVOT (sum(b) AS s, count(*) AS n FOR c IN ('x', 'y'))
----
1 1 1 2 1
2 3 1 NULL NULL
NULL NULL NULL NULL NULL

SELECT why, p.x FROM (SELECT c, b FROM t) PIVOT (max(b) FOR c IN ('x', 'y' AS why)) p
----
2 3

SELECT * FROM (SELECT c, b FROM t) PIVOT (max(b) FOR (c, b) IN (('x', 1) AS q, ('y', 5)))
----
1 NULL

SELECT * FROM (SELECT a, c, b FROM t WHERE a > 0) PIVOT (ceil(sum(b)), avg(b) + 1 AS s, max(b) FOR c IN ('x', 'y'))
----
1 1 2.0 1 2 3.0 2
2 3 4.0 3 NULL NULL NULL

-- windows by their own keys, limits by columns around, names as long as their expressions

SELECT a, rank() OVER (PARTITION BY a ORDER BY a), sum(a) OVER (PARTITION BY a ORDER BY a RANGE 2 PRECEDING), lag(a) OVER (PARTITION BY a ORDER BY b) FROM t
----
1 1 2 NULL
1 1 2 1
2 1 2 NULL
NULL 1 NULL NULL

SELECT CASE WHEN a IN (1, 0) THEN coalesce(c, 'a long text for a long name') ELSE nullif(c, coalesce(c, 'another long text')) END FROM t EXCEPT ALL SELECT c FROM t WHERE b = 1
----
NULL
NULL
y

-- aggregates by an order

SELECT listagg(c, '+') WITHIN GROUP (ORDER BY d DESC), string_agg(DISTINCT c) FROM t
----
y+x+x xy

-- two functions of one window see equal rows in one order

SELECT lag(n) OVER (ORDER BY k), lead(n, 1, 0) OVER (ORDER BY k) FROM (SELECT 1 AS k, 4 AS n UNION ALL SELECT 1, 4 UNION ALL SELECT 0, 9 UNION ALL SELECT 2, 3)
----
NULL 4
9 4
4 3
4 0

-- rows that functions make, in LATERAL

SELECT a, id FROM t, LATERAL range(2) WHERE b < 3
----
1 0
1 0
1 1
1 1

SELECT a, x FROM t JOIN LATERAL (SELECT explode_outer(l)) AS s(x)
----
1 1
1 2
1 NULL
2 NULL
NULL 3

SELECT * FROM LATERAL (SELECT max(b) FROM t), LATERAL explode(array(7, 8))
----
3 7
3 8

-- WITH that reads columns of the block around it

SELECT (WITH unread AS (SELECT b) SELECT 1) AS one, (a) FROM t ORDER BY a LIMIT 2
----
1 1
1 NULL

SELECT DISTINCT (c) FROM t ORDER BY c LIMIT 2
----
NULL
x

SELECT 'a' 'b' AS c FROM u WHERE e = 5
----
ab

-- USING and NATURAL: their columns are the first of a star, also of one of the tables

SELECT * FROM (SELECT e, b, a FROM u) x JOIN (SELECT c, b, a FROM t) y USING (b)
----
2 5 1 y 1
3 6 2 x 2

SELECT y.*, x.* FROM (SELECT e, b, a FROM u) x LEFT JOIN (SELECT c, b, a FROM t) y USING (b, a)
----
2 1 y 2 1 5
3 2 x 3 2 6
NULL NULL NULL NULL 2 7

SELECT * FROM (SELECT e, b FROM u) x NATURAL FULL JOIN (SELECT c, b FROM t WHERE b < 3) y JOIN (SELECT 5 AS e, 'z' AS z) USING (e)
----
5 2 y z

SELECT * FROM (SELECT e, b FROM u) x LEFT SEMI JOIN t USING (b)
----
2 5
3 6

SELECT x.e, q.k FROM ((VALUES (5, 'k')) AS q(e, k) JOIN u x USING (e))
----
5 k

-- an alias is that of an expression before, else the name is that of a column around

SELECT u.a, s.* FROM u, LATERAL (SELECT a + 1 AS a, a AS x, x + 1 AS y, a * 2 AS z) s WHERE u.b = 2
----
1 2 2 3 4

-- HAVING without groups is of all rows

SELECT 1 AS one FROM t HAVING true
----
1

-- units of time are words, also where a column has the name

SELECT dateadd(day, a, make_date(2024, 1, b)), datediff(MONTH, make_date(2024, 1, 1), make_date(2024, 3, b)), timestampdiff(HOUR, x, timestampadd(DAY, b, x)) FROM (SELECT a, b, b AS day, timestamp'2024-01-01 00:00:00' AS x FROM t) WHERE b > 1
----
2024-01-03 00:00:00 2 48
2024-01-05 00:00:00 2 72

-- operators bind as in Spark

SELECT a | b & 1, 1 | a << 1, '1' || a + 1, a + b || c, a < b = (b > a) FROM t WHERE b = 2
----
1 3 12 3y true

-- rows of one value, and names of values

SELECT data.a, t.b FROM VALUES 1, 2, 3 AS data(a) JOIN t ON t.b = data.a
----
1 1
2 2
3 3

SELECT n.* FROM VALUES 7 AS n WHERE (SELECT count(*) FROM t) > 0
----
7

SELECT x, y FROM VALUES ('one', 1 AS one), ('two', (2)) AS data(x, y) WHERE y IN (SELECT b FROM t)
----
one 1
two 2

-- keys that are equal in several ways: maps in any order, sums of operands in any order; a column all

SELECT count(*) FROM VALUES (map(1, 2, 2, 3)), (map(1, 3)), (map(2, 3, 1, 2)) AS v(m) GROUP BY m
----
1
2

SELECT count(*) FROM VALUES (struct(array(map(1, 2, 2, 3)))), (struct(array(map(2, 3, 1, 2)))) AS v(m) GROUP BY m
----
2

SELECT s.m['k'], count(*) FROM (SELECT struct(m) AS s FROM t) GROUP BY s HAVING s.m['k'] > 0
----
1 1
2 1

SELECT all, b FROM (SELECT a AS all, b FROM u) WHERE b > 0
----
1 2
2 3

SELECT count(*) FROM (SELECT a AS all FROM t) GROUP BY all
----
1
1
2

SELECT a + b, b, count(*) FROM u GROUP BY GROUPING SETS ((a + b), (b + a), (b))
----
3 NULL 1
3 NULL 1
5 NULL 1
5 NULL 1
NULL 2 1
NULL 3 1
NULL NULL 1
NULL NULL 1
NULL NULL 1

SELECT b + a FROM u GROUP BY a + b
----
3
5
NULL

SELECT a, grouping__id FROM u GROUP BY CUBE (a) HAVING grouping__id > 0
----
NULL 1

-- the order of structs and arrays is that of their parts

SELECT max(struct(a, b)), min(array(b, a)) FROM u
----
{"a":2,"b":3} [null,2]

SELECT a, b FROM u ORDER BY struct(a, b) DESC LIMIT 1
----
2 3

SELECT a, map(1, b)['1'] FROM u
----
1 2
2 3
2 NULL

-- functions that make rows, of columns of the query around; a column window

SELECT a, x FROM u, LATERAL (SELECT * FROM explode(array(u.a, u.b)) e(x) WHERE x > 1)
----
1 2
2 2
2 2
2 3

SELECT u.a, x FROM u LEFT JOIN LATERAL explode(array(a, b)) e(x) ON x > 2
----
1 NULL
2 3
2 NULL

SELECT u.a, s.b, s.more FROM u, LATERAL (SELECT u.*, u.a + 1 AS more FROM VALUES (1)) s WHERE s.e = 5
----
1 2 2

SELECT a, k, n FROM u LATERAL VIEW json_tuple(concat('{"k": "', e, '", "n": null, "k": [', b, ']}'), 'k', 'n') j AS k, n
----
1 [2] NULL
2 NULL NULL
2 [3] NULL

SELECT window, count(*) FROM (SELECT a AS window FROM u) GROUP BY window
----
1 1
2 2

WITH v AS (TABLE u) TABLE v UNION (TABLE u) ORDER BY e DESC LIMIT 1
----
2 NULL 7

-- stars: of a struct, of one of two tables, without columns

SELECT s.* EXCEPT (y), s.* FROM (SELECT struct(a AS x, b AS y) AS s FROM u)
----
1 1 2
2 2 3
2 2 NULL

SELECT * EXCEPT (t.a, c, l, m, p, d, t.b) FROM t JOIN u ON t.a = u.a WHERE t.b < 3
----
1 2 5
1 2 5

SELECT * FROM (SELECT a, b FROM u) r, (SELECT a AS c, b AS d FROM u) s, (SELECT a AS e, b AS g FROM u) WHERE a = e AND d = g
----
1 2 1 2 1 2
2 3 2 3 2 3
2 NULL 2 3 2 3

SELECT to_json(struct(*)), array(u.* EXCEPT (e)), count(*) OVER () FROM u WHERE e < 7
----
{"a":1,"b":2,"e":5} [1,2] 2
{"a":2,"b":3,"e":6} [2,3] 2

SELECT a, b FROM u ORDER BY ALL DESC LIMIT 2
----
2 3
2 NULL

SELECT * FROM (SELECT a, b, e FROM u) UNPIVOT (v FOR k IN (b, e AS last))
----
1 b 2
1 last 5
2 b 3
2 last 6
2 last 7

SELECT r.k, r.y, r.e FROM u UNPIVOT INCLUDE NULLS ((x, y) FOR k IN ((a, b), (b, a) AS turned)) AS r WHERE e > 5
----
a_b 3 6
a_b NULL 7
turned 2 6
turned 2 7

SELECT count(a, b) OVER (), count(a, b) FILTER (WHERE e > 5) OVER () FROM u
----
2 1
2 1
2 1

SELECT percentile(DISTINCT a, 0.5), median(DISTINCT a), percentile(a, 0.5), count(a) FROM u
----
1.5 1.5 2.0 3

-- ORDER BY: a name is that of the result first, if one column of it has the name

SELECT -b AS b FROM t WHERE b > 0 ORDER BY b + 0 LIMIT 1
----
-3

SELECT b AS x, 2 AS b, 3 AS b FROM t WHERE b > 1 ORDER BY b LIMIT 1
----
2 2 3

SELECT a AS k, max(-b) AS a FROM t WHERE a > 0 GROUP BY a ORDER BY a + 0 LIMIT 1
----
2 -3

-- VALUES with names

WITH v AS (VALUES (1, 'x'), (2, 'y') AS t(n, m)) SELECT m, n FROM v WHERE n > 1
----
y 2

-- a key of GROUP BY is found whatever its parentheses, and the order of operands inside

SELECT 1 + (b + a) * 2 AS x FROM t WHERE a > 1 GROUP BY ((a + b) * 2)
----
11

-- a name is that of a column of the tables, then of another column of the result, and then of a query around

SELECT a FROM t WHERE (12, 13) IN (SELECT max(b + 9) AS d, d + 1 FROM u WHERE u.b = 3)
----
1
1
2
NULL

SELECT a FROM t WHERE EXISTS (SELECT max(e) AS b FROM u WHERE u.a = t.a GROUP BY u.a HAVING b > 6)
----
2

SELECT a AS k, b AS k FROM t WHERE a = 2 GROUP BY b, k
----
2 3

-- percentile_disc is a double, approx_percentile has the type of its argument

SELECT percentile_disc(0.5) WITHIN GROUP (ORDER BY a), approx_percentile(p, 0.5), percentile_cont(0.25) WITHIN GROUP (ORDER BY b) FROM t
----
1.0 2.25 1.5

-- a name behind a map is a key; variables of functions have any case

SELECT m.k, transform(l, X -> x + A) FROM t WHERE a = 1
----
1 [2,3]
2 []

-- a row for each day

SELECT d, count(u.a) FROM (SELECT explode(sequence(DATE '2024-02-28', DATE '2024-03-01', INTERVAL 1 DAY)) AS d) LEFT JOIN u ON day(d) = u.a GROUP BY d
----
2024-02-28 0
2024-02-29 0
2024-03-01 1

-- an aggregate reads the query's own column, also where that equals one of the query around

SELECT a, (SELECT max(u.a) FROM u WHERE u.a = t.a) AS m FROM t
----
1 1
1 1
2 2
NULL NULL

SELECT b FROM t WHERE EXISTS (SELECT count(u.b) FROM u WHERE u.b = t.b GROUP BY u.a)
----
2
3

-- FILTER of functions that take the value of a row

SELECT b, first_value(b) FILTER (WHERE a = 1) OVER (ORDER BY b DESC) AS f, last_value(b) FILTER (WHERE a = 1) OVER (ORDER BY b ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING) AS l FROM t
----
1 2 2
2 2 2
3 NULL 2
NULL 2 2

-- a frame of months has the last day of a month that is too short

SELECT d, count(*) OVER (ORDER BY d RANGE BETWEEN INTERVAL '1' MONTH PRECEDING AND CURRENT ROW) AS n, count(*) OVER (ORDER BY timestamp(d) DESC RANGE BETWEEN INTERVAL '1' MONTH PRECEDING AND INTERVAL '12' MONTH FOLLOWING) AS m FROM (SELECT explode(array(DATE '2024-01-31', DATE '2024-02-29', DATE '2024-03-31', DATE '2024-03-29', DATE '2025-01-30', NULL)) AS d)
----
2024-01-31 1 2
2024-02-29 2 3
2024-03-29 2 4
2024-03-31 3 4
2025-01-30 1 5
NULL 1 1

-- aggregates of groups over frames: a list has the order of its window

SELECT a, b, median(b) OVER (PARTITION BY a) AS m, collect_list(b) OVER (PARTITION BY a ORDER BY b DESC) AS l, max_by(c, b) OVER () AS k, percentile(d, 0.25) OVER (ORDER BY d ROWS BETWEEN 1 PRECEDING AND 1 FOLLOWING) AS q FROM t
----
1 1 1.5 [2,1] x 1.25
1 2 1.5 [2] x 3.5
2 3 3.0 [3] x 1.5
NULL NULL NULL [] x 6.0

-- LIKE with several patterns

SELECT c, c LIKE ANY ('x%', 'z'), c NOT LIKE ALL ('x', 'z'), any(c LIKE ALL ('%', 'x')) OVER () FROM t WHERE c LIKE ANY ('x', 'y') AND c NOT LIKE ANY ('y', 'z')
----
x true false true
x true false true
y false true true

-- a distance from a float is a float

SELECT x, count(*) OVER (ORDER BY x RANGE BETWEEN 1 PRECEDING AND 1.1 FOLLOWING) AS n FROM (SELECT float(x) AS x FROM (SELECT explode(array(0.0, 1.1, 3.0)) AS x))
----
0.0 2
1.1 1
3.0 1

-- sessions, several columns of PIVOT, several shares and rows

SELECT c, unix_seconds(session_window.start) AS s, unix_seconds(session_window.end) AS e, count(*) FROM (SELECT c, timestamp_seconds(d) AS ts FROM t) GROUP BY session_window(ts, '3 seconds'), c
----
NULL 9 12 1
x 1 5 2
y 5 8 1

SELECT unix_seconds(w.start), unix_seconds(w.end), n FROM (SELECT session_window(timestamp_seconds(x.d), '3 seconds') AS w, sum(x.b) AS n FROM t AS x WHERE x.d < 8 GROUP BY w)
----
1 8 6

SELECT * FROM (SELECT a, b, c, d FROM t) PIVOT (sum(d) AS s, max(d) AS m FOR (a, c) IN ((1, 'x') AS p, (2, 'x') AS q))
----
1 1.0 1.0 NULL NULL
2 NULL NULL NULL NULL
3 NULL NULL 2.0 2.0
NULL NULL NULL NULL NULL

SELECT ``, x FROM (SELECT a, c, b FROM t) PIVOT (sum(b) FOR c IN ('', 'x')) WHERE a = 2
----
NULL 3

SELECT * FROM (SELECT a, c, d FROM t) PIVOT (sum(d) FOR (a, c) IN ((1, 'x'), (1, 'y')))
----
1.0 5.0

SELECT c, percentile(b, array(0.25, 1)), approx_percentile(e, array(0.5, 0.5)) FROM u JOIN t USING (b) GROUP BY c
----
x [3.0,3.0] [6,6]
y [2.0,2.0] [5,5]

SELECT a, max_by(b, e, 2), min_by(b, e, 1) FROM u GROUP BY a
----
1 [2] [2]
2 [null,3] [3]

-- HAVING casts what is not a condition

SELECT sum(b) + 1 FROM t HAVING sum(b) + 1
----
7

SELECT a FROM t GROUP BY a HAVING NULL
----

SELECT a, count(*) FROM u GROUP BY a HAVING 'true'
----
1 1
2 2

SELECT a FROM u GROUP BY a HAVING (SELECT count(*) FROM t WHERE t.a = u.a)
----
1
2

-- aggregates of maps, and of distinct pairs

SELECT c, max_by(m, b), collect_list(m) FROM t GROUP BY c
----
NULL NULL [{}]
x NULL [{"k":1}]
y {"j":3,"k":2} [{"j":3,"k":2}]

SELECT covar_samp(DISTINCT x, y), covar_samp(x, y) FROM (VALUES (0, 0), (4, 4), (4, 4), (4, 4)) v(x, y) CROSS JOIN (SELECT 1 FROM u WHERE a = 1)
----
8.0 4.0

-- what DuckDB's and Spark's own tests have otherwise

SELECT c, string_agg(c), listagg(DISTINCT c, NULL), hex(listagg(CAST(c AS binary), X'2C')), listagg(c) FILTER (WHERE a > 9) FROM t GROUP BY c
----
NULL NULL NULL NULL NULL
x xx x 782C78 NULL
y y y 79 NULL

SELECT percentile_disc(0.25) WITHIN GROUP (ORDER BY d DESC), percentile_disc(1) WITHIN GROUP (ORDER BY d DESC), percentile_disc(0) WITHIN GROUP (ORDER BY d DESC), percentile_cont(0.25) WITHIN GROUP (ORDER BY d DESC) FROM t
----
9.0 1.0 9.0 6.0

SELECT count(*), max(a), grouping_id() FROM t WHERE a > 100 GROUP BY GROUPING SETS (())
----
0 NULL 0

SELECT a, b, count(c) FROM t GROUP BY a, b GROUPING SETS (())
----
NULL NULL 3

-- a row of fields with names

SELECT (a AS x, b AS y).y FROM u
----
2
3
NULL

-- a lambda's variable, and a column that is called as it is

SELECT transform(l, a -> a + t.a) FROM t
----
NULL
[2,3]
[]
[null]

SELECT x FROM (SELECT a AS x, l AS m FROM t) WHERE exists(m, A -> a > x)
----
1

-- a set operation in the order of an expression

SELECT a FROM t UNION SELECT b FROM u ORDER BY -a LIMIT 2
----
3
NULL

(SELECT a, a AS b FROM u) UNION ALL SELECT a, b FROM u ORDER BY a - b NULLS LAST, 2 DESC LIMIT 1 OFFSET 1
----
1 2

-- a query in parentheses with OFFSET, which IN reads

SELECT b FROM t WHERE b IN ((SELECT b FROM u ORDER BY b) OFFSET 2)
----
3

SELECT ntile() OVER (ORDER BY a) FROM u
----
1
1
1

-- of a chain of UNION the first two sides have a common type first, then these and the third

SELECT CAST(0.5 AS decimal(38, 38)) AS x UNION ALL SELECT CAST(1 AS decimal(38, 0)) UNION ALL SELECT CAST(0.25 AS double)
----
0.25
1.0
1.0

SELECT DATE '2024-01-01' AS x UNION ALL SELECT '2024-01-02 10:00:00' UNION ALL SELECT TIMESTAMP '2024-01-03 11:00:00'
----
2024-01-01 00:00:00
2024-01-02 00:00:00
2024-01-03 11:00:00

-- texts of intervals, of which sqlglot reads the first number and its unit

SELECT TIMESTAMP '2024-01-02 00:00:00' + INTERVAL '- 1 day' AS x, TIMESTAMP '2024-01-02 00:00:00' + INTERVAL '+2 hours' AS y
----
2024-01-01 00:00:00 2024-01-02 02:00:00

-- the filter of an aggregate that PIVOT filters, too

SELECT * FROM (SELECT a, b, c FROM t) PIVOT (sum(b) FILTER (WHERE b > 1) AS s, count(*) FILTER (WHERE b > 1) AS n FOR c IN ('x', 'y'))
----
1 NULL 0 2 1
2 3 1 NULL NULL
NULL NULL NULL NULL NULL

SELECT first(b, true), last(b, true), mode(b, true), approx_percentile(b, 0.5, 10) FROM t
----
1 3 1 2

-- aggregates in subqueries of HAVING, where FROM begins with joins in parentheses

SELECT x.a FROM (t x JOIN u y ON x.a = y.a) JOIN (VALUES (1)) v(n) ON true GROUP BY x.a HAVING (SELECT max(b) FROM u) > 2
----
1
2

SELECT x.a FROM (t x JOIN u y ON x.a = y.a) JOIN (VALUES (1)) v(n) ON true GROUP BY x.a HAVING EXISTS (SELECT 1 FROM u WHERE u.b > max(x.b))
----
1

-- keys that are equal are written alike: -0.0 as 0.0

SELECT CAST(k AS string) FROM (SELECT IF(b = 1, array(-0.0D), array(0.0D)) AS k FROM t UNION SELECT array(-0.0D))
----
[0.0]

SELECT CAST(collect_set(k) AS string) FROM (SELECT -0.0D AS k FROM t)
----
[0.0]

-- days beside a date, also in sums

SELECT typeof(day + abs(INTERVAL '1' DAY)), typeof(day + -(day - day)), typeof(day - (day - day + INTERVAL '1' DAY)), day + (day - DATE '2024-01-30' + INTERVAL '1' DAY) FROM (SELECT DATE '2024-01-31' AS day)
----
date date date 2024-02-02

-- sums, means and medians of intervals

SELECT a, extract(MINUTE FROM sum(make_dt_interval(0, b, a))), avg(make_dt_interval(0, 0, b)) = INTERVAL '90' SECOND, extract(SECOND FROM percentile(make_dt_interval(0, 0, b), array(0.25, 0.5))[0]) FROM t GROUP BY a
----
1 2 true 15.000000
2 2 false 0.000000
NULL NULL NULL NULL

SELECT b, extract(MINUTE FROM sum(make_dt_interval(0, b, a)) OVER (ORDER BY b)), extract(SECOND FROM avg(make_dt_interval(0, 0, b)) OVER (PARTITION BY c)) FROM t
----
1 1 0.000000
2 2 0.000000
3 4 0.000000
NULL NULL NULL

-- USING has the type of the side that an outer join keeps

SELECT typeof(e), e, typeof(k) FROM (SELECT a AS e, 1Y AS k FROM t) LEFT JOIN u USING (e)
----
int 1 tinyint
int 1 tinyint
int 2 tinyint
int NULL tinyint

SELECT typeof(e), e FROM (SELECT a + 4 AS e FROM t) RIGHT JOIN u USING (e)
----
bigint 5
bigint 5
bigint 6
bigint 7

SELECT typeof(e), e FROM (SELECT a + 4 AS e FROM t) FULL JOIN u USING (e)
----
bigint 5
bigint 5
bigint 6
bigint 7
bigint NULL

-- columns of PIVOT are called as their values are written

SELECT `true`, `null`, `-1` FROM (SELECT b > 1 AS k, a FROM t) PIVOT (sum(a) FOR k IN (true, NULL)) CROSS JOIN (SELECT * FROM (SELECT -a AS k, b FROM t) PIVOT (sum(b) FOR k IN (-1)))
----
3 NULL 3

-- signs of intervals; an empty text is at the begin of each one

SELECT abs(make_dt_interval(-b)) = make_dt_interval(b), -make_dt_interval(b) = make_dt_interval(-b), abs(make_ym_interval(-b)) = make_ym_interval(b) FROM t
----
NULL NULL NULL
true true true
true true true
true true true

SELECT locate('', c), locate('', c, 2), locate('', c, 0) FROM t
----
1 1 0
1 1 0
1 1 0
NULL NULL NULL

-- a raw text is no word, and a keyword is a name behind AS

SELECT r'as' AS x, a AS on FROM u WHERE r'as' = 'as'
----
as 1
as 2
as 2

SELECT q.as, CASE WHEN s.then > 1 THEN 2 WHEN s.as THEN 3 END AS x FROM (SELECT b AS as, struct(a AS then, b = 2 AS as) AS s FROM u) q
----
2 3
3 2
NULL 2

-- a field has the name of a column as it is written; WINDOW may be the last clause before LIMIT

SELECT to_json(array((t.a, t.b), (u.a, u.b))) AS x, (t.a, sum(t.b) OVER w, (SELECT max(e) FROM u), t.b + 1) AS y FROM t JOIN u ON t.a = u.a WHERE t.a = 1 ORDER BY t.b WINDOW w AS (ORDER BY t.b)
----
[{"a":1,"b":1},{"a":1,"b":2}] {"a":1,"col2":1,"col3":7,"col4":2}
[{"a":1,"b":2},{"a":1,"b":2}] {"a":1,"col2":3,"col3":7,"col4":3}

SELECT count(DISTINCT (a, a)) AS x, max((a, A, b)) < (2, 2, 4) AS y, sum(a) OVER w AS z FROM t GROUP BY a QUALIFY z > 1 WINDOW w AS (ORDER BY a)
----
1 true 3

-- a subquery in parentheses is the same as without

SELECT (SELECT max(e) FROM u WHERE u.a = x.a) AS m, count(*) FROM t AS x GROUP BY ((SELECT max(e) FROM u WHERE u.a = x.a))
----
5 2
7 1
NULL 1

-- whether nulls are ignored, as the last argument

SELECT any_value(b, false), first_value(b, false), last_value(b, true) FROM u WHERE a = 1
----
2 2 2

SELECT a, last_value(b, false) OVER (PARTITION BY a ORDER BY e ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING), nth_value(b, 1, true) OVER (ORDER BY e), nth_value(b, 3, false) OVER (ORDER BY e) FROM u
----
1 2 2 NULL
2 NULL 2 NULL
2 NULL 2 NULL

-- HAVING of a result that has the name, and not the type, of a column

SELECT c, avg(a) AS a, sum(p) AS p FROM t GROUP BY c HAVING a > 0 AND p > 1.1 AND a IS NOT NULL
----
x 1.5 1.50
y 1.0 2.25

SELECT c, avg(a) AS a, avg(p) AS d FROM t GROUP BY c HAVING a BETWEEN 1 AND 9 AND round(a, 1) > 1 AND a > 0.5D
----
x 1.5 1.500000

SELECT e, avg(a) AS a, avg(b) AS b FROM u GROUP BY e HAVING a < b
----
5 1.0 2.0
6 2.0 3.0

SELECT x FROM (SELECT e AS x, a AS desc FROM u WHERE b IS DISTINCT FROM .5) ORDER BY -desc DESC, x LIMIT 1
----
5

SELECT c, sum(a) AS a FROM t GROUP BY c HAVING a > 1.5
----
x 3

-- Spark refuses these, or has another answer: docs/sql.md

SELECT a, b, count(*), grouping(a), grouping_id(a, b), grouping_id(b), grouping_id() FROM t GROUP BY CUBE(a, b) HAVING grouping(b) = 1
----
1 NULL 2 0 1 1 1
2 NULL 1 0 1 1 1
NULL NULL 1 0 1 1 1
NULL NULL 4 1 3 1 3

SELECT a, a IN (SELECT a FROM u), count(*) FROM t GROUP BY a, a IN (SELECT a FROM u)
----
1 true 2
2 true 1
NULL NULL 1

SELECT b, q.z FROM t LEFT JOIN LATERAL explode(l) AS q(z)
----
1 1
1 2
2 NULL
3 NULL
NULL 3

SELECT a, b, (a, b) IN (SELECT a, b FROM u) FROM t
----
1 1 false
1 2 true
2 3 true
NULL NULL NULL

-- a step that only renames, in a loop that ends elsewhere

WITH RECURSIVE x(n) AS (SELECT 0 UNION ALL SELECT n FROM y), y(n) AS (SELECT 10 UNION ALL SELECT n + 1 FROM x WHERE n < 2) SELECT n, count(*) FROM x GROUP BY n
----
0 1
1 1
2 1
10 1

SELECT b, (SELECT e FROM u WHERE u.a = t.a ORDER BY t.a, e DESC LIMIT 1) FROM t
----
1 5
2 5
3 7
NULL NULL

SELECT first(c ORDER BY d DESC), last(c ORDER BY d DESC), array_join(collect_list(c ORDER BY d DESC), '-') FROM t WHERE c IS NOT NULL
----
y x y-x-x

SELECT first(b ORDER BY d) FILTER (WHERE a = 2), last(b ORDER BY d) FILTER (WHERE c = 'y'), first(b) FILTER (WHERE a > 5) FROM t
----
3 2 NULL

SELECT a, (WITH q(x) AS (SELECT sum(u.e) + t.b FROM u WHERE u.a = t.a), r AS (SELECT x + 1 AS y FROM q) SELECT x + y FROM q, r) FROM t
----
1 13
1 15
2 33
NULL NULL

SELECT b, (SELECT max(w + b) AS b FROM VALUES (1), (2) AS v(w)) AS m, (SELECT y AS x FROM (SELECT b AS y) GROUP BY x) AS g FROM t WHERE b > 1
----
2 4 2
3 5 3

SELECT a, (SELECT to_json(struct(*)) FROM (SELECT u.a AS x, 1 AS y)), (SELECT a + (SELECT b)) FROM u
----
1 {"x":1,"y":1} 3
2 {"x":2,"y":1} 5
2 {"x":2,"y":1} NULL

-- distinct rows are those of all columns, none of them null

SELECT count(DISTINCT *), count(DISTINCT u.*), count(*) FROM u
----
2 2 3

-- 0.0 and -0.0 are equal, and 0.0 is written: Spark may write -0.0, also of keys that are expressions

SELECT CAST(max(struct(k)) AS string), CAST(max_by(array(k), k) AS string), CAST(median(k) AS string), CAST(percentile(k, array(0.5)) AS string) FROM (SELECT IF(b = 1, -0.0D, 0.0D) AS k FROM t)
----
{0.0} [0.0] 0.0 [0.0]

SELECT CAST(min(array(k)) AS string), CAST(median(k) AS string) FROM (SELECT -0.0D AS k FROM t)
----
[0.0] 0.0

SELECT CAST(k AS string) FROM (SELECT DISTINCT IF(b = 1, -0.0D, 0.0D) AS k FROM t)
----
0.0

SELECT CAST(k AS string) FROM (SELECT IF(b = 1, -0.0D, 0.0D) AS k FROM t INTERSECT SELECT -0.0D)
----
0.0

SELECT CAST(k AS string), count(*) FROM (SELECT IF(b = 1, -0.0D, 0.0D) AS k FROM t) GROUP BY k
----
0.0 4
