"""Bounds of what is decoded from files and connections: a few forged bytes must not fill the memory.

Arrow's reader checks the structure of a message, and `validate(full=True)` checks offsets and texts. Neither
bounds the memory that a compressed message takes (ten kilobytes become hundreds of megabytes), nor the rows
of columns without bytes. No writer here compresses, so compressed messages are refused before they are read.
"""

from __future__ import annotations

import json
import struct
from typing import Any

import pyarrow as pa

#: The most rows of a table for each of its bytes: a value takes a bit at least.
ROWS = 8
#: The most levels of lists, tuples, mappings and dataclasses in a value of a state.
DEPTH = 100
#: Numbers of the kinds of messages, and of fields, in Arrow's Message.fbs.
_DICTIONARY, _BATCH = 2, 3
_KIND, _HEADER, _DATA, _LENGTH, _COMPRESSION = 1, 2, 1, 0, 3


def checked_messages(data: Any, *, whole: bool = False) -> list[pa.ipc.Message]:
    """The messages of an Arrow IPC stream, which are checked before they are decoded.

    Args:
        whole: refuse what is behind the end of the stream.

    >>> sink = pa.BufferOutputStream()
    >>> table = pa.table({"n": [0] * 1000})
    >>> with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as out:
    ...     out.write_table(table)
    >>> checked_messages(sink.getvalue())
    Traceback (most recent call last):
    pyarrow.lib.ArrowInvalid: a message of the Arrow stream is compressed

    Raises:
        pyarrow.ArrowInvalid: a message is compressed; or there are more rows than the stream could hold, or
            with `whole` something is behind its end.
    """
    buffer, total, messages = pa.py_buffer(data), 0, list[Any]()
    source = pa.BufferReader(buffer)
    for message in pa.ipc.MessageReader.open_stream(source):  # checks the structure of each
        try:
            compressed, rows = _batch(memoryview(message.metadata))
        except (struct.error, IndexError) as error:
            msg = f"a message of the Arrow stream has no batch where it should: {error}"
            raise pa.ArrowInvalid(msg) from None
        if compressed:
            msg = "a message of the Arrow stream is compressed"
            raise pa.ArrowInvalid(msg)
        total += rows
        messages.append(message)
        if total > ROWS * buffer.size:
            msg = f"{buffer.size} bytes are not {total} rows"
            raise pa.ArrowInvalid(msg)
    if whole and source.tell() != buffer.size:
        msg = f"the Arrow stream ends after {source.tell()} of {buffer.size} bytes"
        raise pa.ArrowInvalid(msg)
    return messages


def parse_json(text: bytes | str) -> Any:
    """Parse JSON; nesting beyond Python's recursion limit is a ValueError, as other faults are.

    >>> parse_json("[" * 100_000)
    Traceback (most recent call last):
    ValueError: JSON is nested too deeply
    """
    try:
        return json.loads(text)
    except RecursionError:
        msg = "JSON is nested too deeply"
        raise ValueError(msg) from None


def _batch(message: memoryview) -> tuple[bool, int]:
    """Whether the batch of a message is compressed, and its rows, by the message's flatbuffer."""
    root = _target(message, 0)
    if (kind := message[_field(message, root, _KIND)]) not in {_BATCH, _DICTIONARY}:
        return False, 0
    header = _target(message, _field(message, root, _HEADER))
    if kind == _DICTIONARY:
        header = _target(message, _field(message, header, _DATA))
    length = _field(message, header, _LENGTH)
    rows: int = struct.unpack_from("<q", message, length)[0] if length else 0
    return bool(_field(message, header, _COMPRESSION)), rows


def _target(message: memoryview, at: int) -> int:
    """The position to which the offset at a position leads."""
    offset: int = struct.unpack_from("<I", message, at)[0]
    return at + offset


def _field(message: memoryview, table: int, number: int) -> int:
    """The position of a field of a table; 0 if it has its default."""
    fields: int = table - struct.unpack_from("<i", message, table)[0]
    entry = 4 + 2 * number
    if entry >= struct.unpack_from("<H", message, fields)[0]:
        return 0
    offset: int = struct.unpack_from("<H", message, fields + entry)[0]
    return table + offset if offset else 0
