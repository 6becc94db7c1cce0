"""Run a flow in this process, on simulated workers: no JVM, milliseconds. Made for tests, yours and ours.

The same plan, the same `step` and the same coordinator as on Spark; and, with a seed, schedules that Spark
would rarely show: messages that take longer, rounds that are cut short, batches that only turn a loop.

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
"""

from __future__ import annotations

import random
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from timely_spark.dataflow import Dataflow
from timely_spark.errors import SchemaError, TimelyError
from timely_spark.graph import as_table, caller, describe
from timely_spark.worker import ROWS, Bound, Budget, Coordinator, Plan, Turn, go_on, pack, pack_input, step
from timely_spark.worker.codec import Blobs
from timely_spark.worker.keys import from_bytes
from timely_spark.worker.record import Recorded, recorded


@dataclass
class Captured:
    """What an output released: one table per epoch, in the order of release."""

    schema: pa.Schema
    epochs: dict[int, pa.Table] = field(default_factory=dict)

    def rows(self) -> dict[int, list[tuple[Any, ...]]]:
        """The records of each epoch as sorted tuples."""
        return {epoch: sorted_rows(table) for epoch, table in self.epochs.items()}

    def table(self) -> pa.Table:
        """All records, with a first column ``epoch``.

        Raises:
            SchemaError: they have a column of that name already.
        """
        if "epoch" in self.schema.names:
            msg = (
                f"the records have a column 'epoch' themselves: ({describe(self.schema)}). "
                "Hint: read .epochs, which has a table per epoch; or select the column under another name."
            )
            raise SchemaError(msg)
        named = [
            table.add_column(0, "epoch", pa.array([epoch] * table.num_rows, pa.int64()))
            for epoch, table in self.epochs.items()
        ]
        with_epoch = self.schema.insert(0, pa.field("epoch", pa.int64()))
        return pa.concat_tables(named) if named else with_epoch.empty_table()


def sorted_rows(table: pa.Table) -> list[tuple[Any, ...]]:
    """The records of a table as tuples, sorted (None first)."""
    rows = list(zip(*(column.to_pylist() for column in table.columns), strict=True))
    return sorted(rows, key=lambda row: [(value is not None, value) for value in row])


