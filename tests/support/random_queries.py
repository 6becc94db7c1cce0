"""Random queries from a grammar, compared with DuckDB at each epoch.

`python -m tests.support.random_queries --cases N` checks so many, `--seed S` the one of a seed. A query that
fails is printed with its seed. What either system refuses for a reason listed here is counted, and left out.
"""

from __future__ import annotations

import argparse
import gc
import random
import re
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count, islice, repeat
from typing import Any

import duckdb
from pyspark.errors import AnalysisException

import timely_spark as ts
from tests.support.duck import TABLES, at, compare, connection, flow_of, history, plain
from tests.support.sessions import SHORT
from timely_spark.errors import SqlError

Columns = list[tuple[str, str]]

#: by table its columns, by their types
COLUMNS: dict[str, Columns] = {
    "t": [("a", "int"), ("b", "int"), ("c", "text"), ("d", "double")],
    "u": [("a", "int"), ("b", "int"), ("c", "text"), ("e", "int")],
    "edges": [("src", "int"), ("dst", "int"), ("w", "int")],
}
KINDS = ["int", "int", "int", "int", "text", "double", "decimal", "date", "bool", "stamp", "array"]
LITERALS = {
    "int": ["0", "1", "3", "-2"],
    "text": ["'a'", "''", "'b'"],
    "double": ["CAST(0.5 AS double)", "CAST(3.0 AS double)"],  # numbers with a point would be decimals
    "decimal": ["CAST(1.25 AS decimal(6, 2))", "CAST(-1 AS decimal(6, 2))"],
    "date": ["DATE '2024-02-29'", "DATE '2024-03-02'"],
    "bool": ["true", "false"],
    "stamp": ["TIMESTAMP '2024-02-29 00:10:00'", "TIMESTAMP '2024-03-02 23:59:59'"],
    "array": ["array(1)", "array(3, -2)"],
}
#: a value of a number, by type
DERIVED = {
    "int": "{}",
    "text": "CASE WHEN {} > 1 THEN 'a' ELSE 'b' END",
    "double": "CAST({} AS double)",
    "decimal": "CAST({} AS decimal(6, 2))",
    "date": "(DATE '2024-02-28' + CAST({} AS int))",
    "bool": "({} > 1)",
    "stamp": "(TIMESTAMP '2024-02-28 23:50:00' + CAST({} AS int) * INTERVAL '7' MINUTE)",
    "array": "array(coalesce({}, 2), 1)",  # of nulls in arrays the systems have other orders
}
#: expressions by type; `{x}` has the same type, `{y}` is a condition
EVERY = [
    *("coalesce({x}, {x})", "CASE WHEN {y} THEN {x} ELSE {x} END", "nullif({x}, {x})"),
    *("CASE {x} WHEN {x} THEN {x} WHEN {x} THEN {x} END", "greatest({x}, {x})", "least({x}, {x})"),
]
OWN = {
    "int": [
        *("({x} + {x})", "({x} - {x})", "({x} * 2)", "abs({x})", "({x} % 3)", "(- {x} + {x} * 2 - 1)"),
        *("length({text})", "instr({text}, 'a')", "day({date})", "CAST({y} AS int)", "quarter({date})"),
        *("extract(month FROM {date})", "weekofyear({date})", "CAST(floor({decimal}) AS int)"),
        *("extract(hour FROM {stamp})", "minute({stamp})", "size({array})", "array_max({array})"),
        *("try_element_at({array}, 2)", "(named_struct('p', {x}, 'q', {text})).p"),
    ],
    "text": [
        *("upper({x})", "({x} || {x})", "substring({x}, 1, 1)", "reverse({x})", "replace({x}, 'a', 'b')"),
        *("CAST({int} AS string)", "lower(trim({x}))", "({x} || {int} || 'b')", "CAST({date} AS string)"),
        *("left({x}, 1)", "right({x}, 1)", "lpad({x}, 2, 'a')", "repeat({x}, 2)", "split_part({x}, 'a', 1)"),
        *("CAST({decimal} AS string)", "('$' || {x} || '_')", "substring({x}, 2)"),
        *("CAST({stamp} AS string)", "printf('%d-%s', coalesce({int}, 0), coalesce({x}, ''))"),
    ],
    "double": ["({x} + {x})", "({x} * CAST(2 AS double))", "CAST({int} AS double)", "({int} / 4)"],
    "decimal": [
        "({x} + {x})",
        "CAST({int} AS decimal(6, 2))",
        "({int} * CAST(0.5 AS decimal(2, 1)))",
        "(- {x})",
        "abs({x})",
    ],
    "date": [
        *("(DATE '2024-02-28' + CAST({int} AS int))", "last_day({x})", "({x} - 1)"),
        *("CAST(date_trunc('month', {x}) AS date)", "CAST({x} + INTERVAL 1 MONTH AS date)"),
        "CAST({stamp} AS date)",
    ],
    "stamp": [
        *("({x} + INTERVAL '90' SECOND)", "({x} - INTERVAL '1' MONTH)", "CAST({date} AS timestamp)"),
        *("date_trunc('hour', {x})", "time_bucket(INTERVAL '15' MINUTE, {x})"),
    ],
    "array": [
        *("array(coalesce({int}, 0), coalesce({int}, 1))", "sort_array({x})"),
        *("transform({x}, e -> e + 1)", "filter({x}, e -> e > 1)", "slice({x}, 1, 1)"),
    ],
    "bool": [
        "({y})",
        "({y})",
        "({x} AND {x})",
        "({x} IS TRUE)",
        "({x} IS NOT FALSE)",
        "({text} LIKE 'a%')",
        "({text} LIKE '%$_')",
        "({text} LIKE {text})",
        "({text} NOT LIKE '%_b%')",
        "(named_struct('p', {int}, 'q', {text}) = named_struct('p', {int}, 'q', {text}))",
    ],
}
#: types of which one may be compared with another
NUMBERS = {"int", "double", "decimal"}
JOINS = ["JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN"]
#: what is refused, and why it may be
REFUSED = re.compile(r"of a query around a recursion|is ambiguous|is neither in GROUP BY")
#: columns of the tables, which have one type wherever they are
PLAIN = dict.fromkeys(name for columns in COLUMNS.values() for name, _ in columns)
ENDS = ["", " DESC", " NULLS LAST", " DESC NULLS FIRST"]
#: queries in one flow
TOGETHER = 6
#: what is written in one way here, and in another in DuckDB
TWO_WAYS = re.compile("«([^«»]*)¦([^«»]*)»")


