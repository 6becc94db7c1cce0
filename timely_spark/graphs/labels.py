"""Communities by label propagation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from timely_spark.differential import Collection
from timely_spark.errors import GraphError
from timely_spark.graph import caller, composed, locate_errors
from timely_spark.graphs.edges import edges_of, ends_of, nodes_of, reversed_of
from timely_spark.state.keys import flat, run_starts


@locate_errors
@composed
def cdlp(
    edges: Collection,
    iterations: int,
    *,
    nodes: Collection | None = None,
    src: str = "src",
    dst: str = "dst",
    node: str = "node",
    name: str | None = None,
) -> Collection:
    """For each node the label of its community, by synchronous label propagation.

    Each node starts with itself as its label. In each iteration all nodes at once take the most frequent
    label of their neighbours, the least one of several. An edge makes each end a neighbour of the other, so a
    neighbour by edges in both directions counts twice. So do parallel edges, and a self-loop, which makes a
    node its own neighbour: give ``edges.distinct()`` if they shall count once.

    Takes ``iterations`` iterations of one exchange each. An epoch costs the labels that change, in the
    iterations in which they change, and their edges.

    Args:
        edges: the edges, directed or not; each edge of an undirected graph once.
        iterations: the number of iterations.
        nodes: further nodes; one without edges keeps its own label.

    **Columns:** in: `src`, `dst`, of any key type; `node`. Nulls are ignored. Out: ``node``, ``label``, of
    their type.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("communities")
        >>> edges = flow.input("edges", "src long, dst long, diff long").collection(diff="diff")
        >>> _ = ts.graphs.cdlp(edges, 2).changes().capture("out")
        >>> changes = [[(1, 2, 1), (2, 3, 1), (3, 1, 1), (3, 4, 1)], [(3, 4, -1)]]
        >>> ts.testing.run(flow, {"edges": changes}, workers=2)["out"].rows()
        {0: [(1, 1, 1), (2, 1, 1), (3, 1, 1), (4, 1, 1)], 1: [(4, 1, -1)]}

    Raises:
        GraphError: `edges` or `nodes` is no collection; `iterations` is no whole number from 1 on.
        SchemaError: a column is missing, or ends and nodes are not of one flat type.

    Source: LDBC Graphalytics specification 1.0, section 2.3.5.
    """
    graph = edges_of("cdlp", edges, src, dst)
    if type(iterations) is not int or iterations < 1:
        msg = f"cdlp: iterations={iterations!r}"
        raise GraphError(msg, where=caller(), hint="give a whole number from 1 on.")
    kind = graph.schema.field("src").type
    linked = ends_of(graph)
    links = graph.concat(reversed_of(graph)).arrange("src")

    def vote(labels: Collection) -> Collection:
        votes = labels.join(links, left="node", right="src").select(node="dst", label="label")
        return votes.reduce_batches(_most_frequent, pa.schema([("label", kind)]), keys="node")

    start = linked.select("node", label="node")
    if nodes is None:
        return start.iterate(vote, max_iterations=iterations, name=name)
    linked, more = linked.together("cdlp", nodes_of("cdlp", nodes, node, kind).distinct())
    alone = more.antijoin(linked, on="node", unique=True).select("node", label="node")
    return start.iterate(vote, max_iterations=iterations).concat(alone, name=name)


def _most_frequent(votes: pa.Table) -> pa.Table:
    """For each node, whose rows are adjacent, the least of the labels with the greatest count."""
    nodes: Any = flat(votes.column("node").combine_chunks().dictionary_encode().indices).to_numpy()
    counts: Any = flat(votes.column("count")).to_numpy()
    starts = run_starts(nodes)
    most = np.repeat(np.maximum.reduceat(counts, starts), np.diff(starts, append=len(nodes)))
    most_frequent = np.flatnonzero(counts == most)
    votes, nodes = votes.select(["node", "label"]).take(pa.array(most_frequent)), nodes[most_frequent]
    starts, labels = run_starts(nodes), flat(votes.column("label"))
    if pa.types.is_integer(labels.type):
        least = pa.array(np.minimum.reduceat(labels.to_numpy(), starts), labels.type)
        return votes.take(pa.array(starts)).set_column(1, "label", least)
    by = [("of", "ascending"), ("label", "ascending")]
    order = pc.sort_indices(pa.table({"of": nodes, "label": labels}), by).to_numpy()
    return votes.take(pa.array(order[run_starts(nodes[order])]))
