"""Frozen dataclasses as state: they come back by their fields' names, and no bytes choose code."""

from __future__ import annotations

import dataclasses
import sys
from dataclasses import dataclass, field
from datetime import date
from fractions import Fraction
from typing import Any

import pyarrow as pa
import pytest

import timely_spark as ts
from tests.support.rescaling import move
from timely_spark.errors import StateError, VertexError
from timely_spark.state.codec import Codec, pack_parts
from timely_spark.state.frozen import reachable
from timely_spark.testing import Simulation, run

made: list[str] = []


@dataclass(frozen=True, slots=True)
class Point:
    x: int
    y: int = 0


@dataclass(frozen=True)
class Seen:
    """What is known of a key: a value that holds others."""

    key: tuple[int, str]
    best: Point
    days: frozenset[date] = frozenset()
    count: int = field(default=1, init=False)

    def __post_init__(self) -> None:
        made.append("post init")


@dataclass
class Loose:
    x: int


class Tracks(ts.Vertex):
    """Keeps the farthest point of each key; sends it when the epoch is complete."""

    def __init__(self) -> None:
        self.seen: dict[Point, Seen] = {}
        self.last: Point | None = None

    def on_recv(self, edge: int, time: Any, batch: pa.Table) -> None:
        for row in batch.to_pylist():
            self.last = Point(row["k"])
            known = self.seen.get(self.last)
            best = max((row["n"], known.best.x if known else 0))
            self.seen[self.last] = Seen((row["k"], "k"), Point(best, time.epoch))
        self.notify_at(time)

    def on_notify(self, time: Any) -> None:
        rows = [(key.x, one.best.x) for key, one in self.seen.items() if one.best.y == time.epoch]
        self.send_by(0, time, pa.table({"k": [k for k, _ in rows], "n": [n for _, n in rows]}))

    def repartition(self, states: Any, workers: int, partition: Any) -> Any:
        seen = {key: one for state in states for key, one in state.get("seen", {}).items()}
        parts = partition(0, pa.table({"k": [key.x for key in seen]}))
        return [{"seen": {Point(k): seen[Point(k)] for k in one["k"].to_pylist()}} for one in parts]


CODEC = Codec(ts.PRODUCT)
VALUES = [
    Point(1, 2),
    Seen((1, "a"), Point(2**70), frozenset([date(2024, 2, 29)])),
    {Point(1): [Seen((1, "a"), Point(0))], "more": {Point(3), Point(4)}},
]


def back(value: Any, vertex: type = Tracks) -> Any:
    return CODEC.read(CODEC.write(value, vertex=vertex), vertex=vertex)


@pytest.mark.parametrize("value", VALUES, ids=["slots", "nested", "keys"])
def test_a_frozen_dataclass_comes_back_as_it_was_and_no_code_of_it_runs(value: Any) -> None:
    made.clear()
    assert back(value) == value
    assert repr(back(value)) == repr(value)
    assert made == []


def test_the_classes_are_those_to_which_the_vertex_s_own_class_refers() -> None:
    @dataclass(frozen=True)
    class Near:
        where: Fraction | Point  # a type that is no dataclass is not taken

    class Closes(ts.Vertex):
        def on_recv(self, edge: int, time: Any, batch: pa.Table) -> None:
            self.near = Near(Point(1))

    class Nests(ts.Vertex):
        @dataclass(frozen=True)
        class Inner:
            n: int

    class Other(ts.Vertex):
        pass

    assert back(Near(Point(1)), Closes) == Near(Point(1))
    assert back(Nests.Inner(3), Nests) == Nests.Inner(3)
    assert Loose not in reachable(Tracks).values()
    assert not reachable(Other)
    with pytest.raises(
        StateError, match=r"(?s)type Point cannot be kept.*Hint: .*type hint of Other .*Point"
    ):
        CODEC.write(Point(1), vertex=Other)
    with pytest.raises(StateError, match=r"(?s)type Near cannot be kept.*Hint: .*type hint of Tracks"):
        CODEC.write(Near(Point(1)), vertex=Tracks)
    with pytest.raises(StateError, match=r"(?s)type Loose cannot be kept.*Hint: .*@dataclass\(frozen=True\)"):
        CODEC.write(Loose(1), vertex=Tracks)
    with pytest.raises(StateError, match=r"(?s)type Fraction cannot be kept.*Hint: .*frozen dataclass"):
        CODEC.write(Point(Fraction(1, 2)), vertex=Tracks)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "name", ["os.system", "builtins.eval", f"{__name__}.Loose", "Point", "fractions.Fraction"]
)
def test_bytes_that_name_something_else_make_nothing(name: str) -> None:
    forged = pack_parts([f'{{"dataclass":["{name}",{{"x":1}}]}}'.encode()])
    with pytest.raises(
        StateError, match=r"(?s)Tracks refers to no such frozen dataclass\nHint: .*type hint of Tracks"
    ):
        CODEC.read(forged, vertex=Tracks)