def two_ways(text: str, in_duckdb: str) -> str:
    """A text, with DuckDB's text of the same."""
    return f"«{text}¦{in_duckdb}»"


def alike(kind: str, other: str) -> bool:
    """Whether values of two types are compared."""
    return kind == other or {kind, other} <= NUMBERS


@dataclass
class Grammar:
    """Draws queries whose answers are the same in both systems."""

    of: random.Random
    #: for the names of tables
    numbers: Iterator[int] = field(default_factory=count)
    #: the tables, those of `WITH` too
    tables: Mapping[str, Columns] = field(default_factory=lambda: COLUMNS)
    #: the columns of the queries around this one
    outer: Columns = field(default_factory=list)
    #: the columns that can be named
    scope: Columns = field(default_factory=list)
    #: the tables that are read without an alias, each once
    own: set[str] = field(default_factory=set)

    def maybe(self, share: float, text: str) -> str:
        """A text, or nothing."""
        return text if self.of.random() < share else ""

    def beside(self) -> Grammar:
        """A grammar for a query that reads no columns of this one."""
        return replace(self, scope=[])

    def inside(self) -> Grammar:
        """A grammar for a subquery, which reads this one's columns; a name alone may be another there."""
        outer = [one for one in self.scope if "." in one[0] or one[0] in PLAIN]
        return replace(self, outer=[*outer, *self.outer], scope=[])

    # -- expressions -----------------------------------------------------------------------------------------

    def column(self, kind: str) -> str | None:
        """A column of a type; None if there is none."""
        names = [name for name, of in self.scope if of == kind]
        return self.of.choice(names) if names else None

    def value(self, kind: str, depth: int = 2) -> str:
        """An expression of a type."""
        if depth <= 0 or self.of.random() < 0.4:
            if self.of.random() < 0.2:
                return self.of.choice(LITERALS[kind])
            return self.column(kind) or DERIVED[kind].format(self.column("int") or 2)
        if kind == "int" and self.of.random() < (0.1 if depth > 1 else 0.03):
            return self.scalar()
        holes = {"{x}": kind} | {f"{{{one}}}": one for one in KINDS}

        def drawn(hole: re.Match[str]) -> str:
            return self.condition(depth - 1) if hole[0] == "{y}" else self.value(holes[hole[0]], depth - 1)

        return re.sub(r"\{\w+\}", drawn, self.of.choice([*EVERY, *OWN[kind]]))

    def condition(self, depth: int = 2) -> str:
        """A condition."""
        kind = self.of.choice(KINDS)
        mixed = kind in NUMBERS and self.of.random() < 0.2

        def x() -> str:
            return self.value(self.of.choice(sorted(NUMBERS)) if mixed else kind, depth - 1)

        def y() -> str:
            return self.condition(depth - 1)

        choices = [
            lambda: f"{x()} {self.of.choice(['=', '<', '>=', '<>', 'IS DISTINCT FROM'])} {x()}",
            lambda: f"{x()} IS {self.maybe(0.5, 'NOT ')}NULL",
            lambda: f"{x()} {self.maybe(0.5, 'NOT ')}IN ({x()}, {x()}{self.maybe(0.2, ', NULL')})",
            lambda: f"{x()} {self.maybe(0.3, 'NOT ')}BETWEEN {x()} AND {x()}",
        ]
        if depth > 0:
            choices += [lambda: f"({y()} AND {y()})", lambda: f"({y()} OR {y()})", lambda: f"NOT ({y()})"]
            choices += [lambda: f"({y()} OR {y()} AND {y()})", lambda: f"NOT {x()} = {x()}"]
        if depth > 1:
            choices += [self.exists, self.among, self.of_several]
        return self.of.choice(choices)()

    # -- subqueries ------------------------------------------------------------------------------------------

    def where(self, depth: int, share: float = 0.6) -> str:
        """A condition of rows, which may read columns of the queries around."""
        pairs = [(a, b) for a, one in self.scope for b, other in self.outer if alike(one, other)]
        parts = []
        if pairs and self.of.random() < 0.8:
            sign = self.of.choice(["=", "=", "=", "<", "<>", "IS NOT DISTINCT FROM"])
            parts.append(f" {sign} ".join(self.of.choice(pairs)))
        if self.of.random() < share:
            parts.append(self.condition(depth))
        return f" WHERE {' AND '.join(parts)}" if parts else ""

    def exists(self) -> str:
        """A test whether a subquery has rows."""
        sides = []
        for _ in range(self.of.choice([1, 1, 1, 2])):
            inner = self.inside()
            text = f"FROM {inner.joined(0, [0, 0, 1])}{inner.where(self.of.choice([0, 1, 2]), 0.4)}"
            key = inner.column("int")
            if key and self.of.random() < 0.2:
                sides.append(f"SELECT {key} {text} GROUP BY {key} HAVING count(*) > 1")
            else:
                sides.append(f"SELECT {key or 1} {text}")
        if len(sides) > 1:
            sides = [f"({one})" for one in sides]
        else:  # of several any row could be the first
            sides[0] += self.maybe(0.1, " LIMIT 1")
        between = self.of.choice([" UNION ALL ", " INTERSECT ", " EXCEPT "])
        return f"{self.maybe(0.5, 'NOT ')}EXISTS ({between.join(sides)})"

    def among(self) -> str:
        """`IN` of a subquery."""
        kind = self.of.choice(KINDS)
        query = self.inside().rows([kind], 0)
        return f"{self.value(kind, 1)} {self.maybe(0.5, 'NOT ')}IN ({query})"

    def of_several(self) -> str:
        """`IN` of several columns."""
        kinds = [self.of.choice(KINDS) for _ in range(2)]
        query = self.inside().rows(kinds, 0)
        values = ", ".join(self.value(kind, 1) for kind in kinds)
        return f"({values}) {self.maybe(0.5, 'NOT ')}IN ({query})"

    def scalar(self) -> str:
        """A subquery that is a number."""
        inner = self.inside()
        text = f"FROM {inner.joined(0, [0, 0, 1])}{inner.where(self.of.choice([0, 1, 2]), 0.4)}"
        if self.of.random() < 0.25:
            value = inner.value("int", 1)
            end = self.of.choice(ENDS)
            return f"(SELECT {value} AS x {text} ORDER BY x{end} LIMIT 1{inner.maybe(0.3, ' OFFSET 1')})"
        (call,) = inner.aggregates(["int"])
        more = inner.maybe(0.3, f" + {self.column('int') or 1}")
        return f"(SELECT {call}{more} {text}{inner.maybe(0.2, ' HAVING count(*) > 1')})"

    # -- FROM ------------------------------------------------------------------------------------------------

    def alias(self) -> str:
        """A new name for a table."""
        return f"q{next(self.numbers)}"

    def source(self, depth: int) -> tuple[str, Columns]:
        """A table or subquery of `FROM`, and its columns."""
        if depth > 0 and self.of.random() < 0.1:
            return self.in_parentheses()
        alias = self.alias()
        if self.of.random() < 0.05:
            return self.turned(alias)
        if self.of.random() < 0.05:
            return self.timed(alias)
        if self.of.random() < 0.05:
            kinds = [self.of.choice(["int", "text", "double"]) for _ in range(2)]
            rows = [", ".join(self.of.choice([*LITERALS[one], "NULL"]) for one in kinds) for _ in range(2)]
            rows = [", ".join(self.of.choice(LITERALS[one]) for one in kinds), *rows]
            names = [f"x{n}" for n in range(len(kinds))]
            text = f"(VALUES {', '.join(f'({one})' for one in rows)}) AS {alias}({', '.join(names)})"
            columns = list(zip(names, kinds, strict=True))
        elif depth > 0 and self.of.random() < 0.35:
            text, kinds = self.beside().query(depth - 1)
            names = [f"x{n}" for n in range(len(kinds))]
            columns = list(zip(names, kinds, strict=True))
            text = f"({text}) AS {alias}({', '.join(names)})"
        else:
            table = self.of.choice([*self.tables])
            columns, text = self.tables[table], f"{table} AS {alias}"
            if table not in self.own and self.of.random() < 0.15:
                alias = text = table
                self.own.add(table)
        return text, [(f"{alias}.{name}", kind) for name, kind in columns]

    def turned(self, alias: str) -> tuple[str, Columns]:
        """A table with rows as columns, or columns as rows."""
        table = self.of.choice(["t", "u"])
        if self.of.random() < 0.5:
            calls = ["sum(b) AS s", "max(b) AS m", "min(b) AS n"][: self.of.choice([1, 2, 3])]
            text = f"(SELECT a, b, c FROM {table}) PIVOT ({', '.join(calls)} FOR c IN ('a', 'b', ''))"
            kinds = ["int"] * (1 + 3 * len(calls))
        else:
            nulls = self.of.choice(["", "INCLUDE NULLS ", "EXCLUDE NULLS "])
            inside = f"SELECT c, a, b, {self.of.choice(['1', 'b + 1'])} AS y FROM {table}"
            text = f"({inside}) UNPIVOT {nulls}(x FOR k IN (b, a))"
            kinds = ["text", "int", "text", "int"]
        columns = [(f"x{n}", kind) for n, kind in enumerate(kinds)]
        names = ", ".join(name for name, _ in columns)
        return f"{text} AS {alias}({names})", [(f"{alias}.{name}", kind) for name, kind in columns]

    def timed(self, alias: str) -> tuple[str, Columns]:
        """The rows of windows of time, or of sessions, counted."""
        inner = self.beside()
        inner.scope = [*COLUMNS[table := self.of.choice(["t", "u"])]]
        rows = f"(SELECT {inner.value('stamp', 1)} AS s, a FROM {table}) q WHERE s IS NOT NULL"
        if self.of.random() < 0.5:
            begin = two_ways("window(s, '10 minutes').start", "time_bucket(INTERVAL '10 minutes', s)")
            text = f"SELECT {begin} AS x0, count(*) AS x1, max(a) AS x2 FROM {rows} GROUP BY 1"
        else:
            over = "OVER (ORDER BY s)"
            first = f"CASE WHEN s <= lag(s) {over} + INTERVAL '20 minutes' THEN 0 ELSE 1 END AS m"
            sessions = f"SELECT s, a, sum(m) {over} AS g FROM (SELECT s, a, {first} FROM {rows})"
            text = two_ways(
                "SELECT session_window.start AS x0, count(*) AS x1, max(a) AS x2 "
                f"FROM {rows} GROUP BY session_window(s, '20 minutes')",
                f"SELECT min(s) AS x0, count(*) AS x1, max(a) AS x2 FROM ({sessions}) GROUP BY g",
            )
        kinds = (("x0", "stamp"), ("x1", "int"), ("x2", "int"))
        return f"({text}) AS {alias}", [(f"{alias}.{name}", kind) for name, kind in kinds]

    def in_parentheses(self) -> tuple[str, Columns]:
        """Two tables joined in parentheses."""
        inner = self.beside()
        text = inner.joined(0, [1], short=False)
        unique = [(name, kind) for name, kind in inner.scope if "." in name]
        return f"({text})", unique

    def joined(self, depth: int, more: Sequence[int] = (0, 0, 1, 1, 2), *, short: bool = True) -> str:
        """The tables of `FROM`, whose columns can then be named."""
        if self.of.random() < 0.12:
            return self.merged()
        text, self.scope = self.source(depth)
        for _ in range(self.of.choice(more)):
            other, columns = self.source(depth - 1)
            kind = self.of.choice([*JOINS, *JOINS, "JOIN", "LEFT SEMI JOIN", "LEFT ANTI JOIN"])
            pairs = [(a, b) for a, one in self.scope for b, of in columns if alike(one, of)]
            before, self.scope = self.scope, [*self.scope, *columns]
            if not pairs:
                text += f" CROSS JOIN {other}"
                continue
            signs = ["="] * 7 + ["<", "IS NOT DISTINCT FROM"]
            on = f" {self.of.choice(signs)} ".join(self.of.choice(pairs))
            draw = self.of.random()
            on += f" AND {self.condition(1)}" if draw < 0.3 else f" AND {self.among()}" if draw < 0.4 else ""
            text += f" {kind} {other} ON {on}"
            self.scope = before if kind.endswith(("SEMI JOIN", "ANTI JOIN")) else self.scope
        if self.column("int") and self.of.random() < 0.15:
            text += self.lateral()
        if short:  # a column that one table has may be named without the table
            names = [name.rpartition(".")[2] for name, _ in self.scope]
            alone = {name for name in PLAIN if names.count(name) == 1 and self.of.random() < 0.3}
            every = zip(names, self.scope, strict=True)
            self.scope = [(name if name in alone else full, kind) for name, (full, kind) in every]
        return text

    def merged(self) -> str:
        """Two or three tables joined by columns of the same names."""
        names, kinds = self.of.choice([["a"], ["b", "a"], ["a", "c"], ["a", "b", "c"]]), dict(COLUMNS["t"])
        tables = self.of.choice([("t", "u"), ("u", "t"), ("t", "u", "t"), ("u", "t", "u")][: 6 - len(names)])
        sources = [(table, self.alias()) for table in tables]
        self.scope = [(name, kinds[name]) for name in names]
        self.scope += [(f"{alias}.{n}", kind) for table, alias in sources for n, kind in COLUMNS[table]]
        natural, using = ("NATURAL ", "") if len(names) > 2 else ("", f" USING ({', '.join(names)})")
        joins = [
            f"{natural}{self.of.choice(JOINS)} {table} AS {alias}{using}" for table, alias in sources[1:]
        ]
        return " ".join([" AS ".join(sources[0]), *joins])

    def lateral(self) -> str:
        """A subquery that reads the tables before it."""
        inner, outside = self.inside(), self.alias()
        text, inner.scope = inner.source(0)
        where = inner.where(0, 0.3)
        if self.of.random() < 0.5:
            names = ", ".join(name for name, _ in inner.scope)
            item, end = inner.value("int", 1), f" ORDER BY {names} LIMIT 2"
            item += self.maybe(0.5, f" + {self.column('int')}")
        else:
            (item,), end = inner.aggregates(["int"]), ""
        self.scope = [*self.scope, (f"{outside}.x", "int")]
        join = self.of.choice(["CROSS JOIN LATERAL ({}) AS {}", "LEFT JOIN LATERAL ({}) AS {} ON true"])
        return " " + join.format(f"SELECT {item} AS x FROM {text}{where}{end}", outside)

    # -- queries ---------------------------------------------------------------------------------------------

    def query(self, depth: int = 2) -> tuple[str, list[str]]:
        """A query, and the types of its columns."""
        draw = self.of.random()
        if depth > 0 and draw < 0.12:
            return self.named(depth)
        if depth > 0 and draw < 0.22:
            return self.starred(depth)
        if depth > 0 and draw < 0.3:
            return self.limited(depth)
        if draw < 0.55:
            return self.grouped(depth)
        kinds = [self.of.choice(KINDS) for _ in range(self.of.choice([1, 2, 3]))]
        return self.rows(kinds, depth), kinds

    def rows(self, kinds: list[str], depth: int) -> str:
        """A query of given types: a block, or several that are compared."""
        words = ["UNION", "UNION ALL", "INTERSECT", "EXCEPT", "EXCEPT ALL", "INTERSECT ALL"]
        text = self.beside().block(depth, kinds)
        if self.of.random() < 0.15:  # INTERSECT binds more tightly
            for _ in range(2):
                text += f" {self.of.choice(words)} {self.beside().block(depth - 1, kinds)}"
            return text
        for _ in range(self.of.choice([0, 0, 0, 0, 1, 2])):
            text = f"({text}) {self.of.choice(words)} ({self.beside().block(depth - 1, kinds)})"
        return text

    def named(self, depth: int) -> tuple[str, list[str]]:
        """A query with one or two of `WITH`, which may read themselves and those before them."""
        made, parts, recursive = replace(self, scope=[]), [], False
        for _ in range(self.of.choice([1, 1, 2])):
            name = f"r{next(self.numbers)}"
            keys, draw = "", self.of.random()
            if draw < 0.4:
                text, kinds = made.beside().query(depth - 1)
            elif draw < 0.48:
                text, kinds, recursive = self.through_each_other(name), ["int", "int"], True
            elif draw < 0.56:  # the least sum of weights to each node
                text = "SELECT src, 0 FROM edges WHERE src < 2 UNION "
                text += f"SELECT dst, x1 + abs(w) FROM {name} JOIN edges ON src = x0 WHERE w < 4"
                keys, kinds, recursive = " USING KEY (x0, min(x1))", ["int", "int"], True
            else:
                text, kinds, recursive = made.recursion(name), ["int", "int"], True
            names = [f"x{n}" for n in range(len(kinds))]
            text = text if text.startswith("«") else f"{name}({', '.join(names)}){keys} AS ({text})"
            parts.append(text)
            made = replace(made, tables={**made.tables, name: list(zip(names, kinds, strict=True))}, scope=[])
        body, result = made.query(depth - 1)
        body = f"SELECT * FROM ({body})" if body.startswith("WITH") else body
        return f"WITH {'RECURSIVE ' if recursive else ''}{', '.join(parts)} {body}", result

    def recursion(self, name: str) -> str:
        """A query of two numbers that reads itself by a name."""
        levels, alias = self.of.random() < 0.35, self.alias()
        step = replace(self, outer=[], scope=[(f"{alias}.x0", "int"), (f"{alias}.x1", "int")])
        other, columns = step.source(0)
        keys = [name for name, kind in columns if kind == "int"] or ["0"]
        on = f"{step.of.choice(step.scope)[0]} = {step.of.choice(keys)}"
        level = f"{alias}.x1"
        step.scope = [*step.scope, *columns]
        # a set of columns that are there has an end, and a number of levels has one
        items = f"{step.column('int')}, " + (f"{level} + 1" if levels else str(step.column("int")))
        word, end = ("UNION ALL", f" AND {level} < 2") if levels else ("UNION", "")
        more = step.maybe(0.4, f" AND {step.condition(1)}")
        start = f"SELECT src, {'0' if levels else 'dst'} FROM edges"
        if self.of.random() < 0.1:
            inner = f"{name}_inner"
            start = f"SELECT * FROM (WITH RECURSIVE {inner}(x0, x1) AS ({self.recursion(inner)}) "
            start += f"SELECT x0, {'0' if levels else 'x1'} FROM {inner}) q"
        return (
            f"{start} {word} SELECT {items} FROM {name} AS {alias} JOIN {other} ON {on} WHERE true{end}{more}"
        )

    def through_each_other(self, name: str) -> str:
        """Two queries that read each other: of DuckDB one, whose rows say of which query they are."""
        step = replace(self, outer=[], scope=[("src", "int"), ("dst", "int"), ("x1", "int")])
        (a, b), (x, y) = ((step.column("int"), step.condition(0)) for _ in range(2))
        start, join = "SELECT src, dst FROM edges WHERE w > 0", "JOIN edges ON x0 = src"
        ours = (
            f"{name}(x0, x1) AS ({start} UNION SELECT dst, {a} FROM {name}_too {join} WHERE {b}), "
            f"{name}_too(x0, x1) AS (SELECT w, src FROM edges "
            f"UNION SELECT dst, {x} FROM {name} {join} WHERE {y})"
        )
        both = "SELECT 1, src, dst FROM edges WHERE w > 0 UNION ALL SELECT 2, w, src FROM edges"
        step_of_both = f"SELECT 3 - n, dst, CASE n WHEN 2 THEN {a} ELSE {x} END FROM {name}_too {join}"
        theirs = (
            f"{name}_too(n, x0, x1) AS (({both}) UNION {step_of_both} "
            f"WHERE CASE n WHEN 2 THEN {b} ELSE {y} END), "
            f"{name}(x0, x1) AS (SELECT x0, x1 FROM {name}_too WHERE n = 1)"
        )
        return two_ways(ours, theirs)

    def starred(self, depth: int) -> tuple[str, list[str]]:
        """All columns of tables that conditions join, in any order."""
        every = (self.source(depth - 1) for _ in repeat(None))
        # DuckDB leaves the columns of USING where the left table has them
        in_order = (one for one in every if not re.search(r"USING \((b, a|a, c)\)", one[0]))
        sources = list(islice(in_order, self.of.choice([2, 3, 3])))
        self.scope = [one for _, columns in sources for one in columns]
        conditions = [self.condition(1)]
        for (_, a), (_, b) in [self.of.sample(sources, 2) for _ in range(self.of.choice([1, 2, 3]))]:
            pairs = [(x, y) for x, kind in a for y, other in b if kind == other]
            conditions += [" = ".join(self.of.choice(pairs))] if pairs else []
        self.of.shuffle(conditions)
        text = f"SELECT * FROM {', '.join(one for one, _ in sources)} WHERE {' AND '.join(conditions)}"
        return text, [kind for _, kind in self.scope]

    def limited(self, depth: int) -> tuple[str, list[str]]:
        """The first rows by all columns: rows that tie are equal."""
        text, kinds = self.beside().query(depth - 1)
        names = [f"x{n}" for n in range(len(kinds))]
        by = [str(n + 1) for n in range(len(names))] if self.of.random() < 0.3 else names
        order = ", ".join(f"{one}{self.of.choice(ENDS)}" for one in by)
        limit = self.of.choice(["LIMIT 3", "LIMIT 2 OFFSET 1", "OFFSET 2", "LIMIT 0"])
        return f"SELECT * FROM ({text}) AS q({', '.join(names)}) ORDER BY {order} {limit}", kinds

    def block(self, depth: int, kinds: list[str]) -> str:
        """A block without aggregates, of given types."""
        source = self.joined(depth)
        items = [self.value(kind) for kind in kinds]
        qualify = ""
        if "int" in kinds and self.of.random() < 0.3:
            items[kinds.index("int")] = self.of.choice([self.scalar, self.windowed, self.windowed])()
        elif self.of.random() < 0.1:
            qualify = f" QUALIFY {self.windowed()} > 1"
        elif kinds[:2] == ["int", "int"] and self.of.random() < 0.3:  # a column of the result in another one
            name = self.alias()
            items[:2] = [f"{items[0]} AS {name}", f"{name} + {self.value('int', 1)}"]
        return (
            f"SELECT {self.maybe(0.2, 'DISTINCT ')}{', '.join(items)} FROM {source}{self.where(2)}{qualify}"
        )

    def windowed(self) -> str:
        """A function of a window whose answer does not depend on ties."""
        kind, number = self.of.choice(KINDS), self.value("int", 1)
        partition = (
            f"PARTITION BY {self.column(kind)} " if self.column(kind) and self.of.random() < 0.7 else ""
        )
        choice = self.of.choice(["rank()", "dense_rank()", "sum", "count", "max", "min", "rows", "rows"])
        if choice == "rows":  # all columns order them: rows that tie are equal
            order = ", ".join(f"{name}{self.of.choice(ENDS)}" for name, _ in self.scope)
            bounds = ["2 PRECEDING", "1 PRECEDING", "CURRENT ROW", "1 FOLLOWING", "3 FOLLOWING"]
            low, high = sorted(self.of.sample(range(5), 2))
            frame = f" ROWS BETWEEN {bounds[low]} AND {bounds[high]}"
            calls = ["row_number()", "lag(@)", "lead(@, 2, 7)", "ntile(2)"]
            framed = ["sum(@)", "first_value(@)", "last_value(@)", "nth_value(@, 2)", "min(@)", "count(@)"]
            framed += ["median(@)", "count(DISTINCT @)", "sum(DISTINCT @)"]
            call = self.of.choice([*calls, *(f"{one}#" for one in framed)])
            over = f" OVER ({partition}ORDER BY {order}{frame if '#' in call else ''})"
            return call.replace("#", "").replace("@", number) + over
        ordered, unit = self.value("int", 1), ""
        if self.of.random() < 0.2:
            ordered, unit = self.value("date", 1), "INTERVAL '#' DAY"
        order = f"ORDER BY {ordered}{self.of.choice(ENDS)}"
        if choice.endswith("()"):
            return f"{choice} OVER ({partition}{order})"
        frames = ["1 PRECEDING AND 1 FOLLOWING", "2 PRECEDING AND CURRENT ROW", "1 FOLLOWING AND 3 FOLLOWING",
                  "3 PRECEDING AND 1 PRECEDING", "CURRENT ROW AND UNBOUNDED FOLLOWING"]  # fmt: skip
        frame = self.maybe(0.7, f" RANGE BETWEEN {self.of.choice(frames)}")
        frame = re.sub(r"\d", lambda number: unit.replace("#", number[0]) or number[0], frame)
        some = self.maybe(0.2, f" FILTER (WHERE {self.condition(0)})")
        return f"{choice}({number}){some} OVER ({partition}{order}{frame})"

    def aggregates(self, kinds: Sequence[str]) -> list[str]:
        """Aggregates of given types."""

        def one(kind: str) -> str:
            x, extra = self.value(kind, 1), self.maybe(0.3, f" FILTER (WHERE {self.condition(1)})")
            any_kind = self.value(self.of.choice(KINDS), 1)
            counts = ["count(*)", f"count({any_kind})", f"count(DISTINCT {any_kind})"]
            order = ", ".join(f"{name}{self.of.choice(ENDS)}" for name, _ in self.scope)
            placed = [f"first({x} ORDER BY {order})", f"last({x} ORDER BY {order})"]
            number = self.value("int", 1)
            calls = {
                "int": [*counts, f"sum({x})", f"sum(DISTINCT {x})", f"min({x})", f"max({x})", *placed],
                "text": [
                    two_ways(
                        f"string_agg({x}, '-') WITHIN GROUP (ORDER BY {x})",
                        f"string_agg({x}, '-' ORDER BY {x})",
                    )
                ],
                "bool": [f"bool_and({x})", f"bool_or({x})"],
                "decimal": [f"sum({x})", f"max({x})"],
                "double": [
                    f"avg({number})",
                    f"median({number})",
                    f"avg(DISTINCT {number})",
                    f"min({x})",
                    f"var_pop({number})",
                ],
                "array": [f"percentile({number}, array(0.25, 0.5))", f"max_by({number}, {number}, 2)"],
            }
            return self.of.choice(calls.get(kind, [f"min({x})", f"max({x})", *placed])) + extra

        return [one(kind) for kind in kinds]

    def grouped(self, depth: int) -> tuple[str, list[str]]:
        """A block with groups."""
        source = self.joined(depth)
        drawn = [self.of.choice(KINDS) for _ in range(self.of.choice([0, 1, 1, 2]))]
        keys = {(self.maybe(0.8, self.column(kind) or "") or self.value(kind, 1)): kind for kind in drawn}
        # a key that is a constant could be the number of a column, and DuckDB's ALL makes no group of one
        scoped = re.compile("|".join(rf"\b{re.escape(name)}\b" for name, _ in self.scope) or "$^")
        keys = {key: kind for key, kind in keys.items() if scoped.search(key)}
        columns = [(key, kind) for key, kind in keys.items() if (key, kind) in self.scope]
        where, kinds = self.where(2), [self.of.choice(KINDS) for _ in range(self.of.choice([1, 2]))]
        items = [*keys, *self.aggregates(kinds)]
        if self.of.random() < 0.15:
            (call,) = self.aggregates(["int"])
            partition = f"PARTITION BY {next(iter(keys))} " if keys else ""
            windows = [f"rank() OVER ({partition}ORDER BY {call})", f"sum({call}) OVER ({partition})"]
            items.append(self.of.choice(windows))
            kinds = [*kinds, "int"]
        listed, sets = ", ".join(keys), ""
        if keys:
            sets = self.of.choice(["", "", "", "ROLLUP", "CUBE", "GROUPING SETS"])
            if not sets and self.of.random() < 0.3:  # by their names, or their numbers
                names = [self.alias() for _ in keys]
                items[: len(keys)] = [f"{key} AS {name}" for key, name in zip(keys, names, strict=True)]
                listed = ", ".join(names if self.of.random() < 0.5 else map(str, range(1, len(keys) + 1)))
                listed = listed if self.of.random() < 0.7 else "ALL"
            inside = self.of.choice([f"({listed}), ()", f"({listed}), ({next(iter(keys))})", f"({listed})"])
            where += (
                f" GROUP BY {sets} ({inside if sets == 'GROUPING SETS' else listed})"
                if sets
                else (f" GROUP BY {listed}")
            )
            if sets and columns and self.of.random() < 0.5:
                items, kinds = [*items, f"grouping({columns[0][0]})"], [*kinds, "int"]
        (call,) = self.aggregates(["int"])
        having = ["count(*) > 1", f"{call} >= 0", f"{call} IS NULL"]
        if columns:
            having += [replace(self, scope=columns).exists()]
        # of no rows DuckDB has a total of grouping sets, and Spark has none
        where += " HAVING count(*) > 0" if sets else self.maybe(0.4, f" HAVING {self.of.choice(having)}")
        return f"SELECT {', '.join(items)} FROM {source}{where}", [*keys.values(), *kinds]


