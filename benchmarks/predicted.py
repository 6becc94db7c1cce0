"""What a cluster would take, predicted: counts and critical path of the simulator, at measured prices.

The cluster has a core for each worker, and four workers a node (`PER_NODE`): 64 workers are 16 nodes. Each
worker has a process of its own, with one thread: an executor of four cores runs four such tasks. The further
rounds of a batch are those of a parallel stage, whose tasks here run in turn, from exchange to exchange, each
timed by its processor. An epoch then takes

- *work*: the steps of all workers with their states, and what they make ready for the exchange, packing
  included, in equal shares; *imbalance*: what the slowest worker of each round takes more (together they
  are the critical path);
- *micro-batch*: one with next to no data, which stays; *tasks*: parallel ones that stay, if there is a second
  round, and for each the driver's message and its answer;
- *coordinator*: what each process computes of the progress of all others, in the mean;
- *exchanges*: in each further round a message to each peer, or from 16 processes on two exchanges, within the
  rows and within the columns of a grid; priced by its size as between two processes over loopback, one after
  the other (they overlap, so this is an upper bound); or what the processes of a node are sent from other
  nodes together, at 10 Gbit/s, where that takes longer. The bandwidth is an assumption, and the only price
  that is not measured.

Not in it: reading the input, its way through Spark's shuffle to the workers, outputs, a network's latency.
"""

from __future__ import annotations

import gc
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any
from unittest import mock

import numpy as np
import numpy.typing as npt
import pyarrow as pa

import timely_spark as ts
from benchmarks.harness import timed
from timely_spark import testing
from timely_spark.coordinator import (
    OUTPUTS,
    Coordinator,
    RoundLimits,
    Share,
    merged_snapshot,
    run_local_rounds,
)
from timely_spark.testing import Simulation

#: Workers, and processes, of a node; the bytes per second that it can be sent.
PER_NODE, NETWORK = 4, 10e9 / 8

Matrix = npt.NDArray[Any]


@dataclass(frozen=True)
class Curve:
    """Seconds by size, measured at some sizes: linear between them, and in proportion beyond the last."""

    sizes: tuple[int, ...]
    seconds: tuple[float, ...]

    def of(self, size: Matrix | int) -> Matrix:
        within = np.interp(size, self.sizes, self.seconds)
        return within * np.maximum(1.0, size / self.sizes[-1])


@dataclass(frozen=True)
class Prices:
    """Seconds of a micro-batch and of parallel tasks, which stay; of an exchange, and of its processor."""

    micro_batch: float
    stage: float
    exchange: Curve
    processor: Curve


@dataclass
class Path:
    """Seconds of packing, and by round of the workers and of the coordinators; what was sent."""

    processes: int
    #: by round, of each process
    steps: list[list[float]] = field(default_factory=list)
    #: by round the coordinator's, of a process in the mean
    turns: list[float] = field(default_factory=list)
    packing: float = 0.0
    rounds: int = 0
    messages: int = 0
    #: by exchange, the bytes from each process to each other one
    sent: list[Matrix] = field(default_factory=list)

    @property
    def work(self) -> float:
        return self.packing + sum(map(sum, self.steps))

    @property
    def slowest(self) -> float:
        return self.packing / self.processes + sum(max(times, default=0.0) for times in self.steps)

    @property
    def balance(self) -> float:
        return self.work / (self.processes * self.slowest)

    def parts(self, prices: Prices) -> dict[str, float]:
        """Seconds on a cluster with a core per process, by what takes them."""
        even = self.work / self.processes
        return {
            "work": even,
            "imbalance": self.slowest - even,
            "micro-batch": prices.micro_batch,
            "tasks": prices.stage + self.processes * float(prices.exchange.of(0)) if self.sent else 0.0,
            "coordinator": sum(self.turns),
            "exchanges": sum(max(self._sockets(prices, sent), self._network(sent)) for sent in self.sent),
        }

    def processor(self, prices: Prices) -> float:
        """Seconds of all processes, exchanges included, fixed costs not."""
        exchanges = sum(
            float(prices.processor.of(sent[self._others & (sent > 0)]).sum()) for sent in self.sent
        )
        return self.work + self.processes * sum(self.turns) + exchanges

    @property
    def _others(self) -> Matrix:
        return ~np.eye(self.processes, dtype=bool)

    def _sockets(self, prices: Prices, sent: Matrix) -> float:
        """Of the process that is sent most."""
        return float((prices.exchange.of(sent) * self._others * (sent > 0)).sum(axis=0).max())

    def _network(self, sent: Matrix) -> float:
        """Of the node that is sent most."""
        node = np.arange(self.processes) // PER_NODE
        from_elsewhere = (sent * (node[:, None] != node)).sum(axis=0)
        return float(np.bincount(node, weights=from_elsewhere).max()) / NETWORK


def limits(parts: dict[str, float], one: dict[str, float], share: float) -> list[tuple[str, float]]:
    """By how much each part exceeds a share of what it takes for one worker, the greatest first.

    That share is 1 where each worker has as much data, and 1 / workers where all have the same.
    """
    excess = [(part, seconds - share * one[part]) for part, seconds in parts.items()]
    return sorted(excess, key=lambda each: -each[1])