class Simulation:
    """A flow on simulated workers, batch by batch.

    Args:
        flow: the flow, or its plan.
        workers: how many workers.
        seed: a schedule drawn at random; None: each batch delivers all there is, as on Spark.
        budget: of each worker's round; random where there is a seed.
        rounds_per_batch: how many rounds a batch may take before the next one brings input; random where
            there is a seed.
        blobs: where states keep large parts; by default in themselves.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("hello")
        >>> _ = flow.input("x", "n long").exchange("n").capture("out")
        >>> simulation = ts.testing.Simulation(flow, workers=2)
        >>> simulation.send("x", [1, 2])
        >>> simulation.run()
        >>> simulation.captured["out"].rows(), simulation.rounds
        ({0: [(1,), (2,)]}, 1)
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
    ) -> None:
        self.plan = flow.compile(workers) if isinstance(flow, Dataflow) else flow
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
            if node.stage.operator in {"output", "inspect"}
        }
        self.turn: Turn = self.coordinator.first()
        self.waiting: list[pa.Table] = [self.turn.rows]
        self.log: list[tuple[int, Turn]] = []
        #: called with (batch, worker, state before, rows in, header, state after, rows out) of a first round
        self.on_step: Callable[..., object] | None = None
        self._parts: dict[tuple[str, int], list[pa.Table]] = defaultdict(list)
        self._input: list[pa.Table] = []
        self._stands: dict[str, int | None] = dict.fromkeys(self.plan.sources, 0)
        self._seq = 0

    # -- input -----------------------------------------------------------------------------------------------

    def send(self, name: str, records: Any, *, epoch: int | None = None) -> None:
        """Give records to an input; by the clock they join the epoch of the next batch."""
        source = self.plan.source(name)
        table = as_table(records, source.stage.outputs[0], of=f"input {name!r} ({caller()})")
        at = self._open(name, epoch)
        self._seq += 1
        if source.epochs == "manual":
            self._input.append(pack_input(self.plan, name, [(self._seq, "send", at, table)]))
            return
        for shard in range(shards := 1 if self.random is None else self.random.randint(1, 3)):
            size = -(-table.num_rows // shards)
            self._input.append(pack(self.plan, name, table.slice(shard * size, size), shard, self._seq))

    def advance_to(self, name: str, epoch: int) -> None:
        """Say that an input with manual epochs has come to `epoch`."""
        self._stands[name] = self._open(name, epoch)
        self._seq += 1
        self._input.append(pack_input(self.plan, name, [(self._seq, "advance", epoch, None)]))

    def close(self, name: str) -> None:
        """Say that an input is over. Closing again does nothing."""
        if self._stands[name] is None:
            return
        self._stands[name] = None
        self._seq += 1
        self._input.append(pack_input(self.plan, name, [(self._seq, "close", None, None)]))

    def _open(self, name: str, epoch: int | None) -> int:
        """The epoch, by default that at which the input stands, if it is not closed."""
        stands = self._stands[name]
        if stands is None or (epoch is not None and epoch < stands):
            where = "is closed" if stands is None else f"stands at epoch {stands}, and {epoch} is closed"
            msg = f"input {name!r} {where}"
            raise TimelyError(msg, hint="send before advance_to() and close()")
        return stands if epoch is None else epoch

    # -- rounds ----------------------------------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        """Whether no batch would run now."""
        return not self._input and not any(rows.num_rows for rows in self.waiting)

    def step(self) -> bool:
        """Run one batch, if there is anything to run; whether there was."""
        if self.idle:
            return False
        arriving, self.waiting = self._arriving()
        rows = pa.concat_tables([ROWS.empty_table(), *arriving, *self._input])
        self._input = []
        header = self.turn.header
        out = []
        for worker in range(self.plan.workers):
            mine = rows.filter(pc.equal(rows.column("worker"), worker))
            if mine.num_rows:
                before = self.states[worker]
                self.states[worker], made = step(
                    self.plan, before, self.batch, worker, mine, lambda: header, self._budget(), self.blobs
                )
                if self.on_step is not None:
                    self.on_step(self.batch, worker, before, mine, header, self.states[worker], made)
                out.append(made)
        self.turn = self.coordinator.turn(self.batch, pa.concat_tables([ROWS.empty_table(), *out]))
        if not self.waiting:  # what is late for one round may not be overtaken by the next one
            self._go_on()
        self.waiting.append(self.turn.rows)
        self._collect()
        self.log.append((self.batch, self.turn))
        self.rounds += self.turn.stats["rounds"]
        self.batch += 1
        return True

    def run(self, limit: int = 10_000) -> None:
        """Run batches until nothing is left to do without input.

        Raises:
            TimelyError: after `limit` batches it has not come to an end.
        """
        for _ in range(limit):
            if not self.step():
                return
        msg = (
            f"flow {self.plan.name!r} still runs after {limit} rounds. "
            "Hint: does each loop stop what is known already?"
        )
        raise TimelyError(msg)

    def _go_on(self) -> None:
        rounds = self.rounds_per_batch
        if self.random is not None and rounds == 1:
            rounds = self.random.choice([1, 1, 2, 5, 100])
        states = {worker: state for worker, state in enumerate(self.states) if state is not None}
        bound = Bound(rounds=rounds)
        self.turn, changed = go_on(
            self.coordinator, self.turn, states, bound, blobs=self.blobs, budget=self._budget
        )
        for index, worker in changed.items():
            self.states[index] = worker.checkpoint(f"{index}-{self.batch}")

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
        order = list(range(sum(table.num_rows for table in arriving)))
        self.random.shuffle(order)
        return [pa.concat_tables(arriving).take(pa.array(order, pa.int64()))], [
            table for table in later if table.num_rows
        ]

    def _collect(self) -> None:
        for sink, epoch, payload in zip(
            *(self.turn.outputs.column(c) for c in ("sink", "epoch", "payload")), strict=True
        ):
            self._parts[sink.as_py(), epoch.as_py()].append(from_bytes(payload.as_buffer()))
        for node in self.plan.nodes:
            if node.stage.operator == "inspect":
                for _, epoch in [key for key in self._parts if key[0] == node.name]:
                    parts = self._parts.pop((node.name, epoch))
                    seen = self.captured[node.name].epochs
                    seen[epoch] = pa.concat_tables([*([seen[epoch]] if epoch in seen else []), *parts])
        for sink, epoch in self.turn.released:
            template: Any = self.plan.by_name[sink].template
            self.captured[sink].epochs[epoch] = template.finish(self._parts.pop((sink, epoch), []))


def run(
    flow: Dataflow,
    inputs: Mapping[str, Sequence[Any]],
    *,
    workers: int = 1,
    seed: int | None = None,
    together: bool = False,
) -> dict[str, Captured]:
    """Run a flow on what each input brings, epoch by epoch, until nothing is left to do.

    Args:
        flow: the flow.
        inputs: for each input its records of epoch 0, 1, ...: rows, pandas frames or Arrow tables.
        workers: how many workers.
        seed: of a random schedule; None: as on Spark.
        together: let epochs be in flight together, instead of one after the other.

    Returns:
        For each output (`capture`, `to_delta`, ... by step name) what it released.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("double")
        >>> _ = flow.input("x", "n long").map(lambda row: row.n * 2, "n long").capture("out")
        >>> run(flow, {"x": [[1, 2], [], [3]]}, workers=2)["out"].rows()
        {0: [(2,), (4,)], 1: [], 2: [(6,)]}
    """
    simulation = Simulation(flow, workers=workers, seed=seed)
    plan = simulation.plan
    epochs = max((len(of) for of in inputs.values()), default=0)
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
        if source.epochs == "manual":
            simulation.close(source.name)
    simulation.run()
    if clock and names:
        for captured in simulation.captured.values():
            captured.epochs = _renumbered(captured.epochs, names)
    return simulation.captured


def _renumbered(epochs: dict[int, pa.Table], batches: list[int]) -> dict[int, pa.Table]:
    """Epochs by the number of the input given; by the clock they are batches, which loops use up too."""
    made: dict[int, list[pa.Table]] = defaultdict(list)
    for epoch, table in epochs.items():
        beyond = epoch - batches[-1]
        made[bisect_left(batches, epoch) if beyond <= 0 else len(batches) + beyond - 1].append(table)
    return {epoch: pa.concat_tables(tables) for epoch, tables in made.items()}


__all__ = ["Captured", "Recorded", "Simulation", "recorded", "run", "sorted_rows"]
