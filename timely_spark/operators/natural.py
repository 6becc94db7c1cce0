"""The lattice that a type stands for: numbers by max, arrays as sets, arrays of structs as maps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from timely_spark.state.arrow import Indices, flat
from timely_spark.state.grouping import group as grouped
from timely_spark.state.grouping import run_starts

_ROW, _KEY = "row", "key"


def natural(left: pa.Array, right: pa.Array) -> pa.Array:
    """The least upper bound of two values, element by element, in the lattice of their type.

    Law: associative, commutative and idempotent; an array in the result has no element twice, in ascending
    order. Null is the least value.

    >>> natural(pa.array([[3, 1], [2]]), pa.array([[1], None])).to_pylist()
    [[1, 3], [2]]
    >>> counts = pa.list_(pa.struct({"who": "string", "n": "int64"}))
    >>> ours, theirs = (pa.array([[{"who": w, "n": n}]], counts) for w, n in (("a", 2), ("a", 5)))
    >>> natural(ours, theirs).to_pylist()
    [[{'who': 'a', 'n': 5}]]
    """
    kind = left.type
    if pa.types.is_struct(kind):
        fields = [natural(*(side.field(i) for side in (left, right))) for i in range(kind.num_fields)]
        return pa.StructArray.from_arrays(fields, fields=list(kind))
    if pa.types.is_list(kind):
        return _joined(kind, left, right)
    joined = pc.or_kleene if pa.types.is_boolean(kind) else pc.max_element_wise
    return joined(left, right)


def _joined(kind: pa.DataType, *sides: pa.Array) -> pa.Array:
    """Join sets by union, and maps (structs that begin with a key) by the join of each key's values."""
    rows = pa.concat_arrays([pc.list_parent_indices(side).cast(pa.int64()) for side in sides])
    items = pa.concat_arrays([pc.list_flatten(side) for side in sides])
    is_map = pa.types.is_struct(kind.value_type) and kind.value_type.num_fields > 1
    key = items.field(0) if is_map else items
    table = pa.table({_ROW: rows, _KEY: key})
    groups = grouped(table, [_ROW, _KEY])
    merge = natural if is_map else lambda one, _: one
    merged, _ = merged_neighbours(items.take(pa.array(groups.order)), groups.ids, merge)
    representatives = table.take(pa.array(groups.firsts))
    order = pc.sort_indices(representatives, [(_ROW, "ascending"), (_KEY, "ascending")])
    sizes: Any = np.bincount(flat(representatives[_ROW]).to_numpy(), minlength=len(sides[0]))
    ends = pa.array(np.append([0], np.cumsum(sizes)).astype(np.int32))
    return pa.ListArray.from_arrays(ends, merged.take(order), kind)


def merged_neighbours(
    values: pa.Array, ids: Indices, merge: Callable[[pa.Array, pa.Array], pa.Array]
) -> tuple[pa.Array, Indices]:
    """Merge neighbours of one id until each id has one value: these values and their ids, in order."""
    while (equal := np.append(ids[1:] == ids[:-1], [False])).any():
        starts = run_starts(ids)
        place = np.arange(len(ids)) - np.repeat(starts, np.diff(starts, append=len(ids)))
        left = np.flatnonzero(place % 2 == 0)
        paired = equal[left]
        pairs = left[paired]
        merged = merge(values.take(pa.array(pairs)), values.take(pa.array(pairs + 1)))
        at = left.copy()
        at[paired] = len(values) + np.arange(len(pairs))
        values, ids = pa.concat_arrays([values, merged]).take(pa.array(at)), ids[left]
    return values, ids
