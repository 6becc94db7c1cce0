"""`inspect`: the retained rounds of a checkpoint: states, messages in flight and what is pending at each."""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from timely_spark.compiler.summary import PlanSummary
from timely_spark.differential.trace import DIFF
from timely_spark.errors import UnknownName
from timely_spark.graph import caller, find, integer, locate_errors, path_text
from timely_spark.graph.schema import RESERVED
from timely_spark.runtime.errors import OtherFlow
from timely_spark.runtime.handle.changing import Changing
from timely_spark.runtime.storage.blobs import Blobs, size_of
from timely_spark.runtime.storage.log import FIRST, RoundLog
from timely_spark.runtime.storage.manifest import Manifest
from timely_spark.runtime.storage.states import StateRefs
from timely_spark.show.sketch import Sketch
from timely_spark.state.arrangement import Arrangement
from timely_spark.state.arrow import from_bytes
from timely_spark.state.codec import Codec, unpack_json
from timely_spark.state.memory import is_pandas
from timely_spark.state.row_times import EPOCH
from timely_spark.times.refined import time_text
from timely_spark.worker import wire
from timely_spark.worker.vertex_snapshot import VertexSnapshot, decode_chunk
from timely_spark.worker.wire import Message

_TIMES, _NAMES = pa.list_(pa.int64()), pa.list_(pa.string())
#: The columns of `Inspection.rounds`: the type, and the value.
_ROUNDS: Mapping[str, tuple[pa.DataType, Callable[[Round], Any]]] = {
    "round": (pa.int64(), lambda at: at.round),
    "local_rounds": (pa.int64(), lambda at: at.manifest.rounds),
    "epochs": (_TIMES, lambda at: at.manifest.open_epochs),
    "released": (_NAMES, lambda at: [f"{output}: {epoch}" for output, epoch in at.manifest.released]),
    "messages": (pa.int64(), lambda at: len(at.message_bytes)),
    "notifications": (pa.int64(), lambda at: at.manifest.notifications),
    "state_bytes": (pa.int64(), lambda at: sum(at.manifest.state_bytes.values())),
    "complete": (pa.bool_(), lambda at: at.manifest.complete),
}
_PENDING = {
    "step": pa.string(), "where": pa.string(), "time": pa.string(), "messages": pa.int64(),
    "notifications": pa.int64(),
}  # fmt: skip
_MESSAGES = {
    "worker": pa.int32(), "sender": pa.int32(), "step": pa.string(), "input": pa.int32(), "time": pa.string(),
    "rows": pa.int64(),
}  # fmt: skip
#: The names of the columns of traces, and of what is computed from them.
_OF_TRACES = re.compile(r"worker|epoch|diff|iteration\d*")
_CALLS = {"time": pa.string(), "input": pa.int32(), "rows": pa.int64()}


@locate_errors
def inspect(checkpoint: str | os.PathLike[str]) -> Inspection:
    """Look into a checkpoint, of a running flow or not: the retained rounds, and the state at any of them.

    Reads files only: it needs neither Spark nor the flow's code, runs no code of the flow, and changes
    nothing. Rounds are kept as long as Spark keeps its own log (`spark.sql.streaming.minBatchesToRetain`).

    Args:
        checkpoint: the directory (or URI) of `start(checkpoint=...)`.

    Example:
        >>> import timely_spark as ts
        >>> ts.inspect("/data/checkpoint").at(17).state("count")  # doctest: +SKIP

    Raises:
        OtherFlow: there is no checkpoint of a flow.
        LogDamaged: a file is damaged or missing.
        BadArgument: `checkpoint` is not a path.
    """
    log = RoundLog(path_text(checkpoint, "give the folder of start(checkpoint=...).", what="checkpoint"))
    identity = log.identity()
    if identity is None or log.newest() is None:
        raise OtherFlow.none_at(log.checkpoint, caller())
    return Inspection(log, identity["name"])


