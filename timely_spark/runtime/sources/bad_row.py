"""What is wrong with a file: the first row that cannot be read, and its column; and what to do about it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa

from timely_spark.errors import StorageFailed
from timely_spark.runtime.sources.arrivals import Part
from timely_spark.runtime.sources.file_types import OTHER_CALENDAR, row_groups_in

#: Bytes of JSON that are looked through at a time.
_PORTION = 16 << 20
#: What Arrow says of a place in CSV; and in a block of any format, which is not one in the file.
_IN_CSV = re.compile(
    r"(?:Could not open CSV input source '.*': \w+: )?(?:In CSV column #(\d+): )?"
    r"(?:CSV parse error: )?Row #(\d+): "
)
_IN_BLOCK = re.compile(r" (?:in row|at string index) \d+")

#: The ends of files' names by format, and that of a compressed file behind it.
_NAMED = re.compile(
    r"\.(?:(?P<csv>csv)|(?P<json>json|jsonl|ndjson)|(?P<parquet>parquet)|(?P<arrow>arrow|feather))"
    r"(?:\.(?:bz2|gz|gzip|lz4|snappy|zst|zstd))?$",
    re.IGNORECASE,
)
#: What no types mend.
_NO_TYPES = re.compile("is not closed|does not end|inside of each other")
#: What to do about an error that has a text.
_HINTS = {
    "zone offset": (
        "times without a zone are of type timestamp_ntz, and those with one of type timestamp: give it "
        "in files(schema=...); or read them by Spark, in the session's zone: flow.source(name, "
        "spark.readStream...)"
    ),
    OTHER_CALENDAR: "read it by Spark: flow.source(name, spark.readStream...), with a new checkpoint",
    "straddling": (
        "a record is longer than the reader's blocks (in CSV perhaps since a quote is not closed): "
        "format=pyarrow.dataset.JsonFileFormat(read_options=pyarrow.json.ReadOptions(block_size=...)) or "
        "the same of CSV"
    ),
}


def with_place(folder: Any, part: Part, schema: pa.Schema, columns: Sequence[str], reason: str) -> str:
    """The reason why a part of a file cannot be read, with the first bad row, counted from 1, and its column.

    In CSV the header is row 1.

    Args:
        folder: the `Folder` that reads the file.
        part: the part.
        schema: the columns of the source.
        columns: those that are read.
        reason: what Arrow says.
    """
    # the file as a whole is damaged, or was removed meanwhile
    with suppress(pa.ArrowException, OSError, ValueError, LookupError):
        if folder.kind == "csv" and (at := _IN_CSV.search(reason)) is not None:
            row, column = int(at[2]), None
            if at[1] is not None:
                column = folder.as_it_is(part.path).physical_schema.names[int(at[1])]
            return _placed(row, column, reason.replace(at[0], ""))
        first = None
        if folder.kind == "json":
            first = _in_json(folder, part, schema, columns)
        elif folder.divisible or folder.kind == "arrow":
            first = _in_columns(folder, part, schema, columns)
        if first is not None:
            return _placed(*first, _IN_BLOCK.sub("", reason))
    return reason


def _placed(row: int, column: str | None, reason: str) -> str:
    named = "" if column is None else f", column {column!r}"
    return f"row {row}{named}: {reason.replace(f'{named[2:]}: ', '') if named else reason}"


def what_to_do(error: BaseException, reason: str, path: str, kind: str, *, mendable: bool) -> str:
    """The hint of an error of reading a file, without its end.

    Args:
        reason: what is said about it.
        path: of the file.
        kind: the format in which files are read.
        mendable: whether the user may change the file; not if it is of a Delta table.
    """
    if getattr(error, "errno", None):  # the storage does not give the file
        return str(StorageFailed.of("", error).hint).rstrip(".")
    if (hint := next((hint for text, hint in _HINTS.items() if text in reason), None)) is not None:
        return hint
    if not mendable:
        return "restore it from a backup, and start again"
    named = _NAMED.search(path)
    if named is not None and (form := named.lastgroup) != kind:
        return f"if it is {form}, give format={form!r} (of a job: --format {form}); else mend it"
    types = "" if _NO_TYPES.search(reason) else " or declare types that fit all files (schema=),"
    return f"mend it,{types} and start again"


def first_bad(number: int, fit: Callable[[int, int], bool]) -> int | None:
    """The first of so many rows that does not fit; None if `fit` says that all in `range(0, number)` do.

    >>> first_bad(10, lambda a, b: not a <= 6 < b), first_bad(10, lambda a, b: True)
    (6, None)
    """
    if fit(0, number):
        return None
    good, bad = 0, number  # all rows before `good` fit, and one before `bad` does not
    while bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if fit(good, middle) else (good, middle)
    return good


def _in_columns(folder: Any, part: Part, schema: pa.Schema, columns: Sequence[str]) -> tuple[int, str] | None:
    """The row and column of the first value, in a file with types, that does not fit them or ours."""
    before, batches = _own_rows(folder, part, columns)
    for batch in batches:
        bad = [
            (row, name)
            for name in batch.schema.names
            if (row := first_bad(batch.num_rows, _fits(batch.column(name), schema.field(name).type)))
            is not None
        ]
        if bad:
            row, name = min(bad)
            return before + row + 1, name
        before += batch.num_rows
    return None


def _own_rows(folder: Any, part: Part, columns: Sequence[str]) -> tuple[int, Iterable[pa.RecordBatch]]:
    """The rows of a part with the file's own types, unchecked; and how many are before them."""
    if not folder.divisible:
        with folder.place[0].open_input_file(part.path) as file, pa.ipc.open_file(file.read_buffer()) as own:
            names = [name for name in columns if name in own.schema.names]
            return 0, [own.get_batch(number).select(names) for number in range(own.num_record_batches)]
    fragment = folder.as_it_is(part.path)
    groups = row_groups_in(fragment, part.start, part.end, part.size)
    before = sum(group.num_rows for group in fragment.row_groups[: min(groups, default=0)])
    names = [name for name in columns if name in fragment.physical_schema.names]
    return before, fragment.subset(row_group_ids=groups).scanner(
        columns=names, use_threads=False
    ).to_batches()


