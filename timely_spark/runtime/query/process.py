"""Memory settings of the Python processes in which Spark runs tasks.

Spark forks these processes, uses each for one task after the other, and ends it after a minute of idleness.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

#: Modules have more than `_MANY_OBJECTS` objects; a task leaves far fewer. Frozen objects are never
#: collected, so their number is limited.
_MANY_OBJECTS, _FROZEN = 20_000, 1_000_000
#: glibc's names for its settings, and their largest value
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MOST = -1, -3, (1 << 31) - 1
#: bytes of free memory that a process may keep between tasks
_SPARE = 256 << 20


class _Heap(ctypes.Structure):
    """glibc's `struct mallinfo2`."""

    _fields_ = [
        *((name, ctypes.c_size_t) for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd")),
        *((name, ctypes.c_size_t) for name in ("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")),
    ]


@contextmanager
def task() -> Iterator[None]:
    """Run the body as a task.

    A task allocates and frees columns of tens of megabytes. Within a task the process keeps freed memory,
    because new pages from the kernel took two thirds of the time of a large round. Objects of modules are
    exempt from garbage collection, because Spark collects after every task, which took 45 ms with pandas
    imported. Without glibc, memory is not kept.
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
