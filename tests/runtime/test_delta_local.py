"""Writes to Delta tables by deltalake: each transaction once, and only to tables that take no more."""

from __future__ import annotations

import datetime as dt
import json
import random
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

import timely_spark as ts
from tests.support.tables import operations, part, prepared, rows_of
from timely_spark.errors import SchemaError
from timely_spark.runtime.errors import OutputMismatch
from timely_spark.runtime.sinks import delta_local
from timely_spark.runtime.sinks.delivery import Delivery, spark_schema
from timely_spark.runtime.sinks.delta import DeltaSink
from timely_spark.runtime.sinks.delta_history import DeltaHistory
from timely_spark.runtime.sinks.delta_local import appended, local_folder, properties, upserted
from timely_spark.runtime.sinks.delta_upsert import Upsert
from timely_spark.runtime.sinks.outputs import outputs_of, prepare_outputs
from timely_spark.runtime.sinks.sink import STAMP

deltalake = pytest.importorskip(
    "deltalake", reason="an environment without Delta, as that of `make test-spark`"
)
OWN = {"its.owner": "one"}
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
        (SCHEMA, {"configuration": {"its.owner": "another"}}),
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


@pytest.mark.parametrize("part", [float("nan"), 1.5, None], ids=str)
def test_nan_is_left_to_spark_as_its_statistics_would_not_have_it(folder: str, part: float | None) -> None:
    pairs = pa.array([{"a": 1, "b": 7.0}, {"a": 2, "b": part}], SCHEMA.field("pair").type)
    rows = records("a", "b").set_column(6, SCHEMA.field("pair"), pairs)

    assert appended(folder, rows, "app", 0, OWN) is (part in {1.5, None})


def test_two_runs_of_copies_of_a_checkpoint_do_not_both_go_on(folder: str) -> None:
    columns = [name for name in SCHEMA.names if name != "epoch"]

    def run() -> Callable[[int, str], None]:
        history = DeltaHistory(folder, "app")
        history.begin(own=True, delivered=True)
        sink = DeltaSink(folder, _app="app", _own=OWN, _columns=columns, _folder=folder, _history=history)

        def deliver(epoch: int, word: str) -> None:
            sink.deliver(None, epoch, [part(epoch, records(word).drop_columns(["epoch"]))])  # type: ignore[arg-type]

        return deliver

    original, copy = run(), run()
    original(0, "a")
    copy(0, "a")  # a run that was taken for dead may write its last epoch once more
    original(1, "b")
    with pytest.raises(OutputMismatch, match="was written by another run of this output"):
        copy(1, "c")
    original(2, "d")
    original(2, "d")  # tried again

    assert words(folder) == ["a", "b", "d"]


def test_epochs_that_a_stalled_run_commits_after_a_start_are_not_written_again(folder: str) -> None:
    history = DeltaHistory(folder, "app")
    history.begin(own=True, delivered=True)
    columns = [name for name in SCHEMA.names if name != "epoch"]
    sink = DeltaSink(folder, _app="app", _own=OWN, _columns=columns, _folder=folder, _history=history)
    assert appended(folder, records("a", "b"), "app", 1, OWN), "epochs 0 and 1"

    epochs = [part(epoch, records(word).drop_columns(["epoch"])) for epoch, word in enumerate("abc")]
    sink.deliver(None, 1, epochs[:2])  # type: ignore[arg-type]
    sink.deliver(None, 2, epochs)  # type: ignore[arg-type]

    assert words(folder) == ["a", "b", "c"]


def test_nothing_is_appended_to_a_table_that_lost_epochs(folder: str) -> None:
    history = DeltaHistory(folder, "app")
    history.begin(own=True, delivered=False)
    columns = [name for name in SCHEMA.names if name != "epoch"]
    sink = DeltaSink(folder, _app="app", _own=OWN, _columns=columns, _folder=folder, _history=history)
    for epoch, word in enumerate("ab"):
        sink.deliver(None, epoch, [part(epoch, records(word).drop_columns(["epoch"]))])  # type: ignore[arg-type]
    deltalake.DeltaTable(folder).restore(1)

    with pytest.raises(OutputMismatch, match="another writer restored"):
        sink.deliver(None, 2, [part(2, records("c").drop_columns(["epoch"]))])  # type: ignore[arg-type]
    assert words(folder) == ["a"]
    deltalake.DeltaTable(folder).alter.set_table_properties(
        {"its.owner": "another"}, raise_if_not_exists=False
    )
    with pytest.raises(OutputMismatch, match="overwritten by another flow"):
        sink.deliver(None, 2, [part(2, records("c").drop_columns(["epoch"]))])  # type: ignore[arg-type]


