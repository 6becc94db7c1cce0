"""Starting a flow: check everything that can be checked, prepare the log, start the one query."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import logging
import os
import platform
import re
import shutil
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from timely_spark.errors import TimelyError
from timely_spark.graph import caller, frame_schema, whole
from timely_spark.runtime.driver import Driver, manifest_of
from timely_spark.runtime.entries import Durable
from timely_spark.runtime.errors import (
    CheckpointInUse,
    InputsInUse,
    NameTaken,
    NotStreaming,
    OtherFlow,
    QueryRefused,
    SourceMismatch,
)
from timely_spark.runtime.files import Files
from timely_spark.runtime.handle import Query, keep_until_it_ends, living
from timely_spark.runtime.inputs import InputHandle, held
from timely_spark.runtime.lock import Lock
from timely_spark.runtime.log import FIRST, FORMAT, RoundLog
from timely_spark.runtime.restore import check, newest_flow, restore
from timely_spark.runtime.run_context import RunContext, labels, packed
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
from timely_spark.runtime.sinks import MemorySink, Output
from timely_spark.runtime.states import States
from timely_spark.runtime.trigger import trigger_of
from timely_spark.worker import Bound, Coordinator, Plan
from timely_spark.worker.columns import by_column
from timely_spark.worker.plan_summary import plan_summary

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_log = logging.getLogger(__name__)

#: What Spark keeps state for, as it stands in a plan.
_STATEFUL = "Aggregate|Deduplicate|Distinct|FlatMapGroups|TransformWithState|Join|(Global|Local)Limit"


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
    replace: bool = False,
) -> Query:
    """Starts (or resumes) a compiled flow as one streaming query.

    A start that fails, at whatever step, leaves the handles as they were, and other queries alone.

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
        name: the query's name in Spark; the flow's if not given.
        partitions: tasks per round; as many as there are workers or cores if not given. The checkpoint
            remembers it.
        rounds_per_batch: how many rounds a micro-batch may take, 100 if not given. After a restart the first
            micro-batch keeps to what was said before it.
        record: a folder, seen by driver and executors, into which every worker's round is recorded.
        replace: stops first what this process runs with the flow's handles, under the query's name or on the
            checkpoint.

    Raises:
        SparkMissing: no PySpark; or SparkTooOld.
        NoSession: no session was given and none is active.
        BadArgument: an argument is none of its values.
        NotStreaming: a source is no streaming DataFrame, or has none.
        SourceMismatch: a source's DataFrame has other columns than the flow declares.
        Unpicklable: a step holds what cannot be sent to Spark's tasks.
        InputsInUse: the handles send to a query that is running.
        NameTaken: the session runs a query of that name.
        CheckpointInUse: a living driver runs a query on the checkpoint.
        OtherFlow: the checkpoint is not one of a flow, or of another format.
        FlowChanged: the checkpoint is of a flow that this flow cannot continue from.
        EpochClosed: something was sent before the start for an epoch that the checkpoint has closed.
        TableTaken: an output's table was written from another checkpoint.
        QueryRefused: Spark does not start the query.
    """
    require_spark()
    session = active_session(session)
    partitions = partitions if partitions is None else whole("partitions", partitions)
    rounds = Bound().rounds if rounds_per_batch is None else whole("rounds_per_batch", rounds_per_batch)
    writing = _Writing(name or plan.name, trigger_of(trigger))
    _check_sources(plan, dataframes, inputs)
    same_python(session)
    site = RunContext(
        checkpoint="",
        **packed(plan),
        labels=(),
        inputs=(*(handle.name for handle in inputs), *(s.name for s in plan.inputs if by_column(s.epochs))),
        name=plan.name,
        run=uuid.uuid4().hex,
        keep=_retention(session),
        rounds=rounds,
        record=record,
    )
    if replace:
        _make_room(inputs, session, checkpoint, writing.name)
    with held(inputs), ExitStack() as undo:
        _check_free(plan.name, inputs, session, writing.name)
        place = checkpoint if checkpoint is not None else _temporary(plan, session, undo)
        log, lock = _locked(place, undo)
        flow = _identified(log, plan, partitions or partitions_for(session, plan.workers))
        check(log, plan)
        for output in outputs:
            output.sink.prepare(session, output, log.checkpoint, flow["id"])
        given = labels(plan.workers, flow["partitions"])
        claim = _claimed(dataclasses.replace(site, checkpoint=log.checkpoint, labels=given))
        site = claim.site
        ends = [handle.opening(site.log, claim.stands[handle.name]) for handle in inputs]
        pairs = list(zip(inputs, ends, strict=True))
        undo.callback(_undo, ends)
        for end in ends:  # an always-on query would see it later, too; one until nothing is left would not
            end.write()
        confs = {PARTITIONS: str(flow["partitions"])} | (FILE_MANAGER if log.files.local else {})
        for output in outputs:
            confs |= getattr(output.sink, "confs", {})
        undo.callback(_stop_named, session, writing.name)
        with applied(session, confs) as unset:
            running = _run(session, site, dataframes, Driver(site, tuple(outputs)), writing)
        query = Query(
            running, site, session=session, inputs=ends, unset=unset, lock=lock, temporary=checkpoint is None,
            views=any(isinstance(output.sink, MemorySink) for output in outputs),
            closing={end.name: partial(handle.close_at, end) for handle, end in pairs},
        )  # fmt: skip
        for handle, end in pairs:
            undo.callback(handle.unbinding())
            handle.bind(end, query, forgotten=checkpoint is None)
        keep_until_it_ends(query)
        undo.pop_all()
    for line in unset:
        _log.warning("%s: not set: %s", plan.name, line)
    return query


@dataclass(frozen=True, slots=True)
class _Writing:
    """How Spark is to write: under which name, and when."""

    name: str
    trigger: Mapping[str, Any]


def _make_room(
    inputs: Sequence[InputHandle], session: SparkSession, checkpoint: str | None, name: str
) -> None:
    """Stops this process's queries that are in the way."""
    place = None if checkpoint is None else RoundLog(checkpoint).checkpoint
    in_the_way = [handle.query for handle in inputs]
    in_the_way += [
        query
        for query in living()
        if query.checkpoint == place or (query.name == name and query.session is session)
    ]
    for query in in_the_way:
        if query is not None:
            query.stop()


