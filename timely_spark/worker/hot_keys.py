"""Hot keys: large batches that an exchange by key brings a worker, each with its most frequent key."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from timely_spark.compiler.plan import Plan
from timely_spark.errors import shorten
from timely_spark.graph import Partition, Stage
from timely_spark.graph.schema import RESERVED
from timely_spark.state.hashing import hashes

#: Batches of fewer records are not looked at.
MANY = 1 << 15
#: Keys with this share of a batch are hot where the batch is much more than a worker's share.
HOT = 1 / 8

_SAMPLE = 1 << 10


@dataclass(frozen=True, slots=True)
class Load:
    """The largest batch that a worker has delivered to an input of a vertex in a round."""

    vertex: int
    input: int
    records: int
    #: the most frequent key as text, and its share of the records
    key: str
    share: float
    #: H of the keys with a share of at least `HOT`, ascending
    hot: list[int] = field(default_factory=list)


class Loads:
    """The loads of a worker in a round: of inputs behind an exchange by key, where batches are large."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._loads: dict[tuple[int, int], Load] = {}

    def add(self, vertex: int, input_: int, batch: pa.Table) -> None:
        """Look at a batch that is delivered."""
        if batch.num_rows < MANY or (exchange := exchange_by_key(self._plan, vertex, input_)) is None:
            return
        before = self._loads.get((vertex, input_))
        if before is None or batch.num_rows > before.records:
            load = Load(vertex, input_, batch.num_rows, *frequent(batch, exchange[1]))
            self._loads[vertex, input_] = load

    def take(self) -> list[Load]:
        """The loads, for the coordinator; the next round begins without."""
        loads, self._loads = list(self._loads.values()), {}
        return loads


def exchange_by_key(plan: Plan, vertex: int, input_: int) -> tuple[Stage, Partition] | None:
    """The stage and the partitioning of the exchange by key that leads to an input; None if there is none.

    A key of the library's own, as that of a reduction without keys, is not a key that a user can name.
    """
    for channel in plan.into[vertex, input_]:
        by = channel.exchange
        if by is None or not by.columns or by.columns[0].startswith(RESERVED):
            continue
        if not (by.broadcast or by.blocks or by.computed):
            return next(e.target for e in reversed(channel.edges) if e.index in plan.exchanged), by
    return None


def frequent(batch: pa.Table, by: Partition) -> tuple[str, float, list[int]]:
    """The most frequent key, its share, and H of the frequent keys, by a sample: any batch costs the same.

    >>> frequent(pa.table({"k": ["a", "a"]}), Partition(("k",)))[:2]
    ("'a'", 1.0)
    """
    columns = list(dict.fromkeys(by.columns))
    places = np.random.default_rng(0).integers(batch.num_rows, size=_SAMPLE)  # equal batches, equal samples
    keys = batch.select(columns).take(pa.array(np.sort(places)))
    hashed, firsts, counts = np.unique(hashes(keys, by.columns), return_index=True, return_counts=True)
    values = tuple(keys.slice(firsts[counts.argmax()], 1).to_pylist()[0].values())
    key, hot = shorten(values if len(values) > 1 else values[0]), hashed[counts >= HOT * _SAMPLE]
    return key, float(counts.max()) / _SAMPLE, hot.tolist()