def changed_class(**fields: Any) -> type:
    """A vertex whose `Point` has other fields."""
    parts = [(name, int, dataclasses.field(**how)) for name, how in fields.items()]
    # since Python 3.12 its methods would have this module's globals, with the first `Point`
    where: Any = {"module": "elsewhere"} if sys.version_info >= (3, 12) else {}
    point = dataclasses.make_dataclass("Point", parts, frozen=True, **where)
    point.__module__ = "elsewhere"
    return type("Later", (ts.Vertex,), {"Point": point})


def test_fields_are_known_again_by_their_names() -> None:
    data = CODEC.write(Point(1, 2), vertex=Tracks)
    read = CODEC.read(data, vertex=changed_class(y={}, x={}, z={"default": 7}, s={"default_factory": int}))
    assert dataclasses.asdict(read) == {"y": 2, "x": 1, "z": 7, "s": 0}
    with pytest.raises(StateError, match=r"Point with fields \['x', 'y'\].* \['x'\], and no \['y'\]\nHint: "):
        CODEC.read(data, vertex=changed_class(x={}))
    with pytest.raises(StateError, match=r"(?s)Point .* the class has 'z', too\nHint: give 'z' a default"):
        CODEC.read(data, vertex=changed_class(x={}, y={}, z={}))


# -- in a flow -----------------------------------------------------------------------------------------------

EPOCHS = [[(k, (k * 7 + e * 5) % 23) for k in range(e % 3, 9, 2)] for e in range(6)]


def flow() -> ts.Dataflow:
    made = ts.Dataflow("tracks")
    x = made.input("x", "k long, n long", epochs="manual")
    made.vertex(Tracks(), x, "k long, n long", by="k", name="tracks").capture("out")
    return made


def by_definition() -> dict[int, Any]:
    best: dict[int, int] = {}
    found = {}
    for epoch, rows in enumerate(EPOCHS):
        for k, n in rows:
            best[k] = max(best.get(k, 0), n)
        found[epoch] = sorted((k, best[k]) for k, _ in rows)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("logged", [False, True], ids=["full", "logged"])
def test_after_crashes_and_restores_a_vertex_has_what_it_had(
    monkeypatch: pytest.MonkeyPatch,
    logged: bool,  # noqa: FBT001
) -> None:
    monkeypatch.setattr(Tracks, "logged", logged)
    for seed in range(5):
        out = run(flow(), {"x": EPOCHS}, workers=2, seed=seed, crashes=0.4)["out"].rows()
        assert out == by_definition()


def test_on_other_numbers_of_workers_a_vertex_has_what_it_had() -> None:
    simulation = Simulation(flow(), workers=1)
    for epoch, rows in enumerate(EPOCHS):
        if epoch:
            move(simulation, flow(), (3, 2, 1, 4, 2)[epoch - 1])
        simulation.send("x", rows, epoch=epoch)
        simulation.advance_to("x", epoch + 1)
        simulation.run()
    assert simulation.captured["out"].rows() == by_definition()


def test_an_unknown_class_is_reported_with_the_step() -> None:
    class Keeps(ts.Vertex):
        def on_recv(self, edge: int, time: Any, batch: pa.Table) -> None:
            self.kept = dataclasses.make_dataclass("Made", ["n"], frozen=True)(3)

    flow = ts.Dataflow("keeps")
    flow.vertex(Keeps(), flow.input("x", "n long"), "n long", name="keeps").capture("out")
    with pytest.raises(
        VertexError, match=r"(?s)step 'keeps' .*test_frozen\.py.*type Made cannot.*type hint of Keeps"
    ):
        run(flow, {"x": [[1]]})
