"""What happened to entities at each epoch: which records moved, and which links are the reason."""

from __future__ import annotations

from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from timely_spark.authors import algorithm
from timely_spark.differential import Collection
from timely_spark.streams import Stream

CHANGE = "diff"


@algorithm
def lineage(members: Collection, *, name: str | None) -> Stream:
    """How many records move from an entity to another, at each epoch. Columns: see `Entities`."""
    return moves(members).group_by("from", "to").aggregate(records="count", per="time", name=name)


@algorithm
def causes(links: Collection, members: Collection, *, name: str | None) -> Stream:
    """The links that join or part records, at each epoch. Columns: see `Entities`.

    Nothing is stored: the links that change are joined with the records that move in the same epoch. Both
    ends of a link have one entity after it comes, and before it goes. So the entity of an end that does not
    move is that of the other end, on both sides of the epoch.
    """
    records = moves(members)
    ends = links.where(pc.field("a") != pc.field("b")).changes()
    ends = ends.select("a", "b", "score", joined=pc.field(CHANGE) > 0)
    for end in ("a", "b"):
        of_end = {f"from_{end}": "from", f"to_{end}": "to", f"moves_{end}": pc.is_valid(pc.field("record"))}
        ends = ends.join(records.select({end: "record"}, of_end), on=end, how="left", per="time")
    joined = pc.field("joined")
    inner, outer = dict[str, Any](), dict[str, Any]()  # with a common entity, and on the epoch's other side
    for end in ("a", "b"):
        before, after = pc.field(f"from_{end}"), pc.field(f"to_{end}")
        inner[end], outer[end] = pc.if_else(joined, after, before), pc.if_else(joined, before, after)
    ends = ends.select(
        "a",
        "b",
        "score",
        "joined",
        entity=pc.if_else(pc.is_valid(inner["a"]), inner["a"], inner["b"]),
        entity_a=pc.if_else(pc.is_valid(pc.field("moves_a")), outer["a"], inner["b"]),
        entity_b=pc.if_else(pc.is_valid(pc.field("moves_b")), outer["b"], inner["a"]),
    )
    side_a, side_b = pc.field("entity_a"), pc.field("entity_b")
    apart = pc.is_null(side_a) | pc.is_null(side_b) | (side_a != side_b)
    return ends.where(apart & pc.is_valid(pc.field("entity")), name=name)


def moves(members: Collection) -> Stream:
    """The records that change their entity at an epoch. Columns: out: record, from, to."""
    texts = [pa.field(name, pa.string()) for name in ("from", "to")]
    schema = pa.schema([members.schema.field("record"), *texts])
    return members.changes().unary_notify(partial(_moves, schema), schema, by="record")


def _moves(schema: pa.Schema, _: Any, changes: pa.Table) -> pa.Table:
    return pa.table(list(before_and_after(changes, "entity")), schema)


def before_and_after(changes: pa.Table, value: str) -> tuple[pa.Array, Any, Any]:
    """The records of changes, with their values before and after: each has one value at a time."""
    records = changes["record"].unique()
    rows = (changes.filter(pc.equal(changes[CHANGE], sign)) for sign in (-1, 1))
    before, after = (some[value].take(pc.index_in(records, some["record"])) for some in rows)
    return records, before, after
