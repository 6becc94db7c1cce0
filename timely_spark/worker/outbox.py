"""`Outbox`: the records that a worker's vertices send to other workers in a round."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from timely_spark.compiler.plan import Channel, Plan
from timely_spark.state.arrow import Hashes, streams, to_bytes, with_narrow_longs
from timely_spark.state.exchange import destinations, partitioned, split
from timely_spark.times import Timestamp
from timely_spark.worker.combining import combined

SentMessage = tuple[int, Any, int, int, bytes]
"""A channel, a time, the worker that receives it, the number of records, and these as an Arrow IPC stream."""


class Outbox:
    """The records that a worker's vertices have sent to other workers in a round.

    Records of a channel are combined all at once and partitioned once, when the round ends. So a round with
    many workers has the cost of its records, and for each receiver that of a slice.
    """

    def __init__(self, plan: Plan, worker: int) -> None:
        self.plan, self.worker = plan, worker
        #: records with the worker of each, by channel and time
        self._sent: dict[tuple[int, Any], list[tuple[pa.Table, Hashes]]] = defaultdict(list)
        #: records by worker, by channel and time; some records go to several workers
        self._copied: dict[tuple[int, Any], list[dict[int, pa.Table]]] = defaultdict(list)

    def add(self, channel: Channel, time: Timestamp, batch: pa.Table) -> pa.Table | None:
        """Enter what a vertex sends over an exchange; returns the records for the worker itself, if any."""
        by, workers = channel.exchange, self.plan.workers
        assert by is not None
        if workers == 1 or (to := destinations(batch, by, workers)) is None:
            parts = partitioned(batch, by, workers)
            own = parts.pop(self.worker, None)
            if parts:
                self._copied[channel.index, time].append(parts)
            return own
        stays = to == self.worker
        if stays.all():
            return batch
        if not stays.any():
            self._sent[channel.index, time].append((batch, to))
            return None
        others = ~stays
        self._sent[channel.index, time].append((batch.filter(pa.array(others)), to[others]))
        return batch.filter(pa.array(stays))

    def messages(self) -> Iterator[SentMessage]:
        """One message per (channel, time, receiver), or two where some batches have hot keys.

        If the receiver combines records and ignores iterations, the records of all iterations are one batch,
        at the join of their times.
        """
        for index, times, parts in self._together(self._sent):
            yield from self._split(self.plan.channels[index], times, parts)
        for index, times, copies in self._together(self._copied):
            yield from self._copies(self.plan.channels[index], times, copies)

    def _together(self, sent: dict[tuple[int, Any], list[Any]]) -> Iterator[tuple[int, list[Any], list[Any]]]:
        """The records that are combined together: a channel, the parts, and the time of each."""
        together: dict[tuple[int, Any], tuple[list[Any], list[Any]]] = defaultdict(lambda: ([], []))
        for (index, time), parts in sent.items():
            node = self.plan.nodes[self.plan.channels[index].target]
            combines = node.ignored_counters and node.template.combine is not None
            key = self.plan.times.coarse(time, node.ignored_counters) if combines else time
            times, tables = together[index, key]
            times += [time] * len(parts)
            tables += parts
        for (index, _), (times, parts) in together.items():
            yield index, times, parts

    def _split(
        self, channel: Channel, times: list[Timestamp], parts: list[tuple[pa.Table, Hashes]]
    ) -> Iterator[SentMessage]:
        # counted, not sorted: workers are few
        gets = [frozenset(np.bincount(to.view(np.int64)).nonzero()[0].tolist()) for _, to in parts]
        table = self._combined(channel, [part for part, _ in parts])
        to = np.concatenate([to for _, to in parts])
        if len(receivers := frozenset.union(*gets)) == 1:
            by_worker = dict.fromkeys(receivers, with_narrow_longs(table)) if table.num_rows else {}
        else:
            if self.plan.nodes[channel.target].template.combine is not None:
                assert channel.exchange is not None
                again = destinations(table, channel.exchange, self.plan.workers)
                assert again is not None
                to = again
            by_worker = split(with_narrow_longs(table), to, self.plan.workers)
        for (worker, part), payload in zip(by_worker.items(), streams(by_worker.values()), strict=True):
            its_times = [time for time, receivers in zip(times, gets, strict=True) if worker in receivers]
            yield channel.index, _join(its_times or times), worker, part.num_rows, payload

    def _copies(
        self, channel: Channel, times: list[Timestamp], copies: list[dict[int, pa.Table]]
    ) -> Iterator[SentMessage]:
        #: the encoded message, by the tables of a worker: receivers of the same records share it
        encoded: dict[tuple[int, ...], tuple[int, bytes]] = {}
        for worker in sorted({worker for parts in copies for worker in parts}):
            parted = zip(times, copies, strict=True)
            its_parts = [(time, parts[worker]) for time, parts in parted if worker in parts]
            same = tuple(id(part) for _, part in its_parts)
            if same not in encoded:
                table = self._combined(channel, [part for _, part in its_parts])
                encoded[same] = table.num_rows, to_bytes(table, narrow=True)
            rows, payload = encoded[same]
            if rows:
                yield channel.index, _join(time for time, _ in its_parts), worker, rows, payload

    def _combined(self, channel: Channel, tables: list[pa.Table]) -> pa.Table:
        return combined(self.plan, channel, pa.concat_tables(tables)).combine_chunks()


def _join(times: Iterable[Timestamp]) -> Any:
    return functools.reduce(lambda a, b: a.join(b), times)
