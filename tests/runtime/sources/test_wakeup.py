"""Waits that end when a folder changes, by inotify and without it."""

from __future__ import annotations

import errno
import gc
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from timely_spark.runtime.sources import wakeup as module
from timely_spark.runtime.sources.wakeup import Wakeup, is_remote

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="inotify is Linux's")

#: Long enough on a busy machine; no wait that succeeds takes it.
PATIENCE = 20.0


@pytest.fixture(params=["inotify", "compared"])
def watching(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Wakeup]:
    if request.param == "compared":
        monkeypatch.setitem(sys.modules, "inotify_simple", None)
    return lambda *folders, tell=lambda _: None: Wakeup(map(str, folders), tell=tell)


def test_a_file_ends_the_wait_also_if_it_came_before(watching: Callable[..., Wakeup], tmp_path: Path) -> None:
    with closing(watching(tmp_path)) as wakeup:
        assert not wakeup.wait(0.01)
        (tmp_path / "a").write_text("x")
        assert wakeup.wait(PATIENCE)
        timer = threading.Timer(0.05, (tmp_path / "b").write_text, ["x"])
        timer.start()
        while not (tmp_path / "b").exists():  # a file that is written in two steps wakes twice
            assert wakeup.wait(PATIENCE)
        timer.join()


@pytest.mark.slow
def test_a_folder_that_is_made_or_made_again_is_watched(
    watching: Callable[..., Wakeup], tmp_path: Path
) -> None:
    top = tmp_path / "top"
    with closing(watching(top)) as wakeup:
        for _ in range(2):
            top.mkdir()
            assert wakeup.wait(PATIENCE)
            (top / "a").touch()
            assert wakeup.wait(PATIENCE)
            shutil.rmtree(top)
            while wakeup.wait(0.1):
                pass


def test_a_folder_that_is_gone_is_not_taken_for_one_that_inotify_watches(tmp_path: Path) -> None:
    top = tmp_path / "top"
    top.mkdir()
    with closing(Wakeup([str(top)], tell=lambda _: None)) as wakeup:
        assert folders(wakeup) == {str(top)}
        top.rmdir()
        assert wakeup.wait(PATIENCE), "one of this name may come back"
        while wakeup.wait(0.1):
            pass
        assert folders(wakeup) == set()
        assert not wakeup.complete


def test_a_folder_that_comes_and_goes_leaves_the_watch_as_it_is(tmp_path: Path) -> None:
    """As those that Spark writes to before it renames files."""
    with closing(Wakeup([str(tmp_path)], tell=print)) as wakeup:
        (tmp_path / "_temporary").mkdir()
        (tmp_path / "_temporary").rmdir()
        assert wakeup.wait(PATIENCE)
        assert wakeup.complete


def folders(wakeup: Wakeup) -> set[str]:
    """The folders that inotify watches."""
    return {folder for folder, _ in wakeup._folders.values()}


def test_a_hidden_file_hides_no_other_one(tmp_path: Path) -> None:
    with closing(Wakeup([str(tmp_path)], tell=lambda _: None)) as wakeup:
        (tmp_path / ".a").touch()
        (tmp_path / "b").touch()
        assert wakeup.wait(0)


def test_where_events_were_lost_something_may_be_new_and_folders_are_watched_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from inotify_simple import Event, flags

    with closing(Wakeup([str(tmp_path)], tell=lambda _: None)) as wakeup:
        (tmp_path / "below").mkdir()
        lost = [Event(-1, flags.Q_OVERFLOW, 0, "")]
        with monkeypatch.context() as patch:
            patch.setattr(type(wakeup._inotify), "read", lambda _, timeout: lost)
            assert wakeup.wait(0)
            assert wakeup.changes(str(tmp_path)) == 2
        assert str(tmp_path / "below") in folders(wakeup)


@pytest.mark.slow
def test_any_thread_ends_a_wait(watching: Callable[..., Wakeup], tmp_path: Path) -> None:
    with closing(watching(tmp_path)) as wakeup:
        for _ in range(100_000):  # more than a pipe holds
            wakeup.set()
        assert wakeup.wait(PATIENCE)
        assert not wakeup.wait(0)
        timer = threading.Timer(0.02, wakeup.set)
        timer.start()
        assert wakeup.wait(PATIENCE)
        timer.join()


