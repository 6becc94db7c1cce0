"""Drawings of flows: well-formed, whole, without scripts; steps stand apart, in the frames of their loops."""

from __future__ import annotations

import itertools
import json
import random
import re
from collections.abc import Callable
from xml.etree import ElementTree as ET

import pytest

import timely_spark as ts
from tests.show.test_explain import nested, reachability, word_count
from timely_spark.errors import UnknownName
from timely_spark.show.drawing import Marks, sketch_svg, to_html, to_svg
from timely_spark.show.explain import explain
from timely_spark.show.layout import ROOT, Box, frames, lay_out
from timely_spark.show.mermaid import to_mermaid
from timely_spark.show.sketch import Arrow, Enclosure, Sketch, Step

SVG = "{http://www.w3.org/2000/svg}"


def library() -> ts.Dataflow:
    flow = ts.Dataflow("library")
    edges = flow.input("edges", "src long, dst long").collection()
    ts.graphs.pagerank(edges).changes().capture("ranks")
    ts.graphs.connected_components(edges).changes().capture("components")
    return flow


def random_flow(seed: int, *, regions: bool = False) -> ts.Dataflow:
    """Streams joined at random, in loops within loops, and in regions."""
    draw = random.Random(seed)
    flow = ts.Dataflow(f"random {seed}")
    inputs = [flow.input(f"in{i}", "k long") for i in range(draw.randint(1, 3))]
    number = itertools.count()

    def grown(streams: list[ts.Stream], depth: int) -> ts.Stream:
        for _ in range(draw.randint(1, 5)):
            one = draw.choice(streams)
            kind = draw.randrange(4 if depth < 2 else 3)
            if regions and draw.randrange(3) == 0 and next(number) < 4:
                with one.scope.region(f"r{next(number)}"):
                    one = grown([one], depth)
            elif kind == 0:
                one = one.distinct()
            elif kind == 1:
                one = one.concat(draw.choice(streams))
            elif kind == 2:
                one = one.join(draw.choice(streams).select(other="k"), left=["k"], right=["other"]).select(
                    "k"
                )
            else:
                outside = draw.choice(streams)
                one = one.loop(
                    lambda inner, outside=outside: grown(
                        [inner, inner.scope.enter(outside)], inner.scope.graph_scope.depth
                    ).distinct()
                )
            streams = [*streams, one]
        return streams[-1]

    grown(list(inputs), 0).capture("out")
    return flow


MAKE: list[Callable[[], ts.Dataflow]] = [
    word_count, reachability, nested, library,
    *(lambda seed=seed: random_flow(seed) for seed in range(12)),
    *(lambda seed=seed: random_flow(seed, regions=True) for seed in range(8)),
]  # fmt: skip


def test_columns_of_the_library_are_not_shown() -> None:
    flow = library()

    for text in (
        to_svg(flow, expand=True),
        to_mermaid(flow, expand=["connected_components"]),
        explain(flow, expand="connected_components"),
    ):
        assert "spanning_forest" in text
        assert "__timely" not in text


@pytest.mark.slow
@pytest.mark.share(4)
@pytest.mark.parametrize("expand", [False, True])
@pytest.mark.parametrize("make", MAKE)
def test_steps_stand_apart_and_inside_the_frames_of_their_loops(
    make: Callable[[], ts.Dataflow],
    expand: bool,  # noqa: FBT001
) -> None:
    sketch = Sketch.of(make().compile(2)).folded(expand=expand)
    layout = lay_out(sketch, lambda _: 100.0)
    boxes, steps = layout.boxes, {step.key: step for step in sketch.steps}

    def inside(box: Box, frame: Box) -> bool:
        return (
            frame.x <= box.x + 0.1
            and box.x + box.width <= frame.x + frame.width + 0.1
            and frame.y <= box.y + 0.1
            and box.y + box.height <= frame.y + frame.height + 0.1
        )

    def apart(a: Box, b: Box) -> bool:
        beside = a.x + a.width <= b.x or b.x + b.width <= a.x
        return beside or a.y + a.height <= b.y or b.y + b.height <= a.y

    assert {*steps} <= {*boxes}
    for key, step in steps.items():
        for frame in {*boxes} - {*steps}:
            if frame in frames(step):
                assert inside(boxes[key], boxes[frame])
            else:
                assert apart(boxes[key], boxes[frame])
    assert all(apart(boxes[a], boxes[b]) for a, b in itertools.combinations(steps, 2))
    places = {key: place for place, key in enumerate(steps)}
    for arrow in sketch.arrows:  # it begins at its source, ends at its target, and stays in the drawing
        points, source, target = layout.ways[arrow.index], boxes[arrow.source], boxes[arrow.target]
        assert points[0] == (source.x + source.width / 2, source.y + source.height)
        assert points[-1] == (target.x + target.width / 2, target.y)
        assert all(inside(Box(x, y, 0, 0), boxes[ROOT]) for x, y in points)
        if expand and not arrow.feedback and places[arrow.target] > places[arrow.source]:
            assert points[0].y < points[-1].y


