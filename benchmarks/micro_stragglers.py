"""Naiad's causes of micro-stragglers (section 3.5), one by one, beside a neighbour that takes half a core.

- Networking. Two tasks of a stage swap small tables, again and again (`peers`). `ours` has TCP_NODELAY; the
  baseline has Nagle's algorithm, which waits for acknowledgements that the other side delays.
- Contention. The same swaps, while another thread of each task computes in Python. No lock is held while a
  task waits for another, so a swap is late by the interpreter's switches at most; the baseline has no thread.
- Garbage collection. Spark collects after every task. `ours` has frozen the objects of modules; the baseline
  has not. And the full collections while a worker counts a million records: no record is an object.
"""

from __future__ import annotations

import gc
import importlib
import multiprocessing
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import pyarrow as pa

import timely_spark as ts
from benchmarks.harness import Report, quantile
from timely_spark.runtime import process
from timely_spark.runtime.query.peers import Peers
from timely_spark.testing import Simulation

#: The neighbour computes for so long, and rests for as long; the size of a swapped table.
SLICE, BYTES = 0.01, 1 << 10
#: What Spark's Python tasks have imported.
IMPORTED = ("pandas", "pyarrow.compute", "pyspark.sql", "timely_spark.graphs")
SCHEMA = pa.schema([("payload", pa.binary())])


class Nagle(Peers):
    """Peers without TCP_NODELAY."""

    def _introduce(self, connection: socket.socket, other: int) -> None:
        super()._introduce(connection, other)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 0)


def _busy() -> None:
    while True:
        until = time.perf_counter() + SLICE
        while time.perf_counter() < until:
            pass
        time.sleep(SLICE)


@contextmanager
def neighbour() -> Iterator[None]:
    """While the body runs, another process takes half a core."""
    other = multiprocessing.get_context("fork").Process(target=_busy, daemon=True)
    other.start()
    try:
        yield
    finally:
        other.kill()
        other.join()


@contextmanager
def computing(*, on: bool) -> Iterator[None]:
    """While the body runs, another thread of this process computes."""
    ended = threading.Event()

    def compute() -> None:
        while not ended.is_set():
            sum(range(1000))

    thread = threading.Thread(target=compute, daemon=True)
    if on:
        thread.start()
    yield
    ended.set()
    if on:
        thread.join()


def swaps(kind: type[Peers], times: int, *, beside: bool = False) -> list[float]:
    """Milliseconds of each swap of two processes."""
    ours, child_end = multiprocessing.Pipe()

    def work(rank: int, pipe: Any) -> list[float]:
        took, table = list[float](), pa.table([[os.urandom(BYTES)]], schema=SCHEMA)
        with kind(rank, 2, "127.0.0.1", bytes(32), SCHEMA) as peers, computing(on=beside):
            pipe.send(peers.address)
            address = pipe.recv()
            peers.connect(lambda _: address)
            for _ in range(times):
                began = time.perf_counter()
                peers.swap([table, table])
                took.append(1000 * (time.perf_counter() - began))
            pipe.send(None)
            pipe.recv()
        return took

    child = os.fork()
    if child == 0:
        with suppress(Exception):
            work(1, child_end)
        os._exit(0)
    took = work(0, ours)
    os.waitpid(child, 0)
    return took[times // 10 :]


def collections(times: int, *, frozen: bool) -> list[float]:
    """Milliseconds of each full collection after a task, in a process of its own."""
    ours, child_end = multiprocessing.Pipe()

    def work() -> None:
        for name in IMPORTED:
            importlib.import_module(name)
        took = []
        for _ in range(times):
            if frozen:
                with process.task():
                    pass
            began = time.perf_counter()
            gc.collect()
            took.append(1000 * (time.perf_counter() - began))
        child_end.send(took)

    child = multiprocessing.get_context("fork").Process(target=work)
    child.start()
    took: list[float] = ours.recv()
    child.join()
    return took[1:]


def full_collections(records: int) -> int:
    """How many full collections there are while a worker counts records."""
    flow, seen = ts.Dataflow("counts"), list[int]()
    flow.input("x", "k long").collection().count(keys="k").changes().probe("seen")
    simulation = Simulation(flow)
    simulation.send("x", pa.table({"k": np.arange(records) % (records // 10)}))

    def watch(phase: str, about: dict[str, int]) -> None:
        if phase == "start" and about["generation"] == 2:
            seen.append(1)

    gc.callbacks.append(watch)
    simulation.run()
    gc.callbacks.remove(watch)
    return len(seen)


def run(quick: bool) -> Report:
    """Measure, and write the report."""
    report = Report(
        "micro_stragglers", "Micro-stragglers: causes, beside a neighbour on half a core", quick=quick
    )
    times, records = (200, 100_000) if quick else (2000, 1_000_000)
    measured: dict[str, tuple[Callable[[], list[float]], Callable[[], list[float]], str]] = {
        "a swap of 1 kB": (lambda: swaps(Peers, times), lambda: swaps(Nagle, times), "Nagle's algorithm"),
        "a swap of 1 kB beside a computing thread": (
            lambda: swaps(Peers, times, beside=True),
            lambda: swaps(Peers, times),
            "no thread",
        ),
        "a collection after a task": (
            lambda: collections(times // 20, frozen=True),
            lambda: collections(times // 20, frozen=False),
            "not frozen",
        ),
    }
    with neighbour():
        for case, (ours, baseline, against) in measured.items():
            pair = ours(), baseline()
            for name, q in (("p50", 0.5), ("p99", 0.99)):
                own, base = (quantile(each, q) for each in pair)
                report.add(f"{case}: {name}", ours=own, baseline=base, against=against)
        report.add(
            f"full collections while a worker counts {records:,} records",
            ours=full_collections(records),
            unit="collections",
            aim="<=0",
        )
    report.write()
    return report
