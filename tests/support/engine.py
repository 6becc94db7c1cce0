"""What Spark does for a flow, without Spark: offset and commit logs, versions of state, tasks, foreachBatch.

The runtime is the real one, over a real checkpoint: the preparation of a start, the source, the
operator's function, the driver's, and the task of further rounds. At every point (before and after each file
is written or removed, and between Spark's own steps) the process may be killed, a task may be lost and run
again, or the process may stall, be given up for dead, and wake up when another one has the checkpoint.

    .venv/bin/python -m tests.support.engine --cases 1000
    .venv/bin/python -m tests.support.engine --seed 42        one case again
"""

from __future__ import annotations

import argparse
import json
import logging
import pickle
import random
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cache, partial, partialmethod
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import timely_spark as ts
from tests.support.feeds import Counts, Feed, FolderFeed, FrameFeed, TableFeed
from tests.support.hops import hop, to_next_key
from tests.support.simulate import Pairs
from timely_spark.captured import sorted_rows
from timely_spark.compiler.pushdown import needed
from timely_spark.coordinator import hot_keys as coordinator_hot_keys
from timely_spark.runtime import run_context, start
from timely_spark.runtime.errors import CheckpointInUse, LostOwnership
from timely_spark.runtime.handle.input_handle import InputHandle
from timely_spark.runtime.handle.log_view import LogView
from timely_spark.runtime.query import driver, flow_reader
from timely_spark.runtime.query import streaming as query
from timely_spark.runtime.query.driver import Driver
from timely_spark.runtime.query.flow_reader import FlowReader
from timely_spark.runtime.query.resident import Ends, ResidentInputs
from timely_spark.runtime.restore import check, check_not_ahead, identify, identity_of
from timely_spark.runtime.run_context import RunContext, labels, packed, packed_sources
from timely_spark.runtime.sinks.outputs import claim_outputs, outputs_of, prepare_outputs
from timely_spark.runtime.sources.account import Account
from timely_spark.runtime.sources.source import JournaledSource
from timely_spark.runtime.storage import blobs, deliveries
from timely_spark.runtime.storage.blobs import files_of
from timely_spark.runtime.storage.files import Files
from timely_spark.runtime.storage.log import RoundLog
from timely_spark.runtime.storage.manifest import Manifest
from timely_spark.runtime.storage.states import StateRefs
from timely_spark.state import codec
from timely_spark.testing import Captured, Simulation, run
from timely_spark.worker import ROWS, hot_keys, vertex_snapshot, wire
from timely_spark.worker.epoch_columns import by_column
from timely_spark.worker.wire import Message


class Killed(BaseException):
    """The process is gone."""


class TaskLost(BaseException):
    """A Python worker is gone; Spark runs its task again."""


class Clash(BaseException):
    """Spark, or a user's program, finds that another one has written what it was about to write, and ends."""


class Endless(Exception):
    """The flow does not come to its end."""


@contextmanager
def alone() -> Iterator[None]:
    """Nobody else may have written what is written here."""
    try:
        yield
    except FileExistsError:
        raise Clash from None


@dataclass(frozen=True)
class Odds:
    """How likely things are: at each point, at each task, at each restart, between two batches."""

    kill: float = 0.01
    lose: float = 0.01
    stall: float = 0.0
    twice: float = 0.1
    rollback: float = 0.1
    rescale: float = 0.0


CALM = Odds(kill=0, lose=0, twice=0, rollback=0)


Delivered = list[tuple[int, list[Any]]]
"""What subscribers are told: (epoch, its records)."""


