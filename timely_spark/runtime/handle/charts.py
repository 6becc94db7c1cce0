"""Small charts as SVG, made where the page is made: a page needs no library for them, and prints as it is."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from timely_spark.show.table import escaped
from timely_spark.show.words import UNITS, clock, seconds_text, short_number

#: How many colours the style sheet has: classes `c0` to `c7`.
COLOURS = 8
_LEFT, _BELOW, _ABOVE = 58, 18, 8
#: So many points of a line are marked, and each says its value; of more, each of so many parts of the axis.
_MARKS = 60

Point = tuple[float, float]


def thinned(points: Sequence[Point], most: int) -> list[Point]:
    """About so many points at most: of each few neighbours the highest.

    >>> thinned([(0, 2), (1, 3), (2, 9), (3, 1), (4, 5)], 3)
    [(1, 3), (2, 9), (4, 5)]
    """
    group = -(-len(points) // most) or 1
    return [max(points[at : at + group], key=lambda point: point[1]) for at in range(0, len(points), group)]


def spark_line(values: Sequence[float], tip: str) -> str:
    """A line without axes, from 0 up, for a line of text."""
    if len(values) < 2:
        return ""
    high, width, height = max(values) or 1.0, 160, 26
    step = width / (len(values) - 1)
    points = " ".join(
        f"{i * step:.1f},{height - 2 - (height - 4) * value / high:.1f}" for i, value in enumerate(values)
    )
    return (
        f'<svg class="spark" width="{width}" height="{height}" viewBox="0 0 {width} {height}" role="img">'
        f'<title>{escaped(tip)}</title><polyline class="c0" points="{points}"/></svg>'
    )


def line_chart(
    title: str,
    lines: Mapping[str, Sequence[Point]],
    *,
    x: str,
    y: Callable[[float], str] = short_number,
    x_text: Callable[[float], str] = lambda value: f"{value:,.0f}",
    limit: float | None = None,
    span: tuple[float, float] | None = None,
) -> str:
    """Lines over one axis, with a legend beside them. Of an axis of time a reader can select a part.

    Args:
        lines: by label the points.
        x: what the axis shows.
        y: says a value in words; `x_text` says a place on the axis.
        limit: a value at which a line is drawn across. If all values are far below it, they would be one
            flat line; then the title names the limit instead.
        span: the ends of the axis; None means those of the points.
    """
    points = [point for line in lines.values() for point in line]
    if not points:
        return ""
    legend = len(lines) > 1
    highest = max(value for _, value in points)
    if limit is not None and highest < limit / 4:
        title, limit = f"{title}; the limit is {y(limit)}", None
    width, height = (460 if legend else 600), 180
    inner = width - _LEFT - 10
    low, right = span or (min(at for at, _ in points), max(at for at, _ in points))
    high = max(highest, limit or 0.0) or 1.0
    high = 2 * _round_up(high / 2, y)
    bottom = height - _BELOW

    def place(at: float, value: float) -> tuple[float, float]:
        share = (at - low) / (right - low) if right > low else 0.5
        return _LEFT + inner * share, bottom - (bottom - _ABOVE) * value / high

    parts = [
        f'<line class="axis" x1="{_LEFT}" x2="{width - 10}" y1="{bottom}" y2="{bottom}"/>',
        *(
            f'<line class="grid" x1="{_LEFT}" x2="{width - 10}" y1="{at:.1f}" y2="{at:.1f}"/>'
            f'<text x="{_LEFT - 5}" y="{at + 4:.1f}" text-anchor="end">{escaped(y(value))}</text>'
            for value in (0.0, high / 2, high)
            for at in [place(low, value)[1]]
        ),
        f'<text x="{_LEFT}" y="{height - 4}">{escaped(x_text(low))}</text>',
        f'<text x="{_LEFT + inner / 2:.0f}" y="{height - 4}" text-anchor="middle">{escaped(x)}</text>',
    ]
    if right > low:
        parts.append(
            f'<text x="{width - 10}" y="{height - 4}" text-anchor="end">{escaped(x_text(right))}</text>'
        )
    if limit is not None:
        at = place(low, limit)[1]
        parts.append(f'<line class="limit" x1="{_LEFT}" x2="{width - 10}" y1="{at:.1f}" y2="{at:.1f}"/>')
    for number, (label, line) in enumerate(lines.items()):
        places = [place(*point) for point in line]
        path = " ".join(f"{at_x:.1f},{at_y:.1f}" for at_x, at_y in places)
        colour = f"c{number % COLOURS}"
        parts.append(f'<polyline class="{colour}" points="{path}"><title>{escaped(label)}</title></polyline>')
        if len(line) <= _MARKS:
            parts += [
                f'<circle class="{colour}" cx="{at_x:.1f}" cy="{at_y:.1f}" r="2.2">'
                f"<title>{escaped(f'{label} {x} {x_text(at)}: {y(value)}'.strip())}</title></circle>"
                for (at_x, at_y), (at, value) in zip(places, line, strict=True)
            ]
    if right > low and any(len(line) > _MARKS for line in lines.values()):
        parts += [
            f'<rect class="at" fill="none" pointer-events="all" x="{_LEFT + inner * n / _MARKS:.1f}" '
            f'y="{_ABOVE}" width="{inner / _MARKS:.1f}" height="{bottom - _ABOVE}"><title>'
            + escaped(
                "\n".join(f"{label} {x} {x_text(at)}: {y(value)}".strip() for label, (at, value) in some)
            )
            + "</title></rect>"
            for n, some in _highest(lines, low, right).items()
        ]
    drawn = (
        f'<svg{_selectable(low, right, _LEFT, width) * (x == "time")} width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" role="img"><title>{escaped(title)}</title>{"".join(parts)}</svg>'
    )
    labels = "".join(f'<li class="c{i % COLOURS}">{escaped(label)}</li>' for i, label in enumerate(lines))
    listed = f"<ul>{labels}</ul>" if legend else ""
    return (
        f'<figure><figcaption>{escaped(title)}</figcaption><div class="chart">{drawn}{listed}</div></figure>'
    )


def _round_up(value: float, text: Callable[[float], str]) -> float:
    """The least round number that is not below a value: of counts a whole one, of times one in their unit.

    >>> _round_up(3.1, short_number), _round_up(0.174, seconds_text), _round_up(2000, seconds_text) / 60
    (4.0, 0.2, 40.0)
    """
    size = next(unit[2] for unit in UNITS if value < unit[0] / 2) if text is seconds_text else 1.0
    number = max(value / size, 1.0 if text is short_number else 0.0)
    power = 10.0 ** math.floor(math.log10(number))
    return size * power * next(digit for digit in (1, 2, 3, 4, 5, 6, 8, 10) if number <= digit * power)


def _selectable(low: float, right: float, left: float, width: float) -> str:
    """What the console's script needs to turn places of a chart into times: both ends as times, and where."""
    return f' data-span="{low:.3f} {right:.3f} {left} {width - 10}"'


