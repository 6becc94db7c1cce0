"""Plots: the lines that are drawn are the numbers that were counted; without matplotlib there is a hint."""

from __future__ import annotations

import sys

import pytest

import timely_spark as ts
from timely_spark.runtime.handle.history import History, PastBatch
from timely_spark.runtime.handle.plot import LINES, figure_of
from timely_spark.show.sketch import Sketch
from timely_spark.worker.convergence import Iterations


def batch(number: int, iterations: list[Iterations], released: list[int], **sizes: int) -> PastBatch:
    return PastBatch(
        number=number, arrived=None, began=10.0 * number, ended=10.0 * number + 5, rounds=number, records=1,
        released=[("out", epoch) for epoch in released], open_epochs=[], iterations=iterations,
        state_bytes=sizes, memory_bytes={}, moved={}, spent={}, took={}, run="",
    )  # fmt: skip


def history(*batches: PastBatch) -> History:
    return History(clocked=True, batches=list(batches))


RECENT = history(
    batch(0, [Iterations("$a_b", 0, i, 1, 10 - i) for i in range(1, 10)], [], s=5, _t=100),
    batch(1, [Iterations("$a_b", 0, 10, 1, 3), Iterations("$a_b", 1, 1, 1, 7)], [], s=6),
    batch(2, [Iterations("$a_b", 0, 10, 1, 4), Iterations("c", 2, 8, 8, 16)], [0, 1], s=7, _t=90),
)
SKETCH = Sketch("many")


def test_an_epoch_over_several_batches_is_one_line() -> None:
    loops = RECENT.convergence()

    assert loops["$a_b"][0] == [*((i, 10 - i) for i in range(1, 10)), (10, 7)]
    assert loops["$a_b"][1] == [(1, 7)]
    assert loops["c"] == {2: [(8, 2)]}


@pytest.mark.slow
def test_loops_latencies_and_states_have_panels() -> None:
    figure = figure_of("a $hostile$ name", RECENT, SKETCH)

    titles = [panel.get_title(loc="left") for panel in figure.axes]
    assert titles == [r"loop \$a_b", "loop c", "latency", "state"]
    drawn = [
        {line.get_label(): list(zip(*line.get_data(), strict=True)) for line in panel.get_lines()}
        for panel in figure.axes
    ]
    assert drawn[0]["epoch 0"] == [*((i, 10 - i) for i in range(1, 10)), (10, 7)]
    assert list(drawn[2].values()) == [[(0, 25.0), (1, 15.0)]]
    assert drawn[3] == {" _t": [(0, 100), (2, 90)], "s": [(0, 5), (1, 6), (2, 7)]}
    assert figure._repr_png_().startswith(b"\x89PNG")
    assert [panel.get_yscale() for panel in figure.axes] == ["linear"] * 4  # no powers for a few numbers
    assert all(tick == int(tick) for tick in figure.axes[1].get_yticks()), "no tick is half a record"
    assert figure.axes[0].get_legend().get_window_extent().x0 > figure.axes[0].get_window_extent().x1


@pytest.mark.slow
def test_an_axis_shows_whole_iterations_and_powers_where_changes_fall_by_much() -> None:
    falls = batch(0, [Iterations("a", 0, i, 1, 4 ** (12 - i)) for i in range(12)], [])
    short = batch(1, [Iterations("b", 1, i, 1, 10 ** (6 - i)) for i in range(3)], [])

    one, other, *_ = figure_of("many", history(falls, short), SKETCH).axes

    assert [one.get_yscale(), other.get_yscale()] == ["log", "linear"]
    assert all(float(tick).is_integer() for tick in other.get_xticks())


@pytest.mark.slow
def test_only_the_last_epochs_and_the_largest_states_have_lines() -> None:
    many = [batch(e, [Iterations("a", e, 1, 1, 1)], [], **{f"s{i}": i for i in range(20)}) for e in range(20)]

    loop, _, state = figure_of("many", history(*many), SKETCH).axes

    assert [line.get_label() for line in loop.get_lines()] == [f"epoch {e}" for e in range(20 - LINES, 20)]
    assert {line.get_label() for line in state.get_lines()} == {f"s{i}" for i in range(20 - LINES, 20)}


@pytest.mark.slow
def test_a_query_that_has_done_nothing_can_be_drawn() -> None:
    assert len(figure_of("new", history(), SKETCH).axes) == 2


def test_without_matplotlib_there_is_a_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)

    with pytest.raises(ts.TimelyError, match=r"pip install 'timely-spark\[notebook\]'"):
        figure_of("none", RECENT, SKETCH)
