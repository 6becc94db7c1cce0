"""Arrow batches in Spark's tasks: numbered columns, and batches gathered into larger tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def numbered(frame: DataFrame) -> DataFrame:
    """The frame with numbers for column names: `mapInArrow` takes a dot in a name for a nested field."""
    return frame.toDF(*map(str, range(len(frame.columns))))


def portions(
    batches: Iterator[pa.RecordBatch], most: int, size_of: Callable[[pa.RecordBatch], int]
) -> Iterator[pa.Table]:
    """The batches gathered into tables of at least the size `most`; the last may be smaller."""
    gathered: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        gathered.append(batch)
        size += size_of(batch)
        if size >= most:
            yield pa.Table.from_batches(gathered)
            gathered, size = [], 0
    if gathered:
        yield pa.Table.from_batches(gathered)
