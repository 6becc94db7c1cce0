"""The simulator: runs a flow on simulated workers in this process, without a JVM, in milliseconds; for tests.

The simulator uses the plan, the `step` and the coordinator that run on Spark. A seed adds schedules that are
rare on Spark: late messages, rounds that end early, batches without input, and batches that run again.

Example:
    Whatever the schedule and the number of workers, the answer is the same:

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

    Crashes do not change the answer either, and reveal a vertex that keeps state outside of its fields:

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

import itertools
import json
import random
import warnings
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from timely_spark.captured import Captured, Result, renumbered, sorted_rows
from timely_spark.dataflow import Dataflow
from timely_spark.errors import TimelyError
from timely_spark.graph import Kind, as_table, caller, whole
from timely_spark.graph.arguments import check_schedule, most_epochs
from timely_spark.times import as_epoch
from timely_spark.worker import Bound, Budget, Coordinator, Node, Plan, Turn, pack, pack_input, step
from timely_spark.worker.codec import Blobs, unpack_parts
from timely_spark.worker.columns import by_column
from timely_spark.worker.keys import from_bytes
from timely_spark.worker.local_rounds import run_local_rounds
from timely_spark.worker.loops import warned, worth_telling
from timely_spark.worker.record import Recorded, recorded
from timely_spark.worker.rows import ROWS, read_rows
from timely_spark.worker.vertex_snapshot import VertexSnapshot


class LoopWarning(UserWarning):
    """What a query on Spark would log of a loop: it goes on and on, or has ended at its limit.

    Example:
        >>> import timely_spark as ts, warnings
        >>> flow = ts.Dataflow("cut")
        >>> up = lambda n: n.select(n=pc.add(pc.field("n"), 1))
        >>> _ = flow.input("x", "n long").loop(up, max_iterations=3, on_limit="warn").capture("out")
        >>> with warnings.catch_warnings(record=True, action="always") as told:
        ...     result = ts.testing.run(flow, {"x": [[0]]})
        >>> [warning.category.__name__ for warning in told], result.cut_off
        (['LoopWarning'], {'loop': 1})
    """


class Diverged(TimelyError, AssertionError):
    """A batch that was run again after a crash did something else than before.

    On Spark, records would be lost or delivered twice. Naiad section 3.4: what a vertex does may depend on
    nothing but what CHECKPOINT and RESTORE bring back, and on what it receives.

    >>> issubclass(Diverged, AssertionError)
    True
    """

    condition = "DIVERGED"


class Simulation:
    """A flow on simulated workers, batch by batch.

    With `crashes`, each attempt at a batch may end at any of its steps: before or after a worker's round or a
    delivery, between its further rounds, or with all done but the commit. What it did is lost, except what it
    delivered; workers and coordinator are made anew from what the last batch committed (one time in four from
    what an earlier one did, as if the checkpoint had been rolled back), and the batches since then run again
    with the input they had, its rows in another order.

    Law: each output says per epoch what it would say without crashes, and so do, for the same seed, all
    states (Naiad section 3.4). So whatever is done again must be the same again, deliveries included.

    Args:
        flow: the flow, or its plan.
        workers: how many workers.
        seed: a schedule drawn at random; None: each batch delivers all there is, as on Spark.
        budget: of each worker's round; random where there is a seed.
        rounds_per_batch: how many rounds a batch may take before the next one brings input; random where
            there is a seed.
        blobs: where states keep large parts; by default in themselves. What is put again under the same name
            must have the same reference.
        crashes: how likely an attempt at a batch is to crash; where, and what is rolled back, is drawn by the
            seed too. What else the seed decides is the same with and without crashes.
        warn_after: iterations of a loop in one epoch, after which there is a `LoopWarning`; None: never.

    Raises:
        BadArgument: `crashes` is not at least 0 and below 1; or another argument is none of its values.
        Diverged: from `step` and `run`: what was done again after a crash was not the same.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("hello")
        >>> _ = flow.input("x", "n long").exchange("n").capture("out")
        >>> simulation = ts.testing.Simulation(flow, workers=2)
        >>> simulation.send("x", [1, 2])
        >>> simulation.run()
        >>> simulation.captured["out"].rows(), simulation.rounds
        ({0: [(1,), (2,)]}, 1)

        The same, after crashes:

        >>> simulation = ts.testing.Simulation(flow, workers=2, seed=4, crashes=0.8)
        >>> simulation.send("x", [1, 2])
        >>> simulation.run()
        >>> simulation.captured["out"].rows(), simulation.crashed > 0
        ({0: [(1,), (2,)]}, True)
    """

    def __init__(
        self,
        flow: Dataflow | Plan,
        *,
        workers: int = 1,
        seed: int | None = None,
        budget: Budget | None = None,
        rounds_per_batch: int = 1,
        blobs: Blobs | None = None,
        crashes: float = 0.0,
        warn_after: int | None = 10_000,
    ) -> None:
        check_schedule(seed, crashes, flow=flow, fits=isinstance(flow, Dataflow | Plan))
        plan = flow.compile(workers) if isinstance(flow, Dataflow) else flow
        self.plan = warned(plan, warn_after)
        self.coordinator = Coordinator(self.plan)
        self.random = random.Random(seed) if seed is not None else None
        self.budget = budget
        self.rounds_per_batch, self.blobs = rounds_per_batch, blobs
        self.states: list[bytes | None] = [None] * self.plan.workers
        #: rounds that ran, and the number of the next batch
        self.rounds = 0
        self.batch = 0
        self.captured = {
            node.name: Captured(node.template.schema)  # type: ignore[attr-defined]
            for node in self.plan.nodes
            if node.stage.kind in {Kind.OUTPUT, Kind.INSPECT}
        }
        self.turn: Turn = self.coordinator.first()
        self.waiting: list[pa.Table] = [self.turn.rows]
        self.log: list[tuple[int, Turn]] = []
        #: called with (batch, worker, state before, rows in, header, state after, rows out) of a first round
        self.on_step: Callable[..., object] | None = None
        #: attempts that crashed; and deliveries that were made again, all of them the same
        self.crashed = self.redelivered = 0
        self._crashes = _Crashes(random.Random(f"crashes {seed}"), crashes, 2 * self.plan.workers + 4)
        #: the batches that may run again, the last one among them
        self._begun: deque[_Batch] = deque(maxlen=_KEPT if crashes else 1)
        #: what was seen of a batch's parts, and what was delivered: it must be the same again
        self._seen: dict[tuple[int, str], tuple[bytes | None, pa.Table]] = {}
        self._delivered: dict[tuple[str, int, int | None], pa.Table] = {}
        self._parts: dict[tuple[str, int], list[pa.Table]] = defaultdict(list)
        self._input: list[pa.Table] = []
        self._cancel: list[int] = []
        self._stands: dict[str, int | None] = dict.fromkeys(self.plan.sources, 0)
        self._seq = 0

    # -- input -----------------------------------------------------------------------------------------------

    def send(self, name: str, records: Any, *, epoch: int | None = None) -> None:
        """Give records to an input; by the clock they join the epoch of the next batch."""
        source = self.plan.source(name)
        table = as_table(records, source.stage.outputs[0], of=f"input {name!r} ({caller()})")
        at = None if by_column(source.epochs) else self._open(name, epoch)
        self._seq += 1
        if source.epochs == "manual":
            self._input.append(pack_input(self.plan, name, [(self._seq, "send", at, table)]))
            return
        for shard in range(shards := 1 if self.random is None else self.random.randint(1, 3)):
            size = -(-table.num_rows // shards)
            self._input.append(pack(self.plan, name, table.slice(shard * size, size), shard, self._seq))

    def advance_to(self, name: str, epoch: int) -> None:
        """Say that an input with manual epochs has come to `epoch`."""
        self._stands[name] = epoch = self._open(name, as_epoch(epoch, f"input {name!r}", caller()))
        self._seq += 1
        self._input.append(pack_input(self.plan, name, [(self._seq, "advance", epoch, None)]))

    def close(self, name: str) -> None:
        """Say that an input is over. Closing again does nothing."""
        stands, self._stands[name] = self._stands[self.plan.source(name).name], None
        if stands is not None:
            self._seq += 1
            self._input.append(pack_input(self.plan, name, [(self._seq, "close", None, None)]))

    def cancel(self, epoch: int) -> None:
        """End the loops of an epoch, with the next batch: see `Query.cancel`."""
        self._cancel.append(as_epoch(epoch, "cancel", caller()))

    def _open(self, name: str, epoch: int | None = None) -> int:
        """The epoch, by default that at which the input stands, if it is not closed."""
        stands = self._stands[self.plan.source(name).name]
        at = stands if epoch is None else as_epoch(epoch, f"input {name!r}", caller())
        if stands is None or at is None or at < stands:
            where = "is closed" if stands is None else f"stands at epoch {stands}, and {at} is closed"
            msg = f"input {name!r} {where}"
            raise TimelyError(msg, where=caller(), hint="send before advance_to() and close()")
        return at

    # -- rounds ----------------------------------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        """Whether no batch would run now."""
        return not self._input and not any(rows.num_rows for rows in self.waiting)

    def step(self) -> bool:
        """Run one batch, if there is anything to run, to its commit; whether there was."""
        if self.idle:
            return False
        self._begun.append(self._begin())
        last = at = len(self._begun) - 1
        while at <= last:
            at = self._tried(at)
        return True

    def run(self, limit: int = 10_000) -> None:
        """Run batches until nothing is left to do without input.

        Raises:
            TimelyError: after `limit` batches it has not come to an end.
        """
        for _ in range(whole("limit", limit)):
            if not self.step():
                return
        msg = (
            f"flow {self.plan.name!r} still runs after {limit} rounds. "
            "Hint: does each loop stop what is known already?"
        )
        raise TimelyError(msg)

    def _begin(self) -> _Batch:
        """The next batch: what it will run on, however often it does."""
        arriving, later = self._arriving()
        rows, self._input = pa.concat_tables([ROWS.empty_table(), *arriving, *self._input]), []
        cancel, self._cancel = self._cancel, []
        return _Batch(
            number=self.batch,
            rows=rows,
            later=later,
            cancel=cancel,
            turn=self.turn,
            states=list(self.states),
            coordinator=json.dumps(self.coordinator.encode()) if self._crashes.likely else "",
            parts={key: list(parts) for key, parts in self._parts.items()},
            draws=self.random.getstate() if self.random is not None else None,
            rounds=self.rounds,
            logged=len(self.log),
        )

    def _tried(self, at: int) -> int:
        """Try to run one of the batches that have begun; which one is to be run then."""
        try:
            self._attempt(self._begun[at])
        except _Crash:
            self.crashed += 1
            at = self._crashes.back_to(at)
            self._restore(self._begun[at])
            return at
        return at + 1

    def _restore(self, batch: _Batch) -> None:
        """Go back to what was committed before a batch; all else is lost."""
        self.batch, self.turn, self.states = batch.number, batch.turn, list(batch.states)
        self.coordinator = Coordinator.decode(self.plan, json.loads(batch.coordinator))
        self._parts = defaultdict(list, {key: list(parts) for key, parts in batch.parts.items()})
        self.rounds = batch.rounds
        del self.log[batch.logged :]

    def _attempt(self, batch: _Batch) -> None:
        """Run a batch, to its commit or to where it crashes."""
        point, rows, header, out = self._crashes.attempt(), batch.rows, batch.turn.header, []
        self.batch = batch.number
        if self.random is not None:
            self.random.setstate(batch.draws)
        if self.crashed:
            rows = _shuffled(rows, self._crashes.random)
        for worker in range(self.plan.workers):
            mine = rows.filter(pc.equal(rows.column("worker"), worker))
            if mine.num_rows:
                next(point)
                before = self.states[worker]
                self.states[worker], made = step(
                    self.plan, before, self.batch, worker, mine, lambda: header, self._budget(), self.blobs
                )
                self._check(f"the round of worker {worker}", self.states[worker], made)
                if self.on_step is not None:
                    self.on_step(self.batch, worker, before, mine, header, self.states[worker], made)
                out.append(made)
        next(point)
        made = pa.concat_tables([ROWS.empty_table(), *out])
        self.turn = self.coordinator.turn(self.batch, made, cancel=batch.cancel)
        if not batch.later:  # what is late for one round may not be overtaken by the next one
            self._local_rounds(point)
        next(point)
        self._collect(point)
        self._crashes.end()
        self.waiting = [*batch.later, self.turn.rows]
        self.log.append((self.batch, self.turn))
        self.rounds += self.turn.stats["rounds"]
        self.batch += 1
        for notice in worth_telling(self.turn.notices, self.plan.warn_after):
            warnings.warn(str(notice), LoopWarning, stacklevel=2)

    def _local_rounds(self, point: Iterator[None]) -> None:
        rounds = self.rounds_per_batch
        if self.random is not None and rounds == 1:
            rounds = self.random.choice([1, 1, 2, 5, 100])
        states = {worker: state for worker, state in enumerate(self.states) if state is not None}

        def budget() -> Budget | None:  # is asked for before each further round
            next(point)
            return self._budget()

        self.turn, changed = run_local_rounds(
            self.coordinator, self.turn, states, Bound(rounds=rounds), blobs=self.blobs, budget=budget
        )
        for index, worker in changed.items():
            next(point)
            self.states[index] = worker.checkpoint(f"{index}-{self.batch}")
            self._check(f"further rounds of worker {index}", self.states[index], ROWS.empty_table())
        messages = self.turn.rows.filter(pc.equal(self.turn.rows.column("kind"), "message"))
        self._check("the messages left", None, messages)

    def _budget(self) -> Budget | None:
        if self.random is not None and self.budget is None and self.random.random() < 0.3:
            return Budget(steps=self.random.randint(1, 6))
        return self.budget

    def _arriving(self) -> tuple[list[pa.Table], list[pa.Table]]:
        """What the next batch delivers. With a seed some workers without input are passed over.

        Never a part of what waits for a worker: it holds all that was sent to it before, or does not run.
        """
        if self.random is None:
            return self.waiting, []
        busy = {worker for table in self._input for worker in table.column("worker").to_pylist()}
        late = {w for w in range(self.plan.workers) if w not in busy and self.random.random() < 0.3}
        arriving, later = [], []
        for table in self.waiting:
            pairs = zip(*(table.column(column).to_pylist() for column in ("worker", "kind")), strict=True)
            waits = [(worker in late, kind == "message") for worker, kind in pairs]
            newest = table is self.waiting[-1]  # of the headers too
            arriving.append(
                table.filter(pa.array([not w and (message or newest) for w, message in waits], pa.bool_()))
            )
            later.append(table.filter(pa.array([w and message for w, message in waits], pa.bool_())))
        return [_shuffled(pa.concat_tables(arriving), self.random)], [t for t in later if t.num_rows]

    def _collect(self, point: Iterator[None]) -> None:
        for sink, epoch, payload in zip(
            *(self.turn.outputs.column(c) for c in ("sink", "epoch", "payload")), strict=True
        ):
            self._parts[sink.as_py(), epoch.as_py()].append(from_bytes(payload.as_buffer()))
        for node in self.plan.nodes:
            if node.stage.kind is Kind.INSPECT:
                for _, epoch in [key for key in self._parts if key[0] == node.name]:
                    table = pa.concat_tables(self._parts.pop((node.name, epoch)))
                    self._deliver(node, epoch, table, batch=self.batch)
                    next(point)
        for sink, epoch in self.turn.released:
            template: Any = (node := self.plan.by_name[sink]).template
            self._deliver(node, epoch, template.finish(self._parts.pop((sink, epoch), [])))
            next(point)

    def _deliver(self, node: Node, epoch: int, table: pa.Table, *, batch: int | None = None) -> None:
        """What an output hands over: all of an epoch, or, on arrival, what a batch has of it."""
        seen = self.captured[node.name].epochs
        old = self._delivered.get((node.name, epoch, batch))
        if old is None:
            seen[epoch] = table if epoch not in seen else pa.concat_tables([seen[epoch], table])
            if self._crashes.likely:
                self._delivered[node.name, epoch, batch] = table
            return
        self.redelivered += 1
        before, now = (Counter(map(str, each.to_pylist())) for each in (old, table))
        if before != now:
            msg = (
                f"output {node.name!r} ({node.stage.where}): after a crash, epoch {epoch} came again with "
                f"other records: more {list(now - before)[:3]}, less {list(before - now)[:3]}"
            )
            raise Diverged(msg, hint=_HINT)

    def _check(self, part: str, state: bytes | None, rows: pa.Table) -> None:
        """A part of the batch has led to a state and to rows: the same ones as before, if it ran before."""
        if not self._crashes.likely:
            return
        self._seen = {key: seen for key, seen in self._seen.items() if key[0] >= self._begun[0].number}
        old_state, old_rows = self._seen.setdefault((self.batch, part), (state, rows))
        if state == old_state and rows.equals(old_rows):
            return
        before, now = _by_step(self.plan, old_state, old_rows), _by_step(self.plan, state, rows)
        differ = [node for node in self.plan.nodes if before[node.name] != now[node.name]]
        where = f"{differ[0].name!r} ({differ[0].stage.where})" if differ else f"those of {self.plan.name!r}"
        msg = (
            f"step {where}, or one before it: run again after a crash, from the same state and input, "
            f"batch {self.batch} went another way (seen in {part})"
        )
        raise Diverged(msg, hint=_HINT)


#: how many of the last batches may be run again
_KEPT = 3
_HINT = (
    "keep all that a vertex remembers in its fields, and let nothing depend on globals, closures, clocks or "
    "random numbers; a checkpoint() of your own must give all that restore() needs"
)


class _Crash(Exception):
    """The process that ran the batch is gone."""


@dataclass
class _Crashes:
    """Draws which attempts crash, and at which of their points."""

    random: random.Random
    likely: float
    #: how many the last whole batch had; where the present attempt stands, and where it crashes, if it does
    points: int
    point: int = -1
    at: int | None = None

    def attempt(self) -> Iterator[None]:
        """The points of an attempt at a batch: each `next` goes on, or crashes."""
        self.at = self.random.randint(0, self.points) if self.random.random() < self.likely else None
        for self.point in itertools.count():
            if self.point == self.at:
                raise _Crash
            yield

    def end(self) -> None:
        """The last point: all is done, and nothing committed."""
        self.points = self.point + 1
        if self.at is not None:
            raise _Crash

    def back_to(self, at: int) -> int:
        """From which batch to go on after batch `at` has crashed."""
        return self.random.randint(0, at) if self.random.random() < 0.25 else at


@dataclass(frozen=True, slots=True, kw_only=True)
class _Batch:
    """A batch, with what was committed before it: all there is to run it once more."""

    number: int
    rows: pa.Table
    #: what is delivered to later batches only
    later: list[pa.Table]
    #: epochs whose loops it ends
    cancel: list[int]
    turn: Turn
    states: list[bytes | None]
    #: as JSON
    coordinator: str
    #: outputs of epochs that are not complete
    parts: dict[tuple[str, int], list[pa.Table]]
    #: where the drawing of the schedule stood
    draws: Any
    rounds: int
    logged: int


def _shuffled(rows: pa.Table, draw: random.Random) -> pa.Table:
    """The rows in another order; of those with the same meta, first comes what was sent first."""
    metas = rows.column("meta").to_pylist()
    places = {meta: draw.random() for meta in dict.fromkeys(metas)}
    return rows.take(pa.array(sorted(range(len(metas)), key=lambda i: places[metas[i]]), pa.int64()))


def _by_step(plan: Plan, state: bytes | None, rows: pa.Table) -> dict[str, list[Any]]:
    """What a worker's round left behind, by step: its state, and what it sent."""
    found: dict[str, list[Any]] = defaultdict(list)
    if state:
        head, *parts = unpack_parts(state)
        for name, said in json.loads(bytes(head))["vertices"].items():
            found[name].append(VertexSnapshot.decode(said, parts))
    for to, kind, meta, payload in read_rows(rows):
        if kind == "message":
            source = plan.channels[meta["channel"]].source
            name = plan.nodes[source].name if source is not None else ""
            found[name].append((to, meta, payload.to_pybytes()))
        elif kind == "output":
            found[meta["sink"]].append((meta, payload.to_pybytes()))
    return found


