"""A flow as a Mermaid flowchart, which notebooks, GitHub and many editors draw."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from timely_spark.compiler import Plan
from timely_spark.graph import Edge, Kind, Scope, Stage

if TYPE_CHECKING:
    from timely_spark.methods import Dataflow

#: Characters that need no escape in a quoted Mermaid text.
_PLAIN = re.compile(r"[\w ,=()+./-]")


def to_mermaid(flow: Dataflow) -> str:
    """Draw a flow: loops as subgraphs, exchanges as thick arrows, feedback edges dashed.

    An exchange at a source is part of Spark's own shuffle and costs no round: a thin arrow.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("hello")
        >>> _ = flow.input("numbers", "n long").distinct().capture("out")
        >>> print(to_mermaid(flow))
        flowchart TD
            s0(["numbers<br/>source clock"])
            s1["distinct"]
            s2[["out<br/>output capture"]]
            s0 -->|"by n, free"| s1
            s1 --> s2
    """
    plan = flow.compile(workers=2)  # one worker has no exchange
    free = {edge.index for channel in plan.channels if channel.source is None for edge in channel.edges}
    lines = ["flowchart TD", *_stages(plan)]
    lines += [f"    {_arrow(plan, edge, free=edge.index in free)}" for edge in plan.edges]
    return "\n".join(lines)


def _stages(plan: Plan) -> Iterator[str]:
    """The stages, which the plan orders loop by loop, within their loops' subgraphs."""
    inside: tuple[Scope, ...] = ()
    loops = 0
    for stage in [*plan.stages, None]:
        path = stage.scope.path[1:] if stage is not None else ()
        while inside != path[: len(inside)]:
            inside = inside[:-1]
            yield f"{'    ' * (len(inside) + 1)}end"
        for scope in path[len(inside) :]:
            limit = "" if scope.limit is None else f", at most {scope.limit + 1} iterations"
            yield f"{'    ' * (len(inside) + 1)}subgraph loop{loops}[{_quoted(f'loop {scope.name}{limit}')}]"
            inside, loops = (*inside, scope), loops + 1
        if stage is not None:
            yield f"{'    ' * (len(path) + 1)}s{stage.index}{_box(stage)}"


def _box(stage: Stage) -> str:
    label = f"{stage.operator} {stage.detail}".strip()
    short = stage.name.removeprefix(f"{stage.scope.name}.")
    text = _quoted(*dict.fromkeys((short, label)))
    if stage.is_source:
        return f"([{text}])"
    if not stage.outputs:
        return f"[[{text}]]"
    return f"({text})" if stage.is_routing else f"[{text}]"


def _arrow(plan: Plan, edge: Edge, *, free: bool) -> str:
    exchange = plan.exchanged.get(edge.index)
    returns = edge.source.kind is Kind.FEEDBACK
    label = (
        ["next iteration"] * returns
        + ([] if exchange is None else [str(exchange)])
        + ["free"] * (free and exchange is not None)
    )
    arrow = "-.->" if returns else "-->" if exchange is None or free else "==>"
    shown = f"|{_quoted(', '.join(label))}|" if label else ""
    return f"s{edge.source.index} {arrow}{shown} s{edge.target.index}"


def _quoted(*lines: str) -> str:
    """Lines as one quoted Mermaid text; characters with a meaning in Mermaid or HTML become their codes."""
    return '"' + "<br/>".join(map(_escaped, lines)) + '"'


def _escaped(line: str) -> str:
    text = "".join(c if _PLAIN.fullmatch(c) else f"#{ord(c)};" for c in " ".join(line.split()))
    # a leading `-`, `+` or `1.` would begin a Markdown list
    return re.sub(r"^([-+]|\d+[.)])(?= |$)", lambda m: m[1][:-1] + f"#{ord(m[1][-1])};", text)
