"""State larger than memory: a load in parts, small epochs, the files, and a restart.

- *Counts*: a running count of each of very many keys.
- *Edges*: a collection of very many edges, each once (`distinct`).

`python -m benchmarks.large 100000000` says how many records. The memory is limited from outside, by a
container or `systemd-run --scope -p MemoryMax=4G`: what it holds of files counts there, too, so the state
does not fit.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

import timely_spark as ts
from benchmarks import harness
from benchmarks.harness import Report, median
from benchmarks.resources import Resources, processor, size
from timely_spark.input_streams import Input

SEED, PART, CHANGES, EPOCHS, NODES = 40_04, 1_000_000, 1_000, 10, 20_000_000


@dataclass(frozen=True)
class Kind:
    """A flow with one input, and records for it: so many, from one number on."""

    name: str
    flow: Callable[[ts.Dataflow], Input]
    records: Callable[[int, int], pa.Table]


def count(flow: ts.Dataflow) -> Input:
    """A running count of each key."""
    records = flow.input("keys", "key long")
    records.group_by("key").count().probe("done")
    return records


def keys(first: int, rows: int) -> pa.Table:
    """Keys, each once."""
    return pa.table({"key": np.arange(first, first + rows)})


def keep(flow: ts.Dataflow) -> Input:
    """Each edge once."""
    records = flow.input("edges", "src long, dst long")
    records.collection().distinct().probe("done")
    return records


def edges(first: int, rows: int) -> pa.Table:
    """Edges between nodes at random."""
    src, dst = np.random.default_rng([SEED, first]).integers(0, NODES, (2, rows))
    return pa.table({"src": src, "dst": dst})


KINDS = (Kind("counts", count, keys), Kind("edges", keep, edges))


class Run:
    """A flow from a start on."""

    def __init__(self, kind: Kind, checkpoint: Path) -> None:
        self.flow = ts.Dataflow(kind.name)
        self.input = kind.flow(self.flow)
        self.query = self.flow.start(harness.spark("large"), checkpoint=str(checkpoint), workers=2)

    def send(self, records: pa.Table) -> float:
        """Send records, and wait for the answer: seconds."""
        began = time.perf_counter()
        self.input.send(records)
        harness.answered(self.query, "done", timeout=3600)
        return time.perf_counter() - began


def measure(report: Report, kind: Kind, records: int) -> None:
    """The rows of one flow."""
    checkpoint = harness.folder()
    with Resources({"disk": lambda: size(checkpoint)}) as resources:
        began, seconds = time.perf_counter(), processor()
        run = Run(kind, checkpoint)
        for first in range(0, records, PART):
            run.send(kind.records(first, min(PART, records - first)))
        load, seconds = time.perf_counter() - began, processor() - seconds
        took = [run.send(kind.records(CHANGES * epoch, CHANGES)) for epoch in range(EPOCHS)]
        run.query.stop()
        began = time.perf_counter()
        run = Run(kind, checkpoint)
        run.send(kind.records(0, CHANGES))
        again = time.perf_counter() - began
        run.query.stop()
    case = f"{records:,} {kind.name}"
    report.add(f"{case}: load", ours=load, unit="s", note=f"processor time {seconds:.0f} s")
    epoch = f"slowest {1000 * max(took):.0f} ms"
    report.add(f"{case}: {CHANGES:,} more", ours=1000 * median(took), note=epoch)
    report.add(f"{case}: restart, to its first answer", ours=again, unit="s")
    on_disk = f"at most {_most(resources, 'disk') / 1e9:.1f} GB"
    report.add(f"{case}: files", ours=size(checkpoint) / 1e9, unit="GB", note=on_disk)
    parts = {name: _most(resources, name) for name in ("driver", "JVM", "Python workers")}
    resident = ", ".join(f"{name} {mb / 1000:.1f}" for name, mb in parts.items())
    report.add(f"{case}: resident memory, at most", ours=sum(parts.values()) / 1000, unit="GB", note=resident)


def _most(resources: Resources, name: str) -> float:
    return max(value for _, value in resources.series(name))


def limit() -> str:
    """How much memory this process and those below it may have, as Linux says it."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, group = line.split(":", 2)
        first = "memory" in controllers.split(",")  # the first version of control groups
        name = f"memory{group}/memory.limit_in_bytes" if first else f"{group[1:]}/memory.max"
        with suppress(OSError, ValueError):
            return f"{int((Path('/sys/fs/cgroup') / name).read_text()) / 2**30:.1f} GB"
    return "not limited"


def measured(records: int, *, quick: bool) -> Report:
    """The report, for so many records."""
    report = Report("large", "State larger than memory", quick=quick)
    for kind in KINDS:
        measure(report, kind, records)
    report.note(f"Memory of all processes, with what it holds of their files: {limit()}.")
    report.write()
    return report


def run(quick: bool) -> Report:
    """Measure, and write the report."""
    return measured(500_000 if quick else 20_000_000, quick=quick)


if __name__ == "__main__":
    measured(int(sys.argv[1]), quick=False)