@dataclass(frozen=True)
class Inspection:
    """The retained rounds of a checkpoint."""

    _log: RoundLog
    #: The flow's name.
    flow: str

    @property
    def retained(self) -> range:
        """The retained rounds: numbers of batches, -1 for the state before the first."""
        log = self._now()
        newest = log.newest()
        assert newest is not None
        manifest = log.read(newest)
        first = newest if manifest is None else max(manifest.kept_from, FIRST)
        while first < newest and not log.has(first):
            first += 1
        return range(first, newest + 1)

    def _now(self) -> RoundLog:
        """A new view of the log: one that was opened earlier may lack later batches."""
        return RoundLog(self._log.checkpoint)

    def at(self, round: int | None = None) -> Round:
        """A retained round; None means the newest.

        Raises:
            BadArgument: `round` is not an integer.
            UnknownName: the round is not retained.
        """
        retained = self.retained
        number = retained[-1] if round is None else integer("round", round, least=FIRST)
        log = self._now()
        manifest_and_rows = log.manifest_and_rows(number) if number in retained else None
        if manifest_and_rows is None:
            msg = f"flow {self.flow!r} has no retained round {number}"
            hint = f"give one from {retained[0]} to {retained[-1]}; start(keep=...) keeps more."
            raise UnknownName(msg, where=caller(), hint=hint)
        return Round(self.flow, log, *manifest_and_rows)

    def rounds(self, last: int | None = None) -> pa.Table:
        """The retained rounds, oldest first.

        Args:
            last: only so many, the newest.

        **Columns:** round long (the batch), local_rounds long (rounds since the checkpoint was made, of
        which a batch may have several), epochs array<long> (those in flight), released array<string>
        (output and epoch), messages long, notifications long, state_bytes long, complete boolean.
        """
        retained = self.retained[-integer("last", last) :] if last is not None else self.retained
        rounds = [self.at(number) for number in retained]
        return pa.table(
            {name: pa.array(map(value_of, rounds), kind) for name, (kind, value_of) in _ROUNDS.items()}
        )

    def __repr__(self) -> str:
        rounds = self.retained
        return f"Inspection(flow={self.flow!r}, rounds {rounds[0]} to {rounds[-1]}, {self._log.checkpoint})"


