"""Restore: continue from a checkpoint, also with a changed flow or another number of workers."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pyarrow as pa

from timely_spark.compiler import Plan
from timely_spark.coordinator import switching
from timely_spark.coordinator.lacking import lacking_by_output
from timely_spark.coordinator.migration import Migration
from timely_spark.errors import TimelyError
from timely_spark.runtime.errors import CheckpointInUse, OtherFlow, OutputMismatch
from timely_spark.runtime.query.driver import progress_fields
from timely_spark.runtime.run_context import RunContext
from timely_spark.runtime.sinks.sink import Output
from timely_spark.runtime.storage.blobs import Blobs, files_of
from timely_spark.runtime.storage.entries import unread
from timely_spark.runtime.storage.log import FIRST, RoundLog
from timely_spark.runtime.storage.manifest import FORMAT, Manifest
from timely_spark.runtime.storage.states import StateRefs, write_state
from timely_spark.show.table import counted
from timely_spark.worker import wire
from timely_spark.worker.wire import Message

_log = logging.getLogger(__name__)


def newest_flow(log: RoundLog) -> tuple[dict[str, Any], Mapping[str, Any]] | None:
    """The plan summary and the coordinator of the newest manifest; None if there is no manifest."""
    chosen = log.chosen()
    return None if chosen is None else (dict(log.flow(chosen[0])["described"]), chosen[0].coordinator)


def identity_of(log: RoundLog, plan: Plan, partitions: int) -> dict[str, Any]:
    """The checkpoint's identity; one that `identify` can write if the checkpoint is new."""
    if (identity := log.identity()) is not None:
        return identity
    if log.spark.offsets:
        msg = f"Checkpoint {log.checkpoint} is of a streaming query that no flow started."
        raise OtherFlow(msg, hint="give the flow a checkpoint directory of its own.")
    return {"format": FORMAT, "id": str(uuid.uuid4()), "name": plan.name, "partitions": partitions}


def identify(log: RoundLog, identity: Mapping[str, Any]) -> None:
    """Write the identity of a new checkpoint, before anything else has it."""
    if (present := log.identity()) is None:
        try:
            log.files.write_json("flow.json", identity, durable=True, new=True)
        except FileExistsError:  # by another first start, where there are no locks
            present = log.identity()
    if present not in (None, identity):
        msg = f"Checkpoint {log.checkpoint} was begun by another start at the same moment."
        raise CheckpointInUse(msg, hint="start again: of two queries the one that starts last goes on.")


def check(log: RoundLog, plan: Plan, *, empty: bool = False) -> tuple[Manifest | None, dict[str, str]]:
    """Check that a flow can continue from a checkpoint's newest manifest; changes nothing.

    Returns:
        The manifest; and by output, in words, what its results lack because steps started `empty`.
    """
    chosen = log.chosen()
    if chosen is None:
        return None, {}
    lacking = chosen[0].coordinator.get("lacking", {})
    if chosen[0].plan != plan.fingerprint:
        lacking = _migrated(log, plan, *chosen, Blobs(log.files), empty=empty).lacking
    return chosen[0], lacking_by_output(plan, lacking)


def check_not_ahead(outputs: Iterable[Output], plan: Plan, before: Manifest | None) -> None:
    """Refuse tables and folders with later epochs than the checkpoint: the output would skip or rewrite them.

    By the clock an epoch is a batch, and the outputs are at most one batch ahead of the newest manifest.
    """
    delivered = {} if before is None else before.coordinator["done"]
    for output in outputs if plan.clocked else ():
        begun = max((FIRST if before is None else before.batch) + 1, delivered.get(output.name, -1))
        if (last := output.sink.last()) > begun:
            raise OutputMismatch.ahead(output.described, last, begun)


