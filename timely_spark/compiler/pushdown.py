"""The columns and records that the tasks of a source read: the stages behind the source drop the others."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from operator import and_

import pyarrow.compute as pc

from timely_spark.compiler.plan import Plan
from timely_spark.graph import Stateless, columns_in
from timely_spark.graph.schema import without_nan


@dataclass(frozen=True, slots=True)
class Needed:
    """The part of a source's input that the flow reads."""

    #: in the order of the schema, at least one
    columns: tuple[str, ...]
    #: an expression that is true of all records that are needed; None if all are
    condition: pc.Expression | None


def needed(plan: Plan, source: str) -> Needed:
    """The columns and records of a source that reach a vertex.

    With an epoch column all records are needed, because epochs of dropped records count, too.
    """
    entry = plan.source(source)
    schema, clock = entry.stage.outputs[0], entry.epochs == "clock"
    routes = [plan.channels[index] for index in entry.entries if index not in entry.quarantined]
    columns = set() if clock else {entry.epochs}
    for channel in routes:
        read = channel.schema.names
        inputs = [schema, *(stage.outputs[port] for stage, port in channel.through)]
        for (stage, _), channel_schema in reversed(list(zip(channel.through, inputs, strict=False))):
            assert isinstance(stage.vertex, Stateless)
            read = stage.vertex.reads(read, channel_schema)
        columns |= {*read}
    conditions: list[pc.Expression] = []
    same = {*schema.names}  # columns that are still the source's
    channel_schema = schema
    for (stage, port), *others in zip(*(channel.through for channel in routes), strict=False):
        vertex = stage.vertex
        if not isinstance(vertex, Stateless) or any(other is not stage for other, _ in others) or not clock:
            break
        condition = vertex.condition
        comparable = same.intersection(without_nan(schema))
        if condition is not None and comparable.issuperset(columns_in(condition, channel_schema)):
            conditions.append(condition)
        if not vertex.one_each:
            break
        same = {name for name in same if (stage.keeps or {}).get(name) == name}
        channel_schema = stage.outputs[port]
    chosen = tuple(name for name in schema.names if name in columns) or tuple(schema.names[:1])
    return Needed(chosen, reduce(and_, conditions) if conditions else None)
