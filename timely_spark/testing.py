"""A simulator for tests: runs a flow on simulated workers in this process, without a JVM, in milliseconds.

The simulator uses the plan, the `step` and the coordinator that run on Spark. Its schedule is one of those of
Spark: further rounds follow in a batch, or wait for the next one. A seed adds schedules that are rare on
Spark: late messages, rounds that end early, batches without input, and repeated batches.

Example:
    The result does not depend on the schedule or the number of workers:

    >>> import timely_spark as ts
    >>> flow = ts.Dataflow("counts")
    >>> words = flow.input("words", "word string")
    >>> _ = words.group_by("word").aggregate(count="count").capture("counts")
    >>> seen = {
    ...     str(ts.testing.run(flow, {"words": [["b", "a"], ["b"]]}, workers=w, seed=s)["counts"].rows())
    ...     for w in (1, 2, 3)
    ...     for s in range(4)
    ... }
    >>> seen
    {"{0: [('a', 1), ('b', 1)], 1: [('b', 2)]}"}

    Nor on crashes, which reveal a vertex that keeps state outside its fields:

    >>> total = 0
    >>> class Total(ts.Vertex):
    ...     def on_recv(self, edge, time, batch):
    ...         global total
    ...         total += batch.num_rows
    ...         self.send_by(0, time, pa.table({"total": [total]}))
    >>> flow = ts.Dataflow("total")
    >>> _ = flow.vertex(Total(), flow.input("x", "n long"), "total long", name="sum").capture("out")
    >>> ts.testing.run(flow, {"x": [[1], [2], [3], [4]]}, seed=1, crashes=0.5)
    Traceback (most recent call last):
    timely_spark.testing.Diverged: step 'out' (...), or one before it: run again after a crash, ...
    Hint: keep all that a vertex remembers in its fields...
"""

from __future__ import annotations

import json
import logging
import warnings
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from timely_spark.captured import Captured, Result, renumbered
from timely_spark.compiler import Node, Plan
from timely_spark.coordinator import Coordinator, RoundLimits, RoundResult
from timely_spark.coordinator.local_rounds import run_local_rounds, run_workers
from timely_spark.coordinator.loops import check_endless, notices_to_log, with_warn_after
from timely_spark.coordinator.spreading import spread
from timely_spark.crashes import Crash, Crashes, SimulatedBatch, results_by_step
from timely_spark.dataflow import Dataflow
from timely_spark.errors import BadArgument, TimelyError, row_texts
from timely_spark.graph import Kind, as_table, caller, integer, refuse
from timely_spark.graph.arguments import check_schedule, most_epochs
from timely_spark.operators.lattice import broken_lattice
from timely_spark.provenance import Explanation, explain_row
from timely_spark.runtime.process import with_default_limit
from timely_spark.schedules import SEED, Schedule, shuffled
from timely_spark.simulated import SimulatedFolders
from timely_spark.state.arrow import from_bytes
from timely_spark.state.codec import BlobStore
from timely_spark.times import as_epoch
from timely_spark.worker import Budget, pack, pack_input, step, wire
from timely_spark.worker.epoch_columns import by_column
from timely_spark.worker.record import Recorded, recorded
from timely_spark.worker.wire import ROWS, Message

__all__ = [
    "BrokenLaw", "Captured", "Diverged", "Explanation", "LoopWarning", "Recorded", "Result", "Simulation",
    "check_lattice", "explain_row", "recorded", "run",
]  # fmt: skip


class LoopWarning(UserWarning):
    """A warning that a query on Spark would log: a loop seems endless, or ended at its limit.

    Example:
        >>> import timely_spark as ts, warnings
        >>> flow = ts.Dataflow("cut")
        >>> _ = flow.input("x", "n long").loop(lambda n: n.select(n="n + 1"), max_iterations=3).capture("out")
        >>> with warnings.catch_warnings(record=True) as caught:
        ...     warnings.simplefilter("always")
        ...     result = ts.testing.run(flow, {"x": [[0]]})
        >>> [warning.category.__name__ for warning in caught], result.cut_off
        (['LoopWarning'], {'loop': 1})
    """


class Diverged(TimelyError, AssertionError):
    """A batch that was repeated after a crash had another result than before.

    On Spark, records would be lost or delivered twice. Naiad section 3.4: a vertex may depend only on the
    state that CHECKPOINT and RESTORE bring back, and on the messages that it receives.

    >>> issubclass(Diverged, AssertionError)
    True
    """


