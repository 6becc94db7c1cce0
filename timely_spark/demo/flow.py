"""The demonstration: a graph arrives in epochs, two loops follow it, and a page shows what they did."""

from __future__ import annotations

import os
import shutil
import time
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import timely_spark as ts
from timely_spark.demo.imports import meant, packages
from timely_spark.demo.picture import page
from timely_spark.runtime.session import configure, quietly, require_spark
from timely_spark.show.table import counted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = "pyspark"
_COLUMNS = ("epoch", "new edges", "rounds", "ms", "components", "largest")


@dataclass(frozen=True, slots=True)
class ImportGraph:
    """Modules, by number their names; and their imports in the order in which they arrive: src, dst long."""

    names: list[str]
    edges: pa.Table
    root: int


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("--output", type=Path, default=Path("out/imports"), help="default: %(default)s")
    parser.add_argument("--workers", type=_positive, default=2, help="default: %(default)s")
    parser.add_argument("--epochs", type=_positive, default=6, help="default: %(default)s")
    parser.add_argument("--modules", type=_positive, default=2500, help="most of them; default: %(default)s")


def _positive(text: str) -> int:
    if not text.isdecimal() or not int(text):
        message = f"{text!r} is not a number of at least 1"
        raise ArgumentTypeError(message)
    return int(text)


def main(options: Namespace) -> None:
    """Read the graph while Spark starts, and run the flow in it."""
    require_spark()
    folder = Path(str(import_module(ROOT).__file__)).parents[1]
    began = time.monotonic()
    print(f"starting Spark, and reading meanwhile what {ROOT} imports, and what that imports:", flush=True)
    with ThreadPoolExecutor(1) as aside:
        starting = aside.submit(_session)
        graph = read_graph(folder, ROOT, options.modules)
        if not starting.done():
            print("waiting for Spark to start ...", flush=True)
        spark = starting.result()
    print(f"Spark {spark.version} has started; {time.monotonic() - began:.0f} s so far", flush=True)
    try:
        run(spark, graph, options.output.resolve(), workers=options.workers, epochs=options.epochs)
    finally:
        spark.stop()
    print(f"{time.monotonic() - began:.0f} s in all")


def _session() -> SparkSession:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName("timely_spark demo").config("spark.log.level", "ERROR")
    for key in ("spark.driver.host", "spark.driver.bindAddress"):
        builder = builder.config(key, "127.0.0.1")
    builder = builder.config("spark.ui.showConsoleProgress", "false")
    builder = configure(builder, delta=_has("delta"))
    with quietly():
        return builder.getOrCreate()


def _has(module: str) -> bool:
    return find_spec(module) is not None


def read_graph(folder: Path, root: str, most: int) -> ImportGraph:
    """The import graph of a folder's packages, as far as `root` leads; its edges in a random order."""
    modules_by_package: dict[str, list[str]] = {}
    for package, modules in packages(folder, root, most):
        print(f"  {package}: {counted(len(modules), 'module')}", flush=True)
        modules_by_package |= modules
    pairs = {
        (module, meant(name, modules_by_package) or name.partition(":")[0])
        for module, names in modules_by_package.items()
        for name in names
    }
    edges = sorted((a, b) for a, b in pairs if a and b and a != b)
    names = sorted({root, *(name for edge in edges for name in edge)})
    number = {name: i for i, name in enumerate(names)}
    ends = (pa.array((number[edge[i]] for edge in edges), pa.int64()) for i in (0, 1))
    table = pa.table(dict(zip(("src", "dst"), ends, strict=True)))
    order = np.random.default_rng(7).permutation(table.num_rows)
    return ImportGraph(names, table.take(order), number[root])


