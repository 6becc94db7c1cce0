"""`Query.plot`: how loops converge, how long epochs take, and how large states are, drawn with matplotlib."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from io import BytesIO
from typing import TYPE_CHECKING, Any

from timely_spark.errors import TimelyError
from timely_spark.graph import caller
from timely_spark.runtime.handle.watch import Progress
from timely_spark.worker.convergence import Convergence

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: The most epochs and steps that have a line of their own: the last epochs, and the steps with most state.
LINES = 8


def figure_of(title: str, recent: Sequence[Progress], latencies: Mapping[int, int]) -> Figure:
    """Draw recent micro-batches: a panel for each loop, one for the latencies by epoch, one for states."""
    try:
        from matplotlib import figure
    except ImportError:
        msg = "plot() draws with matplotlib, which is not installed"
        raise TimelyError(msg, where=caller(), hint="pip install 'timely-spark[notebook]'.") from None

    class Plot(figure.Figure):
        """A figure that a notebook shows also where matplotlib is not set up for it."""

        def _repr_png_(self) -> bytes:
            self.savefig(png := BytesIO(), format="png")
            return png.getvalue()

    loops = convergence(recent)
    drawn = Plot(figsize=(8, 2.6 * (len(loops) + 2)), layout="constrained")
    panels: Any = drawn.subplots(len(loops) + 2, 1, squeeze=False)[:, 0]
    for panel, (loop, epochs) in zip(panels, loops.items(), strict=False):
        lines = {f"epoch {epoch}": points for epoch, points in list(epochs.items())[-LINES:]}
        _lines(panel, f"loop {loop}", "iteration", "changed records", lines)
        panel.set_yscale("log")
    *_, latency, state = panels
    _lines(latency, "latency", "epoch", "ms", {"": sorted(latencies.items())})
    _lines(state, "state", "micro-batch", "bytes", _states(recent))
    drawn.suptitle(_plain(title))
    return drawn


def convergence(recent: Iterable[Progress]) -> dict[str, dict[int, list[tuple[int, float]]]]:
    """By loop and epoch, the changed records by iteration.

    An epoch may take several micro-batches. The records of `width` iterations are drawn as their mean.
    """
    every = Convergence.sum(Convergence.of(progress.iterations) for progress in recent)
    loops: dict[str, dict[int, list[tuple[int, float]]]] = defaultdict(lambda: defaultdict(list))
    for loop, epoch, first, width, records in every:
        loops[loop][epoch].append((first, records / width))
    return loops


def _states(recent: Sequence[Progress]) -> dict[str, list[tuple[int, float]]]:
    steps: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for progress in recent:
        for step, size in progress.state_bytes.items():
            steps[step].append((progress.epoch, size))
    largest = sorted(steps, key=lambda step: -max(size for _, size in steps[step]))[:LINES]
    return {step: steps[step] for step in largest}


def _lines(panel: Any, title: str, x: str, y: str, lines: Mapping[str, Sequence[tuple[int, float]]]) -> None:
    for label, points in lines.items():
        panel.plot([at for at, _ in points], [value for _, value in points], marker=".", label=_plain(label))
    panel.set(title=_plain(title), xlabel=x, ylabel=y)
    panel.xaxis.get_major_locator().set_params(integer=True)
    if any(lines):
        panel.legend(fontsize="small")


def _plain(text: str) -> str:
    r"""A text that matplotlib does not read as a formula, nor a label as hidden.

    >>> _plain("a$b"), _plain("_a")
    ('a\\$b', ' _a')
    """
    return (" " * text.startswith("_") + text).replace("$", r"\$")