class Simulation:
    """A flow on simulated workers, batch by batch.

    With `crashes`, an attempt at a batch may end at any point: before or after a worker's round or a
    delivery, between local rounds, or before the commit. Its effects are lost, except its deliveries. Workers
    and coordinator are restored from the last commit (one time in four from an earlier one, as if the
    checkpoint had been rolled back), and the batches since then are repeated with the same input, its rows
    in another order.

    Law: the outputs of each epoch are those of a run without crashes, and so are, for the same seed, all
    states (Naiad section 3.4). So a repeated batch must have the same result, deliveries included.

    Args:
        flow: the flow, or its plan.
        workers: the number of workers.
        seed: the seed of a schedule with what is rare on Spark; None means each batch delivers all messages,
            in an order that is drawn, as are its rounds. The environment variable `TIMELY_SPARK_SEED` has
            the seed of these draws; by default it depends on the flow's name and on `workers`.
        budget: the budget of each worker's round; with a seed, random by default.
        rounds_per_batch: the most rounds of each batch; 1: each round is a batch, and begins with the states
            that the workers wrote. None means drawn for each batch, without a seed from 1 and Spark's 100.
        blobs: the store for large parts of states; by default states contain them. A part that is stored
            again under the same name must have the same reference.
        crashes: the probability that an attempt at a batch crashes. The seed also decides where it crashes
            and how far it is rolled back; its schedule is the same with and without crashes.
        warn_after: iterations of a loop in one epoch, after which there is a `LoopWarning`, and after twice
            as many `run` fails if the loop has no `max_iterations`; None means never.
        epoch_limit: the most records or bytes that a step may send at one time, as for `Dataflow.start`.
        on_negative: "warn" (by a `UserWarning`) or "raise", as for `Dataflow.start`.
        given_epochs: whether state expires by the epochs that `send` is given, and ids are made of them, as
            `run` does; else by the clock an epoch is a batch.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("hello")
        >>> _ = flow.input("x", "n long", epochs="manual").exchange("n").capture("out")
        >>> simulation = ts.testing.Simulation(flow, workers=2)
        >>> simulation.send("x", [1, 2])
        >>> simulation.advance_to("x", 1)
        >>> simulation.step(), simulation.run(), simulation.idle
        (True, None, True)
        >>> simulation.captured["out"].rows(), simulation.rounds
        ({0: [(1,), (2,)]}, 1)
        >>> simulation = ts.testing.Simulation(flow, workers=2, seed=4, crashes=0.8)
        >>> simulation.send("x", [1, 2])
        >>> simulation.close("x")
        >>> simulation.run()
        >>> simulation.captured["out"].rows(), simulation.crashed > 0  # equal in spite of crashes
        ({0: [(1,), (2,)]}, True)

    Raises:
        BadArgument: `crashes` is not at least 0 and below 1; or another argument is not allowed.
        TimelyError: by `send` and `advance_to`: the epoch, or the input, is closed.
        Diverged: by `step` and `run`: a repeated batch had another result.
    """

    def __init__(
        self,
        flow: Dataflow | Plan,
        *,
        workers: int = 1,
        seed: int | None = None,
        budget: Budget | None = None,
        rounds_per_batch: int | None = None,
        blobs: BlobStore | None = None,
        crashes: float = 0.0,
        warn_after: int | None = 10_000,
        epoch_limit: int | str | None = None,
        on_negative: Literal["warn", "raise"] = "warn",
        given_epochs: bool = False,
    ) -> None:
        check_schedule(seed, crashes, flow=flow, fits=isinstance(flow, Dataflow | Plan))
        plan = flow.compile(workers) if isinstance(flow, Dataflow) else flow
        plan = plan.counting_given_epochs() if given_epochs else plan
        self.plan = with_default_limit(with_warn_after(plan, warn_after, epoch_limit, on_negative))
        self.plan.checks_laws = True
        self.coordinator = Coordinator(self.plan)
        self.schedule = Schedule(self.plan, seed, rounds=rounds_per_batch, budget=budget)
        self.blobs = blobs
        self.states: list[bytes | None] = [None] * self.plan.workers
        #: the number of rounds so far, and of the next batch
        self.rounds = 0
        self.batch = 0
        outputs: Any = [node for node in self.plan.nodes if node.stage.kind in {Kind.OUTPUT, Kind.INSPECT}]
        self.captured: dict[str, Captured] = {
            node.name: Captured(node.template.schema, diff=self.plan.differences.get(node.name))
            for node in outputs
        }
        #: of the last batch, all its rounds together
        self.result: RoundResult = self.coordinator.first()
        self.waiting: list[pa.Table] = [self.result.rows]
        self.log: list[tuple[int, RoundResult]] = []
        #: called with (batch, worker, state before, rows in, header, state after, rows out) of a first round
        self.on_step: Callable[..., object] | None = None
        #: the numbers of crashed attempts and of repeated deliveries
        self.crashed = self.redelivered = 0
        self._crashes = Crashes.of(self.plan, seed, crashes)
        #: the batches that may be repeated, up to the last one
        self._begun: deque[SimulatedBatch] = deque(maxlen=_KEPT if crashes else 1)
        #: the results of batches, and the deliveries: repetitions must be equal
        self._seen: dict[tuple[int, str], tuple[bytes | None, pa.Table]] = {}
        self._delivered: dict[tuple[str, int, int | None], pa.Table] = {}
        self._parts: dict[tuple[str, int], list[pa.Table]] = defaultdict(list)
        self._input: list[pa.Table] = []
        self._cancel: list[int] = []
        self._input_epochs: dict[str, int | None] = dict.fromkeys(self.plan.sources, 0)
        self._seq, self.folders = 0, SimulatedFolders(flow, self.plan)

    # -- input -----------------------------------------------------------------------------------------------

    def send(self, name: str, records: Any, *, epoch: int | None = None) -> None:
        """Send records to an input; by the clock they join the epoch of the next batch."""
        source = self.plan.source(name)
        table = as_table(records, source.stage.outputs[0], of=f"input {name!r} ({caller()})")
        at = None if by_column(source.epochs) else self._open(name, epoch)
        self.plan.spread(self.coordinator.spread)  # another simulation of the flow may have others
        if source.epochs == "manual":
            self._call(name, "send", at, table)
            return
        self._seq += 1
        for shard in range(shards := self.schedule.shards()):
            size = -(-table.num_rows // shards)
            self._input.append(pack(self.plan, name, table.slice(shard * size, size), shard, self._seq))

    def advance_to(self, name: str, epoch: int) -> None:
        """Close the epochs before `epoch` of an input with manual epochs."""
        self._input_epochs[name] = epoch = self._open(name, as_epoch(epoch, f"input {name!r}", caller()))
        self._call(name, "advance", epoch)

    def close(self, name: str) -> None:
        """Close an input. Closing it again does nothing."""
        current, self._input_epochs[name] = self._input_epochs[self.plan.source(name).name], None
        if current is not None:
            self._call(name, "close")

    def _call(self, name: str, kind: Any, epoch: int | None = None, table: pa.Table | None = None) -> None:
        """Enter a call of an input's handle."""
        self._seq += 1
        self._input.append(pack_input(self.plan, name, [(self._seq, kind, epoch, table)]))

    def cancel(self, epoch: int) -> None:
        """End the loops of an epoch, with the next batch: see `Query.cancel`."""
        self._cancel.append(as_epoch(epoch, "cancel", caller()))

    def _open(self, name: str, epoch: int | None = None) -> int:
        """The epoch, by default the input's current one, checked to be open."""
        current = self._input_epochs[self.plan.source(name).name]
        at = current if epoch is None else as_epoch(epoch, f"input {name!r}", caller())
        if current is None or at is None or at < current:
            where = "is closed" if current is None else f"stands at epoch {current}, and {at} is closed"
            msg = f"input {name!r} {where}"
            raise TimelyError(msg, where=caller(), hint="send before advance_to() and close()")
        return at

    # -- rounds ----------------------------------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        """Whether there is nothing to run."""
        return not self._input and not any(rows.num_rows for rows in self.waiting)

    def step(self) -> bool:
        """Run one batch to its commit; False if there is nothing to run."""
        self.folders.replay(self)
        if self.idle:
            return False
        self._begun.append(self._begin())
        last = at = len(self._begun) - 1
        try:
            while at <= last:
                at = self._tried(at)
        except Exception:
            if not self.schedule.rare:
                _log.warning(_AGAIN, self.plan.name, SEED, self.schedule.seed)
            raise
        return True

    def run(self, limit: int = 10_000) -> None:
        """Run batches until there is nothing to run.

        Raises:
            TimelyError: a loop without `max_iterations` has twice as many iterations in an epoch as it needs
                for a warning; or the flow still runs after `limit` batches.
        """
        for _ in range(integer("limit", limit)):
            if not self.step():
                return
            if self.result.notices:
                check_endless(self.result.notices, self.plan, self.coordinator.loops.bounds, caller())
        msg = f"flow {self.plan.name!r} still runs after {limit} batches"
        hint = "let each loop drop repeated records, as distinct or min do; or give run() a larger limit."
        raise TimelyError(msg, where=caller(), hint=hint)

    def _begin(self) -> SimulatedBatch:
        """The next batch, with the state before it."""
        busy = {worker for table in self._input for worker in table.column("worker").to_pylist()}
        arriving, later = self.schedule.arriving(self.waiting, busy, self.plan.workers)
        rows, self._input = pa.concat_tables([ROWS.empty_table(), *arriving, *self._input]), []
        cancel, self._cancel = self._cancel, []
        return SimulatedBatch(
            number=self.batch,
            rows=rows,
            later=later,
            cancel=cancel,
            result=self.result,
            states=list(self.states),
            coordinator=json.dumps(self.coordinator.encode()) if self._crashes.likely else "",
            parts={key: list(parts) for key, parts in self._parts.items()},
            draws=self.schedule.random.getstate(),
            rounds=self.rounds,
            logged=len(self.log),
        )

    def _tried(self, at: int) -> int:
        """Try to run a batch. Returns the position of the batch to run next."""
        try:
            self._attempt(self._begun[at])
        except Crash:
            self.crashed += 1
            at = self._crashes.back_to(at)
            self._restore(self._begun[at])
            return at
        return at + 1

    def _restore(self, batch: SimulatedBatch) -> None:
        """Restore the state before a batch."""
        self.batch, self.result, self.states = batch.number, batch.result, list(batch.states)
        self.coordinator = Coordinator.decode(self.plan, json.loads(batch.coordinator))
        self._parts = defaultdict(list, {key: list(parts) for key, parts in batch.parts.items()})
        self.rounds = batch.rounds
        del self.log[batch.logged :]

    def _attempt(self, batch: SimulatedBatch) -> None:
        """Run a batch to its commit, or to a crash."""
        point, rows = self._crashes.attempt(), batch.rows
        self.batch = batch.number
        self.schedule.random.setstate(batch.draws)
        if self.crashed:
            rows = shuffled(rows, self._crashes.random)

        def run_worker(worker: int, own: pa.Table) -> pa.Table:
            next(point)
            before, header = self.states[worker], batch.result.header
            self.states[worker], sent = step(
                self.plan, before, self.batch, worker, own, header, self.schedule.budget(), self.blobs
            )
            self._check(f"the round of worker {worker}", self.states[worker], sent)
            if self.on_step is not None:
                self.on_step(self.batch, worker, before, own, header, self.states[worker], sent)
            return sent

        warned = {*self.coordinator.negatives}
        sent = run_workers(rows, run_worker)
        next(point)
        self.result = self.coordinator.apply_round(self.batch, sent)
        if not batch.later:  # a message that is late for this round must arrive before the next round
            self._local_rounds(point)
        self.result = self.coordinator.cancel(batch.cancel, self.result)
        if not batch.later:
            self._spread(point)
        next(point)
        self._collect(point)
        self._crashes.end()
        self.waiting = [*batch.later, self.result.rows]
        self.log.append((self.batch, self.result))
        self.rounds += self.result.stats["rounds"]
        self.batch += 1
        for notice in notices_to_log(self.result.notices, self.plan.warn_after):
            warnings.warn(str(notice), LoopWarning, stacklevel=2)
        for name in sorted(self.coordinator.negatives.keys() - warned):
            warnings.warn(self.coordinator.negatives[name][1], UserWarning, stacklevel=2)

    def _local_rounds(self, point: Iterator[None]) -> None:
        bound = RoundLimits(rounds=self.schedule.rounds())
        states = {worker: state for worker, state in enumerate(self.states) if state is not None}

        def budget() -> Budget | None:  # called before each local round
            next(point)
            return self.schedule.budget()

        self.result, changed = run_local_rounds(
            self.coordinator, self.result, states, bound, blobs=self.blobs, budget=budget
        )
        for index, worker in changed.items():
            next(point)
            self.states[index] = worker.checkpoint(f"{index}-{self.batch}")
            self._check(f"the local rounds of worker {index}", self.states[index], ROWS.empty_table())
        self._check("the messages left", None, wire.only(self.result.rows, Message))

    def _spread(self, point: Iterator[None]) -> None:
        """Spread the hot keys that the batch has found."""
        self.coordinator, self.result, workers = spread(
            self.coordinator, self.result, self.states, self.blobs
        )
        for index, worker in enumerate(workers):
            next(point)
            self.states[index] = worker.checkpoint(f"{index}-{self.batch}")

    def _collect(self, point: Iterator[None]) -> None:
        for sink, epoch, payload in zip(
            *(self.result.outputs.column(c) for c in ("sink", "epoch", "payload")), strict=True
        ):
            self._parts[sink.as_py(), epoch.as_py()].append(from_bytes(payload.as_buffer()))
        for node in self.plan.nodes:
            if node.stage.kind is Kind.INSPECT:
                for _, epoch in [key for key in self._parts if key[0] == node.name]:
                    table = pa.concat_tables(self._parts.pop((node.name, epoch)))
                    self._deliver(node, epoch, table, batch=self.batch)
                    next(point)
        for sink, epoch in self.result.released:
            template: Any = (node := self.plan.by_name[sink]).template
            self._deliver(node, epoch, template.finish(self._parts.pop((sink, epoch), [])))
            next(point)
        self.folders.end(name for name, at in self.result.frontier.items() if self.result.complete and not at)

    def _deliver(self, node: Node, epoch: int, table: pa.Table, *, batch: int | None = None) -> None:
        """Deliver an epoch's records, or a batch's part of them if released on arrival."""
        self.folders.deliver(node.name, epoch, table)
        seen = self.captured[node.name].epochs
        old = self._delivered.get((node.name, epoch, batch))
        if old is None:
            seen[epoch] = table if epoch not in seen else pa.concat_tables([seen[epoch], table])
            if self._crashes.likely:
                self._delivered[node.name, epoch, batch] = table
            return
        self.redelivered += 1
        before, now = (Counter(row_texts(one)) for one in (old, table))
        if before != now:
            msg = (
                f"output {node.name!r} ({node.stage.where}): after a crash, epoch {epoch} was delivered "
                f"with other records: more {list(now - before)[:3]}, less {list(before - now)[:3]}"
            )
            raise Diverged(msg, hint=_HINT)

    def _check(self, part: str, state: bytes | None, rows: pa.Table) -> None:
        """Check that a part of the batch has the same state and rows as in an earlier attempt."""
        if not self._crashes.likely:
            return
        self._seen = {key: seen for key, seen in self._seen.items() if key[0] >= self._begun[0].number}
        old_state, old_rows = self._seen.setdefault((self.batch, part), (state, rows))
        if state == old_state and rows.equals(old_rows):
            return
        before, now = results_by_step(self.plan, old_state, old_rows), results_by_step(self.plan, state, rows)
        differ = [node for node in self.plan.nodes if before[node.name] != now[node.name]]
        where = f"{differ[0].name!r} ({differ[0].stage.where})" if differ else f"those of {self.plan.name!r}"
        msg = (
            f"step {where}, or one before it: run again after a crash, from the same state and input, "
            f"batch {self.batch} had another result (seen in {part})"
        )
        raise Diverged(msg, hint=_HINT)


_log = logging.getLogger(__name__)
_AGAIN = "the simulation of flow %r has failed; its schedule is that of %s=%s in the environment"
#: the number of last batches that may be repeated
_KEPT = 3
_HINT = (
    "keep all that a vertex remembers in its fields; globals, closures, clocks and random numbers must not "
    "change its results; a checkpoint() of your own must return all that restore() needs"
)


def run(
    flow: Dataflow,
    inputs: Mapping[str, Sequence[Any]],
    *,
    workers: int = 1,
    seed: int | None = None,
    together: bool = False,
    crashes: float = 0.0,
    warn_after: int | None = 10_000,
    epoch_limit: int | str | None = None,
    on_negative: Literal["warn", "raise"] = "warn",
) -> Result:
    """Run a flow on the records of each input, epoch by epoch, to the end.

    If state expires by epochs, or ids are made of epochs (`entities`), the epochs are those of `inputs`,
    whatever the workers and the schedule.

    Without a seed the schedule is one of those of Spark, and the same in every run: see `Simulation`. The
    inputs of an epoch arrive together, with one exception. If a step matches the records of one epoch of two
    inputs by the clock, as ``join(per="time")`` does, these inputs arrive in two batches in half of the
    epochs, by the seed, as they may on Spark. Inputs with ``epochs="manual"`` have the epochs that are given.

    The other arguments are those of `Simulation`.

    Args:
        flow: the flow.
        inputs: for each input its records of epoch 0, 1, ...: rows, pandas frames or Arrow tables.
        together: let epochs be in flight together, instead of one after the other.

    Returns:
        For each output (`capture`, `to_delta`, ... by step name) its released epochs.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("double")
        >>> _ = flow.input("x", "n long").map(lambda row: row.n * 2, "n long").capture("out")
        >>> run(flow, {"x": [[1, 2], [], [3]]}, workers=2)["out"].rows()
        {0: [(2,), (4,)], 1: [], 2: [(6,)]}

        A test of your own vertices in one line:

        >>> assert all(run(flow, {"x": [[1], [2]]}, seed=s, crashes=0.3) for s in range(20))

    Raises:
        Diverged: a repeated batch had another result: a vertex has state outside its fields.
    """
    simulation = Simulation(
        flow, workers=workers, seed=seed, crashes=crashes, warn_after=warn_after,
        epoch_limit=epoch_limit, on_negative=on_negative, given_epochs=True,
    )  # fmt: skip
    plan = simulation.plan
    epochs = most_epochs(inputs, plan.source)
    batches: list[tuple[int, int]] = []
    for epoch in range(epochs):
        for names in simulation.schedule.together([*inputs]):
            batches.append((simulation.batch, epoch))
            for name in names:
                _send_epoch(simulation, name, inputs[name], epoch, last=epoch == epochs - 1)
            if together:
                simulation.step()
            else:
                simulation.run()
    simulation.folders.replay(simulation)
    for source in plan.inputs:
        if source.stage.epochs != "clock":
            simulation.close(source.name)
    simulation.run()
    if plan.clocked and batches:
        for captured in simulation.captured.values():
            captured.epochs = renumbered(captured.epochs, batches)
    begun = -1 if plan.clocked else simulation.coordinator.last_epoch
    for captured in simulation.captured.values():
        captured.until = max([epochs - 1, begun, *captured.epochs])
    cut_off, checked = simulation.result.cut_off, simulation.coordinator.expectations
    return Result(simulation.captured, cut_off, expectations=checked, flow=plan.name)


def _send_epoch(simulation: Simulation, name: str, epochs: Sequence[Any], epoch: int, *, last: bool) -> None:
    """Send an input its records of an epoch, and end the epoch if the input says where epochs end."""
    if epoch < len(epochs):
        simulation.send(name, epochs[epoch], epoch=epoch)
    if simulation.plan.source(name).epochs == "manual":
        if last:  # closing it ends its last epoch, and begins no other
            simulation.close(name)
        else:
            simulation.advance_to(name, epoch + 1)


class BrokenLaw(TimelyError, AssertionError):
    """A function breaks a law on which an operator relies.

    >>> issubclass(BrokenLaw, AssertionError)
    True
    """


def check_lattice(merge: Any, samples: Any) -> None:
    """Check that a function is the merge of a lattice: associative, commutative and idempotent.

    All triples of the samples are tried. `Stream.merge` relies on these laws: without them its results depend
    on the order in which records arrive.

    Args:
        merge: a function of two Arrow arrays, as for `Stream.merge`.
        samples: values: an Arrow array, or a list; at most 100.

    Example:
        >>> import pyarrow.compute as pc
        >>> check_lattice(pc.max_element_wise, [1, 5, 3])
        >>> check_lattice(pc.add, [0, 1])
        Traceback (most recent call last):
        timely_spark.testing.BrokenLaw: merge is not idempotent: merge(1, 1) is 2, not 1 (...)
        Hint: ...

    Raises:
        BrokenLaw: a law is broken; the message shows the values.
        BadArgument: `merge` is not a function, or there are no samples, or too many.
    """
    if not callable(merge):
        hint = "give a function of two arrays, such as pyarrow.compute.max_element_wise."
        refuse(merge, what="merge", expected="a function", hint=hint)
    try:
        values = pa.array(samples) if not isinstance(samples, pa.Array) else samples
    except (TypeError, ValueError) as error:  # also Arrow's errors
        msg = f"samples={samples!r}: {error}"
        raise BadArgument(msg, where=caller(), hint="give a list of values of one type.") from error
    if not 1 <= len(values) <= 100 or values.null_count:
        expected = "between 1 and 100 values, none of them null,"
        refuse(samples, what="samples", expected=expected, hint="give typical values, and the extreme ones.")
    a, b, c = (one.ravel() for one in np.indices((len(values),) * 3))
    if (violation := broken_lattice(merge, values, a, b, c)) is not None:
        hint = "let it return the least value that is at least as great as both."
        raise BrokenLaw(violation[0], where=caller(), hint=hint)
