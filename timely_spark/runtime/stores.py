"""How files are reached: on this machine's file systems, or through pyarrow.fs."""

from __future__ import annotations

import contextlib
import errno
import os
import uuid
from functools import lru_cache
from typing import Any

import pyarrow as pa
from pyarrow import fs

from timely_spark.runtime.errors import BadLocation

#: Schemes that pyarrow reaches -> its own name for them.
SCHEMES = {"s3": "s3", "s3a": "s3", "s3n": "s3", "gs": "gs", "abfss": "abfss", "hdfs": "hdfs"}
#: Where an object is there, and empty, from the moment it is opened (abfss), or grows visibly (hdfs).
_GROWING = {"abfss", "hdfs"}
#: What a mount says that cannot make a folder durable by itself (FUSE, Windows). EIO is none of these.
_CANNOT_SYNC = {errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EACCES, errno.EISDIR}
#: What S3 takes in one request.
_SMALL = 4 << 20


class Local:
    """Files that the operating system reaches: memory-mapped, and never readable by everybody."""

    def write(self, path: str, content: pa.Buffer, *, durable: bool, new: bool) -> None:
        """Writes a temporary file, then renames it; a new one by a link, which fails if there is a file."""
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

    def opened(self, path: str) -> pa.NativeFile:
        """The file, memory-mapped."""
        try:
            return pa.memory_map(path)
        except FileNotFoundError:
            raise
        except OSError:  # a mount that maps nothing
            return pa.OSFile(path)

    def read(self, path: str) -> pa.Buffer:
        """The content, copied: a mapped file that is cut short would end the process."""
        with pa.OSFile(path) as file:
            return file.read_buffer()

    def size(self, path: str) -> int | None:
        """Bytes, or None where there is nothing."""
        try:
            return os.stat(path).st_size
        except FileNotFoundError:
            return None

    def names(self, folder: str) -> list[str]:
        """What is in a folder."""
        try:
            return os.listdir(folder)
        except FileNotFoundError:
            return []

    def remove(self, path: str) -> None:
        """Removes a file; a link, and not what it leads to."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)

    def drop(self, folder: str) -> None:
        """Removes an empty folder."""
        with contextlib.suppress(OSError):
            os.rmdir(folder)

    def exclusive(self, folder: str) -> bool:
        """Whether links can be made there: found out by making one."""
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


def _beside(path: str) -> str:
    return f"{os.path.dirname(path)}/.{uuid.uuid4().hex}.tmp"


def _create(path: str) -> int:
    """A new file, in folders that are made if need be, closed to others whatever the umask."""
    try:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o660)
    except FileNotFoundError:
        make_folder(os.path.dirname(path))
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o660)


def make_folder(folder: str) -> None:
    """Makes a folder and those above it, durably (`os.makedirs` would leave those readable, and unsynced).

    Every folder is synced, whatever it is made for: a durable file may come into it later.
    """
    if os.path.isdir(folder):
        return
    above = os.path.dirname(folder)
    make_folder(above)
    try:
        os.mkdir(folder, 0o770)
    except FileExistsError:
        if not os.path.isdir(folder):  # not just somebody faster
            raise
    _sync(above)


def _link(temporary: str, path: str) -> None:
    try:
        os.link(temporary, path)  # unlike rename, fails where somebody was faster
    except FileExistsError:
        raise
    except OSError:  # a mount without links
        if os.path.exists(path):
            raise FileExistsError(path) from None
        os.replace(temporary, path)


def _sync(folder: str) -> None:
    """Makes the names in a folder durable; a mount that cannot does so when a file is closed.

    Raises:
        OSError: the disk failed, so that nobody knows what it holds.
    """
    try:
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as error:
        if error.errno not in _CANNOT_SYNC:
            raise


class Remote:
    """Files that pyarrow reaches. What fails for a moment is retried by the file system's own client.

    Args:
        system: the file system.
        small: the same for what needs one request only.
        renames: write under another name, then move: where a file is seen before it is complete.
    """

    def __init__(self, system: Any, *, small: Any = None, renames: bool = False) -> None:
        self._system, self._small, self._renames = system, small or system, renames

    def write(self, path: str, content: pa.Buffer, *, durable: bool, new: bool) -> None:
        """Writes an object, which appears when all of it has arrived; `new` looks first."""
        if new and self.size(path) is not None:
            raise FileExistsError(path)
        if not self._renames:
            self._put(path, content)
            return
        temporary = _beside(path)
        try:
            self._put(temporary, content)
            self._system.move(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                self._system.delete_file(temporary)
            raise

    def _put(self, path: str, content: pa.Buffer) -> None:
        # S3 opened late saves two requests, but leaves an empty object where an upload in parts cannot begin.
        system = self._small if content.size <= _SMALL else self._system
        try:
            stream = system.open_output_stream(path)
        except FileNotFoundError:
            system.create_dir(os.path.dirname(path), recursive=True)
            stream = system.open_output_stream(path)
        # Closing publishes, and nothing aborts. All is written at once: either the stream holds all of it, or
        # it has failed, and then publishes nothing.
        with stream:
            stream.write(content)

    def opened(self, path: str) -> pa.NativeFile:
        """The file."""
        return self._system.open_input_file(path)

    def read(self, path: str) -> pa.Buffer:
        """The content."""
        with self.opened(path) as file:
            return file.read_buffer()

    def size(self, path: str) -> int | None:
        """Bytes, or None where there is no file."""
        info = self._system.get_file_info(path)
        return int(info.size) if info.is_file else None

    def names(self, folder: str) -> list[str]:
        """What is in a folder."""
        found = self._system.get_file_info(fs.FileSelector(folder, allow_not_found=True))
        return [info.base_name for info in found]

    def remove(self, path: str) -> None:
        """Removes a file."""
        with contextlib.suppress(FileNotFoundError):
            self._system.delete_file(path)

    def drop(self, folder: str) -> None:
        """Nothing: pyarrow removes folders only with all that is in them."""

    def exclusive(self, folder: str) -> bool:
        """No: pyarrow offers neither S3's conditional writes nor the generations of others."""
        return False


