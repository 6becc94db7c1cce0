"""Hot keys: the check of their values, and reductions of their records in two stages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any
from zlib import crc32

import numpy as np
import pyarrow as pa

from timely_spark.errors import SchemaError
from timely_spark.graph import FoundKeys, Skew, Stateless, as_table, caller, check_columns, describe
from timely_spark.state.exchange import is_hot
from timely_spark.state.hashing import hashes

SALT = "__timely_salt"
"""The column with the part of its hot key to which a record belongs."""

SALTS = 1 << 10
"""The parts of a hot key: many for each worker, and few for the second stage."""

_SHOWN = 3


def named_keys(
    operator: str, schema: pa.Schema, keys: Sequence[str], values: Any, spread: Sequence[str] | None = None
) -> Skew | None:
    """The hot keys that a user names; None if there are none.

    Args:
        values: the keys' values; of several key columns tuples; "auto": those that the run finds.
        spread: the columns by which their records are spread: by default all.

    Raises:
        SchemaError: `values` are not a list of keys, or the records have nested columns.
    """
    if values is None:
        return None
    spread = schema.names if spread is None else spread
    check_columns(operator, schema, spread, keys=True)
    if isinstance(values, str) and values == "auto":
        return Skew(FoundKeys(), values, tuple(spread))
    # numbered, since a join's keys may name a column twice
    one, keyed = len(keys) == 1, pa.schema([(str(i), schema.field(key).type) for i, key in enumerate(keys)])
    try:
        if isinstance(values, str | bytes) or not isinstance(values, Iterable):
            raise TypeError  # noqa: TRY301 - reported like other values that are not keys
        table = as_table([(value,) if one else tuple(value) for value in values], keyed)
    except TypeError as error:  # also SchemaError
        kinds = describe(pa.schema([schema.field(key) for key in keys]))
        msg = f"{operator}: skew={values!r}, where keys are ({kinds})"
        listed = "[key, ...]" if one else "[(first, second), ...]"
        hint = f'list the hot keys: skew={listed}; or let the run find them: skew="auto".'
        raise SchemaError(msg, where=caller(), hint=hint) from error
    if not table.num_rows:
        return None
    # in the order of their hashes, whatever the user's order: equal keys make equal plans
    hashed, firsts = np.unique(hashes(table, keyed.names), return_index=True)
    rows = [tuple(row.values()) for row in table.take(pa.array(firsts[:_SHOWN])).to_pylist()]
    shown = ", ".join(repr(row[0] if one else row) for row in rows)
    if len(hashed) > _SHOWN:  # different keys make different plans
        shown += f", ... {len(hashed)} in all, {crc32(hashed.tobytes()):08x}"
    return Skew(tuple(hashed.tolist()), shown, tuple(spread))


class Salt(Stateless):
    """Separate the records of hot keys, with the part to which each belongs, from those of other keys."""

    def __init__(self, keys: Sequence[str], skew: Skew) -> None:
        self.keys, self.skew = tuple(keys), skew

    def apply(self, batch: pa.Table) -> tuple[pa.Table, ...]:
        """The records of hot keys, and the others."""
        hot = is_hot(hashes(batch, self.keys), self.skew.hot)
        rows = batch.filter(pa.array(hot)) if hot.any() else batch.slice(0, 0)
        part = hashes(rows, self.skew.spread) % np.uint64(SALTS)
        others = batch.filter(pa.array(~hot)) if hot.any() else batch
        at = rows.num_columns - 1  # the last is `DIFF`
        return rows.add_column(at, SALT, pa.array(part.astype(np.int64))), others
