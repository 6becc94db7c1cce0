"""`debezium`: the table that Debezium's change events describe, as a collection."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from timely_spark.authors import (
    Several,
    Stateless,
    algorithm,
    caller,
    check_columns,
    describe,
    flat,
    project,
    projected,
)
from timely_spark.differential import Collection
from timely_spark.errors import SchemaError, excerpt
from timely_spark.graph import Expression, SchemaLike, as_schema, names, word
from timely_spark.operators.sql import expression
from timely_spark.runtime.errors import BadRecord
from timely_spark.runtime.sources.messages import Json
from timely_spark.streams import Stream

#: What `source` says of the place of a change in its database's log, in the order of significance. Each
#: connector has some of them: see `debezium`.
PLACE = {
    "lsn": pa.int64(), "file": pa.string(), "pos": pa.int64(), "row": pa.int64(), "commit_lsn": pa.string(),
    "change_lsn": pa.string(), "event_serial_no": pa.int64(), "scn": pa.string(),
}  # fmt: skip
SOURCE = pa.struct({**PLACE, "ts_ms": pa.int64(), "ts_us": pa.int64(), "ts_ns": pa.int64()})
#: What stands for a value that PostgreSQL did not log: as a text, and as bytes in base64.
_UNAVAILABLE = ("__debezium_unavailable_value", "X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ==")
#: The logical type of decimals that are bytes, as an envelope's schema names it.
_DECIMAL_BYTES = "org.apache.kafka.connect.data.Decimal"
_OPS = ("c", "u", "r", "d")
_EVENT = ("op", "before", "after", "source")
_DELETES, _ORDER, _PLACE = "__timely_removes", "__timely_order_", "__timely_order_place"


@dataclass(frozen=True)
class Debezium(Several):
    """The result of `debezium`."""

    #: the rows of the table, in the columns of `schema`
    rows: Collection
    #: the events that change no row, as they came, and `reason`; none with ``on_bad_record="fail"``
    quarantined: Stream


@algorithm
def debezium(
    events: Stream,
    keys: str | Sequence[str],
    *,
    schema: SchemaLike | None = None,
    sequence_by: str | Sequence[str] | None = None,
    on_bad_record: Literal["fail", "quarantine"] = "fail",
    name: str | None = None,
) -> Debezium:
    """The table of a database, from the change events that Debezium writes of it.

    The law: of each key the row is that of its last event, if that is not a deletion (`Stream.upserts`). The
    last event has the greatest place in the database's log; of several with that place, it has the greatest
    `offset`, if the stream has this column. So events that come twice, late or in another order change
    nothing. The place is what `source` has of ``lsn`` (PostgreSQL), ``file``, ``pos``, ``row`` (MySQL,
    MariaDB), ``commit_lsn``, ``change_lsn``, ``event_serial_no`` (SQL Server), ``scn`` (Oracle).

    Events are ``c``, ``u``, ``r``, with the row in `after`, and ``d``, with the key in `before`. Tombstones
    change nothing: the deletion came before. Any other event is a bad record: an ``op`` such as ``t``
    (TRUNCATE), no row, a key or a place that is null, a value of another type, or one that PostgreSQL did not
    log (``__debezium_unavailable_value``; set REPLICA IDENTITY FULL).

    A value is read as JSON has it. Set ``decimal.handling.mode=string`` for decimals; with its default they
    are bytes in base64. Such events are bad records, if an envelope's schema or a letter shows it. Times as
    texts in ISO 8601 are read as such: columns with a zone in every mode, and all with
    ``time.precision.mode=isostring``, but for dates, which it writes as ``2024-02-29Z``: declare them as
    string, and convert them: ``rows.select("*", born="to_date(left(born, 10))")``. Declare numbers as int or
    long: ``rows.select("*", at="timestamp_micros(micros)")``; likewise bytes as string, by ``unbase64``.

    An epoch costs its events. The state is the last event of each key, also of a deleted one.

    Args:
        events: change events of one table: as JSON in the column `value`, in an envelope of `schema` and
            `payload` or without it; or, without `schema`, as columns.
        keys: the columns of the table's primary key.
        schema: the columns of the table, of events as JSON; others are ignored, and missing ones are null.
        sequence_by: what orders the events of a key, in Spark's SQL over the columns of events (``op``,
            ``before``, ``after``, ``source``, ``ts_ms``) and of the stream: "offset" after a move to a
            database with another log, "source.ts_ns" for a connector without places.
        on_bad_record: "fail": a bad record ends the query; "quarantine": it is left out, and listed by
            `Debezium.quarantined`.

    **Columns:** in: ``value`` string or binary; or ``op`` string, ``before`` and ``after`` structs of the
    table's columns, ``source`` a struct; and any others. Out: see `Debezium`; none of `rows` may be nested.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("customers")
        >>> events = flow.input("events", "value string")  # or flow.kafka("events", topic, servers)
        >>> customers = ts.debezium(events, "id", schema="id long, city string")
        >>> _ = customers.rows.capture("now")
        >>> event = '{"op": "%s", "before": %s, "after": %s, "source": {"lsn": %d}}'
        >>> rome, oslo = '{"id": 1, "city": "Rome"}', '{"id": 1, "city": "Oslo"}'
        >>> moved = event % ("u", rome, oslo, 12)
        >>> epochs = [
        ...     [event % ("c", "null", rome, 11)],
        ...     [moved],
        ...     [moved, event % ("d", oslo, "null", 13), None],
        ... ]
        >>> ts.testing.run(flow, {"events": epochs})["now"].rows()
        {0: [(1, 'Rome', 1)], 1: [(1, 'Oslo', 1), (1, 'Rome', -1)], 2: [(1, 'Oslo', -1)]}

    Raises:
        GraphError: the stream is in a loop, or has retractions.
        SchemaError: a column is missing, or of another type; or nothing says where events are in a log.
        BadArgument: `on_bad_record` is another word.
        VertexError: at run time: there is a bad record.
    """
    word("on_bad_record", on_bad_record, ("fail", "quarantine"), step="debezium")
    decoder = None
    check_columns("debezium", events.schema, _EVENT if schema is None else ["value"])
    if schema is None:
        read, row = events.schema, _row(events.schema)
    else:
        row = as_schema(schema)
        fields = {"op": pa.string(), "before": pa.struct(row), "after": pa.struct(row), "source": SOURCE}
        fields["ts_ms"] = pa.int64()
        decoder = Json(pa.schema({**fields, "payload": pa.struct(fields)}))
        read = pa.schema({**{field.name: field.type for field in events.schema}, **fields})
    keys = names("debezium", keys)
    check_columns("debezium", row, keys, keys=True, of="the table")
    order = _order(read, sequence_by)
    kinds = projected("debezium", {new: old for new, old in order.items() if new != _PLACE}, read)
    kinds = pa.schema([(new, pa.string() if new == _PLACE else kinds.field(new).type) for new in order])
    changes = pa.schema([*row, *kinds, (_DELETES, pa.bool_())])
    rows, bad = events.then(
        "debezium",
        [changes, pa.schema([*events.schema, pa.field("reason", pa.string())])],
        vertex=_Events(keys, changes, order, decoder, fails=on_bad_record == "fail"),
        own=changes.names,
        detail=", ".join(keys),
        parameters={"sequence_by": [str(one) for one in order.values()]},
    )
    table = rows.upserts(keys, list(order), apply_as_deletes=pc.field(_DELETES))
    return Debezium(table.select(*row.names, name=name), bad)


def _row(schema: pa.Schema) -> pa.Schema:
    """The columns of the table, of events in columns."""
    kinds = {name: schema.field(name).type for name in _EVENT}
    row = pa.schema(list(kinds["after"])) if pa.types.is_struct(kinds["after"]) else pa.schema([])
    if not row.names or kinds["op"] != pa.string() or kinds["before"] != kinds["after"]:
        msg = f"debezium: its input has ({describe(schema)})"
        hint = "op is a string, before and after are structs of the table's columns; or give schema=."
        raise SchemaError(msg, where=caller(), hint=hint)
    return row


def _order(read: pa.Schema, sequence_by: str | Sequence[str] | None) -> dict[str, str | Expression]:
    """What orders the events of a key, by the names of new columns."""
    if sequence_by is None:
        source = read.field("source").type
        parts = [one.name for one in source if one.name in PLACE] if pa.types.is_struct(source) else []
        order: dict[str, str | Expression] = {_PLACE: "source"} if parts else {}
    else:
        texts = names("debezium", sequence_by)
        order = {f"{_ORDER}{n}": expression("debezium", text, read) for n, text in enumerate(texts)}
    if "offset" in read.names:
        order[f"{_ORDER}offset"] = "offset"
    if not order:
        msg = f"debezium: source is {read.field('source').type}"
        hint = f"it needs one of {', '.join(PLACE)}; or give sequence_by=."
        raise SchemaError(msg, where=caller(), hint=hint)
    return order


class _Events(Stateless):
    """Sends what events make of rows, and the bad events with reasons."""

    def __init__(
        self,
        keys: tuple[str, ...],
        changes: pa.Schema,
        order: Mapping[str, str | Expression],
        decoder: Json | None,
        *,
        fails: bool,
    ) -> None:
        self.keys, self.order, self.decoder, self.fails = keys, order, decoder, fails
        #: the table's columns, what orders them, and whether the row is deleted
        self.changes = changes

    def apply(self, batch: pa.Table) -> tuple[pa.Table, ...]:
        """The changes, and the bad events."""
        events, tombstones, reasons = self._events(batch)
        deletes = pc.fill_null(pc.equal(flat(events["op"]), "d"), fill_value=False)
        row = pc.if_else(deletes, flat(events["before"]), flat(events["after"]))
        columns = dict(zip((field.name for field in row.type), row.flatten(), strict=True))
        order = project(events, {new: old for new, old in self.order.items() if new != _PLACE})
        columns |= dict(zip(order.schema.names, order.columns, strict=True))
        if _PLACE in self.order:
            columns[_PLACE] = _places(flat(events["source"]))
        columns[_DELETES] = deletes
        for reason, wrong in self._wrong(flat(events["op"]), row, columns):
            first = pc.and_not(pc.and_(pc.fill_null(wrong, fill_value=False), reasons.is_null()), tombstones)
            reasons = pc.if_else(first, reason, reasons)
        bad = batch.append_column("reason", reasons).filter(reasons.is_valid())
        if self.fails and bad.num_rows:
            msg = f"{excerpt(bad.slice(0, 1).drop_columns('reason'))} is not a change: {bad['reason'][0]}"
            hint = 'debezium(on_bad_record="quarantine") leaves such events out, and lists them.'
            raise BadRecord(msg, hint=hint)
        changes = pa.table([columns[name] for name in self.changes.names], schema=self.changes)
        return changes.filter(pc.and_not(reasons.is_null(), tombstones)), bad

    def _events(self, batch: pa.Table) -> tuple[pa.Table, pa.Array, pa.Array]:
        """The events as columns, which are tombstones, and why values cannot be read."""
        if self.decoder is None:
            absent = [flat(batch[name]).is_null() for name in _EVENT]
            return batch, functools.reduce(pc.and_, absent), pa.nulls(batch.num_rows, pa.string())
        values = flat(batch["value"]).cast(pa.binary())
        decoded = self.decoder.decode(values, self.decoder.schema.names)
        # the places of good and of bad values in what was decoded
        good, bad = (pa.array(np.cumsum(those) - 1, mask=~those) for those in (decoded.good, ~decoded.good))
        events, reasons = decoded.rows.take(good), pa.array(decoded.reasons, pa.string()).take(bad)
        if any(pa.types.is_decimal(one.type) for one in self.changes):
            text = "its decimals are bytes: set decimal.handling.mode=string in the connector"
            reasons = pc.if_else(
                pc.fill_null(pc.match_substring(values, _DECIMAL_BYTES), fill_value=False), text, reasons
            )
        payload = flat(events["payload"])
        for field, inside in zip(payload.type, payload.flatten(), strict=True):
            chosen = pc.if_else(payload.is_valid(), inside, flat(events[field.name]))
            batch = _with_column(batch, field.name, chosen)
        return batch, values.is_null(), reasons

    def _wrong(self, op: pa.Array, row: pa.Array, columns: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        """Why events are bad, and which are."""
        yield (
            "it has no op; of flattened events (ExtractNewRecordState) the table is stream.upserts",
            op.is_null(),
        )
        for other in pc.unique(op.drop_null()).to_pylist():
            if other not in _OPS:
                yield f"op {other!r} is not one of {', '.join(_OPS)}", pc.equal(op, other)
        yield "it has no row: in `before` of a deletion, else in `after`", row.is_null()
        for key in self.keys:
            yield f"its key {key!r} is null", columns[key].is_null()
        for field in row.type:
            if field.type in (pa.string(), pa.binary()):
                values = pa.array(_UNAVAILABLE, field.type)
                unavailable = pc.and_not(pc.is_in(columns[field.name], values), columns[_DELETES])
                yield f"{field.name!r} was not logged: set REPLICA IDENTITY FULL in PostgreSQL", unavailable
        if list(self.order) == [_PLACE]:
            yield f"its source has none of {', '.join(PLACE)}: give sequence_by=", columns[_PLACE].is_null()


def _with_column(table: pa.Table, name: str, values: pa.Array) -> pa.Table:
    """A table with a column, instead of one of its name."""
    at = table.schema.get_field_index(name)
    return table.append_column(name, values) if at < 0 else table.set_column(at, name, values)


def _places(source: pa.Array) -> pa.Array:
    """The places in the log as texts that compare as the places do; null where there is none.

    >>> _places(pa.array([{"file": "bin.9", "pos": 5}, {"file": "bin.10", "pos": None}])).to_pylist()
    ['05bin.9015', '06bin.1000']
    """
    parts = dict(zip((field.name for field in source.type), source.flatten(), strict=True))
    texts = [parts[name].cast(pa.string()) for name in PLACE if name in parts]
    # the longer of two numbers is the greater one, with or without a name in front
    lengths = [pc.utf8_lpad(pc.utf8_length(text).cast(pa.string()), 2, "0") for text in texts]
    measured = [
        pc.fill_null(pc.binary_join_element_wise(length, text, ""), "00")
        for length, text in zip(lengths, texts, strict=True)
    ]
    nothing = functools.reduce(pc.and_, (text.is_null() for text in texts))
    return pc.if_else(nothing, pa.scalar(None, pa.string()), pc.binary_join_element_wise(*measured, ""))
