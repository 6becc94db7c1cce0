"""Types of files that cannot be read as those of a source: Arrow's cast changes or misses values."""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from datetime import date, datetime, timezone
from typing import Any, TypeAlias
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc

from timely_spark.graph.schema import entries_of
from timely_spark.runtime.sources.arrivals import FileValues
from timely_spark.runtime.sources.csv_files import check_header
from timely_spark.runtime.sources.text_files import TextFile
from timely_spark.sql.types import READ_AS
from timely_spark.state.bounds import parse_json

#: Names of types inside of a column, from the column's on.
Path: TypeAlias = tuple[str, ...]
#: A time with a zone.
INSTANT = pa.timestamp("us", "UTC")
#: What is in a list, among such names.
_ELEMENT = "element"
#: Null as the name of a folder.
_NULL = "__HIVE_DEFAULT_PARTITION__"
#: The types that Spark gave the columns of a file of Parquet.
_SPARK = b"org.apache.spark.sql.parquet.row.metadata"
#: What Spark says of a file of Parquet: its version, and that dates, or times, are of another calendar.
_VERSION = b"org.apache.spark.version"
_JULIAN_DATES, _JULIAN_TIMES = b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96"
#: From these on, its dates and times are those of Arrow.
_SAME_DATE = date(1582, 10, 15), pa.date32()
_SAME_TIME = datetime(1900, 1, 1, tzinfo=timezone.utc), INSTANT
#: what errors call it
OTHER_CALENDAR = "the calendar of Spark 2"


