"""How a syntax tree becomes terms: names, constants, calls with the casts that Spark adds, and errors."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, TypeAlias

import pyarrow as pa

from timely_spark.errors import ExpressionError, SqlError
from timely_spark.graph.arguments import nearest
from timely_spark.sql import parse, terms, types
from timely_spark.sql.functions.casts import castable
from timely_spark.sql.parse import exp
from timely_spark.sql.registry import FUNCTIONS, Failed, apply_function
from timely_spark.sql.terms import Rows, Term
from timely_spark.sql.types import INTEGERS, name_of

#: From the parts of a name, such as ``("t", "a", "x")``, the schema's column, and how many parts name it.
Resolve: TypeAlias = Callable[[Sequence[str]], "tuple[str, int] | None"]
#: How a syntax, or a function with rules of its own, is bound.
Form: TypeAlias = "Callable[[ExpressionBinder, Any], Term]"

#: by the name of sqlglot's class
SYNTAX: dict[str, Form] = {}
#: by the name of the function
SPECIAL: dict[str, Form] = {}
#: the names of functions of several rows, which queries enter
OF_SEVERAL_ROWS: set[str] = set()
#: the functions that are casts to the type of their name
CASTS = "boolean tinyint smallint int bigint float double string binary date decimal timestamp"

WRITE = "compute it before the flow, or by a function of your own: ts.function."


def syntax(names: str) -> Callable[[Form], Form]:
    """Enter how nodes of sqlglot's classes are bound."""

    def enter(form: Form) -> Form:
        SYNTAX.update(dict.fromkeys(names.split(), form))
        return form

    return enter


def special(names: str, least: int = 0, most: int | None = None) -> Callable[[Form], Form]:
    """Enter how calls of functions are bound that are more than a kernel.

    Args:
        least: so many arguments they have at least.
        most: and at most; None if there is no limit.
    """

    def enter(form: Form) -> Form:
        def counted(binder: ExpressionBinder, node: Any) -> Term:
            number = len(node.expressions)
            if number < least or (most is not None and number > most):
                wanted = (
                    str(least) if most == least else f"{least} {'or more' if most is None else f'to {most}'}"
                )
                raise binder.refuse(node, f"{node.name} has {number} arguments", f"it takes {wanted}.")
            return form(binder, node)

        SPECIAL.update(dict.fromkeys(names.split(), counted))
        return form

    return enter


