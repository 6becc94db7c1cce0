"""`Status`: the status of a checkpoint's flow, read without Spark and without the flow's code."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from timely_spark.compiler.summary import OpenPointstamp, PlanSummary
from timely_spark.runtime.errors import OtherFlow
from timely_spark.runtime.storage.blobs import size_of
from timely_spark.runtime.storage.lock import Lock
from timely_spark.runtime.storage.log import RoundLog
from timely_spark.worker import wire
from timely_spark.worker.wire import Message

_MOST = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """The status of a flow, from its newest manifest.

    Example:
        >>> Status.of("/no/such/checkpoint")
        Traceback (most recent call last):
            ...
        timely_spark.runtime.errors.OtherFlow: /no/such/checkpoint holds no checkpoint of a flow...
    """

    checkpoint: str
    flow: str
    workers: int
    #: the process that started the flow last
    owner: Mapping[str, Any]
    #: whether that process is alive; None: unknown on this file system
    running: bool | None
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
    state_bytes: Mapping[str, int]
    #: the pointstamps that keep the oldest epoch open
    held: list[OpenPointstamp]
    #: the inputs that keep the oldest epoch open
    held_by_inputs: list[str]

    @classmethod
    def of(cls, checkpoint: str) -> Status:
        """Read the status of a checkpoint, also of a running flow."""
        log = RoundLog(checkpoint)
        identity, batch = log.identity(), log.newest()
        whole = None if batch is None else log.read_whole(batch)
        if identity is None or whole is None:
            msg = f"{log.checkpoint} holds no checkpoint of a flow."
            raise OtherFlow(msg, hint="give the directory of start(checkpoint=...).")
        manifest, rows = whole
        name = f"flows/{manifest.plan}.json"
        flow = log.files.found(name, log.files.json(name))
        snapshot, summary = manifest.coordinator, PlanSummary(flow["outline"])
        epochs = sorted({epoch for epochs in snapshot["unreleased"].values() for epoch in epochs})
        messages = wire.only(rows, Message).column("payload").to_pylist()
        inputs = snapshot["inputs"]
        oldest = epochs[0] if epochs else None
        held_by_inputs = [
            name
            for name, at in inputs.items()
            if oldest is not None and at is not None and at <= oldest and summary.inputs[name][0] != "clock"
        ]
        return cls(
            checkpoint=log.checkpoint,
            flow=identity["name"],
            workers=flow["described"]["workers"],
            owner=log.owner(),
            running=Lock(log.files).is_held(),
            batch=manifest.batch,
            rounds=manifest.rounds,
            complete=manifest.complete,
            epochs=epochs,
            inputs={name: (at, summary.inputs[name][1]) for name, at in inputs.items()},
            frontier=summary.frontier(snapshot) or manifest.frontier,
            messages=len(messages),
            message_bytes=sum(map(size_of, messages)),
            notifications=sum(n for pending in snapshot["pending"] for _, _, n in pending),
            left=snapshot["left"],
            late=manifest.late,
            state_bytes=manifest.stats.get("state_bytes", {}),
            held=[] if oldest is None else summary.open_pointstamps(snapshot, oldest),
            held_by_inputs=held_by_inputs,
        )

    def json(self) -> str:
        """The status as JSON."""
        return json.dumps(asdict(self), indent=1)

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        alive = {True: "running", False: "not running", None: "perhaps running"}[self.running]
        owner = f"process {self.owner.get('pid')} on {self.owner.get('host')}"
        yield f"flow {self.flow!r}, {self.workers} workers, {self.checkpoint}"
        yield f"  {alive}; started {self.owner.get('started')} by {owner}"
        yield f"  after micro-batch {self.batch}, {self.rounds} rounds" + ", complete" * self.complete
        yield f"inputs  {_listed(f'{n}: {_at(at)} ({where})' for n, (at, where) in self.inputs.items())}"
        if self.late:
            yield f"late rows  {_listed(f'{name}: {n}' for name, n in self.late.items())}"
        yield f"epochs in flight  {_listed(map(str, self.epochs))}"
        left = f", work left over on workers {self.left}" if self.left else ""
        notifications = f"{self.notifications} notifications"
        yield f"pending  {self.messages} messages ({self.message_bytes:,} bytes), {notifications}{left}"
        yield "frontier: the least times that may still arrive"
        width = max(map(len, self.frontier), default=0)
        for name, times in self.frontier.items():
            size = f"   {self.state_bytes[name]:,} bytes of state" if name in self.state_bytes else ""
            yield f"  {name:{width}}  {_listed(map(_time, times))}{size}"
        if self.epochs:
            yield f"epoch {self.epochs[0]} is held back by"
        for name in self.held_by_inputs:
            at, where = self.inputs[name]
            yield f"  input {name} ({where}) at epoch {at}: advance or close it"
        for open_ in self.held[:_MOST]:
            kinds = [(open_.messages, "messages"), (open_.notifications, "notifications")]
            contents = " and ".join(f"{n} {kind}" for n, kind in kinds if n)
            yield f"  {contents} at {_time(open_.time)}, step {open_.step} ({open_.where})"
            if len(open_.path) > 1:
                yield f"    before {' -> '.join(open_.path[1:])}"
        if len(self.held) > _MOST:
            yield f"  and {len(self.held) - _MOST} more"


def _listed(parts: Iterator[str] | map[str]) -> str:
    return ", ".join(parts) or "none"


def _at(epoch: int | None) -> str:
    return "closed" if epoch is None else f"epoch {epoch}"


def _time(time: list[int]) -> str:
    return f"({', '.join(map(str, time))})"
