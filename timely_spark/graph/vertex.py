"""`Vertex`: the base class of all vertices, with Naiad's four primitives."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from timely_spark.errors import CapabilityError, StateError
from timely_spark.graph.caller import caller
from timely_spark.times import Times, Timestamp

States = Sequence[Mapping[str, Any]]
"""The states of a vertex, one for each worker."""

Partitioner = Callable[[int, pa.Table], list[pa.Table]]
"""Partitions records like those of an input: `partition(input, table)` gives one table for each worker."""


class Context(Protocol):
    """The worker's services for a vertex, during a call."""

    worker: int
    workers: int

    @property
    def times(self) -> Times:
        """The kind of time in the scope of the vertex."""
        ...

    def send(self, edge: int, time: Timestamp, batch: pa.Table) -> None:
        """Send a batch by an output."""

    def notify(self, time: Timestamp, capability: Timestamp | None) -> None:
        """Request a notification."""

    def output(self, time: Timestamp, batch: pa.Table) -> None:
        """Hand a batch to the driver."""

    def late(self, rows: int) -> None:
        """Count late records, under the step's name."""

    def negative(self, time: Timestamp, records: pa.Table) -> None:
        """Tell of records whose multiplicity, the last column, became negative at a complete time."""

    def expected(self, time: Timestamp, checked: int, failed: int, example: str) -> None:
        """Count records that were checked, and those of them that failed; `example`: one, as text."""

    def feeds(self, edge: int) -> Vertex | None:
        """The vertex on this worker that alone feeds input `edge`, unchanged; None if there is none.

        Its state may be read, and may be ahead of the batches that have arrived from it.
        """
        ...

    def coarse(self, time: Timestamp) -> Timestamp:
        """The time with the loop counters that accumulated state need not distinguish set to 0."""
        ...

    def batch(self) -> int:
        """The number of the batch, which is the same if it runs again."""
        ...

    def repeatable_batches(self) -> int:
        """How many batches before it may still run again."""
        ...

    def since(self) -> int:
        """An epoch before which nothing will arrive anywhere."""
        ...

    def compaction_frontier(self, *, downstream: bool = False) -> int:
        """An epoch before which nothing will arrive at this vertex; `downstream`: nor at its receivers."""
        ...


