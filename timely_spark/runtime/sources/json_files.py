"""`reading_json`: Arrow's reader of JSON made safe: it ends the process if a record is null, or very deep.

`json_batches` also refuses members that Arrow ignores, though they are columns but for their case.
"""

from __future__ import annotations

import atexit
import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from threading import Event
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import json

from timely_spark.runtime.sources.text_files import TextFile

if TYPE_CHECKING:
    import pyarrow.dataset as ds

#: Records that are null, after the end of a record and of its line; and what may go on as such ones.
_NULLS = re.compile(rb"(\}[ \t\r]*\n(?:\xef\xbb\xbf)?)((?:\s*null)+)")
_OPEN = re.compile(rb"\}[ \t\r]*(?:\n(?:\xef(?:\xbb(?:\xbf)?)?)?)?(?:\s*null)*\s*(?:n|nu|nul)?\Z")
#: The most arrays and objects inside of each other, as in Spark: 100,000 overflow the stack of Arrow.
DEEPEST = 1000
#: The steps that brackets take, 0 for a quote; and all other bytes.
_STEPS = bytes.maketrans(b'{[}]"', b"\1\1\xff\xff\0")
_OTHERS = bytes({*range(256)} - {*b'{[}]"'})
#: Seconds after which the thread that reads ahead is so far ahead that it waits.
_FAR_AHEAD = 0.1
#: So long a regular expression is not given to Arrow, which takes a second per MB from a length of 40,000 on.
_LONG = 3 << 13
#: What stands before the first record while it is looked at.
_BEFORE = b"}\n"


class Depth:
    r"""How many arrays and objects are inside of each other.

    >>> deep = Depth()
    >>> deep.check(b'{"a": "[[["}\n{"a": [' + b"[" * 998)
    >>> deep.check(b"{")
    Traceback (most recent call last):
    pyarrow.lib.ArrowInvalid: it has more than 1,000 arrays and objects inside of each other
    """

    def __init__(self, depth: int = 0) -> None:
        #: how many are open, and what of a text that goes on decides how it does: a quote, a backslash
        self._depth, self._text = depth, b""

    def check(self, chunk: bytes) -> None:
        """Check what comes next.

        Raises:
            pa.ArrowInvalid: it is too deep.
        """
        data = self._text + chunk
        if b"\\" in data:
            data = data.replace(b"\\\\", b"").replace(b'\\"', b"")
        inside = data.count(b'"', data.rfind(b"\n") + 1) % 2  # no text has several lines
        self._text = b'"' * inside + b"\\" * data.endswith(b"\\")
        steps = np.frombuffer(data.translate(_STEPS, _OTHERS), np.int8)
        outside = ~np.logical_xor.accumulate(steps == 0)  # of texts
        depth = np.cumsum(steps * outside, dtype=np.int32) + self._depth
        if depth.max(initial=0) > DEEPEST:
            msg = f"it has more than {DEEPEST:,} arrays and objects inside of each other"
            raise pa.ArrowInvalid(msg)
        self._depth = int(depth[-1]) if len(depth) else self._depth


class NullsAsObjects:
    r"""A stream of bytes, where records that are null are objects without members, which make the same rows.

    It ends with an error if more than `DEEPEST` arrays and objects are inside of each other.

    >>> import io
    >>> lines = NullsAsObjects(io.BytesIO(b'null\n{"a":\nnull}\n null \n'))
    >>> b"".join(iter(lambda: lines.read(3), b""))
    b'{}  \n{"a":\nnull}\n {}   \n'
    """

    closed = False

    def __init__(self, stream: Any) -> None:
        self.stream = stream
        #: what may go on as a null, and what comes next
        self._held, self._ready = _BEFORE, b""
        self._skip = len(_BEFORE)
        self._depth = Depth()
        #: whether the rest is not read; and set when nothing more is read
        self._ended, self._over = False, Event()
        #: why nothing more is read; Arrow's thread would keep what is raised, also at the end of the process
        self.error: Exception | None = None

    def read(self, size: int) -> bytes:
        """The next `size` bytes, fewer at the end."""
        first = b""
        try:
            first = b"" if self._ended else self._next(size)
        except Exception as error:  # noqa: BLE001 - raised by `reading_json`
            self.error = error
        if not first:
            self._over.set()
        return first

    def _next(self, size: int) -> bytes:
        while len(self._ready) < size and (chunk := self.stream.read(size)):
            self._depth.check(chunk)
            self._take(self._held + chunk, end=False)
        if len(self._ready) < size:
            self._take(self._held, end=True)
        first, self._ready = self._ready[:size], self._ready[size:]
        return first

    def end(self) -> None:
        """Let Arrow's thread, which reads ahead, read no more: it ends a process that ends meanwhile.

        It does not read at all where it is far ahead.
        """
        self._ended = True
        self._over.wait(_FAR_AHEAD)

    def _take(self, data: bytes, *, end: bool) -> None:
        last = data.rfind(b"}")
        at = last if not end and last >= 0 and _OPEN.match(data, last) else len(data)
        self._held, data = data[at:], data[:at]
        if data:
            if b"null" in data:
                data = _NULLS.sub(lambda nulls: nulls[1] + nulls[2].replace(b"null", b"{}  "), data)
            self._ready += data[self._skip :]
            self._skip = 0

    def close(self) -> None:
        """Nothing: the stream is its owner's."""


