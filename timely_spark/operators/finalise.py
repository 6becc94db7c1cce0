"""`settle`: final records only, when their time is complete; and the pass that inserts it into a graph.

`distinct`, `min` and `max` may improve a record in a later round. Other monotone reductions, and loops that
run to a fixed point, may read records that are not final. Every other reader outside loops, and every vertex
that waits inside one, must get each final record once, so this pass puts a vertex before it that
sends each time's final records when the time is complete.
Outputs pick the final records themselves and need no further round.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from timely_spark.errors import GraphError
from timely_spark.graph import Edge, Kind, LogicalGraph, Monotone, Partition, Stage, Vertex, caller, operator
from timely_spark.graph.stage import edges_into
from timely_spark.operators.aggregate import Aggregate
from timely_spark.operators.expire import Expire, Sessions
from timely_spark.operators.lattice import Merged, MergedPerTime
from timely_spark.operators.monotone import ImprovementsPerTime
from timely_spark.operators.output_vertex import MonotoneOutput, OutputVertex
from timely_spark.streams import Stream
from timely_spark.times import only_epochs


@dataclass(frozen=True, slots=True)
class Derived:
    """A stream computed from records that are not final: improvements can no longer be matched by key."""

    #: the stage that sends the improvements
    source: Stage
    monotone: Monotone


NotFinal = Monotone | Derived | None
"""How a stream's records may still improve; None if they are final."""

_REORDERS = frozenset({Kind.FEEDBACK, Kind.VARIABLE, Kind.LEAVE, Kind.DELAY, Kind.EXCHANGE, Kind.BROADCAST})
"""Behind these an epoch's records may come in several parts, or out of order."""


@operator(Stream)
def settle(stream: Stream, *, name: str | None = None) -> Stream:
    """Make the records of `distinct`, `min`, `max` or `merge` final: send them when their time is complete.

    The compiler inserts this step wherever outside loops, and before vertices that wait, final records are
    needed. Inside a loop, call it where the iterations must be kept in step.

    **Columns:** out as in.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("final")
        >>> _ = flow.input("x", "n long").distinct().settle().capture("out")
        >>> ts.testing.run(flow, {"x": [[1, 2, 2]]}, workers=3)["out"].rows()
        {0: [(1,), (2,)]}

    Raises:
        GraphError: the stream is not the output of such an operator.
    """
    monotone = stream.stage.monotone
    if monotone is None:
        msg = f"settle: step {stream.stage.name!r} ({stream.stage.where}) has final records already"
        raise GraphError(
            msg,
            where=caller(),
            hint="leave settle out, or call it right after distinct, min, max or a merge in a loop.",
        )
    vertex = _finalising(monotone)
    return stream.then("settle", [stream.schema], name=name, vertex=vertex, keyed=monotone.keys)[0]


def finalise_graph(graph: LogicalGraph) -> LogicalGraph:
    """A copy of the graph with a vertex before each reader that needs final records."""
    by_epochs = only_epochs(graph.times)
    within_epoch, across_epochs = _not_final(graph), _not_final(graph, across_epochs=True)
    inserted: dict[tuple[int, int], Stage] = {}
    retracting: list[tuple[Stage, NotFinal]] = []
    copy, copies = graph.copied()
    for stage in graph.stages:
        if isinstance(stage.vertex, OutputVertex) and (edges := graph.into(stage)):
            # with a diff the output also retracts records of earlier epochs
            kinds = within_epoch if stage.vertex.diff is None else across_epochs
            kind = kinds[edges[0].source, edges[0].port]
            if stage.vertex.diff:
                retracting.append((stage, kind))
            if isinstance(kind, Monotone) and _finalises(kind, by_epochs=by_epochs):
                vertex = MonotoneOutput(stage.vertex.schema, stage.vertex.diff, kind)
                finalising = replace(copies[stage], vertex=vertex, requires=(Partition.by(kind.keys),))
                copies[stage] = copy.stages[stage.index] = finalising
    for edge in graph.edges:
        kind, target = within_epoch[edge.source, edge.port], copies[edge.target]
        if kind is None or not _must_be_final(edge, kind, by_epochs=by_epochs):
            copy.connect(copies[edge.source], edge.port, target, edge.input)
            continue
        if isinstance(kind, Derived):
            raise _never_final(edge, kind)
        place = (edge.source.index, edge.port)
        if place not in inserted:
            inserted[place] = _insert(copy, copies[edge.source], edge, kind)
        copy.connect(inserted[place], 0, target, edge.input)
    for output, kind in retracting:
        _check_diff(graph, output, kind, by_epochs=by_epochs)
    return copy


def _must_be_final(edge: Edge, kind: Monotone | Derived, *, by_epochs: bool) -> bool:
    """Whether the edge's records, which are not final, must be final for its target."""
    target = edge.target
    if isinstance(kind, Derived) and target.kind is Kind.LEAVE and not target.scope.in_loop:
        return True
    if isinstance(target.vertex, OutputVertex):
        return not _finalises(kind, by_epochs=by_epochs)
    return _needs_final(target, edge.source) or _loses(target, kind)


