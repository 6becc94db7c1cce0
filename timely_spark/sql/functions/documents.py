"""Functions of texts that are JSON, by Python's library: each distinct text is parsed once."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from timely_spark.sql import types
from timely_spark.sql.functions.dates import local
from timely_spark.sql.functions.formats import formatted
from timely_spark.sql.lists import Elements, lists_of, maps_of
from timely_spark.sql.plain import to_numpy
from timely_spark.sql.registry import Failures, Typed, as_array, cast_values, scatter, spark_function
from timely_spark.sql.texts import of_distinct


class Number(str):
    """A number as a result has it, and as it is written."""

    __slots__ = ("written",)
    written: str


class Members(list[tuple[str, Any]]):
    """The members of an object, of which two may have one name."""


def _number(text: str, shown: str = "") -> Number:
    number = Number(shown or text)
    number.written = text
    return number


def _of_float(text: str) -> Number:
    """A number as Java prints doubles."""
    value = float(text)
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return _number(text, repr(value))
    shortest = next(shown for n in range(17) if float(shown := f"{value:.{n}e}") == value)
    mantissa, _, exponent = shortest.partition("e")
    return _number(text, f"{mantissa}{'' if '.' in mantissa else '.0'}E{int(exponent)}")


def _no_constant(name: str) -> Any:
    raise ValueError(name)


_DECODER = json.JSONDecoder(
    object_pairs_hook=Members, parse_float=_of_float, parse_int=_number, parse_constant=_no_constant
)


def _shown(value: Any) -> str:
    """A value as JSON."""
    match value:
        case Members():
            return "{" + ",".join(f"{_shown(name)}:{_shown(member)}" for name, member in value) + "}"
        case list():
            return "[" + ",".join(map(_shown, value)) + "]"
        case Number():
            return value
        case str():
            return _quoted(value)
    return json.dumps(value)


#: the characters that have an escape
_ESCAPES = {n: f"\\u{n:04X}" for n in range(32)} | {
    ord(one): f"\\{short}" for one, short in zip('\b\f\n\r\t"\\', 'bfnrt"\\', strict=True)
}
_ESCAPED = r'["\\\x00-\x1f]'


def _quoted(text: str) -> str:
    return f'"{text.translate(_ESCAPES)}"'


def _of_json(
    texts: pa.Array, function: Callable[[Any], Any], kind: pa.DataType, otherwise: Any = None
) -> pa.Array:
    """A function of values, and what is there instead where a text is not JSON."""

    def tried(text: str) -> Any:
        try:
            value = _DECODER.decode(text)
        except (ValueError, RecursionError):
            return otherwise
        return function(value)

    return of_distinct(texts, tried, kind)


#: instead of a value that is not there
_ABSENT = object()
_STEP = re.compile(r"\.([^.\[*]+)|\['([^']+)'\]|\[(\d+)\]")


@spark_function("get_json_object", "=string, =string -> string", constant=[1])
def _get_json_object(text: pa.Array, path: pa.Scalar, *, failures: Failures) -> Any:
    shown = path.as_py()
    failures.at("*" in shown, f"the path {shown} has a *", "name members, and number elements.")
    steps = _STEP.findall(shown)
    if shown != "$" + "".join(one.group() for one in _STEP.finditer(shown)):
        return pa.scalar(None, pa.string())

    def value_at(value: Any) -> str | None:
        for name, quoted, number in steps:
            if number:
                value = value[int(number)] if type(value) is list and int(number) < len(value) else _ABSENT
            else:
                members = value if isinstance(value, Members) else ()
                value = next((member for key, member in members if key == (name or quoted)), _ABSENT)
                value = _ABSENT if value is None else value
            if value is _ABSENT:
                return None
        return str(value) if isinstance(value, str) else _shown(value)

    return _of_json(text, value_at, pa.string())


@spark_function("json_array_length", "=string -> int")
def _json_array_length(text: pa.Array) -> Any:
    return _of_json(text, lambda value: len(value) if type(value) is list else None, pa.int32())


@spark_function("json_object_keys", "=string -> array<string>")
def _json_object_keys(text: pa.Array) -> Any:
    def keys(value: Any) -> list[str] | None:
        return [name for name, _ in value] if isinstance(value, Members) else None

    return _of_json(text, keys, pa.list_(pa.string()))


def _tuple_type(kinds: Sequence[pa.DataType], _: str) -> Typed | None:
    """The type of `json_tuple`: a list of one struct, which is a row."""
    row = pa.struct([(f"c{n}", pa.string()) for n in range(len(kinds) - 1)])
    fits = len(kinds) > 1 and {*kinds} == {pa.string()}
    return ([*kinds], types.array_of(row)) if fits else None


@spark_function("$json_tuple", _tuple_type, nulls=True, constant=range(1, 100))
def _json_tuple(text: pa.Array, *names: pa.Scalar, result: pa.DataType, length: int) -> Any:
    wanted = [one.as_py() for one in names]

    def row(value: Any) -> list[dict[str, str | None]]:
        members = {key: of for key, of in value if of is not None} if isinstance(value, Members) else {}
        values = (members.get(name) for name in wanted)
        shown = [of if of is None or isinstance(of, str) else _shown(of) for of in values]
        return [{f"c{n}": None if of is None else str(of) for n, of in enumerate(shown)}]

    return _of_json(pc.fill_null(as_array(text, length), ""), row, result, row(None))


# -- to_json -------------------------------------------------------------------------------------------------


def _joined(parts: pa.Array, sizes: Any, ends: str) -> pa.Array:
    """Lists of texts as texts, with commas and brackets."""
    joined = pc.binary_join(lists_of(parts, sizes), ",")
    return pc.binary_join_element_wise(ends[0], joined, ends[1], "")


def json_of(values: pa.Array, zone: str, *, nulls: bool = False) -> pa.Array:
    r"""Values as JSON; null stays null, and a field that is null is left out unless `nulls`.

    >>> rows = pa.array(
    ...     [{"id": 7, "x": 1e10, "it's": 'a "b"'}, {"id": None, "x": float("nan"), "it's": "\n"}]
    ... )
    >>> json_of(rows, "UTC", nulls=True).to_pylist()
    ['{"id":7,"x":1.0E10,"it\'s":"a \\"b\\""}', '{"id":null,"x":"NaN","it\'s":"\\n"}']
    """
    kind, inner = values.type, partial(json_of, zone=zone, nulls=nulls)
    if values.null_count:
        rows = np.flatnonzero(np.asarray(values.is_valid()))
        some = values.take(pa.array(rows))
        return scatter([(rows, inner(some))] if len(rows) else [], len(values), pa.string())
    if pa.types.is_struct(kind):
        parts = []
        for field, column in zip(kind, values.flatten(), strict=True):
            text = pc.fill_null(inner(column), "null") if nulls else inner(column)
            member = pc.binary_join_element_wise(f",{_quoted(field.name)}:", text, "")
            parts.append(pc.fill_null(member, ""))
        joined = pc.binary_join_element_wise(*parts, "") if parts else pa.array([""] * len(values))
        return pc.binary_join_element_wise("{", pc.utf8_slice_codeunits(joined, 1), "}", "")
    if types.is_array(kind):
        elements = Elements(values)
        return _joined(pc.fill_null(inner(elements.values), "null"), elements.sizes, "[]")
    if pa.types.is_map(kind):
        elements = Elements(values)
        keys, items = elements.values.flatten()
        names = _quoted_texts(_text(keys, zone))
        pairs = pc.binary_join_element_wise(names, pc.fill_null(inner(items), "null"), ":")
        return _joined(pairs, elements.sizes, "{}")
    if types.is_decimal(kind):
        return of_distinct(values, str, pa.string())
    text = _text(values, zone)
    if kind == pa.string() or types.is_date_or_time(kind):
        return _quoted_texts(text)
    return pc.if_else(pc.is_finite(values), text, _quoted_texts(text)) if types.is_float(kind) else text


def _quoted_texts(texts: pa.Array) -> pa.Array:
    if pc.any(pc.match_substring_regex(texts, _ESCAPED)).as_py():
        return of_distinct(texts, _quoted, pa.string())
    return pc.binary_join_element_wise('"', texts, '"', "")


def _text(values: pa.Array, zone: str) -> pa.Array:
    """Values as texts: times as in ISO 8601, with milliseconds, and where they have a zone its offset."""
    if not pa.types.is_timestamp(values.type):
        return cast_values(values, pa.string(), zone)
    clock_time = local(values)
    shown = formatted(clock_time, "yyyy-MM-dd'T'HH:mm:ss.SSS")
    if not values.type.tz:
        return shown
    seconds = (clock_time - to_numpy(values)) // 1_000_000
    size = abs(seconds)
    clock = np.char.add(np.char.mod("%02d", size // 3600), np.char.mod(":%02d", size // 60 % 60))
    # a zone had its own noon before 1900
    clock = np.where(size % 60 == 0, clock, np.char.add(clock, np.char.mod(":%02d", size % 60)))
    offsets = np.char.add(np.where(seconds < 0, "-", "+"), clock)
    return pc.binary_join_element_wise(shown, pa.array(np.where(seconds == 0, "Z", offsets)), "")


def is_json_type(kind: pa.DataType, *, keys: tuple[pa.DataType, ...] = (pa.string(),)) -> bool:
    """Whether values of a type are JSON, with maps of some keys."""
    if pa.types.is_map(kind):
        return kind.key_type in keys and is_json_type(kind.item_type, keys=keys)
    if types.is_array(kind):
        return is_json_type(kind.value_type, keys=keys)
    if pa.types.is_struct(kind):
        return all(is_json_type(one.type, keys=keys) for one in kind)
    return kind not in {pa.binary(), types.INTERVAL, types.MONTHS}


def _json_type(kinds: Sequence[pa.DataType], _: str) -> Typed | None:
    """The type of `to_json`, of a nested value."""
    fits = (
        len(kinds) == 1
        and pa.types.is_nested(kinds[0])
        and is_json_type(kinds[0], keys=(pa.string(), *types.INTEGERS))
    )
    return (list(kinds), pa.string()) if fits else None


spark_function("to_json", _json_type)(lambda value, *, zone: json_of(value, zone))


# -- from_json -----------------------------------------------------------------------------------------------

_OTHER_NUMBERS = {"NaN", *(f"{sign}{name}" for sign in ("", "+", "-") for name in ("INF", "Infinity"))}
_SINGLE_QUOTED = re.compile(r"""("(?:[^"\\]|\\.)*")|'((?:[^'\\]|\\.)*)'""")


