"""CSV in which a quote is not closed: Arrow reads all that follows, rows included, as one value or name."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from typing import Any

import pyarrow as pa
from pyarrow import csv

from timely_spark.runtime.sources.text_files import TextFile

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


def csv_batches(
    opened: TextFile,
    form: Any,
    schema: pa.Schema,
    columns: Sequence[str],
    single: Mapping[str, pa.Scalar],
    *,
    own: Sequence[str],
) -> Iterator[pa.RecordBatch]:
    """The rows of a file, which has its `own` columns; others are null, or `single` values.

    Arrow's reader of data sets is ahead of its reader by up to 1 GB, this one by 32 blocks of 1 MB.

    Raises:
        pa.ArrowInvalid: a value does not fit, or a quote in the last row is not closed.
    """
    options = form.default_fragment_scan_options
    read, convert = copy(options.read_options), copy(options.convert_options)
    read.use_threads, read.encoding = False, "utf8"
    names, last = [name for name in columns if name not in single], own[-1]
    # without names Arrow would read all columns
    convert.include_columns, convert.include_missing_columns = names or [last], True
    convert.column_types = schema if names else {last: pa.binary()}
    value: Any = None
    with opened() as stream, csv.open_csv(stream, read, form.parse_options, convert) as batches:
        for batch in batches:
            if batch.num_rows and last in names:
                value = batch.column(last)[-1].as_py()
            repeated = {name: pa.repeat(one, batch.num_rows) for name, one in single.items()}
            arrays = [repeated[name] if name in single else batch.column(name) for name in columns]
            yield pa.RecordBatch.from_arrays(arrays, [*columns]) if columns else batch.select([])
    _check_closed(value, opened, form)


def _check_closed(value: Any, opened: TextFile, form: Any) -> None:
    """Check that a last value of several lines has a quote behind it."""
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
