"""Into loops and out of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from timely_spark.errors import GraphError
from timely_spark.graph import Kind, caller

if TYPE_CHECKING:
    from timely_spark.streams import Scope, Stream, Variable


def enter(stream: Stream, scope: Scope, *, name: str | None = None) -> Stream:
    """This stream inside a loop, at iteration 0 of each time; `scope.enter(stream)` is another spelling.

    **Columns:** out as in.
    """
    return scope.enter(stream, name=name)


def leave(stream: Stream, *, name: str | None = None) -> Stream:
    """This stream one loop further out: the iteration is dropped from its times (Naiad's egress).

    **Columns:** out as in.

    Raises:
        GraphError: it is in no loop.
    """
    scope = stream.stage.scope
    if scope.parent is None:
        msg = (
            f"leave ({caller()}): {stream.name!r} is in no loop. "
            "Hint: only what is inside a loop can leave it."
        )
        raise GraphError(msg)
    summary = stream.flow.graph.times.leave(scope.depth)
    return stream.then(
        "leave", [stream.schema], kind=Kind.LEAVE, name=name, scope=scope.parent, summary=summary
    )[0]


OnLimit: TypeAlias = Literal["return", "warn", "raise"]
"""What happens where a loop's `max_iterations` drops records."""


def check_limit(max_iterations: Any, on_limit: Any) -> int | None:
    """The largest loop counter that a user's arguments allow, None for no limit.

    Raises:
        GraphError: an argument is none that a loop takes.
    """
    if max_iterations is not None and (type(max_iterations) is not int or max_iterations < 1):
        msg = (
            f"loop ({caller()}): max_iterations={max_iterations!r}. "
            "Hint: give a whole number of at least 1, or None for no limit."
        )
        raise GraphError(msg)
    if on_limit not in (None, "return", "warn", "raise") or (on_limit and max_iterations is None):
        msg = (
            f"loop ({caller()}): on_limit={on_limit!r} with max_iterations={max_iterations!r}. "
            'Hint: with max_iterations, on_limit may be "return", "warn" or "raise".'
        )
        raise GraphError(msg)
    return None if max_iterations is None else max_iterations - 1


def loop(
    stream: Stream,
    step: Callable[[Stream], Any],
    *,
    max_iterations: int | None = None,
    on_limit: OnLimit | None = None,
    name: str | None = None,
) -> Any:
    """Iterate: a variable starts as this stream, and `step` of it is fed back and leaves the loop.

    variable = enter(input) + feedback(step(variable)). The loop ends when nothing is fed back, so let
    `step` end in something that stops what is known already, as `distinct` or `min`. A loop may contain
    loops. Records of `min` and `max` may be improved later, so between them and where the loop closes
    the step must be monotone (a better value leads to a better one); where it is not, call `settle()` on it.

    Args:
        stream: what the variable starts as.
        step: gets the variable, a stream in the loop's scope; returns the stream to feed back, which also
            leaves; or (the stream to feed back, the streams that leave ...).
        max_iterations: how often `step` is applied at most; what would be fed back beyond is dropped.
        on_limit: what happens where `max_iterations` drops records. "return", the default: nothing, as such a
            loop is often meant to end there; the records are counted (`last_progress.cut_off`). "warn": a
            warning as well, once per epoch. "raise": the flow fails with `LimitReached`.
        name: the loop's name.

    A loop without `max_iterations` that comes to its ten thousandth iteration in one epoch gives a warning,
    and again whenever that number has doubled (`warn_after` of `Dataflow.start` and `testing.run`).
    Warnings are logged by ``timely_spark`` on the driver; in tests they are Python warnings of the category
    `testing.LoopWarning`. `Query.cancel` ends a loop that goes on for ever.

    Returns:
        What leaves, outside the loop: one stream, or a tuple where `step` named several.

    Example:
        Collatz: every start comes to 1.

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
    """Feeds back what a step has made, and lets it leave."""
    back, *out = ends if isinstance(ends, tuple | list) else (ends, ends)
    if not hasattr(back, "stage"):
        msg = (
            f"loop ({caller()}): step returned {type(back).__name__}. "
            "Hint: return the stream to feed back, or a tuple beginning with it."
        )
        raise GraphError(msg)
    variable.feed(back)
    left = tuple(leave(one) for one in out)
    return left[0] if len(left) == 1 else left
