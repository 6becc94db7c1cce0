"""`Verdict`: whether a flow is well and how late it is, in one sentence, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime

from timely_spark.errors import split_hint
from timely_spark.runtime.handle.history import History, quantile
from timely_spark.runtime.handle.status import AGAIN, STARTS, Status
from timely_spark.show.table import counted
from timely_spark.show.words import seconds_text
from timely_spark.times.refined import time_text

#: The least iterations after which a loop whose changes do not fall counts as diverging.
_LONG = 64


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a flow is."""

    #: "good", "warn", "bad" or "rest"
    kind: str
    #: for how many seconds the oldest that has arrived waits for its answer; 0 if everything is answered. A
    #: flow that has failed waits at least since then
    late: float
    says: str = ""
    do: str = ""

    @classmethod
    def of(cls, status: Status, history: History, slo: float | None, now: float) -> Verdict:
        """The verdict at a moment.

        Args:
            slo: the seconds within which an epoch must be answered; None if it is never too late.
        """
        waiting = {name: account.backlog for name, account in status.read.items() if account.waiting}
        late = _late(status, history, waiting, now)
        if status.failure is not None:
            error, hint = split_hint(status.failure["error"])
            first = error.partition("\n")[0]
            when = status.failure["when"]
            with suppress(ValueError):  # an unknown time
                at = datetime.fromisoformat(when)
                late, when = max(late, now - at.timestamp()), f"{at:%Y-%m-%d %H:%M:%S} UTC"
            return cls("bad", late, f"Failed at {when}: {first}", hint or AGAIN)
        if (loop := _diverging(status, history)) is not None:
            name, epoch, iteration, changes = loop
            says = (
                f"Loop {name!r} does not converge: epoch {epoch} is at iteration {iteration:,}, and an "
                f"iteration still changes {counted(changes, 'record')}."
            )
            do = f"look at query.changing({name!r}); query.cancel({epoch}) ends the loop."
            return cls("bad", late, says, do)
        too_late = slo is not None and late > slo
        if not too_late and not (late and status.running is False):
            kind = "rest" if status.running is False else "good"
            return cls(kind, late, f"Since the start {STARTS}." * status.begins)
        why, do = next(_reasons(status, waiting))
        asked = f", {seconds_text(slo)} are asked for" if slo is not None and too_late else ""
        says = f"The oldest epoch has waited {seconds_text(late)} for its answer{asked}: {why}."
        return cls("bad" if too_late else "warn", late, says, do)


def _late(status: Status, history: History, waiting: Mapping[str, str], now: float) -> float:
    manifest = status.after.manifest
    since = history.all_open_since(manifest.open_epochs)
    if status.now is not None or waiting:
        since.append(manifest.written)
    return max(0.0, now - min(since)) if since else 0.0


def _reasons(status: Status, waiting: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Why an answer is late, and what to do; the first one says most."""
    why, now = status.why, status.now
    if status.running is False:
        yield "the flow is stopped", AGAIN
    for call in () if now is None else now.calls:
        works = f"step {call.step!r} ({call.where}) works on {counted(call.records, 'record')}"
        do = 'click the step; if one key has most of its records, spread it: skew="auto", or skew=[...].'
        yield f"{works} for {seconds_text(call.seconds)}", do
    for loop in () if now is None else now.loops:
        at = f"loop {loop.loop!r} is at iteration {loop.iteration:,} of epoch {loop.epoch}"
        do = "wait while the changes fall; query.changing() names them."
        yield f"{at} and changes {counted(loop.changes, 'record')}", do
    if why is not None:
        for name, (epoch, where) in why.inputs.items():
            yield f"input {name!r} ({where}) is still at epoch {epoch}", f"{why.advance(name)}."
        for one in why.pointstamps:
            n = counted(one.messages + one.notifications, "message")
            do = f"if that does not change, {_look(status)}."
            yield f"{n} for step {one.step!r} ({one.where}) at {time_text(one.time)}", do
    for name, backlog in waiting.items():
        text = f"{backlog} of input {name!r} wait to be read"
        yield text, f"if that does not change, {_look(status)}."
    yield "the micro-batch runs", f"if it takes longer than usual, {_look(status)}."


def _look(status: Status) -> str:
    """Where Spark says more of the micro-batch that runs: `ts.configure` leaves its page out."""
    if status.owner.get("page"):
        return "look at Spark's own page for the running micro-batch"
    return "start the session with .config('spark.ui.enabled', 'true') and look at Spark's own page"


def _diverging(status: Status, history: History) -> tuple[str, int, int, int] | None:
    """A loop in flight whose changes do not fall: its name, epoch, iteration and changes."""
    open_ = set(status.after.manifest.open_epochs)
    for loop, epochs in history.convergence().items():
        for epoch, points in epochs.items():
            last = points[-1][0]  # of the last iterations not all records have arrived
            halves = [[n for at, n in points if at <= last / 2], [n for at, n in points if at > last / 2]]
            before, lately = (quantile(half, 0.5) or 0.0 for half in halves)
            if epoch in open_ and last >= _LONG and lately >= before > 0:
                return status.after.sketch.loop(loop), epoch, last, round(lately)
    return None
