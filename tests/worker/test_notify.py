"""What grows with the flow must not grow faster than the flow: routes, paths, pending notifications, room."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

import timely_spark as ts
from timely_spark.compiler.plan import Plan
from timely_spark.state import hashing
from timely_spark.worker.notify import LowerBounds, Notificator, Pending


def looped() -> Plan:
    flow = ts.Dataflow("looped")
    numbers = flow.input("numbers", "n long")
    counts = numbers.group_by("n").count()
    counts.select(n="count").loop(lambda s: s.distinct(), name="again").group_by("n").count().capture("out")
    return flow.compile(2)


def diamonds(k: int, *, behind: bool) -> Plan:
    flow = ts.Dataflow("diamonds")
    stream = flow.input("numbers", "n long")
    if behind:
        stream = stream.group_by("n").count().select(n="n")
    for _ in range(k):
        stream = stream.concat(stream)
    stream.group_by("n").count().capture("out")
    return flow.compile(2)


@pytest.mark.slow
@pytest.mark.share(1)
@pytest.mark.parametrize("behind", [False, True])
def test_diamonds_do_not_multiply(*, behind: bool) -> None:
    assert len(diamonds(30, behind=behind).channels) < 300
    simulation = ts.testing.Simulation(diamonds(10, behind=behind), workers=2)
    simulation.send("numbers", [1, 2])
    simulation.close("numbers")
    simulation.run()
    assert sorted(simulation.captured["out"].rows()[0]) == [(1, 1 << 10), (2, 1 << 10)]


def test_a_concat_of_many_streams_stays_at_the_source() -> None:
    flow = ts.Dataflow("many")
    numbers = flow.input("numbers", "n long")
    many = numbers.concat(*[numbers.select(n="n") for _ in range(40)])
    for name in ("a", "b"):
        many.group_by("n").count().capture(name)
    assert all(node.stage.operator != "concat" for node in flow.compile(2).nodes)


def test_paths_are_the_same_in_both_directions() -> None:
    reach = looped().reach
    for source in range(reach.n):
        either, crossed = reach.paths_from(source)
        for target in range(reach.n):
            assert either.get(target) == reach.summaries(target).get(source)
            assert crossed.get(target) == reach.exchanged(target).get(source)
            assert reach.may_lead(source, target) or target not in either


def test_bounds_change_with_the_epoch_at_which_late_rows_enter() -> None:
    """Between two rounds only that epoch may change: of a closed source, by late rows."""
    flow = ts.Dataflow("late")
    source = flow.source("s", "at long, n long", epoch="at")
    source.late.group_by("n").count().capture("late")
    plan = flow.compile(2)
    simulation = ts.testing.Simulation(plan)
    header = replace(simulation.result.header, inputs={"s": None}, late={"s": 3})
    before, after = (
        LowerBounds(plan, replace(header, late={"s": epoch}), {"s": None}, {"s": None}) for epoch in (3, 4)
    )
    node = next(node for node in plan.nodes if node.template.needs_frontier or node.waits)

    assert before[node.index] != after[node.index]
    assert any(first <= node.index < end for first, end in after.changed(before))
    again = LowerBounds(plan, header, {"s": None}, {"s": None})
    assert not list(again.changed(before))


def naive(plan: Plan, asked: list[Pending], bounds: Any) -> Pending | None:
    """By definition."""
    held = [(plan.nodes[p.node].leaves, p.capability) for p in asked if p.capability is not None]
    for pending in sorted(
        asked, key=lambda p: (plan.key(plan.nodes[p.node], p.guarantee), p.capability is None)
    ):
        if any(time.less_equal(pending.guarantee) for time in bounds[pending.node]):
            continue
        paths = plan.reach.summaries(plan.nodes[pending.node].arrives)
        results = (path.results_in(t) for at, t in held for path in paths.get(at, ()))
        if not any(t is not None and t.less_equal(pending.guarantee) for t in results):
            return pending
    return None


def some_time(draw: random.Random, depth: int) -> Any:
    return ts.times.Time(*(draw.randrange(4) for _ in range(1 + depth)))


def request(draw: random.Random, plan: Plan) -> Pending:
    node = draw.choice(plan.nodes)
    guarantee = some_time(draw, node.stage.scope.depth)
    later = guarantee.join(some_time(draw, node.stage.scope.depth))
    return Pending(node.index, guarantee, draw.choice([None, guarantee, later]))


def outside(draw: random.Random, plan: Plan) -> dict[int, list[Any]]:
    """What blocks from outside the worker, by node."""
    return {
        node.index: [some_time(draw, node.stage.scope.depth) for _ in range(draw.randrange(3))]
        if draw.random() < 0.4
        else []
        for node in plan.nodes
    }


def restored(notificator: Notificator) -> Notificator:
    """As from a worker's state."""
    again = Notificator(notificator.plan)
    for pending, later in notificator.active:
        again.restore(pending, later)
    assert list(again.active) == list(notificator.active)
    return again


