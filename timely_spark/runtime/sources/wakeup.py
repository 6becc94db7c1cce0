"""`Wakeup`: waits until an input may have something new.

inotify announces a new file in a local folder within a millisecond, and costs nothing until then. Where it is
not installed (the extra `watch`), where it cannot see (network file systems), and where its limits are
reached, the modification times of folders are compared every few milliseconds. Pure: the files themselves
are looked at by the source, which is woken.
"""

from __future__ import annotations

import errno
import os
import re
import select
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, TypeAlias

Watch: TypeAlias = Callable[[Callable[[], None]], Callable[[], None]]
"""Starts to watch an input: given what wakes (`Wakeup.set`), returns what ends the watch."""

#: Seconds between two comparisons of folders: the least, the most, and parts of the time to wait.
_LEAST, _MOST, _PARTS = 0.002, 0.02, 8
#: On these file systems inotify does not report the changes of other machines.
_NETWORK = re.compile(r"nfs|cifs|smb|fuse|9p|ceph|gluster|lustre|gpfs|afs")
_MOUNTS = "/proc/self/mounts"
#: how a space is written there
_ESCAPED = re.compile(r"\\([0-7]{3})")
#: Limits of inotify, and the setting that raises each.
_LIMITS = {
    errno.ENOSPC: "fs.inotify.max_user_watches",
    errno.EMFILE: "fs.inotify.max_user_instances",
    errno.ENOMEM: "the machine's memory",
}


