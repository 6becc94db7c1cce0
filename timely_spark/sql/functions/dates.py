"""Functions of dates and times."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from timely_spark.sql import types
from timely_spark.sql.calendar import (
    DAY,
    DAY_NAMES,
    DAYS_OF,
    MICROS_OF,
    MONTH_NAMES,
    MONTHS_OF,
    SECOND,
    civil,
    days_from,
    days_in,
    is_date,
    later,
    plus_months,
    resolved,
    to_instants,
    to_local,
    zone_of,
)
from timely_spark.sql.plain import as_long, decimals, longs, to_numpy, unscaled
from timely_spark.sql.registry import Failures, Typed, Value, as_array, spark_function
from timely_spark.sql.types import INTERVAL

_RANGE = "dates lie between the years -5,877,641 and 5,881,580."


def local(value: Value) -> Any:
    """The local times of timestamps in their zone, or of dates, as microseconds."""
    x = np.atleast_1d(to_numpy(value)).astype(np.int64)
    return x * DAY if pa.types.is_date32(value.type) else to_local(x, value.type.tz)


def days(value: Value) -> Any:
    """The days of dates, or of timestamps in their zone."""
    x = np.atleast_1d(to_numpy(value)).astype(np.int64)
    return x if pa.types.is_date32(value.type) else to_local(x, value.type.tz) // DAY


def as_dates(day_numbers: Any, failures: Failures) -> Any:
    """Days since 1970; those out of range fail."""
    far = np.abs(day_numbers) > 2**31 - 1
    failures.at(far, "the date is out of range", _RANGE)
    return pa.array(np.where(far, 0, day_numbers).astype(np.int32)).view(pa.date32())


def _part(names: str, part: Callable[[Any], Any]) -> None:
    @spark_function(names, "date -> int")
    def _kernel(a: Value) -> Any:
        return np.asarray(part(days(a)), np.int32)


def _iso_week(x: Any) -> tuple[Any, Any]:
    """The ISO year and week: those of the Thursday."""
    thursday = x - (x + 3) % 7 + 3
    year = civil(thursday)[0]
    return year, (thursday - days_from(year, 1, 1)) // 7 + 1


for _name, _of in (
    ("year", lambda x: civil(x)[0]),
    ("quarter", lambda x: (civil(x)[1] + 2) // 3),
    ("month", lambda x: civil(x)[1]),
    ("day dayofmonth", lambda x: civil(x)[2]),
    ("dayofweek", lambda x: (x + 4) % 7 + 1),
    ("weekday", lambda x: (x + 3) % 7),
    ("dayofyear", lambda x: x - days_from(civil(x)[0], 1, 1) + 1),
    ("weekofyear", lambda x: _iso_week(x)[1]),
    ("$iso_year", lambda x: _iso_week(x)[0]),
    ("$iso_weekday", lambda x: (x + 3) % 7 + 1),
    ("unix_date", lambda x: x),
):
    _part(_name, _of)


def _clock(name: str, unit: int, number: int) -> None:
    @spark_function(name, "time -> int")
    def _kernel(a: Value) -> Any:
        return (local(a) // unit % number).astype(np.int32)


_clock("hour", 3600 * SECOND, 24)
_clock("minute", 60 * SECOND, 60)
_clock("second", SECOND, 60)


@spark_function("$second_with_fraction", "time -> decimal(8,6)")
def _second_with_fraction(a: Value, *, result: pa.DataType) -> Any:
    return decimals(local(a) % (60 * SECOND), result)


def _interval_part(name: str, typed: str, unit: int, number: int) -> None:
    @spark_function(f"$interval_{name}", typed)
    def _kernel(a: Value, *, result: pa.DataType) -> Any:
        x = np.atleast_1d(to_numpy(a)).astype(np.int64)
        part = np.sign(x) * (np.abs(x) // unit % number)
        return decimals(part, result) if types.is_decimal(result) else part.astype(result.to_pandas_dtype())


_interval_part("year", "months -> int", 12, 2**31)
_interval_part("month", "months -> tinyint", 1, 12)
_interval_part("day", "daytime -> int", DAY, 2**31)
_interval_part("hour", "daytime -> tinyint", 3600 * SECOND, 24)
_interval_part("minute", "daytime -> tinyint", 60 * SECOND, 60)
_interval_part("second", "daytime -> decimal(8,6)", 1, 60 * SECOND)


@spark_function("dayname", "date -> string")
def _dayname(a: Value) -> Any:
    return pa.array([one[:3] for one in DAY_NAMES]).take(pa.array((days(a) + 3) % 7))


@spark_function("monthname", "date -> string")
def _monthname(a: Value) -> Any:
    return pa.array([one[:3] for one in MONTH_NAMES]).take(pa.array(civil(days(a))[1] - 1))


@spark_function("date_add", "date, int32 -> date")
def _date_add(a: Value, n: Value, *, failures: Failures) -> Any:
    return as_dates(days(a) + to_numpy(n), failures)


@spark_function("date_sub", "date, int32 -> date")
def _date_sub(a: Value, n: Value, *, failures: Failures) -> Any:
    return as_dates(days(a) - to_numpy(n), failures)


spark_function("datediff", "date, date -> int")(lambda a, b: (days(a) - days(b)).astype(np.int32))


@spark_function("add_months", "date, int -> date")
def _add_months(a: Value, n: Value, *, failures: Failures) -> Any:
    return as_dates(plus_months(days(a), to_numpy(n).astype(np.int64)), failures)


@spark_function("last_day", "date -> date")
def _last_day(a: Value, *, failures: Failures) -> Any:
    year, month, _ = civil(days(a))
    return as_dates(days_from(year, month + 1, 0 + 1) - 1, failures)


_WEEK = {name[:size].upper(): n for n, name in enumerate(DAY_NAMES) for size in (2, 3, 9)}


@spark_function("next_day", "date, string -> date", constant=[1])
def _next_day(a: Value, name: pa.Scalar, *, failures: Failures) -> Any:
    x = days(a)
    weekday = _WEEK.get(name.as_py().strip().upper())
    if weekday is None:
        failures.at(np.ones(len(x), bool), f"{name.as_py()!r} is not a day of the week", "write 'MON'.")
        return as_dates(x, failures)
    return as_dates(x + (weekday - 1 - (x + 3)) % 7 + 1, failures)


def truncated(x: Any, unit: str) -> Any:
    """Days at the beginning of their week, month, quarter or year; None if it is not one of them."""
    year, month, _ = civil(x)
    if unit in {"YEAR", "YYYY", "YY"}:
        return days_from(year, 1, 1)
    if unit == "QUARTER":
        return days_from(year, (month - 1) // 3 * 3 + 1, 1)
    if unit in {"MONTH", "MM", "MON"}:
        return days_from(year, month, 1)
    return x - (x + 3) % 7 if unit == "WEEK" else None


@spark_function("trunc", "date, string -> date", constant=[1])
def _trunc(a: Value, unit: pa.Scalar, *, length: int, failures: Failures) -> Any:
    first_days = truncated(days(a), unit.as_py().upper())
    return pa.nulls(length, pa.date32()) if first_days is None else as_dates(first_days, failures)


_CLOCK = {**MICROS_OF, "DAY": DAY, "DD": DAY}


@spark_function("date_trunc", "string, timestamp -> timestamp", constant=[0])
def _date_trunc(unit: pa.Scalar, a: Value, *, result: pa.DataType, length: int) -> Any:
    name, x = unit.as_py().upper(), local(a)
    if name in _CLOCK:
        return resolved(x // _CLOCK[name] * _CLOCK[name], np.atleast_1d(to_numpy(a)), result.tz)
    start = truncated(x // DAY, name)
    return pa.nulls(length, result) if start is None else to_instants(start * DAY, result.tz)


def _bucket(kinds: Sequence[pa.DataType], zone: str) -> Typed | None:
    """A width, a time, and perhaps the begin of one bucket, all of the time's type."""
    if not 2 <= len(kinds) <= 3 or kinds[0] != types.INTERVAL or not pa.types.is_timestamp(kinds[1]):
        return None
    typed = [types.INTERVAL, *[kinds[1]] * (len(kinds) - 1)], kinds[1]
    return typed if kinds[-1] in {kinds[1], pa.null()} else None