def with_texts(kind: pa.DataType) -> pa.DataType:
    """A type with texts for all that has no parts: what is read before it is cast."""
    if types.is_array(kind):
        return types.array_of(with_texts(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(pa.string(), with_texts(kind.item_type))
    if pa.types.is_struct(kind):
        return pa.struct([(one.name, with_texts(one.type)) for one in kind])
    return pa.string()


class Misfit(Exception):
    """A value that is not of the type that it is read as."""


def fitted(value: Any, kind: pa.DataType) -> Any:
    """A value as one of a type, with texts for all that has no parts: a field that does not fit is null.

    Raises:
        Misfit: the value, or an element of it, is not of the type.
    """
    if value is None:
        return None
    if types.is_array(kind) and type(value) is list:
        return [fitted(one, kind.value_type) for one in value]
    if pa.types.is_map(kind) and isinstance(value, Members):
        return [(name, fitted(one, kind.item_type)) for name, one in value]
    if pa.types.is_struct(kind) and isinstance(value, Members):
        fields: dict[str, Any] = {one.name: one.type for one in kind}
        members: dict[str, Any] = {}
        for name, one in value:
            if name in fields:
                members[name] = None
                with suppress(Misfit):
                    members[name] = fitted(one, fields[name])
        return members
    if pa.types.is_nested(kind):
        raise Misfit
    return _leaf(value, kind)


def _leaf(value: Any, kind: pa.DataType) -> str:
    """The text of a value without parts that is cast to a type."""
    number, text = isinstance(value, Number), type(value) is str
    written = value.written if isinstance(value, Number) else _shown(value)
    if kind == pa.string():
        return value if text else _shown(value)
    if types.is_integral(kind):
        fits = number and written.lstrip("-").isdigit()
    elif types.is_float(kind):
        fits = number or (text and value in _OTHER_NUMBERS)
    elif types.is_decimal(kind):
        fits, value = number or text, value.replace(",", "") if text else value
    elif kind == pa.bool_():
        fits = isinstance(value, bool)
    else:
        fits = text
    if not fits:
        raise Misfit
    return value if text else written


def _fitted(texts: pa.Array, kind: pa.DataType, zone: str) -> tuple[pa.Array, Any]:
    """Texts as values of a type, null where they are none; and the rows that are null for that."""
    null = np.asarray(texts.is_null())
    if pa.types.is_struct(kind):
        parts = [_fitted(one, of.type, zone)[0] for one, of in zip(texts.flatten(), kind, strict=True)]
        fitted = pa.StructArray.from_arrays(parts, fields=list(kind), mask=pa.array(null))
        return fitted, np.zeros(len(texts), bool)
    if not pa.types.is_nested(kind):
        values = cast_values(texts, kind, zone, "try_cast")
        return values, np.asarray(values.is_null()) & ~null
    elements = Elements(texts)
    if pa.types.is_map(kind):
        keys, items = elements.values.flatten()
        items, bad = _fitted(items, kind.item_type, zone)
        fitted = maps_of(keys, items, elements.sizes, kind)
    else:
        values, bad = _fitted(elements.values, kind.value_type, zone)
        fitted = lists_of(values, elements.sizes, kind)
    wrong = np.bincount(elements.owners[bad], minlength=len(texts)) > 0
    return fitted.take(pa.array(np.arange(len(texts)), mask=null | wrong)), wrong


def _double_quoted(text: str) -> str:
    """A text whose names and texts are in quotes of one kind: Spark reads single ones, too."""

    def quoted(match: re.Match[str]) -> str:
        return match[1] or '"' + match[2].replace('"', '\\"').replace("\\'", "'") + '"'

    return _SINGLE_QUOTED.sub(quoted, text)


@spark_function("$from_json", "=string, binary -> string", constant=[1])
def _from_json(text: pa.Array, schema: pa.Scalar, *, result: pa.DataType, zone: str) -> Any:
    kind = pa.ipc.read_schema(pa.py_buffer(schema.as_py())).field(0).type
    nothing: Any = {} if pa.types.is_struct(kind) else None
    of_structs = types.is_array(kind) and pa.types.is_struct(kind.value_type)

    def read(text: str) -> Any:
        for one in dict.fromkeys((text, _double_quoted(text))):
            if not (body := one.lstrip(" \t\n\r")):
                return None
            try:
                value, _ = _DECODER.raw_decode(body)
                if of_structs and isinstance(value, Members):
                    value = [value]
                value = fitted(value, kind)
            except Misfit:
                return nothing
            except (ValueError, RecursionError):
                continue
            return nothing if value is None else value
        return nothing

    return _fitted(of_distinct(text, read, with_texts(kind)), result, zone)[0]
