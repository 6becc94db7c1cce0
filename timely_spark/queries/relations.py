"""The relational operators: frozen data, each with its columns, and how it is built from collections.

Equal relations are one: a subquery that is written twice is built once. The names of columns are unique in a
relation; `scopes` maps the names of the text to them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import Field, dataclass, field, fields, replace
from functools import cached_property
from typing import Any, Literal, Protocol, TypeAlias

import pyarrow as pa

from timely_spark.differential.collections import Collection
from timely_spark.errors import Where
from timely_spark.queries.aggregates import aggregate_records
from timely_spark.queries.constant_rows import constant_rows
from timely_spark.queries.groups import AggregateFunction
from timely_spark.queries.sorting import Order, limited, matched
from timely_spark.queries.windows import Frame, windowed
from timely_spark.sql import BoundExpression
from timely_spark.sql.expressions import conjunction
from timely_spark.streams import Stream

How: TypeAlias = Literal["inner", "left", "full", "semi", "anti"]
Needs: TypeAlias = frozenset[str]
#: the place of the clause that is bound
CLAUSE: ContextVar[Where | None] = ContextVar("CLAUSE", default=None)


class Building(Protocol):
    """The surroundings in which collections are built: a `Builder`."""

    variables: dict[tuple[str, str], Collection]

    def table(self, name: str) -> Collection: ...
    def anchor(self, rows: Relation) -> Stream: ...
    def collection(self, relation: Relation) -> Collection: ...
    def joined(self, join: RelationJoin, left: Collection, right: Collection) -> Collection: ...
    def recursion(self, one: Recursion) -> Collection: ...


@dataclass(frozen=True, eq=False)
class Relation:
    """A relational operator over others, its inputs.

    `schema` are its columns; `needs` says which columns of each input it reads to have some of its own;
    `narrowed` is the operator with those alone; `build` makes the collection.
    """

    #: the clause that it comes from, which its steps name
    where: Where | None = field(default_factory=CLAUSE.get, kw_only=True, compare=False, repr=False)

    @property
    def _fields(self) -> list[Field[Any]]:
        return [one for one in fields(self) if one.compare]

    @cached_property
    def _values(self) -> tuple[Any, ...]:
        return (type(self), *(getattr(self, one.name) for one in self._fields))

    @cached_property
    def _hash(
        self,
    ) -> int:  # a plan is a graph with shared parts: to hash each part again would visit all paths
        return hash(self._values)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Relation) and self._hash == other._hash and self._values == other._values

    @property
    def inputs(self) -> tuple[Relation, ...]:
        """The relations that it reads."""
        values = (getattr(self, one.name) for one in fields(self))
        return tuple(one for one in values if isinstance(one, Relation))

    def over(self, inputs: Sequence[Relation]) -> Relation:
        """The same operator over other inputs."""
        names = [one.name for one in fields(self) if isinstance(getattr(self, one.name), Relation)]
        new: dict[str, Any] = dict(zip(names, inputs, strict=True))
        return replace(self, **new)

    @cached_property
    def schema(self) -> pa.Schema:
        """The columns; those of the first input, if the operator has no others."""
        return self.inputs[0].schema

    def needs(self, columns: Needs) -> list[Needs]:
        """For each input the columns that it must have."""
        return [frozenset(one.schema.names) for one in self.inputs]

    def narrowed(self, columns: Needs) -> Relation:
        """The operator without what only other columns need."""
        return self

    def build(self, building: Building, *inputs: Collection) -> Collection:
        """The collection, from those of the inputs."""
        raise NotImplementedError

    @property
    def detail(self) -> str:
        """The operator's line in `explain_sql`."""
        return ""

    def walk(self) -> Iterator[Relation]:
        """The relation and all that it reads, each once, inputs before their readers."""
        seen: set[Relation] = set()

        def visit(one: Relation) -> Iterator[Relation]:
            if one not in seen:
                seen.add(one)
                for each in one.inputs:
                    yield from visit(each)
                yield one

        yield from visit(self)

    @property
    def digest(self) -> str:
        """What tells it from other relations, also in another process; loops are numbered in each text."""
        digests: dict[Relation, str] = {}

        def shown(value: Any) -> str:
            if isinstance(value, tuple):
                return str([shown(one) for one in value])
            return digests[value] if isinstance(value, Relation) else repr(value)

        for one in self.walk():
            values = {each.name: getattr(one, each.name) for each in one._fields}
            if "loop" in values:
                values["loop"] = values["loop"].rpartition(" ")[0]
            parts = [type(one).__name__, *map(shown, values.values())]
            digests[one] = hashlib.sha256(str(parts).encode()).hexdigest()
        return digests[self]


