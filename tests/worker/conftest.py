"""What tests of states share: blobs in memory, and values in a form in which any two can be compared."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from timely_spark.state import Arrangement


def _plain(value: Any) -> Any:  # noqa: PLR0911 - a case per type
    if isinstance(value, pa.RecordBatch):
        value = pa.Table.from_batches([value])
    if isinstance(value, pa.Table):
        return "table", value.schema, value.to_pylist()
    if isinstance(value, Arrangement):
        return "arrangement", value.keys, [_plain(batch) for batch in value.batches()]
    if isinstance(value, pd.DataFrame):
        return "frame", value.to_dict("tight")
    if isinstance(value, pd.Series):
        return "series", _plain(value.name), value.dtype, value.to_dict()
    if isinstance(value, np.ndarray):
        # bytes, as a NaN does not equal itself
        content = [_plain(item) for item in value.ravel()] if value.dtype.hasobject else value.tobytes()
        return "array", value.dtype, value.shape, content
    if isinstance(value, Mapping):
        factory = value.default_factory if isinstance(value, defaultdict) else None
        return type(value), factory, [(_plain(key), _plain(item)) for key, item in value.items()]
    if isinstance(value, set | frozenset):
        return type(value), sorted((_plain(item) for item in value), key=repr)
    if isinstance(value, list | tuple | deque):
        return type(value), getattr(value, "maxlen", None), [_plain(item) for item in value]
    return type(value), repr(value)


@pytest.fixture(scope="session")
def plain() -> Callable[[Any], Any]:
    """A value with the types of all its parts, so that 1, 1.0 and True differ; equal ones are equal."""
    return _plain
