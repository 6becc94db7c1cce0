"""What processes and files take: as the kernel tells it of real ones, and by kind of a made-up `/proc`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import timely_spark as ts
from tests.support.stepper import Begin
from timely_spark.runtime.handle import usage
from timely_spark.runtime.handle.status import Status
from timely_spark.runtime.handle.usage import DRIVER, JVM, SOURCES, TASKS, Processes, Usage, flow_processes
from timely_spark.runtime.storage.files import Files
from timely_spark.runtime.storage.lock import Lock
from timely_spark.runtime.storage.log import RoundLog
from timely_spark.show.words import bytes_text

PAGE = os.sysconf("SC_PAGE_SIZE")
TICKS = os.sysconf("SC_CLK_TCK")
MEBIBYTE = 1 << 20

#: a process whose child takes half a second and 64 MiB between the first line it reads and the second
PARENT = f"""
import subprocess, sys
burns = '''
import sys, time
memory = bytearray({64 * MEBIBYTE})
while time.process_time() < 0.5:
    pass
print("burnt", flush=True)
sys.stdin.read()
'''
print("begun", flush=True)
sys.stdin.readline()
with subprocess.Popen([sys.executable, "-c", burns], stdin=subprocess.PIPE):
    sys.stdin.readline()
print("ended", flush=True)
sys.stdin.readline()
"""


@pytest.mark.slow
def test_a_child_counts_while_it_runs_and_its_time_when_it_has_ended() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        seen = []
        for word in ("begun", "burnt", "ended"):
            assert parent.stdout.readline() == word + "\n"
            seen.append(flow_processes(parent.pid)[DRIVER])
            parent.stdin.write("\n")
            parent.stdin.flush()
    before, during, after = seen

    assert [one.number for one in seen] == [1, 2, 1]
    assert during.memory - before.memory >= 64 * MEBIBYTE
    assert after.seconds >= during.seconds >= before.seconds + 0.4


class Proc:
    """A made-up `/proc`; each process has taken 0.5 s, its ended children 0.5 s, and it has ten pages."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "self").mkdir()

    def add(self, pid: int, parent: int, name: str, command: str) -> None:
        own = self.folder / str(pid)
        own.mkdir()
        (own / "cmdline").write_text(command.replace(" ", "\0"))
        zeros, quarters = " 0" * 9, " ".join([str(TICKS // 4)] * 4)
        (own / "stat").write_text(f"{pid} ({name}) S {parent}{zeros} {quarters} 20 0 1 0 0 9999 10 0\n")


@pytest.fixture
def proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Proc:
    monkeypatch.setattr(usage, "_PROCESSES", tmp_path)
    return Proc(tmp_path)


def of_a_session(proc: Proc, driver: int, jvm: int) -> dict[str, Processes]:
    """The usage of a session's processes: two tasks of one daemon, of which one has started a program."""
    daemon, runner = (
        "python3 -m pyspark.daemon",
        "python3 -m pyspark.sql.streaming.python_streaming_source_runner",
    )
    proc.add(30, jvm, "python3", f"{daemon} pyspark.worker")
    proc.add(31, 30, "python3", f"{daemon} pyspark.worker")
    proc.add(32, 31, "a (strange) name", "grep -c x")
    proc.add(33, jvm, "python3", f"{daemon} pyspark.sql.worker.plan_data_source_read")
    proc.add(34, jvm, "python3", runner)
    proc.add(35, jvm, "stream executio", "java org.apache.spark.deploy.SparkSubmit")
    proc.add(40, 1, "java", "java another")
    return flow_processes(driver)


def taken(processes: int) -> Processes:
    return Processes(processes, 1.0 * processes, 10 * PAGE * processes)


EXPECTED = {DRIVER: taken(1), JVM: taken(1), TASKS: taken(4), SOURCES: taken(1)}


def test_each_process_has_its_kind(proc: Proc) -> None:
    proc.add(10, 1, "python3", "python3 flow.py")
    proc.add(20, 10, "java", "java org.apache.spark.deploy.SparkSubmit")

    assert of_a_session(proc, 10, 20) == EXPECTED


def test_a_fork_is_of_the_kind_of_the_program_that_stands_for_it(proc: Proc) -> None:
    proc.add(10, 1, "python3", "python3 flow.py")
    proc.add(11, 10, "python3", "python3 -m timely_spark.runtime.forks 3")
    for pid, name in ((12, "pyspark.daemon"), (13, "pyspark.sql.str")):
        proc.add(pid, 11, name, "python3 -m timely_spark.runtime.forks 3")
    proc.add(14, 12, "pyspark.daemon", "python3 -m timely_spark.runtime.forks 3")

    assert flow_processes(10) == {DRIVER: taken(2), TASKS: taken(2), SOURCES: taken(1)}


def test_spark_submit_starts_the_driver_below_the_jvm(proc: Proc) -> None:
    proc.add(20, 1, "java", "java org.apache.spark.deploy.SparkSubmit flow.py")
    proc.add(10, 20, "python3", "python3 flow.py")

    assert of_a_session(proc, 10, 20) == EXPECTED


def test_without_proc_or_process_there_is_nothing(proc: Proc, monkeypatch: pytest.MonkeyPatch) -> None:
    assert flow_processes(10) == {}
    monkeypatch.setattr(usage, "_PROCESSES", proc.folder / "missing")
    assert flow_processes(10) == {}


def test_of_a_file_those_pages_count_that_are_in_memory(tmp_path: Path) -> None:
    blobs = tmp_path / "blobs"
    blobs.mkdir()
    with (blobs / "sparse").open("wb") as file:
        file.write(b"x" * 3 * PAGE)
        file.truncate(MEBIBYTE)  # what was never written or read is in no memory
    (blobs / "small").write_bytes(b"x" * 100)

    one = Usage.of(Files(tmp_path), None)

    assert (one.stored, one.cached) == (MEBIBYTE + 100, 3 * PAGE + 100)
    assert dict(one.lines()) == {"on disk": f"1.0 MB, {bytes_text(3 * PAGE + 100)} of them in memory"}


def test_without_the_kernels_word_only_the_size_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs" / "small").write_bytes(b"x" * 100)
    monkeypatch.setattr(os, "access", lambda *_: False)

    assert dict(Usage.of(Files(tmp_path), None).lines()) == {"on disk": "100 B"}
    missing = Usage.of(Files(tmp_path / "missing"), None)
    assert (missing.stored, missing.cached, list(missing.lines())) == (0, None, [])


def test_status_has_the_processes_of_a_flow_that_runs_here(begin: Begin, tmp_path: Path) -> None:
    flow = ts.Dataflow("used")
    flow.input("x", "n long").capture("out")
    process = begin(flow)
    process.feed("x", [1])
    lock = Lock(RoundLog(str(tmp_path)).files)
    assert lock.acquire()

    status = Status.of(str(tmp_path))
    text, json, processes = str(status), status.json(), status.usage.processes
    lock.release()

    assert processes[DRIVER].memory > MEBIBYTE
    assert re.search(r"\nprocesses  driver( \(\d+\))?: ", text)  # with what other tests have started
    assert '"usage": {\n' in json
