"""Drawings of flows: well-formed, whole, without scripts; steps stand apart, in the frames of their loops."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Callable
from xml.etree import ElementTree as ET

import pytest

import timely_spark as ts
from tests.show.test_explain import nested, reachability, word_count
from timely_spark.graph import Kind
from timely_spark.show.drawing import _width, to_html, to_svg
from timely_spark.show.explain import explain
from timely_spark.show.layout import Box, frames, lay_out
from timely_spark.show.mermaid import to_mermaid

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

    for text in (to_svg(flow), to_mermaid(flow), explain(flow)):
        assert "spanning_forest" in text
        assert "__timely" not in text


@pytest.mark.parametrize("make", MAKE)
def test_steps_stand_apart_and_inside_the_frames_of_their_loops(make: Callable[[], ts.Dataflow]) -> None:
    plan = make().compile(2)
    layout = lay_out(plan.stages, plan.edges, _width)
    boxes = layout.boxes
    root = plan.stages[0].scope.path[0]

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

    assert {*plan.stages} <= {*boxes}
    for stage in plan.stages:
        for scope in {*boxes} - {*plan.stages}:
            if scope in frames(stage):
                assert inside(boxes[stage], boxes[scope])
            else:
                assert apart(boxes[stage], boxes[scope])
    assert all(apart(boxes[a], boxes[b]) for a, b in itertools.combinations(plan.stages, 2))
    for edge in plan.edges:  # a connector begins at its source, ends at its target, and stays in the drawing
        points, source, target = layout.ways[edge.index], boxes[edge.source], boxes[edge.target]
        assert points[0] == (source.x + source.width / 2, source.y + source.height)
        assert points[-1] == (target.x + target.width / 2, target.y)
        assert all(inside(Box(x, y, 0, 0), boxes[root]) for x, y in points)
        if edge.source.kind is not Kind.FEEDBACK and edge.target.index > edge.source.index:
            assert points[0].y < points[-1].y


@pytest.mark.parametrize("make", [*MAKE[:5], MAKE[-1]])
def test_every_step_loop_and_connector_is_drawn_once(make: Callable[[], ts.Dataflow]) -> None:
    plan = make().compile(2)
    tree = ET.fromstring(to_svg(make()))

    titles = [group.find(f"{SVG}title").text for group in tree.iter(f"{SVG}g")]  # type: ignore[union-attr]
    loops = {frame for stage in plan.stages for frame in frames(stage)[1:]}
    assert sorted(title.partition(": ")[0] for title in titles if ": " in title) == sorted(
        stage.name for stage in plan.stages
    )
    assert len(titles) == len(plan.stages) + len(loops)
    paths = list(tree.iter(f"{SVG}path"))
    assert len(paths) == 2 * len(plan.edges)  # a line and its tip
    dashed = [path for path in paths if path.get("stroke-dasharray")]
    assert len(dashed) == sum(stage.kind is Kind.FEEDBACK for stage in plan.stages)


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