def test_inotify_tells_of_folders_below_and_not_of_hidden_files(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    with closing(Wakeup([str(tmp_path)], tell=print)) as wakeup:
        assert wakeup.complete
        (tmp_path / "a" / "b" / ".hidden").touch()
        (tmp_path / ".folder").mkdir()
        assert not wakeup.wait(0.05)
        (tmp_path / "a" / "b" / ".hidden").rename(tmp_path / "a" / "b" / "file")
        assert wakeup.wait(PATIENCE)
        (tmp_path / "new" / "below").mkdir(parents=True)
        while wakeup.wait(0.1):
            pass
        (tmp_path / "new" / "below" / "file").touch()
        assert wakeup.wait(PATIENCE)
        os.link(tmp_path / "new" / "below" / "file", tmp_path / "link")
        assert wakeup.wait(PATIENCE)


def test_changes_are_those_of_a_folder_and_asking_for_them_ends_no_wait(
    watching: Callable[..., Wakeup], tmp_path: Path
) -> None:
    one, other, below = tmp_path / "one", tmp_path / "other", tmp_path / "one" / "below"
    below.mkdir(parents=True)
    other.mkdir()
    with closing(watching(one, other, below)) as wakeup:
        (below / "a").touch()
        assert wakeup.changes(str(below))
        assert bool(wakeup.changes(str(one))) == wakeup.complete, "only inotify sees folders below"
        assert not wakeup.changes(str(other))
        assert not wakeup.changes(None)
        assert wakeup.wait(0), "nobody was told yet"
        assert not wakeup.wait(0)
        before = wakeup.changes(str(other))
        (other / "a").touch()
        assert wakeup.wait(PATIENCE)
        assert wakeup.changes(str(other)) > before


class _Listed:
    """A folder that was listed, and then gets another one."""

    def __init__(self, folder: str, new: Path) -> None:
        with _scandir(folder) as entries:
            self._entries = iter(list(entries))
        new.mkdir(exist_ok=True)

    def __iter__(self) -> _Listed:
        return self

    def __next__(self) -> os.DirEntry[str]:
        return next(self._entries)

    def __enter__(self) -> _Listed:  # noqa: PYI034 - Self is in typing from 3.11 only
        return self

    def __exit__(self, *_: object) -> None:
        pass


_scandir = os.scandir


def test_a_folder_that_is_made_while_the_watch_begins_is_watched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = tmp_path / "new"
    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", lambda folder: _Listed(folder, new))
        wakeup = Wakeup([str(tmp_path)], tell=print)
    with closing(wakeup):
        while wakeup.wait(0.05):
            pass
        (new / "a").touch()
        assert wakeup.wait(PATIENCE)


@pytest.mark.slow
def test_a_watch_with_a_thread_keeps_no_wakeup_that_nobody_uses() -> None:
    wakes: list[Callable[[], None]] = []
    ended = threading.Event()

    def watch(wake: Callable[[], None]) -> Callable[[], None]:
        wakes.append(wake)
        return ended.set

    Wakeup([], [watch], tell=print)
    gc.collect()
    assert ended.is_set()
    wakes[0]()  # the thread may call it once more


@pytest.mark.parametrize("limit", [errno.ENOSPC, errno.EMFILE])
def test_where_inotify_has_no_room_folders_are_compared_which_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    import inotify_simple

    full = mock.Mock(side_effect=OSError(limit, os.strerror(limit)))
    if limit == errno.EMFILE:
        monkeypatch.setattr(inotify_simple, "INotify", full)
    else:
        monkeypatch.setattr(inotify_simple.INotify, "add_watch", full)
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    told: list[str] = []
    with closing(Wakeup([str(tmp_path / "a"), str(tmp_path / "b")], tell=told.append)) as wakeup:
        assert not wakeup.complete
        (tmp_path / "b" / "file").touch()
        assert wakeup.wait(PATIENCE)
    (text,) = told
    assert "raise fs.inotify.max_user_" in text


def test_folders_of_network_file_systems_are_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounts, shared = tmp_path / "mounts", tmp_path / "données 数据"
    shared.mkdir()
    place = str(shared).replace(" ", "\\040")
    mounts.write_text(f"overlay / overlay rw 0 0\nserver:/x {place} nfs4 rw 0 0\n", encoding="utf-8")
    monkeypatch.setattr(module, "_MOUNTS", str(mounts))
    assert is_remote(str(shared / "below"))
    assert not is_remote(str(tmp_path))
    with closing(Wakeup([str(shared), str(tmp_path)], tell=print)) as wakeup:
        assert not wakeup.complete
        (shared / "file").touch()
        assert wakeup.wait(PATIENCE)


#: In a process of its own: what other tests have left opens and closes files when it likes.
CLOSED_TWICE = """
import os, sys, threading
from timely_spark.runtime.sources.wakeup import Wakeup

def opened():
    return sorted(os.listdir("/proc/self/fd")), threading.enumerate()

def watch(wake):
    return lambda: print("ended")

Wakeup(sys.argv[1:], tell=print).close()  # imports inotify
before = opened()
wakeup = Wakeup(sys.argv[1:], [watch], tell=print)
assert opened() != before
wakeup.close()
wakeup.close()
assert opened() == before
"""


@pytest.mark.slow
def test_nothing_is_left_open(tmp_path: Path) -> None:
    program = [sys.executable, "-c", CLOSED_TWICE, str(tmp_path)]
    assert subprocess.check_output(program, text=True) == "ended\n"


def test_a_folder_that_vanishes_before_it_is_watched_hides_no_other_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import inotify_simple

    for name in "abc":
        (tmp_path / name).mkdir()
    watched, add = list[str](), inotify_simple.INotify.add_watch

    def vanishing(self: Any, path: str, mask: Any) -> Any:
        watched.append(path)
        if len(watched) == 2:
            raise FileNotFoundError(errno.ENOENT, "it is gone", path)
        return add(self, path, mask)

    monkeypatch.setattr(inotify_simple.INotify, "add_watch", vanishing)
    with closing(Wakeup([str(tmp_path)], tell=print)) as wakeup:
        assert folders(wakeup) == {*watched} - {watched[1]}
        assert len(watched) == 4


def test_a_short_wait_is_short(tmp_path: Path) -> None:
    def took() -> float:
        started = time.monotonic()
        wakeup.wait(0.001)
        return time.monotonic() - started

    with closing(Wakeup([str(tmp_path)], tell=print)) as wakeup:
        assert min(took() for _ in range(3)) < 0.5


def test_a_wait_wakes_only_where_folders_are_compared(
    watching: Callable[..., Wakeup], tmp_path: Path
) -> None:
    with closing(watching(tmp_path)) as wakeup:
        wakeup._poll = poll = mock.Mock(wraps=wakeup._poll)
        assert not wakeup.wait(0.03)
        (milliseconds,) = poll.poll.call_args_list[0].args
        assert (milliseconds > 20) == wakeup.complete
