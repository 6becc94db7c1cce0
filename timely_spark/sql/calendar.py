"""Days, times and zones of whole columns, as Java has them; texts of dates, as Spark reads them."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

SECOND = 1_000_000
"""Microseconds."""
DAY = 86_400 * SECOND
DAY_NAMES = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
MONTH_NAMES = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October",
    "November", "December",
)  # fmt: skip
#: units of time by their names in SQL: their months, days, or microseconds
MONTHS_OF = {"YEAR": 12, "QUARTER": 3, "MONTH": 1}
DAYS_OF = {"WEEK": 7, "DAY": 1, "DAYOFYEAR": 1}
MICROS_OF = {
    "HOUR": 3600 * SECOND,
    "MINUTE": 60 * SECOND,
    "SECOND": SECOND,
    "MILLISECOND": 1000,
    "MICROSECOND": 1,
}


def days_from(year: Any, month: Any, day: Any) -> Any:
    """The days since 1970 of dates (proleptic Gregorian); months count from 1 and may be any number."""
    months = np.asarray(year, np.int64) * 12 + month - 1
    year, month = months // 12, months % 12 + 1
    shifted = year - (month <= 2)
    era = shifted // 400
    of_era = shifted - era * 400
    of_year = (153 * (month + np.where(month > 2, -3, 9)) + 2) // 5 + day - 1
    return era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719_468


def civil(days: Any) -> tuple[Any, Any, Any]:
    """The year, month and day of days since 1970."""
    shifted = np.asarray(days, np.int64) + 719_468
    era = shifted // 146_097
    of_era = shifted - era * 146_097
    year = (of_era - of_era // 1460 + of_era // 36_524 - of_era // 146_096) // 365
    of_year = of_era - (365 * year + year // 4 - year // 100)
    month = (5 * of_year + 2) // 153
    day = of_year - (153 * month + 2) // 5 + 1
    month = month + np.where(month < 10, 3, -9)
    return year + era * 400 + (month <= 2), month, day


def days_in(year: Any, month: Any) -> Any:
    """The number of days of months."""
    return days_from(year, np.asarray(month) + 1, 1) - days_from(year, month, 1)


def is_date(year: Any, month: Any, day: Any) -> Any:
    """Whether there is such a date."""
    month_good = (month >= 1) & (month <= 12)
    return month_good & (day >= 1) & (day <= days_in(year, np.where(month_good, month, 1)))


def plus_months(days: Any, months: Any) -> Any:
    """Dates some months later: the last day of a month that is too short."""
    year, month, day = civil(days)
    total = year * 12 + month - 1 + months
    year, month = total // 12, total % 12 + 1
    return days_from(year, month, np.minimum(day, days_in(year, month)))


# -- zones ---------------------------------------------------------------------------------------------------

_SHORT = {
    "ACT": "Australia/Darwin", "AET": "Australia/Sydney", "AGT": "America/Argentina/Buenos_Aires",
    "ART": "Africa/Cairo", "AST": "America/Anchorage", "BET": "America/Sao_Paulo", "BST": "Asia/Dhaka",
    "CAT": "Africa/Harare", "CNT": "America/St_Johns", "CST": "America/Chicago", "CTT": "Asia/Shanghai",
    "EAT": "Africa/Addis_Ababa", "ECT": "Europe/Paris", "IET": "America/Indiana/Indianapolis",
    "IST": "Asia/Kolkata", "JST": "Asia/Tokyo", "MIT": "Pacific/Apia", "NET": "Asia/Yerevan",
    "NST": "Pacific/Auckland", "PLT": "Asia/Karachi", "PNT": "America/Phoenix", "PRT": "America/Puerto_Rico",
    "PST": "America/Los_Angeles", "SST": "Pacific/Guadalcanal", "VST": "Asia/Ho_Chi_Minh", "EST": "-05:00",
    "MST": "-07:00", "HST": "-10:00",
}  # fmt: skip
_OFFSET = re.compile(r"(?:UTC|GMT|UT)?([+-])(\d{1,2})(?::?(\d{2}))?(?::?(\d{2}))?")


@cache
def zone_of(text: str) -> str | int | None:
    """A zone's name in the database, or its offset in microseconds; None if there is no such zone.

    >>> zone_of("Europe/Berlin"), zone_of("+2"), zone_of("GMT-03:30"), zone_of("Z"), zone_of("Mars")
    ('Europe/Berlin', 7200000000, -12600000000, 0, None)
    """
    name = _SHORT.get(text, text)
    if name in {"Z", "UTC", "GMT", "UT"}:
        return 0
    if (offset := _OFFSET.fullmatch(name)) is not None:
        hours, minutes, seconds = (int(part or 0) for part in offset.groups()[1:])
        if hours > 18 or minutes > 59 or seconds > 59 or hours * 3600 + minutes * 60 + seconds > 18 * 3600:
            return None
        return (-1 if offset[1] == "-" else 1) * (hours * 3600 + minutes * 60 + seconds) * SECOND
    try:
        pc.assume_timezone(pa.array([0], pa.timestamp("us")), name)
    except pa.ArrowException:
        return None
    return name


def to_instants(local: Any, zone: str | None) -> Any:
    """The instants (microseconds since 1970) of local times in a zone, as Java: of two the earlier one.

    A local time that a clock leaves out is moved forward by what it leaves out.
    """
    zone_name = 0 if zone is None else zone_of(zone)
    if not isinstance(zone_name, str):
        return np.asarray(local) - (zone_name or 0)
    times = pa.array(np.asarray(local, np.int64)).view(pa.timestamp("us"))
    zoned = pc.assume_timezone(times, zone_name, ambiguous="earliest", nonexistent="latest")
    instants = np.asarray(zoned.view(pa.int64()))
    missing = to_local(instants, zone_name) != local
    if not missing.any():
        return instants
    before = instants - 1
    return np.where(missing, local - (to_local(before, zone_name) - before), instants)


def resolved(local: Any, near: Any, zone: str | None) -> Any:
    """The instants of local times in a zone; of two the one with the offset that an instant near it has."""
    instants = near + (local - to_local(near, zone))
    return np.where(to_local(instants, zone) == local, instants, to_instants(local, zone))


def later(instants: Any, zone: str | None, *, months: Any = 0, days: Any = 0) -> Any:
    """Instants some months or days later, by the clocks of a zone: a day may have 23 hours."""
    clock = to_local(instants, zone)
    day = plus_months(clock // DAY, months) if np.any(months) else clock // DAY
    return resolved((day + days) * DAY + clock % DAY, instants, zone)


def to_local(instants: Any, zone: str | None) -> Any:
    """The local times in a zone of instants, as microseconds."""
    zone_name = 0 if zone is None else zone_of(zone)
    if not isinstance(zone_name, str):
        return np.asarray(instants) + (zone_name or 0)
    times = pa.array(np.asarray(instants, np.int64)).view(pa.timestamp("us", zone_name))
    return np.asarray(pc.local_timestamp(times).view(pa.int64()))


# -- texts ---------------------------------------------------------------------------------------------------

_DAY = r"(?P<year>[+-]?[0-9]{4,7})(?:-(?P<month>[0-9]{1,2})(?:-(?P<day>[0-9]{1,2})%s)?)?"
_DATE = "^" + _DAY % r"(?:[ T](?P<rest>(?s:.*)))?" + "$"
_TIME = (
    "^" + _DAY % (
        r"(?:[ T](?P<hour>[0-9]{1,2})(?::(?P<minute>[0-9]{1,2})(?::(?P<second>[0-9]{1,2})"
        r"(?:\.(?P<fraction>[0-9]*))?(?P<zone> *[A-Za-z+-][A-Za-z0-9_/:+-]*)?)?)?)?"
    ) + "$"
)  # fmt: skip


def _parts(texts: pa.Array, pattern: str) -> pa.StructArray:
    """The groups of a pattern; null where a text does not match."""
    return pc.extract_regex(texts, pattern)


def numbers_of_digits(texts: pa.Array, default: int) -> Any:
    """Digits as numbers; a default for a text without."""
    texts = pc.fill_null(texts, "")
    texts = pc.if_else(pc.equal(texts, ""), str(default), pc.utf8_ltrim(texts, "+"))
    return np.asarray(texts.cast(pa.int64()))


def parsed_dates(texts: pa.Array) -> tuple[Any, Any]:
    """The days since 1970 of texts such as `2020-1-31`, and whether each is one."""
    parts = _parts(texts, _DATE)
    year, month, day = (
        numbers_of_digits(parts.field(n), default) for n, default in ((0, 1970), (1, 1), (2, 1))
    )
    good = np.asarray(parts.is_valid()) & is_date(year, month, day)
    return np.where(good, days_from(year, np.where(good, month, 1), day), 0), good


def parsed_times(texts: pa.Array, zone: str | None) -> tuple[Any, Any]:
    """The microseconds of texts such as `2020-01-31 12:00:00.5 Europe/Berlin`, and whether each is one.

    A text without a zone is of `zone`; without `zone` times are local, and the text's zone is ignored.
    """
    parts = _parts(texts, _TIME)
    fields = [parts.field(n) for n in range(8)]
    year, month, day, hour, minute, second = (
        numbers_of_digits(field, default)
        for field, default in zip(fields, (1970, 1, 1, 0, 0, 0), strict=False)
    )
    fraction = pc.utf8_slice_codeunits(pc.fill_null(fields[6], ""), 0, 6)
    micros = numbers_of_digits(pc.utf8_rpad(fraction, 6, "0"), 0)
    good = (
        np.asarray(parts.is_valid()) & is_date(year, month, day) & (hour < 24) & (minute < 60) & (second < 60)
    )
    days = days_from(np.where(good, year, 1970), np.where(good, month, 1), np.where(good, day, 1))
    good &= np.abs(days) < 106_751_991  # what microseconds in 64 bits reach
    seconds = (hour * 60 + minute) * 60 + second
    local = np.where(good, days, 0) * DAY + np.where(good, seconds * SECOND + micros, 0)
    if zone is None:
        return local, good
    return _with_zones(local, good, pc.utf8_trim_whitespace(pc.fill_null(fields[7], "")), zone)


def _with_zones(local: Any, good: Any, names: pa.Array, zone: str) -> tuple[Any, Any]:
    """Local times at the zones that texts name."""
    instants, codes = np.zeros(len(local), np.int64), names.dictionary_encode()
    for code, name in enumerate(codes.dictionary.to_pylist()):
        rows = np.asarray(codes.indices) == code
        zone_name = zone_of(name or zone)
        if zone_name is None:
            good &= ~rows
        else:
            instants[rows] = to_instants(local[rows], name or zone)
    return instants, good
