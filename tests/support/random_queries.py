"""Random queries from a grammar, compared with DuckDB at each epoch.

`python -m tests.support.random_queries --cases N` checks so many, `--seed S` the one of a seed. A query that
fails is printed with its seed.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
import traceback
import warnings
from dataclasses import dataclass, field

from tests.support.duck import compare, history

#: by table its columns, by their types
COLUMNS = {
    "t": {"a": "int", "b": "int", "c": "text", "d": "double"},
    "u": {"a": "int", "b": "int", "c": "text", "e": "int"},
    "edges": {"src": "int", "dst": "int", "w": "int"},
}
#: so many queries are in one flow
TOGETHER = 6


@dataclass
class Grammar:
    """Draws queries whose answers are the same in both systems."""

    of: random.Random
    #: the columns that can be named: name and type
    scope: list[tuple[str, str]] = field(default_factory=list)
    aliases: int = 0

    # -- expressions -----------------------------------------------------------------------------------------

    def column(self, kind: str) -> str | None:
        """A column of a type; None if there is none."""
        found = [name for name, of in self.scope if of == kind]
        return self.of.choice(found) if found else None

    def value(self, kind: str, depth: int = 2) -> str:
        """An expression of a type."""
        named = self.column(kind)
        if depth <= 0 or self.of.random() < 0.4:
            literals = {"int": ["0", "1", "3", "-2"], "text": ["'a'", "''", "'b'"], "double": ["0.5", "3.0"]}
            return (
                named
                if named and self.of.random() < 0.8
                else self.literal(self.of.choice(literals[kind]), kind)
            )
        x = lambda: self.value(kind, depth - 1)  # noqa: E731 - drawn again each time
        y = lambda: self.condition(depth - 1)  # noqa: E731
        text, number = self.value("text", depth - 1), self.value("int", depth - 1)
        shared = ["coalesce({x}, {x})", "CASE WHEN {y} THEN {x} ELSE {x} END", "nullif({x}, {x})"]
        own = {
            "int": [
                "({x} + {x})",
                "({x} - {x})",
                "({x} * 2)",
                "abs({x})",
                "greatest({x}, {x})",
                "length({text})",
            ],
            "text": ["upper({x})", "({x} || {x})", "substring({x}, 1, 1)"],
            "double": ["({x} + {x})", "({x} * CAST(2 AS double))", "CAST({number} AS double)"],
        }
        made = self.of.choice([*shared, *own[kind]])
        parts = {"{x}": x, "{y}": y, "{text}": lambda: text, "{number}": lambda: number}
        return re.sub(r"\{\w+\}", lambda hole: parts[hole[0]](), made)

    def literal(self, text: str, kind: str) -> str:
        """A literal of a type: numbers with a point would be decimals."""
        return f"CAST({text} AS double)" if kind == "double" else text

    def condition(self, depth: int = 2) -> str:
        """A condition."""
        kind = self.of.choice(["int", "int", "text", "double"])
        x = lambda: self.value(kind, depth - 1)  # noqa: E731 - drawn again each time
        choices = [
            lambda: f"{x()} {self.of.choice(['=', '<', '>=', '<>', 'IS DISTINCT FROM'])} {x()}",
            lambda: f"{x()} IS {self.of.choice(['', 'NOT '])}NULL",
            lambda: f"{x()} {self.of.choice(['', 'NOT '])}IN ({x()}, {x()})",
            lambda: f"{x()} BETWEEN {x()} AND {x()}",
        ]
        if depth > 0:
            y = lambda: self.condition(depth - 1)  # noqa: E731
            choices += [lambda: f"({y()} AND {y()})", lambda: f"({y()} OR {y()})", lambda: f"NOT ({y()})"]
        if depth > 1:
            choices += [self.exists, self.among]
        return self.of.choice(choices)()

    def exists(self) -> str:
        """A correlated test of a subquery."""
        inner, table, alias = self.inner()
        outer = self.column("int") or "1"
        key = self.of.choice([n for n, k in COLUMNS[table].items() if k == "int"])
        more = f" AND {inner.condition(0)}" if self.of.random() < 0.5 else ""
        negated = self.of.choice(["", "NOT "])
        return f"{negated}EXISTS (SELECT 1 FROM {table} {alias} WHERE {alias}.{key} = {outer}{more})"

    def among(self) -> str:
        """`IN` of a subquery."""
        inner, table, alias = self.inner()
        key = self.of.choice([n for n, k in COLUMNS[table].items() if k == "int"])
        where = f" WHERE {inner.condition(0)}" if self.of.random() < 0.6 else ""
        negated = self.of.choice(["", "NOT "])
        return f"{self.value('int', 1)} {negated}IN (SELECT {alias}.{key} FROM {table} {alias}{where})"

    def scalar(self) -> str:
        """A correlated aggregate."""
        inner, table, alias = self.inner()
        function = self.of.choice(
            ["count(*)", f"max({inner.value('int', 1)})", f"sum({inner.value('int', 1)})"]
        )
        key = self.of.choice([n for n, k in COLUMNS[table].items() if k == "int"])
        return f"(SELECT {function} FROM {table} {alias} WHERE {alias}.{key} = {self.column('int') or '1'})"

    def inner(self) -> tuple[Grammar, str, str]:
        """A grammar for a subquery over one table."""
        table, alias = self.of.choice([*COLUMNS]), self.alias()
        made = Grammar(
            self.of, [(f"{alias}.{name}", kind) for name, kind in COLUMNS[table].items()], self.aliases
        )
        return made, table, alias

    def alias(self) -> str:
        """A new name for a table."""
        self.aliases += 1
        return f"q{self.aliases}_{self.of.randrange(1000)}"

    # -- queries ---------------------------------------------------------------------------------------------

    def source(self, depth: int) -> tuple[str, list[tuple[str, str]]]:
        """A table or subquery of `FROM`, and its columns."""
        alias = self.alias()
        if depth > 0 and self.of.random() < 0.35:
            text, kinds = Grammar(self.of, [], self.aliases).query(depth - 1)
            names = [f"x{n}" for n in range(len(kinds))]
            return f"({text}) AS {alias}({', '.join(names)})", [
                (f"{alias}.{name}", kind) for name, kind in zip(names, kinds, strict=True)
            ]
        table = self.of.choice([*COLUMNS])
        return f"{table} AS {alias}", [(f"{alias}.{name}", kind) for name, kind in COLUMNS[table].items()]

    def joined(self, depth: int) -> str:
        """The tables of `FROM`, whose columns can then be named."""
        text, self.scope = self.source(depth)
        for _ in range(self.of.choice([0, 0, 1, 1, 2])):
            more, columns = self.source(depth - 1)
            kind = self.of.choice(["JOIN", "JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN"])
            pairs = [(a, b) for a, of in self.scope for b, other in columns if of == other == "int"]
            self.scope = [*self.scope, *columns]
            if not pairs:
                text += f" CROSS JOIN {more}"
                continue
            a, b = self.of.choice(pairs)
            draw = self.of.random()
            extra = (
                f" AND {self.condition(0)}" if draw < 0.3 else f" AND {self.among()}" if draw < 0.4 else ""
            )
            text += f" {kind} {more} ON {a} = {b}{extra}"
        if self.column("int") and self.of.random() < 0.15:
            text += self.lateral()
        return text

    def lateral(self) -> str:
        """A subquery that reads the tables before it."""
        inner, table, alias = self.inner()
        key = self.of.choice([n for n, k in COLUMNS[table].items() if k == "int"])
        names = [f"{alias}.{name}" for name in COLUMNS[table]]
        chosen, where = inner.value("int", 1), f"{alias}.{key} = {self.column('int')}"
        end = self.of.choice(["", f" ORDER BY {', '.join(names)} LIMIT 2"])
        item = self.of.choice([chosen, f"{chosen} + {self.column('int')}"]) if end else f"max({chosen})"
        outside = self.alias()
        self.scope = [*self.scope, (f"{outside}.x", "int")]
        text = f"SELECT {item} AS x FROM {table} {alias} WHERE {where}{end}"
        return f" CROSS JOIN LATERAL ({text}) AS {outside}"

    def query(self, depth: int = 2) -> tuple[str, list[str]]:
        """A query, and the types of its columns."""
        draw = self.of.random()
        if depth > 0 and draw < 0.15:
            kinds = [self.of.choice(["int", "text"]) for _ in range(self.of.choice([1, 2]))]
            word = self.of.choice(
                ["UNION", "UNION ALL", "INTERSECT", "EXCEPT", "EXCEPT ALL", "INTERSECT ALL"]
            )
            sides = [Grammar(self.of, [], self.aliases).block(depth - 1, kinds) for _ in range(2)]
            return f"{sides[0]} {word} {sides[1]}", kinds
        if draw < 0.45:
            return self.grouped(depth)
        if depth > 0 and draw < 0.55:
            return self.starred(depth)
        if depth > 0 and draw < 0.62:
            return self.limited(depth)
        kinds = [self.of.choice(["int", "int", "text", "double"]) for _ in range(self.of.choice([1, 2, 3]))]
        return self.block(depth, kinds), kinds

    def starred(self, depth: int) -> tuple[str, list[str]]:
        """All columns of tables that conditions join, in any order."""
        sources = [self.source(depth - 1) for _ in range(self.of.choice([2, 3, 3]))]
        self.scope = [one for _, columns in sources for one in columns]
        conditions = [self.condition(1)]
        for (_, a), (_, b) in [self.of.sample(sources, 2) for _ in range(self.of.choice([1, 2, 3]))]:
            pairs = [(x, y) for x, kind in a for y, other in b if kind == other == "int"]
            conditions += [" = ".join(self.of.choice(pairs))] if pairs else []
        self.of.shuffle(conditions)
        text = f"SELECT * FROM {', '.join(one for one, _ in sources)} WHERE {' AND '.join(conditions)}"
        return text, [kind for _, kind in self.scope]

    def limited(self, depth: int) -> tuple[str, list[str]]:
        """The first rows by all columns: rows that tie are equal."""
        text, kinds = Grammar(self.of, [], self.aliases).query(depth - 1)
        names = [f"x{n}" for n in range(len(kinds))]
        order = ", ".join(f"{one}{self.of.choice(['', ' DESC'])}" for one in names)
        limit = self.of.choice(["LIMIT 3", "LIMIT 2 OFFSET 1", "OFFSET 2"])
        return f"SELECT * FROM ({text}) AS q({', '.join(names)}) ORDER BY {order} {limit}", kinds

    def block(self, depth: int, kinds: list[str]) -> str:
        """A block without aggregates, of given types."""
        source = self.joined(depth)
        items = [self.value(kind) for kind in kinds]
        if "int" in kinds and self.of.random() < 0.25:
            items[kinds.index("int")] = self.of.choice([self.scalar, self.windowed])()
        distinct = "DISTINCT " if self.of.random() < 0.2 else ""
        where = f" WHERE {self.condition()}" if self.of.random() < 0.6 else ""
        return f"SELECT {distinct}{', '.join(items)} FROM {source}{where}"

    def windowed(self) -> str:
        """A function of a window whose answer does not depend on ties."""
        partition = (
            f"PARTITION BY {self.column('int')} " if self.column("int") and self.of.random() < 0.7 else ""
        )
        order = f"ORDER BY {self.value('int', 1)}"
        choice = self.of.choice(["rank()", "dense_rank()", "sum", "count", "max"])
        if choice.endswith("()"):
            return f"{choice} OVER ({partition}{order})"
        frame = self.of.choice(["", " RANGE BETWEEN 1 PRECEDING AND 1 FOLLOWING", " RANGE 2 PRECEDING"])
        return f"{choice}({self.value('int', 1)}) OVER ({partition}{order}{frame})"

    def grouped(self, depth: int) -> tuple[str, list[str]]:
        """A block with groups."""
        source = self.joined(depth)
        kinds = [self.of.choice(["int", "text"]) for _ in range(self.of.choice([0, 1, 2]))]
        keys = list(dict.fromkeys(self.column(kind) or self.value(kind, 1) for kind in kinds))
        kinds = [dict(self.scope).get(key, "int") for key in keys]
        if any(key not in dict(self.scope) for key in keys):
            keys, kinds = [], []
        x = lambda: self.value("int", 1)  # noqa: E731 - drawn again each time
        aggregates = [
            self.of.choice(
                ["count(*)", f"count({x()})", f"sum({x()})", f"min({x()})", f"max({x()})",
                 f"count(DISTINCT {x()})", f"sum({x()}) FILTER (WHERE {self.condition(1)})"]
            )
            for _ in range(self.of.choice([1, 2]))
        ]  # fmt: skip
        where = f" WHERE {self.condition()}" if self.of.random() < 0.5 else ""
        text = f"SELECT {', '.join([*keys, *aggregates])} FROM {source}{where}"
        if keys:
            listed, sets = ", ".join(keys), self.of.choice(["", "", "", "ROLLUP", "CUBE"])
            text += f" GROUP BY {sets}({listed})" if sets else f" GROUP BY {listed}"
            # of no rows DuckDB has a total of grouping sets, and Spark has none
            text += " HAVING count(*) > 0" if sets else self.of.choice(["", "", " HAVING count(*) > 1"])
        return text, [*kinds, *["int"] * len(aggregates)]


def draw(seed: int) -> str:
    """The query of a seed."""
    return Grammar(random.Random(seed)).query()[0]


def check(seed: int, many: int = TOGETHER) -> None:
    """Check so many queries from a seed on, over one random history."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compare([draw(one) for one in range(seed, seed + many)], history(seed, epochs=3, rows=6), seed=seed)


def fails(seed: int, many: int) -> str | None:
    """Why queries fail; None if they do not."""
    try:
        check(seed, many)
    except Exception:  # noqa: BLE001 - of any kind
        return traceback.format_exc(limit=-2)
    return None


def main() -> int:
    """Check many; the exit code says whether one failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=None)
    given = parser.parse_args()
    if given.seed is not None:
        print(draw(given.seed))
        check(given.seed, 1)
        return 0
    first, failed = random.randrange(10**6), 0
    for seed in range(first, first + given.cases, TOGETHER):
        if fails(seed, TOGETHER) is not None:
            for one in range(seed, seed + TOGETHER):
                if (why := fails(one, 1)) is not None:
                    failed += 1
                    print(f"seed {one}\n{why}", flush=True)
    print(f"{given.cases} queries from seed {first}, {failed} failed")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
