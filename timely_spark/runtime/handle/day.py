"""What has changed since yesterday: the last hour of a flow beside an hour of the day before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timezone

from timely_spark.runtime.storage.hours import HOUR, Hour
from timely_spark.show.words import bytes_text, number_text, seconds_text

_DAY = 24 * HOUR


def since_yesterday(hours: Sequence[Hour], newest: Hour, now: float) -> tuple[list[str], list[list[str]]]:
    """A table of the last hour beside an earlier one: its heads and rows; no rows if the flow is too young.

    The earlier hour is that of a day ago; of a flow that is younger, its first one.

    Args:
        hours: what the checkpoint remembers.
        newest: the counts now.
        now: seconds since 1970.
    """
    *earlier, last = [hour for hour in hours if hour.written <= now - HOUR] or [newest]
    if not earlier:
        return [], []
    before = max(sum(hour.written <= now - _DAY for hour in earlier) - 1, 0)
    start, end = hours[before], hours[before + 1]
    pairs = zip(_figures(last, newest, now), _figures(start, end, end.written), strict=True)
    rows = [
        [name, _text(text, value), _text(text, former), _change(value, former)]
        for (name, text, value), (_, _, former) in pairs
    ]
    since, *times = (
        datetime.fromtimestamp(at, timezone.utc) for at in (start.written, last.written, end.written)
    )
    return ["", f"since {times[0]:%H:%M}", f"{since:%Y-%m-%d %H:%M} to {times[1]:%H:%M}", "change"], rows


_Figure = tuple[str, Callable[[float], str], float | None]


def _figures(start: Hour, end: Hour, until: float) -> list[_Figure]:
    took, seconds = end.took_since(start), until - start.written
    median, p99 = (None if (ms := took.quantile(part)) is None else ms / 1000 for part in (0.5, 0.99))
    return [
        ("batches a second", number_text, (end.batch - start.batch) / seconds),
        ("a batch, p50", seconds_text, median),
        ("a batch, p99", seconds_text, p99),
        ("rows an hour", "{:,.0f}".format, HOUR * (end.read - start.read) / seconds),
        ("late rows an hour", "{:,.0f}".format, HOUR * (end.late - start.late) / seconds),
        ("state", bytes_text, end.state_bytes),
    ]


def _text(text: Callable[[float], str], value: float | None) -> str:
    return "" if value is None else text(value)


def _change(value: float | None, earlier: float | None) -> str:
    """How much more, in percent.

    >>> _change(3.0, 2.0), _change(1, 1), _change(2, 0), _change(None, 2)
    ('+50 %', '+0 %', '', '')
    """
    return f"{100 * (value - earlier) / earlier:+.0f} %" if value is not None and earlier else ""
