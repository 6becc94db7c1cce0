"""The Python processes of a flow: how tasks return memory, and how the driver's threads take turns.

Spark forks the processes of tasks, uses each for one task after the other, and ends it after a minute of
idleness.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from timely_spark.compiler.plan import Plan, SizeLimit

T = TypeVar("T")

#: Modules have more than `_MANY_OBJECTS` objects; a task leaves far fewer. Frozen objects are never
#: collected, so their number is limited.
_MANY_OBJECTS, _FROZEN = 20_000, 1_000_000
#: glibc's names for its settings, and their largest value
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MOST = -1, -3, (1 << 31) - 1
#: bytes of free memory that a process may keep between tasks
_SPARE = 256 << 20
#: The default bounds: each is one part in so many of a worker's memory. Of an iteration: steps need several
#: times as much. Of what any other step sends at one time: the next step's input is a second copy.
_MEMORY_SHARE, _OTHERS_SHARE = 16, 2
#: Where a container's limit of memory is.
_CONTAINERS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


#: Seconds after which a thread that computes lets another one run, while a micro-batch stays.
_TURN = 0.00025
#: Half of its unit: the interpreter cuts off what is less than a microsecond.
_HALF = 5e-7
_turns = threading.Lock()
#: the interpreter's own setting, for each body of `short_turns` that runs
_before: list[float] = []


@contextmanager
def short_turns() -> Iterator[None]:
    """While the body runs, a thread that computes lets others run after a quarter of a millisecond.

    By Python's default it is five milliseconds. The driver shares its interpreter with the program that sends
    and asks, with subscribers, and with threads that write. A change that goes from one to the other waits
    for each.
    """
    with _turns:
        before = _before[0] if _before else sys.getswitchinterval()
        _before.append(before)
        if before > _TURN:
            sys.setswitchinterval(_TURN)
    try:
        yield
    finally:
        with _turns:
            _before.pop()
            if before > _TURN and not _before:
                sys.setswitchinterval(before + _HALF)


def in_thread(pool: ThreadPoolExecutor, call: Callable[[], T]) -> Future[T]:
    """Make a call in a pool's thread; in this one if the interpreter is about to end: pools take no more."""
    try:
        return pool.submit(call)
    except RuntimeError:
        called = Future[T]()
        called.set_result(call())
        return called


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


def with_default_limit(plan: Plan) -> Plan:
    """The plan, with a share of the memory here as the limit, if the user has given none."""
    if plan.epoch_limit == SizeLimit():
        at_once = max(1, min(plan.workers, os.cpu_count() or 1))
        memory = _memory() // at_once
        plan.epoch_limit = SizeLimit(bytes=memory // _MEMORY_SHARE, others=memory // _OTHERS_SHARE)
    return plan


def _memory() -> int:
    """The bytes of memory that this process may use, by its machine and container."""
    try:
        size = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):  # Windows has none of them
        size = 16 << 30
    for place in _CONTAINERS:
        with suppress(OSError, ValueError):
            size = min(size, int(Path(place).read_text("ascii")))
    return size


def _libc() -> Any:
    """The C library, if it is glibc 2.33 or later."""
    try:
        libc = ctypes.CDLL(None)
        libc.mallinfo2.restype = _Heap
    except (OSError, TypeError, AttributeError):
        return None
    return libc