@dataclass(frozen=True, eq=False)
class Leaf(Relation):
    """A relation without inputs."""

    columns: pa.Schema

    @property
    def schema(self) -> pa.Schema:
        return self.columns


@dataclass(frozen=True, eq=False)
class TableScan(Leaf):
    """A table of the program: a collection."""

    name: str

    def build(self, building: Building, *inputs: Collection) -> Collection:
        return building.table(self.name)

    @property
    def detail(self) -> str:
        return self.name


@dataclass(frozen=True, eq=False)
class ConstantRows(Leaf):
    """Constant rows: `VALUES`, and the one row of a query without `FROM`."""

    rows: tuple[tuple[Any, ...], ...]

    def build(self, building: Building, *inputs: Collection) -> Collection:
        """The rows, from the first epoch on."""
        by_column = zip(*self.rows, strict=True) if self.rows else [()] * len(self.columns)
        arrays = [
            pa.array(list(one), column.type) for one, column in zip(by_column, self.columns, strict=True)
        ]
        return constant_rows(building.anchor(self), pa.table(arrays, schema=self.columns))

    @property
    def detail(self) -> str:
        return f"{len(self.rows)} constant row{'s' if len(self.rows) != 1 else ''}"


@dataclass(frozen=True, eq=False)
class Named(Leaf):
    """The present rows of a recursive name, inside its loop."""

    loop: str
    name: str

    def build(self, building: Building, *inputs: Collection) -> Collection:
        return building.variables[self.loop, self.name]

    @property
    def detail(self) -> str:
        return self.name


@dataclass(frozen=True, eq=False)
class Projection(Relation):
    """Computed columns: for each its name, and an input's column or an expression."""

    input: Relation
    columns: tuple[tuple[str, str | BoundExpression], ...]

    @cached_property
    def schema(self) -> pa.Schema:
        schema = self.input.schema
        kinds = [
            schema.field(value).type if isinstance(value, str) else value.type for _, value in self.columns
        ]
        return pa.schema([(name, kind) for (name, _), kind in zip(self.columns, kinds, strict=True)])

    @property
    def renames(self) -> bool:
        """Whether nothing is computed: each column is one of the input's."""
        return all(isinstance(value, str) for _, value in self.columns)

    def needs(self, columns: Needs) -> list[Needs]:
        """The columns that the needed expressions read."""
        parts = [value for name, value in self._needed(columns)]
        return [
            frozenset(
                one for value in parts for one in ((value,) if isinstance(value, str) else value.columns)
            )
        ]

    def narrowed(self, columns: Needs) -> Relation:
        return replace(self, columns=self._needed(columns))

    def _needed(self, columns: Needs) -> tuple[tuple[str, str | BoundExpression], ...]:
        # a record has a column at least
        return tuple(one for one in self.columns if one[0] in columns) or self.columns[:1]

    def build(self, building: Building, *inputs: Collection) -> Collection:
        """A selection, which keeps no state."""
        if list(self.columns) == [(name, name) for name in inputs[0].schema.names]:
            return inputs[0]
        return inputs[0].select(dict(self.columns))

    @property
    def detail(self) -> str:
        shown = (name if value == name else f"{value} AS {name}" for name, value in self.columns)
        return ", ".join(shown)


@dataclass(frozen=True, eq=False)
class SparkColumns(Projection):
    """The columns of a table with Spark's types: a bigint for a uint32."""


def selected(relation: Relation, names: Iterable[str]) -> Projection:
    """Some of a relation's columns."""
    return Projection(relation, tuple((name, name) for name in names))


def with_columns(relation: Relation, *columns: tuple[str, str | BoundExpression]) -> Projection:
    """A relation with further columns."""
    return Projection(relation, (*((name, name) for name in relation.schema.names), *columns))


@dataclass(frozen=True, eq=False)
class Selection(Relation):
    """The rows for which conditions are true. Of several none fails, so that their order says nothing."""

    input: Relation
    conditions: tuple[BoundExpression, ...]

    @cached_property
    def condition(self) -> BoundExpression:
        """All of them, by `AND`."""
        return conjunction(self.conditions)

    def needs(self, columns: Needs) -> list[Needs]:
        return [columns | frozenset(self.condition.columns)]

    def build(self, building: Building, *inputs: Collection) -> Collection:
        """A filter, which keeps no state."""
        return inputs[0].where(self.condition)

    @property
    def detail(self) -> str:
        return str(self.condition)


def with_condition(relation: Relation, condition: BoundExpression) -> Selection:
    """The rows for which a condition is true; if it may fail, it is tested behind those before it."""
    if isinstance(relation, Selection) and not (relation.conditions[-1].fails or condition.fails):
        return replace(relation, conditions=(*relation.conditions, condition))
    return Selection(relation, (condition,))


