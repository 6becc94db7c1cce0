"""Values as columns: as a reader of one value at a time has them, whatever other values are beside them."""

from __future__ import annotations

import io
import json
from datetime import timezone
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.turns import CHARACTERS
from timely_spark.errors import BadArgument
from timely_spark.runtime.sources.avro import Avro
from timely_spark.runtime.sources.messages import Bytes, Decoder, Json

SCHEMA = pa.schema({"a": pa.int64(), "b": pa.string(), "c": pa.struct({"d": pa.list_(pa.float64())})})
TEXTS = st.text(CHARACTERS.filter(lambda one: one != "\0"), max_size=5)
OBJECTS = st.fixed_dictionaries(
    {},
    optional={
        "a": st.integers(-(2**63), 2**63 - 1) | st.none(),
        "b": TEXTS | st.none(),
        "c": st.fixed_dictionaries({"d": st.lists(st.floats(allow_nan=False, allow_infinity=False))}),
        "other": st.lists(st.booleans()),
    },
)
BROKEN = [
    b"", b" ", b"{", b"}", b"3", b'"x"', b"[]", b'{"a": 1} {"a": 2}', b'{"a": 1}}', b'{"a": "1"}',
    b'{"a": 1.5}', b'{"a": 99999999999999999999}', b'{"b": "\xff"}', b'{"a": 1, "a": 2}', b'{"b": "\n"}',
    b'{"a": 1} // x', b"nul", b'{}} {"number":1,"value":{}', b'{"c": {"d": 1}}', b'{"c": [1]}',
    b'{"a":1},"number":0,"value":{}',
]  # fmt: skip


def encoded(value: dict[str, Any], indent: int | None) -> bytes:
    return json.dumps(value, indent=indent, ensure_ascii=indent is None).encode()


def expected(value: dict[str, Any]) -> dict[str, Any]:
    return {name: value.get(name) for name in SCHEMA.names}


def alone(decoder: Decoder, value: bytes) -> list[dict[str, Any]]:
    return decoder.decode(pa.array([value], pa.binary()), decoder.schema.names).rows.to_pylist()


@pytest.mark.slow
@given(
    st.lists(
        st.tuples(OBJECTS, st.sampled_from([None, 1])) | st.sampled_from(BROKEN) | st.none(),
        max_size=12,
    )
)
def test_json_has_the_rows_of_the_values_that_are_objects(values: list[Any]) -> None:
    sent = [encoded(*value) if isinstance(value, tuple) else value for value in values]
    decoded = Json(SCHEMA).decode(pa.array(sent, pa.binary()), SCHEMA.names)
    kept = [value for value in values if not isinstance(value, bytes)]
    rows = [dict.fromkeys(SCHEMA.names) if value is None else expected(value[0]) for value in kept]
    assert decoded.rows.to_pylist() == rows
    assert decoded.good.tolist() == [not isinstance(value, bytes) for value in values]
    assert len(decoded.reasons) == sum(isinstance(value, bytes) for value in values)


@pytest.mark.timeout(20)
def test_a_value_of_several_lines_that_shifts_the_row_of_an_error_ends_no_search() -> None:
    two_lines, empty, fine = b'{}} {"number":1,"value":{}', b"", b'{"a": 1}'
    for values, good in (
        ([two_lines, empty], [False, False]),
        ([two_lines, two_lines, fine, empty], [False, False, True, False]),
        ([fine, two_lines, fine], [True, False, True]),
    ):
        assert Json(SCHEMA).decode(pa.array(values, pa.binary()), SCHEMA.names).good.tolist() == good


@pytest.mark.parametrize("value", BROKEN)
def test_a_value_that_is_broken_is_so_alone_too(value: bytes) -> None:
    assert alone(Json(SCHEMA), value) == []


def test_a_value_of_json_that_is_very_deep_is_bad() -> None:
    """It would overflow Arrow's stack, and end the process."""
    deep = [b'{"n": 1, "d": ' + b"[" * depth + b"]" * depth + b"}" for depth in (999, 1000)]
    decoded = Json(pa.schema({"n": pa.int64()})).decode(pa.array([*deep, b'{"n": 2}'], pa.binary()), ["n"])
    assert decoded.good.tolist() == [True, False, True]
    assert decoded.reasons == ["it has more than 1,000 arrays and objects inside of each other"]


def test_json_has_times_and_only_the_columns_that_are_read() -> None:
    schema = pa.schema({"at": pa.timestamp("us", "UTC"), "day": pa.date32(), "n": pa.int32()})
    sent = [b'{"at": "2026-01-01T01:00:00+01:00", "day": "2026-01-02", "n": "x"}', b'{"at": "now"}', b"null"]
    decoded = Json(schema).decode(pa.array(sent), ["day", "at"])
    assert decoded.rows.schema.names == ["day", "at"]
    assert [str(row["at"]) for row in decoded.rows.to_pylist()] == ["2026-01-01 00:00:00+00:00", "None"]
    assert decoded.good.tolist() == [True, False, True]


