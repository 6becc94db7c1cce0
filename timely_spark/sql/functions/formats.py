"""Dates and times by patterns of letters, such as `yyyy-MM-dd HH:mm:ss`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from timely_spark.sql.calendar import (
    DAY,
    DAY_NAMES,
    MONTH_NAMES,
    SECOND,
    civil,
    days_from,
    is_date,
    numbers_of_digits,
    to_instants,
    to_local,
)
from timely_spark.sql.functions.dates import as_dates, local
from timely_spark.sql.plain import to_numpy
from timely_spark.sql.registry import Failures, Value, spark_function

_ORDINALS = ("1st", "2nd", "3rd", "4th")
_DEFAULT = "yyyy-MM-dd HH:mm:ss"
#: the letters of numbers: what they are of local microseconds
_NUMBERS: dict[str, Any] = {
    **dict.fromkeys("ML", lambda x: civil(x // DAY)[1]),
    **dict.fromkeys("Qq", lambda x: (civil(x // DAY)[1] + 2) // 3),
    "d": lambda x: civil(x // DAY)[2],
    "D": lambda x: x // DAY - days_from(civil(x // DAY)[0], 1, 1) + 1,
    "H": lambda x: x // (3600 * SECOND) % 24,
    "k": lambda x: (x // (3600 * SECOND) % 24 + 23) % 24 + 1,
    "h": lambda x: (x // (3600 * SECOND) % 12 + 11) % 12 + 1,
    "K": lambda x: x // (3600 * SECOND) % 12,
    "m": lambda x: x // (60 * SECOND) % 60,
    "s": lambda x: x // SECOND % 60,
}


@dataclass(frozen=True)
class Letters:
    """A part of a pattern: a letter and how often it stands there; `[`, `]`; or a text, of no letter."""

    letter: str
    count: int
    text: str = ""


@cache
def letters_of(pattern: str) -> tuple[Letters, ...]:
    """The parts of a pattern.

    Raises:
        ArrowInvalid: a letter is not supported.
    """
    letters = []
    for match in re.finditer(r"'((?:[^']|'')*)'|([A-Za-z])\2*|([\[\]])|([^A-Za-z'\[\]]+)", pattern):
        if match[2] is None:  # `[` and `]` are the ends of a part that may be missing
            quoted = match[0].startswith("'")
            text = (match[1].replace("''", "'") or "'") if quoted else match[4] or ""
            letters.append(Letters(match[3] or "", 0, text))
            continue
        letter, count = match[2], len(match[0])
        valid = letter in {*_NUMBERS, *"yEaS"}
        limit = {"y": 6, "S": 6, "a": 1, "D": 3, "M": 4, "L": 4, "E": 4, "Q": 4, "q": 4}.get(letter, 2)
        if not valid or count > limit:
            msg = (
                f"the pattern {pattern!r} has {match[0]!r}; known are y M Q d D E a H h k K m s S, and '...'"
            )
            raise pa.ArrowInvalid(msg)
        letters.append(Letters(letter, count))
    return tuple(letters)


def _padded(numbers: Any, width: int) -> pa.Array:
    return pc.utf8_lpad(pa.array(np.asarray(numbers, np.int64)).cast(pa.string()), width, "0")


def _written(part: Letters, x: Any) -> pa.Array:
    """The texts of a part for local times."""
    if part.letter in {"", *"[]"}:
        return pa.repeat(part.text, len(x)) if len(x) else pa.nulls(0, pa.string())
    if part.letter == "y":
        year = civil(x // DAY)[0]
        return _padded(year % 100, 2) if part.count == 2 else _padded(year, part.count)
    if part.letter == "S":
        return pc.utf8_slice_codeunits(_padded(x % SECOND, 6), 0, part.count)
    if part.letter == "a":
        return pa.array(["AM", "PM"]).take(pa.array(x // (12 * 3600 * SECOND) % 2))
    if part.letter in "Qq" and part.count > 2:
        shown = ["Q1", "Q2", "Q3", "Q4"] if part.count == 3 else [f"{n} quarter" for n in _ORDINALS]
        return pa.array(shown).take(pa.array(_NUMBERS["Q"](x) - 1))
    names = DAY_NAMES if part.letter == "E" else MONTH_NAMES
    if part.letter == "E" or (part.letter in "ML" and part.count > 2):
        place = (x // DAY + 3) % 7 if part.letter == "E" else civil(x // DAY)[1] - 1
        shown = [name if part.count == 4 else name[:3] for name in names]
        return pa.array(shown).take(pa.array(place))
    return _padded(_NUMBERS[part.letter](x), part.count)


@spark_function("date_format", "timestamp, string -> string", constant=[1])
def _date_format(a: Value, pattern: pa.Scalar) -> Any:
    return formatted(local(a), pattern.as_py())


@spark_function("from_unixtime", "bigint, string? -> string", constant=[1])
def _from_unixtime(a: Value, pattern: pa.Scalar | None = None, *, zone: str) -> Any:
    x = to_local(np.atleast_1d(to_numpy(a)) * SECOND, zone)
    return formatted(x, _DEFAULT if pattern is None else pattern.as_py())


def formatted(x: Any, pattern: str) -> pa.Array:
    """Local microseconds as texts of a pattern."""
    texts = [_written(part, x) for part in letters_of(pattern)]
    return pc.binary_join_element_wise(*texts, "") if texts else pa.array([""] * len(x))


def _reads(part: Letters) -> str:
    """The regular expression of a part."""
    if not part.letter:
        return re.escape(part.text)
    if part.letter == "y":
        return "[0-9]{2}" if part.count == 2 else f"[0-9]{{{part.count}}}" if part.count > 1 else "[0-9]{1,6}"
    if part.letter == "S":
        return f"[0-9]{{1,{part.count}}}"
    if part.letter == "a":
        return "AM|PM|am|pm"
    if part.letter in "ML" and part.count > 2:
        return "|".join(name if part.count == 4 else name[:3] for name in MONTH_NAMES)
    if part.letter == "D":
        return f"[0-9]{{{part.count},3}}"
    return f"[0-9]{{{part.count}}}" if part.count > 1 else "[0-9]{1,2}"


def read_by_pattern(texts: pa.Array, pattern: str) -> tuple[Any, Any]:
    """The local microseconds of texts, and which of them are as the pattern says."""
    parts = letters_of(pattern)
    if any(part.letter in {*"EQq"} for part in parts):
        msg = f"the pattern {pattern!r} reads a day of the week or a quarter, which Spark only writes"
        raise pa.ArrowInvalid(msg)
    ends = {"[": "(?:", "]": ")?"}
    groups = [ends.get(part.letter, f"(?P<p{n}>{_reads(part)})") for n, part in enumerate(parts)]
    captured = pc.extract_regex(texts, "^" + "".join(groups) + r"\z")
    good = np.asarray(captured.is_valid())
    fields = {
        "y": np.full(len(texts), 1970),
        "M": np.ones(len(texts), np.int64),
        "d": np.ones(len(texts), np.int64),
    }
    for n, part in enumerate(parts):
        if part.letter in {"", *ends}:
            continue
        key = "M" if part.letter == "L" else part.letter
        read = pc.fill_null(captured.field(f"p{n}"), "")
        fields[key] = np.where(pc.equal(read, ""), fields.get(key, 0), _value(part, read, good))
    hour: Any = fields.get("H", fields.get("k", np.zeros(len(texts), np.int64)) % 24)
    if "h" in fields or "K" in fields:
        hour = fields.get("h", fields.get("K", 0)) % 12 + 12 * fields.get("a", 0)
        good = good & (fields.get("h", 1) > 0) & (fields.get("h", 0) < 13)
    minute, second = (fields.get(key, np.zeros(len(texts), np.int64)) for key in "ms")
    good = good & is_date(fields["y"], fields["M"], fields["d"]) & (hour < 24) & (minute < 60) & (second < 60)
    date = days_from(fields["y"], np.where(good, fields["M"], 1), np.where(good, fields["d"], 1))
    if "D" in fields:
        date = days_from(fields["y"], 1, 1) + fields["D"] - 1
        good = good & (fields["D"] > 0) & (civil(date)[0] == fields["y"])
    times = date * DAY + ((hour * 60 + minute) * 60 + second) * SECOND + fields.get("S", 0)
    return np.where(good, times, 0), good


def _value(part: Letters, texts: pa.Array, good: Any) -> Any:
    """The value of a part, as a number."""
    if part.letter == "a":
        return np.asarray(pc.equal(pc.ascii_upper(texts), "PM")).astype(np.int64)
    if part.letter in "ML" and part.count > 2:
        shown = pa.array([name if part.count == 4 else name[:3] for name in MONTH_NAMES])
        return np.asarray(pc.fill_null(pc.index_in(texts, shown), 0)).astype(np.int64) + 1
    digits = pc.if_else(pa.array(good), texts, "")
    numbers = numbers_of_digits(pc.utf8_rpad(digits, 6, "0") if part.letter == "S" else digits, 0)
    return numbers + 2000 if part.letter == "y" and part.count == 2 else numbers


def _checked(texts: pa.Array, pattern: pa.Scalar, failures: Failures) -> Any:
    times, good = read_by_pattern(texts, pattern.as_py())
    if not good.all():
        first = texts[int(np.flatnonzero(~good)[0])].as_py()
        failures.at(~good, f"the text {first!r} is not as {pattern.as_py()!r} says", "use try_to_timestamp.")
    return times


def _to_date(text: pa.Array, pattern: pa.Scalar, *, failures: Failures) -> Any:
    return as_dates(_checked(text, pattern, failures) // DAY, failures)


def _to_timestamp(text: pa.Array, pattern: pa.Scalar, *, result: pa.DataType, failures: Failures) -> Any:
    return to_instants(_checked(text, pattern, failures), result.tz)


for _prefix, _tries in (("$", False), ("$try_", True)):
    spark_function(f"{_prefix}to_date", "string, string -> date", constant=[1], tries=_tries)(_to_date)
    spark_function(f"{_prefix}to_timestamp", "string, string -> timestamp", constant=[1], tries=_tries)(
        _to_timestamp
    )
spark_function("$to_timestamp_ltz", "string, string -> timestamp", constant=[1])(_to_timestamp)
spark_function("$to_timestamp_ntz", "string, string -> timestamp_ntz", constant=[1])(_to_timestamp)


@spark_function("$unix_timestamp", "string, =string -> bigint", constant=[1])
def _unix_timestamp(text: pa.Array, pattern: pa.Scalar, *, zone: str, failures: Failures) -> Any:
    return to_instants(_checked(text, pattern, failures), zone) // SECOND


@spark_function("$unix_seconds", "timestamp -> bigint")
def _unix_seconds(a: Value) -> Any:
    x = np.atleast_1d(to_numpy(a))
    return np.sign(x) * (np.abs(x) // SECOND)
