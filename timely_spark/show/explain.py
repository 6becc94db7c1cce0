"""`explain`: a flow as text, with its steps, its vertices and channels, and the rounds an epoch may take."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from timely_spark.compiler import Plan
from timely_spark.compiler.plan import Channel, Node, PlanInput
from timely_spark.compiler.summary import unnamed_in_words
from timely_spark.graph import Edge, LoopContext, Partition, Stage, columns_of
from timely_spark.graph.stage import closure, edges_into
from timely_spark.show.sketch import CALL, LOOP, Expand, Sketch, Step, label_of, way_of
from timely_spark.show.table import counted
from timely_spark.times.refined import time_text

if TYPE_CHECKING:
    from timely_spark.methods import Dataflow

_WIDEST = 44
_INDENT = "  "


def explain(flow: Dataflow, workers: int = 2, *, expand: Expand = False) -> str:
    """Describe a flow as text: its steps, its vertices and channels on `workers` workers, and its rounds.

    What one call of the user's made is one row, unless `expand` opens it.

    Three parts. Steps: those of the program, and those inserted by the library. Vertices: the steps that
    receive messages, with the exchange and the fused steps of each input channel. Rounds: what an epoch
    costs, which loops distinguish iterations, and which inputs delay the flow.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("hello")
        >>> _ = flow.input("numbers", "n long").exchange("n").capture("out")
        >>> text = explain(flow, workers=2)
        >>> print(text[text.index("Vertices") :])
        Vertices: each worker hosts one instance; below each, its input channels
          out  output capture
            from numbers: partitioned by n at the source, free; over exchange
        <BLANKLINE>
        Rounds
          an epoch takes 1 round, loops included: there is no exchange on its path
          exchanges without a round: 1 at the sources, 0 elided (already partitioned)
          epochs: what a batch finds is an epoch (numbers); no input delays the flow
          micro-batches: each stays for many epochs where start() allows it (query.status["residency"])
    """
    plan = flow.compile(workers)
    written, shown = len(flow.graph.stages), _Shown.of(plan, expand)
    return "\n".join(
        [
            f"Flow {plan.name!r} on {counted(workers, 'worker')}",
            "",
            "Steps: in topological order, loops indented",
            *_steps(plan, written, shown),
            "",
            "Vertices: each worker hosts one instance; below each, its input channels",
            *_vertex_lines(plan, shown),
            "",
            "Rounds",
            *(_INDENT + line for line in _rounds(plan, shown)),
            _INDENT + _residency(flow),
            *(_INDENT + line for line in _unnamed(plan)),
        ]
    )


def step_plans(plan: Plan) -> dict[str, str]:
    """How each step runs, as `explain` says it, by the keys of the steps and boxes of a `Sketch`.

    Sources, and steps that only move records, have no text.
    """
    plans: dict[str, list[str]] = {}
    for expand in (False, True):
        for step, facts, below in _vertices(plan, _Shown.of(plan, expand)):
            plans[step.key] = [", ".join(facts)] * bool(facts) + below
    for channel in plan.channels:
        target = plan.nodes[channel.target].name
        sender = None if channel.source is None else plan.nodes[channel.source].name
        where = "in the source's tasks" if sender is None else f"with {sender}"
        for stage, _ in channel.through:
            if stage.name != target:
                plans.setdefault(f"step:{stage.name}", []).append(f"runs {where}, before {target}")
    return {key: "\n".join(dict.fromkeys(lines)) for key, lines in plans.items()}


# -- steps ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Shown:
    """The line that stands for each step: its own, or that of its call's box."""

    sketch: Sketch
    boxes: Mapping[str, Step]
    #: what stands for the steps of each loop, if that hides the loop
    loops: Mapping[str, str]

    @classmethod
    def of(cls, plan: Plan, expand: Expand) -> _Shown:
        """With the boxes of all calls that are not opened."""
        sketch = Sketch.of(plan).folded(expand)
        boxes = {name: step for step in sketch.steps for name in step.steps}
        loops = {
            scope.name: boxes[stage.name].name for stage in plan.stages for scope in stage.scope.path[1:]
        }
        return cls(sketch, boxes, loops)

    def closed(self, stage: Stage) -> Step | None:
        """The box that hides a stage."""
        return box if (box := self.boxes[stage.name]).kind == CALL else None

    def output(self, edge: Edge) -> str:
        """An output of a step, or the box that hides it."""
        box = self.closed(edge.source)
        return _output(edge) if box is None else box.name

    def is_open(self, scope: LoopContext) -> bool:
        """Whether the steps of a loop are shown."""
        return scope.parent is None or f"{LOOP}:{scope.name}" in self.sketch.frames

    def place(self, scope: LoopContext) -> str:
        """The place of a scope, in words."""
        if scope.parent is None:
            return "outside loops"
        if self.is_open(scope):
            return f"in loop {scope.name!r}"
        return f"in loops of {self.loops[scope.name]!r}"

    def name(self, step: str) -> str:
        """The name of a step, or of the box that hides it."""
        return self.boxes[step].name

    def names(self, names: Iterable[str]) -> str:
        """Steps, and boxes instead of their steps."""
        return ", ".join(dict.fromkeys(map(self.name, names)))