@dataclass
class ExpressionBinder:
    """Binds the nodes of one expression."""

    schema: pa.Schema
    resolve: Resolve
    functions: Mapping[str, Any]
    zone: str
    text: str | None
    step: str
    #: the columns that are read, in the order of the text
    columns: list[str] = field(default_factory=list)
    #: by their names in small letters the variables of the lambdas around a node
    variables: dict[str, Term] = field(default_factory=dict)
    #: by their ids the nodes that were written, which keeps them alive, with their texts
    _texts: dict[int, tuple[exp.Expression, str]] = field(default_factory=dict)

    def sql(self, node: exp.Expression) -> str:
        """The text of a node for errors, with the names of the query.

        It is written once: a call needs it, and each cast in it.
        """
        if id(node) not in self._texts:
            names = {one.name: one.meta.get(parse.WRITTEN) for one in node.find_all(exp.Column)}
            text = re.sub("`([^`]+)`", lambda name: names.get(name[1]) or name[0], parse.sql_of(node))
            self._texts[id(node)] = node, text
        return self._texts[id(node)][1]

    def refuse(self, node: exp.Expression, problem: str, hint: str) -> SqlError:
        """The error that shows a node's place, or that of what is around it."""
        start = parse.start_near(node)
        text = self.text if self.text is not None and start is not None else self.sql(node)
        return parse.mistake(text, start or 0, problem, hint=hint, step=self.step)

    def bind(self, node: exp.Expression) -> Term:
        """The term of a node."""
        if (form := SYNTAX.get(type(node).__name__)) is not None:
            return form(self, node)
        text = self.sql(node)
        if isinstance(node, exp.AggFunc | exp.Window):
            hint = (
                "in SELECT write f(...) OVER (ORDER BY ...); of a stream, group_by(...).aggregate(...); of a "
                "collection, a reduction such as sum(...)."
            )
            raise self.refuse(node, f"{text} is of several rows, not of one", hint)
        if isinstance(node, exp.Query | exp.Subquery):
            raise self.refuse(node, "a query in an expression", "join the collection instead.")
        kind = type(node).__name__
        hint = "select it alone, or by LATERAL VIEW." if isinstance(node, exp.UDTF) else WRITE
        what, hint = _INSTEAD_OF.get(kind, (f"{kind.upper()} ({text})", hint))
        raise self.refuse(node, f"{what} is not supported", hint)

    def many(self, nodes: Sequence[exp.Expression]) -> list[Term]:
        """The terms of several nodes."""
        return [self.bind(one) for one in nodes]

    # -- names and constants ---------------------------------------------------------------------------------

    def named(self, node: exp.Expression, parts: Sequence[str]) -> Term:
        """A column, a variable of a lambda, or a field of one."""
        variable = None if node.meta.get("resolved") else self.variables.get(parts[0].lower())
        term, used = self._column(node, parts) if variable is None else (variable, 1)
        for part in parts[used:]:
            term = self.field(node, term, part)
        return term

    def _column(self, node: exp.Expression, parts: Sequence[str]) -> tuple[Term, int]:
        match = self.resolve(parts)
        if match is None:
            shown = [one for one in self.schema if not one.name.startswith("__timely_")]
            has = ", ".join(f"{one.name} {name_of(one.type)}" for one in shown)
            hint = near(parts[0], [one.name for one in shown]) or "name a column; a text is in '...'."
            hint = "list the columns; count(*) counts rows." if parts[-1] == "*" else hint
            where = f"in ({has})" if has else "where only constants are"
            raise self.refuse(node, f"no column {'.'.join(parts)!r} {where}", hint)
        name, used = match
        stored = self.schema.field(name).type
        kind = types.spark_type(stored, self.zone)
        if kind is None:
            problem = f"{name!r} is of Arrow's type {stored}, which Spark has not"
            raise self.refuse(node, problem, "cast the column before, with map_batches.")
        self.columns.append(name)
        return terms.ColumnValue(kind, name, stored), used

    def field(self, node: exp.Expression, struct: Term, name: str) -> Term:
        """A field of a struct, or of each struct of an array; or the value of a map's key."""
        if pa.types.is_map(struct.type):
            return self.call(node, "element_at", struct, self.constant(pa.scalar(name)))
        kind = struct.type.value_type if types.is_array(struct.type) else struct.type
        if not pa.types.is_struct(kind):
            raise self.refuse(node, f"{name!r} of {name_of(struct.type)}, which is not a struct", _NO_FIELD)
        for one in kind:
            if one.name.lower() == name.lower():
                field_type = types.array_of(one.type) if types.is_array(struct.type) else one.type
                return terms.Field(field_type, struct, one.name)
        hint = f"its fields are {', '.join(one.name for one in kind)}."
        raise self.refuse(node, f"{name_of(struct.type)} has no field {name!r}", hint)

    def constant(self, value: pa.Scalar) -> Term:
        """A literal."""
        return terms.Constant(value.type, value)

    @property
    def null(self) -> Term:
        """NULL, of no type."""
        return self.constant(pa.scalar(None, pa.null()))

    def text_of(self, node: exp.Expression, what: str) -> str:
        """The text of a literal that must be one."""
        term = self.bind(node)
        if isinstance(term, terms.Constant) and term.type == pa.string():
            return str(term.value.as_py())
        raise self.refuse(node, f"{what} must be a literal", "write a text in quotes.")

    # -- calls -----------------------------------------------------------------------------------------------

    def call(self, node: exp.Expression, name: str, *arguments: exp.Expression | Term | None) -> Term:
        """A call of a function of the table; arguments that are None are left out."""
        nodes = [one for one in arguments if one is not None]
        return self.called(node, name, [one if isinstance(one, Term) else self.bind(one) for one in nodes])

    def called(self, node: exp.Expression, name: str, arguments: Sequence[Term]) -> Term:
        """A call of a function of terms."""
        function = FUNCTIONS.get(name)
        if function is None:
            return self._of_user(node, name, arguments)
        arguments = _as_wide_as_needed(name, arguments)
        kinds = [one.type for one in arguments]
        if name in _ARITHMETIC and {*kinds} == {pa.string()}:
            hint = "|| joins texts; for numbers, cast one of them."
            raise self.refuse(node, f"{name} of two texts", hint)
        fitting = [typed for rule in function.rules if (typed := rule(kinds, self.zone)) is not None]
        if not fitting:
            problem = f"{name.removeprefix('$')} of ({', '.join(map(name_of, kinds))})"
            hint = f"it takes ({function.takes})." if function.takes else "give it values of one type."
            if not function.takes and any(map(pa.types.is_struct, kinds)):
                hint = "cast the fields to one type, as in (1, 5L)."
            raise self.refuse(node, problem, hint)
        # the first rule with the fewest casts
        expected, kind = min(
            fitting, key=lambda typed: sum(a != b for a, b in zip(typed[0], kinds, strict=True))
        )
        cast = tuple(self.cast(one, to, node) for one, to in zip(arguments, expected, strict=True))
        call = terms.FunctionCall(kind, name, cast, self.zone, self.sql(node))
        self._check_constants(node, call)
        return call

    def _check_constants(self, node: exp.Expression, call: terms.FunctionCall) -> None:
        """Refuse a pattern that cannot be read, before a row needs it."""
        constant = [n for n in call.function.constant if n < len(call.arguments)]
        values = [
            one.value if n in constant and isinstance(one, terms.Constant) else pa.nulls(0, one.type)
            for n, one in enumerate(call.arguments)
        ]
        if not constant or all(isinstance(one, pa.Scalar) for one in values):
            return
        try:
            apply_function(call.function, values, 0, result=call.type, zone=self.zone)
        except (pa.ArrowException, Failed) as error:
            problem = error.problem if isinstance(error, Failed) else str(error).partition("\n")[0]
            of_kernel = error.hint if isinstance(error, Failed) else WRITE
            hint = next((one for words, one in _OF_PATTERNS.items() if words in problem), of_kernel)
            raise self.refuse(node, problem, hint) from error

    def _of_user(self, node: exp.Expression, name: str, arguments: Sequence[Term]) -> Term:
        if (own := self.functions.get(name)) is None:
            raise self.refuse(node, *no_function(name, self.functions))
        return terms.UserCall(own.type, name, tuple(arguments), own.function, self.sql(node))

    def cast(self, term: Term, to: pa.DataType, node: exp.Expression, name: str = "cast") -> Term:
        """A term cast to a type, if it is not of it; a literal is cast at once."""
        if term.type == to:
            return term
        if term.type == pa.null() and not term.fails:
            return terms.Constant(to, pa.scalar(None, to))
        if not castable(term.type, to):
            problem = f"{name_of(term.type)} cannot be cast to {name_of(to)}"
            hint = "Spark has no such cast: write an expression of that type, or take a part of the value."
            if term.type == pa.date32() and types.is_number(to):
                hint = "write unix_date(d), the days since 1970."
            elif to == pa.date32() and types.is_number(term.type):
                hint = "write date_from_unix_date(n), of the days since 1970."
            elif types.is_interval(term.type):  # Spark has one, of whole units
                part = "YEAR" if term.type == types.MONTHS else "DAY"
                hint = f"take its parts, as by extract({part} FROM x): here it has no units of its own."
            raise self.refuse(node, problem, hint)
        call = terms.FunctionCall(to, name, (term,), self.zone, self.sql(node))
        if isinstance(term, terms.Constant):
            try:
                value = call.evaluate(Rows({}, 1))
            except ExpressionError:
                return call  # only an error if a row needs it
            return terms.Constant(to, value)
        return call

    def together(self, node: exp.Expression, values: Sequence[Term], *, named: bool = True) -> list[Term]:
        """Terms cast to their common type; where fields are not `named`, they may have any names."""
        kinds = [one.type for one in values]
        kind = types.common_of(kinds if named else types.named_alike(kinds))
        if kind is None:
            shown = ", ".join(name_of(one.type) for one in values)
            raise self.refuse(node, f"{self.sql(node)} has values of {shown}", "cast them to one type.")
        return [self.cast(one, kind, node) for one in values]

    def condition(self, node: exp.Expression) -> Term:
        """A bound condition."""
        return self.boolean(node, self.bind(node))

    def boolean(self, node: exp.Expression, term: Term) -> Term:
        """A term as a condition: NULL is accepted, a text is refused."""
        if term.type in {pa.bool_(), pa.null()}:
            return self.cast(term, pa.bool_(), node)
        problem = f"{self.sql(node)} is {name_of(term.type)}, not boolean"
        raise self.refuse(node, problem, "write a condition, such as n > 0.")