def test_properties_are_those_of_the_table(folder: str) -> None:
    assert properties(folder) == OWN
    assert properties(folder + "/nowhere") is None


def test_what_fails_is_left_to_spark(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert not appended(folder + "/nowhere", records("a"), "app", 0, OWN)
    assert "Spark does" in caplog.text

    class PanicException(BaseException):  # as that of Rust's libraries
        pass

    now = current(tmp_path / "now")
    for error in (NotImplementedError("a kind"), PanicException("a panic")):
        monkeypatch.setattr(deltalake.DeltaTable, "merge", mock.Mock(side_effect=error))
        assert not put(now, 0, (1, "a", 1))
        assert f"Spark does: {error}" in caplog.text
    monkeypatch.setattr(deltalake.DeltaTable, "metadata", mock.Mock(side_effect=error))
    assert properties(now) is None

    monkeypatch.setattr(deltalake.DeltaTable, "metadata", mock.Mock(side_effect=KeyboardInterrupt))
    for interrupted in (lambda: put(now, 0, (1, "a", 1)), lambda: properties(now)):
        with pytest.raises(KeyboardInterrupt):
            interrupted()


# -- upserts -------------------------------------------------------------------------------------------------

CHANGES = pa.schema([("k", pa.int64()), ("v", pa.string()), ("diff", pa.int64())])


def test_how_often_a_key_was_there_at_the_ends_of_its_epochs() -> None:
    """Of several epochs and keys in one delivery: not in the middle of an epoch, and not of another key."""
    records = {STAMP: [0, 0, *[1] * 7], "k": [*"aaaabccde"], "diff": [1, 1, -1, -1, 1, 1, 2, 1, 1]}
    last = Upsert(keys=["k"], diff="diff", columns=["k"], epoch=False).last(pa.table(records))
    assert sorted(zip(*last.select(["k", last.column_names[-1]]).to_pydict().values(), strict=True)) == [
        ("a", 2), ("b", 1), ("c", 3), ("d", 1), ("e", 1),
    ]  # fmt: skip


OF_CHANGES = Upsert(keys=["k"], diff="diff", columns=["k", "v"], epoch=False)
#: a column of each kind whose values the two libraries may write in another way
VALUES = {
    "whole": (pa.int16(), [7, -3]),
    "part": (pa.float64(), [1.5, -0.0, 0.0, float("inf")]),
    "flag": (pa.bool_(), [True, False]),
    "price": (pa.decimal128(20, 3), [Decimal("-0.125"), Decimal("12345678901234567.000")]),
    "day": (pa.date32(), [dt.date(1, 1, 1), dt.date(9999, 12, 31)]),
    "at": (pa.timestamp("us", "UTC"), [dt.datetime(1969, 12, 31, 23, 59, 59, 999999, dt.timezone.utc)]),
    "local": (
        pa.timestamp("us"),
        [dt.datetime.fromisoformat(at) for at in ("0001-01-01", "2024-03-31 02:30")],
    ),
    "raw": (pa.binary(), [b"", b"\x00\xff"]),
    "word": (pa.string(), ["", "Ünï \0'`\"", "\u4e2d\u6587", "\N{GRINNING FACE}"]),
    "tags": (pa.list_(pa.string()), [[], [None], ["a", None, ""]]),
    "pair": (
        pa.struct([("a", pa.int32()), ("b", pa.struct([("c", pa.list_(pa.float32()))]))]),
        [{"a": None, "b": None}, {"a": 1, "b": {"c": [None, 1.5]}}, {"a": 2, "b": {"c": None}}],
    ),
    "named": (pa.map_(pa.string(), pa.int64()), [[], [("x", None)], [("y", 2), ("", 3)]]),
}


def changing(
    keys: tuple[str, ...], *, diff: bool, seed: int, epochs: int = 6
) -> Iterator[list[tuple[int, list[dict[str, Any]]]]]:
    """Deliveries of one epoch or several: records of all columns, and of their diffs."""
    draw = random.Random(seed)
    rows: dict[Any, dict[str, Any]] = {}
    epoch = 0
    while epoch < epochs:
        delivery = []
        for _ in range(draw.randint(1, 3)):
            records = []
            changed = {}
            for _ in range(draw.randint(1, 6)):
                row = {name: draw.choice([None, *values]) for name, (_, values) in VALUES.items()}
                changed[tuple(str(row[name]) for name in keys)] = row
            for key, row in changed.items():
                before = rows.pop(key, None)
                records += [row | {"diff": 1}] if before is None else [before | {"diff": -1}]
                if before is None or draw.random() < 0.7:
                    records += [] if before is None else [row | {"diff": 1}]
                    rows[key] = row
            draw.shuffle(records)
            delivery.append((epoch if diff else draw.randint(max(0, epoch - 2), epoch), records))
            epoch += 1
        yield sorted(delivery, key=lambda part: part[0])


def schema_of(*, epoch: bool) -> pa.Schema:
    """The columns of a table that has one of the user's, too."""
    columns = [(name, kind) for name, (kind, _) in VALUES.items()]
    return pa.schema([*[("epoch", pa.int64())] * epoch, *columns, ("more", pa.string())])


def upserting(folder: Path, keys: tuple[str, ...], *, diff: bool, epoch: bool) -> DeltaSink:
    """An output of such deliveries."""
    schema = schema_of(epoch=epoch)
    deltalake.DeltaTable.create(folder, schema=schema, configuration=OWN, raise_if_key_not_exists=False)
    return DeltaSink(
        str(folder),
        keys=keys,
        diff="diff" if diff else None,
        epoch=epoch,
        _app="app",
        _own=OWN,
        _columns=[*VALUES],
        _folder=str(folder),
        _has_epoch=epoch,
        _by_epoch=False,
    )


def parts(delivery: list[tuple[int, list[dict[str, Any]]]], *, diff: bool) -> list[Delivery]:
    fields = [(name, kind) for name, (kind, _) in VALUES.items()] + [("diff", pa.int64())] * diff
    tables = [(epoch, pa.Table.from_pylist(records, pa.schema(fields))) for epoch, records in delivery]
    return [part(epoch, table) for epoch, table in tables]


#: keys, and whether there are a diff and a column of epochs
CASES = [
    (("word",), True, False),
    (("whole", "flag"), True, True),
    (("at", "price", "day", "local", "raw"), False, True),
    (("whole", "word"), False, False),
]


@pytest.mark.slow
@pytest.mark.parametrize(("keys", "diff", "epoch"), CASES)
def test_the_last_record_of_each_key_is_in_the_table(
    keys: tuple[str, ...],
    diff: bool,  # noqa: FBT001
    epoch: bool,  # noqa: FBT001
    tmp_path: Path,
) -> None:
    sink = upserting(tmp_path, keys, diff=diff, epoch=epoch)
    expected: dict[Any, tuple[int, dict[str, Any]]] = {}
    for version, delivery in enumerate(changing(keys, diff=diff, seed=len(keys))):
        sink.deliver(None, version, parts(delivery, diff=diff))  # type: ignore[arg-type]  # without Spark
        sink.deliver(None, version, parts(delivery, diff=diff))  # type: ignore[arg-type]
        before = dict(expected)
        for number, records in delivery:
            for record in sorted(records, key=lambda record: record["diff"] if diff else 0):
                key = tuple(str(record[name]) for name in keys)
                if epoch and key in before and before[key][0] > number:
                    continue
                expected.pop(key, None)
                if not diff or record["diff"] > 0:
                    expected[key] = (number, record)
        rows = [{"epoch": number, "more": None} | row for number, row in expected.values()]
        table = pa.Table.from_pylist(rows, schema=schema_of(epoch=epoch))
        rows_now = deltalake.DeltaTable(tmp_path).to_pyarrow_table().to_pylist()
        assert sorted(map(repr, rows_now)) == sorted(map(repr, table.to_pylist()))


def changes(*rows: tuple[Any, ...]) -> pa.Table:
    return OF_CHANGES.last(
        pa.Table.from_pylist(
            [{STAMP: 0, "k": k, "v": v, "diff": diff} for k, v, diff in rows],
            CHANGES.insert(0, pa.field(STAMP, pa.int64())),
        )
    )


def put(folder: str | Path, version: int, *rows: tuple[Any, ...]) -> bool:
    return upserted(str(folder), changes(*rows), OF_CHANGES, app="app", version=version, owner=OWN)


def current(folder: Path, **options: Any) -> Path:
    columns = CHANGES.remove(2)
    options = {"schema": columns, "configuration": OWN, "raise_if_key_not_exists": False} | options
    deltalake.DeltaTable.create(folder, **options)
    return folder


def test_a_second_record_of_a_key_is_left_to_spark_which_raises_the_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    current(tmp_path)
    assert put(tmp_path, 0, (1, "a", 1), (None, "n", 1))

    for rows in ([(1, "b", 1)], [(None, "b", 1)], [(2, "b", 1), (2, "c", 1)], [(3, "x", 1), (1, "a", 1)]):
        caplog.clear()
        assert not put(tmp_path, 1, *rows)
        assert "more than one record" in caplog.text
    assert put(tmp_path, 1, (1, "a", -1), (1, "z", 1), (None, "n", -1), (7, "gone", -1))
    assert rows_of(tmp_path) == [(1, "z")]


@pytest.mark.parametrize("diff", [None, "diff"])
def test_an_older_epoch_never_replaces_the_record_of_a_newer_one(diff: str | None, tmp_path: Path) -> None:
    """By arrival an older epoch may come after a newer one."""
    current(tmp_path, schema=CHANGES.set(2, pa.field("epoch", pa.int64())))
    before = pa.table({"k": [1, 2, 3], "v": ["a", "a", "a"], "epoch": [5, 3, None]})
    deltalake.write_deltalake(tmp_path, before, mode="append")
    upsert = Upsert(keys=["k"], diff=diff, columns=["k", "v"], epoch=True)
    for version, weight in enumerate([0, -1]):
        records = pa.table({"k": [1, 2, 3], "v": ["b"] * 3, "diff": [weight] * 3, STAMP: [4] * 3})
        last = upsert.last(records)
        assert upserted(str(tmp_path), last, upsert, app="app", version=version, owner=OWN)
        replaced = diff is None or version == 0
        assert rows_of(tmp_path) == [(1, "a", 5), *[(2, "b", 4), (3, "b", 4)] * replaced]


def test_columns_of_the_users_keep_their_values(tmp_path: Path) -> None:
    current(tmp_path, schema=CHANGES.set(2, pa.field("more", pa.string())))
    assert put(tmp_path, 0, (1, "a", 1), (2, "b", 1))
    deltalake.DeltaTable(tmp_path).update({"more": "'x'"})

    assert put(tmp_path, 1, (1, "a", -1), (1, "z", 1), (2, "b", -1))
    assert put(tmp_path, 2, (2, "b", 1))

    assert rows_of(tmp_path) == [(1, "z", "x"), (2, "b", None)]


def test_keys_may_have_odd_names(tmp_path: Path) -> None:
    names = ["it's", "s.x", "k`y", '"v"', "SELECT", "Kelvin", "\u4e2d", "_metadata", "t"]
    upsert = Upsert(keys=names, diff=None, columns=[*names, "s", "v"], epoch=False)
    parts = [("s", pa.struct([("t", pa.int64()), ("v", pa.int64())])), ("v", pa.int64())]
    current(tmp_path, schema=pa.schema([*((name, pa.int64()) for name in names), *parts]))
    for version in range(2):
        values = {"s": [{"t": 5, "v": 6}] * 2, "v": [version] * 2}
        table = pa.table({name: [1, None] for name in names} | values | {STAMP: [0] * 2})
        assert upserted(str(tmp_path), table, upsert, app="app", version=version, owner=OWN)

    assert rows_of(tmp_path, "v") == [(1,), (1,)]
    assert operations(tmp_path)[0] == "MERGE"


@pytest.mark.parametrize(
    "options",
    [
        {"configuration": OWN | {"delta.enableChangeDataFeed": "true"}},
        {"configuration": {"its.owner": "another"}},
        {"partition_by": ["v"]},
        {"schema": CHANGES.remove(2).set(0, pa.field("k", pa.int64(), nullable=False))},
        {"schema": pa.schema([("k", pa.float64()), ("v", pa.string())])},
        {"schema": pa.schema([("k", pa.struct([("x", pa.int64())])), ("v", pa.string())])},
        {
            "schema": pa.schema(
                [("k", pa.int64()), *((f"v{i}", pa.int64()) for i in range(delta_local.WIDEST))]
            )
        },
    ],
    ids=["property", "owner", "partitions", "not null", "keys of floats", "nested keys", "many columns"],
)
def test_upserts_to_other_tables_are_left_to_spark(
    options: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    current(tmp_path, **options)
    kind = options.get("schema", CHANGES).field("k").type
    table = changes((1, "a", 1))
    table = table.set_column(1, "k", pa.nulls(1, kind))

    assert not upserted(str(tmp_path), table, OF_CHANGES, app="app", version=0, owner=OWN)

    assert deltalake.DeltaTable(tmp_path).version() == 0
    assert not caplog.text, "nothing was tried"


def test_upserts_to_large_tables_are_left_to_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    current(tmp_path)
    assert put(tmp_path, 0, (1, "a", 1))
    monkeypatch.setattr(delta_local, "LARGEST", 2 * delta_local.SMALL_FILE)
    assert put(tmp_path, 1, (2, "b", 1))
    assert put(tmp_path, 2, (3, "c", 1))

    assert put(tmp_path, 2, (3, "c", 1)), "it is there"
    assert not put(tmp_path, 3, (4, "d", 1)), "three files take as long as large ones"
    deltalake.DeltaTable(tmp_path).optimize.compact()
    assert put(tmp_path, 3, (4, "d", 1))


BY_OTHERS = {
    "a row": lambda place: deltalake.write_deltalake(place, pa.table({"k": [2], "v": ["b"]}), mode="append"),
    "a row less": lambda place: deltalake.DeltaTable(place).delete("k = 1"),
    "the same transaction": lambda place: put(place, 1, (2, "b", 1)),
    "another owner": lambda place: deltalake.DeltaTable(place).alter.set_table_properties(
        {"its.owner": "another"}, raise_if_not_exists=False
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("writes", BY_OTHERS.values(), ids=BY_OTHERS)
def test_an_upsert_that_another_writer_interrupts_is_left_to_spark(
    writes: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    put(current(tmp_path), 0, (1, "a", 1))
    merge, calls = deltalake.DeltaTable.merge, iter([writes])

    def interrupted(table: Any, *args: Any, **options: Any) -> Any:
        for call in calls:
            call(tmp_path)
        return merge(table, *args, **options)

    monkeypatch.setattr(deltalake.DeltaTable, "merge", interrupted)
    assert not put(tmp_path, 1, (2, "c", 1))

    assert "Spark does" in caplog.text
    assert deltalake.DeltaTable(tmp_path).version() == 2


def test_the_last_record_of_a_key_and_the_most_records_that_it_had() -> None:
    schema = pa.schema([(STAMP, pa.int64()), ("k", pa.float64()), ("v", pa.string()), ("diff", pa.int32())])
    nan = float("nan")
    rows = [
        (1, 0.0, "c", 1), (0, -0.0, "a", 1), (1, 0.0, "a", -1),  # one record after each epoch
        (0, nan, "a", 1), (0, nan, "b", 1), (2, nan, "a", -1), (2, nan, "b", None),  # two after the first
        (3, None, "z", -1), (2, None, "y", -1),
    ]  # fmt: skip
    records = pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema)

    last = OF_CHANGES.last(records).drop_columns("k")

    assert sorted(last.to_pylist(), key=str) == sorted(
        [
            {STAMP: 1, "v": "c", "diff": 1, "__timely_more": 1},
            {STAMP: 2, "v": "a", "diff": -1, "__timely_more": 2},
            {STAMP: 3, "v": "z", "diff": -1, "__timely_more": -1},
        ],
        key=str,
    )


def test_files_whose_statistics_have_nan_are_left_to_spark(tmp_path: Path) -> None:
    schema = pa.schema([("k", pa.int64()), ("x", pa.float64()), ("diff", pa.int64())])
    upsert = Upsert(keys=["k"], diff="diff", columns=["k", "x"], epoch=False)
    current(tmp_path, schema=schema.remove(2))

    def written(version: int, x: float) -> bool:
        rows = [{STAMP: 0, "k": version, "x": x, "diff": 1}]
        last = upsert.last(pa.Table.from_pylist(rows, schema.insert(0, pa.field(STAMP, pa.int64()))))
        return upserted(str(tmp_path), last, upsert, app="app", version=version, owner=OWN)

    assert not written(0, float("nan"))
    assert written(1, 7.5)
    log = tmp_path / "_delta_log" / f"{1:020d}.json"
    log.write_text(log.read_text().replace('\\"x\\":7.5', '\\"x\\":\\"NaN\\"'))  # as Spark writes it
    assert not written(2, 8.5)


def test_a_delivery_of_an_output_with_keys_is_an_upsert(tmp_path: Path) -> None:
    sink = DeltaSink(
        str(current(tmp_path)), keys=["k"], diff="diff", _app="app", _own=OWN, _columns=["k", "v"],
        _folder=str(tmp_path), _by_epoch=False,
    )  # fmt: skip
    for version, rows in enumerate(([(1, "a", 1), (2, "b", 1)], [(1, "a", -1), (2, "b", -1), (2, "c", 1)])):
        table = pa.table([*zip(*rows, strict=True)], schema=CHANGES)
        sink.deliver(None, version, [part(version, table)])  # type: ignore[arg-type]
    assert rows_of(tmp_path) == [(2, "c")]
    assert [DeltaSink(target).is_path for target in ("found", "main.s.t", "./found", r"C:\t")] == [
        False, False, True, True,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "[X] CHECK constraint pos (k > 0) violated by row with values:\n - k : -3\n\tat a.b",
            r"t: CHECK constraint pos \(k > 0\) violated by row with values:\n - k : -3\nHint: let ALTER",
        ),
        (
            "[X] Cannot resolve v in UPDATE clause given columns t.k, t.extra.\n\tat a.b",
            r"t: Cannot resolve v in UPDATE clause given columns t.k, t.extra.\nHint: restore the columns",
        ),
        (
            "[X] mismatch:\n- A schema mismatch detected when writing to the Delta table.\nset mergeSchema",
            r"t: A schema mismatch detected when writing\nHint: restore the columns",
        ),
        (
            "[DELTA_FAILED_TO_MERGE_FIELDS] Failed to merge fields 'k' and 'k'\n\tat a.b",
            r"t: Failed to merge fields 'k' and 'k'\nHint: restore the columns",
        ),
    ],
)
def test_what_the_table_refuses_is_the_tables(text: str, expected: str) -> None:
    """Delta's own advice, such as mergeSchema, is of options that no output has."""
    with pytest.raises(SchemaError, match=f"^{expected}"):
        DeltaSink("t")._explain(ValueError(text))


def test_a_table_of_a_catalog_is_written_where_the_catalog_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema, folder = pa.schema([("epoch", pa.int64()), ("word", pa.string())]), tmp_path.resolve()
    deltalake.DeltaTable.create(folder, schema=schema)
    session: Any = mock.Mock(**{"conf.get.return_value": "delta"})
    frame = mock.Mock(schema=spark_schema(schema), columns=schema.names)
    table = mock.Mock(**{"toDF.return_value": frame})
    table.detail().collect.return_value = [{"location": folder.as_uri()}]
    monkeypatch.setattr(DeltaSink, "_table", lambda *_: table)

    def start(properties: dict[str, str], kind: pa.DataType) -> DeltaSink:
        session.sql().collect.return_value = [*properties.items()]
        return prepared(session, DeltaSink("words"), pa.schema([("word", kind)]))

    sink = start({}, pa.string())
    assert sink.resolved(session) == str(folder)
    assert sink.written(1) is None
    deltalake.write_deltalake(folder, pa.table([[0, 0], ["a", "b"]], schema), mode="append")
    written = sink.written(1)
    assert written is not None
    assert written["word"].to_pylist() == ["a"]
    for owner, hint in (({}, ", or pass overwrite=True"), ({"timely_spark.checkpoint": "one"}, "")):
        also = rf"(?s)exists with columns.*Hint: write to another table{hint}\.$"
        with pytest.raises(OutputMismatch, match=also):
            start(owner, pa.int64())


@pytest.mark.parametrize(
    ("sink", "present", "expected"),
    [
        (DeltaSink("t"), [], ["epoch", "k", "v", "diff"]),
        (DeltaSink("t", diff="diff"), [], ["epoch", "k", "v", "diff"]),
        (DeltaSink("t", keys=["k"]), [], ["k", "v", "diff"]),
        (DeltaSink("t", keys=["k"], diff="diff"), ["k", "v"], ["k", "v"]),
        (DeltaSink("t", keys=["k"], diff="diff"), ["epoch", "k", "v"], ["epoch", "k", "v"]),
        (DeltaSink("t", keys=["k"], diff="diff", epoch=False), ["epoch", "k", "v"], ["k", "v"]),
        (DeltaSink("t", keys=["k"], diff="diff", epoch=True), [], ["epoch", "k", "v"]),
    ],
)
def test_the_columns_of_a_table(sink: DeltaSink, present: list[str], expected: list[str]) -> None:
    output: Any = mock.Mock(schema=pa.schema(dict.fromkeys(("k", "v", "diff"), pa.int64())))
    assert sink._schema(output, present).names == expected
    assert sink._columns == [name for name in expected if name != "epoch"]
    own: Any = mock.Mock(schema=pa.schema(dict.fromkeys(("epoch", "k"), pa.int64())))
    assert DeltaSink("t", keys=["k"])._schema(own, ["epoch", "k"]).names == ["epoch", "k"]


def test_a_table_that_is_to_be_made_has_the_name_that_the_catalog_gives_it(tmp_path: Path) -> None:
    session: Any = mock.Mock()
    session.catalog.currentCatalog.return_value, session.catalog.currentDatabase.return_value = "Main", "db"
    assert DeltaSink("Words").resolved(session) == "`main`.`db`.`words`"
    assert DeltaSink(f"{tmp_path}/../t/").resolved(session) == str(tmp_path.parent.resolve() / "t")


def test_two_outputs_that_cannot_have_one_table_are_refused_before_it_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(second: str, *columns: str, write: Any = ts.Stream.to_delta, **options: Any) -> None:
        flow = ts.Dataflow("two")
        x = flow.input("x", "k long, v long, j long")
        x.select("k", "v").to_delta(str(tmp_path / "table"), name="first", overwrite=True)
        write(x.select(*columns), second, name="second", overwrite=True, **options)
        plan = flow.compile()
        prepare_outputs(session, outputs_of(plan, flow.outputs), plan, "", "new")

    def opened(sink: DeltaSink, _: object) -> Any:
        folder = Path(tmp_path, sink.target)
        schema = StructType.fromJson(json.loads(deltalake.DeltaTable(folder).schema().to_json()))
        table = mock.Mock(**{"toDF.return_value": mock.Mock(schema=schema, columns=schema.names)})
        table.detail().collect.return_value = [{"location": folder.resolve().as_uri()}]
        return table

    schema, owner = pa.schema([("epoch", pa.int64())]), {"timely_spark.checkpoint": "old"}
    for name in ("table", "other"):
        deltalake.DeltaTable.create(
            tmp_path / name, schema=schema, configuration=owner, raise_if_key_not_exists=False
        )
    (tmp_path / "link").symlink_to("table")
    session: Any = mock.Mock(**{"sparkContext.master": "local", "conf.get.return_value": "delta"})
    session.sql().collect.return_value = [*owner.items()]
    monkeypatch.setattr(DeltaSink, "_table", opened)

    columns = (r"with columns .*'v bigint'\]; the stream writes .*'j bigint'", ["k", "j"], {})
    parts = (r"partitioned by \[\]; to_delta has partition_by=\['k'\]", ["k", "v"], {"partition_by": "k"})
    refusals: Any = ((f"{tmp_path}/table", columns), (f"{tmp_path}/link", parts), ("table", columns))
    for place, (expected, select, options) in refusals:  # the last place is a name in a catalog
        also = rf"'second': {place} is also the table of output 'first', "
        with pytest.raises(OutputMismatch, match=also + expected) as refused:
            start(place, *select, **options)
        assert "overwrite" not in str(refused.value)
    start("table", "v")  # without a column of the first
    start("other", "k", "j", partition_by="k")
    with pytest.raises(OutputMismatch, match="'first' would overwrite its files"):
        start(f"{tmp_path}/link", "k", write=ts.Stream.to_files)
