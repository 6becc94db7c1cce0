"""CSV in which a quote is not closed: Arrow reads all that follows, rows included, as one value or name."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

Opened: TypeAlias = Callable[[], AbstractContextManager[Any]]
"""Opens a file from its beginning."""

#: The file's last column, beside those that are read.
_LAST = "\0last"
#: What no header without an end of its line has: quotes, NUL as in other formats, or a line after another.
_ROWS = re.compile(rb'["\0]|[^\s\xef\xbb\xbf]\s*[\r\n]')
_CHUNK = 1 << 20


def check_header(opened: Opened) -> None:
    """Check that a file in which Arrow finds no header has no rows either.

    Raises:
        pa.ArrowInvalid: it may have some.
    """
    with opened() as stream:
        held = b""
        while chunk := stream.read(_CHUNK):
            if _ROWS.search(held + chunk):
                msg = "its header does not end: a quote in it is not closed, or it is not a file of CSV"
                raise pa.ArrowInvalid(msg)
            held = chunk[-1:]


def with_last(
    schema: pa.Schema, columns: Mapping[str, pc.Expression], last: str
) -> tuple[pa.Schema, dict[str, pc.Expression]]:
    """The schema, and the columns to read: also the file's last one, as it is unless it is read anyway."""
    if last not in columns:
        schema = schema.set(schema.get_field_index(last), pa.field(last, pa.binary()))
    return schema, {**columns, _LAST: pc.field(last)}


def closed(batches: Iterable[pa.RecordBatch], opened: Opened, form: Any) -> Iterator[pa.RecordBatch]:
    """The batches without the file's last column.

    Raises:
        pa.ArrowInvalid: the last value has several lines, and no quote is at its end.
    """
    value: Any = None
    for batch in batches:
        if batch.num_rows:
            value = batch.column(_LAST)[-1].as_py()
        yield batch.select([name for name in batch.schema.names if name != _LAST])
    text = value.encode() if isinstance(value, str) else value
    quote = form.parse_options.quote_char
    encoding = form.default_fragment_scan_options.read_options.encoding
    if not (quote and isinstance(text, bytes) and b"\n" in text and len(quote.encode(encoding)) == 1):
        return
    with opened() as stream:
        end = b""
        while chunk := stream.read(_CHUNK):
            end = (end + chunk)[-_CHUNK:]
    end = end.rstrip()
    if (len(end) - len(end.rstrip(quote.encode()))) % 2 == 0:  # two quotes are one that belongs to the text
        ends = text.count(b"\n")
        msg = f"a quote in its last row is not closed: the text behind it has {ends:,} ends of lines"
        raise pa.ArrowInvalid(msg)
