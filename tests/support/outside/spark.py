"""Spark's `sql-tests`: `results/*.sql.out` have queries with their answers."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from tests.support.outside.cases import Case, Cases, Tally
from tests.support.outside.epochs import last_epoch
from timely_spark.graph import as_schema
from timely_spark.queries.scripts import statements
from timely_spark.sql import bind
from timely_spark.sql.types import name_of


def nested_text(value: Any) -> str:
    """An array, a map or a struct as Spark's tests print them."""
    if value is None:
        return "null"
    if isinstance(value, dict):
        return "{" + ",".join(f'"{name}":{nested_text(one)}' for name, one in value.items()) + "}"
    if isinstance(value, list) and value and all(isinstance(one, tuple) for one in value):
        return "{" + ",".join(f"{nested_text(key)}:{nested_text(one)}" for key, one in value) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(nested_text, value)) + "]"
    return json.dumps(value, ensure_ascii=False, default=str)


def spark_text(table: pa.Table) -> Counter[str]:
    """Rows as Spark's tests print them."""
    columns = []
    for place, kind in enumerate(table.schema.types):
        one = table.column(place)
        if pa.types.is_nested(kind):
            columns.append(["NULL" if value is None else nested_text(value) for value in one.to_pylist()])
        elif pa.types.is_duration(kind) or pa.types.is_binary(kind):
            columns.append([str(value) for value in one.to_pylist()])
        else:
            cast = bind("CAST(x AS string)", pa.schema([("x", kind)]))
            columns.append(
                [v if v is not None else "NULL" for v in cast.evaluate(pa.table({"x": one})).to_pylist()]
            )
    return Counter("\t".join(row).rstrip() for row in zip(*columns, strict=True))


def blocks(text: str) -> Iterator[tuple[str, str, str]]:
    """The queries of a file of results, each with its schema and its answer."""
    for part in text.split("-- !query\n")[1:]:
        query, _, rest = part.partition("\n-- !query schema\n")
        schema, _, answer = rest.partition("\n-- !query output\n")
        yield query.strip(), schema.strip(), answer.rstrip("\n")


class SparkFile(Cases):
    """One file of Spark's queries and answers."""

    def __init__(self, path: Path, tally: Tally, seed: int) -> None:
        super().__init__(path.stem, tally, seed)
        self.path = path

    def check(self) -> None:
        """Check all queries."""
        waiting: list[Case] = []
        legacy = False
        for query, _, answer in blocks(self.path.read_text(encoding="utf-8")):
            words = query.upper().split()
            if words[0] == "SET" and "LEGACY" in query.upper():
                legacy = query.upper().endswith("TRUE")
            if legacy:  # answers of before
                continue
            wrong = bool(re.match(r"(org\.apache|java\.|scala\.|\{\s*\"errorClass)", answer.strip()))
            reads = words[0] in {"SELECT", "WITH", "VALUES", "(", "FROM"} or words[0].startswith("(SELECT")
            if reads and "INSERT" not in words:
                waiting.append(Case(query, answer, wrong))
                continue
            self.run(waiting)
            waiting = []
            if not wrong:
                self.change(query, words)
        self.run(waiting)

    def change(self, query: str, words: list[str]) -> None:
        """A statement that makes or changes a table."""
        try:
            if words[0] == "CREATE" and "VIEW" in words[:6] and "AS" in words:
                self.create_view(query)
            elif words[:2] == ["CREATE", "TABLE"]:
                self.make_table(query)
            elif "INSERT" in words:
                self.insert(query)
            elif words[0] in {"DROP", "DELETE", "UPDATE", "ALTER"} and words[1] in {"VIEW", "TABLE"}:
                name = next(w for w in query.split()[2:] if w.upper() not in {"IF", "EXISTS"}).rstrip(";")
                for given in (self.tables, self.views):
                    given.pop(name.lower(), None)
        except Exception as error:  # noqa: BLE001 - what cannot be made is missed by its readers
            for name in re.findall(r"(?i)insert\s+into\s+(?:table\s+)?(\S+)", query):
                self.tables.pop(name.lower(), None)
            print(f"   ({self.path.name}: {query[:70]!r}: {str(error)[:150]!r})")

    def make_table(self, query: str) -> None:
        found = re.match(
            r"(?is)create\s+table\s+(?:if not exists\s+)?(\S+?)\s*\((.*)\)\s*(using\s+\w+.*)?$", query
        )
        if found is None:
            found = re.match(r"(?is)create\s+table\s+(\S+)\s+(?:using\s+\w+\s+)?as\s+(.*)$", query)
            assert found is not None, "not read"
            self.create_view(f"CREATE VIEW {found[1]} AS {found[2]}")
            return
        columns = re.sub(r"(?i)\b(not null|default [^,]+)", "", found[2])
        schema = as_schema(columns)
        self.tables[found[1].lower()] = schema.empty_table()

    def insert(self, query: str) -> None:
        found = re.match(r"(?is)(.*)insert\s+into\s+(?:table\s+)?(\S+?)\s+(values.*|select.*|with.*)$", query)
        assert found is not None, "not read"
        table = self.tables[found[2].lower()]
        binder, trees = statements(found[1] + found[3])
        made = last_epoch([binder.query(trees[0], self.known)], self.tables, views=True)[0]
        cast = [
            bind(f"CAST(x AS {name_of(of.type)})", pa.schema([("x", one.type)])).evaluate(
                pa.table({"x": one})
            )
            for of, one in zip(table.schema, made.columns, strict=True)
        ]
        self.tables[found[2].lower()] = pa.concat_tables([table, pa.table(cast, schema=table.schema)])

    def difference(self, answer: str, made: Any, table: pa.Table) -> str | None:
        """Compare the rows of a query with Spark's."""
        ours = spark_text(table)
        theirs = Counter(line.rstrip() for line in answer.split("\n")) if answer else Counter()
        if not answer and table.num_rows == 1:
            theirs = Counter([""])  # one row of an empty text is printed so
        if ours == theirs:
            return None
        return f"only ours: {dict(ours - theirs)}\n  only Spark's: {dict(theirs - ours)}"


def spark(folder: Path, patterns: Sequence[str], seed: int, tally: Tally) -> None:
    """Check files of Spark's."""
    for pattern in patterns or ["cte*", "join*", "group-by*"]:
        for path in sorted((folder / "results").glob(f"{pattern}.sql.out")):
            if "legacy" in path.name or "command" in path.name:
                continue  # another configuration; statements that write
            SparkFile(path, tally, seed).check()
