"""Loops over collections: apply a function until nothing changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from timely_spark.differential.collections import Collection, check_product_order
from timely_spark.errors import GraphError
from timely_spark.graph import Expression, OnLimit, caller, check_columns, operator
from timely_spark.graph.naming import Owner
from timely_spark.graph.suggest import a_type
from timely_spark.operators.rows import check_function
from timely_spark.operators.sql import named_expressions
from timely_spark.streams import Scope


@operator(Collection)
def enter_at(
    collection: Collection, scope: Scope, iteration: str | Expression, *, name: str | None = None
) -> Collection:
    """This collection inside a loop (or scope), each record from a given iteration (inner time) on.

    A fixed point of the loop stays the same. Records that enter early suppress worse ones before those
    propagate, so there are fewer retractions: let labels that win often enter first.

    Args:
        collection: of the scope around the loop.
        scope: the loop; or a scope of `inner(time=int)`.
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
        SchemaError: `iteration` is not an integer column or expression.
        GraphError: the collection is not outside of `scope`.
    """
    if scope.graph_scope.depth <= collection.scope.graph_scope.depth:
        msg = f"enter_at: {collection.index.name!r} is not outside the loop that it is to enter"
        raise GraphError(msg, where=caller(), hint="give a loop inside its scope, as made by scope.inner().")
    check_product_order("enter_at", scope)
    (at,) = named_expressions("enter_at", collection.schema, {"iteration": iteration}).values()
    if isinstance(at, str):
        check_columns("enter_at", collection.schema, [at])
    return collection.like(collection.stream.enter(scope, at=at, name=name))


@operator(Collection, body=True)
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

    The start is not kept by itself: `step` returns the whole next value. ``reached.join(edges, ...)`` alone
    loses the roots, and all that it found where paths end: write ``.concat(roots).distinct()`` behind it.

    Args:
        collection: the initial value.
        step: gets the variable, a collection in the loop's scope; returns its next value.
        max_iterations: how often `step` is applied at most.
        on_limit: what happens if changes are left then: "warn" (the default), "return" or "raise", as for
            `Stream.loop`, which explains warnings about endless loops.
        consolidate: consolidate the changes that are fed back, per iteration, so that a change and its
            opposite do not circulate for ever; and those that leave, when all iterations of their time are
            over. Switch it off only if `step` ends in a reduction and uses the initial value nowhere else;
            consolidate the result then, if it is joined.

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
        GraphError: `step` is not a function, or returns no collection, or one of another loop.
        SchemaError: `step` returns other columns.
    """
    check_function("iterate", step, "variable")
    with beginning(collection, name) as (initial, outside):
        scope = initial.scope.inner(name=name, max_iterations=max_iterations, on_limit=on_limit)
        variable = initial.variable(scope)
        with collection.index.flow.graph.body(scope.graph_scope, outside):
            result: Any = step(variable)
        if not isinstance(result, Collection):
            msg = f"iterate: the step returned {a_type(result)}, not a collection"
            raise GraphError(msg, where=caller(), hint="return the variable's next value.")
        variable.set(result, consolidate=consolidate)
        if result.scope != scope:  # `step` did not use the variable
            result = result.enter(scope)
        left: Collection = result.leave()
        # what iterations undo of each other goes no further: a join would match all of it
        return left.consolidate() if consolidate else left


@contextmanager
def beginning(collection: Collection, name: str | None) -> Iterator[tuple[Collection, Owner | None]]:
    """Begin a loop with a collection; yields it in the scope around the loop, and the owner for `Graph.body`.

    That scope is the collection's own, or the one inside it whose body is being made, with its variable.
    """
    graph, own = collection.index.flow.graph, collection.scope
    inside = graph.inside or graph.root
    outer = own.graph_scope is not inside and own.graph_scope in inside.path
    with graph.parts(inside if outer else own.graph_scope, name) as outside:
        yield collection.enter(replace(own, graph_scope=inside)) if outer else collection, outside
