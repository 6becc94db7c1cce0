"""Requests to end the loops of an epoch: files, so that a batch that runs again takes the same path.

`cancels/<k>.json` is written by whoever asks. The driver writes into it the batch with which it takes effect,
before that batch counts; the bounds on loops that come of it stand in the manifests from then on.
"""

from __future__ import annotations

import itertools

from timely_spark.runtime.log import RoundLog


def ask(log: RoundLog, epoch: int) -> None:
    """Ask for the end of an epoch's loops; durable when it returns."""
    for number in itertools.count(max(log.files.numbers("cancels"), default=-1) + 1):
        try:
            told = {"epoch": epoch, "batch": None}
            log.files.write_json(f"cancels/{number}.json", told, durable=True, new=True)
        except FileExistsError:  # somebody else asks at the same moment
            continue
        return


def due(log: RoundLog, batch: int, kept_from: int) -> list[int]:
    """The epochs whose loops end with a batch: what nobody has taken so far, or this batch before.

    Raises:
        LostOwnership: another run has taken the checkpoint.
    """
    epochs = []
    for number in log.files.numbers("cancels"):
        name = f"cancels/{number}.json"
        if (said := log.files.json(name)) is None:
            continue
        if said["batch"] is None:
            log.check_owner()
            said["batch"] = batch
            log.files.write_json(name, said, durable=True)
        if said["batch"] == batch:
            epochs.append(int(said["epoch"]))
        elif said["batch"] < kept_from:
            log.files.remove(name)
    return epochs
