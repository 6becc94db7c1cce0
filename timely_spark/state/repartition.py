"""Repartitioning of keyed state when a flow is rescaled."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from timely_spark.graph import Partitioner, States, Vertex
from timely_spark.state.arrangement import Arrangement


def repartition(_: Vertex, states: States, workers: int, partition: Partitioner) -> States:
    """`Vertex.repartition` of state that is partitioned like the input that it came from.

    Such state is made of tables, lists of tables and `Arrangement`s; of lists with one of these for each
    input; and of mappings to any of them. A table or arrangement outside of lists belongs to the first input.
    """
    named = _together(states)
    parted = {name: _repartitioned(values, 0, workers, partition) for name, values in named.items()}
    return [{name: parts[worker] for name, parts in parted.items()} for worker in range(workers)]


def _together(mappings: Iterable[Mapping[Any, Any]]) -> dict[Any, list[Any]]:
    values: dict[Any, list[Any]] = defaultdict(list)
    for mapping in mappings:
        for key, value in mapping.items():
            values[key].append(value)
    return values


def _repartitioned(values: Sequence[Any], input_: int, workers: int, partition: Partitioner) -> list[Any]:
    """The values of one attribute on the old workers, repartitioned: one value for each new worker."""
    first = values[0]
    if isinstance(first, Mapping):
        parts = {
            key: _repartitioned(parts_of, input_, workers, partition)
            for key, parts_of in _together(values).items()
        }
        return [
            {key: parts_of[w] for key, parts_of in parts.items() if _any(parts_of[w])} for w in range(workers)
        ]
    if isinstance(first, Arrangement):
        arrangements = [Arrangement(first.keys, within=first.within) for _ in range(workers)]
        rows = _rows([table for value in values for table in value.batches()], input_, workers, partition)
        for arrangement, tables in zip(arrangements, rows, strict=True):
            if tables:
                arrangement.insert(pa.concat_tables(tables, promote_options="permissive"))
        return arrangements
    items = [item for value in values for item in value]
    if all(isinstance(item, pa.Table) for item in items):
        return _rows(items, input_, workers, partition)
    each = [
        _repartitioned(parts_of, i, workers, partition)
        for i, parts_of in enumerate(zip(*values, strict=True))
    ]
    return [list(parts_of) for parts_of in zip(*each, strict=True)]


def _rows(
    tables: Iterable[pa.Table], input_: int, workers: int, partition: Partitioner
) -> list[list[pa.Table]]:
    parted = [partition(input_, table) for table in tables]
    return [[parts[w] for parts in parted if parts[w].num_rows] for w in range(workers)]


def _any(value: Any) -> bool:
    """Whether a value has records: a worker without records of a time does not store the time."""
    return any(map(_any, value)) if isinstance(value, list) else bool(len(value))