def _finalises(kind: Monotone | Derived, *, by_epochs: bool) -> bool:
    """Whether an output makes such records final: an epoch is one time, and the best value was sent."""
    return by_epochs and isinstance(kind, Monotone) and kind.merge is None


def _never_final(edge: Edge, kind: Derived) -> GraphError:
    """The error for records that cannot be made final, since improvements are no longer matched."""
    name, verb = kind.source.name, "leave their loop by" if edge.target.kind is Kind.LEAVE else "are read by"
    msg = (
        f"records that step {edge.source.name!r} ({edge.source.where}) derives from "
        f"{name!r} ({kind.source.where}) are not final when they {verb} "
        f"{edge.target.name!r} ({edge.target.where})"
    )
    hint = f"let {name!r} itself leave, and derive from it outside the loop; or call .settle() on it."
    return GraphError(msg, hint=hint)


def _insert(graph: LogicalGraph, source: Stage, edge: Edge, monotone: Monotone) -> Stage:
    """Add a vertex that makes records final behind an output of `source`."""
    stage = Stage(
        index=len(graph.stages),
        title=graph.names.part(source.title, f"settled_{edge.port}" if edge.port else "settled"),
        kind=Kind.VERTEX,
        operator="settle",
        call=source.call,
        scope=source.scope,
        where=source.where,
        summary=source.scope.times.identity(source.scope.depth),
        outputs=(edge.schema,),
        vertex=_finalising(monotone),
        requires=(Partition.by(monotone.keys, source.workers),),
        workers=source.workers,
        guarantees=monotone.keys,
    )
    graph.stages.append(stage)
    graph.connect(source, edge.port, stage, 0)
    return stage


def _finalising(monotone: Monotone) -> Vertex:
    return (ImprovementsPerTime if monotone.merge is None else MergedPerTime)(monotone)


def _check_diff(graph: LogicalGraph, output: Stage, kind: NotFinal, *, by_epochs: bool) -> None:
    """Refuse an output with a diff that reads an aggregate, which replaces values and retracts none.

    Refuse an output of records that may improve, too, if improvements cannot be matched by key, or earlier
    epochs cannot be distinguished from later ones.
    """
    seen, todo = {output}, [(output, output)]
    while todo:
        reader, changes = todo.pop()
        for edge in graph.into(reader):
            source, vertex = edge.source, edge.source.vertex
            if (cause := _retracts_none(source, changes, kind)) is not None:
                msg = f"output {output.name!r} ({output.where}) is to retract records, and {cause[0]}"
                raise GraphError(msg, hint=cause[1])
            follows = source.is_routing or source.is_stateless or isinstance(vertex, ImprovementsPerTime)
            if follows and source not in seen:
                seen.add(source)
                todo.append((source, changes if source.kind is Kind.LEAVE else source))
    if kind is not None and not by_epochs:
        msg = (
            f"output {output.name!r} ({output.where}) is to retract records of earlier epochs, and "
            f"flow {graph.name!r} has times of its own kind, {type(graph.times).__name__}"
        )
        raise GraphError(msg, hint="leave diff out.")


def _retracts_none(source: Stage, changes: Stage, kind: NotFinal) -> tuple[str, str] | None:
    """Why a step that an output reads replaces records and retracts none, and a hint; else None.

    Args:
        changes: the step on the way to the output that changes the records.
        kind: how the output's records may still improve.
    """
    name, vertex = f"{source.operator} {source.name!r}", source.vertex
    replaces = isinstance(vertex, Sessions | Merged)
    if replaces or (isinstance(vertex, Aggregate) and vertex.accumulate):
        with_expire = " with expire" if isinstance(vertex, Sessions) else ""
        cause = f"{name}{with_expire} ({source.where}) replaces values and retracts none"
        return cause, "leave diff out, or use keys=[...] for a current table."
    if isinstance(vertex, Expire):
        return f"expire {source.name!r} ({source.where}) retracts them itself, in column {vertex.diff!r}", (
            "leave diff out."
        )
    if source.monotone is not None and source.monotone.value is not None and not isinstance(kind, Monotone):
        cause = (
            f"{changes.name!r} ({changes.where}) changes those of {name} ({source.where}), whose "
            "improvements then cannot be matched with what they replace"
        )
        operator = source.operator
        hint = f"let the output read {operator} itself, or a collection's {operator}, which retracts."
        return cause, hint
    return None


def _needs_final(stage: Stage, *sources: Stage) -> bool:
    """Whether the stage must be given final records."""
    if stage.kind is Kind.LEAVE:
        return any(source.scope.inner is not None for source in sources)  # final at each inner time
    if stage.monotone is not None or (stage.vertex is not None and stage.vertex.improves):
        return False
    to_numbers = any(need is not None and need.computed for need in stage.requires)
    if stage.is_routing and stage.kind not in {Kind.CONCAT, Kind.BROADCAST} and not to_numbers:
        return False  # a user's partition function places final records: making them final would move them
    if stage.kind is Kind.SELECT and stage.keeps is not None and len(stage.keeps) == len(stage.outputs[0]):
        return False
    return not stage.scope.in_loop or (stage.vertex is not None and stage.vertex.waits)


