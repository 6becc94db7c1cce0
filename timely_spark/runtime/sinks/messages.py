"""Messages as Spark writes them, made of whole columns: their JSON, and the names of an epoch's records."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from timely_spark.sql.functions.casts import text_of_floats
from timely_spark.state.arrow import flat
from timely_spark.state.grouping import run_starts
from timely_spark.state.hashing import hashes

COLUMNS = ["key", "value"]
SCHEMA = pa.schema(dict.fromkeys(COLUMNS, pa.binary()))
#: What JSON writes for a character of a text; the first one first.
_ESCAPES = {
    "\\": r"\\",
    '"': r"\"",
    **{chr(code): f"\\u{code:04X}" for code in range(32)},
    **dict(zip("\b\f\n\r\t", (r"\b", r"\f", r"\n", r"\r", r"\t"), strict=True)),
}


def record_names(messages: pa.Table) -> list[str]:
    """The names of the messages of an epoch, as in `KafkaSink`.

    >>> messages = pa.table({"key": [b"a", b"b", b"a"], "value": [b"1", b"1", b"1"]})
    >>> [name.split("-")[1] for name in record_names(messages)]
    ['1', '1', '2']
    """
    hashed = hashes(messages, COLUMNS)
    table = messages.append_column("hash", pa.array(hashed))
    order = pc.sort_indices(table, [(name, "ascending") for name in ("hash", *COLUMNS)]).to_numpy()
    starts = run_starts(hashed[order])
    number = np.empty(len(order), np.int64)
    number[order] = np.arange(len(order)) - np.repeat(starts, np.diff([*starts, len(order)])) + 1
    return [f"{of:X}-{at}" for of, at in zip(hashed.tolist(), number.tolist(), strict=True)]


def is_plain(kind: pa.DataType) -> bool:
    """Whether `as_texts` and `json_of` write values of a type as Spark does."""
    is_text = kind in {pa.string(), pa.bool_(), pa.float32(), pa.float64()}
    return is_text or pa.types.is_signed_integer(kind)


def as_texts(column: pa.ChunkedArray) -> pa.Array:
    """A column as Spark's `cast(... AS string)`; null stays null."""
    values = flat(column)
    if not pa.types.is_floating(values.type):
        return values.cast(pa.string())
    return pc.if_else(values.is_valid(), text_of_floats(values.fill_null(0.0)), pa.scalar(None, pa.string()))


def json_of(table: pa.Table) -> pa.Array:
    r"""The rows as Spark's `to_json` writes them, with nulls.

    >>> json_of(pa.table({"id": [7, None], "it's": ['a "b"', "\n"], "x": [1e10, float("nan")]})).to_pylist()
    ['{"id":7,"it\'s":"a \\"b\\"","x":1.0E10}', '{"id":null,"it\'s":"\\n","x":"NaN"}']
    """
    parts: list[Any] = []
    for name, column in zip(table.column_names, table.columns, strict=True):
        values = as_texts(column)
        if column.type == pa.string():
            values = _quoted(values)
        elif pa.types.is_floating(column.type):
            values = pc.if_else(pc.is_finite(flat(column)), values, _quoted(values))
        title = _quoted(pa.array([name]))[0].as_py()
        parts += ["," if parts else "{", title, ":", pc.fill_null(values, "null")]
    return pc.binary_join_element_wise(*parts, "}", "")


def _quoted(values: pa.Array) -> pa.Array:
    if pc.any(pc.match_substring_regex(values, r'["\\\x00-\x1f]')).as_py():
        for character, escaped in _ESCAPES.items():
            values = pc.replace_substring(values, character, escaped)
    return pc.binary_join_element_wise('"', values, '"', "")
