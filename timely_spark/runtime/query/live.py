"""`Live`: the progress of the running micro-batch, in a small file that other processes read.

A micro-batch may run a loop for minutes before its manifest is written. The process that runs the rounds
replaces the file from time to time. It never waits for a reader, and a failed write does not fail the batch.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from timely_spark.coordinator import RoundResult
from timely_spark.errors import TimelyError
from timely_spark.runtime.storage.log import RoundLog
from timely_spark.worker import Worker
from timely_spark.worker.convergence import Convergence

_log = logging.getLogger(__name__)

#: Seconds between two files, and before the first: a shorter batch writes none. A write takes at most this
#: share of the time.
EVERY, SHARE = 0.2, 0.02
_FOLDER = "live"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopProgress:
    """A loop in a micro-batch that is running."""

    loop: str
    #: The last epoch in the loop, and its last iteration.
    epoch: int
    iteration: int
    #: The records that entered this iteration by feedback, of a collection the changed records (after many
    #: iterations, the mean of the last ones); and those of all iterations of the epoch in this micro-batch.
    changes: int
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchProgress:
    """A micro-batch that is running."""

    #: The micro-batch, which with clock epochs is the epoch of its input.
    epoch: int
    #: The rounds of the micro-batch so far, and the records that they delivered to steps.
    rounds: int
    records: int
    loops: tuple[LoopProgress, ...]


@dataclass
class Live:
    """Writes the file of one process and micro-batch. Call `round` as often as you like."""

    log: RoundLog
    batch: int
    #: distinguishes the processes of a micro-batch
    process: str
    written: int = 0
    _due: float = field(default_factory=lambda: time.monotonic() + EVERY)

    def round(self, result: RoundResult | None, worker: Worker | None) -> None:
        """A round has ended with `result`; or `worker` has reached another iteration in the next one."""
        if time.monotonic() < self._due:
            return
        rounds, records, done = 0, 0, Convergence()
        if result is not None:
            rounds, records = result.stats["rounds"], result.stats.get("records", 0)
            done.merge(result.convergence)
        if worker is not None:
            rounds, records = rounds + 1, records + worker.stats["records"]
            done.merge(worker.iterations.convergence)
        self._write(rounds, records, done)

    def _write(self, rounds: int, records: int, done: Convergence) -> None:
        started = time.monotonic()
        loops = {loop: numbers for loop, *numbers in done.latest()}
        content = {"batch": self.batch, "rounds": rounds, "records": records, "loops": loops}
        try:
            self.log.files.write_json(self._name, content)
            self.written += 1
        except Exception as error:  # noqa: BLE001 - the batch itself reports a full disk
            _log.debug("progress of batch %d is not written: %s", self.batch, error)
        ended = time.monotonic()
        self._due = ended + max(EVERY, (ended - started) / SHARE)

    @property
    def _name(self) -> str:
        return f"{_FOLDER}/{self.log.term}-{self.process}.json"

    def end(self) -> None:
        """Remove the file."""
        if self.written:
            with suppress(Exception):
                self.log.files.remove(self._name)


@contextmanager
def live(log: RoundLog, batch: int, process: str) -> Iterator[Live]:
    """A `Live` that ends with the body."""
    writes = Live(log, batch, process)
    try:
        yield writes
    finally:
        writes.end()


def running_batch(log: RoundLog, after: int) -> BatchProgress | None:
    """The micro-batch after batch `after`, if it runs and has written what it has done so far."""
    found: list[dict[str, Any]] = []
    for name in log.files.names(_FOLDER):
        with suppress(TimelyError):  # replaced meanwhile, on a file system without atomic renames
            content = log.files.json(name)
            if content is not None and content["batch"] > after:
                found.append(content)
    if not found:
        return None
    batch = max(content["batch"] for content in found)
    found = [content for content in found if content["batch"] == batch]
    loops: dict[str, list[int]] = {}
    for content in found:
        for loop, (epoch, iteration, changes, total) in content["loops"].items():
            last = loops.setdefault(loop, [epoch, 0, 0, 0])
            if [epoch, iteration] > last[:2]:
                last[2] = 0
                last[3] = last[3] if epoch == last[0] else 0
                last[:2] = epoch, iteration
            last[2] += changes if [epoch, iteration] == last[:2] else 0
            last[3] += total if epoch == last[0] else 0
    return BatchProgress(
        epoch=batch,
        rounds=max(content["rounds"] for content in found),
        records=sum(content["records"] for content in found),
        loops=tuple(
            LoopProgress(loop=loop, epoch=epoch, iteration=iteration, changes=changes, total=total)
            for loop, (epoch, iteration, changes, total) in sorted(loops.items())
        ),
    )
