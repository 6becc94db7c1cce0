"""What the tests of the driver, of the flow's source and of the storage ask for."""

from __future__ import annotations

import os
from contextlib import nullcontext
from pathlib import Path

import pytest

import timely_spark as ts
from tests.support import engine
from tests.support.stepper import Begin, Stepper


@pytest.fixture
def begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Begin:
    """Start a flow on the test's checkpoint; again after a stop, with what Spark has kept."""
    from timely_spark.runtime import run_context
    from timely_spark.runtime.query import streaming as query

    worlds: list[engine.World] = []
    running: list[Stepper] = []
    monkeypatch.setattr(query, "batch_id", lambda _: running[-1].next)
    monkeypatch.setattr(run_context.process, "task", nullcontext)

    def start(
        flow: ts.Dataflow, *, workers: int = 2, rounds: int = 1, keep: int = 3, path: Path = tmp_path
    ) -> Stepper:
        names = {stage.name: [] for stage in flow.graph.stages if stage.handle}
        world = engine.World(flow, str(path), names, workers=workers, rounds=rounds, keep=keep)
        if worlds and worlds[-1].checkpoint == str(path):
            world.versions, world.taken = worlds[-1].versions, worlds[-1].taken
        worlds.append(world)
        process = Stepper(world)
        process.start()
        running.append(process)
        return process

    return start


@pytest.fixture
def synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths of the test that `os.fsync` was called for, in order; threads of other tests may call it."""
    if not Path("/proc/self/fd").is_dir():
        pytest.skip("asks Linux for the paths")
    paths: list[str] = []
    real = os.fsync

    def noted(handle: int) -> None:
        path = Path(f"/proc/self/fd/{handle}").readlink()
        if path.is_relative_to(tmp_path):
            paths.append(str(path))
        real(handle)

    monkeypatch.setattr(os, "fsync", noted)
    return paths
