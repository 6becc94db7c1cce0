"""Starting a flow: check everything that can be checked, prepare the log, start the one query."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import io
import logging
import os
import platform
import re
import shutil
import tempfile
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from timely_spark.compiler import Plan
from timely_spark.compiler.summary import plan_summary, unnamed_in_words
from timely_spark.coordinator import Coordinator, RoundLimits
from timely_spark.errors import BadArgument, GraphError, StorageFailed, TimelyError
from timely_spark.graph import Kind, absolute, caller, frame_schema, integer, seconds
from timely_spark.runtime.arguments import trigger_of
from timely_spark.runtime.errors import (
    BadFile,
    CheckpointInUse,
    InputsInUse,
    NameTaken,
    QueryRefused,
    SourceMismatch,
)
from timely_spark.runtime.handle.input_handle import InputHandle, locked
from timely_spark.runtime.handle.interrupts import only_the_wait
from timely_spark.runtime.handle.living import keep_until_it_ends, running, stop_left_over
from timely_spark.runtime.handle.query import Query
from timely_spark.runtime.handle.starting import starting
from timely_spark.runtime.query.driver import Driver, manifest_of
from timely_spark.runtime.query.rounds import Rounds
from timely_spark.runtime.query.streaming import build, with_sources
from timely_spark.runtime.restore import (
    check,
    check_not_ahead,
    identify,
    identity_of,
    newest_flow,
    restore,
    withdraw,
)
from timely_spark.runtime.run_context import RunContext, labels, packed
from timely_spark.runtime.session import (
    PARTITIONS,
    active_session,
    applied,
    is_local_server,
    no_parallel_rounds,
    on_one_machine,
    own_settings,
    page_of,
    partitions_for,
    refuse_wheel,
    require_spark,
    same_python,
)
from timely_spark.runtime.sinks.capture_folder import CaptureFolderSink
from timely_spark.runtime.sinks.delta import DeltaSink
from timely_spark.runtime.sinks.folder import FolderSink
from timely_spark.runtime.sinks.outputs import claim_outputs, prepare_outputs
from timely_spark.runtime.sinks.sink import MemorySink, Output, Sink
from timely_spark.runtime.sinks.system_log import SystemLog
from timely_spark.runtime.sources.folder import FileSource
from timely_spark.runtime.sources.listing import lists
from timely_spark.runtime.sources.replay import ReplaySource
from timely_spark.runtime.sources.source import JournaledSource, SourceFrames
from timely_spark.runtime.storage.files import Files
from timely_spark.runtime.storage.lock import Lock
from timely_spark.runtime.storage.log import FIRST, RoundLog
from timely_spark.runtime.storage.manifest import Manifest
from timely_spark.runtime.storage.states import StateRefs
from timely_spark.show.explain import step_plans
from timely_spark.show.sketch import Sketch
from timely_spark.worker.epoch_columns import by_column

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_log = logging.getLogger(__name__)
_Places: TypeAlias = Mapping[str, str | os.PathLike[str] | None]

#: Seconds that a micro-batch stays resident, and between two commits to a table or folder then.
STAY, COMMIT_EVERY = 30.0, 0.25
#: What Spark keeps state for, as it stands in a plan.
_STATEFUL = "Aggregate|Deduplicate|Distinct|FlatMapGroups|TransformWithState|Join|(Global|Local)Limit"


def start(
    plan: Plan,
    *,
    dataframes: SourceFrames,
    outputs: Sequence[Output] = (),
    inputs: Sequence[InputHandle] = (),
    session: SparkSession | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    trigger: str | Mapping[str, Any] | None = None,
    name: str | None = None,
    partitions: int | None = None,
    rounds_per_batch: int | None = None,
    parallel_rounds: bool | None = None,
    record: str | None = None,
    log_to: str | os.PathLike[str] | None = None,
    replace: bool = False,
    keep: float | str | None = None,
    new_steps: str | None = None,
    resident: bool | None = None,
    commit_every: float | str | None = None,
    max_staleness: float | str | None = None,
) -> Query:
    """Start (or restart) a compiled flow as one streaming query.

    The arguments are those of `Dataflow.start`. A failed start leaves handles and other queries unchanged.
    """
    require_spark()
    session = active_session(session)
    refuse_wheel(session)
    retained = _retention(session)
    plan = dataclasses.replace(plan, measured=log_to is not None, keep=retained)
    partitions = partitions if partitions is None else integer("partitions", partitions, most=1 << 16)
    rounds = (
        RoundLimits().rounds if rounds_per_batch is None else integer("rounds_per_batch", rounds_per_batch)
    )
    name, arguments = name or plan.name, trigger_of(trigger)
    _check_sources(plan, dataframes, inputs, local=on_one_machine(session))
    _check_outputs(
        plan, outputs, dataframes,
        {"the checkpoint": checkpoint, "the log (log_to=)": log_to, "the recording (record=)": record},
    )  # fmt: skip
    same_python(session)
    context = RunContext(
        checkpoint="",
        **packed(plan),
        labels=(),
        inputs=(*(handle.name for handle in inputs), *(s.name for s in plan.inputs if by_column(s.epochs))),
        name=plan.name,
        run=uuid.uuid4().hex,
        keep=retained,
        keep_seconds=0.0 if keep is None else seconds("keep", keep),
        rounds=rounds,
        parallel=_parallel(session, plan.workers, asked=parallel_rounds),
        record=None if record is None else absolute(os.fspath(record)),
        **_residency(
            session,
            arguments,
            dataframes,
            rounds=rounds,
            record=record,
            asked=resident,
            staleness=max_staleness,
        ),
        commit_every=COMMIT_EVERY if commit_every is None else seconds("commit_every", commit_every),
        on_arrival=any(output.release == "arrival" for output in outputs),
    )
    stop_left_over()
    if replace:
        _make_room(inputs, session, checkpoint, name)
    with locked(inputs), ExitStack() as undo, starting(name) as says:
        _check_free(plan.name, inputs, session, name)
        log, lock = _locked(_temporary(plan, session, undo) if checkpoint is None else checkpoint, undo)
        flow = identity_of(log, plan, partitions or partitions_for(session, plan.workers))
        before, lacks = check(log, plan, empty=new_steps == "empty")
        if before is None and checkpoint is not None and plan.unnamed:
            _log.warning(
                "%s: %s", plan.name,
                unnamed_in_words([f"{stage.name} ({stage.where})" for stage in plan.unnamed]),
            )  # fmt: skip
        context = dataclasses.replace(
            context, checkpoint=log.checkpoint, labels=labels(plan.workers, flow["partitions"])
        )
        says("looks at its inputs")
        context = with_sources(session, context, dataframes)
        outputs = [_resumed(output, before, lacks.get(output.name, "")) for output in outputs]
        system_log = None if log_to is None else SystemLog(absolute(os.fspath(log_to)), plan.places)
        captures = [] if system_log is None else [system_log.output]
        _own(session, log, flow, plan, outputs, before=before, captures=captures, says=says)
        context, newest = _claimed(
            context,
            empty=new_steps == "empty",
            about=_about(session, outputs, dataframes),
        )
        withdrawal = undo.enter_context(ExitStack())
        withdrawal.callback(withdraw, context)
        pairs = [
            (handle, handle.journal(context.log, newest.coordinator["inputs"][handle.name]))
            for handle in inputs
        ]
        for _, journal in pairs:  # before Spark starts: an availableNow query may stop at once
            undo.callback(journal.undo)
            journal.write()
        confs = {PARTITIONS: str(flow["partitions"])} | own_settings(session, local=log.files.local)
        for output in outputs:
            confs |= output.sink.confs
        undo.callback(_stop_named, session, name)
        driver = Driver(context, tuple(outputs), system_log)
        # an interrupt waits for the end of the call: before it, no list of Spark's has the query
        says("starts Spark's query")
        with applied(session, confs) as unset, only_the_wait():
            running = _run(session, context, dataframes, driver, name=name, trigger=arguments)
            withdrawal.pop_all()
        query = Query(
            running, context, session=session, inputs=pairs, lock=lock, sources=dataframes,
            ends=bool(arguments.keys() & {"availableNow", "once"}), temporary=checkpoint is None,
            views=any(isinstance(output.sink, MemorySink) for output in outputs),
            outputs=outputs, started_after=newest.batch,
        )  # fmt: skip
        for handle, journal in pairs:
            undo.callback(handle.unbinding())
            handle.bind(journal, query, forgotten=checkpoint is None)
        keep_until_it_ends(query, driver.release)
        undo.pop_all()
    for line in unset:
        _log.warning("%s: not set: %s", plan.name, line)
    return query


def _resumed(output: Output, before: Manifest | None, lacks: str) -> Output:
    resumed = before is not None and before.has_delivered(output.name, output.release)
    return dataclasses.replace(output, resumed=resumed, lacks=lacks)


def _own(
    session: SparkSession,
    log: RoundLog,
    flow: Mapping[str, Any],
    plan: Plan,
    outputs: Sequence[Output],
    *,
    before: Manifest | None,
    captures: Sequence[Output],
    says: Callable[[str], object],
) -> None:
    """Check all outputs before anything is written; then own the checkpoint, and the outputs' places."""
    says("checks its outputs")
    prepare_outputs(session, [*outputs, *captures], plan, log.checkpoint, flow["id"])
    check_not_ahead(outputs, plan, before)
    identify(log, flow)
    claim_outputs(session, [*outputs, *captures], plan, says)