class Wakeup:
    """Waits for changes in local folders, and in the folders below them.

    Law: what arrives after this object was made ends the next `wait`, and is one of the `changes` of its
    folder. The reverse does not hold: a wait may end although nothing is new. One thread waits, and asks for
    changes; any thread may call `set`.

    Args:
        folders: folders of this machine, which may not exist yet.
        watches: watches of other inputs.
        tell: called with a text, once, if folders cannot be watched by inotify.

    Example:
        >>> import tempfile
        >>> folder = tempfile.mkdtemp()
        >>> wakeup = Wakeup([folder], tell=print)
        >>> wakeup.wait(0)
        False
        >>> _ = open(f"{folder}/a", "w").close()
        >>> wakeup.wait(1), wakeup.wait(0), wakeup.changes(folder) > 0
        (True, False, True)
        >>> wakeup.close()
    """

    def __init__(
        self, folders: Iterable[str], watches: Iterable[Watch] = (), *, tell: Callable[[str], object]
    ) -> None:
        self._tell: Callable[[str], object] | None = tell
        #: when each folder that inotify does not watch changed last
        self._compared: dict[str, int] = {}
        #: each folder that inotify watches, by its watch, and the given folders that it is in
        self._folders: dict[int, tuple[str, frozenset[str]]] = {}
        self._tops = frozenset(folders)
        #: how many changes were seen in each given folder; and whether the next wait has to report one
        self._changes: Counter[str | None] = Counter()
        self._news = False
        self._inotify = self._new_inotify()
        self._woken, self._wakes = os.pipe()
        os.set_blocking(self._woken, False)
        os.set_blocking(self._wakes, False)
        self._poll = select.poll()
        self._poll.register(self._woken, select.POLLIN)
        if self._inotify is not None:
            self._poll.register(self._inotify, select.POLLIN)
        for folder in sorted(self._tops):
            self._begin(folder)
        own = weakref.WeakMethod(self.set)

        def wake() -> None:  # a watch, which may have a thread, does not keep this object
            if (set_ := own()) is not None:
                set_()

        ends = [watch(wake) for watch in watches]
        self._close = weakref.finalize(self, _close, ends, self._inotify, self._woken, self._wakes)

    @property
    def complete(self) -> bool:
        """Whether nothing escapes: no folder is compared."""
        return not self._compared

    def set(self) -> None:
        """End the wait, or the next one."""
        with suppress(BlockingIOError):  # it is full of calls that nobody has waited for
            os.write(self._wakes, b"\0")

    def wait(self, timeout: float) -> bool:
        """Wait until something may be new; False after `timeout` seconds."""
        until = time.monotonic() + timeout
        beat = min(max(_LEAST, timeout / _PARTS), _MOST)
        while True:
            remaining = max(0.0, until - time.monotonic())
            pause = 0.0 if self._news else remaining if self.complete else min(remaining, beat)
            ready = [descriptor for descriptor, _ in self._poll.poll(1000 * pause)]
            if self._woken in ready:
                self._news = bool(os.read(self._woken, 1 << 16))  # all of a pipe
            self._look()
            if self._news or not remaining:
                news, self._news = self._news, False
                return news

    def changes(self, folder: str | None) -> int:
        """How many changes were seen in one of the folders until now; 0 for any other folder."""
        self._look()
        return self._changes[folder]

    def _look(self) -> None:
        """See what has changed."""
        before, self._compared = self._compared, {folder: _changed_at(folder) for folder in self._compared}
        self._saw(folder for folder, at in self._compared.items() if before[folder] != at)
        if self._inotify is not None:
            self._read()

    def _saw(self, folders: Iterable[str]) -> None:
        """Something has changed in folders that were given."""
        for folder in folders:
            self._changes[folder] += 1
            self._news = True

    def close(self) -> None:
        """End all watches; a wait that another thread is in must have ended."""
        self._close()

    # -- inotify ---------------------------------------------------------------------------------------------
    def _new_inotify(self) -> Any:
        """The descriptor of inotify; None if the system has no inotify."""
        try:
            import inotify_simple
        except ImportError:
            return None
        try:
            return inotify_simple.INotify()
        except OSError as error:
            self._warn("folders", error)
            return None

    def _begin(self, folder: str) -> None:
        """Watch one of the folders that were given."""
        seen = self._inotify is not None and not is_remote(folder)
        if seen:
            self._watch(folder, frozenset({folder}))
        if not seen or folder not in {path for path, _ in self._folders.values()}:
            self._compare([folder])

    def _watch(self, path: str, tops: frozenset[str]) -> None:
        """Watch a folder, which is in those of the given ones, and the folders below it."""
        from inotify_simple import flags

        mask = flags.CREATE | flags.MOVED_TO | flags.CLOSE_WRITE | flags.DELETE_SELF | flags.MOVE_SELF
        folders = [path]
        while folders:
            folder = folders.pop()
            try:
                watch = self._inotify.add_watch(folder, mask | flags.ONLYDIR)
            except OSError as error:
                if error.errno in _LIMITS:
                    self._warn(path, error)
                    self._compare(tops)
                    return
                continue  # it is removed already, or not to be read, which the source's listing will say
            _, others = self._folders.get(watch, (folder, frozenset()))
            self._folders[watch] = folder, tops | others
            with suppress(OSError):  # listed after it is watched: so none is made in between
                below = [entry for entry in os.scandir(folder) if entry.is_dir(follow_symlinks=False)]
                folders += [entry.path for entry in below if not entry.name.startswith(".")]

    def _read(self) -> None:
        """Read the events that have come; new folders are watched from now on."""
        from inotify_simple import flags

        for watch, mask, _, name in self._inotify.read(timeout=0):
            folder, tops = self._folders.get(watch, ("", frozenset[str]()))
            if mask & flags.Q_OVERFLOW:  # folders may be new, too
                self._saw(self._tops)
                for top in self._tops - self._compared.keys():
                    self._begin(top)
            elif not folder or name.startswith("."):
                continue
            elif mask & (flags.IGNORED | flags.DELETE_SELF | flags.MOVE_SELF):
                if mask & flags.IGNORED:
                    del self._folders[watch]
                if folder in self._tops:  # one of this name may come back
                    self._compare([folder])
                    self._saw([folder])
            else:
                self._saw(tops)
                if mask & flags.ISDIR:
                    self._watch(f"{folder}/{name}", tops)

    def _compare(self, folders: Iterable[str]) -> None:
        """Compare the times of folders from now on."""
        self._compared = {folder: _changed_at(folder) for folder in folders} | self._compared

    def _warn(self, folder: str, error: OSError) -> None:
        if self._tell is not None:
            limit = _LIMITS.get(error.errno or 0, "its limits")
            self._tell(f"{folder}: changes are polled, because inotify has reached its limit; raise {limit}")
            self._tell = None


def is_remote(folder: str) -> bool:
    """Whether other machines may write to a folder unseen: by the type of its file system."""
    path, longest, kind = os.path.realpath(folder), "", ""
    with suppress(OSError), open(_MOUNTS, encoding="utf-8", errors="surrogateescape") as mounts:
        for line in mounts:
            _, place, file_system, *_ = line.split(" ")
            at = _ESCAPED.sub(lambda octal: chr(int(octal[1], 8)), place)
            below = path == at or path.startswith(f"{at.rstrip('/')}/")
            if below and len(at) >= len(longest):
                longest, kind = at, file_system
    return _NETWORK.search(kind) is not None


def _changed_at(folder: str) -> int:
    """The time of a folder's last change, in nanoseconds; 0 if the folder cannot be seen."""
    try:
        return os.stat(folder).st_mtime_ns
    except OSError:
        return 0


def _close(ends: Iterable[Callable[[], None]], inotify: Any, *descriptors: int) -> None:
    for end in ends:
        end()
    if inotify is not None:
        inotify.close()
    for descriptor in descriptors:
        os.close(descriptor)
