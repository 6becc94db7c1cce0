"""Restore from a checkpoint, also one that another flow, or another number of workers, has written."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from timely_spark.runtime.blobs import Blobs, files_of
from timely_spark.runtime.driver import woken_by
from timely_spark.runtime.log import Manifest, RoundLog
from timely_spark.runtime.run_context import RunContext
from timely_spark.runtime.states import States, write_state
from timely_spark.worker import Plan
from timely_spark.worker.migrate import Migration, migrate

_log = logging.getLogger(__name__)


def newest_flow(log: RoundLog) -> dict[str, Any] | None:
    """The plan summary of the flow that wrote the newest manifest; None: there is no manifest."""
    found = log.chosen()
    return None if found is None else _flow(log, found[0])


def check(log: RoundLog, plan: Plan) -> None:
    """Check that a flow may continue from a checkpoint, before anything is changed.

    Raises:
        FlowChanged: the flow may not.
    """
    found = log.chosen()
    if found is not None and found[0].plan != plan.fingerprint:
        _migrated(log, plan, *found, Blobs(log.files))


def restore(log: RoundLog, site: RunContext, newest: int) -> None:
    """Let the run's flow continue from a manifest; a manifest of another flow is migrated and rewritten.

    Raises:
        FlowChanged: the manifest cannot be migrated.
    """
    found = log.read_whole(newest)
    if found is None or found[0].plan == site.plan.fingerprint:
        return
    manifest, rows = found
    made = _migrated(log, site.plan, manifest, rows, site.blobs)
    states = States(
        {i: write_state(site.blobs, worker, newest, None) for i, worker in enumerate(made.workers)}
    )
    files = files_of(rows.filter(pc.equal(rows.column("kind"), "message")))
    gone = files.union(manifest.gone, *(state.files for state in States.of(rows).known.values()))
    gone = gone.difference(*(state.files for state in states.known.values()))
    log.first = newest
    log.write(
        replace(
            manifest,
            plan=site.plan.fingerprint,
            run=site.run,
            coordinator=made.coordinator.encode(),
            header=made.turn.header,
            runnable=made.turn.rows.num_rows > 0,
            frontier=made.turn.frontier,
            complete=made.turn.complete,
            gone=sorted(gone),
            late=made.turn.late,
            cut_off=made.turn.cut_off,
        ),
        pa.concat_tables([made.turn.rows, states.rows(woken_by(made.turn))]),
    )
    _tell(site.plan.name, made)


def _migrated(log: RoundLog, plan: Plan, manifest: Manifest, rows: pa.Table, blobs: Blobs) -> Migration:
    before = _flow(log, manifest)
    known = States.of(rows).known
    states = [
        blobs.get(known[worker].reference) if worker in known else None for worker in range(before["workers"])
    ]
    messages = blobs.resolve(rows.filter(pc.equal(rows.column("kind"), "message")))
    return migrate(before, plan, manifest.coordinator, states, messages, blobs)


def _flow(log: RoundLog, manifest: Manifest) -> dict[str, Any]:
    return dict(log.read_json_there(f"flows/{manifest.plan}.json")["described"])


def _tell(name: str, made: Migration) -> None:
    old, new = made.renumbered
    if old != new:
        _log.warning("%s: continues with %d workers instead of %d", name, new, old)
    for loop, (before, after) in made.bounded.items():
        was = "" if before is None else f" instead of {before}"
        at = made.coordinator.loops.reached.get(loop, 0) + 1
        _log.warning(
            "%s: loop %s ends after %d iterations%s; the loop has reached %d", name, loop, after, was, at
        )
    if made.added:
        _log.warning("%s: new steps, which start empty: %s", name, ", ".join(made.added))
    for step, dropped in made.removed.items():
        _log.warning("%s: step %s is gone; dropped: %s", name, step, ", ".join(dropped) or "nothing")
