"""Where improvements must be finalised (`settle`): a pass over the finished graph.

What `distinct`, `min` and `max` send may be improved in a later round. That is as it should be for what takes
the best again, and inside a loop that runs until nothing changes; whoever else reads such a stream must get
each record's last word, once. So a `Settled` vertex is put before every reader outside loops, and before
every one that waits inside. Outputs settle for themselves, and wait for nothing.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace

from timely_spark.errors import GraphError
from timely_spark.graph import Edge, Graph, Kind, Partition, Refines, Stage
from timely_spark.operators.aggregate import Aggregate
from timely_spark.operators.expire import Expire, Runs
from timely_spark.operators.least import Settled
from timely_spark.operators.output import Output, RefinedOutput, Watch
from timely_spark.times import only_epochs


@dataclass(frozen=True, slots=True)
class Derived:
    """A stream made from provisional records by something that does not keep them apart.

    `of`: whose they were; `refines`: in which sense they are provisional.
    """

    of: Stage
    refines: Refines


Provisional = Refines | Derived | None

_BROKEN = frozenset({Kind.FEEDBACK, Kind.VARIABLE, Kind.LEAVE, Kind.DELAY, Kind.EXCHANGE, Kind.BROADCAST})
"""Behind these an epoch does not come whole, or not in order."""


def settle_graph(graph: Graph) -> Graph:
    """The same graph, with provisional records made final wherever somebody counts on it.

    Raises:
        GraphError: records derived from provisional ones inside a loop leave it, or meet something that
            waits.
    """
    by_epochs = only_epochs(graph.times)
    what, of_epochs = _provisional(graph), _provisional(graph, across_epochs=True)
    settled: dict[tuple[int, int], Stage] = {}
    made, new = graph.copied()
    for stage in graph.stages:
        edges = graph.into(stage)
        kind = what[edges[0].source, edges[0].port] if edges else None
        if isinstance(stage.vertex, Output) and stage.vertex.diff is not None and edges:
            kind = of_epochs[edges[0].source, edges[0].port]  # what held in the epoch before is taken back
        if isinstance(stage.vertex, Output) and stage.vertex.diff:
            _check_diff(graph, stage)
            if kind is not None and not by_epochs:
                msg = (
                    f"output {stage.name!r} ({stage.where}) is to say what ceases to be true from one "
                    f"epoch to the next, and flow {graph.name!r} has times of its own kind, "
                    f"{type(graph.times).__name__}. Hint: leave diff out."
                )
                raise GraphError(msg)
        if isinstance(stage.vertex, Output) and isinstance(kind, Refines) and by_epochs:
            new[stage] = made.stages[stage.index] = replace(
                new[stage],
                vertex=RefinedOutput(stage.vertex.schema, stage.vertex.diff, kind),
                requires=(Partition(kind.keys),),
            )
    for edge in graph.edges:
        kind = what[edge.source, edge.port]
        # an output settles for itself where an epoch is one time
        waits = _exact(edge.target) or (isinstance(edge.target.vertex, Output) and not by_epochs)
        leaves = edge.target.kind is Kind.LEAVE and edge.target.scope.depth == 0 and isinstance(kind, Derived)
        if kind is None or not (leaves or waits or _loses(edge.target, kind)):
            made.connect(new[edge.source], edge.port, new[edge.target], edge.input)
            continue
        if isinstance(kind, Derived):
            verb = "leaves its loop by" if edge.target.kind is Kind.LEAVE else "is read by"
            msg = (
                f"what step {edge.source.name!r} ({edge.source.where}) makes of {kind.of.name!r} "
                f"({kind.of.where}) is not final when it {verb} {edge.target.name!r} ({edge.target.where}). "
                f"Hint: let {kind.of.name!r} itself leave, and derive from it outside the loop; "
                "or call .settle() on it."
            )
            raise GraphError(msg)
        place = (edge.source.index, edge.port)
        if place not in settled:
            stage = Stage(
                index=len(made.stages),
                title=made.names.part(
                    new[edge.source].title, f"settled_{edge.port}" if edge.port else "settled"
                ),
                kind=Kind.VERTEX,
                operator="settle",
                scope=new[edge.source].scope,
                where=edge.source.where,
                summary=graph.times.identity(edge.source.scope.depth),
                outputs=(edge.schema,),
                vertex=Settled(kind),
                requires=(Partition(kind.keys),),
                guarantees=kind.keys,
            )
            made.stages.append(stage)
            made.connect(new[edge.source], edge.port, stage, 0)
            settled[place] = stage
        made.connect(settled[place], 0, new[edge.target], edge.input)
    return made


def _check_diff(graph: Graph, output: Stage) -> None:
    """An aggregate's new value takes the place of the old one, which nobody says any more."""
    seen, todo = {output}, [output]
    while todo:
        for edge in graph.into(todo.pop()):
            vertex = edge.source.vertex
            if isinstance(vertex, Runs) or (isinstance(vertex, Aggregate) and vertex.accumulate):
                with_expire = " with expire" if isinstance(vertex, Runs) else ""
                msg = (
                    f"output {output.name!r} ({output.where}) is to say what ceases to be true, which "
                    f"{edge.source.operator} {edge.source.name!r}{with_expire} ({edge.source.where}) does "
                    "not tell. Hint: leave diff out, or use keys=[...] for a current table."
                )
                raise GraphError(msg)
            if isinstance(vertex, Expire):
                msg = (
                    f"output {output.name!r} ({output.where}) is to say what ceases to be true, which expire "
                    f"{edge.source.name!r} ({edge.source.where}) says itself, in column {vertex.diff!r}. "
                    "Hint: leave diff out."
                )
                raise GraphError(msg)
            if (edge.source.is_routing or edge.source.is_stateless) and edge.source not in seen:
                seen.add(edge.source)
                todo.append(edge.source)


