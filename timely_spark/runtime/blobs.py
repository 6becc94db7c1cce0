"""Blobs: bytes by reference. Small ones lie in the reference itself, others in immutable files."""

from __future__ import annotations

import zlib
from typing import Any

import pyarrow as pa

from timely_spark.runtime.errors import LogDamaged
from timely_spark.runtime.files import Files

#: What is no larger lies in its reference.
EMBEDDED = 16 << 10
#: How a reference begins: eight bytes, so that what is embedded behind them stays aligned.
_HERE, _FILE = b"embedded", b"blobfile"


class Blobs:
    """The blobs under one directory. A reference is bytes: it may be stored and sent like any other value.

    A file's name tells (what, size, checksum): each attempt of a task writes the same file, or another one
    where its content differs, so the attempt whose reference is kept finds its own.
    """

    def __init__(self, files: Files) -> None:
        self.files = files

    def put(self, what: str, data: bytes) -> bytes:
        """Keeps `data`; `what` is the beginning of the file's name, if there is one."""
        if len(data) <= EMBEDDED:
            return _HERE + data
        name = f"blobs/{what}-{len(data)}-{zlib.crc32(data):08x}"
        self.files.write(name, data)
        return _FILE + name.encode()

    def get(self, reference: Any) -> pa.Buffer:
        """What `put` was given, memory-mapped.

        Raises:
            LogDamaged: its file is gone.
        """
        if (name := file_of(reference)) is None:
            return pa.py_buffer(reference).slice(len(_HERE))
        if (found := self.files.buffer(name)) is None:
            raise LogDamaged.no_file(self.files.root, name)
        return found


def file_of(reference: Any) -> str | None:
    """The name of the file that a reference needs, if it needs one."""
    return bytes(reference[len(_FILE) :]).decode() if bytes(reference[: len(_FILE)]) == _FILE else None


def size_of(reference: Any) -> int:
    """How many bytes a reference stands for."""
    name = file_of(reference)
    return len(reference) - len(_HERE) if name is None else int(name.split("-")[-2])