class World:
    """What outlives a process: the checkpoint, Spark's own log and states, what was sent and delivered."""

    def __init__(
        self, flow: ts.Dataflow, checkpoint: str, sends: dict[str, list[Any]], *,
        delivered: Delivered | None = None, odds: Odds = CALM, seed: int = 0, keep: int = 5,
        rounds: int | None = None, workers: int = 3, feeds: dict[str, Feed] | None = None,
        resident: float = 0.0, points: int | None = None, folder: Path | None = None,
    ) -> None:  # fmt: skip
        self.flow, self.checkpoint, self.sends = flow, checkpoint, sends
        #: the folders and tables that the flow reads, in the order of its sources
        self.feeds = feeds or {}
        self.delivered = [] if delivered is None else delivered
        self.odds, self.draw = odds, random.Random(seed)
        #: how many batches Spark, and with it the flow, keeps for a rollback; and rounds of a micro-batch
        self.keep, self.rounds = keep, rounds
        #: after so many points it is said that the flow does not come to its end
        self.points = points
        #: how likely a process lets micro-batches stay, and then how likely one ends at each look
        self.resident, self.leaves = resident, 0.1
        #: where the output "files" writes, if there is one
        self.folder = folder
        self.plan, self.files = flow.compile(workers), Files(checkpoint)
        #: version -> label -> what the operator's state row holds
        self.versions: dict[int, dict[int, Any]] = {0: {}}
        #: what each input had handed over up to and with each batch
        self.taken: dict[int, dict[str, int]] = {}
        #: the files that each batch has read of each folder or table
        self.read: dict[int, dict[str, list[str]]] = {}
        self.furthest = -1
        self.clocked = all(source.epochs == "clock" for source in self.plan.inputs)
        self.count: Counter[str] = Counter()
        self.processes: list[Process] = []
        #: called after each commit
        self.committed: Callable[[int], object] = lambda batch: None
        #: the last that happened, for whoever looks for a mistake
        self.story: deque[str] = deque(maxlen=200)

    def process(self) -> Process:
        """A process that is to start."""
        return Process(self)

    def offset(self, batch: int) -> Any | None:
        """The end of the flow's source in Spark's offset log."""
        ends = self.ends(batch)
        return ends[0] if ends else None

    def ends(self, batch: int) -> list[Any]:
        """An entry of Spark's offset log: the end of each source."""
        text = self.files.read(f"offsets/{batch}")
        return [] if text is None else [json.loads(line) for line in text.splitlines()[2:]]

    def plan_batch(self, batch: int, *ends: Any) -> None:
        """Write the offset of a batch, as Spark does before it runs the batch; it tells the time."""
        self.files.write("metadata", b'{"id": "00000000-0000-4000-8000-000000000000"}')
        about = f'{{"batchTimestampMs": {time.time_ns()}}}'
        self.add(f"offsets/{batch}", "\n".join(["v1", about, *map(json.dumps, ends)]))

    def add(self, name: str, text: str) -> None:
        """An entry of one of Spark's logs, which must be new."""
        with alone():
            self.files.write(name, text.encode(), new=True)

    def later(self, function: Callable[[], Any]) -> Later:
        """What another thread is to run: it is done now, or when somebody waits for it."""
        later = Later(function)
        if self.draw.random() < 0.5:
            later.result()
        return later

    def live(self) -> None:
        """Start processes, one after the other, until one has nothing left to do and all others are gone."""
        with _points(self):
            while True:
                stalled = [process for process in self.processes if process.stalled and not process.ended]
                running = self.process()
                self.processes = [*stalled, running]
                while not (running.stalled or running.ended):
                    turn = running
                    if stalled and self.draw.random() < 0.3:
                        turn = self.draw.choice(stalled)
                    turn.go_on()
                    if turn.error is not None:
                        raise turn.error
                    stalled = [process for process in stalled if not process.ended]
                if running.ended == "done":
                    break
                self.rolled_back(alive=bool(stalled) or running.stalled)
            for process in stalled:  # they wake up when all is over
                while not process.ended:
                    process.go_on()

    def rolled_back(self, *, alive: bool) -> None:
        """What an operator may do between two runs: delete commits, or go back to an older batch."""
        commits = self.files.numbers("commits")
        if alive or not commits or self.draw.random() >= self.odds.rollback:
            return
        oldest = self.furthest - self.keep  # what is before it is gone
        if self.draw.random() < 0.5:
            if commits[-1] - 1 < oldest or len(commits) == 1:
                return
            self.files.remove(f"commits/{commits[-1]}")
            self.count["commits deleted"] += 1
            self.story.append(f"commit {commits[-1]} deleted")
            return
        # a resident micro-batch writes many manifests, so older ones may be gone
        last = self.last_batches()
        if kept := [micro_batch for micro_batch in commits if micro_batch >= oldest and micro_batch in last]:
            self.roll_back(self.draw.choice([kept[0], self.draw.choice(kept)]))

    def last_batches(self) -> dict[int, int]:
        """By micro-batch its last batch, of those with a manifest."""
        log = RoundLog(self.checkpoint)
        return {log.read(batch).micro_batch: batch for batch in sorted(filter(log.has, log._batches()))}

    def roll_back(self, to: int) -> None:
        """Go back to a micro-batch: what was read and delivered after it is so again, in other batches."""
        last = self.last_batches()[to]
        for micro_batch in range(to + 1, self.files.numbers("offsets")[-1] + 1):
            self.files.remove(f"offsets/{micro_batch}")
            self.files.remove(f"commits/{micro_batch}")
        self.count["rollbacks"] += 1
        self.story.append(f"rolled back to {to}, batch {last}")
        for batch in [batch for batch in self.taken if batch > last]:
            self.taken.pop(batch)
            self.read.pop(batch, None)
            if self.clocked and self.folder is not None:
                (self.folder / f"epoch-{batch:020d}.parquet").unlink(missing_ok=True)
        if self.clocked:
            self.delivered[:] = [(epoch, rows) for epoch, rows in self.delivered if epoch <= last]