def _exact(stage: Stage) -> bool:
    """Whether the stage must be given final records."""
    if stage.refines is not None or isinstance(stage.vertex, Settled | Output | Watch):
        return False
    if stage.is_routing and stage.kind not in {Kind.CONCAT, Kind.BROADCAST}:
        return False
    if stage.kind is Kind.SELECT and stage.keeps is not None and len(stage.keeps) == len(stage.outputs[0]):
        return False
    return stage.scope.depth == 0 or (stage.vertex is not None and stage.vertex.waits)


def _provisional(graph: Graph, *, across_epochs: bool = False) -> dict[tuple[Stage, int], Provisional]:
    """Per output, whether and how its records are provisional: the least solution, from exact upwards.

    By default those that may be bettered within their epoch; or also those that only a later epoch may.
    """
    into: dict[Stage, list[Edge]] = defaultdict(list)
    for edge in graph.edges:
        into[edge.target].append(edge)
    fresh = set() if across_epochs else _fresh(graph, into)
    what: dict[tuple[Stage, int], Provisional] = {
        (s, port): None for s in graph.stages for port in range(max(1, len(s.outputs)))
    }
    changed = True
    while changed:
        changed = False
        for stage in graph.stages:
            kind = _transfer(
                stage, [(edge.source, what[edge.source, edge.port]) for edge in into[stage]], fresh
            )
            for port in range(max(1, len(stage.outputs))):
                if what[stage, port] != kind and not isinstance(what[stage, port], Derived):
                    what[stage, port] = kind
                    changed = True
    return what


def _transfer(stage: Stage, inputs: list[tuple[Stage, Provisional]], fresh: set[Stage]) -> Provisional:
    kinds = [(source, kind) for source, kind in inputs if kind is not None]
    if stage.refines is not None:
        kept = [(s, k) for s, k in kinds if stage.scope.depth > 0 and not _agrees(stage.refines, k)]
        for source, kind in kept:
            return kind if isinstance(kind, Derived) else Derived(source, kind)
        return None if stage in fresh else stage.refines
    if not kinds or _exact(stage) or isinstance(stage.vertex, Settled):
        return None
    source, kind = kinds[0]
    if isinstance(kind, Derived) or stage.kind is Kind.BROADCAST:
        # each copy counts: the last word on a key would be one of them
        return kind if isinstance(kind, Derived) else Derived(source, kind)
    if stage.is_routing and (
        len(inputs) == 1 or (stage.kind is Kind.VARIABLE and all(other == kind for _, other in inputs))
    ):
        return kind
    carried = _carried(stage, kind)
    lost = carried is None and _loses(stage, kind)
    return None if lost else carried or Derived(source, kind)


def _agrees(refines: Refines, kind: Refines | Derived) -> bool:
    """Whether what is bettered later does no harm to what takes the best again.

    Of a set of facts anything may be taken. Of values the best in the same sense: whatever a worse value led
    to is bettered in its turn, if the step between is monotone. A `distinct` would keep it for ever.
    """
    before = kind.refines if isinstance(kind, Derived) else kind
    return before.value is None or (refines.value is not None and refines.greatest == before.greatest)


def _loses(stage: Stage, kind: Provisional) -> bool:
    """Whether the stage, outside loops, makes something of the records that nobody could settle any more.

    It drops columns, or takes the best in another sense: the greatest of what is to become the least.
    """
    if stage.scope.depth > 0 or not isinstance(kind, Refines):
        return False
    if stage.refines is not None:
        same = (stage.refines.value, stage.refines.greatest) == (kind.value, kind.greatest)
        return kind.value is not None and not same
    return stage.kind is Kind.SELECT and _carried(stage, kind) is None


def _carried(stage: Stage, kind: Refines) -> Refines | None:
    """How the records are provisional behind a per-batch stage, if one can still tell."""
    keeps = {old: new for new, old in stage.keeps.items()} if stage.keeps is not None else {}
    needed = [*kind.keys, *([kind.value] if kind.value else [])]
    whole = (
        kind.value is None or stage.kind is Kind.SELECT
    )  # to drop some keys' best is to show the second best
    if all(column in keeps for column in needed) and whole:
        return Refines(
            tuple(keeps[key] for key in kind.keys), keeps[kind.value] if kind.value else None, kind.greatest
        )
    return None


def _fresh(graph: Graph, into: dict[Stage, list[Edge]]) -> set[Stage]:
    """Stages outside loops that get each epoch whole and in order from the sources: what they send is final.

    By the clock alone: what a program sends, or a column says, for one epoch may come in several batches. Nor
    behind an exchange that a user asks for: what comes over it is a round later than what comes past it.
    """
    straight: set[Stage] = set()
    for stage in graph.stages:
        past = into[stage]
        if (stage.is_source and stage.epochs == "clock") or (
            (stage.is_routing or stage.is_stateless)
            and past
            and stage.kind not in _BROKEN
            and all(edge.source in straight for edge in past)
        ):
            straight.add(stage)
    return {
        s
        for s in graph.stages
        if s.scope.depth == 0 and into[s] and all(edge.source in straight for edge in into[s])
    }
