"""The released epochs of outputs, for the user."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from timely_spark.errors import SchemaError, values_of
from timely_spark.graph import describe, find
from timely_spark.show.table import Table, counted, epochs_table, escaped
from timely_spark.worker.expectations import Expectation

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame, SparkSession

#: The integers for which pandas has nullable types.
_NULLABLE = ("Int8", "Int16", "Int32", "Int64", "UInt8", "UInt16", "UInt32", "UInt64")


@dataclass(repr=False)
class Captured:
    """An output's released epochs: one table each, in the order of release.

    Notebooks and terminals show the first and the last records.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("hello")
        >>> _ = flow.input("numbers", "n long").distinct().capture("seen")
        >>> captured = ts.testing.run(flow, {"numbers": [[1, 1], [2]]})["seen"]
        >>> captured
        Captured: 2 epochs, 2 records (n int64)
          epoch  n
              0  1
              1  2
        >>> captured.rows(), captured.table().to_pydict()
        ({0: [(1,)], 1: [(2,)]}, {'epoch': [0, 1], 'n': [1, 2]})
    """

    schema: pa.Schema
    epochs: dict[int, pa.Table] = field(default_factory=dict)
    #: The last epoch that is complete, also one without records; -1 if none is; None if it is unknown.
    until: int | None = None
    #: The column of differences, if these are a collection's changes.
    diff: str | None = None

    def rows(self) -> dict[int, list[tuple[Any, ...]]]:
        """The records of each epoch as tuples, sorted: null first, NaN last.

        A column with a date outside of the years 1 to 9999 has numpy's dates, as Python's own end there.
        """
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

    def to_pandas(self) -> pd.DataFrame:
        """All records as a pandas frame, with a first column ``epoch``.

        Integers and booleans have pandas' nullable types (``Int64``, ``boolean``): an id stays as it is,
        also in a column where one is missing.

        Example:
            >>> Captured(pa.schema([("n", pa.int64())]), {3: pa.table({"n": [5]})}).to_pandas()
               epoch  n
            0      3  5

        Raises:
            SchemaError: the records have a column of that name.
        """
        return as_pandas(self.table())

    def to_spark(self, session: SparkSession) -> DataFrame:
        """All records as a Spark DataFrame, with a first column ``epoch``; all of them pass the driver.

        For large results write a table instead: `to_delta`. Times with a zone are Spark's `timestamp`, others
        its `timestamp_ntz`, whatever the session's zone.

        Example:
            >>> query.captured("near").to_spark(spark).createTempView("near")  # doctest: +SKIP

        Raises:
            SchemaError: the records have a column of that name.
        """
        from pyspark.sql.pandas.types import from_arrow_schema

        table = self.table()
        return session.createDataFrame(table, from_arrow_schema(table.schema, prefer_timestamp_ntz=True))

    def __repr__(self) -> str:
        return self._table().text()

    def _repr_html_(self) -> str:
        return self._table().html()

    def _table(self) -> Table:
        total = sum(table.num_rows for table in self.epochs.values())
        counts = f"{counted(len(self.epochs), 'epoch')}, {counted(total, 'record')}"
        title = f"Captured: {counts} ({describe(self.schema)})"
        return epochs_table(title, self.schema, self.epochs)


class Result(dict[str, Captured]):
    """The result of a run: for each output its released epochs.

    >>> Result({}, {"hops": 3}).cut_off
    {'hops': 3}
    """

    def __init__(
        self,
        captured: Mapping[str, Captured],
        cut_off: Mapping[str, int],
        *,
        expectations: Mapping[str, Expectation] | None = None,
        flow: str = "",
    ) -> None:
        super().__init__(captured)
        self.flow = flow
        #: per loop, the number of records that `max_iterations` dropped
        self.cut_off = dict(cut_off)
        #: what each `expect` has checked, by its name
        self.expectations = dict(expectations or {})

    def __missing__(self, name: Any) -> Captured:
        return find(self, name, kind="output", flow=self.flow)  # raises: there is no such output

    def _repr_html_(self) -> str:
        tables = "".join(
            f"<div><b>{escaped(name)}</b></div>{table._repr_html_()}" for name, table in self.items()
        )
        return f"<div>{tables}</div>"


def as_pandas(table: pa.Table) -> pd.DataFrame:
    """A table as a pandas frame. The types of its columns depend on the schema only, and integers stay exact.

    pandas' own integers have no missing value, so a long column with one would be doubles. Integers and
    booleans therefore have pandas' nullable types; in lists, maps and structs they are Python's.

    >>> as_pandas(pa.table({"id": [2**53 + 1, None]}))["id"].tolist()
    [9007199254740993, <NA>]
    """
    import pandas as pd

    kinds = {getattr(pa, name.lower())(): getattr(pd, f"{name}Dtype")() for name in _NULLABLE}
    kinds[pa.bool_()] = pd.BooleanDtype()
    frame: pd.DataFrame = table.to_pandas(types_mapper=kinds.get, integer_object_nulls=True)
    return frame


def sorted_rows(table: pa.Table) -> list[tuple[Any, ...]]:
    """The records of a table as tuples, sorted: null first, NaN last.

    >>> sorted_rows(pa.table({"x": [float("nan"), 1.0, None, float("-inf")]}))
    [(None,), (-inf,), (1.0,), (nan,)]
    """
    columns = [values_of(column) for column in table.columns]
    keys = zip(*([_order(value) for value in column] for column in columns), strict=True)
    rows = zip(*columns, strict=True)
    return [row for _, row in sorted(zip(keys, rows, strict=True), key=lambda pair: pair[0])]


def _order(value: Any) -> tuple[Any, ...]:
    """A key that orders all values of a type."""
    if value is None:
        return (0,)
    if isinstance(value, dict):
        return 1, [_order(one) for one in value.values()]
    if isinstance(value, list | tuple):
        return 1, [_order(one) for one in value]
    return (2,) if value != value else (1, value)  # noqa: PLR0124 - NaN


def renumbered(epochs: dict[int, pa.Table], batches: Sequence[tuple[int, int]]) -> dict[int, pa.Table]:
    """Number epochs by the inputs given: by the clock they are batch ids, and loops use some alone.

    Args:
        batches: the batches that read input, each with the epoch of this input.

    Example:
        >>> tables = {batch: pa.table({"n": [batch]}) for batch in (0, 1, 5)}
        >>> found = renumbered(tables, [(0, 0), (1, 0), (5, 1)])
        >>> {epoch: table["n"].to_pylist() for epoch, table in found.items()}
        {0: [0, 1], 1: [5]}
    """
    numbers, (last, last_epoch) = [batch for batch, _ in batches], batches[-1]
    tables: dict[int, list[pa.Table]] = defaultdict(list)
    for epoch, table in epochs.items():
        present = epoch <= last
        number = batches[bisect_left(numbers, epoch)][1] if present else last_epoch + epoch - last
        tables[number].append(table)
    return {epoch: pa.concat_tables(parts) for epoch, parts in tables.items()}