@contextmanager
def reading_json(stream: Any, form: ds.JsonFileFormat, schema: pa.Schema | None = None) -> Iterator[Any]:
    """What Arrow reads of a stream of JSON: batches with these columns, or with those of the first block."""
    options = form.default_fragment_scan_options
    parse = json.ParseOptions(
        explicit_schema=schema,
        newlines_in_values=options.parse_options.newlines_in_values,
        unexpected_field_behavior="infer" if schema is None else "ignore",
    )
    read = getattr(json, "open_json", json.read_json)  # an older Arrow reads the whole file
    content = NullsAsObjects(stream)
    atexit.register(content.end)
    try:
        file = pa.PythonFile(content, mode="r")
        yield read(file, read_options=options.read_options, parse_options=parse)
    except pa.ArrowException as error:
        raise content.error or error from None
    finally:
        content.end()
        atexit.unregister(content.end)
    if schema is not None and content.error is not None:
        raise content.error


def json_batches(opened: TextFile, form: ds.JsonFileFormat, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The records of a file, with these columns; null where a record lacks a member.

    Raises:
        pa.ArrowInvalid: the file cannot be read, or members have the names of columns in another case.
    """
    lacking: dict[str, pa.Field] = {}
    with opened() as stream:
        names = _Names(stream, _names(pa.struct(list(schema))))
        with reading_json(names, form, schema) as content:
            for batch in content.to_batches() if isinstance(content, pa.Table) else content:
                for field, column in zip(batch.schema, batch.columns, strict=True):
                    if column.null_count or pa.types.is_nested(field.type):
                        lacking[field.name] = field
                yield batch
    records = pa.struct(list(lacking.values()))
    if names.written and (others := _in_another_case(opened, form, records, names.written)):
        msg = f"it has members {others}, which are columns in another case"
        raise pa.ArrowInvalid(msg)


class _Names:
    """A stream of bytes, and texts between quotes in it: at least those that are names in another case.

    >>> import io
    >>> names = _Names(io.BytesIO(b'{"Name": 1, "name": "n"}'), ["name", "n"])
    >>> b"".join(iter(lambda: names.read(3), b"")), "Name" in names.written, "N" in names.written
    (b'{"Name": 1, "name": "n"}', True, False)
    """

    def __init__(self, stream: Any, names: Collection[str]) -> None:
        self.stream, self.written = stream, set[str]()
        others = "|".join(filter(None, map(_in_other_cases, sorted(names))))
        #: looked for by Arrow, in a fifth of Python's time; None if it would take longer
        self._others = f'"(?:{others})"' if len(others) < _LONG else None
        either = "|".join("".join(map(_either, name)) for name in sorted(names))
        self._names = re.compile(f'"({either})"'.encode())
        self._longest = 3 * max((len(name.encode()) for name in names), default=0)  # in another case
        self._held = b""

    def read(self, size: int) -> bytes:
        """The next `size` bytes, fewer at the end."""
        chunk: bytes = self.stream.read(size)
        data = self._held + chunk
        if self._others is None or pc.match_substring_regex(pa.scalar(data), self._others).as_py():
            self.written.update(map(bytes.decode, self._names.findall(data)))
        self._held = data[-self._longest - 1 :]  # a name that goes on
        return chunk


def _in_other_cases(name: str) -> str:
    """A regular expression of what differs from a name only in case: from one of its letters on.

    >>> _in_other_cases("a_b")
    'A_[bB]|a_B'
    """
    either = [*map(_either, name)]
    return "|".join(
        re.escape(name[:at]) + letter.swapcase() + "".join(either[at + 1 :])
        for at, letter in enumerate(name)
        if letter.swapcase() != letter
    )


def _either(letter: str) -> str:
    """A regular expression of a letter in both cases, which are of several bytes if they are not ASCII's."""
    if (other := letter.swapcase()) == letter:
        return re.escape(letter)
    return f"[{letter}{other}]" if letter.isascii() else f"(?:{letter}|{other})"


def _in_another_case(
    opened: TextFile, form: ds.JsonFileFormat, records: pa.StructType, written: Collection[str]
) -> list[str]:
    """The names of members that differ only in case from those of fields, and are not null.

    Arrow does not see them. So names between quotes were looked for, which may be values or members of
    others; now such members are read as null, where a value is an error.
    """
    if (nulls := _only(records, written)) is None:
        return []
    try:
        with opened() as stream, reading_json(stream, form, pa.schema(list(nulls))) as content:
            for _ in content.to_batches() if isinstance(content, pa.Table) else content:
                pass
    except pa.ArrowInvalid:
        return sorted(_names(nulls, pa.null()))
    return []


def _names(kind: pa.DataType, of: pa.DataType | None = None) -> set[str]:
    """The names of the fields in a type; only of those of one type, if it is given."""
    if pa.types.is_struct(kind):
        names = {field.name for field in kind if of in (None, field.type)}
        return names.union(*(_names(field.type, of) for field in kind))
    return _names(kind.value_type, of) if pa.types.is_list(kind) else set()


def _only(kind: pa.DataType, written: Collection[str]) -> pa.DataType | None:
    """A type with only the fields that are written in another case, all null; None if there are none."""
    if pa.types.is_list(kind):
        inner = _only(kind.value_type, written)
        return None if inner is None else pa.list_(inner)
    if not pa.types.is_struct(kind):
        return None
    inside = {field.name: _only(field.type, written) for field in kind}
    folded = {name.lower() for name in inside}
    others = {name: pa.null() for name in sorted(written) if name not in inside and name.lower() in folded}
    fields = others | {name: inner for name, inner in inside.items() if inner is not None}
    return pa.struct(fields) if fields else None
