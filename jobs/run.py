"""A loop over a real graph, on Spark: the import graph of the Python packages installed on this machine.

    python jobs/run.py [--output DIR] [--workers N] [--epochs N]

Finds which module imports which (with `ast`), streams the edges as several epochs, and keeps, through two
loops, the connected components and the hop distance of every module from a root. Checks the end against
networkx.
"""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import cli
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from imports import imported, meant, module_name, parsed

import timely_spark as ts

ROOT = "pyspark"
EDGES = "src long, dst long"


def imports(folder: Path) -> Iterator[tuple[str, str]]:
    """(module, imported module) for every import statement in the packages of a folder."""
    files = {module_name(folder, file): file for file in sorted(folder.rglob("*.py"))}
    for module, file in files.items():
        try:
            tree = parsed(file.read_bytes(), file.name)
        except (SyntaxError, ValueError):
            continue  # a template, or a file for another version of Python
        package = module if file.name == "__init__.py" else module.rpartition(".")[0]
        yield from (
            (module, meant(name, files) or name.partition(":")[0]) for name in imported(tree, package)
        )


def write_edges(folder: Path, epochs: int) -> tuple[list[str], pa.Table]:
    """Write the import graph, one file of edges per epoch. Gives the modules' names by id, and all edges."""
    found = sorted({(a, b) for a, b in imports(Path(sysconfig.get_paths()["purelib"])) if a and b and a != b})
    names = sorted({name for edge in found for name in edge} | {ROOT})
    number = {name: i for i, name in enumerate(names)}
    packages = {package: i for i, package in enumerate(sorted({a.partition(".")[0] for a, _ in found}))}
    table = pa.table({"src": [number[a] for a, _ in found], "dst": [number[b] for _, b in found]})
    epoch = pa.array([packages[a.partition(".")[0]] % epochs for a, _ in found])
    folder.mkdir(parents=True)
    for i in range(epochs):
        file = folder / f"{i:03}.parquet"
        pq.write_table(table.filter(pc.equal(epoch, i)), file)
        os.utime(file, (1_600_000_000 + i,) * 2)  # Spark takes files in the order of their times
    return names, table


def hops(edges: ts.Stream, root: int) -> ts.Stream:
    """Columns: in src long, dst long; out node long, hops long: the least number of edges from `root`."""
    start = edges.select(node=pc.scalar(root), hops=pc.scalar(0))

    def relax(proposed: ts.Stream) -> tuple[ts.Stream, ts.Stream]:
        near = proposed.min("hops", keys=["node"], name="near")
        links = near.join(proposed.scope.enter(edges), left=["node"], right=["src"])
        return links.select(node="dst", hops=pc.field("hops") + 1), near

    return start.loop(relax, name="hop")


def main() -> None:
    """Make the input, run the flow, check the result."""
    parser = cli.described(__doc__)
    parser.add_argument("--output", type=Path, default=Path("out/imports"), help="default: %(default)s")
    parser.add_argument("--workers", type=cli.positive, default=2, help="default: %(default)s")
    parser.add_argument("--epochs", type=cli.positive, default=6, help="default: %(default)s")
    cli.progress(parser)
    args = parser.parse_args()
    out = args.output.resolve()
    shutil.rmtree(out, ignore_errors=True)

    print("reading the imports of the installed packages ...", flush=True)
    names, table = write_edges(out / "edges", args.epochs)
    print(
        f"{len(names)} modules, {table.num_rows} imports, as {args.epochs} epochs; root: {ROOT}", flush=True
    )

    spark = cli.session("imports", verbose=args.verbose)
    flow = ts.Dataflow("imports")
    read = spark.readStream.schema(EDGES).option("maxFilesPerTrigger", 1).parquet(str(out / "edges"))
    edges = flow.source("edges", read)
    components = ts.graphs.connected_components(edges.collection()).changes()
    components.to_delta(str(out / "components"), name="changes")
    components.capture("moved")
    hops(edges, names.index(ROOT)).capture("hops")
    query = flow.start(
        spark, checkpoint=str(out / "checkpoint"), workers=args.workers, trigger="available_now"
    )

    cli.watch(query, args)
    print("epoch  new edges  rounds      ms  components  largest", flush=True)
    component: dict[int, int] = {}
    files = iter(sorted((out / "edges").iterdir()))
    for done in query.epochs():
        if done.output == "moved":
            changes = query.captured("moved").epochs[done.epoch]
            moved = changes.filter(pc.greater(changes["diff"], 0))
            component |= dict(zip(moved["node"].to_pylist(), moved["component"].to_pylist(), strict=True))
            sizes = Counter(component.values())
            new, took = pq.read_metadata(next(files)).num_rows, done.milliseconds or 0
            counts = f"{len(sizes):10}  {max(sizes.values()):7}"
            print(f"{done.epoch:5}  {new:9}  {done.rounds:6}  {took:6}  {counts}", flush=True)
    query.await_termination()
    found = query.captured("hops").table().sort_by("epoch")
    distance = dict(zip(found["node"].to_pylist(), found["hops"].to_pylist(), strict=True))
    spark.stop()

    check(table, component, distance, names.index(ROOT))
    far = max(distance.values())
    print(f"{len(distance)} modules are imported by {ROOT}, directly or not; the farthest over {far} hops")
    print("the components, with what changed in each epoch, are a Delta table; look at it:")
    print(f"    {os.path.relpath(sys.executable)} jobs/look.py {os.path.relpath(out / 'components')}")


def check(table: pa.Table, component: dict[int, int], distance: dict[int, int], root: int) -> None:
    """Compare with networkx."""
    import networkx as nx

    graph = nx.DiGraph(zip(table["src"].to_pylist(), table["dst"].to_pylist(), strict=True))
    expected = {
        node: least
        for part in nx.weakly_connected_components(graph)
        for least in [min(part)]
        for node in part
    }
    if component != expected or distance != nx.single_source_shortest_path_length(graph, root):
        message = "networkx does not agree"
        raise SystemExit(message)
    print("networkx agrees: components and distances")


if __name__ == "__main__":
    cli.run(main)
