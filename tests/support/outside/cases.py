"""The queries of a file, compared after the last epoch, and the counts of what came of them."""

from __future__ import annotations

import re
import signal
import tarfile
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path, PurePath
from typing import Any

import pyarrow as pa

import timely_spark as ts
from tests.support.outside.epochs import last_epoch
from timely_spark.errors import TimelyError
from timely_spark.queries.binder import View
from timely_spark.queries.relations import Limit, Recursion, TableScan
from timely_spark.queries.scripts import build_all, create_view, statements, table_view

#: of rows that come each in an epoch of its own
MOST_EPOCHS = 60


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


def texts(place: Path, patterns: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The files of a folder or of an archive that match a pattern: their paths, and what they have."""
    files: dict[str, Callable[[], bytes]] = {}
    if place.is_dir():
        files = {str(one.relative_to(place)): one.read_bytes for one in place.rglob("*") if one.is_file()}
    else:
        with tarfile.open(place) as archive:
            for one in archive:
                if (content := archive.extractfile(one)) is not None:
                    files[one.name] = partial(bytes, content.read())
    for name in sorted(files):
        if any(PurePath(name).match(one) for one in patterns):
            yield name, files[name]().decode()


@dataclass
class Tally:
    """What came of the queries, by file."""

    counts: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    reasons: Counter[str] = field(default_factory=Counter)

    @property
    def total(self) -> Counter[str]:
        """The counts of all files."""
        return sum(self.counts.values(), Counter())

    def lines(self) -> list[str]:
        """A line for each file."""
        return [
            f"{where}: " + ", ".join(f"{n} {what}" for what, n in sorted(of.items()))
            for where, of in self.counts.items()
        ]

    def add(self, what: str, where: str, query: str, why: str = "") -> None:
        """Count a query, and print it if it is not the same."""
        self.counts[where][what] += 1
        if what in {"refused", "accepted, they refuse"}:
            self.reasons[f"{what}: " + re.sub(r"\d+", "n", why.partition(", in line")[0])[:90]] += 1
        if what not in {"same", "refused by both"}:
            print(f"--- {what}: {where}\n{query}\n  {why}\n", flush=True)


@dataclass(frozen=True)
class Case:
    """A query with the answer of another system, or why that refuses it."""

    query: str
    answer: Any
    refused: bool = False
    #: the query in Spark's words, if it is refused as it is
    otherwise: str | None = None


class Cases:
    """Queries over the same tables; a subclass says when an answer is the same."""

    #: by name; a query without tables needs one, too
    tables: dict[str, pa.Table]
    views: dict[str, View]

    def __init__(self, where: str, tally: Tally, seed: int) -> None:
        self.where, self.tally, self.seed = where, tally, seed
        self.tables, self.views = {"one row": pa.table({"one": [1]})}, {}

    def difference(self, answer: Any, made: Any, table: pa.Table) -> str | None:
        """How the rows of a query differ from an answer; None if they do not."""
        raise NotImplementedError

    @property
    def known(self) -> dict[str, View]:
        """The tables and views by name."""
        made = {}
        for name, table in self.tables.items():
            made[name] = table_view(name, ts.Dataflow("known").input("x", table.schema).collection())
        return made | self.views

    def create_view(self, query: str) -> None:
        """A `CREATE VIEW`; one that reads no table is one."""
        query = re.sub(
            r"(?is)^create\s+(or\s+replace\s+)?((global\s+)?temp(orary)?\s+)?view", "CREATE VIEW", query
        )
        binder, trees = statements(query)
        target = trees[0].this
        name = str((target.this if type(target).__name__ == "Schema" else target).name).lower()
        known = {one: view for one, view in self.known.items() if one.lower() != name}
        create_view(binder, trees[0], known)
        made = next(view for one, view in known.items() if one.lower() == name)
        # a column of nulls alone would be one of texts in a table
        if pa.null() in made.query.types or any(isinstance(one, TableScan) for one in made.relation.walk()):
            self.views[name] = made
            return
        fixed = last_epoch(
            [made.query], {"one row": self.tables["one row"]}, views=True, epochs=1, workers=1
        )[0]
        self.tables[name] = fixed.rename_columns(list(made.names))
        self.views.pop(name, None)

    def run(self, cases: Sequence[Case]) -> None:
        """Compare queries; what is accepted is built in one flow."""
        known = self.known
        bound = [(case, made) for case in cases if (made := self.bound(case, known)) is not None]
        fine = [one for one in bound if not one[0].refused]
        tables: list[Any] = [None] * len(fine)
        with suppress(Exception), seconds(60):  # one of them: each is run by itself
            tables = last_epoch([made for _, made in fine], self.tables, views=True, seed=self.seed)
        for (case, made), table in zip(fine, tables, strict=True):
            self.compare(case, made, table)
        for case, made in [one for one in bound if one[0].refused]:
            rows, why = self.attempt(made)
            what = "accepted, they refuse" if rows is not None else "refused by both"
            self.tally.add(what, self.where, case.query, why or " ".join(str(case.answer).split())[:150])

    def bound(self, case: Case, known: Mapping[str, View]) -> Any:
        """A query that can be built; else None."""
        flow = ts.Dataflow("built")
        tables = {name: flow.input(name, one.schema).collection() for name, one in self.tables.items()}
        for text in dict.fromkeys((case.query, case.otherwise or case.query)):
            try:
                binder, trees = statements(text)
                made = binder.query(trees[0], known)
                build_all([made], tables, [None])
            except TimelyError as error:  # noqa: PERF203 - at most two
                what, why = "refused by both" if case.refused else "refused", str(error)
            except Exception:  # noqa: BLE001 - a mistake of ours
                what, why = "CRASHED", traceback.format_exc(limit=-3)
            else:
                return made
        self.tally.add(what, self.where, case.query, why)
        return None

    def attempt(self, made: Any, epochs: int | None = 1) -> tuple[pa.Table | None, str]:
        """The rows of a query if all tables come in one epoch: of some an epoch may be an error."""
        try:
            with seconds(20):
                return last_epoch([made], self.tables, views=True, seed=self.seed, epochs=epochs)[0], ""
        except (TimelyError, TimeoutError) as error:
            return None, str(error)[:600]

    def row_by_row(self, made: Any) -> bool:
        """Whether a query is run at once and row by row, too: a recursion over tables that are not long."""
        relations = [*made.relation.walk()]
        read = {one.name for one in relations if isinstance(one, TableScan)}
        rows = sum(self.tables[name].num_rows for name in read)
        return any(isinstance(one, Recursion) for one in relations) and 0 < rows <= MOST_EPOCHS

    def compare(self, case: Case, made: Any, table: pa.Table | None) -> None:
        """Compare the rows of a query with an answer."""
        if table is None:
            table, why = self.attempt(made)
            if table is None:
                self.tally.add("FAILED", self.where, case.query, why)
                return
        difference = self.difference(case.answer, made, table)
        if difference is None and self.row_by_row(made):
            for epochs in (1, None):
                again, why = self.attempt(made, epochs)
                difference = why if again is None else self.difference(case.answer, made, again)
                if difference is not None:
                    difference = (
                        f"in {'each row its own epoch' if epochs is None else 'one epoch'}: {difference}"
                    )
                    break
        what = "same"
        if difference is not None:  # without a complete order a LIMIT may keep any rows
            limited = any(isinstance(one, Limit) for one in made.relation.walk())
            what = "other rows of a LIMIT" if limited else "DIFFERS"
        self.tally.add(what, self.where, case.query, difference or "")
