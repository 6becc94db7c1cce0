"""The Python process of a task: what it keeps for the next one, and what it gives back.

Spark forks these processes, uses them for one task after the other, and lets them go when they were idle for
a minute.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

#: A task of ours leaves far fewer objects behind; the modules it imports are more. What is frozen is never
#: collected, so that must come to an end, whatever a user's functions leave behind.
_MANY_OBJECTS, _FROZEN = 20_000, 1_000_000
#: glibc's names for its settings, and the most that they can be set to
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MOST = -1, -3, (1 << 31) - 1
#: bytes of free memory that a process may sit on between tasks
_SPARE = 256 << 20


class _Heap(ctypes.Structure):
    """glibc's `struct mallinfo2`."""

    _fields_ = [
        *((name, ctypes.c_size_t) for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd")),
        *((name, ctypes.c_size_t) for name in ("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")),
    ]


@contextmanager
def task() -> Iterator[None]:
    """What to put around a task.

    Columns come and go by tens of megabytes. As long as the task goes on, what it frees it may use again: to
    ask the kernel each time for cleared pages was two thirds of a large round. And what lives as long as the
    process, such as modules, is exempt from garbage collection: Spark collects after every task, while the
    next one waits, for 45 ms with pandas imported.

    Memory is kept with glibc alone; elsewhere, tasks are a little slower.
    """
    libc = _libc()
    if libc is not None:
        libc.mallopt(_MMAP_THRESHOLD, _MOST)
        libc.mallopt(_TRIM_THRESHOLD, _MOST)
    yield
    if len(gc.get_objects()) > _MANY_OBJECTS and gc.get_freeze_count() < _FROZEN:
        gc.collect()
        gc.freeze()
    if libc is not None and libc.mallinfo2().fordblks > _SPARE:
        libc.malloc_trim(0)


def _libc() -> Any:
    """The C library, if it is glibc 2.33 or later."""
    try:
        libc = ctypes.CDLL(None)
        libc.mallinfo2.restype = _Heap
    except (OSError, TypeError, AttributeError):
        return None
    return libc