def _steps(plan: Plan, written: int, shown: _Shown) -> Iterator[str]:
    """`written`: the number of the program's own steps; later ones are inserted by the library."""
    into = edges_into(plan.edges)
    rows: list[tuple[str, ...]] = []
    entered, hidden = set[LoopContext](), set[str]()
    for stage in plan.stages:
        box = shown.closed(stage)
        if box is not None and box.key in hidden:
            continue
        scopes = stage.scope.path[1:]
        if box is not None:
            hidden.add(box.key)
            scopes = tuple(scope for scope in scopes if f"{LOOP}:{scope.name}" in box.frames)
        for depth, scope in enumerate(scopes, 1):
            if scope not in entered:
                entered.add(scope)
                rows.append((f"{_INDENT * depth}{scope.name}:", scope.noun, "", "", _line(scope)))
        inside = [stage] if box is None else [one for one in plan.stages if shown.boxes[one.name] is box]
        edges = [edge for one in inside for edge in into[one]]
        sources = dict.fromkeys(
            shown.output(edge) for edge in edges if box is None or edge.source not in inside
        )
        rows.append(
            (
                _INDENT * (len(scopes) + 1) + (stage.name if box is None else box.name),
                _short(label_of(stage)) if box is None else box.label,
                _short("<- " + ", ".join(sources)) if sources else "",
                " | ".join(map(columns_of, stage.outputs)) if box is None else box.columns,
                _line(stage) if box is not None or stage.index < written else f"{_line(stage)}, inserted",
            )
        )
    widths = [max(len(row[i]) for row in rows) for i in range(5)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _line(part: Stage | LoopContext) -> str:
    return f"{Path(part.where.file).name}:{part.where.line}"


def _short(text: str) -> str:
    return text if len(text) <= _WIDEST else text[: _WIDEST - 3] + "..."


def _output(edge: Edge) -> str:
    return edge.source.name if edge.port == 0 else f"{edge.source.name}[{edge.port}]"


# -- vertices ------------------------------------------------------------------------------------------------


def _vertex_lines(plan: Plan, shown: _Shown) -> Iterator[str]:
    for step, facts, below in _vertices(plan, shown):
        label = step.label.partition(":")[0] if step.kind == CALL else step.label
        yield f"{_INDENT}{step.name}  {', '.join([label, *facts])}"
        yield from (f"{_INDENT * 2}{line}" for line in below)


def _vertices(plan: Plan, shown: _Shown) -> Iterator[tuple[Step, list[str], list[str]]]:
    """The steps and boxes that receive messages: what is said of each, and of each of its channels."""
    into: dict[int, list[Channel]] = defaultdict(list)
    for channel in plan.channels:
        into[channel.target].append(channel)
    inside: dict[str, list[Node]] = defaultdict(list)
    nodes = {node.stage: node for node in plan.nodes}
    for stage in plan.stages:
        if stage in nodes:
            inside[shown.boxes[stage.name].key].append(nodes[stage])
    for first, *others in inside.values():
        step = shown.boxes[first.name]
        if step.kind == CALL:
            yield step, *_box(plan, [first, *others], into, shown)
            continue
        several = len({channel.input for channel in into[first.index]}) > 1
        below = list(_declared(plan, first.stage))
        for channel in sorted(into[first.index], key=lambda channel: channel.input):
            at = f" at input {channel.input}" * several
            way = "; ".join(_way(plan, first, channel, shown))
            below.append(f"from {shown.output(channel.edges[0])}{at}: {way}")
        yield step, ["waits until a time is complete"] * first.waits, below


def _box(
    plan: Plan, inside: Sequence[Node], into: Mapping[int, list[Channel]], shown: _Shown
) -> tuple[list[str], list[str]]:
    """A call's vertices, and the channels that lead to them from outside."""
    within = {node.index for node in inside}
    channels = [channel for node in inside for channel in into[node.index]]
    from_outside = [channel for channel in channels if channel.source not in within]
    costs = sum(c.exchange is not None and c.source is not None for c in channels if c not in from_outside)
    waits = sum(node.waits for node in inside)
    facts = [f"{len(inside)} vert{'ices' if len(inside) > 1 else 'ex'}"]
    facts += [f"{counted(costs, 'exchange')} between them"] * bool(costs)
    number = "" if len(inside) == 1 else f"{waits} "
    facts += [f"{number}wait{'s' * (waits == 1)} until a time is complete"] * bool(waits)
    lines = dict[str, None]()
    for channel in from_outside:
        way = next(iter(_way(plan, plan.nodes[channel.target], channel, shown)))
        lines[f"from {shown.output(channel.edges[0])}: {way}"] = None
    return facts, list(lines)


def _declared(plan: Plan, stage: Stage) -> Iterator[str]:
    """The declared path summaries of a stage that are not the identity."""
    first = plan.least(stage, 0)
    for input_, paths in enumerate(stage.summaries or ()):
        for output, path in enumerate(paths):
            if path is None:
                yield f"input {input_} does not reach output {output}"
            elif (to := path.results_in(first)) != first:
                ends = " to ".join("no time" if at is None else time_text(at.encode()) for at in (first, to))
                yield f"input {input_} reaches output {output} later, from {ends}"


def _way(plan: Plan, node: Node, channel: Channel, shown: _Shown) -> Iterator[str]:
    at_source = channel.source is None
    if channel.exchange is not None and at_source:
        yield f"partitioned {way_of(channel.exchange)} at the source, free"
    elif channel.exchange is not None:
        combined = ", combined before it is sent" * (node.template.combine is not None)
        yield f"EXCHANGE {way_of(channel.exchange)}{combined}"
    elif at_source:
        yield "not exchanged"
    elif (needed := _elided(plan, channel)) is not None:
        yield f"stays on its worker, already partitioned {way_of(needed)}"
    else:
        yield "stays on its worker"
    fused = [stage.name for stage, _ in channel.through if stage.name != node.name]
    if fused:
        yield ("runs in the source's tasks: " if at_source else "runs before it: ") + shown.names(fused)
    passed = [edge.target.name for edge in channel.edges[:-1] if not edge.target.is_stateless]
    if passed:
        yield f"over {shown.names(passed)}"


def _elided(plan: Plan, channel: Channel) -> Partition | None:
    """The partitioning that let an exchange on this channel be elided; None if no exchange was elided."""
    if channel.source is None or channel.exchange is not None or plan.workers == 1:
        return None
    # a requirement is inherited along the channel: count the last edge, and steps with one of their own
    needs = [
        plan.elided[edge.index]
        for edge in channel.edges
        if edge.index in plan.elided and (edge is channel.edges[-1] or edge.target.requires[edge.input])
    ]
    return needs[-1] if needs else None


# -- rounds --------------------------------------------------------------------------------------------------


def _rounds(plan: Plan, shown: _Shown) -> Iterator[str]:
    inside: Counter[LoopContext] = Counter()
    for channel in plan.channels:
        if channel.source is not None and channel.exchange is not None:
            inside[_scope(channel)] += 1
    loops_of: Counter[str] = Counter()
    for scope, n in inside.items():
        loops_of[shown.place(scope)] += n
    places = [f"{n} {place}" for place, n in loops_of.items()]
    if places:
        yield f"an epoch takes 1 round, and 1 more for each exchange on its path: {', '.join(places)}"
    else:
        why = "there is no exchange on its path" if plan.workers > 1 else "one worker exchanges nothing"
        yield f"an epoch takes 1 round, loops included: {why}"
    free = sum(c.source is None and c.exchange is not None for c in plan.channels)
    elided = sum(_elided(plan, channel) is not None for channel in plan.channels)
    yield f"exchanges without a round: {free} at the sources, {elided} elided (already partitioned)"
    loops = [scope for scope in inside if scope.parent is not None]
    ends = dict.fromkeys(
        (scope.name, shown.names([node.name])) for node, scope in _late(plan, loops) if shown.is_open(scope)
    )
    for loop, name in ends:
        yield f"loop {loop!r}: {name} waits until the loop has ended on all workers, up to 1 round more"
    yield from _iterations(plan, inside, shown)
    yield from _epochs(plan.inputs)
    for step, names in plan.pairing.items():
        yield (
            f"{step} matches records of one epoch of {', '.join(names)}: what these inputs are sent together "
            'may be in two epochs, unless they have epochs="manual"'
        )


def _residency(flow: Dataflow) -> str:
    """Whether a micro-batch may have many epochs, as far as the flow decides."""
    for name, frame in flow.frames.items():
        if hasattr(frame, "isStreaming"):
            return (
                f"micro-batches: one for each epoch, because source {name!r} is a DataFrame of Spark; "
                "start(max_staleness=...) lets it wait"
            )
    return 'micro-batches: each stays for many epochs where start() allows it (query.status["residency"])'


def _unnamed(plan: Plan) -> Iterator[str]:
    if plan.unnamed:
        yield unnamed_in_words([f"{stage.name} ({_line(stage)})" for stage in plan.unnamed])


def _scope(channel: Channel) -> LoopContext:
    """The innermost scope that a channel never leaves."""
    paths = [scope.path for edge in channel.edges for scope in (edge.source.scope, edge.target.scope)]
    shared: list[LoopContext] = [level[0] for level in zip(*paths, strict=False) if len(set(level)) == 1]
    return shared[-1]


def _late(plan: Plan, inside: Iterable[LoopContext]) -> Iterator[tuple[Node, LoopContext]]:
    """Vertices that wait for a loop with exchanges, and are not behind an exchange themselves."""
    local: dict[int, list[int]] = defaultdict(list)
    for channel in plan.channels:
        if channel.source is not None and channel.exchange is None:
            local[channel.target].append(channel.source)
    for node in plan.nodes:
        before = closure([node.index], local.__getitem__) if node.waits else ()
        for scope in inside:
            within = any(scope in plan.nodes[index].stage.scope.path for index in before)
            if within and scope not in node.stage.scope.path:
                yield node, scope


def _iterations(plan: Plan, inside: Counter[LoopContext], shown: _Shown) -> Iterator[str]:
    waiting: dict[LoopContext, list[str]] = defaultdict(list)
    reading: dict[LoopContext, list[str]] = defaultdict(list)
    for node in plan.nodes:
        for i, scope in enumerate(node.stage.scope.path[1:]):
            waiting[scope] += [node.name] * (node.waits and i not in node.ignored_counters)
            reading[scope] += [node.name] * (node.template.reads_time and not node.waits)
    for scope, steps_that_wait in waiting.items():
        if not shown.is_open(scope):
            continue
        names = list(dict.fromkeys(map(shown.name, steps_that_wait)))
        limit = [] if scope.limit is None else [f"there are at most {scope.limit + 1}"]
        why = limit + [f"{', '.join(names)} wait{'s' * (len(names) == 1)}"] * bool(names)
        why += [f"{shown.names(reading[scope])} may read the loop counter"] * bool(reading[scope])
        endless = "are not distinguished, the loop runs to a fixed point"
        matter = f"are distinguished ({' and '.join(why)})" if why else endless
        if not inside[scope]:
            cost = "no exchange in it"
        elif names:
            cost = "each takes a round per exchange in it"
        else:
            cost = "a round ends when records must change workers"
        if scope.inner is not None:
            steps = f"{', '.join(names)} wait{'s' * (len(names) == 1)} for" if names else "no step waits for"
            yield f"scope {scope.name!r}: inner times of type {scope.inner.__name__}, which {steps}; {cost}"
        else:
            yield f"loop {scope.name!r}: iterations {matter}; {cost}"


def _epochs(inputs: Iterable[PlanInput]) -> Iterator[str]:
    clock = [source.name for source in inputs if source.epochs == "clock"]
    if clock:
        yield (f"epochs: what a batch finds is an epoch ({', '.join(clock)}); no input delays the flow")
    for source in inputs:
        if source.epochs == "manual":
            ends = "the program advances or closes it" if source.stage.handle else "the capture advances"
            yield f"epochs: {source.name} delays the flow until {ends}"
        elif source.epochs != "clock":
            yield f"epochs: {source.name} ends an epoch a round after a higher {source.epochs} was seen"
