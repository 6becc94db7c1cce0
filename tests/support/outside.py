"""Other systems' own tests of SQL, from a checkout of theirs: `python -m tests.support.outside spark FOLDER`.

`spark FOLDER` reads Spark's `sql-tests`: `results/*.sql.out` have queries with their answers. `duckdb FOLDER`
reads sqllogictest files. Rows arrive in random epochs, and some are deleted and sent again; the last epoch is
compared. It prints for each query that is refused or differs why, and counts. Nothing of theirs is kept here.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import signal
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import timely_spark as ts
from timely_spark.errors import TimelyError
from timely_spark.graph import as_schema
from timely_spark.queries.binder import View
from timely_spark.queries.scripts import build_all, create_view, statements, table_view
from timely_spark.sql import bind
from timely_spark.sql.types import name_of

DIFF = "diff of the row"


def scattered(table: pa.Table, seed: int, epochs: int) -> list[pa.Table]:
    """A table's rows in random epochs; a third is deleted and sent again, and rows come that go again."""
    of, rows = np.random.default_rng(seed), table.num_rows
    parts: list[list[tuple[int, int]]] = [[] for _ in range(epochs)]
    for row in range(rows):
        times = sorted(of.integers(0, epochs, 3 if of.random() < 1 / 3 else 1))
        for time, diff in zip(times, (1, -1, 1), strict=False):
            parts[time].append((row, diff))
    made = []
    for part in parts:
        at = [row for row, _ in part]
        diffs = pa.array([diff for _, diff in part], pa.int64())
        made.append(table.take(pa.array(at, pa.int64())).append_column(DIFF, diffs))
    return made


@contextmanager
def seconds(most: int) -> Iterator[None]:
    """An error if it takes longer: a recursion of theirs may have no end."""

    def end(*_: Any) -> None:
        msg = f"it took more than {most} s"
        raise TimeoutError(msg)

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(most)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def last_epoch(
    queries: Sequence[Any],
    tables: Mapping[str, pa.Table],
    *,
    views: Any = None,
    seed: int = 0,
    epochs: int = 3,
    workers: int = 2,
) -> list[pa.Table]:
    """For each query, a text or a bound one, its rows after the last epoch."""
    flow = ts.Dataflow("outside")
    given = {}
    for name, table in tables.items():
        schema = table.schema.append(pa.field(DIFF, pa.int64()))
        given[name] = flow.input(name, schema, epochs="manual").collection(diff=DIFF)
    if views is None:
        made = [ts.sql(query, **given) for query in queries]
    else:
        made = build_all(list(queries), given, [None] * len(queries))
    for number, one in enumerate(made):
        one.changes().capture(f"out {number}")
    sent = {name: scattered(table, seed + n, epochs) for n, (name, table) in enumerate(tables.items())}
    result = ts.testing.run(flow, sent, workers=workers, seed=seed)
    return [whole(result[f"out {number}"]) for number in range(len(made))]


def whole(captured: Any) -> pa.Table:
    """The rows that all changes of a capture leave."""
    table = captured.table()
    *columns, diffs = (table.column(name) for name in captured.schema.names)
    total: Counter[str] = Counter()
    places: dict[str, int] = {}
    rows = zip(*(one.to_pylist() for one in columns), strict=True) if columns else iter(())
    for place, (row, diff) in enumerate(zip(rows, diffs.to_pylist(), strict=False)):
        total[repr(row)] += diff
        places[repr(row)] = place
    assert all(n >= 0 for n in total.values()), "a row is there less than never"
    kept = [places[key] for key, n in total.items() for _ in range(n)]
    return table.select(captured.schema.names[:-1]).take(pa.array(kept, pa.int64()))


# -- Spark ---------------------------------------------------------------------------------------------------


@dataclass
class Tally:
    """What came of the queries."""

    counts: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    verbose: bool = True

    def add(self, what: str, where: str, query: str, why: str = "") -> None:
        """Count a query, and print it if it is not the same."""
        self.counts[what] += 1
        if what in {"refused", "accepted, Spark refuses"}:
            self.reasons[f"{what}: " + re.sub(r"\d+", "n", why.partition(", in line")[0])[:90]] += 1
        if what not in {"same", "refused by both"} and self.verbose:
            print(f"--- {what}: {where}\n{query}\n  {why}\n", flush=True)


