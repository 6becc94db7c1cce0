"""`Why`: the inputs, messages and notifications that keep an epoch from being complete."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field

from timely_spark.compiler.summary import OpenPointstamp
from timely_spark.runtime.handle.inspection import Round
from timely_spark.runtime.query.live import BatchProgress
from timely_spark.show.table import counted
from timely_spark.times.refined import time_text
from timely_spark.worker.epoch_columns import by_column

_MOST = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Moving(OpenPointstamp):
    """A pointstamp that keeps an epoch open, and how much moves there."""

    #: records in flight to the step at that time, from other workers
    records: int
    #: the first batch since which the pointstamp has been there, of those retained
    since: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Why:
    """Why an epoch is not complete, as of the newest batch; as text, one line for each reason.

    Example:
        >>> print(Why(epoch=3, batch=7, begun=True, inputs={"edges": (2, "job.py:4")}, pointstamps=[]))
        epoch 3 is held back by
          input edges (job.py:4) at epoch 2: advance or close it
    """

    epoch: int
    #: the newest batch
    batch: int
    #: whether any input has reached the epoch
    begun: bool
    #: the epoch, and the user's line, of each input that may still send at the epoch
    inputs: dict[str, tuple[int, str]]
    #: what completes the epoch at each of these inputs, unless the program advances or closes it
    completed_by: dict[str, str] = field(default_factory=dict)
    #: messages and notifications at times up to the epoch, by time
    pointstamps: list[Moving]
    #: the batch that runs, if it has run for a while; its input counts as begun
    running: BatchProgress | None = None

    @property
    def complete(self) -> bool:
        """Whether nothing keeps the epoch open."""
        return self.begun and not self.inputs and not self.pointstamps

    def advance(self, name: str) -> str:
        """What lets an input go on."""
        return self.completed_by.get(name, "advance or close it")

    @classmethod
    def of(cls, flow: Round, epoch: int, *, running: BatchProgress | None = None) -> Why:
        """The reasons in a flow's state; `running` is the batch after it."""
        manifest, snapshot, summary = flow.manifest, flow.manifest.coordinator, flow.summary
        inputs = {
            name: (at, summary.inputs[name][1])
            for name, at in snapshot["inputs"].items()
            if at is not None and at <= epoch and summary.inputs[name][0] != "clock"
        }
        active = summary.open_pointstamps(snapshot, epoch)
        since, records = _since(flow, active, epoch), Counter[tuple[str, str]]()
        for where, table in flow.sent() if active else ():
            records[where["step"], str(where["at"])] += table.num_rows
        return cls(
            epoch=epoch,
            batch=manifest.batch,
            begun=epoch <= max(snapshot["begun"], manifest.batch if summary.clocked else -1),
            inputs=inputs,
            completed_by=_completed_by(flow, inputs),
            pointstamps=[
                Moving(**asdict(each), records=records[_key(each)], since=since[_key(each)])
                for each in active
            ],
            running=running,
        )

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        if self.complete:
            yield f"epoch {self.epoch} is complete"
            return
        if self.running is not None:
            yield f"{self.running}"
        if not self.begun and not self.inputs:
            until = "" if self.running is None else f" up to batch {self.batch}, which is complete"
            yield f"epoch {self.epoch} has not begun: no input was read for it{until}"
            return
        yield f"epoch {self.epoch} is held back by"
        for name, (at, where) in self.inputs.items():
            yield f"  input {name} ({where}) at epoch {at}: {self.advance(name)}"
        for each in self.pointstamps[:_MOST]:
            kinds = [(each.messages, "message"), (each.notifications, "notification")]
            contents = " and ".join(counted(n, kind) for n, kind in kinds if n)
            records = f", {counted(each.records, 'record')}" if each.records else ""
            since = f", since batch {each.since}" if each.since < self.batch else ""
            yield f"  {contents} at {time_text(each.time)}, step {each.step} ({each.where}){records}{since}"
            if len(each.path) > 1:
                yield f"    before {' -> '.join(each.path[1:])}"
        if len(self.pointstamps) > _MOST:
            yield f"  and {len(self.pointstamps) - _MOST} more"


def _completed_by(flow: Round, inputs: Iterable[str]) -> dict[str, str]:
    """What completes epochs of inputs whose epochs the program does not advance."""
    completed_by = {
        name: f"rows of a later epoch, or query.close({name!r}), complete it"
        for name in inputs
        if by_column(flow.summary.inputs[name][0])
    }
    replays = flow.log.owner().get("replays", {})
    return completed_by | {
        name: f"the flow that captures {path} completes it"
        for name, path in replays.items()
        if name in inputs
    }


def _key(pointstamp: OpenPointstamp) -> tuple[str, str]:
    return pointstamp.step, str(pointstamp.time)


def _since(flow: Round, active: list[OpenPointstamp], epoch: int) -> dict[tuple[str, str], int]:
    """The first retained batch since which each pointstamp has been there."""
    manifest = flow.manifest
    since = {_key(each): manifest.batch for each in active}
    still = set(since)
    batch = manifest.batch - 1
    while still and batch >= manifest.kept_from and (before := flow.log.read(batch)) is not None:
        if before.plan != manifest.plan:
            break
        still &= {_key(each) for each in flow.summary.open_pointstamps(before.coordinator, epoch)}
        since.update(dict.fromkeys(still, batch))
        batch -= 1
    return since