def connect(location: str) -> tuple[Local | Remote, str]:
    """How the files of a canonical location are reached, and its path there.

    Raises:
        BadLocation: pyarrow does not take the URI, or was built without its file system.
    """
    scheme, mark, rest = location.partition("://")
    if not mark:
        return Local(), location
    place, _, query = rest.partition("?")
    authority, _, path = place.partition("/")
    try:
        store, root = _connect(scheme, authority, query)
    except (OSError, ValueError, NotImplementedError) as error:  # pa.ArrowInvalid is a ValueError
        raise BadLocation.refused(shown(location), error) from error
    return store, f"{root.rstrip('/')}/{path}".rstrip("/")


def shown(location: str) -> str:
    """A location without its options, for people: an option may be a secret."""
    return location.partition("?")[0] if "://" in location else location


@lru_cache(maxsize=32)
def _connect(scheme: str, authority: str, query: str) -> tuple[Remote, str]:
    """One client for a bucket, however many objects use it. The path is not pyarrow's to decode."""
    base = f"{scheme}://{authority}/?"
    if scheme != "s3":
        system, root = fs.FileSystem.from_uri((base + query).rstrip("?"))
        return Remote(system, renames=scheme in _GROWING), root
    try:  # of two equal options the first one counts
        system, root = fs.FileSystem.from_uri(f"{base}allow_delayed_open=false&{query}")
        small, _ = fs.FileSystem.from_uri(f"{base}allow_delayed_open=true&{query}")
    except pa.ArrowInvalid:  # an older pyarrow; or a wrong option, said again
        system, root = fs.FileSystem.from_uri((base + query).rstrip("?"))
        small = None
    return Remote(system, small=small), root
