"""The released epochs of outputs, for the user."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from timely_spark.errors import SchemaError
from timely_spark.graph import describe, find


@dataclass
class Captured:
    """An output's released epochs: one table each, in the order of release."""

    schema: pa.Schema
    epochs: dict[int, pa.Table] = field(default_factory=dict)

    def rows(self) -> dict[int, list[tuple[Any, ...]]]:
        """The records of each epoch as sorted tuples."""
        return {epoch: sorted_rows(table) for epoch, table in self.epochs.items()}

    def table(self) -> pa.Table:
        """All records, with a first column ``epoch``.

        Raises:
            SchemaError: the records have a column of that name.
        """
        if "epoch" in self.schema.names:
            msg = f"the records have a column 'epoch': ({describe(self.schema)})"
            hint = "read .epochs, which has a table per epoch; or select the column under another name."
            raise SchemaError(msg, hint=hint)
        named = [
            table.add_column(0, "epoch", pa.array([epoch] * table.num_rows, pa.int64()))
            for epoch, table in self.epochs.items()
        ]
        with_epoch = self.schema.insert(0, pa.field("epoch", pa.int64()))
        return pa.concat_tables(named) if named else with_epoch.empty_table()


class Result(dict[str, Captured]):
    """The result of a run: for each output its released epochs.

    >>> Result({}, {"hops": 3}).cut_off
    {'hops': 3}
    """

    def __init__(
        self, captured: Mapping[str, Captured], cut_off: Mapping[str, int], *, flow: str = ""
    ) -> None:
        super().__init__(captured)
        self.flow = flow
        #: per loop, the number of records that `max_iterations` dropped
        self.cut_off = dict(cut_off)

    def __missing__(self, name: Any) -> Captured:
        return find(self, name, kind="output", flow=self.flow)  # raises: there is no such output


def sorted_rows(table: pa.Table) -> list[tuple[Any, ...]]:
    """The records of a table as tuples, sorted (None first)."""
    rows = list(zip(*(column.to_pylist() for column in table.columns), strict=True))
    return sorted(rows, key=lambda row: [(value is not None, value) for value in row])


def renumbered(epochs: dict[int, pa.Table], batches: Sequence[int]) -> dict[int, pa.Table]:
    """Number epochs by the inputs given: by the clock they are batch ids, of which loops use some too."""
    tables: dict[int, list[pa.Table]] = defaultdict(list)
    for epoch, table in epochs.items():
        beyond = epoch - batches[-1]
        tables[bisect_left(batches, epoch) if beyond <= 0 else len(batches) + beyond - 1].append(table)
    return {epoch: pa.concat_tables(parts) for epoch, parts in tables.items()}
