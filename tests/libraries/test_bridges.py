"""The bridges of graphs, against networkx."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest

from timely_spark.libraries.bridges import bridges_of


def edges(kind: str, seed: int) -> nx.Graph:
    random = np.random.default_rng(seed)
    if kind == "tree":
        return nx.random_labeled_tree(60, seed=seed)
    if kind == "path":
        return nx.path_graph(40)
    if kind == "blocks":  # cliques, each joined to an earlier one by one edge or two
        graph = nx.disjoint_union_all([nx.complete_graph(size) for size in random.integers(1, 6, 12)])
        parts = [list(part) for part in nx.connected_components(graph)]
        for number in range(1, len(parts)):
            earlier = parts[random.integers(number)]
            for _ in range(random.integers(1, 3)):
                graph.add_edge(random.choice(earlier), random.choice(parts[number]))
        return graph
    graph = nx.gnm_random_graph(40, int(random.integers(20, 60)), seed=seed)
    graph.remove_nodes_from(list(nx.isolates(graph)))
    return graph


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", ["tree", "path", "blocks", "sparse"])
def test_bridges_and_their_smaller_sides_are_those_of_networkx(kind: str, seed: int) -> None:
    random = np.random.default_rng(seed)
    graph = edges(kind, seed)
    graph = nx.relabel_nodes(graph, dict(zip(graph, random.permutation(len(graph)).tolist(), strict=True)))
    ends = random.permuted(random.permutation(np.array(graph.edges)), axis=1)
    roots = np.array([random.choice(sorted(part)) for part in nx.connected_components(graph)])

    is_bridge, smaller = bridges_of(ends[:, 0], ends[:, 1], roots)

    expected = dict[frozenset[int], int]()
    for a, b in list(nx.bridges(graph)):
        part = len(nx.node_connected_component(graph, a))
        graph.remove_edge(a, b)
        side = len(nx.node_connected_component(graph, a))
        graph.add_edge(a, b)
        expected[frozenset((a, b))] = min(side, part - side)
    pairs = [frozenset(pair) for pair in ends.tolist()]
    assert {
        pair: n for pair, n, yes in zip(pairs, smaller.tolist(), is_bridge, strict=True) if yes
    } == expected
    assert expected or kind == "blocks"


def test_no_edges_have_no_bridges() -> None:
    none = np.zeros(0, np.int64)
    assert [array.tolist() for array in bridges_of(none, none, none)] == [[], []]
