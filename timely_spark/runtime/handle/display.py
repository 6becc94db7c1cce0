"""Methods of `Query` that show it: its form in notebooks and terminals, `watch` and `plot`."""

from __future__ import annotations

import importlib
import math
import shutil
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from timely_spark.graph import caller, integer
from timely_spark.graph import seconds as length
from timely_spark.runtime.handle.console import Server
from timely_spark.runtime.handle.interrupts import only_the_wait
from timely_spark.runtime.handle.overview import Overview
from timely_spark.runtime.handle.plot import figure_of
from timely_spark.runtime.handle.row_reasons import RowReasons
from timely_spark.show.table import escaped, printable
from timely_spark.times import as_epoch

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from timely_spark.methods import Query

#: Seconds between two lines where lines are not replaced, as in a log.
_LINES = 10.0

#: Shows an overview, and whether it is the last one.
Shower: TypeAlias = Callable[[Overview, bool], None]


def watch(
    self: Query, *, every: float = 0.5, seconds: float | str | None = None, until: int | None = None
) -> None:
    """Show the query's progress, until the query ends or the program is interrupted.

    An interrupt (Ctrl-C, or the notebook's button) ends the display only: the query runs on, and `stop`
    ends it. In a notebook the display is HTML that is updated; in a terminal one line; elsewhere, as in a
    log, a line for each micro-batch, and one every 10 seconds.

    Args:
        every: seconds between two looks.
        seconds: the longest time that is watched; None means without limit.
        until: an epoch with which the display ends, once it is complete at all outputs and probes.

    Example:
        >>> query.watch(until=0)
        access: running, batch ...

    Raises:
        GraphError: `every` or `seconds` is not a length of time.
        InvalidTime: `until` is not an epoch.
    """
    ends = math.inf if seconds is None else time.monotonic() + length("seconds", seconds)
    is_complete = None
    if until is not None:
        epoch = as_epoch(until, f"watch on flow {self._context.name!r}", caller())
        is_complete = self._watch.past(self._watch.names(), lambda: epoch)
    pause, show = length("every", every), shower()
    try:
        with only_the_wait() as interruptible:
            while self.is_active and time.monotonic() < ends and not (is_complete and is_complete()):
                show(Overview.of(self), False)  # noqa: FBT003
                interruptible(time.sleep, pause)
    except KeyboardInterrupt:
        show(Overview.of(self), True)  # noqa: FBT003
        sys.stderr.write("no longer watched; the query runs on, until stop() or the program's end\n")
    else:
        show(Overview.of(self), True)  # noqa: FBT003


def ui(self: Query, *, port: int = 0, slo: float | None = None) -> str:
    """Serve this query's console on this machine, as `python -m timely_spark ui`, until the process ends.

    The page answers this machine only. On the step of an output it also explains why the output has a row or
    not, by `explain_row` in this process. Another call, or one with the same port, gives the same page.

    Args:
        port: the port; 0 means any that is free.
        slo: the seconds within which an epoch must be answered, else the page is red.

    Returns:
        The address of the page.

    Example:
        >>> query.ui(slo=2)
        'http://127.0.0.1:.../?flow=0'

    Raises:
        OSError: the port is in use.
    """
    port = integer("port", port, least=0)
    slo = None if slo is None else length("slo", slo)
    server = self._consoles.get(port)
    if server is None:
        server = Server([self.checkpoint], address="127.0.0.1", port=port, reasons=RowReasons(self))
        self._consoles[port] = server
        threading.Thread(target=server.serve_forever, name="timely-console", daemon=True).start()
    server.slo = slo
    return server.url


def plot(self: Query) -> Figure:
    """Draw the last batches: how each loop converges, latencies of epochs, and states of steps.

    For each loop the records that changed, by iteration, one line an epoch (the last 8); the seconds until
    each epoch was complete at all outputs; the bytes of the 8 largest states, of a library's algorithm as
    one. The history is that of the checkpoint, also of runs before a restart: the last 100 batches, of
    those that are retained (`start(keep=...)`), and 128 numbers of a loop in an epoch.

    Returns:
        A `matplotlib.figure.Figure`, which a notebook shows; ``savefig`` writes it to a file.

    Example:
        >>> query.plot().savefig("access.png")

    Raises:
        TimelyError: matplotlib is not installed.
    """
    return figure_of(self.name or self._context.name, self._watch.history(), self._watch.sketch)


def query_line(self: Query) -> str:
    """The query on one line."""
    try:
        return f"Query({printable(Overview.of(self).line())})"
    except Exception as error:  # noqa: BLE001 - the checkpoint was removed or the JVM ended
        return f"Query({self._context.name}: {type(error).__name__}: {printable(str(error))})"


def html(self: Query) -> str:
    """The query in a notebook."""
    try:
        return Overview.of(self).html()
    except Exception:  # noqa: BLE001 - see `query_line`
        return f"<div>{escaped(repr(self))}</div>"


def shower() -> Shower:
    """A function that shows overviews where this process shows things: a notebook, a terminal, or a file."""
    if _in_notebook():
        update = _updated()
        return lambda overview, last: update(overview.html())  # noqa: ARG005 - a `Shower`
    return _in_place if _in_terminal() else _lines()


def shown_in_place() -> Callable[[str], None] | None:
    """A function that shows a line instead of the one before; None if this process writes to a file."""
    if _in_notebook():
        update = _updated()
        return lambda text: update(f"<div>{escaped(text)}</div>")
    return _replace_line if _in_terminal() else None


def _in_notebook() -> bool:
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return hasattr(shell, "kernel")  # IPython in a terminal has none


def _in_terminal() -> bool:
    try:
        return sys.stdout.isatty()
    except (AttributeError, ValueError):  # a service has none, or has closed it
        return False


def _updated() -> Callable[[str], None]:
    """A function that shows HTML in one output of a notebook's cell."""
    display: Any = importlib.import_module("IPython.display")
    handle: Any = None

    def show(html: str) -> None:
        nonlocal handle
        shown = display.HTML(html)
        if handle is None:
            handle = display.display(shown, display_id=True)
        else:
            handle.update(shown)

    return show


def _in_place(overview: Overview, last: bool) -> None:  # noqa: FBT001 - a `Shower`
    _replace_line(overview.line(), end="\n" * last)


def _replace_line(text: str, end: str = "") -> None:
    width = shutil.get_terminal_size().columns - 1
    sys.stdout.write(f"\r{printable(text)[:width]}\x1b[K{end}")
    sys.stdout.flush()


def _lines() -> Shower:
    shown, due = -2, 0.0

    def show(overview: Overview, last: bool) -> None:  # noqa: FBT001 - a `Shower`
        nonlocal shown, due
        if last or overview.manifest.batch > shown or time.monotonic() >= due:
            shown, due = overview.manifest.batch, time.monotonic() + _LINES
            print(printable(overview.line()), flush=True)  # noqa: T201

    return show
