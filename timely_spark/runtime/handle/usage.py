"""`Usage`: processor time and memory of a flow's processes, and its files in memory, where /proc has them."""

from __future__ import annotations

import ctypes
import os
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from timely_spark.runtime.storage.files import Files
from timely_spark.show.words import bytes_text, seconds_text

DRIVER, JVM, TASKS, SOURCES = "driver", "JVM", "tasks", "sources"
#: The kind of a process below the JVM, by a part of its command line; others are of their parent's kind.
_KINDS = {b"pyspark.daemon": TASKS, b"pyspark.sql.": SOURCES}
_PROCESSES = Path("/proc")


@dataclass(frozen=True, slots=True)
class Processes:
    """The processes of one kind."""

    number: int = 0
    #: seconds of processor time, with those of children that have ended
    seconds: float = 0.0
    #: bytes of resident memory; a page that two processes share counts twice
    memory: int = 0

    def __add__(self, other: Processes) -> Processes:
        memory = self.memory + other.memory
        return Processes(self.number + other.number, self.seconds + other.seconds, memory)

    def __str__(self) -> str:
        return f"{seconds_text(self.seconds)}, {bytes_text(self.memory)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What a flow takes of its driver's machine at one moment."""

    #: the moment, in seconds since 1970
    when: float
    #: by kind; empty if the flow does not run on this machine. Flows of one session share the processes.
    processes: Mapping[str, Processes]
    #: bytes of the files with states and messages, and how many of them are in memory; None means unknown
    stored: int | None
    cached: int | None

    @classmethod
    def of(cls, files: Files, driver: int | None) -> Usage:
        """The usage of a checkpoint's flow; `driver` is its driver's process, None if none runs here."""
        stored, cached = _in_files(files.path("blobs")) if files.local else (None, None)
        processes = {} if driver is None else flow_processes(driver)
        return cls(when=time.time(), processes=processes, stored=stored, cached=cached)

    def lines(self) -> Iterator[tuple[str, str]]:
        """A name and a text for each fact that is known."""
        if self.processes:
            numbers = {kind: f" ({one.number})" * (one.number > 1) for kind, one in self.processes.items()}
            texts = [f"{kind}{numbers[kind]}: {one}" for kind, one in self.processes.items()]
            yield "processes", "; ".join(texts)
        if self.stored:
            cached = "" if self.cached is None else f", {bytes_text(self.cached)} of them in memory"
            yield "on disk", bytes_text(self.stored) + cached


def flow_processes(driver: int) -> dict[str, Processes]:
    """A driver's process, its JVM, and all below, by kind; empty where the kernel has no `/proc`."""
    children: dict[int, list[int]] = defaultdict(list)
    stats: dict[int, tuple[int, str, Processes]] = {}
    with suppress(OSError):
        for entry in os.scandir(_PROCESSES):
            if entry.name.isdigit():
                with suppress(OSError):  # it has ended
                    stats[int(entry.name)] = own = _stat(entry.name)
                    children[own[0]].append(int(entry.name))
    parent = stats[driver][0] if driver in stats else 0
    submitted = parent in stats and stats[parent][1] == "java"  # spark-submit starts the driver below the JVM
    waiting = [(parent, JVM)] if submitted else [(driver, DRIVER)] if driver in stats else []
    totals: dict[str, Processes] = {}
    for pid, kind in waiting:
        _, name, taken = stats[pid]
        if kind == JVM and name != "java":
            continue  # about to become another program: until then it shares the JVM's memory
        totals[kind] = totals.get(kind, Processes()) + taken
        for child in children[pid]:
            below = JVM if stats[child][1] == "java" else _kind(child, stats[child][1], kind)
            waiting.append((child, DRIVER if child == driver else below))
    return totals


def _kind(pid: int, name: str, parent: str) -> str:
    """The kind of a process: below a JVM by its command line; a fork (`forks`) is named after its program."""
    command = name.encode()
    if parent == JVM:
        with suppress(OSError):
            command = (_PROCESSES / str(pid) / "cmdline").read_bytes()
    return next((kind for mark, kind in _KINDS.items() if mark in command), parent)


def _stat(pid: str) -> tuple[int, str, Processes]:
    """The parent, the name, and the usage of a process."""
    text = (_PROCESSES / pid / "stat").read_text("utf-8", "replace")
    name, _, rest = text.partition("(")[2].rpartition(")")
    fields = rest.split()
    seconds = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    return int(fields[1]), name, Processes(1, seconds, int(fields[21]) * os.sysconf("SC_PAGE_SIZE"))


def _in_files(folder: str) -> tuple[int, int | None]:
    """The bytes of a folder's files, and of their pages that are in memory; None means unknown."""
    stored, cached = 0, 0
    # of files that a user may not write, the kernel says that all is in memory
    writable = os.name == "posix" and os.access(folder, os.W_OK)
    mincore = getattr(ctypes.CDLL(None), "mincore", None) if writable else None
    with suppress(FileNotFoundError):  # no state is as large as a file
        for entry in os.scandir(folder):
            with suppress(OSError):  # removed meanwhile
                stored += entry.stat().st_size
                cached += 0 if mincore is None else _cached(mincore, entry.path)
    return stored, None if mincore is None else cached


def _cached(mincore: Any, path: str) -> int:
    page = os.sysconf("SC_PAGE_SIZE")
    with pa.memory_map(path) as file:
        mapped = file.read_buffer()
        pages = np.zeros(-(-mapped.size // page), np.uint8)
        address, size, present = map(ctypes.c_size_t, (mapped.address, mapped.size, pages.ctypes.data))
        mincore(address, size, present)
        return min(int(mapped.size), int((pages & 1).sum()) * page)
