"""`Status`: the status of a checkpoint's flow, read without Spark and without the flow's code."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from typing import Any

from timely_spark.compiler.summary import PlanSummary, unnamed_in_words
from timely_spark.coordinator.lacking import in_words
from timely_spark.errors import LogDamaged
from timely_spark.runtime.errors import OtherFlow
from timely_spark.runtime.handle.why import Why
from timely_spark.runtime.query.live import BatchProgress, running_batch
from timely_spark.runtime.sources.account import Account
from timely_spark.runtime.storage.blobs import size_of
from timely_spark.runtime.storage.lock import Lock
from timely_spark.runtime.storage.log import RoundLog, failure_file
from timely_spark.runtime.storage.manifest import Manifest
from timely_spark.show.table import counted
from timely_spark.times.refined import time_text
from timely_spark.worker import wire
from timely_spark.worker.wire import Message

#: So many names that are not read are shown of each input.
_NAMES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """The status of a flow, from its newest manifest."""

    checkpoint: str
    flow: str
    workers: int
    #: the process that started the flow last
    owner: Mapping[str, Any]
    #: whether that process is alive; None: unknown on this file system
    running: bool | None
    #: "running", "idle" (it runs, and has nothing to do), "failed", "stopped", or "perhaps running"
    state: str
    #: the error that ended the flow, with its hint, and `when`; None if none has
    failure: Mapping[str, str] | None
    #: the micro-batch that runs, if it has run for a while
    now: BatchProgress | None
    #: the last micro-batch, and the rounds since the checkpoint was made
    batch: int
    rounds: int
    complete: bool
    #: epochs that have begun and are not complete
    epochs: list[int]
    #: per input its epoch, None: closed; and the user's line
    inputs: dict[str, tuple[int | None, str]]
    #: the frontier of each step; empty: complete
    frontier: dict[str, list[Any]]
    #: messages in flight
    messages: int
    message_bytes: int
    notifications: int
    #: workers whose last round ended with its budget
    left: list[int]
    late: Mapping[str, int]
    #: per input what became of all that it was given
    read: Mapping[str, Account]
    #: by step the warning of the last hot key, with its micro-batch
    hot_keys: Mapping[str, str]
    #: steps that were new at a restart and started without the past, and the first epoch of each
    lacking: Mapping[str, int]
    #: steps that keep state and have no name, by which a changed flow would find it
    unnamed: list[str]
    state_bytes: Mapping[str, int]
    #: what keeps the oldest epoch open; None: no epoch is in flight
    why: Why | None
    #: an SVG drawing of the flow
    drawing: str

    @classmethod
    def of(cls, checkpoint: str) -> Status:
        """Read the status of a checkpoint, also of a running flow."""
        log = RoundLog(checkpoint)
        identity, batch = log.identity(), log.newest()
        whole = None if batch is None else log.read_whole(batch)
        if identity is None or whole is None:
            raise OtherFlow.none_at(log.checkpoint)
        manifest, rows = whole
        flow = log.flow(manifest)
        snapshot, summary = manifest.coordinator, PlanSummary(flow["outline"])
        epochs = manifest.open_epochs
        messages = wire.only(rows, Message).column("payload").to_pylist()
        inputs = snapshot["inputs"]
        owner, running = log.owner(), Lock(log.files).is_held()
        now = running_batch(log, manifest.batch) if running is not False else None
        failure = failed(log, manifest) if not running else None
        state = {True: "running", False: "stopped", None: "perhaps running"}[running]
        if failure is not None:
            state = "failed"
        elif running and now is None and not epochs:
            state = "idle"
        return cls(
            checkpoint=log.checkpoint,
            flow=identity["name"],
            workers=flow["described"]["workers"],
            owner=owner,
            running=running,
            state=state,
            failure=failure,
            now=now,
            batch=manifest.batch,
            rounds=manifest.rounds,
            complete=manifest.complete,
            epochs=epochs,
            inputs={name: (at, summary.inputs[name][1]) for name, at in inputs.items()},
            frontier=summary.frontier(snapshot) or manifest.frontier,
            messages=len(messages),
            message_bytes=sum(map(size_of, messages)),
            notifications=manifest.notifications,
            left=snapshot["left"],
            late=manifest.late,
            read=Account.of(log, manifest, flow["described"]["inputs"]),
            hot_keys=snapshot.get("hot_keys", {}),
            lacking=snapshot.get("lacking", {}),
            unnamed=summary.unnamed,
            state_bytes=manifest.stats.get("state_bytes", {}),
            why=Why.of(log, manifest, rows, summary, epochs[0], running=now) if epochs else None,
            drawing=flow.get("drawing", ""),
        )

    def json(self) -> str:
        """The status as JSON, without the drawing."""
        shown = asdict(self)
        del shown["drawing"]
        return json.dumps(shown, indent=1)

    def __str__(self) -> str:
        return "\n".join(self._lines())

    @property
    def without_past(self) -> list[str]:
        """The steps that started without the past, as a line; none if there are none."""
        text = (
            f"without the past  {in_words(self.lacking)}: results there and behind are of later records only"
        )
        return [text] if self.lacking else []

    def _lines(self) -> Iterator[str]:
        owner = f"process {self.owner.get('pid')} on {self.owner.get('host')}"
        yield f"flow {self.flow!r}, {counted(self.workers, 'worker')}, {self.checkpoint}"
        yield f"  {self.state}; started {self.owner.get('started')} by {owner}"
        if self.failure is not None:
            yield f"failed at {self.failure['when']}: {self.failure['error']}"
            yield "  start the flow again on this checkpoint, when that is mended: it continues where it was"
        if self.now is not None and self.why is None:
            yield str(self.now)
        yield (
            f"  after micro-batch {self.batch}, {counted(self.rounds, 'round')}"
            + ", complete" * self.complete
        )
        yield f"inputs  {_listed(f'{n}: {_at(at)} ({where})' for n, (at, where) in self.inputs.items())}"
        yield f"read  {_listed(f'{name}: {account}' for name, account in self.read.items())}"
        for account in self.read.values():
            for name, reason in list(account.names.items())[:_NAMES]:
                yield f"  not read: {name} {reason}"
        if self.late:
            yield f"late rows  {_listed(f'{name}: {n}' for name, n in self.late.items())}"
        yield from self.hot_keys.values()
        yield from self.without_past
        if self.unnamed:
            yield unnamed_in_words(self.unnamed)
        yield f"epochs in flight  {_listed(map(str, self.epochs))}"
        left = f", work left over on workers {self.left}" if self.left else ""
        messages = f"{counted(self.messages, 'message')} ({counted(self.message_bytes, 'byte')})"
        yield f"pending  {messages}, {counted(self.notifications, 'notification')}{left}"
        yield "frontier: the least times that may still arrive"
        width = max(map(len, self.frontier), default=0)
        for name, times in self.frontier.items():
            size = f"   {self.state_bytes[name]:,} bytes of state" if name in self.state_bytes else ""
            yield f"  {name:{width}}  {_listed(map(time_text, times))}{size}"
        if self.why is not None:
            yield str(self.why)


def failed(log: RoundLog, manifest: Manifest) -> dict[str, str] | None:
    """The error that ended the last run, and when; None if it was stopped, or went on after the error."""
    try:
        report = log.files.json(failure_file(max(log.files.numbers("terms"), default=None)))
        if report is None or report["at"] < manifest.written:
            return None
        when = datetime.fromtimestamp(report["at"], timezone.utc).isoformat(timespec="seconds")
        return {"error": str(report["text"]), "when": when}
    except (LogDamaged, KeyError, TypeError, ValueError, OverflowError) as error:
        return {"error": f"the report of the error is damaged: {error}", "when": "an unknown time"}


def _listed(parts: Iterator[str] | map[str]) -> str:
    return ", ".join(parts) or "none"


def _at(epoch: int | None) -> str:
    return "closed" if epoch is None else f"epoch {epoch}"