def _make_room(
    inputs: Sequence[InputHandle], session: SparkSession, checkpoint: str | os.PathLike[str] | None, name: str
) -> None:
    """Stop this process's queries that use the handles, the checkpoint or the name."""
    place = None if checkpoint is None else RoundLog(checkpoint).checkpoint
    queries = [handle.query for handle in inputs]
    queries += [
        query
        for query in running()
        if query.checkpoint == place or (query.name == name and query.session is session)
    ]
    for query in queries:
        if query is not None:
            query.stop()


def _check_free(flow: str, inputs: Sequence[InputHandle], session: SparkSession, name: str) -> None:
    """Check that no running query uses the handles or the name."""
    bound = {handle.name: handle.query for handle in inputs if handle.query is not None}
    for query in bound.values():
        names = [each for each, other in bound.items() if other is query]
        msg = (
            f"Flow {flow!r}: the handles of {names} send to query {query.name!r} (checkpoint "
            f"{query.checkpoint}), which is running; a second query cannot share them"
        )
        hint = "stop() that query first, or start(..., replace=True); a flow built again has its own handles."
        raise InputsInUse(msg, where=caller(), hint=hint)
    for active in session.streams.active:
        if active.name == name:
            msg = f"A query named {name!r} (run {active.runId}) is running in this session"
            hint = "start(..., name=...) for another name, or replace=True to stop that query first."
            raise NameTaken(msg, where=caller(), hint=hint)


