"""File systems: this machine's own (`Local`), and those of pyarrow.fs (`Remote`)."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import uuid
from functools import lru_cache
from typing import Any

import pyarrow as pa
from pyarrow import fs

from timely_spark.runtime.errors import BadLocation
from timely_spark.runtime.storage.cache import Stamp, stamp

#: URI schemes -> pyarrow's names for them.
SCHEMES = {"s3": "s3", "s3a": "s3", "s3n": "s3", "gs": "gs", "abfss": "abfss", "hdfs": "hdfs"}
#: Schemes whose objects are visible before they are complete: empty (abfss) or growing (hdfs).
_GROWING = {"abfss", "hdfs"}
#: Errors of mounts that cannot sync a folder (FUSE, Windows). EIO is a failure of the disk.
_CANNOT_SYNC = {errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EACCES, errno.EISDIR}
#: The size that S3 takes in one request.
_SMALL = 4 << 20


class Local:
    """Files of the operating system: memory-mapped, and never world-readable."""

    def write(self, path: str, content: pa.Buffer, *, durable: bool, new: bool) -> None:
        """Write a temporary file and rename it; with `new`, link it, which fails if the file exists."""
        temporary = _beside(path)
        try:
            with open(_create(temporary), "wb") as file:
                file.write(content)
                if durable:
                    file.flush()
                    os.fsync(file.fileno())
            if new:
                _link(temporary, path)
            else:
                os.replace(temporary, path)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
        if durable:
            _sync(os.path.dirname(path))

    def sync(self, path: str) -> None:
        """Wait until a file and its name are on the disk."""
        _flush(path, os.O_RDWR)  # some systems write out only what may be written
        _sync(os.path.dirname(path))

    def mapped(self, path: str) -> pa.Buffer:
        """The content, memory-mapped."""
        _check_regular(path)
        try:
            with pa.memory_map(path) as file:
                return file.read_buffer()
        except OSError:  # a mount without memory mapping
            return self.read(path)

    def read(self, path: str) -> pa.Buffer:
        """The content, copied, because truncation of a mapped file would kill the process."""
        _check_regular(path)
        with pa.OSFile(path) as file:
            return file.read_buffer()

    def size(self, path: str) -> int | None:
        """The size in bytes; None if there is no such file."""
        try:
            return os.stat(path).st_size
        except FileNotFoundError:
            return None

    def version(self, path: str) -> Stamp | None:
        """The stamp of a file; None if there is no such file."""
        return stamp(path)

    def names(self, folder: str) -> list[str]:
        """The names in a folder."""
        try:
            return os.listdir(folder)
        except FileNotFoundError:
            return []

    def remove(self, path: str) -> None:
        """Remove a file, or a link itself."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)

    def drop(self, folder: str) -> None:
        """Remove an empty folder."""
        with contextlib.suppress(OSError):
            os.rmdir(folder)

    def exclusive(self, folder: str) -> bool:
        """Whether the file system has hard links, by making one."""
        first, second = (_beside(os.path.join(folder, "_")) for _ in range(2))
        os.close(_create(first))
        try:
            os.link(first, second)
            os.unlink(second)
        except OSError:
            return False
        finally:
            os.unlink(first)
        return True


def _check_regular(path: str) -> None:
    """Refuse pipes and devices, also behind a link: their content has no end."""
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise OSError(errno.EINVAL, "not a regular file", path)


def _beside(path: str) -> str:
    return f"{os.path.dirname(path)}/.{uuid.uuid4().hex}.tmp"


def _create(path: str) -> int:
    """Open a new file, not world-readable, and make missing folders."""
    try:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o660)
    except FileNotFoundError:
        make_folder(os.path.dirname(path))
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o660)


def make_folder(folder: str) -> None:
    """Make a folder and its missing parents, synced and not world-readable, unlike `os.makedirs`.

    All folders are synced, because durable files may be written to them later.
    """
    if os.path.isdir(folder):
        return
    above = os.path.dirname(folder)
    make_folder(above)
    try:
        os.mkdir(folder, 0o770)
    except FileExistsError:
        if not os.path.isdir(folder):  # else another process has just made the folder
            raise
    _sync(above)


def _link(temporary: str, path: str) -> None:
    try:
        os.link(temporary, path)  # unlike a rename, a link fails if the file exists
    except FileExistsError:
        raise
    except OSError:  # a mount without links
        if os.path.exists(path):
            raise FileExistsError(path) from None
        os.replace(temporary, path)


def _flush(path: str, flags: int) -> None:
    handle = os.open(path, flags)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _sync(folder: str) -> None:
    """Sync the names in a folder; mounts that cannot sync a folder do so when a file is closed."""
    try:
        _flush(folder, os.O_RDONLY)
    except OSError as error:
        if error.errno not in _CANNOT_SYNC:
            raise


