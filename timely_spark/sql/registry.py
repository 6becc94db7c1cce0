"""The table of functions: names, types in and out, and a kernel that computes whole columns.

A kernel gets arrays without nulls, and scalars for arguments that are constant, unless its function says
`nulls=True`. It tells of rows without a value by `failures`.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from timely_spark.sql import types
from timely_spark.sql.types import array_of, casts_itself, common_of, is_array

Value: TypeAlias = "pa.Array | pa.Scalar"
Kernel: TypeAlias = Callable[..., Any]
#: the types to which a function's arguments are cast, and that of its result
Typed: TypeAlias = "tuple[list[pa.DataType], pa.DataType]"
#: from the types of the arguments and the session's zone; None if they do not fit
Rule: TypeAlias = "Callable[[Sequence[pa.DataType], str], Typed | None]"


class Failed(Exception):
    """A row has no value: its number among the rows that the kernel got, and why."""

    def __init__(self, row: int, problem: str, hint: str) -> None:
        super().__init__(row, problem, hint)
        self.row, self.problem, self.hint = row, problem, hint


class Failures:
    """The rows for which a kernel has no value: an error, or null for functions that try."""

    def __init__(self, *, null: bool) -> None:
        self.null = null
        self.rows: np.ndarray | None = None

    def at(self, rows: Any, problem: str, hint: str) -> None:
        """The rows of a mask have no value."""
        mask = np.atleast_1d(np.asarray(rows))
        if not mask.any():
            return
        if not self.null:
            raise Failed(int(np.flatnonzero(mask)[0]), problem, hint)
        self.rows = mask if self.rows is None else self.rows | mask


@dataclass(frozen=True)
class Function:
    """One function of the table."""

    name: str
    rules: tuple[Rule, ...]
    takes: str
    kernel: Kernel = field(repr=False)
    #: whether the kernel gets nulls; else a row with a null argument is null
    nulls: bool = False
    #: the arguments that the kernel takes as scalars only: rows are grouped by their values
    constant: tuple[int, ...] = ()
    #: whether a row for which the kernel fails is null
    tries: bool = False
    #: whether a row may have no value
    fails: bool = False

    @cached_property
    def extras(self) -> frozenset[str]:
        """The options of the kernel, beside the arguments."""
        named = inspect.signature(self.kernel).parameters.values()
        return frozenset(one.name for one in named if one.kind is one.KEYWORD_ONLY)


#: all functions, by each of their names
FUNCTIONS: dict[str, Function] = {}


def spark_function(
    names: str,
    *signatures: str | Rule,
    result: Callable[..., pa.DataType | None] | None = None,
    nulls: bool = False,
    constant: Sequence[int] = (),
    tries: bool = False,
) -> Callable[[Kernel], Kernel]:
    """Enter a kernel into the table.

    Args:
        names: the function's name, and its other names.
        signatures: such as ``"string, int? -> string"``: `?` may be missing, `...` any number of it, `=`
            is not cast from other types, `!` is not NULL. Arguments of a capital letter have one type; a
            text and another type have none but of `A`. Or a function of the types of the arguments.
        result: computes the type of the result from the types of the arguments; None if they do not fit.
    """

    def enter(kernel: Kernel) -> Kernel:
        rules = [Signature.parse(one, result).typed if isinstance(one, str) else one for one in signatures]
        takes = " or ".join(one.rpartition("->")[0].strip() for one in signatures if isinstance(one, str))
        takes = re.sub("[=!]", "", takes)
        fails = "failures" in inspect.signature(kernel).parameters and not tries
        for name in names.split():
            assert name not in FUNCTIONS, name
            FUNCTIONS[name] = Function(
                name, tuple(rules), takes, kernel, nulls, tuple(constant), tries, fails
            )
        return kernel

    return enter


# -- signatures ----------------------------------------------------------------------------------------------

#: kinds of types, and the type that null, a text, or another type becomes
_KINDS: Mapping[str, tuple[Callable[[pa.DataType], bool], pa.DataType]] = {
    "number": (types.is_number, pa.float64()),
    "integer": (types.is_integral, pa.int64()),
    "decimal": (types.is_decimal, pa.decimal128(38, 18)),
    "anything": (lambda _: True, pa.null()),
    "interval": (types.is_interval, types.INTERVAL),
    "array": (is_array, array_of(pa.null())),
    "map": (pa.types.is_map, pa.map_(pa.string(), pa.null())),
    "struct": (pa.types.is_struct, pa.struct([])),
}


@dataclass(frozen=True)
class Signature:
    """The types of a function's arguments and result."""

    parameters: tuple[str, ...]
    result: str
    computed: Callable[..., pa.DataType | None] | None = field(default=None, compare=False)

    @classmethod
    def parse(cls, text: str, computed: Callable[..., pa.DataType | None] | None = None) -> Signature:
        """The signature of a text such as ``"array<T>, T -> boolean"``."""
        arguments, _, result = text.rpartition("->")
        return cls(tuple(_split(arguments)), result.strip(), computed)

    @property
    def least(self) -> int:
        """The least number of arguments."""
        return sum(1 for one in self.parameters if one[-1] not in "?.")

    @property
    def most(self) -> float:
        """The greatest number of arguments."""
        return (
            float("inf") if self.parameters and self.parameters[-1].endswith("...") else len(self.parameters)
        )

    def of(self, number: int) -> list[str]:
        """The parameter of each of a number of arguments."""
        plain = [one.rstrip("?.") for one in self.parameters]
        return (plain + plain[-1:] * number)[:number]

    def typed(self, argument_types: Sequence[pa.DataType], zone: str) -> Typed | None:
        """The types to which arguments are cast, and that of the result; None if they do not fit."""
        if not self.least <= len(argument_types) <= self.most:
            return None
        parameters = self.of(len(argument_types))
        variables: dict[str, list[pa.DataType]] = {}
        for parameter, kind in zip(parameters, argument_types, strict=True):
            for name, variable_type in _variables(parameter, kind):
                variables.setdefault(name, []).append(variable_type)
        if any(name != "A" and types.mixes_texts(kinds) for name, kinds in variables.items()):
            return None
        bound = {name: common_of(kinds) for name, kinds in variables.items()}
        if None in bound.values() or types.has_map(bound.get("C", pa.null())):
            return None
        expected = [
            _target(one, kind, bound, zone) for one, kind in zip(parameters, argument_types, strict=True)
        ]
        if any(
            to is None or not casts_itself(kind, to)
            for kind, to in zip(argument_types, expected, strict=True)
        ):
            return None
        result = _type(self.result, bound, zone) if self.computed is None else self.computed(*expected)
        return None if result is None else (expected, result)


