"""Blocking: pairs of records that agree in a key, which may be one entity; records come and go.

Comparing all records with all takes too long, so a matcher scores only pairs that agree in one of some rules.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from timely_spark.authors import (
    DIFF,
    Several,
    algorithm,
    caller,
    check_collection,
    check_columns,
    computed,
    flat,
    integer,
)
from timely_spark.differential import Collection
from timely_spark.errors import BadArgument, SchemaError

BlockingRule: TypeAlias = str | pc.Expression | Sequence[str | pc.Expression]
"""What two records must agree in: a column or an expression, or several."""

#: Between the parts of a block, and what stands for these characters in a part.
_BETWEEN = "|"
_ESCAPES = {"\\": "\\\\", _BETWEEN: f"\\{_BETWEEN}"}


@dataclass(frozen=True)
class Blocking(Several):
    """The result of `blocking`."""

    #: each pair of records once: a, b, the number of the first rule that gives it, and columns of both
    pairs: Collection
    #: the blocks that give no pairs, because they have too many records: rule, block, records
    large: Collection


@algorithm
def blocking(
    records: Collection,
    rules: Sequence[BlockingRule],
    *,
    max_size: int,
    id: str = "id",
    columns: Sequence[str] = (),
    name: str | None = None,
) -> Blocking:
    """The pairs of records that agree in a rule: candidates for a matcher to score; records come and go.

    A rule puts each record into a *block*: its value, as a text. Two records in one block are a pair. A rule
    whose value is an array puts the record into a block for each element: words, cells of a grid, or the
    bands of a MinHash, made by a function of your own (`function`). Null, NaN and blank texts make no block.
    A block of more than `max_size` records gives no pairs while it has them: so common a value is not
    evidence. The law: at every epoch the pairs are those of the present records.

    An epoch costs the records that share a block with those that come or go. The state is the blocks of each
    record, twice, and each pair.

    Args:
        records: the records, each with an id of its own.
        rules: a column, an expression in Spark's SQL, or a list of these, where the two agree in all.
        max_size: the most records of a block that gives pairs. A block of n records gives n (n - 1) / 2.
        id: the column of ids.
        columns: columns that the pairs have of both records.

    **Columns:** in: `id` and others. Ids have an order; values of rules are flat and not binary, or arrays of
    such. Out: of `pairs` ``a``, ``b``, the ids, where a < b; ``rule`` int, the number of the rule
    from 0; for each of `columns` its name with ``_a`` and ``_b``. Of `large` ``rule`` int, ``block`` string,
    ``records`` long. A record without an id is in no pair.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("candidates")
        >>> people = flow.input("people", "id long, name string, phone string, diff long").collection(
        ...     diff="diff"
        ... )
        >>> candidates = ts.blocking(
        ...     people, ["phone", "substring(name, 1, 3)"], max_size=50, columns=["name"]
        ... )
        >>> _ = candidates.pairs.capture("pairs")
        >>> first = [(1, "Olsen", "311", 1), (2, "Olson", None, 1), (3, "Lund", "311", 1)]
        >>> out = ts.testing.run(flow, {"people": [first, [(1, "Olsen", "311", -1)]]}, workers=2)["pairs"]
        >>> out.rows()[0]
        [(1, 2, 1, 'Olsen', 'Olson', 1), (1, 3, 0, 'Olsen', 'Lund', 1)]
        >>> ts.snapshot(out).to_pylist()
        []

    Raises:
        GraphError: `records` is not a collection.
        SchemaError: a column is missing, a rule is not an expression of the columns, or its values cannot be
            blocks.
        BadArgument: there are no rules, or `max_size` is not a number from 2 upwards.
    """
    check_collection("blocking", records)
    check_columns("blocking", records.schema, [id, *columns], nested=True)
    max_size = integer("max_size", max_size, step="blocking", least=2)
    parts = [[rule] if isinstance(rule, str | pc.Expression) else list(rule) for rule in rules]
    if isinstance(rules, str) or not parts or not all(parts):
        msg = f"blocking: rules={rules!r}"
        hint = "give a list of columns or expressions, such as ['email', ['name', 'birthday']]."
        raise BadArgument(msg, where=caller(), hint=hint)
    chosen = {f"{n}.{m}": part for n, rule in enumerate(parts) for m, part in enumerate(rule)}
    values = computed(records.stream, {"id": id} | chosen, DIFF)
    for key, part in chosen.items():
        kind = values.schema.field(key).type
        kind = kind.value_type if pa.types.is_list(kind) else kind
        if pa.types.is_nested(kind) or pa.types.is_binary(kind):
            msg = f"blocking: the values of {part} are {values.schema.field(key).type}"
            hint = "make texts, numbers or dates of them, or arrays of these."
            raise SchemaError(msg, where=caller(), hint=hint)
    schema = pa.schema(
        [values.schema.field("id"), ("rule", pa.int32()), ("block", pa.string()), (DIFF, pa.int64())]
    )
    blocks = records.like(values.map_batches(functools.partial(_blocks, schema), schema))
    sizes = blocks.count("records", keys=["rule", "block"])
    some = blocks.semijoin(
        sizes.where((pc.field("records") > 1) & (pc.field("records") <= max_size)), on=["rule", "block"]
    )
    both = some.select("rule", "block", a="id").join(
        some.select("rule", "block", b="id"), on=["rule", "block"]
    )
    pairs = both.where(pc.field("a") < pc.field("b")).min("rule", keys=["a", "b"])
    for end in ("a", "b") if columns else ():
        own = records.select({end: id}, {f"{column}_{end}": column for column in columns})
        pairs = pairs.join(own, on=end)
    ordered = ["a", "b", "rule", *(f"{column}_{end}" for end in ("a", "b") for column in columns)]
    return Blocking(pairs.select(*ordered, name=name), sizes.where(pc.field("records") > max_size))


def _blocks(schema: pa.Schema, values: pa.Table) -> pa.Table:
    """The blocks of records, each once for a record."""
    parts: dict[int, list[pa.Array]] = {}
    for key in values.schema.names[1:-1]:
        parts.setdefault(int(key.partition(".")[0]), []).append(flat(values[key]))
    ids, diffs = flat(values[values.schema.names[0]]), flat(values[DIFF])
    tables = []
    for rule, columns in parts.items():
        rows, blocks = _of_rule(columns)
        columns_of_rule = [
            ids.take(rows),
            pa.repeat(pa.scalar(rule, pa.int32()), len(rows)),
            blocks,
            diffs.take(rows),
        ]
        tables.append(pa.table(columns_of_rule, schema=schema))
    return pa.concat_tables(tables)


def _of_rule(columns: Sequence[pa.Array]) -> tuple[pa.Array, pa.Array]:
    """The blocks of one rule, and for each the row of its record."""
    rows = pa.array(np.arange(len(columns[0])))
    texts: list[pa.Array] = []
    for column in columns:
        inside = column.take(rows)
        if pa.types.is_list(column.type):
            of = pc.list_parent_indices(inside)
            rows, texts = rows.take(of), [text.take(of) for text in texts]
            inside = pc.list_flatten(inside)
        if pa.types.is_floating(inside.type):
            inside = pc.add(inside, pa.scalar(0, inside.type))  # -0.0 is 0.0
        text = inside.cast(pa.string())
        wrong = pc.equal(pc.utf8_trim_whitespace(text), "")
        if pa.types.is_floating(inside.type):
            wrong = pc.is_nan(inside)
        texts.append(pc.if_else(wrong, pa.scalar(None, pa.string()), text))
    if len(texts) > 1:
        for character, escape in _ESCAPES.items():
            texts = [pc.replace_substring(text, character, escape) for text in texts]
    blocks = pc.binary_join_element_wise(*texts, _BETWEEN)
    # an array may have an element twice
    unique = pa.table([rows, blocks], ["row", "block"]).filter(blocks.is_valid())
    if any(pa.types.is_list(column.type) for column in columns):
        unique = unique.group_by(["row", "block"], use_threads=False).aggregate([])
    return flat(unique["row"]), flat(unique["block"])
