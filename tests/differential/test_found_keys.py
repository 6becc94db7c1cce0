"""Hot keys that a run finds (`skew="auto"`): they are spread between two batches, and no answer changes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import timely_spark as ts
from tests.differential.test_skew import CASES, flow_of, kept
from tests.support.rescaling import move
from timely_spark.differential import Collection
from timely_spark.testing import Simulation

pytestmark = pytest.mark.filterwarnings("ignore:step .*more was removed")


def least(x: Collection, _: Collection, skew: Any) -> Collection:
    """The least value of each key and of 7, in a loop."""
    records = x.select("k", "v")
    return records.iterate(
        lambda now: (
            now.select("k", v=pc.min_element_wise(pc.field("v"), 7))
            .concat(records.enter(now.scope))
            .min("v", keys="k", skew=skew)
        )
    )


EVERY = {**CASES, "min in a loop": least}
del EVERY["a column twice"]  # which names pairs
QUICK = ["inner", "arranged count", "arranged top_k", "min", "min in a loop"]


def drawn(seed: int) -> dict[str, list[list[Any]]]:
    """Records that come, and go again in the last epochs; half of them have one key."""
    draw, keys = np.random.default_rng(seed), [0, 0, 0, None, 1, 2]
    sides: dict[str, list[list[Any]]] = {}
    for side in "xy":
        made = [
            [(keys[k], v, n + 1) for k, v, n in draw.integers(0, [6, 40, 2], (16, 3)).tolist()]
            for _ in range(3)
        ]
        sides[side] = [*made, *([(k, v, -n) for k, v, n in of] for of in made[:2])]
    return sides


def epochs_of(simulation: Simulation) -> list[Any]:
    """The epochs with records, in order."""
    return [rows for rows in simulation.captured["out"].rows().values() if rows]


@pytest.fixture
def few_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("worker", "coordinator"):
        monkeypatch.setattr(f"timely_spark.{module}.hot_keys.MANY", 2)


def unspread(case: str, inputs: dict[str, list[list[Any]]]) -> list[Any]:
    plain = Simulation(flow_of(EVERY[case], None))
    for both in zip(*inputs.values(), strict=True):
        for side, rows in zip(inputs, both, strict=True):
            plain.send(side, rows)
        plain.run()
    return epochs_of(plain)


@pytest.mark.slow
@pytest.mark.usefixtures("few_are_many")
@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.campaign) for n in range(1, 6))])
@pytest.mark.parametrize(
    "case", [case if case in QUICK else pytest.param(case, marks=pytest.mark.slow) for case in EVERY]
)
def test_keys_that_are_found_change_no_answer_also_if_a_move_crashes(case: str, seed: int) -> None:
    inputs = drawn(seed)
    simulation = Simulation(flow_of(EVERY[case], "auto"), workers=3, seed=seed, crashes=0.4)
    for epoch in range(5):
        for side in "xy":
            simulation.send(side, inputs[side][epoch])
        simulation.run()

    assert simulation.coordinator.spread
    assert simulation.crashed
    assert epochs_of(simulation) == unspread(case, inputs)


@pytest.mark.slow
@pytest.mark.usefixtures("few_are_many")
@pytest.mark.parametrize("case", ["inner", "arranged left", "top_k"])
def test_keys_stay_spread_with_another_number_of_workers(case: str) -> None:
    inputs, flow = drawn(6), flow_of(CASES[case], "auto")
    simulation = Simulation(flow, workers=3)
    move(simulation, flow, 3)
    assert simulation.coordinator.spread == {}, "no key is hot yet"
    for epoch, workers in enumerate([2, 4, 1, 3, 2]):
        for side in "xy":
            simulation.send(side, inputs[side][epoch])
        simulation.run()
        spread = simulation.coordinator.spread
        move(simulation, flow, workers)
        assert simulation.coordinator.spread == spread
    assert spread

    assert epochs_of(simulation) == unspread(case, inputs)


@pytest.mark.usefixtures("few_are_many")
def test_of_several_steps_the_one_with_the_hot_key_gets_it() -> None:
    flow = ts.Dataflow("two")
    x = flow.input("x", "k long, w long, v long").collection()
    x.min("v", keys="k", skew="auto", name="even").capture("least")
    x.max("v", keys="w", skew="auto", name="hot").capture("greatest")
    simulation = Simulation(flow, workers=3)
    for epoch in range(3):
        simulation.send("x", [(40 * epoch + n, 0 if n % 4 else n, n) for n in range(40)])
        simulation.run()

    assert [*simulation.plan.found_keys] == ["even.salt", "hot.salt"]
    assert [*simulation.coordinator.spread] == ["hot.salt"]


def skewed(n: int, seed: int) -> pa.Table:
    """Half of the records have one key."""
    draw = np.random.default_rng(seed)
    keys = np.where(np.arange(n) % 2, 0, draw.integers(1, 1 << 40, n))
    return pa.table({"k": keys, "v": draw.integers(0, 1 << 40, n), "diff": np.ones(n, np.int64)})


@pytest.mark.slow
@pytest.mark.parametrize("case", ["inner", "arranged left"])
def test_state_and_records_of_a_key_that_is_found_are_on_all_workers(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("worker", "coordinator"):
        monkeypatch.setattr(f"timely_spark.{module}.hot_keys.MANY", 1 << 10)
    workers, delivered = 8, list[list[int]]()
    simulation = Simulation(flow_of(CASES[case], "auto"), workers=workers)

    def count(_batch: int, worker: int, _before: Any, rows: pa.Table, *_after: Any) -> None:
        delivered[-1][worker] += rows["payload"].combine_chunks().nbytes

    simulation.on_step = count
    for seed in range(3):
        delivered.append([0] * workers)
        simulation.send("x", skewed(1 << 14, seed))
        simulation.run()

    fullest = [max(each) / sum(each) for each in delivered]
    assert fullest[0] > 0.4
    assert fullest[1] < 1.5 / workers > fullest[2]
    parts = move(simulation, flow_of(CASES[case], "auto"), workers).workers
    stored = [sum(kept(part, node) for node in part.plan.nodes) for part in parts]
    assert max(stored) < 1.5 * sum(stored) / workers


class Last(ts.Vertex):
    """Remember records, and do not say how to partition them."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def on_recv(self, edge: int, time: Any, batch: pa.Table) -> None:
        self.seen += batch["v"].to_pylist()
        self.send_by(0, time, batch)