def _split(text: str) -> Iterator[str]:
    """The parts of a list between commas that are not in brackets."""
    depth, part = 0, ""
    for one in text + ",":
        depth += {"<": 1, "(": 1, ">": -1, ")": -1}.get(one, 0)
        if one == "," and not depth:
            if part.strip():
                yield part.strip()
            part = ""
        else:
            part += one


def _inner(parameter: str) -> tuple[str, list[str]]:
    """``map<K, V>`` as its name and its parts."""
    parameter = parameter.lstrip("!")
    match = re.fullmatch(r"(\w+)<(.*)>", parameter)
    return (match[1], list(_split(match[2]))) if match else (parameter, [])


def _parts(kind: pa.DataType, shape: str) -> list[pa.DataType] | None:
    """The types in an array or a map; None if the type is not one."""
    if shape == "array" and is_array(kind):
        return [kind.value_type]
    if shape == "map" and pa.types.is_map(kind):
        return [kind.key_type, kind.item_type]
    return None


def _variables(parameter: str, kind: pa.DataType) -> Iterator[tuple[str, pa.DataType]]:
    """The type variables of a parameter, each with its type in an argument."""
    shape, inner = _inner(parameter)
    if re.fullmatch("[A-Z]", shape):
        yield shape, kind
    parts = _parts(kind, shape) or [pa.null()] * len(inner)
    for part, inner_type in zip(inner, parts, strict=False):
        yield from _variables(part, inner_type)


def _target(parameter: str, kind: pa.DataType, bound: Mapping[str, Any], zone: str) -> pa.DataType | None:
    """The type to which an argument of a type is cast."""
    if parameter[0] == "!":
        return None if kind == pa.null() else _target(parameter[1:], kind, bound, zone)
    if parameter[0] == "=":
        to = _target(parameter[1:], kind, bound, zone)
        order = types.INTEGERS
        wider = kind in order and to in order and order.index(kind) <= order.index(to)
        return to if wider or kind in {to, pa.null()} else None
    if parameter == "int32":  # of wider numbers Spark narrows none
        return pa.int32() if kind in {*types.INTEGERS[:3], pa.string(), pa.null()} else None
    if parameter in _KINDS:
        fits, default = _KINDS[parameter]
        if fits(kind):
            return kind
        if parameter == "decimal" and types.is_number(kind):
            return types.decimal_for(kind)
        return default if parameter in {"number", "integer", "decimal"} or kind == pa.null() else None
    if parameter == "time" and pa.types.is_timestamp(kind):
        return kind
    shape, inner = _inner(parameter)
    if inner and _parts(kind, shape) is None and kind != pa.null():
        return None
    return _type(parameter, bound, zone)


def _type(parameter: str, bound: Mapping[str, Any], zone: str) -> pa.DataType:
    shape, inner = _inner(parameter)
    if shape == "array":
        return array_of(_type(inner[0], bound, zone))
    if shape == "map":
        key = _type(inner[0], bound, zone)
        return pa.map_(pa.string() if key == pa.null() else key, _type(inner[1], bound, zone))
    if shape in bound:
        return bound[shape]
    if shape in {"timestamp", "time"}:
        return types.timestamp(zone)
    if shape == "timestamp_ntz":
        return types.timestamp(None)
    decimal = re.fullmatch(r"decimal\((\d+),(\d+)\)", shape)
    if decimal:
        return pa.decimal128(int(decimal[1]), int(decimal[2]))
    return {"daytime": types.INTERVAL, "months": types.MONTHS}.get(shape) or types.BY_NAME[shape]


