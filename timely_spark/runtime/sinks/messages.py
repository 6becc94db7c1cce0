"""The messages of an output to Kafka: JSON as Spark writes it, made of whole columns, and their names."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from timely_spark.sql.functions.documents import is_json_type, json_of
from timely_spark.sql.registry import cast_values
from timely_spark.sql.types import spark_type
from timely_spark.state.grouping import run_starts
from timely_spark.state.hashing import hashes

COLUMNS = ["key", "value"]
SCHEMA = pa.schema(dict.fromkeys(COLUMNS, pa.binary()))


def json_type(schema: pa.Schema, zone: str) -> pa.DataType | None:
    """Spark's type of records with times in a zone; None if `messages_of` would write them differently.

    >>> json_type(pa.schema({"by": pa.map_(pa.int64(), pa.string())}), "UTC") is None
    True
    """
    kind = spark_type(pa.struct(schema), zone)
    return kind if kind is not None and is_json_type(kind) else None


def messages_of(table: pa.Table, key: str | None, kind: pa.DataType, zone: str) -> pa.Table:
    r"""The keys and values of records of a `json_type`: their JSON, with nulls and with times in a zone.

    >>> table = pa.table({"id": [7, None], "it's": ['a "b"', "\n"], "x": [1e10, float("nan")]})
    >>> messages_of(table, "id", json_type(table.schema, "UTC"), "UTC").to_pylist()[0]
    {'key': b'7', 'value': b'{"id":7,"it\'s":"a \\"b\\"","x":1.0E10}'}
    """
    rows = table.to_struct_array().combine_chunks().cast(kind)
    keys = (
        pa.nulls(len(rows), pa.string()) if key is None else cast_values(rows.field(key), pa.string(), zone)
    )
    return pa.table([keys, json_of(rows, zone, nulls=True)], COLUMNS).cast(SCHEMA)


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
