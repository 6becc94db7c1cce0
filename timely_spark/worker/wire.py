"""The wire: what sources, workers and the coordinator send each other.

Each kind of row is a frozen dataclass: `table` encodes objects as rows, and `read` decodes the rows of some
kinds. No other module knows the layout of a row. Times are in their encoded form, lists of plain values.
"""

from __future__ import annotations

import functools
import json
from array import array
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import MISSING, astuple, dataclass, field, fields
from enum import Enum
from itertools import accumulate, chain, pairwise
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from timely_spark.errors import VertexError
from timely_spark.graph import with_cell
from timely_spark.state.arrow import Indices, Mask
from timely_spark.state.bounds import parse_json
from timely_spark.state.grouping import changes, run_starts
from timely_spark.worker.epoch_columns import EpochSpan, Refused
from timely_spark.worker.expectations import Expectation
from timely_spark.worker.hot_keys import Load
from timely_spark.worker.loops import LoopCounts, highest
from timely_spark.worker.negatives import Negatives

if TYPE_CHECKING:
    from typing import Self

ROWS = pa.schema(
    [("worker", pa.int32()), ("kind", pa.string()), ("meta", pa.string()), ("payload", pa.binary())]
)
"""Columns: worker (receiver or sender, from 0), kind (`RowKind`), meta (JSON), payload (Arrow IPC stream)."""

NO_ROWS = pa.Table.from_batches([], ROWS)  # `empty_table` would import pandas

_NO_LOOPS = LoopCounts()
#: The sender of a report of all workers of another process.
ELSEWHERE = -1

Change: TypeAlias = tuple[int, Any, int]
"""How much the count of a place (a location or vertex) and a time has changed."""


class RowKind(str, Enum):
    """The kinds of rows. The values are written to checkpoints."""

    #: to a worker
    HEADER = "header"
    TICK = "tick"
    INPUT = "input"
    ADVANCE = "advance"
    #: from a worker to another one
    MESSAGE = "message"
    #: from a worker to the driver
    OUTPUT = "output"
    REPORT = "report"
    FAILURE = "failure"
    #: of the runtime: `storage.states.State`, and what the driver and tasks that run rounds send each other
    STATE = "state"
    WORK = "work"
    RESULT = "result"
    UNREACHABLE = "unreachable"


@dataclass(frozen=True, slots=True)
class Item:
    """The content of a row: one field is the row's payload, if there is one, and the others are JSON."""

    kind: ClassVar[RowKind]
    #: the name of the field that is the payload
    binary: ClassVar[str] = "payload"

    def encode(self) -> str:
        """All fields but the payload, and but those that have their default, as JSON.

        >>> Report(left=1).encode()
        '{"left":1}'
        """
        names, values, defaults = _encoded(type(self))  # type: ignore[arg-type] # a class has a hash of its own
        named = zip(names, values(self), defaults, strict=True)
        return _as_json({name: value for name, value, default in named if value != default})

    @classmethod
    def decode(cls, meta: str) -> Self:
        """Decode the `meta` of a row without a payload."""
        return cls.of_fields(parse_json(meta))

    @classmethod
    def of_fields(cls, values: dict[str, Any]) -> Self:
        """An object with these fields, as JSON holds them."""
        return cls(**values)


@functools.cache
def _encoded(item: Any) -> tuple[list[str], Callable[[Any], Sequence[Any]], list[Any]]:
    """The names of an item's fields without its payload, what gives their values, and their defaults."""
    some = [one for one in fields(item) if one.name != item.binary]
    defaults = [one.default if one.default_factory is MISSING else one.default_factory() for one in some]
    names = [one.name for one in some]
    values = attrgetter(*names) if len(names) > 1 else lambda of: [getattr(of, name) for name in names]
    return names, values, defaults


def _fields(item: Any) -> dict[str, Any]:
    """A dataclass's fields as they are: `asdict` would copy each of them."""
    return {one.name: getattr(item, one.name) for one in fields(item)}


#: one encoder: `json.dumps` would make one for each row
_as_json = json.JSONEncoder(separators=(",", ":"), sort_keys=True, default=_fields).encode


