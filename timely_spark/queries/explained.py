"""A query's plan as text: its operators, what each stores, and what is shared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from timely_spark.queries.aggregates import is_weight
from timely_spark.queries.building import Builder
from timely_spark.queries.narrowing import needed_columns
from timely_spark.queries.relations import (
    Aggregation,
    Compared,
    Distinct,
    Limit,
    Matched,
    Recursion,
    Relation,
    RelationJoin,
    Selection,
    TableScan,
    Window,
)


def plan_text(relations: Sequence[Relation], notes: Sequence[str]) -> str:
    """Plans as text: each operator below the one that reads it."""
    builder = Builder({})
    builder.expect(*relations)
    shown = _Tree(builder, needed_columns(relations)[1])
    for one in relations:
        shown.add(one, 0)
    exchanged = "rows are exchanged by what they are stored by, unless they are already."
    stores = any(stored(one) for root in relations for one in root.walk())
    every = [*([exchanged] if stores else []), *dict.fromkeys(notes)]
    return "\n".join([*shown.lines, *(f"Note: {one}" for one in every)])


class _Tree:
    def __init__(self, builder: Builder, needed: Mapping[Relation, frozenset[str]]) -> None:
        self.builder, self.needed = builder, needed
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
        stores = stored(one) or self._read(one)
        shared = self.builder.shared_keys(one)
        arranged = f"; arranged by {shared}, for several joins" if shared else ""
        text = f"{number}{kind} {one.detail}".rstrip()
        self.lines.append(f"{margin}{text}{': ' + stores if stores else ''}{arranged}")
        for each in one.inputs:
            self.add(each, depth + 1)

    def _read(self, one: Relation) -> str:
        """What a table that is read from files leaves unread."""
        match one:
            case TableScan(columns=columns):
                names = [name for name in columns.names if name in self.needed[one]]
                return f"reads {', '.join(names)}" if len(names) < len(columns) else ""
            case Selection(condition=condition):
                of: Relation = one
                while isinstance(of, Selection) and self.builder.reads.get(of.input, 0) == 1:
                    of = of.input
                if condition.condition is not None and isinstance(of, TableScan):
                    return "files are read by it"
        return ""

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
        case Aggregation(keys=keys, calls=calls):
            by = ", ".join(keys) or "one worker"
            weights = all(is_weight(call, one.input.schema) for _, call in calls)
            return f"stores {'sums' if weights else 'the distinct arguments'} by {by}"
        case Distinct() | Compared() | Matched():
            return "stores each row with its counts, by the whole row"
        case Limit(keys=keys) | Window(partition=keys):
            return f"stores all rows by {', '.join(keys) or 'one worker'}"
        case Recursion():
            return "a loop, whose steps store changes by iteration"
    return ""
