"""The places of a drawing's steps: in rows from the inputs down, each loop and region a box of its own.

A frame is laid out as a layered graph: a step is in a row below the steps that it reads, its place in the row
follows from those of its neighbours, and an arrow over several rows has a place in each of them. A loop or
region takes one place in a row of the frame around it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple, TypeAlias

from timely_spark.show.sketch import Arrow, Sketch, Step

#: Pixels between the items of a row, between rows, and from a frame to its steps.
GAP, DOWN, PAD = 18, 34, 14
#: The height of a step and of a frame's title; the width of an arrow that passes a row, of a feedback.
STEP, TITLE, PASS, LANE = 34, 16, 4, 12
#: Sweeps over the rows, which move each item towards its neighbours.
_SWEEPS = 8

ROOT = ""
"""The key of the frame around all."""


def frames(step: Step) -> tuple[str, ...]:
    """The keys of the frames around a step, from the root to the innermost one."""
    return (ROOT, *step.frames)


class Waypoint(NamedTuple):
    """In pixels from the top left corner."""

    x: float
    y: float


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle, in pixels."""

    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True, slots=True)
class Layout:
    """The boxes of steps and frames by key, and the points that each arrow passes, by its index."""

    width: float
    height: float
    boxes: dict[str, Box]
    ways: dict[int, list[Waypoint]]


def lay_out(sketch: Sketch, width: Callable[[str], float], *, high: float = STEP) -> Layout:
    """Lay out the steps of a flow, in topological order; `width` is the least one of a step or a title.

    Args:
        high: the height of a step.
    """
    blocks: dict[str, _Block] = {}
    top = _Block(ROOT, sketch, width, high, blocks)
    boxes = dict(top.boxes(0, 0))
    boxes[ROOT] = Box(0, 0, top.width, top.height)
    steps = {step.key: step for step in sketch.steps}
    ways = {
        arrow.index: _way(arrow, steps[arrow.source], steps[arrow.target], boxes, blocks)
        for arrow in sketch.arrows
    }
    return Layout(top.width, top.height, boxes, ways)


_Link: TypeAlias = tuple[Arrow, str | None, str | None]
"""An arrow, with the parts of a frame that it leads from and to; None if an end is outside."""


@dataclass(eq=False, slots=True)
class _Item:
    """An item of a row: a step, a frame, or an arrow that passes the row."""

    width: float
    height: float
    inner: _Block | None = None
    x: float = 0.0
    y: float = 0.0
    #: the arrows above and below: the other item, its step that the arrow joins, and the step of this item
    above: list[tuple[_Item, Step, Step]] = field(default_factory=list)
    below: list[tuple[_Item, Step, Step]] = field(default_factory=list)

    def offset(self, step: Step) -> float:
        """The distance from the left of this item at which an arrow of a step meets it."""
        if self.inner is None:
            return self.width / 2
        item = self.inner.items[_part(self.inner.frame, step)]
        return item.x + item.offset(step)

    def wanted(self, links: list[tuple[_Item, Step, Step]]) -> float:
        """The x at which the arrows would be straight, on average."""
        if not links:
            return self.x
        straight = (other.x + other.offset(end) - self.offset(own) for other, end, own in links)
        return sum(straight) / len(links)


