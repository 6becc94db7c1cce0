"""Starting a flow: check everything that can be checked, prepare the log, start the one query."""

from __future__ import annotations

import contextlib
import logging
import os
import platform
import tempfile
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from timely_spark.errors import TimelyError
from timely_spark.graph.schema import as_schema
from timely_spark.runtime.adopt import adopt, check, newest_flow
from timely_spark.runtime.driver import Driver, manifest_of
from timely_spark.runtime.errors import CheckpointInUse, NotStreaming, OtherFlow, SourceMismatch
from timely_spark.runtime.files import Files
from timely_spark.runtime.handle import Query
from timely_spark.runtime.inputs import InputHandle
from timely_spark.runtime.lock import Lock
from timely_spark.runtime.log import FIRST, FORMAT, RoundLog
from timely_spark.runtime.session import (
    FILE_MANAGER,
    PARTITIONS,
    active_session,
    applied,
    on_one_machine,
    partitions_for,
    require_spark,
    same_python,
)
from timely_spark.runtime.sinks import Output
from timely_spark.runtime.site import Site, labels, packed
from timely_spark.runtime.states import States
from timely_spark.worker import Bound, Coordinator, Plan
from timely_spark.worker.outline import outline

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

_log = logging.getLogger(__name__)


def start(
    plan: Plan,
    *,
    dataframes: Mapping[str, DataFrame],
    outputs: Sequence[Output] = (),
    inputs: Sequence[InputHandle] = (),
    session: SparkSession | None = None,
    checkpoint: str | None = None,
    trigger: str | Mapping[str, Any] | None = None,
    name: str | None = None,
    partitions: int | None = None,
    rounds_per_batch: int | None = None,
    record: str | None = None,
) -> Query:
    """Starts (or resumes) a compiled flow as one streaming query.

    Args:
        plan: the compiled flow.
        dataframes: a streaming DataFrame for each of the flow's DataFrame sources.
        outputs: where its outputs go.
        inputs: its input handles.
        session: the session; the active one if not given.
        checkpoint: a directory of the flow's own, which driver and executors see; without one the flow is
            forgotten when it ends.
        trigger: None: always on. "available_now": to quiescence, then stop. Another text is a processing time
            such as "5 seconds"; a mapping is what Spark's `trigger` takes.
        name: the query's name in Spark.
        partitions: tasks per round; as many as there are workers or cores if not given. The checkpoint
            remembers it.
        rounds_per_batch: how many rounds a micro-batch may take, 100 if not given. After a restart the first
            micro-batch keeps to what was said before it.
        record: a folder, seen by driver and executors, into which every worker's round is recorded.

    Raises:
        SparkMissing: no PySpark; or SparkTooOld.
        NoSession: no session was given and none is active.
        NotStreaming: a source is no streaming DataFrame, or has none.
        SourceMismatch: a source's DataFrame has other columns than the flow declares.
        CheckpointInUse: a living driver runs a query on the checkpoint.
        OtherFlow: the checkpoint is not one of a flow, or of another format.
        FlowChanged: the checkpoint is of a flow that this one cannot go on from.
        EpochClosed: something was sent before the start for an epoch that the checkpoint has closed.
        TableTaken: an output's table was written from another checkpoint.
    """
    require_spark()
    if rounds_per_batch is not None and rounds_per_batch < 1:
        msg = f"rounds_per_batch is {rounds_per_batch}; a micro-batch is one round at least."
        raise TimelyError(msg, hint="1: each round is a micro-batch; leave it out for the default.")
    session = active_session(session)
    _check_sources(plan, dataframes, inputs)
    same_python(session)
    if checkpoint is None:
        if not on_one_machine(session):
            msg = f"flow {plan.name!r}: no checkpoint is given, and the executors may be on other machines."
            raise TimelyError(msg, hint="start(checkpoint=...): a directory or URI that all of them see.")
        checkpoint = tempfile.mkdtemp(prefix="timely-")
        _log.info("%s: no checkpoint given; %s holds it until somebody deletes it", plan.name, checkpoint)
    log = RoundLog(checkpoint)
    lock = Lock(log.files)
    if not lock.acquire():
        raise CheckpointInUse.by(log.checkpoint, log.owner())
    if not log.files.exclusive:
        _log.info("%s: of two starts on %s at the same instant both may win", plan.name, log.files.root)
    try:
        flow = _identified(log, plan, partitions or partitions_for(session, plan.workers))
        check(log, plan)
        for output in outputs:
            output.sink.prepare(session, output, log.checkpoint, flow["id"])
        site = Site(
            checkpoint=log.checkpoint,
            **packed(plan),
            labels=labels(plan.workers, flow["partitions"]),
            inputs=tuple(handle.name for handle in inputs),
            name=plan.name,
            run=uuid.uuid4().hex,
            keep=_retention(session),
            rounds=rounds_per_batch or Bound().rounds,
            record=record,
        )
        site = _claimed(site, inputs)
        confs = {PARTITIONS: str(flow["partitions"])} | (FILE_MANAGER if log.files.local else {})
        for output in outputs:
            confs |= getattr(output.sink, "confs", {})
        with applied(session, confs) as unset:
            query = _run(session, site, dataframes, Driver(site, tuple(outputs)), _writing(trigger, name))
    except BaseException:
        lock.release()
        raise
    lock.release_after(query)
    for line in unset:
        _log.warning("%s: not set: %s", plan.name, line)
    return Query(query, site, inputs=inputs, unset=unset, lock=lock)