@pytest.mark.slow
@pytest.mark.parametrize("make", [*MAKE[:5], MAKE[-1]])
def test_every_step_loop_and_connector_is_drawn_once(make: Callable[[], ts.Dataflow]) -> None:
    sketch = Sketch.of(make().compile(2))
    tree = ET.fromstring(to_svg(make(), expand=True))

    titles = [group.find(f"{SVG}title").text for group in tree.iter(f"{SVG}g")]  # type: ignore[union-attr]
    assert sorted(title.partition(": ")[0] for title in titles if ": " in title) == sorted(
        step.name for step in sketch.steps
    )
    assert len(titles) == len(sketch.steps) + len(sketch.frames)
    paths = list(tree.iter(f"{SVG}path"))
    assert len(paths) == 2 * len(sketch.arrows)  # a line and its tip
    dashed = [path for path in paths if path.get("stroke-dasharray")]
    assert len(dashed) == sum(step.kind == "feedback" for step in sketch.steps)


def components() -> ts.Dataflow:
    flow = ts.Dataflow("components")
    edges = flow.input("edges", "src long, dst long").collection()
    parts = ts.graphs.strongly_connected_components(edges, name="parts")
    again = ts.graphs.strongly_connected_components(edges).select("node", other="component")
    again.join(parts, on="node").changes().capture("out")

    def body(x: ts.Collection) -> ts.Collection:
        return ts.graphs.strongly_connected_components(x, name="mine").select(src="node", dst="component")

    edges.iterate(body, name="own").changes().capture("looped")
    return flow


@pytest.mark.slow
def test_a_librarys_algorithm_is_one_box_and_a_loop_of_the_users_shows_its_steps() -> None:
    whole = Sketch.of(components().compile(2))
    folded = whole.folded()

    titles = {step.name: step.label for step in folded.steps if step.kind == "call"}
    assert titles["parts"].startswith("strongly_connected_components: ")
    assert titles["parts"].endswith(" steps, 4 loops")
    assert "strongly_connected_components" in titles
    assert titles["own.mine"].endswith(" loops")  # in the loop of the user's function
    assert [frame.name for frame in folded.frames.values()] == ["own"]
    assert {step.name for step in folded.steps} >= {"own.variable", "own.feedback"}
    # nothing is lost: each step is in one box, and each way in or out of a box is an arrow
    assert sorted(name for step in folded.steps for name in step.steps) == sorted(s.name for s in whole.steps)
    box = {f"step:{name}": step.key for step in folded.steps for name in step.steps}
    ways = {(box[a.source], box[a.target]) for a in whole.arrows}
    assert {(a.source, a.target) for a in folded.arrows} == {way for way in ways if way[0] != way[1]}
    assert whole.loop("loop") == "strongly_connected_components: loop"
    assert whole.loop("parts.loop.loop") == "parts.loop.loop"


@pytest.mark.slow
def test_a_box_is_opened_by_its_name_and_no_other() -> None:
    whole = Sketch.of(components().compile(2))

    opened = whole.folded(["parts"])
    assert {"parts.loop.variable"} <= {step.name for step in opened.steps}
    assert "call:parts" in opened.frames
    assert [step.name for step in opened.steps if "loop.loop.min" in step.name] == ["parts.loop.loop.min"]
    assert whole.folded(expand=True) == whole
    assert Sketch.decode(json.loads(json.dumps(whole.encode()))) == whole
    with pytest.raises(UnknownName, match="'part'"):
        components().explain(expand="part")


@pytest.mark.parametrize(("last_is_free", "costs"), [(False, True), (True, False)])
def test_arrows_into_a_box_are_one_with_the_ways_the_costs_and_the_channels_of_all(
    *, last_is_free: bool, costs: bool
) -> None:
    box = Enclosure(key="call:parts", kind="call", name="parts", title="cc", where="")
    steps = tuple(
        Step(key=name, name=name, title=name, label="", where="", kind="vertex", steps=(name,), frames=frames)
        for name, frames in [("x", ()), *((name, (box.key,)) for name in "abc")]
    )
    ways = [("a", "by k", True, (0, 2)), ("b", "", False, (1,)), ("c", "by n", last_is_free, (2,))]
    arrows = tuple(
        Arrow(index=index, source="x", target=target, exchange=exchange, free=free, channels=channels)
        for index, (target, exchange, free, channels) in enumerate(ways)
    )

    (arrow,) = Sketch(steps=steps, frames={box.key: box}, arrows=arrows).folded().arrows

    assert (arrow.source, arrow.target, arrow.exchange) == ("x", box.key, "by k, by n")
    assert (arrow.costs, arrow.channels) == (costs, (0, 2, 1))