class Remote:
    """Files of a pyarrow file system. Its client retries transient failures.

    Args:
        small: the file system for uploads of one request.
        renames: write to a temporary name, then move, because unfinished files are visible.
    """

    def __init__(self, system: Any, *, small: Any = None, renames: bool = False) -> None:
        self.system, self._small, self._renames = system, small or system, renames

    def write(self, path: str, content: pa.Buffer, *, durable: bool, new: bool) -> None:
        """Write an object, which appears when it is complete; `new` checks for an existing one first."""
        if new and self.size(path) is not None:
            raise FileExistsError(path)
        if not self._renames:
            self._put(path, content)
            return
        temporary = _beside(path)
        try:
            self._put(temporary, content)
            self.system.move(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                self.system.delete_file(temporary)
            raise

    def _put(self, path: str, content: pa.Buffer) -> None:
        # delayed opening on S3 saves two requests, but leaves an empty object if a multipart upload fails
        system = self._small if content.size <= _SMALL else self.system
        try:
            stream = system.open_output_stream(path)
        except FileNotFoundError:
            system.create_dir(os.path.dirname(path), recursive=True)
            stream = system.open_output_stream(path)
        # Closing publishes the object. One write either succeeds or fails, and a failed stream publishes
        # nothing.
        with stream:
            stream.write(content)

    def sync(self, path: str) -> None:
        """Do nothing: an object is durable when its upload has ended."""

    def read(self, path: str) -> pa.Buffer:
        """The content of a file."""
        with self.system.open_input_file(path) as file:
            return file.read_buffer()

    def size(self, path: str) -> int | None:
        """The size in bytes; None if there is no such file."""
        info = self.system.get_file_info(path)
        return int(info.size) if info.is_file else None

    def version(self, path: str) -> Stamp | None:
        """The time and size of a file; None if there is no such file."""
        info = self.system.get_file_info(path)
        return (int(info.mtime_ns or 0), int(info.size)) if info.is_file else None

    def names(self, folder: str) -> list[str]:
        """The names in a folder."""
        infos = self.system.get_file_info(fs.FileSelector(folder, allow_not_found=True))
        return [info.base_name for info in infos]

    def remove(self, path: str) -> None:
        """Remove a file."""
        with contextlib.suppress(FileNotFoundError):
            self.system.delete_file(path)

    def drop(self, folder: str) -> None:
        """Do nothing: pyarrow removes folders only with their contents."""

    def exclusive(self, folder: str) -> bool:
        """False: pyarrow offers no conditional writes."""
        return False


def connect(location: str) -> tuple[Local | Remote, str]:
    """The file system of a canonical location, and the location's path in it."""
    scheme, mark, rest = location.partition("://")
    if not mark:
        return Local(), location
    place, _, query = rest.partition("?")
    authority, _, path = place.partition("/")
    try:
        store, root = _connect(scheme, authority, query)
    except (OSError, ValueError, NotImplementedError) as error:  # pa.ArrowInvalid is a ValueError
        msg = f"pyarrow does not reach {without_options(location)}: {error}"
        hint = "check the URI's options, the network, and with what pyarrow was built."
        raise BadLocation(msg, hint=hint) from error
    return store, f"{root.rstrip('/')}/{path}".rstrip("/")


def filesystem_of(location: str) -> tuple[fs.FileSystem, str]:
    """The pyarrow file system of a canonical location, and the location's path in it."""
    store, path = connect(location)
    return (fs.LocalFileSystem() if isinstance(store, Local) else store.system), path


def first_rows(path: str, most: int) -> pa.Table:
    """The first rows of a local file of Parquet, Arrow or CSV: no more of it is read than they take."""
    from pyarrow import dataset

    return dataset.dataset(path, format=path.rpartition(".")[2]).head(most)


def without_options(location: str) -> str:
    """A location without its options, which may be secret."""
    return location.partition("?")[0] if "://" in location else location


@lru_cache(maxsize=32)
def _connect(scheme: str, authority: str, query: str) -> tuple[Remote, str]:
    """The client for a bucket, and its root. The URI has no path, because pyarrow would decode the path."""
    base = f"{scheme}://{authority}/?"
    if scheme != "s3":
        system, root = fs.FileSystem.from_uri((base + query).rstrip("?"))
        return Remote(system, renames=scheme in _GROWING), root
    try:  # the first of two equal options counts
        system, root = fs.FileSystem.from_uri(f"{base}allow_delayed_open=false&{query}")
        small, _ = fs.FileSystem.from_uri(f"{base}allow_delayed_open=true&{query}")
    except pa.ArrowInvalid:  # an older pyarrow, or a wrong option, which raises again
        system, root = fs.FileSystem.from_uri((base + query).rstrip("?"))
        small = None
    return Remote(system, small=small), root
