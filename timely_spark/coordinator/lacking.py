"""What a changed flow lacks: new steps whose results depend on records that have passed before the restart.

A step that remembers nothing between times, a stateless one for example, is right from its first complete
epoch on, and so is a log of a stream. All others would be wrong: a count that begins with zero, a collection
of later changes only, a table by key without the keys that do not change again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from timely_spark.compiler.plan import Plan
from timely_spark.coordinator.differences import SHOWN
from timely_spark.graph import Kind, Stage
from timely_spark.graph.stage import closure, edges_into
from timely_spark.state.row_times import DIFF


def behind(plan: Plan, stages: Iterable[Stage]) -> set[Stage]:
    """The stages that some stages' records reach, and these stages themselves."""
    out: dict[Stage, list[Stage]] = defaultdict(list)
    for edge in plan.edges:
        out[edge.source].append(edge.target)
    return closure(stages, out.__getitem__)


def new_steps(plan: Plan, continuing: Collection[str], read: Collection[str]) -> list[Stage]:
    """The steps with a vertex that do not continue, behind inputs that have `read` records."""
    fed = behind(plan, (source.stage for source in plan.inputs if source.name in read))
    new = [
        stage
        for stage in plan.stages
        if stage in fed and stage.name in plan.by_name and stage.name not in continuing
    ]
    return sorted(new, key=lambda stage: stage.name.endswith(".settled"))  # last what the compiler inserts


def lacks_past(plan: Plan, stage: Stage) -> bool:
    """Whether results of a step are wrong if it starts empty, but its inputs have had records."""
    if stage.kind is Kind.OUTPUT:
        return is_accumulated(plan, stage)
    return not stage.kind.is_end and not plan.by_name[stage.name].template.per_time


def is_accumulated(plan: Plan, output: Stage) -> bool:
    """Whether an output is read as a whole: a collection's changes, a log with `diff`, or a table by key."""
    if output.parameters.get("keys") or output.parameters.get("diff"):
        return True
    into = edges_into(plan.edges)

    def sources(stage: Stage) -> Iterable[Stage]:
        every = (edge.source for edge in into[stage])
        return (source for source in every if source.vertex is None or source.vertex.per_time)

    return any(DIFF in edge.schema.names for stage in closure([output], sources) for edge in into[stage])


def fed_otherwise(plan: Plan, names: Iterable[str], new: Iterable[Stage]) -> list[Stage]:
    """Old steps that need the past, and read other steps than before.

    Steps behind `new` ones that need it are left out: they lack what these lack.
    """
    # of an `expect` only the counts lack the past, not the records behind it
    lack = (one for one in new if lacks_past(plan, one))
    excused = behind(plan, (one for one in lack if one.vertex is None or not one.vertex.checks_records))
    stages = (plan.by_name[name].stage for name in names)
    return [stage for stage in stages if stage not in excused and lacks_past(plan, stage)]


def reads_changes(plan: Plan, stage: Stage) -> bool:
    """Whether a step reads changes of a collection, which may be undone later."""
    if stage.kind is Kind.OUTPUT:
        return is_accumulated(plan, stage)
    return any(DIFF in edge.schema.names for edge in edges_into(plan.edges)[stage])


def lacking_by_output(plan: Plan, lacking: Mapping[str, int]) -> dict[str, str]:
    """What each output's results lack: the steps before it that started empty, with their first epochs."""
    before: dict[str, dict[str, int]] = defaultdict(dict)
    for name, epoch in lacking.items():
        for stage in behind(plan, [plan.by_name[name].stage]) if name in plan.by_name else ():
            if stage.kind is Kind.OUTPUT:
                before[stage.name][name] = epoch
    return {name: lacking_in_words(steps) for name, steps in before.items()}


def refusal(lacking: Sequence[Stage], removed: Sequence[str]) -> tuple[str, ...]:
    """Why new steps are refused, one for each line of the user's program, and hints.

    Args:
        removed: old steps with a state, which perhaps have new names.
    """
    lines: dict[Any, Stage] = {}
    for stage in sorted(lacking, key=lambda stage: (stage.name.endswith(".settled"), len(stage.name))):
        lines.setdefault((stage.where.file, stage.where.line), stage)
    shown = ", ".join(f"step {stage.name!r} ({stage.where})" for stage in list(lines.values())[:SHOWN])
    more = f" and {len(lines) - SHOWN} more" if len(lines) > SHOWN else ""
    return (
        f"new: {shown}{more}; results there depend on records that have passed before this start",
        *(f"if one is step {name!r}, which was removed, give it that name" for name in removed[:1]),
        'with new_steps="empty" such steps start without them; status and the tables\' properties say so',
    )


def lacking_in_words(lacking: Mapping[str, int]) -> str:
    """The steps that started without the past, with their first epochs; of many the first."""
    steps = [f"{name} from epoch {epoch} on" for name, epoch in lacking.items()]
    more = [f"and {len(steps) - SHOWN} more"] if steps[SHOWN:] else []
    return ", ".join([*steps[:SHOWN], *more])
