"""`Sketch`: a flow to look at, as plain data, which a checkpoint keeps: steps, frames around them, arrows.

Each call of the user's is one box, because a library's algorithm has many steps that few readers want to see.
A call shows its steps if it closes a loop around steps of other calls, or if the reader opens it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any, TypeAlias

from timely_spark.compiler import Plan
from timely_spark.graph import Edge, Kind, LoopContext, Name, Partition, Stage, columns_of, find
from timely_spark.graph.locate_errors import OperatorCall
from timely_spark.graph.schema import RESERVED
from timely_spark.show.table import counted

CALL, LOOP, REGION = "call", "loop", "region"
#: Of stages on a channel, those that hand on as many records as they get.
_SAME = {Kind.SELECT, *(kind for kind in Kind if kind.is_routing)} - {Kind.BROADCAST}

Expand: TypeAlias = bool | str | Sequence[str]
"""Which calls show their steps: none, all, or some by the names of their boxes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A step, or the box of a call, which stands for all its steps."""

    #: unique among the keys of steps and frames
    key: str
    #: the full name
    name: str
    #: the name in its scope
    title: str
    #: the operator and its arguments; of a box the call, and how many steps and loops it has
    label: str
    where: str
    #: a value of `Kind`; or `CALL`
    kind: str
    columns: str = ""
    #: the keys of the frames around it, outermost first
    frames: tuple[str, ...] = ()
    #: the steps that it stands for; of a step its own name
    steps: tuple[str, ...] = ()

    @property
    def is_routing(self) -> bool:
        """Whether the step only moves records."""
        return self.kind != CALL and Kind(self.kind).is_routing

    @property
    def is_source(self) -> bool:
        """Whether records enter the flow here."""
        return self.kind == Kind.SOURCE.value

    @property
    def is_end(self) -> bool:
        """Whether the frontier of the step is observed from outside."""
        return self.kind != CALL and Kind(self.kind).is_end

    @property
    def scope(self) -> str:
        """The key of the innermost loop around it; empty if there is none."""
        return next((key for key in reversed(self.frames) if key.startswith(f"{LOOP}:")), "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Enclosure:
    """A loop, a region or a call around steps."""

    key: str
    kind: str
    name: str
    #: what it is, in words
    title: str
    where: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrow:
    """A connector between two steps, by their keys."""

    index: int
    source: str
    target: str
    #: how records are exchanged; empty if they are not
    exchange: str = ""
    #: whether the exchange is part of Spark's own shuffle
    free: bool = False
    #: whether it is a loop's feedback
    feedback: bool = False
    #: the channels of the plan whose records pass here, as many as reach the channel's end
    channels: tuple[int, ...] = ()

    @property
    def costs(self) -> bool:
        """Whether it takes a round."""
        return bool(self.exchange) and not self.free


@dataclass(frozen=True)
class Sketch:
    """The steps of a flow in topological order, its frames by key, and its arrows."""

    name: str = ""
    steps: tuple[Step, ...] = ()
    frames: Mapping[str, Enclosure] = field(default_factory=dict)
    arrows: tuple[Arrow, ...] = ()
    #: the step, and its output, that the records of each channel of the plan come from
    origins: tuple[str, ...] = ()

    @classmethod
    def of(cls, plan: Plan) -> Sketch:
        """The sketch of a plan, with the frames of calls."""
        boxes, frames, steps = _boxes(plan.stages), dict[str, Enclosure](), list[Step]()
        for stage in plan.stages:
            around = [_frame(part) for part in _around(stage)]
            if (box := boxes.get(stage)) is not None:
                depth, frame = box
                around.insert(depth, frame)
            frames.update((frame.key, frame) for frame in around)
            steps.append(
                Step(
                    key=f"step:{stage.name}",
                    name=stage.name,
                    title=stage.title.text,
                    label=label_of(stage),
                    where=str(stage.where),
                    kind=stage.kind.value,
                    columns="; ".join(map(columns_of, stage.outputs)),
                    frames=tuple(frame.key for frame in around),
                    steps=(stage.name,),
                )
            )
        through: dict[int, list[int]] = defaultdict(list)
        free = set[int]()
        for channel in plan.channels:
            same = True
            for edge in reversed(channel.edges):
                if same:
                    through[edge.index].append(channel.index)
                if channel.source is None:
                    free.add(edge.index)
                same = same and edge.source.kind in _SAME
        arrows = [
            _arrow(plan, edge, free=edge.index in free, channels=through[edge.index]) for edge in plan.edges
        ]
        begins = [channel.edges[0] for channel in plan.channels]
        origins = tuple(f"{edge.source.name}[{edge.port}]" for edge in begins)
        return cls(plan.name, tuple(steps), frames, tuple(arrows), origins)

    def encode(self) -> dict[str, Any]:
        """The sketch as plain JSON."""
        return asdict(self)

    @classmethod
    def decode(cls, data: Mapping[str, Any]) -> Sketch:
        """The sketch that `encode` gave."""
        steps = [
            Step(**{**one, "frames": tuple(one["frames"]), "steps": tuple(one["steps"])})
            for one in data["steps"]
        ]
        arrows = [Arrow(**{**one, "channels": tuple(one["channels"])}) for one in data["arrows"]]
        frames = {key: Enclosure(**one) for key, one in data["frames"].items()}
        return cls(str(data["name"]), tuple(steps), frames, tuple(arrows), tuple(data["origins"]))

    @cached_property
    def calls(self) -> dict[str, str]:
        """The key of each call's frame, by the name of its box."""
        return {frame.name: key for key, frame in self.frames.items() if frame.kind == CALL}

    def folded(self, expand: Expand = False) -> Sketch:  # noqa: FBT002 - what users call has it by name
        """The sketch with a box for each call that is not opened.

        Raises:
            UnknownName: no call has a name in `expand`.
        """
        opened = self._opened(expand)
        inside: dict[str, list[Step]] = defaultdict(list)
        closed: dict[str, str] = {}
        steps: dict[str, Step] = {}
        for step in self.steps:
            key = next(
                (key for key in step.frames if self.frames[key].kind == CALL and key not in opened), None
            )
            closed[step.key] = key or step.key
            steps.setdefault(closed[step.key], step)
            if key is not None:
                inside[key].append(step)
        for key, parts in inside.items():
            steps[key] = self._box(self.frames[key], parts)
        arrows: dict[tuple[str, str, bool, int], Arrow] = {}
        for arrow in self.arrows:
            source, target = closed[arrow.source], closed[arrow.target]
            boxed = source in inside or target in inside
            if source == target and boxed:
                continue
            moved = replace(arrow, source=source, target=target)
            way = source, target, arrow.feedback, -1 if boxed else arrow.index
            before = arrows.get(way)
            arrows[way] = moved if before is None else _together(before, moved)
        used = {key for step in steps.values() for key in step.frames}
        frames = {key: frame for key, frame in self.frames.items() if key in used}
        return replace(self, steps=tuple(steps.values()), frames=frames, arrows=tuple(arrows.values()))

    def boxes(self, expand: Expand = False) -> dict[str, str]:  # noqa: FBT002 - see `folded`
        """The name of what stands for each step: the box of its call, or the step itself."""
        return {name: step.name for step in self.folded(expand).steps for name in step.steps}

    def records(self, arrow: Arrow, moved: Mapping[int, int]) -> int:
        """The records that passed an arrow, by those of each channel; what one output sends counts once."""
        most: dict[str, int] = {}
        for channel in arrow.channels:
            origin = self.origins[channel]
            most[origin] = max(most.get(origin, 0), moved.get(channel, 0))
        return sum(most.values())

    def loop(self, name: str) -> str:
        """A loop's name for people: if the user gave none, the name of the call that made the loop."""
        call = self._call_of(f"{LOOP}:{name}")
        if call is None or f"{name}.".startswith(f"{call.name}."):
            return name
        loops = [key for key in self.frames if key.startswith(f"{LOOP}:") and self._call_of(key) == call]
        return call.name if len(loops) == 1 else f"{call.name}: {name}"

    def _call_of(self, key: str) -> Enclosure | None:
        """The call around a frame."""
        around = next((step.frames for step in self.steps if key in step.frames), ())
        return next((self.frames[each] for each in around if self.frames[each].kind == CALL), None)

    def _opened(self, expand: Expand) -> set[str]:
        if isinstance(expand, bool):
            return set(self.calls.values()) if expand else set()
        names = [expand] if isinstance(expand, str) else expand
        return {find(self.calls, name, kind="box of several steps", flow=self.name) for name in names}

    def _box(self, frame: Enclosure, steps: Sequence[Step]) -> Step:
        loops = {key for step in steps for key in step.frames if key.startswith(f"{LOOP}:")}
        around = steps[0].frames[: steps[0].frames.index(frame.key)]
        loops -= {*around}
        many = f"{len(steps)} steps" + (f", {counted(len(loops), 'loop')}" if loops else "")
        keys = {step.key for step in steps}
        ends = {a.source for a in self.arrows if a.source in keys and a.target not in keys}
        columns = dict.fromkeys(step.columns for step in steps if step.key in ends)
        return Step(
            key=frame.key,
            name=frame.name,
            title=frame.name.rpartition(".")[2],
            label=f"{frame.title}: {many}",
            where=frame.where,
            kind=CALL,
            columns="; ".join(columns),
            frames=around,
            steps=tuple(step.name for step in steps),
        )


