"""Answer a question of the LDBC Graphalytics benchmark about a graph, whose edges may come and go first.

    python jobs/graphalytics.py --graph PREFIX --algorithm BFS|WCC|SSSP|PR|CDLP|LCC --output FILE
                                [--epochs K] [--workers W] [--seed N]

Input: PREFIX.properties with the algorithms' parameters, and the files that it names as vertex-file and
edge-file, in its own folder (by default PREFIX.v and PREFIX.e, which is also read where the same file is
named as both, as in two published sets): with a node a line, and with
`source target weight...` a line (an edge of an undirected graph once). Ids are integers below 2^63.
A node or an edge that is there again counts once; of the weights of such an edge the least. An edge from a
node to itself is one of its edges (PR), and counts its label twice (CDLP). Weights are 0 or more.
Output: FILE, `node value` a line, in the order of PREFIX.v. Nodes that are not reached have the distance
9223372036854775807 (BFS) or infinity (SSSP); a component (WCC) is called by its least node.
With --epochs K the edges come in random order, in K epochs; a tenth of them come, go, and come again. The
answer is that of the last epoch, and the same for each K.
FILE is written at the end, as a whole. Until then the state is in FILE.unfinished; a job that was killed, and
is started again with the same arguments, goes on from there.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cli
import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import timely_spark as ts

UNREACHED = {"BFS": 2**63 - 1, "SSSP": np.inf}
_FILES = ("vertex", "edge")
SCHEMA = pa.schema([("src", pa.int64()), ("dst", pa.int64()), ("weight", pa.float64()), ("diff", pa.int64())])


@dataclass(frozen=True)
class Graph:
    """A graph of the benchmark: its files, and what its properties say."""

    prefix: str
    properties: dict[str, str]

    @property
    def directed(self) -> bool:
        """Whether the edges are directed."""
        text = self.said("directed")
        if text.lower() not in {"true", "false"}:
            message = f"{self.prefix}.properties: directed is {text!r}"
            raise ts.TimelyError(message, hint="true or false.")
        return text.lower() == "true"

    @property
    def files(self) -> list[Path]:
        """The files of the nodes, of the edges, and of the properties, which name the others."""
        properties = Path(f"{self.prefix}.properties")
        plain = [Path(f"{self.prefix}.{kind[0]}").name for kind in _FILES]
        nodes, edges = (self.said(f"{kind}-file", name) for kind, name in zip(_FILES, plain, strict=True))
        if edges == nodes:  # as published sets have it
            edges = plain[1]
        return [properties.parent / nodes, properties.parent / edges, properties]

    def root(self, algorithm: str) -> int:
        """The source vertex, which must be a node."""
        name = f"{algorithm.lower()}.source-vertex"
        root: int = self.number(name)
        if root not in self.nodes():
            message = f"{self.prefix}.properties: {name} is {root}, which is not a node in {self.files[0]}"
            raise ts.TimelyError(message, hint="name one of the nodes: no other is reached from it.")
        return root

    def said(self, name: str, default: str | None = None) -> str:
        """A property: `graph.NAME.<name>`."""
        values = [value for key, value in self.properties.items() if key.lower().endswith(f".{name}")]
        if not values and default is not None:
            return default
        if not values:
            message = f"{self.prefix}.properties has no graph.NAME.{name}"
            raise ts.TimelyError(message, hint="the algorithm needs it: add the line.")
        return values[0]

    def number(self, name: str, kind: type[int | float] = int) -> Any:
        """A property that is a number."""
        text = self.said(name)
        try:
            return kind(text)
        except ValueError as error:
            message = f"{self.prefix}.properties: {name} is {text!r}"
            raise ts.TimelyError(message, hint="give a number.") from error

    def nodes(self) -> npt.NDArray[np.int64]:
        """The nodes, in the order of the file."""
        return self._columns(self.files[0], {0: "int64"})[0].drop_duplicates().to_numpy()

    def edges(self, *, weighted: bool) -> pd.DataFrame:
        """The edges, each once: src, dst, and their weight if asked for."""
        kinds = {0: "int64", 1: "int64"}
        if weighted:
            names = [name.strip().lower() for name in self.said("edge-properties.names").split(",")]
            wanted = self.said("sssp.weight-property").lower()
            if wanted not in names:
                message = f"{self.prefix}.properties: the edges have {names}, no {wanted!r}"
                raise ts.TimelyError(message, hint="name one of them as sssp.weight-property.")
            kinds[2 + names.index(wanted)] = "float64"
        edges = self._columns(self.files[1], kinds).set_axis(["src", "dst", "weight"][: len(kinds)], axis=1)
        self._check(edges)
        ends = edges[["src", "dst"]].to_numpy()
        same = pd.DataFrame(ends if self.directed else np.sort(ends, axis=1)).duplicated
        if not same().any():
            return edges
        if weighted:  # of equal edges the lightest is the first
            edges = edges.sort_values("weight", kind="stable")
        ends = edges[["src", "dst"]].to_numpy()
        again = pd.DataFrame(ends if self.directed else np.sort(ends, axis=1)).duplicated().to_numpy()
        return edges[~again].sort_index()

    def _check(self, edges: pd.DataFrame) -> None:
        valid = np.isin(edges[["src", "dst"]].to_numpy(), self.nodes()).all(axis=1)
        if not valid.all():
            ends = edges[["src", "dst"]].iloc[int(valid.argmin())].tolist()
            message = f"{self.files[1]}: an end of edge {ends} is not a node in {self.files[0]}"
            raise ts.TimelyError(message, hint="add the node, or leave the edge out.")
        if "weight" in edges:
            usable = np.isfinite(edges["weight"]).to_numpy() & (edges["weight"] >= 0).to_numpy()
            if not usable.all():
                ends = edges[["src", "dst"]].iloc[int(usable.argmin())].tolist()
                message = f"{self.files[1]}: edge {ends} has no weight, or one below 0"
                raise ts.TimelyError(message, hint="give each edge a finite weight of 0 or more.")

    def _columns(self, path: Path, kinds: dict[int, str]) -> pd.DataFrame:
        hint = "a line is `node`, or `source target weight...`; nodes are integers below 2^63."
        options: dict[str, Any] = {"sep": r"\s+", "header": None, "comment": "#", "encoding": "utf-8-sig"}
        try:
            table = pd.read_csv(path, usecols=list(kinds), dtype=kinds, **options)[list(kinds)]
        except pd.errors.EmptyDataError:
            return pd.DataFrame({column: np.zeros(0, of) for column, of in kinds.items()})
        except (ValueError, OverflowError, KeyError) as error:
            few = isinstance(error, KeyError) or "usecols" in str(error).lower()
            message = f"{path}: {f'its first line has no {max(kinds) + 1} columns' if few else error}"
            raise ts.TimelyError(message, hint=hint) from error
        nodes = [column for column, of in kinds.items() if of == "int64"]
        # for integers that are too large pandas gives doubles
        if any(table[column].dtype != np.int64 for column in nodes) or (table[nodes] < 0).any(axis=None):
            message = f"{path}: a node is negative, or too large"
            raise ts.TimelyError(message, hint=hint)
        return table


def graph(prefix: str) -> Graph:
    """The graph of these files."""
    properties = Path(f"{prefix}.properties")
    _check_file(properties)
    lines = properties.read_text(encoding="utf-8").splitlines()
    pairs = (re.split("[=:]", line, maxsplit=1) for line in lines if not line.lstrip().startswith(("#", "!")))
    of = Graph(prefix, {key.strip(): value[0].strip() for key, *value in pairs if value and value[0].strip()})
    for file in of.files:
        _check_file(file)
    return of


def output(text: str) -> Path:
    """A file to write."""
    if Path(text).is_dir():
        message = f"{text!r} is a directory"
        raise argparse.ArgumentTypeError(message)
    return Path(text)


def _check_file(file: Path) -> None:
    if not file.is_file():
        message = f"there is no file {file}"
        raise argparse.ArgumentTypeError(message)


def answer(algorithm: str, of: Graph, rows: ts.Collection) -> ts.Collection:
    """The value of each node. Columns: in src, dst, weight (nodes are rows without dst); out node, value."""
    nodes = rows.where(pc.is_null(pc.field("dst"))).select(node="src")
    edges = rows.where(pc.is_valid(pc.field("dst")))
    ends = edges.select("src", "dst")
    both = edges
    if not of.directed:
        others = edges.where(pc.field("src") != pc.field("dst"))
        both = edges.concat(others.select("weight", src="dst", dst="src").select(*edges.schema.names))
    match algorithm:
        case "BFS" | "SSSP":
            root = nodes.where(pc.field("node") == pc.scalar(of.root(algorithm)))
            paths = ts.graphs.bfs if algorithm == "BFS" else ts.graphs.sssp
            result = paths(both, root)
        case "WCC":
            result = ts.graphs.connected_components(ends.concat(nodes.select(src="node", dst="node")))
        case "CDLP":
            result = ts.graphs.cdlp(ends, of.number("cdlp.max-iterations"), nodes=nodes)
        case "LCC":
            result = ts.graphs.lcc(ends, of.directed, nodes=nodes)
        case _:
            result = ts.graphs.pagerank(
                both,
                of.number("pr.num-iterations"),
                nodes=nodes,
                dangling="spread",
                start="uniform",
                damping=of.number("pr.damping-factor", float),
            )
    return result.select("node", value=result.schema.names[1])


def changes(nodes: npt.NDArray[np.int64], edges: pd.DataFrame, epochs: int, seed: int) -> list[pa.Table]:
    """What comes and goes in each epoch: nodes, which have no dst, and edges."""
    draw = np.random.default_rng(seed % 2**64)
    at = draw.integers(0, epochs, len(edges))
    again = draw.permutation(len(edges))[: len(edges) // 10 if epochs > 1 else 0]
    three = np.sort(draw.integers(0, epochs, (3, len(again))), axis=0)
    at[again] = three[0]
    which = np.concatenate([np.arange(len(edges)), again, again])
    order = draw.permutation(len(which))
    which, at = which[order], np.concatenate([at, three[1], three[2]])[order]
    diff = np.repeat([1, -1, 1], [len(edges), len(again), len(again)])[order]
    rows = pa.table({"src": nodes, "diff": np.ones(len(nodes), np.int64)})
    tables = []
    for epoch in range(epochs):
        now = np.flatnonzero(at == epoch)
        some = {name: edges[name].to_numpy()[which[now]] for name in edges.columns}
        parts = [pa.table(some | {"diff": diff[now]}), *([rows] if epoch == 0 else [])]
        table = pa.concat_tables(parts, promote_options="default")
        missing = [field for field in SCHEMA if field.name not in table.schema.names]
        for field in missing:
            table = table.append_column(field, pa.nulls(table.num_rows, field.type))
        tables.append(table.select(SCHEMA.names).cast(SCHEMA))
    return tables


def staged(folder: Path, args: argparse.Namespace) -> None:
    """The epochs as files in a folder, unless an earlier run of the same job has written them."""
    files = args.graph.files
    said: dict[str, Any] = {name: getattr(args, name) for name in ("algorithm", "epochs", "seed")}
    said["graph"] = [[str(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns] for file in files]
    job = folder / "job.json"
    if job.is_file() and json.loads(job.read_text()) == said:
        print(f"going on from {folder}", flush=True)
        return
    new = folder.with_name(f"{folder.name}.new")
    for old in (folder, new):
        remove(old)
    (new / "epochs").mkdir(parents=True)
    edges = args.graph.edges(weighted=args.algorithm == "SSSP")
    for epoch, table in enumerate(changes(args.graph.nodes(), edges, args.epochs, args.seed)):
        if table.num_rows:
            file = new / "epochs" / f"{epoch:06}.parquet"
            pq.write_table(table, file)
            os.utime(file, (1_600_000_000 + epoch,) * 2)  # files are taken in the order of their times
    (new / "job.json").write_text(json.dumps(said))
    new.rename(folder)


def remove(folder: Path) -> None:
    """Remove the state of a job; half of it is not a state."""
    (folder / "job.json").unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)


def write(path: Path, nodes: npt.NDArray[np.int64], result: pa.Table, unreached: float | None) -> None:
    """Write the values of all nodes, at once."""
    result = result.sort_by("node")
    reached, values = result["node"].to_numpy(), result["value"].to_numpy()
    at = np.searchsorted(reached, nodes)
    valid = np.append(reached, -1)[at] == nodes
    if unreached is None and not valid.all():
        message = f"node {nodes[~valid][0]} has no value"
        raise ts.TimelyError(message, hint="this is a defect of the job: please report it, with the graph.")
    of_nodes = np.append(values, np.array([0], values.dtype))[at]
    of_nodes = np.where(valid, of_nodes, np.array([unreached or 0]).astype(values.dtype))
    fractions = values.dtype.kind == "f"
    new = path.with_name(f"{path.name}.new")
    with new.open("w", encoding="ascii") as file:
        for node, value in zip(nodes.tolist(), of_nodes.tolist(), strict=True):
            text = f"{value:.15e}" if fractions else str(value)
            file.write(f"{node} {'infinity' if text == 'inf' else text}\n")
    new.replace(path)


def main() -> None:
    """Run the job."""
    parser = cli.described(__doc__)
    parser.add_argument(
        "--graph", required=True, type=graph, metavar="PREFIX", help="PREFIX.v, .e, .properties"
    )
    algorithms = ["BFS", "WCC", "SSSP", "PR", "CDLP", "LCC"]
    parser.add_argument("--algorithm", required=True, type=str.upper, choices=algorithms)
    parser.add_argument("--output", required=True, type=output, metavar="FILE", help="the file to write")
    parser.add_argument("--epochs", type=cli.positive, default=1, metavar="K", help="default: %(default)s")
    parser.add_argument("--workers", type=cli.positive, default=2, metavar="W", help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the order of the edges")
    cli.progress(parser)
    args = parser.parse_args()
    folder = args.output.with_name(f"{args.output.name}.unfinished").resolve()
    flow = ts.Dataflow(f"graphalytics {args.algorithm}")
    rows = flow.files("graph", folder / "epochs", schema=SCHEMA, files_per_epoch=1).collection(diff="diff")
    answer(args.algorithm, args.graph, rows).capture("answer")
    staged(folder, args)
    spark = cli.session("graphalytics", delta=False, verbose=args.verbose)
    query = flow.start(
        spark, checkpoint=str(folder / "checkpoint"), workers=args.workers, trigger="available_now"
    )
    cli.report(query, args)
    result = ts.snapshot(query.captured("answer"))
    write(args.output, args.graph.nodes(), result, UNREACHED.get(args.algorithm))
    remove(folder)
    print(f"the values of {len(args.graph.nodes())} nodes are in {args.output}")


if __name__ == "__main__":
    cli.run(main)
