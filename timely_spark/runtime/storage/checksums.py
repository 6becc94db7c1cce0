"""Checksums of files: a damaged file is an error with its name, and is never decoded to wrong rows.

CRC-32 detects every flipped bit, and all damage within 32 adjacent bits; it misses one of four billion other
damages. zlib has it in every Python. It detects damage, not forgery: writers of a checkpoint are trusted
(docs/security.md).
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Hashable

import pyarrow as pa

from timely_spark.errors import LogDamaged

#: The last line of a sealed file, which readers of JSON and of Arrow streams ignore.
_SEAL = '\n{"crc32": "%08x"}\n'
_LENGTH = len(_SEAL % 0)
#: The number of entries in `Intact`.
_MOST = 1 << 14


def checksum(data: pa.Buffer | bytes, start: int = 0) -> int:
    """CRC-32 of the data, continued from `start`.

    >>> checksum(b"123456789") == 0xCBF43926
    True
    """
    return zlib.crc32(data, start)


def sealed(name: str, content: pa.Buffer | bytes) -> bytes:
    r"""The content with a last line that has the checksum of name and content.

    >>> sealed("flow.json", b"{}")
    b'{}\n{"crc32": "769e87b4"}\n'
    """
    return b"".join([content, _seal(name, content)])


def is_sealed(content: pa.Buffer) -> bool:
    """Whether the last line is a checksum, right or wrong."""
    start, end = (_SEAL % 0).encode().split(b"0" * 8)
    last = content.slice(max(0, content.size - _LENGTH)).to_pybytes()
    return len(last) == _LENGTH and last.startswith(start) and last.endswith(end)


def unsealed(root: str, name: str, content: pa.Buffer) -> pa.Buffer:
    """The content without its checksum line."""
    if not is_sealed(content):
        raise LogDamaged.unreadable(root, name, f"its {content.size} bytes do not end in a checksum")
    rest = content.slice(0, content.size - _LENGTH)
    actual, expected = _seal(name, rest), content.slice(rest.size).to_pybytes()
    if actual != expected:
        written, computed = (seal[-11:-3].decode(errors="replace") for seal in (expected, actual))
        raise LogDamaged.altered(root, name, expected=written, computed=computed)
    return rest


def _seal(name: str, content: pa.Buffer | bytes) -> bytes:
    return (_SEAL % checksum(content, checksum(name.encode()))).encode()


class Intact:
    """The parts of files, each in one version, that this process has verified.

    So a process verifies an immutable mapped file once, not in every round.
    """

    def __init__(self) -> None:
        self._verified: dict[Hashable, None] = {}
        self._lock = threading.Lock()

    def __contains__(self, key: Hashable) -> bool:
        return key in self._verified

    def add(self, key: Hashable) -> None:
        """Add a part; removes the oldest of more than `_MOST` parts."""
        with self._lock:
            self._verified[key] = None
            if len(self._verified) > _MOST:
                del self._verified[next(iter(self._verified))]
