"""Broadcast joins: against all pairs in plain Python, while both sides change."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import timely_spark as ts
from tests.support.accumulated import after_each
from tests.support.rescaling import move
from timely_spark.errors import SchemaError
from timely_spark.testing import Simulation, run

pytestmark = pytest.mark.filterwarnings("ignore:step .*more was removed")

RECORD = st.tuples(st.integers(0, 2), st.one_of(st.none(), st.integers(0, 2)), st.sampled_from([-1, 1, 2]))
EPOCHS = st.lists(st.lists(RECORD, max_size=5), min_size=3, max_size=3)


def joined(*, on: bool, by: str | None = None) -> ts.Dataflow:
    flow = ts.Dataflow("pairs")
    x = flow.input("x", "a long, k long, diff long").collection(diff="diff")
    y = flow.input("y", "b long, k long, diff long").collection(diff="diff")
    other = y if on else y.select("b", j="k")
    x.broadcast_join(other, "k" if on else None, by=by, name="pairs").changes().capture("out")
    return flow


@pytest.mark.slow
@pytest.mark.parametrize("on", [True, False])
@given(xs=EPOCHS, ys=EPOCHS, workers=st.sampled_from([1, 2, 3, 8]), seed=st.sampled_from([None, 1, 2]))
def test_every_pair_at_every_epoch(xs, ys, workers, seed, on) -> None:
    flow = joined(on=on, by=None if workers < 3 else "a")

    rows = run(flow, {"x": xs, "y": ys}, workers=workers, seed=seed)["out"].rows()

    for found, left, right in zip(*(after_each(of, 3) for of in (rows, xs, ys)), strict=True):
        expected = Counter[Any]()
        for (a, k), m in left.items():
            for (b, j), n in right.items():
                if not on:
                    expected[a, k, b, j] += m * n
                elif k == j and k is not None:
                    expected[a, k, b] += m * n
        assert {one: n for one, n in found.items() if n} == {one: n for one, n in expected.items() if n}


def test_crashes_change_nothing() -> None:
    epochs = {
        "x": [[(n, n % 3, 1) for n in range(6)], [(0, 0, -1)]],
        "y": [[(1, 1, 1)], [(2, 2, 1), (1, 1, -1)]],
    }

    assert (
        run(joined(on=False), epochs, workers=3, seed=1, crashes=0.3)["out"].rows()
        == run(joined(on=False), epochs)["out"].rows()
    )


@pytest.mark.slow
@pytest.mark.share(1)
@pytest.mark.parametrize("workers", [1, 3])
def test_every_new_worker_gets_a_copy(workers: int) -> None:
    flow = joined(on=False)
    simulation, kept = (Simulation(flow, workers=2) for _ in range(2))
    for one in (simulation, kept):
        one.send("x", [(n, n % 3, 1) for n in range(6)])
        one.send("y", [(1, 1, 1), (2, 2, 1)])
        one.run()
    move(simulation, flow, workers)
    for one in (simulation, kept):
        one.send("x", [(n, 7, 1) for n in range(3, 9)] + [(0, 0, -1)])
        one.send("y", [(1, 1, -1), (5, 5, 1)])
        one.run()

    assert simulation.captured["out"].rows() == kept.captured["out"].rows()
    assert len(kept.captured["out"].rows()) == 2


def test_a_side_that_is_partitioned_already_is_not_exchanged() -> None:
    flow = ts.Dataflow("partitioned")
    sales = flow.input("sales", "shop string, sold long").collection()
    sums = sales.sum("sold", keys="shop")
    total = sums.select(total="sold").sum("total", keys=[])
    sums.broadcast_join(total, by="shop").changes().capture("out")

    plan = flow.compile(2)

    (node,) = (node for node in plan.nodes if node.stage.operator == "broadcast_join")
    exchanges = [c.exchange for c in plan.channels if plan.nodes[c.target] is node]
    assert [one and one.broadcast for one in exchanges] == [None, True]
    assert not node.stage.detail, "all pairs"
    assert [s.detail for s in joined(on=True).graph.stages if s.operator == "broadcast_join"] == ["k"]


@pytest.mark.parametrize(
    "wrong",
    [{"on": "b"}, {"on": "gone"}, {"left": "a"}, {"by": "gone"}, {"by": []}, {"on": "k", "right": "k"}],
)
def test_wrong_columns_are_refused(wrong: dict[str, Any]) -> None:
    flow = ts.Dataflow("refused")
    x, y = flow.input("x", "a long, k long").collection(), flow.input("y", "b string, k long").collection()

    with pytest.raises(SchemaError, match=r"(?s)broadcast_join.*test_broadcasts.*Hint"):
        x.broadcast_join(y, **{"on": "k", **wrong} if "left" not in wrong else wrong)
    with pytest.raises(SchemaError, match=r"(?s)both sides have \['k'\].*Hint"):
        x.broadcast_join(y)
