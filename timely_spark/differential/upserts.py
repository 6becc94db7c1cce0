"""`upserts`: records that replace earlier ones of their key, as a collection."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from timely_spark.differential.collections import Collection
from timely_spark.differential.trace import DIFF
from timely_spark.errors import SchemaError
from timely_spark.graph import Expression, caller, check_columns, names, operator
from timely_spark.operators.group_map import StatefulMap
from timely_spark.operators.retractions import check_no_retractions
from timely_spark.operators.rows import computed, key_columns
from timely_spark.operators.sql import expression
from timely_spark.operators.top_k import First
from timely_spark.state.grouping import group
from timely_spark.streams import Stream

_DELETES = "__timely_deletes"


@dataclass(frozen=True, slots=True)
class Latest:
    """Replace the latest record of each key. The state is that record, also of a key that is deleted."""

    keys: tuple[str, ...]
    #: the columns that order the records of a key
    order: tuple[str, ...]

    def __call__(self, batch: pa.Table, before: pa.Table) -> tuple[pa.Table, pa.Table]:
        """The changes, and the latest records."""
        # `before` comes first, and the sort is stable: a record that only comes again replaces nothing;
        # a sort in descending order has nulls last
        flag = pc.fill_null(batch.column(_DELETES), fill_value=False)
        batch = batch.drop_columns([_DELETES]).append_column(_DELETES, flag)
        both = pa.concat_tables([before, batch.select(before.schema.names)])
        greatest = First(self.keys, 1, tuple((column, "descending") for column in self.order))
        first, after = greatest.fold(both, group(both, self.keys))
        stays = np.zeros(before.num_rows, np.bool_)
        stays[first[first < before.num_rows]] = True
        replaced = np.flatnonzero(~stays)
        new = first[first >= before.num_rows]
        changes = [_inserted(both.take(pa.array(replaced)), -1), _inserted(both.take(pa.array(new)), 1)]
        return pa.concat_tables(changes), after


def _inserted(records: pa.Table, diff: int) -> pa.Table:
    """The records that are not deletions, as changes."""
    present = records.filter(pc.invert(records.column(_DELETES))).drop_columns([_DELETES])
    return present.append_column(DIFF, pa.array(np.full(present.num_rows, diff, np.int64)))


@operator(Stream)
def upserts(
    stream: Stream,
    keys: str | Sequence[str],
    sequence_by: str | Sequence[str],
    *,
    apply_as_deletes: str | Expression | None = None,
    name: str | None = None,
) -> Collection:
    """The collection of the latest record of each key: a new one replaces the one before.

    For change data that has rows in their new state: a compacted topic of Kafka, the log of a database.
    The law: at every epoch the collection has, of each key, the record so far whose `sequence_by` is
    greatest, unless `apply_as_deletes` holds for it. So records that come late, or several times, change
    nothing. If a key has different records with one `sequence_by`, that with the greatest other columns
    counts; a deletion counts before all others.

    An epoch costs its records. The state is one record per key, also of a key that is deleted: an earlier
    record of it may still come.

    Args:
        keys: the key columns.
        sequence_by: the columns that order the records of a key, such as a version, an offset or a time;
            null comes before every value, then NaN.
        apply_as_deletes: a condition, in Spark's SQL or of `pyarrow.compute`: which records delete their key;
            null: it does not.

    **Columns:** out as in. None may be nested.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("customers")
        >>> log = flow.input("log", "id long, city string, version long, op string")
        >>> now = log.upserts("id", "version", apply_as_deletes="op = 'D'")
        >>> _ = now.select("id", "city").capture("out")
        >>> epochs = [[(1, "Rome", 1, "I"), (2, "Bonn", 1, "I")], [(1, "Oslo", 2, "U"), (2, None, 2, "D")]]
        >>> ts.testing.run(flow, {"log": epochs})["out"].rows()
        {0: [(1, 'Rome', 1), (2, 'Bonn', 1)], 1: [(1, 'Oslo', 1), (1, 'Rome', -1), (2, 'Bonn', -1)]}

    Raises:
        GraphError: the stream is in a loop, or has retractions; or the flow has times of its own kind.
        SchemaError: a column is missing or nested; there are no keys, or no columns to order by; one of
            these is a key; or `apply_as_deletes` is not a condition on the stream's columns.
    """
    keys, order = key_columns("upserts", stream.schema, keys), names("upserts", sequence_by)
    stream.check_outside("upserts", epochs="states follow one another by epochs")
    check_no_retractions("upserts", stream)
    columns = stream.schema.names
    check_columns("upserts", stream.schema, [*order, *columns], keys=True)
    if not order or set(order) & set(keys):
        msg = f"upserts: sequence_by={list(order)}, keys={list(keys)}"
        raise SchemaError(msg, where=caller(), hint="name columns that order the records of a key.")
    deletes = pc.scalar(False)  # noqa: FBT003 - a constant
    if apply_as_deletes is not None:
        deletes = expression("upserts", apply_as_deletes, stream.schema)
    flagged = computed(stream, *columns, {_DELETES: deletes}, own=(_DELETES,))
    if flagged.schema.field(_DELETES).type != pa.bool_():
        kind = flagged.schema.field(_DELETES).type
        msg = f"upserts: apply_as_deletes={apply_as_deletes} is {kind}"
        raise SchemaError(msg, where=caller(), hint="give a condition, such as \"op = 'D'\".")
    schema = stream.schema.append(pa.field(DIFF, pa.int64()))
    others = [column for column in columns if column not in keys and column not in order]
    latest = Latest(keys, (*order, _DELETES, *others))
    changes = flagged.then(
        "upserts",
        [schema],
        name=name,
        own=(DIFF,),
        vertex=StatefulMap(latest, keys, flagged.schema.names, schema, rows=flagged.schema, expire=None),
        keyed=keys,
        detail=f"{', '.join(keys)} by {', '.join(order)}",
        parameters={"sequence_by": list(order)},
    )[0]
    return Collection(changes, once=True)
