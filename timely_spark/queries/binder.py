"""From syntax trees to relations: queries, set operations, `WITH` and `VALUES`; blocks are in `blocks`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import pyarrow as pa

from timely_spark.errors import ExpressionError, SqlError
from timely_spark.graph.caller import caller, offset
from timely_spark.queries.relations import (
    CLAUSE,
    Compared,
    Concat,
    ConstantRows,
    Distinct,
    Projection,
    Relation,
    RelationJoin,
)
from timely_spark.queries.scopes import Fresh, NamedColumn, VisibleColumns
from timely_spark.queries.sorting import Order
from timely_spark.sql import BoundExpression, bind, parse, types
from timely_spark.sql.parse import exp
from timely_spark.sql.types import name_of
from timely_spark.sql.users import USER_FUNCTIONS

#: the clauses by which rows are chosen in an order
ORDERS = ("order", "limit", "offset")
#: The one row of a query without tables.
UNIT = ConstantRows(pa.schema({"one": pa.int64()}), ((0,),))
#: a row without columns, over which constants are computed
ROW = pa.RecordBatch.from_struct_array(pa.nulls(1, pa.struct([])))


@dataclass(frozen=True)
class Domain:
    """The rows of the queries around a subquery for which it has an answer each.

    `entries` are its columns, each with the number of blocks that it comes from.
    """

    relation: Relation
    entries: tuple[tuple[int, NamedColumn], ...]


@dataclass(frozen=True)
class BoundQuery:
    """A bound query: its relation, its columns in their order, and those of its domain."""

    relation: Relation
    names: tuple[str, ...]
    columns: tuple[str, ...]
    outer: tuple[str, ...] = ()
    #: whether it has exactly one row, for each row of its domain
    single: bool = False

    @property
    def types(self) -> list[pa.DataType]:
        """The types of the columns."""
        return [self.relation.schema.field(one).type for one in self.columns]


Views: TypeAlias = "Mapping[str, View]"


@dataclass(frozen=True)
class View:
    """A name in `FROM`: a relation with names for its columns."""

    relation: Relation
    names: tuple[str, ...]
    columns: tuple[str, ...]
    #: of a query of `WITH` that reads columns of the block around it: its tree, and the views that it reads
    inlined: tuple[Any, Views] | None = None

    @property
    def query(self) -> BoundQuery:
        """The view as a query."""
        return BoundQuery(self.relation, self.names, self.columns)


@dataclass
class Binder:
    """Binds the queries of one text.

    Args:
        text: the text, for the places of mistakes.
        functions: the user's functions, by name.
        zone: the session's time zone.
    """

    text: str
    functions: Mapping[str, Any] = field(default_factory=lambda: USER_FUNCTIONS)
    zone: str = "UTC"
    #: by table its size, if it is known, in any unit: joins begin with the smallest
    sizes: Mapping[str, float] = field(default_factory=dict)
    #: what is worth knowing and no mistake, for `explain_sql`
    notes: list[str] = field(default_factory=list)
    #: the clauses of recursive names, and where in the text queries of `WITH` have their names
    clauses: list[Any] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    #: the names of the text's views and tables that are still to come, in small letters
    later: set[str] = field(default_factory=set)

    # -- expressions, and mistakes ---------------------------------------------------------------------------

    def refuse(self, node: Any, problem: str, hint: str) -> SqlError:
        """The error that shows a node's place, or that of what is around it."""
        return parse.mistake(self.text, parse.start_near(node) or 0, problem, hint=hint)

    @contextmanager
    def clause(self, node: Any) -> Iterator[None]:
        """Let the relations that are made name the place of a node, if it has one."""
        start = None if node is None else parse.start_of(node)
        before = CLAUSE.set(CLAUSE.get() if start is None else offset(caller(), self.text, start))
        try:
            yield
        finally:
            CLAUSE.reset(before)

    def bound(self, node: exp.Expression, schema: pa.Schema) -> BoundExpression:
        """An expression whose names are columns of a relation."""
        return bind(node, schema, functions=self.functions, zone=self.zone, text=self.text)

    def column(self, node: exp.Expression, schema: pa.Schema) -> str | BoundExpression:
        """An expression, or the column that it is."""
        if isinstance(node, exp.Column) and node.name in schema.names:
            return str(node.name)
        return self.bound(node, schema)

    def cast(self, name: str, schema: pa.Schema, *steps: pa.DataType) -> str | BoundExpression:
        """A column as another type, perhaps by way of others."""
        tree: exp.Expression = column_node(name)
        kind = schema.field(name).type
        for to in steps:
            kind, tree = to, tree if to == kind else cast_to(tree, to)
        return self.column(tree, schema)

    def null(self, kind: pa.DataType, schema: pa.Schema) -> BoundExpression:
        """Null of a type."""
        return self.bound(cast_to(exp.Null(), kind), schema)

    def scalar(self, node: exp.Expression) -> pa.Scalar:
        """The value of a constant, with its type."""
        try:
            return self.bound(node, ROW.schema).evaluate(ROW)[0]
        except ExpressionError as error:
            raise self.refuse(node, error.message, error.hint or "write another value.") from error

    def constant(self, node: exp.Expression) -> Any:
        """The value of a constant."""
        return self.scalar(node).as_py()

    # -- queries ---------------------------------------------------------------------------------------------

    def query(
        self, node: Any, views: Views, around: VisibleColumns | None = None, domain: Domain | None = None
    ) -> BoundQuery:
        """A query of any form: see `QueryBinder`."""
        raise NotImplementedError

    def with_values(self, node: Any, domain: Domain | None) -> BoundQuery:
        """The rows of `VALUES`."""
        rows = [one.expressions if isinstance(one, exp.Tuple) else [one] for one in node.expressions]
        rows = [[one.unalias().unnest() for one in row] for row in rows]
        if len({len(row) for row in rows}) != 1:
            raise self.refuse(
                node, "the rows of VALUES differ in length", "write as many values in each row."
            )
        values = zip(*rows, strict=True)
        kinds = [types.common_of(self.bound(one, ROW.schema).type for one in column) for column in values]
        if None in kinds:
            raise self.refuse(
                node, "a column of VALUES has values of several types", "cast them to one type."
            )
        columns = [
            [None if kind == pa.null() else frozen(self.constant(cast_to(one, kind))) for one in column]
            for kind, column in zip(kinds, zip(*rows, strict=True), strict=True)
        ]
        names = tuple(f"col{n}" for n in range(1, len(kinds) + 1))
        schema = pa.schema(list(zip(names, kinds, strict=True)))
        relation: Relation = ConstantRows(schema, tuple(zip(*columns, strict=True)))
        listed = self.names_given(named_rows(node).args.get("alias"), len(names))
        answer = BoundQuery(relation, tuple(listed) or names, names)
        return answer if domain is None else self.with_domain(answer, domain)

    def with_domain(self, answer: BoundQuery, domain: Domain) -> BoundQuery:
        """A query that reads nothing of its domain, for each row of it."""
        fresh = Fresh(answer.relation.schema.names)
        names = [(fresh.name(entry.column), entry.column) for _, entry in domain.entries]
        domain_rows = Projection(domain.relation, tuple(names))
        relation = RelationJoin(answer.relation, domain_rows, "inner", (), ())
        return replace(answer, relation=relation, outer=tuple(new for new, _ in names))

    def names_given(self, alias: Any, columns: int) -> list[str]:
        """The names that an alias such as `t(a, b)` gives so many columns; empty if it gives none."""
        names = [one.name for one in alias.columns] if alias is not None else []
        if names and len(names) != columns:
            raise self.refuse(
                alias.columns[0], f"{len(names)} names for {columns} columns", "name each column."
            )
        return names

    # -- set operations --------------------------------------------------------------------------------------

    def compared(
        self, node: Any, views: Views, around: VisibleColumns | None, domain: Domain | None
    ) -> BoundQuery:
        """`UNION`, `INTERSECT` or `EXCEPT`."""
        if node.args.get("by_name"):
            raise self.refuse(node, "UNION BY NAME", "list the columns of both sides in one order.")
        trees, distinct = _sides(node), bool(node.args.get("distinct"))
        sides = self.aligned(trees, [self.query(one, views, around, domain) for one in trees])
        left, right = sides[0], sides[-1]
        if distinct or not isinstance(node, exp.Union):
            self.refuse_maps(node, left.relation, left.columns)
        if isinstance(node, exp.Union):
            every = Concat(tuple(one.relation for one in sides))
            return replace(left, relation=self.distinct(every) if distinct else every, single=False)
        operation: Any = "intersect" if isinstance(node, exp.Intersect) else "subtract"
        one, other = map(self.compared_rows, (left.relation, right.relation))
        relation = Compared(one, other, operation, not distinct)
        return replace(left, relation=relation, single=False)

    def distinct(self, relation: Relation) -> Distinct:
        """Each row once."""
        return Distinct(self.compared_rows(relation))

    def compared_rows(self, relation: Relation) -> Relation:
        """A relation whose equal rows are written alike: 0.0 equals -0.0."""
        schema = relation.schema
        if not any(map(types.has_float, schema.types)):
            return relation
        columns = (
            (
                one.name,
                self.bound(as_compared(column_node(one.name)), schema)
                if types.has_float(one.type)
                else one.name,
            )
            for one in schema
        )
        return Projection(relation, tuple(columns))

    def refuse_maps(
        self, node: Any, relation: Relation, columns: Iterable[str], what: str = "compared"
    ) -> None:
        """Refuse to compare or order rows by columns that have maps, as Spark does."""
        for name in columns:
            if types.has_map(relation.schema.field(name).type):
                hint = f"write {'GROUP BY ALL, or ' if what == 'compared' else ''}map_entries(...)."
                raise self.refuse(node, f"rows are {what} by {name}, which has a map", hint)

    def aligned(self, nodes: Sequence[Any], sides: Sequence[BoundQuery]) -> list[BoundQuery]:
        """Several queries, with their trees, as ones with the first one's columns, of common types."""
        first = sides[0]
        # as Spark: of a UNION b UNION c first a and b have common types, then these and c
        kinds, begins = [first.types], [0]
        for node, other in zip(nodes[1:], sides[1:], strict=True):
            if len(other.columns) != len(first.columns):
                problem = f"the sides have {len(first.columns)} and {len(other.columns)} columns"
                raise self.refuse(node, problem, "select as many columns on both sides.")
            pairs = [*zip(kinds[-1], other.types, strict=True)]
            common = [types.common(a, b) for a, b in pairs]
            if None in common:
                number = common.index(None)
                shown = " and ".join(map(name_of, pairs[number]))
                problem = f"column {number + 1} ({first.names[number]}) is {shown}"
                raise self.refuse(node, problem, "cast one side.")
            kinds += [] if common == kinds[-1] else [common]
            begins.append(len(kinds) - 1)
        fresh = Fresh()
        names = [fresh.name(one) for one in first.names]
        outer = [fresh.name(one) for one in first.outer]
        queries = []
        for side, begin in zip(sides, begins, strict=True):
            steps = zip(*kinds[begin:], strict=True)
            schema = side.relation.schema
            cast = [self.cast(one, schema, *to) for one, to in zip(side.columns, steps, strict=True)]
            columns = [*zip(names, cast, strict=True), *zip(outer, side.outer, strict=True)]
            relation = Projection(side.relation, tuple(columns))
            queries.append(BoundQuery(relation, first.names, tuple(names), tuple(outer)))
        return queries

    # -- order and limit -------------------------------------------------------------------------------------

    def limits(self, node: Any) -> tuple[int | None, int]:
        """The numbers of `LIMIT` and `OFFSET`."""
        count, offset = None, 0
        limit, skip = node.args.get("limit"), node.args.get("offset")
        if limit is not None:
            value = limit.args.get("count", limit.args.get("expression"))
            options = limit.args.get("limit_options")
            if options is not None and (options.args.get("percent") or options.args.get("with_ties")):
                hint = "number or rank the rows by a window function, and write QUALIFY."
                raise self.refuse(node, "LIMIT by percent or WITH TIES", hint)
            if isinstance(limit, exp.Fetch):
                raise self.refuse(node, "FETCH FIRST", "write LIMIT.")
            if not (isinstance(value, exp.Column | exp.Var) and value.name.lower() == "all"):
                count = self._whole(value, "LIMIT")
        if skip is not None:
            offset = self._whole(skip.expression, "OFFSET")
        return count, offset

    def _whole(self, node: Any, what: str) -> int:
        scalar = self.scalar(node)
        value = scalar.as_py()
        if scalar.type != pa.int32() or value is None or value < 0:
            raise self.refuse(
                node, f"{what} is {value!r}, {name_of(scalar.type)}", "write a whole number, an int."
            )
        return int(value)


