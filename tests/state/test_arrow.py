"""Tables come back from their bytes, and longs travel as narrow as their numbers allow."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from timely_spark.state.arrow import from_bytes, streams, to_bytes


def test_a_table_comes_back_from_its_bytes() -> None:
    table = pa.table({"a": pa.chunked_array([[1, None], [3]]), "b": ["x", None, "z"]})

    assert from_bytes(to_bytes(table)).equals(table)
    assert from_bytes(to_bytes(table.slice(0, 0))).schema == table.schema


@pytest.mark.parametrize("bits", [0, 7, 8, 15, 16, 31, 32, 63])
def test_longs_travel_in_as_few_bytes_as_they_need_and_come_back_as_they_were(bits: int) -> None:
    longs = pa.array([None, -(1 << bits), (1 << bits) - 1] * 2000, pa.int64())
    fields = [pa.field("n", pa.int64(), metadata={"unit": "m"}), ("none", pa.int64()), ("i", pa.int32())]
    columns = [longs, pa.nulls(len(longs), pa.int64()), pa.array(range(len(longs)), pa.int32())]
    table = pa.table(columns, schema=pa.schema(fields))

    sent = to_bytes(table, narrow=True)
    back = from_bytes(sent)
    assert back.equals(table)
    assert back.schema.equals(table.schema, check_metadata=True)
    width = next(bytes_ for bytes_ in (1, 2, 4, 8) if bits < 8 * bytes_)
    assert len(sent) < len(longs) * (width + 1 + 4 + 1)
    assert len(to_bytes(table)) > len(longs) * 20, "for what is kept they are left as they are: it is mapped"


@pytest.mark.parametrize("bits", [8, 16, 32, 64])
@pytest.mark.parametrize("by", [-1, 0, 1])
@pytest.mark.parametrize("low", [False, True])
def test_a_column_of_longs_is_written_as_wide_as_its_numbers_at_every_boundary(
    bits: int, by: int, *, low: bool
) -> None:
    edge = (-(2 ** (bits - 1)) if low else 2 ** (bits - 1) - 1) + by
    fits = by == 0 or (by > 0) == low
    if not fits and bits == 64:
        return
    column = pa.array([0, edge, None] * 1000, pa.int64())
    sent = to_bytes(pa.table({"n": column}), narrow=True)
    with pa.ipc.open_stream(sent) as reader:
        written = reader.schema.field("n").type

    assert written.bit_width == (bits if fits else 2 * bits)
    assert from_bytes(sent).column("n").to_pylist() == column.to_pylist()
    assert from_bytes(sent).schema == pa.schema([("n", pa.int64())])


@pytest.mark.parametrize(
    "table",
    [
        pa.table({"n": [1, 2, None]}),
        pa.table({"n": range(100), "word": ["a", None] * 50}).slice(7, 31),
        pa.table({"n": pa.array([], pa.int64())}),
        pa.schema([("word", pa.string())]).empty_table(),
        pa.concat_tables([pa.table({"word": ["p", "q"]}), pa.table({"word": [None, "z"]})]),
        pa.table({"list": [[1], None, []], "flag": [True, None, False]}).slice(1),
        pa.table({"n": [1]}).replace_schema_metadata({"a": "b"}),
        pa.table({"word": pa.array(["a", "b", "a"]).dictionary_encode()}),
    ],
    ids=lambda table: str(table.schema.names),
)
def test_tables_as_bytes_are_what_a_writer_of_streams_writes(table: pa.Table) -> None:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table.combine_chunks())
    assert to_bytes(table) == sink.getvalue().to_pybytes()
    assert from_bytes(to_bytes(table)).equals(table)


@pytest.mark.parametrize("seed", range(8))
def test_streams_in_a_row_are_read_as_their_tables(seed: int) -> None:
    """Small and large ones, narrowed or not, empty ones included."""
    random, schema = np.random.default_rng(seed), pa.schema([("n", pa.int64()), ("word", pa.string())])
    tables = []
    for rows in random.choice([0, 1, 5, 3000, 20_000], 9).tolist():
        high = random.choice([100, 1 << 40])
        columns = [random.integers(0, high, rows), random.choice(np.array([None, "é", ""]), rows)]
        tables.append(pa.table([*map(pa.array, columns)], schema=schema) if rows else schema.empty_table())
    assert [*streams(tables)] == [to_bytes(table) for table in tables]
    parts = [to_bytes(table, narrow=bool(random.integers(2))) for table in tables]
    assert from_bytes(*parts).equals(pa.concat_tables(tables))


def test_what_is_behind_a_streams_end_is_refused_and_not_left_out() -> None:
    part = to_bytes(pa.table({"n": [1, 2]}))
    for forged in (part + part, part + b"\xff\xff\xff\xff\x00\x00\x00\x00"):
        for received in ((part, forged), (forged, part), (part, forged, part)):
            with pytest.raises(pa.ArrowInvalid):
                from_bytes(*received)