def run(spark: SparkSession, graph: ImportGraph, out: Path, *, workers: int, epochs: int) -> Path:
    """Stream the graph as epochs, print a line for each, and check the end. Gives the page."""
    shutil.rmtree(out, ignore_errors=True)
    sizes = write_edges(graph.edges, out / "edges", epochs)
    print(
        f"{len(graph.names)} modules, {graph.edges.num_rows} imports in a random order, as {epochs} epochs\n"
        "the first epoch waits for Python workers to start and for Delta to create a table; others do not",
        flush=True,
    )
    flow = ts.Dataflow("imports")
    read = spark.readStream.schema("src long, dst long").option("maxFilesPerTrigger", 1)
    edges = flow.source("edges", read.parquet(str(out / "edges")))
    components = ts.graphs.connected_components(edges.collection()).changes()
    components.capture("moved")
    if _has("delta"):
        components.to_delta(str(out / "components"), name="changes")
    hops(edges, graph.root).capture("hops")

    query = flow.start(spark, checkpoint=str(out / "checkpoint"), workers=workers, trigger="available_now")
    print("  ".join(_COLUMNS), flush=True)
    rows: list[list[Any]] = []
    component: dict[int, int] = {}
    for done in query.epochs():
        if done.output == "moved":
            changes = query.captured("moved").epochs[done.epoch]
            moved = changes.filter(pc.greater(changes["diff"], 0))
            component |= dict(zip(moved["node"].to_pylist(), moved["component"].to_pylist(), strict=True))
            parts = Counter(component.values()).most_common()
            row = [done.epoch, sizes[done.epoch], done.rounds, done.milliseconds, len(parts), parts[0][1]]
            cells = (f"{cell!s:>{len(name)}}" for cell, name in zip(row, _COLUMNS, strict=True))
            print("  ".join(cells), flush=True)
            rows.append(row)
    query.await_termination()
    reached = query.captured("hops").table().sort_by("epoch")
    distance = dict(zip(reached["node"].to_pylist(), reached["hops"].to_pylist(), strict=True))
    _check(graph, component, distance)

    shown = out.with_suffix(".html")
    shown.write_text(
        page(flow, query.recent_progress, (_COLUMNS, rows), graph.names, distance), encoding="utf-8"
    )
    print(f"a picture of it, for any browser:\n    {_near(shown)}")
    if _has("delta"):
        table = out / "components"
        print(f"the changes of the components are a Delta table, {_near(table)}; the newest:", flush=True)
        spark.read.format("delta").load(str(table)).orderBy(
            "epoch", "node", "diff", ascending=[False, True, True]
        ).show(6)
    return shown


def write_edges(edges: pa.Table, folder: Path, epochs: int) -> list[int]:
    """Write one file of edges for each epoch; gives the numbers of their edges."""
    folder.mkdir(parents=True)
    ends = np.linspace(0, edges.num_rows, epochs + 1).astype(int)
    for i, start in enumerate(ends[:-1]):
        file = folder / f"{i:03}.parquet"
        pq.write_table(edges.slice(start, ends[i + 1] - start), file)
        os.utime(file, (1_600_000_000 + i,) * 2)  # Spark takes files in the order of their times
    return list(map(int, np.diff(ends)))


def hops(edges: ts.Stream, root: int) -> ts.Stream:
    """Columns: in src long, dst long; out node long, hops long: the least number of edges from `root`."""
    start = edges.select(node=pc.scalar(root), hops=pc.scalar(0))

    def relax(proposed: ts.Stream) -> tuple[ts.Stream, ts.Stream]:
        near = proposed.min("hops", keys=["node"], name="near")
        links = near.join(proposed.scope.enter(edges), left=["node"], right=["src"])
        return links.select(node="dst", hops=pc.field("hops") + 1), near

    near: ts.Stream = start.loop(relax, name="hop")
    return near


def _check(graph: ImportGraph, component: dict[int, int], distance: dict[int, int]) -> None:
    """Compare with networkx, if it is installed."""
    far = max(distance.values())
    print(f"{ROOT} imports {len(distance) - 1} modules, directly or not; the farthest over {far} imports")
    if not _has("networkx"):
        print("whether that is right is not checked: networkx is not installed")
        return
    nx: Any = import_module("networkx")
    whole = nx.DiGraph(zip(graph.edges["src"].to_pylist(), graph.edges["dst"].to_pylist(), strict=True))
    expected = {
        node: least
        for part in nx.weakly_connected_components(whole)
        for least in [min(part)]
        for node in part
    }
    if component != expected or distance != nx.single_source_shortest_path_length(whole, graph.root):
        message = "networkx does not agree"
        raise ts.TimelyError(message, hint="this is a defect of timely_spark; please report it.")
    print("networkx agrees: components and distances")


def _near(path: Path) -> str:
    return os.path.relpath(path)
