"""Set operations on collections: one reduction that counts the records of both sides beside each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from timely_spark.differential.collections import Collection
from timely_spark.differential.reducers import GROUP, Logic
from timely_spark.differential.reductions import reduced
from timely_spark.differential.trace import DIFF
from timely_spark.graph import Expression, operator
from timely_spark.operators.rows import computed
from timely_spark.operators.sets import OPERATIONS, check_same_schema
from timely_spark.state.arrow import numbers

OTHER = f"{DIFF}_other"
"""The changes of the other side: a weight of its own, so that both sides are one trace."""


@dataclass(frozen=True, slots=True)
class SetLogic(Logic):
    """A function of a record's multiplicities on both sides; the whole record is the key."""

    signed: ClassVar[bool] = True
    operation: tuple[str, bool]

    def results(self, keys: pa.Table, inputs: pa.Table) -> pa.Table:
        left, right = (np.maximum(numbers(inputs, column), 0) for column in (DIFF, OTHER))
        counts = OPERATIONS[self.operation](left, right)
        result = pa.table({GROUP: inputs[GROUP], DIFF: pa.array(counts)})
        return result.filter(pa.array(counts != 0))


@operator(Collection)
def union(
    collection: Collection, other: Collection, *, all: bool = False, name: str | None = None
) -> Collection:
    """The records of two collections, each once: SQL's ``UNION``.

    With `all`, multiplicities add up: SQL's ``UNION ALL``, which PySpark's `union` is. Null equals null, and
    NaN equals NaN. A negative multiplicity counts as 0; `concat` adds it up. An epoch costs the changed
    records, and one exchange.

    Args:
        collection: one side.
        other: the other; from an outer scope it enters this one.
        all: whether records keep their multiplicities.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("union")
        >>> x = flow.input("x", "n long, diff long").collection(diff="diff")
        >>> y = flow.input("y", "n long").collection()
        >>> _ = x.union(y).changes().capture("out")
        >>> inputs = {"x": [[(1, 1), (2, 1)], [(1, -1), (2, -1)]], "y": [[1], []]}
        >>> ts.testing.run(flow, inputs)["out"].rows()
        {0: [(1, 1), (2, 1)], 1: [(2, -1)]}
    """
    return _compared("union", collection, other, multiset=all, name=name)


@operator(Collection)
def intersect(
    collection: Collection, other: Collection, *, all: bool = False, name: str | None = None
) -> Collection:
    """The records that two collections have in common, each once: SQL's ``INTERSECT``.

    With `all`, a record has the lesser of both multiplicities. Otherwise as `union`.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("intersect")
        >>> x, y = flow.input("x", "n long").collection(), flow.input("y", "n long").collection()
        >>> _ = x.intersect(y).changes().capture("out")
        >>> ts.testing.run(flow, {"x": [[1, 1, 2], []], "y": [[1], [2]]})["out"].rows()
        {0: [(1, 1)], 1: [(2, 1)]}
    """
    return _compared("intersect", collection, other, multiset=all, name=name)


@operator(Collection)
def subtract(
    collection: Collection, other: Collection, *, all: bool = False, name: str | None = None
) -> Collection:
    """The records of a collection that another does not have, each once: SQL's ``EXCEPT``.

    With `all`, multiplicities are subtracted, and what is left above 0 stays (PySpark's `exceptAll`).
    Otherwise as `union`. `antijoin` compares keys, not whole records.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("subtract")
        >>> x, y = flow.input("x", "n long").collection(), flow.input("y", "n long").collection()
        >>> _ = x.subtract(y).changes().capture("set")
        >>> _ = x.subtract(y, all=True).changes().capture("multiset")
        >>> made = ts.testing.run(flow, {"x": [[1, 1, 2], []], "y": [[1], [2]]})
        >>> made["set"].rows(), made["multiset"].rows()
        ({0: [(2, 1)], 1: [(2, -1)]}, {0: [(1, 1), (2, 1)], 1: [(2, -1)]})
    """
    return _compared("subtract", collection, other, multiset=all, name=name)


def _compared(
    operation: str, collection: Collection, other: Collection, *, multiset: bool, name: str | None
) -> Collection:
    left, right = collection.together(operation, other)
    check_same_schema(operation, (left.index.name, right.index.name), left.schema, right.schema)
    logic = SetLogic(tuple(left.schema.names), (operation, bool(multiset)))
    detail = "all" if multiset else ""
    return reduced(
        operation, side_by_side(left, right), logic, [], name=name, detail=detail, all=bool(multiset)
    )


def side_by_side(left: Collection, right: Collection) -> Collection:
    """The records of two sides, with two weights: the right side's multiplicity is the column `OTHER`."""
    zero = pc.scalar(pa.scalar(0, pa.int64()))
    return _weighed(left, pc.field(DIFF), zero).concat(_weighed(right, zero, pc.field(DIFF)))


def _weighed(collection: Collection, left: Expression, right: Expression) -> Collection:
    columns = {column: column for column in collection.schema.names} | {DIFF: left, OTHER: right}
    return collection.like(computed(collection.stream, columns, own=(DIFF, OTHER)))