def _temporary(plan: Plan, session: SparkSession, undo: ExitStack) -> str:
    """A temporary checkpoint."""
    if not on_one_machine(session):
        msg = f"flow {plan.name!r}: no checkpoint is given, and the executors may be on other machines."
        raise TimelyError(msg, hint="give start(checkpoint=...) a folder or URI that all of them reach.")
    try:
        folder = tempfile.mkdtemp(prefix="timely-")
    except OSError as error:
        place = f"a temporary checkpoint in {tempfile.gettempdir()}"
        raise StorageFailed.of(place, error) from error
    undo.callback(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _locked(checkpoint: str | os.PathLike[str], undo: ExitStack) -> tuple[RoundLog, Lock]:
    log = RoundLog(checkpoint)
    lock = Lock(log.files)
    undo.callback(lock.release)  # first, because an interrupt may follow `acquire`
    try:
        acquired = lock.acquire()
    except StorageFailed:
        raise
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO}:
            raise StorageFailed.of(log.files.root, error) from error
        msg = f"checkpoint={checkpoint!r}: {error}"
        hint = "give a folder that this process may make, and write to."
        raise BadArgument(msg, where=caller(), hint=hint) from error
    if not acquired:
        raise CheckpointInUse.by(log.checkpoint, log.owner())
    return log, lock