class Process:
    """One driver, from its start to its end, on a thread that goes from point to point only when it may."""

    def __init__(self, world: World) -> None:
        self.world, self.name = world, uuid.uuid4().hex
        self.ended, self.error = "", None
        self.started = self.stalled = self.planned = False
        self.in_task = False
        #: whether a resident micro-batch ends at the next look; what a batch of Spark's has read
        self.leaves, self.files_read = False, dict[str, list[str]]()
        self.frames = {name: feed for name, feed in world.feeds.items() if isinstance(feed, FrameFeed)}
        self._may, self._did = threading.Semaphore(0), threading.Semaphore(0)
        self.thread = threading.Thread(target=self._live, daemon=True)

    def go_on(self) -> None:
        """Let it run to where it yields, stalls or ends."""
        if self.thread.ident is None:
            self.thread.start()
        self._may.release()
        self._did.acquire()

    def point(self, what: str) -> None:
        """A point: it goes on, is killed, loses a task, or stalls."""
        odds, draw, count = self.world.odds, self.world.draw, self.world.count
        count["points"] += 1
        self.tell(what)
        if self.world.points is not None and count["points"] > self.world.points:
            msg = f"no end after {self.world.points} points"
            raise Endless(msg)
        if draw.random() < odds.kill:
            count["kills"] += 1
            raise Killed
        if self.in_task and draw.random() < odds.lose:
            count["tasks lost"] += 1
            self.tell("is lost")
            raise TaskLost
        others = len(self.world.processes) > 1
        stalls = draw.random() < odds.stall and self.started and not self.stalled
        if stalls or (others and draw.random() < 0.3):
            self.stalled |= stalls
            count["stalls"] += stalls
            self._did.release()
            self._may.acquire()

    def tell(self, what: str) -> None:
        self.world.story.append(f"{self.name[:4]} {what}")

    def captured(self, name: str = "out") -> dict[int, list[Any]]:
        """The epochs of an output, and the rows of each."""
        return LogView(self.context).captured(name).rows()

    def newest(self) -> Manifest:
        """The manifest that was written last."""
        manifest = self.context.log.read(self.context.log.newest() or 0)
        assert manifest is not None
        return manifest

    def _live(self) -> None:
        self._may.acquire()
        try:
            self.start()
            self.started = True
            while self.batch():
                pass
            self.ended = "done"
        except (Killed, Clash, CheckpointInUse, LostOwnership) as error:
            self.ended = type(error).__name__
            self.tell(f"ended: {self.ended}")
            self.world.count[f"ended by {self.ended}"] += not isinstance(error, Killed)
        except BaseException as error:  # noqa: BLE001 - told where the world goes on
            # one that was given up for dead may miss files; it must do no harm, and may fail as it likes
            self.ended, self.error = "failed", error if self is self.world.processes[-1] else None
            self.tell(f"failed: {error}")
        self._did.release()

    # -- what `start` and Spark do ---------------------------------------------------------------------------

    def start(self) -> None:
        """As `runtime.start`, but for what needs a session."""
        world = self.world
        resident = world.draw.random() < world.resident
        world.count["resident runs"] += resident
        if world.draw.random() < world.odds.rescale:
            world.plan = world.flow.compile(world.draw.choice([1, 2, 3, 5]))
            world.count["rescaled"] += 1
        plan, log = world.plan, RoundLog(world.checkpoint)
        flow = identity_of(log, plan, 2)
        before, _ = check(log, plan)
        outputs = outputs_of(plan, world.flow.outputs)
        session: Any = None
        prepare_outputs(session, outputs, plan, log.checkpoint, flow["id"])
        check_not_ahead(outputs, plan, before)
        identify(log, flow)
        claim_outputs(session, outputs, plan, len)
        self.handles = {
            name: InputHandle(name, plan.source(name).stage.outputs[0], epochs=plan.source(name).epochs)  # type: ignore[arg-type]
            for name in world.sends
        }
        context = RunContext(
            checkpoint=log.checkpoint,
            **packed(plan),
            labels=labels(plan.workers, flow["partitions"]),
            inputs=(*self.handles, *(each.name for each in plan.inputs if by_column(each.epochs))),
            name=plan.name,
            run=self.name,
            keep=world.keep,
            rounds=world.rounds or world.draw.choice([2, 100] if resident else [1, 1, 2, 100]),
            resident=1e9 if resident else 0.0,
            commit_every=world.draw.choice([0.0, 1e9]),
        )
        bound = {
            name: source.bind(log.checkpoint, needed(plan, name), 2)
            for name, source in world.flow.frames.items()
            if isinstance(source, JournaledSource)
        }
        context = replace(context, packed_sources=packed_sources(bound))
        self.context, newest = start._claimed(context)
        epochs = newest.coordinator["inputs"]
        for name, handle in self.handles.items():
            handle.open(self.context.log, epochs[name])
        self.driver = Told(self.context, tuple(outputs))
        self.driver.process = self
        self.reader = FlowReader(RunContext.from_option(self.context.to_option()))
        if not resident:
            self.reader._available_now = True  # without pauses; what arrives later is read, too
        offsets, commits = world.files.numbers("offsets"), world.files.numbers("commits")
        self.next = offsets[-1] + bool(commits and commits[-1] == offsets[-1]) if offsets else 0

    def batch(self) -> bool:
        """One micro-batch, if there is something to do."""
        world, n = self.world, self.next
        start = world.offset(n - 1) or self.reader.initial_offset()
        # only the first batch can be one that was planned before
        if self.planned or not world.offset(n):
            self.planned = True
            more = self.send()
            if not self.plan(start):
                return more
        rows = self.read(start, world.offset(n))
        self.point(f"batch {n} runs")
        made = self.tasks(n, rows)
        self.point(f"batch {n} has run")
        self.leaves = False
        self.driver(Frame(made, self), n)  # type: ignore[arg-type]
        self.point(f"batch {n} is to be committed")
        world.add(f"commits/{n}", "v1\n{}")
        world.count["batches"] += 1
        world.committed(n)
        for log in ("offsets", "commits"):
            for old in world.files.numbers(log):
                if old < n - world.keep - (log == "offsets"):  # Spark reads the offset before
                    world.files.remove(f"{log}/{old}")
        for version in [v for v in world.versions if v < n - world.keep]:
            world.versions.pop(version, None)
        self.next = n + 1
        return True

    def plan(self, start: Any) -> bool:
        """Ask the source for its end, and write it into Spark's log; whether there is something to do."""
        n = self.next
        self.point(f"poll for batch {n}")
        self.reader._pause = 0.0
        for reader in self.reader.readers.values():
            reader.look_again()
        end, frames = self.reader.latest_offset(start), [len(feed.written) for feed in self.frames.values()]
        if end == start and frames == (self.world.ends(n - 1)[1:] or [0] * len(frames)):
            return False
        self.point(f"batch {n} is planned")
        self.world.plan_batch(n, end, *frames)
        if n:
            self.reader.commit(start)
        return True

    def read(self, start: Any, end: Any) -> pa.Table:
        """The rows between two offsets, read by tasks."""
        world, n = self.world, self.next
        world.furthest = max(n, world.furthest)
        batches, read = list[pa.RecordBatch](), dict[str, list[str]]()
        for share in self.reader.shares(start, end):
            name, own = pickle.loads(share)
            if name is not None:
                read.setdefault(name, []).extend(part.path for part in own.parts)
            batches += self.task(lambda s=share: list(self.reader.read(s)))
        before = self.world.ends(n - 1)[1:] or [0] * len(self.frames)
        for (name, feed), *between in zip(self.frames.items(), before, self.world.ends(n)[1:], strict=True):
            if between[0] < between[1]:
                read[name] = feed.between(*between)
                batches += self.task(partial(self.packed, name, feed.of(read[name])))
        self.files_read = {name: read.get(name, []) for name in world.feeds}
        return pa.Table.from_batches(batches, schema=ROWS)

    def packed(self, name: str, rows: list[Any]) -> list[pa.RecordBatch]:
        """The rows of a DataFrame, packed by a task."""
        schema = self.context.plan.source(name).stage.outputs[0]
        table = pa.table(dict(zip(schema.names, map(list, zip(*rows, strict=True)), strict=True)), schema)
        with self.context.task(packs=True):
            return list(self.context.pack(name, iter(table.to_batches()), 0))

    def send(self) -> bool:
        """The user's program: goes on behind what is durable; whether there is more to send."""
        left = [name for name, calls in self.world.sends.items() if self.handles[name].sent < len(calls)]
        for name in left:
            handle, calls = self.handles[name], self.world.sends[name]
            for verb, args in calls[handle.sent : handle.sent + self.world.draw.choice([0, 0, 1, 1, 3])]:
                with alone():
                    getattr(handle, verb)(*args)
        waiting = [feed for feed in self.world.feeds.values() if feed.left]
        for feed in waiting:
            for _ in range(min(len(feed.left), self.world.draw.choice([0, 0, 1, 3]))):
                feed.arrive()
        return bool(left or waiting)

    def tasks(self, n: int, rows: pa.Table) -> pa.Table:
        """The stateful operator: a task a group, from version `n` of the state to the next one."""
        states, out = dict(self.world.versions[n]), []
        groups = sorted(set(rows.column("worker").to_pylist()))
        self.world.draw.shuffle(groups)
        for label in groups:
            mine = rows.filter(pc.equal(rows.column("worker"), label))
            again = self.world.draw.random() < self.world.odds.twice
            results = [self.task(lambda m=mine, g=label: self.work(n, g, m)) for _ in range(1 + again)]
            state, made = self.world.draw.choice(results)
            states[label] = state
            out += made
        self.world.versions[n + 1] = states
        return pa.concat_tables([ROWS.empty_table(), *out])

    def work(self, n: int, label: int, rows: pa.Table) -> tuple[Any, list[pa.Table]]:
        """One group of one task."""
        order = self.world.draw.sample(range(rows.num_rows), rows.num_rows)
        cut = self.world.draw.randint(0, rows.num_rows)
        shuffled = rows.take(pa.array(order, pa.int64()))
        frames = [
            part.to_pandas(use_threads=False)
            for part in (shuffled.slice(0, cut), shuffled.slice(cut))
            if part.num_rows
        ]
        state = GroupState(self.world.versions[n].get(label))
        made = list(query._operator(self.context)((label,), iter(frames), state))  # type: ignore[arg-type]
        return state.get, [pa.Table.from_pandas(frame, ROWS, preserve_index=False) for frame in made]

    def task(self, function: Callable[[], Any]) -> Any:
        """Run a task; one that is lost runs again."""
        while True:
            self.in_task = True
            try:
                self.point("task")
                return function()
            except TaskLost:
                continue
            finally:
                self.in_task = False