@dataclass(frozen=True, eq=False)
class RelationJoin(Relation):
    """Pairs of rows with equal keys, and for outer joins the rows that match nothing.

    The result does not have the right side's keys. Without keys all pairs match. No column of the right
    side has the name of one of the left.
    """

    left: Relation
    right: Relation
    how: How
    left_keys: tuple[str, ...]
    right_keys: tuple[str, ...]
    #: whether null equals null
    null_safe: bool = False

    @cached_property
    def schema(self) -> pa.Schema:
        """The left columns, and the right ones that are not keys."""
        if self.how in {"semi", "anti"}:
            return self.left.schema
        more = [one for one in self.right.schema if one.name not in self.right_keys]
        return pa.schema([*self.left.schema, *more])

    def needs(self, columns: Needs) -> list[Needs]:
        left = columns.intersection(self.left.schema.names) | frozenset(self.left_keys)
        right = frozenset(self.right_keys)
        if self.how not in {"semi", "anti"}:
            right |= columns.intersection(self.right.schema.names)
        return [left, right]

    def build(self, building: Building, *inputs: Collection) -> Collection:
        """A join; each side is kept by key."""
        return building.joined(self, *inputs)

    @property
    def detail(self) -> str:
        """The kind, and the keys."""
        sign = "<=>" if self.null_safe else "="
        pairs = zip(self.left_keys, self.right_keys, strict=True)
        return f"{self.how}, {' and '.join(f'{a} {sign} {b}' for a, b in pairs) or 'all pairs'}"


@dataclass(frozen=True, eq=False)
class Matched(Relation):
    """The left rows that are among the right ones, or are not; null equals null."""

    left: Relation
    right: Relation
    present: bool

    def build(self, building: Building, *inputs: Collection) -> Collection:
        """A reduction that counts each row on both sides."""
        return matched(*inputs, present=self.present)

    @property
    def detail(self) -> str:
        return "rows with a match" if self.present else "rows without a match"


@dataclass(frozen=True, eq=False)
class Aggregation(Relation):
    """One row for each group: its keys and aggregates.

    With `always` there is a row for each of its rows, also for groups without input: the one group of an
    aggregate without `GROUP BY`, or one for each row of the query around a subquery.
    """

    input: Relation
    keys: tuple[str, ...]
    calls: tuple[tuple[str, AggregateFunction], ...]
    always: Relation | None = None

    @cached_property
    def schema(self) -> pa.Schema:
        """The keys, and the results."""
        return pa.schema(
            [*map(self.input.schema.field, self.keys), *((name, call.type) for name, call in self.calls)]
        )

    def needs(self, columns: Needs) -> list[Needs]:
        """The keys, and the arguments of the needed aggregates."""
        parts = self._needed(columns)
        read = {one for _, call in parts for one in (*call.columns, *(by.column for by in call.order))}
        own = frozenset(read) | frozenset(self.keys)
        return [own] if self.always is None else [own, frozenset(self.always.schema.names)]

    def narrowed(self, columns: Needs) -> Relation:
        return replace(self, calls=self._needed(columns))

    def _needed(self, columns: Needs) -> tuple[tuple[str, AggregateFunction], ...]:
        calls = tuple(one for one in self.calls if one[0] in columns)
        return calls or (() if self.keys else self.calls[:1])

    def build(self, building: Building, *inputs: Collection) -> Collection:
        return aggregate_records(inputs[0], self.keys, dict(self.calls), *inputs[1:])

    @property
    def detail(self) -> str:
        """The aggregates, and the keys."""
        by = f" by {', '.join(self.keys)}" if self.keys else ""
        return f"{', '.join(str(call) for _, call in self.calls)}{by}"


@dataclass(frozen=True, eq=False)
class Distinct(Relation):
    """Each row once."""

    input: Relation

    def build(self, building: Building, *inputs: Collection) -> Collection:
        return inputs[0].distinct()


@dataclass(frozen=True, eq=False)
class DomainRows(Distinct):
    """The rows for which a subquery has an answer each: they are joined with it, each with its own."""


@dataclass(frozen=True, eq=False)
class Nary(Relation):
    """An operator over any number of relations."""

    parts: tuple[Relation, ...]

    @property
    def inputs(self) -> tuple[Relation, ...]:
        return self.parts

    def over(self, inputs: Sequence[Relation]) -> Relation:
        return replace(self, parts=tuple(inputs))


