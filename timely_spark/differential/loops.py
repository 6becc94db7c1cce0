"""Loops over collections: what a function leads to when it is applied until nothing changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from timely_spark.differential.trace import numbers
from timely_spark.errors import GraphError, SchemaError
from timely_spark.graph import Vertex, caller, check_columns, composed
from timely_spark.operators.loop import OnLimit
from timely_spark.operators.rows import Expression, check_function, computed

if TYPE_CHECKING:
    from timely_spark.differential.collections import Collection
    from timely_spark.streams import Scope

_ITERATION = "__timely_iteration"


class EnterAt(Vertex):
    """`enter_at`: sends each record at the iteration that its column names."""

    def on_recv(self, edge: int, time: Any, batch: pa.Table) -> None:
        """Send each record at the iteration that its column names."""
        iterations = batch.column(_ITERATION)
        if iterations.null_count or pc.any(pc.less(iterations, 0)).as_py():
            msg = (
                "a record enters at iteration null or negative. Hint: iterations are whole numbers from 0 on."
            )
            raise SchemaError(msg)
        which, batch = numbers(batch, _ITERATION), batch.drop_columns([_ITERATION])
        *outer, first = time.encode()
        for iteration in np.unique(which).tolist():
            self.send_by(
                0,
                self._context.times.decode([*outer, first + iteration]),
                batch.filter(pa.array(which == iteration)),
            )


@composed
def enter_at(
    collection: Collection, scope: Scope, iteration: str | Expression, *, name: str | None = None
) -> Collection:
    """This collection inside a loop, each record from an iteration of its own on.

    What leaves the loop again is the same. A loop that lets records in one after the other has less to take
    back: labels that win often come first.

    Args:
        collection: of the scope around the loop.
        scope: the loop.
        iteration: a column, or expression, of whole numbers from 0 on.
        name: the step's name.

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
        SchemaError: `iteration` is no column or expression of whole numbers.
        GraphError: the collection is not outside of `scope`.
    """
    columns = collection.schema.names
    if scope.graph_scope.depth <= collection.scope.graph_scope.depth:
        msg = (
            f"enter_at ({caller()}): {collection.index.name!r} is not outside the loop it is to enter. "
            "Hint: give a loop around which it is, as made by scope.inner()."
        )
        raise GraphError(msg)
    if isinstance(iteration, str):
        check_columns("enter_at", collection.schema, [iteration])
    added = {_ITERATION: iteration}
    numbered = computed(collection.stream, *collection.stream.schema.names, added, own=(_ITERATION,))
    stream = scope.enter(numbered)
    kind = stream.schema.field(_ITERATION).type
    if not pa.types.is_integer(kind):
        msg = f"enter_at ({caller()}): iteration={iteration!s} is {kind}. Hint: give whole numbers from 0 on."
        raise SchemaError(msg)
    made = stream.then(
        "enter_at",
        [collection.stream.schema],
        name=name,
        vertex=EnterAt(),
        keeps={column: column for column in columns},
        detail=str(iteration),
        parameters={"iteration": str(iteration)},
    )
    return collection.like(made[0])


def iterate(
    collection: Collection,
    step: Callable[[Collection], Collection],
    *,
    max_iterations: int | None = None,
    on_limit: OnLimit | None = None,
    consolidate: bool = True,
    name: str | None = None,
) -> Collection:
    """Apply a function of collections again and again, from this one on, until nothing changes.

    The law: at every time the result is what a batch program gets that starts with what this collection has
    come to and applies `step` until it gives what it got. Where no such point is ever reached the loop runs
    for ever: give `max_iterations`. What `step` uses from outside is entered by the operators themselves; so
    is this collection, where it is of a scope around the loop whose body is being written. A change of the
    input goes through the iterations it matters to, and costs what it changes there.

    Args:
        collection: what to begin with.
        step: gets the variable, a collection in the loop's scope; returns what it is to become.
        max_iterations: how often `step` is applied at most.
        on_limit: what happens where changes are left then: "return" (the default), "warn" or "raise", as for
            `Stream.loop`, which tells more of loops that do not end.
        consolidate: let what comes back be added up per iteration, so that a change and its opposite do not
            go round for ever. Leave it out only where `step` ends in a reduction and does not use what it
            began with otherwise.
        name: the loop's name.

    Returns:
        The collection after the last iteration, outside the loop.

    **Columns:** out as in; `step` gets and gives the same.

    Example:
        What can be reached, when edges come and go:

        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("reach")
        >>> edges = flow.input("edges", "src long, dst long, diff long").collection(diff="diff")
        >>> roots = flow.input("roots", "node long").collection()
        >>> def hop(reached):
        ...     onward = reached.join(edges, left="node", right="src").select(node="dst")
        ...     return onward.concat(roots).distinct()
        >>> _ = roots.iterate(hop).changes().capture("near")
        >>> inputs = {"edges": [[(1, 2, 1), (2, 3, 1), (3, 2, 1)], [(1, 2, -1)]], "roots": [[1], []]}
        >>> ts.testing.run(flow, inputs, workers=2)["near"].rows()
        {0: [(1, 1), (2, 1), (3, 1)], 1: [(2, -1), (3, -1)]}

    Raises:
        GraphError: `step` is no function, or returns no collection, or one of another loop.
        SchemaError: it returns one with other columns.
    """
    check_function("iterate", step)
    graph = collection.index.flow.graph
    inside = graph.inside or graph.root
    around = collection.scope.graph_scope is not inside and collection.scope.graph_scope in inside.path
    with graph.parts(inside if around else collection.scope.graph_scope, name) as outside:
        if around:  # written in the body of a loop, whose variable `step` may use
            collection = collection.enter(replace(collection.scope, graph_scope=inside))
        scope = collection.scope.inner(name=name, max_iterations=max_iterations, on_limit=on_limit)
        variable = collection.variable(scope)
        with graph.body(scope.graph_scope, outside):
            result = step(variable)
        variable.set(result, consolidate=consolidate)
        if result.scope != scope:  # it did not look at the variable
            result = result.enter(scope)
        return result.leave()