@pytest.mark.parametrize("seeds", [20, pytest.param(300, marks=pytest.mark.campaign)])
def test_the_notificator_delivers_what_the_definition_allows(seeds: int) -> None:
    plan = looped()
    delivered = 0
    for seed in range(seeds):
        draw = random.Random(seed)
        notificator, asked, bounds = Notificator(plan), list[Pending](), outside(draw, plan)
        for step in range(60):
            if step % 20 == 19:
                notificator = restored(notificator) if draw.random() < 0.5 else notificator
                notificator.begin()
                bounds = outside(draw, plan)
            if step < 20 or draw.random() < 0.4:
                pending = request(draw, plan)
                notificator.add(pending)
                if pending not in asked:
                    asked.append(pending)
            if step >= 10:
                first = notificator.first(bounds)
                assert first == naive(plan, asked, bounds)
                assert Counter(notificator) == Counter(asked)
                if first is not None:
                    notificator.remove(first)
                    asked.remove(first)
                    delivered += 1
    assert delivered > 3 * seeds


class Looked(dict[int, list[Any]]):
    """What blocks from outside: everything at or after epoch 0; `times` counts how often a round asks."""

    times = 0

    def __missing__(self, index: int) -> list[Any]:
        self.times += 1
        return [ts.times.Time(0)]


@pytest.mark.parametrize("waiting", [10, 1000])
def test_a_round_looks_at_one_of_the_notifications_that_differ_in_their_epoch(waiting: int) -> None:
    plan = looped().by_name
    node = next(node for node in plan.values() if node.waits and not node.stage.scope.depth)
    notificator = Notificator(looped())
    for epoch in random.Random(1).sample(range(waiting), waiting):
        notificator.add(Pending(node.index, ts.Time(epoch), ts.Time(epoch)))
    notificator = restored(restored(notificator))
    assert len(list(notificator)) == waiting
    for _ in range(3):
        notificator.begin()
        assert notificator.first(looked := Looked()) is None
        assert looked.times < 15

    notificator.begin()
    for epoch in range(waiting):
        free = Looked({node.index: []})
        first = notificator.first(free)
        assert first == Pending(node.index, ts.Time(epoch), ts.Time(epoch))
        notificator.remove(first)
    assert not list(notificator)


def test_h_is_the_same_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["", "a", "abc" * 50, None, "", "zebra", "x" * 7, *map(str, range(100))]
    table = pa.table({"w": pa.array(words).slice(1)})
    whole, hash_piece = hashing.hashes(table, ["w"]), hashing._hash_piece
    longest = max(len(word or "") for word in words)

    def small(data: Any, offsets: Any) -> Any:
        assert len(offsets) - 1 <= piece
        assert offsets[-1] - offsets[0] <= max(piece, longest), "memory is bounded"
        return hash_piece(data, offsets)

    monkeypatch.setattr(hashing, "_hash_piece", small)
    for piece in (1, 3, 8, 200):
        monkeypatch.setattr(hashing, "_PIECE", piece)
        assert (hashing.hashes(table, ["w"]) == whole).all()
