"""CAST and TRY_CAST, by the types of both sides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as of

from timely_spark.sql import types
from timely_spark.sql.calendar import DAY, SECOND, parsed_dates, parsed_times, to_instants, to_local
from timely_spark.sql.lists import Elements, lists_of, maps_of
from timely_spark.sql.plain import as_long, decimals, rescaled, rounded_quotient, to_numpy, wide
from timely_spark.sql.registry import Failures, Value, cast_values, spark_function
from timely_spark.sql.texts import sliced
from timely_spark.sql.types import is_array, is_decimal, is_float, is_integral, is_number, name_of

_TRY = "use try_cast, which gives null there."


def castable(kind: pa.DataType, to: pa.DataType) -> bool:
    """Whether Spark casts one type to another in ANSI mode, and this module does."""
    if kind in {to, pa.null()}:
        return True
    if is_array(kind) and is_array(to):
        return castable(kind.value_type, to.value_type)
    if of.is_map(kind) and of.is_map(to):
        return castable(kind.key_type, to.key_type) and castable(kind.item_type, to.item_type)
    if of.is_struct(kind) and of.is_struct(to):
        return len(kind) == len(to) and all(castable(x.type, y.type) for x, y in zip(kind, to, strict=True))
    if to == pa.string():
        return not types.is_interval(kind)
    if not types.is_atomic(kind):
        return False
    return any(fits(kind) and makes(to) for fits, makes, _ in _CASTS)


def cast(a: Value, *, result: pa.DataType, zone: str, failures: Failures) -> Any:
    """The values of one type as those of another."""
    kind = a.type
    if kind == result:
        return a
    if kind == pa.null():
        return pa.nulls(len(a), result)
    if is_array(kind) or of.is_map(kind) or of.is_struct(kind):
        return _text_of_nested(a, zone) if result == pa.string() else _nested(a, result, zone, failures)
    for fits, makes, how in _CASTS:
        if fits(kind) and makes(result):
            return how(a, result, zone, failures)
    raise AssertionError(kind, result)


def _some(a: pa.Array, to: pa.DataType, zone: str, failures: Failures) -> pa.Array:
    """The elements of a nested value; some may be null."""
    return cast_values(a, to, zone, "try_cast" if failures.null else "cast")


def _nested(a: pa.Array, to: pa.DataType, zone: str, failures: Failures) -> pa.Array:
    if is_array(to):
        x = Elements(a)
        return lists_of(_some(x.values, to.value_type, zone, failures), x.sizes, to)
    if of.is_map(to):
        x = Elements(a)
        keys, items = x.values.flatten()
        keys, items = _some(keys, to.key_type, zone, failures), _some(items, to.item_type, zone, failures)
        return maps_of(keys, items, x.sizes, to)
    parts = [_some(x, y.type, zone, failures) for x, y in zip(a.flatten(), to, strict=True)]
    return pa.StructArray.from_arrays(parts, fields=list(to))


def _text_of_nested(a: pa.Array, zone: str) -> pa.Array:
    """`[1, 2]`, `{a -> 1}`, `{1, a, null}`."""
    failures = Failures(null=False)

    def texts(values: pa.Array) -> pa.Array:
        return pc.fill_null(_some(values, pa.string(), zone, failures), "null")

    if of.is_struct(a.type):
        parts = [texts(one) for one in a.flatten()]
        joined = pc.binary_join_element_wise(*parts, ", ") if parts else pa.array([""] * len(a))
        return pc.binary_join_element_wise("{", joined, "}", "")
    x, ends = Elements(a), "[]" if is_array(a.type) else "{}"
    if is_array(a.type):
        inner = texts(x.values)
    else:
        inner = pc.binary_join_element_wise(*map(texts, x.values.flatten()), " -> ")
    return pc.binary_join_element_wise(ends[0], pc.binary_join(lists_of(inner, x.sizes), ", "), ends[1], "")


# -- numbers -------------------------------------------------------------------------------------------------


def _too_large(failures: Failures, rows: Any, to: pa.DataType) -> None:
    failures.at(rows, f"the number does not fit into {name_of(to)}", _TRY)


def _limits(to: pa.DataType) -> tuple[int, int]:
    info = np.iinfo(to.to_pandas_dtype())
    return int(info.min), int(info.max)


def _fitted(x: Any, to: pa.DataType, failures: Failures) -> Any:
    """Whole numbers as a type of integers."""
    least, most = _limits(to)
    large = np.asarray((x < least) | (x > most), bool)
    _too_large(failures, large, to)
    return np.where(large, 0, x).astype(to.to_pandas_dtype())


def _float_to_integer(a: Value, to: pa.DataType, zone: str, failures: Failures) -> Any:
    x, (least, most) = to_numpy(a).astype(np.float64), _limits(to)
    # as Spark: what rounds down to the least or up to the greatest fits; 2.0 ** 63 becomes the greatest
    down, up = np.floor(x), np.ceil(x)
    bad = ~((down <= most) & (up >= least))
    _too_large(failures, bad, to)
    return np.clip(as_long(np.where(bad, 0, x)), least, most).astype(to.to_pandas_dtype())


def _to_float(a: Value, to: pa.DataType, zone: str, failures: Failures) -> Any:
    if is_decimal(a.type):
        # through text, because Java rounds the decimal once, to the nearest
        return a.cast(pa.string()).cast(pa.float64()).cast(to)
    with np.errstate(over="ignore"):
        return to_numpy(a).astype(to.to_pandas_dtype())


def _to_decimal(x: Any, scale: int, to: pa.DataType, failures: Failures) -> Any:
    x = np.atleast_1d(rescaled(wide(x), scale, to.scale))
    large = np.asarray(abs(x) >= 10**to.precision, bool)
    _too_large(failures, large, to)
    return decimals(np.where(large, 0, x), to)


def _exact_to_decimal(a: Value, to: pa.DataType, zone: str, failures: Failures) -> Any:
    return _to_decimal(to_numpy(a), types.scale_of(a.type), to, failures)


def _decimal_to_integer(a: Value, to: pa.DataType, zone: str, failures: Failures) -> Any:
    x = to_numpy(a)
    return _fitted(np.where(x < 0, -1, 1) * (abs(x) // 10**a.type.scale), to, failures)


def _float_to_decimal(a: Value, to: pa.DataType, zone: str, failures: Failures) -> Any:
    # Java's text of a double is the shortest that reads back as it, as is Python's; of a float its double's
    x = np.atleast_1d(to_numpy(a)).astype(np.float64)
    bad = ~np.isfinite(x)
    decimals = _text_to_decimal(pa.array(np.where(bad, 0.0, x)).cast(pa.string()), to, zone, failures)
    return pc.if_else(pa.array(bad), pa.scalar(None, to), decimals) if bad.any() else decimals


def _boolean_to_number(a: Value, to: pa.DataType, zone: str, failures: Failures) -> Any:
    x = to_numpy(a)
    return (
        _to_decimal(x.astype(np.int64), 0, to, failures) if is_decimal(to) else x.astype(to.to_pandas_dtype())
    )


# -- texts ---------------------------------------------------------------------------------------------------

#: what Spark trims before it reads a text: spaces and control characters
BLANKS = "".join(map(chr, range(33)))


def _malformed(failures: Failures, rows: Any, texts: pa.Array, to: pa.DataType) -> None:
    mask = np.asarray(rows)
    if mask.any():
        first = texts[int(np.flatnonzero(mask)[0])].as_py()
        failures.at(mask, f"the text {first!r} is not {name_of(to)}", _TRY)


def _matching(texts: pa.Array, pattern: str) -> Any:
    return np.asarray(pc.match_substring_regex(texts, pattern))


def _text_to_integer(a: pa.Array, to: pa.DataType, zone: str, failures: Failures) -> Any:
    texts = pc.utf8_trim(a, BLANKS)
    bad = ~_matching(texts, r"^[+-]?[0-9]+$")
    digits = pc.utf8_ltrim(pc.utf8_ltrim(texts, "+-"), "0")
    bad |= np.asarray(pc.greater(pc.utf8_length(digits), 19))
    exact = pc.if_else(pa.array(bad), "0", pc.if_else(pc.equal(digits, ""), "0", digits))
    size = np.asarray(exact.cast(pa.uint64()))
    negative = np.asarray(pc.starts_with(texts, "-"))
    least, most = _limits(to)
    bad |= np.where(negative, size > np.uint64(-least), size > np.uint64(most))
    _malformed(failures, bad, a, to)
    size = np.where(bad, 0, size).astype(np.int64)
    with np.errstate(over="ignore"):
        return np.where(negative, -size, size).astype(to.to_pandas_dtype())


_FLOAT = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?[dDfF]?$"
_ENDLESS = r"^(?i:[+-]?(inf|infinity)|nan)$"


def _text_to_float(a: pa.Array, to: pa.DataType, zone: str, failures: Failures) -> Any:
    texts = pc.utf8_trim(a, BLANKS)
    plain, endless = _matching(texts, _FLOAT), _matching(texts, _ENDLESS)
    _malformed(failures, ~(plain | endless), a, to)
    readable = pc.replace_substring_regex(texts, r"[dDfF]$", "")
    readable = pc.utf8_ltrim(pc.if_else(pa.array(plain), readable, "0"), "+")
    floats = np.asarray(readable.cast(to))
    lower = pc.utf8_lower(texts)
    floats = np.where(endless & np.asarray(pc.equal(lower, "nan")), np.nan, floats)
    infinite = endless & ~np.asarray(pc.equal(lower, "nan"))
    sign = np.where(np.asarray(pc.starts_with(texts, "-")), -np.inf, np.inf)
    return np.where(infinite, sign, floats).astype(to.to_pandas_dtype())


_DECIMAL = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"


def parsed_decimals(texts: pa.Array) -> tuple[Any, Any]:
    """Texts of numbers as whole numbers, and how many of their digits are after the point."""
    parts = pc.extract_regex(
        texts, r"^(?P<sign>[+-]?)(?P<whole>[0-9]*)\.?(?P<rest>[0-9]*)(?:[eE](?P<power>[+-]?[0-9]+))?$"
    )
    rest = parts.field("rest")
    digits = pc.binary_join_element_wise("0", parts.field("whole"), rest, "")
    # the texts of one column, each a Python number
    exact = np.array([*map(int, digits.to_pylist())], object)
    exact = np.where(np.asarray(pc.equal(parts.field("sign"), "-")), -exact, exact)
    power = np.clip(_powers(parts.field("power")), -1000, 1000)
    return exact, np.asarray(pc.utf8_length(rest)).astype(np.int64) - power


_TENS = np.array([10**n for n in range(1100)], object)


def _text_to_decimal(a: pa.Array, to: pa.DataType, zone: str, failures: Failures) -> Any:
    texts = pc.utf8_trim(a, BLANKS)
    good = _matching(texts, _DECIMAL)
    _malformed(failures, ~good, a, to)
    exact, scale = parsed_decimals(pc.if_else(pa.array(good), texts, "0"))
    up, down = _TENS[np.clip(to.scale - scale, 0, 99)], _TENS[np.clip(scale - to.scale, 0, 1099)]
    large = np.asarray((to.scale - scale > 77) & (exact != 0), bool)
    exact = np.where(scale <= to.scale, exact * up, rounded_quotient(exact, down))
    large |= np.asarray(abs(exact) >= 10**to.precision, bool)
    _too_large(failures, large, to)
    return decimals(np.where(large, 0, exact), to)


def _powers(texts: pa.Array) -> Any:
    texts = pc.if_else(pc.equal(texts, ""), "0", pc.utf8_ltrim(texts, "+"))
    texts = pc.utf8_slice_codeunits(texts, 0, 9)
    return np.asarray(texts.cast(pa.int64()))


_TRUTHS = {"true": True, "t": True, "yes": True, "y": True, "1": True}
_TRUTHS |= dict.fromkeys(("false", "f", "no", "n", "0"), False)


def _text_to_boolean(a: pa.Array, to: pa.DataType, zone: str, failures: Failures) -> Any:
    place = pc.index_in(pc.utf8_lower(pc.utf8_trim(a, BLANKS)), pa.array(list(_TRUTHS)))
    _malformed(failures, np.asarray(place.is_null()), a, to)
    return pc.less(pc.fill_null(place, 0), 5)


def _text_to_date(a: pa.Array, to: pa.DataType, zone: str, failures: Failures) -> Any:
    days, good = parsed_dates(pc.utf8_trim(a, BLANKS))
    _malformed(failures, ~good, a, to)
    return days.astype(np.int32)


def _text_to_time(a: pa.Array, to: pa.DataType, zone: str, failures: Failures) -> Any:
    times, good = parsed_times(pc.utf8_trim(a, BLANKS), to.tz)
    _malformed(failures, ~good, a, to)
    return times


def _to_text(a: pa.Array, to: pa.DataType, zone: str, failures: Failures) -> Any:
    if is_float(a.type):
        return text_of_floats(a)
    if is_decimal(a.type):
        return text_of_decimals(a)
    if of.is_timestamp(a.type):
        return text_of_times(a)
    if of.is_date32(a.type):
        return _with_sign(a.cast(pa.string()))
    return a.cast(pa.string())  # which checks that bytes are UTF-8


def text_of_floats(a: pa.Array) -> pa.Array:
    """Numbers as Java writes them: plain from 0.001 to 10,000,000, else with one digit before the point."""
    texts = a.cast(pa.string())
    parts = pc.extract_regex(
        texts, r"^(?P<sign>-?)(?P<whole>[0-9]+)\.?(?P<rest>[0-9]*)(?:e(?P<power>[+-]?[0-9]+))?$"
    )
    finite = np.asarray(pc.is_finite(a))
    formatted = pc.case_when(
        pc.make_struct(pc.is_nan(a), pc.equal(a, float("inf")), pc.equal(a, float("-inf"))),
        "NaN",
        "Infinity",
        "-Infinity",
        texts,
    )
    rows = np.flatnonzero(finite)
    parts = parts.take(pa.array(rows))
    size = np.abs(to_numpy(a)[rows].astype(np.float64))
    plain = (size == 0) | ((size >= 1e-3) & (size < 1e7))
    digits = pc.binary_join_element_wise(parts.field("whole"), parts.field("rest"), "")
    point = np.asarray(pc.utf8_length(parts.field("whole"))).astype(np.int64) + _powers(parts.field("power"))
    stripped = pc.utf8_ltrim(digits, "0")
    point = point - np.asarray(pc.utf8_length(digits)) + np.asarray(pc.utf8_length(stripped))
    stripped = pc.utf8_rtrim(stripped, "0")
    # Java writes at least two digits, and of two the nearer ones: 4.9E-324 where 5E-324 would do
    single = np.asarray(pc.equal(pc.utf8_length(stripped), 1)) & (size > 0) & (size < 1e-30)
    if single.any():
        two = pa.array(np.char.replace(np.char.mod("%.1e", size), ".", "")).cast(pa.string())
        nearest = pc.utf8_slice_codeunits(two, 0, 2)
        power = pc.utf8_ltrim(pc.utf8_slice_codeunits(two, 3), "+")
        stripped = pc.if_else(pa.array(single), pc.utf8_rtrim(nearest, "0"), stripped)
        point = np.where(single, np.asarray(power.cast(pa.int64())) + 1, point)
    # 0.d1d2d3 * 10 ** point
    texts = np.where(
        plain,
        _plain_text(stripped, point, size).to_numpy(zero_copy_only=False),
        _scientific_text(stripped, point).to_numpy(zero_copy_only=False),
    )
    signed = pc.binary_join_element_wise(parts.field("sign"), pa.array(texts, pa.string()), "")
    return pc.replace_with_mask(formatted, pa.array(finite), signed)


def _plain_text(digits: pa.Array, point: Any, size: Any) -> pa.Array:
    padded = pc.binary_join_element_wise("0" * 4, digits, "0" * 8, "")
    # the digits begin at 4: those before the point end at 4 + point
    before = sliced(padded, np.minimum(4, 3 + point), 4 + point)
    after = pc.utf8_rtrim(sliced(padded, 4 + point, np.full(len(point), 99)), "0")
    after = pc.if_else(pc.equal(after, ""), "0", after)
    text = pc.binary_join_element_wise(before, after, ".")
    return pc.if_else(pa.array(size == 0), "0.0", text)


def _scientific_text(digits: pa.Array, point: Any) -> pa.Array:
    first = pc.utf8_slice_codeunits(digits, 0, 1)
    rest = pc.utf8_slice_codeunits(digits, 1, 99)
    rest = pc.if_else(pc.equal(rest, ""), "0", rest)
    powers = pa.array(point - 1).cast(pa.string())
    return pc.binary_join_element_wise(pc.binary_join_element_wise(first, rest, "."), powers, "E")


def text_of_decimals(a: pa.Array) -> pa.Array:
    """Decimals with all digits after their point, never with an exponent."""
    scale = a.type.scale
    digits = pa.Array.from_buffers(pa.decimal128(38, 0), len(a), a.buffers(), offset=a.offset).cast(
        pa.string()
    )
    if not scale:
        return digits
    size = pc.utf8_lpad(pc.utf8_ltrim(digits, "-"), scale + 1, "0")
    parts = [pc.utf8_slice_codeunits(size, 0, -scale), pc.utf8_slice_codeunits(size, -scale)]
    sign = pc.if_else(pc.starts_with(digits, "-"), "-", "")
    return pc.binary_join_element_wise(sign, pc.binary_join_element_wise(*parts, "."), "")


def _with_sign(dates: pa.Array) -> pa.Array:
    """Texts of dates, which begin with a sign from the year 10,000 on."""
    long = pc.match_substring_regex(dates, "^[0-9]{5}")
    return pc.if_else(long, pc.binary_join_element_wise("+", dates, ""), dates)


def text_of_times(a: pa.Array) -> pa.Array:
    """Times of a zone as `2020-01-31 12:00:00.5`: without zeros at the end of the fraction."""
    local = pc.local_timestamp(a) if a.type.tz else a
    return _with_sign(pc.replace_substring_regex(local.cast(pa.string()), r"\.0+$|(\.[0-9]*[1-9])0*$", r"\1"))


# -- dates and times -----------------------------------------------------------------------------------------


def _date_to_time(a: Value, to: pa.DataType, zone: str, failures: Failures) -> Any:
    return to_instants(to_numpy(a).astype(np.int64) * DAY, to.tz)


def _time_to_date(a: Value, to: pa.DataType, zone: str, failures: Failures) -> Any:
    return (to_local(to_numpy(a), a.type.tz) // DAY).astype(np.int32)


def _time_to_time(a: pa.Array, to: pa.DataType, zone: str, failures: Failures) -> Any:
    if a.type.tz is None:
        return to_instants(to_numpy(a), to.tz)
    if to.tz is None:
        return to_local(to_numpy(a), zone)
    return a.view(to)


def _number_to_time(a: Value, to: pa.DataType, zone: str, failures: Failures) -> Any:
    x = to_numpy(a)
    if is_float(a.type):
        with np.errstate(all="ignore"):
            micros = np.atleast_1d(x).astype(np.float64) * SECOND
        bad = ~((np.floor(micros) <= 2.0**63) & (np.ceil(micros) >= -(2.0**63)))
        _too_large(failures, bad, to)
        return as_long(np.where(bad, 0, micros))
    if is_decimal(a.type):
        exact = np.atleast_1d(wide(x) * SECOND)
        exact = np.where(exact < 0, -1, 1) * (abs(exact) // 10**a.type.scale)
        large = np.asarray((exact >= 2**63) | (exact < -(2**63)), bool)
        _too_large(failures, large, to)
        return np.where(large, 0, exact).astype(np.int64)
    most = (2**63 - 1) // SECOND
    # as Spark: what is out of range becomes the first or the last time
    x = x.astype(np.int64)
    return np.where(
        x > most, 2**63 - 1, np.where(x < -most - 1, -(2**63), np.clip(x, -most - 1, most) * SECOND)
    )


def _time_to_number(a: Value, to: pa.DataType, zone: str, failures: Failures) -> Any:
    x = to_numpy(a)
    if is_float(to):
        return (x / SECOND).astype(to.to_pandas_dtype())
    if is_decimal(to):
        return _to_decimal(x, 6, to, failures)
    return _fitted(x // SECOND, to, failures)


#: which types are cast to which, and how; the first that fits
_CASTS: tuple[tuple[Callable[..., bool], Callable[..., bool], Callable[..., Any]], ...] = (
    (is_integral, is_integral, lambda a, to, zone, failures: _fitted(to_numpy(a), to, failures)),
    (is_float, is_integral, _float_to_integer),
    (is_decimal, is_integral, _decimal_to_integer),
    (is_number, is_float, _to_float),
    (is_float, is_decimal, _float_to_decimal),
    (is_number, is_decimal, _exact_to_decimal),
    (is_number, of.is_boolean, lambda a, to, zone, failures: to_numpy(a) != 0),
    (of.is_boolean, is_number, _boolean_to_number),
    (of.is_string, is_integral, _text_to_integer),
    (of.is_string, is_float, _text_to_float),
    (of.is_string, is_decimal, _text_to_decimal),
    (of.is_string, of.is_boolean, _text_to_boolean),
    (of.is_string, of.is_date32, _text_to_date),
    (of.is_string, of.is_timestamp, _text_to_time),
    (of.is_string, of.is_binary, lambda a, to, zone, failures: a.view(to)),
    (of.is_date32, of.is_timestamp, _date_to_time),
    (of.is_timestamp, of.is_date32, _time_to_date),
    (of.is_timestamp, of.is_timestamp, _time_to_time),
    (is_number, lambda to: of.is_timestamp(to) and to.tz is not None, _number_to_time),
    (lambda kind: of.is_timestamp(kind) and kind.tz is not None, is_number, _time_to_number),
    (types.is_atomic, of.is_string, _to_text),
)

spark_function("cast")(cast)
spark_function("try_cast", tries=True)(cast)
