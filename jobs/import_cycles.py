"""Keep the import cycles of Python source trees: which modules import each other, however indirectly.

    python jobs/import_cycles.py --root DIR... --output DIR --checkpoint DIR
                                 [--top-level] [--current DIR] [--workers N] [--follow [--every SECONDS]]

Each run reads all *.py files below the roots and sends the flow what has changed since the last one: the
imports of a file that is new, other or gone. So an epoch is a run, or with --follow a look at the files every
few seconds that finds a change. Roots are folders as on sys.path, or packages. An import leads to the module
that it names, if that is below the roots, not to the packages around it. --top-level: leave out what is
imported in functions or for type checkers, which at run time makes no cycle.
Output: a Delta table with epoch long, module string, cycle string, diff int: a row for each module that is on
a cycle, or imports itself; the cycle is called by its first module in the order of the alphabet. diff is +1
for what became true in the epoch and -1 for what ceased to be. --current: a Delta table with the present
module, cycle. Files that cannot be read as Python are named on the error output, each time:
they are modules, but import nothing. What was read is kept as a Delta table, too: in CHECKPOINT/imports, with
epoch, file, module, stamp, name (what is imported: module or module:name; null: the file itself), problem.
"""

from __future__ import annotations

import argparse
import sys
import textwrap
import time
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import cli
import pyarrow.compute as pc
from edges import DIFF, current, dataflow, deliver
from imports import Source, sources
from pyspark.sql import SparkSession

import timely_spark as ts
from timely_spark.demo.imports import meant

READ = "file string, module string, stamp string, name string, problem string"
SHOWN = 20
Row = tuple[str, str, str, str | None, str | None, int]


def import_cycles(read: ts.Collection) -> ts.Collection:
    """Columns: in READ; out module string, cycle string."""
    modules = read.where(pc.is_null(pc.field("name"))).select("module")
    named = read.where(pc.is_valid(pc.field("name"))).select("module", "name")
    # package:name is a submodule if there is one, which as a text comes after the package
    name = pc.field("name")
    inner = named.select("module", "name", to=pc.replace_substring(name, pattern=":", replacement="."))
    outer = named.select("module", "name", to=pc.replace_substring_regex(name, pattern=":.*", replacement=""))
    links = inner.concat(outer).semijoin(modules, left="to", right="module", name="known")
    farthest = links.max("to", keys=["module", "name"], name="farthest")
    edges = farthest.select(src="module", dst="to").distinct(name="imports")

    components = ts.graphs.strongly_connected_components(edges, name="components")
    several = components.count("size", keys="component", name="sizes").where(pc.field("size") > 1)
    alone = edges.where(pc.field("src") == pc.field("dst")).select(node="src")
    large = components.semijoin(several.select("component"), on="component", name="large")
    cyclic = large.concat(components.semijoin(alone, on="node", name="alone"))
    return cyclic.distinct(name="cycles").select(module="node", cycle="component")


def rows_of(source: Source, diff: int) -> Iterator[Row]:
    """The records of a file: one for itself, and one for each name that it imports."""
    for name in (None, *source.names):
        yield source.file, source.module, source.stamp, name, source.problem, diff


def difference(before: Mapping[str, Source], after: Mapping[str, Source]) -> list[Row]:
    """What must be sent so that the flow has the files as they are `after`."""
    changed = [file for file in {**before, **after} if before.get(file) != after.get(file)]
    removed = (row for file in changed if file in before for row in rows_of(before[file], -1))
    added = (row for file in changed if file in after for row in rows_of(after[file], 1))
    return [*removed, *added]


def sent(spark: SparkSession, table: str) -> dict[str, Source]:
    """The files as the flow has them."""
    rows = cli.read_table(spark, table).toArrow().to_pylist()
    names: dict[str, list[str]] = defaultdict(list)
    for row in rows:
        if row["name"] is not None:
            names[row["file"]].append(row["name"])
    return {
        (file := row["file"]): Source(
            file, row["module"], row["stamp"], tuple(sorted(names[file])), row["problem"]
        )
        for row in rows
        if row["name"] is None
    }


def shortest(start: str, imports: Mapping[str, Iterable[str]]) -> list[str]:
    """A shortest way from a module back to itself."""
    came: dict[str, str] = {}
    todo = deque([start])
    while start not in came:
        module = todo.popleft()
        for other in imports[module]:
            if other not in came:
                came[other] = module
                todo.append(other)
    way = [start]
    while len(way) == 1 or way[-1] != start:
        way.append(came[way[-1]])
    return way[::-1]


