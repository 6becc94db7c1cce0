"""What the jobs over graphs have in common: edges in from files, as a collection; an answer out to Delta."""

from __future__ import annotations

import argparse
import sys
from contextlib import suppress
from typing import Any

import cli
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv
from pyarrow import dataset as ds
from pyspark import cloudpickle

import timely_spark as ts
from timely_spark.graph import caller, identifier
from timely_spark.runtime.sources.folder import Folder

ENDS = {"src": "long", "dst": "long"}
DIFF = "diff"
#: of files without the column: they add edges
DEFAULTS = {DIFF: 1}
#: bytes in which the first line of a file ends
_LINE = 1 << 16
# the workers of a cluster have no folder of jobs
cloudpickle.register_pickle_by_value(sys.modules[__name__])


def arguments(description: str) -> argparse.ArgumentParser:
    """A parser with the arguments that all jobs over edges take."""
    parser = cli.arguments(description, "edges")
    parser.add_argument(
        "--format", choices=["parquet", "csv", "delta"], default="parquet", help="default: %(default)s"
    )
    current(parser)
    return parser


def current(parser: argparse.ArgumentParser) -> None:
    """Add the argument for the answer as it is now."""
    what = "also keep a Delta table of the current result"
    parser.add_argument("--current", type=cli.table, metavar="DIR", help=what)


def read_edges(
    flow: ts.Dataflow, path: str, form: str, most: int | None, weight: str | None = None
) -> ts.Collection:
    """The edges in files, or in a Delta table; wrong columns are an error before anything starts.

    Columns: out src, dst long, and `weight`, if asked for, long or double. The column diff says how many more
    there are; each edge of a file without it is added once.
    """
    stream = _source(flow, path, form, most, weight)
    kinds = {field.name: field.type for field in stream.schema}
    needed = dict.fromkeys(ENDS, pa.types.is_signed_integer) | ({weight: _number} if weight else {})
    optional = {DIFF: pa.types.is_signed_integer} if DIFF in kinds else {}
    if not all(column in kinds and fits(kinds[column]) for column, fits in (needed | optional).items()):
        types = {name: str(kind) for name, kind in kinds.items()}
        message = f"{path} has columns {types}, edges need ({_ddl(_columns(weight))})"
        raise ts.TimelyError(message, hint="select and cast the columns first.")
    types = dict.fromkeys(needed | optional, pa.int64())
    if weight and pa.types.is_floating(kinds[weight]):
        types[weight] = pa.float64()
    stream = stream.select(
        {column: pc.field(column).cast(kind) for column, kind in types.items()}, name="edges cast"
    )
    stream = stream.map_batches(checked, stream.schema, name="checked")
    return stream.collection(diff=DIFF if optional else None)


def _source(flow: ts.Dataflow, path: str, form: str, most: int | None, weight: str | None) -> ts.Stream:
    if form == "delta":
        return flow.delta("edges", path, versions_per_epoch=most or 1)
    if form == "parquet":
        return cli.files(flow, "edges", path, _columns(weight), format=form, most=most, defaults=DEFAULTS)
    options: dict[str, Any] = {"format": form, "schema": _ddl(_columns(weight)), "defaults": DEFAULTS}
    if (names := _csv_names(path, weight)) is not None:
        read, convert = csv.ReadOptions(column_names=names), csv.ConvertOptions(null_values=[""])
        options["format"] = ds.CsvFileFormat(read_options=read, convert_options=convert)
    return flow.files("edges", path, files_per_epoch=most, **options)


def checked(batch: pa.Table) -> pa.Table:
    """The batch, if all ids are integers from 0 up; else an error that shows an edge that is not."""
    for column in {*ENDS, DIFF} & {*batch.schema.names}:
        wrong = pc.is_null(batch[column]) if column == DIFF else pc.less(batch[column], 0)
        wrong = pc.fill_null(wrong, fill_value=True)
        if pc.any(wrong).as_py():
            edge = batch.filter(wrong).slice(0, 1).to_pylist()[0]
            what = "not an integer" if column == DIFF else "null or negative"
            ids = "it is an integer, +1 or -1" if column == DIFF else "ids are integers from 0 up"
            message = f"edge {edge}: {column} is {what}"
            raise ts.TimelyError(message, hint=f"{ids}; mend the file and start again.")
    return batch


def dataflow(name: str, args: argparse.Namespace, **settings: object) -> ts.Dataflow:
    """A flow whose name has the settings that one checkpoint cannot have changed: names are compared."""
    said = [f"{key} {value}" for key, value in settings.items() if value is not None]
    flow = ts.Dataflow(", ".join([name, *said, *(["current"] if args.current else [])]))
    before = flow.name
    with suppress(ts.TimelyError, OSError):  # no checkpoint, or one of which the start says more
        before = ts.inspect(args.checkpoint).flow
    if before != flow.name:
        message = f"--checkpoint {args.checkpoint!r} is of '{before}', and the arguments are '{flow.name}'"
        hint = "give the arguments of its first start, or another --checkpoint and another --output."
        raise ts.TimelyError(message, hint=hint)
    return flow


def deliver(answer: ts.Collection, args: argparse.Namespace, keys: str | list[str] = "node") -> None:
    """Write an answer: the log of its changes, and the table of what it is now if that is asked for."""
    columns = answer.schema.names
    changes = answer.changes(DIFF).select(*columns, {DIFF: pc.field(DIFF).cast(pa.int32())})
    changes.to_delta(args.output, name="changes")
    if args.current:
        changes.to_delta(args.current, keys=keys, diff=DIFF, name="current")


def run(flow: ts.Dataflow, args: argparse.Namespace) -> None:
    """Run a flow over files, and print its epochs. Spark starts here, behind all checks."""
    spark = cli.session(flow.name.partition(",")[0], verbose=args.verbose)
    trigger = None if args.follow else "available_now"
    query = flow.start(spark, checkpoint=args.checkpoint, workers=args.workers, trigger=trigger)
    cli.report(query, args)


def _columns(weight: str | None) -> dict[str, str]:
    return ENDS | ({weight: "double"} if weight else {}) | {DIFF: "long"}


def _number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_signed_integer(kind) or pa.types.is_floating(kind))


def _ddl(columns: dict[str, str]) -> str:
    return ", ".join(
        f"{name if name.isidentifier() else identifier(name)} {kind}" for name, kind in columns.items()
    )


def _csv_names(path: str, weight: str | None) -> list[str] | None:
    """The columns of files without a header, as the newest one; None: it has a header."""
    kinds = _columns(weight)
    needed = [column for column in kinds if column != DIFF]
    folder = Folder.of("edges", caller(), path, "csv", None)
    newest = max((file for file in folder.files() if file.size), default=None)
    if newest is None:
        return needed
    with folder.reading(newest.path), folder.place[0].open_input_stream(newest.path) as lines:
        line, _, _ = lines.read(_LINE).decode("utf-8-sig", "replace").partition("\n")
    cells = [cell.strip().strip('"') for cell in line.split(",")]
    if not any(cell in kinds for cell in cells) and all(map(_is_number, cells)):
        return list(kinds)[: max(len(needed), len(cells))]
    if not {*needed} <= {*cells}:
        message = f"{newest.path} begins with {cells}, edges need ({_ddl(kinds)})"
        raise ts.TimelyError(message, hint=f"name the columns {','.join(kinds)}, or leave the header out.")
    return None


def _is_number(text: str) -> bool:
    try:
        float(text or "0")
    except ValueError:
        return False
    return True