def default_workers(session: SparkSession | None, checkpoint: str | None = None) -> int:
    """As many workers as the checkpoint's flow has; else as the session runs tasks at once, at most 8.

    More workers, more hops, more rounds.
    """
    require_spark()
    if checkpoint is not None and (found := newest_flow(RoundLog(checkpoint))) is not None:
        return int(found["workers"])
    return partitions_for(active_session(session), 8)


def _run(
    session: SparkSession,
    site: Site,
    dataframes: Mapping[str, DataFrame],
    driver: Driver,
    settings: Callable[[DataStreamWriter], DataStreamWriter],
) -> StreamingQuery:
    from timely_spark.runtime.query import build

    writer = build(session, site, dataframes).writeStream.outputMode("append")
    place = Files(site.checkpoint).for_spark
    return settings(writer.option("checkpointLocation", place).foreachBatch(driver)).start()


def _writing(
    trigger: str | Mapping[str, Any] | None, name: str | None
) -> Callable[[DataStreamWriter], DataStreamWriter]:
    def set_up(writer: DataStreamWriter) -> DataStreamWriter:
        if name is not None:
            writer = writer.queryName(name)
        if trigger is None:
            return writer
        if isinstance(trigger, Mapping):
            return writer.trigger(**trigger)
        if trigger == "available_now":
            return writer.trigger(availableNow=True)
        return writer.trigger(processingTime=trigger)

    return set_up


def _check_sources(plan: Plan, dataframes: Mapping[str, DataFrame], inputs: Sequence[InputHandle]) -> None:
    given = {*dataframes, *(handle.name for handle in inputs)}
    if given != set(plan.sources):
        raise NotStreaming.missing(sorted(set(plan.sources) - given), sorted(given))
    for name, frame in dataframes.items():
        if getattr(frame, "isStreaming", False) is not True:
            raise NotStreaming.source(name, frame)
        stage = plan.source(name).stage
        declared = stage.outputs[0]
        found = as_schema({f.name: f.dataType.simpleString() for f in frame.schema.fields})
        if found.names != declared.names or not all(map(_fits, found.types, declared.types)):
            raise SourceMismatch.columns(
                name, found=_columns(found), declared=_columns(declared), where=stage.where
            )


def _fits(given: pa.DataType, declared: pa.DataType) -> bool:
    """Whether values of one type are values of the other, too, such as int of long."""
    both = [pa.schema([("x", declared)]), pa.schema([("x", given)])]
    try:
        return bool(pa.unify_schemas(both, promote_options="permissive").field(0).type == declared)
    except pa.ArrowException:
        return False


def _columns(schema: pa.Schema) -> list[str]:
    return [f"{field.name} {field.type}" for field in schema]


def _identified(log: RoundLog, plan: Plan, partitions: int) -> dict[str, Any]:
    """What the checkpoint says of itself; written if it is new, checked if it is not."""
    found = log.read_json("flow.json")
    if found is None:
        if log.used_by_spark():
            raise OtherFlow.not_ours(log.checkpoint)
        found = {"format": FORMAT, "id": str(uuid.uuid4()), "name": plan.name, "partitions": partitions}
        log.write_json("flow.json", found)
    if found["format"] != FORMAT:
        raise OtherFlow.format_is(found["format"], FORMAT)
    return found


def _claimed(site: Site, inputs: Sequence[InputHandle]) -> Site:
    """Takes the checkpoint over: from here on the run before, if it lives, has lost it."""
    plan = site.plan
    run = {"run": site.run, "host": platform.node(), "pid": os.getpid()}
    try:
        log = RoundLog(site.checkpoint).claim(run | {"started": datetime.now(timezone.utc).isoformat()})
    except FileExistsError:
        raise CheckpointInUse.by(site.checkpoint, RoundLog(site.checkpoint).owner()) from None
    site = replace(site, term=log.term)
    for failure in log.files.names("failures"):
        log.files.remove(failure)
    newest = log.align()
    log.sweep()
    log.write_json(
        f"flows/{plan.fingerprint}.json", {"described": plan.described(), "outline": outline(plan)}
    )
    if newest is None:
        coordinator = Coordinator(plan)
        turn = coordinator.first()
        newest = FIRST
        log.write(replace(manifest_of(site, coordinator, turn, States()), rounds=0), turn.rows)
    else:
        adopt(log, site, newest)
    manifest, _ = log.newest_before(newest + 1)
    for handle in inputs:
        handle.open(log, manifest.coordinator["inputs"][handle.name])
    return replace(site, first=log.first)


def _retention(session: SparkSession) -> int:
    """As many batches as Spark retains; the oldest reads the manifest before it, while the next one runs."""
    retained = 100
    with contextlib.suppress(Exception):  # an internal conf, which a platform may hide
        retained = int(session.conf.get("spark.sql.streaming.minBatchesToRetain", "100") or 100)
    return max(100, retained) + 2
