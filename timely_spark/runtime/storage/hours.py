"""`Hour`: a flow's counts when an hour began, stored for a day: manifests are removed long before."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from timely_spark.errors import LogDamaged
from timely_spark.runtime.storage.latencies import Latencies

if TYPE_CHECKING:
    from collections.abc import Mapping

    from timely_spark.runtime.storage.files import Files
    from timely_spark.runtime.storage.manifest import Manifest

#: Seconds; and the most hours that are remembered.
HOUR, _MOST = 3600.0, 26
_FILE = "hours.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hour:
    """The counts of a flow after the first batch of an hour, or after another one."""

    #: when, in seconds since 1970
    written: float
    batch: int
    #: since the flow began
    read: int
    late: int
    state_bytes: int
    #: the run, and the counts of its `Latencies`
    run: str
    latencies: Mapping[str, int]

    @classmethod
    def of(cls, manifest: Manifest) -> Hour:
        """The counts after a batch."""
        return cls(
            written=manifest.written,
            batch=manifest.batch,
            read=sum(manifest.read.values()),
            late=sum(manifest.late.values()),
            state_bytes=sum(manifest.state_bytes.values()),
            run=manifest.run,
            latencies=manifest.latencies,
        )

    @property
    def number(self) -> int:
        """The hour."""
        return int(self.written // HOUR)

    def took_since(self, before: Hour) -> Latencies:
        """How long the batches since an earlier moment took; after a restart those of the last run only."""
        counts = Counter(self.latencies)
        if self.run == before.run:
            counts.subtract(before.latencies)
        return Latencies(+counts)


def hours(files: Files) -> list[Hour]:
    """The hours that are remembered, oldest first; those without a batch are missing.

    A damaged file has none: nothing depends on it but a table for people.
    """
    try:
        return [Hour(**hour) for hour in (files.json(_FILE) or {"hours": []})["hours"]]
    except (LogDamaged, KeyError, TypeError):
        return []


def remember(files: Files, manifest: Manifest) -> int:
    """Remember a batch if it is the first one of its hour; returns the hour."""
    hour, earlier = Hour.of(manifest), hours(files)
    if not earlier or earlier[-1].number != hour.number:
        files.write_json(_FILE, {"hours": [*map(asdict, earlier[-_MOST + 1 :]), asdict(hour)]})
    return hour.number
