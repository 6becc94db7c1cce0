"""Tables to look at: cut with a note, escaped, well-formed, harmless in a terminal."""

from __future__ import annotations

from datetime import date
from xml.etree import ElementTree as ET

import pyarrow as pa
import pytest

import timely_spark as ts
from timely_spark.captured import Captured, Result
from timely_spark.errors import SchemaError
from timely_spark.show.table import COLUMNS, ROWS, epochs_table

HOSTILE = "<script>alert(1)</script>&\x1b[2J\x00"


def captured(*sizes: int) -> Captured:
    epochs, first = {}, 0
    for epoch, size in enumerate(sizes):
        epochs[epoch] = pa.table({"n": pa.array(range(first, first + size), pa.int64())})
        first += size
    return Captured(pa.schema([("n", pa.int64())]), epochs)


@pytest.mark.parametrize(
    "sizes", [(0,), (ROWS,), (7, 0, 13), (ROWS + 1,), (1, 1, 100, 1, 1), (0, 90, 0), (30, 1), ()]
)
def test_the_first_and_the_last_records_are_shown_and_the_others_counted(sizes: tuple[int, ...]) -> None:
    out = captured(*sizes)
    every = [[epoch, n] for epoch, table in out.epochs.items() for n in table["n"].to_pylist()]

    table = epochs_table("out", out.schema, out.epochs)

    if len(every) <= ROWS:
        assert (table.rows, table.note) == (every, "")
    else:
        half = ROWS // 2
        assert table.rows == [*every[:half], ["...", "..."], *every[-half:]]
        assert table.note == f"{len(every) - ROWS} of {len(every)} records are not shown"


def test_many_columns_are_cut_with_a_note() -> None:
    wide = pa.table({f"c{i}": [i] for i in range(COLUMNS + 3)})

    table = epochs_table("wide", wide.schema, {0: wide})

    assert len(table.columns) == len(table.rows[0]) == COLUMNS + 1
    assert table.note == "3 columns are not shown"


def test_names_and_values_are_escaped() -> None:
    table = pa.table({HOSTILE: [HOSTILE, None], "bytes": [b"<\xff", b""], "list": [["</td>"], []]})
    out = Captured(table.schema, {0: table})

    for html in (out._repr_html_(), Result({HOSTILE: out}, {})._repr_html_()):
        tags = {element.tag for element in ET.fromstring(html).iter()}
        assert tags <= {"div", "b", "i", "table", "thead", "tbody", "tr", "th", "td"}
    assert not {"\x1b", "\x00"} & {*repr(out)}
    assert "0x3cff" in repr(out)


def test_values_that_python_does_not_have_are_shown() -> None:
    far = pa.table({"day": pa.array([0, 2**30], pa.date32()), "long": ["x" * 1000] * 2})

    text = repr(Captured(far.schema, {0: far}))

    assert str(date(1970, 1, 1)) in text
    assert max(map(len, text.splitlines())) < 200


def test_streams_and_collections_show_their_columns() -> None:
    stream = ts.Dataflow("x").input("<b>", "k long, `<i>` string")

    for shown in (stream, stream.collection(), stream.collection().arrange("k")):
        tree = ET.fromstring(shown._repr_html_())
        assert [cell.text for cell in tree.iter("td")] == ["k", "int64", "<i>", "string"]


def test_pandas_gets_all_records_with_their_epochs() -> None:
    frame = captured(2, 0, 1).to_pandas()

    assert list(frame.itertuples(index=False, name=None)) == [(0, 0), (0, 1), (2, 2)]
    ids = pa.table({"id": [2**53 + 1, None]})
    of_ids = Captured(ids.schema, {0: ids}).to_pandas()["id"]
    assert (str(of_ids.dtype), of_ids[0], of_ids.isna()[1]) == ("Int64", 2**53 + 1, True)


def test_an_epoch_column_of_the_records_is_an_error_in_pandas_but_can_be_looked_at() -> None:
    table = pa.table({"epoch": [7]})
    out = Captured(table.schema, {0: table})

    assert repr(out).splitlines()[-1].split() == ["0", "7"]
    with pytest.raises(SchemaError, match="column 'epoch'"):
        out.to_pandas()