@spark_function("$time_bucket", _bucket, constant=[0])
def _time_bucket(width: pa.Scalar, a: Value, begin: Value | None = None, *, result: pa.DataType) -> Any:
    size, x = int(to_numpy(width)), np.atleast_1d(to_numpy(a))
    if size <= 0:
        msg = "time_bucket of a width that is not positive"
        raise pa.ArrowInvalid(msg)
    if size >= DAY:  # in days of the calendar, which may have 23 or 25 hours
        y = local(a)
        return to_instants(y - (y - (0 if begin is None else local(begin))) % size, result.tz)
    first = to_instants(np.zeros(1, np.int64), result.tz) if begin is None else to_numpy(begin)
    return x - (x - first) % size


@spark_function("make_dt_interval", "int?, int?, int?, decimal(18,6)? -> daytime")
def _make_dt_interval(*parts: Value, length: int, failures: Failures) -> Any:
    total = np.zeros(length, object)  # integers of any size
    for part, unit in zip(parts, (DAY, 3600 * SECOND, 60 * SECOND), strict=False):
        total = total + np.broadcast_to(to_numpy(part), length).astype(object) * unit
    if len(parts) > 3:
        total = total + np.broadcast_to(unscaled(as_array(parts[3], length)).astype(object), length)
    wide = np.abs(total) >= 2**63
    failures.at(wide.astype(bool), "the interval is too long", "give fewer days.")
    return np.where(wide, 0, total).astype(np.int64)