def types(kind: pa.DataType, at: Path) -> Iterator[tuple[Path, pa.DataType]]:
    """A type and all types inside it, by the names of the fields; a map is a list of keys and values."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    yield at, kind
    if pa.types.is_struct(kind):
        for field in kind:
            yield from types(field.type, (*at, field.name))
    elif pa.types.is_map(kind):
        yield from types(kind.key_type, (*at, _ELEMENT, "key"))
        yield from types(kind.item_type, (*at, _ELEMENT, "value"))
    elif hasattr(kind, "value_type"):  # lists of all kinds
        yield from types(kind.value_type, (*at, _ELEMENT))


def unless_empty(own: Callable[[Any], pa.Schema], fragment: Any, opened: TextFile) -> pa.Schema | None:
    """The columns that a file has; None if it is text and empty, as a compressed file may be."""
    try:
        return own(fragment)
    except pa.ArrowInvalid as error:
        if not re.search("Empty (JSON stream|CSV file)", str(error)):
            raise
        if "CSV" in str(error):
            check_header(opened, fragment.format)
        return None


def check_paths(schema: pa.Schema) -> None:
    """Check that each column and each field of a struct has a name of its own.

    Raises:
        pa.ArrowInvalid: several have one name; Arrow would read the first one, or none.
    """
    paths = Counter(at for field in schema for at, _ in types(field.type, (field.name,)))
    if several := [".".join(at) for at, count in paths.items() if count > 1]:
        msg = f"several columns or fields have the name {several[0]!r}"
        raise pa.ArrowInvalid(msg)


def folded(paths: Iterable[Path]) -> set[Path]:
    """The names in lower case."""
    return {tuple(name.lower() for name in path) for path in paths}


def intervals(schema: pa.Schema) -> set[Path]:
    """The intervals of days and times in a file of Parquet that Spark wrote, which are plain microseconds."""

    def paths(kind: Any, at: Path) -> Iterator[Path]:
        match kind:
            case str() if kind.startswith("interval "):  # those of months are 32 bits, which Arrow refuses
                yield at
            case {"fields": fields}:
                for field in fields:
                    yield from paths(field["type"], (*at, field["name"]))
            case {"elementType": element}:
                yield from paths(element, (*at, _ELEMENT))
            case {"keyType": key, "valueType": value}:
                yield from paths(key, (*at, _ELEMENT, "key"))
                yield from paths(value, (*at, _ELEMENT, "value"))

    written = (schema.metadata or {}).get(_SPARK)
    return set() if written is None else set(paths(parse_json(written), ()))


def with_instants(fragment: Any) -> pa.Schema:
    """The columns of a file of Parquet, where INT96 is a time with a zone.

    Spark writes its `timestamp` so, in UTC, and never its `timestamp_ntz`; Arrow says that it has no zone.
    """
    own, columns = fragment.physical_schema, fragment.metadata.schema
    stored = [columns.column(number).physical_type for number in range(len(columns))]
    if "INT96" not in stored:
        return own
    leaves = iter(stored)  # the columns of Parquet are the innermost types, in order
    return pa.schema([each.with_type(_instants(each.type, leaves)) for each in own], own.metadata)


def _instants(kind: pa.DataType, leaves: Iterator[str]) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([each.with_type(_instants(each.type, leaves)) for each in kind])
    if pa.types.is_map(kind):
        return pa.map_(_instants(kind.key_type, leaves), _instants(kind.item_type, leaves))
    if pa.types.is_nested(kind):
        return pa.list_(kind.value_field.with_type(_instants(kind.value_type, leaves)))
    return INSTANT if next(leaves, None) == "INT96" else kind


def zones(kind: pa.DataType) -> dict[Path, bool]:
    """The times in a type, and whether they have a zone."""
    return {at: each.tz is not None for at, each in types(kind, ()) if pa.types.is_timestamp(each)}


def other_calendar(schema: pa.Schema) -> list[pa.Scalar]:
    """The least date and the least time of a file of Parquet that are the same in Arrow; none if all are.

    Spark 2, and later ones if asked, write old dates of the Julian calendar, and old times of Java's.

    >>> [limit.as_py().year for limit in other_calendar(pa.schema([], {_VERSION: b"2.4.8"}))]
    [1582, 1900]
    >>> other_calendar(pa.schema([], {_VERSION: b"4.2.0"})), other_calendar(pa.schema([]))
    ([], [])
    """
    metadata = schema.metadata or {}
    version = tuple(map(int, re.findall(rb"\d+", metadata.get(_VERSION, b"9"))[:2]))
    dates = version < (3, 0) or _JULIAN_DATES in metadata
    times = dates or version < (3, 1) or _JULIAN_TIMES in metadata
    # made when needed: the first scalar of a process loads pandas
    return [pa.scalar(*limit) for limit in [_SAME_DATE] * dates + [_SAME_TIME] * times]


def check_calendar(
    fragment: Any, own: pa.Schema, columns: Collection[str], limits: Iterable[pa.Scalar]
) -> None:
    """Check that no date of a file, and no time with a zone, is before a limit of `other_calendar`.

    Args:
        own: the types in the file: values of folders, defaults and casts are not of its calendar.
    """
    read = [name for name in own.names if name in columns]
    for batch in fragment.to_batches(schema=own, columns=read, use_threads=False):
        for name, limit in itertools.product(read, limits):
            for leaf in _leaves(batch[name]):
                is_date = pa.types.is_date(limit.type)
                same_kind = pa.types.is_date(leaf.type) if is_date else zones(leaf.type).get(())
                if same_kind and pc.any(pc.less(leaf, limit)).as_py():
                    msg = f"column {name!r}: {pc.min(leaf)} is of {OTHER_CALENDAR}, as it is before {limit}"
                    raise pa.ArrowInvalid(msg)


def _leaves(values: pa.Array) -> Iterator[pa.Array]:
    """The innermost values of a column."""
    if pa.types.is_map(values.type):
        values = values.cast(entries_of(values.type))
    if pa.types.is_struct(values.type):
        for each in values.flatten():
            yield from _leaves(each)
    elif pa.types.is_nested(values.type):
        yield from _leaves(values.flatten())
    else:
        yield values


def _is_text(kind: pa.DataType) -> bool:
    return kind in {pa.string(), pa.large_string(), pa.string_view()}


def changes_values(own: pa.DataType, to: pa.DataType) -> bool:
    """Whether a cast reads a text, drops a time of day, adds or drops a zone, or takes numbers for others.

    >>> changes_values(pa.float64(), pa.float32()), changes_values(pa.float32(), pa.float64())
    (True, False)
    """
    if pa.types.is_null(own):
        return False
    if _is_text(own):  # "007" would become 7
        return not (_is_text(to) or to in {pa.binary(), pa.large_binary()})
    if pa.types.is_boolean(to):
        return not pa.types.is_boolean(own)
    if pa.types.is_list_view(own) or pa.types.is_large_list_view(own):
        return not own.equals(to)  # Arrow's cast to a list loses elements
    if pa.types.is_timestamp(own) and pa.types.is_timestamp(to):
        return zones(own) != zones(to)
    part = pa.types.is_timestamp(own) and (pa.types.is_date(to) or pa.types.is_time(to))
    zoned = pa.types.is_date(own) and pa.types.is_timestamp(to) and to.tz is not None
    both_float = pa.types.is_floating(own) and pa.types.is_floating(to)
    return (
        part
        or zoned
        or (both_float and own.bit_width > to.bit_width)  # Arrow rounds, also to infinity
        or any(
            (pa.types.is_integer(a) and pa.types.is_temporal(b))
            or (pa.types.is_decimal(a) and pa.types.is_floating(b))
            for a, b in ((own, to), (to, own))
        )
    )


def times_as_texts(kind: pa.DataType) -> pa.DataType:
    """The type with texts for dates and times."""
    if pa.types.is_date(kind) or pa.types.is_time(kind) or pa.types.is_timestamp(kind):
        return pa.string()
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(times_as_texts(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(times_as_texts(kind.key_type), times_as_texts(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(times_as_texts(kind.value_type)))
    return kind


def with_times_as_texts(
    schema: pa.Schema, columns: Mapping[str, pc.Expression]
) -> tuple[pa.Schema, dict[str, pc.Expression]]:
    """The schema with texts for dates and times; and these.

    Arrow's reader of JSON takes dates for numbers, and times without a zone for those of UTC.
    """
    texts = pa.schema([field.with_type(times_as_texts(field.type)) for field in schema])
    dates = {field.name for field, text in zip(schema, texts, strict=True) if field.type != text.type}
    cast = {name: pc.field(name).cast(schema.field(name).type) for name in dates & {*columns}}
    return texts, {**columns, **cast}


def plain(kind: pa.DataType) -> pa.DataType:
    """The type of a flow's column for the type of a file's column: those that Spark has, too."""
    if pa.types.is_dictionary(kind):
        return plain(kind.value_type)
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", tz=None if kind.tz is None else "UTC")
    if pa.types.is_fixed_size_binary(kind):
        return pa.binary()
    return READ_AS.get(kind, kind)


def valid(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The batches, checked: Arrow reads texts that are not UTF-8, and decimals that are too large."""
    for batch in batches:
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        try:
            while columns:
                name, column = columns.popitem()
                column.validate(full=True)
        except pa.ArrowInvalid as error:
            msg = f"column {name!r}: {error}"
            raise pa.ArrowInvalid(msg) from error
        yield batch


