"""Blobs: bytes by reference. A small blob is in the reference itself, a larger one in an immutable file."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from timely_spark.errors import LogDamaged, TimelyError
from timely_spark.runtime.storage.checksums import Intact, checksum
from timely_spark.runtime.storage.files import Files
from timely_spark.state.arrow import from_bytes, replaced
from timely_spark.worker import wire
from timely_spark.worker.wire import Message, SinkRows

#: Blobs up to this size are embedded in the reference, or in the row.
EMBEDDED = 16 << 10
#: Payloads of one worker's round are written to files if together they are larger.
BULK = 1 << 20
#: Eight bytes before each reference: embedded data stays aligned. No Arrow stream begins with `_FILE`.
_HERE, _FILE = b"embedded", b"blobfile"
_ALIGNED = 64
#: The parts of files whose tables are validated: they are large, and read again in every round.
_valid = Intact()
#: What forged bytes may raise where they are decoded.
_UNDECODED = (pa.ArrowException, ValueError, TypeError, LookupError, ArithmeticError, AttributeError, OSError)


class Blobs:
    """The blobs of one run. A reference is bytes, which may be stored and sent like any other value.

    A file's name has its term, prefix, size and checksum. So attempts of a task with the same content write
    the same file, and other attempts write other files. A reference to a part of a file has the part's own
    checksum.
    """

    def __init__(self, files: Files, term: int | None = None) -> None:
        self.files, self.term = files, term or 0

    def put(self, prefix: str, data: bytes) -> bytes:
        """Write a blob, with `prefix` in the name of its file; returns the reference."""
        return _HERE + data if len(data) <= EMBEDDED else _FILE + self._write(prefix, data).encode()

    def get(self, reference: Any) -> pa.Buffer:
        """The bytes of a blob, memory-mapped; data that is not a reference is returned unchanged."""
        return self._get(reference)[0]

    def _get(self, reference: Any) -> tuple[pa.Buffer, Hashable | None]:
        """The bytes of a blob, and the version of its file, if it has one and that is known."""
        buffer = pa.py_buffer(reference)
        if (name := file_of(reference)) is None:
            embedded = bytes(reference[: len(_HERE)]) == _HERE
            return (buffer.slice(len(_HERE)) if embedded else buffer), None
        try:
            file_size, start, size, crc32 = _span(reference)
        except ValueError:
            raise LogDamaged.escapes(self.files.root, name) from None
        return self.files.part(name, of=file_size, start=start, size=size, crc32=crc32)

    @contextmanager
    def reading(self, reference: Any) -> Iterator[None]:
        """Raise decoding errors of the body as damage of the reference's file."""
        try:
            yield
        except TimelyError:
            raise
        except _UNDECODED as error:
            name = file_of(reference) or "a worker's state in a manifest"
            raise LogDamaged.unreadable(self.files.root, name, f"{type(error).__name__}: {error}") from error

    def table(self, reference: Any) -> pa.Table:
        """The table of a payload, or of a reference to it; validated once for each version of its file."""
        data, version = self._get(reference)
        if version is not None and version in _valid:
            return from_bytes(data, validate=False)
        try:
            table = from_bytes(data)
        except (pa.ArrowException, OSError) as error:
            name = file_of(reference) or "a table in a row"
            raise LogDamaged.unreadable(self.files.root, name, error) from error
        if version is not None:
            _valid.add(version)
        return table

    def _write(self, prefix: str, data: bytes) -> str:
        crc32 = checksum(data)
        name = f"blobs/{self.term}-{prefix}-{len(data)}-{crc32:08x}"
        self.files.write_part(name, data, crc32=crc32)
        return name

    def refer(self, prefix: str, rows: pa.Table) -> pa.Table:
        """The rows with references instead of payloads, if the payloads together are larger than `BULK`.

        Messages and outputs are in separate files, because they are kept for different times.
        """
        if not _is_bulk(rows):
            return rows
        messages = self._refer(f"{prefix}-0", wire.only(rows, Message))
        outputs = self._refer(f"{prefix}-1", wire.only(rows, SinkRows))
        return pa.concat_tables([wire.without(rows, Message, SinkRows), messages, outputs])

    def refer_outputs(self, prefix: str, outputs: pa.Table) -> pa.Table:
        """Like `refer`, for a table of schema `OUTPUTS`."""
        return self._refer(prefix, outputs) if _is_bulk(outputs) else outputs

    def _refer(self, prefix: str, rows: pa.Table) -> pa.Table:
        payloads = rows.column("payload")
        parts: list[bytes] = []
        spans: list[tuple[int, int, int] | None] = []
        end = 0
        for scalar in payloads:
            data = scalar.as_py()
            if data is None or len(data) <= EMBEDDED:  # no reference to a file is longer
                spans.append(None)
                continue
            spans.append((end, len(data), checksum(data)))
            parts += [data, b"\0" * (-len(data) % _ALIGNED)]
            end += len(data) + -len(data) % _ALIGNED
        if not parts:
            return rows
        name = self._write(prefix, b"".join(parts)).encode()
        references = [
            scalar.as_py() if span is None else _FILE + name + b"@%d+%d+%08x" % span
            for scalar, span in zip(payloads, spans, strict=True)
        ]
        return replaced(rows, "payload", references)

    def resolve(self, rows: pa.Table) -> pa.Table:
        """The rows with payloads instead of references."""
        if not _referring(rows):
            return rows
        references = rows.column("payload").to_pylist()
        payloads = [None if each is None else self.get(each).to_pybytes() for each in references]
        return replaced(rows, "payload", payloads)


def file_of(reference: Any) -> str | None:
    """The name of a reference's file; None if the blob is embedded."""
    if bytes(reference[: len(_FILE)]) != _FILE:
        return None
    return bytes(reference[len(_FILE) :]).partition(b"@")[0].decode()


def size_of(reference: Any) -> int:
    """The size of a blob, by its reference, or of a payload."""
    if file_of(reference) is None:
        return len(reference) - (len(_HERE) if bytes(reference[: len(_HERE)]) == _HERE else 0)
    return _span(reference)[2]


def _span(reference: Any) -> tuple[int, int, int, int]:
    """(size of the file, start, size, checksum) of the bytes that a reference to a file stands for."""
    name, at, span = bytes(reference).decode().partition("@")
    _, file_size, content = name.rsplit("-", 2)
    start, size, crc32 = span.split("+") if at else ("0", file_size, content)
    return int(file_size), int(start), int(size), int(crc32, 16)


def files_of(rows: pa.Table) -> set[str]:
    """The files that the payloads of rows refer to."""
    if not _referring(rows):
        return set()
    payloads = rows.column("payload").to_pylist()
    return {file for each in payloads if each is not None and (file := file_of(each)) is not None}


def _is_bulk(rows: pa.Table) -> bool:
    return (pc.sum(pc.binary_length(rows.column("payload"))).as_py() or 0) > BULK


def _referring(rows: pa.Table) -> bool:
    return bool(pc.any(pc.starts_with(rows.column("payload"), _FILE)).as_py())
