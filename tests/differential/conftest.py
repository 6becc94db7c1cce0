"""Fixtures for tests of collections: run a flow on simulated workers, and accumulate its changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pytest

import timely_spark as ts
from tests.support.accumulated import after_each
from timely_spark.testing import Simulation

Records = Counter[tuple[Any, ...]]


def _play(
    flow: ts.Dataflow, inputs: Mapping[str, Sequence[Any]], *, together: bool = False, **how: Any
) -> dict[str, list[Any]]:
    """Each output's changes per epoch of manual inputs, with epochs in flight one by one or together."""
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
    outputs = {name: captured.rows() for name, captured in simulation.captured.items()}
    assert not any(rows for of in outputs.values() for epoch, rows in of.items() if epoch not in epochs)
    return {name: [of.get(epoch, []) for epoch in epochs] for name, of in outputs.items()}


def _came_to(epochs: Iterable[Sequence[Any]]) -> list[Records]:
    """The accumulated records at the end of each epoch; each change has its difference last."""
    return list(after_each(list(epochs)))


@pytest.fixture(scope="session")
def play() -> Callable[..., dict[str, list[Any]]]:
    return _play


@pytest.fixture(scope="session")
def came_to() -> Callable[[Iterable[Sequence[Any]]], list[Records]]:
    return _came_to
