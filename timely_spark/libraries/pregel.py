"""Pregel: vertex programs in supersteps, on graphs that change."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from timely_spark.authors import (
    Several,
    algorithm,
    caller,
    check_collection,
    check_columns,
    check_function,
    describe,
)
from timely_spark.differential import Collection
from timely_spark.errors import GraphError, SchemaError
from timely_spark.libraries.superstep import HALTED, by_batch, by_expressions, by_row
from timely_spark.libraries.supersteps import MakeProgram, MessageColumns, Supersteps, value_of


@dataclass(frozen=True, slots=True)
class Graph(Several):
    """A graph after the last superstep: its nodes, and its edges."""

    nodes: Collection
    edges: Collection


@algorithm
def pregel(
    nodes: Collection,
    edges: Collection,
    *,
    with_vertex_column: Mapping[str, tuple[Any, str | pc.Expression]] | None = None,
    compute: Callable[[pa.Table], Any] | None = None,
    vprog: Callable[[Any], Any] | None = None,
    send_msg_to_dst: MessageColumns | None = None,
    send_msg_to_src: MessageColumns | None = None,
    agg_msgs: str | Callable[[Collection], Collection] = "sum",
    initial_msg: Any = None,
    aggregators: Mapping[str, tuple[str, Any]] | None = None,
    halt: str | pc.Expression | None = None,
    mutate: Callable[[Collection, Collection], tuple[Collection, Collection]] | None = None,
    max_iterations: int | None = None,
    on_limit: Literal["return", "warn", "raise"] | None = None,
    node: str = "node",
    src: str = "src",
    dst: str = "dst",
    name: str | None = None,
) -> Graph:
    """A vertex program in supersteps: Pregel, with the arguments of GraphFrames' and GraphX's.

    In a superstep messages are sent along the edges, the messages to a node are aggregated, and the nodes'
    new columns are computed from their columns and their message: by `with_vertex_column`, `compute` or
    `vprog`. The loop ends when no node, message or edge changes, or after `max_iterations` supersteps.

    The law: at every epoch the graph is that which Pregel computes, from the start, on the nodes and edges
    accumulated so far, under insertions and deletions. An epoch costs only what differs from the epoch
    before, superstep by superstep: the nodes whose columns or message differ, and their edges. If
    nearly all nodes differ (ranks in doubles), that is more than a computation from the start. Programs must
    be deterministic functions of the columns they get.

    A superstep has one exchange, of messages to nodes. Sums of integers are combined before it;
    for other aggregates equal messages are. It has a second exchange if a message reads columns of both ends,
    or if there are `aggregators`: their values go to all workers. State is keyed by node, and a superstep
    writes only what changes in it.

    Args:
        nodes: one record for each node.
        edges: the directed edges; parallel ones send several messages.
        with_vertex_column: for each column that is added or replaced its initial value, of the
            nodes' columns, and its value after a superstep: expressions, of ``pyarrow.compute`` or as texts
            in Spark's SQL, columns' names or constants (a constant text is ``"'...'"``).
        compute: or a function of an Arrow table of nodes; returns a table, or pandas frame, of their new
            columns without `node`, row by row.
        vprog: or, slower, a function of one node (a named row); returns the new columns as tuple or dict, or
            for one column its value.
        send_msg_to_dst: the message from the source of each edge to its target: an expression, or several,
            by column. A null is not a message.
        send_msg_to_src: the message from the target to the source.
        agg_msgs: "sum", "min", "max" or "mean"; or a function of the collection of messages, that
            returns one record for each node, with column ``node``.
        initial_msg: a message, which all nodes get in a superstep before the others, as in GraphX.
        aggregators: for each global value ("sum", "min", "max" or "mean", an expression of a node's
            columns, or one of them); nulls are left out. A superstep gets the values of the nodes before it.
        halt: a node votes to halt if this expression is true, of all that the program got and its new
            columns. It then computes and sends again only when it gets a message. By default all nodes
            compute and send in each superstep, which costs nothing where nothing changes.
        mutate: a function of the nodes after a superstep and of the edges; returns those of the next
            superstep, so that nodes and edges come and go (collections, both with their columns).
        max_iterations: how many supersteps there are at most (after that of `initial_msg`).
        on_limit: what happens if changes are left then: see `Stream.loop`. None means nothing, as the number
            of supersteps is often given.

    Returns:
        The nodes and edges after the last superstep; the nodes are a collection, so they are `Graph.nodes`.

    **Columns:** `nodes`: `node`, and any others but nested ones; `edges`: `src`, `dst` of the same type, any
    others. Records with a null there are ignored, as are messages to what is not a node. A program gets
    ``node`` (so called also with `node="id"`), the nodes' columns, ``msg`` (or the message's columns; null
    without a message), then the aggregators. A message is computed from ``src``, ``dst``, the edge's columns,
    and those of its ends, as ``src_rank`` and ``dst_rank`` for a column ``rank``. `mutate` gets nodes with
    ``node``, their columns, and with `halt` ``halted``, which is false for a new node. Out: ``node`` and the
    nodes' columns; ``src``, ``dst`` and the edges' columns.

    Example:
        The greatest number in each component, by GraphX's kind of program:

        >>> import pyarrow.compute as pc, timely_spark as ts
        >>> flow = ts.Dataflow("greatest")
        >>> nodes = flow.input("nodes", "node long, n long").collection()
        >>> edges = flow.input("edges", "src long, dst long, diff long").collection(diff="diff")
        >>> graph = ts.pregel(
        ...     nodes,
        ...     edges,
        ...     with_vertex_column={
        ...         "n": (pc.field("n"), pc.max_element_wise(pc.field("n"), pc.field("msg")))
        ...     },
        ...     send_msg_to_dst=pc.field("src_n"),
        ...     send_msg_to_src=pc.field("dst_n"),
        ...     agg_msgs="max",
        ... )
        >>> _ = graph.nodes.changes().capture("out")
        >>> inputs = {
        ...     "nodes": [[(1, 5), (2, 7), (3, 6)], []],
        ...     "edges": [[(1, 2, 1), (2, 3, 1)], [(2, 3, -1)]],
        ... }
        >>> ts.testing.run(flow, inputs, workers=2)["out"].rows()
        {0: [(1, 7, 1), (2, 7, 1), (3, 7, 1)], 1: [(3, 6, 1), (3, 7, -1)]}

    Raises:
        GraphError: an argument is not a collection or function; there is not one program; no message is sent;
            or an aggregate is unknown.
        SchemaError: a column is missing, or ends and nodes are of different types; an expression does not
            fit, or a column's initial value and its later ones are of different types.
        VertexError: at run time: a node has two records, or a program returns other columns or rows.

    Source: Naiad section 4.2; Malewicz et al., Pregel, SIGMOD 2010.
    """
    nodes, edges = _graph(nodes, edges, node, src, dst)
    nodes, program = _program(nodes, with_vertex_column, compute, vprog)
    steps = Supersteps(program, agg_msgs, aggregators or {}, halt, send_msg_to_dst, send_msg_to_src)
    steps.check(nodes)
    nodes, edges = nodes.together("pregel", edges)
    if halt is not None:
        nodes = nodes.select(*nodes.schema.names, {HALTED: pc.scalar(False)})  # noqa: FBT003 - a constant
    if initial_msg is not None:
        first = initial_msg if isinstance(initial_msg, Mapping) else {"msg": initial_msg}
        message = {
            column: value if isinstance(value, pc.Expression) else pc.scalar(value)
            for column, value in first.items()
        }
        nodes = steps.superstep(nodes, nodes.select("node", message))
    if max_iterations is not None:
        on_limit = on_limit or "return"
    if mutate is None:
        links = steps.links(edges)
        nodes = nodes.iterate(
            lambda now: steps.superstep(now, steps.messages(now, *links)),
            max_iterations=max_iterations,
            on_limit=on_limit,
            name=name,
        )
    else:
        check_function("pregel", mutate)
        scope = nodes.scope.inner(name=name, max_iterations=max_iterations, on_limit=on_limit)
        before, links_before = nodes.variable(scope), edges.variable(scope)
        after = steps.superstep(before, steps.messages(before, links_before, links_before))
        with scope.flow.graph.body(scope.graph_scope, None):
            new_nodes, new_edges = mutate(after, links_before)
        before.set(new_nodes)
        links_before.set(new_edges)
        _, *changed = before.together("pregel", new_nodes, new_edges)
        nodes, edges = (one.leave().consolidate() for one in changed)
    plain = [column for column in nodes.schema.names if halt is None or column != HALTED]
    return Graph(nodes.select(*plain), edges)


def _graph(nodes: Any, edges: Any, node: str, src: str, dst: str) -> tuple[Collection, Collection]:
    """The nodes with `node` first, and the edges with `src` and `dst` first, all three without nulls."""
    parts = []
    for collection, ends in ((nodes, {"node": node}), (edges, {"src": src, "dst": dst})):
        check_collection("pregel", collection)
        columns = collection.schema.names
        check_columns("pregel", collection.schema, ends, keys=True)
        check_columns("pregel", collection.schema, columns, keys=True)
        others = [column for column in columns if column not in ends.values()]
        if both := [column for column in others if column in ends]:
            msg = f"pregel: {both} are further columns of ({describe(collection.schema)}), beside {ends}"
            raise SchemaError(msg, where=caller(), hint="rename them.")
        valid = reduce(and_, (pc.is_valid(pc.field(end)) for end in ends))
        parts.append(collection.select(ends, *others).where(valid))
    kinds = [parts[0].schema.field("node").type, *(parts[1].schema.field(end).type for end in ("src", "dst"))]
    if len(set(kinds)) > 1:
        msg = f"pregel: node={node!r}, src={src!r} and dst={dst!r} are {', '.join(map(str, kinds))}"
        raise SchemaError(msg, where=caller(), hint="cast with select(src=pc.field('src').cast('int64')).")
    parts[1].checks_removals = True
    return parts[0], parts[1]


def _program(
    nodes: Collection,
    columns: Mapping[str, Any] | None,
    compute: Callable[[pa.Table], Any] | None,
    vprog: Callable[[Any], Any] | None,
) -> tuple[Collection, MakeProgram]:
    """The nodes with their initial columns, and the program."""
    if [columns, compute, vprog].count(None) != 2:
        msg = "pregel: there must be one of with_vertex_column, compute and vprog"
        hint = (
            "give with_vertex_column={'rank': (1.0, pc.field('msg'))}, or a function as compute= or vprog=."
        )
        raise GraphError(msg, where=caller(), hint=hint)
    if columns is None:
        check_function("pregel", vprog if compute is None else compute)
        if compute is not None:
            return nodes, lambda schema, _: by_batch(compute, schema)
        assert vprog is not None
        return nodes, lambda schema, _: by_row(vprog, schema)
    if wrong := [one for one in columns.values() if not isinstance(one, tuple) or len(one) != 2]:
        msg = f"pregel: with_vertex_column has {wrong[0]!r}"
        hint = "give for each column (initial value, value after a superstep)."
        raise GraphError(msg, where=caller(), hint=hint)
    unchanged = [column for column in nodes.schema.names if column not in columns]
    nodes = nodes.select(*unchanged, {column: value_of(first) for column, (first, _) in columns.items()})
    later = {column: value_of(then) for column, (_, then) in columns.items()}
    return nodes, lambda schema, batch: by_expressions(later, schema, batch)