# -- calls ---------------------------------------------------------------------------------------------------


def scatter(parts: Sequence[tuple[np.ndarray, pa.Array]], length: int, kind: pa.DataType) -> pa.Array:
    """One array of parts, each with the rows to which it belongs; the other rows are null."""
    covered = sum(len(rows) for rows, _ in parts)
    order = np.zeros(length, np.int64)
    missing = np.ones(length, bool)
    start = 0
    for rows, values in parts:
        order[rows] = np.arange(start, start + len(values))
        missing[rows] = False
        start += len(values)
    arrays = [values if values.type == kind else values.cast(kind) for _, values in parts]
    if covered == 0:
        return pa.nulls(length, kind)
    return pa.concat_arrays(arrays).take(pa.array(order, mask=missing if covered < length else None))


def as_array(value: Value, length: int) -> pa.Array:
    """A value of each row as an array."""
    if not isinstance(value, pa.Scalar):
        return value
    return pa.repeat(value, length) if length else pa.nulls(0, value.type)


def apply_function(function: Function, arguments: Sequence[Value], length: int, **extras: Any) -> Value:
    """The values of a function for `length` rows.

    Raises:
        Failed: a row has no value.
    """
    kind = extras["result"]
    if not function.nulls and any(isinstance(one, pa.Scalar) and not one.is_valid for one in arguments):
        return pa.scalar(None, kind)
    if arguments and all(isinstance(one, pa.Scalar) for one in arguments):
        single = [one if n in function.constant else pa.repeat(one, 1) for n, one in enumerate(arguments)]
        return _of_arrays(function, single, 1, extras)[0]
    return _of_arrays(function, arguments, length, extras)


def cast_values(values: pa.Array, to: pa.DataType, zone: str, name: str = "cast") -> pa.Array:
    """Values, of which some may be null, as Spark casts them to a type; or as its `try_cast` does."""
    return as_array(apply_function(FUNCTIONS[name], [values], len(values), result=to, zone=zone), len(values))


def _of_arrays(
    function: Function, arguments: Sequence[Value], length: int, extras: dict[str, Any]
) -> pa.Array:
    """The values where at least one argument is an array."""
    kind = extras["result"]
    if not function.nulls:
        null = np.zeros(length, bool)
        for one in arguments:
            if isinstance(one, pa.Array) and one.null_count:
                null |= np.asarray(one.is_null())
        if null.any():
            rows = np.flatnonzero(~null)
            chosen = [one if isinstance(one, pa.Scalar) else one.take(pa.array(rows)) for one in arguments]
            if not len(rows):
                return pa.nulls(length, kind)
            return scatter([(rows, _of_arrays(function, chosen, len(rows), extras))], length, kind)
    varying = [n for n in function.constant if n < len(arguments) and isinstance(arguments[n], pa.Array)]
    if varying:
        return _by_constants(function, arguments, varying, length, extras)
    failures = Failures(null=function.tries)
    options = {
        name: value
        for name, value in (*extras.items(), ("failures", failures), ("length", length))
        if name in function.extras
    }
    values = as_array(_as_arrow(function.kernel(*arguments, **options), kind), length)
    if failures.rows is not None:
        values = pa.compute.if_else(
            pa.array(np.broadcast_to(failures.rows, length)), pa.scalar(None, kind), values
        )
    return values


def _as_arrow(values: Any, kind: pa.DataType) -> Value:
    if isinstance(values, np.ndarray):
        values = pa.array(values, mask=None)
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    if values.type == kind:
        return values
    if (
        isinstance(values, pa.Array)
        and pa.types.is_primitive(kind)
        and values.type.bit_width == kind.bit_width
    ):
        return values.view(kind)
    return values.cast(kind)


def _by_constants(
    function: Function,
    arguments: Sequence[Value],
    varying: Sequence[int],
    length: int,
    extras: dict[str, Any],
) -> pa.Array:
    """The values where arguments vary that the kernel takes as constants: distinct value by value."""
    if not length:
        return pa.nulls(0, extras["result"])
    codes = np.zeros(length, np.int64)
    for n in varying:
        encoded = arguments[n].dictionary_encode(null_encoding="encode")
        _, codes = np.unique(
            codes * (len(encoded.dictionary) + 1) + np.asarray(encoded.indices), return_inverse=True
        )
    order = np.argsort(codes, kind="stable")
    bounds = np.flatnonzero(np.diff(codes[order], prepend=-1))
    parts = []
    for rows in np.split(order, bounds[1:]):
        chosen = [
            one
            if isinstance(one, pa.Scalar)
            else one[int(rows[0])]
            if n in varying
            else one.take(pa.array(rows))
            for n, one in enumerate(arguments)
        ]
        if all(isinstance(one, pa.Scalar) for one in chosen):
            values = as_array(apply_function(function, chosen, 1, **extras), len(rows))
        else:
            values = _of_arrays(function, chosen, len(rows), extras)
        parts.append((rows, values))
    return scatter(parts, length, extras["result"])
