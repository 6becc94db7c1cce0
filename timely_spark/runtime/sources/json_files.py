"""`read_json`: Arrow's reader of JSON, which ends the process if a record is null, made safe."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow import json

if TYPE_CHECKING:
    import pyarrow.dataset as ds

#: Records that are null, after the end of a record and of its line; and what may go on as such ones.
_NULLS = re.compile(rb"(\}[ \t\r]*\n(?:\xef\xbb\xbf)?)((?:\s*null)+)")
_OPEN = re.compile(rb"\}[ \t\r]*(?:\n(?:\xef(?:\xbb(?:\xbf)?)?)?)?(?:\s*null)*\s*(?:n|nu|nul)?\Z")
#: What stands before the first record while it is looked at.
_BEFORE = b"}\n"


class NullsAsObjects:
    r"""A stream of bytes, where records that are null are objects without members, which make the same rows.

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

    def read(self, size: int) -> bytes:
        """The next `size` bytes, fewer at the end."""
        while len(self._ready) < size and (chunk := self.stream.read(size)):
            self._take(self._held + chunk, end=False)
        if len(self._ready) < size:
            self._take(self._held, end=True)
        first, self._ready = self._ready[:size], self._ready[size:]
        return first

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


def read_json(stream: Any, form: ds.JsonFileFormat, schema: pa.Schema | None = None) -> Any:
    """What Arrow reads of a stream of JSON: batches with these columns, or with those of the first block."""
    options = form.default_fragment_scan_options
    parse = json.ParseOptions(
        explicit_schema=schema,
        newlines_in_values=options.parse_options.newlines_in_values,
        unexpected_field_behavior="infer" if schema is None else "ignore",
    )
    read = getattr(json, "open_json", json.read_json)  # an older Arrow reads the whole file
    file = pa.PythonFile(NullsAsObjects(stream), mode="r")
    return read(file, read_options=options.read_options, parse_options=parse)
