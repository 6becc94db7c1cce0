"""What the processes of a Spark session take, each second, from /proc (Linux); and the files on disk."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType

from benchmarks.harness import slope

PAGE = os.sysconf("SC_PAGE_SIZE") / 2**20


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
    children, names = _processes()
    jvm = [pid for pid in _below(root, children) if names[pid] == "java"]
    # by name: what a JVM is about to start shares its memory, and has the name of a thread of it
    workers = {pid for one in jvm for pid in _below(one, children) if names[pid].startswith("python")}
    return {
        "driver": _resident(root),
        "JVM": sum(map(_resident, jvm)),
        "Python workers": sum(map(_resident, workers)),
    }


def processor() -> float:
    """Seconds of processor time that this process and all below it have taken so far."""
    return sum(processors().values())


def processors() -> dict[str, float]:
    """`processor` by process: `driver` (this one), `JVM`, `Python workers` (all else)."""
    return _by_kind({process: own + ended for process, (own, ended) in _times().items()})


def shares(seconds: float) -> dict[str, float]:
    """The shares of a core that processes take from now on for so long, without those that end meanwhile."""
    before = _times()
    time.sleep(seconds)
    taken = {process: own - before.get(process, (0.0,))[0] for process, (own, _) in _times().items()}
    return {kind: total / seconds for kind, total in _by_kind(taken).items()}


def _by_kind(taken: Mapping[tuple[int, str], float]) -> dict[str, float]:
    """The sums by kind of process."""
    kinds = {"driver": 0.0, "JVM": 0.0, "Python workers": 0.0}
    for (_, kind), seconds in taken.items():
        kinds[kind] += seconds
    return kinds


def _times() -> dict[tuple[int, str], tuple[float, float]]:
    """Seconds of this process and of all below it, by number and kind: their own, those of ended children."""
    (children, names), root, tick = _processes(), os.getpid(), os.sysconf("SC_CLK_TCK")
    found = {}
    for pid in (root, *_below(root, children)):
        who = "driver" if pid == root else "JVM" if names[pid] == "java" else "Python workers"
        own, ended = _ticks(pid)
        found[pid, who] = own / tick, ended / tick
    return found


def _processes() -> tuple[dict[int, list[int]], dict[int, str]]:
    """The children of each process, and the names of all."""
    children: dict[int, list[int]] = defaultdict(list)
    names: dict[int, str] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                name, _, rest = (entry / "stat").read_text().partition("(")[2].rpartition(")")
            except OSError:  # it has ended
                continue
            children[int(rest.split()[1])].append(int(entry.name))
            names[int(entry.name)] = name
    return children, names


def _ticks(pid: int) -> tuple[int, int]:
    """Of a process itself, and of its children that have ended."""
    try:
        found = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0, 0
    user, system, *ended = map(int, found[11:15])
    return user + system, sum(ended)


def _below(pid: int, children: Mapping[int, list[int]]) -> list[int]:
    found = list(children.get(pid, ()))
    for one in found:
        found += children.get(one, ())
    return found


def _resident(pid: int) -> float:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE
    except OSError:
        return 0.0


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