def label_of(stage: Stage) -> str:
    """A step's operator and its arguments."""
    return _public(f"{stage.operator} {stage.detail}".strip())


def way_of(exchange: Partition) -> str:
    """How an exchange partitions records."""
    return _public(str(exchange))


def _public(text: str) -> str:
    return text.replace(RESERVED, "")


def _arrow(plan: Plan, edge: Edge, *, free: bool, channels: Sequence[int]) -> Arrow:
    exchange = plan.exchanged.get(edge.index)
    return Arrow(
        index=edge.index,
        source=f"step:{edge.source.name}",
        target=f"step:{edge.target.name}",
        exchange="" if exchange is None else way_of(exchange),
        free=free,
        feedback=edge.source.kind is Kind.FEEDBACK,
        channels=tuple(channels),
    )


def _together(one: Arrow, other: Arrow) -> Arrow:
    """One arrow instead of two between the same boxes."""
    ways = dict.fromkeys(each.exchange for each in (one, other) if each.exchange)
    costs = one.costs or other.costs
    channels = tuple(dict.fromkeys((*one.channels, *other.channels)))
    return replace(one, exchange=", ".join(ways), free=not costs, channels=channels)


def _around(stage: Stage) -> tuple[LoopContext | Name, ...]:
    """The scopes and regions around a stage, outermost first, without the root."""
    scopes = {scope.title: scope for scope in stage.scope.path}
    around: list[LoopContext | Name] = []
    name = stage.title.outer
    while name is not None:
        around.append(scopes.get(name, name))
        name = name.outer
    return tuple(reversed(around))