@spark_function("make_ym_interval", "int?, int? -> months")
def _make_ym_interval(*parts: Value, length: int, failures: Failures) -> Any:
    total = np.zeros(length, np.int64)
    for part, months in zip(parts, (12, 1), strict=False):
        total = total + longs(part, length) * months
    wide = np.abs(total) >= 2**31
    failures.at(wide, "the interval is too long", "give fewer years.")
    return np.where(wide, 0, total).astype(np.int32)


@spark_function("months_between", "timestamp, timestamp, boolean? -> double")
def _months_between(a: Value, b: Value, rounded: Value | None = None) -> Any:
    x, y = local(a), local(b)
    (year, month, day), (year_b, month_b, day_b) = civil(x // DAY), civil(y // DAY)
    months = (year - year_b) * 12.0 + (month - month_b)
    last = (day == days_in(year, month)) & (day_b == days_in(year_b, month_b))
    seconds = (day - day_b) * 86_400 + _since_midnight(a) - _since_midnight(b)
    difference = np.where((day == day_b) | last, months, months + seconds / (31.0 * 86_400))
    half_up = np.sign(difference) * np.floor(np.abs(difference) * 1e8 + 0.5) / 1e8
    return half_up if rounded is None else np.where(to_numpy(rounded), half_up, difference)


def _since_midnight(a: Value) -> Any:
    """The seconds since the day of a time began, by the clock."""
    x = np.atleast_1d(to_numpy(a))
    return (x - to_instants(to_local(x, a.type.tz) // DAY * DAY, a.type.tz)) // SECOND


# -- numbers -------------------------------------------------------------------------------------------------


def _since(names: str, unit: int) -> None:
    @spark_function(names, "=timestamp -> bigint")
    def _kernel(a: Value) -> Any:
        return to_numpy(a) // unit


_since("unix_seconds", SECOND)
_since("unix_millis", 1000)
_since("unix_micros", 1)


spark_function("$micros", "time -> bigint")(to_numpy)
spark_function("$time", "bigint, time -> time", result=lambda _, like: like)(lambda a, like: to_numpy(a))


def _from_units(names: str, unit: int) -> None:
    @spark_function(names, "=bigint -> timestamp")
    def _kernel(a: Value, *, failures: Failures) -> Any:
        x = to_numpy(a)
        with np.errstate(over="ignore"):
            micros = x * unit
        failures.at(micros // unit != x, "the time is out of range", "leave it out by a condition.")
        return micros


_from_units("timestamp_millis", 1000)
_from_units("timestamp_micros", 1)


@spark_function("timestamp_seconds", "=number -> timestamp")
def _timestamp_seconds(a: Value, *, result: pa.DataType, failures: Failures) -> Any:
    x = to_numpy(a)
    if types.is_integral(a.type):
        x = x.astype(np.int64)
        far = np.abs(x // 2) > 2**62 // SECOND
        failures.at(far, "the time is out of range", "leave it out by a condition.")
        return np.where(far, 0, x) * SECOND
    if types.is_decimal(a.type):
        exact = np.atleast_1d(x).astype(object) * SECOND
        rest = np.asarray(exact % 10**a.type.scale != 0, bool)
        failures.at(rest, "the time has a part smaller than a microsecond", "round it to 6 digits.")
        return np.asarray(exact // 10**a.type.scale).astype(np.int64)
    bad = ~np.isfinite(x)
    with np.errstate(over="ignore"):
        return pa.array(as_long(np.where(bad, 0, x).astype(np.float64) * SECOND), mask=bad)


spark_function("date_from_unix_date", "int -> date")(lambda a: a.view(pa.date32()))


@spark_function("make_date", "int, int, int -> date")
def _make_date(year: Value, month: Value, day: Value, *, length: int, failures: Failures) -> Any:
    y, m, d = (longs(one, length) for one in (year, month, day))
    bad = ~is_date(y, m, d)
    failures.at(bad, "there is no such date", "leave it out by a condition.")
    return as_dates(days_from(np.where(bad, 1970, y), np.where(bad, 1, m), np.where(bad, 1, d)), failures)


@spark_function(
    "make_timestamp make_timestamp_ltz",
    "int, int, int, int, int, decimal(16,6), string? -> timestamp",
    constant=[6],
)
def _make_timestamp(*parts: Value, length: int, zone: str, failures: Failures) -> Any:
    return to_instants(_fields(parts[:6], length, failures), parts[6].as_py() if len(parts) > 6 else zone)


@spark_function("make_timestamp_ntz", "int, int, int, int, int, decimal(16,6) -> timestamp_ntz")
def _make_timestamp_ntz(*parts: Value, length: int, failures: Failures) -> Any:
    return _fields(parts, length, failures)


def _fields(parts: tuple[Value, ...], length: int, failures: Failures) -> Any:
    year, month, day, hour, minute, micros = (longs(one, length) for one in parts)
    whole = (micros == 60 * SECOND) & (minute < 60)
    bad = ~is_date(year, month, day) | (hour < 0) | (hour > 23) | (minute < 0) | (minute > 59)
    bad |= (micros < 0) | ((micros >= 60 * SECOND) & ~whole)
    failures.at(bad, "there is no such time", "use try_make_timestamp, which gives null there.")
    date = days_from(np.where(bad, 1970, year), np.where(bad, 1, month), np.where(bad, 1, day))
    return date * DAY + np.where(bad, 0, (hour * 60 + minute) * 60 * SECOND + micros)


# -- zones ---------------------------------------------------------------------------------------------------


def _zone_name(zone: pa.Scalar, length: int, failures: Failures) -> str:
    name = str(zone.as_py())
    if zone_of(name) is None:
        failures.at(np.ones(length, bool), f"there is no time zone {name!r}", "write 'Europe/Berlin'.")
        return "UTC"
    return name


@spark_function("from_utc_timestamp", "timestamp, string -> timestamp", constant=[1])
def _from_utc(a: Value, name: pa.Scalar, *, length: int, failures: Failures) -> Any:
    return to_local(np.atleast_1d(to_numpy(a)), _zone_name(name, length, failures))


@spark_function("to_utc_timestamp", "timestamp, string -> timestamp", constant=[1])
def _to_utc(a: Value, name: pa.Scalar, *, length: int, failures: Failures) -> Any:
    return to_instants(np.atleast_1d(to_numpy(a)), _zone_name(name, length, failures))


@spark_function("convert_timezone", "string, string, timestamp_ntz -> timestamp_ntz", constant=[0, 1])
def _convert_timezone(
    source: pa.Scalar, target: pa.Scalar, a: Value, *, length: int, failures: Failures
) -> Any:
    instants = to_instants(np.atleast_1d(to_numpy(a)), _zone_name(source, length, failures))
    return to_local(instants, _zone_name(target, length, failures))


# -- intervals -----------------------------------------------------------------------------------------------


def _out_of_range(failures: Failures, rows: Any) -> None:
    failures.at(rows, "the result is out of range", "leave it out by a condition.")


def _moved(sign: int) -> Callable[..., Any]:
    """Dates and times that are later, or earlier, by months or by microseconds."""

    def kernel(a: Value, by: Value, *, result: pa.DataType, failures: Failures) -> Any:
        n = np.atleast_1d(to_numpy(by)).astype(np.int64) * sign
        if pa.types.is_date32(result):
            x = days(a)
            return as_dates(plus_months(x, n) if by.type == types.MONTHS else x + n // DAY, failures)
        x = np.atleast_1d(to_numpy(a))
        if by.type == types.MONTHS:
            return later(x, result.tz, months=n)
        # whole days by the calendar, and the rest by the clock
        whole = np.sign(n) * (np.abs(n) // DAY)
        with np.errstate(over="ignore"):
            moved = x + n
            _out_of_range(failures, ((moved ^ x) & (moved ^ n)) < 0)
            return later(x, result.tz, days=whole) + (n - whole * DAY)

    return kernel


spark_function("$later")(_moved(1))
spark_function("$earlier")(_moved(-1))


spark_function("$days_between", "date, date -> daytime")(lambda a, b: (days(a) - days(b)) * DAY)


@spark_function("$time_between", "time, time -> daytime")
def _time_between(a: Value, b: Value, *, failures: Failures) -> Any:
    x, y = local(a), local(b)
    with np.errstate(over="ignore"):
        difference = x - y
    _out_of_range(failures, ((x ^ y) & (difference ^ x)) < 0)
    return difference


spark_function("$of_seconds", "daytime -> decimal(19,6)")(lambda a, *, result: decimals(to_numpy(a), result))
spark_function("$of_days", "daytime -> bigint")(lambda a: to_numpy(a) // DAY)


def _of_intervals(sign: int) -> Callable[..., Any]:
    def kernel(a: Value, b: Value, *, failures: Failures) -> Any:
        x, y = (np.atleast_1d(to_numpy(one)).astype(np.int64) for one in (a, b))
        with np.errstate(over="ignore"):
            total = x + sign * y
        _out_of_range(failures, ((total ^ x) & (total ^ sign * y)) < 0)
        return total if a.type == INTERVAL else total.astype(np.int32)

    return kernel


for _operator, _sign in (("$plus", 1), ("$minus", -1)):
    spark_function(_operator, "daytime, daytime -> daytime", "months, months -> months")(_of_intervals(_sign))


@spark_function("$times", "daytime, number -> daytime", "months, number -> months")
def _times(a: Value, by: Value, *, result: pa.DataType, failures: Failures) -> Any:
    x, y = np.atleast_1d(to_numpy(a)).astype(np.int64), _factor(by)
    with np.errstate(all="ignore"):
        _out_of_range(failures, np.abs(x * np.float64(1) * y - (product := x * y)) > 2.0**62)  # it wrapped
        return _scaled(product, result, failures)


@spark_function("$over", "daytime, number -> daytime", "months, number -> months")
def _over(a: Value, by: Value, *, result: pa.DataType, failures: Failures) -> Any:
    divisor = np.atleast_1d(_factor(by))
    failures.at(divisor == 0, "division by zero", "use NULLIF(divisor, 0), which gives null there.")
    return _scaled(np.atleast_1d(to_numpy(a)) / np.where(divisor == 0, 1, divisor), result, failures)


def _factor(by: Value) -> Any:
    x = to_numpy(by)
    return x / 10.0**by.type.scale if types.is_decimal(by.type) else x


def _scaled(quantity: Any, result: pa.DataType, failures: Failures) -> Any:
    width = np.int64 if result == INTERVAL else np.int32
    if quantity.dtype.kind == "f":
        quantity = np.sign(quantity) * np.floor(np.abs(quantity) + 0.5)
    bad = ~(np.abs(quantity.astype(np.float64)) <= np.iinfo(width).max)
    _out_of_range(failures, bad)
    return np.where(bad, 0, quantity).astype(width)


@spark_function("$timestampadd", "string, bigint, time -> time", result=lambda *kinds: kinds[2], constant=[0])
def _timestampadd(
    unit: pa.Scalar, number: Value, a: Value, *, result: pa.DataType, failures: Failures
) -> Any:
    name, n, x = unit.as_py(), to_numpy(number), np.atleast_1d(to_numpy(a))
    if name in MONTHS_OF:
        return later(x, result.tz, months=n * MONTHS_OF[name])
    return later(x, result.tz, days=n * DAYS_OF[name]) if name in DAYS_OF else x + n * _CLOCK[name]


@spark_function("$timestampdiff", "string, timestamp, timestamp -> bigint", constant=[0])
def _timestampdiff(unit: pa.Scalar, a: Value, b: Value) -> Any:
    name, x, y = unit.as_py(), local(a), local(b)
    if name in MONTHS_OF:
        (first, since), (last, until) = np.divmod(x, DAY), np.divmod(y, DAY)
        # a last day that is not over is not counted
        last = last - ((last > first) & (until < since)) + ((last < first) & (until > since))
        (year, month, day), (year_b, month_b, day_b) = civil(first), civil(last)
        months = (year_b - year) * 12 + month_b - month
        months = months - ((months > 0) & (day_b < day)) + ((months < 0) & (day_b > day))
        size = MONTHS_OF[name]
        return np.sign(months) * (np.abs(months) // size)
    gap, size = y - x, DAYS_OF.get(name, 0) * DAY or _CLOCK[name]
    return np.sign(gap) * (np.abs(gap) // size)
