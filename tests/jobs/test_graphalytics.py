"""The benchmark's job: published answers, random graphs against plain Python and networkx, and a kill."""

from __future__ import annotations

import argparse
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from itertools import permutations, product
from pathlib import Path
from typing import Any

import networkx as nx
import pytest
from pyspark.sql import SparkSession

import timely_spark as ts
from tests.support.turns import in_turn

ROOT = Path(__file__).parents[2]
JOB = ROOT / "jobs" / "graphalytics.py"
PUBLISHED = ROOT.parent / "shared" / "graphalytics"
ALGORITHMS = ["BFS", "WCC", "SSSP", "PR", "CDLP", "LCC"]
FAR = 2**63 - 1
PROPERTIES = """\
# parameters
graph.{name}.vertex-file = {name}.v
graph.{name}.directed = {directed}
graph.{name}.edge-properties.names = colour, weight
graph.{name}.bfs.source-vertex = {root}
graph.{name}.cdlp.max-iterations = 5
graph.{name}.pr.damping-factor = 0.85
graph.{name}.pr.num-iterations = 10
graph.{name}.sssp.weight-property = weight
graph.{name}.sssp.source-vertex = {root}
"""


Written = tuple[str, list[int], list[tuple[int, int, float]]]


@pytest.fixture
def written(tmp_path: Path) -> Callable[..., Written]:
    """A random graph with isolated nodes, a hub and ids up to 2^63 - 1, in the benchmark's files."""

    def made(directed: bool, seed: int, n: int = 14, m: int = 26) -> Written:  # noqa: FBT001
        draw = random.Random(seed)
        nodes = [1, FAR, FAR - 1, *draw.sample(range(2, 10**6), n - 3)]
        draw.shuffle(nodes)
        linked = nodes[:-3]
        found = {(linked[0], other) for other in draw.sample(linked[1:], 6)}
        found |= {tuple(draw.sample(linked, 2)) for _ in range(m)}
        pairs = sorted(found if directed else {(min(pair), max(pair)) for pair in found})
        edges = [(a, b, draw.choice([0.0, 0.5, 0.13, 2.75, 1e-3])) for a, b in pairs]
        prefix = tmp_path / "random-graph"
        text = PROPERTIES.format(name=prefix.name, directed=str(directed).lower(), root=linked[0])
        Path(f"{prefix}.properties").write_text(text)
        Path(f"{prefix}.v").write_text("".join(f"{node}\n" for node in nodes))
        Path(f"{prefix}.e").write_text("".join(f"{a} {b} 7 {weight}\n" for a, b, weight in edges))
        return str(prefix), nodes, edges

    return made


def reference(
    algorithm: str,
    directed: bool,  # noqa: FBT001
    nodes: list[int],
    edges: list[Any],
    root: int,
) -> dict[int, Any]:
    """The answer by networkx, or in plain Python."""
    whole: Any = nx.DiGraph() if directed else nx.Graph()
    whole.add_nodes_from(nodes)
    whole.add_weighted_edges_from(edges)
    arcs = whole if directed else whole.to_directed()
    if algorithm == "BFS":
        return dict.fromkeys(nodes, FAR) | nx.single_source_shortest_path_length(whole, root)
    if algorithm == "SSSP":
        return dict.fromkeys(nodes, float("inf")) | nx.single_source_dijkstra_path_length(whole, root)
    if algorithm == "WCC":
        parts = nx.connected_components(nx.Graph(whole))
        return {node: min(part) for part in map(list, parts) for node in part}
    if algorithm == "CDLP":
        label = {node: node for node in nodes}
        for _ in range(5):
            votes = {node: Counter[int]() for node in nodes}
            for a, b, _ in edges:
                votes[a][label[b]] += 1
                votes[b][label[a]] += 1
            label = {n: min(of, key=lambda x: (-of[x], x)) if of else label[n] for n, of in votes.items()}
        return label
    if algorithm == "LCC":
        near = {node: {*arcs.successors(node), *arcs.predecessors(node)} for node in nodes}
        among = {node: sum(arcs.has_edge(*pair) for pair in permutations(near[node], 2)) for node in nodes}
        return {node: among[node] / max(1, len(near[node]) * (len(near[node]) - 1)) for node in nodes}
    rank = dict.fromkeys(nodes, 1 / len(nodes))
    for _ in range(10):
        held = sum(rank[node] for node in nodes if not arcs.out_degree(node))
        rank = {
            node: (0.15 + 0.85 * held) / len(nodes)
            + sum(0.85 * rank[a] / arcs.out_degree(a) for a in arcs.predecessors(node))
            for node in nodes
        }
    return rank


