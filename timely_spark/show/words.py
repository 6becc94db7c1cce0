"""Numbers, sizes, durations and moments in few characters."""

from __future__ import annotations

import math
from datetime import datetime, timezone

#: Units of time: below how many seconds one is used, its name, and its seconds.
UNITS = (
    (0.9995, "ms", 0.001),
    (120, "s", 1),
    (7200, "min", 60),
    (172_800, "h", 3600),
    (math.inf, "d", 86_400),
)


def seconds_text(seconds: float) -> str:
    """A duration with its unit.

    >>> [seconds_text(s) for s in (0, 0.0004, 0.85, 0.9996, 2.34, 9.97, 75, 7200, 200_000)]
    ['0 s', '0.4 ms', '850 ms', '1.0 s', '2.3 s', '10 s', '75 s', '2.0 h', '2.3 d']
    """
    if not seconds:
        return "0 s"
    _, unit, size = next(each for each in UNITS if seconds < each[0])
    number = seconds / size
    return f"{number:.1f} {unit}" if number < 9.95 else f"{number:.0f} {unit}"


def number_text(number: float) -> str:
    """A number with two digits that count, or all before its point, and no power of ten.

    >>> [number_text(n) for n in (0, 0.000012, 0.022, 2.0, 9.96, 99.7, 12_345, -345)]
    ['0', '0.000012', '0.022', '2', '10', '100', '12,345', '-345']
    """
    return f"{number:,.0f}" if abs(number) >= 10 else f"{float(f'{number:.2g}'):.7f}".rstrip("0").rstrip(".")


def bytes_text(size: float) -> str:
    """A size with its unit.

    >>> [bytes_text(n) for n in (1, 999, 4048, 999_960, 3_200_000, 5_000_000_000)]
    ['1 B', '999 B', '4.0 kB', '1.0 MB', '3.2 MB', '5.0 GB']
    """
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if size < (999.5 if unit == "B" else 999.95) or unit == "TB":
            break
        size /= 1000
    return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"


def clock(at: float) -> str:
    """A moment as hours, minutes and seconds, in UTC.

    >>> clock(0)
    '00:00:00'
    """
    return datetime.fromtimestamp(at, timezone.utc).strftime("%H:%M:%S")


def short_number(number: float) -> str:
    """A number in at most four characters and a unit.

    >>> [short_number(n) for n in (0, 999, 1200, 48_210, 99_700, 999_950, 3_000_000)]
    ['0', '999', '1.2k', '48k', '100k', '1M', '3M']
    """
    for unit in ("", "k", "M", "G", "T"):
        if abs(number) < 999.5 or unit == "T":
            break
        number /= 1000
    return f"{number_text(number)}{unit}" if unit else f"{number:.0f}"