def _stop_named(session: SparkSession, name: str) -> None:
    """After a failed start: stop the query, if Spark has started it."""
    for query in session.streams.active:
        if query.name == name:
            query.stop()


def default_workers(session: SparkSession | None, written: tuple[Mapping[str, Any], Any] | None) -> int:
    """The number of workers in what is `written_to` a checkpoint; else of the session's tasks, at most 8."""
    require_spark()
    return partitions_for(active_session(session), 8) if written is None else int(written[0]["workers"])


def written_to(checkpoint: str | os.PathLike[str] | None) -> tuple[dict[str, Any], Mapping[str, Any]] | None:
    """The plan summary of a checkpoint's newest flow, and its coordinator; None if the checkpoint is new."""
    with contextlib.suppress(StorageFailed):  # as `start` says
        log = None if checkpoint is None else RoundLog(checkpoint)
        if log is not None and log.files.exists("flow.json"):
            return newest_flow(log)
    return None


def _run(
    session: SparkSession,
    context: RunContext,
    dataframes: SourceFrames,
    driver: Driver,
    *,
    name: str,
    trigger: Mapping[str, Any],
) -> StreamingQuery:
    from pyspark.errors import AnalysisException

    try:
        writer = build(session, context, dataframes).writeStream.outputMode("append").queryName(name)
        if trigger:
            writer = writer.trigger(**trigger)
        place = Files(context.checkpoint).for_spark
        return writer.option("checkpointLocation", place).foreachBatch(driver).start()
    except AnalysisException as error:
        raise _refused(context.plan, dataframes, error) from error


def _refused(plan: Plan, dataframes: SourceFrames, error: Exception) -> QueryRefused:
    """A shorter error: Spark's message has the whole plan, and names no source."""
    message = str(error).partition("\n")[0].partition(";")[0]
    frames = {name: frame for name, frame in dataframes.items() if not isinstance(frame, JournaledSource)}
    stateful = [name for name, frame in frames.items() if _is_stateful(frame)]
    if not stateful:
        msg = f"Flow {plan.name!r}: Spark does not start the query: {message}"
        return QueryRefused(msg, hint="correct what Spark's exception says, the cause of this one.")
    places = ", ".join(f"{name!r} ({plan.source(name).stage.where})" for name in stateful)
    msg = f"Flow {plan.name!r}: source {places} has a stateful step of Spark upstream: {message}"
    hint = (
        "give the flow the DataFrame before groupBy, dropDuplicates or a join of streams, and say these "
        "in the flow; or write that query's result to a table, and read this."
    )
    return QueryRefused(msg, hint=hint)


def _is_stateful(frame: DataFrame) -> bool:
    """Whether Spark keeps state for a DataFrame, by the text of its plan; used in error messages only."""
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        frame.explain("extended")
    analyzed = text.getvalue().partition("== Analyzed Logical Plan ==")[2].partition("== Optimized")[0]
    return any(re.search(rf"^\W*({_STATEFUL})", line) for line in analyzed.splitlines())


def _check_apart(dataframes: SourceFrames, outputs: Sequence[Output], places: _Places) -> None:
    """Check that the flow does not write into the folders whose files it reads."""
    places = {f"output {one.name!r}": _folder(one.sink) for one in outputs} | dict(places)
    for source in dataframes.values():
        if not isinstance(source, FileSource):
            continue
        for what, place in places.items():
            if place is not None and lists(source.folder.path, place):
                msg = f"source {source.name!r}: {what} is in the folder that it reads, {place}"
                hint = 'put it elsewhere, or below a name that begins with "_", which is not read.'
                raise BadFile(msg, where=source.where, hint=hint)


def _folder(sink: Sink) -> str | None:
    """The folder that a sink writes to; None if it has none, or only a catalog knows it."""
    if isinstance(sink, FolderSink):
        return sink.path
    return sink.target if isinstance(sink, DeltaSink) and sink.is_path else None


