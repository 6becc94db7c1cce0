"""Values of Avro as columns, by `fastavro`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from json import loads
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from timely_spark.errors import BadArgument
from timely_spark.graph import caller, refuse
from timely_spark.runtime.sources.messages import Decoder

#: Avro's types with one Arrow type each.
_TYPES = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
    "fixed": pa.binary(),
    "enum": pa.string(),
}
_LOGICAL = {
    "date": pa.date32(),
    "time-millis": pa.time64("us"),
    "time-micros": pa.time64("us"),
    "timestamp-millis": pa.timestamp("us", "UTC"),
    "timestamp-micros": pa.timestamp("us", "UTC"),
    "local-timestamp-millis": pa.timestamp("us"),
    "local-timestamp-micros": pa.timestamp("us"),
}
_SYNC = 16


@dataclass(frozen=True)
class Avro(Decoder):
    """A record of Avro in each value, in its binary encoding without a header."""

    #: the schema of the records, parsed
    record: Mapping[str, Any]
    schema: pa.Schema

    @classmethod
    def of(cls, schema: Any) -> Avro:
        """The decoder for a schema of Avro, as text or as a dict.

        Raises:
            BadArgument: it is not a schema of records, or has a type without columns.
        """
        from fastavro.schema import parse_schema

        hint = "give the schema of Avro, as JSON or as a dict, by which the messages were written."
        try:
            record: Any = loads(schema) if isinstance(schema, str) else schema
            parse_schema(record)
            kind = _Types().of(record)
        except BadArgument:
            raise
        except Exception as error:
            msg = f"schema={schema!r} is not a schema of Avro: {error}"
            raise BadArgument(msg, where=caller(), hint=f"{hint}.") from error
        if not pa.types.is_struct(kind):
            refuse(schema, what="schema", expected="the schema of a record", hint=hint)
        return cls(record, pa.schema(list(kind)))

    def parse(self, prepared: Any, start: int, end: int, columns: Sequence[str]) -> pa.Table:
        """Decode the values as one file of Avro.

        Each value stands between a number and a mark, so it is noticed if a value ends elsewhere.
        """
        from fastavro import reader, writer

        values = prepared.slice(start, end - start)
        mark, numbers = os.urandom(_SYNC), np.arange(len(values))
        fixed = {"type": "fixed", "name": "timely_mark", "size": _SYNC}
        pairs = {"number": "long", "value": self.record, "mark": fixed}
        fields = [{"name": name, "type": kind} for name, kind in pairs.items()]
        file = BytesIO()
        writer(file, {"type": "record", "name": "timely_line", "fields": fields}, [], sync_marker=mark)
        prefixes = pa.array(map(_long, range(len(values))), pa.binary())
        lines = pc.binary_join_element_wise(prefixes, values, mark, b"").buffers()[2]
        file.seek(0, os.SEEK_END)
        file.writelines([_long(len(values)), _long(lines.size), lines, mark])
        file.seek(0)
        try:
            decoded: list[Any] = list(reader(file))
        except Exception as error:  # bytes of something else raise anything
            msg = f"it is not a record of the schema: {str(error) or type(error).__name__}"
            raise ValueError(msg) from error
        exact = [line["number"] for line in decoded] == numbers.tolist()
        if not (exact and all(line["mark"] == mark for line in decoded)):
            msg = "it is not one record of the schema"
            raise ValueError(msg)
        rows = pa.array([line["value"] for line in decoded], pa.struct(list(self.schema)))
        return pa.table(rows.flatten(), schema=self.schema).select(columns)


def _long(number: int) -> bytes:
    """Encode a number of at least 0 as a long of Avro."""
    rest, encoded = number << 1, bytearray()
    while rest > 0x7F:
        encoded.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes([*encoded, rest])


class _Types:
    """Convert Avro's types to Arrow's; a name refers to a type that was defined before."""

    def __init__(self) -> None:
        self._named: dict[str, pa.DataType] = {}

    def of(self, kind: Any, space: str = "") -> pa.DataType:
        """The type of columns; `space` is the namespace."""
        if isinstance(kind, list) and len(others := [each for each in kind if each != "null"]) == 1:
            kind = others[0]
        if isinstance(kind, str):
            default = self._named.get(_full(kind, space)) or self._named.get(kind)
        else:
            default = None if isinstance(kind, list) else self._defined(kind, space)
        type_ = _TYPES.get(kind, default) if isinstance(kind, str) else default
        if type_ is None:
            msg = f"schema: there is no type of columns for Avro's {kind!r}"
            hint = 'read the messages with format="bytes", and decode them in a step of the flow.'
            raise BadArgument(msg, where=caller(), hint=hint)
        return type_

    def _defined(self, kind: Any, space: str) -> pa.DataType | None:
        """The type of a definition."""
        name, logical = kind["type"], kind.get("logicalType")
        space = kind.get("namespace", space)
        if logical == "decimal":
            type_ = pa.decimal128(kind["precision"], kind.get("scale", 0))
        elif logical in _LOGICAL:
            type_ = _LOGICAL[logical]
        elif logical == "uuid":
            type_ = None
        elif name == "array":
            type_ = pa.list_(self.of(kind["items"], space))
        elif name == "map":
            type_ = pa.map_(pa.string(), self.of(kind["values"], space))
        elif name == "record":
            inner = _full(kind["name"], space).rpartition(".")[0]
            type_ = pa.struct([(each["name"], self.of(each["type"], inner)) for each in kind["fields"]])
        else:
            type_ = self.of(name, space)
        if "name" in kind and type_ is not None:
            self._named[_full(kind["name"], space)] = type_
        return type_


def _full(name: str, space: str) -> str:
    """A name with its namespace."""
    return name if "." in name or not space else f"{space}.{name}"