@dataclass(frozen=True, slots=True, kw_only=True)
class Header(Item):
    """The progress of the flow before a round, for each worker that runs even without input."""

    kind = RowKind.HEADER
    #: the batch of the round before
    batch: int
    #: the epoch of each input; None means closed
    inputs: dict[str, int | None] = field(default_factory=dict)
    #: the oldest epoch that is not complete
    oldest: int = 0
    #: the least times that may still arrive over an exchange, by the first vertex of each run of vertices
    #: that need them; none before the first run
    arrivals: list[tuple[int, list[Any]]] = field(default_factory=list)
    #: the highest counter that a time may still have in each canceled loop
    bounds: dict[str, int] = field(default_factory=dict)
    #: sources with an epoch column that have read no epoch yet
    unseen: list[str] = field(default_factory=list)
    #: the epoch at which rows of each closed source enter that still arrive
    late: dict[str, int] = field(default_factory=dict)
    #: the hot keys of each step that the run has found and spreads: see `Plan.spread`
    spread: dict[str, list[int]] = field(default_factory=dict)

    def arrivals_at(self, vertex: int) -> list[Any]:
        """The least times that may still arrive over an exchange at a vertex that needs them.

        >>> header = Header(batch=0, arrivals=[(3, [[0]]), (7, [])])
        >>> [header.arrivals_at(vertex) for vertex in (2, 3, 6, 7, 9)]
        [[], [[0]], [[0]], [], []]
        """
        run = bisect_right(self.arrivals, vertex, key=itemgetter(0))
        return self.arrivals[run - 1][1] if run else []


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick(Item):
    """A part of an input, perhaps without records, was read: its epoch begins."""

    kind = RowKind.TICK
    source: str
    #: with manual epochs the epoch; with clock epochs the epoch is the batch
    epoch: int | None = None
    #: with an epoch column the spans of the part's epochs, and on one worker (epoch, rows) of each epoch
    spans: list[EpochSpan] | None = None
    rows: list[tuple[int, int]] | None = None
    #: the records of the part, before any step, and what was quarantined instead
    read: int = 0
    quarantined: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class InputBatch(Item):
    """Records of an input for one channel."""

    kind = RowKind.INPUT
    source: str
    channel: int
    #: the task that packed the records, the number of its call, and the piece of a large table
    shard: int
    seq: int
    piece: int = 0
    #: the epoch; None with clock epochs, and with an epoch column
    epoch: int | None = None
    #: with an epoch column, (epoch, rows) in the order of the records
    epochs: list[tuple[int, int]] | None = None
    payload: Any

    @property
    def order(self) -> tuple[int, int, int, int]:
        """The order of delivery, in which no two batches of a round are equal."""
        return self.channel, self.shard, self.seq, self.piece


@dataclass(frozen=True, slots=True, kw_only=True)
class Advance(Item):
    """The epoch of an input advances; None if the input is closed."""

    kind = RowKind.ADVANCE
    source: str
    to: int | None
    #: the number of the handle's call
    seq: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Message(Item):
    """Records that a worker sends to another one over a channel."""

    kind = RowKind.MESSAGE
    channel: int
    time: list[Any]
    sender: int
    payload: Any

    @property
    def order(self) -> tuple[int, int, str]:
        """The order of delivery; messages of several rounds may be equal, and keep their order."""
        return self.channel, self.sender, str(self.time)


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkRows(Item):
    """Records for a sink, at an epoch."""

    kind = RowKind.OUTPUT
    sink: str
    epoch: int
    payload: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Report(Item):
    """The progress of a worker in a round, or of several workers, added up.

    Law: `+` is associative and commutative, and `Report()` is its unit. So a coordinator that gets one sum of
    some workers' reports computes the same frontiers, header and counts. Each report is in a sum whole, and a
    coordinator applies all of a round at once, so no decrement is applied before its increment. Source: Naiad
    section 3.3.
    """

    kind = RowKind.REPORT
    #: (location, time, number) by which the pointstamps changed
    deltas: list[Change] = field(default_factory=list)
    #: (vertex, guarantee, number) by which the pending notifications changed
    pending: list[Change] = field(default_factory=list)
    #: how many workers have queued batches that the round's budget left over
    left: int = 0
    #: epochs that began
    ticks: list[int] = field(default_factory=list)
    #: the epoch of each input that was advanced; None means closed. All workers report the same.
    advanced: dict[str, int | None] = field(default_factory=dict)
    #: the highest epoch in time of each source with an epoch column
    seen: dict[str, int] = field(default_factory=dict)
    #: late rows, by source, and by step that keeps windows; by source, those of no valid epoch
    late: dict[str, int] = field(default_factory=dict)
    refused: dict[str, Refused] = field(default_factory=dict)
    #: the records of each input that the round read, late ones included
    read: dict[str, int] = field(default_factory=dict)
    #: the files or messages of each input that were quarantined
    quarantined: dict[str, int] = field(default_factory=dict)
    loops: LoopCounts = field(default_factory=LoopCounts)
    loads: list[Load] = field(default_factory=list)
    negatives: list[Negatives] = field(default_factory=list)
    #: what each `expect` has checked, by its step
    expectations: dict[str, Expectation] = field(default_factory=dict)
    #: (sink, epoch) of the records for sinks
    outputs: list[tuple[str, int]] = field(default_factory=list)
    #: counts of calls, records, bytes, ...
    stats: dict[str, int] = field(default_factory=dict)

    def __add__(self, other: Report) -> Report:
        return Report.sum([self, other])

    @classmethod
    def sum(cls, parts: Iterable[Report]) -> Report:
        """The sum of any number of reports."""
        parts = list(parts)
        if not parts:
            return cls()
        return cls(
            deltas=_sum_of_changes(part.deltas for part in parts),
            pending=_sum_of_changes(part.pending for part in parts),
            left=sum(part.left for part in parts),
            ticks=sorted({epoch for part in parts for epoch in part.ticks}),
            advanced=dict(chain.from_iterable(part.advanced.items() for part in parts)),
            seen=highest(part.seen for part in parts),
            late=totals(part.late for part in parts),
            refused=_sum_by_name(Refused(), (part.refused for part in parts)),
            read=totals(part.read for part in parts),
            quarantined=totals(part.quarantined for part in parts),
            loops=LoopCounts.sum(part.loops for part in parts if part.loops != _NO_LOOPS),
            loads=sorted((load for part in parts for load in part.loads), key=astuple),
            negatives=sorted(one for part in parts for one in part.negatives),
            expectations=_sum_by_name(Expectation(), (part.expectations for part in parts)),
            outputs=sorted({(sink, epoch) for part in parts for sink, epoch in part.outputs}),
            stats=totals(part.stats for part in parts),
        )

    @classmethod
    def of_fields(cls, values: dict[str, Any]) -> Self:
        return cls(**values | {name: read(values[name]) for name, read in _READ.items() if name in values})


