"""How many bytes a state holds in memory: of arrays exactly, of many plain values by a sample of them."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Collection, Iterable, Mapping
from itertools import islice
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa

from timely_spark.state.arrangement import Arrangement

#: the most parts of a list or dict that are looked at, and the most values in all: no walk over records
_SAMPLE, _MOST = 16, 64
_ARRAYS = (pa.Table, pa.RecordBatch, pa.Array, pa.ChunkedArray, pa.Buffer, np.ndarray, memoryview)


def memory_of(values: Iterable[Any]) -> int:
    """Bytes in memory of some values and of what they contain; files that are mapped count as if read.

    Example:
        >>> import numpy as np
        >>> memory_of([{"a": np.zeros(1000), "b": [np.zeros(10)] * 2}]) // 1000
        8
        >>> small, large = ({n: [n] for n in range(rows)} for rows in (1000, 8000))
        >>> 6 < memory_of([large]) / memory_of([small]) < 10
        True
    """
    total, waiting, seen = 0.0, deque((value, 1.0) for value in values), set[int]()
    while waiting and len(seen) < _MOST:
        value, weight = waiting.popleft()
        if id(value) not in seen:
            seen.add(id(value))
            total += weight * _size(value)
            if parts := _parts(value):
                sample = list(islice(parts, _SAMPLE))
                weight *= len(parts) / len(sample)
                waiting.extend((part, weight) for part in sample)
    return int(total)


def _size(value: Any) -> int:
    """The bytes of a value, without those of its parts."""
    if isinstance(value, Arrangement):
        return sum(part.nbytes for part in value.parts)
    if isinstance(value, _ARRAYS):
        return value.nbytes
    if is_pandas(value):  # its `__sizeof__` reads all texts
        return int(np.sum(value.memory_usage()))
    return sys.getsizeof(value, 0)


def is_pandas(value: Any) -> bool:
    """Whether it is a table, a column or an index of pandas."""
    pandas = sys.modules.get("pandas")  # which takes long to import
    return pandas is not None and isinstance(value, pandas.DataFrame | pandas.Series | pandas.Index)


def _parts(value: Any) -> Collection[Any]:
    """What a value contains; of a dict the values."""
    if isinstance(value, Mapping):
        return value.values()
    if isinstance(value, list | tuple | set | frozenset | deque):
        return value
    if isinstance(value, (Arrangement, *_ARRAYS, ModuleType)) or is_pandas(value) or callable(value):
        return ()
    return vars(value).values() if hasattr(value, "__dict__") else ()
