"""Functions of arrays, maps and structs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from timely_spark.graph.schema import entries_of
from timely_spark.sql import types
from timely_spark.sql.calendar import DAY, later, plus_months
from timely_spark.sql.functions.strings import split_texts
from timely_spark.sql.lists import Elements, dense_ranks, lists_of, maps_of, part_of_lists
from timely_spark.sql.plain import longs
from timely_spark.sql.registry import Failures, Typed, Value, as_array, scatter, spark_function
from timely_spark.sql.types import array_of

_OUT = "use try_element_at or get, which give null there."
_ZERO = ("the number of an element is 0", "count elements from 1, or from -1 at the end.")


@spark_function("size cardinality", "array -> int", "map -> int")
def _size(a: pa.Array) -> Any:
    return pc.list_value_length(a.cast(entries_of(a.type)) if pa.types.is_map(a.type) else a)


spark_function("array_size", "array -> int")(_size)


def _taken(a: pa.Array, place: Any, inside: Any) -> pa.Array:
    """The element of each list at a place, null if it is not inside."""
    x = Elements(a)
    return x.values.take(pa.array(x.offsets[:-1] + np.where(inside, place, 0), mask=~inside))


def _item(a: Value, index: Value, *, length: int, failures: Failures) -> Any:
    lists = as_array(a, length)
    place = longs(index, length)
    inside = (place >= 0) & (place < Elements(lists).sizes)
    failures.at(~inside, "the array has no such element", _OUT)
    return _taken(lists, place, inside)


spark_function("$item", "array<T>, int -> T")(_item)
spark_function("get", "!array<T>, int -> T", tries=True)(_item)


def _element_at(a: Value, key: Value, *, length: int, failures: Failures) -> Any:
    lists = as_array(a, length)
    if pa.types.is_map(lists.type):
        return _of_key(lists, as_array(key, length))
    number = longs(key, length)
    Failures(null=False).at(number == 0, *_ZERO)
    sizes = Elements(lists).sizes
    place = np.where(number > 0, number - 1, sizes + number)
    inside = (place >= 0) & (place < sizes)
    failures.at(~inside, "the array has no such element", _OUT)
    return _taken(lists, place, inside)


for _name, _tries in (("element_at", False), ("try_element_at", True)):
    spark_function(_name, "!array<T>, !=int -> T", "!map<K, V>, K -> V", tries=_tries)(_element_at)


def _of_key(maps: pa.Array, keys: pa.Array) -> pa.Array:
    """The item of a key of each map; null if the map has not the key."""
    x = Elements(maps)
    inner, items = x.values.flatten()
    codes = dense_ranks(pa.concat_arrays([inner, keys.cast(inner.type)]))
    same = codes[: len(inner)] == codes[len(inner) :][x.owners]
    rows = np.flatnonzero(same)
    place = np.zeros(len(maps), np.int64)
    place[x.owners[rows]] = rows
    present = np.zeros(len(maps), bool)
    present[x.owners[rows]] = True
    return items.take(pa.array(place, mask=~present))


def _matches(a: pa.Array, value: pa.Array) -> tuple[Elements, Any]:
    """The elements, and which of them equal the value of their list."""
    x = Elements(a)
    codes = dense_ranks(pa.concat_arrays([x.values, value.cast(x.values.type)]))
    same = codes[: len(x.values)] == codes[len(x.values) :][x.owners]
    return x, same & np.asarray(x.values.is_valid())


@spark_function("array_contains", "!array<C>, !C -> boolean")
def _array_contains(a: Value, value: Value, *, length: int) -> Any:
    x, same = _matches(as_array(a, length), as_array(value, length))
    present = np.bincount(x.owners[same], minlength=length) > 0
    unknown = np.bincount(x.owners[np.asarray(x.values.is_null())], minlength=length) > 0
    return pa.array(present, mask=unknown & ~present)


@spark_function("array_position", "!array<C>, C -> bigint")
def _array_position(a: Value, value: Value, *, length: int) -> Any:
    x, same = _matches(as_array(a, length), as_array(value, length))
    rows = np.flatnonzero(same)[::-1]
    positions = np.zeros(length, np.int64)
    positions[x.owners[rows]] = x.places[rows] + 1
    return positions


@spark_function("array_remove", "!array<C>, C -> array<C>")
def _array_remove(a: Value, value: Value, *, length: int) -> Any:
    x, same = _matches(as_array(a, length), as_array(value, length))
    return x.filter(~same)


@spark_function("array_compact", "array<T> -> array<T>")
def _array_compact(a: pa.Array) -> Any:
    x = Elements(a)
    return x.filter(np.asarray(x.values.is_valid()))


def _firsts(owners: Any, codes: Any) -> Any:
    """Which elements are the first of their list that are like them."""
    first = np.zeros(len(codes), bool)
    if len(codes):
        first[np.unique(np.stack([owners, codes], axis=1), axis=0, return_index=True)[1]] = True
    return first


@spark_function("array_distinct", "array<C> -> array<C>")
def _array_distinct(a: pa.Array) -> Any:
    x = Elements(a)
    return x.filter(_firsts(x.owners, dense_ranks(x.values)))


def _both(a: Value, b: Value, length: int) -> tuple[Elements, Elements, Any, Any]:
    """The elements of two arrays in each row, and numbers that are equal for equal ones of a row."""
    x, y = Elements(as_array(a, length)), Elements(as_array(b, length))
    codes = dense_ranks(pa.concat_arrays([x.values, y.values.cast(x.values.type)]))
    owners = np.concatenate([x.owners, y.owners])
    pairs = np.stack([owners, codes], axis=1)
    numbers = (
        np.unique(pairs, axis=0, return_inverse=True)[1].reshape(-1) if len(pairs) else np.zeros(0, np.int64)
    )
    return x, y, numbers[: len(x.values)], numbers[len(x.values) :]


@spark_function("array_union", "!array<C>, !array<C> -> array<C>")
def _array_union(a: Value, b: Value, *, length: int, result: pa.DataType) -> Any:
    return _array_distinct(
        _array_concat(as_array(a, length), as_array(b, length), length=length, result=result)
    )


@spark_function("array_intersect", "!array<C>, !array<C> -> array<C>")
def _array_intersect(a: Value, b: Value, *, length: int) -> Any:
    x, _, left, right = _both(a, b, length)
    return x.filter(np.isin(left, right) & _firsts(x.owners, left))


@spark_function("array_except", "!array<C>, !array<C> -> array<C>")
def _array_except(a: Value, b: Value, *, length: int) -> Any:
    x, _, left, right = _both(a, b, length)
    return x.filter(~np.isin(left, right) & _firsts(x.owners, left))


@spark_function("arrays_overlap", "!array<C>, !array<C> -> boolean")
def _arrays_overlap(a: Value, b: Value, *, length: int) -> Any:
    x, y, left, right = _both(a, b, length)
    same = np.isin(left, right) & np.asarray(x.values.is_valid())
    overlap = np.bincount(x.owners[same], minlength=length) > 0
    null = np.zeros(length, bool)
    for one in (x, y):
        null |= np.bincount(one.owners[np.asarray(one.values.is_null())], minlength=length) > 0
    return pa.array(overlap, mask=null & ~overlap & (x.sizes > 0) & (y.sizes > 0))


@spark_function("$array_concat", "array<A>... -> array<A>")
def _array_concat(*arrays: Value, length: int, result: pa.DataType) -> Any:
    each = [Elements(as_array(one, length)) for one in arrays]
    values = pa.concat_arrays([one.values for one in each])
    owners = np.concatenate([one.owners for one in each])
    order = np.argsort(owners, kind="stable")
    return lists_of(values.take(pa.array(order)), sum(one.sizes for one in each), result)


def _longer(a: Value, value: Value, *, first: bool, length: int, result: pa.DataType) -> Any:
    lists = as_array(a, length)
    filled = pc.fill_null(lists, pa.scalar([], lists.type)) if lists.null_count else lists
    single = lists_of(as_array(value, length), np.ones(length, np.int64), result)
    pair = (single, filled) if first else (filled, single)
    longer = _array_concat(*pair, length=length, result=result)
    return pc.if_else(lists.is_valid(), longer, pa.scalar(None, result)) if lists.null_count else longer


for _name, _first in (("array_append", False), ("array_prepend", True)):
    spark_function(_name, "!array<T>, T -> array<T>", nulls=True)(partial(_longer, first=_first))


@spark_function("array_repeat", "T, =int -> array<T>", nulls=True)
def _array_repeat(value: Value, times: Value, *, length: int, result: pa.DataType) -> Any:
    count = as_array(times, length)
    n = np.maximum(np.asarray(pc.fill_null(count, 0)), 0)
    values = as_array(value, length).take(pa.array(np.repeat(np.arange(length), n)))
    repeated = lists_of(values, n, result)
    return pc.if_else(count.is_valid(), repeated, pa.scalar(None, result)) if count.null_count else repeated


@spark_function("array_join", "array<string>, =string, =string? -> string")
def _array_join(a: Value, separator: Value, null: Value | None = None, *, length: int) -> Any:
    lists = as_array(a, length)
    x = Elements(lists)
    if null is None:
        lists = x.filter(np.asarray(x.values.is_valid()))
    else:
        filled = pc.coalesce(x.values, as_array(null, length).take(pa.array(x.owners)))
        lists = lists_of(filled, x.sizes)
    return pc.binary_join(lists, as_array(separator, length))


def _extreme(name: str, *, greatest: bool) -> None:
    @spark_function(name, "array<C> -> C")
    def _kernel(a: pa.Array) -> Any:
        x = Elements(a)
        codes = dense_ranks(x.values)
        valid = np.flatnonzero(np.asarray(x.values.is_valid()))
        order = valid[np.lexsort((codes[valid] if greatest else -codes[valid], x.owners[valid]))]
        place, present = np.zeros(len(a), np.int64), np.zeros(len(a), bool)
        place[x.owners[order]] = order  # the last one of each list stays
        present[x.owners[order]] = True
        return x.values.take(pa.array(place, mask=~present))


_extreme("array_max", greatest=True)
_extreme("array_min", greatest=False)


def _sorted(a: pa.Array, codes: Any) -> pa.Array:
    x = Elements(a)
    order = np.lexsort((codes, x.owners))
    return lists_of(x.values.take(pa.array(order)), x.sizes, a.type)


@spark_function("sort_array", "array<C>, =boolean? -> array<C>", constant=[1])
def _sort_array(a: Value, ascending: pa.Scalar | None = None, *, length: int) -> Any:
    lists = as_array(a, length)
    codes = dense_ranks(Elements(lists).values)
    return _sorted(lists, codes if ascending is None or ascending.as_py() else -codes)


@spark_function("array_sort", "!array<C> -> array<C>")
def _array_sort(a: pa.Array) -> Any:
    x = Elements(a)
    null = np.asarray(x.values.is_null())
    return _sorted(a, np.where(null, np.iinfo(np.int64).max, dense_ranks(x.values)))


@spark_function("slice", "array<T>, int, int -> array<T>")
def _slice(a: Value, start: Value, count: Value, *, length: int, failures: Failures) -> Any:
    lists = as_array(a, length)
    first, n = (longs(one, length) for one in (start, count))
    failures.at(first == 0, *_ZERO)
    failures.at(n < 0, "the length is negative", "give a length from 0 on.")
    sizes = Elements(lists).sizes
    begin = np.where(first > 0, first - 1, sizes + first)
    outside = (begin < 0) | (begin >= sizes)
    begin = np.where(outside, 0, begin)
    return part_of_lists(lists, begin, np.where(outside, begin, np.minimum(begin + np.maximum(n, 0), sizes)))


def _flat(kind: pa.DataType) -> pa.DataType | None:
    return kind.value_type if types.is_array(kind.value_type) else None


@spark_function("flatten", "array -> A", result=_flat)
def _flatten(a: pa.Array, *, result: pa.DataType) -> Any:
    x = Elements(a)
    null = np.bincount(x.owners[np.asarray(x.values.is_null())], minlength=len(a)) > 0
    filled = pc.fill_null(x.values, pa.scalar([], result)) if x.values.null_count else x.values
    y = Elements(filled)
    sizes = np.bincount(x.owners, weights=y.sizes, minlength=len(a)).astype(np.int64)
    flattened = lists_of(y.values, sizes, result)
    return pc.if_else(pa.array(null), pa.scalar(None, result), flattened) if null.any() else flattened


def _sequence_types(kinds: Sequence[pa.DataType], zone: str) -> Typed | None:
    """Integers by an integer; dates and times by an interval, which is a day if there is none."""
    ends = types.common_of(kinds[:2])
    if ends is None or not 2 <= len(kinds) <= 3:
        return None
    if types.is_date_or_time(ends):
        step = [types.INTERVAL if one == pa.null() else one for one in kinds[2:]]
        return ([ends, ends, *step], array_of(ends)) if all(map(types.is_interval, step)) else None
    kind = types.common_of(kinds)
    kind = pa.int32() if kind == pa.null() else kind
    return ([kind] * len(kinds), array_of(kind)) if kind is not None and types.is_integral(kind) else None


@spark_function("sequence", _sequence_types)
def _sequence(
    first: Value,
    last: Value,
    step: Value | None = None,
    *,
    length: int,
    result: pa.DataType,
    failures: Failures,
) -> Any:
    kind, by_month = result.value_type, step is not None and step.type == types.MONTHS
    day = DAY if pa.types.is_timestamp(kind) else 1
    a, b = (longs(one, length) for one in (first, last))
    if step is None:
        by = np.where(a <= b, day, -day)
    else:
        by = longs(step, length)
        if pa.types.is_date32(kind) and not by_month:
            failures.at(by % DAY != 0, "the step is not of whole days", "give days, weeks, months or years.")
            by = by // DAY
    bad = ((by == 0) & (a != b)) | ((by > 0) & (a > b)) | ((by < 0) & (a < b))
    failures.at(bad, "the step does not lead to the end", "give a step of the right sign.")
    by = np.where(by == 0, 1, by)
    # a month has 28 days or more, and a day of a time zone a bit less: some values are beyond the end
    beyond = types.is_date_or_time(kind)
    counts = np.where(bad, 0, (b - a) // (by * 28 * day if by_month else by) + 1 + beyond)
    owners = np.repeat(np.arange(length), counts)
    places = np.arange(len(owners)) - np.repeat(np.cumsum(counts) - counts, counts)
    values = _stepped(a[owners], places, by[owners], kind, by_month=by_month)
    if beyond:
        inside = np.where(by[owners] > 0, values <= b[owners], values >= b[owners])
        values, counts = values[inside], np.bincount(owners[inside], minlength=length)
    return lists_of(pa.array(values.astype(f"i{kind.bit_width // 8}")).view(kind), counts, result)


def _stepped(a: Any, steps: Any, by: Any, kind: pa.DataType, *, by_month: bool) -> Any:
    """Values that are some steps later."""
    if not pa.types.is_timestamp(kind):
        return plus_months(a, steps * by) if by_month else a + steps * by
    if by_month:
        return later(a, kind.tz, months=steps * by)
    days = np.sign(by) * (np.abs(by) // DAY)
    return later(a, kind.tz, days=steps * days) + steps * (by - days * DAY)


def _row(*kinds: pa.DataType) -> pa.DataType:
    return array_of(pa.struct([(str(n), one.value_type) for n, one in enumerate(kinds)]))


@spark_function("$zipped", "array, array... -> P", result=_row)
def _zipped(*arrays: Value, length: int, result: pa.DataType) -> Any:
    lists = [Elements(as_array(one, length)) for one in arrays]
    sizes = np.maximum.reduce([one.sizes for one in lists])
    owners = np.repeat(np.arange(length), sizes)
    places = np.arange(len(owners)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    sides = []
    for one in lists:
        inside = places < one.sizes[owners]
        sides.append(
            one.values.take(pa.array(np.where(inside, one.offsets[owners] + places, 0), mask=~inside))
        )
    return lists_of(pa.StructArray.from_arrays(sides, fields=list(result.value_type)), sizes, result)


@spark_function("array_insert", "!array<T>, !=int, T -> array<T>", nulls=True)
def _array_insert(
    a: Value, place: Value, value: Value, *, length: int, result: pa.DataType, failures: Failures
) -> Any:
    lists, numbers = as_array(a, length), as_array(place, length)
    present = np.asarray(pc.and_(lists.is_valid(), numbers.is_valid()))
    x = Elements(pc.fill_null(lists, pa.scalar([], result)) if lists.null_count else lists)
    n = np.asarray(pc.fill_null(numbers, 1)).astype(np.int64)
    failures.at((n == 0) & present, *_ZERO)
    # the place of the new element, and how many elements the result has
    new = np.where(n > 0, n - 1, np.maximum(x.sizes + n + 1, 0))
    before = np.where(n < 0, np.maximum(-n - 1 - x.sizes, 0), 0)
    sizes = np.where(n > 0, np.maximum(x.sizes + 1, n), np.maximum(x.sizes + 1, -n))
    owners = np.repeat(np.arange(length), sizes)
    places = np.arange(len(owners)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    old = places - before[owners] - (before[owners] > 0) - ((places > new[owners]) & (before[owners] == 0))
    inside = (old >= 0) & (old < x.sizes[owners]) & (places != new[owners])
    taken = np.where(inside, x.offsets[owners] + np.where(inside, old, 0), 0)
    fresh = places == new[owners]
    both = pa.concat_arrays([x.values, as_array(value, length)])
    index = np.where(fresh, len(x.values) + owners, taken)
    inserted = lists_of(both.take(pa.array(index, mask=~(inside | fresh))), sizes, result)
    return pc.if_else(pa.array(present), inserted, pa.scalar(None, result))


# -- maps ----------------------------------------------------------------------------------------------------


@spark_function("map_keys", "map<K, V> -> array<K>")
def _map_keys(a: pa.Array, *, result: pa.DataType) -> Any:
    x = Elements(a)
    return lists_of(x.values.field(0), x.sizes, result)


@spark_function("map_values", "map<K, V> -> array<V>")
def _map_values(a: pa.Array, *, result: pa.DataType) -> Any:
    x = Elements(a)
    return lists_of(x.values.field(1), x.sizes, result)


@spark_function(
    "map_entries",
    "map -> E",
    result=lambda kind: array_of(pa.struct([("key", kind.key_type), ("value", kind.item_type)])),
)
def _map_entries(a: pa.Array, *, result: pa.DataType) -> Any:
    x = Elements(a)
    return lists_of(x.values, x.sizes, result)


@spark_function("map_contains_key", "!map<K, V>, !K -> boolean")
def _map_contains_key(a: Value, key: Value, *, length: int) -> Any:
    x = Elements(as_array(a, length))
    keys = lists_of(x.values.field(0), x.sizes)
    y, same = _matches(keys, as_array(key, length))
    return pa.array(np.bincount(y.owners[same], minlength=length) > 0)


def _made_map(keys: pa.Array, items: pa.Array, sizes: Any, kind: pa.DataType, failures: Failures) -> pa.Array:
    owners = np.repeat(np.arange(len(sizes)), sizes)
    null = np.bincount(owners[np.asarray(keys.is_null())], minlength=len(sizes)) > 0
    failures.at(null, "a key is null", "leave such entries out before.")
    twice = np.bincount(owners[~_firsts(owners, dense_ranks(keys))], minlength=len(sizes)) > 0
    failures.at(twice, "a key is there twice", "leave such entries out before.")
    return maps_of(keys, items, sizes, kind)


@spark_function("map_from_arrays", "array<K>, array<V> -> map<K, V>")
def _map_from_arrays(a: Value, b: Value, *, length: int, result: pa.DataType, failures: Failures) -> Any:
    x, y = Elements(as_array(a, length)), Elements(as_array(b, length))
    failures.at(x.sizes != y.sizes, "there are not as many keys as values", "give arrays of one length.")
    return _made_map(x.values, y.values, x.sizes, result, failures)


def _from_entries(kind: pa.DataType) -> pa.DataType | None:
    pair = kind.value_type
    return pa.map_(pair[0].type, pair[1].type) if pa.types.is_struct(pair) and pair.num_fields == 2 else None


@spark_function("map_from_entries", "array -> M", result=_from_entries)
def _map_from_entries(a: pa.Array, *, result: pa.DataType, failures: Failures) -> Any:
    x = Elements(a)
    keys, items = x.values.flatten()
    return _made_map(keys, items, x.sizes, result, failures)


@spark_function("map_concat", "!map<K, V>, !map<K, V>... -> map<K, V>")
def _map_concat(*maps: Value, length: int, result: pa.DataType, failures: Failures) -> Any:
    pairs = [as_array(one, length).cast(entries_of(result)) for one in maps]
    x = Elements(_array_concat(*pairs, length=length, result=entries_of(result)))
    keys, items = x.values.flatten()
    return _made_map(keys, items, x.sizes, result, failures)


@spark_function("str_to_map", "=string, =string?, =string? -> map<string, string>", constant=[1, 2])
def _str_to_map(
    a: Value,
    pairs: pa.Scalar | None = None,
    between: pa.Scalar | None = None,
    *,
    length: int,
    result: pa.DataType,
    failures: Failures,
) -> Any:
    x = Elements(split_texts(as_array(a, length), "," if pairs is None else pairs.as_py()))
    parts = Elements(split_texts(x.values, ":" if between is None else between.as_py(), 2))
    keys = parts.values.take(pa.array(parts.offsets[:-1]))
    items = parts.values.take(
        pa.array(np.minimum(parts.offsets[:-1] + 1, max(len(parts.values) - 1, 0)), mask=parts.sizes < 2)
    )
    return _made_map(keys, items, x.sizes, result, failures)


@spark_function("$compared", lambda kinds, _: (list(kinds), kinds[0]) if len(kinds) == 1 else None)
def compared(a: pa.Array) -> Any:
    """Values of which equal ones are written alike: maps in the order of their keys, 0.0 for -0.0."""
    kind = a.type
    if types.is_float(kind):
        return pc.add(a, pa.scalar(0.0, kind))
    if not pa.types.is_nested(kind):
        return a
    if a.null_count:
        rows = np.flatnonzero(np.asarray(a.is_valid()))
        return scatter([(rows, compared(a.take(pa.array(rows))))] if len(rows) else [], len(a), kind)
    if pa.types.is_struct(kind):
        return pa.StructArray.from_arrays([compared(one) for one in a.flatten()], fields=list(kind))
    x = Elements(a)
    if types.is_array(kind):
        return lists_of(compared(x.values), x.sizes, kind)
    keys, items = map(compared, x.values.flatten())
    order = pa.array(np.lexsort([dense_ranks(keys), x.owners]))
    return maps_of(keys.take(order), items.take(order), x.sizes, kind)