#: what `Report.sum` adds up by name
Addable = TypeVar("Addable", Refused, Expectation)

#: how the fields of a `Report` are read that JSON does not hold as they are
_READ: dict[str, Callable[[Any], Any]] = {
    "refused": lambda of: {source: Refused(**counts) for source, counts in of.items()},
    "loads": lambda of: [Load(**load) for load in of],
    "negatives": lambda of: [Negatives(**one) for one in of],
    "expectations": Expectation.by_step,
    "loops": lambda of: LoopCounts(**of),
}


def _sum_of_changes(parts: Iterable[list[Change]]) -> list[Change]:
    """The sums by place and time, in order, without those that are zero."""
    sums: dict[tuple[int, str], list[Any]] = {}
    for at, time, n in chain.from_iterable(parts):  # times are lists, perhaps of lists
        sums.setdefault((at, str(time)), [time, 0])[1] += n
    return [(at, time, n) for (at, _), (time, n) in sorted(sums.items()) if n]


def _sum_by_name(unit: Addable, parts: Iterable[dict[str, Addable]]) -> dict[str, Addable]:
    """The sums by name of what has a `+`; `unit` is the empty sum."""
    sums: dict[str, Addable] = {}
    for name, one in chain.from_iterable(part.items() for part in parts):
        sums[name] = sums.get(name, unit) + one
    return sums


def totals(parts: Iterable[dict[str, int]]) -> dict[str, int]:
    """The sums by name; `Counter.update` takes longer than a round has."""
    sums: dict[str, int] = defaultdict(int)
    for part in parts:
        for name in part:
            sums[name] += part[name]
    return sums


@dataclass(frozen=True, slots=True)
class Failure(Item):
    """The error of a vertex, which ends the run."""

    kind = RowKind.FAILURE
    #: `VertexError.encode`
    parts: dict[str, str | None]

    @classmethod
    def of(cls, error: VertexError) -> Failure:
        """The failure with this error."""
        return cls(error.encode())

    def throw(self, context: str) -> NoReturn:
        """Raise the error; `context`: the part of the run in which it was raised first."""
        raise VertexError.decode(with_cell(self.parts), context)


T = TypeVar("T", bound=Item)

#: so many tables of so few bytes each are copied together
_FEW, _SMALL = 4, 1 << 16
#: payloads of so many bytes in the mean are not copied with their rows
_LARGE = 1 << 12


def table(items: Iterable[tuple[int, Item]]) -> pa.Table:
    """Objects as rows of schema `ROWS`, each with the worker that receives or sends the object."""
    if not (listed := list(items)):
        return NO_ROWS
    texts, last = list[str](), None
    for _, item in listed:  # messages of a channel to many workers differ in their payloads only
        what = type(item), _encoded(type(item))[1](item)  # type: ignore[arg-type] # as in `encode`
        texts.append(texts[-1] if what == last else item.encode())
        last = what
    payloads = [getattr(item, item.binary, None) for _, item in listed]
    arrays = [
        pa.array(np.array([worker for worker, _ in listed], np.int32)),
        _texts([item.kind.value for _, item in listed]),
        _texts(texts),
        pa.nulls(len(listed), pa.binary())
        if payloads == [None] * len(payloads)
        else pa.array(payloads, pa.binary()),
    ]
    return pa.Table.from_arrays(arrays, schema=ROWS)