def folder_values(path: str) -> FileValues:
    """The columns in the names of the folders above a file: ``day=1/a.parquet``."""
    pairs = (part.partition("=") for part in path.split("/")[:-1])
    texts = {unquote(key): unquote(value) for key, mark, value in pairs if mark and key}
    return tuple((key, None if text == _NULL else text) for key, text in texts.items())


def partition_value(text: str | None, kind: pa.DataType) -> pa.Scalar:
    """The value of a text in the name of a folder."""
    if text is None:
        return pa.scalar(None, kind)
    return pa.scalar(text).cast(kind)


def scalar_of(value: Any, kind: pa.DataType | None = None) -> pa.Scalar | None:
    """Convert a value to a type; None if it does not fit, as a time without a zone where one is needed."""
    try:
        if kind is not None and (wanted := zones(kind)):
            written = zones(pa.scalar(value).type)
            if any(written[at] != wanted[at] for at in written.keys() & wanted.keys()):
                return None
        return pa.scalar(value, kind)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return None


def single_values(
    columns: Iterable[str],
    schema: pa.Schema,
    present: Collection[str],
    texts: Mapping[str, str | None],
    defaults: Mapping[str, Any],
) -> dict[str, pa.Scalar]:
    """The columns that have one value in a file: that of its folder's name, or a default if not `present`."""
    kinds = {name: schema.field(name).type for name in columns}
    lacking = [name for name in kinds if name in defaults and name not in present]
    values: dict[str, pa.Scalar] = {name: scalar_of(defaults[name], kinds[name]) for name in lacking}
    return values | {name: partition_value(texts[name], kinds[name]) for name in kinds if name in texts}


def row_groups_at(fragment: Any, size: int | None) -> Iterator[int]:
    """The first byte of each row group, 0 for one without rows; `size`: the bytes of the file, if known.

    Raises:
        pa.ArrowInvalid: one is not in the file, as a damaged footer says; no part of the file would have it.
    """
    metadata = fragment.metadata
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        if not group.num_rows:  # it may have no pages
            yield 0
            continue
        column = group.column(0)
        at = min((at for at in (column.dictionary_page_offset, column.data_page_offset) if at), default=0)
        if not 0 < at < (math.inf if size is None else size):
            msg = f"row group {number} begins at byte {at} of {size}"
            raise pa.ArrowInvalid(msg)
        yield at


def row_groups_in(fragment: Any, start: int, end: int, size: int | None) -> list[int]:
    """The row groups of a part of a file: those with their middles in bytes `start` to `end` - 1.

    A row group's middle is between its first byte and the next one's, as for Spark's file source. By first
    bytes, both groups of a file of two would be one task's.
    """
    firsts, middles = list(row_groups_at(fragment, size)), list[int]()
    behind = size or max(firsts, default=0)
    for first in reversed(firsts):
        middles.append((first + behind) // 2 if first else 0)
        behind = first or behind
    return [number for number, middle in enumerate(reversed(middles)) if start <= middle < end]
