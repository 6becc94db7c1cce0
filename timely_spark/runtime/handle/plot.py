"""`Query.plot`: how loops converge, how long epochs take, and how large states are, drawn with matplotlib."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from io import BytesIO
from typing import TYPE_CHECKING, Any

from timely_spark.errors import TimelyError
from timely_spark.graph import caller
from timely_spark.runtime.handle.history import History, by_box, largest_over_time
from timely_spark.show.sketch import Sketch
from timely_spark.show.words import bytes_text, short_number

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: The most epochs and steps that have a line of their own: the last epochs, and the steps with most state.
LINES = 8
#: An axis is logarithmic if there are so many points, and the largest is so many times the least.
_POWERS, _POINTS = 1000, 12


def figure_of(title: str, history: History, sketch: Sketch) -> Figure:
    """Draw the last batches: a panel for each loop, one for the latencies by epoch, one for states."""
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

    loops = history.convergence()
    drawn = Plot(figsize=(8, 2.4 * (len(loops) + 2)), layout="constrained")
    panels: Any = drawn.subplots(len(loops) + 2, 1, squeeze=False)[:, 0]
    for panel, (loop, epochs) in zip(panels, loops.items(), strict=False):
        lines = {f"epoch {epoch}": points for epoch, points in list(epochs.items())[-LINES:]}
        _lines(panel, f"loop {sketch.loop(loop)}", "iteration", "changed records", lines)
        values = [value for points in lines.values() for _, value in points if value]
        if len(values) >= _POINTS and max(values) >= _POWERS * min(values):
            panel.set_yscale("log")
    *_, latency, state = panels
    boxes = sketch.boxes()
    sizes = [(batch.number, by_box(batch.state_bytes, boxes)) for batch in history.batches]
    states = largest_over_time(sizes, LINES)
    latencies = [(epoch.epoch, epoch.seconds) for epoch in history.epochs()]
    _lines(latency, "latency", "epoch", "seconds", {"": latencies})
    latency.set_ylim(bottom=0)
    _lines(state, "state", "batch", "", states, text=bytes_text)
    drawn.suptitle(_plain(title))
    return drawn


def _lines(
    panel: Any,
    title: str,
    x: str,
    y: str,
    lines: Mapping[str, Sequence[tuple[int, float]]],
    *,
    text: Callable[[float], str] = short_number,
) -> None:
    """Lines over integers, with a legend beside them."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    for label, points in lines.items():
        panel.plot([at for at, _ in points], [value for _, value in points], marker=".", label=_plain(label))
    panel.set_title(_plain(title), loc="left", fontsize="medium")
    panel.set(xlabel=x, ylabel=y)
    panel.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    panel.grid(alpha=0.3)
    if y != "seconds":
        panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: text(value)))
        if text is short_number:  # counts: halves would look like other counts
            panel.yaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    panel.spines[["top", "right"]].set_visible(False)
    if any(lines):
        panel.legend(fontsize="small", loc="upper left", bbox_to_anchor=(1.01, 1.0), frameon=False)


def _plain(text: str) -> str:
    r"""Escape a text: matplotlib reads `$` as a formula, and hides a label that begins with `_`.

    >>> _plain("a$b"), _plain("_a")
    ('a\\$b', ' _a')
    """
    return (" " * text.startswith("_") + text).replace("$", r"\$")
