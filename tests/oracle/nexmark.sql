-- The queries of Nexmark, in Spark's SQL; where DuckDB needs other words, they follow behind "-- DuckDB".

-- 0 pass on
SELECT auction, bidder, price, ts, extra FROM bid;

-- 1 another currency
SELECT auction, bidder, 0.908 * price AS price, ts, extra FROM bid;

-- 2 some auctions
SELECT auction, price FROM bid WHERE mod(auction, 3) = 0;

-- 3 sellers of a category in some states
SELECT p.name, p.city, p.state, a.id FROM auction a JOIN person p ON a.seller = p.id
WHERE a.category = 10 AND (p.state = 'OR' OR p.state = 'ID' OR p.state = 'CA');

-- 4 the average of closing prices
SELECT category, avg(closing) FROM (
  SELECT max(b.price) AS closing, a.category FROM auction a, bid b
  WHERE a.id = b.auction AND b.ts BETWEEN a.ts AND a.expires
  GROUP BY a.id, a.category)
GROUP BY category;

-- 5 hot items: the auctions with most bids of each window
WITH counted AS (
  SELECT auction, count(*) AS n, window FROM bid GROUP BY auction, window(ts, '10 seconds', '2 seconds')),
best AS (SELECT window, max(n) AS most FROM counted GROUP BY window)
SELECT c.auction, c.n, CAST(c.window.start AS TIMESTAMP_NTZ) AS start
FROM counted c JOIN best b ON c.window = b.window AND c.n >= b.most;
-- DuckDB
WITH placed AS (
  SELECT auction, unnest(generate_series(
    time_bucket(INTERVAL '2 seconds', ts) - INTERVAL '8 seconds', time_bucket(INTERVAL '2 seconds', ts),
    INTERVAL '2 seconds')) AS start FROM bid),
counted AS (SELECT auction, count(*) AS n, start FROM placed GROUP BY auction, start)
SELECT auction, n, start FROM counted QUALIFY n >= max(n) OVER (PARTITION BY start);

-- 6 the average of a seller's last closing prices
SELECT seller, avg(price) OVER (PARTITION BY seller ORDER BY ts ROWS BETWEEN 10 PRECEDING AND CURRENT ROW) FROM (
  SELECT a.seller, b.price, b.ts, row_number() OVER (PARTITION BY a.id ORDER BY b.price DESC) AS place
  FROM auction a, bid b WHERE a.id = b.auction AND b.ts BETWEEN a.ts AND a.expires)
WHERE place = 1;

-- 7 the highest bids of each window
SELECT b.auction, b.price, b.bidder, b.ts FROM bid b JOIN (
  SELECT max(price) AS most, window FROM bid GROUP BY window(ts, '10 seconds')) w
ON b.price = w.most AND b.ts >= w.window.start AND b.ts < w.window.end;
-- DuckDB
SELECT auction, price, bidder, ts FROM bid
QUALIFY price = max(price) OVER (PARTITION BY time_bucket(INTERVAL '10 seconds', ts));

-- 8 who sells in the window in which they came
SELECT p.id, p.name, CAST(p.window.start AS TIMESTAMP_NTZ) AS start
FROM (SELECT id, name, window FROM person GROUP BY id, name, window(ts, '10 seconds')) p
JOIN (SELECT seller, window FROM auction GROUP BY seller, window(ts, '10 seconds')) a
ON p.id = a.seller AND p.window = a.window;
-- DuckDB
SELECT DISTINCT p.id, p.name, time_bucket(INTERVAL '10 seconds', p.ts)
FROM person p JOIN auction a ON p.id = a.seller
AND time_bucket(INTERVAL '10 seconds', p.ts) = time_bucket(INTERVAL '10 seconds', a.ts);

-- 9 winning bids
SELECT id, item, seller, category, bidder, price, bid_at FROM (
  SELECT a.*, b.bidder, b.price, b.ts AS bid_at,
    row_number() OVER (PARTITION BY a.id ORDER BY b.price DESC, b.ts) AS place
  FROM auction a, bid b WHERE a.id = b.auction AND b.ts BETWEEN a.ts AND a.expires)
WHERE place <= 1;

-- 10 with the day and the minute
SELECT auction, bidder, price, date_format(ts, 'yyyy-MM-dd'), date_format(ts, 'HH:mm') FROM bid;
-- DuckDB
SELECT auction, bidder, price, strftime(ts, '%Y-%m-%d'), strftime(ts, '%H:%M') FROM bid;