def _check_outputs(plan: Plan, outputs: Sequence[Output], dataframes: SourceFrames, places: _Places) -> None:
    """Check that somebody can see what the flow does, and that the flow does not read what it writes.

    Args:
        places: where it writes beside its outputs, by what that is.
    """
    _check_apart(dataframes, outputs, places)
    if not any(stage.kind in {Kind.OUTPUT, Kind.INSPECT, Kind.PROBE} for stage in plan.stages):
        msg = f"flow {plan.name!r} has no output: it would read its inputs, and nobody would see a result"
        hint = "give a step an output, such as capture(), to_delta(...), subscribe(...) or probe()."
        raise GraphError(msg, where=caller(), hint=hint)


def _check_sources(
    plan: Plan, dataframes: SourceFrames, inputs: Sequence[InputHandle], *, local: bool
) -> None:
    names = {*dataframes, *(handle.name for handle in inputs)}
    if names != set(plan.sources):
        msg = (
            "The flow's sources and the DataFrames given differ: without a DataFrame "
            f"{sorted(set(plan.sources) - names)}, given {sorted(names)}."
        )
        raise SourceMismatch(msg, hint="give one streaming DataFrame for each flow.source(name, ...).")
    for name, frame in dataframes.items():
        if isinstance(frame, JournaledSource):
            if local:  # elsewhere only the executors may see the folder
                frame.check_exists()
            continue
        if getattr(frame, "isStreaming", False) is not True:
            kind = "a batch DataFrame" if hasattr(frame, "isStreaming") else f"a {type(frame).__name__}"
            msg = f"Source {name!r} must be a streaming DataFrame; got {kind}."
            hint = "use spark.readStream instead of spark.read; or flow.input(...), and send what you have."
            raise SourceMismatch(msg, hint=hint)
        stage = plan.source(name).stage
        declared = stage.outputs[0]
        schema = frame_schema(name, frame, stage.where)
        if schema.names != declared.names or not all(map(_fits, schema.types, declared.types)):
            msg = (
                f"Source {name!r} was declared with columns {_columns(declared)}; the DataFrame given has "
                f"{_columns(schema)}"
            )
            hint = "select and cast the DataFrame's columns, or declare the source as they are."
            raise SourceMismatch(msg, where=stage.where, hint=hint)


def _fits(actual: pa.DataType, declared: pa.DataType) -> bool:
    """Whether values of type `actual` fit the declared type, for example int and long."""
    both = [pa.schema([("x", declared)]), pa.schema([("x", actual)])]
    try:
        return bool(pa.unify_schemas(both, promote_options="permissive").field(0).type == declared)
    except pa.ArrowException:
        return False


def _columns(schema: pa.Schema) -> list[str]:
    return [f"{field.name} {field.type}" for field in schema]


def _about(session: SparkSession, outputs: Sequence[Output], dataframes: SourceFrames) -> dict[str, Any]:
    """The address of Spark's own page, and the folders to which the flow captures and that it replays."""
    captures = {one.name: one.sink.path for one in outputs if isinstance(one.sink, CaptureFolderSink)}
    replays = {
        name: source.folder.path for name, source in dataframes.items() if isinstance(source, ReplaySource)
    }
    return {"page": page_of(session), "captures": captures, "replays": replays}