def lines(cycles: Mapping[str, list[str]], files: Mapping[str, Source]) -> Iterator[str]:
    """The cycles as text, the largest first, each with a shortest one in it."""
    read = {source.module: source for source in files.values() if source.names}
    modules = {source.module for source in files.values()}
    for cycle, members in sorted(cycles.items(), key=lambda each: (-len(each[1]), each[0])):
        inside = {*members}
        imports = {
            module: sorted({meant(name, modules) for name in read[module].names} & inside - {module})
            or [module]
            for module in members
        }
        yield f"{cycle}: {len(members)} module{'s' * (len(members) > 1)}"
        yield _indented(" -> ".join(shortest(cycle, imports)))
        if len(members) > 2:
            more = [f"and {len(members) - SHOWN} more"] * (len(members) > SHOWN)
            yield _indented(", ".join([*sorted(members)[:SHOWN], *more]))


def _indented(text: str) -> str:
    return textwrap.fill(text, 110, initial_indent="    ", subsequent_indent="    ")


def build(args: argparse.Namespace) -> tuple[ts.Dataflow, ts.Input]:
    """The flow, and the input for what was read."""
    flow = dataflow("import_cycles", args)
    stream = flow.input("files", f"{READ}, {DIFF} long")
    read = stream.collection(diff=DIFF)
    read.changes(DIFF).to_delta(read_table(args), keys=["file", "name"], diff=DIFF, name="read")
    deliver(import_cycles(read), args, keys="module")
    return flow, stream


def read_table(args: argparse.Namespace) -> str:
    """The table of what was read: part of the checkpoint, for both must tell of the same files."""
    return f"{args.checkpoint.rstrip('/')}/imports"


def look(args: argparse.Namespace, before: Mapping[str, Source]) -> dict[str, Source]:
    """The files as they are.

    Raises:
        TimelyError: a folder cannot be read.
    """
    try:
        return sources([Path(root) for root in args.root], before, top_level=args.top_level)
    except OSError as error:
        message = f"{error.filename} cannot be read: {error.strerror}."
        raise ts.TimelyError(message, hint="nothing was changed; start again when it can.") from error


def passes(spark: SparkSession, args: argparse.Namespace) -> Iterator[dict[str, Source]]:
    """Bring the flow up to date with the files; gives them each time that this is done.

    What was sent is durable, and the flow writes what it has taken together with its answer. So a run first
    lets the flow finish what the one before has sent, and then compares with what it has: whenever it was
    stopped, each change is sent once.
    """
    flow, stream = build(args)
    with flow.start(spark, checkpoint=args.checkpoint, workers=args.workers) as query:
        cli.watch_meanwhile(query, args)
        query.wait_for()
        before = sent(spark, read_table(args))
        while True:
            after = look(args, before)
            if changes := difference(before, after):
                stream.send(changes)
                query.wait_for()
            yield after
            before = after


def main() -> None:
    """Run the job."""
    parser = cli.described(__doc__)
    parser.add_argument(
        "--root", required=True, nargs="+", type=cli.directory, metavar="DIR", help="folders of Python files"
    )
    cli.delivery(parser)
    parser.add_argument("--top-level", action="store_true", help="only what runs when a module is imported")
    current(parser)
    parser.add_argument("--follow", action="store_true", help="stay, and look at the files again and again")
    parser.add_argument(
        "--every", type=cli.positive, default=5, metavar="SECONDS", help="how often (default: %(default)s)"
    )
    args = parser.parse_args()
    spark = cli.session("import_cycles", verbose=args.verbose)
    seen: Mapping[str, Source] | None = None
    for files in passes(spark, args):
        if files != seen:
            report(spark, args, files)
            seen = files
        if not args.follow:
            return
        time.sleep(args.every)


def report(spark: SparkSession, args: argparse.Namespace, files: Mapping[str, Source]) -> None:
    """Print the answer as it is now."""
    cycles: dict[str, list[str]] = defaultdict(list)
    for row in ts.snapshot(cli.read_table(spark, args.output)).collect():
        cycles[row.cycle].append(row.module)
    for source in files.values():
        if source.problem is not None:
            print(f"left out: {source.file}: {source.problem}", file=sys.stderr)
    on = sum(map(len, cycles.values()))
    total = f"{len(files)} files, {len(cycles)} import cycles, {on} modules on them"
    print(total, *lines(cycles, files), sep="\n", flush=True)


if __name__ == "__main__":
    cli.run(main)
