"""`Indexes`: answers questions about captured collections at a complete epoch (Naiad section 6.4)."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from timely_spark.captured import as_pandas, sorted_rows
from timely_spark.differential.trace import DIFF, check_totals, consolidation
from timely_spark.errors import SchemaError, shorten
from timely_spark.graph import as_table, caller, describe, refuse, seconds
from timely_spark.show.table import epochs_table
from timely_spark.state.arrangement import Arrangement
from timely_spark.state.arrow import Indices, Longs, numbers, rows_at
from timely_spark.state.codes import numbers_of, runs
from timely_spark.state.row_times import EPOCH, epochs_of, with_time
from timely_spark.times import Time

if TYPE_CHECKING:
    import pandas as pd

Released = Callable[[str, int, int], Generator[tuple[int, pa.Table], None, None]]
"""The epochs of an output after one, up to another, each with its changes."""


def how_old(*, fresh: bool, within: float | str | None, at: int | None = None) -> float | None:
    """How old an answer may be, in seconds; None means as old as the epoch `at`, or the newest complete one.

    >>> how_old(fresh=False, within="500ms"), how_old(fresh=True, within=None)
    (0.5, 0.0)
    """
    choices = {"fresh": fresh or None, "within": within, "at": at}
    if len(both := [name for name, value in choices.items() if value is not None]) > 1:
        return refuse(
            choices[both[-1]],
            what=both[-1],
            expected=f"no {both[0]}= beside it",
            hint="leave one of them out: fresh=True is within=0, and at= is the epoch of the answer.",
        )
    if within is None:
        return 0.0 if fresh else None
    return seconds("within", within)


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a question: one consistent epoch's.

    Example:
        >>> Answer(3, pa.table({"node": [1], "component": [0]})).rows()
        [(1, 0)]
    """

    #: The epoch at which the answer holds; None if no epoch was complete.
    epoch: int | None
    table: pa.Table

    def rows(self) -> list[tuple[Any, ...]]:
        """The rows as sorted tuples."""
        return sorted_rows(self.table)

    def to_pandas(self) -> pd.DataFrame:
        """The rows as a pandas DataFrame; integers and booleans have pandas' nullable types."""
        return as_pandas(self.table)

    def _repr_html_(self) -> str:
        return epochs_table("Answer", self.table.schema, {self.epoch: self.table}).html()


@dataclass
class _Index:
    """A collection's changes, indexed by key, of all epochs that may still be asked for."""

    changes: Arrangement
    #: The last epoch whose changes are indexed.
    last: int = -1
    #: The epoch up to which changes have been looked for.
    until: int = -1

    def read(self, epochs: Iterator[tuple[int, pa.Table]], diff: str, since: int) -> None:
        """Add epochs; nobody asks for an epoch before `since`."""
        for epoch, table in epochs:
            renamed = table.rename_columns([DIFF if name == diff else name for name in table.schema.names])
            self.changes.insert(with_time(renamed, Time(epoch)), compact=consolidation(max(since, 0)))
            self.last = epoch

    def at(
        self, epoch: int, question: pa.Table, keys: Sequence[str], columns: Sequence[str]
    ) -> tuple[Indices, pa.Table]:
        """Look up a question's keys at an epoch: for each record the question's row, ascending; and columns.

        Most keys have one change, which is their record: it is read, and nothing is added up. In each call of
        Arrow's the thread of the engine may take the interpreter, and keep it for a turn.
        """
        matches = self.changes.find(question, keys)
        if self.last > epoch:
            matches = matches.filter(matches.numbers(EPOCH) <= epoch)
        which, diffs, rows = matches.probe, matches.numbers(DIFF), matches.table(columns)
        if (diffs == 1).all() and (which[1:] > which[:-1]).all():
            return which, rows
        return _present(which, rows, diffs)

    def everything(self, epoch: int, schema: pa.Schema) -> pa.Table:
        """All records at an epoch."""
        if not (parts := self.changes.batches()):
            return schema.empty_table()
        table = pa.concat_tables(parts, promote_options="permissive")
        if self.last > epoch:
            table = table.filter(pa.array(epochs_of(table) <= epoch))
        rows, diffs = table.select(schema.names), numbers(table, DIFF)
        return _present(np.zeros(len(diffs), np.int64), rows, diffs)[1]


def _present(which: Indices, rows: pa.Table, diffs: Longs) -> tuple[Indices, pa.Table]:
    """The records that changes add up to, each as often as it occurs, in the order of `which`."""
    groups = runs([which, *numbers_of(rows, rows.schema.names)], len(which))
    check_totals(groups, {DIFF: diffs})
    firsts, (totals,) = groups.nonzero([diffs])
    at = np.repeat(firsts, np.maximum(totals, 0))
    return which[at], rows_at(rows, at)


