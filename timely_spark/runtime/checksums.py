"""Checksums of what is read back: a damaged file is found and named, and never decoded to other rows.

CRC-32 finds every flipped bit, and every damage within 32 neighbouring bits; of other damage it misses one
case in four billion. It is zlib's, so it is there wherever Python is, at some gigabytes a second. It tells
damage, not forgery: who may write into a checkpoint is trusted (docs/security.md).
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Hashable

import pyarrow as pa

from timely_spark.errors import LogDamaged

#: The last line of a sealed file. Readers of JSON and of Arrow streams do not mind it.
_SEAL = '\n{"crc32": "%08x"}\n'
_LENGTH = len(_SEAL % 0)
#: How many files, or parts of them, a process knows to be intact.
_MOST = 1 << 14


def checksum(data: pa.Buffer | bytes, start: int = 0) -> int:
    """CRC-32 of the data, going on from `start`.

    >>> checksum(b"123456789") == 0xCBF43926
    True
    """
    return zlib.crc32(data, start)


def sealed(name: str, content: pa.Buffer | bytes) -> bytes:
    r"""The content with a last line that holds the checksum of both: so no other file can take its place.

    >>> sealed("flow.json", b"{}")
    b'{}\n{"crc32": "769e87b4"}\n'
    """
    return b"".join([content, _seal(name, content)])


def is_sealed(content: pa.Buffer) -> bool:
    """Whether the content has such a last line, be it right or wrong."""
    start, end = (_SEAL % 0).encode().split(b"0" * 8)
    last = content.slice(max(0, content.size - _LENGTH)).to_pybytes()
    return len(last) == _LENGTH and last.startswith(start) and last.endswith(end)


def unsealed(root: str, name: str, content: pa.Buffer) -> pa.Buffer:
    """What `sealed` was given.

    Raises:
        LogDamaged: the content is not that which was written under this name.
    """
    if not is_sealed(content):
        raise LogDamaged.unreadable(root, name, f"its {content.size} bytes do not end in a checksum")
    rest = content.slice(0, content.size - _LENGTH)
    found, expected = _seal(name, rest), content.slice(rest.size).to_pybytes()
    if found != expected:
        told, computed = (seal[-11:-3].decode(errors="replace") for seal in (expected, found))
        raise LogDamaged.altered(root, name, expected=told, found=computed)
    return rest


def _seal(name: str, content: pa.Buffer | bytes) -> bytes:
    return (_SEAL % checksum(content, checksum(name.encode()))).encode()


class Intact:
    """Which parts of files this process has found to be intact, each in the state that its file was in then.

    So a mapped file that never changes is read from end to end once by a process, not in every round.
    """

    def __init__(self) -> None:
        self._known: dict[Hashable, None] = {}
        self._lock = threading.Lock()

    def __contains__(self, key: Hashable) -> bool:
        return key in self._known

    def add(self, key: Hashable) -> None:
        """Notes a part; the oldest is forgotten when there are too many."""
        with self._lock:
            self._known[key] = None
            if len(self._known) > _MOST:
                del self._known[next(iter(self._known))]
