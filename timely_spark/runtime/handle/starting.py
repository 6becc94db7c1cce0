"""A line in a notebook or a terminal that says what the start of a flow waits for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import copy_context

from timely_spark.runtime.handle.display import shown_in_place

#: Seconds until the line is shown, and between two forms of it.
_EVERY = 0.5


@contextmanager
def starting(name: str) -> Iterator[Callable[[str], None]]:
    """Show a line while a flow starts, in a notebook or a terminal; gives the function that changes it.

    Elsewhere, as in a log, nothing is shown. In a terminal the line is removed at the end.
    """
    show = shown_in_place()
    if show is None:
        yield lambda _: None
        return
    began, ended = time.monotonic(), threading.Event()
    doing, is_shown = "checks the flow", False

    def says(what: str) -> None:
        nonlocal doing
        doing = what

    def shown(text: str) -> None:
        with suppress(Exception):  # the terminal is gone, which keeps no flow from starting
            show(text)

    def tick() -> None:
        nonlocal is_shown
        while not ended.wait(_EVERY):
            is_shown = True
            shown(f"{name}: starts, {time.monotonic() - began:.0f} s: {doing}")

    # the context has the notebook's cell
    thread = threading.Thread(target=copy_context().run, args=[tick], name="timely-starting", daemon=True)
    thread.start()
    try:
        yield says
    finally:
        ended.set()
        thread.join()
        if is_shown:
            shown("")