@dataclass
class Indexes:
    """The collections that were asked about, indexed by the keys of the questions; safe to use from threads.

    An index reads the captured changes once, at the first question with its keys, and from then on only what
    later epochs change. It is in the memory of the asking process. The time of a question grows with its
    answer, not with the collection.
    """

    #: The captured outputs.
    schemas: Mapping[str, pa.Schema]
    #: The newest epoch that is complete at all of some outputs; -1 if none is. It does not fall.
    complete: Callable[[Sequence[str]], int]
    released: Released
    #: The column of differences of the outputs where the flow has named it.
    differences: Mapping[str, str] = field(default_factory=dict)
    _indexes: dict[tuple[str, tuple[str, ...], str], _Index] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)

    def answer(
        self,
        names: Sequence[str],
        question: Any,
        keys: Sequence[str] | None,
        *,
        at: int | None = None,
        diff: str,
    ) -> Answer:
        """The natural joins of a question with collections at an epoch, from left to right.

        `at` is None for the newest epoch. For another epoch the changes are read again: it has no index.
        """
        table = None if question is None else self._question(names[0], question, keys)
        with self._lock:  # no other question compacts an index beyond this one's epoch
            epoch = self.complete(names) if at is None else at
            indexes = self._indexes if at is None else {}
            for name in names:
                schema = self._records(name, diff)
                on = () if table is None else _shared(name, table.schema, schema)
                # an index that is half read, as after an interrupt, is not used again
                index = indexes.pop((name, on, diff), None) or _Index(Arrangement(on or schema.names))
                if index.until < epoch:  # else nothing has been released that this answer needs
                    since = self.complete(list(self.schemas)) if at is None else at
                    with closing(self.released(name, index.last, epoch)) as epochs:  # it holds a lock
                        index.read(epochs, diff, since)
                    index.until = epoch
                indexes[name, on, diff] = index
                if table is None:
                    table = index.everything(epoch, schema)
                else:
                    table = _cast(name, table, schema, on)
                    others = [field_ for field_ in schema if field_.name not in on]
                    which, records = index.at(epoch, table, on, [field_.name for field_ in others])
                    table = _joined(table, which, records, others)
        assert table is not None
        return Answer(None if epoch < 0 else epoch, table)

    def _question(self, name: str, question: Any, keys: Sequence[str] | None) -> pa.Table:
        if keys is not None:
            schema = self.schemas[name]
            if wrong := [key for key in keys if keys.count(key) > 1 or key not in schema.names]:
                msg = (
                    f"ask({name!r}): keys={[*keys]} has {wrong}, not each one column of ({describe(schema)})"
                )
                raise SchemaError(msg, where=caller(), hint="give columns of the collection as keys=.")
            step = f"ask({name!r}) ({caller()})"
            return as_table(question, pa.schema([schema.field(key) for key in keys]), of=step)
        try:
            return _table_of(question)
        except (pa.ArrowException, TypeError, ValueError, AttributeError) as error:
            msg = f"ask({name!r}): no table of questions can be made from {shorten(question)}: {error}"
            hint = "give a DataFrame, an Arrow table, a dict of columns; or a list of values, and keys=."
            raise SchemaError(msg, where=caller(), hint=hint) from error

    def _records(self, name: str, diff: str) -> pa.Schema:
        schema = self.schemas[name]
        if diff not in schema.names or diff != self.differences.get(name, diff):
            msg = f"ask({name!r}): the output has no column {diff!r} of differences ({describe(schema)})"
            hint = "capture a collection; if capture(diff=) names the column otherwise, so must ask(diff=)."
            raise SchemaError(msg, where=caller(), hint=hint)
        return schema.remove(schema.get_field_index(diff))


def _table_of(question: Any) -> pa.Table:
    """A question without `keys=` as a table; raises errors of Python and Arrow."""
    if isinstance(question, pa.RecordBatch):
        table = pa.Table.from_batches([question])
    elif hasattr(question, "to_arrow_table") or isinstance(question, pa.Table | Mapping):
        table = pa.table(question)
    elif isinstance(question, (list, tuple)) and question and isinstance(question[0], Mapping):
        table = pa.Table.from_pylist(list(question))
    else:
        named = all(name is not None for name in question.index.names)  # else rows are numbered
        table = pa.Table.from_pandas(question, preserve_index=None if named else False)
        table = table.replace_schema_metadata(None)  # else the answer has the index again
    if len({*table.column_names}) < table.num_columns:
        msg = f"columns {table.column_names} are not unique"
        raise ValueError(msg)
    return table


def _shared(name: str, question: pa.Schema, records: pa.Schema) -> tuple[str, ...]:
    shared = tuple(column for column in question.names if column in records.names)
    if not shared:
        msg = f"ask({name!r}): the question ({describe(question)}) has no column of ({describe(records)})"
        raise SchemaError(msg, where=caller(), hint="name the columns to look up as the collection does.")
    return shared


def _cast(name: str, question: pa.Table, records: pa.Schema, on: Sequence[str]) -> pa.Table:
    """The question with the key columns in the collection's types."""
    for key in on:
        at, kind = question.schema.get_field_index(key), records.field(key)
        if question.schema.field(at).type == kind.type:
            continue
        converted = as_table(question.select([key]), pa.schema([kind]), of=f"ask({name!r}) ({caller()})")
        question = question.set_column(at, kind, converted.column(0))
    return question


def _joined(question: pa.Table, which: Indices, records: pa.Table, columns: Sequence[pa.Field]) -> pa.Table:
    """The question's rows, each with these columns of its records, or with nulls if it has none."""
    if not records.num_rows:  # an empty index knows no columns
        records = pa.schema(columns).empty_table()
    counts = np.bincount(which, minlength=question.num_rows)
    if not (counts == 1).all():
        rows = np.repeat(np.arange(question.num_rows), np.maximum(counts, 1))
        record = np.full(len(rows), -1)
        record[counts[rows] > 0] = np.arange(len(which))
        question = question.take(pa.array(rows))
        taken = pa.array(record, mask=record < 0)
        records = pa.table({one.name: records.column(one.name).take(taken) for one in columns})
    for field_ in columns:
        question = question.append_column(field_, records.column(field_.name))
    return question
