"""Change events of Debezium, against the table whose random history they tell."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import timely_spark as ts
from timely_spark.errors import BadArgument, SchemaError, VertexError

SCHEMA = "id long, city string, amount decimal(10,2)"
COLUMNS = "op string, before {row}, after {row}, source struct<lsn: long>".format(
    row="struct<id: long, city: string, amount: string>"
)
#: The place of the n-th change in the log of a database.
PLACES: dict[str, Callable[[int], dict[str, Any]]] = {
    "postgresql": lambda n: {"lsn": 95 + n},
    "mysql": lambda n: {"file": f"mysql-bin.{999_999 + n // 4}", "pos": 4 * (n // 2 % 2 + 24), "row": n % 2},
    "sqlserver": lambda n: {
        "commit_lsn": f"00000027:{n // 3:08x}:0001",
        "change_lsn": f"00000027:{n:08x}:0002",
    },
    "oracle": lambda n: {"scn": str(97 + n)},
}


def row(id: int, city: str | None = None, amount: str | None = None) -> dict[str, Any]:
    return {"id": id, "city": city, "amount": amount}


def event(op: str, before: Any, after: Any, source: Any, **more: Any) -> dict[str, Any]:
    return {"op": op, "before": before, "after": after, "source": source, **more}


def history(draw: random.Random, place: Callable[[int], Any]) -> tuple[list[Any], dict[int, Any]]:
    """The events of a random history of a table, and the table in the end."""
    table: dict[int, Any] = {}
    events = []
    for n in range(draw.randint(1, 15)):
        key, new = draw.randrange(3), row(0, draw.choice(["Rome", "Oslo", None]), draw.choice(["1.50", None]))
        before = table.pop(key, None)
        if before is None or draw.random() < 0.6:
            table[key] = {**new, "id": key}
        op = "d" if key not in table else "u" if before else draw.choice("cr")
        # by default PostgreSQL logs of the row before only its key
        logged = draw.choice([before, row(key) if op == "d" else None]) if before else None
        events.append(event(op, logged, table.get(key), place(n)))
        events += [None] * (op == "d")
    return events, table


def encoded(draw: random.Random, one: Any) -> str | None:
    """An event as a message has it, in an envelope or not; a tombstone has no value."""
    return (
        None
        if one is None
        else json.dumps(draw.choice([one, {"schema": {"type": "struct"}, "payload": one}]))
    )


@pytest.mark.slow
@given(seed=st.integers(0, 1 << 32), connector=st.sampled_from([*PLACES]), as_json=st.booleans())
def test_the_table_is_that_of_the_database_in_whichever_order_events_come(
    seed: int, connector: str, *, as_json: bool
) -> None:
    draw = random.Random(seed)
    events, table = history(draw, PLACES["postgresql" if not as_json else connector])
    events += draw.choices(events, k=5)
    draw.shuffle(events)
    flow = ts.Dataflow("table")
    if as_json:
        stream = flow.input("events", "value binary")
        now = ts.debezium(stream, "id", schema=SCHEMA)
        rows: list[Any] = [(None if one is None else encoded(draw, one).encode(),) for one in events]  # type: ignore[union-attr]
    else:
        now = ts.debezium(flow.input("events", COLUMNS), "id")
        rows = [(None,) * 4 if one is None else tuple(one.values()) for one in events]
    now.rows.select("id", "city", amount="string(amount)").capture("now")
    at = draw.randrange(len(rows))

    out = ts.testing.run(flow, {"events": [rows[:at], rows[at:]]}, workers=draw.choice([1, 3]))

    assert sorted(ts.snapshot(out["now"]).to_pylist(), key=str) == sorted(table.values(), key=str)


def test_the_offset_decides_between_events_of_one_place_and_without_one() -> None:
    flow = ts.Dataflow("offsets")
    events = flow.input("events", "value string, offset long")
    ts.debezium(events, "id", schema="id long, city string").rows.capture("now")
    later = [
        (json.dumps(event("r", None, row(n, "Oslo"), place)), 9) for n, place in [(1, {"lsn": 5}), (2, None)]
    ]
    first = [
        (json.dumps(event("r", None, row(n, "Rome"), place)), 8) for n, place in [(1, {"lsn": 5}), (2, None)]
    ]

    out = ts.testing.run(flow, {"events": [later, first]})

    assert out["now"].rows() == {0: [(1, "Oslo", 1), (2, "Oslo", 1)], 1: []}


def test_an_order_of_the_user_is_of_the_columns_of_events() -> None:
    flow = ts.Dataflow("times")
    events = flow.input("events", "value string")
    ts.debezium(
        events, "id", schema="id long, city string", sequence_by=["source.ts_ns", "ts_ms"]
    ).rows.capture("now")
    same = {"ts_ns": 7, "lsn": 0}
    late = event("u", None, row(1, "Rome"), {**same, "lsn": 9}, ts_ms=1)

    out = ts.testing.run(
        flow, {"events": [[json.dumps(event("c", None, row(1, "Oslo"), same, ts_ms=2))], [json.dumps(late)]]}
    )

    assert out["now"].rows() == {0: [(1, "Oslo", 1)], 1: []}


def field(name: str, kind: str, logical: str | None = None, **more: Any) -> dict[str, Any]:
    return {"type": kind, "optional": True, "field": name, **({"name": logical} if logical else {}), **more}


def enveloped(one: dict[str, Any] | None, amount: dict[str, Any]) -> str | None:
    """An event as Kafka Connect's JsonConverter writes it, with its schema."""
    if one is None:
        return None
    columns = [field("id", "int64"), field("city", "string"), amount]
    columns.append(field("since", "int64", "io.debezium.time.MicroTimestamp", version=1))
    columns.append(field("seen", "string", "io.debezium.time.ZonedTimestamp", version=1))
    row = [field(name, "struct", "shop.public.orders.Value", fields=columns) for name in ("before", "after")]
    source = field("source", "struct", "io.debezium.connector.postgresql.Source", fields=[])
    schema = field("", "struct", "shop.public.orders.Envelope", fields=[*row, source, field("op", "string")])
    return json.dumps({"schema": schema, "payload": one})


