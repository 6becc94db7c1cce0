"""A flow as a drawing: one SVG, without scripts and without the network, for notebooks and the console."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

from timely_spark.errors import TimelyError
from timely_spark.show.layout import ROOT, STEP, Box, Layout, Waypoint, lay_out
from timely_spark.show.sketch import CALL, REGION, Arrow, Enclosure, Expand, Sketch, Step
from timely_spark.show.table import escaped
from timely_spark.show.words import short_number

if TYPE_CHECKING:
    from timely_spark.methods import Dataflow

#: Pixels of a character, and the most characters of a line in a step.
_CHARACTER, _LONGEST = 6.7, 40
_INK, _FAINT, _EXCHANGE, _LOOP = "#333", "#888", "#c2410c", "#1d4ed8"
_MARGIN = 12
#: The height of a step with a third line.
_HIGH = 46
#: In a notebook a drawing is as wide as its cell; the console has a style sheet of its own, and no other.
_FITTING = 'style="max-width:100%;height:auto" '


@dataclass(frozen=True, slots=True)
class Marks:
    """The marks of a running flow: by the key of a step or frame, or the number of an arrow."""

    #: a third line in a step, and a text behind a frame's title
    texts: Mapping[str, str] = field(default_factory=dict)
    #: how hot a step is, from 0 to 1
    heat: Mapping[str, float] = field(default_factory=dict)
    #: further classes of steps
    classes: Mapping[str, str] = field(default_factory=dict)
    #: records on an arrow, and what is said of them
    records: Mapping[int, int] = field(default_factory=dict)
    notes: Mapping[int, str] = field(default_factory=dict)
    #: where a step leads when it is clicked
    link: Callable[[Step], str] | None = None
    #: where the title of an opened call leads
    close: Callable[[Enclosure], str] | None = None


def to_svg(flow: Dataflow, *, expand: Expand = False) -> str:
    """Draw a flow as one SVG element: loops and regions framed, exchanges as thick arrows, feedback dashed.

    What a call of yours made is one box, unless `expand` opens it. A pointer over a step shows its columns
    and its line. An exchange at a source is part of Spark's own shuffle and costs no round: a thin arrow.

    Args:
        expand: whether boxes show their steps; or the names of those that do.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("hello")
        >>> _ = flow.input("numbers", "n long").distinct().capture("out")
        >>> to_svg(flow)[:35]
        '<svg xmlns="http://www.w3.org/2000/'
    """
    return sketch_svg(Sketch.of(flow.compile(workers=2)).folded(expand))  # one worker has no exchange


def sketch_svg(sketch: Sketch, marks: Marks | None = None) -> str:
    """Draw a sketch as one SVG element."""
    marks = marks or Marks()
    drawn = _Drawn(sketch, marks)
    layout = lay_out(sketch, drawn.width, high=_HIGH if marks.texts else STEP)
    width, height = layout.width + 2 * _MARGIN, layout.height + 2 * _MARGIN
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="{-_MARGIN} {-_MARGIN} {width:.0f} {height:.0f}" role="img" '
        f"{_FITTING * (marks.link is None)}"
        'font-family="ui-monospace,Menlo,Consolas,monospace" '
        'font-size="11">'
    )
    return "\n".join(
        [
            head,
            f"<title>{escaped(f'dataflow {sketch.name}')}</title>",
            f'<rect class="ground" x="{-_MARGIN}" y="{-_MARGIN}" width="100%" height="100%" fill="#fff"/>',
            *drawn.frames(layout),
            *(part for arrow in sketch.arrows for part in drawn.arrow(arrow, layout)),
            *(drawn.step(step, layout.boxes[step.key]) for step in sketch.steps),
            *filter(None, (drawn.words(arrow, layout) for arrow in sketch.arrows)),
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


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


@dataclass(frozen=True)
class _Drawn:
    """The parts of a drawing. Attributes hold its colours, which classes let a page replace."""

    sketch: Sketch
    marks: Marks

    def _lines(self, step: Step) -> list[tuple[str, str]]:
        """The texts of a step, each with its class."""
        lines = [
            (_short(text), "name" if not i else "what")
            for i, text in enumerate(dict.fromkeys((step.title, step.label)))
        ]
        if (text := self.marks.texts.get(step.key)) and len(lines) < 3:
            lines.append((_short(text), "now"))
        return lines

    def _title(self, frame: Enclosure) -> str:
        text = self.marks.texts.get(frame.key)
        return _short(frame.title if frame.kind != CALL else f"{frame.name}: {frame.title}") + (
            f" · {text}" if text else ""
        )

    def width(self, key: str) -> float:
        """The least width of a step, or of a frame's title."""
        if (frame := self.sketch.frames.get(key)) is not None:
            return len(self._title(frame)) * _CHARACTER + 16
        return max(len(text) for text, _ in self._lines(self._steps[key])) * _CHARACTER + 16

    @cached_property
    def _steps(self) -> dict[str, Step]:
        return {step.key: step for step in self.sketch.steps}

    def frames(self, layout: Layout) -> Iterator[str]:
        for key, box in layout.boxes.items():
            if key == ROOT or (frame := self.sketch.frames.get(key)) is None:
                continue
            fill, ink = ("#eff4ff", _LOOP) if frame.kind not in {REGION, CALL} else ("#f6f6f6", _FAINT)
            tip = escaped(f"{frame.title} ({frame.where})")
            text = (
                f'<text x="{box.x + 10:.1f}" y="{box.y + 15:.1f}" fill="{ink}">'
                f"{escaped(self._title(frame))}</text>"
            )
            if frame.kind == CALL and self.marks.close is not None:
                text = f'<a href="{escaped(self.marks.close(frame))}">{text}</a>'
            rect = _rect(box, 8 if frame.kind not in {REGION, CALL} else 2, fill=fill, stroke=ink)
            yield f'<g class="frame {frame.kind}"><title>{tip}</title>{rect}{text}</g>'

    def step(self, step: Step, box: Box) -> str:
        kind, fill, rounded = step.kind, "#f3f0ff" if step.kind == CALL else "#fff", 3
        if step.is_source:
            kind, fill, rounded = "source", "#e7f6ec", 17
        elif step.is_end:
            kind, fill = "end", "#fff3d6"
        elif step.is_routing:
            kind, rounded = "route", 10
        ink = _FAINT if step.is_routing else _INK
        lines = self._lines(step)
        middle = box.y + box.height / 2 + 4
        columns = step.columns or "no output"
        tip = escaped(f"{step.name}: {columns}\n{step.label}\n{step.where}")
        texts = "".join(
            f'<text class="{style}" x="{box.x + box.width / 2:.1f}" '
            f'y="{middle + (i - (len(lines) - 1) / 2) * 13:.1f}" '
            f'text-anchor="middle" fill="{_FAINT if i else ink}">{escaped(line)}</text>'
            for i, (line, style) in enumerate(lines)
        )
        heat = self.marks.heat.get(step.key, 0.0)
        shade = f' fill-opacity="{0.5 * heat:.2f}"'
        glow = _rect(box, rounded, fill=_EXCHANGE, stroke="none", more=shade) if heat > 0.02 else ""
        kinds = f"step {kind} {self.marks.classes.get(step.key, '')}".strip()
        markup = (
            f'<g class="{kinds}"><title>{tip}</title>'
            f"{_rect(box, rounded, fill=fill, stroke=ink)}{glow}{texts}</g>"
        )
        if self.marks.link is None:
            return markup
        return f'<a href="{escaped(self.marks.link(step))}" aria-label="{escaped(step.name)}">{markup}</a>'

    def arrow(self, arrow: Arrow, layout: Layout) -> Iterator[str]:
        points = layout.ways[arrow.index]
        color, width = _way_style(arrow)
        records = self.marks.records.get(arrow.index)
        if records is not None:
            width = 1.0 + 0.7 * math.log10(1 + records)
        dash = ' stroke-dasharray="5 4"' if arrow.feedback else ""
        straight = "M" + " L".join(f"{x:.1f} {y:.1f}" for x, y in points)
        path = straight if arrow.feedback else _curved(points)
        kind = "exchange" if arrow.costs else "feedback" if arrow.feedback else "plain"
        note = self.marks.notes.get(arrow.index)
        tip = f"<title>{escaped(note)}</title>" if note else ""
        yield (
            f'<path class="arrow {kind}" d="{path}" fill="none" stroke="{color}" '
            f'stroke-width="{width:.2g}"{dash}>{tip}</path>'
        )
        x, y = points[-1]
        yield f'<path class="tip {kind}" d="M{x:.1f} {y:.1f} l-4 -7 h8 z" fill="{color}"/>'

    def words(self, arrow: Arrow, layout: Layout) -> str:
        """The text beside an arrow, in the middle of its last part: at their ends arrows meet."""
        words = _short(f"{arrow.exchange}{', free' * arrow.free}") if arrow.exchange else ""
        if (records := self.marks.records.get(arrow.index)) is not None:
            words = f"{short_number(records)} {words}".strip()
        if not words:
            return ""
        points = layout.ways[arrow.index]
        (x, y), (to_x, to_y) = points[-3:-1] if arrow.feedback else points[-2:]
        return (
            f'<text class="way" x="{(x + to_x) / 2 + 6:.1f}" y="{(y + to_y) / 2 + 3:.1f}" font-size="9" '
            f'fill="{_way_style(arrow)[0]}" stroke="#fff" stroke-width="3" paint-order="stroke">'
            f"{escaped(words)}</text>"
        )


def _way_style(arrow: Arrow) -> tuple[str, float]:
    """The colour and the width of an arrow."""
    return (_EXCHANGE, 2.5) if arrow.costs else (_LOOP, 1.5) if arrow.feedback else (_FAINT, 1.2)


def _rect(box: Box, rounded: int, *, fill: str, stroke: str, more: str = "") -> str:
    return (
        f'<rect x="{box.x:.1f}" y="{box.y:.1f}" width="{box.width:.1f}" height="{box.height:.1f}" '
        f'rx="{rounded}" fill="{fill}" stroke="{stroke}"{more}/>'
    )


def _curved(points: list[Waypoint]) -> str:
    """A line that leaves and reaches each row vertically."""
    path = f"M{points[0].x:.1f} {points[0].y:.1f}"
    for (x, y), (to_x, to_y) in pairwise(points):
        bend = (y + to_y) / 2
        path += f" C{x:.1f} {bend:.1f} {to_x:.1f} {bend:.1f} {to_x:.1f} {to_y:.1f}"
    return path
