"""Files whose answers DuckDB computes: sqllogictest files, and the queries of TPC-DS with their tables."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import sqlglot
from sqlglot import exp

from tests.support.duck import plain
from tests.support.outside.cases import Case, Cases, Tally, texts
from tests.support.tpcds import queries, tables

#: DuckDB orders nulls as Spark does
SETTINGS = "SET threads = 1; SET default_null_order = 'nulls_first_on_asc_last_on_desc'"
#: a query with these changes tables, or is about DuckDB
WRITES = re.compile(r"(?i)\b(insert|update|delete|merge|describe|summarize|explain|returning)\b")
#: an error about a table that could not be made, as of a file that is not there
NO_TABLE = re.compile(r"Table with name \S+ does not exist")
TOTALS = re.compile(r"(?i)\b(rollup|cube|grouping\s+sets)\b")
#: `CREATE TABLE name(columns with types) AS rows`, which DuckDB has without the types
FILLED = re.compile(
    r"(?is)(?P<create>create\s+table\s+(?P<name>\w+))\s*\((?P<columns>.*?)\)\s*as\s+(?P<rows>(values|select).*)"
)
#: queries in one flow
TOGETHER = 12
#: of a table: larger ones are left out, and their queries refused
MOST_ROWS = 20_000


def alike(value: Any) -> Any:
    """A value of which two engines agree: of numbers that are not whole the first six digits."""
    if isinstance(value, tuple | list):
        return tuple(map(alike, value))
    if isinstance(value, dict):
        return tuple(map(alike, value.values()))
    if isinstance(value, float | Decimal) and value == value and abs(value) != float("inf"):  # noqa: PLR0124 - NaN
        return int(value) if value == int(value) and abs(value) < 1e15 else float(f"{value:.6g}")
    return value


class DuckFile(Cases):
    """Statements that DuckDB runs, and queries that both answer."""

    def __init__(self, where: str, tally: Tally, seed: int, dialect: str | None) -> None:
        super().__init__(where, tally, seed)
        self.dialect = dialect
        self.duck = duckdb.connect()
        self.duck.execute(SETTINGS)

    def statement(self, text: str) -> None:
        """Run a statement; one of DataFusion's makes a table of typed columns with its rows."""
        parts = [text]
        if (table := FILLED.match(text)) is not None:
            columns = re.sub(r"(?i)\bunsigned\b", "", table["columns"])
            parts = [f"{table['create']} ({columns})", f"INSERT INTO {table['name']} {table['rows']}"]
        with suppress(duckdb.Error):
            for part in parts:
                self.duck.execute(part)

    def read_tables(self) -> None:
        """The tables of DuckDB's, and the rows of its views."""
        self.tables = {"one row": self.tables["one row"]}
        listed = "SELECT table_name FROM information_schema.tables WHERE table_schema = 'main'"
        for (name,) in self.duck.execute(listed).fetchall():
            with suppress(duckdb.Error, pa.ArrowException):
                table = self.duck.table(f'"{name}"').to_arrow_table()
                if table.num_rows <= MOST_ROWS:
                    self.tables[name] = kept(table)

    def queries(self, texts: Sequence[str]) -> None:
        """Compare queries over the tables of now."""
        if not texts:
            return
        self.read_tables()
        made = [one for one in map(self.case, texts) if not (one.refused and NO_TABLE.search(one.answer))]
        for start in range(0, len(made), TOGETHER):
            self.run(made[start : start + TOGETHER])

    def case(self, text: str) -> Case:
        """A query with DuckDB's answer."""
        query, other = text, self.translated(text)
        if '"' in text:  # names here, and texts in Spark
            query, other = other, text
        try:
            answer = self.duck.execute(without_empty_totals(text)).fetchall()
        except duckdb.Error as error:
            return Case(query, str(error), refused=True, otherwise=other)
        return Case(query, Counter(alike(plain(row)) for row in answer), otherwise=other)

    def translated(self, text: str) -> str:
        """A query in Spark's words; as it is if it cannot be parsed."""
        if self.dialect is None:
            return text
        with suppress(sqlglot.errors.SqlglotError):
            tree = sqlglot.parse_one(text, read=self.dialect)
            for one in list(tree.find_all(exp.GenerateSeries)):  # sqlglot has no such table in Spark
                if isinstance(one.parent, exp.Table):
                    end = one.args["end"] if one.args.get("is_end_exclusive") else one.args["end"] + 1
                    one.replace(exp.Anonymous(this="range", expressions=[one.args["start"], end]))
            return tree.sql("spark", pretty=True)
        return text

    def difference(self, answer: Counter[Any], made: Any, table: pa.Table) -> str | None:
        """Compare the rows of a query with DuckDB's."""
        ours = rows_of(table)
        if ours == answer:
            return None
        return f"only ours: {dict(ours - answer)}\n  only DuckDB's: {dict(answer - ours)}"


