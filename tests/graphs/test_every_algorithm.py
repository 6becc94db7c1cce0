"""Every algorithm, on edges that come and go: any schedule, crash and workers; and what is said of it."""

from __future__ import annotations

import contextlib
import inspect
import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest

import timely_spark as ts
from tests.support.accumulated import after_each
from tests.support.rescaling import answers
from tests.support.turns import in_turn
from timely_spark import graphs
from timely_spark.errors import VertexError

TABLE = Path(__file__).parents[2] / "docs" / "graphs.md"
Build = Callable[[ts.Collection, ts.Collection], ts.Collection]
#: of weighted edges and some nodes; what is behind the name says how
EVERY: dict[str, Build] = {
    "betweenness": lambda edges, _: graphs.betweenness(edges, directed=True),
    "betweenness sampled": lambda edges, some: graphs.betweenness(edges, directed=False, samples=some),
    "bfs": graphs.bfs,
    "cdlp": lambda edges, _: graphs.cdlp(edges, 3),
    "colouring": lambda edges, some: graphs.colouring(edges, nodes=some),
    "connected_components": lambda edges, _: graphs.connected_components(edges),
    "core_numbers": lambda edges, _: graphs.core_numbers(edges),
    "distance_bounds": lambda edges, some: graphs.distance_bounds(
        graphs.landmarks(edges, some), edges.select("src", "dst")
    ),
    "k_core": lambda edges, _: graphs.k_core(edges, 2),
    "label_propagation": lambda edges, some: graphs.label_propagation(
        edges, some.select("node", label="node"), iterations=3
    ),
    "label_propagation fixed": lambda edges, some: graphs.label_propagation(
        edges, some.select("node", label="node"), iterations=3, fixed=True
    ),
    "landmarks": lambda edges, some: graphs.landmarks(edges, some, weight="weight"),
    "lcc": lambda edges, _: graphs.lcc(edges, directed=True),
    "lcc undirected": lambda edges, some: graphs.lcc(edges, directed=False, nodes=some),
    "maximal_independent_set": lambda edges, _: graphs.maximal_independent_set(edges),
    "minimum_spanning_forest": lambda edges, _: graphs.minimum_spanning_forest(edges),
    "motifs": lambda edges, _: graphs.motifs(edges, "a->b, b->c, a->c"),
    "motifs of four": lambda edges, _: graphs.motifs(edges, "a->b, a->c, b->d, c->d, !a->d"),
    "pagerank": lambda edges, _: graphs.pagerank(edges, 3, unit=1000),
    "pagerank uniform": lambda edges, some: graphs.pagerank(
        edges, 3, nodes=some, dangling="spread", start="uniform"
    ),
    "sssp": graphs.sssp,
    "stable_matching": lambda edges, _: graphs.stable_matching(
        edges.select("src", "dst", src_rank="weight", dst_rank="src")
    ),
    "strongly_connected_components": lambda edges, _: graphs.strongly_connected_components(edges),
    "triangles": lambda edges, _: graphs.triangles(edges),
    "pregel": lambda edges, some: ts.pregel(
        some.concat(edges.select(node="src")).concat(edges.select(node="dst")).distinct(),
        edges,
        with_vertex_column={"least": ("node", pc.min_element_wise(pc.field("least"), pc.field("msg")))},
        send_msg_to_dst="src_least",
        agg_msgs="min",
    ).nodes,
    "connected_components spread": lambda edges, _: graphs.connected_components(edges, spread=True),
    "wcoj": lambda edges, _: ts.wcoj([(edges, {"src": a, "dst": b}) for a, b in ("ab", "bc", "ca")]),
}  # fmt: skip
NODES = [[(1, 1), (3, 1)], [(1, -1), (77, 1)], [(1, 1)]]


def flow_of(build: Build) -> ts.Dataflow:
    flow = ts.Dataflow("algorithm")
    edges = flow.input("edges", "src long, dst long, weight long, diff long", epochs="manual")
    some = flow.input("some", "node long, diff long", epochs="manual")
    build(edges.collection(diff="diff"), some.collection(diff="diff")).changes().capture("out")
    return flow