class _Block:
    """The rows of a frame."""

    def __init__(
        self,
        frame: str,
        sketch: Sketch,
        width: Callable[[str], float],
        high: float,
        blocks: dict[str, _Block],
    ) -> None:
        blocks[frame] = self
        self.frame, self.outermost = frame, len(blocks) == 1
        self.width: float
        self.height: float
        self.steps = {step.key: step for step in sketch.steps}
        within = {key: _part(frame, step) for key, step in self.steps.items()}
        self.items: dict[str | None, _Item] = {}
        for part in dict.fromkeys(part for part in within.values() if part is not None):
            inner = None if part in self.steps else _Block(part, sketch, width, high, blocks)
            size = (width(part), high) if inner is None else (inner.width, inner.height)
            self.items[part] = _Item(*size, inner)
        returning = [arrow for arrow in sketch.arrows if arrow.feedback]
        joined = [
            (each, within[each.source], within[each.target]) for each in sketch.arrows if not each.feedback
        ]
        links = [link for link in joined if link[1] != link[2]]
        self._rows = self._ranked(_in_order([part for part in self.items if part is not None], links), links)
        #: the items where each arrow passes rows
        self.passing: dict[int, list[_Item]] = {}
        for arrow, source, target in links:
            self._connect(arrow, source, target)
        for row in self._rows:
            _spread(row, [0.0] * len(row))
        for sweep in range(_SWEEPS):
            for row in self._rows if sweep % 2 == 0 else self._rows[::-1]:
                wanted = {id(item): item.wanted(item.below if sweep % 2 else item.above) for item in row}
                row.sort(key=lambda item: wanted[id(item)] + item.width / 2)
                _spread(row, [wanted[id(item)] for item in row])
        own = [each.index for each in returning if self.steps[each.source].scope == frame]
        #: the place of each arrow of feedback at the left side
        self.lanes = {index: lane for lane, index in enumerate(own)}
        self._place_items(0.0 if self.outermost else width(frame))

    def _ranked(self, parts: list[str], links: list[_Link]) -> list[list[_Item]]:
        above, below = defaultdict[str, list[str | None]](list), defaultdict[str, list[str]](list)
        for _, source, target in links:
            if target is not None:
                above[target].append(source)
                if source is not None:
                    below[source].append(target)
        row: dict[str | None, int] = {None: -1}  # what enters comes from above
        for part in parts:
            row[part] = max((row[each] + 1 for each in above[part] if each in row), default=0)
        for part in reversed(parts):  # inputs are right above the first step that reads them
            if not above[part] and below[part]:
                row[part] = max(0, min(row[each] for each in below[part]) - 1)
        self._row = row
        rows: list[list[_Item]] = [[] for _ in range(max(row.values()) + 1)]
        for part in parts:
            rows[row[part]].append(self.items[part])
        return rows

    def _connect(self, arrow: Arrow, source: str | None, target: str | None) -> None:
        """Give an arrow its items in the rows between its ends; None if it comes from or leads outside."""
        last = len(self._rows) if target is None else self._row[target]
        passing = [_Item(PASS, PASS) for _ in range(self._row[source] + 1, last)]
        for row, item in enumerate(passing, self._row[source] + 1):
            self._rows[row].append(item)
        self.passing[arrow.index] = passing
        ends = self.steps[arrow.source], self.steps[arrow.target]
        chain = [self.items.get(source), *passing, self.items.get(target)]
        for upper, lower in pairwise(chain):
            if upper is not None and lower is not None:
                upper.below.append((lower, ends[1], ends[0]))
                lower.above.append((upper, *ends))

    def _place_items(self, title: float) -> None:
        """Turn places into pixels from the block's top left corner."""
        every = [item for row in self._rows for item in row]
        frame = 0 if self.outermost else PAD
        shift = frame + LANE * len(self.lanes) - min((item.x for item in every), default=0)
        y = 0.0 if self.outermost else float(frame + TITLE)
        for row in self._rows:
            height = max(item.height for item in row)
            for item in row:
                item.x += shift
                item.y = y + (height - item.height) / 2
            y += height + DOWN
        self.width = max([title + 2 * frame, *(item.x + item.width + frame for item in every)])
        self.height = max(y - DOWN, 0.0) + frame

    def boxes(self, x: float, y: float) -> Iterator[tuple[str, Box]]:
        """The boxes of all parts, for a block whose corner is at x and y."""
        for part, item in self.items.items():
            if part is not None:
                yield part, Box(x + item.x, y + item.y, item.width, item.height)
            if item.inner is not None:
                yield from item.inner.boxes(x + item.x, y + item.y)


def _part(frame: str, step: Step) -> str | None:
    """The step, or the frame around it, that stands for a step in a frame; None if it is outside."""
    path = frames(step)
    if frame not in path:
        return None
    return step.key if path[-1] == frame else path[path.index(frame) + 1]


def _in_order(parts: list[str], links: list[_Link]) -> list[str]:
    """The parts, each behind those that it reads; a region may also be read by what it reads."""
    waits: dict[str, set[str]] = {part: set() for part in parts}
    for _, source, target in links:
        if source is not None and target is not None:
            waits[target].add(source)
    ordered: dict[str, None] = {}
    while waits:
        part = next((each for each, on in waits.items() if on <= ordered.keys()), next(iter(waits)))
        ordered[part] = None
        del waits[part]
    return list(ordered)


def _spread(row: list[_Item], wanted: list[float]) -> None:
    """Put the items of a row as near to the wanted places as their widths allow."""
    right = float("-inf")
    for item, x in zip(row, wanted, strict=True):
        item.x = max(x, right)
        right = item.x + item.width + GAP
    shift = sum(x - item.x for item, x in zip(row, wanted, strict=True)) / len(row)
    for item in row:
        item.x += shift


def _way(
    arrow: Arrow, upper: Step, lower: Step, boxes: dict[str, Box], blocks: dict[str, _Block]
) -> list[Waypoint]:
    source, target = boxes[arrow.source], boxes[arrow.target]
    own = boxes[upper.scope]
    if (lane := blocks[upper.scope].lanes.get(arrow.index)) is not None:
        # between the rows, where no steps are
        left = own.x + PAD / 2 + LANE * (lane + 0.5)
        leaves, returns = source.y + source.height + 8, target.y - 13
        middle, end = source.x + source.width / 2, target.x + target.width / 2
        corners = [(middle, leaves), (left, leaves), (left, returns), (end, returns)]
        return [
            Waypoint(middle, source.y + source.height),
            *(Waypoint(*each) for each in corners),
            Waypoint(end, target.y),
        ]
    up, down = frames(upper), frames(lower)
    shared = max(depth for depth, frame in enumerate(up) if frame in down)
    points = [Waypoint(source.x + source.width / 2, source.y + source.height)]
    for frame in (*up[:shared:-1], *down[shared:]):
        corner = boxes[frame]
        for item in blocks[frame].passing.get(arrow.index, ()):
            x, y = corner.x + item.x + PASS / 2, corner.y + item.y
            points += [Waypoint(x, y - STEP / 2), Waypoint(x, y + STEP / 2)]
    return [*points, Waypoint(target.x + target.width / 2, target.y)]