def _fits(column: pa.Array, kind: pa.DataType) -> Callable[[int, int], bool]:
    def fit(first: int, end: int) -> bool:
        try:
            part = column.slice(first, end - first)
            part.validate(full=True)
            part.cast(kind).validate(full=True)
        except pa.ArrowException:
            return False
        return True

    return fit


def _in_json(
    folder: Any, part: Part, schema: pa.Schema, columns: Sequence[str]
) -> tuple[int, str | None] | None:
    """The record of JSON, if each has its line, and the column."""
    if folder.format.default_fragment_scan_options.parse_options.newlines_in_values:
        return None
    before, values = 0, folder.keys(part.path) if part.values is None else part.values

    def reads(lines: Sequence[bytes], names: Sequence[str]) -> bool:
        try:
            for _ in folder.json_rows(b"\n".join(lines), values, schema, names):
                pass
        except pa.ArrowException:
            return False
        return True

    with folder.place[0].open_input_stream(part.path) as content:
        for lines in _lines(content):

            def fit(first: int, end: int, lines: list[bytes] = lines) -> bool:
                return reads(lines[first:end], columns)

            if (row := first_bad(len(lines), fit)) is not None:
                column = next((name for name in columns if not reads([lines[row]], [name])), None)
                return before + row + 1, column
            before += len(lines)
    return None


def _lines(content: Any) -> Iterator[list[bytes]]:
    """The lines that are not empty, in portions."""
    held = b""
    while chunk := content.read(_PORTION):
        *complete, held = (held + chunk).split(b"\n")
        yield [line for line in complete if line.strip()]
    yield [line for line in [held] if line.strip()]
