"""Keep which records are of the same entity: for each epoch which record moved to which entity.

    python jobs/entity_resolution.py --records DIR --keys KEY,KEY... [--id COLUMN] [--most N]
                                     [--format parquet|csv|json|delta] [--schema DDL] --output DIR
                                     --checkpoint DIR [--current DIR] [--files-per-epoch N] [--workers N]
                                     [--follow]

Input: records with an id (integers or text), columns to match by, and optionally diff long: a row with
diff 1 (or without diff) adds a record, the same row with -1 removes it; rows with one id are one record.
Of a Delta table also updates and deletions are followed. Two records match if they agree in a key: a column,
or several joined by +, as in --keys email,phone,name+birthday. Null, NaN and empty text match nothing, nor
does a value that more than N records share: that is printed. An entity is all records that matches connect.
Output: a Delta table with epoch long, record, entity string, diff int: +1 for a record's new entity and -1
for its old one. --current: a Delta table with the present record, entity.

Entities' ids are stable, and written record@epoch. The larger keeps its id: of entities that merge the one
with most records (of equals the one with the older id), of the parts of one that is split the one with most
of its records. Another part gets the id that it had before it merged, or else one of its records' own.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial

import cli
import pyarrow as pa
import pyarrow.compute as pc
from edges import current, dataflow, deliver, run

import timely_spark as ts
from timely_spark.graph import as_schema

DIFF = "diff"
#: lines printed per epoch about values that too many records share
SHOWN = 10


# -- records, and the values that they share -----------------------------------------------------------------


def read_records(flow: ts.Dataflow, args: argparse.Namespace) -> ts.Collection:
    """The records in files, or in a Delta table. Columns: out record (long or string), and those of keys."""
    if args.format == "delta":
        versions = args.files_per_epoch or 1
        stream: ts.Stream = flow.delta("records", args.records, changes=True, versions_per_epoch=versions)
    else:
        limits = {"schema": args.schema, "files_per_epoch": args.files_per_epoch}
        if args.schema is None or DIFF in as_schema(args.schema).names:  # in any file, and lacked by any
            limits["defaults"] = {DIFF: 1}
        stream = flow.files("records", args.records, format=args.format, **limits)
    return records_of(stream, args.id, args.keys)


def records_of(stream: ts.Stream, identity: str, keys: Sequence[Sequence[str]]) -> ts.Collection:
    """The records of a stream: see `read_records`; wrong columns are an error before anything starts."""
    columns = list(dict.fromkeys(column for key in keys for column in key))
    kinds = {field.name: field.type for field in stream.schema}
    nested = [column for column in columns if column in kinds and pa.types.is_nested(kinds[column])]
    if nested or {identity, *columns} - {*kinds}:
        has = {name: str(kind) for name, kind in kinds.items()}
        message = f"the records have columns {has}, the job needs {[identity, *columns]}, none nested"
        raise ts.TimelyError(message, hint="name the columns with --id and --keys.")
    kind = pa.int64() if pa.types.is_integer(kinds[identity]) else pa.string()
    if kind == pa.string() and kinds[identity] not in (pa.string(), pa.large_string()):
        message = f"column {identity!r}, the records' id, is {kinds[identity]}"
        raise ts.TimelyError(message, hint="give a column of integers or text.")
    texts = {f"key {column}": pc.field(column).cast(pa.string()) for column in columns}
    more = [DIFF] if DIFF in kinds else []
    stream = stream.select({"record": pc.field(identity).cast(kind)}, texts, *more, name="records cast")
    stream = stream.map_batches(checked, stream.schema, name="checked")
    return stream.collection(diff=DIFF if more else None)


def checked(batch: pa.Table) -> pa.Table:
    """The batch, if all records have an id; else an error that shows one that has none."""
    if batch["record"].null_count:
        shown = batch.filter(pc.is_null(batch["record"])).slice(0, 1).to_pylist()[0]
        message = f"record {shown} has no id"
        raise ts.TimelyError(message, hint="mend the file and start again.")
    return batch


def node_of(number: int, key: Sequence[str]) -> pc.Expression:
    """The text that two records share if and only if they agree in a key: its number, lengths and values."""
    parts = [pc.scalar(str(number))]
    for column in key:
        text = pc.field(f"key {column}")
        text = pc.if_else((text == "") | (text == "nan"), pc.scalar(pa.scalar(None, pa.string())), text)
        parts += [pc.utf8_length(text).cast(pa.string()), text]
    return pc.binary_join_element_wise(*parts, pc.scalar(":"))


def value_of(node: str, keys: Sequence[Sequence[str]]) -> str:
    """A node of `node_of` for people to read."""
    number, _, rest = node.partition(":")
    values = []
    for column in keys[int(number)]:
        length, _, rest = rest.partition(":")
        values.append(f"{column} {rest[: int(length)]!r}")
        rest = rest[int(length) + 1 :]
    return ", ".join(values)


def entities(
    records: ts.Collection, keys: Sequence[Sequence[str]], most: int
) -> tuple[ts.Collection, ts.Collection]:
    """The entity of each record, and the values that more than `most` records share.

    The components of the graph in which a record has an edge to each value of a key that it has.

    Columns: in as `records_of`; out record, entity string; and value string.
    """
    kind = records.schema.field("record").type
    node = pc.binary_join_element_wise(pc.scalar("r"), pc.field("record").cast(pa.string()), pc.scalar(""))
    of_keys = [records.select("record", value=node_of(number, key)) for number, key in enumerate(keys)]
    having = [one.where(pc.is_valid(pc.field("value"))) for one in of_keys]
    shared = having[0].concat(*having[1:]).distinct(name="values")
    sizes = shared.count("records", keys="value", name="sizes")
    common = sizes.where(pc.field("records") > most).select("value")
    matches = shared.antijoin(common, on="value", name="matches").select(src=node, dst="value")
    edges = matches.concat(records.select(src=node, dst=node))
    parts = ts.graphs.connected_components(edges, name="parts")
    there = parts.where(pc.starts_with(pc.field("node"), pattern="r"))
    record = pc.utf8_slice_codeunits(pc.field("node"), start=1).cast(kind)
    return ts.stable_ids(there.select(record=record, group="component"), name="entities"), common


# -- the job -------------------------------------------------------------------------------------------------


def printed(keys: Sequence[Sequence[str]], most: int, epoch: int, changes: pa.Table) -> None:
    """Print the values that begin, and those that cease, to be shared by too many records."""
    for sign, says in ((1, f"more than {most} records: it matches nothing"), (-1, f"at most {most} again")):
        values = changes.filter(pc.equal(pc.sign(changes[DIFF]), sign))["value"].to_pylist()
        for value in values[:SHOWN]:
            print(f"epoch {epoch}: {value_of(value, keys)} is shared by {says}", flush=True)
        if len(values) > SHOWN:
            print(f"epoch {epoch}: and {len(values) - SHOWN} other values", flush=True)


def listed(text: str) -> list[list[str]]:
    """Keys: columns joined by +, with commas between them."""
    keys = [key.split("+") for key in text.split(",")]
    if not all(column for key in keys for column in key):
        message = f"{text!r} does not list keys, such as email,phone,name+birthday"
        raise argparse.ArgumentTypeError(message)
    return keys


def main() -> None:
    """Run the job."""
    parser = cli.arguments(__doc__ or "", "records")
    forms = ["parquet", "csv", "json", "delta"]
    parser.add_argument("--format", choices=forms, default="parquet", help="default: %(default)s")
    parser.add_argument("--schema", metavar="DDL", help="of the files (default: that of the newest)")
    parser.add_argument("--id", default="id", metavar="COLUMN", help="the records' id (default: %(default)s)")
    parser.add_argument("--keys", required=True, type=listed, metavar="KEY,KEY...", help="what to match by")
    most = "a value that more records share matches nothing (default: %(default)s)"
    parser.add_argument("--most", type=cli.positive, default=1000, metavar="N", help=most)
    current(parser)
    args = parser.parse_args()
    if args.format == "delta" and args.schema:
        parser.error("argument --schema: a Delta table has its own")
    flow = dataflow("entity_resolution", args, id=args.id, keys=args.keys, most=args.most)
    of, common = entities(read_records(flow, args), args.keys, args.most)
    deliver(of, args, keys="record")
    common.subscribe(partial(printed, args.keys, args.most), name="common")
    run(flow, args)


if __name__ == "__main__":
    cli.run(main)
