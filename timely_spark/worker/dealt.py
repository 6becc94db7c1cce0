"""Where records lie: told from the graph; and state that lies so, dealt anew to another number of workers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from timely_spark.graph import Edge, Partition, Stage, Vertex
from timely_spark.worker.arrangement import Arrangement

ANYWHERE = Partition(())
"""Records lie where their source happened to read them: nobody can count on it, so any worker will do."""

BROADCAST = Partition((), broadcast=True)

Deal = Callable[[int, pa.Table], list[pa.Table]]
"""Deals records as those of an input are dealt: one table for each worker, some of them empty."""


def places(
    edges: Sequence[Edge], exchanged: Mapping[int, Partition], saved: Mapping[int, Partition]
) -> dict[int, Partition | None]:
    """By edge, how the records that pass it lie on the workers, whatever their number; None: nobody can tell.

    Law: what lies by columns lies by H of them, modulo the number of workers. Source: the exchanges, and what
    stages do to columns on the way from there.
    """
    into: dict[Stage, list[Edge]] = defaultdict(list)
    for edge in edges:
        into[edge.target].append(edge)
    # what is not known yet is taken to agree with all the rest: so a loop lies as what enters it, if it keeps
    # to that
    lies: dict[int, Partition | None] = {}
    changed = True
    while changed:
        changed = False
        for edge in edges:
            by = exchanged.get(edge.index) or saved.get(edge.index)
            if by is None:
                before = {lies[e.index] for e in into[edge.source] if e.index in lies}
                if not before and into[edge.source]:
                    continue
                by = _behind(edge.source, before)
            if edge.index not in lies or lies[edge.index] != by:
                lies[edge.index] = by
                changed = True
    return lies


def _behind(stage: Stage, before: set[Partition | None]) -> Partition | None:
    """How the output of a stage lies, given how its inputs do."""
    if stage.guarantees is not None:
        return Partition(stage.guarantees)
    if not before:
        return ANYWHERE
    if BROADCAST in before:  # each worker has its copy, or what it made of it
        return BROADCAST
    if len(before) > 1:
        return None
    (by,) = before
    if stage.is_routing or by is None or by == ANYWHERE:
        return by
    names = {old: new for new, old in (stage.keeps or {}).items()}
    kept = all(column in names for column in by.columns)
    return Partition(tuple(names[column] for column in by.columns)) if kept else None


def repartition(
    _: Vertex, states: Sequence[Mapping[str, Any]], workers: int, deal: Deal
) -> list[dict[str, Any]]:
    """`Vertex.repartition` of state that lies as the input that brought it.

    Such state is made of tables, lists of tables and `Arrangement`s; of lists with one of these for each
    input; and of mappings to any of them. What lies in no list is of the first input.
    """
    named = _together(states)
    dealt = {name: _dealt(values, 0, workers, deal) for name, values in named.items()}
    return [{name: parts[worker] for name, parts in dealt.items()} for worker in range(workers)]


def _together(mappings: Iterable[Mapping[Any, Any]]) -> dict[Any, list[Any]]:
    values: dict[Any, list[Any]] = defaultdict(list)
    for mapping in mappings:
        for key, value in mapping.items():
            values[key].append(value)
    return values


def _dealt(values: Sequence[Any], input_: int, workers: int, deal: Deal) -> list[Any]:
    """What workers had by one name, for each new worker."""
    first = values[0]
    if isinstance(first, Mapping):
        parts = {key: _dealt(of, input_, workers, deal) for key, of in _together(values).items()}
        return [{key: of[w] for key, of in parts.items() if _any(of[w])} for w in range(workers)]
    if isinstance(first, Arrangement):
        made = [Arrangement(first.keys, within=first.within) for _ in range(workers)]
        rows = _rows([table for value in values for table in value.batches()], input_, workers, deal)
        for arrangement, tables in zip(made, rows, strict=True):
            if tables:
                arrangement.insert(pa.concat_tables(tables))
        return made
    items = [item for value in values for item in value]
    if all(isinstance(item, pa.Table) for item in items):
        return _rows(items, input_, workers, deal)
    each = [_dealt(of, i, workers, deal) for i, of in enumerate(zip(*values, strict=True))]
    return [list(of) for of in zip(*each, strict=True)]


def _rows(tables: Iterable[pa.Table], input_: int, workers: int, deal: Deal) -> list[list[pa.Table]]:
    dealt = [deal(input_, table) for table in tables]
    return [[parts[w] for parts in dealt if parts[w].num_rows] for w in range(workers)]


def _any(value: Any) -> bool:
    """Whether there are records in it: a worker without any for a time knows nothing of the time."""
    return any(map(_any, value)) if isinstance(value, list) else bool(len(value))
