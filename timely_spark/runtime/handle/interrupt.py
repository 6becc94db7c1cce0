"""Ctrl-C: while the program waits for a query, an interrupt ends the wait and leaves the query running.

PySpark's own handler of SIGINT first cancels all jobs of the session, which fails every running query.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def only_the_wait() -> Iterator[None]:
    """In the body an interrupt is a `KeyboardInterrupt` and nothing more; only the main thread gets one."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