def simulated(prefix: str, algorithm: str, epochs: int, seed: int, **how: Any) -> dict[int, Any]:
    """The job's flow over the job's epochs, on simulated workers; the values of all nodes."""
    import graphalytics

    of = graphalytics.graph(prefix)
    flow = ts.Dataflow("graphalytics")
    rows = flow.input("graph", graphalytics.SCHEMA).collection(diff="diff")
    graphalytics.answer(algorithm, of, rows).capture("answer")
    tables = graphalytics.changes(of.nodes(), of.edges(weighted=algorithm == "SSSP"), epochs, seed)
    found = ts.snapshot(ts.testing.run(flow, {"graph": tables}, **how)["answer"])
    file = Path(f"{prefix}-answer")
    graphalytics.write(file, of.nodes(), found, graphalytics.UNREACHED.get(algorithm))
    return values(file)


def values(file: Path) -> dict[int, Any]:
    """The values in a file of answers."""
    lines = [line.split(" ") for line in file.read_text().splitlines()]
    return {int(node): int(text) if text.isdecimal() else float(text) for node, text in lines}


@pytest.mark.slow
@pytest.mark.share(6)
@pytest.mark.parametrize(
    ("algorithm", "directed", "workers", "epochs"),
    in_turn(product(ALGORITHMS, [True, False]), [(1, 1), (2, 3), (3, 6)]),
)
def test_the_last_epoch_is_the_reference(written, algorithm, directed, workers, epochs) -> None:
    prefix, nodes, edges = written(directed, seed=workers)
    root = int(Path(f"{prefix}.properties").read_text().split()[-1])

    found = simulated(prefix, algorithm, epochs, seed=epochs, workers=workers)

    assert list(found) == nodes
    assert found == pytest.approx(reference(algorithm, directed, nodes, edges, root), rel=1e-6)