@pytest.mark.usefixtures("few_are_many")
@pytest.mark.parametrize("behind", [True, False])
def test_keys_stay_where_a_step_behind_them_cannot_move(*, behind: bool) -> None:
    flow = ts.Dataflow("unable")
    x = flow.input("x", "k long, v long")
    arranged = x.collection().arrange("k", skew="auto", name="by key")
    source = arranged.changes(name="all").select("k", "v") if behind else x
    flow.vertex(Last(), source, "k long, v long", name="last").capture("out")
    arranged.count().changes().capture("counts")
    simulation = Simulation(flow, workers=3)
    for epoch in range(3):
        simulation.send("x", [(7, epoch * 10 + n) for n in range(9)])
        simulation.run()

    assert bool(simulation.coordinator.spread) != behind
    text = simulation.coordinator.hot_keys["by key"]
    assert ("; it is not spread, since flow 'unable' cannot continue" in text and "'last'" in text) == behind
    assert simulation.captured["counts"].rows()[2] == [(7, 18, -1), (7, 27, 1)]


@pytest.mark.slow
@pytest.mark.usefixtures("few_are_many")
def test_each_simulation_of_a_flow_has_found_its_own_keys() -> None:
    flow, inputs = flow_of(CASES["inner"], "auto"), drawn(3)
    first, second = Simulation(flow, workers=3), Simulation(flow, workers=3)
    for epoch in range(5):
        for simulation, rows in ((first, inputs["x"][epoch]), (second, [(9, n, 1) for n in range(3)])):
            simulation.send("x", rows)
            simulation.send("y", inputs["y"][epoch])
            simulation.run()

    assert first.coordinator.spread != second.coordinator.spread
    assert epochs_of(first) == unspread("inner", inputs)


@pytest.mark.usefixtures("few_are_many")
def test_a_key_that_is_hot_on_the_copied_side_only_is_told_and_not_spread() -> None:
    simulation = Simulation(flow_of(CASES["inner"], "auto"), workers=3)
    simulation.send("x", [(7, 0, 1)])
    simulation.send("y", [(7, n, 1) for n in range(9)])
    simulation.run()

    assert "hot key k = 7" in "".join(simulation.coordinator.hot_keys.values())
    assert not simulation.coordinator.spread


@pytest.mark.usefixtures("few_are_many")
def test_a_key_is_found_in_the_last_epoch_of_an_input() -> None:
    flow = ts.Dataflow("closed")
    x = flow.input("x", "k long, v long", epochs="manual").collection()
    x.min("v", keys="k", skew="auto").changes().capture("out")
    flow.input("y", "n long", epochs="manual").capture("open")
    simulation = Simulation(flow, workers=3)
    simulation.send("x", [(7, n) for n in range(9)], epoch=0)
    simulation.close("x")
    simulation.run()

    assert simulation.coordinator.spread
    assert simulation.captured["out"].rows() == {0: [(7, 0, 1)]}


def test_explain_shows_that_a_run_finds_the_keys(capsys: pytest.CaptureFixture[str]) -> None:
    def both(x: Collection, y: Collection, skew: Any) -> Collection:
        return x.join(y, on="k", skew=skew)

    flow_of(both, "auto").explain(workers=2)

    text = capsys.readouterr().out
    assert "by k; hot keys (auto) by k, v at the source" in text
    assert "broadcast at the source" in text
