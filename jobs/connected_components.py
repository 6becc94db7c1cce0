"""Keep the connected components of a growing graph: for each epoch which node moved to which component.

    python jobs/connected_components.py --edges DIR [--format parquet|csv|delta] --output DIR --checkpoint DIR
                                        [--files-per-epoch N] [--workers N] [--follow]

Input: edges src long, dst long; undirected, only ever added; ids are not negative.
Output: a Delta table with epoch long, node long, component long, diff int. The component is the smallest id
in it; diff is +1 for a node's new component and -1 for its old one, so that the sum over all epochs up to
one is that epoch's answer.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cli
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession

import timely_spark as ts

EDGES = "src long, dst long"


def connected_components(edges: ts.Stream) -> ts.Stream:
    """Each node takes the least label it hears of. Columns: in src, dst long; out node, component long."""
    both = edges.concat(edges.select(src="dst", dst="src"))
    first = both.select(node="src", component=pc.min_element_wise(pc.field("src"), pc.field("dst")))

    def spread(proposed: ts.Stream) -> tuple[ts.Stream, ts.Stream]:
        labels = proposed.min("component", keys=["node"], name="least")
        links = proposed.scope.enter(both)
        onward = labels.join(links, left=["node"], right=["src"], name="neighbours")
        return onward.select(node="dst", component="component"), labels

    return first.loop(spread, name="spread")


def checked(batch: pa.Table) -> pa.Table:
    """The batch, if all ids are whole numbers from 0 up; else an error that shows an edge that is not."""
    for column in ("src", "dst"):
        bad = pc.fill_null(pc.less(batch[column], 0), fill_value=True)
        if pc.any(bad).as_py():
            edge = batch.filter(bad).slice(0, 1).to_pylist()[0]
            hint = "Hint: ids are whole numbers from 0 up; mend the file and start again."
            message = f"edge {edge}: {column} is null or negative. {hint}"
            raise ValueError(message)
    return batch


def read_edges(spark: SparkSession, path: str, form: str, files: int | None) -> DataFrame:
    """A stream of edges; wrong columns are an error before anything starts."""
    options: dict[str, Any] = {"maxFilesPerTrigger": files} if files else {}
    if form == "delta":
        found = spark.read.format("delta").load(path).schema
    elif form == "csv":
        options["header"] = _has_header(path)
        found = None
    else:
        found = spark.read.format(form).load(path).schema if any(Path(path).rglob("*.parquet")) else None
    if found is not None:
        kinds = {field.name: field.dataType.simpleString() for field in found}
        if any(
            kinds.get(column) not in {"bigint", "int", "smallint", "tinyint"} for column in ("src", "dst")
        ):
            hint = "Hint: select and cast the two columns first."
            message = f"{path} has columns {kinds}, edges need ({EDGES}). {hint}"
            raise ts.TimelyError(message)
    reader = spark.readStream.format(form).options(**options)
    if form != "delta":
        reader = reader.schema(found if found is not None else EDGES)
    return reader.load(path).selectExpr("cast(src as long) src", "cast(dst as long) dst")


def _has_header(path: str) -> bool:
    """Whether the files' first line names the columns."""
    for file in sorted(Path(path).rglob("*.csv")):
        with file.open() as lines:
            names = [name.strip().strip('"') for name in lines.readline().split(",")]
        if not all(name.lstrip("-").isdecimal() or not name for name in names):
            if names[:2] != ["src", "dst"]:
                hint = "Hint: name the columns src,dst, or leave the header out."
                message = f"{file} begins with {names}, edges need ({EDGES}). {hint}"
                raise ts.TimelyError(message)
            return True
        return False
    return False


def main() -> None:
    """Run the job."""
    parser = cli.arguments(__doc__, "edges")
    parser.add_argument(
        "--format", choices=["parquet", "csv", "delta"], default="parquet", help="default: %(default)s"
    )
    args = parser.parse_args()
    spark = cli.session("connected_components")

    flow = ts.Dataflow("connected_components")
    edges = flow.source("edges", read_edges(spark, args.edges, args.format, args.files_per_epoch))
    edges = edges.map_batches(checked, EDGES, name="checked")
    connected_components(edges).to_delta(args.output, diff="diff", name="changes")
    trigger = None if args.follow else "available_now"
    cli.report(flow.start(spark, checkpoint=args.checkpoint, workers=args.workers, trigger=trigger))


if __name__ == "__main__":
    cli.run(main)
