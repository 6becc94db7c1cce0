"""Blobs: bytes by reference. Small ones lie in the reference itself, others in immutable files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from timely_spark.errors import LogDamaged, TimelyError
from timely_spark.runtime.checksums import checksum
from timely_spark.runtime.files import Files

#: What is no larger lies in its reference, or row.
EMBEDDED = 16 << 10
#: What a worker puts out in one round, and is larger, goes by reference.
BULK = 1 << 20
#: How a reference begins: eight bytes, so that what is embedded behind them stays aligned. No Arrow stream
#: begins like the second.
_HERE, _FILE = b"embedded", b"blobfile"
_ALIGNED = 64


class Blobs:
    """The blobs of one run. A reference is bytes: it may be stored and sent like any other value.

    A file's name tells (term, what, size, checksum of the content): each attempt of a task writes the same
    file, or another one where its content differs, so the attempt whose reference is kept finds its own. A
    reference to a part of a file has the part's own checksum.

    Args:
        files: where they are.
        term: of the run that writes.
    """

    def __init__(self, files: Files, term: int | None = None) -> None:
        self.files, self.term = files, term or 0

    def put(self, what: str, data: bytes) -> bytes:
        """Keeps `data`; `what` is the beginning of the file's name, if there is one."""
        return _HERE + data if len(data) <= EMBEDDED else _FILE + self._write(what, data).encode()

    def get(self, reference: Any) -> pa.Buffer:
        """What `put` was given, memory-mapped; or a payload, by reference or not.

        Raises:
            LogDamaged: its file is gone or damaged.
        """
        buffer = pa.py_buffer(reference)
        if (name := file_of(reference)) is None:
            return buffer.slice(len(_HERE)) if bytes(reference[: len(_HERE)]) == _HERE else buffer
        try:
            of, start, size, crc32 = _span(reference)
        except ValueError:
            raise LogDamaged.escapes(self.files.root, name) from None
        return self.files.part(name, of=of, start=start, size=size, crc32=crc32)

    @contextmanager
    def reading(self, reference: Any) -> Iterator[None]:
        """What cannot be decoded of a file, though its checksum is right, is damage of that file.

        Raises:
            LogDamaged: names the file.
        """
        try:
            yield
        except TimelyError:
            raise
        except (pa.ArrowException, ValueError, TypeError, LookupError) as error:
            name = file_of(reference) or "what a manifest holds of a worker's state"
            raise LogDamaged.unreadable(self.files.root, name, f"{type(error).__name__}: {error}") from error

    def _write(self, what: str, data: bytes) -> str:
        name = f"blobs/{self.term}-{what}-{len(data)}-{checksum(data):08x}"
        self.files.write(name, data)
        return name

    def refer(self, what: str, rows: pa.Table) -> pa.Table:
        """The rows, with their payloads by reference if together they are large.

        There is one file for messages and one for outputs, which are needed for another time.
        """
        if (pc.sum(pc.binary_length(rows.column("payload"))).as_py() or 0) <= BULK:
            return rows
        kinds = [pc.equal(rows.column("kind"), kind) for kind in ("message", "output")]
        others = rows.filter(pc.invert(pc.or_(*kinds)))
        mine = (self._refer(f"{what}-{i}", rows.filter(kind)) for i, kind in enumerate(kinds))
        return pa.concat_tables([others, *mine])

    def _refer(self, what: str, rows: pa.Table) -> pa.Table:
        payloads = rows.column("payload")
        parts: list[bytes] = []
        spans: list[tuple[int, int, int] | None] = []
        end = 0
        for scalar in payloads:
            data = scalar.as_py()
            if data is None or len(data) <= EMBEDDED or file_of(data) is not None:
                spans.append(None)
                continue
            spans.append((end, len(data), checksum(data)))
            parts += [data, b"\0" * (-len(data) % _ALIGNED)]
            end += len(data) + -len(data) % _ALIGNED
        if not parts:
            return rows
        name = self._write(what, b"".join(parts)).encode()
        references = [
            scalar.as_py() if span is None else _FILE + name + b"@%d+%d+%08x" % span
            for scalar, span in zip(payloads, spans, strict=True)
        ]
        at = rows.schema.get_field_index("payload")
        return rows.set_column(at, rows.schema.field(at), pa.array(references, pa.binary()))

    def resolve(self, rows: pa.Table) -> pa.Table:
        """The rows with their payloads themselves."""
        if not _referring(rows):
            return rows
        payloads = rows.column("payload").to_pylist()
        found = [None if each is None else self.get(each).to_pybytes() for each in payloads]
        at = rows.schema.get_field_index("payload")
        return rows.set_column(at, rows.schema.field(at), pa.array(found, pa.binary()))


def file_of(reference: Any) -> str | None:
    """The name of the file that a reference needs, if it needs one."""
    if bytes(reference[: len(_FILE)]) != _FILE:
        return None
    return bytes(reference[len(_FILE) :]).partition(b"@")[0].decode()


def size_of(reference: Any) -> int:
    """How many bytes a reference, or a payload, stands for."""
    if file_of(reference) is None:
        return len(reference) - (len(_HERE) if bytes(reference[: len(_HERE)]) == _HERE else 0)
    return _span(reference)[2]


def _span(reference: Any) -> tuple[int, int, int, int]:
    """What a reference to a file says: the file's bytes, and where which bytes with which checksum begin."""
    name, at, span = bytes(reference).decode().partition("@")
    _, of, content = name.rsplit("-", 2)
    start, size, crc32 = span.split("+") if at else ("0", of, content)
    return int(of), int(start), int(size), int(crc32, 16)


def files_of(rows: pa.Table) -> set[str]:
    """The files that the payloads of rows refer to."""
    if not _referring(rows):
        return set()
    payloads = rows.column("payload").to_pylist()
    return {name for each in payloads if each is not None and (name := file_of(each)) is not None}


def _referring(rows: pa.Table) -> bool:
    return bool(pc.any(pc.starts_with(rows.column("payload"), _FILE)).as_py())
