"""Batches: the immutable rows of an arrangement, sorted by H; many rows are packed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from timely_spark.state.arrow import FEW, Hashes, Indices, flat, holding, rows_at, text_bytes
from timely_spark.state.bounds import parse_json
from timely_spark.state.grouping import changes, run_starts
from timely_spark.state.hashing import HASH, exact, unmix
from timely_spark.state.row_times import EPOCH

_ROWS = "__timely_rows"
#: metadata of a stored batch
_SCHEMA, _CONSTANTS, _KEY = b"timely_schema", b"timely_constants", b"timely_key"
#: the most rows of a batch that stores each hash once; Arrow's lists have no more
_MOST = (1 << 31) - 1


@dataclass(frozen=True, eq=False)
class Batch:
    """Rows sorted by H, at least one; they are never changed, so they are written only once.

    From `FEW` rows on they are packed. A hash that many rows have is stored once, as keys are in
    differential's batches. Signed integers are as narrow as their values allow, a column of one value is that
    value, and a key of one integer is not stored, since H is a bijection of integers. Readers get the columns
    as they were inserted.
    """

    #: ascending: with `starts` each one once, else that of each row
    hashes: Hashes
    #: whether each row has a hash of its own
    distinct: bool
    #: the columns that are stored
    rows: pa.Table
    #: that of the rows as they were inserted
    schema: pa.Schema
    #: the first row of each hash, and the number of rows
    starts: npt.NDArray[np.int32] | None = None
    #: columns of one value
    constants: Mapping[str, int] = field(default_factory=dict)
    #: the key that is computed from the hashes
    key: str = ""

    @classmethod
    def of(cls, hashed: Hashes, table: pa.Table, key: str = "", order: Indices | None = None) -> Batch:
        """A batch of rows.

        Args:
            hashed: of each row.
            key: the column whose H the hashes are, if there is one such column.
            order: the rows in the order of their hashes; None if the table has them so.
        """
        own, hashed = hashed, hashed if order is None else hashed[order]
        new = changes(hashed)
        different = int(np.count_nonzero(new))
        distinct = different == len(hashed)
        if len(hashed) < FEW:
            return cls(hashed, distinct, table if order is None else rows_at(table, order), table.schema)
        if not (key and _is_plain(column := table.column(key)) and (unmix(own) == _values(column)).all()):
            key = ""
        stored, constants = _packed(table, key)
        if order is not None:  # what is packed moves fewer bytes
            stored = rows_at(stored, order)
        starts = None
        flat_rows = all(column.num_chunks == 1 for column in stored.columns)
        # a position takes half as many bytes as a hash
        if 3 * different < 2 * len(hashed) < _MOST and flat_rows and stored.num_columns:
            (firsts,) = new.nonzero()
            starts, hashed = np.append(firsts, len(hashed)).astype(np.int32), hashed[firsts]
        return cls(hashed, distinct, stored, table.schema, starts, constants, key)

    @cached_property
    def packed(self) -> bool:
        """Whether the rows are stored in another form than they were inserted in."""
        return self.starts is not None or not self.rows.schema.equals(self.schema)

    def __len__(self) -> int:
        """The number of rows."""
        return len(self.hashes) if self.starts is None else int(self.starts[-1])

    @cached_property
    def nbytes(self) -> int:
        """Bytes in memory."""
        size: int = self.rows.nbytes + self.hashes.nbytes
        return size if self.starts is None else size + self.starts.nbytes

    @cached_property
    def text_bytes(self) -> int:
        """Bytes of columns whose values are of no fixed length."""
        return text_bytes(self.rows)

    @property
    def row_hashes(self) -> Hashes:
        """The hash of each row."""
        return self.hashes if self.starts is None else np.repeat(self.hashes, np.diff(self.starts))

    @property
    def table(self) -> pa.Table:
        """The rows as they were inserted; a copy, if they are packed."""
        if not self.packed:
            return self.rows
        hashed = self.row_hashes if self.key else None
        return pa.Table.from_arrays(
            [self._column(one, None, hashed) for one in self.schema], schema=self.schema
        )

    def take(
        self, at: Indices, columns: Sequence[str] | None = None, hashed: Hashes | None = None
    ) -> pa.Table:
        """Some rows, as they were inserted.

        Args:
            at: their positions.
            columns: the columns to take; by default all.
            hashed: the hash of each row.
        """
        schema = self.schema if columns is None else pa.schema([self.schema.field(one) for one in columns])
        return pa.Table.from_arrays([self._column(one, at, hashed) for one in schema], schema=schema)

    def _column(self, one: pa.Field, at: Indices | None, hashed: Hashes | None) -> Any:
        """A column at some positions, or at all."""
        if (values := self.integers(one.name, at, hashed)) is not None:
            return pa.array(values, one.type)
        column = self.rows.column(one.name)
        return column if at is None else column.take(pa.array(at))

    def integers(
        self, column: str, at: Indices | None = None, hashed: Hashes | None = None
    ) -> npt.NDArray[Any] | None:
        """A column of signed integers without nulls, at some positions or at all; None if it is another.

        >>> Batch.of(np.zeros(2, np.uint64), pa.table({"n": [7, 8]})).integers("n").tolist()
        [7, 8]

        Args:
            hashed: the hash of each of these rows, if the column is the key and not stored.
        """
        values = self._arrays.get(column)
        if values is not None:
            taken = values if at is None else values.take(at)
            return np.asarray(taken, self._kinds[column])
        kind = self._kinds.get(column)
        if kind is None:
            return None
        if column in self.constants:
            return np.full(len(self) if at is None else len(at), self.constants[column], kind)
        assert hashed is not None
        return np.asarray(unmix(hashed), kind)

    @cached_property
    def _arrays(self) -> dict[str, npt.NDArray[Any]]:
        """The stored columns of signed integers, in place."""
        columns = zip(self.rows.schema.names, self.rows.columns, strict=True)
        return {name: _values(one) for name, one in columns if _is_plain(one)}

    @cached_property
    def _kinds(self) -> dict[str, npt.DTypeLike]:
        """The types of the columns of signed integers, as they were inserted."""
        names = {*self.constants, *self._arrays} | ({self.key} if self.key else set())
        return {one.name: one.type.to_pandas_dtype() for one in self.schema if one.name in names}

    @cached_property
    def _exact(self) -> dict[tuple[str, ...], bool]:
        return {}

    def exact(self, keys: tuple[str, ...]) -> bool:
        """Whether rows of different keys have different hashes (see `exact`)."""
        if keys not in self._exact:
            if len(keys) == 1 and (keys[0] == self.key or keys[0] in self.constants):
                self._exact[keys] = keys[0] == self.key
            else:
                self._exact[keys] = exact(self.rows, keys)
        return self._exact[keys]

    def hash_at(self, row: int) -> np.uint64:
        """The hash of the row at a position."""
        at = row if self.starts is None else int(self.starts.searchsorted(row, "right")) - 1
        value: np.uint64 = self.hashes[at]
        return value

    def positions(self, which: Indices) -> Indices:
        """The position of the first row of each of some `hashes`; behind the last one, the number of rows."""
        return which if self.starts is None else self.starts[which].astype(np.int64)

    def between(self, low: int, high: int) -> Batch:
        """The rows of `hashes[low:high]`."""
        hashed, starts = self.hashes[low:high], self.starts
        if starts is None:
            distinct = self.distinct or len(run_starts(hashed)) == len(hashed)
            rows = self.rows.slice(low, high - low)
            return replace(self, hashes=hashed, distinct=distinct, rows=rows)
        rows = self.rows.slice(starts[low], starts[high] - starts[low])
        starts = starts[low : high + 1] - starts[low]
        distinct = int(starts[-1]) == len(hashed)
        return replace(self, hashes=hashed, distinct=distinct, rows=rows, starts=starts)

    def stored(self) -> pa.Table:
        """The batch as a table, with the hashes, so that a reader need not compute them."""
        about = {
            _SCHEMA: self.schema.serialize().to_pybytes(),
            _CONSTANTS: json.dumps(dict(self.constants)),
            _KEY: self.key,
        }
        hashed = pa.array(self.hashes)
        if self.starts is None:
            table = pa.Table.from_arrays(
                [*self.rows.columns, hashed], schema=self.rows.schema.append(pa.field(HASH, pa.uint64()))
            )
        else:
            columns = [column.chunk(0) for column in self.rows.columns]
            rows = pa.StructArray.from_arrays(columns, fields=list(self.rows.schema))
            table = pa.table({HASH: hashed, _ROWS: pa.ListArray.from_arrays(pa.array(self.starts), rows)})
        return table.replace_schema_metadata(about)

    @classmethod
    def restored(cls, table: pa.Table, *, distinct: bool) -> Batch:
        """The batch of a table that `stored` made."""
        about = table.schema.metadata
        schema, constants = pa.ipc.read_schema(pa.py_buffer(about[_SCHEMA])), parse_json(about[_CONSTANTS])
        hashed, starts = flat(table.column(HASH)).to_numpy(), None
        if _ROWS in table.schema.names:
            lists = table.column(_ROWS).chunk(0)
            starts, fields = lists.offsets.to_numpy(), list(lists.values.type)
            columns = [lists.values.field(i) for i in range(len(fields))]
            rows = pa.Table.from_arrays(columns, schema=pa.schema(fields))
        else:
            rows = table.drop_columns([HASH]).replace_schema_metadata(schema.metadata)
        return cls(hashed, distinct, rows, schema, starts, constants, about[_KEY].decode())

    @property
    def epochs(self) -> Indices:
        """The epoch of each row."""
        epochs = self.integers(EPOCH, None, self.row_hashes if self.key == EPOCH else None)
        assert epochs is not None
        return epochs

    @cached_property
    def half_past(self) -> int:
        """The median epoch: if it has expired, so have half of the rows."""
        if EPOCH in self.constants:
            return self.constants[EPOCH]
        middle = (len(self) - 1) // 2
        return int(np.partition(self.epochs, middle)[middle])

    @cached_property
    def earliest(self) -> int:
        """The least epoch."""
        if EPOCH in self.constants:
            return self.constants[EPOCH]
        return int(self.epochs.min())


def _packed(table: pa.Table, key: str) -> tuple[pa.Table, dict[str, int]]:
    """The columns to store, and those of one value; the key is neither."""
    constants: dict[str, int] = {}
    columns, fields = [], []
    for one, column in zip(table.schema, table.columns, strict=True):
        if key and one.name == key:
            continue
        if not _is_plain(column):
            columns.append(column)
            fields.append(one)
            continue
        values = _values(column)
        low, high = int(values.min()), int(values.max())
        if low == high:
            constants[one.name] = low
        else:
            kind = holding(low, high)
            columns.append(pa.array(values.astype(kind.to_pandas_dtype())))
            fields.append(one.with_type(kind))
    return pa.Table.from_arrays(columns, schema=pa.schema(fields, table.schema.metadata)), constants


def _is_plain(column: pa.ChunkedArray) -> bool:
    """Whether a column has signed integers only."""
    return pa.types.is_signed_integer(column.type) and not column.null_count


def _values(column: pa.ChunkedArray) -> npt.NDArray[Any]:
    values: npt.NDArray[Any] = flat(column).to_numpy()
    return values
