"""The description of a plan that a checkpoint stores, by which a later plan is compared step by step.

The description has everything on which the contents of a checkpoint depend: each step's kind, vertex,
parameters, columns and partitioning. Labels of explain and names of functions are not in it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from timely_spark.compiler.partitioning import ANYWHERE
from timely_spark.graph import Edge, Partition, Stage, describe
from timely_spark.graph.stage import edges_into

if TYPE_CHECKING:
    from timely_spark.compiler.plan import Plan


def described(plan: Plan) -> dict[str, Any]:
    """A plan as plain JSON: steps, nodes and channels by their names, without lines of the user's code."""
    into = edges_into(sorted(plan.edges, key=lambda edge: edge.input))
    return {
        "flow": plan.name,
        "workers": plan.workers,
        "times": type(plan.times.epoch(0)).__name__,
        "inputs": [[s.name, s.epochs, s.stage.origin] for s in plan.inputs],
        "stages": {stage.name: _stage(plan, stage, into[stage]) for stage in plan.stages},
        "edges": [[edge.source.name, edge.port, edge.target.name, edge.input] for edge in plan.edges],
        "nodes": [node.name for node in plan.nodes],
        "channels": [
            [
                channel.edges[0].source.name,
                plan.nodes[channel.target].name,
                channel.input,
                repr(channel.summary),
                _exchange(channel.exchange),
            ]
            for channel in plan.channels
        ],
    }


def _stage(plan: Plan, stage: Stage, inputs: list[Edge]) -> dict[str, Any]:
    node = plan.by_name.get(stage.name)
    return {
        "kind": stage.kind.value,
        # operators may share a vertex
        "operator": stage.operator,
        "parameters": dict(stage.parameters),
        "vertex": type(stage.vertex).__name__ if stage.vertex is not None else "",
        "refines": _refines(stage.vertex),
        "loops": [
            loop.name if loop.inner is None else f"{loop.name} by {loop.inner.__name__}"
            for loop in stage.scope.path[1:]
        ],
        "iterations that do not matter": sorted(node.ignored_counters) if node is not None else [],
        "inputs": [describe(edge.schema) for edge in inputs],
        "partitioned": [_partitioning(plan.partitioning[stage.name, edge.input]) for edge in inputs],
        # there are more where late rows or quarantined records are a stream, which keeps no state
        "outputs": [
            describe(schema)
            for schema in (stage.outputs[:1] if stage.is_source or stage.quarantined else stage.outputs)
        ],
    }


def _refines(vertex: Any) -> str:
    """The guarantee of a vertex's records, without the user's function: it has an address."""
    monotone = getattr(vertex, "monotone", None)
    if monotone is None:
        return ""
    return str(monotone if monotone.merge is None else replace(monotone, merge="a function"))


def _exchange(exchange: Partition | None) -> list[str] | str | None:
    if exchange is None:
        return None
    plain = exchange == Partition(exchange.columns)
    return list(exchange.columns) if plain else str(exchange)


def _partitioning(partition: Partition | None) -> str:
    return "unknown" if partition is None else "anywhere" if partition == ANYWHERE else str(partition)
