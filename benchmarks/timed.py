"""What is seen of a query's batches while it runs: when each part of a round began and ended."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import pyarrow as pa

from benchmarks import harness
from timely_spark.runtime.storage.log import RoundLog

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass
class Timed:
    """What is seen of one query's batches while it runs."""

    #: batch -> seconds by the clock: `action`, `acted` (toArrow), `write`, `wrote` (marker or manifest);
    #: and `cpu`, processor time between `acted` and `wrote`
    at: dict[int, dict[str, float]] = field(default_factory=lambda: defaultdict(dict))
    #: batch -> `perf_counter` at the end of it
    ends: dict[int, float] = field(default_factory=dict)
    #: batch -> ms of processor time, of all processes, for each round of its spin
    cpu: dict[int, float] = field(default_factory=dict)
    #: batches after which something else was measured
    breaks: set[int] = field(default_factory=set)
    #: the operator's file of calls: batch, worker, began, ended
    calls: Path = field(default_factory=lambda: harness.folder() / "calls")
    _action: tuple[float, float, float] = (0.0, 0.0, 0.0)

    def write(self, write: Callable[..., None], batch: int, *args: Any) -> None:
        began = time.time()
        write(batch, *args)
        self.ends[batch] = time.perf_counter()
        action, acted, cpu = self._action
        self.at[batch] = {"action": action, "acted": acted, "write": began, "wrote": time.time()}
        self.at[batch]["cpu"] = time.thread_time() - cpu

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Times the action of each batch, and a flow's manifests and operator; the same for both loops."""
        from pyspark.sql.classic.dataframe import DataFrame

        import timely_spark.runtime.query.streaming as ours

        to_arrow, manifest, operator = DataFrame.toArrow, RoundLog.write, ours._operator  # noqa: SLF001

        def timed_action(frame: DataFrame) -> pa.Table:
            began = time.time()
            table = to_arrow(frame)
            self._action = (began, time.time(), time.thread_time())
            return table

        def timed_manifest(log: RoundLog, entry: Any, *rest: Any) -> None:
            self.write(lambda _, *args: manifest(log, entry, *args), entry.batch, *rest)

        with (
            mock.patch.object(DataFrame, "toArrow", timed_action),
            mock.patch.object(RoundLog, "write", timed_manifest),
            mock.patch.object(ours, "_operator", lambda context: timed(operator(context), str(self.calls))),
        ):
            yield

    def rounds(self, progress: list[Any]) -> list[dict[str, float]]:
        """The warm rounds: each part, and the whole, in ms."""
        durations = {p["batchId"]: p["durationMs"] for p in progress}
        operator = _calls(self.calls)
        rows = []
        for batch in sorted(self.ends):
            # the first round after a break waits for its input, the one before it does not lead to another
            fresh = {batch - 1, batch - 2} & self.breaks or batch in self.breaks
            if not fresh and batch in durations and batch in operator and batch - 1 in self.ends:
                whole = 1000 * (self.ends[batch] - self.ends[batch - 1])
                parts = _parts(whole, durations[batch], self.at[batch], operator[batch])
                rows.append({**parts, "cpu": self.cpu.get(batch, math.nan)})
        return rows


def timed(function: Callable[..., Any], path: str) -> Callable[..., Any]:
    """An operator's function that notes when it was called, in a file."""

    def run(key: Any, frames: Any, state: Any) -> Iterator[Any]:
        from pyspark import TaskContext

        began, cpu = time.time(), time.thread_time()
        yield from function(key, frames, state)
        cpu = time.thread_time() - cpu
        batch = TaskContext.get().getLocalProperty("streaming.sql.batchId")
        with open(path, "a") as file:  # noqa: PTH123 - one short append
            file.write(f"{batch} {began} {time.time()} {cpu}\n")

    return run


def _calls(path: Path) -> dict[int, tuple[float, float, float]]:
    """Per batch: when the first worker began, when the last ended, and the processor time of all."""
    by_batch: dict[int, tuple[float, float, float]] = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        batch, began, ended, cpu = line.split()
        first, last, spent = by_batch.get(int(batch), (float(began), float(ended), 0.0))
        by_batch[int(batch)] = min(first, float(began)), max(last, float(ended)), spent + float(cpu)
    return by_batch


def _parts(
    whole: float, spark: Any, at: dict[str, float], calls: tuple[float, float, float]
) -> dict[str, float]:
    parts = {
        "ask the sources": spark.get("latestOffset", 0),
        "offset log": spark.get("walCommit", 0),
        "planning": spark.get("queryPlanning", 0) + spark.get("getBatch", 0),
        "call of foreachBatch": spark["addBatch"] - 1000 * (at["wrote"] - at["action"]),
        "before the operator": 1000 * (calls[0] - at["action"]),
        "operator": 1000 * (calls[1] - calls[0]),
        "after the operator": 1000 * (at["acted"] - calls[1]),
        "driver: turn": 1000 * (at["write"] - at["acted"]),
        "driver: manifest": 1000 * (at["wrote"] - at["write"]),
        "commit log": spark.get("commitOffsets", 0),
    }
    own = {"operator cpu": 1000 * calls[2], "driver cpu": 1000 * at["cpu"]}
    return {**parts, "between batches": whole - sum(parts.values()), "whole": whole, **own}