def test_json_has_the_envelopes_of_change_events() -> None:
    row = pa.struct({"id": pa.int64(), "city": pa.string()})
    schema = pa.schema({"op": pa.string(), "before": row, "after": row})
    event = {"op": "d", "before": {"id": 2**53 + 1, "city": "Bonn", "more": 1}, "after": None, "ts_ms": 5}

    assert alone(Json(schema), json.dumps(event).encode()) == [
        {"op": "d", "before": {"id": 2**53 + 1, "city": "Bonn"}, "after": None}
    ]


@pytest.mark.slow
def test_very_many_bad_values_take_few_parsers() -> None:
    sent = [b"{" if n % 10 == 0 else b'{"a": 1}' for n in range(1000)]
    calls = []
    parse = Json.parse

    class Counted(Json):
        def parse(self, *args: Any) -> pa.Table:
            calls.append(args)
            return parse(self, *args)

    decoded = Counted(SCHEMA).decode(pa.array(sent), ["a"])
    assert decoded.good.sum() == decoded.rows.num_rows == 900
    assert len(calls) <= 4 * 100


INNER = {"type": "record", "name": "i", "fields": [{"name": "d", "type": "double"}]}
RECORD = {
    "type": "record", "name": "r", "namespace": "n", "fields": [
        {"name": "a", "type": "long"},
        {"name": "b", "type": ["null", "string"]},
        {"name": "c", "type": {"type": "array", "items": INNER}},
        {"name": "e", "type": {"type": "enum", "name": "e", "symbols": ["X", "Y"]}},
        {"name": "f", "type": ["i", "null"]},
        {"name": "g", "type": {"type": "map", "values": "int"}},
        {"name": "h", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "j", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
    ],
}  # fmt: skip


def one_by_one(value: bytes) -> dict[str, Any] | None:
    file = io.BytesIO(value)
    try:
        found: Any = fastavro.schemaless_reader(file, fastavro.parse_schema(RECORD))
    except Exception:  # noqa: BLE001 - other bytes raise anything
        return None
    return found if file.tell() == len(value) else None


RECORDS = st.fixed_dictionaries(
    {
        "a": st.integers(-(2**63), 2**63 - 1),
        "b": st.none() | TEXTS,
        "c": st.lists(st.fixed_dictionaries({"d": st.floats(allow_nan=False)}), max_size=3),
        "e": st.sampled_from("XY"),
        "f": st.none() | st.fixed_dictionaries({"d": st.floats(allow_nan=False)}),
        "g": st.dictionaries(TEXTS, st.integers(0, 9), max_size=2),
        "h": st.datetimes(timezones=st.just(timezone.utc)),
        "j": st.decimals(-99999, 99999, places=2),
    }
)


@pytest.mark.slow
@given(
    st.lists(st.tuples(RECORDS, st.none() | st.tuples(st.integers(0, 40), st.binary(max_size=3))), max_size=8)
)
def test_avro_has_the_rows_that_a_reader_of_single_records_has(records: list[Any]) -> None:
    sent: list[bytes] = []
    for record, damage in records:
        file = io.BytesIO()
        fastavro.schemaless_writer(file, fastavro.parse_schema(RECORD), record)
        value = file.getvalue()
        sent.append(value if damage is None else value[: damage[0]] + damage[1])
    decoder = Avro.of(RECORD)
    decoded = decoder.decode(pa.array(sent, pa.binary()), decoder.schema.names)
    known = [one_by_one(value) for value in sent]
    rows = pa.array([value for value in known if value is not None], pa.struct(list(decoder.schema)))
    assert decoded.good.tolist() == [value is not None for value in known]
    assert decoded.rows.to_struct_array().combine_chunks().equals(rows) or not len(rows)


def test_types_of_avro_that_no_column_has_are_refused() -> None:
    for kind in ({"type": "string", "logicalType": "uuid"}, ["int", "string"], "r"):
        schema = {"type": "record", "name": "r", "fields": [{"name": "a", "type": kind}]}
        with pytest.raises(BadArgument, match="no type of columns"):
            Avro.of(schema)


def test_bytes_are_as_they_are() -> None:
    decoded = Bytes().decode(pa.array([b"a", None, b""], pa.binary()), ["value"])
    assert decoded.rows.column("value").to_pylist() == [b"a", None, b""]
    assert np.all(decoded.good)
