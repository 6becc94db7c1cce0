"""Lists of a whole column: parts, orders, and which elements are alike."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from timely_spark.graph.schema import entries_of
from timely_spark.sql.types import is_float


class Elements:
    """The elements of lists, or the entries of maps, without nulls, one after the other."""

    def __init__(self, lists: pa.Array) -> None:
        if pa.types.is_map(lists.type):
            lists = lists.cast(entries_of(lists.type))
        first, last = (lists.offsets[0].as_py(), lists.offsets[len(lists)].as_py()) if len(lists) else (0, 0)
        self.values = lists.values.slice(first, last - first)
        self.offsets = np.asarray(lists.offsets).astype(np.int64)[: len(lists) + 1] - first
        self.sizes = np.diff(self.offsets)

    @property
    def owners(self) -> Any:
        """The list of each element."""
        return np.repeat(np.arange(len(self.sizes)), self.sizes)

    @property
    def places(self) -> Any:
        """The number of each element in its list."""
        return np.arange(len(self.values)) - np.repeat(self.offsets[:-1], self.sizes)

    def filter(self, mask: Any) -> pa.Array:
        """The lists with some of their elements."""
        counts = np.bincount(self.owners[mask], minlength=len(self.sizes))
        return lists_of(self.values.filter(pa.array(mask)), counts)


def lists_of(values: pa.Array, sizes: Any, kind: pa.DataType | None = None) -> pa.Array:
    """Lists of elements that follow one another."""
    kind = kind or pa.list_(pa.field("element", values.type))
    return pa.ListArray.from_arrays(_offsets(sizes), values, type=kind)


def maps_of(keys: pa.Array, items: pa.Array, sizes: Any, kind: pa.DataType) -> pa.Array:
    """Maps of entries that follow one another."""
    return pa.MapArray.from_arrays(_offsets(sizes), keys, items, type=kind)


def _offsets(sizes: Any) -> pa.Array:
    return pa.array(np.concatenate([[0], np.cumsum(sizes)]), pa.int32())


def part_of_lists(lists: pa.Array, begin: Any, end: Any) -> pa.Array:
    """The part of each list between two places."""
    x = Elements(lists)
    sizes = end - begin
    starts = np.concatenate([[0], np.cumsum(sizes)])
    places = np.repeat(x.offsets[:-1] + begin - starts[:-1], sizes) + np.arange(starts[-1])
    return lists_of(x.values.take(pa.array(places)), sizes, lists.type)


def reversed_lists(lists: pa.Array) -> pa.Array:
    """Lists in the opposite order."""
    x = Elements(lists)
    mirrored = np.repeat(x.offsets[:-1] + x.offsets[1:] - 1, x.sizes) - np.arange(len(x.values))
    return lists_of(x.values.take(pa.array(mirrored)), x.sizes, lists.type)


def dense_ranks(values: pa.Array) -> Any:
    """Numbers in the order of values, equal for equal ones: null is least, NaN is greatest."""
    if pa.types.is_null(values.type) or not len(values):
        return np.zeros(len(values), np.int64)
    if pa.types.is_struct(values.type):
        return _combined(
            [np.asarray(values.is_valid()).astype(np.int64), *map(dense_ranks, values.flatten())]
        )
    if pa.types.is_list(values.type):
        return _ranks_of_lists(values)
    if is_float(values.type):
        values = pc.add(values, pa.scalar(0.0, values.type))  # -0.0 is 0.0
    if pa.types.is_boolean(values.type):
        values = values.cast(pa.int8())
    if pa.types.is_map(values.type):
        msg = "maps have no order"
        raise pa.ArrowInvalid(msg)
    if isinstance(values, pa.ExtensionArray):
        values = values.storage
    encoded = values.dictionary_encode()
    order = np.asarray(pc.array_sort_indices(encoded.dictionary))
    place = np.zeros(len(order) + 1, np.int64)
    place[order] = np.arange(1, len(order) + 1)
    return place[np.asarray(pc.fill_null(encoded.indices, len(order)))]


def _combined(columns: list[Any]) -> Any:
    """Numbers in the order of several columns of numbers."""
    stacked = np.stack(columns, axis=1)
    return np.unique(stacked, axis=0, return_inverse=True)[1].reshape(-1)


def _ranks_of_lists(lists: pa.Array) -> Any:
    """By the first element, then those with the same one by the second, and so on: null is least.

    A list costs the elements in which it equals others, and one more.
    """
    filled = lists if not lists.null_count else pc.fill_null(lists, pa.scalar([], lists.type))
    x = Elements(filled)
    inner = dense_ranks(x.values) + 1
    # for each list, how many are before all that equal it so far
    ranks = np.asarray(lists.is_valid()).astype(np.int64) * lists.null_count
    tied, place = np.flatnonzero(lists.is_valid()), 0
    while len(tied):
        more = x.sizes[tied] > place
        element = np.zeros(len(tied), np.int64)  # of a list that has ended: it is before the others
        element[more] = inner[x.offsets[:-1][tied[more]] + place]
        order = np.lexsort((element, ranks[tied]))
        tied, element = tied[order], element[order]
        groups = _first_of_each(ranks[tied])
        parts = groups | _first_of_each(element)
        places = np.arange(len(tied))
        starts = np.maximum.accumulate(np.where(parts, places, 0))
        ranks[tied] += starts - np.maximum.accumulate(np.where(groups, places, 0))
        single = parts & np.append(parts[1:], True)
        tied, place = tied[~single & (element > 0)], place + 1
    return np.unique(ranks, return_inverse=True)[1].reshape(-1)


def _first_of_each(values: Any) -> Any:
    """Where a value differs from the one before it."""
    return np.append(True, values[1:] != values[:-1])
