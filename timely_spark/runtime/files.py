"""Files of the checkpoint: the only place that knows how they are reached (later: pyarrow.fs).

A file appears whole or not at all (temporary name, then rename), which is all that the log's protocol asks of
it.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator
from urllib.parse import unquote, urlsplit

import pyarrow as pa


def local_path(location: str) -> str:
    """The local path which a plain path or a `file:` (or mounted `dbfs:`) URI stands for.

    >>> local_path("file:/tmp/a%20b"), local_path("/tmp/x/"), local_path("dbfs:/x")
    ('/tmp/a b', '/tmp/x', '/dbfs/x')
    """
    parts = urlsplit(location)
    if parts.scheme == "file" and parts.netloc in {"", "localhost"}:
        location = unquote(parts.path)
    elif parts.scheme == "dbfs":
        location = "/dbfs" + unquote(parts.path)
    elif len(parts.scheme) > 1:  # one letter is a drive
        msg = (
            f"The checkpoint {location!r} is not a local path. "
            "Hint: a path or file: URI that driver and executors both see; /Volumes/... on Databricks."
        )
        raise ValueError(msg)
    return os.path.abspath(location)


class Files:
    """The files below one directory, addressed by relative names."""

    def __init__(self, root: str) -> None:
        self.root = root

    def path(self, name: str) -> str:
        """Where `name` is."""
        return os.path.join(self.root, name)

    def write(
        self, name: str, content: bytes | pa.Buffer, *, durable: bool = False, new: bool = False
    ) -> None:
        """Writes a file whole; `new` refuses an existing one, `durable` survives the machine, too."""
        path = self.path(name)
        temporary = os.path.join(os.path.dirname(path), f".{uuid.uuid4().hex}.tmp")
        try:
            handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        except FileNotFoundError:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        try:
            with open(handle, "wb") as file:
                file.write(content)
                if durable:
                    file.flush()
                    os.fsync(file.fileno())
            if not new:
                os.replace(temporary, path)
                return
            try:
                os.link(temporary, path)  # unlike rename, fails where somebody was faster
            except FileExistsError:
                raise
            except OSError:  # a mount without links
                if os.path.exists(path):
                    raise FileExistsError(path) from None
                os.replace(temporary, path)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)

    def read(self, name: str) -> bytes | None:
        """The content, or None where there is no such file."""
        try:
            with open(self.path(name), "rb") as file:
                return file.read()
        except FileNotFoundError:
            return None

    def buffer(self, name: str) -> pa.Buffer | None:
        """The content, memory-mapped, or None where there is no such file."""
        try:
            return pa.memory_map(self.path(name)).read_buffer()
        except FileNotFoundError:
            return None

    def exists(self, name: str) -> bool:
        """Whether the file is there."""
        return os.path.exists(self.path(name))

    def size(self, name: str) -> int | None:
        """Bytes, or None where there is no such file."""
        try:
            return os.stat(self.path(name)).st_size
        except FileNotFoundError:
            return None

    def write_table(self, name: str, table: pa.Table, *, durable: bool = False, new: bool = False) -> None:
        """An Arrow IPC file."""
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
        self.write(name, sink.getvalue(), durable=durable, new=new)

    def schema(self, name: str) -> pa.Schema | None:
        """The schema (with its metadata) of an Arrow file, its rows unread; None where there is none."""
        try:
            with pa.memory_map(self.path(name)) as source:
                return pa.ipc.open_file(source).schema
        except FileNotFoundError:
            return None

    def table(self, name: str) -> pa.Table | None:
        """An Arrow file, memory-mapped; None where there is no such file."""
        try:
            return pa.ipc.open_file(pa.memory_map(self.path(name))).read_all()
        except FileNotFoundError:
            return None

    def numbers(self, folder: str) -> list[int]:
        """The numbers that name the files of a folder (`7`, `7.arrow`), ascending: one listing."""
        return sorted(self._numbers(folder))

    def _numbers(self, folder: str) -> Iterator[int]:
        try:
            names = os.listdir(self.path(folder))
        except FileNotFoundError:
            return
        for name in names:
            stem = name.partition(".")[0]
            if stem.removeprefix("-").isdigit():
                yield int(stem)

    def names(self, folder: str) -> list[str]:
        """The complete files of a folder, as names of this object: one listing."""
        try:
            found = os.listdir(self.path(folder))
        except FileNotFoundError:
            return []
        return sorted(f"{folder}/{name}" for name in found if not name.startswith("."))

    def remove(self, name: str) -> None:
        """Removes the file, if it is there."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path(name))
