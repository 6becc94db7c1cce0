"""The lock of a checkpoint: who has it, who is refused, and when it is free again."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from timely_spark.runtime.storage import lock
from timely_spark.runtime.storage.files import Files
from timely_spark.runtime.storage.lock import Lock

# forks try to get the lock of each folder: a process that has imported what they need
_TRY = """
import os, sys
from timely_spark.runtime.storage.files import Files
from timely_spark.runtime.storage.lock import Lock

for line in sys.stdin:
    if os.fork() == 0:
        os._exit(10 + Lock(Files(line.rstrip())).acquire())
    print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
"""


@pytest.fixture(scope="module")
def another_process_gets_it() -> Iterator[Callable[[Path], bool]]:
    """Whether a process of its own gets the lock of a folder; then it ends."""
    command = [sys.executable, "-c", _TRY]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as trying:

        def gets(folder: Path) -> bool:
            assert trying.stdin is not None
            assert trying.stdout is not None
            print(folder, file=trying.stdin, flush=True)
            return {"10\n": False, "11\n": True}[trying.stdout.readline()]

        yield gets


@pytest.fixture
def held(tmp_path: Path) -> Any:
    lock = Lock(Files(tmp_path))
    assert lock.acquire()
    yield lock
    lock.release()


@pytest.mark.slow
def test_a_second_process_is_refused_until_the_lock_is_given_back(
    tmp_path: Path, held: Lock, another_process_gets_it: Callable[[Path], bool]
) -> None:
    assert not another_process_gets_it(tmp_path)
    assert not Lock(Files(tmp_path)).acquire(), "nor does this one get it twice"

    held.release()
    assert another_process_gets_it(tmp_path)
    assert Lock(Files(tmp_path)).is_held() is False, "and what it held died with it"


@pytest.mark.slow
def test_whoever_else_opens_and_closes_the_file_leaves_the_lock_alone(
    tmp_path: Path, held: Lock, another_process_gets_it: Callable[[Path], bool]
) -> None:
    def look() -> None:
        Path(held.path).read_bytes()
        shutil.copytree(tmp_path, tmp_path.with_name("copy"))
        with Path(held.path).open("r+b") as file:  # as a library that locks what it reads
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert Lock(Files(tmp_path)).is_held()
    assert not another_process_gets_it(tmp_path)


@pytest.mark.slow
def test_a_child_that_outlives_its_parent_does_not_keep_the_lock(
    tmp_path: Path, another_process_gets_it: Callable[[Path], bool]
) -> None:
    # the parent takes the lock, forks, tells the child's number, and is killed
    script = """if True:
        import os, signal, sys, time
        from timely_spark.runtime.storage.files import Files
        from timely_spark.runtime.storage.lock import Lock

        assert Lock(Files(sys.argv[1])).acquire()
        if child := os.fork():
            os.read(int(sys.argv[2]), 1)
            print(child, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        os.write(int(sys.argv[3]), b"x")
        time.sleep(60)
    """
    read, write = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path), str(read), str(write)],
        stdout=subprocess.PIPE, text=True, pass_fds=(read, write),
    )  # fmt: skip
    child = int(process.stdout.readline())
    try:
        process.wait()
        assert another_process_gets_it(tmp_path)
    finally:
        os.kill(child, 9)
        process.stdout.close()
        os.close(read)
        os.close(write)


def test_a_read_only_checkpoint_shows_whether_it_is_held(tmp_path: Path, held: Lock) -> None:
    opened, real = [], os.open

    def noted(path: str, flags: int, *mode: int) -> int:
        opened.append(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
        return real(path, flags, *mode)

    held.release()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "open", noted)
        assert Lock(Files(tmp_path)).is_held() is False
    assert opened == [0]


def test_a_start_waits_a_moment_for_whoever_has_the_file_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, pauses = Lock(Files(tmp_path)), list[float]()
    with (tmp_path / "lock").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert mine.is_held()
        monkeypatch.setattr(lock.time, "sleep", pauses.append)
        assert not mine.acquire()
        assert 0 < sum(pauses) < 1
        monkeypatch.setattr(lock.time, "sleep", lambda _: other.close())
        assert mine.acquire()
    mine.release()


def test_without_locks_a_start_continues_and_warns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    lock = Lock(Files(tmp_path))
    with caplog.at_level(logging.WARNING):
        assert lock.acquire()
    lock.release()
    assert "no locks" in caplog.text
    assert Lock(Files(tmp_path)).is_held() is None


def test_the_lock_of_a_query_outlives_a_connection_that_fails(
    held: Lock, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost, ends, released = threading.Event(), threading.Event(), threading.Event()

    class Running:
        """Its end is awaited once in vain."""

        @property
        def isActive(self) -> bool:  # noqa: N802
            return not ends.is_set()

        def awaitTermination(self) -> None:  # noqa: N802
            if not lost.is_set():
                lost.set()
                raise ConnectionError
            assert ends.wait(60)

    monkeypatch.setattr(lock, "AGAIN", 0)
    held.release_after(Running(), released.set)  # type: ignore[arg-type]
    assert lost.wait(60)
    assert not released.wait(0.05)
    assert held.is_held()
    ends.set()
    assert released.wait(60)
    assert held.is_held() is False


def test_a_query_whose_jvm_has_stopped_holds_no_lock(tmp_path: Path, held: Lock) -> None:
    class Gone:
        """A query of a JVM that has stopped."""

        def __getattr__(self, name: str) -> object:
            raise ConnectionError

    held.query = Gone()  # type: ignore[assignment]
    assert held.is_held() is False
    again = Lock(Files(tmp_path))
    assert again.acquire()
    again.release()


def test_a_lock_is_released_when_nobody_can_tell_any_more_whether_the_query_runs(held: Lock) -> None:
    class Gone:
        """A query of a JVM that has stopped."""

        def __getattr__(self, name: str) -> object:
            raise ConnectionError

    released = threading.Event()
    held.release_after(Gone(), released.set)  # type: ignore[arg-type]
    assert released.wait(60)
    assert held._file is None