class Told(Driver):
    """The driver, which tells the world what each of its batches reads."""

    process: Any

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "process": None}

    def _first(self, session: Any, last: Any, rows: Any, micro_batch: int, started: float) -> Any:
        stays = self.context.resident and last.manifest.batch >= self.context.first
        if self.process is not None and (rows.num_rows or not stays):
            entries = driver._read_to(self.context.log, last.manifest, micro_batch)["entries"]
            self._tell(last.manifest.batch + 1, entries, self.process.files_read)
        return super()._first(session, last, rows, micro_batch, started)

    def _next(self, session: Any, last: Any, micro_batch: int, ends: Any, begun: Any = None) -> Any:
        read: dict[str, list[str]] = {}
        for name, reader in self._inputs._readers.items():
            between = last.manifest.sources.get(name) or reader.initial_offset(), ends.sources.get(name)
            shares = [] if between[1] in (None, between[0]) else reader.shares(*map(dict, between))
            read[name] = [part.path for share in shares for part in share.parts]
        tell = partial(self._tell, last.manifest.batch + 1, ends.entries, read)
        self.process.world.count["resident batches"] += 1
        if begun is None:
            tell()
        # the other limits of an earlier attempt are told when the batch runs with them
        then = begun and begun.then(lambda written: written == ends.encode() and tell())
        return super()._next(session, last, micro_batch, ends, then)

    def _tell(self, batch: int, taken: Any, read: dict[str, list[str]]) -> None:
        world, log = self.process.world, self.context.log
        if max(world.files.numbers("timely/terms")) > log.term:
            return  # it has lost the checkpoint: what it reads from what is left there is of no epoch
        world.taken[batch], read = dict(taken), {name: paths for name, paths in read.items() if paths}
        assert world.read.setdefault(batch, read) == read, "a replay reads the same files"


