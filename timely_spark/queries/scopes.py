"""Names in a query: which column of a relation each means."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

import pyarrow as pa

from timely_spark.errors import Where
from timely_spark.queries.relations import CLAUSE, Relation


@dataclass(frozen=True)
class NamedColumn:
    """A column that can be named."""

    #: the alias of its table; empty of a column that a `USING` has made of two
    table: str
    name: str
    #: the column of the relation, and its type
    column: str
    type: pa.DataType
    #: whether `*` leaves it out: the right side's column of a `USING`
    hidden: bool = False
    #: its place in `*`: below 0 of a column that a `USING` names, which comes before those of the tables
    place: int = 0


def in_star_order(entries: Iterable[NamedColumn]) -> list[NamedColumn]:
    """Columns as a star has them: those of `USING`, and then those of each table."""
    return sorted(entries, key=attrgetter("place"))


class Ambiguous(Exception):
    """A name is that of several columns."""

    def __init__(self, entries: Sequence[NamedColumn]) -> None:
        super().__init__(entries)
        self.entries = entries


class Correlated(Exception):
    """A subquery reads a column of the query around it."""

    def __init__(self, entry: NamedColumn, depth: int) -> None:
        super().__init__(entry, depth)
        self.entry, self.depth = entry, depth


@dataclass
class VisibleColumns:
    """The columns that a query block can name: its own, and those of the blocks around it."""

    entries: list[NamedColumn]
    #: columns of the blocks around it, which its relation has; for each how many blocks outwards
    outer: list[tuple[int, NamedColumn]]
    around: VisibleColumns | None = None

    def find(self, parts: Sequence[str]) -> tuple[NamedColumn, int] | None:
        """The column of a name, and how many parts name it.

        Raises:
            Ambiguous: several columns have the name.
            Correlated: the column is one of a block around this one, and this relation lacks it.
        """
        if (match := _among(self.entries, parts)) is not None:
            return match
        names, depth = self.around, 1
        while names is not None:
            if (match := _among(names.entries, parts)) is not None:
                entry, used = match
                for far, own in self.outer:
                    if far == depth and (own.table, own.name) == (entry.table, entry.name):
                        return own, used
                raise Correlated(entry, depth)
            names, depth = names.around, depth + 1
        return None

    def has(self, parts: Sequence[str]) -> bool:
        """Whether a column of the block itself, or several, have a name."""
        try:
            return _among(self.entries, parts) is not None
        except Ambiguous:
            return True

    def all_known(self) -> Iterator[NamedColumn]:
        """The columns of the block and of those around it."""
        yield from self.entries
        if self.around is not None:
            yield from self.around.all_known()


def _among(entries: Sequence[NamedColumn], parts: Sequence[str]) -> tuple[NamedColumn, int] | None:
    """The column of a name: `table.column`, or `column`; further parts are fields."""
    first = parts[0].lower()
    if len(parts) > 1:
        second = parts[1].lower()
        matches = [one for one in entries if one.table.lower() == first and one.name.lower() == second]
        if matches:
            return _only(matches), 2
    matches = [one for one in entries if one.name.lower() == first and not one.hidden]
    return (_only(matches), 1) if matches else None


def _only(matches: Sequence[NamedColumn]) -> NamedColumn:
    # of equal columns of two tables one is left of a join, and still both have the name
    if len({(one.table, one.column) for one in matches}) > 1:
        raise Ambiguous(matches)
    return matches[0]


@dataclass
class FromItem:
    """A relation in `FROM`, with the names of its columns."""

    relation: Relation
    entries: list[NamedColumn]
    outer: list[tuple[int, NamedColumn]]
    #: its clause
    where: Where | None = field(default_factory=CLAUSE.get)

    @property
    def columns(self) -> set[str]:
        """The relation's columns."""
        return set(self.relation.schema.names)


class Fresh:
    """Names of columns that are not used yet; equal texts lead to equal names."""

    def __init__(self, used: Iterable[str] = ()) -> None:
        self.used = {name.lower() for name in used}

    def name(self, wanted: str) -> str:
        """The name, or one with a number behind it."""
        name, number = wanted, 1
        # names that differ in case only are one for Spark
        while name.lower() in self.used:
            number += 1
            name = f"{wanted}_{number}"
        self.used.add(name.lower())
        return name