def _texts(values: list[str]) -> pa.StringArray:
    """An array of texts; `pa.array` looks at each value's type."""
    encoded = [value.encode() for value in values]
    ends = array("i", accumulate(map(len, encoded), initial=0))
    return pa.StringArray.from_buffers(len(encoded), pa.py_buffer(ends), pa.py_buffer(b"".join(encoded)))


def read(rows: pa.Table, *types: type[T]) -> list[tuple[int, T]]:
    """The objects of some types, each with its worker, in the order of the rows.

    Payloads are Arrow buffers, not copied.
    """
    by_kind: dict[str, type[T]] = {item.kind.value: item for item in types}
    kinds = rows.column("kind").to_pylist()
    if not (places := [place for place, kind in enumerate(kinds) if kind in by_kind]):
        return []
    workers, metas, payloads = (rows.column(name) for name in ("worker", "meta", "payload"))
    texts, every = metas.to_pylist(), workers.to_pylist()
    values = parse_json(f"[{','.join(texts[place] for place in places)}]")  # one call for all
    if len(values) != len(places):
        msg = f"{len(places)} rows have {len(values)} values of JSON"
        raise ValueError(msg)
    items = list[tuple[int, T]]()
    for place, named in zip(places, values, strict=True):
        item = by_kind[kinds[place]]
        if (payload := payloads[place].as_buffer()) is not None:
            named[item.binary] = payload
        items.append((every[place], item.of_fields(named)))
    return items


def by_worker(rows: pa.Table) -> Iterator[tuple[int, pa.Table]]:
    """The rows of each worker, in their order; payloads are not copied."""
    workers = rows.column("worker").to_numpy()
    bounds = [*run_starts(workers).tolist(), len(workers)]
    parts: dict[int, list[pa.Table]] = defaultdict(list)
    for low, high in pairwise(bounds):
        parts[int(workers[low])].append(rows.slice(low, high - low))
    yield from ((worker, concat(parts[worker])) for worker in sorted(parts))


def concat(tables: Iterable[pa.Table]) -> pa.Table:
    """The rows of some tables."""
    some = [table for table in tables if table.num_rows]
    return pa.concat_tables(some) if len(some) > 1 else some[0] if some else NO_ROWS


def together(tables: Sequence[pa.Table]) -> pa.Table:
    """The rows of some tables; many small ones become one piece, which is read faster.

    Otherwise messages come first, so that they are read without a copy.
    """
    rows = pa.concat_tables(tables)
    if len(tables) > _FEW and (pc.sum(pc.binary_length(rows["payload"])).as_py() or 0) < _SMALL * len(tables):
        return rows.combine_chunks()
    return at(rows, np.argsort(~are(rows, Message), kind="stable"))


def at(rows: pa.Table, places: Indices) -> pa.Table:
    """The rows at some positions, in this order; large payloads are not copied."""
    if not len(places):
        return rows.slice(0, 0)
    if (places[1:] == places[:-1] + 1).all():
        return rows.slice(int(places[0]), len(places))
    if rows["payload"].nbytes < _LARGE * rows.num_rows:
        return rows.take(pa.array(places))
    pieces = rows.to_batches()
    ends = np.cumsum([piece.num_rows for piece in pieces])
    of = ends.searchsorted(places, side="right")
    starts = (changes(of) | changes(places - np.arange(len(places)))).nonzero()[0]
    firsts = places[starts] - np.append(0, ends)[of[starts]]
    runs = zip(of[starts], firsts, np.diff(starts, append=len(places)), strict=True)
    return pa.Table.from_batches([pieces[i].slice(first, size) for i, first, size in runs], rows.schema)


def only(rows: pa.Table, *types: type[Item]) -> pa.Table:
    """The rows of some types."""
    return at(rows, places(rows, *types))


def without(rows: pa.Table, *types: type[Item]) -> pa.Table:
    """The rows of other types."""
    return at(rows, (~are(rows, *types)).nonzero()[0])


def places(rows: pa.Table, *types: type[Item]) -> Indices:
    """The positions of the rows of some types."""
    return are(rows, *types).nonzero()[0]


def are(rows: pa.Table, *types: type[Item]) -> Mask:
    """Whether each row is of one of some types."""
    kinds = {item.kind.value for item in types}
    return np.array([kind in kinds for kind in rows.column("kind").to_pylist()], np.bool_)
