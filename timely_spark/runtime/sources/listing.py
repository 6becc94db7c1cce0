"""`walk`: the files below a local folder, each once, whatever links lead to it.

pyarrow's listing follows a link as often as a path allows, so a link to a folder above it gives each file 41
times. Here a folder is entered once, by its device and inode, and real folders come before links.
"""

from __future__ import annotations

import os
import stat
from collections import deque
from typing import NamedTuple

from timely_spark.runtime.sources.arrivals import File, is_visible
from timely_spark.runtime.storage.files import location


class FoundFile(NamedTuple):
    """A file: where it is, by which name it was found, and its identity."""

    path: str
    name: str
    stat: os.stat_result

    def file(self) -> File:
        """The file, without the values of columns."""
        status = self.stat
        return File(status.st_mtime_ns, self.path, status.st_size, id=f"{status.st_dev}:{status.st_ino}")


def walk(top: str) -> tuple[list[FoundFile], dict[str, str]]:
    """The visible files below a folder; and by name what is not read, and why.

    The path of a file behind a link is the one that the link leads to, so a link that is replaced later
    changes neither what a batch reads nor what was read.

    Raises:
        OSError: a folder cannot be listed.
    """
    tree = _Walk(top)
    while tree.folders or tree.links:
        if tree.folders:
            tree.enter(*tree.folders.popleft())
        else:
            tree.follow(tree.links.popleft())
    return list(tree.files.values()), tree.ignored


class _Walk:
    """A walk over folders; real folders come before links."""

    def __init__(self, top: str) -> None:
        self.top, self.real = top, os.path.realpath(top)
        #: by path
        self.files: dict[str, FoundFile] = {}
        self.ignored: dict[str, str] = {}
        #: folders (path, name) and links that were found and not entered yet
        self.folders, self.links = deque([(top, top)]), deque[str]()
        #: the name of each folder that was entered, by device and inode
        self._entered: dict[tuple[int, int], str] = {}

    def enter(self, path: str, name: str) -> None:
        """List a real folder, which was found by a name."""
        try:
            at = os.stat(path)
            first = self._entered.setdefault((at.st_dev, at.st_ino), name)
            entries = sorted(os.scandir(path), key=lambda entry: entry.name) if first == name else []
        except FileNotFoundError:  # removed meanwhile
            return
        if first != name:
            self.ignored[name] = f"is the folder {first}, whose files are read once"
        for entry in entries:
            if is_visible(entry.name):
                self._enter(entry, f"{path}/{entry.name}", f"{name}/{entry.name}")

    def _enter(self, entry: os.DirEntry[str], path: str, name: str) -> None:
        try:
            path.encode()
            status = entry.stat(follow_symlinks=False)
        except UnicodeEncodeError:
            self.ignored[name.encode(errors="backslashreplace").decode()] = "has a name that is not UTF-8"
        except FileNotFoundError:
            return
        else:
            if stat.S_ISLNK(status.st_mode):
                self.links.append(name)
            else:
                self._add(FoundFile(path, name, status))

    def follow(self, name: str) -> None:
        """Follow a link."""
        try:
            status = os.stat(name)
        except OSError as error:
            self.ignored[name] = f"is a link that leads nowhere: {error.strerror}"
            return
        path = os.path.realpath(name)
        if path == self.real or path.startswith(f"{self.real}/"):  # as it is listed without the link
            path = self.top + path[len(self.real) :]
        self._add(FoundFile(path, name, status))

    def _add(self, entry: FoundFile) -> None:
        if stat.S_ISDIR(entry.stat.st_mode):
            self.folders.append((entry.path, entry.name))
        elif not stat.S_ISREG(entry.stat.st_mode):
            self.ignored[entry.name] = "is neither a file nor a folder"
        elif self.files.setdefault(entry.path, entry) is not entry:
            self.ignored[entry.name] = f"is a link to {entry.path}, which is read once"


def lists(folder: str | os.PathLike[str], place: str | os.PathLike[str]) -> bool:
    """Whether the files of a folder include those that are written to a place.

    >>> (
    ...     lists("/data/in", "/data/in/checkpoint"),
    ...     lists("/data/in", "/data/in/_checkpoint"),
    ...     lists("/a", "/ab"),
    ... )
    (True, False, False)
    """
    top, inside = (f"{os.path.realpath(location(path))}/" for path in (folder, place))
    return inside.startswith(top) and is_visible(f"{inside.removeprefix(top)}file")
