"""Combiners: the receiver's `Vertex.combine` merges the records of a round or a source before an exchange."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from timely_spark.compiler.plan import Channel, Plan
from timely_spark.errors import RAISED, SchemaError, VertexError, excerpt, row_texts
from timely_spark.graph import Partition, as_table, describe
from timely_spark.state.exchange import destinations, split

#: the number of parts that the simulator combines apart, to compare
_PARTS = 5

#: so many parts that each has the records of one key, as a rule
_MANY = 2**31 - 1

Floats: TypeAlias = "np.ndarray[Any, np.dtype[np.floating[Any]]]"

_HINT = "let combine group by these columns, and keep their values."


def combined(plan: Plan, channel: Channel, table: pa.Table) -> pa.Table:
    """The records as the channel's receiver combines them; errors name the step and the user's line."""
    node = plan.nodes[channel.target]
    combine = node.template.combine
    if combine is None:
        return table
    try:
        result, by_user = combine(channel.input, table), node.template.sends_for_user
        if by_user or not isinstance(result, pa.Table) or result.schema != table.schema:
            result = _fitting(result, table.schema)
        if plan.checks_laws and channel.exchange is not None and by_user:
            _check_law(combine, channel.input, table, result, channel.exchange)
    except RAISED as error:
        raise VertexError.from_exception(node.name, node.stage.where, error, rows=excerpt(table)) from error
    return result


def _fitting(result: Any, schema: pa.Schema) -> pa.Table:
    if isinstance(result, pa.Table) and result.schema.names != schema.names:
        msg = f"combine returns ({describe(result.schema)}) of records ({describe(schema)})"
        raise SchemaError(msg, hint="return the columns of the records, in their order.")
    return as_table(result, schema, of="combine's result", projected=True)


def _check_law(
    combine: Callable[[int, pa.Table], Any], edge: int, table: pa.Table, result: pa.Table, by: Partition
) -> None:
    """Check the law of `combine`: the result for one partition does not depend on other partitions' records.

    A small partition may be left as it is if it is alone, and combined if others come with it.
    """
    by = replace(by, workers=None, skew=None)
    if (to := destinations(table, by, _PARTS)) is None:
        return

    def parts(records: pa.Table) -> dict[int, pa.Table]:
        return _parts(_fitting(combine(edge, records), table.schema), records, by)

    together, none = _parts(result, table, by), table.slice(0, 0)
    for index, part in split(table, to, _PARTS).items():
        both, separate = together.get(index, none), parts(part).get(index, none)
        if _same_records(separate, part, part, by):
            others = table.filter(pa.array(to != index))
            separate = parts(pa.concat_tables([table, others])).get(index, none)
        if not any(_same_records(one, both, part, by) for one in (separate, part)):
            msg = (
                f"combine mixes records that are partitioned apart ({by}): together they give "
                f"{_more(both, separate)}, and apart {_more(separate, both)}"
            )
            raise SchemaError(msg, hint=_HINT)


def _parts(result: pa.Table, records: pa.Table, by: Partition) -> dict[int, pa.Table]:
    """The parts of what `combine` made of records; it must be partitioned as they are."""
    after, before = (destinations(one, by, _MANY) for one in (result, records))
    assert after is not None
    assert before is not None
    strange = ~np.isin(after, before)
    if strange.any():
        example = excerpt(result.filter(pa.array(strange)))
        msg = f"combine makes records that are partitioned otherwise ({by}): {example}"
        raise SchemaError(msg, hint=_HINT)
    to = destinations(result, by, _PARTS)
    assert to is not None
    return split(result, to, _PARTS)


def _same_records(one: pa.Table, other: pa.Table, records: pa.Table, by: Partition) -> bool:
    """Whether two tables, made of these records, are equal in any order; of sums of floats, nearly."""
    if one.num_rows != other.num_rows:
        return False
    floats = [
        name
        for name, kind in zip(one.schema.names, one.schema.types, strict=True)
        if pa.types.is_floating(kind) and name not in by.reads
    ]
    (texts, numbers), (other_texts, other_numbers) = (_ordered(table, floats) for table in (one, other))
    return texts == other_texts and all(
        _near(a, b, records[name].to_numpy())
        for a, b, name in zip(numbers, other_numbers, floats, strict=True)
    )


def _near(one: Floats, other: Floats, summands: Floats) -> bool:
    """Whether sums differ by no more than the order of their summands explains."""
    rest = float(np.finfo(one.dtype).eps) ** 0.5
    largest = np.abs(summands, where=np.isfinite(summands), out=np.zeros_like(summands)).max(initial=0)
    return np.allclose(one, other, rtol=rest, atol=rest * largest, equal_nan=True)


def _ordered(table: pa.Table, floats: list[str]) -> tuple[list[str], list[Floats]]:
    """The records in one order: the other columns as texts, and the columns of floats."""
    texts = row_texts(table.drop_columns(floats)) or [""] * table.num_rows
    numbers = [table[name].to_numpy() for name in floats]
    order = np.lexsort((*reversed(numbers), np.array(texts, dtype=str)))
    return [texts[place] for place in order], [column[order] for column in numbers]


def _more(one: pa.Table, other: pa.Table) -> list[str]:
    """Some of the rows that a table has more often than another one."""
    return list(Counter(row_texts(one)) - Counter(row_texts(other)))[:3]
