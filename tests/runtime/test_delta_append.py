"""Appends to Delta tables by deltalake: each transaction once, and only to tables that take no more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from timely_spark.operators.output_vertex import OutputVertex as Vertex
from timely_spark.runtime.errors import OutputMismatch
from timely_spark.runtime.sinks.delivery import Delivery
from timely_spark.runtime.sinks.delta import DeltaSink
from timely_spark.runtime.sinks.delta_append import appended, local_folder, properties
from timely_spark.runtime.sinks.delta_history import DeltaHistory
from timely_spark.runtime.storage.blobs import Blobs
from timely_spark.runtime.storage.files import Files
from timely_spark.state.arrow import to_bytes

deltalake = pytest.importorskip(
    "deltalake", reason="an environment without Delta, as that of `make test-spark`"
)
OWN = {"owner": "one"}
SCHEMA = pa.schema(
    [
        ("epoch", pa.int64()),
        ("word", pa.string()),
        ("at", pa.timestamp("us", "UTC")),
        ("local", pa.timestamp("us")),
        ("price", pa.decimal128(10, 2)),
        ("tags", pa.list_(pa.string())),
        ("pair", pa.struct([("a", pa.int32()), ("b", pa.float64())])),
    ]
)


def records(*words: str) -> pa.Table:
    rows = [
        {"epoch": 0, "word": word, "at": None, "local": None, "price": None, "tags": [word], "pair": None}
        for word in words
    ]
    return pa.Table.from_pylist(rows, schema=SCHEMA)


def part(epoch: int, word: str) -> Delivery:
    table = records(word).drop_columns(["epoch"])
    return Delivery(epoch, [to_bytes(table)], Blobs(Files("/nowhere")), Vertex(table.schema))


@pytest.fixture
def folder(tmp_path: Path) -> str:
    deltalake.DeltaTable.create(tmp_path, schema=SCHEMA, configuration=OWN, raise_if_key_not_exists=False)
    return str(tmp_path)


def words(folder: str) -> list[str]:
    found = (
        deltalake.QueryBuilder()
        .register("t", deltalake.DeltaTable(folder))
        .execute("SELECT word FROM t ORDER BY word")
    )
    return pa.table(found)["word"].to_pylist()  # type: ignore[no-any-return]


def test_a_folder_of_another_host_is_not_local() -> None:
    assert local_folder("file:///tmp/a") == local_folder("file:/tmp/a") == "/tmp/a"
    assert local_folder("file://host/tmp/a") is None


def test_a_transaction_is_committed_once(folder: str) -> None:
    assert appended(folder, records("a", "b"), "app", 3, OWN)
    assert appended(folder, records("a", "b"), "app", 3, OWN)
    assert appended(folder, records("c"), "app", 2, OWN), "an earlier one is there, as Delta says"
    assert appended(folder, records("d"), "another", 2, OWN)

    deltalake.DeltaTable(folder).create_checkpoint()
    assert appended(folder, records("a", "b"), "app", 3, OWN)
    assert appended(folder, records("e"), "app", 4, OWN)

    assert words(folder) == ["a", "b", "d", "e"]
    assert deltalake.DeltaTable(folder).transaction_version("app") == 4


def test_files_may_be_compacted_in_between(folder: str) -> None:
    for version in range(3):
        assert appended(folder, records(f"{version}"), "app", version, OWN)
        deltalake.DeltaTable(folder).optimize.compact()

    assert words(folder) == ["0", "1", "2"]


@pytest.mark.parametrize(
    ("schema", "options"),
    [
        (SCHEMA, {"configuration": OWN | {"delta.appendOnly": "true"}}),
        (SCHEMA, {"configuration": {"owner": "another"}}),
        (SCHEMA, {"partition_by": ["word"]}),
        (SCHEMA.set(1, pa.field("word", pa.string(), nullable=False)), {}),
        (SCHEMA.append(pa.field("more", pa.int64())), {}),
        (SCHEMA.remove(6), {}),
        (SCHEMA.set(1, pa.field("word", pa.string(), metadata={"comment": "of a text"})), {}),
    ],
    ids=["property", "owner", "partitions", "not null", "a column more", "a column less", "a comment"],
)
def test_other_tables_are_left_to_spark(
    schema: pa.Schema, options: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options = {"configuration": OWN, "raise_if_key_not_exists": False} | options
    deltalake.DeltaTable.create(tmp_path, schema=schema, **options)

    assert not appended(str(tmp_path), records("a"), "app", 0, OWN)

    assert deltalake.DeltaTable(tmp_path).version() == 0
    assert not caplog.text, "nothing was tried"


def test_a_table_with_a_feature_of_its_own_is_left_to_spark(folder: str) -> None:
    feature = deltalake.TableFeatures.ChangeDataFeed
    deltalake.DeltaTable(folder).alter.add_feature(feature, allow_protocol_versions_increase=True)

    assert not appended(folder, records("a"), "app", 0, OWN)


def test_nothing_is_appended_to_a_table_that_lost_epochs(folder: str) -> None:
    history = DeltaHistory(folder, "app")
    history.begin(own=True, delivered=False)
    columns = [name for name in SCHEMA.names if name != "epoch"]
    sink = DeltaSink(folder, _app="app", _own=OWN, _columns=columns, _folder=folder, _history=history)
    for epoch, word in enumerate("ab"):
        sink.deliver(None, epoch, [part(epoch, word)])  # type: ignore[arg-type]
    deltalake.DeltaTable(folder).restore(1)

    with pytest.raises(OutputMismatch, match="another writer restored"):
        sink.deliver(None, 2, [part(2, "c")])  # type: ignore[arg-type]
    assert words(folder) == ["a"]
    deltalake.DeltaTable(folder).alter.set_table_properties({"owner": "another"}, raise_if_not_exists=False)
    with pytest.raises(OutputMismatch, match="overwritten by another flow"):
        sink.deliver(None, 2, [part(2, "c")])  # type: ignore[arg-type]


def test_properties_are_those_of_the_table(folder: str) -> None:
    assert properties(folder) == OWN
    assert properties(folder + "/nowhere") is None


def test_what_fails_is_left_to_spark(folder: str, caplog: pytest.LogCaptureFixture) -> None:
    assert not appended(folder + "/nowhere", records("a"), "app", 0, OWN)

    assert "Spark does" in caplog.text
