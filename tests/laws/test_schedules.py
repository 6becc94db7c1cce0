"""A flow's answer is right, and depends on no number of workers, no schedule and no batching."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import timely_spark as ts
from tests.support.accumulated import after, after_each
from tests.support.hops import spread, to_next_key
from tests.support.rescaling import halved, reachability
from timely_spark.testing import Simulation, run

WORKERS = (1, 2, 3, 8)
#: a part of the examples that a profile asks for
FEW = settings(max_examples=settings().max_examples * 2 // 5)
Epochs = list[list[Any]]
Rows = dict[int, list[tuple[Any, ...]]]

NODES = st.integers(0, 7)
EDGES = st.lists(st.lists(st.tuples(NODES, NODES), max_size=7), min_size=1, max_size=3)
PAIRS = st.lists(
    st.lists(st.tuples(st.integers(0, 3), st.integers(-5, 5)), max_size=6), min_size=1, max_size=4
)


@st.composite
def schedules(draw: Any) -> dict[str, Any]:
    return {
        "workers": draw(st.sampled_from(WORKERS)),
        "seed": draw(st.one_of(st.none(), st.integers(0, 10**6))),
        "together": draw(st.booleans()),
    }


def upto(epochs: Epochs, last: int) -> list[Any]:
    return [row for rows in epochs[: last + 1] for row in rows]


def holds(flow: ts.Dataflow, inputs: dict[str, Epochs], schedule: dict[str, Any], expected: Rows) -> None:
    got = run(flow, inputs, **schedule)["out"].rows()
    assert {epoch: got.get(epoch, []) for epoch in expected} == expected
    assert not any(rows for epoch, rows in got.items() if epoch not in expected)


def news(answer: Callable[[int], Iterable[tuple[Any, ...]]], epochs: int) -> Rows:
    """Of an answer that only grows: for each epoch what is new."""
    seen: set[Any] = set()
    rows = {}
    for epoch in range(epochs):
        now = set(answer(epoch))
        rows[epoch] = sorted(now - seen)
        seen |= now
    return rows


# -- graphs --------------------------------------------------------------------------------------------------


def reached(edges: list[Any], roots: list[Any]) -> set[tuple[int]]:
    found, todo = set[int](), [root for (root,) in roots]
    while todo:
        node = todo.pop()
        if node not in found:
            found.add(node)
            todo += [b for a, b in edges if a == node]
    return {(node,) for node in found}


@pytest.mark.slow
@FEW
@given(EDGES, st.lists(st.lists(st.tuples(NODES), max_size=2), min_size=1, max_size=3), schedules())
def test_reachability(edges: Epochs, roots: Epochs, schedule: Any) -> None:
    epochs = max(len(edges), len(roots))
    expected = news(lambda n: reached(upto(edges, n), upto(roots, n)), epochs)

    holds(reachability("clock"), {"edges": edges, "roots": roots}, schedule, expected)


def components(edges: list[Any]) -> dict[int, int]:
    """By union-find."""
    parent: dict[int, int] = {}

    def find(node: int) -> int:
        parent.setdefault(node, node)
        while parent[node] != node:
            parent[node] = node = parent[parent[node]]
        return node

    for a, b in edges:
        low, high = sorted((find(a), find(b)))
        parent[high] = low
    return {node: find(node) for node in parent}


def labels(diff: str | None = None, *, exact: bool = False) -> ts.Dataflow:
    flow = ts.Dataflow("components")
    edges = flow.input("edges", "src long, dst long")
    both = edges.concat(edges.select(src="dst", dst="src"))
    first = both.select(node="src", label=pc.min_element_wise(pc.field("src"), pc.field("dst")))
    leaves = first.loop(spread(both, exact=exact))
    if diff is None:
        leaves.capture("out")
    else:
        leaves.to_delta("nowhere", diff=diff, name="out")
    return flow


@pytest.mark.slow
@FEW
@given(EDGES, schedules(), st.booleans())
def test_connected_components(edges: Epochs, schedule: Any, exact: bool) -> None:  # noqa: FBT001
    """Each epoch: the labels that changed; also with bulk-synchronous iterations."""
    expected, before = {}, dict[int, int]()
    for epoch in range(len(edges)):
        now = components(upto(edges, epoch))
        expected[epoch] = sorted(pair for pair in now.items() if before.get(pair[0]) != pair[1])
        before = now

    holds(labels(exact=exact), {"edges": edges}, schedule, expected)


@pytest.mark.slow
@FEW
@given(EDGES, schedules())
def test_connected_components_as_differences(edges: Epochs, schedule: Any) -> None:
    expected, before = {}, set[Any]()
    for epoch in range(len(edges)):
        now = set(components(upto(edges, epoch)).items())
        expected[epoch] = sorted(
            [(*pair, 1) for pair in now - before] + [(*pair, -1) for pair in before - now]
        )
        before = now

    holds(labels("diff"), {"edges": edges}, schedule, expected)


@pytest.mark.slow
def test_an_earlier_epoch_is_not_hidden_by_a_later_one() -> None:
    """Epoch 1 joins what epoch 0 is still walking towards: a long path, its far end found first."""
    path = [(i, i + 1) for i in range(8)]
    edges = [path, [(8, 0)], [(40, 41)], [(41, 8)]]
    for workers, seed in zip(WORKERS, (1, None, 1, None), strict=True):
        result = run(labels("diff"), {"edges": edges}, workers=workers, seed=seed, together=True)["out"]
        for epoch, total in enumerate(after_each(result.rows(), len(edges))):
            assert total == dict.fromkeys(components(upto(edges, epoch)).items(), 1)


def walked(starts: list[Any]) -> set[tuple[int]]:
    found, todo = set[int](), [n for (n,) in starts]
    seen = set[int]()
    while todo:
        n = todo.pop()
        if n in seen:
            continue
        seen.add(n)
        if n % 2 == 0:
            todo.append(n // 2 if n else 1)
        else:
            found.add(n)
            if n < 300:
                todo.append(n + 100)
    return {(n,) for n in found}


@pytest.mark.slow
@FEW
@given(st.lists(st.lists(st.tuples(st.integers(0, 40)), max_size=3), min_size=1, max_size=3), schedules())
def test_nested_loops(starts: Epochs, schedule: Any) -> None:
    flow = ts.Dataflow("nested")
    halved(flow.input("x", "n long")).capture("out")

    holds(flow, {"x": starts}, schedule, news(lambda n: walked(upto(starts, n)), len(starts)))


# -- joins and aggregates ------------------------------------------------------------------------------------


@pytest.mark.slow
@given(PAIRS, PAIRS, schedules())
def test_a_join_pairs_all_that_ever_came_each_once(left: Epochs, right: Epochs, schedule: Any) -> None:
    flow = ts.Dataflow("join")
    flow.input("l", "k long, a long").join(flow.input("r", "k long, b long"), on=["k"]).capture("out")
    epochs = max(len(left), len(right))

    def pairs(last: int) -> list[Any]:
        return [(k, a, b) for k, a in upto(left, last) for j, b in upto(right, last) if j == k]

    expected: Rows = {}
    for epoch in range(epochs):
        rows = pairs(epoch)
        for row in pairs(epoch - 1) if epoch else []:
            rows.remove(row)
        expected[epoch] = sorted(rows)

    holds(flow, {"l": left, "r": right}, schedule, expected)


@pytest.mark.slow
@given(PAIRS, PAIRS, schedules())
def test_a_join_per_time_pairs_what_came_in_one_epoch(left: Epochs, right: Epochs, schedule: Any) -> None:
    flow = ts.Dataflow("join")
    a, b = (flow.input(name, f"k long, {column} long", epochs="manual") for name, column in ("la", "rb"))
    a.join(b, on=["k"], per="time").capture("out")
    expected = {
        epoch: sorted(
            (k, a, b)
            for k, a in (left[epoch] if epoch < len(left) else [])
            for j, b in (right[epoch] if epoch < len(right) else [])
            if j == k
        )
        for epoch in range(max(len(left), len(right)))
    }

    holds(flow, {"l": left, "r": right}, schedule, expected)


KINDS: dict[str, Any] = {
    "n": "count",
    "total": ("sum", "v"),
    "low": ("min", "v"),
    "high": ("max", "v"),
    "all": ("collect", "v"),
}


@pytest.mark.slow
@given(PAIRS, schedules(), st.sampled_from(["accumulated", "time"]))
def test_an_aggregate_sends_the_new_value_of_each_key_that_changed(
    rows: Epochs, schedule: Any, per: Any
) -> None:
    flow = ts.Dataflow("aggregate")
    x = flow.input("x", "k long, v long")
    x.exchange("v").map(lambda row: row, "k long, v long").group_by("k").aggregate(per=per, **KINDS).capture(
        "out"
    )
    expected = {}
    for epoch in range(len(rows)):
        read = rows[epoch] if per == "time" else upto(rows, epoch)
        values = {key: sorted(v for k, v in read if k == key) for key in {k for k, _ in rows[epoch]}}
        expected[epoch] = sorted((k, len(v), sum(v), v[0], v[-1], v) for k, v in values.items())

    holds(flow, {"x": rows}, schedule, expected)


@pytest.mark.slow
@FEW
@given(PAIRS, schedules())
def test_who_reads_the_least_gets_the_last_word_once_a_change(rows: Epochs, schedule: Any) -> None:
    """After an exchange an epoch arrives in parts, and min improves several times."""
    flow = ts.Dataflow("least")
    x = flow.input("x", "k long, v long")
    far = x.exchange("v").map(lambda row: (row.k, row.v), "k long, v long")
    far.concat(x.map(lambda row: (row.k, row.v + 2), "k long, v long")).min("v", keys=["k"]).group_by(
        "k"
    ).aggregate(changes="count", last=("min", "v")).capture("out")
    expected: Rows = {}
    best: dict[int, int] = {}
    changes: dict[int, int] = defaultdict(int)
    for epoch, new in enumerate(rows):
        changed = {k for k, v in new if v < best.get(k, 99)}
        for k, v in new:
            best[k] = min(v, best.get(k, 99))
        for k in changed:
            changes[k] += 1
        expected[epoch] = sorted((k, changes[k], best[k]) for k in changed)

    holds(flow, {"x": rows}, schedule, expected)


@pytest.mark.slow
@FEW
@given(
    st.lists(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=5), min_size=1, max_size=3),
    schedules(),
)
def test_an_aggregate_in_a_loop_waits_for_each_iteration(rows: Epochs, schedule: Any) -> None:
    """Five iterations, each of which moves a key's count to the next key; by brute force, per epoch."""
    flow = ts.Dataflow("iterations")

    flow.input("x", "k long, v long").loop(to_next_key, max_iterations=5, on_limit="return").capture("out")
    expected = {}
    for epoch, variable in enumerate(rows):
        left: list[Any] = []
        for _ in range(5):
            total: dict[int, int] = defaultdict(int)
            for k, v in variable:
                total[k] += v
            variable = [((k + 1) % 4, v + 1) for k, v in total.items()]  # noqa: PLW2901
            left += variable
        expected[epoch] = sorted(left)

    holds(flow, {"x": rows}, schedule, expected)


