"""Files that tell where rounds were cut off, so that a repeated batch takes the same path.

A worker's round may end before a delivery because a command waits (`cancel`, `stop`). The process writes
`cuts/<batch>-<round>-<worker>.json` before it goes on. Every later attempt at the batch ends the round there.
"""

from __future__ import annotations

from timely_spark.errors import LogDamaged
from timely_spark.runtime.storage.log import RoundLog

Cuts = dict[tuple[int, int], int]
"""The number of deliveries after which a worker's round ends, by round of a batch and worker."""


def recorded_cuts(log: RoundLog, batch: int) -> Cuts:
    """The cuts of a batch, by earlier attempts at it."""
    cuts: Cuts = {}
    for name in log.files.names("cuts"):
        number, round_, worker = _parts(log, name)
        if number == batch:
            cuts[round_, worker] = int(log.files.existing(name, log.files.json(name))["steps"])
    return cuts


def record(log: RoundLog, batch: int, round_: int, worker: int, steps: int) -> int:
    """Write that a round ends after so many deliveries; durable when this returns.

    Returns:
        The number of deliveries; another one if another attempt at the batch was faster.
    """
    log.check_owner()
    return int(log.files.write_once(f"cuts/{batch}-{round_}-{worker}.json", {"steps": steps})["steps"])


def forget(log: RoundLog, kept_from: int) -> None:
    """Remove the cuts of batches before `kept_from`, which cannot run again."""
    for name in log.files.names("cuts"):
        if _parts(log, name)[0] < kept_from:
            log.files.remove(name)


def _parts(log: RoundLog, name: str) -> tuple[int, int, int]:
    try:
        batch, round_, worker = map(int, name.partition("/")[2].partition(".")[0].split("-"))
    except ValueError as error:
        raise LogDamaged.unreadable(log.files.root, name, error) from error
    return batch, round_, worker