@dataclass(frozen=True, eq=False)
class Concat(Nary):
    """`UNION ALL`: the rows of all inputs, which have the same columns."""

    def needs(self, columns: Needs) -> list[Needs]:
        return [columns or frozenset(self.schema.names[:1])] * len(self.parts)

    def build(self, building: Building, *inputs: Collection) -> Collection:
        """A concatenation, which keeps no state."""
        first, *rest = inputs
        names = first.schema.names
        return first.concat(*(one if one.schema.names == names else one.select(*names) for one in rest))


@dataclass(frozen=True, eq=False)
class Compared(Relation):
    """`INTERSECT` and `EXCEPT`, of sets or multisets."""

    left: Relation
    right: Relation
    operation: Literal["intersect", "subtract"]
    all: bool

    def build(self, building: Building, *inputs: Collection) -> Collection:
        """A reduction that counts each row on both sides."""
        left, right = inputs
        compare = left.intersect if self.operation == "intersect" else left.subtract
        return compare(right, all=self.all)

    @property
    def detail(self) -> str:
        return self.operation + (" all" if self.all else "")


@dataclass(frozen=True, eq=False)
class Limit(Relation):
    """The first rows of each group by an order; ties are ordered by the other columns."""

    input: Relation
    keys: tuple[str, ...]
    order: tuple[Order, ...]
    count: int | None
    offset: int = 0

    def build(self, building: Building, *inputs: Collection) -> Collection:
        return limited(inputs[0], self.keys, self.order, self.count, self.offset)

    @property
    def detail(self) -> str:
        by = f" by {', '.join(map(str, self.order))}" if self.order else ""
        groups = f" of each {', '.join(self.keys)}" if self.keys else ""
        return f"{'all' if self.count is None else self.count} from {self.offset}{by}{groups}"


@dataclass(frozen=True, eq=False)
class Window(Relation):
    """The rows with functions of their windows: the partitions that change are computed again."""

    input: Relation
    partition: tuple[str, ...]
    order: tuple[Order, ...]
    calls: tuple[tuple[str, Frame], ...]

    @cached_property
    def schema(self) -> pa.Schema:
        """The input's, and the results."""
        return pa.schema([*self.input.schema, *((name, call.type) for name, call in self.calls)])

    def needs(self, columns: Needs) -> list[Needs]:
        """The input's columns, too: which rows are equal decides about ties."""
        return [frozenset(self.input.schema.names)]

    def build(self, building: Building, *inputs: Collection) -> Collection:
        return windowed(inputs[0], self.partition, self.order, dict(self.calls))

    @property
    def detail(self) -> str:
        """The functions, and the window."""
        by = f" of each {', '.join(self.partition)}" if self.partition else ""
        order = f" by {', '.join(map(str, self.order))}" if self.order else ""
        return f"{', '.join(str(call) for _, call in self.calls)}{by}{order}"


@dataclass(frozen=True, eq=False)
class Recursion(Relation):
    """One of the names of a loop: the least fixed point of their bodies.

    `bodies` read the names by `Named`; `starts` are what the loop begins with, rows that each result has.
    """

    loop: str
    name: str
    names: tuple[str, ...]
    starts: tuple[Relation, ...]
    bodies: tuple[Relation, ...]
    limit: int | None = None
    on_limit: Literal["raise", "return", "warn"] | None = None

    @property
    def inputs(self) -> tuple[Relation, ...]:
        """The starts of the loop, and the bodies."""
        return (*self.starts, *self.bodies)

    def over(self, inputs: Sequence[Relation]) -> Relation:
        many = len(self.names)
        return replace(self, starts=tuple(inputs[:many]), bodies=tuple(inputs[many:]))

    @property
    def schema(self) -> pa.Schema:
        return self.bodies[self.names.index(self.name)].schema

    def build(self, building: Building, *inputs: Collection) -> Collection:
        """The variable after the last iteration."""
        return building.recursion(self)

    @property
    def detail(self) -> str:
        limit = "" if self.limit is None else f", at most {self.limit} times ({self.on_limit})"
        return f"{self.name} of {', '.join(self.names)}{limit}"


#: the share of rows that a condition is expected to keep
_KEPT = 0.25


def estimated_size(relation: Relation, sizes: Mapping[str, float]) -> float | None:
    """The size of a relation by those of the tables that it reads; None if one is not known.

    A condition keeps a quarter, a join is as large as its larger side.
    """
    estimates: dict[Relation, float | None] = {}
    for one in relation.walk() if sizes else ():
        inputs = [estimates[of] for of in one.inputs]
        numbers = [of for of in inputs if of is not None]
        if isinstance(one, TableScan):
            estimates[one] = sizes.get(one.name)
        elif len(numbers) < len(inputs):
            estimates[one] = None
        else:
            conditions = one.conditions if isinstance(one, Selection) else ()
            estimates[one] = max(numbers, default=0.0) * _KEPT ** len(conditions)
    return estimates.get(relation)