# -- batching ------------------------------------------------------------------------------------------------


@pytest.mark.slow
@FEW
@given(
    st.lists(st.tuples(NODES, NODES), min_size=1, max_size=12),
    st.lists(st.integers(0, 12), max_size=4),
    st.data(),
)
def test_batching_changes_the_time_of_outputs_not_their_contents(
    edges: list[Any], cuts: list[int], data: Any
) -> None:
    bounds = [0, *sorted(min(cut, len(edges)) for cut in cuts), len(edges)]
    epochs = [edges[a:b] for a, b in itertools.pairwise(bounds)]
    result = run(
        labels("diff"), {"edges": epochs}, workers=data.draw(st.sampled_from(WORKERS)), together=True
    )
    changes = itertools.chain.from_iterable(result["out"].rows().values())
    assert {*after(changes)} == set(components(edges).items())


@settings(max_examples=settings().max_examples // 8)
@given(EDGES, st.integers(0, 10**6))
def test_two_epochs_in_flight_are_as_one_after_the_other(edges: Epochs, seed: int) -> None:
    for flow in (labels("diff"), labels(exact=True)):
        one_by_one = run(flow, {"edges": edges}, workers=3)["out"].rows()
        together = run(flow, {"edges": edges}, workers=3, seed=seed, together=True)["out"].rows()
        assert {k: v for k, v in together.items() if v} == {k: v for k, v in one_by_one.items() if v}


@pytest.mark.slow
def test_several_epochs_are_indeed_in_flight() -> None:
    path = [(i, i + 1) for i in range(30)]
    simulation = Simulation(labels(), workers=3)
    for epoch in range(3):
        simulation.send("edges", path[epoch * 10 : epoch * 10 + 10][::-1])
        simulation.step()

    assert len({time.epoch for _, time in simulation.coordinator.tracker.active}) >= 2
    simulation.run()
    assert sorted(simulation.captured["out"].epochs) == [0, 1, 2]


@pytest.mark.slow
@pytest.mark.parametrize("times", [ts.PRODUCT, ts.LEXICOGRAPHIC], ids=["product", "lexicographic"])
@pytest.mark.parametrize("workers", WORKERS)
def test_both_kinds_of_time_give_the_same(times: Any, workers: int) -> None:
    flow = ts.Dataflow("nested", times=times)
    flow.input("x", "n long").loop(
        lambda n: n.loop(
            lambda m: m.distinct().map(lambda row: row.n * 3 % 64, "n long"), name="inner"
        ).distinct(),
        name="outer",
    ).distinct().capture("out")
    rows = run(flow, {"x": [[(1,)], [(2,)]]}, workers=workers, seed=workers)["out"].rows()

    powers = {3**i % 64 for i in range(16)}
    assert rows == {0: sorted((n,) for n in powers), 1: sorted((n,) for n in {2 * n % 64 for n in powers})}
