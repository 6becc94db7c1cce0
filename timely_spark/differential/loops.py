"""Loops over collections: apply a function until nothing changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from timely_spark.differential.collections import Collection
from timely_spark.differential.trace import numbers
from timely_spark.errors import GraphError, SchemaError
from timely_spark.graph import Expression, OnLimit, Vertex, caller, check_columns, composed, operator
from timely_spark.operators.rows import check_function, computed
from timely_spark.streams import Scope

_ITERATION = "__timely_iteration"


class EnterAt(Vertex):
    """`enter_at`: send each record at the iteration in its column."""

    def on_recv(self, edge: int, time: Any, batch: pa.Table) -> None:
        """Send each record at its iteration."""
        iterations = batch.column(_ITERATION)
        if iterations.null_count or pc.any(pc.less(iterations, 0)).as_py():
            msg = "a record's iteration is null or negative"
            raise SchemaError(msg, hint="iterations are whole numbers from 0 on.")
        which, batch = numbers(batch, _ITERATION), batch.drop_columns([_ITERATION])
        *outer, first = time.encode()
        for iteration in np.unique(which).tolist():
            self.send_by(
                0,
                self._context.times.decode([*outer, first + iteration]),
                batch.filter(pa.array(which == iteration)),
            )


@operator(Collection)
@composed
def enter_at(
    collection: Collection, scope: Scope, iteration: str | Expression, *, name: str | None = None
) -> Collection:
    """This collection inside a loop, each record from a given iteration on.

    A fixed point of the loop stays the same. Records that enter early suppress worse ones before those
    propagate, so there are fewer retractions: let labels that win often enter first.

    Args:
        collection: of the scope around the loop.
        scope: the loop.
        iteration: an integer column or expression, at least 0.

    **Columns:** out as in.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("late")
        >>> loop = flow.scope.inner(name="loop")
        >>> numbers = flow.input("x", "n long").collection().enter_at(loop, "n")
        >>> _ = numbers.leave().changes().capture("out")
        >>> ts.testing.run(flow, {"x": [[0, 3]]})["out"].rows()
        {0: [(0, 1), (3, 1)]}

    Raises:
        SchemaError: `iteration` is no integer column or expression.
        GraphError: the collection is not outside of `scope`.
    """
    columns = collection.schema.names
    if scope.graph_scope.depth <= collection.scope.graph_scope.depth:
        msg = f"enter_at: {collection.index.name!r} is not outside the loop that it is to enter"
        raise GraphError(msg, where=caller(), hint="give a loop inside its scope, as made by scope.inner().")
    if isinstance(iteration, str):
        check_columns("enter_at", collection.schema, [iteration])
    added = {_ITERATION: iteration}
    numbered = computed(collection.stream, *collection.stream.schema.names, added, own=(_ITERATION,))
    stream = scope.enter(numbered)
    kind = stream.schema.field(_ITERATION).type
    if not pa.types.is_integer(kind):
        msg = f"enter_at: iteration={iteration!s} is {kind}"
        raise SchemaError(msg, where=caller(), hint="give whole numbers from 0 on.")
    entered = stream.then(
        "enter_at",
        [collection.stream.schema],
        name=name,
        vertex=EnterAt(),
        keeps={column: column for column in columns},
        detail=str(iteration),
        parameters={"iteration": str(iteration)},
    )
    return collection.like(entered[0])


@operator(Collection)
def iterate(
    collection: Collection,
    step: Callable[[Collection], Collection],
    *,
    max_iterations: int | None = None,
    on_limit: OnLimit | None = None,
    consolidate: bool = True,
    name: str | None = None,
) -> Collection:
    """Apply a function of collections repeatedly, from this collection on, until nothing changes.

    The law: at every time the result is the fixed point that a batch program reaches by applying `step` to
    the accumulated collection. Without a fixed point the loop is endless: give `max_iterations`. Operators
    let outer collections that `step` uses enter the loop by themselves; also this collection, if `iterate`
    is called in the body of a loop that it is outside of. A change of the input costs the changes that it
    causes, in the iterations in which it causes them.

    Args:
        collection: the initial value.
        step: gets the variable, a collection in the loop's scope; returns its next value.
        max_iterations: how often `step` is applied at most.
        on_limit: what happens if changes are left then: "return" (the default), "warn" or "raise", as for
            `Stream.loop`, which explains warnings about endless loops.
        consolidate: consolidate the changes that are fed back, per iteration, so that a change and its
            opposite do not circulate for ever. Switch it off only if `step` ends in a reduction and uses the
            initial value nowhere else.
        name: the loop's name.

    Returns:
        The collection after the last iteration, outside the loop.

    **Columns:** out as in; `step` gets and returns the same.

    Example:
        Reachability, under insertions and deletions of edges:

        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("reach")
        >>> edges = flow.input("edges", "src long, dst long, diff long").collection(diff="diff")
        >>> roots = flow.input("roots", "node long").collection()
        >>> def hop(reached):
        ...     targets = reached.join(edges, left="node", right="src").select(node="dst")
        ...     return targets.concat(roots).distinct()
        >>> _ = roots.iterate(hop).changes().capture("near")
        >>> inputs = {"edges": [[(1, 2, 1), (2, 3, 1), (3, 2, 1)], [(1, 2, -1)]], "roots": [[1], []]}
        >>> ts.testing.run(flow, inputs, workers=2)["near"].rows()
        {0: [(1, 1), (2, 1), (3, 1)], 1: [(2, -1), (3, -1)]}

    Raises:
        GraphError: `step` is no function, or returns no collection, or one of another loop.
        SchemaError: `step` returns other columns.
    """
    check_function("iterate", step)
    graph = collection.index.flow.graph
    inside = graph.inside or graph.root
    outer = collection.scope.graph_scope is not inside and collection.scope.graph_scope in inside.path
    with graph.parts(inside if outer else collection.scope.graph_scope, name) as outside:
        if outer:  # `iterate` is called in the body of a loop, whose variable `step` may use
            collection = collection.enter(replace(collection.scope, graph_scope=inside))
        scope = collection.scope.inner(name=name, max_iterations=max_iterations, on_limit=on_limit)
        variable = collection.variable(scope)
        with graph.body(scope.graph_scope, outside):
            result = step(variable)
        variable.set(result, consolidate=consolidate)
        if result.scope != scope:  # `step` did not use the variable
            result = result.enter(scope)
        return result.leave()
