"""Times of rows kept as state: one dictionary column, so that each time is compared once, not each row."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from timely_spark.state.keys import Indices, Mask
from timely_spark.times import CompactingTimes, Times

AT = "__timely_at"
"""The column's name."""


def stamp(table: pa.Table, time: Any) -> pa.Table:
    """The table with `time` for every row."""
    text = json.dumps(time.encode(), separators=(",", ":"))
    return table.append_column(AT, _column(np.zeros(table.num_rows, np.int32), [text]))


def stamps(table: pa.Table, times: Times) -> tuple[list[Any], Indices]:
    """The different times of a stamped table, and for each row which it is."""
    column = table.column(AT).unify_dictionaries().combine_chunks()
    if isinstance(column, pa.ChunkedArray):
        column = column.chunk(0) if column.num_chunks else _column(np.zeros(0, np.int32), [])
    values = [times.decode(json.loads(text)) for text in column.dictionary.to_pylist()]
    return values, column.indices.to_numpy(zero_copy_only=False).astype(np.int64)


def where_time(table: pa.Table, times: Times, test: Callable[[Any], bool]) -> Mask:
    """The rows whose time passes a test."""
    values, which = stamps(table, times)
    return (
        np.array([test(value) for value in values], np.bool_)[which] if len(which) else np.zeros(0, np.bool_)
    )


def settle_times(table: pa.Table, times: Times, since: int) -> tuple[pa.Table, Indices]:
    """Let times that no later time can tell apart be one, as far as the kind of time tells which these are.

    Returns:
        The table with such times replaced by the first of them, and for each row a number for its time.
    """
    values, which = stamps(table, times)
    advance = times.advance if isinstance(times, CompactingTimes) else lambda time, _: time
    classes: dict[Any, int] = {}
    mapping: list[int] = []
    texts: list[str] = []
    for value in values:
        key = advance(value, since)
        if key not in classes:
            classes[key] = len(texts)
            texts.append(json.dumps(value.encode(), separators=(",", ":")))
        mapping.append(classes[key])
    ids = np.array(mapping, np.int64)[which] if len(which) else which
    at = table.schema.get_field_index(AT)
    return table.set_column(at, AT, _column(ids.astype(np.int32), texts)), ids


def _column(ids: Any, texts: list[str]) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(pa.array(ids, pa.int32()), pa.array(texts, pa.string()))
