"""What a task's process keeps, and what it gives back."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys

import pytest

import timely_spark as ts
from timely_spark.coordinator.loops import with_warn_after
from timely_spark.runtime import process

_USE = """
import numpy as np
from timely_spark.runtime import process

def resident():
    with open("/proc/self/statm") as found:
        return int(found.read().split()[1]) >> 8  # MB, of pages of 4 kB

def use(columns):
    for one in [np.ones(4 << 20) for _ in range(columns)]:
        one += 1

before = resident()
with process.task():
    use({columns})
    within = resident() - before
print(within, resident() - before)
"""


def megabytes(columns: int) -> tuple[int, int]:
    """How much a process has, when a task has freed so many columns of 32 MB, and when the task has ended."""
    ran = subprocess.run(
        [sys.executable, "-c", _USE.replace("{columns}", str(columns))], capture_output=True, check=True
    )
    within, after = map(int, ran.stdout.split())
    return within, after


@pytest.mark.slow
@pytest.mark.skipif(process._libc() is None, reason="what is freed is kept with glibc alone")
def test_a_task_reuses_freed_memory_and_returns_it_at_the_end() -> None:
    within, after = megabytes(12)

    assert within > 300
    assert after < 100

    within, after = megabytes(4)
    assert within > 100
    assert after > 100, "so little is left for the next task"


@pytest.mark.slow
def test_without_glibc_a_task_runs_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    class Other:
        """A C library without what glibc has."""

    ran = []
    for found in (lambda _: Other(), lambda _: (_ for _ in ()).throw(OSError)):
        monkeypatch.setattr(ctypes, "CDLL", found)
        with process.task():
            ran.append(process._libc())

    assert ran == [None, None]


@pytest.mark.parametrize("given", [None, "2 GB", 7])
def test_an_iteration_without_a_limit_gets_a_share_of_the_memory(
    given: str | int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sysconf", lambda name: {"SC_PAGE_SIZE": 4096}.get(name, 1 << 20))
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr(process, "_CONTAINERS", ())
    flow = ts.Dataflow("x")
    flow.input("x", "n long").capture("out")
    plan = with_warn_after(flow.compile(8), None, given)
    limit = plan.epoch_limit
    assert limit.exceeded(1 << 60, 1 << 60) is None or given
    assert process.with_default_limit(plan) is plan
    if given is None:  # 4 GiB, of which two workers at once have a sixteenth each
        assert plan.epoch_limit.exceeded(1 << 60, 1 << 27) is None
        assert plan.epoch_limit.exceeded(0, (1 << 27) + 1) == "134,217,728 bytes are allowed"
        assert plan.epoch_limit.exceeded(1 << 60, 1 << 30, feedback=False) is None
        others = plan.epoch_limit.exceeded(0, (1 << 30) + 1, feedback=False)
        assert others == "1,073,741,824 bytes are allowed"
    else:
        assert plan.epoch_limit == limit


def test_while_a_micro_batch_stays_threads_take_short_turns() -> None:
    before = sys.getswitchinterval()
    first, second = process.short_turns(), process.short_turns()  # of two flows in one session
    first.__enter__()
    assert sys.getswitchinterval() == pytest.approx(0.00025)
    second.__enter__()
    first.__exit__(None, None, None)
    assert sys.getswitchinterval() == pytest.approx(0.00025)
    second.__exit__(None, None, None)
    assert sys.getswitchinterval() == pytest.approx(before)
    try:
        for own, inside in ((0.0037, 0.00025), (0.0002, 0.0002)):  # shorter ones of the program's stay
            sys.setswitchinterval(own)
            for _ in range(100):
                with process.short_turns():
                    assert sys.getswitchinterval() == pytest.approx(inside, abs=2e-6)
            assert sys.getswitchinterval() == pytest.approx(own, abs=2e-6)
    finally:
        sys.setswitchinterval(before)
