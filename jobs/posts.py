"""What the jobs over posts have in common: posts from files of JSON lines, and the names in their texts."""

from __future__ import annotations

import sys

import cli
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import cloudpickle

import timely_spark as ts

DIFF = "diff"
#: letters and digits of any script, and underscores
WORD = r"\p{L}\p{N}_"
# the workers of a cluster have no folder of jobs
cloudpickle.register_pickle_by_value(sys.modules[__name__])


def read(flow: ts.Dataflow, name: str, path: str, most: int | None, columns: dict[str, str]) -> ts.Stream:
    """The rows in files of JSON lines: see `fitting`."""
    return fitting(cli.files(flow, name, path, columns, format="json", most=most), columns)


def fitting(stream: ts.Stream, columns: dict[str, str]) -> ts.Stream:
    """A stream with these columns, "string" or "long", and diff, if it is there.

    Missing columns are an error before anything starts, a null in a user or a time is one when it comes.
    """
    has = {field.name: str(field.type) for field in stream.schema}
    if missing := [column for column in columns if column not in has]:
        message = f"{stream.name!r} has columns {has}, and not {missing}"
        raise ts.TimelyError(message, hint=f"each line is an object with {', '.join(columns)}.")
    kinds = {"string": pa.string(), "long": pa.int64()}
    casts = {column: pc.field(column).cast(kinds[kind]) for column, kind in columns.items()}
    stream = stream.select(casts, *([DIFF] if DIFF in has else []))
    return stream.map_batches(checked, stream.schema, name=f"{stream.name} checked")


def checked(batch: pa.Table) -> pa.Table:
    """The batch, if nothing but texts is null; else an error that shows a row where something is."""
    for column in batch.column_names:
        if column != "text" and batch[column].null_count:
            row = batch.filter(pc.is_null(batch[column])).slice(0, 1).to_pylist()[0]
            message = f"{row}: {column} is null"
            raise ts.TimelyError(message, hint="mend the file and start again.")
    return batch


def named(posts: ts.Stream, sign: str) -> ts.Collection:
    """The names after a sign, @ or #, in the texts, in lower case; and the other columns of their posts.

    A name is letters, digits and underscores; before its sign is none of these, and no other sign.

    Columns: in text string, and others; out name string, and the others.
    """
    fields = [pa.field("name", pa.string()), *(field for field in posts.schema if field.name != "text")]

    def names_in(batch: pa.Table) -> pa.Table:
        texts = pc.fill_null(batch["text"], "").combine_chunks()
        words = pc.split_pattern_regex(texts, pattern=f"[^{WORD}@#]+")
        after = pc.extract_regex(pc.list_flatten(words), pattern=f"^{sign}(?P<name>[{WORD}]+)")
        there = pc.is_valid(after)
        names = pc.utf8_lower(pc.struct_field(after.filter(there), "name"))
        rows = batch.drop_columns(["text"]).take(pc.list_parent_indices(words).filter(there))
        return pa.table([names, *rows.columns], pa.schema(fields))

    stream = posts.map_batches(names_in, pa.schema(fields), name="mentions" if sign == "@" else "hashtags")
    return collection(stream)


def collection(stream: ts.Stream) -> ts.Collection:
    """The rows of a stream as a collection, by their diff if they have one."""
    return stream.collection(diff=DIFF if DIFF in stream.schema.names else None)
