"""The store of blobs of tests without files."""

from __future__ import annotations

import zlib
from collections.abc import Mapping

import pyarrow as pa

from timely_spark.state.arrow import from_bytes


class Memory:
    """Blobs in a dictionary: what is put again under the same name has the same reference."""

    def __init__(self, content: Mapping[bytes, bytes] | None = None) -> None:
        self.content = dict(content or {})
        self.written = 0
        #: the references that were looked up
        self.read: set[bytes] = set()

    def put(self, prefix: str, data: bytes) -> bytes:
        reference = f"{prefix}-{len(data)}-{zlib.crc32(data):08x}".encode()
        self.content[reference] = data
        self.written += len(data)
        return reference

    def get(self, reference: bytes) -> bytes:
        self.read.add(reference)
        return self.content[reference]

    def table(self, reference: bytes) -> pa.Table:
        return from_bytes(self.get(reference))
