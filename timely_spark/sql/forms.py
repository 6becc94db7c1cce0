"""How each syntax is bound, and each function that is more than a kernel: a list of small functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pyarrow as pa

from timely_spark.sql import literals, terms, types
from timely_spark.sql.binder import CASTS, SPECIAL, ExpressionBinder, special, syntax
from timely_spark.sql.functions.documents import is_json_type
from timely_spark.sql.functions.maths import round_result
from timely_spark.sql.parse import exp
from timely_spark.sql.terms import Term
from timely_spark.sql.types import INTERVAL, is_date_or_time, is_integral, is_interval, is_number, name_of


def _negated(binder: ExpressionBinder, node: exp.Expression, term: Term) -> Term:
    """The negation, for nodes that have NOT in them."""
    return binder.call(node, "not", term) if node.args.get("negate") else term


# -- names and constants -------------------------------------------------------------------------------------


syntax("Paren")(lambda binder, node: binder.bind(node.this))
syntax("Identifier")(lambda binder, node: binder.named(node, [node.name]))
syntax("Column")(lambda binder, node: binder.named(node, [part.name for part in node.parts]))
syntax("Dot")(lambda binder, node: binder.field(node, binder.bind(node.this), node.expression.name))


@syntax("Literal")
def _literal(binder: ExpressionBinder, node: Any) -> Term:
    return _number(
        binder, node, pa.scalar(node.this, pa.string()) if node.is_string else literals.number(node.this)
    )


def _number(binder: ExpressionBinder, node: Any, value: pa.Scalar | None) -> Term:
    if value is None:
        hint = "write it with an exponent: 1e40; a double reaches 1.8e308."
        raise binder.refuse(node, f"no type has the number {node.this}", hint)
    return binder.constant(value)


syntax("RawString")(lambda binder, node: binder.constant(pa.scalar(node.this, pa.string())))


@syntax("HexString")
def _hex_string(binder: ExpressionBinder, node: Any) -> Term:
    return binder.constant(pa.scalar(bytes.fromhex("0" * (len(node.this) % 2) + node.this), pa.binary()))


syntax("Null")(lambda binder, node: binder.null)
syntax("Boolean")(lambda binder, node: binder.constant(pa.scalar(bool(node.this))))


@syntax("Interval")
def _interval(binder: ExpressionBinder, node: Any) -> Term:
    value = literals.interval(node)
    if value is None:
        raise binder.refuse(node, "this interval is not understood", "write INTERVAL '1' DAY.")
    return binder.constant(value)


@syntax("Placeholder Parameter")
def _parameter(binder: ExpressionBinder, node: Any) -> Term:
    hint = "write the value; in a file of SQL write :name, and give --set name=value."
    raise binder.refuse(node, f"{binder.sql(node)} has no value", hint)


@syntax("Neg")
def _negative(binder: ExpressionBinder, node: Any) -> Term:
    inner = node.this
    if type(inner).__name__ == "Literal" and not inner.is_string:
        return _number(binder, node, literals.number(f"-{inner.this}"))
    suffixed = type(inner).__name__ == "TryCast" and type(inner.this).__name__ == "Literal"
    if suffixed and not inner.this.is_string and is_integral(kind := cast_type(binder, inner)):  # -128Y
        return binder.cast(_number(binder, node, literals.number(f"-{inner.this.this}")), kind, node)
    return binder.call(node, "negative", inner)


# -- arithmetic ----------------------------------------------------------------------------------------------

_OPERATORS = {
    "Mod": "%", "IntDiv": "div", "EQ": "=", "NEQ": "!=", "LT": "<", "LTE": "<=", "GT": ">", "GTE": ">=",
    "NullSafeEQ": "<=>", "Not": "not", "BitwiseAnd": "&", "BitwiseOr": "|", "BitwiseXor": "^",
    "BitwiseNot": "~", "BitwiseLeftShift": "shiftleft", "BitwiseRightShift": "shiftright",
}  # fmt: skip


@syntax(" ".join(_OPERATORS))
def _operator(binder: ExpressionBinder, node: Any) -> Term:
    operands = (node.args.get("this"), node.args.get("expression"))
    return binder.call(node, _OPERATORS[type(node).__name__], *operands)


@syntax("NullSafeNEQ")
def _distinct(binder: ExpressionBinder, node: Any) -> Term:
    return binder.call(node, "not", binder.call(node, "<=>", node.this, node.expression))


@syntax("Add Sub")
def _sum(binder: ExpressionBinder, node: Any) -> Term:
    left, right = binder.bind(node.this), binder.bind(node.expression)
    minus = type(node).__name__ == "Sub"
    if not minus and (is_interval(left.type) or is_date_or_time(right.type)) and not is_interval(right.type):
        left, right = right, left  # the date first
    return added(binder, node, left, right, minus=minus)


def added(binder: ExpressionBinder, node: Any, left: Term, right: Term, *, minus: bool) -> Term:
    """A sum, or a difference, of numbers, dates, times and intervals."""
    if is_date_or_time(left.type):
        if minus and (is_date_or_time(right.type) or right.type == pa.string()):
            return _between(binder, node, left, right)
        if is_interval(right.type):
            return _moved(binder, node, left, right, minus=minus)
        if is_integral(right.type) and pa.types.is_date32(left.type):
            return binder.call(node, "date_sub" if minus else "date_add", left, right)
    if minus and is_date_or_time(right.type) and left.type == pa.string():
        return _between(binder, node, binder.cast(left, right.type, node), right)
    if is_interval(left.type) and is_interval(right.type):
        return binder.call(node, "$minus" if minus else "$plus", left, right)
    if left.type == pa.string() and right.type == INTERVAL:  # the text of a time
        time = binder.cast(left, types.timestamp(binder.zone), node)
        return binder.cast(_moved(binder, node, time, right, minus=minus), pa.string(), node)
    return binder.call(node, "-" if minus else "+", left, right)


def _between(binder: ExpressionBinder, node: Any, left: Term, right: Term) -> Term:
    if pa.types.is_date32(left.type) and right.type in {pa.date32(), pa.string()}:
        return binder.call(node, "$days_between", left, binder.cast(right, pa.date32(), node))
    left, right = binder.together(node, [left, right])
    return binder.call(node, "$time_between", left, right)


def _moved(binder: ExpressionBinder, node: Any, left: Term, right: Term, *, minus: bool) -> Term:
    of_days = any(literals.of_days(one, right) for one in (node.this, node.expression))
    if pa.types.is_date32(left.type) and right.type == INTERVAL and not of_days:
        left = binder.cast(left, types.timestamp(binder.zone), node)
    name = "$earlier" if minus else "$later"
    return terms.FunctionCall(left.type, name, (left, right), binder.zone, binder.sql(node))


@syntax("Mul Div")
def _product(binder: ExpressionBinder, node: Any) -> Term:
    left, right = binder.bind(node.this), binder.bind(node.expression)
    divides = type(node).__name__ == "Div"
    if is_interval(right.type) and not divides:
        left, right = right, left
    if is_interval(left.type):
        return binder.call(node, "$over" if divides else "$times", left, right)
    return binder.call(node, "/" if divides else "*", left, right)


@syntax("DPipe")
def _joined(binder: ExpressionBinder, node: Any) -> Term:
    return _concat(binder, node, [binder.bind(node.this), binder.bind(node.expression)])


@syntax("Concat")  # of literals that stand side by side
@special("concat")
def _concat_call(binder: ExpressionBinder, node: Any) -> Term:
    return _concat(binder, node, binder.many(node.expressions))


def _concat(binder: ExpressionBinder, node: Any, values: Sequence[Term]) -> Term:
    if any(types.is_array(one.type) for one in values):
        return binder.called(node, "$array_concat", binder.together(node, values))
    if values and all(one.type == pa.binary() for one in values):
        return binder.called(node, "$binary_concat", values)
    return binder.called(node, "$concat", values)


# -- conditions ----------------------------------------------------------------------------------------------


@syntax("And Or")
def _logical(binder: ExpressionBinder, node: Any) -> Term:
    def side(of: Any) -> Term:
        """A condition, or a text, which Spark casts here."""
        term = binder.bind(of)
        return binder.cast(term, pa.bool_(), node) if term.type == pa.string() else binder.boolean(of, term)

    return terms.logical([*map(side, node.flatten(unnest=False))], decides=type(node).__name__ == "Or")


@syntax("Is")
def _is(binder: ExpressionBinder, node: Any) -> Term:
    if type(node.expression).__name__ == "Null":
        return _negated(binder, node, binder.call(node, "isnull", node.this))
    if type(node.expression).__name__ != "Boolean":
        raise binder.refuse(node, f"{binder.sql(node)} compares by IS", "write <=>, where null equals null.")
    return _negated(binder, node, binder.call(node, "<=>", node.this, node.expression))


@syntax("Case")
def _case(binder: ExpressionBinder, node: Any) -> Term:
    subject, ifs = node.args.get("this"), node.args["ifs"]
    if subject is None:
        conditions = [binder.condition(one.this) for one in ifs]
        for one in ifs:
            if binder.bind(one.this).type == pa.null():  # which Spark takes in IF only
                raise binder.refuse(node, "a condition of CASE is NULL", "write false, or leave it out.")
    else:
        operand = binder.bind(subject)
        conditions = [binder.call(one, "=", operand, one.this) for one in ifs]
    values = [binder.bind(one.args["true"]) for one in ifs]
    default = node.args.get("default")
    return _chosen(binder, node, conditions, values, binder.null if default is None else binder.bind(default))


@syntax("If")
def _if(binder: ExpressionBinder, node: Any) -> Term:
    if (otherwise := node.args.get("false")) is None:
        raise binder.refuse(node, "IF of two arguments", "write IF(x > 0, y, NULL), or CASE WHEN ... END.")
    values = [binder.bind(node.args["true"])]
    return _chosen(binder, node, [binder.condition(node.this)], values, binder.bind(otherwise))


def _chosen(
    binder: ExpressionBinder, node: Any, conditions: Sequence[Term], values: Sequence[Term], default: Term
) -> Term:
    *results, otherwise = binder.together(node, [*values, default])
    return terms.Case(otherwise.type, tuple(conditions), tuple(results), otherwise)


_zero = cache(lambda: terms.Constant(pa.int32(), pa.scalar(0, pa.int32())))  # a scalar loads pandas
#: functions that are CASE or a comparison: their names, how many arguments they take, and the term of these
_OF_TERMS: tuple[tuple[str, int, Callable[..., Term]], ...] = (
    ("nvl2", 3, lambda of, node, x, y, z: _chosen(of, node, [of.call(node, "isnotnull", x)], [y], z)),
    ("nullif", 2, lambda of, node, x, y: _chosen(of, node, [of.call(node, "=", x, y)], [of.null], x)),
    ("nullifzero", 1, lambda of, node, x: _chosen(of, node, [of.call(node, "=", x, _zero())], [of.null], x)),
    ("zeroifnull", 1, lambda of, node, x: _first(of, node, [x, _zero()])),
    ("ifnull nvl", 2, lambda of, node, x, y: _first(of, node, [x, y])),
    ("equal_null", 2, lambda of, node, x, y: of.call(node, "<=>", x, y)),
)


def _of_terms(form: Callable[..., Term]) -> Callable[[ExpressionBinder, Any], Term]:
    return lambda binder, node: form(binder, node, *binder.many(node.expressions))


for _names, _many, _form in _OF_TERMS:
    special(_names, _many, _many)(_of_terms(_form))


@special("nanvl", 2, 2)
def _nanvl(binder: ExpressionBinder, node: Any) -> Term:
    left, right = binder.many(node.expressions)
    kind = pa.float32() if left.type == right.type == pa.float32() else pa.float64()
    left, right = binder.cast(left, kind, node), binder.cast(right, kind, node)
    return _chosen(binder, node, [binder.call(node, "isnan", left)], [right], left)


special("coalesce", 1)(lambda binder, node: _first(binder, node, binder.many(node.expressions)))


def _first(binder: ExpressionBinder, node: Any, values: Sequence[Term]) -> Term:
    choices = binder.together(node, values)
    return terms.Coalesce(choices[0].type, tuple(choices))


@special("decode", 2)
def _decode(binder: ExpressionBinder, node: Any) -> Term:
    subject, *rest = binder.many(node.expressions)
    if len(rest) == 1:
        return binder.called(node, "$decode", [subject, rest[0]])
    conditions = [binder.call(node, "<=>", subject, one) for one in rest[: len(rest) // 2 * 2 : 2]]
    no_text = binder.constant(pa.scalar(None, pa.string()))  # beside which a small integer is a bigint
    return _chosen(binder, node, conditions, rest[1::2], rest[-1] if len(rest) % 2 else no_text)


@special("elt", 2)
def _elt(binder: ExpressionBinder, node: Any) -> Term:
    number, *values = binder.many(node.expressions)
    kind = pa.binary() if all(one.type == pa.binary() for one in values) else pa.string()
    listed = terms.Listed(types.array_of(kind), tuple(binder.cast(one, kind, node) for one in values))
    one = binder.constant(pa.scalar(1, pa.int32()))
    return binder.call(node, "$item", listed, binder.call(node, "-", number, one))


@syntax("Between")
def _is_between(binder: ExpressionBinder, node: Any) -> Term:
    operand = binder.bind(node.this)
    low = binder.call(node, ">=", operand, node.args["low"])
    high = binder.call(node, "<=", operand, node.args["high"])
    return _negated(binder, node, terms.logical([low, high], decides=False))


@syntax("In")
def _in(binder: ExpressionBinder, node: Any) -> Term:
    if node.args.get("query") is not None:
        raise binder.refuse(node, "IN (query) in an expression", "join the collection with how='semi'.")
    if not node.expressions:
        hint = "write a value, or a query, in parentheses; of an array array_contains(a, x)."
        raise binder.refuse(node, "IN without values in parentheses", hint)
    compared = [binder.bind(node.this), *binder.many(node.expressions)]
    subject, *values = binder.together(node, compared, named=False)
    if any(one.fails for one in values):  # of no value behind one that is equal
        equal = terms.logical([binder.called(node, "=", [subject, one]) for one in values], decides=True)
        absent = binder.call(node, "isnull", subject)
        return _negated(binder, node, _chosen(binder, node, [absent], [binder.null], equal))
    return _negated(binder, node, binder.called(node, "in", [subject, *values]))


@syntax("Array")
def _brackets(binder: ExpressionBinder, node: Any) -> Term:
    raise binder.refuse(node, "[...] without an array before it", "write array(...); names are in `...`.")


@syntax("Any All")
def _compared_with_query(binder: ExpressionBinder, node: Any) -> Term:
    hint = "write IN (SELECT ...), or compare with (SELECT min(...) ...) or (SELECT max(...) ...)."
    raise binder.refuse(node, "a comparison with ANY or ALL rows of a query", hint)


_LIKES = {"Like": "like", "ILike": "ilike", "RegexpLike": "rlike"}


syntax(" ".join(_LIKES))(lambda binder, node: _matched(binder, node, None))


def _matched(binder: ExpressionBinder, node: Any, escape: Any) -> Term:
    if escape is not None and len(binder.text_of(escape, "the escape of LIKE")) != 1:
        raise binder.refuse(escape, "an escape of LIKE that is not one character", "write ESCAPE '#'.")
    several = type(node.expression).__name__
    name, subject = _LIKES[type(node).__name__], binder.bind(node.this)
    patterns = [node.expression]
    if several in {"Any", "All"}:
        listed = node.expression.this
        if not isinstance(listed, exp.Tuple | exp.Paren):
            hint = f"write LIKE {several.upper()} ('a%', 'b%')."
            raise binder.refuse(node, f"{several.upper()} of patterns without parentheses", hint)
        patterns = listed.expressions or [listed.this]
    # NOT LIKE ALL is like none of them
    each = [_negated(binder, node, binder.call(node, name, subject, one, escape)) for one in patterns]
    return terms.logical(each, decides=several == "Any")


syntax("Escape")(lambda binder, node: _matched(binder, node.this, node.expression))


# -- casts ---------------------------------------------------------------------------------------------------


@syntax("Cast TryCast")
def _cast(binder: ExpressionBinder, node: Any) -> Term:
    name, kind = "try_cast" if node.args.get("safe") else "cast", cast_type(binder, node)
    term = binder.cast(_counted(binder, node, binder.bind(node.this), kind), kind, node, name)
    # DATE '2024-01-31', where CAST and :: are sqlglot's TryCast
    if type(node).__name__ == "Cast" and node.this.is_string and not isinstance(term, terms.Constant):
        problem = f"{node.this.name!r} is not of type {name_of(kind)}"
        raise binder.refuse(node, problem, "write DATE '2024-01-31', or TIMESTAMP '2024-01-31 23:59:00'.")
    if not _is_suffixed(node.this):
        return _as_cast(term)
    if is_integral(kind) and not node.this.name.isdigit():
        problem = f"{node.this.name} with the suffix of {name_of(kind)} is not a whole number"
        raise binder.refuse(node, problem, "write digits alone, or leave the suffix out.")
    if not isinstance(term, terms.Constant) or term.value.as_py() == float("inf"):
        problem = f"no {name_of(kind)} has the number {node.this.name}"
        raise binder.refuse(node, problem, "write it without the suffix.")
    return term


def _counted(binder: ExpressionBinder, node: Any, term: Term, to: pa.DataType) -> Term:
    """A difference of times as its seconds, and of dates as its days, where it is cast to a number."""
    name = term.name if isinstance(term, terms.FunctionCall) else ""
    if name in _COUNTED and (is_integral(to) or types.is_decimal(to)):
        return binder.called(node, _COUNTED[name], [term])
    return term


_COUNTED = {"$time_between": "$of_seconds", "$days_between": "$of_days"}


def _is_suffixed(node: Any) -> bool:
    """Whether a node is the number of `1L`, which is a literal: its place in the text has the suffix, too."""
    places = node.meta if type(node).__name__ == "Literal" and not node.is_string else {}
    return "end" in places and places["end"] - places["start"] >= len(node.this)


def _as_cast(term: Term) -> Term:
    """A cast, which beside decimals has all digits of its type, also of a literal."""
    return replace(term, literal=False) if isinstance(term, terms.Constant) else term


def cast_type(binder: ExpressionBinder, node: Any) -> pa.DataType:
    """The type that a cast names."""
    kind = literals.named_type(node.args["to"], binder.zone)
    if kind is None:
        shown = node.args["to"].sql()
        hint = "write a type that columns have, such as bigint, decimal(38, 2), string or timestamp."
        hint = "write INTERVAL '1' DAY, or make_dt_interval(n)." if "INTERVAL" in shown else hint
        raise binder.refuse(node, f"no column stores {shown}", hint)
    return kind


@special(CASTS, 1, 1)
@special("to_date to_timestamp to_timestamp_ltz to_timestamp_ntz", 1, 2)
def _cast_call(binder: ExpressionBinder, node: Any) -> Term:
    name = node.name.lower()
    if len(node.expressions) == 2 and name.startswith("to_"):
        return binder.call(node, f"${name}", *node.expressions)
    (operand,) = binder.many(node.expressions)
    kinds = {
        "decimal": pa.decimal128(10, 0),
        "to_date": pa.date32(),
        "to_timestamp_ntz": types.timestamp(None),
        **types.BY_NAME,
    }
    kind = kinds.get(name, types.timestamp(binder.zone))
    return _as_cast(binder.cast(_counted(binder, node, operand, kind), kind, node))


@special("try_to_date try_to_timestamp", 1, 2)
def _try_cast_call(binder: ExpressionBinder, node: Any) -> Term:
    name = node.name.lower()
    if len(node.expressions) == 2:
        return binder.call(node, f"${name}", *node.expressions)
    (operand,) = binder.many(node.expressions)
    kind = pa.date32() if name == "try_to_date" else types.timestamp(binder.zone)
    return binder.cast(operand, kind, node, "try_cast")


@special("unix_timestamp to_unix_timestamp")
def _unix_timestamp(binder: ExpressionBinder, node: Any) -> Term:
    if not node.expressions:
        return _changing(binder, node)
    operand, *pattern = binder.many(node.expressions)
    if operand.type == pa.string() or any(one.type != pa.string() for one in pattern):
        shown = pattern or [binder.constant(pa.scalar("yyyy-MM-dd HH:mm:ss"))]
        return binder.called(node, "$unix_timestamp", [operand, *shown])
    return binder.called(node, "$unix_seconds", [operand])  # which rounds towards 1970


@special("from_json", 2, 2)
def _from_json(binder: ExpressionBinder, node: Any) -> Term:
    text, schema = binder.many(node.expressions)
    ddl = schema.value.as_py() if isinstance(schema, terms.Constant) and schema.type == pa.string() else ""
    kind = literals.type_of_text(ddl, binder.zone)
    if kind is None or not pa.types.is_nested(kind) or not is_json_type(kind):
        problem = f"from_json with the schema {binder.sql(node.expressions[1])}"
        raise binder.refuse(node, problem, "write a literal such as 'a INT, b ARRAY<STRING>'.")
    encoded = pa.scalar(pa.schema([("value", kind)]).serialize().to_pybytes())
    if text.type not in {pa.string(), pa.null()}:
        raise binder.refuse(node, f"from_json of {name_of(text.type)}", "it takes a text.")
    arguments = (binder.cast(text, pa.string(), node), binder.constant(encoded))
    return terms.FunctionCall(kind, "$from_json", arguments, binder.zone, binder.sql(node))


@special("typeof", 1, 1)
def _typeof(binder: ExpressionBinder, node: Any) -> Term:
    (operand,) = binder.many(node.expressions)
    return binder.constant(pa.scalar(name_of(operand.type)))


_ROUNDINGS = {"round": "round", "bround": "bround", "ceil": "ceil", "ceiling": "ceil", "floor": "floor"}


@special(" ".join(_ROUNDINGS), 1, 2)
def _round(binder: ExpressionBinder, node: Any) -> Term:
    name, (operand, *rest) = _ROUNDINGS[node.name.lower()], binder.many(node.expressions)
    if not is_number(operand.type):
        if operand.type not in {pa.string(), pa.null()}:
            raise binder.refuse(node, f"{name} of {name_of(operand.type)}", "it takes a number.")
        operand = binder.cast(operand, pa.float64(), node)
    digits = None
    if rest:
        places = rest[0]
        if not (isinstance(places, terms.Constant) and is_integral(places.type)):
            raise binder.refuse(node, "the number of digits must be a literal", "write round(x, 2).")
        digits = int(places.value.as_py())
        if name in {"ceil", "floor"}:
            operand = binder.cast(operand, types.decimal_for(operand.type), node)
    kind = round_result(name, operand.type, digits)
    count = binder.constant(pa.scalar(digits or 0, pa.int32()))
    return terms.FunctionCall(kind, f"${name}", (operand, count), binder.zone, binder.sql(node))


# -- texts, which have words between their arguments ---------------------------------------------------------


@syntax("Trim")
def _trim(binder: ExpressionBinder, node: Any) -> Term:
    name = {"LEADING": "ltrim", "TRAILING": "rtrim"}.get(node.args.get("position") or "", "trim")
    return binder.call(node, f"${name}", node.this, node.args.get("expression"))


@special("ltrim rtrim")
def _trim_call(binder: ExpressionBinder, node: Any) -> Term:
    # the characters come before the text
    return binder.called(node, f"${node.name.lower()}", binder.many(node.expressions)[::-1])


special("btrim")(lambda binder, node: binder.call(node, "$trim", *node.expressions))


@syntax("Substring")
def _substring(binder: ExpressionBinder, node: Any) -> Term:
    parts = [node.args.get(part) for part in ("start", "length")]
    extra = node.args.get("zero_start")  # where sqlglot puts a fourth argument
    return binder.call(node, "substring", node.this, *parts, *([] if extra is None else [extra]))


syntax("StrPosition")(lambda binder, node: binder.call(node, "$locate", node.args["substr"], node.this))


@special("locate position", 2, 3)
def _locate(binder: ExpressionBinder, node: Any) -> Term:
    part, text, *start = binder.many(node.expressions)
    place = binder.call(node, "$locate", part, text, *start)
    if not start:
        return place
    # as Hive
    return _chosen(binder, node, [binder.call(node, "isnull", start[0])], [_zero()], place)


@syntax("Overlay")
def _overlay(binder: ExpressionBinder, node: Any) -> Term:
    return binder.call(
        node, "overlay", node.this, node.expression, node.args.get("from_"), node.args.get("for_")
    )


@special("concat_ws", 1)
def _concat_ws(binder: ExpressionBinder, node: Any) -> Term:
    separator, *parts = binder.many(node.expressions)
    texts = types.array_of(pa.string())
    empty = terms.Listed(texts, ())
    lists: list[Term] = [empty]
    for one in parts:
        if types.is_array(one.type):
            lists.append(terms.Coalesce(texts, (binder.cast(one, texts, node), empty)))
        elif not pa.types.is_nested(one.type):
            lists.append(terms.Listed(texts, (binder.cast(one, pa.string(), node),)))
        else:
            raise binder.refuse(node, f"concat_ws of {name_of(one.type)}", "it takes texts and arrays.")
    return binder.called(node, "array_join", [binder.called(node, "$array_concat", lists), separator])


# -- what differs each time, and all other functions ---------------------------------------------------------

CHANGING = {
    "current_date", "current_timestamp", "now", "curdate", "localtimestamp", "current_time", "rand", "random",
    "randn", "uuid", "shuffle", "monotonically_increasing_id", "spark_partition_id", "input_file_name",
    "randstr", "uniform", "current_user", "session_user", "user",
}  # fmt: skip


@syntax("CurrentDate CurrentTimestamp CurrentTime CurrentUser SessionUser")
@special(" ".join(sorted(CHANGING)))
def _changing(binder: ExpressionBinder, node: Any) -> Term:
    problem = f"{binder.sql(node)} differs each time, so a deletion would not match its insertion"
    raise binder.refuse(node, problem, "add the value as a column of the input, such as `today`.")


@syntax("Anonymous")
def _function(binder: ExpressionBinder, node: Any) -> Term:
    name = node.name.lower()
    form = SPECIAL.get(name)
    return binder.call(node, name, *node.expressions) if form is None else form(binder, node)
