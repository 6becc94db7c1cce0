"""CSV in which a quote is not closed: Arrow reads all that follows, rows included, as one value or name."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from timely_spark.runtime.sources.text_files import TextFile

#: The file's last column, beside those that are read.
LAST = "\0last"
#: What no header without an end of its line has, beside names in quotes: a line after another.
_ROWS = re.compile(rb"[^\s\xef\xbb\xbf]\s*[\r\n]")
_ENDS = re.compile(rb"\r\n|\r|\n")
_CHUNK = 1 << 20


def check_header(opened: TextFile, form: Any) -> None:
    """Check that a file in which Arrow finds no header has no rows either.

    Raises:
        pa.ArrowInvalid: it may have some.
    """
    quote = _quote(form)
    with opened() as stream:
        text = b""
        while len(text) < _CHUNK and (chunk := stream.read(_CHUNK)):
            text += chunk
    names = re.sub(rb"%b[^%b]*%b" % ((re.escape(quote),) * 3), b"", text) if quote else text
    if b"\0" in text or (quote and quote in names) or _ROWS.search(names):
        msg = "its header does not end: a quote in it is not closed, or it is not a file of CSV"
        raise pa.ArrowInvalid(msg)


def with_last(
    columns: Mapping[str, pc.Expression], last: str, constant: Collection[str]
) -> dict[str, pc.Expression]:
    """The columns to read: also the file's last one as it is, if it is read anyway.

    To read it for the check only would fill the memory: Arrow is ahead of its reader by up to 1 GB.
    """
    is_read = last in columns and last not in constant
    return {**columns, **({LAST: pc.field(last)} if is_read else {})}


def closed(batches: Iterable[pa.RecordBatch], opened: TextFile, form: Any) -> Iterator[pa.RecordBatch]:
    """The batches without `LAST`.

    Raises:
        pa.ArrowInvalid: the last value has several lines, and the file ends where it does, without a quote.
    """
    value: Any = None
    for batch in batches:
        if batch.num_rows:
            value = batch.column(LAST)[-1].as_py()
        yield batch.select([name for name in batch.schema.names if name != LAST])
    text = value.encode() if isinstance(value, str) else value
    quote = _quote(form)
    if not (quote and isinstance(text, bytes) and text.strip() and (ends := len(_ENDS.findall(text)))):
        return
    written = quote + (text.replace(quote, quote * 2) if form.parse_options.double_quote else text)
    with opened() as stream:
        end = b""
        while chunk := stream.read(_CHUNK):
            end = (end + chunk)[-len(written) :]
    if end == written:
        msg = f"a quote in its last row is not closed: the text behind it has {ends:,} ends of lines"
        raise pa.ArrowInvalid(msg)


def _quote(form: Any) -> bytes:
    """The quote of a format; nothing if it has none."""
    return (form.parse_options.quote_char or "").encode()