_NO_FIELD = "only structs have fields, and maps keys; a[0] is the first element of an array."
#: by words of a problem what to write
_OF_PATTERNS = {
    "regex": "write the pattern otherwise: \\X, \\G and the flags d, u, U and x are not supported.",
    "the escape": "write the escape twice for itself, or name another one: LIKE 'a#%' ESCAPE '#'.",
    "the pattern": "years are y, months M, days d, hours H, minutes m, seconds s: 'yyyy-MM-dd HH:mm:ss'.",
}
#: by sqlglot's name of what other systems have, this, and what to write
_INSTEAD_OF = {
    "JSONExtract": ("a -> 'b'", "write get_json_object(text, '$.a')."),
    "JSONExtractScalar": ("a ->> 'b'", "write get_json_object(text, '$.a')."),
    "Slice": ("a[n:m]", "write slice(a, first, length)."),
    "Star": ("*", "list the columns; count(*) counts rows."),
}
#: functions of Spark's that are missing, and what to write
_INSTEAD = {
    "from_csv": "split(text, ','), and cast its elements.",
    "row_number": "row_number() OVER (ORDER BY ...), in a query.",
    "make_interval": "make_dt_interval(days, hours), or make_ym_interval(years, months).",
    "schema_of_csv": "the types themselves.",
    "to_csv": "concat_ws(',', a, b).",
    "to_number": "CAST(regexp_replace(text, '[$,]', '') AS decimal(12, 2)).",
    "try_to_number": "try_cast(regexp_replace(text, '[$,]', '') AS decimal(12, 2)).",
}


