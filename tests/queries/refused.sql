SELECT a FROM t WHERE NULL
SELECT a FROM t WHERE c
SELECT t.a FROM t JOIN u ON NULL
SELECT CASE WHEN c THEN 1 END FROM t
SELECT IF(c, 1, 2) FROM t
SELECT count(*) FILTER (WHERE NULL) FROM t
SELECT count(*) FILTER (WHERE c) FROM t
SELECT sum(b) FILTER (WHERE c) OVER (ORDER BY a) FROM t
SELECT filter(l, e -> 'true') FROM t
SELECT exists(l, e -> c) FROM t
SELECT map_filter(m, (k, v) -> k) FROM t
SELECT DISTINCT m FROM t
SELECT m FROM t UNION SELECT m FROM t
SELECT m FROM t INTERSECT SELECT m FROM t
SELECT array(m) FROM t EXCEPT ALL SELECT array(m) FROM t
SELECT a + 1 AS x, sum(x) OVER (ORDER BY a) FROM t
SELECT a + 1 AS x, rank() OVER (ORDER BY x) FROM t
SELECT a + 1 AS x, sum(x) FROM t GROUP BY a
SELECT sum(b) IGNORE NULLS FROM t
SELECT max(b) IGNORE NULLS FROM t
SELECT count(b) IGNORE NULLS FROM t
SELECT max_by(a, b) IGNORE NULLS FROM t
SELECT struct(a, b) IN (SELECT struct(a, b) FROM u) FROM t
SELECT DATE '2024-01-01' + e FROM u
SELECT date_add(DATE '2024-01-01', e) FROM u
SELECT date_sub(DATE '2024-01-01', 1.5) FROM t
SELECT map(m, 1) FROM t
SELECT count(*) FROM t GROUP BY window(a, '1 minute')
SELECT count(*) FROM t GROUP BY session_window(a, '1 minute')
SELECT a FROM t ORDER BY m LIMIT 1
SELECT a FROM t UNION ALL SELECT a FROM u ORDER BY a LIMIT 1L
SELECT array(m) AS x FROM t UNION ALL SELECT array(m) FROM t ORDER BY x LIMIT 1
SELECT a FROM t LIMIT 1L
SELECT a FROM t LIMIT 1 OFFSET 1L
SELECT row_number() OVER (ORDER BY m) FROM t
SELECT sum(a) OVER (PARTITION BY m) FROM t
SELECT array_distinct(array(m)) FROM t
SELECT array_contains(array(m), m) FROM t
SELECT array_position(array(m), m) FROM t
SELECT arrays_overlap(array(m), array(m)) FROM t
SELECT array_union(array(m), array(m)) FROM t
SELECT array_max(array(m)) FROM t
SELECT sort_array(array(m)) FROM t
SELECT l['0'] FROM t
SELECT l[1.0] FROM t
SELECT CASE WHEN NULL THEN 1 END FROM t
SELECT transform(l, (x, x) -> x) FROM t
SELECT count(*) FROM t GROUP BY window(timestamp_seconds(a), '1.5 hours')
SELECT count(*) FROM t GROUP BY window(timestamp_seconds(a), '10 minutes ago')
SELECT count(*) FROM t GROUP BY window(timestamp_seconds(a), '-10 minutes')
SELECT count(*) FROM t GROUP BY window(timestamp_seconds(a), '10 minutes', '0 minutes')
SELECT count(*) FROM t GROUP BY window(timestamp_seconds(a), '10 minutes', '10 minutes', '20 minutes')
SELECT DATE '2024-01-01' + INTERVAL '1.5' DAY FROM t
SELECT timestamp_seconds(a) + INTERVAL '1 day x 2 hours' FROM t
SELECT DATE '2024-01-01' + INTERVAL '1 25:00' DAY TO MINUTE FROM t
SELECT DATE '2024-01-01' + INTERVAL '1-12' YEAR TO MONTH FROM t
SELECT DATE '2024-01-01' + INTERVAL '1 02-03' DAY TO MINUTE FROM t
SELECT DATE '2024-01-01' + INTERVAL '999999999999999' DAY FROM t
WITH RECURSIVE r(a) AS (SELECT 1 UNION ALL SELECT 2, 3 UNION ALL SELECT a + 1 FROM r WHERE a < 5) SELECT * FROM r
SELECT percentile(b, 0.5) WITHIN GROUP (ORDER BY a) FROM t
SELECT sum(b) WITHIN GROUP (ORDER BY a) FROM t
SELECT listagg(DISTINCT c) WITHIN GROUP (ORDER BY a) FROM t
SELECT listagg(DISTINCT c) WITHIN GROUP (ORDER BY c, a) FROM t
SELECT a FROM t ORDER BY CAST(a AS VARIANT)
SELECT a FROM t ORDER BY uper(c)
SELECT a FROM t ORDER BY m
SELECT DISTINCT a FROM t ORDER BY b
SELECT a FROM t UNION SELECT a FROM u ORDER BY b
SELECT * FROM t NATURAL JOIN LATERAL (SELECT t.a AS a)
SELECT * FROM t JOIN LATERAL (SELECT t.a AS a) USING (a)
SELECT array_size(m) FROM t
SELECT count() FROM t
SELECT nth_value(a) OVER (ORDER BY a) FROM t
SELECT l[0, 1] FROM t
SELECT mode(DISTINCT b) FROM t
SELECT DATE '2024-01-02' - INTERVAL '1 day ago' FROM t
SELECT INTERVAL '1 day and a night' FROM t
SELECT last(b, a > 1) FROM t
SELECT first(b, a > 1) OVER (ORDER BY a) FROM t
SELECT mode(b, a > 1) FROM t
SELECT mode(b, 5) FROM t
SELECT approx_percentile(b, 0.5, 0) FROM t
SELECT sum(b) OVER (ORDER BY a ROWS BETWEEN CURRENT ROW AND 9223372036854775807 FOLLOWING) FROM t
SELECT lead(b, 9223372036854775807) OVER (ORDER BY a) FROM t
SELECT x FROM VALUES (1 / 0) AS v(x)
SELECT x FROM VALUES (a) AS v(x)
SELECT a FROM t LIMIT a
SELECT a FROM t UNION SELECT c FROM t UNION SELECT l FROM t
SELECT percentile_cont(DISTINCT 0.5) WITHIN GROUP (ORDER BY b) FROM t
SELECT a FROM t WHERE c LIKE 'x' ESCAPE 'ab'
SELECT t.a FROM t NATURAL JOIN u USING (a)
SELECT count(t.*) FROM t
SELECT a FROM t JOIN u ON t.a = u.a
SELECT u.a, count(*) FROM t JOIN u ON t.a = u.a GROUP BY t.a
SELECT t.a + 1, count(*) FROM t JOIN u ON t.a = u.a GROUP BY t.a + 1 HAVING 1 + u.a > 0
SELECT count(*) FROM t NATURAL JOIN u GROUP BY t.a ORDER BY u.a
SELECT a FROM t JOIN u USING (a) GROUP BY u.a
SELECT collect_list(a, b) FROM t
SELECT array_contains(l, 'x') FROM t
SELECT array_union(l, array('x')) FROM t
SELECT array_append(l, c) FROM t
SELECT element_at(m, 1) FROM t
SELECT map_concat(m, map(1, 2)) FROM t
SELECT l = array('1') FROM t
SELECT element_at(l, '1') FROM t
SELECT array_repeat(a, 1L) FROM t
SELECT sort_array(l, 'x') FROM t
SELECT json_array_length(a) FROM t
SELECT from_json(a, 'x INT') FROM t
SELECT get_json_object(c, 1) FROM t
SELECT parse_url(a, 'HOST') FROM t
SELECT md5(a) FROM t
SELECT crc32(a) FROM t
SELECT bit_count(d) FROM t
SELECT ~ d FROM t
SELECT + c LIKE 'a' FROM t WHERE + l
SELECT round(timestamp_seconds(a)) FROM t
SELECT unix_seconds(DATE '2024-01-01') FROM t
SELECT unix_timestamp(c, 1) FROM t
SELECT timestamp_seconds(c) FROM t
SELECT timestamp_millis(d) FROM t
SELECT time_bucket(INTERVAL '1' HOUR, timestamp_seconds(a), '2024-01-01') FROM t
SELECT dateadd('DAY', 1, timestamp_seconds(a)) FROM t
SELECT dateadd(DAY, 1, timestamp_seconds(a), 1) FROM t
SELECT aggregate(l, 0, (s, x) -> s + 1L) FROM t
SELECT concat_ws(',', m) FROM t
SELECT json_tuple(c, a) FROM t
SELECT a > > 2 FROM t
SELECT a FROM t ORDER BY -1
SELECT a, count(*) FROM t GROUP BY -1
SELECT a AS x, b AS x FROM t ORDER BY x LIMIT 1
SELECT a AS x, max(b) AS x FROM t GROUP BY a HAVING x > 1
SELECT a AS x, b AS x, x + 1 FROM t
SELECT stack(2, 'a', a, 'b', d) FROM t
SELECT a AS x, x + 1 AS y FROM t GROUP BY a, y
SELECT a AS x, x + 1 AS y FROM t GROUP BY ALL
SELECT a AS all, b FROM t GROUP BY all
SELECT * FROM t GROUP BY a, b, 1
SELECT a, b, count(*) FROM t GROUP BY ROLLUP (a, b, (a, b), ())
SELECT a, b, count(*) FROM t GROUP BY CUBE (a, ())
SELECT (SELECT count(*) FROM u WHERE u.a > t.a GROUP BY t.a) FROM t
SELECT a, (SELECT count(*) FROM (SELECT t.a AS k FROM u GROUP BY ROLLUP (t.a, b))) AS n FROM t WHERE b > 1
SELECT sum(b) FROM t GROUP BY a HAVING max(a) > 5 ORDER BY max(a)
SELECT sum(b) FROM t GROUP BY a + 1 HAVING 1 + a > 5 ORDER BY 1 + a
SELECT sum(b) AS x FROM t GROUP BY a HAVING max(b) > 5 ORDER BY x, max(b)
SELECT sum(a) OVER () FROM t GROUP BY a, b + 1 ORDER BY b + 1
SELECT a, count(*), sum(count(*)) OVER () FROM t GROUP BY a ORDER BY count(*)
SELECT a, b FROM t ORDER BY b IN (SELECT a FROM u)
SELECT a FROM t ORDER BY a, EXISTS (SELECT b FROM u)
SELECT listagg(CAST(c AS binary), ',') FROM t
SELECT listagg(DISTINCT d, ',') WITHIN GROUP (ORDER BY d) FROM t
SELECT time_bucket(INTERVAL '1' HOUR, timestamp_seconds(a), timestamp_seconds(b)) FROM t
SELECT get(NULL, 0) FROM t
SELECT array_append(NULL, a) FROM t
SELECT array_contains(l, NULL) FROM t
SELECT array_union(l, NULL) FROM t
SELECT element_at(l, NULL) FROM t
SELECT map_concat(m, NULL) FROM t
SELECT -3.5E39F FROM t
SELECT t.a, k, v FROM t LATERAL VIEW stack(2, 'b', b, 'd', d) s AS k, v
SELECT max_by(a, m) FROM t
SELECT min_by(a, map('k', b)) OVER (PARTITION BY a) FROM t
SELECT percentile_approx(a > 1, 0.5) FROM t
SELECT CAST(a AS INT8) FROM t
SELECT CAST(a AS NUMBER) FROM t
SELECT CAST(a AS FLOAT(24)) FROM t
SELECT a::TEXT FROM t
SELECT DATE '2024-13-01' FROM t
SELECT a, FROM t
SELECT coalesce(a,) FROM t
SELECT a FROM t FETCH FIRST 2 ROWS ONLY
SELECT a FROM t FETCH NEXT ROW ONLY
SELECT a FROM t WHERE a IS 1
SELECT IF(a > 1, 2) FROM t
SELECT t.a FROM t RIGHT SEMI JOIN u ON t.a = u.a
SELECT a FROM t GROUP BY DISTINCT a
SELECT 128Y FROM t
SELECT 1.e FROM t
SELECT a FROM t LIMIT 1 UNION SELECT a FROM u
SELECT t.a FROM t JOIN u USING ()
SELECT greatest(m, m) FROM t
SELECT 1,
SELECT , a FROM t
SELECT a,,b FROM t
SELECT a FROM t WHERE a IN (1,,2)
SELECT array(,1) FROM t
SELECT array(1,,2) FROM t
SELECT a FROM t GROUP BY a,
SELECT a FROM t GROUP BY a, ORDER BY a
SELECT a FROM t ORDER BY a,
SELECT a FROM t, WHERE a = 1
SELECT a FROM t,
SELECT * FROM VALUES (1), (2),
SELECT rank() OVER (PARTITION BY a, ORDER BY a) FROM t
SELECT a FROM t UNION SELECT a FROM u LIMIT 1 UNION SELECT b FROM u
SELECT 1.5Y FROM t
SELECT 1e2L FROM t
SELECT CASE WHEN a > 1 'x' END FROM t
SELECT a FROM t WHERE a BETWEEN 1 2
SELECT count(*) FILTER (a > 1) FROM t
SELECT t.b FROM t JOIN u USING a
SELECT * EXCEPT a FROM t
SELECT * EXCEPT () FROM t
SELECT a AS 'x' FROM t
SELECT x.a FROM t AS 'x'
SELECT AS a b FROM t
SELECT (a AS x) FROM t
SELECT any(a > 1 REPLACE) FROM t
SELECT CAST(a AS varchar) FROM t
SELECT 0x1F FROM t
SELECT a FROM t GROUP BY a WHERE a > 1
SELECT a FROM t LIMIT 1, 2
SELECT a FROM t OFFSET 1 LIMIT 2
SELECT a FROM t UNION SELECT a FROM u OFFSET 1 LIMIT 2
SELECT t.a FROM t JOIN u ON WHERE t.a = 1
SELECT rank() OVER (PARTITION BY ORDER BY a) FROM t
SELECT sum(b) OVER (ORDER BY a ROWS 1 PRECEDING AND 1 FOLLOWING) FROM t
SELECT sum(b) OVER (ORDER BY a ROWS BETWEEN 1 AND 1 FOLLOWING) FROM t
SELECT sum(b) OVER (ORDER BY a ROWS BETWEEN 1 PRECEDING AND CURRENT ROW FOLLOWING) FROM t
SELECT CAST(p AS decimal(9, 2) AS x FROM t
SELECT count(*) FROM t GROUP BY ALL a
SELECT a FROM t LATERAL explode(l)
SELECT a, () FROM t
SELECT * FROM VALUES ()
SELECT last(ORDER BY a) FROM t
SELECT a FROM t WHERE c LIKE ANY 'x'
SELECT CAST(a AS map) FROM t
SELECT map_zip_with(map(1, 'a'), map('1', 'b'), (k, x, y) -> x) FROM t
SELECT array((a, b), (1, 2)) FROM t
SELECT mask(c, 'XX') FROM t
SELECT sum(b) OVER (ORDER BY a ROWS) FROM t
SELECT string_agg(DISTINCT) FROM t
SELECT x FROM t LEFT JOIN LATERAL explode(l) (x)
SELECT .0.5 FROM t
SELECT count(*) FROM t GROUP BY ()
SELECT max(a) OVER (w ROWS 1 PRECEDING) FROM t WINDOW w AS (ORDER BY a)
SELECT a FROM t LIMIT 1 WINDOW w AS (ORDER BY a)
SELECT count(*) FROM t WINDOW w AS (ORDER BY a) WHERE a > 1
SELECT a FROM .t
SELECT a FROM t JOIN .u
SELECT * EXCEPT , (a) FROM t
SELECT * EXCEPT FROM t
SELECT a FROM t ORDER BY a ASC DESC
SELECT a FROM t ORDER BY a NULLS FIRST NULLS LAST
SELECT row_number() OVER (ORDER BY a ASC DESC) FROM t
SELECT t.a FROM t NATURAL CROSS JOIN u
SELECT a, b FROM t NATURAL UNION SELECT a, b FROM u
SELECT substring(c FROM 1 FOR) FROM t
SELECT trim(BOTH c) FROM t
SELECT sum(a) OVER FROM t
SELECT a FROM t OFFSET 1 ROWS
SELECT first(b, true, 1) FROM u
SELECT any_value(b, true, true) FROM u
SELECT nth_value(b, 2, true, true) OVER (ORDER BY e) FROM u
