"""`Manifest`: the state of a flow after one of its batches, as the round log stores it.

A batch reads what inputs have, and runs rounds. A micro-batch of Spark has one batch, or many where it stays
resident; so batches have numbers of their own, which are the epochs of inputs with a clock.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field, fields
from datetime import datetime, timezone
from typing import Any, NamedTuple

import pyarrow as pa

from timely_spark.errors import LogDamaged
from timely_spark.runtime.errors import OtherFlow
from timely_spark.runtime.storage.files import Files
from timely_spark.runtime.storage.latencies import Latencies
from timely_spark.show.table import counted
from timely_spark.worker.expectations import Expectation

#: The version of the round log's format.
FORMAT = 10


class Delivered(NamedTuple):
    """What became of an output since the flow began.

    >>> print(Delivered(1234, 7, 0.0)), print(Delivered(5))
    1,234 records, epoch 7 at 1970-01-01T00:00:00+00:00
    5 records, none complete
    (None, None)
    """

    #: records that it was given, those of epochs in flight included; of a collection changes
    records: int = 0
    #: the last epoch that was delivered, and when, in seconds since 1970; None before the first one
    epoch: int | None = None
    when: float | None = None

    def __str__(self) -> str:
        if self.epoch is None or self.when is None:
            return f"{counted(self.records, 'record')}, none complete"
        when = datetime.fromtimestamp(self.when, timezone.utc).isoformat(timespec="seconds")
        return f"{counted(self.records, 'record')}, epoch {self.epoch} at {when}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The state of a flow after batch `batch`; the same file has the rows of the next round."""

    batch: int
    #: Spark's micro-batch that ran the batch.
    micro_batch: int
    #: Whether a restart goes on after the batch although Spark has not committed its micro-batch.
    resident: bool = False
    #: Whether a batch ran since the last micro-batch began without one.
    worked: bool = True
    #: Why no micro-batch stays any more; empty if they may.
    not_resident: str = ""
    #: The last entry that was read of each input; for inputs without entries the offset they were read up to.
    entries: dict[str, int] = field(default_factory=dict)
    sources: dict[str, dict[str, Any]] = field(default_factory=dict)
    #: The epochs of each output that are complete, and wait to be delivered together with others.
    due: dict[str, list[int]] = field(default_factory=dict)
    #: The fingerprint of the plan that wrote the manifest.
    plan: str
    #: The id of the run (one start) that wrote the manifest.
    run: str
    #: The encoded coordinator.
    coordinator: dict[str, Any]
    #: The encoded header of batch + 1, for workers that get rows but no header row.
    header: str
    #: Whether the next round has rows; if not, this manifest never becomes an offset.
    runnable: bool
    #: (output, epoch) delivered by this batch, in order.
    released: list[tuple[str, int]]
    #: The frontier of each probe and output.
    frontier: dict[str, list[Any]]
    #: Whether all inputs are closed and all work is done.
    complete: bool
    #: What `Delivered` has of each output.
    delivered: dict[str, list[Any]] = field(default_factory=dict, compare=False)
    #: captured output -> the version of its last delivery.
    captured: dict[str, int]
    #: output -> epoch -> files in `outputs/` with records of the epoch.
    unreleased: dict[str, dict[str, list[str]]]
    #: Files that no later manifest refers to; they are removed with this manifest.
    garbage: list[str]
    #: The oldest manifest that may still exist.
    kept_from: int
    #: Rounds run since the checkpoint was made.
    rounds: int
    #: The limits (`coordinator.Bound`) of batch + 1; written before, so that a replay takes the same path.
    bound: dict[str, int]
    #: The text of Spark's offsets of the micro-batch; None if no micro-batch wrote the manifest.
    offsets: str | None = None
    late: dict[str, int] = field(default_factory=dict)
    #: Records of each input that have entered since the flow began, late ones included, before any step.
    read: dict[str, int] = field(default_factory=dict)
    #: files or messages of each input that were quarantined since the flow began
    quarantined: dict[str, int] = field(default_factory=dict)
    #: Records that the limits of loops have dropped, by loop, since the flow began.
    cut_off: dict[str, int] = field(default_factory=dict)
    stats: dict[str, Any] = field(default_factory=dict)
    #: How long the driver took for the batch; of the first one of a micro-batch, with Spark's tasks.
    milliseconds: float = 0.0
    #: The counts of `Latencies` of the run's batches.
    latencies: dict[str, int] = field(default_factory=dict)
    #: When the first of the handles' entries was sent that the batch has read, in seconds since 1970; None if
    #: it has read none, or nothing says when.
    arrived: float | None = field(default=None, compare=False)
    #: When the batch ended, in seconds since 1970.
    written: float = field(default_factory=lambda: time.time(), compare=False)  # noqa: PLW0108 - tests set it
    format: int = FORMAT

    @property
    def took(self) -> Latencies:
        """How long the batches of the run took in the driver."""
        return Latencies(self.latencies)

    @property
    def open_epochs(self) -> list[int]:
        """The epochs that have begun and are not complete."""
        return sorted({epoch for epochs in self.coordinator["unreleased"].values() for epoch in epochs})

    @property
    def spread(self) -> dict[str, list[int]]:
        """The hot keys of each step that the run has found and spreads: see `Plan.spread`."""
        return dict(self.coordinator.get("spread", {}))

    @property
    def hot_keys(self) -> dict[str, str]:
        """The warning of each step's last hot key, with its batch."""
        return dict(self.coordinator.get("hot_keys", {}))

    @property
    def slow(self) -> str:
        """Which workers have left a task because it is slow, in words; empty if none has."""
        return str(self.stats.get("slow", ""))

    @property
    def negatives(self) -> dict[str, tuple[int, str]]:
        """How many records of each step have become negative, and the warning of the first."""
        return dict(self.coordinator.get("negatives", {}))

    @property
    def expectations(self) -> dict[str, Expectation]:
        """What each `expect` has checked since the flow began, by its step."""
        return Expectation.by_step(self.coordinator.get("expectations", {}))

    @property
    def state_bytes(self) -> dict[str, int]:
        """Bytes of state by step, summed over the workers."""
        return dict(self.stats.get("state_bytes", {}))

    @property
    def memory_bytes(self) -> dict[str, int]:
        """Bytes in memory by step, summed over the workers."""
        return dict(self.stats.get("memory_bytes", {}))

    @property
    def outputs(self) -> dict[str, Delivered]:
        """What each output was given, and what was delivered last."""
        return {name: Delivered(*each) for name, each in self.delivered.items()}

    def has_delivered(self, output: str, release: str) -> bool:
        """Whether an output has delivered epochs, perhaps without records."""
        if output not in self.coordinator["unreleased"]:  # a probe may have had the name
            return False
        if not (times := self.frontier[output]):
            return True
        return self.batch >= 0 if release == "arrival" else min(times)[0] > 0

    @property
    def notifications(self) -> int:
        """The pending notifications of all workers."""
        return sum(n for pending in self.coordinator["pending"] for _, _, n in pending)

    def encode(self) -> bytes:
        """The manifest as JSON."""
        content = {field.name: getattr(self, field.name) for field in fields(self)}
        return json.dumps(content, separators=(",", ":")).encode()

    @classmethod
    def of(cls, files: Files, name: str, schema: pa.Schema) -> Manifest:
        """The manifest in a file."""
        content = files.head(name, schema)
        if content.get("format") != FORMAT:
            raise OtherFlow.format_is(files.root, content.get("format"), FORMAT)
        try:
            content["released"] = [(name, epoch) for name, epoch in content["released"]]
            return cls(**content)
        except (TypeError, ValueError, KeyError) as error:
            raise LogDamaged.unreadable(files.root, name, error) from error
