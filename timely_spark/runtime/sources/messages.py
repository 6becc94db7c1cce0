"""Values of messages as columns: bytes, JSON or Avro. Pure: Arrow arrays in, Arrow tables out.

All values of a portion are decoded by one call of a parser. If it fails, the portion is halved until the bad
values are found.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import json

from timely_spark.runtime.sources.file_types import times_as_texts
from timely_spark.runtime.sources.json_files import DEEPEST, Depth

#: What Arrow raises for values that it cannot read; and where it names the first of them.
_UNREADABLE = (pa.ArrowException, ValueError, OverflowError)
_ROW = re.compile(r" in row (\d+)$")


@dataclass(frozen=True, slots=True)
class Decoded:
    """The rows of values, and the values that have none."""

    #: of the good values, in order
    rows: pa.Table
    #: whether each value is good
    good: np.ndarray[tuple[int], np.dtype[np.bool_]]
    #: of the bad values, in order
    reasons: Sequence[str]


class Decoder(ABC):
    """Makes columns of the values of messages."""

    #: the columns of all values
    schema: pa.Schema

    def prepared(self, values: pa.Array) -> Any:
        """The schema that `parse` needs for values without null; computed once."""
        return values

    @abstractmethod
    def parse(self, prepared: Any, start: int, end: int, columns: Sequence[str]) -> pa.Table:
        """The rows of the values from `start` to `end` - 1, one each, in order.

        Raises:
            ValueError: a value cannot be read.
        """

    def decode(self, values: pa.Array, columns: Sequence[str]) -> Decoded:
        """Decode all values that can be decoded.

        A value is good by itself: whatever other values are decoded with it. A null has a row of nulls.

        Args:
            values: the values; null: a message without a value.
            columns: the columns that are read, and checked.
        """
        schema = pa.schema([self.schema.field(name) for name in columns])
        present = np.asarray(values.is_valid())
        good, reasons, tables = np.ones(len(values), bool), list[str](), [schema.empty_table()]
        places, stack = np.flatnonzero(present), []
        prepared = self.prepared(values.drop_null())
        if len(places):
            stack.append((0, len(places)))
        while stack:
            start, end = stack.pop()
            try:
                tables.append(self.parse(prepared, start, end, columns).cast(schema))
            except _UNREADABLE as error:
                reason = str(error).partition("\n")[0]
                named = _ROW.search(reason)
                # one value may be several lines, so what Arrow calls a row may be none of these values
                row = (end - start) // 2 if named is None else min(max(int(named[1]), 1), end - start - 1)
                if end - start == 1:
                    good[places[start]] = False
                    reasons.append(_ROW.sub("", reason))
                else:
                    stack += [(start + row, end), (start, start + row)]
        rows = pa.concat_tables(tables)
        valid = present[good]
        if not valid.all():  # a null has no row yet
            at = pa.array(np.cumsum(valid) - 1, mask=~valid)
            rows = rows.take(at) if len(schema) else rows
        return Decoded(rows.combine_chunks(), good, reasons)


class Bytes(Decoder):
    """The values as they are, in one column."""

    schema = pa.schema({"value": pa.binary()})

    def parse(self, prepared: Any, start: int, end: int, columns: Sequence[str]) -> pa.Table:
        return pa.table(dict.fromkeys(columns, prepared.slice(start, end - start)))


@dataclass(frozen=True)
class Json(Decoder):
    """An object of JSON in each value; members without a column are ignored, columns without one are null."""

    schema: pa.Schema

    def prepared(self, values: pa.Array) -> Any:
        """One line for each value, which has its number: so no value is read as none or as several."""
        for line_end in ("\n", "\r"):  # a tab is as good between tokens, and inside of texts as wrong
            values = pc.replace_substring(values, line_end, "\t")
        numbers = pa.array(np.arange(len(values))).cast(pa.string()).cast(pa.binary())
        return pc.binary_join_element_wise(b'{"number":', numbers, b',"value":', values, b"}\n", b"")

    def parse(self, prepared: Any, start: int, end: int, columns: Sequence[str]) -> pa.Table:
        fields = [self.schema.field(name) for name in columns]
        texts = pa.struct([field.with_type(times_as_texts(field.type)) for field in fields])
        ends = np.frombuffer(prepared.buffers()[1], np.int32)
        lines = prepared.buffers()[2].slice(ends[start], ends[end] - ends[start])
        if np.diff(ends[start : end + 1]).max() > DEEPEST:  # the lines' own object is not the value's
            Depth(-1).check(bytes(lines))
        parse = json.ParseOptions(
            explicit_schema=pa.schema({"number": pa.int64(), "value": texts}),
            unexpected_field_behavior="ignore",
        )
        read = json.ReadOptions(use_threads=False, block_size=lines.size + 1)
        table = json.read_json(pa.BufferReader(lines), read, parse)
        if not np.array_equal(table.column("number").to_numpy(), np.arange(start, end)):
            msg = "it is not one value of JSON"
            raise ValueError(msg)
        table.validate(full=True)  # Arrow's reader does not check that texts are UTF-8
        flat = pa.concat_arrays(table.column("value").chunks).flatten() if fields else []
        return pa.table([c.cast(f.type) for c, f in zip(flat, fields, strict=True)], schema=pa.schema(fields))
