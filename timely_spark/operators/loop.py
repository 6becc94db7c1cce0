"""Loops and scopes: enter, leave, loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from timely_spark.errors import GraphError, SchemaError, Where
from timely_spark.graph import Expression, Kind, OnLimit, Vertex, caller, check_columns, operator, project
from timely_spark.graph.suggest import a_type
from timely_spark.operators.rows import computed
from timely_spark.operators.sql import named_expressions
from timely_spark.state.codes import numbers_of, runs
from timely_spark.streams import Scope, Stream, Variable
from timely_spark.times import Timestamp, only_epochs

_AT = "__timely_at"


class EnterAt(Vertex):
    """`enter` with `at`: send each record at the inner time, or iteration, in its columns."""

    per_time = True

    def __init__(self, at: Mapping[str, str | Expression], inner: type[Any] | None) -> None:
        self.at, self.inner = at, inner

    def checkpoint(self) -> Mapping[str, Any]:
        return {}

    def check_sent(self, records: pa.Table) -> None:
        """Check the inner times of records that the program sends."""
        self._check(project(records, self.at), where=caller())

    def _check(self, at: pa.Table, where: Where | None = None) -> None:
        for column in at.columns:
            numbered = _numbered(self.inner)
            if column.null_count or (numbered and pc.any(pc.less(column, 0)).as_py()):
                what = "inner time" if self.inner is not None else "iteration"
                hint = (
                    f"fill the {what}, or filter such records out" + "; give integers from 0 on." * numbered
                )
                msg = f"a record's {what} is null" + " or negative" * numbered
                raise SchemaError(msg, where=where, hint=hint)

    def on_recv(self, edge: int, time: Timestamp, batch: pa.Table) -> None:
        """Send the records of each inner time together."""
        columns = list(self.at)
        at, batch = batch.select(columns), batch.drop_columns(columns)
        self._check(at)
        groups = runs(numbers_of(at, columns), at.num_rows)
        distinct = at.take(pa.array(groups.firsts)).to_pydict().values()
        for values, part in zip(zip(*distinct, strict=True), groups.slices(batch), strict=True):
            self.send_by(0, self._entered(time, list(values)), part)

    def _entered(self, time: Timestamp, values: list[Any]) -> Any:
        *outer, first = time.encode()
        if self.inner is None or _numbered(self.inner):
            return self._context.times.decode([*outer, first + values[0]])
        encoded: list[Any] = [*outer, {self.inner.__name__: values}]
        entered = self._context.times.decode(encoded)
        if not time.less_equal(entered):
            msg = f"a record's inner time, {entered[-1]!r}, is not after the least one in {time!r}"
            raise SchemaError(msg, hint="let least() be before all values that decode makes.")
        return entered


@operator(Stream)
def enter(
    stream: Stream,
    scope: Scope,
    *,
    at: str | Expression | Sequence[str | Expression] | None = None,
    name: str | None = None,
) -> Stream:
    """This stream inside a loop or scope; also written `scope.enter(stream)`, which explains `at`.

    **Columns:** out as in.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("second")
        >>> by_day = flow.scope.inner(name="by_day", time=int)
        >>> sales = flow.input("sales", "day long, euros long").enter(by_day, at="day")
        >>> _ = (
        ...     sales.unary_notify(
        ...         lambda time, batch: [(time.counters[0], sum(batch["euros"].to_pylist()))],
        ...         "day long, euros long",
        ...     )
        ...     .leave()
        ...     .capture("out")
        ... )
        >>> ts.testing.run(flow, {"sales": [[(2, 5), (1, 3), (2, 4)]]})["out"].rows()
        {0: [(1, 3), (2, 9)]}
    """
    if not isinstance(scope, Scope):
        msg = f"enter got {a_type(scope)}, not a scope"  # type: ignore[unreachable] # reached without a type checker
        raise GraphError(msg, where=caller(), hint="give a scope; that of a stream in a loop is its .scope.")
    if at is None:
        return scope.enter(stream, name=name)
    inner, kind = scope.graph_scope.inner, scope.graph_scope.times
    coordinates = [at] if isinstance(at, str | Expression) else list(at)
    if scope.graph_scope.depth <= stream.stage.scope.depth or (inner is None and not only_epochs(kind)):
        msg = f"enter: {stream.name!r} is not outside {scope.name or 'the outermost scope'!r}"
        if scope.graph_scope.depth > stream.stage.scope.depth:
            msg = f"enter: at={at!s} in loop {scope.name!r}, whose times are of the flow's own kind"
        hint = "enter a loop or scope made by scope.inner(...), at numbers."
        raise GraphError(msg, where=caller(), hint=hint)
    added = {f"{_AT}{i}": one for i, one in enumerate(coordinates)}
    added = named_expressions("enter", stream.schema, added)
    check_columns("enter", stream.schema, [one for one in added.values() if isinstance(one, str)])
    with scope.flow.graph.parts(scope.graph_scope, name):
        entered = scope.enter(computed(stream, *stream.schema.names, added, own=tuple(added)))
    _check_at(entered.schema, added, inner)
    return entered.then(
        "enter_at",
        [stream.schema],
        name=name,
        vertex=EnterAt(added, inner),
        keeps={column: column for column in stream.schema.names},
        detail=", ".join(map(str, coordinates)),
        parameters={"iteration": ", ".join(map(str, coordinates))},
    )[0]


def _numbered(inner: type[Any] | None) -> bool:
    """Whether inner times are integers, as iterations are."""
    return inner is None or inner is int


def _check_at(schema: pa.Schema, added: dict[str, Any], inner: type[Any] | None) -> None:
    numbered = _numbered(inner)
    for column, one in added.items():
        kind = schema.field(column).type
        plain = pa.types.is_boolean(kind) or pa.types.is_floating(kind) or pa.types.is_string(kind)
        if not (pa.types.is_integer(kind) or (plain and not numbered)):
            msg = f"enter: at={one!s} is {kind}"
            hint = "give integers from 0 on" + "." * numbered + ", texts or other numbers." * (not numbered)
            raise SchemaError(msg, where=caller(), hint=hint)
    if len(added) != 1 and (numbered or not added):
        msg = f"enter: at={list(map(str, added.values()))}"
        raise SchemaError(msg, where=caller(), hint="give one column or expression of integers.")


@operator(Stream)
def leave(stream: Stream, *, name: str | None = None) -> Stream:
    """This stream outside its innermost loop or scope: its times lose one coordinate (Naiad's egress).

    **Columns:** out as in.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("through")
        >>> _ = flow.input("x", "n long").enter(flow.scope.inner(name="loop")).leave().capture("out")
        >>> ts.testing.run(flow, {"x": [[1, 2]]})["out"].rows()
        {0: [(1,), (2,)]}

    Raises:
        GraphError: the stream is in no loop.
    """
    scope = stream.stage.scope
    if scope.parent is None:
        msg = f"leave: {stream.name!r} is in no loop"
        raise GraphError(msg, where=caller(), hint="call leave() on a stream inside a loop or scope.")
    summary = scope.times.leave(scope.depth)
    return stream.then(
        "leave", [stream.schema], kind=Kind.LEAVE, name=name, scope=scope.parent, summary=summary
    )[0]


@operator(Stream, body=True)
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
    with an operator that drops repeated records, such as `distinct` or `min`. What leaves is what `step`
    returns: the start is not in it unless `step` passes it on, by ``.concat(variable)``. Loops may be nested.
    Records of `min` and `max` may improve later, so the steps from them to the end of `step` must be monotone
    (a better value leads to a better one); if they are not, call `settle()` on the stream.

    A loop, also one with `max_iterations`, warns at its ten thousandth iteration in an epoch, and again
    whenever the number has doubled (`warn_after` of `Dataflow.start` and `testing.run`). Warnings are logged
    by ``timely_spark`` on the driver; in tests they are Python warnings of the category
    `testing.LoopWarning`, and `testing.run` fails at twice as many iterations of a loop without
    `max_iterations`. `Query.cancel` ends an endless loop.

    Args:
        stream: the variable's initial value.
        step: gets the variable, a stream in the loop's scope; returns the stream to feed back, which also
            leaves; or (the stream to feed back, the streams that leave ...).
        max_iterations: how often `step` is applied at most; records fed back beyond are dropped.
        on_limit: what happens if `max_iterations` drops records. "warn", the default: they are counted
            (`last_progress.cut_off`), and there is a warning, once per epoch. "return": no warning, for a
            loop that is meant to end there. "raise": the flow fails with `LimitReached`.

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
        msg = f"loop: the step returned {a_type(back)}, not a stream"
        hint = "return the stream to feed back, or a tuple beginning with it."
        raise GraphError(msg, where=caller(), hint=hint)
    variable.feed(back)
    leaving = tuple(leave(one) for one in out)
    return leaving[0] if len(leaving) == 1 else leaving
