"""A flow as a drawing: one static SVG, for notebooks, without scripts and without the network."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING

from timely_spark.compiler import Plan
from timely_spark.errors import TimelyError
from timely_spark.graph import Edge, Kind, LoopContext, Name, Stage, columns_of
from timely_spark.show.layout import Box, Layout, Part, Point, label_of, lay_out, title_of, way_of
from timely_spark.show.table import escaped

if TYPE_CHECKING:
    from timely_spark.methods import Dataflow

#: Pixels of a character, and the most characters of a line in a step.
_CHARACTER, _LONGEST = 6.7, 34
_INK, _FAINT, _EXCHANGE, _LOOP = "#333", "#888", "#c2410c", "#1d4ed8"
_MARGIN = 12


def to_svg(flow: Dataflow) -> str:
    """Draw a flow as one SVG element: loops and regions framed, exchanges as thick arrows, feedback dashed.

    A pointer over a step shows its columns and its line. An exchange at a source is part of Spark's own
    shuffle and costs no round: a thin arrow.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("hello")
        >>> _ = flow.input("numbers", "n long").distinct().capture("out")
        >>> to_svg(flow)[:35]
        '<svg xmlns="http://www.w3.org/2000/'
    """
    return plan_svg(flow.compile(workers=2))  # one worker has no exchange


def plan_svg(plan: Plan) -> str:
    """Draw the flow of a plan as one SVG element."""
    layout = lay_out(plan.stages, plan.edges, _width)
    free = {edge.index for channel in plan.channels if channel.source is None for edge in channel.edges}
    width, height = layout.width + 2 * _MARGIN, layout.height + 2 * _MARGIN
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="{-_MARGIN} {-_MARGIN} {width:.0f} {height:.0f}" role="img" '
        'style="max-width:100%;height:auto" font-family="ui-monospace,Menlo,Consolas,monospace" '
        'font-size="11">'
    )
    return "\n".join(
        [
            head,
            f"<title>{escaped(f'dataflow {plan.name}')}</title>",
            f'<rect x="{-_MARGIN}" y="{-_MARGIN}" width="100%" height="100%" fill="#fff"/>',
            *_frames(layout),
            *(part for edge in plan.edges for part in _arrow(plan, edge, layout, free=edge.index in free)),
            *(_step(stage, layout.boxes[stage]) for stage in plan.stages),
            "</svg>",
        ]
    )


def to_html(flow: Dataflow) -> str:
    """A flow as one HTML element, also an incomplete one, for which it gives the reason.

    Example:
        >>> import timely_spark as ts
        >>> to_html(ts.Dataflow("empty"))
        '<div><div><b>Dataflow(&#x27;empty&#x27;)</b></div><div><i>flow &#x27;empty&#x27; has no input...'
    """
    try:
        drawn = to_svg(flow)
    except TimelyError as error:  # a notebook shows flows that are being built
        drawn = f"<div><i>{escaped(str(error))}</i></div>"
    return f"<div><div><b>{escaped(repr(flow))}</b></div>{drawn}</div>"


def _lines(part: Part) -> tuple[str, ...]:
    """The text of a step, or the title of a frame."""
    if not isinstance(part, Stage):
        return (_short(title_of(part)),)
    return tuple(dict.fromkeys((_short(part.title.text), _short(label_of(part)))))


def _width(part: Part) -> float:
    return max(map(len, _lines(part))) * _CHARACTER + 16


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def _frames(layout: Layout) -> Iterator[str]:
    for part, box in layout.boxes.items():
        if isinstance(part, Stage) or (isinstance(part, LoopContext) and part.parent is None):
            continue
        region = isinstance(part, Name)
        fill, ink = ("#f6f6f6", _FAINT) if region else ("#eff4ff", _LOOP)
        tip = escaped(f"{title_of(part)} ({part.where})")
        yield (
            f"<g><title>{tip}</title>{_rect(box, 2 if region else 8, fill=fill, stroke=ink)}"
            f'<text x="{box.x + 10:.1f}" y="{box.y + 15:.1f}" fill="{ink}">{escaped(_lines(part)[0])}'
            "</text></g>"
        )


def _step(stage: Stage, box: Box) -> str:
    rounded = 17 if stage.is_source else 10 if stage.is_routing else 3
    fill = "#e7f6ec" if stage.is_source else "#fff3d6" if stage.kind.is_end else "#fff"
    ink = _FAINT if stage.is_routing else _INK
    lines = _lines(stage)
    middle = box.y + box.height / 2 + 4
    columns = "; ".join(map(columns_of, stage.outputs)) or "no output"
    tip = escaped(f"{stage.name}: {columns}\n{label_of(stage)}\n{stage.where}")
    texts = "".join(
        f'<text x="{box.x + box.width / 2:.1f}" y="{middle + (i - (len(lines) - 1) / 2) * 13:.1f}" '
        f'text-anchor="middle" fill="{_FAINT if i else ink}">{escaped(line)}</text>'
        for i, line in enumerate(lines)
    )
    return f"<g><title>{tip}</title>{_rect(box, rounded, fill=fill, stroke=ink)}{texts}</g>"


def _rect(box: Box, rounded: int, *, fill: str, stroke: str) -> str:
    return (
        f'<rect x="{box.x:.1f}" y="{box.y:.1f}" width="{box.width:.1f}" height="{box.height:.1f}" '
        f'rx="{rounded}" fill="{fill}" stroke="{stroke}"/>'
    )


def _arrow(plan: Plan, edge: Edge, layout: Layout, *, free: bool) -> Iterator[str]:
    points, exchange = layout.ways[edge.index], plan.exchanged.get(edge.index)
    returns = edge.source.kind is Kind.FEEDBACK
    costs = exchange is not None and not free
    color, width = (_EXCHANGE, 2.5) if costs else (_LOOP, 1.5) if returns else (_FAINT, 1.2)
    dash = ' stroke-dasharray="5 4"' if returns else ""
    straight = "M" + " L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    path = straight if returns else _curved(points)
    yield f'<path d="{path}" fill="none" stroke="{color}" stroke-width="{width}"{dash}/>'
    x, y = points[-1]
    yield f'<path d="M{x:.1f} {y:.1f} l-4 -7 h8 z" fill="{color}"/>'
    if exchange is not None:
        label = escaped(_short(f"{way_of(exchange)}{', free' * free}"))
        yield f'<text x="{x + 6:.1f}" y="{y - 5:.1f}" font-size="9" fill="{color}">{label}</text>'


def _curved(points: list[Point]) -> str:
    """A line that leaves and reaches each row vertically."""
    path = f"M{points[0].x:.1f} {points[0].y:.1f}"
    for (x, y), (to_x, to_y) in pairwise(points):
        bend = (y + to_y) / 2
        path += f" C{x:.1f} {bend:.1f} {to_x:.1f} {bend:.1f} {to_x:.1f} {to_y:.1f}"
    return path
