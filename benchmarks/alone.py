"""The incremental engine without Spark: a flow's workers and its coordinator in one process."""

from __future__ import annotations

import cProfile
import os
import pstats
from pathlib import Path

import pyarrow as pa

import timely_spark as ts
from timely_spark.coordinator import Coordinator, run_workers
from timely_spark.state.arrow import from_bytes
from timely_spark.worker import ROWS, Worker, pack


class Memory(dict[bytes, bytes]):
    """Blobs in memory."""

    def put(self, what: str, data: bytes) -> bytes:
        self[what.encode()] = data
        return what.encode()

    def get(self, reference: bytes) -> bytes:
        return self[reference]

    def table(self, reference: bytes) -> pa.Table:
        return from_bytes(self[reference])


class Engine:
    """A flow's workers, alive, and its coordinator."""

    def __init__(self, flow: ts.Dataflow, workers: int) -> None:
        self.plan = flow.compile(workers)
        self.coordinator = Coordinator(self.plan)
        self.workers = [Worker(self.plan, None, worker, Memory()) for worker in range(workers)]
        self.result, self.batch = self.coordinator.first(), 0

    def epoch(self, **inputs: pa.Table) -> list[pa.Table]:
        """All rounds of an epoch; what comes out."""
        packed = [pack(self.plan, name, table, 0) for name, table in inputs.items()]
        rows, out = pa.concat_tables([ROWS.empty_table(), self.result.rows, *packed]), []
        while rows.num_rows:
            self.result = self.coordinator.apply_round(self.batch, run_workers(rows, self._step))
            out += [from_bytes(payload.as_buffer()) for payload in self.result.outputs.column("payload")]
            rows = self.result.rows
        self.batch += 1
        return out

    def _step(self, worker: int, rows: pa.Table) -> pa.Table:
        return self.workers[worker].step(self.batch, rows, self.result.header)

    def checkpoint(self) -> None:
        for index, worker in enumerate(self.workers):
            worker.checkpoint(f"{index}-{self.batch}")

    def size(self) -> int:
        """Bytes of the state in the last checkpoint."""
        return sum(sum(worker.sizes.values()) for worker in self.workers)


def hottest(profile: cProfile.Profile, count: int = 4) -> str:
    """Our functions in which most time goes, with what they call of others', as shares."""
    stats = pstats.Stats(profile).stats  # type: ignore[attr-defined]
    here = f"{os.sep}timely_spark{os.sep}"
    spent: dict[tuple[str, int, str], float] = {key: entry[2] for key, entry in stats.items()}
    for _ in range(8):  # others' functions call each other, a few deep
        for key in [key for key in spent if here not in key[0] and spent[key]]:
            callers = stats[key][4]
            weight = sum(entry[3] for entry in callers.values())
            if weight:
                amount, spent[key] = spent[key], 0.0
                for caller, entry in callers.items():
                    spent[caller] = spent.get(caller, 0.0) + amount * entry[3] / weight
    total = sum(spent.values())
    most = sorted((key for key in spent if here in key[0]), key=spent.__getitem__, reverse=True)[:count]
    return ", ".join(f"{Path(key[0]).stem}.{key[2]} {spent[key] / total:.0%}" for key in most)