def written_name(node: Any) -> str:
    """The name of a table or view, also of one with columns, as it is written: `schema.name`."""
    table = node.this if type(node).__name__ == "Schema" else node
    return ".".join(one.name for one in table.parts)


def named_rows(node: Any) -> Any:
    """`VALUES 1, 2 AS t(a)`, with the name that sqlglot gives to the last value."""
    value = [*node.expressions[-1].iter_expressions()][-1]
    if node.alias or not isinstance(value, exp.Alias) or len(node.expressions[-1].expressions) > 1:
        return node
    rows = node.copy()
    rows.set(
        "alias",
        exp.TableAlias(
            this=value.args["alias"], columns=(node.args.get("alias") or exp.TableAlias()).columns
        ),
    )
    return rows


def _sides(node: Any) -> list[Any]:
    """The sides of a set operation: of `a UNION b UNION c` all."""
    distinct, sides = node.args.get("distinct"), [node.right]
    while isinstance(node, exp.Union) and isinstance(node.left, exp.Union):
        inner = node.left
        if has_clauses(inner) or inner.args.get("by_name") or (inner.args.get("distinct") and not distinct):
            break
        node = inner
        sides.append(node.right)
    return [node.left, *sides[::-1]]


def has_clauses(node: Any) -> bool:
    """Whether a set operation, or a query in parentheses, has clauses of its own."""
    return any(node.args.get(one) for one in (*ORDERS, "with_"))