@pytest.mark.slow
@pytest.mark.share(16)
@pytest.mark.parametrize(("number", "name", "what"), in_turn(enumerate(EVERY), ["crashes", "other workers"]))
def test_each_epoch_is_that_of_a_run_from_the_start(number: int, name: str, what: str, changing: Any) -> None:
    inputs = {"edges": changing(6, 10, 3, changes=4, seed=3, weights=(1, 2, 3)), "some": NODES}
    before = {input_: list(after_each(of, 3)) for input_, of in inputs.items()}
    flow = flow_of(EVERY[name])
    expected = []
    for epoch in range(3):
        whole = {input_: [[(*row, n) for row, n in of[epoch].items()]] for input_, of in before.items()}
        expected += after_each(ts.testing.run(flow, whole)["out"].rows(), 1)
    assert any(expected)

    if what == "crashes":
        how = {"workers": (2, 3, 8)[number % 3], "seed": number, "crashes": 0.15, "together": True}
        made = ts.testing.run(flow, inputs, **how)["out"].rows()
    else:  # repartitioned at every third batch
        workers = [1, 3, 2] if number % 4 == 1 else [3, 2, 1]
        made = answers(flow, inputs, workers, seed=4, stops=lambda batch: batch % 3 == 1)[0]["out"]
    assert list(after_each(made, 3)) == expected


#: a join of any relations: multiplicities multiply, as in `join`
SILENT = {"wcoj"}


@pytest.mark.parametrize(
    "name", [one if one in {"bfs", "motifs"} else pytest.param(one, marks=pytest.mark.slow) for one in EVERY]
)
def test_an_edge_that_is_removed_but_never_was_is_told_of(name: str) -> None:
    edges = [[(1, 2, 1, 1), (2, 3, 1, 1), (3, 4, 1, 1)], [(1, 3, 1, 1), (2, 4, 1, -1)]]
    inputs = {"edges": edges, "some": [[(1, 1)], []]}
    told = (
        contextlib.nullcontext() if name in SILENT else pytest.raises(VertexError, match="more was removed")
    )
    with told:
        ts.testing.run(flow_of(EVERY[name]), inputs, workers=2, on_negative="raise")


def test_every_algorithm_is_here() -> None:
    assert {name.split()[0] for name in EVERY} == {*graphs.__all__, "pregel", "wcoj"}, "add a line to EVERY"


def rows_of_the_table() -> dict[str, list[str]]:
    """By algorithm its row in the documentation's table."""
    section = TABLE.read_text(encoding="utf-8").split("\n## All algorithms\n")[1].split("\n## ")[0]
    lines = section.splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| `")]
    return {name: row for row in rows for name in re.findall(r"`([a-z_]+)`", row[0])}


def test_the_table_has_every_algorithm_and_all_cells() -> None:
    rows = rows_of_the_table()
    assert {*rows} == {*graphs.__all__}, "add a row to the table of all algorithms in docs/graphs.md"
    assert {len(row) for row in rows.values()} == {8}
    assert all(all(row[4:]) for row in rows.values())


@pytest.mark.parametrize("name", graphs.__all__)
def test_a_docstring_says_what_an_epoch_costs_and_where_it_is_from(name: str) -> None:
    text = inspect.getdoc(getattr(graphs, name)) or ""
    for said in ("epoch costs", "exchange", "Source: ", "**Columns:**", "Example:"):
        assert said in text.replace("\n", " "), said
    assert re.search(r"iterations?\b|no\s+loop", text)


@pytest.mark.parametrize("name", [name for name, row in rows_of_the_table().items() if row[4] == "none"])
def test_the_table_counts_the_exchanges_of_what_has_no_loop(name: str) -> None:
    flow = ts.Dataflow("exchanges")
    edges = flow.input("edges", "src long, dst long").collection()
    near = flow.input("near", "node long, landmark long, distance long").collection()
    builds = EVERY | {"distance_bounds": lambda edges, near: graphs.distance_bounds(near, edges)}
    builds[name](edges, near).stream.capture("out")

    with contextlib.redirect_stdout(io.StringIO()) as text:
        flow.explain(expand=True)

    found = len(re.findall("EXCHANGE by|at the source, free", text.getvalue()))
    assert rows_of_the_table()[name][5].split()[0] == str(found)