def _claimed(
    context: RunContext, *, empty: bool = False, about: Mapping[str, Any] | None = None
) -> tuple[RunContext, Manifest]:
    """Claim the checkpoint: an earlier run that is still alive loses it.

    Args:
        context: the run's.
        empty: whether new steps begin empty.
        about: what else the console says of the run.

    Returns:
        The context of the run that owns the checkpoint; and the manifest from which it continues.
    """
    plan = context.plan
    run = {"run": context.run, "host": platform.node(), "pid": os.getpid(), **(about or {})}
    try:
        now = datetime.now(timezone.utc).isoformat()
        log = RoundLog(context.checkpoint).claim(run | {"started": now, "residency": context.residency()})
    except FileExistsError:
        raise CheckpointInUse.by(context.checkpoint, RoundLog(context.checkpoint).owner()) from None
    context = dataclasses.replace(context, term=log.term)
    for failure in log.files.names("failures"):
        log.files.remove(failure)
    newest = log.align()
    log.sweep()
    shown = {"described": plan.described(), "outline": plan_summary(plan)}
    shown |= {"sketch": Sketch.of(plan).encode(), "plans": step_plans(plan)}
    log.files.write_json(f"flows/{plan.fingerprint}.json", shown, durable=True)
    if newest is None:
        coordinator = Coordinator(plan)
        result = coordinator.first()
        newest = FIRST
        manifest = manifest_of(Rounds(context, context.parallel), coordinator, result, StateRefs())
        log.write(dataclasses.replace(manifest, rounds=0), result.rows)
    else:
        restore(log, context, newest, empty=empty)
    manifest, _ = log.newest_before(newest + 1)
    planned = newest + 1 if log.planned() > FIRST else FIRST
    committed = log.planned() <= log.committed()
    continued = FIRST if committed or manifest.micro_batch < log.planned() else manifest.micro_batch
    context = dataclasses.replace(
        context, first=log.first, planned=planned, continued=continued,
        read_entries=manifest.entries, read_offsets=manifest.sources,
    )  # fmt: skip
    return context, manifest


def _parallel(session: SparkSession, workers: int, *, asked: bool | None) -> bool:
    """Whether parallel tasks run large rounds."""
    reason = no_parallel_rounds(session) if asked is not False else ""
    if asked and reason:
        msg = f"parallel_rounds=True, but {reason}."
        raise TimelyError(msg, hint="leave parallel_rounds out: large exchanges are then micro-batches.")
    return workers > 1 and asked is not False and not reason


def _residency(
    session: SparkSession,
    trigger: Mapping[str, Any],
    dataframes: SourceFrames,
    *,
    rounds: int,
    record: str | None,
    asked: bool | None,
    staleness: Any,
) -> dict[str, Any]:
    """The fields of the `RunContext` that say how long a micro-batch stays resident, or why none does.

    Raises:
        BadArgument: it was asked for, and is impossible.
    """
    stay = STAY if staleness is None else min(STAY, seconds("max_staleness", staleness, above=True))
    foreign = [name for name, frame in dataframes.items() if not isinstance(frame, JournaledSource)]
    one, server = on_one_machine(session), is_local_server(session)
    reason, in_tasks = "", not (one or server)
    if trigger:
        reason = f"the trigger is {next(iter(trigger))}"
    elif rounds == 1:
        reason = "rounds_per_batch=1 makes each round a micro-batch"
    elif record is not None:
        reason = "record= writes the rounds of tasks"
    elif in_tasks and (impossible := no_parallel_rounds(session)):
        reason = f"the executors may be on other machines, where tasks cannot stay: {impossible}"
    elif in_tasks and not asked:
        reason = "the executors may be on other machines; resident=True lets tasks stay there"
    elif server and not asked:
        reason = "a Spark Connect server runs the flow; resident=True lets its micro-batches stay"
    elif foreign and staleness is None:
        reason = f"source {foreign[0]!r} is a DataFrame of Spark, and max_staleness is not given"
    if asked and reason:
        msg, hint = f"resident=True, but {reason}.", "leave resident out: each epoch is then a micro-batch."
        raise BadArgument(msg, where=caller(), hint=hint)
    if asked is False:
        reason = "resident=False"
    stays = 0.0 if reason else stay if foreign else STAY
    return {"resident": stays, "not_resident": reason, "in_tasks": in_tasks and not reason}


def _retention(session: SparkSession) -> int:
    """How many batches to keep: what Spark retains, and two more, because a batch reads its predecessor."""
    retained = 100
    with contextlib.suppress(Exception):  # an internal conf, which a platform may hide
        retained = int(session.conf.get("spark.sql.streaming.minBatchesToRetain", "100") or 100)
    return max(100, retained) + 2
