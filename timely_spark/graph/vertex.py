"""Vertices: what computes. The four primitives of Naiad, and the base class of everything that uses them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Protocol

import pyarrow as pa

from timely_spark.errors import StateError
from timely_spark.times import Times, Timestamp


class Context(Protocol):
    """What the worker lends a vertex while it calls it."""

    worker: int
    workers: int
    times: Times

    def send(self, edge: int, time: Timestamp, batch: pa.Table) -> None:
        """Send by an output."""

    def notify(self, time: Timestamp, capability: Timestamp | None) -> None:
        """Ask for a notification."""

    def output(self, time: Timestamp, batch: pa.Table) -> None:
        """Hand a batch to the driver."""

    def feeds(self, edge: int) -> Vertex | None:
        """The vertex on this worker whose output comes to input `edge` as it is; None: there is none.

        Its state may be read. It may be ahead of what has come from it.
        """
        ...

    def coarse(self, time: Timestamp) -> Timestamp:
        """The time with the loop counters that do not matter to the accumulated state set to 0."""
        ...

    def since(self) -> int:
        """An epoch: nothing will arrive anywhere at an earlier one."""
        ...

    def since_here(self, *, onward: bool = False) -> int:
        """An epoch, no earlier: nothing will arrive here, on this worker; `onward`: nor where it sends to."""
        ...


class Vertex:
    """One stage's part on one worker: receives batches, may keep state, sends batches, asks to be notified.

    Write a subclass with `on_recv` and, if it waits for completeness, `on_notify`. An instance given to
    `Dataflow.vertex` is a template: every worker runs its own copy, and the fields that changed are its
    state.

    The laws (Naiad section 2.2): in `on_recv(edge, t, _)` and `on_notify(t)` a vertex may send and ask only
    at times later than or equal to ``t``; after `on_notify(t)` nothing arrives at a time earlier than or
    equal to ``t``.

    Example:
        Count what arrives at each time, and say so when the time is complete:

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
    """

    initial: Iterable[int] = ()
    """Epochs to be notified of from the start, before anything is received, on every worker."""

    combine: Callable[[int, pa.Table], pa.Table] | None = None
    """May reduce what a worker sends here in one round, before the exchange. None: every record must come.

    A method ``combine(self, edge, batch)``: it gets the number of the input, as `on_recv` does, and some of
    the records that are for one worker; what it returns has the same columns, and is received instead.
    """

    before_exchange: Callable[[int, pa.Table], pa.Table] | None = None
    """May change each batch where it is sent from, before the exchange. None: the batch is sent as it is.

    A method ``before_exchange(self, edge, batch)``: it gets the number of the input, as `on_recv` does. What
    it returns has the columns by which the input is partitioned, and is received instead of the batch. It
    runs on the template, so it must not read or write state.
    """

    reads_time: ClassVar[bool] = True
    """Whether the code may read the loop counter of a loop around it; the loop then counts its iterations."""

    logged: bool = False
    """Whether a checkpoint has the calls since the last one instead of the state (Naiad section 3.4).

    By default the state is written in full after every round in which the vertex ran. Logged, a round writes
    what the vertex received in it, and the state in full only when the log has become as large: so with much
    state and little input a round costs its input. Its law: the same calls, in the same order, lead to the
    same state (no clock, no random numbers, nothing read from elsewhere). It costs the time to make the calls
    of the log again wherever the vertex is restored, what they send being left out; and a vertex whose code
    has changed makes old calls with its new code. An `Arrangement` needs no log: it writes what changed.

    Example:
        >>> class Count(Vertex):
        ...     logged = True
    """

    announces: ClassVar[bool] = False
    """Whether what `repartition` makes may have something to say. Each worker is then notified of the epochs
    that are not over, and of the next one, whatever comes there. For vertices outside of loops."""

    settles: ClassVar[bool] = False
    """Whether it asks for `since_here`, and does not wait. What may come to it is then told each round."""

    pickles: str = ""
    """Why values that have no form of their own may be pickled into the state; empty: they are refused.

    Whoever can write to the checkpoint then runs code in the workers: unpickling calls what the bytes name.

    Example:
        >>> class Search(Vertex):
        ...     pickles = "a trie has no Arrow form; only we can write to the checkpoint"
    """

    _context: Context
    _transient: ClassVar[frozenset[str]] = frozenset({"_context"})

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        reason: object = cls.pickles
        if not isinstance(reason, str):
            msg = f"vertex {cls.__name__}: pickles={reason!r} is no reason"
            raise StateError(msg, hint="say why in words, or leave it out")

    def on_recv(self, edge: int, time: Any, batch: pa.Table) -> None:
        """Receive a batch on input `edge` at `time`. Called once for all that waited at one (edge, time)."""
        raise NotImplementedError

    def on_notify(self, time: Any) -> None:
        """No batch will arrive at a time earlier than or equal to `time` any more."""

    def send_by(self, edge: int, time: Any, batch: pa.Table) -> None:
        """Send a batch by output `edge` at `time`.

        Raises:
            CapabilityError: `time` is not later than or equal to the time being processed.
            SchemaError: the batch has not the schema declared for the output.
        """
        self._context.send(edge, time, batch)

    def notify_at(self, time: Any, *, capability: Any = ...) -> None:
        """Ask for `on_notify(time)` once nothing can arrive at `time` or earlier; twice is once.

        Args:
            time: the guarantee time.
            capability: the time from which `on_notify` may send: by default `time`; later than `time`, to let
                others proceed; or None, for a notification that only cleans up and holds nobody back (Naiad
                section 2.4).

        Raises:
            CapabilityError: either time is earlier than the one being processed, or the capability than the
                guarantee.
        """
        self._context.notify(time, time if capability is ... else capability)

    @property
    def worker(self) -> int:
        """Which worker this is, from 0."""
        return self._context.worker

    @property
    def workers(self) -> int:
        """How many workers there are."""
        return self._context.workers

    @property
    def waits(self) -> bool:
        """Whether the vertex ever asks for a notification."""
        return type(self).on_notify is not Vertex.on_notify or bool(tuple(self.initial))

    def checkpoint(self) -> Mapping[str, Any]:
        """The state by name: plain values, times, numpy arrays and Arrow tables (Naiad section 3.4).

        And frozen dataclasses of them, to which the class refers in a type hint or in its methods' code.
        """
        return {name: value for name, value in vars(self).items() if name not in self._transient}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take up the state that `checkpoint` gave."""
        for name, value in state.items():
            fresh = vars(self).get(name)
            if isinstance(fresh, dict) and type(fresh) is not type(
                value
            ):  # a defaultdict or Counter stays one
                fresh.clear()
                fresh.update(value)
            else:
                setattr(self, name, value)

    def repartition(
        self,
        states: Sequence[Mapping[str, Any]],
        workers: int,
        partition: Callable[[int, pa.Table], list[pa.Table]],
    ) -> Sequence[Mapping[str, Any]]:
        """Repartition the state to another number of workers; by default that is refused.

        Called on the template, when a flow with state continues with another number of workers.
        Every worker is then notified of every time that any worker asked for, so `on_notify` must accept a
        time of which the worker has no records.

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
    """A vertex that makes of each batch, by itself, one batch per output, at the same time.

    Nothing else may be looked at: such vertices run wherever their input is, the sources' own tasks included.
    """

    reads_time = False

    def apply(self, batch: pa.Table) -> tuple[pa.Table, ...]:
        """One table per output."""
        raise NotImplementedError

    def on_recv(self, edge: int, time: Any, batch: pa.Table) -> None:
        """Send what `apply` makes of the batch."""
        for port, table in enumerate(self.apply(batch)):
            self.send_by(port, time, table)


class Forward(Stateless):
    """Pass everything on: where data must stand still between an exchange and several readers."""

    def apply(self, batch: pa.Table) -> tuple[pa.Table, ...]:
        """The batch itself."""
        return (batch,)