-- 11 sessions of bidders
SELECT bidder, count(*), min(ts) AS start, max(ts) + INTERVAL '10' SECOND AS ends FROM (
  SELECT bidder, ts, sum(mark) OVER (PARTITION BY bidder ORDER BY ts) AS session FROM (
    SELECT bidder, ts, CASE WHEN ts - lag(ts) OVER (PARTITION BY bidder ORDER BY ts) < INTERVAL '10' SECOND
      THEN 0 ELSE 1 END AS mark FROM bid))
GROUP BY bidder, session;

-- 12 bids of each bidder and window, by the bids' own time
SELECT bidder, count(*), CAST(window.start AS TIMESTAMP_NTZ) FROM bid GROUP BY bidder, window(ts, '10 seconds');
-- DuckDB
SELECT bidder, count(*), time_bucket(INTERVAL '10 seconds', ts) FROM bid GROUP BY ALL;

-- 13 with a table of the side
SELECT b.auction, b.bidder, b.price, s.value FROM bid b JOIN side s ON mod(b.auction, 5) = s.key;

-- 14 by the time of the day, and how often a letter comes
SELECT auction, bidder, 0.908 * price AS price,
  CASE WHEN hour(ts) >= 8 AND hour(ts) <= 18 THEN 'day' WHEN hour(ts) <= 6 OR hour(ts) >= 20 THEN 'night'
    ELSE 'other' END AS of_day,
  length(extra) - length(replace(extra, 'c', '')) AS letters
FROM bid WHERE 0.908 * price > 100 AND 0.908 * price < 5000;

-- 15 statistics of each day
SELECT date_format(ts, 'yyyy-MM-dd') AS day, count(*), count(*) FILTER (WHERE price < 500),
  count(*) FILTER (WHERE price >= 500 AND price < 2000), count(DISTINCT bidder),
  count(DISTINCT bidder) FILTER (WHERE price < 500), count(DISTINCT auction) FILTER (WHERE price >= 2000)
FROM bid GROUP BY date_format(ts, 'yyyy-MM-dd');
-- DuckDB
SELECT strftime(ts, '%Y-%m-%d') AS day, count(*), count(*) FILTER (WHERE price < 500),
  count(*) FILTER (WHERE price >= 500 AND price < 2000), count(DISTINCT bidder),
  count(DISTINCT bidder) FILTER (WHERE price < 500), count(DISTINCT auction) FILTER (WHERE price >= 2000)
FROM bid GROUP BY day;

-- 16 of each channel and day
SELECT channel, date_format(ts, 'yyyy-MM-dd') AS day, max(date_format(ts, 'HH:mm')), count(*),
  count(DISTINCT bidder) FILTER (WHERE price < 500), count(DISTINCT auction)
FROM bid GROUP BY channel, day;
-- DuckDB
SELECT channel, strftime(ts, '%Y-%m-%d') AS day, max(strftime(ts, '%H:%M')), count(*),
  count(DISTINCT bidder) FILTER (WHERE price < 500), count(DISTINCT auction)
FROM bid GROUP BY channel, day;

-- 17 of each auction and day
SELECT auction, CAST(ts AS DATE) AS day, count(*), count(*) FILTER (WHERE price < 500), min(price), max(price),
  avg(price), sum(price)
FROM bid GROUP BY auction, CAST(ts AS DATE);

-- 18 a bidder's last bid in each auction
SELECT auction, bidder, price, channel, ts FROM (
  SELECT *, row_number() OVER (PARTITION BY bidder, auction ORDER BY ts DESC) AS place FROM bid)
WHERE place <= 1;

-- 19 the ten highest bids of each auction
SELECT * FROM (
  SELECT *, row_number() OVER (PARTITION BY auction ORDER BY price DESC) AS place FROM bid)
WHERE place <= 10;

-- 20 bids with the items of a category
SELECT b.auction, b.bidder, b.price, b.ts, a.item, a.seller, a.expires
FROM bid b JOIN auction a ON b.auction = a.id WHERE a.category = 10;

-- 21 a number for each channel
SELECT auction, bidder, price, channel, CASE lower(channel)
    WHEN 'apple' THEN '0' WHEN 'google' THEN '1' WHEN 'facebook' THEN '2' WHEN 'baidu' THEN '3'
    ELSE regexp_extract(url, '(&|^)channel_id=([^&]*)', 2) END AS channel_id
FROM bid WHERE regexp_extract(url, '(&|^)channel_id=([^&]*)', 2) <> ''
  OR lower(channel) IN ('apple', 'google', 'facebook', 'baidu');

-- 22 the parts of a path
SELECT auction, bidder, split_part(url, '/', 4), split_part(url, '/', 5), split_part(url, '/', 6) FROM bid;