def _frame(part: LoopContext | Name) -> Enclosure:
    if isinstance(part, Name):
        kind, name, title = REGION, part.full, f"region {part.full}"
    else:
        kind, name, title = LOOP, part.name, part.titled
    return Enclosure(key=f"{kind}:{name}", kind=kind, name=name, title=title, where=str(part.where))


def _boxes(stages: Sequence[Stage]) -> dict[Stage, tuple[int, Enclosure]]:
    """For each stage in a box: the number of frames around the box, and the frame of the call."""
    calls_of: dict[LoopContext, set[OperatorCall | None]] = defaultdict(set)
    for stage in stages:
        for scope in stage.scope.path[1:]:
            calls_of[scope].add(stage.call)
    open_ = {scope for scope, calls in calls_of.items() if calls != {next(iter(calls))} or None in calls}
    closing = (Kind.VARIABLE, Kind.FEEDBACK)
    around_others = {stage.call for stage in stages if stage.kind in closing and stage.scope in open_}
    groups: dict[tuple[OperatorCall, tuple[LoopContext | Name, ...]], list[Stage]] = defaultdict(list)
    for stage in stages:
        if stage.call is not None and stage.call not in around_others:
            outside = tuple(one for one in _around(stage) if isinstance(one, Name) or one in open_)
            groups[stage.call, outside].append(stage)
    boxes: dict[Stage, tuple[int, Enclosure]] = {}
    names = {stage.name for stage in stages}
    used = names.copy()
    for (call, outside), inside in groups.items():
        if len(inside) > 1:
            own = {stage.name for stage in inside}
            name = _named(call, inside, outside)
            if name in names - own and not call.name:  # such as an output of this name
                name += "()"
            name = _free(name, used - own)
            used.add(name)
            frame = Enclosure(
                key=f"{CALL}:{name}", kind=CALL, name=name, title=call.method, where=str(inside[0].where)
            )
            boxes.update((stage, (len(outside), frame)) for stage in inside)
    return boxes


def _named(call: OperatorCall, inside: Sequence[Stage], outside: Sequence[LoopContext | Name]) -> str:
    """The name of a call's box: that of its operator's own step, the given one, or what was called."""
    if own := next((stage.name for stage in inside if call.is_of(stage.operator)), None):
        return own
    outer = outside[-1] if outside else None
    prefix = "" if outer is None else f"{outer.full if isinstance(outer, Name) else outer.name}."
    return prefix + (call.name or call.method)


def _free(name: str, used: Iterable[str]) -> str:
    free, number = name, 1
    while free in used:
        number += 1
        free = f"{name}_{number}"
    return free
