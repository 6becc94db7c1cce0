"""The output partitioning of every edge, derived from the graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from timely_spark.graph import Edge, Partition, Stage
from timely_spark.graph.stage import edges_into

ANYWHERE = Partition(())
"""Records stay with the worker whose task read them, which may be any."""

BROADCAST = Partition((), broadcast=True)


def output_partitioning(
    edges: Sequence[Edge], exchanged: Mapping[int, Partition], elided: Mapping[int, Partition]
) -> dict[int, Partition | None]:
    """The partitioning of each edge's records, for any number of workers; None means unknown.

    Law: records partitioned by columns are on worker H(columns) modulo the number of workers, or of those of
    their region; in blocks, on one that follows from the H of both columns. A partitioning begins at an
    exchange, and ends at a stage that changes its columns.
    """
    into = edges_into(edges)
    # Assume that edges without a partitioning yet agree with the others. So the edges of a loop have the
    # partitioning of its ingress if its body preserves the columns.
    partitioning: dict[int, Partition | None] = {}
    changed = True
    while changed:
        changed = False
        for edge in edges:
            by = exchanged.get(edge.index) or elided.get(edge.index)
            if by is None:
                before = {partitioning[e.index] for e in into[edge.source] if e.index in partitioning}
                if not before and into[edge.source]:
                    continue
                by = _of_output(edge.source, before)
            if edge.index not in partitioning or partitioning[edge.index] != by:
                partitioning[edge.index] = by
                changed = True
    return partitioning


def _of_output(stage: Stage, before: set[Partition | None]) -> Partition | None:
    """The partitioning of a stage's output, given those of its inputs."""
    if stage.guarantees is not None:
        return stage.guaranteed
    if not before:
        return ANYWHERE
    if any(by is not None and by.broadcast for by in before):
        return BROADCAST
    if len(before) > 1:
        return None
    (by,) = before
    if stage.is_routing or by is None or by == ANYWHERE:
        return by
    return by.renamed({old: new for new, old in (stage.keeps or {}).items()})