@dataclass(frozen=True)
class Round:
    """A flow after one batch, from its manifest and the summary of its plan."""

    #: The flow's name.
    flow: str
    log: RoundLog
    manifest: Manifest
    #: The messages for the next batch, and the references of the workers' states.
    rows: pa.Table
    #: The summary of the plan in this process, which has times of a user's kind, too; None means read it.
    own: PlanSummary | None = None

    @cached_property
    def description(self) -> dict[str, Any]:
        """The flow as described in the checkpoint, with its plan's summary (`outline`) and a `sketch`.

        `plans` has by the key of a step in the sketch, or of a box, how it runs.
        """
        return self.log.flow(self.manifest)

    @cached_property
    def summary(self) -> PlanSummary:
        """The summary of the plan."""
        return self.own or PlanSummary(self.description["outline"])

    @cached_property
    def sketch(self) -> Sketch:
        """The flow to look at; of a checkpoint that an older version has written it has no steps."""
        data = self.description.get("sketch")
        return Sketch(self.flow) if data is None else Sketch.decode(data)

    @property
    def inputs(self) -> dict[str, tuple[int | None, str]]:
        """Each input's epoch, None if it is closed, and the user's line."""
        epochs = self.manifest.coordinator["inputs"]
        return {name: (at, self.summary.inputs[name][1]) for name, at in epochs.items()}

    @cached_property
    def frontier(self) -> dict[str, list[Any]]:
        """Each step's frontier, or with a user's times each output's and probe's; empty if it is complete."""
        return self.summary.frontier(self.manifest.coordinator) or self.manifest.frontier

    @property
    def message_bytes(self) -> list[int]:
        """The bytes of each message in flight."""
        return list(map(size_of, wire.only(self.rows, Message).column("payload").to_pylist()))

    @property
    def round(self) -> int:
        """The batch."""
        return self.manifest.batch

    @property
    def steps(self) -> list[str]:
        """The flow's steps that are vertices, in topological order."""
        return [name for name, *_ in self.summary.steps]

    def pending(self) -> pa.Table:
        """The pointstamps: what keeps epochs open, by time.

        **Columns:** step string, where string (the user's line), time string, messages long (batches that
        were not delivered), notifications long (that hold a capability).
        """
        last = max(self.manifest.coordinator["begun"], self.round)
        rows = [
            {column: getattr(open_, column) for column in _PENDING} | {"time": time_text(open_.time)}
            for open_ in self.summary.open_pointstamps(self.manifest.coordinator, last)
        ]
        return pa.Table.from_pylist(rows, pa.schema(_PENDING))

    def messages(self) -> pa.Table:
        """The batches in flight: sent to another worker, or in the queue of one.

        **Columns:** worker int (the receiver), sender int (null: queued there), step string, input int, time
        string, rows long.
        """
        rows = [{**where, "rows": table.num_rows} for where, table in self._batches()]
        return pa.Table.from_pylist(rows, pa.schema(_MESSAGES))

    def records(self, step: str) -> pa.Table:
        """The records in flight to a step.

        **Columns:** worker int (the receiver), input int, time string, then the records'. Where records have
        a column of such a name, theirs ends in ``_``. Inputs may have different columns; missing ones are
        null.

        Raises:
            UnknownName: there is no such step.
        """
        self._check(step)
        parts = [
            _first(table, worker=where["worker"], input=where["input"], time=where["time"])
            for where, table in self._batches()
            if where["step"] == step
        ]
        return _concat(parts)

    def state(self, step: str) -> dict[str, pa.Table]:
        """The state of a step: one table for each attribute of its vertex, of all workers.

        **Columns:** worker int, then those of the attribute. An arrangement or a table has its own columns; a
        collection's trace also has ``epoch``, ``iteration1``, ... and ``diff`` (where records have a column
        of such a name, theirs ends in ``_``). A mapping has ``key`` and ``value``, a collection of Python
        ``value``, as text. A step with `logged = True` also has ``calls``: the calls since its state was
        last written in full.

        Raises:
            UnknownName: there is no such step.
        """
        self._check(step)
        tables_of: dict[str, list[pa.Table]] = {}
        for worker, head, parts in self._workers():
            if step in head["vertices"]:
                snapshot = VertexSnapshot.decode(head["vertices"][step], parts)
                for name, table in self._attributes(snapshot):
                    tables_of.setdefault(name, []).append(_first(table, worker=worker))
        return {name: _concat(tables) for name, tables in tables_of.items()}

    def changing(self, name: str, *, last: int = 16) -> Changing:
        """Which records of a loop still change, in the oldest epoch in flight, and whether that repeats.

        Reads the trace of a step in the loop, which has all changes by iteration. In a loop of streams no
        step keeps one: then the records in flight are shown. If nothing is in flight, the answer has no
        changes, and the last epoch.

        Args:
            name: a loop, which means its first step that changes; or a step in a loop: one that keeps a
                trace (a reduction of collections, `distinct`, `arrange`), or one with records in flight.
            last: how many of the last iterations are shown. A cycle is found if they have it twice.

        Raises:
            BadArgument: `last` is not a number of at least 2.
            UnknownName: there is no such loop or step in a loop.
        """
        last = integer("last", last, least=2)
        manifest = self.manifest
        epoch = min(manifest.open_epochs, default=manifest.coordinator["begun"])
        changing_loops = {}
        for step, *_ in self.summary.steps:
            if step == name or step.startswith(f"{name}."):
                state = self.state(step)
                traces = [state[each] for each in ("output", "state", "input") if each in state]
                if traces and {"epoch", "iteration1", "diff"} <= set(traces[0].schema.names):
                    changing_loops[step] = Changing.of(step, epoch, traces[0], last)
        changing_loops = changing_loops or {
            step: Changing.of(step, epoch, trace, last) for step, trace in self._in_flight(name, epoch)
        }
        if not changing_loops:
            steps = [step.split(".") for step, _, _, depth in self.summary.steps if depth]
            loops = [".".join(parts[:n]) for parts in steps for n in range(1, len(parts) + 1)]
            find(dict.fromkeys(loops), name, kind="loop, or step in one", flow=self.flow)
            return Changing.nothing(name, epoch)
        return max(changing_loops.values(), key=lambda each: max(each.iterations, default=-1))

    def _in_flight(self, name: str, epoch: int) -> Iterator[tuple[str, pa.Table]]:
        """The records in flight at each step of a loop, as a trace of an epoch."""
        tables_of: dict[str, list[pa.Table]] = {}
        for where, batch in self._batches():
            step, at = where["step"], where["at"]
            counters = [each for each in at[1:] if isinstance(each, int)]
            inside = step == name or step.startswith(f"{name}.")
            if not inside or not counters or len(counters) < len(at) - 1 or at[0] != epoch:
                continue
            times = {"epoch": epoch} | {f"iteration{i}": each for i, each in enumerate(counters, 1)}
            batch = _apart(batch, _OF_TRACES)  # noqa: PLW2901 - the same records
            columns = {each: batch[each] for each in batch.schema.names}
            ones = pa.repeat(pa.scalar(1, pa.int64()), batch.num_rows)
            diff = columns.pop(DIFF, pa.chunked_array([ones]))
            numbers = {each: pa.repeat(pa.scalar(n, pa.int64()), batch.num_rows) for each, n in times.items()}
            tables_of.setdefault(step, []).append(pa.table({**numbers, **columns, "diff": diff}))
        for step, parts in tables_of.items():
            yield step, _concat(parts)

    def sizes(self) -> pa.Table:
        """The bytes of state by step and worker.

        **Columns:** step string, worker int, bytes long.
        """
        rows = [
            {"step": step, "worker": worker, "bytes": size}
            for worker, state in StateRefs.of(self.rows).by_worker.items()
            for step, size in state.sizes.items()
        ]
        return pa.Table.from_pylist(
            rows, pa.schema({"step": pa.string(), "worker": pa.int32(), "bytes": pa.int64()})
        )

    def __repr__(self) -> str:
        manifest = self.manifest
        return f"Round({manifest.batch}, {manifest.rounds} rounds, epochs in flight {manifest.open_epochs})"

    def _check(self, step: str) -> None:
        find(dict.fromkeys(self.steps), step, kind="step with a vertex", flow=self.flow)

    @cached_property
    def _blobs(self) -> Blobs:
        return Blobs(self.log.files)

    def _codec(self) -> Codec:
        times: Any = _AnyTimes()
        return _Reader(times, self._blobs)

    def _workers(self) -> Iterator[tuple[int, dict[str, Any], list[memoryview]]]:
        for worker, state in sorted(StateRefs.of(self.rows).by_worker.items()):
            with self._blobs.reading(state.reference):
                yield worker, *unpack_json(self._blobs.get(state.reference))

    def sent(self) -> Iterator[tuple[dict[str, Any], pa.Table]]:
        """The messages in flight: worker, sender, step, input, time as text and `at`; and the records."""
        for worker, message in wire.read(self.rows, Message):
            step, input_ = self.summary.channels[message.channel]
            where = {"worker": worker, "sender": message.sender, "step": step, "input": input_}
            yield (
                {**where, "time": time_text(message.time), "at": message.time},
                self._blobs.table(message.payload),
            )

    def _batches(self) -> Iterator[tuple[dict[str, Any], pa.Table]]:
        yield from self.sent()
        codec = self._codec()
        for worker, head, parts in self._workers():
            for (step, input_, time), encoded in zip(head["queue"], head["batches"], strict=True):
                where = {"worker": worker, "sender": None, "step": step, "input": input_}
                batch = from_bytes(codec.get(decode_chunk(encoded, parts)))
                yield {**where, "time": time_text(time), "at": time}, batch

    def _attributes(self, snapshot: VertexSnapshot) -> Iterator[tuple[str, pa.Table]]:
        codec = self._codec()
        if snapshot.full is not None:
            state = codec.read(codec.get(snapshot.full))
            values = state if isinstance(state, Mapping) else {"state": state}
            yield from ((str(name), _table(value)) for name, value in values.items())
        if snapshot.log:
            calls: list[Any] = list(snapshot.invocations(codec))
            rows = [
                {"time": time_text(call.time)}
                | ({} if call.batch is None else {"input": call.edge, "rows": call.batch.num_rows})
                for call in calls
            ]
            yield "calls", pa.Table.from_pylist(rows, pa.schema(_CALLS))


