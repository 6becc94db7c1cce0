"""Requests to cancel an epoch: files, so that a batch that runs again takes the same path.

`Query.cancel` writes `cancels/<k>.json`, which ends the running rounds (`cuts`). The request takes effect at
the end of a batch; before the driver commits that batch, it adds the batch's number to the file. From then on
the manifests have the bounds of the canceled loops.
"""

from __future__ import annotations

import itertools

from timely_spark.runtime.storage.log import RoundLog


def request(log: RoundLog, epoch: int) -> None:
    """Request to cancel an epoch; durable when this returns."""
    for number in itertools.count(max(log.files.numbers("cancels"), default=-1) + 1):
        try:
            content = {"epoch": epoch, "batch": None}
            log.files.write_json(f"cancels/{number}.json", content, durable=True, new=True)
        except FileExistsError:  # another request at the same moment
            continue
        return


def waiting(log: RoundLog) -> bool:
    """Whether a request has no batch yet; a request that is half written counts."""
    names = (f"cancels/{number}.json" for number in log.files.numbers("cancels"))
    return any((content := log.files.json(name)) is None or content["batch"] is None for name in names)


def due(log: RoundLog, batch: int, kept_from: int) -> list[int]:
    """The epochs to cancel in a batch: new requests, and those of this batch if it runs again."""
    epochs = []
    for number in log.files.numbers("cancels"):
        name = f"cancels/{number}.json"
        if (content := log.files.json(name)) is None:
            continue
        if content["batch"] is None:
            log.check_owner()
            content["batch"] = batch
            log.files.write_json(name, content, durable=True)
        if content["batch"] == batch:
            epochs.append(int(content["epoch"]))
        elif content["batch"] < kept_from:
            log.files.remove(name)
    return epochs
