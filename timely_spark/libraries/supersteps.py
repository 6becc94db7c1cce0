"""The parts of a superstep of Pregel: messages along edges, their aggregation, aggregators, the program."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from timely_spark.authors import (
    caller,
    check_collection,
    check_columns,
    columns_in,
    describe,
    named_expressions,
    padded,
    projected,
    reduced,
)
from timely_spark.differential import Collection
from timely_spark.errors import GraphError, SchemaError
from timely_spark.libraries.superstep import HALTED, IS_MESSAGE, NodeProgram, Superstep

MessageColumns: TypeAlias = str | pc.Expression | Mapping[str, str | pc.Expression]
"""A message: an expression, or several by column."""
MakeProgram = Callable[[pa.Schema, pa.Schema], NodeProgram]
"""Makes a program from the schemas of the nodes' columns, and of the batches that it gets."""

_AGGREGATES = ("max", "mean", "min", "sum")


@dataclass(frozen=True, slots=True)
class Supersteps:
    """The constants of all supersteps."""

    program: MakeProgram
    agg_msgs: str | Callable[[Collection], Collection]
    aggregators: Mapping[str, tuple[str, Any]]
    halt: str | pc.Expression | None
    to_dst: MessageColumns | None
    to_src: MessageColumns | None

    def check(self, nodes: Collection) -> None:
        """Check the arguments, as far as they can be checked before the loop is built."""
        if self.to_dst is None and self.to_src is None:
            msg = "pregel: no message is sent"
            hint = "give send_msg_to_dst= or send_msg_to_src=, as pc.field('src_rank')."
            raise GraphError(msg, where=caller(), hint=hint)
        kinds = [self.agg_msgs] if not callable(self.agg_msgs) else []
        kinds += [how for how, _ in self.aggregators.values()]
        if wrong := [kind for kind in kinds if kind not in _AGGREGATES]:
            msg = f"pregel: aggregate {wrong[0]!r}"
            hint = f"one of {list(_AGGREGATES)}; agg_msgs may be a function of the collection of messages."
            raise GraphError(msg, where=caller(), hint=hint)
        added = [*self.aggregators, *([HALTED] if self.halt is not None else ())]
        if taken := [one for one in added if one in nodes.schema.names]:
            msg = f"pregel: {taken} are columns of the nodes already ({describe(nodes.schema)})"
            raise SchemaError(msg, where=caller(), hint="choose other names.")

    def links(self, edges: Collection) -> tuple[Collection, Collection]:
        """The edges, arranged for messages to their targets, and for messages to their sources."""
        return (
            edges if self.to_dst is None else edges.arrange("src"),
            edges if self.to_src is None else edges.arrange("dst"),
        )

    def messages(self, nodes: Collection, by_src: Collection, by_dst: Collection) -> Collection:
        """The aggregated messages of a superstep: `node`, then the columns of a message."""
        sent = []
        if self.to_dst is not None:
            sent.append(self._along(by_src, nodes, self.to_dst, "src", "dst"))
        if self.to_src is not None:
            sent.append(self._along(by_dst, nodes, self.to_src, "dst", "src"))
        messages = sent[0] if len(sent) == 1 else sent[0].concat(sent[1])
        if callable(self.agg_msgs):
            aggregated = self.agg_msgs(messages)
            check_collection("pregel: agg_msgs", aggregated)
            check_columns("pregel: agg_msgs", aggregated.schema, ["node"])
            return aggregated.select(
                "node", *(column for column in aggregated.schema.names if column != "node")
            )
        _, *columns = messages.schema.names
        if len(columns) > 1:
            msg = f"pregel: agg_msgs={self.agg_msgs!r} for messages of columns {columns}"
            hint = "give a function of the messages, as lambda m: m.top_k(1, 'distance', keys='node')."
            raise SchemaError(msg, where=caller(), hint=hint)
        result: Collection = getattr(messages, self.agg_msgs)(*columns, keys="node")
        return result

    def _along(
        self, links: Collection, nodes: Collection, message: MessageColumns, near: str, far: str
    ) -> Collection:
        """The messages from one end of each edge to the other; nodes that did not compute last send none."""
        columns = [column for column in nodes.schema.names if column not in {"node", HALTED}]
        of_far = {far: "node", **{f"{far}_{column}": column for column in columns}}
        of_near = {near: "node", **{f"{near}_{column}": column for column in columns}}
        senders = nodes if self.halt is None else nodes.where(pc.is_valid(pc.field(HALTED)))
        triplets = senders.select(of_near).join(links, on=near)
        receivers = nodes.select(of_far)
        every = pa.schema([*triplets.schema, *(f for f in receivers.schema if f.name != far)])
        named = message if isinstance(message, Mapping) else {"msg": message}
        named = named_expressions(f"pregel: send_msg_to_{far}", every, named)
        read = {name for one in named.values() for name in columns_in(one, every)}
        if read & {*of_far} - {far}:
            triplets = triplets.join(receivers, on=far)
        sent = triplets.select({"node": far, **named})
        some = reduce(or_, (pc.is_valid(pc.field(column)) for column in named))
        return sent.where(some)

    def superstep(self, nodes: Collection, messages: Collection) -> Collection:
        """The nodes after a superstep."""
        wide = nodes
        for name, (how, value) in self.aggregators.items():
            total = getattr(nodes.select({name: value_of(value)}), how)(name, keys=[])
            wide = wide.broadcast_join(total, by="node")
        columns = pa.schema([field for field in nodes.schema if field.name not in {"node", HALTED}])
        received = pa.schema([field for field in messages.schema if field.name != "node"])
        if both := [name for name in received.names if name in wide.schema.names]:
            msg = f"pregel: {both} are columns of the messages, and of the nodes or aggregators"
            raise SchemaError(msg, where=caller(), hint="rename one.")
        batch = pa.schema([*(field for field in wide.schema if field.name != HALTED), *received])
        if not isinstance(self.halt, str | pc.Expression | None):
            msg = f"pregel: halt={self.halt!r} is not an expression"
            raise SchemaError(msg, where=caller(), hint='write "true", or a condition.')
        votes = named_expressions("pregel: halt", batch, {} if self.halt is None else {HALTED: self.halt})
        if projected("pregel: halt", votes, batch).types != [pa.bool_()] * len(votes):
            msg = f"pregel: halt={self.halt} is not a condition"
            raise SchemaError(msg, where=caller(), hint='compare with something, as in "msg > 1".')
        logic = Superstep(
            ("node",),
            self.program(columns, batch),
            columns,
            tuple(received.names),
            tuple(self.aggregators),
            votes.get(HALTED),
        )
        full = pa.schema([*wide.schema, *received])
        parts = [padded(part, full, **{IS_MESSAGE: pc.scalar(part is messages)}) for part in (wide, messages)]
        return reduced("superstep", parts[0].concat(parts[1]), logic, [*nodes.schema][1:], name=None)


def value_of(value: Any) -> Any:
    """A text or an expression as it is; or the expression of a constant."""
    return value if isinstance(value, str | pc.Expression) else pc.scalar(value)