class Later:
    """A future whose function runs on this thread, when its result is first asked for."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self.result = cache(function)

    def exception(self) -> None:
        """Wait for its end: no thread goes on with it."""

    def then(self, call: Callable[[Any], object]) -> Later:
        """The same result, with which something is called before it is returned."""
        return Later(lambda: (self.result(), call(self.result()))[0])


class GroupState:
    """Spark's state of one group."""

    def __init__(self, value: Any) -> None:
        self.exists, self.get = value is not None, value

    def update(self, value: Any) -> None:
        self.get = value


class Frame:
    """As much of a DataFrame, and of a session, as the driver uses."""

    def __init__(self, rows: pa.Table, process: Process) -> None:
        self.rows, self.process = rows, process
        self.sparkSession = self

    def toArrow(self) -> pa.Table:  # noqa: N802
        return self.rows

    def range(self, *_: int) -> Frame:
        return self

    def mapInArrow(self, task: Any, _: str) -> Frame:  # noqa: N802
        made = self.process.task(lambda: list(task(iter([]))))
        return Frame(pa.Table.from_batches(made, ROWS), self.process)


def _begin(inputs: ResidentInputs, world: World, batch: int, ends: Ends) -> Later:
    return world.later(partial(inputs.context.log.begin, batch, ends.encode()))


def _here(world: World) -> list[Process]:
    """The process of this thread."""
    return [process for process in world.processes if process.thread is threading.current_thread()]