def draw(seed: int) -> tuple[str, str]:
    """The query of a seed; and in DuckDB's words."""
    ways = [Grammar(random.Random(seed)).query()[0]] * 2
    while "«" in ways[0]:  # from the inside
        ways = [TWO_WAYS.sub(rf"\{n}", one) for n, one in enumerate(ways, 1)]
    return ways[0], in_duckdb(ways[1])


#: functions by their names in DuckDB
IN_DUCKDB = {
    "array": "list_value",
    "array_max": "list_max",
    "filter": "list_filter",
    "named_struct": "two_fields",
    "percentile": "quantile_cont",
    "size": "len",
    "slice": "list_slice",
    "sort_array": "list_sort",
    "transform": "list_transform",
    "try_element_at": "list_extract",
}


def in_duckdb(query: str) -> str:
    """A query in DuckDB's words."""
    query = re.sub(r"LEFT (SEMI|ANTI) JOIN", r"\1 JOIN", query)
    query = re.sub(r"\be -> ", "lambda e: ", query)
    return re.sub(rf"\b({'|'.join(IN_DUCKDB)})\(", lambda name: f"{IN_DUCKDB[name[1]]}(", query)


def check(seed: int, many: int = TOGETHER, spark: Any = None) -> Counter[str]:
    """Check so many queries from a seed on, over one random history; how many were refused, by the reason.

    The last epoch deletes all rows. With a session of Spark, its answers are compared before that, too.
    """
    changes = history(seed, epochs=3, rows=6)
    for one in changes.values():
        one.append([(*row, -1) for row in at(one, len(one) - 1)])
    flow, tables = flow_of(TABLES)
    contents = {name: (ddl, at(changes[name], 2)) for name, ddl in TABLES.items()}
    refused, accepted, views = Counter[str](), [], []
    with warnings.catch_warnings(), connection(contents) as duck:
        warnings.simplefilter("ignore")
        for query, theirs in map(draw, range(seed, seed + many)):
            try:
                duck.execute(theirs)
                views.append(ts.sql(query, **tables))
                accepted.append((query, theirs))
            except duckdb.Error as error:  # noqa: PERF203 - of each
                refused[f"DuckDB: {str(error).partition(chr(10))[0]}"] += 1
            except SqlError as error:
                if (known := REFUSED.search(str(error))) is None:
                    raise
                refused[known[0]] += 1
        queries, oracle = zip(*accepted, strict=True) if accepted else ((), ())
        # DuckDB may fail on the tables of another epoch alone, as where it compares a time with a double
        ours = compare(queries, changes, oracle=oracle, built=(flow, views), seed=seed, refused=duckdb.Error)
    for name, (ddl, rows) in contents.items() if spark else ():
        spark.createDataFrame(rows, ddl).createOrReplaceTempView(name)
    for query, epochs in zip(queries, ours, strict=True) if spark else ():
        try:
            theirs = Counter(plain(row) for row in spark.sql(query).collect())
        except AnalysisException as error:  # DuckDB's syntax, or a subquery that Spark has not
            refused[f"Spark: {error.getCondition()}"] += 1
            continue
        assert epochs[2] == theirs, f"{query}\n  ours: {epochs[2]}\n  Spark's: {theirs}\n  {contents}"
    return refused


