"""`Status`: the status of a checkpoint's flow, read without Spark and without the flow's code."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from typing import Any

from timely_spark.compiler.summary import unnamed_in_words
from timely_spark.coordinator.lacking import lacking_in_words
from timely_spark.errors import LogDamaged
from timely_spark.runtime.handle.inspection import Round, inspect
from timely_spark.runtime.handle.overview import steps
from timely_spark.runtime.handle.usage import Usage
from timely_spark.runtime.handle.why import Why
from timely_spark.runtime.query.live import BatchProgress, running_batch
from timely_spark.runtime.run_context import is_over
from timely_spark.runtime.sources.account import Account
from timely_spark.runtime.storage.lock import Lock
from timely_spark.runtime.storage.log import RoundLog, failure_file
from timely_spark.runtime.storage.manifest import Manifest
from timely_spark.show.sketch import Expand
from timely_spark.show.table import counted, listed

#: What to do after a failure.
AGAIN = "start the flow again on this checkpoint, when that is mended: it continues where it was"
#: What a start waits for at first.
STARTS = "no batch is done yet: the first one also starts Spark's Python processes"
#: So many names that are not read are shown of each input.
_NAMES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """The status of a flow: its state after the newest batch, and what became of its last run."""

    #: the flow after its newest batch
    after: Round
    #: the process that started the flow last
    owner: Mapping[str, Any]
    #: whether that process is alive; None means unknown on this file system
    running: bool | None
    #: "running", "idle" (it runs, and has nothing to do), "failed", "stopped", or "perhaps running"
    state: str
    #: the error that ended the flow, with its hint, and `when`; None if none has
    failure: Mapping[str, str] | None
    #: the batch that runs, if it has run for a while
    now: BatchProgress | None
    #: per input what became of all that it was given
    read: Mapping[str, Account]
    #: what keeps the oldest epoch open; None if no epoch is in flight
    why: Why | None
    #: whether the process has yet to do its first batch, or to repeat the one in which the last run ended
    begins: bool = False
    #: which boxes of steps are opened
    expand: Expand = False

    @classmethod
    def of(cls, checkpoint: str | os.PathLike[str], *, expand: Expand = False) -> Status:
        """Read the status of a checkpoint, also of a running flow."""
        after = inspect(checkpoint).at()
        log, manifest, epochs = after.log, after.manifest, after.manifest.open_epochs
        running = Lock(log.files).is_held()
        now = running_batch(log, manifest.batch) if running is not False else None
        now = now and now.named(after.sketch.loop)
        failure = failed(log, manifest) if not running else None
        repeats = bool(running) and now is None and _repeats(log, manifest)
        state = {True: "running", False: "stopped", None: "perhaps running"}[running]
        if failure is not None:
            state = "failed"
        elif running and now is None and not epochs and not repeats:
            state = "idle"
        return cls(
            after=after,
            owner=log.owner(),
            running=running,
            state=state,
            failure=failure,
            now=now,
            read=Account.of(log, manifest, after.description["described"]["inputs"]),
            why=Why.of(after, epochs[0], running=now) if epochs else None,
            begins=repeats or (bool(running) and manifest.batch < 0),
            expand=expand,
        )

    def json(self) -> str:
        """The status as JSON, without the drawing."""
        after, manifest = self.after, self.after.manifest
        shown = {
            "checkpoint": after.log.checkpoint,
            "flow": after.flow,
            "workers": self.workers,
            "owner": self.owner,
            "running": self.running,
            "state": self.state,
            "failure": self.failure,
            "now": self.now and asdict(self.now),
            "batch": manifest.batch,
            "rounds": manifest.rounds,
            "residency": self.residency,
            "batch_ms": manifest.took.encode(),
            "complete": manifest.complete,
            "epochs": manifest.open_epochs,
            "inputs": after.inputs,
            "frontier": after.frontier,
            "messages": len(after.message_bytes),
            "message_bytes": sum(after.message_bytes),
            "notifications": manifest.notifications,
            "left": manifest.coordinator["left"],
            "late": manifest.late,
            "read": {name: asdict(account) for name, account in self.read.items()},
            "delivered": {name: one._asdict() for name, one in manifest.outputs.items()},
            "hot_keys": manifest.hot_keys,
            "slow": manifest.slow,
            "negatives": manifest.negatives,
            "expectations": {step: asdict(counts) for step, counts in manifest.expectations.items()},
            "lacking": manifest.coordinator.get("lacking", {}),
            "unnamed": after.summary.unnamed,
            "state_bytes": manifest.state_bytes,
            "memory_bytes": manifest.memory_bytes,
            "usage": asdict(self.usage),
            "why": self.why and asdict(self.why),
        }
        return json.dumps(shown, indent=1)

    def __str__(self) -> str:
        return "\n".join(self._lines())

    @property
    def warnings(self) -> list[str]:
        """The warnings of hot keys, slow tasks, negative records, failed expectations, and lost pasts."""
        negatives = self.after.manifest.negatives
        counts = f"negative records  {listed([f'{name}: {n}' for name, (n, _) in negatives.items()])}"
        lacking = self.after.manifest.coordinator.get("lacking")
        past = f"without the past  {lacking_in_words(lacking)}" if lacking else ""
        results = ": results there and behind are of later records only"
        return [
            *self.after.manifest.hot_keys.values(),
            *[self.after.manifest.slow] * bool(self.after.manifest.slow),
            *[counts] * bool(negatives),
            *(text for _, text in negatives.values()),
            *self._expectations(failed=True),
            *[past + results] * bool(past),
        ]

    def _expectations(self, *, failed: bool) -> list[str]:
        every = self.after.manifest.expectations.items()
        return [f"expectation {step!r}  {one}" for step, one in every if bool(one.failed) is failed]

    def steps(self) -> list[tuple[str, str, int | None]]:
        """For each step, or box of the steps of one call, its frontier and the bytes of its state."""
        return steps(self.after.manifest, self.after.frontier, self.after.sketch.boxes(self.expand))

    @property
    def residency(self) -> str:
        """Whether each micro-batch of the last run stays, and why not."""
        no_longer = self.after.manifest.not_resident
        return f"each epoch is a micro-batch: {no_longer}" if no_longer else self.owner.get("residency", "")

    @property
    def usage(self) -> Usage:
        """What the flow takes of this machine now."""
        here = self.running and self.owner.get("host") == platform.node()
        return Usage.of(self.after.log.files, self.owner["pid"] if here else None)

    @property
    def workers(self) -> int:
        """The number of workers."""
        return int(self.after.description["described"]["workers"])

    @property
    def pending(self) -> tuple[str, str, str]:
        """The messages in flight, their bytes, and the pending notifications, in words."""
        sizes, n = self.after.message_bytes, self.after.manifest.notifications
        return counted(len(sizes), "message"), counted(sum(sizes), "byte"), counted(n, "notification")

    def _lines(self) -> Iterator[str]:
        after, manifest = self.after, self.after.manifest
        owner = f"process {self.owner.get('pid')} on {self.owner.get('host')}"
        yield f"flow {after.flow!r}, {counted(self.workers, 'worker')}, {after.log.checkpoint}"
        yield f"  {self.state}; started {self.owner.get('started')} by {owner}"
        yield from [f"  {self.residency}"] * bool(self.residency)
        if self.failure is not None:
            yield f"failed at {self.failure['when']}: {self.failure['error']}"
            yield f"  {AGAIN}"
        if self.now is not None and self.why is None:
            yield str(self.now)
        rounds = counted(manifest.rounds, "round")
        done = f"after batch {manifest.batch}, {rounds}{', complete' * manifest.complete}"
        yield f"  {done if manifest.batch >= 0 else STARTS.partition(':')[0]}"
        yield from [f"  since the start {STARTS}"] * self.begins
        yield from [f"  {manifest.took}"] * bool(manifest.latencies)
        inputs = [f"{name}: {_at(at)} ({where})" for name, (at, where) in after.inputs.items()]
        yield f"inputs  {listed(inputs) or 'none'}"
        yield f"read  {listed([f'{name}: {each}' for name, each in self.read.items()]) or 'none'}"
        for account in self.read.values():
            for name, reason in list(account.names.items())[:_NAMES]:
                yield f"  not read: {name} {reason}"
        yield f"delivered  {listed([f'{name}: {one}' for name, one in manifest.outputs.items()]) or 'none'}"
        if manifest.late:
            yield f"late rows  {listed([f'{name}: {n}' for name, n in manifest.late.items()])}"
        yield from self._expectations(failed=False)
        yield from self.warnings
        if after.summary.unnamed:
            yield unnamed_in_words(after.summary.unnamed)
        yield f"epochs in flight  {listed(manifest.open_epochs) or 'none'}"
        unfinished = manifest.coordinator["left"]
        queued = f", work left over on workers {unfinished}" if unfinished else ""
        messages, held, notifications = self.pending
        yield f"pending  {messages} ({held}), {notifications}{queued}"
        yield from (f"{name}  {text}" for name, text in self.usage.lines())
        yield "frontier: the least times that may still arrive"
        width = max((len(name) for name, *_ in self.steps()), default=0)
        for name, times, size in self.steps():
            yield f"  {name:{width}}  {times}" + ("" if size is None else f"   {size:,} bytes of state")
        if self.why is not None:
            yield str(self.why)


def failed(log: RoundLog, manifest: Manifest) -> dict[str, str] | None:
    """The error that ended the last run, and when; None if it was stopped, or went on after the error."""
    try:
        report = log.files.json(failure_file(max(log.files.numbers("terms"), default=None)))
        if report is None or is_over(report, manifest.batch):
            return None
        when = datetime.fromtimestamp(report["at"], timezone.utc).isoformat(timespec="seconds")
        return {"error": str(report["text"]), "when": when}
    except (LogDamaged, KeyError, TypeError, ValueError, OverflowError) as error:
        return {"error": f"the report of the error is damaged: {error}", "when": "an unknown time"}


def _repeats(log: RoundLog, manifest: Manifest) -> bool:
    """Whether a run has yet to repeat what Spark planned in the run before it, and did not commit."""
    with suppress(KeyError, ValueError, TypeError):  # an unknown time
        if datetime.fromisoformat(log.owner()["started"]).timestamp() > manifest.written:
            planned = log.spark.offsets[-1:]
            return planned > log.spark.commits[-1:] and planned > [manifest.micro_batch]
    return False


def _at(epoch: int | None) -> str:
    return "closed" if epoch is None else f"epoch {epoch}"
