"""Plots: the lines that are drawn are the numbers that were counted; without matplotlib there is a hint."""

from __future__ import annotations

import sys

import pytest

import timely_spark as ts
from timely_spark.runtime.handle.plot import LINES, convergence, figure_of
from timely_spark.runtime.handle.watch import Progress
from timely_spark.worker.convergence import Iterations


def progress(batch: int, iterations: list[Iterations], **sizes: int) -> Progress:
    return Progress(
        epoch=batch, rounds=batch, frontier={}, records=1, iterations=tuple(iterations), rows_in_flight=0,
        pending_notifications=0, late={}, cut_off={}, state_bytes=sizes, slowest=None, duration_ms=5,
    )  # fmt: skip


RECENT = [
    progress(0, [Iterations("$a_b", 0, i, 1, 10 - i) for i in range(1, 10)], s=5, _t=100),
    progress(1, [Iterations("$a_b", 0, 10, 1, 3), Iterations("$a_b", 1, 1, 1, 7)], s=6),
    progress(2, [Iterations("$a_b", 0, 10, 1, 4), Iterations("c", 2, 8, 8, 16)], s=7, _t=90),
]


def test_an_epoch_over_several_batches_is_one_line() -> None:
    loops = convergence(RECENT)

    assert loops["$a_b"][0] == [*((i, 10 - i) for i in range(1, 10)), (10, 7)]
    assert loops["$a_b"][1] == [(1, 7)]
    assert loops["c"] == {2: [(8, 2)]}


@pytest.mark.slow
def test_loops_latencies_and_states_have_panels() -> None:
    figure = figure_of("a $hostile$ name", RECENT, {1: 20, 0: 10})

    titles = [panel.get_title() for panel in figure.axes]
    assert titles == [r"loop \$a_b", "loop c", "latency", "state"]
    drawn = [
        {line.get_label(): list(zip(*line.get_data(), strict=True)) for line in panel.get_lines()}
        for panel in figure.axes
    ]
    assert drawn[0]["epoch 0"] == [*((i, 10 - i) for i in range(1, 10)), (10, 7)]
    assert list(drawn[2].values()) == [[(0, 10), (1, 20)]]
    assert drawn[3] == {" _t": [(0, 100), (2, 90)], "s": [(0, 5), (1, 6), (2, 7)]}
    assert figure._repr_png_().startswith(b"\x89PNG")


@pytest.mark.slow
def test_only_the_last_epochs_and_the_largest_states_have_lines() -> None:
    many = [progress(e, [Iterations("a", e, 1, 1, 1)], **{f"s{i}": i for i in range(20)}) for e in range(20)]

    loop, _, state = figure_of("many", many, {}).axes

    assert [line.get_label() for line in loop.get_lines()] == [f"epoch {e}" for e in range(20 - LINES, 20)]
    assert {line.get_label() for line in state.get_lines()} == {f"s{i}" for i in range(20 - LINES, 20)}


def test_a_query_that_has_done_nothing_can_be_drawn() -> None:
    assert len(figure_of("new", [], {}).axes) == 2


def test_without_matplotlib_there_is_a_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)

    with pytest.raises(ts.TimelyError, match=r"pip install 'timely-spark\[notebook\]'"):
        figure_of("none", RECENT, {})