class _AnyTimes:
    """Times as tuples, of any kind: the code of a user's kind is not at hand."""

    def epoch(self, n: int) -> tuple[int]:
        return (n,)

    def decode(self, data: Any) -> tuple[Any, ...]:
        return tuple(data) if isinstance(data, list) else (data,)


class _Reader(Codec):
    """Reads states without the classes of the flow: dataclasses as mappings, pickled values not at all."""

    def _decode(self, value: Any) -> Any:
        if isinstance(value, dict) and "dataclass" in value:
            name, fields = value["dataclass"]
            return {"class": name} | {key: self._decode(part) for key, part in fields.items()}
        return super()._decode(value)

    def _unpickled(self, data: Any) -> Any:
        return f"pickled, {len(data)} bytes"


def _table(value: Any) -> pa.Table:
    """An attribute of a vertex as a table."""
    if isinstance(value, Arrangement):
        value = _concat(value.batches())
    elif is_pandas(value):
        value = pa.Table.from_pandas(value.to_frame() if value.ndim == 1 else value)
    if isinstance(value, pa.Table):
        own = {name: _plain(name) for name in value.schema.names if name.startswith(RESERVED)}
        apart = _apart(value, _OF_TRACES) if own else value
        return apart.rename_columns([own.get(name, name) for name in apart.schema.names])
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, Mapping):
        return pa.table({"key": [str(key) for key in value], "value": [str(each) for each in value.values()]})
    values = value if isinstance(value, list | tuple | set | frozenset | deque) else [value]
    return pa.table({"value": pa.array(map(str, values), pa.string())})


def _concat(tables: Sequence[pa.Table]) -> pa.Table:
    return pa.concat_tables(tables, promote_options="permissive") if tables else pa.table({})


def _plain(column: str) -> str:
    """The name of a reserved column: of a trace ``epoch``, ``iteration1``, ..., ``diff``."""
    if column == EPOCH:
        return "epoch"
    name = column.removeprefix(RESERVED)
    return name.replace("time", "iteration") if name.startswith("time") else name


def _apart(table: pa.Table, taken: re.Pattern[str]) -> pa.Table:
    """The table; the names of columns that are taken end in ``_``."""
    names = table.schema.names
    both = {name for name in names if taken.fullmatch(name)}
    end = "_"
    while any(name + end in names for name in both):
        end += "_"
    return table.rename_columns([name + end * (name in both) for name in names])


def _first(table: pa.Table, **values: Any) -> pa.Table:
    """The table with further columns in front, each of one value; its own of such names end in ``_``."""
    table = _apart(table, re.compile("|".join(values)))
    for at, (name, value) in enumerate(values.items()):
        kind = pa.string() if isinstance(value, str) else pa.int32()
        column = pa.repeat(pa.scalar(value, kind), table.num_rows)
        table = table.add_column(at, pa.field(name, kind), column)
    return table
