"""A flow that is changed at a restart is refused, or its results are as if it had been so from the beginning.

Flows of collections: what each is after each epoch from the restart on, with insertions and deletions.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pyarrow.compute as pc
import pytest

import timely_spark as ts
from tests.support.accumulated import after
from tests.support.rescaling import continued
from timely_spark.coordinator.migration import FlowChanged
from timely_spark.testing import Simulation

K, V = pc.field("k"), pc.field("v")
Build = Callable[[ts.Collection, ts.Collection, int, str | None], ts.Collection]
#: of two collections, a parameter and perhaps a name
COLLECTIONS: dict[str, Build] = {
    "plain": lambda x, _, n, name: x.where(n <= V, name=name),
    "moved": lambda x, _, n, name: x.select("k", v=V + n, name=name),
    "count": lambda x, _, n, name: x.where(n <= V).count(keys="k", name=name),
    "distinct": lambda x, _, n, name: x.select(v=V + n).distinct(name=name),
    "top": lambda x, _, n, name: x.top_k(n + 1, "v", keys="k", name=name),
    "least": lambda x, _, n, name: x.where(n <= V).min("v", keys="k", name=name),
    "join": lambda x, y, n, name: x.join(y.where(n <= V).select("k", w="v"), on="k", name=name),
    "left": lambda x, y, n, name: x.join(y.where(n <= V).select("k", w="v"), on="k", how="left", name=name),
    "both": lambda x, y, n, name: x.concat(y, *[x] * n).count(keys="k", name=name),
    "loop": lambda x, _, n, name: x.select("v").iterate(
        lambda s: s.where(n < V).select(v=V - 1).concat(s).distinct(), name=name
    ),
    "parts": lambda x, _, n, name: ts.graphs.connected_components(
        x.where(n <= V), src="k", dst="v", name=name
    ),
    "shared": lambda x, y, n, name: (
        y.select(a="k", b="v").join(x.arrange("k", name=name), left="b", right="k").where(n <= V)
    ),
}
Piece = tuple[str, int, str | None]


def flow_of(pieces: dict[str, Piece], inputs: str = "xy") -> ts.Dataflow:
    flow = ts.Dataflow("flow")
    made = {n: flow.input(n, "k long, v long, diff long", epochs="manual") for n in inputs}
    x, y = (made[n].collection(diff="diff") for n in (inputs[0], inputs[-1]))
    for output, (kind, n, name) in pieces.items():
        COLLECTIONS[kind](x, y, n, name).capture(output)
    return flow


def send(simulation: Simulation, of: dict[str, list[Any]], epoch: int, *, run: bool) -> None:
    for name, rows in of.items():
        simulation.send(name, rows, epoch=epoch)
        simulation.advance_to(name, epoch + 1)
    simulation.step()
    if run:
        simulation.run()


def history(draw: random.Random, epochs: int, inputs: str = "xy") -> list[dict[str, list[Any]]]:
    present: dict[str, list[Any]] = {name: [] for name in inputs}
    made = []
    for _ in range(epochs):
        now: dict[str, list[Any]] = {name: [] for name in inputs}
        for name in inputs:
            for _ in range(draw.randrange(6)):
                if present[name] and draw.random() < 0.4:
                    now[name].append((*present[name].pop(draw.randrange(len(present[name]))), -1))
                else:
                    present[name].append(row := (draw.randrange(4), draw.randrange(4)))
                    now[name].append((*row, 1))
        made.append(now)
    return made


def now_at(rows: dict[int, list[Any]], epoch: int) -> Counter[Any]:
    return after(change for at, changes in rows.items() if at <= epoch for change in changes)


def piece(draw: random.Random, output: str) -> Piece:
    named = f"{output}-step" if draw.random() < 0.6 else None
    return draw.choice(list(COLLECTIONS)), draw.randrange(3), named


def changed(draw: random.Random, pieces: dict[str, Piece]) -> dict[str, Piece]:
    """Some pieces are gone, have another parameter, kind or name, or are new; in another order."""
    new = {}
    for output, (kind, n, name) in pieces.items():
        what = draw.random()
        other = f"{output}-other" if name else f"{output}-step"
        if what < 0.8:
            new[output] = (
                draw.choice(list(COLLECTIONS)) if what < 0.05 else kind,
                draw.randrange(3) if 0.05 < what < 0.12 else n,
                other if 0.12 < what < 0.16 else name,
            )
    if draw.random() < 0.2:
        new["d"] = piece(draw, "d")
    items = list(new.items())
    draw.shuffle(items)
    return dict(items)


def check(seed: int) -> str:
    draw = random.Random(seed)
    pieces = {output: piece(draw, output) for output in "abc"[: draw.randint(1, 3)]}
    later = changed(draw, pieces)
    if not later:
        return "nothing"
    before, epochs = draw.randint(1, 3), 6
    given = history(draw, epochs)
    workers = draw.choice([1, 2, 3])
    old = Simulation(flow_of(pieces), workers=workers, seed=seed)
    for epoch in range(before):
        send(old, given[epoch], epoch, run=epoch + 1 < before or draw.random() < 0.7)
    flow = flow_of(later)
    try:
        new, made = continued(old, flow, draw.choice([workers, workers, 1, 3]))
    except FlowChanged:
        return "refused"
    new.run()
    for epoch in range(before, epochs):
        send(new, given[epoch], epoch, run=True)
    straight = Simulation(flow, workers=2)
    for epoch in range(epochs):
        send(straight, given[epoch], epoch, run=True)
    assert not made.lacking
    for output in later:
        rows = new.captured[output].rows()
        if output in old.captured:
            rows = {**old.captured[output].rows(), **rows}
        for epoch in range(before, epochs):
            expected = now_at(straight.captured[output].rows(), epoch)
            assert now_at(rows, epoch) == expected, (seed, output, pieces, later, epoch)
    return "changed" if later != pieces else "same"


@pytest.mark.slow
@pytest.mark.parametrize(
    "seeds",
    [range(15), *(pytest.param(range(n, n + 30), marks=pytest.mark.campaign) for n in range(0, 240, 30))],
    ids=str,
)
def test_what_is_accepted_is_as_if_it_had_been_there_from_the_beginning(seeds: range) -> None:
    seen = Counter(map(check, seeds))
    assert {"refused", "changed"} <= set(seen)
