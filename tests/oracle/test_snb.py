"""LDBC's Social Network Benchmark, the business queries with paths: `min` in a recursion, beside networkx."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from itertools import pairwise
from math import sqrt
from typing import Any

import networkx as nx
import pyarrow as pa
import pytest

from tests.support.duck import plain
from tests.support.outside.epochs import last_epoch

Rows = Mapping[str, list[tuple[Any, ...]]]
COLUMNS = {
    "person": "id city", "knows": "a b", "message": "id creator parent forum", "forum": "id day",
    "tag": "message name class", "studies": "person place year", "works": "person company",
}  # fmt: skip
PEOPLE, START, END = 24, 1, 9

QUERIES = {
    # 10: who is three or four steps away and lives in a city, and their tags in messages with a class of tags
    "experts": f"""
        WITH RECURSIVE hops(person, n) USING KEY (person, min(n)) AS (
          SELECT {START}L, 0 UNION SELECT b, n + 1 FROM hops JOIN knows ON a = hops.person WHERE n < 4)
        SELECT creator, t.name, count(*) AS n
        FROM hops JOIN person p ON p.id = hops.person JOIN message m ON m.creator = p.id
          JOIN tag t ON t.message = m.id
        WHERE hops.n BETWEEN 3 AND 4 AND p.city < 3
          AND EXISTS (SELECT 1 FROM tag c WHERE c.message = m.id AND c.class = 'music')
        GROUP BY creator, t.name ORDER BY n DESC, t.name, creator LIMIT 100""",
    # 15: the path of most trust: an answer in a forum of some days brings two people nearer
    "trust": f"""
        WITH RECURSIVE answers AS (
          SELECT least(m.creator, r.creator) AS x, greatest(m.creator, r.creator) AS y,
            sum(CASE WHEN m.parent IS NULL THEN 10 ELSE 5 END) AS weight
          FROM message m JOIN message r ON r.parent = m.id JOIN forum f ON f.id = r.forum
          WHERE f.day BETWEEN 2 AND 7 GROUP BY x, y),
        path AS (
          SELECT a, b, 10D / (coalesce(weight, 0) + 10) AS w
          FROM knows LEFT JOIN answers ON least(a, b) = x AND greatest(a, b) = y),
        near(person, w) USING KEY (person, min(w)) AS (
          SELECT {START}L, 0D UNION SELECT b, near.w + path.w FROM near JOIN path ON a = person)
        SELECT coalesce(min(w), -1D) FROM near WHERE person = {END}""",
    # 19: of the people of two cities those that are nearest, by how often they answer each other
    "cities": """
        WITH RECURSIVE answers AS (
          SELECT least(m.creator, r.creator) AS x, greatest(m.creator, r.creator) AS y, count(*) AS n
          FROM message m JOIN message r ON r.parent = m.id GROUP BY x, y),
        path AS (
          SELECT a, b, greatest(CAST(round(40 - sqrt(n)) AS BIGINT), 1L) AS w
          FROM knows JOIN answers ON least(a, b) = x AND greatest(a, b) = y),
        near(start, person, w) USING KEY (start, person, min(w)) AS (
          SELECT id, id, 0L FROM person WHERE city = 1
          UNION SELECT start, b, near.w + path.w FROM near JOIN path ON a = person)
        SELECT start, person, w FROM near JOIN person ON id = near.person WHERE city = 2
        QUALIFY rank() OVER (ORDER BY w) = 1""",
    # 20: who works somewhere and is nearest, by how many years apart people studied at one place
    "recruits": f"""
        WITH RECURSIVE path AS (
          SELECT k.a, k.b, min(abs(x.year - y.year)) + 1 AS w
          FROM knows k JOIN studies x ON x.person = k.a JOIN studies y ON y.person = k.b AND y.place = x.place
          GROUP BY k.a, k.b),
        near(person, w) USING KEY (person, min(w)) AS (
          SELECT {END}L, 0L UNION SELECT b, near.w + path.w FROM near JOIN path ON a = person)
        SELECT person, w FROM near
        WHERE person IN (SELECT person FROM works WHERE company = 'air') AND person <> {END}
        QUALIFY rank() OVER (ORDER BY w) = 1""",
}


def network(seed: int) -> Rows:
    """People in a ring with a few chords, and what they write, study and work."""
    of = random.Random(seed)
    pairs = {
        *pairwise([*range(PEOPLE), 0]),
        *((of.randrange(PEOPLE), of.randrange(PEOPLE)) for _ in range(4)),
    }
    messages = []
    for n in range(160):
        parent = of.randrange(n) if n > 20 and of.random() < 0.8 else None
        near = None if parent is None else (messages[parent][1] + of.choice([-1, 0, 1])) % PEOPLE
        messages.append((n, of.randrange(PEOPLE) if near is None else near, parent, of.randrange(6)))
    return {
        "person": [(n, n * 5 % 7) for n in range(PEOPLE)],
        "knows": sorted({one for a, b in pairs if a != b for one in ((a, b), (b, a))}),
        "message": messages,
        "forum": [(n, n + 1) for n in range(6)],
        "tag": [(of.randrange(160), of.choice("xyz"), of.choice(["music", "art"])) for _ in range(120)],
        "studies": [(n, of.randrange(2), of.randrange(2000, 2010)) for n in range(PEOPLE) for _ in range(2)],
        "works": [(of.randrange(PEOPLE), "air") for _ in range(4)],
    }


def graph(rows: Rows, weights: Mapping[tuple[int, int], float] | None = None) -> nx.Graph:
    """Who knows whom, by weights; without a weight people are not linked."""
    made = nx.Graph()
    made.add_nodes_from(range(PEOPLE))
    for a, b in rows["knows"]:
        pair = min(a, b), max(a, b)
        if weights is None or pair in weights:
            made.add_edge(a, b, weight=1 if weights is None else weights[pair])
    return made


def replies(rows: Rows) -> list[tuple[tuple[int, int], bool, int]]:
    """For each answer the two people, whether it answers a post, and its forum."""
    by_id = {row[0]: row for row in rows["message"]}
    made = []
    for _, creator, parent, forum in rows["message"]:
        if parent is not None:
            other = by_id[parent]
            made.append(((min(creator, other[1]), max(creator, other[1])), other[2] is None, forum))
    return made


def nearest(distances: Mapping[Any, float]) -> list[tuple[Any, float]]:
    """The least distances."""
    least = min(distances.values(), default=0)
    return [(one, w) for one, w in distances.items() if w == least]


def expected(rows: Rows) -> dict[str, list[tuple[Any, ...]]]:
    """The answers, from networkx and loops."""
    hops = nx.single_source_shortest_path_length(graph(rows), START)
    city = dict(rows["person"])
    chosen = {n for n, far in hops.items() if 3 <= far <= 4 and city[n] < 3}
    music = {message for message, _, kind in rows["tag"] if kind == "music"}
    creator = {row[0]: row[1] for row in rows["message"]}
    tags = Counter((creator[m], name) for m, name, _ in rows["tag"] if m in music and creator[m] in chosen)
    days, trust = dict(rows["forum"]), Counter[tuple[int, int]]()
    for pair, of_post, forum in replies(rows):
        if 2 <= days[forum] <= 7:
            trust[pair] += 10 if of_post else 5
    known = {(min(a, b), max(a, b)) for a, b in rows["knows"]}
    trusted = graph(rows, {pair: 10 / (trust[pair] + 10) for pair in known})
    often = Counter(pair for pair, _, _ in replies(rows))
    talks = graph(rows, {pair: max(round(40 - sqrt(n)), 1) for pair, n in often.items()})
    ways = {
        (start, to): w
        for start in (n for n in city if city[n] == 1)
        for to, w in nx.single_source_dijkstra_path_length(talks, start).items()
        if city[to] == 2
    }
    years: dict[tuple[int, int], int] = {}
    for a, b in known:
        for one, place, year in rows["studies"]:
            for other, there, then in rows["studies"]:
                if (one, other) == (a, b) and place == there:
                    years[a, b] = min(years.get((a, b), 99), abs(year - then) + 1)
    workers = {person for person, _ in rows["works"]} - {END}
    from_end = nx.single_source_dijkstra_path_length(graph(rows, years), END)
    return {
        "experts": [(*key, n) for key, n in tags.items()],
        "trust": [(nx.dijkstra_path_length(trusted, START, END),)],
        "cities": [(*pair, w) for pair, w in nearest(ways)],
        "recruits": nearest({n: w for n, w in from_end.items() if n in workers}),
    }


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, *(pytest.param(n, marks=pytest.mark.campaign) for n in range(2, 10))])
def test_paths_of_a_social_network_are_kept_up_to_date(seed: int) -> None:
    rows = network(seed)
    tables = {
        name: pa.table(dict(zip(columns.split(), map(list, zip(*rows[name], strict=True)), strict=True)))
        for name, columns in COLUMNS.items()
    }
    made = last_epoch([*QUERIES.values()], tables, seed=seed, epochs=2 if seed == 1 else 3)
    theirs = {name: Counter(map(plain, answer)) for name, answer in expected(rows).items()}
    got = {
        name: Counter(map(plain, zip(*(one.to_pylist() for one in table.columns), strict=True)))
        for name, table in zip(QUERIES, made, strict=True)
    }
    assert got == theirs
    assert sum(map(bool, theirs.values())) > 2, "few networks have no answer to a query"