def _highest(
    lines: Mapping[str, Sequence[Point]], low: float, right: float
) -> dict[int, list[tuple[str, Point]]]:
    """By a number below `_MARKS`, for each part of an axis: each line's highest point there.

    >>> _highest({"a": [(0, 3), (1, 5), (240, 2)]}, 0, 240)
    {0: [('a', (1, 5))], 59: [('a', (240, 2))]}
    """
    parts: dict[int, dict[str, Point]] = {}
    for label, line in lines.items():
        for point in line:
            part = parts.setdefault(min(int(_MARKS * (point[0] - low) / (right - low)), _MARKS - 1), {})
            part[label] = max(part.get(label, point), point, key=lambda one: one[1])
    return {number: [*part.items()] for number, part in sorted(parts.items())}


def timeline(rows: Sequence[tuple[str, float, float, float, str, str]], *, start: float, end: float) -> str:
    """Bars over time. A row: its label, when its wait began, its begin and end, its class, its tooltip."""
    if not rows:
        return ""
    width, high, left = 700, 15, 90
    span = max(end - start, 0.001)
    height = high * len(rows) + _BELOW

    def place(at: float) -> float:
        return left + (width - left - 10) * min(max((at - start) / span, 0.0), 1.0)

    waits = ' class="waits"'

    def bar(row: int, since: float, until: float, least: float, kind: str = "") -> str:
        x, width = place(since), max(least, place(until) - place(since))
        return f'<rect{kind} x="{x:.1f}" y="{row * high + 2}" height="{high - 4}" width="{width:.1f}"/>'

    bars = "".join(
        f'<g class="{kind}"><title>{escaped(tip)}</title>'
        f'<text x="{left - 6}" y="{i * high + 11}" text-anchor="end">{escaped(label)}</text>'
        f"{bar(i, waited, began, 0.0, waits)}{bar(i, began, ended, 2.0)}</g>"
        for i, (label, waited, began, ended, kind, tip) in enumerate(rows)
    )
    ends = (
        f'<text x="{left}" y="{height - 4}">{clock(start)}</text>'
        f'<text x="{width - 10}" y="{height - 4}" text-anchor="end">{clock(end)}</text>'
    )
    return (
        f'<svg class="timeline"{_selectable(start, end, left, width)} width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" role="img">'
        f"<title>epochs over time</title>{bars}{ends}</svg>"
    )


def bars(values: Mapping[str, float], text: Callable[[float], str]) -> str:
    """A bar for each of a few values."""
    high = max(values.values(), default=0.0) or 1.0
    rows = "".join(
        f"<tr><td>{escaped(label)}</td><td>"
        '<svg class="bar" width="120" height="10" viewBox="0 0 120 10">'
        f'<rect width="{120 * value / high:.0f}" height="10"/></svg></td>'
        f'<td class="number">{escaped(text(value))}</td></tr>'
        for label, value in values.items()
    )
    return f"<table>{rows}</table>" if values else ""
