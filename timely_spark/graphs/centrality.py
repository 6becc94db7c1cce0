"""Betweenness: how many shortest paths lead through each node."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from timely_spark.authors import Groups, Indices, adjacent, algorithm, numbers, same
from timely_spark.differential import Collection
from timely_spark.errors import SchemaError
from timely_spark.graphs.edges import edges_of, ends_of, nodes_of, reversed_of, with_nodes

#: counts of paths are long
_MOST_PATHS = 2.0**62
#: in `through`: a row for each part that a node waits for, and one of its own
_WAITS = -1.0


@algorithm
def betweenness(
    edges: Collection,
    directed: bool,  # noqa: FBT001 - there is no default: a wrong one would be wrong by a factor, silently
    *,
    samples: Collection | None = None,
    nodes: Collection | None = None,
    src: str = "src",
    dst: str = "dst",
    node: str = "node",
    name: str | None = None,
) -> Collection:
    """For each node its betweenness: the part of shortest paths that lead through it, summed over all pairs.

    The sum, over all pairs of a source and another target without this node, of the share of the pair's
    shortest paths that lead through it. An undirected graph's pairs count once, that is one half in each
    direction. There is no normalisation: divided by the number of pairs, (n - 1)(n - 2), every result would
    change with the number of nodes. Parallel edges count as one; self-loops only make a node present. Sums
    are of sorted doubles, so results do not depend on past changes.

    Brandes's algorithm, as two loops: forwards the distances from each source and the numbers of shortest
    paths, backwards the parts of these paths that lead through each node. Each loop takes as many iterations
    as the longest shortest path has edges, of two exchanges forwards and one backwards. An epoch costs the
    pairs of a source and a node with another distance, number of paths, or part, and their edges, and a
    changed edge costs a record for each source that reaches it; a node whose sum changes reads its parts of
    all sources. State is a row for each such pair, and for each edge on a shortest path from each source: in
    a large graph give samples.

    Args:
        edges: the edges; if undirected, in either direction or both.
        directed: whether the edges are directed.
        samples: the sources; only those with edges or in `nodes` count. None means all nodes, and
            the result is exact. With k random sources of n nodes, the result times n / k is an estimate.
        nodes: further nodes; one without edges has betweenness 0.

    **Columns:** in: `src`, `dst`, of any key type; `node`. Nulls are ignored. Out: ``node``, of their type;
    ``betweenness`` double.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("between")
        >>> edges = flow.input("edges", "src long, dst long, diff long").collection(diff="diff")
        >>> _ = ts.graphs.betweenness(edges, directed=False).changes().capture("out")
        >>> ts.testing.run(flow, {"edges": [[(1, 2, 1), (2, 3, 1)], [(1, 3, 1)]]})["out"].rows()
        {0: [(1, 0.0, 1), (2, 1.0, 1), (3, 0.0, 1)], 1: [(2, 0.0, 1), (2, 1.0, -1)]}

    Raises:
        GraphError: `edges`, `samples` or `nodes` is not a collection.
        SchemaError: a column is missing, or ends, samples and nodes are not of one flat type.
        VertexError: when it runs: there are 2^62 or more shortest paths between two nodes.

    Source: Brandes, A faster algorithm for betweenness centrality, Journal of Mathematical Sociology 2001.
    """
    graph = with_nodes("betweenness", edges_of("betweenness", edges, src, dst), nodes, node)
    every = ends_of(graph)
    sources = every
    if samples is not None:
        sampled = nodes_of("betweenness", samples, node, graph)
        every, sampled = every.together("betweenness", sampled)
        sources = every.semijoin(sampled.distinct(), on="node", unique=True)
    links = graph if directed else graph.concat(reversed_of(graph))
    links = links.distinct().arrange("src")
    first = {"distance": pc.scalar(0), "paths": pc.scalar(1)}
    start = sources.select("node", source="node", **first).select("node", "source", "distance", "paths")

    def forwards(reached: Collection) -> Collection:
        steps = reached.join(links, left="node", right="src")
        farther = steps.select(
            "source", "paths", node="dst", distance=pc.add(pc.field("distance"), pc.scalar(1))
        )
        near = farther.select(*start.schema.names).concat(start)
        return near.reduce_batches(_nearest, "distance long, paths long", keys=["node", "source"])

    reached = start.iterate(forwards)
    # the edges on shortest paths, each with the part of the paths to its end that use it
    ends = reached.select("source", "distance", end="node", all="paths")
    one_on = reached.join(links, left="node", right="src")
    one_on = one_on.select(
        "source", "node", "paths", end="dst", distance=pc.add(pc.field("distance"), pc.scalar(1))
    )
    used = one_on.join(ends, on=["end", "source", "distance"])
    part = pc.field("paths").cast(pa.float64(), safe=False) / pc.field("all").cast(pa.float64(), safe=False)
    used = used.select("node", "source", "end", part=part).arrange(["end", "source"])
    waits = used.select("node", "source", through=pc.scalar(_WAITS))
    waits = waits.concat(reached.select("node", "source", through=pc.scalar(_WAITS)))

    def backwards(through: Collection) -> Collection:
        passed = through.select("source", "through", end="node").join(used, on=["end", "source"])
        parts = passed.select(
            "node", "source", through=pc.field("part") * (pc.field("through") + pc.scalar(1.0))
        )
        return parts.concat(waits).reduce_batches(_summed, "through double", keys=["node", "source"])

    through = waits.where(pc.scalar(False)).iterate(backwards)  # noqa: FBT003 - an expression
    # a node is not between itself and others; this also keeps a row for each node
    zero = every.select("node", through=pc.scalar(0.0))
    between = through.map_batches(_with_sources, through.schema).select("node", "through").concat(zero)
    total = between.reduce_batches(_added, "through double", keys="node")
    half = pc.scalar(1.0 if directed else 0.5)
    return total.select("node", betweenness=pc.field("through") * half, name=name)


def _nearest(rows: pa.Table) -> pa.Table:
    """For each node and source the least distance, and the number of paths of this length."""
    groups = adjacent(rows, ["node", "source"])
    distance, paths, count = (numbers(rows, name) for name in ("distance", "paths", "count"))
    least = np.minimum.reduceat(distance, groups.starts)
    # equal records are as many neighbours with so many paths
    near = distance == least[groups.ids]
    every = groups.totals(np.where(near, paths * count, 0))
    if (groups.totals(np.where(near, paths.astype(np.float64) * count, 0.0)) >= _MOST_PATHS).any():
        msg = "betweenness: 2^62 or more shortest paths between two nodes"
        raise SchemaError(msg, hint="remove edges, or give samples whose shortest paths are fewer.")
    keys = rows.select(["node", "source"]).take(pa.array(groups.starts))
    return keys.append_column("distance", pa.array(least)).append_column("paths", pa.array(every))


def _summed(rows: pa.Table) -> pa.Table:
    """The sum of the parts of each node and source, when all have arrived."""
    groups = adjacent(rows, ["node", "source"])
    through, count = (numbers(rows, name) for name in ("through", "count"))
    complete = groups.totals(np.where(through == _WAITS, count, -count)) == 1  # the node's own row
    total = _sums(np.where(through == _WAITS, 0.0, through), count, groups)
    keys = rows.select(["node", "source"]).take(pa.array(groups.starts[complete]))
    return keys.append_column("through", pa.array(total[complete]))


def _added(rows: pa.Table) -> pa.Table:
    """The sum of each node."""
    groups = adjacent(rows, ["node"])
    through, count = (numbers(rows, name) for name in ("through", "count"))
    return pa.table(
        {"node": rows.column("node").take(pa.array(groups.starts)), "through": _sums(through, count, groups)}
    )


def _sums(values: npt.NDArray[np.float64], count: Indices, groups: Groups) -> npt.NDArray[np.float64]:
    """The sums of groups, each in ascending order, one after the other: they depend on the values alone."""
    order = np.lexsort((values, groups.ids))
    totals = np.zeros(len(groups.starts))
    np.add.at(totals, groups.ids[order], (values * count)[order])
    return totals


def _with_sources(rows: pa.Table) -> pa.Table:
    """The parts, with 0 for a source itself."""
    own = pa.array(same(rows, rows, ["node"], ["source"]))
    place = rows.schema.get_field_index("through")
    return rows.set_column(place, "through", pc.if_else(own, 0.0, rows.column("through")))
