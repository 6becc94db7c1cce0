"""Iterative MapReduce: a map and a reduction, and a loop that ends by a predicate (Naiad section 4)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from timely_spark.differential.collections import Collection, check_collection
from timely_spark.differential.loops import beginning
from timely_spark.differential.trace import DIFF
from timely_spark.graph import OnLimit, SchemaLike, operator
from timely_spark.operators.rows import check_function, computed

_DONE = "__timely_done"


@operator(Collection)
def map_reduce(
    collection: Collection,
    mapper: Callable[[Any], Iterable[Any]],
    reducer: Callable[[Any, list[Any]], Iterable[Any]],
    *,
    mapped: SchemaLike,
    reduced: SchemaLike,
    keys: str | Sequence[str],
    name: str | None = None,
) -> Collection:
    """Map each record to records with keys, and reduce those of each key: `flat_map`, then `reduce`.

    When records come or go, only the keys that they are mapped to are reduced again. It takes one exchange.
    For whole batches call `map_batches` and `reduce_batches`, which are faster, or `sum`, which also adds up
    before the exchange.

    Args:
        mapper: gets a record (a named row); returns an iterable of records.
        reducer: gets a key, and its records, each as often as it is there; returns an iterable of results.
        mapped: the schema of what `mapper` returns.
        reduced: the schema of what `reducer` returns, without the key.
        keys: the key columns of `mapped`.

    **Columns:** out: `keys`, then `reduced`.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("words")
        >>> lines = flow.input("lines", "line string, diff long").collection(diff="diff")
        >>> counts = lines.map_reduce(
        ...     lambda row: row.line.split(),
        ...     lambda word, rows: [len(rows)],
        ...     mapped="word string",
        ...     reduced="n long",
        ...     keys="word",
        ... )
        >>> _ = counts.changes().capture("out")
        >>> ts.testing.run(flow, {"lines": [[("to be or", 1), ("to", 1)], [("to", -1)]]})["out"].rows()
        {0: [('be', 1, 1), ('or', 1, 1), ('to', 2, 1)], 1: [('to', 1, 1), ('to', 2, -1)]}

    Raises:
        GraphError: a function cannot be called.
        SchemaError: a key is missing, or in `reduced`.
        VertexError: at run time: a function raises, or returns other columns.
    """
    check_function("map_reduce", mapper, "row")
    check_function("map_reduce", reducer, "key", "rows")
    return collection.flat_map(mapper, mapped).reduce(reducer, reduced, keys=keys, name=name)


@operator(Collection, body=True)
def iterate_until(
    collection: Collection,
    step: Callable[[Collection], Collection],
    converged: Callable[[Collection, Collection], Collection],
    *,
    max_iterations: int | None = None,
    on_limit: OnLimit | None = None,
    name: str | None = None,
) -> Collection:
    """Apply a function of collections repeatedly, until a predicate holds of an iteration.

    The law: at every time the result is that of a batch program on the accumulated collection: the first
    ``step(x)`` for which ``converged(x, step(x))`` has a record, or a fixed point if one comes first. So the
    predicate may stop a loop that would never end, or would end late, and the result follows insertions and
    deletions as that of `iterate` does.

    Besides the exchanges of `step`, an iteration has one for records of the result, and one for the verdict,
    which goes to all workers.

    Args:
        collection: the initial value.
        step: gets the variable, a collection in the loop's scope; returns its next value.
        converged: gets the value before and after an iteration; returns a collection that has a record, of
            any columns, if the loop may end.
        max_iterations: how often `step` is applied at most.
        on_limit: what happens if changes are left then: see `Stream.loop`.

    Returns:
        The collection after the last iteration, outside the loop.

    **Columns:** out as in; `step` gets and returns the same.

    Example:
        Newton's square roots, until the difference is less than 0.01:

        >>> import pyarrow.compute as pc, timely_spark as ts
        >>> flow = ts.Dataflow("roots")
        >>> start = flow.input("x", "of double, root double").collection()
        >>> root, of = pc.field("root"), pc.field("of")
        >>> def newton(roots):
        ...     return roots.select("of", root=(root + of / root) / pc.scalar(2.0))
        >>> def close(before, after):
        ...     both = before.join(after.select("of", new="root"), on="of")
        ...     far = both.select(far=pc.abs(pc.field("new") - root))
        ...     return far.max("far", keys=[]).where(pc.field("far") < 0.01)
        >>> _ = start.iterate_until(newton, close).select("of", root=pc.round(root, 4)).capture("out")
        >>> ts.testing.run(flow, {"x": [[(9.0, 1.0), (4.0, 1.0)]]})["out"].rows()
        {0: [(4.0, 2.0, 1), (9.0, 3.0, 1)]}

    Raises:
        GraphError: an argument is not a function, or returns no collection, or one of another loop.
        SchemaError: `step` returns other columns, or a column has no equality.
    """
    check_function("iterate_until", step, "variable")
    check_function("iterate_until", converged, "before", "after")
    with beginning(collection, name) as (initial, outside):
        scope = initial.scope.inner(name=name, max_iterations=max_iterations, on_limit=on_limit)
        none = _verdict(initial.where(pc.scalar(False)))  # noqa: FBT003 - a constant
        before, done = initial.variable(scope), none.variable(scope)
        with collection.index.flow.graph.body(scope.graph_scope, outside):
            after = step(before)
            check_collection("iterate_until", after)
            _, after = before.together("iterate_until", after)
            verdict = converged(before, after)
            check_collection("iterate_until", verdict)
        # once done, what `step` changes is taken back
        undone = before.concat(after.negate()).broadcast_join(done).select(*collection.schema.names)
        following = after.concat(undone)
        before.set(following)
        done.set(done.concat(_verdict(verdict)).distinct())
        # what iterations undo of each other goes no further: a join would match all of it
        return following.leave().consolidate()


def _verdict(collection: Collection) -> Collection:
    """One record if there is any."""
    constant = computed(collection.stream, {_DONE: pc.scalar(pa.scalar(0)), DIFF: DIFF}, own=(_DONE, DIFF))
    return collection.like(constant).distinct()
