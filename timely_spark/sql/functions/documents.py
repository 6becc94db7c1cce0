"""Functions of texts that are JSON, by Python's library: each distinct text is parsed once."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from timely_spark.sql.registry import Failures, spark_function
from timely_spark.sql.texts import of_distinct


class Number(str):
    """A number as a result has it."""

    __slots__ = ()


class Members(list[tuple[str, Any]]):
    """The members of an object, of which two may have one name."""


def _of_float(text: str) -> Number:
    """A number as Java prints doubles."""
    value = float(text)
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return Number(repr(value))
    shortest = next(shown for n in range(17) if float(shown := f"{value:.{n}e}") == value)
    mantissa, _, exponent = shortest.partition("e")
    return Number(f"{mantissa}{'' if '.' in mantissa else '.0'}E{int(exponent)}")


def _no_constant(name: str) -> Any:
    raise ValueError(name)


def _parsed(text: str) -> Any:
    """The value of a text; raises ValueError if it is not JSON."""
    return json.loads(
        text, object_pairs_hook=Members, parse_float=_of_float, parse_int=Number, parse_constant=_no_constant
    )


def _shown(value: Any) -> str:
    """A value as JSON."""
    match value:
        case Members():
            return "{" + ",".join(f"{_shown(name)}:{_shown(of)}" for name, of in value) + "}"
        case list():
            return "[" + ",".join(map(_shown, value)) + "]"
        case Number():
            return value
    return json.dumps(value, ensure_ascii=False)


def _of_json(texts: pa.Array, function: Callable[[Any], Any], kind: pa.DataType) -> pa.Array:
    """A function of values; null where a text is not JSON."""

    def tried(text: str) -> Any:
        try:
            value = _parsed(text)
        except (ValueError, RecursionError):
            return None
        return function(value)

    return of_distinct(texts, tried, kind)


#: instead of a value that is not there
_ABSENT = object()
_STEP = re.compile(r"\.([^.\[*]+)|\['([^']+)'\]|\[(\d+)\]")


@spark_function("get_json_object", "string, string -> string", constant=[1])
def _get_json_object(text: pa.Array, path: pa.Scalar, *, failures: Failures) -> Any:
    shown = path.as_py()
    failures.at("*" in shown, f"the path {shown} has a *", "name members, and number elements.")
    steps = _STEP.findall(shown)
    if shown != "$" + "".join(one.group() for one in _STEP.finditer(shown)):
        return pa.scalar(None, pa.string())

    def found(value: Any) -> str | None:
        for name, quoted, number in steps:
            if number:
                value = value[int(number)] if type(value) is list and int(number) < len(value) else _ABSENT
            else:
                members = value if isinstance(value, Members) else ()
                value = next((of for key, of in members if key == (name or quoted)), _ABSENT)
                value = _ABSENT if value is None else value
            if value is _ABSENT:
                return None
        return str(value) if isinstance(value, str) else _shown(value)

    return _of_json(text, found, pa.string())


@spark_function("json_array_length", "string -> int")
def _json_array_length(text: pa.Array) -> Any:
    return _of_json(text, lambda value: len(value) if type(value) is list else None, pa.int32())


@spark_function("json_object_keys", "string -> array<string>")
def _json_object_keys(text: pa.Array) -> Any:
    def keys(value: Any) -> list[str] | None:
        return [name for name, _ in value] if isinstance(value, Members) else None

    return _of_json(text, keys, pa.list_(pa.string()))
