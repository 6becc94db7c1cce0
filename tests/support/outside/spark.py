"""Spark's `sql-tests`: `results/*.sql.out` have queries with their answers."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from tests.support.outside.cases import Case, Cases, Tally, texts
from tests.support.outside.epochs import last_epoch
from timely_spark.graph import as_schema
from timely_spark.queries.scripts import statements
from timely_spark.sql import bind
from timely_spark.sql.types import name_of


def nested_text(value: Any, kind: pa.DataType) -> str:
    """A value in an array, a map or a struct as Spark's tests print it."""
    if value is None:
        return "null"
    if pa.types.is_struct(kind):
        return "{" + ",".join(f'"{one.name}":{nested_text(value[one.name], one.type)}' for one in kind) + "}"
    if pa.types.is_map(kind):
        entries = ((nested_text(key, kind.key_type), nested_text(one, kind.item_type)) for key, one in value)
        return "{" + ",".join(sorted(f"{key}:{one}" for key, one in entries)) + "}"
    if pa.types.is_list(kind):
        return "[" + ",".join(nested_text(one, kind.value_type) for one in value) + "]"
    if pa.types.is_string(kind) or pa.types.is_boolean(kind):
        return json.dumps(value, ensure_ascii=False)
    return next(iter(spark_text(pa.table({"x": pa.array([value], kind)}))))


def spark_text(table: pa.Table) -> Counter[str]:
    """Rows as Spark's tests print them."""
    columns = []
    for one in table.columns:
        kind = one.type
        if pa.types.is_nested(kind):
            columns.append(["NULL" if v.as_py() is None else nested_text(v.as_py(), kind) for v in one])
        elif pa.types.is_binary(kind):
            columns.append(["NULL" if v is None else v.decode(errors="replace") for v in one.to_pylist()])
        else:
            cast = bind("CAST(x AS string)", pa.schema([("x", kind)]))
            columns.append(cast.evaluate(pa.table({"x": one})).fill_null("NULL").to_pylist())
    return Counter("\t".join(row).rstrip() for row in zip(*columns, strict=True))


def shortened(line: str) -> str:
    """A line in which long doubles have 14 digits: sums in another order differ in the last ones."""

    def number(match: re.Match[str]) -> str:
        digits = len(match[1].replace(".", ""))
        return f"{float(match[0]):.13e}" if 15 <= digits <= 18 else match[0]

    return re.sub(r"(\d+\.\d+)(?:E-?\d+)?\b", number, line).rstrip()


def blocks(text: str) -> Iterator[tuple[str, str, str]]:
    """The queries of a file of results, each with its schema and its answer."""
    for part in text.split("-- !query\n")[1:]:
        query, _, rest = part.partition("\n-- !query schema\n")
        schema, _, answer = rest.partition("\n-- !query output\n")
        yield query.strip(), schema.strip(), answer.rstrip("\n")


#: settings whose other value gives other answers
SETTING = re.compile(r"(?i)(?:re)?set\s+(\S+legacy[^\s=]+|\S+allowPrecisionLoss)\s*(?:=\s*(\w+))?$")


class SparkFile(Cases):
    """One file of Spark's queries and answers."""

    def check(self, text: str) -> None:
        """Check all queries."""
        waiting: list[Case] = []
        other: set[str] = set()
        if "from testdata" in text.lower():  # a table that all files have; some make another
            numbers = range(1, 101)
            self.tables["testdata"] = pa.table(
                {"key": pa.array(numbers, pa.int32()), "value": list(map(str, numbers))}
            )
        for query, schema, answer in blocks(text):
            if "interval" in schema:  # printed with units that no type has here
                continue
            words = query.upper().split()
            if (setting := SETTING.match(query)) is not None:
                is_other = str(setting[2]).lower() == ("true" if "legacy" in setting[1].lower() else "false")
                (other.add if is_other else other.discard)(setting[1].lower())
            if other:
                continue
            wrong = bool(re.match(r"(org\.apache|java\.|scala\.|\{\s*\"errorClass)", answer.strip()))
            reads = words[0] in {"SELECT", "WITH", "VALUES", "(", "FROM"} or words[0].startswith("(SELECT")
            if reads and "INSERT" not in words:
                waiting.append(Case(query, (schema, answer), wrong))
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
            print(f"   ({self.where}: {query[:70]!r}: {str(error)[:150]!r})")

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
        made = last_epoch([binder.query(trees[0], self.known)], self.tables, views=True, epochs=1, workers=1)[
            0
        ]
        cast = [
            bind(f"CAST(x AS {name_of(of.type)})", pa.schema([("x", one.type)])).evaluate(
                pa.table({"x": one})
            )
            for of, one in zip(table.schema, made.columns, strict=True)
        ]
        self.tables[found[2].lower()] = pa.concat_tables([table, pa.table(cast, schema=table.schema)])

    def difference(self, answer: tuple[str, str], made: Any, table: pa.Table) -> str | None:
        """Compare the types and the rows of a query with Spark's."""
        schema, answer = answer
        types = [name_of(one.type) for one in table.schema]
        # a column of nulls alone may be one of texts here
        columns = ",".join(f".*:{re.escape(one).replace('string', '(string|void)')}" for one in types)
        if re.fullmatch(rf"(?s)struct<{columns}>", schema) is None:
            return f"types {types} and Spark's {schema}"
        ours = Counter(shortened(one) for row in spark_text(table).elements() for one in row.split("\n"))
        theirs = Counter(map(shortened, answer.split("\n"))) if answer else Counter()
        if not answer and table.num_rows == 1:
            theirs = Counter([""])  # one row of an empty text is printed so
        if ours == theirs:
            return None
        return f"only ours: {dict(ours - theirs)}\n  only Spark's: {dict(theirs - ours)}"


def spark(place: Path, patterns: Sequence[str], seed: int, tally: Tally) -> None:
    """Check files of Spark's, but some."""
    for name, text in texts(place, [f"{one}.sql.out" for one in patterns or ["*"]]):
        if not re.search("legacy|command", name):  # another configuration; statements that write
            SparkFile(name.removesuffix(".sql.out"), tally, seed).check(text)
