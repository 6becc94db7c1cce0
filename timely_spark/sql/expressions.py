"""Bind an expression to the columns of a schema: names, types, and the casts that Spark adds."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from timely_spark.errors import SqlError
from timely_spark.sql import literals, parse, terms, types
from timely_spark.sql.registry import FUNCTIONS
from timely_spark.sql.terms import Rows, Term
from timely_spark.sql.types import name_of

if TYPE_CHECKING:
    from sqlglot import exp

#: From the parts of a name, such as ``("t", "a", "x")``, the schema's column, and how many parts name it.
Resolve: TypeAlias = Callable[[Sequence[str]], "tuple[str, int] | None"]

#: operators that are functions of the table
OPERATORS = {
    "Add": "+",
    "Sub": "-",
    "Mul": "*",
    "Div": "/",
    "Mod": "%",
    "IntDiv": "div",
    "Neg": "negative",
    "EQ": "=",
    "NEQ": "!=",
    "LT": "<",
    "LTE": "<=",
    "GT": ">",
    "GTE": ">=",
    "NullSafeEQ": "<=>",
    "Not": "not",
    "DPipe": "||",
    "BitwiseAnd": "&",
    "BitwiseOr": "|",
    "BitwiseXor": "^",
    "BitwiseNot": "~",
    "RegexpLike": "rlike",
}


@dataclass(frozen=True)
class BoundExpression:
    """An expression of a schema's columns, which needs neither its text nor sqlglot any more.

    Attributes:
        sql: the expression in Spark's SQL: the same for the same expression.
        type: the type of its values, Spark's.
        columns: the schema's columns that it reads.
    """

    sql: str
    type: pa.DataType
    columns: tuple[str, ...]
    term: Term = field(repr=False)

    def __str__(self) -> str:
        return self.sql

    @property
    def fails(self) -> bool:
        """Whether a record may have no value, such as `1 / n` where n is 0."""
        return self.term.fails

    def evaluate(self, table: pa.Table | pa.RecordBatch) -> pa.Array:
        """The values of a table's records.

        Raises:
            ExpressionError: a record has no value.
        """
        return self.term.array(Rows.all(table))


def bind(
    expression: str | exp.Expression,
    schema: pa.Schema,
    *,
    resolve: Resolve | None = None,
    functions: Mapping[str, Any] | None = None,
    zone: str = "UTC",
    text: str | None = None,
) -> BoundExpression:
    """Bind an expression, as a text or as sqlglot's tree, to the columns of a schema.

    Args:
        resolve: finds the column of a name; by default the name is a column's, in any case.
        functions: functions of the user by their names, in small letters.
        zone: the session's time zone.
        text: the text of which a tree is a part, for errors.

    Raises:
        SqlError: the expression does not fit; the message shows the place.
    """
    if isinstance(expression, str):
        text, expression = expression, parse.parse_expression(expression)
    binder = _Binder(schema, resolve or by_name(schema), dict(functions or {}), zone, text)
    term = binder.bind(expression)
    return BoundExpression(binder.sql(expression), term.type, tuple(dict.fromkeys(binder.columns)), term)


def by_name(schema: pa.Schema) -> Resolve:
    """Find columns by their names: as they are written, or else in any case."""
    names = {name.lower(): name for name in reversed(schema.names)}

    def find(parts: Sequence[str]) -> tuple[str, int] | None:
        name = parts[0] if parts[0] in schema.names else names.get(parts[0].lower())
        return None if name is None else (name, 1)

    return find


@dataclass
class _Binder:
    schema: pa.Schema
    resolve: Resolve
    functions: Mapping[str, Any]
    zone: str
    text: str | None
    columns: list[str] = field(default_factory=list)
    #: the variables of the lambdas around a node
    variables: dict[str, pa.DataType] = field(default_factory=dict)

    def sql(self, node: exp.Expression) -> str:
        """The canonical text of a node."""
        return str(node.sql(dialect=parse.dialect()))

    def refuse(self, node: exp.Expression, problem: str, hint: str) -> SqlError:
        """The error that shows a node."""
        start = parse.start_of(node)
        text = self.text if self.text is not None and start is not None else self.sql(node)
        return parse.mistake(text, start or 0, problem, hint=hint)

    def bind(self, node: exp.Expression) -> Term:
        """The bound node."""
        kind = type(node).__name__
        if kind in OPERATORS:
            return self.call(node, OPERATORS[kind], self.operands(node))
        if (method := getattr(self, f"bind_{kind.lower()}", None)) is not None:
            return method(node)  # type: ignore[no-any-return]
        raise self._unknown(node)

    def _unknown(self, node: exp.Expression) -> SqlError:
        from sqlglot import exp

        text = self.sql(node)
        if isinstance(node, exp.AggFunc | exp.Window):
            hint = (
                "group_by(...).aggregate(...) and reductions of collections compute values of several rows."
            )
            return self.refuse(node, f"{text} is of several rows, not of one", hint)
        if isinstance(node, exp.Query | exp.Subquery | exp.Exists):
            return self.refuse(node, "a query in an expression", "join the collection instead.")
        return self.refuse(node, f"{text} ({type(node).__name__}) is not supported", _WRITE)

    def operands(self, node: exp.Expression) -> list[exp.Expression]:
        """The operands of an operator, in their order."""
        return [one for one in (node.args.get("this"), node.args.get("expression")) if one is not None]

    # -- names and constants ---------------------------------------------------------------------------------

    def bind_paren(self, node: exp.Expression) -> Term:
        return self.bind(node.this)

    def bind_alias(self, node: exp.Expression) -> Term:
        return self.bind(node.this)

    def bind_identifier(self, node: exp.Expression) -> Term:
        return self._named(node, [node.name])

    def bind_column(self, node: exp.Expression) -> Term:
        parts: Any = getattr(node, "parts")  # noqa: B009 - an exp.Column has it
        return self._named(node, [part.name for part in parts])

    def bind_dot(self, node: exp.Expression) -> Term:
        return self.field(node, self.bind(node.this), node.expression.name)

    def _named(self, node: exp.Expression, parts: Sequence[str]) -> Term:
        if parts[0] in self.variables:
            made: Term = terms.ColumnValue(self.variables[parts[0]], parts[0])
            used = 1
        else:
            found = self.resolve(parts)
            if found is None:
                has = ", ".join(f"{one.name} {name_of(one.type)}" for one in self.schema)
                hint = near(parts[0], self.schema.names) or "name a column; a text is in '...'."
                raise self.refuse(node, f"no column {'.'.join(parts)!r} in ({has})", hint)
            name, used = found
            kind = types.spark_type(self.schema.field(name).type)
            if kind is None:
                problem = f"{name!r} is of Arrow's type {self.schema.field(name).type}, which Spark has not"
                raise self.refuse(node, problem, "cast the column before, with map_batches.")
            self.columns.append(name)
            made = terms.ColumnValue(kind, name)
        for part in parts[used:]:
            made = self.field(node, made, part)
        return made

    def field(self, node: exp.Expression, of: Term, name: str) -> Term:
        """A field of a struct."""
        if pa.types.is_struct(of.type):
            for one in of.type:
                if one.name.lower() == name.lower():
                    return terms.Field(one.type, of, one.name)
            hint = f"its fields are {', '.join(one.name for one in of.type)}."
            raise self.refuse(node, f"{name_of(of.type)} has no field {name!r}", hint)
        raise self.refuse(node, f"{name!r} of {name_of(of.type)}, which is not a struct", _WRITE)

    def bind_literal(self, node: exp.Expression) -> Term:
        return self._constant(literals.text(node.this) if node.is_string else literals.number(node.this))

    def bind_null(self, node: exp.Expression) -> Term:
        return self._constant(pa.scalar(None, pa.null()))

    def bind_boolean(self, node: exp.Expression) -> Term:
        return self._constant(pa.scalar(bool(node.this)))

    def _constant(self, value: pa.Scalar) -> Term:
        return terms.Constant(value.type, value)

    # -- functions -------------------------------------------------------------------------------------------

    def bind_anonymous(self, node: exp.Expression) -> Term:
        name = node.name.lower()
        if (special := getattr(self, f"call_{name}", None)) is not None:
            return special(node)  # type: ignore[no-any-return]
        return self.call(node, name, node.expressions)

    def call(self, node: exp.Expression, name: str, arguments: Sequence[exp.Expression]) -> Term:
        """A function's call."""
        return self.called(node, name, [self.bind(one) for one in arguments])

    def called(self, node: exp.Expression, name: str, bound: Sequence[Term]) -> Term:
        """A call of a function of bound arguments."""
        function = FUNCTIONS.get(name)
        if function is None:
            return self._of_user(node, name, bound)
        given = [one.type for one in bound]
        fitting = [typed for rule in function.rules if (typed := rule(given, self.zone)) is not None]
        if not fitting:
            problem = f"{name} of ({', '.join(map(name_of, given))})"
            raise self.refuse(node, problem, f"it takes {function.takes or 'values of one type'}.")
        # the first signature with the fewest casts
        expected, kind = min(
            fitting, key=lambda typed: sum(a != b for a, b in zip(typed[0], given, strict=True))
        )
        cast = tuple(self.cast(one, to, node) for one, to in zip(bound, expected, strict=True))
        return terms.FunctionCall(kind, name, cast, self.zone, self.sql(node))

    def _of_user(self, node: exp.Expression, name: str, bound: Sequence[Term]) -> Term:
        if (own := self.functions.get(name)) is None:
            hint = f'write it as a function of columns: ts.function("{name}", "type", f).'
            close = near(name, [*FUNCTIONS, *self.functions])
            raise self.refuse(node, f"no function {name!r}", f"{close} Or {hint}" if close else hint)
        return terms.UserCall(own.type, name, tuple(bound), own.function, self.sql(node))

    def cast(self, of: Term, to: pa.DataType, node: exp.Expression) -> Term:
        """A node cast to a type, if it is not of it."""
        if of.type == to:
            return of
        if of.type == pa.null():
            return terms.Constant(to, pa.scalar(None, to))
        return terms.FunctionCall(to, "cast", (of,), self.zone, self.sql(node))

    def _together(self, node: exp.Expression, values: Sequence[Term]) -> list[Term]:
        """Values cast to their common type."""
        kind = types.common_of(one.type for one in values)
        if kind is None:
            given = ", ".join(name_of(one.type) for one in values)
            raise self.refuse(node, f"{self.sql(node)} has values of {given}", "cast them to one type.")
        return [self.cast(one, kind, node) for one in values]

    def condition(self, node: exp.Expression) -> Term:
        """A bound condition."""
        made = self.bind(node)
        if made.type not in {pa.bool_(), pa.null()}:
            problem = f"{self.sql(node)} is {name_of(made.type)}, not boolean"
            raise self.refuse(node, problem, "write a condition, such as n > 0.")
        return self.cast(made, pa.bool_(), node)

    # -- conditions ------------------------------------------------------------------------------------------

    def bind_and(self, node: exp.Expression) -> Term:
        return terms.Logical(
            pa.bool_(), self.condition(node.this), self.condition(node.expression), decides=False
        )

    def bind_or(self, node: exp.Expression) -> Term:
        return terms.Logical(
            pa.bool_(), self.condition(node.this), self.condition(node.expression), decides=True
        )

    def bind_is(self, node: exp.Expression) -> Term:
        from sqlglot import exp

        if isinstance(node.expression, exp.Null):
            return self.call(node, "isnull", [node.this])
        return self.call(node, "<=>", [node.this, node.expression])

    def bind_case(self, node: exp.Expression) -> Term:
        subject, ifs = node.args.get("this"), node.args["ifs"]
        if subject is None:
            conditions = [self.condition(one.this) for one in ifs]
        else:
            conditions = [self.call(one, "=", [subject, one.this]) for one in ifs]
        return self._case(node, conditions, [one.args["true"] for one in ifs], node.args.get("default"))

    def bind_if(self, node: exp.Expression) -> Term:
        return self._case(node, [self.condition(node.this)], [node.args["true"]], node.args.get("false"))

    def _case(
        self,
        node: exp.Expression,
        conditions: Sequence[Term],
        values: Sequence[exp.Expression],
        default: exp.Expression | None,
    ) -> Term:
        otherwise = self._constant(pa.scalar(None, pa.null())) if default is None else self.bind(default)
        *made, otherwise = self._together(node, [*map(self.bind, values), otherwise])
        return terms.Case(otherwise.type, tuple(conditions), tuple(made), otherwise)

    def bind_between(self, node: exp.Expression) -> Term:
        low = self.call(node, ">=", [node.this, node.args["low"]])
        high = self.call(node, "<=", [node.this, node.args["high"]])
        return terms.Logical(pa.bool_(), low, high, decides=False)

    def bind_in(self, node: exp.Expression) -> Term:
        if node.args.get("query") is not None or not node.expressions:
            raise self.refuse(node, "IN (query) in an expression", "use a semi join.")
        subject, *values = self._together(node, [self.bind(node.this), *map(self.bind, node.expressions)])
        return terms.FunctionCall(pa.bool_(), "in", (subject, *values), self.zone, self.sql(node))

    def call_coalesce(self, node: exp.Expression) -> Term:
        values = self._together(node, [self.bind(one) for one in node.expressions])
        return terms.Coalesce(values[0].type, tuple(values))

    call_ifnull = call_nvl = call_coalesce

    # -- casts -----------------------------------------------------------------------------------------------

    def bind_cast(self, node: exp.Expression) -> Term:
        of, to = self.bind(node.this), self.type_of(node)
        if of.type == to:
            return of
        if of.type == pa.null():
            return terms.Constant(to, pa.scalar(None, to))
        name = "try_cast" if node.args.get("safe") else "cast"
        return terms.FunctionCall(to, name, (of,), self.zone, self.sql(node))

    bind_trycast = bind_cast

    def type_of(self, node: exp.Expression) -> pa.DataType:
        """The type that a cast names."""
        kind = literals.type_of(node.args["to"], self.zone)
        if kind is None:
            raise self.refuse(node, f"the type {self.sql(node.args['to'])} is not stored", _WRITE)
        return kind


_WRITE = "compute it before the flow, or by a function of your own: ts.function."


def near(name: str, names: Sequence[str]) -> str:
    """A hint to a name that is much like another."""
    close = difflib.get_close_matches(name.lower(), names, 1)
    return f"did you mean {close[0]}?" if close else ""
