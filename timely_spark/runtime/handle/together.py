"""Flows that share captures, as one drawing: what one captures to a folder, another replays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from timely_spark.graph.stage import closure
from timely_spark.show.drawing import Marks, sketch_svg
from timely_spark.show.sketch import REGION, Arrow, Enclosure, Sketch, Step


class Link(NamedTuple):
    """An output of one flow that is an input of another."""

    source: int
    output: str
    target: int
    input: str


def capture_links(owners: Sequence[Mapping[str, Any]]) -> list[Link]:
    """The links between flows, by what their runs say of themselves (`RoundLog.owner`)."""
    captured = {
        path: (number, output)
        for number, owner in enumerate(owners)
        for output, path in owner.get("captures", {}).items()
    }
    return [
        Link(*captured[path], number, input_)
        for number, owner in enumerate(owners)
        for input_, path in owner.get("replays", {}).items()
        if path in captured and captured[path][0] != number
    ]


def connected_flows(flow: int, links: Sequence[Link]) -> list[int]:
    """The flow, and those that it is linked with, also by way of others.

    >>> connected_flows(0, [Link(0, "out", 1, "in"), Link(2, "out", 1, "more"), Link(3, "out", 4, "in")])
    [0, 1, 2]
    """
    ends = [{link.source, link.target} for link in links]
    return sorted(closure([flow], lambda one: {end for pair in ends if one in pair for end in pair}))


def together_svg(parts: Mapping[int, tuple[Sketch, Marks]], links: Sequence[Link]) -> str:
    """One drawing of several flows, each in a frame, with an arrow for each link."""
    steps, arrows, frames = list[Step](), list[Arrow](), dict[str, Enclosure]()
    texts, heat, classes = dict[str, str](), dict[str, float](), dict[str, str]()
    records, notes = dict[int, int](), dict[int, str]()
    owners: dict[str, tuple[int, Step]] = {}
    frames_of: dict[str, tuple[int, Enclosure]] = {}
    for number, (sketch, marks) in parts.items():
        around = Enclosure(
            key=f"{REGION}:{number}", kind=REGION, name=sketch.name, title=f"flow {sketch.name}", where=""
        )
        first = len(arrows)
        for key, frame in sketch.frames.items():
            frames[_key(number, key)] = replace(frame, key=_key(number, key))
            frames_of[_key(number, key)] = number, frame
        frames[around.key] = around
        for step in sketch.steps:
            inside = tuple(_key(number, key) for key in step.frames)
            own = replace(step, key=_key(number, step.key), frames=(around.key, *inside))
            owners[own.key] = number, step
            steps.append(own)
        for place, arrow in enumerate(sketch.arrows, first):
            source, target = _key(number, arrow.source), _key(number, arrow.target)
            arrows.append(replace(arrow, index=place, source=source, target=target))
            if arrow.index in marks.records:
                records[place] = marks.records[arrow.index]
            notes[place] = marks.notes.get(arrow.index, "")
        texts |= {_key(number, key): text for key, text in marks.texts.items()}
        heat |= {_key(number, key): value for key, value in marks.heat.items()}
        classes |= {_key(number, key): kinds for key, kinds in marks.classes.items()}
    keys = {step.key for step in steps}
    for link in links:
        source, target = _key(link.source, f"step:{link.output}"), _key(link.target, f"step:{link.input}")
        if {source, target} <= keys:
            arrows.append(Arrow(index=len(arrows), source=source, target=target, exchange="captured"))
    whole = Sketch("flows", tuple(steps), frames, tuple(arrows))

    def link_of(step: Step) -> str:
        number, own = owners[step.key]
        follow = parts[number][1].link
        assert follow is not None
        return follow(own)

    def close(frame: Enclosure) -> str:
        number, own = frames_of[frame.key]
        follow = parts[number][1].close
        assert follow is not None
        return follow(own)

    return sketch_svg(whole, Marks(texts, heat, classes, records, notes, link_of, close))


def _key(flow: int, key: str) -> str:
    kind, _, name = key.partition(":")
    return f"{kind}:{flow}/{name}"
