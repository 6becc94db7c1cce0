"""What a plan says of itself to a checkpoint: by it another plan is known again, step by step.

It tells what decides what a step keeps and what that means: its kind, vertex and parameters, the columns that
come and go, and how they are partitioned. What is only shown (labels of explain, names of functions) is not
in it.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from timely_spark.graph import Edge, Partition, Stage, describe
from timely_spark.worker.partitioning import ANYWHERE

if TYPE_CHECKING:
    from timely_spark.worker.plan import Plan


def described(plan: Plan) -> dict[str, Any]:
    """All by which a checkpoint of a plan can be judged, and gone on from, as plain JSON.

    Steps, nodes and channels by their names; nothing of where in the user's code they stand.
    """
    into: dict[Stage, list[Edge]] = defaultdict(list)
    for edge in sorted(plan.edges, key=lambda edge: edge.input):
        into[edge.target].append(edge)
    return {
        "flow": plan.name,
        "workers": plan.workers,
        "times": type(plan.times.epoch(0)).__name__,
        "inputs": [[s.name, s.epochs, "handle" if s.stage.handle else "source"] for s in plan.inputs],
        "stages": {stage.name: _said(plan, stage, into[stage]) for stage in plan.stages},
        "nodes": [node.name for node in plan.nodes],
        "channels": [
            [
                channel.edges[0].source.name,
                plan.nodes[channel.target].name,
                channel.input,
                repr(channel.summary),
                _exchanged(channel.exchange),
            ]
            for channel in plan.channels
        ],
    }


def _said(plan: Plan, stage: Stage, inputs: list[Edge]) -> dict[str, Any]:
    node = plan.by_name.get(stage.name)
    return {
        "kind": stage.kind.value,
        # the operator that was called: operators may share a vertex
        "operator": stage.operator,
        "parameters": dict(stage.parameters),
        "vertex": type(stage.vertex).__name__ if stage.vertex is not None else "",
        "refines": str(getattr(stage.vertex, "refines", "")),
        "loops": [loop.name for loop in stage.scope.path[1:]],
        "iterations that do not matter": sorted(node.forget) if node is not None else [],
        "inputs": [describe(edge.schema) for edge in inputs],
        "partitioned": [_how(plan.partitioning[stage.name, edge.input]) for edge in inputs],
        "outputs": [describe(schema) for schema in stage.outputs],
    }


def _exchanged(exchange: Partition | None) -> list[str] | str | None:
    if exchange is None:
        return None
    return "broadcast" if exchange.broadcast else list(exchange.columns)


def _how(partition: Partition | None) -> str:
    return "unknown" if partition is None else "anywhere" if partition == ANYWHERE else str(partition)
