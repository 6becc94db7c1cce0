"""Communities by label propagation."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from timely_spark.authors import adjacent, algorithm, changes, flat, integer, numbers
from timely_spark.differential import Collection
from timely_spark.errors import GraphError
from timely_spark.graphs.edges import edges_of, ends_of, nodes_of, reversed_of


@algorithm
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
        GraphError: `edges` or `nodes` is not a collection; `iterations` is not an integer from 1 on.
        SchemaError: a column is missing, or ends and nodes are not of one flat type.

    Source: LDBC Graphalytics specification 1.0, section 2.3.5.
    """
    graph = edges_of("cdlp", edges, src, dst)
    iterations = integer("iterations", iterations, step="cdlp", error=GraphError)
    linked = ends_of(graph)
    own = linked.select("node", label="node")
    if nodes is None:
        return _propagated(graph, own, iterations, name=name)
    linked, more = linked.together("cdlp", nodes_of("cdlp", nodes, node, graph).distinct())
    isolated = more.antijoin(linked, on="node", unique=True).select("node", label="node")
    return _propagated(graph, own, iterations).concat(isolated, name=name)


@algorithm
def label_propagation(
    edges: Collection,
    labels: Collection,
    *,
    iterations: int,
    fixed: bool = False,
    src: str = "src",
    dst: str = "dst",
    node: str = "node",
    label: str = "label",
    name: str | None = None,
) -> Collection:
    """For each node the label that reaches it from labelled nodes, by synchronous propagation.

    In each iteration all nodes at once take the most frequent label among their neighbours; of equally
    frequent ones the least. A node keeps its own label if no neighbour has one. As for `cdlp`, an edge makes
    each end a neighbour of the other, and parallel edges, edges in both directions and self-loops count by
    their number. If `labels` has several labels of a node, the least counts. With all nodes as their own
    labels this is `cdlp`.

    With ``fixed=True`` nodes in `labels` keep these: the labels of few nodes, that are known, spread over the
    others (semi-supervised classification).

    Takes ``iterations`` iterations of one exchange each. An epoch costs the labels that change, in the
    iterations in which they change, and their edges.

    Args:
        edges: the edges, directed or not; each edge of an undirected graph once.
        labels: the labels at the beginning, of some nodes or all, with edges or without.
        iterations: the number of iterations. Without a limit labels may alternate for ever.
        fixed: whether the nodes in `labels` keep their labels.

    **Columns:** in: `src`, `dst`, of any key type; `node`, of their type, and `label`, of any key type. Rows
    with nulls are ignored. Out: ``node``, ``label``, for each node that has a label.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("topics")
        >>> edges = flow.input("edges", "src long, dst long, diff long").collection(diff="diff")
        >>> known = flow.input("known", "node long, label string").collection()
        >>> _ = ts.graphs.label_propagation(edges, known, iterations=5, fixed=True).changes().capture("out")
        >>> changes = [[(1, 2, 1), (3, 4, 1), (5, 4, 1)], [(2, 3, 1), (3, 4, -1)]]
        >>> ts.testing.run(flow, {"edges": changes, "known": [[(1, "a"), (5, "b")]]})["out"].rows()
        {0: [(1, 'a', 1), (2, 'a', 1), (3, 'b', 1), (4, 'b', 1), (5, 'b', 1)], 1: [(3, 'a', 1), (3, 'b', -1)]}

    Raises:
        GraphError: `edges` or `labels` is not a collection; `iterations` is not an integer from 1 on.
        SchemaError: a column is missing, or ends and nodes are not of one flat type.

    Source: Raghavan, Albert and Kumara, Physical Review E 2007; with `fixed`, Zhu and Ghahramani, Learning
    from labeled and unlabeled data with label propagation, 2002, by majority.
    """
    graph = edges_of("label_propagation", edges, src, dst)
    iterations = integer("iterations", iterations, step="label_propagation", error=GraphError)
    fixed_labels = nodes_of("label_propagation", labels, node, graph, label=label)
    graph, fixed_labels = graph.together("label_propagation", fixed_labels)
    fixed_labels = fixed_labels.top_k(1, "label", keys="node", descending=False)  # a label may be NaN
    return _propagated(graph, fixed_labels, iterations, own="fixed" if fixed else "last", name=name)


def _propagated(
    graph: Collection, start: Collection, iterations: int, *, own: str | None = None, name: str | None = None
) -> Collection:
    """The labels after some iterations.

    A node's own label counts never, or before all others ("fixed"), or if there are no others ("last"): votes
    have ranks, and among those of the greatest rank the most frequent label wins.
    """
    links = graph.concat(reversed_of(graph)).arrange("src")
    result = pa.schema([start.schema.field("label")])
    rank = {"fixed": 2, "last": 0}

    def vote(labels: Collection) -> Collection:
        votes = labels.join(links, left="node", right="src").select(node="dst", label="label")
        if own is None:
            return votes.reduce_batches(_most_frequent, result, keys="node")
        own_votes = (start if own == "fixed" else labels).select("node", "label", rank=pc.scalar(rank[own]))
        votes = votes.select("node", "label", rank=pc.scalar(1)).concat(own_votes)
        return votes.reduce_batches(_first_ranked, result, keys="node")

    return start.iterate(vote, max_iterations=iterations, on_limit="return", name=name)


def _first_ranked(votes: pa.Table) -> pa.Table:
    """The most frequent labels among the votes of each node's greatest rank."""
    groups, ranks = adjacent(votes, ["node"]), numbers(votes, "rank")
    greatest = np.maximum.reduceat(ranks, groups.starts)[groups.ids]
    return _most_frequent(votes.filter(pa.array(ranks == greatest)).drop_columns(["rank"]))


def _most_frequent(votes: pa.Table) -> pa.Table:
    """For each node the least of the labels with the greatest count. A node's rows are adjacent."""
    groups, counts = adjacent(votes, ["node"]), numbers(votes, "count")
    most_frequent = np.flatnonzero(counts == np.maximum.reduceat(counts, groups.starts)[groups.ids])
    votes, nodes = votes.select(["node", "label"]).take(pa.array(most_frequent)), groups.ids[most_frequent]
    starts, labels = np.flatnonzero(changes(nodes)), flat(votes.column("label"))
    if pa.types.is_integer(labels.type):
        least = pa.array(np.minimum.reduceat(labels.to_numpy(), starts), labels.type)
        return votes.take(pa.array(starts)).set_column(1, "label", least)
    by = [("of", "ascending"), ("label", "ascending")]
    order = pc.sort_indices(pa.table({"of": nodes, "label": labels}), by).to_numpy()
    return votes.take(pa.array(order[changes(nodes[order])]))
