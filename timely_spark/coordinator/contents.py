"""What steps hold on the workers, which decides what a changed flow may drop: pointstamps and state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from timely_spark.compiler.plan import Node
from timely_spark.state.codec import Codec
from timely_spark.worker.round import Worker
from timely_spark.worker.vertex_snapshot import changed, instance


def pointstamps_of(worker: Worker) -> Iterator[tuple[int, Any]]:
    """The pointstamps of a worker: its queued batches and its capabilities."""
    nodes = worker.plan.nodes
    for index, input_, time in worker.queue:
        yield nodes[index].lands(input_), time
    for pending in worker.pending:
        if pending.capability is not None:
            yield nodes[pending.node].holds(pending.input), pending.capability


def has_state(worker: Worker, node: Node) -> bool:
    """Whether a vertex's state differs from its initial state."""
    snapshot = worker.snapshots.get(node.name)
    if snapshot is None:
        return False
    if snapshot.references:
        return True
    encoded = [
        Codec(worker.plan.times).write(
            changed(vertex, node.template), pickles=vertex.pickles, vertex=type(vertex)
        )
        for vertex in (worker.vertex(node), instance(node.template))
    ]
    return encoded[0] != encoded[1]


def contents_in_words(contents: Mapping[str, int]) -> list[str]:
    """A step's contents in words."""
    plural = {"batch": "batches", "notification": "notifications", "unreleased epoch": "unreleased epochs"}
    return [
        f"{n} {plural[kind] if n > 1 else kind}" if kind in plural else kind
        for kind, n in contents.items()
        if n
    ]
