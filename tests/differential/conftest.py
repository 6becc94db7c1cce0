"""What tests of collections share: a flow played on simulated workers, and its changes added up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pytest

import timely_spark as ts
from timely_spark.testing import Simulation

Records = Counter[tuple[Any, ...]]


def _play(
    flow: ts.Dataflow, inputs: Mapping[str, Sequence[Any]], *, together: bool = False, **how: Any
) -> dict[str, list[Any]]:
    """What each output says of each epoch of manual inputs, which are in flight one by one or together."""
    simulation = Simulation(flow, **how)
    epochs = range(max(map(len, inputs.values())))
    for epoch in epochs:
        for name, of in inputs.items():
            if epoch < len(of):
                simulation.send(name, of[epoch], epoch=epoch)
            simulation.advance_to(name, epoch + 1)
        if together:
            simulation.step()
        else:
            simulation.run()
    for name in inputs:
        simulation.close(name)
    simulation.run()
    assert simulation.coordinator.tracker.active == {}
    said = {name: captured.rows() for name, captured in simulation.captured.items()}
    assert not any(rows for of in said.values() for epoch, rows in of.items() if epoch not in epochs)
    return {name: [of.get(epoch, []) for epoch in epochs] for name, of in said.items()}


def _came_to(epochs: Iterable[Sequence[Any]]) -> list[Records]:
    """What changes, each with its difference last, have come to at the end of each epoch."""
    total: Records = Counter()
    found = []
    for changes in epochs:
        for *record, diff in changes:
            total[tuple(record)] += diff
        found.append(Counter({record: n for record, n in total.items() if n}))
    return found


@pytest.fixture(scope="session")
def play() -> Callable[..., dict[str, list[Any]]]:
    return _play


@pytest.fixture(scope="session")
def came_to() -> Callable[[Iterable[Sequence[Any]]], list[Records]]:
    return _came_to
