"""Keys of records: the partition function H, equality, and grouping, all on whole columns.

H is part of the on-disk format: it never changes, and is equal in every process and for every integer width.
As in Spark's grouping, null is one key, NaN is one key, and -0.0 equals 0.0.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from timely_spark.graph import Partition, project
from timely_spark.state.bounds import check_stream

Hashes = npt.NDArray[np.uint64]
Indices = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_U = np.uint64
_NULL = _U(0x7C3A_91D5_E86B_20F7)
_PRIME = _U(0x0000_0100_0000_01B3)
#: bytes, or rows, that are hashed at once
_PIECE = 1 << 20
#: tables with fewer rows are sorted with numpy's own sort, and not narrowed
FEW = 1 << 11
#: the end of an Arrow IPC stream
_END = b"\xff\xff\xff\xff\x00\x00\x00\x00"
#: metadata of a column of longs that is written as a narrower type
_NARROWED = {b"timely_narrowed": b""}


def mix(x: Hashes) -> Hashes:
    """The finaliser of splitmix64, a bijection on 64 bits."""
    x = x + _U(0x9E37_79B9_7F4A_7C15)
    x = (x ^ (x >> _U(30))) * _U(0xBF58_476D_1CE4_E5B9)
    x = (x ^ (x >> _U(27))) * _U(0x94D0_49BB_1331_11EB)
    return x ^ (x >> _U(31))


def unmix(x: Hashes) -> Indices:
    """The integers of which `mix` gives these: of a key of one integer, from H.

    >>> unmix(mix(np.array([-7], np.int64).view(np.uint64))).tolist()
    [-7]
    """
    x = (x ^ (x >> _U(31)) ^ (x >> _U(62))) * _U(0x3196_42B2_D24D_8EC3)
    x = (x ^ (x >> _U(27)) ^ (x >> _U(54))) * _U(0x96DE_1B17_3F11_9089)
    x = (x ^ (x >> _U(30)) ^ (x >> _U(60))) - _U(0x9E37_79B9_7F4A_7C15)
    return x.view(np.int64)


def hashes(table: pa.Table, columns: Sequence[str]) -> Hashes:
    """H: a 64-bit hash for each row of `table`, of its values in `columns` in that order.

    Example:
        >>> ints, longs = pa.table({"k": pa.array([7], pa.int8())}), pa.table({"other": [7]})
        >>> bool(hashes(ints, ["k"])[0] == hashes(longs, ["other"])[0])
        True
    """
    result: Hashes | None = None
    for column in columns:
        hashed = _hash_column(flat(table.column(column)))
        result = hashed if result is None else mix(result * _PRIME ^ hashed)
    return result if result is not None else np.zeros(table.num_rows, _U)


def flat(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    """A column as one array, dictionaries decoded."""
    if isinstance(column, pa.ChunkedArray):
        column = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
        if isinstance(column, pa.ChunkedArray):
            column = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
    return column.dictionary_decode() if isinstance(column.type, pa.DictionaryType) else column


def numbers(table: pa.Table, column: str) -> npt.NDArray[Any]:
    """A numeric column without nulls as an array."""
    values: npt.NDArray[Any] = flat(table.column(column)).to_numpy()
    return values


def replaced(table: pa.Table, column: str, values: Any) -> pa.Table:
    """The table with other values in a column, whose type stays."""
    place = table.schema.get_field_index(column)
    field = table.schema.field(place)
    if not isinstance(values, pa.Array | pa.ChunkedArray):
        values = pa.array(values, field.type)
    return table.set_column(place, field, values)


def _hash_column(column: pa.Array) -> Hashes:
    kind = column.type
    nulls = column.null_count
    if (
        pa.types.is_string(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_large_binary(kind)
    ):
        result = _hash_bytes(column)
    elif pa.types.is_null(kind):
        return np.full(len(column), mix(np.array([_NULL]))[0], _U)
    elif pa.types.is_decimal(kind) or pa.types.is_fixed_size_binary(kind):
        result = _hash_bytes(column.cast(pa.string() if pa.types.is_decimal(kind) else pa.binary()))
    else:
        result = mix(words(column))
    if nulls:
        result[column.is_null().to_numpy(zero_copy_only=False)] = mix(np.array([_NULL]))[0]
    return result


def words(column: pa.Array) -> Hashes:
    """A column of numbers or times as 64-bit words; equal values have equal words; nulls have any."""
    kind = column.type
    if pa.types.is_floating(kind):
        values = (
            column.cast(pa.float64()).fill_null(0.0).to_numpy(zero_copy_only=False) + 0.0
        )  # -0.0 + 0.0 is 0.0
        return np.where(np.isnan(values), np.nan, values).view(_U)
    if pa.types.is_timestamp(kind):
        column = column.cast(pa.timestamp("us", tz=kind.tz), safe=False).cast(pa.int64())
    elif pa.types.is_date32(kind) or pa.types.is_time32(kind):
        column = column.cast(pa.int32())
    elif pa.types.is_date64(kind):
        column = column.cast(pa.date32()).cast(pa.int32())
    elif pa.types.is_time64(kind) or pa.types.is_duration(kind):
        column = column.cast(pa.int64())
    elif pa.types.is_boolean(kind):
        column = column.cast(pa.int8())
    column = column.fill_null(0) if column.null_count else column
    words: npt.NDArray[Any] = column.to_numpy(zero_copy_only=False)
    return words.view(_U) if words.dtype == np.uint64 else words.astype(np.int64).view(_U)


def _hash_bytes(column: pa.Array) -> Hashes:
    """The polynomial hash of each value's bytes, from prefix sums, for about a megabyte at once.

    The computation takes about 30 times as much memory as the bytes.
    """
    column = column.cast(pa.large_binary())
    _, offsets_buffer, data_buffer = column.buffers()
    if len(column) == 0:
        return np.zeros(0, _U)
    offsets = np.frombuffer(offsets_buffer, np.int64)[column.offset : column.offset + len(column) + 1]
    data = (
        np.frombuffer(data_buffer, np.uint8)
        if data_buffer is not None and data_buffer.size
        else np.zeros(0, np.uint8)
    )
    result = np.empty(len(column), _U)
    start = 0
    while start < len(column):
        fitting = int(np.searchsorted(offsets, offsets[start] + _PIECE, "right")) - 1
        end = min(max(fitting, start + 1), start + _PIECE)  # at least one value, however long
        result[start:end] = _hash_piece(data, offsets[start : end + 1])
        start = end
    return result


def _hash_piece(data: npt.NDArray[np.uint8], offsets: Indices) -> Hashes:
    lengths = np.diff(offsets)
    data = data[offsets[0] : offsets[-1]]
    starts = offsets[:-1] - offsets[0]
    place = np.arange(len(data)) - np.repeat(starts, lengths)
    powers = np.cumprod(np.full(int(lengths.max()) + 1, _PRIME), dtype=_U)
    sums = np.concatenate([np.zeros(1, _U), np.cumsum((data.astype(_U) + _U(1)) * powers[place], dtype=_U)])
    return mix((sums[starts + lengths] - sums[starts]) ^ mix(lengths.astype(_U)))


def same(left: pa.Table, right: pa.Table, left_on: Sequence[str], right_on: Sequence[str]) -> Mask:
    """Row by row, whether two tables of equal length have equal keys: null equals null, NaN equals NaN."""
    result = np.ones(left.num_rows, np.bool_)
    for left_column, right_column in zip(left_on, right_on, strict=True):
        a, b = flat(left.column(left_column)), flat(right.column(right_column))
        if a.type != b.type and pa.types.is_integer(a.type) and pa.types.is_integer(b.type):
            unsigned = pa.uint64() in {a.type, b.type}
            a, b = a.cast(pa.int64(), safe=False), b.cast(pa.int64(), safe=False)
            if unsigned:  # values from 2**63 on became negative in the cast, and equal no signed value
                result &= pc.fill_null(pc.greater_equal(a, 0), fill_value=True).to_numpy(zero_copy_only=False)
        if pa.types.is_null(a.type):
            continue
        equal = pc.equal(a, b)
        if equal.null_count:
            equal = pc.if_else(equal.is_valid(), equal, pc.and_(a.is_null(), b.is_null()))
        if pa.types.is_floating(a.type):
            both = pc.and_(pc.is_nan(a), pc.is_nan(b)).fill_null(fill_value=False)
            equal = pc.or_(equal, both)
        result &= equal.to_numpy(zero_copy_only=False)
    return result


def exact(table: pa.Table, columns: Sequence[str]) -> bool:
    """Whether different keys have different hashes: keys of one integer column, or of no column."""
    return not columns or (
        len(columns) == 1
        and pa.types.is_integer(kind := table.schema.field(columns[0]).type)
        and (kind != pa.uint64() and table.column(columns[0]).null_count == 0)
    )


def run_starts(numbers: npt.NDArray[Any]) -> Indices:
    """The positions where runs of equal numbers begin.

    >>> run_starts(np.array([4, 4, 7, 4])).tolist()
    [0, 2, 3]
    """
    return changes(numbers).nonzero()[0]


def ranges(starts: Indices, sizes: Indices) -> Indices:
    """The numbers from each start on, as many as its size, one range after the other.

    >>> ranges(np.array([7, 0]), np.array([2, 3])).tolist()
    [7, 8, 0, 1, 2]
    """
    made: Indices = np.repeat(starts - (np.cumsum(sizes) - sizes), sizes)
    made += np.arange(len(made))
    return made


def changes(numbers: npt.NDArray[Any]) -> Mask:
    """Whether each number differs from the one before; the first does."""
    new = np.ones(len(numbers), np.bool_)
    np.not_equal(numbers[1:], numbers[:-1], out=new[1:])
    return new


def in_order(h: Hashes, *, exactly: bool = True) -> Indices:
    """The row numbers in the order of the rows' hashes; rows with one hash keep their order.

    Args:
        exactly: else hashes that are almost equal may be in another order.

    Example:
        >>> in_order(np.array([7, 3, 7, 3], np.uint64)).tolist()
        [1, 3, 0, 2]
    """
    rows = len(h)
    if rows < FEW:
        return np.argsort(h, kind="stable")
    if (h[1:] >= h[:-1]).all():
        return np.arange(rows)
    # np.sort is five times as fast as np.argsort: sort the hashes with row numbers in their lowest bits
    low = _U((1 << (rows - 1).bit_length()) - 1)
    mixed = h & ~low
    mixed |= np.arange(rows, dtype=_U)
    mixed.sort()
    mixed &= low
    order = mixed.view(np.int64)
    if not exactly:
        return order
    ordered = h[order]
    if (ordered[1:] < ordered[:-1]).any():  # some hashes differ in the replaced bits only
        order = order[np.argsort(ordered, kind="stable")]
    return order


@dataclass(frozen=True)
class Groups:
    """Rows in groups of equal keys, within a group in their original order."""

    #: the rows, group by group
    order: Indices
    #: the position in `order` of the first row of each group
    starts: Indices

    @cached_property
    def sizes(self) -> Indices:
        """The number of rows of each group."""
        ends = np.empty_like(self.starts)
        ends[:-1], ends[-1:] = self.starts[1:], len(self.order)
        return ends - self.starts

    @cached_property
    def ids(self) -> Indices:
        """The group of each row of `order`."""
        new = np.zeros(len(self.order), np.int64)
        new[self.starts[1:]] = 1
        return new.cumsum()

    @property
    def of(self) -> Indices:
        """The group of each row, in the rows' own order."""
        made = np.empty(len(self.order), np.int64)
        made[self.order] = self.ids
        return made

    def rows(self, table: pa.Table) -> pa.Table:
        """The rows of the table, group by group."""
        return table if (self.order[1:] > self.order[:-1]).all() else table.take(self.order)

    def slices(self, table: pa.Table) -> Iterator[pa.Table]:
        """The rows of each group: they are moved at most once, and then only sliced."""
        if len(self.starts) > 1:
            table = table.take(pa.array(self.order))
        return map(table.slice, self.starts.tolist(), self.sizes.tolist())

    @property
    def firsts(self) -> Indices:
        """The first row of each group."""
        return self.order[self.starts]

    def totals(self, weights: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The sum of each group's weights."""
        each = weights[self.order]
        if len(self.starts) == len(self.order):
            return each
        return np.add.reduceat(each, self.starts)

    def nonzero(self, weights: Sequence[npt.NDArray[np.int64]]) -> tuple[Indices, list[Indices]]:
        """The first rows of the groups with a total that is not zero, and their totals."""
        totals, firsts = [self.totals(each) for each in weights], self.firsts
        some = totals[0] != 0
        for total in totals[1:]:
            some |= total != 0
        if some.all():
            return firsts, totals
        return firsts[some], [total[some] for total in totals]


def group(table: pa.Table, columns: Sequence[str], hashed: Hashes | None = None) -> Groups:
    """Group the rows of a table by key, in the order of H; rows of one group keep the table's order."""
    h = hashes(table, columns) if hashed is None else hashed
    order = in_order(h)
    if not len(order):
        return Groups(order, np.zeros(0, np.int64))
    ordered = h[order]
    new = changes(ordered)
    if not exact(table, columns):
        keys = table.select(list(columns)).take(order)
        equal = same(keys.slice(1), keys.slice(0, len(order) - 1), columns, columns)
        if not equal[~new[1:]].all():
            order, new = _split_collisions(keys, order, new, columns)
    return Groups(order, new.nonzero()[0])


def _split_collisions(
    keys: pa.Table, order: Indices, new: Mask, columns: Sequence[str]
) -> tuple[Indices, Mask]:
    """`order` and `new` (the first rows of groups) after runs of equal hashes are split by key."""
    order, new = order.copy(), new.copy()
    bounds = np.append(np.flatnonzero(new), len(order))
    for start, end in pairwise(bounds):
        if end - start < 2:
            continue
        groups: list[list[int]] = []
        for row in range(start, end):
            for members in groups:
                if same(keys.slice(members[0], 1), keys.slice(row, 1), columns, columns)[0]:
                    members.append(row)
                    break
            else:
                groups.append([row])
        if len(groups) > 1:
            order[start:end] = order[np.concatenate(groups)]
            new[start:end] = False
            new[start + np.cumsum([0, *map(len, groups[:-1])])] = True
    return order, new


def max_abs(values: npt.NDArray[Any]) -> int:
    """The greatest absolute value of integers, 0 without any.

    >>> max_abs(np.array([2, -3]))
    3
    """
    return max(int(values.max(initial=0)), -int(values.min(initial=0)))


def partition(table: pa.Table, columns: Sequence[str], workers: int) -> dict[int, pa.Table]:
    """Partition the rows of a table by H: a part for each worker that gets rows, in the table's order.

    Example:
        >>> parts = partition(pa.table({"k": [1, 2, 1, 3]}), ["k"], 2)
        >>> sorted(row["k"] for part in parts.values() for row in part.to_pylist())
        [1, 1, 2, 3]
    """
    if table.num_rows == 0:
        return {}
    if workers == 1:
        return {0: table}
    return split(table, hashes(table, columns) % _U(workers), workers)


def partitioned(table: pa.Table, by: Partition, workers: int) -> dict[int, pa.Table]:
    """The records for each worker that gets some, in the table's order.

    A user's H is taken modulo the number of workers; null counts as 0. Pairs in blocks: see `_blocks`.

    >>> by = Partition(("n",), computed="n", expression=pc.field("n"), workers=(1, 4))
    >>> {
    ...     to: part["n"].to_pylist()
    ...     for to, part in partitioned(pa.table({"n": [3, 2, None, -1]}), by, 5).items()
    ... }
    {1: [2, None], 4: [3, -1]}
    """
    among = range(workers) if by.workers is None else by.workers
    if table.num_rows == 0:
        return {}
    if by.broadcast:
        return dict.fromkeys(among, table)
    if len(among) == 1 and by.expression is None:
        return {among[0]: table}
    if (to := destinations(table, by, workers)) is not None:
        return split(table, to, workers)
    assert by.skew is not None
    hashed = hashes(table, by.columns)
    hot = is_hot(hashed, by.skew.hot)
    cold = split(table.filter(pa.array(~hot)), hashed[~hot] % _U(len(among)), len(among))
    copied = table.filter(pa.array(hot))
    return {
        worker: pa.concat_tables([cold[number], copied]) if number in cold else copied
        for number, worker in enumerate(among)
    }


def destinations(table: pa.Table, by: Partition, workers: int) -> Hashes | None:
    """The worker of each record, as in `partitioned`; None: some records are for several workers."""
    among = range(workers) if by.workers is None else by.workers
    if by.broadcast:
        return None
    if by.skew is not None and len(among) > 1:
        to = hashes(table, by.columns)
        if (hot := is_hot(to, by.skew.hot)).any():
            if not by.skew.spread:
                return None
            to[hot] = hashes(table.filter(pa.array(hot)), by.skew.spread)
        to %= _U(len(among))
    elif by.blocks and len(among) > 2:  # of two workers both would get all values
        to = _blocks(table, by.columns, len(among))
    elif by.expression is None:
        to = hashes(table, by.columns) % _U(len(among))
    else:
        value = flat(project(table, {"worker": by.expression}).column(0)).fill_null(0)
        number = value.to_numpy(zero_copy_only=False)
        number = number if number.dtype == np.uint64 else number.astype(np.int64)
        to = (number % number.dtype.type(len(among))).astype(_U)
    return to if by.workers is None else np.array(among, _U)[to]


def is_hot(hashed: Hashes, hot: Sequence[int]) -> Mask:
    """The keys, given by H, that are hot."""
    return np.isin(hashed, np.array(hot, _U))


def _blocks(table: pa.Table, columns: Sequence[str], workers: int) -> Hashes:
    """The worker of each pair of values: about sqrt(2 * workers) workers get pairs with any one value.

    The pairs of a greater and a lesser hash are a triangle. It is cut into strips by the greater one, and a
    strip into cells by the ratio of both: one for each worker, all of one area, about as wide as high. Whole
    numbers of at most 64 bits: a pair has one worker on all machines.
    """
    strips = max(1, round((2 * workers) ** 0.5 - 0.5))
    until = [workers * i * (i + 1) // (strips * (strips + 1)) for i in range(strips + 1)]
    a, b = (hashes(table, [column]) >> _U(38) for column in columns)
    high, low = np.maximum(a, b), np.minimum(a, b)
    area = (high * high >> _U(20)) * _U(workers) >> _U(32)
    strip, first = np.searchsorted(until[1:], area, side="right"), np.array(until, _U)
    to: Hashes = first[strip] + low * np.diff(first)[strip] // (high + _U(1))
    return to


def split(table: pa.Table, to: Hashes, workers: int) -> dict[int, pa.Table]:
    """The records for each worker that gets some, given the worker of each, in the table's order."""
    # numpy sorts 16-bit integers stably by counting
    order = np.argsort(to.astype(np.uint16) if workers <= 1 << 16 else to, kind="stable")
    bounds = np.searchsorted(to[order], np.arange(workers + 1, dtype=_U))
    partitioned = table.take(order)
    return {
        w: partitioned.slice(bounds[w], bounds[w + 1] - bounds[w])
        for w in range(workers)
        if bounds[w] < bounds[w + 1]
    }


def data_bytes(table: pa.Table) -> int:
    """The bytes of a table's values alone: equal tables have as many, however they lie in memory.

    Example:
        >>> data_bytes(pa.table({"n": [1, 2], "word": ["ab", None]}))
        18
    """
    total = 0
    for place, kind in enumerate(table.schema.types):
        if kind.id not in _WIDTHS:
            _WIDTHS[kind.id] = kind.bit_width if pa.types.is_primitive(kind) else 0
        if width := _WIDTHS[kind.id]:
            total += table.num_rows * width // 8
        elif pa.types.is_string(kind) or pa.types.is_binary(kind):
            total += pc.sum(pc.binary_length(table.column(place))).as_py() or 0
        else:
            total += table.column(place).nbytes
    return total


#: by a primitive type's number, the bits of a value; of others 0
_WIDTHS: dict[int, int] = {}


def to_bytes(table: pa.Table, *, narrow: bool = False) -> bytes:
    """A table as one Arrow IPC stream.

    Args:
        narrow: write large columns of longs as narrower integers if their values fit.
    """
    table = (_narrowed(table) if narrow and table.num_rows >= FEW else table).combine_chunks()
    kinds = table.schema.types
    if any("dictionary<" in str(kind) or isinstance(kind, pa.BaseExtensionType) for kind in kinds):
        # a dictionary is a message of its own
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        return bytes(sink.getvalue())
    # a writer gives the same bytes, and takes longer for a small table, and more memory for a large one
    return b"".join([table.schema.serialize(), *(batch.serialize() for batch in table.to_batches()), _END])


def from_bytes(data: Any, *, validate: bool = True) -> pa.Table:
    """The table of an Arrow IPC stream; columns that were not narrowed are not copied.

    Args:
        validate: check every offset and string; unnecessary for data that this process has checked before.

    Raises:
        pyarrow.ArrowInvalid: the data is no such stream, an offset leads out of it, or it exceeds a bound.
    """
    if validate:
        check_stream(data)
    with pa.ipc.open_stream(pa.py_buffer(data)) as reader:
        table = reader.read_all()
    if validate:
        table.validate(full=True)
    for i, field in enumerate(table.schema):
        if field.metadata is not None and _NARROWED.keys() <= field.metadata.keys():
            metadata = {key: value for key, value in field.metadata.items() if key not in _NARROWED}
            wide = field.with_type(pa.int64()).with_metadata(metadata or None)
            table = table.set_column(i, wide, table.column(i).cast(pa.int64()))
    return table


def _narrowed(table: pa.Table) -> pa.Table:
    for i, field in enumerate(table.schema):
        if field.type == pa.int64() and (kind := narrowest(table.column(i))) != pa.int64():
            narrow = field.with_type(kind).with_metadata({**(field.metadata or {}), **_NARROWED})
            table = table.set_column(i, narrow, table.column(i).cast(kind, safe=False))
    return table


def narrowest(column: pa.ChunkedArray) -> pa.DataType:
    """The narrowest type of integers that holds a column of integers.

    >>> narrowest(pa.chunked_array([[3, -129]]))
    DataType(int16)
    """
    bounds = pc.min_max(column)
    return holding(bounds["min"].as_py() or 0, bounds["max"].as_py() or 0)


def holding(low: int, high: int) -> pa.DataType:
    """The narrowest type of integers that holds two integers, and those between them."""
    for kind in (pa.int8(), pa.int16(), pa.int32()):
        limit = 1 << (kind.bit_width - 1)
        if -limit <= low and high < limit:
            return kind
    return pa.int64()
