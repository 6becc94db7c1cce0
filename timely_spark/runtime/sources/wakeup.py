"""`Wakeup`: waits until an input may have something new.

inotify tells of a new file in a local folder within a millisecond, and costs nothing meanwhile. Where it is
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
#: Limits of inotify, and the setting that raises each.
_LIMITS = {
    errno.ENOSPC: "fs.inotify.max_user_watches",
    errno.EMFILE: "fs.inotify.max_user_instances",
    errno.ENOMEM: "the machine's memory",
}


class Wakeup:
    """Waits for changes in local folders, and in the folders below them.

    Law: what arrives after the last look, or after this object was made, ends the next `wait`. The reverse
    does not hold: a wait may end although nothing is new. One thread waits; any thread may call `set`.

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
        >>> wakeup.wait(1), wakeup.wait(0)
        (True, False)
        >>> wakeup.close()
    """

    def __init__(
        self, folders: Iterable[str], watches: Iterable[Watch] = (), *, tell: Callable[[str], object]
    ) -> None:
        self._tell: Callable[[str], object] | None = tell
        #: by folder that inotify does not watch, when it changed last
        self._compared: dict[str, int] = {}
        #: by its watch, a folder that inotify watches
        self._folders: dict[int, str] = {}
        self._tops = frozenset(folders)
        self._inotify = self._made()
        self._woken, self._wakes = os.pipe()
        os.set_blocking(self._woken, False)
        os.set_blocking(self._wakes, False)
        self._poll = select.poll()
        self._poll.register(self._woken, select.POLLIN)
        if self._inotify is not None:
            self._poll.register(self._inotify, select.POLLIN)
        for folder in sorted(self._tops):
            self._begin(folder)
        ends = [watch(self.set) for watch in watches]
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
            pause = remaining if self.complete else min(remaining, beat)
            ready = [descriptor for descriptor, _ in self._poll.poll(1000 * pause)]
            news = self._changed()
            if self._woken in ready:
                news = bool(os.read(self._woken, 1 << 16))  # all of a pipe
            if len(ready) > (self._woken in ready):
                news = self._read() or news
            if news or not remaining:
                return news

    def close(self) -> None:
        """End all watches; a wait that another thread is in must have ended."""
        self._close()

    # -- inotify ---------------------------------------------------------------------------------------------
    def _made(self) -> Any:
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
        if self._inotify is None or is_remote(folder) or not self._watch(folder):
            self._compared[folder] = _changed_at(folder)

    def _watch(self, top: str) -> bool:
        """Watch a folder and those below it; False: inotify does not watch all of them."""
        from inotify_simple import flags

        mask = flags.CREATE | flags.MOVED_TO | flags.CLOSE_WRITE | flags.DELETE_SELF | flags.MOVE_SELF
        for folder, below, _ in os.walk(top):
            below[:] = [name for name in below if not name.startswith(".")]
            try:
                self._folders[self._inotify.add_watch(folder, mask | flags.ONLYDIR)] = folder
            except OSError as error:
                if error.errno in _LIMITS:
                    self._warn(top, error)
                    return False
                # else it is removed already, or not to be read, which the source's listing will say
        return top in self._folders.values()

    def _read(self) -> bool:
        """Whether the events that have come tell of something new; new folders are watched from now on."""
        from inotify_simple import flags

        news = False
        for watch, mask, _, name in self._inotify.read(timeout=0):
            folder = self._folders.get(watch)
            if mask & flags.Q_OVERFLOW:  # folders may be new, too
                news = True
                for top in self._tops - self._compared.keys():
                    self._begin(top)
            elif folder is None or name.startswith("."):
                continue
            elif mask & (flags.IGNORED | flags.DELETE_SELF | flags.MOVE_SELF):
                if mask & flags.IGNORED:
                    del self._folders[watch]
                if folder in self._tops:  # one of this name may come back
                    self._compared.setdefault(folder, _changed_at(folder))
                    news = True
            else:
                path, news = f"{folder}/{name}", True
                if mask & flags.ISDIR and not self._watch(path):
                    top = next((top for top in self._tops if path.startswith(f"{top}/")), folder)
                    self._compared.setdefault(top, _changed_at(top))
        return news

    def _warn(self, folder: str, error: OSError) -> None:
        if self._tell is not None:
            limit = _LIMITS.get(error.errno or 0, "its limits")
            self._tell(f"{folder}: changes are polled, because inotify has reached its limit; raise {limit}")
            self._tell = None

    # -- without inotify -------------------------------------------------------------------------------------
    def _changed(self) -> bool:
        """Whether a folder that is compared has changed since the last look."""
        before, self._compared = self._compared, {folder: _changed_at(folder) for folder in self._compared}
        return self._compared != before


def is_remote(folder: str) -> bool:
    """Whether other machines may write to a folder unseen: by the type of its file system."""
    path, longest, kind = os.path.realpath(folder), "", ""
    with suppress(OSError), open(_MOUNTS, encoding="utf-8", errors="surrogateescape") as mounts:
        for line in mounts:
            _, place, file_system, *_ = line.split(" ")
            at = place.encode("latin-1", "replace").decode("unicode_escape")  # a space is written \040
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