def without_empty_totals(text: str) -> str:
    """A query for DuckDB, in which a total of no rows is no row, as in Spark."""
    if not TOTALS.search(text):
        return text
    tree = sqlglot.parse_one(text, read="duckdb")
    for one in tree.find_all(exp.Select):
        group = one.args.get("group")
        totals = [] if group is None else [*group.find_all(exp.Rollup, exp.Cube, exp.GroupingSets)]
        if any(one.find(exp.Column, exp.Literal) for one in totals):  # `GROUPING SETS (())` has one in Spark
            one.having("count(*) > 0", copy=False)
    return tree.sql("duckdb")


def rows_of(table: pa.Table) -> Counter[Any]:
    """A table's rows, as they are compared."""
    return Counter(alike(plain(row)) for row in zip(*(one.to_pylist() for one in table.columns), strict=True))


def kept(table: pa.Table) -> pa.Table:
    """A table with types of Spark's: unsigned integers are wider ones."""
    wider = {pa.uint8(): pa.int16(), pa.uint16(): pa.int32(), pa.uint32(): pa.int64()}
    return table.cast(pa.schema([(one.name, wider.get(one.type, one.type)) for one in table.schema]))


# -- sqllogictest --------------------------------------------------------------------------------------------


def records(lines: Sequence[str], engine: str) -> Iterator[tuple[str, str]]:  # noqa: C901 - a table
    """The statements and queries of a file: the first line of each, and its text."""
    at = 0
    while at < len(lines):
        words = lines[at].split()
        at += 1
        if not words or words[0].startswith("#"):
            continue
        if words[0] in {"skipif", "onlyif"} and (words[1] == engine) == (words[0] == "skipif"):
            while at < len(lines) and lines[at].strip():
                at += 1
        elif words[0] == "halt":
            return
        elif words[0] in {"loop", "foreach", "concurrentloop"}:
            end, depth = at, 1
            while depth:
                depth += {"loop": 1, "foreach": 1, "endloop": -1}.get((lines[end].split() or [""])[0], 0)
                end += 1
            values = (
                [str(n) for n in range(int(words[2]), int(words[3]))] if "loop" in words[0] else words[2:]
            )
            for value in values[:3]:
                inside = [one.replace(f"${{{words[1]}}}", value) for one in lines[at : end - 1]]
                yield from records(inside, engine)
            at = end
        elif words[0] in {"statement", "query"}:
            first = at
            while at < len(lines) and lines[at].strip() and lines[at].strip() != "----":
                at += 1
            text = "\n".join(lines[first:at])
            while at < len(lines) and lines[at].strip():
                at += 1
            yield " ".join(words), text.strip().rstrip(";")


def logic(place: Path, patterns: Sequence[str], seed: int, tally: Tally) -> None:
    """Check sqllogictest files; the first pattern is the dialect: `duckdb`, `sqlite` or `postgres`."""
    dialect, *patterns = patterns
    for name, text in texts(place, patterns or ["*.test", "*.slt"]):
        file, waiting = DuckFile(name.rpartition(".")[0], tally, seed, dialect), []
        for head, query in records(text.splitlines(), dialect):
            reads = re.match(r"(?i)[\s(]*(select|with|values|from)\b", query) and not WRITES.search(query)
            if head.startswith("query") and reads:
                waiting.append(query)
                continue
            file.queries(waiting)
            waiting = []
            file.statement(query)
        file.queries(waiting)


# -- TPC-DS --------------------------------------------------------------------------------------------------


def tpcds(folder: Path, patterns: Sequence[str], seed: int, tally: Tally) -> None:
    """Check TPC-DS of sqlglot's fixtures; patterns are numbers of queries."""
    file = DuckFile("TPC-DS", tally, seed, None)
    for name, table in tables(folder, seed).items():
        file.duck.register("given", table)
        file.duck.execute(f"CREATE TABLE {name} AS SELECT * FROM given")
    for number, text in queries(folder).items():
        if not patterns or str(number) in patterns:
            file.where = f"TPC-DS {number}"
            file.queries([text])
