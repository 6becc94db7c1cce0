"""A flow as a Mermaid flowchart, which notebooks, GitHub and many editors draw."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from timely_spark.show.sketch import Arrow, Expand, Sketch, Step

if TYPE_CHECKING:
    from timely_spark.methods import Dataflow

#: Characters that need no escape in a quoted Mermaid text.
_PLAIN = re.compile(r"[\w ,=()+./-]")


def to_mermaid(flow: Dataflow, *, expand: Expand = False) -> str:
    """Draw a flow: loops and regions as subgraphs, exchanges as thick arrows, feedback edges dashed.

    What a call of yours made is one box, unless `expand` opens it: all, or some by their names. An exchange
    at a source is part of Spark's own shuffle and costs no round: a thin arrow.

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
    sketch = Sketch.of(flow.compile(workers=2)).folded(expand)  # one worker has no exchange
    numbers = {step.key: f"s{i}" for i, step in enumerate(sketch.steps)}
    lines = ["flowchart TD", *_steps(sketch, sketch.steps, numbers, 0, Counter())]
    return "\n".join([*lines, *(f"    {_arrow(arrow, numbers)}" for arrow in sketch.arrows)])


def _steps(
    sketch: Sketch, steps: Iterable[Step], numbers: Mapping[str, str], depth: int, used: Counter[str]
) -> Iterator[str]:
    """The steps of a frame, and the subgraphs of the frames in it."""
    parts: dict[str, list[Step]] = defaultdict(list)
    for step in steps:
        parts[step.frames[depth] if len(step.frames) > depth else step.key].append(step)
    indent = "    " * (depth + 1)
    for key, inside in parts.items():
        if (frame := sketch.frames.get(key)) is None:
            yield f"{indent}{numbers[key]}{_box(inside[0])}"
            continue
        yield f"{indent}subgraph {frame.kind}{used[frame.kind]}[{_quoted(frame.title)}]"
        used[frame.kind] += 1
        yield from _steps(sketch, inside, numbers, depth + 1, used)
        yield f"{indent}end"


def _box(step: Step) -> str:
    text = _quoted(*dict.fromkeys((step.title, step.label)))
    if step.is_source:
        return f"([{text}])"
    if step.is_end:
        return f"[[{text}]]"
    return f"({text})" if step.is_routing else f"[{text}]"


def _arrow(arrow: Arrow, numbers: Mapping[str, str]) -> str:
    label = (
        ["next iteration"] * arrow.feedback
        + [arrow.exchange] * bool(arrow.exchange)
        + ["free"] * (arrow.free and bool(arrow.exchange))
    )
    line = "-.->" if arrow.feedback else "==>" if arrow.costs else "-->"
    shown = f"|{_quoted(', '.join(label))}|" if label else ""
    return f"{numbers[arrow.source]} {line}{shown} {numbers[arrow.target]}"


def _quoted(*lines: str) -> str:
    """Lines as one quoted Mermaid text; characters with a meaning in Mermaid or HTML become their codes."""
    return '"' + "<br/>".join(map(_escaped, lines)) + '"'


def _escaped(line: str) -> str:
    text = "".join(c if _PLAIN.fullmatch(c) else f"#{ord(c)};" for c in " ".join(line.split()))
    # a leading `-`, `+` or `1.` would begin a Markdown list
    return re.sub(r"^([-+]|\d+[.)])(?= |$)", lambda m: m[1][:-1] + f"#{ord(m[1][-1])};", text)
