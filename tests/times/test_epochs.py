"""Which numbers are epochs, wherever a user gives one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import timely_spark as ts
from timely_spark.errors import GraphError, InvalidTime
from timely_spark.testing import Simulation
from timely_spark.times import EPOCHS, MAX, PRODUCT, as_epoch

WRONG = [EPOCHS, 2**63, 1.5, True, "3", -1, np.float64(2), np.array([True])[0]]


def flow() -> ts.Dataflow:
    made = ts.Dataflow("epochs")
    made.input("x", "n long", epochs="manual").capture("out")
    return made


@pytest.mark.parametrize("wrong", WRONG, ids=repr)
def test_the_simulator_refuses_invalid_epochs(wrong: Any) -> None:
    simulation = Simulation(flow())
    verbs: list[Callable[[], None]] = [
        lambda: simulation.send("x", [1], epoch=wrong), lambda: simulation.advance_to("x", wrong)
    ]  # fmt: skip
    for verb in verbs:
        with pytest.raises(
            InvalidTime, match=r"(?s)input 'x'.*is not an epoch \(.*test_epochs.py:\d+\).*Hint: "
        ):
            verb()
    assert simulation.idle


def test_a_snapshot_is_of_an_epoch() -> None:
    words = ts.Dataflow("words")
    words.input("x", "n long, diff long").collection(diff="diff").changes().capture("log")
    log = ts.testing.run(words, {"x": [[(1, 1)], [(1, -1)]]})["log"]

    assert ts.snapshot(log, at=np.int64(0)).num_rows == 1  # type: ignore[call-overload]
    for wrong in WRONG:
        with pytest.raises(InvalidTime, match=r"snapshot\(at=\).*test_epochs.py"):
            ts.snapshot(log, at=wrong)


@pytest.mark.parametrize("wrong", [2**62, 1.5, True, "3", None], ids=repr)
def test_delays_and_windows_are_of_a_number_of_epochs(wrong: Any) -> None:
    stream = ts.Dataflow("x").input("x", "n long")
    with pytest.raises(GraphError, match="below 2\\*\\*62"):
        stream.delay(wrong)
    with pytest.raises(GraphError, match="below 2\\*\\*62"):
        stream.expire(wrong)


def test_the_longest_delay_of_the_last_epoch_is_a_valid_time() -> None:
    last = PRODUCT.epoch(as_epoch(EPOCHS - 1, "a test"))
    delayed = PRODUCT.delay(0, EPOCHS - 1).results_in(last)

    assert delayed is not None
    assert delayed.epoch <= MAX
    delay = np.int64(2)
    stream = ts.Dataflow("x").input("x", "n long", epochs="manual")
    stream.delay(delay).capture("out")  # type: ignore[arg-type]
    assert ts.testing.run(stream.flow, {"x": [[1]]})["out"].rows()[2] == [(1,)]
