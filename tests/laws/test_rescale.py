"""A flow goes on with another number of workers, wherever it was stopped, and its answer is the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import timely_spark as ts
from tests.support.memory import Memory
from tests.support.rescaling import (
    Inputs,
    Moving,
    answers,
    components,
    keyed,
    nested,
    reachability,
    scoped,
    settled,
    ways,
)
from timely_spark.state import codec

FLOWS = {made.__name__: made for made in (reachability, components, settled, nested, keyed, scoped)}
NODES = st.integers(0, 7)
EDGES = st.lists(st.lists(st.tuples(NODES, NODES), max_size=7), min_size=1, max_size=3)
SOME = [[(0, 1), (1, 2), (5, 6), (2, 3)], [(6, 7), (3, 5), (0, 0)], [(2, 3), (7, 1)]]
WORKERS = st.lists(st.sampled_from([1, 2, 3, 5]), min_size=2, max_size=4)


def inputs(flow: str, edges: list[Any]) -> Inputs:
    return {"edges": edges} | ({"roots": [[0], [6], []]} if flow == "reachability" else {})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flow", "workers", "together"),
    ways(FLOWS),
    ids=str,
)
@pytest.mark.parametrize("every", [pytest.param(1, marks=pytest.mark.campaign), 3])
def test_wherever_a_flow_is_stopped_it_goes_on_with_other_workers(
    flow: str, workers: list[int], every: int, *, together: bool
) -> None:
    given_ = inputs(flow, SOME)
    expected, batches = answers(FLOWS[flow](), given_, workers[:1], together=together)
    assert batches > 3
    assert any(expected.values())
    for stop in range(0, batches, every):
        got, _ = answers(
            FLOWS[flow](), given_, workers, stops=lambda at, stop=stop: at == stop, together=together
        )
        assert got == expected


@pytest.mark.slow
@settings(max_examples=settings().max_examples // 3)
@given(
    flow=st.sampled_from(sorted(FLOWS)),
    edges=EDGES,
    workers=WORKERS,
    stops=st.sets(st.integers(0, 12), min_size=1, max_size=4),
    seed=st.one_of(st.none(), st.integers(0, 10**6)),
    together=st.booleans(),
)
def test_the_answer_depends_on_no_number_of_workers_at_any_time(
    flow: str, edges: list[Any], workers: list[int], *, stops: set[int], seed: int | None, together: bool
) -> None:
    """Also several times, in random schedules, with rounds cut short and messages that take longer."""
    given_ = inputs(flow, edges)
    expected, _ = answers(FLOWS[flow](), given_, [1])

    got, _ = answers(FLOWS[flow](), given_, workers, stops=stops.__contains__, seed=seed, together=together)

    assert got == expected


@pytest.mark.slow
def test_by_the_clock_too() -> None:
    def counts() -> ts.Dataflow:
        flow = ts.Dataflow("counts")
        x = flow.input("x", "k long, v long")
        far = x.exchange("v").map(lambda row: row, "k long, v long")
        far.group_by("k").count().capture("out")
        return flow

    given_ = {"x": [[(i % 5, i) for i in range(20)], [(1, 1)], [(2, 7), (9, 9)]]}
    expected, batches = answers(counts(), given_, [3])
    assert expected["out"][1] == [(1, 5)]
    for stop in range(batches):
        got, _ = answers(counts(), given_, [3, 2], stops=lambda at, stop=stop: at == stop)
        assert got == expected


@pytest.mark.slow
def test_with_epochs_from_a_column_too() -> None:
    """Two epochs at once, the later one closing the earlier; and rows that come too late."""

    def counts() -> ts.Dataflow:
        flow = ts.Dataflow("counts")
        x = flow.source("x", "epoch long, k long, v long", epoch="epoch")
        far = x.exchange("v").map(lambda row: row, "epoch long, k long, v long")
        far.group_by("k").count().capture("out")
        x.late.capture("late")
        return flow

    def said(stop: int) -> tuple[Any, int]:
        moving = Moving(counts(), [3, 2], lambda at: at == stop)
        for rows in ([(0, 1, 1), (0, 2, 2), (1, 1, 3)], [(0, 9, 9), (1, 2, 4), (3, 1, 5)], [(4, 4, 4)]):
            moving.stop()
            moving.simulation.send("x", rows)
            moving.run()
        return {name: it.rows() for name, it in moving.simulation.captured.items()}, moving.batches

    expected, batches = said(-1)
    assert expected["out"] == {0: [(1, 1), (2, 1)], 1: [(1, 2), (2, 2)], 2: [], 3: [(1, 3)]}
    assert expected["late"][1] == [(0, 9, 9)]
    for stop in range(batches):
        assert said(stop) == (expected, batches)


@pytest.mark.slow
def test_state_that_is_kept_apart_is_dealt_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "BLOB_BYTES", 200)
    random = np.random.default_rng(0)
    epochs = [[tuple(map(int, pair)) for pair in random.integers(0, 40, (60, 2))] for _ in range(3)]
    expected, batches = answers(components(), {"edges": epochs}, [2])
    for stop in range(1, batches, 5):
        blobs = Memory()
        got, _ = answers(
            components(), {"edges": epochs}, [2, 3], stops=lambda at, stop=stop: at == stop, blobs=blobs
        )
        assert got == expected
        assert any(key.startswith(b"moved") for key in blobs.content)
