"""DuckDB as the oracle of SQL: at each epoch a collection is its answer on the tables of the epoch."""

from __future__ import annotations

import math
import random
from collections import Counter
from datetime import datetime
from decimal import Decimal
from itertools import chain

import duckdb
import pytest

import timely_spark as ts
from tests.support.accumulated import after, after_each

#: by table its columns, in Spark's DDL and as DuckDB names them
TABLES = {
    "t": "a int, b int, c string, d double",
    "u": "a int, b int, c string, e bigint",
    "edges": "src bigint, dst bigint, w bigint",
}
#: of histories: one in every run
SEEDS = [0, *(pytest.param(n, marks=pytest.mark.campaign) for n in (1, 2))]


def value(kind, of: random.Random):
    """A small value, so that values meet; often null."""
    if of.random() < 0.2:
        return None
    if kind == "string":
        return of.choice(["", "a", "b", "ab", "é"])
    if kind == "double":
        return of.choice([0.0, -0.0, 0.5, -1.25, 3.0, 7.75, math.nan])
    return of.randint(-3, 4)


def history(seed: int, *, epochs: int = 3, rows: int = 7, tables=TABLES):
    """Random changes: by table for each epoch rows with their difference; only present rows are removed."""
    of = random.Random(seed)
    made = {}
    for name, ddl in tables.items():
        kinds = [one.split()[1] for one in ddl.split(",")]
        present, made[name] = [], []
        for _ in range(epochs):
            gone = range(of.randint(0, min(len(present), 4)))
            changes = [(*present.pop(of.randrange(len(present))), -1) for _ in gone]
            for _ in range(of.randint(0, rows)):
                row = (
                    of.choice(present)
                    if present and of.random() < 0.2
                    else tuple(value(k, of) for k in kinds)
                )
                present.append(row)
                changes.append((*row, 1))
            made[name].append(changes)
    return made


def at(changes, epoch: int) -> list:
    """The rows of a table at an epoch."""
    return list(after(chain(*changes[: epoch + 1])).elements())


def plain(row) -> tuple:
    """Values that two engines have alike: numbers as numbers, lists as tuples."""

    def one(of):
        if isinstance(of, Decimal):
            of = float(of)
        if isinstance(of, float):
            return "nan" if math.isnan(of) else float(f"{of:.9g}") + 0.0
        if isinstance(of, datetime):
            return of.replace(tzinfo=None)  # in UTC
        if isinstance(of, bool):
            return of
        if isinstance(of, int):
            return float(of)
        return tuple(map(one, of)) if isinstance(of, list | tuple) else of

    return tuple(map(one, row))


def connection(contents) -> duckdb.DuckDBPyConnection:
    """DuckDB with tables: by name DDL and rows."""
    made = duckdb.connect()
    made.execute("SET default_null_order = 'nulls_first_on_asc_last_on_desc'")
    made.execute("SET threads = 1")
    made.execute("CREATE MACRO two_fields(a, x, b, y) AS struct_pack(p := x, q := y)")
    for name, (ddl, rows) in contents.items():
        made.execute(f"CREATE TABLE {name} ({ddl})")
        if rows:
            made.executemany(f"INSERT INTO {name} VALUES ({', '.join('?' * len(rows[0]))})", rows)
    return made


def flow_of(tables=TABLES):
    """A flow with tables as its inputs, and these as collections."""
    flow = ts.Dataflow("queries")
    return flow, {
        name: flow.input(name, f"{ddl}, diff bigint", epochs="manual").collection(diff="diff")
        for name, ddl in tables.items()
    }


def answers(queries, changes, *, workers: int = 2, tables=TABLES, seed: int = 0, built=None):
    """By query for each epoch the rows of its collection, as a multiset; `built` has them in a flow."""
    if built is None:
        flow, inputs = flow_of(tables)
        built = flow, [ts.sql(query, **inputs) for query in queries]
    for number, one in enumerate(built[1]):
        one.changes().capture(f"out {number}")
    made = ts.testing.run(built[0], changes, workers=workers, seed=seed)
    epochs = len(next(iter(changes.values())))
    every = []
    for number in range(len(queries)):
        rows = made[f"out {number}"].rows().items()
        alike = {epoch: [(*plain(row), diff) for *row, diff in of] for epoch, of in rows}
        every.append(list(after_each(alike, epochs)))
    return every


def expected(queries, changes, epoch: int, *, tables=TABLES, refused=()) -> list:
    """DuckDB's answers on the tables of an epoch; None of a query for which it has an error of `refused`."""
    contents, made = {name: (ddl, at(changes[name], epoch)) for name, ddl in tables.items()}, []
    with connection(contents) as duck:
        for query in queries:
            try:
                made.append(Counter(plain(row) for row in duck.execute(query).fetchall()))
            except refused:  # noqa: PERF203 - of each
                made.append(None)
    return made


def compare(
    queries, changes, *, oracle=None, tables=TABLES, workers: int = 2, seed: int = 0, built=None, refused=()
) -> list[list[Counter]]:
    """Check each query at each epoch; `oracle` are DuckDB's texts of the queries, where they differ.

    An epoch for which DuckDB has an error of `refused` is not compared.

    Returns:
        By query for each epoch its rows.
    """
    oracle = oracle or queries
    ours = answers(queries, changes, tables=tables, workers=workers, seed=seed, built=built)
    for epoch in range(len(next(iter(changes.values())))):
        for number, theirs in enumerate(expected(oracle, changes, epoch, tables=tables, refused=refused)):
            mine = ours[number][epoch]
            if theirs is not None and mine != theirs:
                tables_now = {name: at(changes[name], epoch) for name in tables if name in queries[number]}
                msg = (
                    f"epoch {epoch}: {queries[number]}\n  only ours: {dict(mine - theirs)}\n"
                    f"  only DuckDB's: {dict(theirs - mine)}\n  tables: {tables_now}"
                )
                raise AssertionError(msg)
    return ours
