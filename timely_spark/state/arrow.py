"""Arrow tables: columns as numpy arrays, the bytes of a table, the widths of its integers."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from timely_spark.state.bounds import checked_messages

Hashes = npt.NDArray[np.uint64]
Indices = npt.NDArray[np.int64]
Longs = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Doubles = npt.NDArray[np.float64]
#: tables with fewer rows are sorted with numpy's own sort, and not narrowed
FEW = 1 << 11
#: shifts all bits of an integer but its sign away
_SIGN = 63
#: the end of an Arrow IPC stream
_END = b"\xff\xff\xff\xff\x00\x00\x00\x00"
#: types whose dictionaries, or storage, are messages of their own
_APART = (pa.DictionaryType, pa.BaseExtensionType)
#: the bytes of streams that are joined before they are read
_LEAST, _SMALL = 16, 1 << 16
#: metadata of a column of longs that is written as a narrower type
_NARROWED = {b"timely_narrowed": b""}
#: the bits of a value, by the number of its primitive type; 0 for others
_WIDTHS: dict[int, int] = {}


def flat(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    """A column as one array, dictionaries decoded.

    >>> flat(pa.chunked_array([["a"], ["b", "a"]]).dictionary_encode()).to_pylist()
    ['a', 'b', 'a']
    """
    if isinstance(column, pa.ChunkedArray):
        column = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
        if isinstance(column, pa.ChunkedArray):
            column = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
    return column.dictionary_decode() if isinstance(column.type, pa.DictionaryType) else column


def numbers(table: pa.Table, column: str) -> npt.NDArray[Any]:
    """A numeric column without nulls as an array; read it only, it may be the table's own memory.

    >>> numbers(pa.table({"n": [1, 2]}), "n")
    array([1, 2])

    Raises:
        pyarrow.ArrowInvalid: the column has nulls, or values other than numbers and times.
    """
    values: npt.NDArray[Any] = flat(table.column(column)).to_numpy()
    return values


def as_numbers(column: pa.ChunkedArray) -> npt.NDArray[Any] | None:
    """A column of numbers as an array, in place; None if it has nulls, several pieces, or other values."""
    if column.type.id not in _NUMBERS or column.num_chunks != 1 or column.null_count:
        return None
    values: npt.NDArray[Any] = column.chunk(0).to_numpy()
    return values


#: the numbers of the types that numpy has, too
_NUMBERS = frozenset(
    kind.id
    for kind in (
        *(pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
        *(pa.float32(), pa.float64()),
    )
)


def rows_at(table: pa.Table, at: Indices) -> pa.Table:
    """The rows at some positions. For few rows numpy takes a fifth of Arrow's time for a column.

    >>> rows_at(pa.table({"n": [7, 8], "word": ["a", None]}), np.array([1, 0])).to_pydict()
    {'n': [8, 7], 'word': [None, 'a']}
    """
    columns = []
    for column in table.columns:
        values = as_numbers(column)
        columns.append(column.take(pa.array(at)) if values is None else pa.array(values[at]))
    return pa.Table.from_arrays(columns, schema=table.schema)


def replaced(table: pa.Table, column: str, values: Any) -> pa.Table:
    """The table with other values in a column, whose type stays."""
    place = table.schema.get_field_index(column)
    field = table.schema.field(place)
    if not isinstance(values, pa.Array | pa.ChunkedArray):
        values = pa.array(values, field.type)
    return table.set_column(place, field, values)


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


def text_bytes(table: pa.Table) -> int:
    """The bytes of the columns whose values are of no fixed length: texts, and nested ones.

    >>> text_bytes(pa.table({"n": [1, 2], "word": ["ab", None]})) > 2, text_bytes(pa.table({"n": [1, 2]}))
    (True, 0)
    """
    kinds = enumerate(table.schema.types)
    return sum(table.column(i).nbytes for i, kind in kinds if not pa.types.is_primitive(kind))


def to_bytes(table: pa.Table, *, narrow: bool = False) -> bytes:
    """A table as one Arrow IPC stream.

    Args:
        narrow: write large columns of longs as narrower integers if their values fit.
    """
    return next(streams([with_narrow_longs(table) if narrow else table]))


def streams(tables: Iterable[pa.Table]) -> Iterator[bytes]:
    """Tables of one schema, each as one Arrow IPC stream."""
    head = b""
    for table in tables:
        head = head or _head(table.schema)
        batches = table.combine_chunks().to_batches()
        if head:
            # a writer gives the same bytes; it takes longer for a small table, more memory for a large one
            yield b"".join([head, *(batch.serialize() for batch in batches), _END])
            continue
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
        yield bytes(sink.getvalue())


def stream_size(table: pa.Table) -> int:
    """The bytes of a table's stream as a writer writes it, batch by batch; not of dictionaries.

    >>> table = pa.table({"n": [1, 2], "word": ["a", None]})
    >>> stream_size(table) == len(to_bytes(table))
    True
    """
    size: int = sum(map(pa.ipc.get_record_batch_size, table.to_batches()))
    return len(_head(table.schema)) + size + len(_END)


def _head(schema: pa.Schema) -> bytes:
    """The message with which a stream begins; empty if its dictionaries are messages of their own."""
    for kind in schema.types:
        if isinstance(kind, _APART) or (kind.num_fields and "dictionary<" in str(kind)):
            return b""
    return bytes(schema.serialize())


def from_bytes(*streams: Any, validate: bool = True) -> pa.Table:
    """The table of Arrow IPC streams of one schema, in order; columns of large streams are not copied.

    >>> wide, narrow = pa.table({"n": [1 << 40] * 2048}), pa.table({"n": [1] * 2048})
    >>> parts = [to_bytes(part, narrow=True) for part in (narrow, narrow, wide)]
    >>> from_bytes(*parts).equals(pa.concat_tables([narrow, narrow, wide]))
    True

    Args:
        validate: check every offset and string; unnecessary for data that this process has checked before.

    Raises:
        pyarrow.ArrowInvalid: the data is not such a stream, an offset leads out of it, or it exceeds a bound;
            or of several streams one has something behind its end.
    """
    several = len(streams) > 1
    parts = _joined(streams) if several else streams
    tables = [_read(part, validate=validate, whole=several) for part in parts]
    # a cast of many small columns takes longer than one of all
    if several:
        tables = [pa.concat_tables(run) for _, run in itertools.groupby(tables, key=attrgetter("schema"))]
    return pa.concat_tables(map(_widened, tables)) if len(tables) > 1 else _widened(tables[0])


def _joined(streams: Iterable[Any]) -> Iterator[Any]:
    """The streams. Small ones with one beginning become one: to open one takes longer than to copy it."""
    views = (memoryview(stream).cast("B") for stream in streams)  # Arrow's buffers have signed bytes
    for head, run in itertools.groupby(views, key=_small_head):
        if head:
            yield b"".join([head, *(part[len(head) : -len(_END)] for part in run), _END])
        else:
            yield from run


def _small_head(stream: memoryview[int]) -> bytes:
    """The first message of a small stream, which has no body; of a large one nothing."""
    if not _LEAST <= len(stream) <= _SMALL or stream[-len(_END) :] != _END:
        return b""
    return bytes(stream[: 8 + int.from_bytes(stream[4:8], "little")])


def _read(stream: Any, *, validate: bool, whole: bool) -> pa.Table:
    messages = checked_messages(stream, whole=whole) if validate else []
    if len(messages) == 2 and messages[1].type == "record batch":  # to open it would check all again
        schema = pa.ipc.read_schema(messages[0])
        table = pa.Table.from_batches([pa.ipc.read_record_batch(messages[1], schema)], schema)
    else:
        with pa.ipc.open_stream(pa.py_buffer(stream)) as reader:
            table = reader.read_all()
    if validate:
        table.validate(full=True)
    return table


def _widened(table: pa.Table) -> pa.Table:
    for i, field in enumerate(table.schema):
        if field.metadata is not None and _NARROWED.keys() <= field.metadata.keys():
            metadata = {key: value for key, value in field.metadata.items() if key not in _NARROWED}
            wide = field.with_type(pa.int64()).with_metadata(metadata or None)
            table = table.set_column(i, wide, table.column(i).cast(pa.int64()))
    return table


def with_narrow_longs(table: pa.Table) -> pa.Table:
    """The table; if it is large, longs are as narrow as their values allow. `from_bytes` widens them."""
    for i, field in enumerate(table.schema if table.num_rows >= FEW else ()):
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


def abs_bound(values: npt.NDArray[Any]) -> int:
    """A bound of integers' absolute values, which is at most twice the greatest one, or 1.

    >>> (
    ...     abs_bound(np.array([2, -3])),
    ...     abs_bound(np.array([4, -1])),
    ...     abs_bound(np.array([-(1 << 63)])) == 1 << 63,
    ... )
    (3, 5, True)
    """
    return int(np.bitwise_or.reduce(values ^ (values >> _SIGN), axis=None)) + 1
