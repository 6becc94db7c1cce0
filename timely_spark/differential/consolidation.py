"""Consolidation of a collection's changes, per time; and transient records, which need it.

A record is transient if changes insert and delete it at one time: the collection has it at no time. A join
sends such records if both of its sides change at a time, as it matches each change when it arrives; so does a
concatenation whose sides cancel each other. They disappear in sums. User functions, and
expressions that may fail, would notice such records, so they get collections by `lasting`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import pyarrow as pa

from timely_spark.differential import trace
from timely_spark.graph import Kind, LogicalGraph, Partition, Stage
from timely_spark.graph.schema import is_key_type
from timely_spark.state.arrow import numbers
from timely_spark.state.buffering import BufferingVertex
from timely_spark.times import Timestamp

#: a `Collection`: its module imports this one
AnyCollection = TypeVar("AnyCollection", bound=Any)


class Consolidate(BufferingVertex):
    """Send each time's changes consolidated, when the time is complete.

    Args:
        first: consolidate iteration 0 of the innermost loop only; changes of later ones are sent at once.
        opposite: consolidate times with changes of both signs only: others have no transient records.
    """

    per_time = True

    def __init__(self, *, first: bool = False, opposite: bool = False) -> None:
        super().__init__()
        self.first, self.opposite = first, opposite

    def on_recv(self, edge: int, time: Timestamp, batch: pa.Table) -> None:
        if self.first and time.encode()[-1]:
            self.send_by(0, time, batch)
        else:
            super().on_recv(edge, time, batch)

    def combine(self, edge: int, batch: pa.Table) -> pa.Table:
        """Consolidate before the exchange."""
        return trace.consolidate(batch)

    def on_complete(self, time: Timestamp, *batches: list[pa.Table]) -> None:
        if not batches[0]:
            return
        changes = pa.concat_tables(batches[0])
        if self.opposite:
            diffs = numbers(changes, trace.DIFF)
            if (diffs > 0).all() or (diffs < 0).all():
                self.send_by(0, time, changes)
                return
        self.send_by(0, time, trace.consolidate(changes))


def transient(
    collection: AnyCollection, consolidate: Callable[[], AnyCollection] | None = None
) -> AnyCollection:
    """Mark a collection whose changes may be of transient records, which come and go within a time.

    Functions of users do not get such records, and outputs do not have them; other operators do.

    Args:
        consolidate: makes the collection without them; by default its changes are consolidated.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("transient")
        >>> rows = transient(flow.input("rows", "n long, diff long").collection(diff="diff"))
        >>> _ = rows.map(lambda row: (6 // row.n,), "n long").changes().capture("out")
        >>> ts.testing.run(flow, {"rows": [[(0, 1), (2, 1), (0, -1)]]})["out"].rows()
        {0: [(3, 1)]}
    """
    collection.lasting = consolidate or (lambda: without_transient(collection))
    return collection


def lasting(collection: AnyCollection) -> AnyCollection:
    """The collection without transient records: its changes are sent when their times are complete."""
    if collection.lasting is None:
        return collection
    with collection.index.flow.graph.parts_of(collection.index.stage):  # its name does not depend on readers
        result: AnyCollection = collection.lasting()
    collection.lasting = lambda: result  # all readers share it
    return result


def without_transient(collection: AnyCollection) -> AnyCollection:
    """Drop the transient records of a collection; equal changes of one time are not added up."""
    result = consolidated(collection, Consolidate(opposite=True))
    result.once = False
    return result


def consolidated(
    collection: AnyCollection, vertex: Consolidate, *, name: str | None = None, **parts: Any
) -> AnyCollection:
    """The collection after a vertex that consolidates; equal records are on one worker."""
    stream = collection.stream
    by = partition_of(stream.flow.graph, stream.stage)
    if by is None or not set(by.reads) <= set(collection.schema.names):
        flat = [field.name for field in collection.schema if is_key_type(field.type)]
        by = Partition(tuple(flat if vertex.opposite and flat else collection.schema.names))
    result: AnyCollection = collection.like(
        stream.then(
            "consolidate",
            [stream.schema],
            name=name,
            vertex=vertex,
            requires=[by],
            guarantees=by.columns,
            **parts,
        )[0],
        once=True,
    )
    return result


def partition_of(graph: LogicalGraph, stage: Stage) -> Partition | None:
    """The partitioning of a stage's output, by columns or to one worker; None means unknown.

    Equal records are then on one worker, so consolidating needs no exchange.
    """
    if stage.guaranteed is not None or stage.kind is Kind.FEEDBACK:
        return stage.guaranteed
    inputs = graph.into(stage)
    by = stage.requires[0] if stage.requires else None
    if by is None and inputs:
        by = partition_of(graph, inputs[0].source)
    if by is None or by.copies or by.blocks or by.expression is not None:
        return None
    if len(inputs) > 1 and not by.reads:  # the others' records shall not all go to the one worker
        return None
    if stage.is_routing:
        return by
    return by.renamed({old: new for new, old in (stage.keeps or {}).items()})