def _not_final(graph: LogicalGraph, *, across_epochs: bool = False) -> dict[tuple[Stage, int], NotFinal]:
    """Per output, how its records may still improve: the least fixed point, starting from "final".

    By default within their epoch; with `across_epochs` also in later epochs.
    """
    into = edges_into(graph.edges)
    final = set() if across_epochs else _final_per_epoch(graph, into)
    kinds: dict[tuple[Stage, int], NotFinal] = {
        (s, port): None for s in graph.stages for port in range(len(s.outputs))
    }
    changed = True
    while changed:
        changed = False
        for stage in graph.stages:
            kind = _transfer(
                stage,
                [(edge.source, kinds[edge.source, edge.port]) for edge in into[stage]],
                final,
                across_epochs=across_epochs,
            )
            for port in range(len(stage.outputs)):
                if kinds[stage, port] != kind:
                    kinds[stage, port] = kind
                    changed = True
    return kinds


def _transfer(
    stage: Stage, inputs: list[tuple[Stage, NotFinal]], final: set[Stage], *, across_epochs: bool
) -> NotFinal:
    kinds = [(source, kind) for source, kind in inputs if kind is not None]
    if stage.monotone is not None:
        for source, kind in kinds:
            if stage.scope.in_loop and not _absorbs(stage.monotone, kind):
                return kind if isinstance(kind, Derived) else Derived(source, kind)
        return None if stage in final else stage.monotone
    # what leaves a scope is final at its inner time; a later epoch may still improve it
    finalised = _needs_final(stage, *(() if across_epochs else (source for source, _ in inputs)))
    if not kinds or finalised or (stage.vertex is not None and stage.vertex.improves):
        return None
    source, kind = kinds[0]
    if isinstance(kind, Derived) or stage.kind is Kind.BROADCAST:
        # each copy of a broadcast record counts, and choosing the best per key would keep one of them
        return kind if isinstance(kind, Derived) else Derived(source, kind)
    if stage.is_routing and len(inputs) == 1:
        return kind
    carried = _carried(stage, kind)
    lost = carried is None and _loses(stage, kind)
    return None if lost else carried or Derived(source, kind)


def _absorbs(monotone: Monotone, kind: Monotone | Derived) -> bool:
    """Whether a monotone reduction ends with the same result if its input improves later.

    A set may always grow. A reduction of values must take the best in the same sense: if the step between is
    monotone, each result of a worse value is improved in turn. A `distinct` would keep the worse result.
    """
    before = kind.monotone if isinstance(kind, Derived) else kind
    return before.value is None or (monotone.value is not None and _sense(monotone) == _sense(before))


def _sense(monotone: Monotone) -> tuple[Any, ...]:
    """Which of two values is the better one."""
    return monotone.greatest, monotone.merge


def _loses(stage: Stage, kind: NotFinal) -> bool:
    """Whether the stage, outside loops, makes improvements impossible to match.

    It drops their key or value columns, or reduces in another sense: `max` of a stream of decreasing minima.
    """
    if stage.scope.in_loop or not isinstance(kind, Monotone):
        return False
    if stage.monotone is not None:
        same = (stage.monotone.value, *_sense(stage.monotone)) == (kind.value, *_sense(kind))
        return kind.value is not None and not same
    return stage.kind is Kind.SELECT and _carried(stage, kind) is None


def _carried(stage: Stage, kind: Monotone) -> Monotone | None:
    """The monotone guarantee behind a stateless stage, with its columns renamed; None if it is lost."""
    keeps = {old: new for new, old in stage.keeps.items()} if stage.keeps is not None else {}
    needed = [*kind.keys, *([kind.value] if kind.value else [])]
    # a filter may drop a key's best record and let the second best pass
    keeps_best = kind.value is None or stage.kind is Kind.SELECT
    if all(column in keeps for column in needed) and keeps_best:
        value = keeps[kind.value] if kind.value else None
        return replace(kind, keys=tuple(keeps[key] for key in kind.keys), value=value)
    return None


def _final_per_epoch(graph: LogicalGraph, into: Mapping[Stage, list[Edge]]) -> set[Stage]:
    """Stages outside loops that get each epoch's records in one batch and in order: their output is final.

    Only with epochs by the clock: a manual epoch, or one of a column, may come in several batches. Not behind
    an exchange by the user: its records come one round later than those of other paths.
    """
    complete: set[Stage] = set()
    for stage in graph.stages:
        edges = into[stage]
        if (stage.is_source and stage.epochs == "clock") or (
            (stage.is_routing or stage.is_stateless)
            and edges
            and stage.kind not in _REORDERS
            and all(edge.source in complete for edge in edges)
        ):
            complete.add(stage)
    return {
        s
        for s in graph.stages
        if not s.scope.in_loop and into[s] and all(edge.source in complete for edge in into[s])
    }