def restore(log: RoundLog, context: RunContext, newest: int, *, empty: bool = False) -> None:
    """Let the run's flow continue from a manifest; a manifest of another flow is migrated and rewritten."""
    read = log.manifest_and_rows(newest)
    if read is None or read[0].plan == context.plan.fingerprint:
        return
    manifest, rows = read
    migration = _migrated(log, context.plan, manifest, rows, context.blobs, empty=empty)
    states = StateRefs(
        {i: write_state(context.blobs, worker, newest, None) for i, worker in enumerate(migration.workers)}
    )
    files = files_of(wire.only(rows, Message))
    garbage = files.union(manifest.garbage, *(state.files for state in StateRefs.of(rows).by_worker.values()))
    garbage = garbage.difference(*(state.files for state in states.by_worker.values()))
    log.first = newest
    log.write(
        replace(
            manifest,
            plan=context.plan.fingerprint,
            run=context.run,
            garbage=sorted(garbage),
            stats=manifest.stats | {"state_bytes": dict(states.sizes), "memory_bytes": {}},
            **progress_fields(migration.coordinator, migration.result),
        ),
        pa.concat_tables([migration.result.rows, states.rows()]),
    )
    _warn_of_changes(context.plan.name, migration)


def withdraw(context: RunContext) -> None:
    """Undo a start that Spark has not accepted: write the manifest from before it again.

    The manifest of a changed flow lacks the state of the steps that were removed.
    """
    log = RoundLog(context.checkpoint, context.term)
    with suppress(TimelyError):  # the error of the start says more
        own = log.files.numbers(f"rounds/{context.term}")
        # unless a batch has run in spite of this, or a later start has begun with it
        if len(own) == 1 and log.owner().get("run") == context.run and (before := log.chosen()) is not None:
            log.write(*before)


def _migrated(
    log: RoundLog, plan: Plan, manifest: Manifest, rows: pa.Table, blobs: Blobs, *, empty: bool
) -> Migration:
    before = log.flow(manifest)["described"]
    states = StateRefs.of(rows).encoded(blobs, before["workers"])
    messages = blobs.resolve(wire.only(rows, Message))
    handles = {each.name for each in plan.inputs if each.stage.handle}.difference(
        manifest.coordinator["inputs"]
    )
    return switching.migration(
        before,
        plan,
        manifest.coordinator,
        states,
        messages,
        blobs,
        empty=empty,
        planned=_planned(log, manifest),
        unread={name: unread(log, name, manifest.entries.get(name, -1)) for name in handles},
        due=manifest.due,
    )


def _planned(log: RoundLog, manifest: Manifest) -> list[str]:
    """The inputs with records in a batch that has begun and has no manifest."""
    read: list[tuple[Mapping[str, Any], Mapping[str, Any]]] = []
    if (planned := log.planned()) > manifest.micro_batch:
        read += zip(log.read_to(planned - 1), log.read_to(planned), strict=True)
    if (begun := log.begun(manifest.batch + 1)) is not None:
        read += [(manifest.entries, begun["entries"]), (manifest.sources, begun["sources"])]
    return [name for before, after in read for name, end in after.items() if before.get(name, -1) != end]


def _warn_of_changes(name: str, migration: Migration) -> None:
    old, new = migration.worker_counts
    if old != new:
        _log.warning("%s: continues with %s instead of %d", name, counted(new, "worker"), old)
    if (old_way := migration.coordinator.plan.old_way) is not None:
        steps = [node.name for node in migration.coordinator.plan.nodes if node.name not in old_way.by_name]
        _log.warning("%s: continues, by the number of workers, with steps %s", name, ", ".join(steps))
    if migration.hot_keys:
        _log.warning("%s: continues with other hot keys", name)
    for loop, (before, after) in migration.bounded.items():
        was = "" if before is None else f" instead of {before}"
        at = migration.coordinator.loops.reached.get(loop, 0) + 1
        _log.warning(
            "%s: loop %s ends after %d iterations%s; the loop has reached %d", name, loop, after, was, at
        )
    if migration.added:
        _log.warning("%s: new steps: %s", name, ", ".join(migration.added))
    if migration.fed_otherwise:
        text = "%s: steps that keep their state, and get their records by other steps than before: %s"
        _log.warning(text, name, ", ".join(migration.fed_otherwise))
    for output, epoch in migration.begins.items():
        _log.warning("%s: new output %s begins with what is still to come of epoch %d", name, output, epoch)
    for output, what in lacking_by_output(migration.coordinator.plan, migration.lacking).items():
        _log.warning("%s: output %s lacks the past: %s", name, output, what)
    if migration.removed:
        steps = [f"{step} (its {' and '.join(of)})" if of else step for step, of in migration.removed.items()]
        _log.warning("%s: removed, with what they stored: %s", name, ", ".join(steps))
