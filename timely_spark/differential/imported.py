"""Imported arrangements: the sorted files of another flow, mapped, and the changes after them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from timely_spark.differential.arranged import Arrange, forwarded_schema
from timely_spark.differential.collections import Collection
from timely_spark.differential.linear import changed_by
from timely_spark.differential.trace import SEQUENCE, consolidation
from timely_spark.graph import Partition, Partitioner, States
from timely_spark.operators.rows import computed
from timely_spark.state.arrangement import Arrangement
from timely_spark.state.arrow import Hashes, Mask
from timely_spark.state.batch import Batch
from timely_spark.state.hashing import HASH
from timely_spark.state.row_times import EPOCH, with_time
from timely_spark.streams import Stream
from timely_spark.times import Time, Timestamp

FILE = "__timely_file"
"""The column of an importing input that names a file to map; null in the rows of changes."""


class Sorted(NamedTuple):
    """Rows sorted by H of the keys."""

    #: of each row
    hashes: Hashes
    rows: pa.Table
    #: whether each row has a hash of its own
    distinct: bool


Opened = Callable[[str, pa.Schema, tuple[str, ...]], Sorted]
"""Maps a file: its name, the schema of its rows, and the keys by which they are sorted."""


class Mapped(Arrangement):
    """An arrangement of further rows over a mapped batch, which is read, and neither merged nor written."""

    def __init__(self, keys: Sequence[str], rows: Arrangement | None = None) -> None:
        super().__init__(keys)
        if rows is not None:
            self.recent, self.lanes, self.cuts = rows.recent, rows.lanes, rows.cuts
        self.base: Batch | None = None

    @property
    def own(self) -> Arrangement:
        """The further rows alone."""
        rows = Arrangement(self.keys)
        rows.recent, rows.lanes, rows.cuts = self.recent, self.lanes, self.cuts
        return rows

    @property
    def parts(self) -> list[Batch]:
        """All batches; the mapped one first, which is the oldest."""
        return [*([] if self.base is None else [self.base]), *super().parts]


class Imported(Arrange):
    """An arrangement whose oldest rows another flow has written, sorted; input 1 names the file.

    All workers map the file, and each one reads the rows of its own keys. What changes later is in the
    worker's own batches. When these outweigh its share of the file, the share is merged into them, as the
    oldest batch of any arrangement would be.
    """

    takes_skew = False

    def __init__(
        self, keys: Sequence[str], schema: pa.Schema, opened: Opened, among: Sequence[int] | None = None
    ) -> None:
        super().__init__(keys)
        #: the workers that have a share; None for all
        self.among = None if among is None else tuple(among)
        #: the schema of changes
        self.schema = schema
        self.opened = opened
        self.state: Mapped = Mapped(keys)
        #: the file that is mapped, its epoch, the number of the share, and of shares; empty if no file is
        self.base: tuple[Any, ...] = ()

    def on_recv(self, edge: int, time: Timestamp, batch: pa.Table) -> None:
        """Insert changes, or map a file of changes at its epoch; forward them."""
        if edge == 0:
            super().on_recv(0, time, batch)
            if self.base and len(self.state) > len(self.state.base or ()) * (1 + 1 / self.base[-1]):
                self.merge_share(self._context.compaction_frontier(downstream=True))
            return
        (name,) = batch.column(FILE).to_pylist()
        self.base = (name, time.epoch, *self._place(self.worker, self.workers))
        self._map()
        self.sequence += 1
        self.first.setdefault(time.epoch, self.sequence)
        hashed, rows = self._share()
        self.send_by(0, time, self.forwarded(rows, hashed))

    def _place(self, worker: int, workers: int) -> tuple[int, int]:
        """The number of a worker's share, and of shares."""
        among = self.among or range(workers)
        return among.index(worker), len(among)

    def _map(self) -> None:
        """Map the file, as a batch of rows at its epoch."""
        name, epoch, *_ = self.base
        hashed, rows, distinct = self.opened(name, self.schema, self.state.keys)
        schema = rows.schema.append(pa.field(EPOCH, pa.int64()))
        self.state.base = Batch(hashed, distinct, rows, schema, constants={EPOCH: epoch})

    def _share(self) -> tuple[Hashes, pa.Table]:
        """The rows of this worker's keys in the mapped batch, and H of each."""
        base, (*_, number, shares) = self.state.base, self.base
        assert base is not None
        if shares == 1:
            return base.hashes, base.rows
        own: Mask = base.hashes % np.uint64(shares) == np.uint64(number)
        return base.hashes[own], base.rows.filter(pa.array(own))

    def merge_share(self, since: int) -> None:
        """Merge this worker's share of the mapped batch into its own batches."""
        (hashed, rows), epoch = self._share(), self.base[1]
        self.state.base, self.base = None, ()
        self.state.insert(with_time(rows, Time(epoch)), hashed, consolidation(since))

    def checkpoint(self) -> Mapping[str, Any]:
        """The worker's own batches, and the file that is mapped under them."""
        return {
            "state": self.state.own,
            "sequence": self.sequence,
            "first": self.first,
            "base": self.base,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        super().restore(state)
        self.state, self.base = Mapped(self.state.keys, self.state), tuple(self.base)
        if self.base:
            self._map()

    def repartition(self, states: States, workers: int, partition: Partitioner) -> States:
        """All new workers map the file; unless one of the old ones has merged its share of it."""
        bases = {tuple(state.get("base", ()))[:2] for state in states}
        if len(bases) > 1:
            states = [self._merged(state) for state in states]
        parts = super().repartition(states, workers, partition)
        (base,) = bases if len(bases) == 1 else [()]
        return [
            {**part, "base": (*base, *self._place(worker, workers))}
            if base and worker in (self.among or range(workers))
            else part
            for worker, part in enumerate(parts)
        ]

    def _merged(self, state: Mapping[str, Any]) -> Mapping[str, Any]:
        one = type(self)(self.state.keys, self.schema, self.opened, self.among)
        one.restore(state)
        if one.base:
            one.merge_share(0)
        return one.checkpoint()


def imported_arrangement(source: Stream, keys: tuple[str, ...], diff: str, opened: Opened) -> Collection:
    """The collection of a source that has the names of files, and the changes after them."""
    with source.flow.graph.parts_of(source.stage):
        columns = [column for column in source.schema.names if column not in {diff, FILE}]
        changes = source.where(pc.field(FILE).is_null())
        rows = changed_by(computed(changes, *columns, diff), diff)
        files = computed(source.where(pc.field(FILE).is_valid()), FILE, own=[FILE])
        arranged = rows.then(
            "import_arrangement",
            [forwarded_schema(rows.schema)],
            others=[files],
            own=(SEQUENCE, HASH),
            vertex=Imported(keys, rows.schema, opened, source.flow.graph.workers),
            requires=[Partition(keys), Partition((), broadcast=True)],
            guarantees=keys,
            detail=", ".join(keys),
            parameters={"keys": list(keys)},
        )[0]
    return Collection(arranged, keys)