def fails(seed: int, many: int, spark: Any = None) -> Counter[str] | str:
    """Why queries fail; how many were refused if they do not."""
    try:
        return check(seed, many, spark)
    except Exception:  # noqa: BLE001 - of any kind
        return traceback.format_exc(limit=-2)


def started() -> Any:
    """A session of Spark."""
    from pyspark.sql import SparkSession

    settings = {"spark.sql.shuffle.partitions": "1", "spark.sql.session.timeZone": "UTC", **SHORT}
    return SparkSession.builder.master("local[1]").config(map=settings).getOrCreate()


def main() -> int:
    """Check many; the exit code says whether one failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument(
        "--first", type=int, default=random.randrange(10**6), help="the seed of the first case"
    )
    parser.add_argument("--spark", action="store_true", help="compare each tenth flow with Spark, too")
    given = parser.parse_args()
    gc.freeze()
    gc.set_threshold(100_000)  # syntax trees have no cycles to collect
    spark = started() if given.spark else None
    if given.seed is not None:
        print(draw(given.seed)[0])
        print(dict(check(given.seed, 1, spark)))
        return 0
    first, failed, refused = given.first, 0, Counter[str]()
    for seed in range(first, first + given.cases, TOGETHER):
        session = spark if (seed - first) % (10 * TOGETHER) == 0 else None
        if isinstance(reasons := fails(seed, TOGETHER, session), Counter):
            refused += reasons
            continue
        for one in range(seed, seed + TOGETHER):
            if isinstance(why := fails(one, 1, session), str):
                failed += 1
                print(f"seed {one}\n{draw(one)[0]}\n{why}", flush=True)
    print(f"{given.cases} queries from seed {first}, {failed} failed, refused: {dict(refused)}")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