def _wait(inputs: ResidentInputs, world: World, _: float) -> bool:
    (process,) = _here(world)
    process.point("the driver waits")
    process.leaves = not process.send() or world.draw.random() < world.leaves
    for reader in inputs._readers.values():
        reader.look_again()
    return True


@contextmanager
def _points(world: World) -> Iterator[None]:
    """A point before and after each file is written or removed."""
    here = partial(_here, world)

    def batch_of_task() -> int | None:
        process = here()[0]
        return process.next if process.in_task else None

    def leaves(_: RunContext) -> bool:
        return here()[0].leaves

    def never(_: RunContext) -> bool:  # a mock would remember each call
        return False

    def at_points(function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            mine = here()
            what = f"{function.__name__} {args[1]}"
            for process in mine:
                process.point(f"before {what}")
            result = function(*args, **kwargs)
            for process in mine:
                process.point(f"after {what}")
            return result

        return wrapped

    with ExitStack() as patches:
        for name in ("write", "remove"):
            patches.enter_context(mock.patch.object(Files, name, at_points(getattr(Files, name))))
        patches.enter_context(mock.patch.object(run_context, "_batch_of_task", batch_of_task))
        patches.enter_context(mock.patch.object(driver, "yields", leaves))
        patches.enter_context(mock.patch.object(ResidentInputs, "begin", partialmethod(_begin, world)))
        patches.enter_context(mock.patch.object(ResidentInputs, "wait", partialmethod(_wait, world)))
        patches.enter_context(mock.patch.object(flow_reader, "yields", never))
        patches.enter_context(mock.patch.object(driver, "LONGEST_LOOK", 0.0))
        # all of these small, so that much is kept in files
        patches.enter_context(mock.patch.multiple(blobs, EMBEDDED=64, BULK=500))
        patches.enter_context(mock.patch.object(codec, "BLOB_BYTES", 200))
        patches.enter_context(mock.patch.object(deliveries, "EVERY", 2))
        patches.enter_context(mock.patch.object(vertex_snapshot, "LOG_BYTES", 1_000))
        for module in (hot_keys, coordinator_hot_keys):
            patches.enter_context(mock.patch.object(module, "MANY", 4))
        # of use in Spark's own processes only
        patches.enter_context(mock.patch.object(run_context.process, "task", nullcontext))
        yield


# -- what must hold ------------------------------------------------------------------------------------------


def simulated(world: World) -> Simulation:
    """One simulated worker that has got all that the world sends, and never failed."""
    simulation = Simulation(world.flow)
    for name, calls in world.sends.items():
        for verb, args in calls:
            getattr(simulation, verb)(name, *args)
    simulation.run()
    return simulation


def expected(world: World) -> dict[str, dict[int, list[Any]]]:
    """What each output says per epoch, by a run on one simulated worker that never failed."""
    if not world.clocked:
        return _rows(simulated(world).captured)
    before = dict.fromkeys(world.sends, -1)
    batches, inputs = [], defaultdict[str, list[Any]](list)
    for batch, taken in sorted(world.taken.items()):
        read = world.read.get(batch, {})
        if taken != before or read:
            batches.append(batch)
            for name, feed in world.feeds.items():
                inputs[name].append(feed.of(read.get(name, [])))
            for name, last in taken.items():
                entries = world.sends[name][before[name] + 1 : last + 1]
                inputs[name].append([row for _, (rows,) in entries for row in rows])
        before = taken
    calls = _rows(run(world.flow, inputs))
    return {name: {batches[i]: rows for i, rows in epochs.items()} for name, epochs in calls.items()}


def in_folder(folder: Path) -> dict[int, list[Any]]:
    """The records of each epoch's file, without those of empty epochs."""
    found = {}
    for file in folder.glob("epoch-*.parquet"):
        table = pq.read_table(file, partitioning=None)
        (epoch,) = set(table.column("epoch").to_pylist()) or {-1}
        assert epoch in {-1, int(file.stem.removeprefix("epoch-"))}
        if rows := sorted_rows(table.drop_columns("epoch")):
            found[epoch] = rows
    return found


def _rows(captured: dict[str, Captured]) -> dict[str, dict[int, list[Any]]]:
    """Epochs with records; that an empty one is complete is told by its number, which a batch may use up."""
    return {name: {epoch: rows for epoch, rows in of.rows().items() if rows} for name, of in captured.items()}


def difference(world: World) -> str | None:
    """What a world that has come to its end says otherwise than a run that never failed."""
    calls = expected(world)
    process = Process(world)
    process.start()
    for name, epochs in calls.items():
        if name == "files":
            assert world.folder is not None
            got, wrong = in_folder(world.folder), False
        elif name == "told":  # at least once
            delivered = [(epoch, rows) for epoch, rows in world.delivered if rows]
            got = dict(delivered)
            wrong = any(epochs.get(epoch) != rows for epoch, rows in delivered)
        else:
            got, wrong = _rows({name: LogView(process.context).captured(name)})[name], False
        if wrong or got != epochs:
            return f"output {name!r}: {got} instead of {epochs}"
    if (counted := _audited(process)) != (given := _given(world)):
        return f"inputs have read {counted} of {given}"
    live, gone, there = files(process.context.log)
    if live - there:
        return f"files that a retained batch needs are not there: {sorted(live - there)}"
    if there - live - gone:
        return f"files that nobody needs are there: {sorted(there - live - gone)}"
    return None


def _audited(process: Process) -> dict[str, Counts]:
    """By input what the flow says to have read."""
    log, plan = process.context.log, process.context.plan
    manifest = log.read(log.newest())
    accounts = Account.of(log, manifest, plan.described()["inputs"])
    return {name: Counts.of(each) for name, each in accounts.items()}


def _given(world: World) -> dict[str, Counts]:
    """By input what the program has sent, and what others have written."""
    sent = {
        name: Counts(len(calls), len(calls), 0, sum(len(args[0]) for verb, args in calls if verb == "send"))
        for name, calls in world.sends.items()
    }
    return sent | {name: feed.given() for name, feed in world.feeds.items()}


def files(log: RoundLog) -> tuple[set[str], set[str], set[str]]:
    """The files that the retained batches need; those that go with their manifests; those that are there."""
    live: set[str] = set()
    gone: set[str] = set()
    newest = log.read(log.newest())
    for batch in filter(log.has, log._batches()):
        manifest, rows = log.newest_before(batch + 1)
        gone.update(manifest.garbage)
        if batch < newest.kept_from:  # one that was given up for dead wrote it later
            continue
        live |= files_of(wire.only(rows, Message))
        live = live.union(*(state.files for state in StateRefs.of(rows).by_worker.values()))
        waiting = {
            name for epochs in manifest.unreleased.values() for names in epochs.values() for name in names
        }
        live = live.union(waiting, *(files_of(log.outputs(name)) for name in waiting))
    return live, gone, {*log.files.names("blobs"), *log.files.names("outputs")}


# -- cases ---------------------------------------------------------------------------------------------------


def paths(
    draw: random.Random, delivered: Delivered, folder: Path
) -> tuple[ts.Dataflow, dict[str, list[Any]]]:
    """By the clock: a loop, a join, counts."""
    flow = ts.Dataflow("paths")
    edges, roots = flow.input("edges", "src long, dst long"), flow.input("roots", "node long")
    near = roots.loop(hop(edges), name="hops")
    near.capture("out")
    near.to_files(folder / "out", name="files")
    near.map(lambda row: row.node % 7, "m long").group_by("m").aggregate(c="count").capture("sizes")
    near.subscribe(lambda epoch, table: delivered.append((epoch, sorted_rows(table))), name="told")

    def walk() -> list[tuple[int, int]]:
        at, steps = draw.randint(0, 60), draw.randint(1, 20)
        return [(at + i, at + i + 1) for i in range(steps)] + [(draw.randint(0, 60), draw.randint(0, 60))]

    calls = {"edges": [("send", (walk(),)) for _ in range(draw.randint(2, 10))]}
    return flow, calls | {"roots": [("send", ([(draw.randint(0, 60),)],)) for _ in range(draw.randint(1, 4))]}


def manual(
    draw: random.Random, delivered: Delivered, folder: Path
) -> tuple[ts.Dataflow, dict[str, list[Any]]]:
    """Epochs that the user counts: a loop in step, vertices with state of their own."""
    flow = ts.Dataflow("manual")
    x = flow.input("x", "k long, v long", epochs="manual")

    x.loop(to_next_key, max_iterations=draw.randint(1, 6), on_limit="return").capture("out")
    for name in ("first", "second"):
        x = flow.vertex(Pairs(logged=draw.random() < 0.7), x, "k long, v long", by="k", name=name)
    x.capture("pairs")
    x.to_files(folder / "out", name="files")
    x.subscribe(lambda epoch, table: delivered.append((epoch, sorted_rows(table))), name="told")
    calls: list[Any] = []
    for epoch in range(draw.randint(2, 6)):
        for _ in range(draw.randint(0, 3)):
            rows = [(draw.randint(0, 9), draw.randint(0, 99)) for _ in range(draw.choice([1, 5, 40]))]
            calls.append(("send", (rows,)))
        calls.append(("advance_to", (epoch + 1,)))
    return flow, {"x": [*calls, ("close", ())]}


def fed(
    draw: random.Random, delivered: Delivered, folder: Path
) -> tuple[ts.Dataflow, dict[str, list[Any]], dict[str, Feed]]:
    """By the clock: a folder with files that cannot be read, a Delta table, and a handle."""
    flow, names = ts.Dataflow("fed"), ("k", "v")
    feeds: dict[str, Feed] = {
        "folder": FolderFeed(folder / "in", draw, names),
        "table": TableFeed(folder / "table", draw, names),
    }
    some = flow.files("folder", folder / "in", schema="k long, v long", on_bad_file="quarantine",
                      files_per_epoch=draw.choice([None, 1, 2]))  # fmt: skip
    others = flow.delta("table", folder / "table", versions_per_epoch=draw.choice([1, 3]))
    both = some.concat(others, flow.input("sent", "k long, v long"))
    both.capture("out")
    both.to_files(folder / "out", name="files")
    sums = both.group_by("k").aggregate(v=("sum", "v"))
    sums.subscribe(lambda epoch, table: delivered.append((epoch, sorted_rows(table))), name="told")
    most = both.map(lambda row: (max(0, row.k - 5), row.v), "k long, v long", name="most on one key")
    every = most.collection()
    every.min("v", keys="k", skew="auto", name="least").capture("least values")
    pairs = every.arrange("k", skew="auto", name="by key")
    pairs.join(others.collection(name="other").select("k", w="v"), on="k").count(keys="k").capture("pairs")
    calls = [("send", ([(draw.randint(0, 9), draw.randint(0, 99))],)) for _ in range(draw.randint(0, 4))]
    return flow, {"sent": calls}, feeds


def world_of(seed: int, folder: Path, points: int | None = 100_000) -> World:
    """The case of a seed."""
    draw, delivered, feeds = random.Random(seed), list[Any](), {}
    make: Any = draw.choice([paths, manual, fed])
    if make is fed:
        flow, sends, feeds = fed(draw, delivered, folder)
    else:
        flow, sends = make(draw, delivered, folder)
    odds = Odds(
        kill=draw.choice([0.003, 0.01, 0.03]),
        stall=draw.choice([0, 0, 0.005]),
    )
    if make is not manual and not odds.stall:  # the other has states that only its own vertices can deal out
        odds = replace(odds, rescale=draw.choice([0, 0.2]))
    workers, keep = draw.choice([1, 2, 3, 5]), draw.choice([2, 5])
    resident = draw.choice([0.0, 0.0, 0.5, 1.0])
    if resident:  # an older micro-batch's manifests are removed after so many batches
        odds = replace(odds, rollback=0)
    return World(
        flow, str(folder / "checkpoint"), sends, seed=seed, delivered=delivered, odds=odds, workers=workers,
        keep=keep, feeds=feeds, resident=resident, points=points,
        folder=folder / "out",
    )  # fmt: skip


def check_seed(seed: int, count: Counter[str], points: int | None = 100_000) -> str | None:
    """Run a case; in what it differs from a run that never failed, and what led to it."""
    with tempfile.TemporaryDirectory(prefix="timely-engine-") as folder:
        world = world_of(seed, Path(folder), points)
        try:
            world.live()
            differs = difference(world)
        except Exception as error:  # noqa: BLE001 - whatever happens, the seed must be told
            differs = f"{type(error).__name__}: {error}"
        count.update(world.count)
        return None if differs is None else "\n  ".join([differs, *world.story])


def main(
    arguments: Sequence[str] | None = None,
    check: Callable[[int, Counter[str]], str | None] = check_seed,
    module: str = "engine",
) -> int:
    """Run the cases that the arguments say; the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--cases", type=int, default=1_000)
    parser.add_argument("--first", type=int, default=0, help="the first case's seed")
    parser.add_argument("--seed", type=int, help="this case alone")
    options = parser.parse_args(arguments)
    seeds = range(options.first, options.first + options.cases)
    if options.seed is not None:
        seeds = range(options.seed, options.seed + 1)
    count: Counter[str] = Counter()
    began = calls = time.monotonic()
    for seed in seeds:
        if (differs := check(seed, count)) is not None:
            print(f"DIFFERS: seed {seed}: {differs}\nagain: python -m tests.support.{module} --seed {seed}")
            return 1
        if (now := time.monotonic()) - calls > 10:
            calls = now
            print(f"  seed {seed}: {count['kills']} kills", flush=True)
    minutes = (time.monotonic() - began) / 60
    counts = ", ".join(f"{n} {what}" for what, n in sorted(count.items()))
    print(f"{len(seeds)} cases, {count['kills'] / minutes:.0f} kills a minute; {counts}\nno differences")
    return 0


if __name__ == "__main__":
    logging.disable(logging.WARNING)  # of other numbers of workers
    sys.exit(main())