def nested_text(value: Any) -> str:
    """An array, a map or a struct as Spark's tests print them."""
    if value is None:
        return "NULL"
    pairs = isinstance(value, list) and value and all(isinstance(one, tuple) for one in value)
    return json.dumps(dict(value) if pairs else value, separators=(",", ":"), ensure_ascii=False, default=str)


def spark_text(table: pa.Table) -> Counter[str]:
    """Rows as Spark's tests print them."""
    columns = []
    for place, kind in enumerate(table.schema.types):
        one = table.column(place)
        if pa.types.is_nested(kind):
            columns.append([nested_text(value) for value in one.to_pylist()])
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


class SparkFile:
    """One file of Spark's queries and answers."""

    def __init__(self, path: Path, tally: Tally, seed: int) -> None:
        self.path, self.tally, self.seed = path, tally, seed
        self.tables: dict[str, pa.Table] = {"one row": pa.table({"one": [1]})}
        self.views: dict[str, View] = {}

    def check(self) -> None:
        """Check all queries."""
        waiting = []
        for query, _, answer in blocks(self.path.read_text(encoding="utf-8")):
            words = query.upper().split()
            wrong = bool(re.match(r"(org\.apache|java\.|scala\.|\{\s*\"errorClass)", answer.strip()))
            if words[0] in {"SELECT", "WITH", "VALUES", "(", "FROM"} or words[0].startswith("(SELECT"):
                waiting.append((query, answer, wrong))
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
                self.make_view(query)
            elif words[:2] == ["CREATE", "TABLE"]:
                self.make_table(query)
            elif words[:2] == ["INSERT", "INTO"]:
                self.insert(query)
            elif words[0] in {"DROP", "DELETE", "UPDATE", "ALTER"} and words[1] in {"VIEW", "TABLE"}:
                name = next(w for w in query.split()[2:] if w.upper() not in {"IF", "EXISTS"}).rstrip(";")
                for given in (self.tables, self.views):
                    given.pop(name.lower(), None)
        except Exception as error:  # noqa: BLE001 - what cannot be made is missed by its readers
            print(f"   ({self.path.name}: {query[:70]!r}: {str(error)[:150]!r})")

    @property
    def known(self) -> dict[str, View]:
        made = {}
        for name, table in self.tables.items():
            flow = ts.Dataflow("known")
            made[name] = table_view(name, flow.input("x", table.schema).collection())
        return made | self.views

    def make_view(self, query: str) -> None:
        query = re.sub(
            r"(?is)^create\s+(or\s+replace\s+)?((global\s+)?temp(orary)?\s+)?view", "CREATE VIEW", query
        )
        binder, trees = statements(query)
        known = self.known
        target = trees[0].this
        name = str((target.this if type(target).__name__ == "Schema" else target).name).lower()
        known = {one: view for one, view in known.items() if one.lower() != name}
        create_view(binder, trees[0], known)
        made = next(view for one, view in known.items() if one.lower() == name)
        scans = [one for one in made.relation.walk() if type(one).__name__ == "TableScan"]
        if scans:
            self.views[name] = made
            return
        fixed = last_epoch([made.query], {"one row": self.tables["one row"]}, views=True)[0]
        self.tables[name] = fixed.rename_columns(list(made.names))
        self.views.pop(name, None)

    def make_table(self, query: str) -> None:
        found = re.match(
            r"(?is)create\s+table\s+(?:if not exists\s+)?(\S+?)\s*\((.*)\)\s*(using\s+\w+.*)?$", query
        )
        if found is None:
            found = re.match(r"(?is)create\s+table\s+(\S+)\s+(?:using\s+\w+\s+)?as\s+(.*)$", query)
            assert found is not None, "not read"
            self.make_view(f"CREATE VIEW {found[1]} AS {found[2]}")
            return
        columns = re.sub(r"(?i)\b(not null|default [^,]+)", "", found[2])
        schema = as_schema(columns)
        self.tables[found[1].lower()] = schema.empty_table()

    def insert(self, query: str) -> None:
        found = re.match(r"(?is)insert\s+into\s+(?:table\s+)?(\S+?)\s+(values.*|select.*)$", query)
        assert found is not None, "not read"
        table = self.tables[found[1].lower()]
        binder, trees = statements(found[2])
        made = last_epoch([binder.query(trees[0], self.known)], self.tables, views=True)[0]
        cast = [
            bind(f"CAST(x AS {name_of(of.type)})", pa.schema([("x", one.type)])).evaluate(
                pa.table({"x": one})
            )
            for of, one in zip(table.schema, made.columns, strict=True)
        ]
        self.tables[found[1].lower()] = pa.concat_tables([table, pa.table(cast, schema=table.schema)])

    def run(self, waiting: list[tuple[str, str, bool]]) -> None:
        """Compare queries over the same tables."""
        known = self.known
        bound = [(*one, made) for one in waiting if (made := self.bound(one, known)) is not None]
        fine = [one for one in bound if not one[2]]
        tables: list[Any] = [None] * len(fine)
        with suppress(Exception), seconds(60):  # one of them: each is run by itself
            tables = last_epoch([one[3] for one in fine], self.tables, views=True, seed=self.seed)
        for (query, answer, _, made), table in zip(fine, tables, strict=True):
            self.compare(query, answer, made, table)
        for query, answer, _, made in [one for one in bound if one[2]]:
            made_of_it, why = self.attempt([made])
            what = "accepted, Spark refuses" if made_of_it is not None else "refused by both"
            self.tally.add(what, self.path.stem, query, why or " ".join(answer.split())[:150])

    def bound(self, case: tuple[str, str, bool], known: Mapping[str, View]) -> Any:
        """A query that can be built; else None."""
        query, _, wrong = case
        try:
            binder, trees = statements(query)
            made = binder.query(trees[0], known)
            build_all([made], self._empty(), [None])
        except TimelyError as error:
            self.tally.add("refused by both" if wrong else "refused", self.path.stem, query, str(error))
        except Exception:  # noqa: BLE001 - a mistake of ours
            self.tally.add("CRASHED", self.path.stem, query, traceback.format_exc(limit=-3))
        else:
            return made
        return None

    def attempt(self, made: list[Any]) -> tuple[pa.Table | None, str]:
        """The rows of a query; else why there are none."""
        try:
            with seconds(10):
                return last_epoch(made, self.tables, views=True, seed=self.seed)[0], ""
        except (TimelyError, TimeoutError) as error:
            return None, str(error)[:600]

    def _empty(self) -> dict[str, Any]:
        flow = ts.Dataflow("built")
        return {name: flow.input(name, one.schema).collection() for name, one in self.tables.items()}

    def compare(self, query: str, answer: str, made: Any, table: pa.Table | None) -> None:
        """Compare the rows of a query with Spark's."""
        if table is None:
            table, why = self.attempt([made])
            if table is None:
                self.tally.add("FAILED", self.path.stem, query, why)
                return
        ours = spark_text(table)
        theirs = Counter(line.rstrip() for line in answer.split("\n")) if answer else Counter()
        if not answer and table.num_rows == 1:
            theirs = Counter([""])  # one row of an empty text is printed so
        why = f"only ours: {dict(ours - theirs)}\n  only Spark's: {dict(theirs - ours)}"
        self.tally.add("same" if ours == theirs else "DIFFERS", self.path.stem, query, why)


def spark(folder: Path, patterns: Sequence[str], seed: int) -> Tally:
    """Check files of Spark's."""
    tally = Tally()
    for pattern in patterns or ["cte*", "join*", "group-by*"]:
        for path in sorted((folder / "results").glob(f"{pattern}.sql.out")):
            if "legacy" in path.name or "command" in path.name:
                continue  # another configuration; statements that write
            SparkFile(path, tally, seed).check()
    return tally


def main() -> None:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("system", choices=["spark"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("pattern", nargs="*")
    parser.add_argument("--seed", type=int, default=random.randrange(1_000))
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    print(f"seed {given.seed}")
    tally = {"spark": spark}[given.system](given.folder, given.pattern, given.seed)
    for why, n in tally.reasons.most_common():
        print(f"{n:5} {why}")
    print(dict(tally.counts))
    sys.exit(any(tally.counts[one] for one in ("DIFFERS", "FAILED", "CRASHED")))


if __name__ == "__main__":
    main()