def test_messages_of_a_connector_with_its_defaults_and_with_schemas() -> None:
    flow = ts.Dataflow("orders")
    schema = "id long, city string, amount decimal(10,2), since long, seen timestamp"
    orders = ts.debezium(
        flow.input("events", "value string"), "id", schema=schema, on_bad_record="quarantine"
    )
    times = {"since": "timestamp_micros(since)"}
    orders.rows.select("id", "city", "amount", "seen", **times).capture("now")
    orders.quarantined.select("reason").capture("bad")
    text = field("amount", "string")
    precise = field(
        "amount", "bytes", "org.apache.kafka.connect.data.Decimal", version=1, parameters={"scale": "2"}
    )

    def place(lsn: int) -> dict[str, Any]:
        times = {"ts_ms": 1559033904863, "ts_us": 1559033904863123, "ts_ns": 1559033904863123000}
        about = {"version": "3.3.1.Final", "connector": "postgresql", "name": "shop", "db": "shop"}
        return {
            **about,
            **times,
            "schema": "public",
            "table": "orders",
            "txId": lsn,
            "lsn": lsn,
            "xmin": None,
        }

    def order(id: int, amount: str) -> dict[str, Any]:
        return {**row(id, "Rome", amount), "since": 1559033904863123, "seen": "2019-05-28T08:58:24.863123Z"}

    sent = [
        event("r", None, order(1, "12.30"), {**place(24), "snapshot": "first"}, ts_ms=1, transaction=None),
        event("c", None, order(2, "0.07"), place(25), ts_ms=2, ts_us=2000, ts_ns=2000000),
        event("u", {"id": 1}, order(1, "-1.00"), place(26), ts_ms=3),
        event("d", row(2), None, place(27), ts_ms=4),
        None,
        event("t", None, None, place(28), ts_ms=5),
        {**event("m", None, None, place(29)), "message": {"prefix": "foo", "content": "Ymfy"}},
    ]
    digits = event("u", None, order(1, "1234"), place(30))  # bytes in base64, which look like a number

    out = ts.testing.run(
        flow, {"events": [[enveloped(one, text) for one in sent], [enveloped(digits, precise)]]}
    )

    ((id, city, amount, seen, since, _),) = [each for each in out["now"].rows()[0] if each[-1] == 1]
    assert (id, city, str(amount)) == (1, "Rome", "-1.00")
    assert seen.isoformat() == since.isoformat() == "2019-05-28T08:58:24.863123+00:00"
    assert out["now"].rows()[1] == []
    reasons = [reason for rows in out["bad"].rows().values() for (reason,) in rows]
    assert reasons == [
        "op 'm' is not one of c, u, r, d",
        "op 't' is not one of c, u, r, d",
        "its decimals are bytes: set decimal.handling.mode=string in the connector",
    ]