class Cluster(Simulation):
    """The simulator, with the further rounds of a batch as the tasks of a parallel stage run them.

    Each task is a thread with a share of the workers, and they run in turn, from exchange to exchange.
    """

    def __init__(self, flow: ts.Dataflow, *, workers: int, processes: int) -> None:
        super().__init__(flow, workers=workers)
        self.processes, self.path = processes, Path(processes)

    def epoch(self, table: pa.Table) -> Path:
        """The path of an epoch with these records."""
        self.path = path = Path(self.processes)
        clock = time.process_time
        with (
            uncollected(),
            timed(testing, "pack", clock=clock) as packs,
            timed(testing, "step", clock=clock) as self._first,
            timed(Coordinator, "apply_round", clock=clock) as self._applied,
        ):
            self.send(self.plan.sources[0], table)
            self.run()
        path.packing = sum(packs)
        return path

    def _local_rounds(self, point: Iterator[None]) -> None:
        path, bound = self.path, RoundLimits.any_size(100)
        path.steps.append([sum(self._first[rank :: self.processes]) for rank in range(self.processes)])
        path.turns.append(self._applied[-1])
        path.messages += self.result.stats["rows_in_flight"]
        self._first.clear()
        if bound.allows(self.result):
            self._stage(bound, Turns(self.processes))
        path.rounds += self.result.stats["rounds"]

    def _stage(self, bound: RoundLimits, turns: Turns) -> None:
        start = replace(self.result, outputs=OUTPUTS.empty_table(), released=[])
        before, ended = json.dumps(self.coordinator.encode()), dict[int, Any]()

        def task(rank: int) -> None:
            with turns.of(rank):
                share = Share(rank, self.processes, partial(turns.swap, rank))
                with turns.coordinating():
                    own = Coordinator.decode(self.plan, json.loads(before))
                states = {n: state for n, state in enumerate(self.states) if state and share.hosts(n)}
                result, workers = run_local_rounds(own, start, states, bound, share=share)
                for index, worker in workers.items():
                    self.states[index] = worker.checkpoint(f"{index}-{self.batch}")
                with turns.coordinating():
                    ended[rank] = own.encode(), result

        apply_round = Coordinator.apply_round

        def applied(coordinator: Coordinator, *args: Any) -> Any:
            with turns.coordinating():
                return apply_round(coordinator, *args)

        with mock.patch.object(Coordinator, "apply_round", applied):
            threads = [threading.Thread(target=task, args=(rank,)) for rank in range(self.processes)]
            for thread in threads:
                thread.start()
            turns.gates[0].release()
            for thread in threads:
                thread.join()
        self.coordinator = Coordinator.decode(
            self.plan, merged_snapshot([ended[rank][0] for rank in sorted(ended)])
        )
        results = [ended[rank][1] for rank in sorted(ended)]
        outputs, released = self.result.outputs, self.result.released
        self.result = replace(
            results[0],
            rows=pa.concat_tables([one.rows for one in results]),
            outputs=pa.concat_tables([outputs, *(one.outputs for one in results)]),
            released=[*released, *results[0].released],
        )
        for times in turns.laps:
            self.path.steps.append([workers for workers, _ in times])
            self.path.turns.append(sum(coordinator for _, coordinator in times) / self.processes)
        self.path.sent += turns.sent
        self.path.messages += results[0].stats.get("sent", 0) - start.stats.get("sent", 0)


class Turns:
    """Tasks in turn: each runs until it swaps, and goes on when all others have done so."""

    def __init__(self, processes: int) -> None:
        self.processes = processes
        self.gates = [threading.Semaphore(0) for _ in range(processes)]
        self.sent: list[Matrix] = []
        #: of each round, by rank the seconds of the workers, and of the coordinator
        self.laps: list[list[tuple[float, float]]] = []
        self._parts: dict[tuple[int, int], pa.Table] = {}
        self._coordinator, self._began = 0.0, 0.0

    @contextmanager
    def of(self, rank: int) -> Iterator[None]:
        """A task's turns: the body begins with the first."""
        self._wait(rank)
        yield
        self._lap(len(self.sent))
        self.gates[(rank + 1) % self.processes].release()

    def swap(self, rank: int, parts: list[pa.Table], group: list[int]) -> list[pa.Table]:
        """As `Share.swap`."""
        self._lap(len(self.sent) - (rank > 0))
        if rank == 0:
            self._parts = {}
            self.sent.append(np.zeros((self.processes, self.processes), np.int64))
        of_all = self._parts
        for to, part in zip(group, parts, strict=True):
            of_all[rank, to] = part
            self.sent[-1][rank, to] = part.nbytes
        self.gates[(rank + 1) % self.processes].release()
        self._wait(rank)
        return [of_all.pop((sender, rank)) for sender in group]

    @contextmanager
    def coordinating(self) -> Iterator[None]:
        """What is not the workers'."""
        began = time.process_time()
        yield
        self._coordinator += time.process_time() - began

    def _wait(self, rank: int) -> None:
        self.gates[rank].acquire()
        self._began, self._coordinator = time.process_time(), 0.0

    def _lap(self, number: int) -> None:
        took = time.process_time() - self._began
        if number == len(self.laps):
            self.laps.append([])
        self.laps[number].append((took - self._coordinator, self._coordinator))


def simulated(
    build: Callable[[], ts.Dataflow], data: list[pa.Table], workers: int, processes: int | None = None
) -> list[Path]:
    """Each epoch's path but the first, which is warm-up; with a process for each worker, or `processes`."""
    cluster = Cluster(build(), workers=workers, processes=processes or workers)
    return [cluster.epoch(table) for table in data][1:]


@contextmanager
def uncollected() -> Iterator[None]:
    """Without the cyclic collector: it would walk the objects of all workers; a process has those of one."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