def _check_free(flow: str, inputs: Sequence[InputHandle], session: SparkSession, name: str) -> None:
    """Checks that no living query has the handles, or the name."""
    bound = {handle.name: handle.query for handle in inputs if handle.query is not None}
    for query in bound.values():
        raise InputsInUse.by(
            flow,
            [each for each, other in bound.items() if other is query],
            query=query.name,
            checkpoint=query.checkpoint,
            where=caller(),
        )
    for active in session.streams.active:
        if active.name == name:
            raise NameTaken.query(name, active.runId, where=caller())


def _temporary(plan: Plan, session: SparkSession, undo: ExitStack) -> str:
    """A checkpoint for as long as the query runs."""
    if not on_one_machine(session):
        msg = f"flow {plan.name!r}: no checkpoint is given, and the executors may be on other machines."
        raise TimelyError(msg, hint="start(checkpoint=...): a directory or URI that all of them see.")
    folder = tempfile.mkdtemp(prefix="timely-")
    undo.callback(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _locked(checkpoint: str, undo: ExitStack) -> tuple[RoundLog, Lock]:
    log = RoundLog(checkpoint)
    lock = Lock(log.files)
    undo.callback(lock.release)  # even if an interrupt comes right after the next line
    if not lock.acquire():
        raise CheckpointInUse.by(log.checkpoint, log.owner())
    if not log.files.exclusive:
        _log.info("two starts on %s at the same instant may both win", log.files.root)
    return log, lock


def _undo(ends: Sequence[Durable]) -> None:
    """After a start that failed: what waits in the handles is not in the log."""
    for end in ends:
        end.undo()


def _stop_named(session: SparkSession, name: str) -> None:
    """After a start that failed: an interrupt may have come when Spark had started the query already."""
    for query in session.streams.active:
        if query.name == name:
            query.stop()


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
    site: RunContext,
    dataframes: Mapping[str, DataFrame],
    driver: Driver,
    writing: _Writing,
) -> StreamingQuery:
    from pyspark.errors import AnalysisException

    from timely_spark.runtime.query import build

    try:
        writer = build(session, site, dataframes).writeStream.outputMode("append").queryName(writing.name)
        if writing.trigger:
            writer = writer.trigger(**writing.trigger)
        place = Files(site.checkpoint).for_spark
        return writer.option("checkpointLocation", place).foreachBatch(driver).start()
    except AnalysisException as error:
        raise _refused(site.plan, dataframes, error) from error