@pytest.mark.slow
@pytest.mark.share(6)
@pytest.mark.skipif(not PUBLISHED.is_dir(), reason="the published examples are not beside the repository")
@pytest.mark.parametrize("name", ["example-directed", "example-undirected"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_published_answers(tmp_path, algorithm, name) -> None:
    for file in PUBLISHED.glob(f"{name}.*"):
        (tmp_path / file.name).write_bytes(file.read_bytes())

    found = simulated(str(tmp_path / name), algorithm, 4, seed=1, workers=2)

    assert found == pytest.approx(values(PUBLISHED / f"{name}-{algorithm}"), rel=1e-4)


def test_edges_come_go_and_come_again_and_all_are_there_at_the_end(written) -> None:
    import graphalytics

    prefix, nodes, edges = written(directed=True, seed=5, n=60, m=300)
    of = graphalytics.graph(prefix)

    tables = graphalytics.changes(of.nodes(), of.edges(weighted=True), 9, 4)

    there = Counter[Any]()
    gone = 0
    for table in tables:
        rows = Counter[Any]()
        for src, dst, weight, diff in table.to_pandas().fillna(-1).itertuples(index=False):
            rows[src, dst, weight] += diff
        there.update(rows)
        gone += sum(diff < 0 for diff in rows.values())
        assert {*there.values()} <= {0, 1}
    assert sum(there.values()) == len(nodes) + len(edges)
    assert gone > len(edges) // 20


@pytest.mark.parametrize(
    ("file", "text", "says"),
    [
        ("properties", "graph.x.directed = true\n", "has no graph.NAME.edge-properties.names"),
        ("e", "1 two 7 0.5\n", r"random-graph.e: .*two"),
        ("e", "1 9223372036854775808 7 0.5\n", r"random-graph.e: .*"),
        ("e", "1 2\n", "random-graph.e: its first line has no 4 columns"),
        ("e", "1 2 7\n1 2 7 0.5\n", "random-graph.e: its first line has no 4 columns"),
        ("e", f"1 {FAR} 7 0.5\n1 {FAR - 1} 7\n", rf"edge \[1, {FAR - 1}\] has no weight"),
        ("e", f"1 {FAR} 7 -0.5\n", "one below 0"),
        ("e", f"1 {FAR} 7 inf\n", "finite weight"),
        ("e", "1 0 7 0.5\n", r"edge \[1, 0\] is not a node in"),
        ("v", "1\n-2\n", "a node is negative"),
        ("v", "1\nx\n", "random-graph.v: .*x"),
    ],
)
def test_what_is_wrong_with_the_files_is_said(written, file, text, says) -> None:
    import graphalytics

    prefix, _, _ = written(directed=True, seed=0)
    Path(f"{prefix}.{file}").write_text(text)

    with pytest.raises(ts.TimelyError, match=says):
        graphalytics.graph(prefix).edges(weighted=True)


@pytest.mark.parametrize("directed", [True, False])
def test_a_node_or_an_edge_that_is_there_again_counts_once(written, directed) -> None:
    import graphalytics

    prefix, nodes, edges = written(directed, seed=1)
    again = [
        (b, a, weight) if i % 2 and not directed else (a, b, weight) for i, (a, b, weight) in enumerate(edges)
    ]
    with Path(f"{prefix}.e").open("a") as file:
        file.writelines(f"{a} {b} 7 {weight + 1}\n" for a, b, weight in again)
    with Path(f"{prefix}.v").open("a") as file:
        file.writelines(f"{node}\n" for node in nodes[:3])

    of = graphalytics.graph(prefix)

    assert of.nodes().tolist() == nodes
    assert [*of.edges(weighted=True).itertuples(index=False, name=None)] == edges
    assert [*of.edges(weighted=False).itertuples(index=False, name=None)] == [(a, b) for a, b, _ in edges]


def test_files_and_properties_may_be_written_otherwise(written) -> None:
    import graphalytics

    prefix, nodes, edges = written(directed=True, seed=2)
    lines = [f"  {node}\t\r\n\r\n# {node} two\r\n" for node in nodes]
    Path(f"{prefix}.v").write_text("\ufeff" + "".join(lines), encoding="utf-8")
    Path(f"{prefix}.e").write_text(
        "# ends\n" + "".join(f" {a}\t{b}  7 {weight}  \n\n" for a, b, weight in edges)
    )
    properties = Path(f"{prefix}.properties")
    text = properties.read_text().upper().replace("RANDOM-GRAPH.V\n", "random-graph.v\n").replace(" =", ":")
    properties.write_text(text)

    of = graphalytics.graph(prefix)

    assert of.directed
    assert of.root("BFS") in nodes
    assert of.nodes().tolist() == nodes
    assert [*of.edges(weighted=True).itertuples(index=False, name=None)] == edges


@pytest.mark.slow
@pytest.mark.parametrize("epochs", [1, pytest.param(2, marks=pytest.mark.campaign)])
def test_an_edge_from_a_node_to_itself_is_one_of_its_edges(written, epochs) -> None:
    prefix, nodes, edges = written(directed=False, seed=6)
    edges = [*edges, (nodes[0], nodes[0], 0.5)]
    with Path(f"{prefix}.e").open("a") as file:
        file.write(f"{nodes[0]} {nodes[0]} 7 0.5\n")
    root = int(Path(f"{prefix}.properties").read_text().split()[-1])

    for algorithm in ALGORITHMS:
        expected = reference(algorithm, False, nodes, edges, root)  # noqa: FBT003
        if algorithm == "LCC":
            expected = reference(algorithm, False, nodes, edges[:-1], root)  # noqa: FBT003
        assert simulated(prefix, algorithm, epochs, seed=0, workers=2) == pytest.approx(expected, rel=1e-6)


def test_the_properties_name_the_files(written, tmp_path) -> None:
    import graphalytics

    prefix, nodes, edges = written(directed=True, seed=0)
    properties = Path(f"{prefix}.properties")
    text = properties.read_text().replace(".vertex-file = random-graph.v", ".vertex-file = nodes.txt")
    properties.write_text(f"{text}graph.x.edge-file = edges.txt\n")
    with pytest.raises(argparse.ArgumentTypeError, match=r"there is no file .*nodes\.txt"):
        graphalytics.graph(prefix)
    Path(f"{prefix}.v").rename(tmp_path / "nodes.txt")
    with pytest.raises(argparse.ArgumentTypeError, match=r"there is no file .*edges\.txt"):
        graphalytics.graph(prefix)
    Path(f"{prefix}.e").rename(tmp_path / "edges.txt")

    of = graphalytics.graph(prefix)

    assert of.nodes().tolist() == nodes
    assert [*of.edges(weighted=True).itertuples(index=False, name=None)] == edges


@pytest.mark.parametrize("algorithm", ["BFS", "SSSP"])
def test_a_source_vertex_must_be_a_node(written, algorithm) -> None:
    import graphalytics

    prefix, _, _ = written(directed=True, seed=0)
    properties = Path(f"{prefix}.properties")
    lines = [line for line in properties.read_text().splitlines() if "source-vertex" not in line]
    name = f"graph.x.{algorithm.lower()}.source-vertex"
    properties.write_text("\n".join([*lines, f"{name} = 999999999"]))
    rows = ts.Dataflow("x").input("graph", graphalytics.SCHEMA).collection(diff="diff")

    with pytest.raises(ts.TimelyError, match=r"(?s)source-vertex is 999999999, which is not a node.*Hint"):
        graphalytics.answer(algorithm, graphalytics.graph(prefix), rows)


@pytest.mark.slow
def test_a_graph_may_have_no_edges(written) -> None:
    prefix, nodes, _ = written(directed=True, seed=0)
    Path(f"{prefix}.e").write_text("")

    assert simulated(prefix, "PR", 2, seed=0) == pytest.approx(dict.fromkeys(nodes, 1 / len(nodes)))


@pytest.mark.campaign
def test_on_spark_it_goes_on_from_what_an_earlier_run_left(
    spark: SparkSession, tmp_path, monkeypatch, capsys, written
) -> None:
    import cli
    import graphalytics

    prefix, nodes, edges = written(directed=False, seed=3)
    root = int(Path(f"{prefix}.properties").read_text().split()[-1])
    args = ["--graph", prefix, "--algorithm", "SSSP", "--epochs", "4", "--output", str(tmp_path / "out")]
    monkeypatch.setattr(sys, "argv", ["graphalytics", *args])
    monkeypatch.setattr(cli, "session", lambda *args, **options: spark)
    with monkeypatch.context() as patch:
        patch.setattr(graphalytics, "write", lambda *args: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            graphalytics.main()
    assert capsys.readouterr().out.count("epoch ") == 4

    graphalytics.main()

    printed = capsys.readouterr().out
    assert "going on from" in printed
    assert "epoch 3" not in printed
    assert values(tmp_path / "out") == pytest.approx(reference("SSSP", False, nodes, edges, root), rel=1e-6)  # noqa: FBT003
    assert not [*tmp_path.glob("out.*")]


@pytest.mark.campaign
@pytest.mark.timeout(400)
def test_killed_in_the_middle_it_comes_to_the_same_answer(tmp_path, written) -> None:
    prefix, nodes, edges = written(directed=True, seed=4)
    root = int(Path(f"{prefix}.properties").read_text().split()[-1])
    output = tmp_path / "out"
    command = [sys.executable, str(JOB), "--graph", prefix, "--algorithm", "PR", "--epochs", "5"]
    command += ["--output", str(output)]
    checkpoint = output.with_name("out.unfinished") / "checkpoint"
    with (tmp_path / "printed").open("w") as printed:
        for committed in (1, 2):
            job = subprocess.Popen(command, stdout=printed, stderr=printed)
            while job.poll() is None and len([*checkpoint.rglob("commits/[0-9]*")]) < committed:
                time.sleep(0.05)
            job.send_signal(signal.SIGKILL)
            assert job.wait() == -signal.SIGKILL
        assert not output.exists()

        done = subprocess.run(command, stdout=printed, stderr=printed, check=False)

    assert done.returncode == 0, (tmp_path / "printed").read_text()
    assert "going on from" in (tmp_path / "printed").read_text()
    assert values(output) == pytest.approx(reference("PR", True, nodes, edges, root), rel=1e-6)  # noqa: FBT003


def test_a_set_that_names_the_file_of_its_nodes_as_that_of_its_edges(tmp_path: Path) -> None:
    import graphalytics as job

    text = "graph.x.directed = true\ngraph.x.vertex-file = x.v\ngraph.x.edge-file = x.v\n"
    (tmp_path / "x.properties").write_text(text)
    properties = dict(line.split(" = ") for line in text.splitlines())
    files = job.Graph(str(tmp_path / "x"), properties).files
    assert [path.name for path in files] == ["x.v", "x.e", "x.properties"]
