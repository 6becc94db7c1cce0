"""Starting a flow: check everything that can be checked, prepare the log, start the one query."""

from __future__ import annotations

import logging
import tempfile
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from timely_spark.errors import TimelyError
from timely_spark.graph.schema import as_schema
from timely_spark.runtime.driver import Driver, manifest_of
from timely_spark.runtime.errors import NotStreaming, OtherFlow, SourceMismatch
from timely_spark.runtime.handle import Query
from timely_spark.runtime.inputs import InputHandle
from timely_spark.runtime.log import FIRST, FORMAT, RoundLog
from timely_spark.runtime.session import (
    FILE_MANAGER,
    PARTITIONS,
    active_session,
    applied,
    partitions_for,
    require_spark,
    same_python,
)
from timely_spark.runtime.sinks import Output
from timely_spark.runtime.site import FAILURE, Site, labels, store_plan
from timely_spark.worker import Bound, Coordinator, Plan

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
        OtherFlow: the checkpoint belongs to another flow.
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
        checkpoint = tempfile.mkdtemp(prefix="timely-")
        _log.info("%s: no checkpoint given; %s holds it until somebody deletes it", plan.name, checkpoint)
    log = RoundLog(checkpoint)
    flow = _claim(log, plan, partitions or partitions_for(session, plan.workers))
    run = uuid.uuid4().hex
    site = Site(
        checkpoint=log.checkpoint,
        plan_file=store_plan(log, plan),
        labels=tuple(flow["labels"]),
        inputs=tuple(handle.name for handle in inputs),
        name=plan.name,
        run=run,
        keep=_retention(session),
        rounds=rounds_per_batch or Bound().rounds,
        record=record,
    )
    for output in outputs:
        output.sink.prepare(session, output, log.checkpoint, flow["id"])
    log.take(run)
    log.files.remove(FAILURE)
    log.align()
    log.sweep()
    if log.newest() is None:
        coordinator = Coordinator(plan)
        turn = coordinator.first()
        log.write(replace(manifest_of(site, coordinator, turn, FIRST), rounds=0), turn.rows)
    for handle in inputs:
        handle.open(log)
    confs = {PARTITIONS: str(flow["partitions"]), **FILE_MANAGER}
    for output in outputs:
        confs |= getattr(output.sink, "confs", {})
    with applied(session, confs) as unset:
        query = _run(session, site, dataframes, Driver(site, tuple(outputs)), _writing(trigger, name))
    for line in unset:
        _log.warning("%s: not set: %s", plan.name, line)
    return Query(query, site, inputs=inputs, unset=unset)


def default_workers(session: SparkSession | None, checkpoint: str | None = None) -> int:
    """As many workers as the checkpoint's flow has; else as the session runs tasks at once, at most 8.

    More workers, more hops, more rounds.
    """
    require_spark()
    found = None if checkpoint is None else RoundLog(checkpoint).read_json("flow.json")
    if found is not None and found.get("format") == FORMAT:
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
    return settings(writer.option("checkpointLocation", site.checkpoint).foreachBatch(driver)).start()


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


def _claim(log: RoundLog, plan: Plan, partitions: int) -> dict[str, Any]:
    """What the checkpoint says of its flow; written if it is new, checked if it is not."""
    found = log.read_json("flow.json")
    if found is None:
        if log.used_by_spark():
            raise OtherFlow.not_ours(log.checkpoint)
        found = {
            "format": FORMAT,
            "id": str(uuid.uuid4()),
            "name": plan.name,
            "fingerprint": plan.fingerprint,
            "flow": plan.described(),
            "workers": plan.workers,
            "partitions": partitions,
            "labels": list(labels(plan.workers, partitions)),
        }
        log.write_json("flow.json", found)
    if found["format"] != FORMAT:
        raise OtherFlow.format_is(found["format"], FORMAT)
    if found["fingerprint"] != plan.fingerprint:
        raise OtherFlow.in_checkpoint(
            log.checkpoint, found=_title(found), given=_title_of(plan), differ=_differ(found, plan)
        )
    return found


def _title(found: Mapping[str, Any]) -> str:
    return f"flow {found['name']!r} ({found['fingerprint']}, {found['workers']} workers)"


def _title_of(plan: Plan) -> str:
    return f"flow {plan.name!r} ({plan.fingerprint}, {plan.workers} workers)"


def _differ(found: Mapping[str, Any], plan: Plan) -> list[str]:
    """The steps that are not the same in both, by name."""
    old, new = found["flow"].get("stages", {}), plan.described().get("stages", {})
    return sorted(step for step in {*old, *new} if old.get(step) != new.get(step))


def _retention(session: SparkSession) -> int:
    try:
        return max(100, int(session.conf.get("spark.sql.streaming.minBatchesToRetain", "100") or 100))
    except Exception:  # noqa: BLE001 - an internal conf, which a platform may hide
        return 100