def unaliased(node: exp.Expression) -> exp.Expression:
    """The expression before `AS name`."""
    return node.this if type(node).__name__ == "Alias" else node


_ARITHMETIC = {
    *("+", "-", "*", "/", "%", "div", "pmod", "mod"),
    *("try_add", "try_subtract", "try_multiply", "try_divide", "try_mod"),
}
_DECIMAL_OPERATORS = {*_ARITHMETIC, "=", "!=", "<", "<=", ">", ">=", "<=>"}


def _as_wide_as_needed(name: str, arguments: Sequence[Term]) -> Sequence[Term]:
    """A literal beside a decimal is one of its own digits, not of those of its type; a tinyint is not."""
    if name not in _DECIMAL_OPERATORS or not any(types.is_decimal(one.type) for one in arguments):
        return arguments

    def narrow(one: Term) -> Term:
        if (
            isinstance(one, terms.Constant)
            and one.literal
            and one.type in INTEGERS[1:]
            and one.value.is_valid
        ):
            value = one.value.as_py()
            kind = pa.decimal128(len(str(abs(value))), 0)
            return terms.Constant(kind, pa.scalar(Decimal(value), kind))
        return one

    return [narrow(one) for one in arguments]


def no_function(name: str, functions: Mapping[str, Any]) -> tuple[str, str]:
    """The problem of a name that is not a function's, and the hint."""
    problem, hint = f"no function {name!r}", f"write {_INSTEAD.get(name)}"
    if name not in _INSTEAD:
        hint = f'write it as a function of columns: ts.function("{name}", "type", f).'
        close = near(name, [*FUNCTIONS, *SPECIAL, *functions, *OF_SEVERAL_ROWS])
        hint = f"{close} Or {hint}" if close else hint
    return problem, hint


def near(name: str, names: Sequence[str]) -> str:
    """A hint to a name that is much like another."""
    return f"did you mean {meant}?" if (meant := nearest(name, names)) else ""