class _NoContext:
    """The context of a vertex that is not called: it has no worker, and no capability."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # as Python's own modules ask of any object
            raise AttributeError(name)
        msg = f"a vertex uses its worker ({name}) while it is not called"
        hint = "send, ask for notifications and read worker and workers in on_recv and on_notify only."
        raise CapabilityError(msg, where=caller(), hint=hint)


_OUTSIDE: Any = _NoContext()


class Vertex:
    """A stage's instance on one worker: receives and sends batches, keeps state, requests notifications.

    Write a subclass with `on_recv` and, if it waits for complete times, `on_notify`. An instance given to
    `Dataflow.vertex` is a template: every worker runs its own copy, and the fields that changed are its
    state.

    The laws (Naiad section 2.2): in `on_recv(edge, t, _)` and `on_notify(t)` a vertex may send, and request
    notifications, only at times later than or equal to ``t``; after `on_notify(t)` nothing arrives at a time
    earlier than or equal to ``t``.

    Example:
        Count the records of each time, and send the count when the time is complete:

        >>> class Count(Vertex):
        ...     def __init__(self):
        ...         self.counts = {}
        ...
        ...     def on_recv(self, edge, time, batch):
        ...         self.counts[time] = self.counts.get(time, 0) + batch.num_rows
        ...         self.notify_at(time)
        ...
        ...     def on_notify(self, time):
        ...         self.send_by(0, time, pa.table({"rows": [self.counts.pop(time)]}))

        The fields are the state, so that a test needs no flow:

        >>> count = Count()
        >>> count.restore({"counts": {0: 2}})
        >>> count.checkpoint()
        {'counts': {0: 2}}
    """

    initial: Iterable[int] = ()
    """Epochs at whose end every worker is notified without a request."""

    combine: Callable[[int, pa.Table], pa.Table] | None = None
    """Optional: combine a worker's records for this vertex in one round, before the exchange.

    A method ``combine(self, edge, batch)``: it gets the number of the input, as `on_recv` does, and records
    of one round for any workers. Its result has the same columns, and is partitioned and received instead.
    Records that a source's task has read are combined if a sample of them becomes fewer. It runs on the
    template, so it must not read or write state.

    The law: records that agree in the columns by which the input is partitioned are combined as they would
    be without the others, or left as they are, as where combining few does not pay; so group by these
    columns, and keep their values. The simulator checks it, and lets sums of floats differ by their rounding.
    `on_recv` gets combined records and others, as those of its own worker are not combined.

    Example:
        Without threads, which add floats in varying order: a repeated batch has the same sums.

        >>> class Totals(Vertex):  # of an input that is partitioned by "k"
        ...     def combine(self, edge, batch):
        ...         sums = batch.group_by("k", use_threads=False).aggregate([("n", "sum")])
        ...         return sums.rename_columns(["k", "n"])
    """

    before_exchange: Callable[[int, pa.Table], pa.Table] | None = None
    """Optional: transform each batch at the sender, before the exchange.

    A method ``before_exchange(self, edge, batch)``: it gets the number of the input, as `on_recv` does. Its
    result has the columns by which the input is partitioned, with the same values in each record, because
    the exchange is elided where the input is partitioned so already. It is received instead of the batch.
    It runs on the template, so it must not read or write state.
    """

    reads_time: ClassVar[bool] = True
    """Whether the code may read a loop counter: loops around the vertex then keep iterations distinct."""

    logged: bool = False
    """Whether a checkpoint logs the vertex's calls instead of writing its state (Naiad section 3.4).

    By default the full state is written after every round in which the vertex ran. If logged, a round writes
    the batches that the vertex received, and the full state only when the log has grown as large: with much
    state and little input a round then costs its input. The law: equal calls, in equal order, lead to equal
    state (no clock, no random numbers, no outside data). Restoring repeats the calls of the log, without
    sending; after a change of its code a vertex repeats old calls with the new code. An `Arrangement` needs
    no log: it writes only its changes.

    Example:
        >>> class Count(Vertex):
        ...     logged = True
    """

    reentrancy: int = 0
    """To which depth the vertex may be called while a call of it runs (Naiad section 3.2); at most 60.

    By default a message to this worker waits in its queue until the call that sends it has ended, and all
    that waits at one (input, time) arrives as one batch. A re-entrant vertex gets a message inside of the
    `send_by` that sends it, as long as at most `reentrancy` of its own calls run; deeper ones wait in the
    queue. On a cycle that makes more of each record the queue then stays short, as in a search of depth
    first; but batches are smaller, so it takes more calls.

    The law: what the vertex sends and keeps depends neither on the order of the messages nor on how they are
    divided into batches. Then all outputs are the same for each depth. Its fields are as it leaves them when
    it sends. A re-entrant vertex cannot be `logged`: repeated calls would not be inside each other.

    Example:
        >>> class Expand(Vertex):
        ...     reentrancy = 8
    """

    per_time: bool = False
    """Whether what the vertex sends depends on no record of an earlier epoch. Such a step may be added at a
    restart; another one would start without the past, and is refused."""

    sends_for_user: bool = False
    """Whether it is the user's, or sends what a function of the user's returns, as that returns it.

    These records are checked, and copied: the user may write to his arrays again."""

    keeps_signs: ClassVar[bool] = False
    """Whether the signs of retractions, a column of an input, leave with its records, as from a join."""

    announces: ClassVar[bool] = False
    """Whether `repartition` may lead to changes of the output. Each worker is then notified of the open
    epochs, and of the next one. For vertices outside loops."""

    improves: ClassVar[bool] = False
    """Whether the vertex may receive records that later rounds improve: it finalises them itself, or drops
    them."""

    checks_records: ClassVar[bool] = False
    """Whether the vertex counts records that fail a condition, by `Context.expected`."""

    needs_frontier: ClassVar[bool] = False
    """Whether the vertex calls `compaction_frontier` without waiting: then the coordinator sends it."""

    pickles: str = ""
    """Why other values than those of `checkpoint` may be pickled into the state; they are refused if empty.

    Unpickling runs code: with write access to the checkpoint anybody could then run code in the workers.

    Example:
        >>> class Search(Vertex):
        ...     pickles = "a trie has no Arrow form; only we can write to the checkpoint"
    """

    _context: Context = _OUTSIDE
    _transient: ClassVar[frozenset[str]] = frozenset({"_context"})

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.sends_for_user |= cls.__module__.partition(".")[0] != __name__.partition(".")[0]
        reason: object = cls.pickles
        if not isinstance(reason, str):
            msg = f"vertex {cls.__name__}: pickles={reason!r} is not a reason"
            raise StateError(msg, hint="give the reason as a text, or leave pickles out.")

    def on_recv(self, edge: int, time: Timestamp, batch: pa.Table) -> None:
        """Receive a batch on input `edge` at `time`: all batches that waited at this (edge, time) as one.

        Args:
            edge: the number of the input, from 0.
            time: the time of the batch, at which or after which the vertex may send.
            batch: an Arrow table with the input's columns.
        """
        msg = f"{type(self).__name__} gets records and has no on_recv(self, edge, time, batch)"
        raise NotImplementedError(msg)

    def on_notify(self, time: Timestamp) -> None:
        """Called when no batch will arrive at a time earlier than or equal to `time`."""

    def send_by(self, edge: int, time: Timestamp, batch: pa.Table) -> None:
        """Send a batch by output `edge` at `time`.

        Args:
            edge: the number of the output, from 0.
            time: the time of the call, or a later one.
            batch: an Arrow table, a pandas frame or rows, with the output's columns.

        Raises:
            CapabilityError: `time` is not later than or equal to the time being processed.
            SchemaError: the batch does not have the output's schema.
        """
        self._context.send(edge, time, batch)

    def notify_at(self, time: Timestamp, *, capability: Any = ...) -> None:
        """Request `on_notify(time)` when nothing can arrive at `time` or earlier. Requests are idempotent.

        In `on_notify(time)` a request of the same time is another one: the time stays incomplete, and the
        vertex goes on with its work in the next call. One that does so for ever is warned of as a loop is.

        Args:
            time: the guarantee time.
            capability: the earliest time at which `on_notify` may send: by default `time`; a later one lets
                other vertices proceed; None, for a notification that only cleans up, delays no other (Naiad
                section 2.4).

        Raises:
            CapabilityError: a time is earlier than the one being processed, or the capability is earlier than
                the guarantee.
        """
        self._context.notify(time, time if capability is ... else capability)

    @property
    def worker(self) -> int:
        """The number of this worker, from 0."""
        return self._context.worker

    @property
    def workers(self) -> int:
        """The number of workers."""
        return self._context.workers

    @property
    def waits(self) -> bool:
        """Whether the vertex may request notifications."""
        return type(self).on_notify is not Vertex.on_notify or bool(tuple(self.initial))

    def checkpoint(self) -> Mapping[str, Any]:
        """The state by name: plain values, times, numpy arrays and Arrow tables (Naiad section 3.4).

        Also frozen dataclasses of these, if the class refers to them in a type hint or in its methods' code.
        """
        return {name: value for name, value in vars(self).items() if name not in self._transient}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the result of `checkpoint`."""
        for name, value in state.items():
            initial = vars(self).get(name)
            # a defaultdict or Counter stays one
            if isinstance(initial, dict) and type(initial) is not type(value):
                initial.clear()
                initial.update(value)
            else:
                setattr(self, name, value)

    def repartition(self, states: States, workers: int, partition: Partitioner) -> States:
        """Repartition the state to another number of workers; by default a rescale is refused.

        Called on the template, when a flow with state continues with another number of workers. Every worker
        is then notified of every time that any worker requested, so `on_notify` must accept a time without
        records on this worker.

        Args:
            states: the result of `checkpoint` on each worker that had a state.
            workers: the number of states to make.
            partition: `partition(edge, table)` partitions records like those of input `edge`, by its columns
                `by`: one table for each new worker, some of them empty.

        Example:
            >>> class Seen(Vertex):
            ...     def __init__(self):
            ...         self.keys = set()
            ...
            ...     def repartition(self, states, workers, partition):
            ...         keys = set.union(*(state["keys"] for state in states))
            ...         parts = partition(0, pa.table({"key": sorted(keys)}))
            ...         return [{"keys": set(one["key"].to_pylist())} for one in parts]
        """
        raise NotImplementedError


