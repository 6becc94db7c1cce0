"""Three flows that import one arrangement, in a process each: mapped (`import_arrangement`), or replayed.

One flow has published edges, arranged by their source. Each reader looks up the edges of a thousand nodes.
"first answer" is from the moment at which a reader has been built to its answer, the slowest of three that
begin together; "processors" is the processor time of all three. "memory" is what all three have more than
before, as the kernel shares it out (PSS), so that pages which all of them map count once. The baseline
replays the same folder, and arranges the edges itself.
The engine alone, one worker in each reader.
"""

from __future__ import annotations

import multiprocessing
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import timely_spark as ts
from benchmarks.harness import Report
from timely_spark.testing import Simulation

READERS, ASKED = 3, 1_000
MB = 1 << 20


def publish(folder: str, edges: int) -> None:
    """Publish random edges, with a snapshot of them."""
    draw, nodes = np.random.default_rng(1), edges // 5
    flow = ts.Dataflow("publishes")
    edge_input = flow.input("edges", "src long, dst long", epochs="manual")
    edge_input.collection().arrange("src").publish(folder, name="by_src")
    simulation = Simulation(flow)
    src, dst = draw.integers(0, nodes, (2, edges))
    simulation.send("edges", pa.table({"src": src, "dst": dst}), epoch=0)
    for epoch in (1, 2):  # the snapshot of an epoch replaces its file an epoch later
        simulation.advance_to("edges", epoch)
        simulation.run()


def memory() -> int:
    """The bytes of this process, of which it has only a share where others map them, too."""
    lines = Path("/proc/self/smaps_rollup").read_text("ascii").splitlines()
    return 1024 * int(next(line.split()[1] for line in lines if line.startswith("Pss:")))


def reader(folder: str, nodes: int, mapped: bool, pipe: Connection) -> None:
    """Import the edges, look some up, and tell how long it took and what it needed."""
    flow = ts.Dataflow("imports")
    if mapped:
        edges = flow.import_arrangement(folder, "edges")
    else:
        edges = flow.replay("edges", folder).collection(diff="diff").arrange("src")
    asked = flow.input("asked", "src long", epochs="manual").collection()
    asked.join(edges, on="src").count("n").changes().capture("found")
    simulation = Simulation(flow)
    before = memory()
    pipe.send("ready")
    pipe.recv()
    began, worked = time.perf_counter(), time.process_time()
    simulation.send("asked", pa.table({"src": np.arange(ASKED) % nodes}), epoch=0)
    simulation.advance_to("asked", 2)
    simulation.run()
    took = time.perf_counter() - began, time.process_time() - worked
    (counts,) = ts.snapshot(simulation.captured["found"], at=1)["n"].to_pylist()
    pipe.send((took, counts))
    pipe.recv()  # all readers have their edges now
    pipe.send(memory() - before)
    pipe.recv()


def measured(folder: str, nodes: int, *, mapped: bool) -> tuple[list[float], int, int]:
    """Seconds until the slowest reader has its answer, and of all processors; the bytes; and the answer."""
    spawn = multiprocessing.get_context("spawn")
    pipes: list[Any] = []
    for _ in range(READERS):
        ours, child_end = spawn.Pipe()
        spawn.Process(target=reader, args=(folder, nodes, mapped, child_end), daemon=True).start()
        child_end.close()
        pipes.append(ours)

    def heard() -> list[Any]:
        return [pipe.recv() for pipe in pipes]

    def go_on() -> None:
        for pipe in pipes:
            pipe.send("go on")

    heard()
    go_on()
    answers = heard()
    go_on()
    needed = heard()
    go_on()
    assert len({count for _, count in answers}) == 1
    seconds = [max(took for (took, _), _ in answers), sum(worked for (_, worked), _ in answers)]
    return seconds, sum(needed), answers[0][1]


def run(quick: bool) -> Report:
    """Measure, and write the report."""
    report = Report("sharing", f"{READERS} flows that import one arrangement", quick=quick)
    edges = 200_000 if quick else 5_000_000
    with tempfile.TemporaryDirectory() as folder:
        publish(folder, edges)
        size = sum(path.stat().st_size for path in Path(folder).glob("snapshot-*"))
        ours, baseline = (measured(folder, edges // 5, mapped=mapped) for mapped in (True, False))
    assert ours[2] == baseline[2]
    case, against = f"{edges:,} edges, {READERS} readers", "replay"
    for what, own, other in zip(("first answer", "processors"), ours[0], baseline[0], strict=True):
        report.add(f"{case}, {what}", ours=1000 * own, baseline=1000 * other, against=against, aim=">=10x")
    note = f"the snapshot has {size / MB:.0f} MB"
    report.add(
        f"{case}, memory",
        ours=ours[1] / MB,
        baseline=baseline[1] / MB,
        against=against,
        unit="MB",
        note=note,
    )
    report.write()
    return report
