"""Loops: enter, leave, loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from timely_spark.errors import GraphError
from timely_spark.graph import Kind, OnLimit, caller, operator
from timely_spark.streams import Scope, Stream, Variable


@operator(Stream)
def enter(stream: Stream, scope: Scope, *, name: str | None = None) -> Stream:
    """This stream inside a loop, at iteration 0 of each time; also written `scope.enter(stream)`.

    **Columns:** out as in.
    """
    return scope.enter(stream, name=name)


@operator(Stream)
def leave(stream: Stream, *, name: str | None = None) -> Stream:
    """This stream outside its innermost loop: its times lose the loop counter (Naiad's egress).

    **Columns:** out as in.

    Raises:
        GraphError: the stream is in no loop.
    """
    scope = stream.stage.scope
    if scope.parent is None:
        msg = f"leave: {stream.name!r} is in no loop"
        raise GraphError(msg, where=caller(), hint="leave() is for streams inside a loop.")
    summary = stream.flow.graph.times.leave(scope.depth)
    return stream.then(
        "leave", [stream.schema], kind=Kind.LEAVE, name=name, scope=scope.parent, summary=summary
    )[0]


@operator(Stream)
def loop(
    stream: Stream,
    step: Callable[[Stream], Any],
    *,
    max_iterations: int | None = None,
    on_limit: OnLimit | None = None,
    name: str | None = None,
) -> Any:
    """Iterate: a variable starts as this stream; the output of `step` is fed back, and leaves the loop.

    variable = enter(input) + feedback(step(variable)). The loop ends when nothing is fed back, so end `step`
    with an operator that drops repeated records, such as `distinct` or `min`. Loops may be nested. Records of
    `min` and `max` may improve later, so the steps from them to the end of `step` must be monotone (a better
    value leads to a better one); if they are not, call `settle()` on the stream.

    Args:
        stream: the variable's initial value.
        step: gets the variable, a stream in the loop's scope; returns the stream to feed back, which also
            leaves; or (the stream to feed back, the streams that leave ...).
        max_iterations: how often `step` is applied at most; records fed back beyond are dropped.
        on_limit: what happens if `max_iterations` drops records. "return", the default: they are counted
            (`last_progress.cut_off`), as such a loop is often meant to end there. "warn": also a warning,
            once per epoch. "raise": the flow fails with `LimitReached`.
        name: the loop's name.

    A loop without `max_iterations` warns at its ten thousandth iteration in an epoch, and again whenever the
    number has doubled (`warn_after` of `Dataflow.start` and `testing.run`). Warnings are logged by
    ``timely_spark`` on the driver; in tests they are Python warnings of the category `testing.LoopWarning`.
    `Query.cancel` ends an endless loop.

    Returns:
        The streams that leave, outside the loop: one stream, or a tuple if `step` returned several.

    Example:
        Collatz: every start reaches 1.

        >>> import pyarrow.compute as pc, timely_spark as ts
        >>> flow = ts.Dataflow("collatz")
        >>> def step(n):
        ...     half = n.select(start="start", n=pc.bit_wise_and(pc.field("n"), 1), m="n")
        ...     next = half.map(
        ...         lambda row: (row.start, row.m * 3 + 1 if row.n else row.m // 2), "start long, n long"
        ...     )
        ...     return next.where(pc.field("n") > 1), next.where(pc.field("n") == 1)
        >>> ones = flow.input("x", "start long, n long").loop(step)
        >>> _ = ones.capture("out")
        >>> ts.testing.run(flow, {"x": [[(6, 6), (7, 7)]]})["out"].rows()
        {0: [(6, 1), (7, 1)]}
    """
    graph = stream.flow.graph
    with graph.parts(stream.stage.scope, name) as outside:
        scope = stream.scope.inner(name=name, max_iterations=max_iterations, on_limit=on_limit)
        variable = scope.variable(stream)
        with graph.body(scope.graph_scope, outside):
            ends = step(variable)
        return _closed(variable, ends)


def _closed(variable: Variable, ends: Any) -> Any:
    """Feed back the first stream that `step` returned, and let the others leave."""
    back, *out = ends if isinstance(ends, tuple | list) else (ends, ends)
    if not hasattr(back, "stage"):
        msg = f"loop: step returned {type(back).__name__}"
        hint = "return the stream to feed back, or a tuple beginning with it."
        raise GraphError(msg, where=caller(), hint=hint)
    variable.feed(back)
    leaving = tuple(leave(one) for one in out)
    return leaving[0] if len(leaving) == 1 else leaving