def frozen(value: Any) -> Any:
    """A value with tuples instead of lists and dictionaries, so that equal relations are one."""
    if isinstance(value, dict):
        return tuple(map(frozen, value.values()))
    return tuple(map(frozen, value)) if isinstance(value, list | tuple) else value


def column_node(name: str, like: Any = None) -> exp.Column:
    """The tree of a column of a relation, with the place of another node, and the name that it has there."""
    identifier = exp.to_identifier(name, quoted=True)
    if like is not None and (start := parse.start_of(like)) is not None:
        identifier.meta["start"] = start
    column = exp.column(identifier)
    column.meta["resolved"] = True
    if like is not None and (written := like.meta.get(parse.WRITTEN)) is not None:
        column.meta[parse.WRITTEN] = written
    return column


def tree_of(text: str, **parts: Any) -> Any:
    """The tree of a text in which names stand for columns of a relation, or for other trees."""
    tree = parse.parse_expression(text)
    for one in list(tree.find_all(exp.Column)):
        part = parts[one.name]
        one.replace(column_node(part) if isinstance(part, str) else part.copy())
    return tree


def as_compared(node: exp.Expression) -> exp.Expression:
    """The tree of a value that is written as all that equal it."""
    return exp.Anonymous(this="$compared", expressions=[node])


def cast_to(node: exp.Expression, kind: pa.DataType) -> exp.Expression:
    """The tree of a cast."""
    tree = parse.parse_expression(f"CAST(x AS {name_of(kind)})")
    tree.set("this", node.copy())
    return tree


ORDERED = "ORDER BY without LIMIT orders nothing: a collection has no order."


def orders_of(order: Any, columns: int) -> list[Any]:
    """The parts of an `ORDER BY`, which may lack: `ALL` is the number of each column."""
    orders = []
    for one in order.expressions if order is not None else ():
        if isinstance(one.this, exp.Var) and one.this.name.upper() == "ALL":
            numbers = [exp.Literal.number(n + 1) for n in range(columns)]
            orders += [exp.Ordered(**{**one.args, "this": number}) for number in numbers]
        else:
            orders.append(one)
    return orders


def ordering(column: str, node: Any) -> Order:
    """An `ORDER BY` of a column; by default nulls are first, and last if it descends."""
    descending = bool(node.args.get("desc"))
    nulls = node.args.get("nulls_first")
    return Order(column, descending, (not descending) if nulls is None else bool(nulls))
