"""A flow as a Mermaid flowchart, which notebooks, GitHub and many editors draw."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from timely_spark.compiler import Plan
from timely_spark.graph import Edge, Kind, Name, Stage
from timely_spark.show.layout import Part, frames, label_of, title_of, way_of

if TYPE_CHECKING:
    from timely_spark.methods import Dataflow

#: Characters that need no escape in a quoted Mermaid text.
_PLAIN = re.compile(r"[\w ,=()+./-]")


def to_mermaid(flow: Dataflow) -> str:
    """Draw a flow: loops and regions as subgraphs, exchanges as thick arrows, feedback edges dashed.

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
    lines = ["flowchart TD", *_stages(plan.stages, 0, Counter())]
    lines += [f"    {_arrow(plan, edge, free=edge.index in free)}" for edge in plan.edges]
    return "\n".join(lines)


def _stages(stages: Iterable[Stage], depth: int, used: Counter[str]) -> Iterator[str]:
    """The stages of a frame, and the subgraphs of the frames in it."""
    parts: dict[Part, list[Stage]] = defaultdict(list)
    for stage in stages:
        inner = frames(stage)[depth + 1 :]
        parts[inner[0] if inner else stage].append(stage)
    indent = "    " * (depth + 1)
    for part, inside in parts.items():
        if isinstance(part, Stage):
            yield f"{indent}s{part.index}{_box(part)}"
            continue
        kind = "region" if isinstance(part, Name) else "loop"
        yield f"{indent}subgraph {kind}{used[kind]}[{_quoted(title_of(part))}]"
        used[kind] += 1
        yield from _stages(inside, depth + 1, used)
        yield f"{indent}end"


def _box(stage: Stage) -> str:
    text = _quoted(*dict.fromkeys((stage.title.text, label_of(stage))))
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
        + ([] if exchange is None else [way_of(exchange)])
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