#: By connector the `source` of a row of its snapshot, which lacks some fields, of two changes in one
#: transaction, and of a later change, as the connectors' pages have them.
SOURCES: dict[str, list[dict[str, Any]]] = {
    "postgresql": [
        {"snapshot": "last", "sequence": '[null,"24023119"]', "txId": 555, "lsn": 24023119, "xmin": None},
        {"snapshot": "false", "sequence": '["24023119","24023128"]', "txId": 556, "lsn": 24023128},
        {"snapshot": "false", "sequence": '["24023119","24023192"]', "txId": 556, "lsn": 24023192},
        {"snapshot": "false", "sequence": '["24023192","124023192"]', "txId": 557, "lsn": 124023192},
    ],
    "mysql": [
        {"snapshot": "true", "server_id": 0, "gtid": None, "file": "mysql-bin.000003", "pos": 157, "row": 0},
        {"snapshot": "false", "server_id": 223344, "file": "mysql-bin.000003", "pos": 484, "row": 0},
        {"snapshot": "false", "server_id": 223344, "file": "mysql-bin.000003", "pos": 484, "row": 1},
        {"snapshot": "false", "server_id": 223344, "file": "mysql-bin.000004", "pos": 157, "row": 0},
    ],
    "sqlserver": [
        {"snapshot": "true", "change_lsn": None, "commit_lsn": "00000025:00000d98:00a2"},
        *(
            {"commit_lsn": f"{at}:0005", "change_lsn": f"{at}:0003", "event_serial_no": n}
            for at, n in [("00000027:00000758", 1), ("00000027:00000758", 2), ("00000027:00000ac0", 2)]
        ),
    ],
    "oracle": [
        {"snapshot": "true", "scn": "999999", "commit_scn": None, "ssn": 0},
        {"snapshot": "false", "scn": "2122185", "commit_scn": "2122189", "rs_id": "001234.00012345.0124"},
        {"snapshot": "false", "scn": "2122187", "commit_scn": "2122189", "rs_id": "001234.00012345.0134"},
        {"snapshot": "false", "scn": "10000000", "commit_scn": "10000001", "redo_thread": 1},
    ],
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("connector", [*SOURCES])
def test_a_change_of_a_key_after_a_snapshot_in_the_fields_of_each_connector(connector: str) -> None:
    """A row of the snapshot gets another key, which is a deletion and an insertion, and changes."""
    common = {"version": "3.3.1.Final", "connector": connector, "name": "shop", "ts_ms": 1, "db": "shop"}
    snapshot, goes, comes, later = ({**common, **source} for source in SOURCES[connector])
    events = [
        event("r", None, row(1, "Rome"), snapshot, ts_ms=1),
        event("d", row(1, "Rome"), None, goes, ts_ms=2, transaction=None),
        event("c", None, row(2, "Rome"), comes, ts_ms=2),
        event("u", row(2, "Rome"), row(2, "Oslo"), later, ts_ms=3),
    ]
    flow = ts.Dataflow("shop")
    shop = ts.debezium(flow.input("events", "value string"), "id", schema="id long, city string")
    shop.rows.capture("now")
    sent = [json.dumps({"schema": {"type": "struct", "optional": False}, "payload": one}) for one in events]

    out = ts.testing.run(flow, {"events": [sent[:1], sent[3:] + sent[1:3], sent]})

    assert out["now"].rows() == {0: [(1, "Rome", 1)], 1: [(1, "Rome", -1), (2, "Oslo", 1)], 2: []}


LSN = {"lsn": 1}
BAD = {
    "not JSON": "JSON parse error",
    "[1]": "JSON parse error",
    '{"id": 1, "city": "Rome"}': "it has no op; of flattened events",
    "{}": "it has no op",
    json.dumps(event("t", None, None, LSN)): "op 't' is not one of c, u, r, d",
    json.dumps(event("u", row(1), None, LSN)): "it has no row",
    json.dumps(event("d", None, row(1), LSN)): "it has no row",
    json.dumps(event("c", None, {"city": "Rome"}, LSN)): "its key 'id' is null",
    json.dumps(event("c", None, row(1), None)): "its source has none of lsn, file",
    json.dumps(event("c", None, row(1, amount="AfQ="), LSN)): "is not a valid decimal",
    json.dumps(event("u", None, row(1, "__debezium_unavailable_value"), LSN)): "'city' was not logged",
}


def test_bad_events_are_listed_with_a_reason_each_and_change_nothing() -> None:
    flow = ts.Dataflow("bad")
    events = flow.input("events", "value string")
    table = ts.debezium(events, "id", schema=SCHEMA, on_bad_record="quarantine")
    table.rows.count("rows").capture("rows")
    table.quarantined.capture("bad")
    good = json.dumps(event("c", None, row(1, "Rome", "1.50"), LSN))

    out = ts.testing.run(flow, {"events": [[good, *BAD, None, good]]})

    reasons = dict(out["bad"].rows()[0])
    assert {
        value: reasons[value][: len(says)] for value, says in BAD.items() if says not in reasons[value]
    } == {}
    assert len(reasons) == len(BAD)
    assert out["rows"].rows() == {0: [(1, 1)]}


def test_a_bad_event_ends_the_query_and_the_error_shows_it() -> None:
    flow = ts.Dataflow("fails")
    ts.debezium(flow.input("events", "value string"), "id", schema=SCHEMA).rows.capture("rows")
    truncated = json.dumps(event("t", None, None, LSN))

    with pytest.raises(
        VertexError, match=r"(?s)step 'debezium'.*\"op\": \"t\".*op 't' is not one of.*Hint: .*quarantine"
    ):
        ts.testing.run(flow, {"events": [[truncated]]})


def test_what_does_not_fit_is_refused_when_the_flow_is_built() -> None:
    flow = ts.Dataflow("refused")
    events, columns = flow.input("events", "value string"), flow.input("columns", COLUMNS)
    with pytest.raises(SchemaError, match=r"asks for columns \['op'"):
        ts.debezium(events, "id")
    with pytest.raises(SchemaError, match=r"(?s)\['idd'\], the table has .*did you mean 'id'"):
        ts.debezium(events, "idd", schema=SCHEMA)
    with pytest.raises(SchemaError, match="needs one of lsn, file"):
        ts.debezium(flow.input("placeless", COLUMNS.replace("lsn", "txid")), "id")
    with pytest.raises(SchemaError, match="before and after are structs of the table's columns"):
        ts.debezium(columns.select("op", "source", before="op", after="op"), "id")
    with pytest.raises(SchemaError, match="lsnn"):
        ts.debezium(columns, "id", sequence_by="source.lsnn")
    with pytest.raises(BadArgument, match=r"on_bad_record='drop' is not 'fail' or 'quarantine'"):
        ts.debezium(columns, "id", on_bad_record="drop")  # type: ignore[arg-type]
