"""The algorithm of docs/authors.md, from its page: the dense set is as dense as it says, and dense enough."""

from __future__ import annotations

import ast
from itertools import chain, combinations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import timely_spark as ts
from tests.support.accumulated import after_each
from tests.support.package import blocks

PAGE = Path(__file__).parents[2] / "docs" / "authors.md"
EDGES = st.sets(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=16)


@pytest.fixture(scope="module")
def page() -> dict[str, Any]:
    """The functions that the page's programs define; tests/docs runs the programs whole."""
    names: dict[str, Any] = {}
    program = ast.parse("\n".join(blocks(PAGE.read_text(encoding="utf-8"))))
    defines = (ast.Import, ast.ImportFrom, ast.ClassDef, ast.FunctionDef)
    program.body = [
        one for one in program.body if isinstance(one, defines) or ast.unparse(one).startswith("DEGREES = ")
    ]
    exec(compile(program, str(PAGE), "exec"), names)
    return names


def density(edges: set[tuple[int, int]], nodes: set[int]) -> float:
    inner = {frozenset(edge) for edge in edges if edge[0] != edge[1] and nodes.issuperset(edge)}
    return len(inner) / len(nodes)


def densest(edges: set[tuple[int, int]]) -> float:
    """The greatest density, by looking at all sets of nodes."""
    nodes = {*chain.from_iterable(edges)}
    every = chain.from_iterable(combinations(nodes, size) for size in range(1, len(nodes) + 1))
    return max((density(edges, {*some}) for some in every), default=0.0)


@pytest.mark.slow
@settings(max_examples=settings().max_examples // 4)
@given(epochs=st.lists(EDGES, min_size=1, max_size=4), workers=st.integers(1, 3))
def test_peeling_finds_a_set_that_is_dense_enough(
    page: dict[str, Any], epochs: list[set[tuple[int, int]]], workers: int
) -> None:
    epsilon = 0.25
    flow = ts.Dataflow("peeling")
    edges = flow.input("edges", "src long, dst long, diff long").collection(diff="diff")
    page["densest_subgraph"](edges, epsilon=epsilon).changes().capture("out")
    changes = [
        [(*edge, 1) for edge in after - before] + [(*edge, -1) for edge in before - after]
        for before, after in zip([set(), *epochs[:-1]], epochs, strict=True)
    ]
    rows = ts.testing.run(flow, {"edges": changes}, workers=workers)["out"].rows()

    for counts, present in zip(after_each(rows, len(epochs)), epochs, strict=True):
        found = {*counts}
        assert found == page["plainly"](present, epsilon)
        nodes, densities = {node for node, _ in found}, {dense for _, dense in found}
        if nodes:
            assert densities == {density(present, nodes)}
        assert max(densities, default=0.0) >= densest(present) / (2 * (1 + epsilon))