def run(
    flow: Dataflow,
    inputs: Mapping[str, Sequence[Any]],
    *,
    workers: int = 1,
    seed: int | None = None,
    together: bool = False,
    crashes: float = 0.0,
    warn_after: int | None = 10_000,
) -> Result:
    """Run a flow on what each input brings, epoch by epoch, until nothing is left to do.

    Args:
        flow: the flow.
        inputs: for each input its records of epoch 0, 1, ...: rows, pandas frames or Arrow tables.
        workers: how many workers.
        seed: of a random schedule; None: as on Spark.
        together: let epochs be in flight together, instead of one after the other.
        crashes: how likely an attempt at a batch is to crash, and to be made again: see `Simulation`.
        warn_after: iterations of a loop in one epoch, after which there is a `LoopWarning`; None: never.

    Returns:
        For each output (`capture`, `to_delta`, ... by step name) what it released.

    Raises:
        Diverged: what was done again after a crash was not the same: a vertex has state that is not kept.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("double")
        >>> _ = flow.input("x", "n long").map(lambda row: row.n * 2, "n long").capture("out")
        >>> run(flow, {"x": [[1, 2], [], [3]]}, workers=2)["out"].rows()
        {0: [(2,), (4,)], 1: [], 2: [(6,)]}

        A test of vertices of your own, in a line:

        >>> assert all(run(flow, {"x": [[1], [2]]}, seed=s, crashes=0.3) for s in range(20))
    """
    simulation = Simulation(flow, workers=workers, seed=seed, crashes=crashes, warn_after=warn_after)
    plan = simulation.plan
    epochs = most_epochs(inputs)
    clock = all(source.epochs == "clock" for source in plan.inputs)
    names: list[int] = []
    for epoch in range(epochs):
        names.append(simulation.batch)
        for name, of in inputs.items():
            if epoch < len(of):
                simulation.send(name, of[epoch], epoch=epoch)
            if plan.source(name).epochs == "manual":
                simulation.advance_to(name, epoch + 1)
        if together:
            simulation.step()
        else:
            simulation.run()
    for source in plan.inputs:
        if source.epochs != "clock":
            simulation.close(source.name)
    simulation.run()
    if clock and names:
        for captured in simulation.captured.values():
            captured.epochs = renumbered(captured.epochs, names)
    return Result(simulation.captured, simulation.turn.cut_off, flow=plan.name)


__all__ = [
    "Captured",
    "Diverged",
    "LoopWarning",
    "Recorded",
    "Result",
    "Simulation",
    "recorded",
    "run",
    "sorted_rows",
]