def test_a_box_has_no_name_of_an_output() -> None:
    flow = ts.Dataflow("named")
    edges = flow.input("edges", "src long, dst long").collection()
    for number in range(2):
        parts = ts.graphs.connected_components(edges)
        parts.changes().capture("connected_components" if number else "parts")
    boxes = [step.name for step in Sketch.of(flow.compile(1)).folded().steps if step.kind == "call"]
    assert boxes == ["connected_components()", "connected_components()_2"]


def test_a_running_flow_is_drawn_with_what_it_does() -> None:
    sketch = Sketch.of(library().compile(2)).folded()
    first = sketch.arrows[0].index
    box = "call:connected_components"
    marks = Marks(
        texts={box: "3.2 MB"}, heat={box: 0.5}, classes={box: "hot"}, records={first: 12_345},
        notes={first: "1 message <in flight>"}, link=lambda step: f"/?step={step.name}&x=1",
    )  # fmt: skip

    drawn = sketch_svg(sketch, marks)

    ET.fromstring(drawn)
    for text in ("3.2 MB", ">12k<", "1 message &lt;in flight&gt;", "step call hot", "/?step=edges&amp;x=1"):
        assert text in drawn


@pytest.mark.parametrize("make", [word_count, reachability, nested, library])
@pytest.mark.parametrize("expand", [False, True])
def test_what_is_said_of_arrows_that_meet_can_be_read(
    make: Callable[[], ts.Dataflow], *, expand: bool
) -> None:
    sketch = Sketch.of(make().compile(2)).folded(expand)
    marks = Marks(records={arrow.index: 1_000 + arrow.index for arrow in sketch.arrows})

    drawn = ET.fromstring(sketch_svg(sketch, marks))

    words = [(float(one.get("x", "")), float(one.get("y", ""))) for one in drawn.iter(f"{SVG}text")
             if one.get("class") == "way"]  # fmt: skip
    assert len(words) == len(sketch.arrows)
    for (x, y), (other_x, other_y) in itertools.combinations(words, 2):
        assert abs(x - other_x) > 14 or abs(y - other_y) > 8


def test_an_arrow_has_the_records_of_a_channel_only_as_far_as_their_number_is_the_same() -> None:
    flow = ts.Dataflow("fused")
    numbers = flow.input("numbers", "n long").select(m="n + 1", name="first")
    numbers.where("m > 1", name="where").select("m", name="last").capture("out")
    sketch = Sketch.of(flow.compile(2))

    counted = {(arrow.source, arrow.target) for arrow in sketch.arrows if arrow.channels}

    assert counted == {("step:where", "step:last"), ("step:last", "step:out")}


@pytest.mark.parametrize(
    "name",
    [
        "<script>alert(1)</script>",
        '"/><b>',
        "]]>",
        "&amp;",
        "x' onload='y",
        "naïve 数",
        "a\tb",
        "a\x1b[2J",
        "\x00",
    ],
)
def test_any_name_can_be_drawn_and_none_becomes_markup(name: str) -> None:
    flow = ts.Dataflow(name)
    name = name.replace("/", "").replace("\x00", "")  # which no step may have
    with flow.region(f"{name} region"):
        x = flow.input(name or "x", "n long")
        x.distinct(name="inside")
    x.loop(lambda variable: variable.distinct(name=f"{name} own"), name=f"{name} loop").capture(f"{name} out")

    html = to_html(flow)

    tags = {element.tag.removeprefix(SVG) for element in ET.fromstring(html).iter()}
    assert tags <= {"div", "b", "svg", "title", "rect", "g", "text", "path"}
    assert re.findall(r"[\w-]+=(?=\")", html).count("onload=") == 0


def test_nothing_is_fetched_and_nothing_runs() -> None:
    html = library()._repr_html_()

    assert "<script" not in html
    assert re.findall(r"https?://[^\s\"]+", html) == ["http://www.w3.org/2000/svg"]  # a name, not an address


def test_an_incomplete_flow_is_shown_with_the_reason() -> None:
    flow = ts.Dataflow("begun")
    loop = flow.scope.inner(name="loop")
    loop.variable(flow.input("x", "n long"), name="open")

    html = flow._repr_html_()

    assert "<svg" not in html
    assert "open" in html
    ET.fromstring(html)


def test_a_flow_names_its_inputs_loops_and_outputs() -> None:
    assert repr(reachability()) == (
        "Dataflow('reachability'; inputs: edges, roots; loops: hops; outputs: near)"
    )
