"""A round's or a source's records are combined by their receiver's `Vertex.combine` before an exchange."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from timely_spark.compiler.plan import Channel, Plan
from timely_spark.errors import SchemaError, VertexError, excerpt, values_of
from timely_spark.graph import Partition, Vertex, as_table, describe
from timely_spark.state.keys import destinations, split

#: the number of parts that the simulator combines apart, to compare
_PARTS = 5

#: so many parts that each has the records of one key, as a rule
_MANY = 2**31 - 1

_HINT = "let combine group by these columns, and keep their values."


def combined(plan: Plan, channel: Channel, table: pa.Table) -> pa.Table:
    """The records as the channel's receiver combines them; errors name the step and the user's line."""
    node = plan.nodes[channel.target]
    combine = node.template.combine
    if combine is None:
        return table
    try:
        result = _fitting(combine(channel.input, table), table.schema)
        if plan.checks_laws and channel.exchange is not None and _by_user(node.template):
            _check_law(combine, channel.input, table, result, channel.exchange)
    except Exception as error:
        raise VertexError.from_exception(node.name, node.stage.where, error, rows=excerpt(table)) from error
    return result


def _fitting(result: Any, schema: pa.Schema) -> pa.Table:
    if isinstance(result, pa.Table):
        if result.schema == schema:
            return result
        if result.schema.names != schema.names:
            msg = f"combine returns ({describe(result.schema)}) of records ({describe(schema)})"
            raise SchemaError(msg, hint="return the columns of the records, in their order.")
    return as_table(result, schema, of="combine's result")


def _by_user(template: Vertex) -> bool:
    """Whether a vertex is the user's, not one of the library's, whose tests check the law."""
    return type(template).__module__.partition(".")[0] != __name__.partition(".")[0]


def _check_law(
    combine: Callable[[int, pa.Table], Any], edge: int, table: pa.Table, result: pa.Table, by: Partition
) -> None:
    """Check that records which are partitioned apart are combined as they are together."""
    by = replace(by, workers=None, skew=None)
    if (to := destinations(table, by, _PARTS)) is None:
        return
    apart: Counter[str] = Counter()
    for part in split(table, to, _PARTS).values():
        own = _fitting(combine(edge, part), table.schema)
        apart += _rows(own)
        after, before = (destinations(one, by, _MANY) for one in (own, part))
        assert after is not None
        assert before is not None
        strange = ~np.isin(after, before)
        if strange.any():
            made = excerpt(own.filter(pa.array(strange)))
            msg = f"combine makes records that are partitioned otherwise ({by}): {made}"
            raise SchemaError(msg, hint=_HINT)
    together = _rows(result)
    if apart != together:
        msg = (
            f"combine mixes records that are partitioned apart ({by}): together they give "
            f"{list(together - apart)[:3]}, and apart {list(apart - together)[:3]}"
        )
        raise SchemaError(msg, hint=_HINT)


def _rows(table: pa.Table) -> Counter[str]:
    return Counter(map(str, zip(*map(values_of, table.columns), strict=True)))
