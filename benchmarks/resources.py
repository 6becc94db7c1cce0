"""What the processes of a Spark session take, each second, from /proc (Linux); and the files on disk."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType

from benchmarks.harness import slope
from timely_spark.runtime.handle.usage import DRIVER, JVM, Processes, flow_processes


class Resources:
    """A thread that looks at memory and files while it is entered.

    Columns of `samples`: seconds; MB of `driver` (`root`, by default this process), `JVM`, `Python workers`
    (all below the JVM); and a number for each name of `counts`.
    """

    def __init__(
        self, counts: Mapping[str, Callable[[], float]], *, every: float = 1.0, root: int | None = None
    ) -> None:
        self.counts, self.every, self.root = counts, every, root or os.getpid()
        self.samples: list[dict[str, float]] = []
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Resources:  # noqa: PYI034 - Self is in typing from 3.11 only
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._end.set()
        self._thread.join()

    def _look(self) -> None:
        began = time.monotonic()
        while not self._end.wait(self.every):
            sample = {"seconds": time.monotonic() - began, **memory(self.root)}
            self.samples.append(sample | {name: float(count()) for name, count in self.counts.items()})

    def series(self, name: str) -> list[tuple[float, float]]:
        """(seconds, value)."""
        return [(sample["seconds"], sample[name]) for sample in self.samples]

    def growth(self, name: str) -> tuple[float, float]:
        """Growth per minute over the second half, and the mean level there."""
        half = self.series(name)[len(self.samples) // 2 :]
        level = sum(value for _, value in half) / max(1, len(half))
        return 60 * slope(half), level


def memory(root: int) -> dict[str, float]:
    """Resident memory in MB of a process, and of the JVM and its workers below it."""
    return {kind: one.memory / 2**20 for kind, one in _kinds(root).items()}


def processor() -> float:
    """Seconds of processor time that this process and all below it have taken so far."""
    return sum(processors().values())


def processors() -> dict[str, float]:
    """`processor` by process: `driver` (this one), `JVM`, `Python workers` (all else)."""
    return {kind: one.seconds for kind, one in _kinds(os.getpid()).items()}


def python_seconds() -> float:
    """`processor` without the JVMs."""
    return sum(seconds for kind, seconds in processors().items() if kind != "JVM")


def shares(seconds: float) -> dict[str, float]:
    """The shares of a core that processes take from now on for so long."""
    before = processors()
    time.sleep(seconds)
    return {kind: (total - before[kind]) / seconds for kind, total in processors().items()}


def _kinds(root: int) -> dict[str, Processes]:
    kinds = flow_processes(root)
    workers = sum((one for kind, one in kinds.items() if kind not in {DRIVER, JVM}), Processes())
    none = Processes()
    return {"driver": kinds.get(DRIVER, none), "JVM": kinds.get(JVM, none), "Python workers": workers}


def files(*folders: Path) -> int:
    """How many files are below the folders."""
    return sum(len(names) for folder in folders for _, _, names in os.walk(folder))


def size(folder: Path) -> int:
    """Bytes of the files below a folder; those that go meanwhile do not count."""
    total = 0
    for at, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += (Path(at) / name).stat().st_size
    return total