def _refused(plan: Plan, dataframes: Mapping[str, DataFrame], error: Exception) -> QueryRefused:
    """In our words: Spark's has the whole plan in it, and names no source."""
    message = str(error).partition("\n")[0].partition(";")[0]
    stateful = [name for name, frame in dataframes.items() if _is_stateful(frame)]
    if not stateful:
        return QueryRefused.because(plan.name, message)
    places = [f"{name!r} ({plan.source(name).stage.where})" for name in stateful]
    return QueryRefused.sources(plan.name, places, message)


def _is_stateful(frame: DataFrame) -> bool:
    """Whether Spark keeps state for a DataFrame; only to name it, so the text of the plan is enough."""
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        frame.explain("extended")
    analyzed = text.getvalue().partition("== Analyzed Logical Plan ==")[2].partition("== Optimized")[0]
    return any(re.search(rf"^\W*({_STATEFUL})", line) for line in analyzed.splitlines())


def _check_sources(plan: Plan, dataframes: Mapping[str, DataFrame], inputs: Sequence[InputHandle]) -> None:
    given = {*dataframes, *(handle.name for handle in inputs)}
    if given != set(plan.sources):
        raise NotStreaming.missing(sorted(set(plan.sources) - given), sorted(given))
    for name, frame in dataframes.items():
        if getattr(frame, "isStreaming", False) is not True:
            raise NotStreaming.source(name, frame)
        stage = plan.source(name).stage
        declared = stage.outputs[0]
        found = frame_schema(name, frame, stage.where)
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
    found = log.identity()
    if found is None:
        if log.used_by_spark():
            raise OtherFlow.not_ours(log.checkpoint)
        found = {"format": FORMAT, "id": str(uuid.uuid4()), "name": plan.name, "partitions": partitions}
        log.files.write_json("flow.json", found, durable=True)
    return found


@dataclass(frozen=True, slots=True)
class _Claim:
    """A run that owns its checkpoint."""

    site: RunContext
    #: The epoch of each input in the flow; None: it is closed.
    stands: Mapping[str, int | None]


def _claimed(site: RunContext) -> _Claim:
    """Takes the checkpoint over: from here on the run before, if it lives, has lost it."""
    plan = site.plan
    run = {"run": site.run, "host": platform.node(), "pid": os.getpid()}
    try:
        log = RoundLog(site.checkpoint).claim(run | {"started": datetime.now(timezone.utc).isoformat()})
    except FileExistsError:
        raise CheckpointInUse.by(site.checkpoint, RoundLog(site.checkpoint).owner()) from None
    site = dataclasses.replace(site, term=log.term)
    for failure in log.files.names("failures"):
        log.files.remove(failure)
    newest = log.align()
    log.sweep()
    log.write_json(
        f"flows/{plan.fingerprint}.json", {"described": plan.described(), "outline": plan_summary(plan)}
    )
    if newest is None:
        coordinator = Coordinator(plan)
        turn = coordinator.first()
        newest = FIRST
        manifest = manifest_of(site, coordinator, turn, States())
        log.write(dataclasses.replace(manifest, rounds=0), turn.rows)
    else:
        restore(log, site, newest)
    manifest, _ = log.newest_before(newest + 1)
    return _Claim(dataclasses.replace(site, first=log.first), manifest.coordinator["inputs"])


def _retention(session: SparkSession) -> int:
    """As many batches as Spark retains; the oldest reads the manifest before it, while the next one runs."""
    retained = 100
    with contextlib.suppress(Exception):  # an internal conf, which a platform may hide
        retained = int(session.conf.get("spark.sql.streaming.minBatchesToRetain", "100") or 100)
    return max(100, retained) + 2
