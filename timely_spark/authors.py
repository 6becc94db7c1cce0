"""The parts of operators and algorithms of your own, beside the public operators.

`timely_spark.graphs` and `timely_spark.libraries` use these names, public ones, and nothing else of the
package. An algorithm is a function from collections to collections: most need only public operators, and
`algorithm`. `docs/authors.md` writes one from nothing.

- Building: `algorithm`; checks `check_collection`, `check_columns`, `check_function`, `integer`, and `word`
  of an argument that is one of some words; errors with `caller`, `describe`. `Several` is the base of a
  dataclass of several results.
- Changes: a collection's `stream` has its records, then `DIFF`, a long that is not 0; `Collection.like` makes
  a collection of such a stream. `Stream.then` adds a vertex; `computed` is `select` with `DIFF` among the
  columns, `padded` adds null columns of a schema. `by_workers` chooses one of two equal streams
  by the number of workers. `consolidate` adds up equal rows of a table. `transient`
  marks a collection whose changes may cancel within a time.
- Reductions: `reduced`, with a `Logic` over the records of many keys at once, numbered by `GROUP`.
- Vertices: `Stateless`; `BufferingVertex`, which gets each time as a whole. `Partition` says which worker
  gets a record; `repartition(states: States, workers, partition: Partitioner) -> States` is called when the
  number of workers changes.
- State: an `Arrangement` is rows by key, in immutable batches. The fields of a vertex are its state.
- Keys, of whole columns: `hashes` is the partition function H, and equal keys have equal hashes; `same`
  compares row by row, as grouping does (null equals null, NaN equals NaN, -0.0 equals 0.0). `group` makes
  `Groups` of equal keys in the order of H, `adjacent` those of rows that are next to each other already.
- Arrays: `flat` makes a column one Arrow array, `numbers` a numpy array. `Hashes`, `Indices` and `Mask` are
  arrays of uint64, int64 and bool. `changes`, `in_order` and `ranges` are runs, sorting and slices of them;
  `large_sums` says which groups have a sum beyond 64 bits.
- Functions and expressions of users: `project` computes expressions of a table, `projected` their schema,
  checked; `columns_in` are the columns that one reads; `named_expressions` binds texts in SQL; `map_records`
  calls a function for each row, and `as_table` makes a table of a schema from what a function returns.

Example:
    The number of distinct values of each key, as a reduction of one's own:

    >>> import dataclasses, numpy as np, pyarrow as pa, timely_spark as ts
    >>> from timely_spark.authors import DIFF, GROUP, Logic, adjacent, algorithm, reduced
    >>> class Distinct(Logic):
    ...     def results(self, keys, inputs):
    ...         of = adjacent(inputs, [GROUP])
    ...         made = {GROUP: inputs[GROUP].take(pa.array(of.starts)), "n": of.sizes}
    ...         return pa.table({**made, DIFF: np.ones(len(of.starts), np.int64)})
    >>> @algorithm
    ... def distinct_values(rows, key, *, name=None):
    ...     return reduced("distinct_values", rows, Distinct((key,)), [pa.field("n", pa.int64())], name=name)
    >>> flow = ts.Dataflow("authors")
    >>> rows = flow.input("rows", "k string, v long, diff long").collection(diff="diff")
    >>> _ = distinct_values(rows, "k").changes().capture("out")
    >>> changes = [[("a", 1, 1), ("a", 1, 1), ("a", 2, 1)], [("a", 2, -1)]]
    >>> ts.testing.run(flow, {"rows": changes})["out"].rows()
    {0: [('a', 2, 1)], 1: [('a', 1, 1), ('a', 2, -1)]}
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

from timely_spark.differential.collections import check_collection
from timely_spark.differential.consolidation import transient
from timely_spark.differential.joins import padded
from timely_spark.differential.reducers import GROUP, Logic
from timely_spark.differential.reductions import reduced
from timely_spark.differential.trace import DIFF, consolidate
from timely_spark.graph import (
    Partition,
    Partitioner,
    Several,
    Stateless,
    States,
    as_table,
    caller,
    check_columns,
    columns_in,
    composed,
    describe,
    integer,
    locate_errors,
    project,
    projected,
    word,
)
from timely_spark.operators.route import by_workers
from timely_spark.operators.rows import check_function, computed, map_records
from timely_spark.operators.sql import named_expressions
from timely_spark.state.arrangement import Arrangement
from timely_spark.state.arrow import Hashes, Indices, Mask, flat, numbers
from timely_spark.state.buffering import BufferingVertex
from timely_spark.state.codes import adjacent
from timely_spark.state.grouping import Groups, changes, group, in_order, ranges
from timely_spark.state.hashing import hashes, same
from timely_spark.state.sums import large_sums

P = ParamSpec("P")
R = TypeVar("R")


def algorithm(build: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function that adds steps to a flow, and has an argument `name`.

    Its steps without a name are named after `name`, so that a changed flow finds the state of each. Wrong
    arguments become a `GraphError` that names the user's line; exceptions of the function's own code pass.

    Example:
        >>> import timely_spark as ts
        >>> @algorithm
        ... def union(left, right, *, name=None):
        ...     return left.concat(right).distinct()
        >>> flow = ts.Dataflow("algorithm")
        >>> left, right = (flow.input(name, "n long").collection() for name in "xy")
        >>> union(left, right, name="both").stream.name
        'both.distinct'
        >>> union(left)
        Traceback (most recent call last):
        timely_spark.errors.GraphError: union: union() missing 1 required positional argument: 'right' (...)
        Hint: check the arguments: union(left, right, name)
    """
    return locate_errors(composed(build))


__all__ = [
    "DIFF",
    "GROUP",
    "Arrangement",
    "BufferingVertex",
    "Groups",
    "Hashes",
    "Indices",
    "Logic",
    "Mask",
    "Partition",
    "Partitioner",
    "Several",
    "Stateless",
    "States",
    "adjacent",
    "algorithm",
    "as_table",
    "by_workers",
    "caller",
    "changes",
    "check_collection",
    "check_columns",
    "check_function",
    "columns_in",
    "computed",
    "consolidate",
    "describe",
    "flat",
    "group",
    "hashes",
    "in_order",
    "integer",
    "large_sums",
    "map_records",
    "named_expressions",
    "numbers",
    "padded",
    "project",
    "projected",
    "ranges",
    "reduced",
    "same",
    "transient",
    "word",
]
