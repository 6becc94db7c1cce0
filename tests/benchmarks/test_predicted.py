"""The prediction of `benchmarks/predicted.py`: its rounds are the simulator's, and its sums can be redone."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from benchmarks.predicted import PER_NODE, Cluster, Curve, Path, Prices, limits
from benchmarks.scaling import FLOWS
from timely_spark.testing import Simulation

LINEAR = Curve((0, 1000), (0.0, 1.0))


def records(simulation: Simulation) -> Counter[Any]:
    return Counter(map(str, simulation.captured["out"].rows()[0]))


@pytest.mark.slow
@pytest.mark.parametrize("flow", ["words", "components"])
def test_tasks_in_turn_have_the_simulators_answer(flow: str) -> None:
    build, data = FLOWS[flow]
    plain, cluster = Simulation(build(), workers=2), Cluster(build(), workers=2, processes=2)

    plain.send(plain.plan.sources[0], data(20, 0))
    plain.run()
    path = cluster.epoch(data(20, 0))

    assert records(cluster) == records(plain)
    assert path.rounds == plain.rounds == 1 + len(path.sent) > 1
    assert all(sent.shape == (2, 2) for sent in path.sent)
    assert 0 < path.slowest <= path.work <= 2 * path.slowest + path.packing


def test_the_parts_of_an_epoch() -> None:
    path = Path(2, steps=[[1.0, 3.0], [2.0, 2.0]], turns=[0.5, 0.25], packing=1.0)
    path.sent = [np.array([[9000, 500], [1500, 9000]])]

    parts = path.parts(Prices(0.125, 0.0625, LINEAR, Curve((0, 1000), (0.0, 0.5))))

    assert parts == {
        "work": 4.5,
        "imbalance": 1.0,
        "micro-batch": 0.125,
        "tasks": 0.0625,
        "coordinator": 0.75,
        "exchanges": 1.5,  # of the one that is sent most by its peer; what it keeps costs nothing
    }
    assert path.processor(Prices(0.1, 0.1, LINEAR, Curve((0, 1000), (0.0, 0.5)))) == 9.0 + 2 * 0.75 + 1.0


def test_a_driver_speaks_with_each_task_and_tasks_only_with_those_to_which_they_send() -> None:
    prices = Prices(0.0, 0.125, Curve((0, 1000), (0.5, 1.5)), LINEAR)
    sent = np.zeros((4, 4), np.int64)
    sent[0, 1] = 500

    parts = Path(4, steps=[[1.0]], turns=[0.5], sent=[sent]).parts(prices)

    assert (parts["tasks"], parts["exchanges"]) == (0.125 + 4 * 0.5, 1.0)


def test_a_batch_without_a_second_round_starts_no_tasks() -> None:
    parts = Path(1, steps=[[1.0]], turns=[0.5]).parts(Prices(0.1, 0.2, LINEAR, LINEAR))

    assert (parts["tasks"], parts["exchanges"], parts["imbalance"]) == (0.0, 0.0, 0.0)


def test_a_node_that_is_sent_more_than_its_network_carries_is_the_limit() -> None:
    free = Prices(0.0, 0.0, Curve((0, 1000), (0.0, 0.0)), LINEAR)
    sent = np.zeros((2 * PER_NODE, 2 * PER_NODE), np.int64)
    sent[0, 1] = 10**9  # within a node
    within = Path(2 * PER_NODE, steps=[[0.0]], turns=[0.0], sent=[sent]).parts(free)["exchanges"]
    sent[0, PER_NODE] = sent[1, PER_NODE + 1] = 10**9
    across = Path(2 * PER_NODE, steps=[[0.0]], turns=[0.0], sent=[sent]).parts(free)["exchanges"]

    assert within == 0.0
    assert across == pytest.approx(2 * 8 / 10)  # two GB at 10 Gbit/s


def test_a_price_between_the_measured_sizes_and_beyond() -> None:
    curve = Curve((10, 20, 40), (1.0, 2.0, 3.0))

    assert curve.of(np.array([0, 10, 15, 30, 40, 80])).tolist() == [1.0, 1.0, 1.5, 2.5, 3.0, 6.0]


def test_a_limit_is_what_exceeds_the_perfect_share_most() -> None:
    one = {"work": 8.0, "micro-batch": 0.125}
    four = {"work": 2.5, "micro-batch": 0.125}

    assert limits(four, one, 1 / 4)[0] == ("work", 0.5)
    assert limits({"work": 8.0, "micro-batch": 0.25}, one, 1)[0] == ("micro-batch", 0.125)