class Stateless(Vertex):
    """A vertex that computes from each batch, independently, one batch per output at the batch's time.

    Stateless vertices run where their input is, also in the sources' own tasks. `reads` and `condition` are
    optional: with them a source reads only the columns and records that are needed.

    Example:
        >>> import timely_spark as ts
        >>> class Paid(Stateless):
        ...     def apply(self, batch):
        ...         return (batch.filter(self.condition).select(["id"]),)
        ...
        ...     def reads(self, columns, schema):
        ...         return {"id", "paid"}
        ...
        ...     @property
        ...     def condition(self):
        ...         return pc.field("paid") > 0
        >>> flow = ts.Dataflow("paid")
        >>> orders = flow.input("orders", "id long, paid long, note string")
        >>> _ = flow.vertex(Paid(), orders, "id long").capture("out")
        >>> ts.testing.run(flow, {"orders": [[(1, 0, ""), (2, 5, "")]]})["out"].rows()
        {0: [(2,)]}
    """

    reads_time, per_time = False, True
    #: whether it sends at most one record for each, which depends on no other record
    one_each = False

    def apply(self, batch: pa.Table) -> tuple[pa.Table, ...]:
        """One table per output."""
        raise NotImplementedError

    def reads(self, columns: Sequence[str], schema: pa.Schema) -> Collection[str]:
        """The columns of the input that `apply` needs for these of the output, by default all.

        Args:
            columns: those of the output that are read.
            schema: the input's.
        """
        return {*schema.names}

    @property
    def condition(self) -> pc.Expression | None:
        """An expression that is true of all records that have an output; None means unknown."""
        return None

    def on_recv(self, edge: int, time: Timestamp, batch: pa.Table) -> None:
        """Send the results of `apply`."""
        for port, table in enumerate(self.apply(batch)):
            self.send_by(port, time, table)


class Forward(Stateless):
    """Forward every batch: a vertex between one exchange and several readers."""

    def apply(self, batch: pa.Table) -> tuple[pa.Table, ...]:
        return (batch,)
