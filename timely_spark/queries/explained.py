"""A query's plan as text: its operators, what each stores, its exchanges, and what is shared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from timely_spark.compiler.pushdown import needed
from timely_spark.differential.collections import Collection
from timely_spark.operators.aggregate import ALL
from timely_spark.queries.aggregates import reductions_in
from timely_spark.queries.building import Builder
from timely_spark.queries.cycles import CyclicJoin
from timely_spark.queries.relations import (
    Aggregation,
    Compared,
    Distinct,
    Limit,
    Matched,
    Recursion,
    Relation,
    RelationJoin,
    TableScan,
    Window,
)
from timely_spark.queries.scopes import Fresh


def plan_text(relations: Sequence[Relation], notes: Sequence[str], flow: Any) -> str:
    """Plans as text: each operator below the one that reads it.

    Args:
        relations: the plans.
        notes: what else is worth knowing.
        flow: an empty flow, in which they are built to see which exchanges the compiler elides.
    """
    builder = _TrialBuilder(flow, relations)
    shown = _Tree(builder)
    for one in relations:
        shown.add(one, 0)
    return "\n".join([*shown.lines, *(f"Note: {one}" for one in dict.fromkeys(notes))])


class _TrialBuilder(Builder):
    """Builds relations in a flow that nobody runs, and knows the exchanges of each."""

    def __init__(self, flow: Any, relations: Sequence[Relation]) -> None:
        every = (one for root in relations for one in root.walk())
        tables = {one.name: one.columns for one in every if isinstance(one, TableScan)}
        tables = tables or {"no table": pa.schema([("n", pa.int64())])}
        inputs = [flow.input(f"table {n}", columns) for n, columns in enumerate(tables.values())]
        self._sources = dict(zip(tables, inputs, strict=True))
        super().__init__({name: one.collection() for name, one in self._sources.items()})
        self._stages, self._owners = flow.graph.stages, dict[str, Relation]()
        self.expect(*relations)
        for number, one in enumerate(relations):
            diff = Fresh(one.schema.names).name("diff")
            self.collection(one).changes(diff).capture(f"out {number}")
        self._plan = flow.compile(2)

    def collection(self, relation: Relation) -> Collection:
        """The collection of a relation, whose steps are those that are added meanwhile."""
        for each in () if isinstance(relation, Recursion) else relation.inputs:
            self.collection(each)
        first = len(self._stages)
        collection = super().collection(relation)
        for one in self._stages[first:]:
            self._owners.setdefault(one.name, relation)
        return collection

    def read(self, table: TableScan) -> str:
        """What readers of files leave unread of a table."""
        part = needed(self._plan, self._sources[table.name].name)
        names = [name for name in table.columns.names if name in part.columns]
        columns = f"reads {', '.join(names)}" if len(names) < len(table.columns) else ""
        rows = f"{columns or 'reads rows'} where {part.condition}"
        return columns if part.condition is None else rows

    def exchanges(self, relation: Relation) -> str:
        """The exchanges into a relation's steps, and those from others that are elided."""
        into = [one for one in self._plan.edges if self._owners.get(one.target.name) == relation]
        moved = [self._plan.exchanged.get(one.index) for one in into]
        stays = [
            self._plan.elided.get(one.index) for one in into if self._owners.get(one.source.name) != relation
        ]
        parts = [
            f"{what} {' and '.join(dict.fromkeys(shown))}"
            for what, partitionings in (("exchanged", moved), ("elided", stays))
            if (
                shown := [
                    str(by).replace(f"by {ALL}", "to one worker") for by in partitionings if by is not None
                ]
            )
        ]
        return f"; {', '.join(parts)}" if parts else ""


class _Tree:
    def __init__(self, builder: _TrialBuilder) -> None:
        self.builder = builder
        self.lines: list[str] = []
        self.numbers: dict[Relation, int] = {}

    def add(self, one: Relation, depth: int) -> None:
        """Add the lines of an operator, and of those that it reads."""
        margin, kind = "  " * depth, type(one).__name__
        if one in self.numbers and not isinstance(one, TableScan):
            self.lines.append(f"{margin}as #{self.numbers[one]}: {kind} {one.detail}".rstrip())
            return
        self.numbers[one] = len(self.numbers) + 1
        number = f"#{self.numbers[one]} " if self._again(one) else ""
        stores = self.builder.read(one) if isinstance(one, TableScan) else stored(one)
        shared = self.builder.shared_keys(one)
        arranged = f"; arranged by {shared}, for several joins" if shared else ""
        text = f"{number}{kind} {one.detail}".rstrip()
        moved = self.builder.exchanges(one)
        self.lines.append(f"{margin}{text}{': ' + stores if stores else ''}{moved}{arranged}")
        for each in one.inputs:
            self.add(each, depth + 1)

    def _again(self, one: Relation) -> bool:
        return self.builder.reads.get(one, 0) > 1 and not isinstance(one, TableScan)


def stored(one: Relation) -> str:  # noqa: PLR0911 - a table
    """The state of an operator, and the columns by which its rows are exchanged."""
    match one:
        case RelationJoin(left_keys=()):
            return "stores both sides, the right one on every worker"
        case RelationJoin(left_keys=keys, how=how):
            more = ", and the right keys once" if how != "inner" else ""
            return f"stores both sides by {', '.join(keys)}{more}"
        case CyclicJoin():
            return "stores an index of each table by each of the columns, and no pairs"
        case Aggregation(keys=keys, calls=calls):
            by = ", ".join(keys) or "one worker"
            parts = reductions_in(dict(calls), one.input.schema)
            what = ["sums"] * ("sums" in parts) + ["the distinct arguments"] * bool({*parts} - {"sums"})
            return f"stores {' and '.join(what)} by {by}"
        case Distinct() | Compared() | Matched():
            return "stores each row with its counts, by the whole row"
        case Limit(keys=keys) | Window(partition=keys):
            return f"stores all rows by {', '.join(keys) or 'one worker'}"
        case Recursion():
            return "a loop: its steps store changes by iteration"
    return ""
