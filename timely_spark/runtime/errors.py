"""The errors of the runtime, by what went wrong between a flow and Spark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from timely_spark.errors import SchemaError, TimelyError, Where


class SparkMissing(TimelyError, ImportError):
    """PySpark is not installed."""

    condition = "SPARK_MISSING"

    @classmethod
    def not_importable(cls) -> SparkMissing:
        """PySpark cannot be imported."""
        msg = "timely_spark needs PySpark 4.2 to run a flow, and none is installed."
        hint = (
            "pip install 'timely-spark[spark]' (a platform such as Databricks brings its own); "
            "timely_spark.testing runs a flow without Spark."
        )
        return cls(msg, hint=hint)

    @classmethod
    def no_delta(cls) -> SparkMissing:
        """delta-spark cannot be imported."""
        msg = "configure(delta=True) needs delta-spark, and it is not installed."
        return cls(msg, hint="pip install 'timely-spark[delta]'.")


class SparkTooOld(TimelyError, RuntimeError):
    """The installed Spark is older than 4.2."""

    condition = "SPARK_TOO_OLD"

    @classmethod
    def found(cls, version: str) -> SparkTooOld:
        """`version` is the installed version."""
        msg = f"timely_spark needs PySpark 4.2 or newer; found {version}."
        return cls(msg, hint="pip install 'timely-spark[spark]', or choose a runtime with Spark 4.2.")


class NoSession(TimelyError, RuntimeError):
    """No Spark session was given and none is active."""

    condition = "NO_SESSION"

    @classmethod
    def active(cls) -> NoSession:
        """There is neither an argument nor an active session."""
        msg = "No Spark session was given and none is active."
        hint = "start(spark, ...), where spark = timely_spark.configure(SparkSession.builder).getOrCreate()."
        return cls(msg, hint=hint)


class NotStreaming(TimelyError, TypeError):
    """A source has no streaming DataFrame."""

    condition = "NOT_STREAMING"

    @classmethod
    def source(cls, name: str, got: object) -> NotStreaming:
        """`got` was given for the source `name`."""
        kind = "a batch DataFrame" if hasattr(got, "isStreaming") else f"a {type(got).__name__}"
        msg = f"Source {name!r} must be a streaming DataFrame; got {kind}."
        hint = "spark.readStream instead of spark.read, or flow.input(...) and send what you have."
        return cls(msg, hint=hint)

    @classmethod
    def missing(cls, names: list[str], given: list[str]) -> NotStreaming:
        """The flow's sources and the given DataFrames have different names."""
        msg = (
            f"The flow's sources and the DataFrames given differ: without a DataFrame {names}, given {given}."
        )
        return cls(msg, hint="one streaming DataFrame per flow.source(name, ...).")


class SourceMismatch(SchemaError):
    """A source was declared with other columns than its DataFrame has."""

    condition = "SOURCE_MISMATCH"

    @classmethod
    def columns(
        cls, name: str, *, found: list[str], declared: list[str], where: Where | None
    ) -> SourceMismatch:
        """`found` are the DataFrame's columns."""
        msg = f"Source {name!r} was declared with columns {declared}; the DataFrame given has {found}"
        hint = "select and cast the DataFrame's columns, or declare the source as they are."
        return cls(msg, where=where, hint=hint)


class OtherFlow(TimelyError, ValueError):
    """The checkpoint is not one of a flow, or of another version."""

    condition = "OTHER_FLOW"

    @classmethod
    def not_ours(cls, checkpoint: str) -> OtherFlow:
        """Another streaming query of Spark has used this checkpoint."""
        msg = f"Checkpoint {checkpoint} is of a streaming query that no flow started."
        return cls(msg, hint="give the flow a checkpoint directory of its own.")

    @classmethod
    def moved(cls, checkpoint: str, batch: int) -> OtherFlow:
        """A driver of an earlier run committed a batch while this run started."""
        msg = (
            f"Checkpoint {checkpoint}: batch {batch} was committed by the run before while this one started."
        )
        return cls(msg, hint="start again: the flow then continues from that batch.")

    @classmethod
    def no_flow(cls, checkpoint: str) -> OtherFlow:
        """There is no checkpoint of a flow."""
        msg = f"{checkpoint} holds no checkpoint of a flow."
        return cls(msg, hint="give the directory of start(checkpoint=...).")

    @classmethod
    def format_is(cls, found: object, known: int) -> OtherFlow:
        """This version cannot read the format of the round log."""
        msg = f"The checkpoint has format {found!r}; this version of timely_spark reads {known}."
        return cls(msg, hint="resume it with the version that wrote it.")


class LostOwnership(TimelyError, RuntimeError):
    """Another query was started on the same checkpoint and has taken it over."""

    condition = "LOST_OWNERSHIP"

    @classmethod
    def to(cls, checkpoint: str, *, term: int, owner: Mapping[str, object]) -> LostOwnership:
        """`owner` is the run that owns the checkpoint now."""
        msg = f"The run of term {term} lost checkpoint {checkpoint} to {_who(owner)}."
        return cls(msg, hint="one query per checkpoint; stop the other one first.")


class CheckpointInUse(TimelyError, RuntimeError):
    """A running driver uses this checkpoint."""

    condition = "CHECKPOINT_IN_USE"

    @classmethod
    def by(cls, checkpoint: str, owner: Mapping[str, object]) -> CheckpointInUse:
        """`owner` is the run that uses the checkpoint."""
        msg = f"Checkpoint {checkpoint} is in use by {_who(owner)}; a second query cannot be started on it."
        hint = "stop() that query, or end its process; if it is dead, the checkpoint is free at once."
        return cls(msg, hint=hint)


class InputsInUse(TimelyError, RuntimeError):
    """The flow's input handles send to a query that is running; a second query cannot share them."""

    condition = "INPUTS_IN_USE"

    @classmethod
    def by(
        cls, flow: str, inputs: list[str], *, query: str | None, checkpoint: str, where: Where
    ) -> InputsInUse:
        """`query` is the running query's name in Spark."""
        msg = (
            f"Flow {flow!r}: the handles of {inputs} send to query {query!r} (checkpoint {checkpoint}), "
            "which is running; a second query cannot share them"
        )
        hint = (
            "stop() that query first, or start(..., replace=True); a flow built anew has handles of its own."
        )
        return cls(msg, where=where, hint=hint)


class QueryEnded(TimelyError, RuntimeError):
    """A method needs a running query, and the query has ended."""

    condition = "QUERY_ENDED"

    @classmethod
    def verb(cls, name: str, verb: str, why: str, *, where: Where) -> QueryEnded:
        """`verb` is the method; `why` is the reason."""
        msg = f"{name}: {verb} of a query that has ended: {why}"
        return cls(msg, where=where, hint=f"call {verb} of the query that runs now.")


class NameTaken(TimelyError, ValueError):
    """A query of this name is running in the session."""

    condition = "NAME_TAKEN"

    @classmethod
    def query(cls, name: str, run: object, *, where: Where) -> NameTaken:
        """`run` is Spark's id of the run with that name."""
        msg = f"A query named {name!r} (run {run}) is running in this session"
        hint = "start(..., name=...) for another name, or replace=True to stop that query first."
        return cls(msg, where=where, hint=hint)


class QueryRefused(TimelyError, ValueError):
    """Spark does not start the query."""

    condition = "QUERY_REFUSED"

    @classmethod
    def because(cls, flow: str, message: str) -> QueryRefused:
        """`message` is the first line of Spark's error."""
        msg = f"Flow {flow!r}: Spark does not start the query: {message}"
        return cls(msg, hint="the cause below is Spark's own exception.")

    @classmethod
    def sources(cls, flow: str, places: list[str], message: str) -> QueryRefused:
        """The DataFrames of these sources aggregate, deduplicate or join before the flow reads them."""
        msg = f"Flow {flow!r}: source {', '.join(places)} has a stateful step of Spark upstream: {message}"
        hint = (
            "give the flow the DataFrame before groupBy, dropDuplicates or a join of streams, and say these "
            "in the flow; or write that query's result to a table, and read this."
        )
        return cls(msg, hint=hint)


class Unpicklable(TimelyError, TypeError):
    """A step cannot be pickled for Spark's tasks."""

    condition = "UNPICKLABLE"

    @classmethod
    def step(cls, step: str, error: Exception, *, where: Where | None) -> Unpicklable:
        """Pickling the step raised `error`."""
        reason = str(error).partition("\n")[0]
        msg = f"step {step!r} cannot be sent to Spark's tasks: {type(error).__name__}: {reason}"
        hint = (
            "let its functions refer to plain values; open what cannot be copied (a lock, a connection, the "
            "SparkSession) inside of them."
        )
        return cls(msg, where=where, hint=hint)


class BadLocation(TimelyError, ValueError):
    """A location cannot be reached."""

    condition = "BAD_LOCATION"

    @classmethod
    def scheme(cls, location: str, known: Sequence[str]) -> BadLocation:
        """The URI's scheme is unknown."""
        msg = f"{location!r} is not a local path, and its scheme is none of {', '.join(known)}."
        return cls(msg, hint="a path or URI that driver and executors both see; /Volumes/... on Databricks.")

    @classmethod
    def incomplete(cls, location: str) -> BadLocation:
        """The location has no bucket or no path, or its path leaves the root."""
        msg = f"{location!r} names no place: a bucket or a path is missing, or has a part '.' or '..'."
        return cls(msg, hint="/folder, s3://bucket/folder, abfss://container@account.dfs.core.windows.net/x.")

    @classmethod
    def credentials(cls, scheme: str) -> BadLocation:
        """The URI has a password, which logs would show."""
        msg = f"The {scheme}: URI holds credentials, which Spark's logs would show."
        return cls(msg, hint="leave them out, and set them in the environment of driver and executors.")

    @classmethod
    def refused(cls, location: str, error: Exception) -> BadLocation:
        """Pyarrow cannot reach the location because of `error`."""
        msg = f"pyarrow does not reach {location}: {error}"
        return cls(msg, hint="check the URI's options, the network, and with what pyarrow was built.")

    @classmethod
    def cache(cls, folder: str, variable: str) -> BadLocation:
        """Other users can access the folder for copies of remote files."""
        msg = f"{folder} is for this user's copies of remote files, but others can read or write it."
        return cls(msg, hint=f"remove it, or set {variable} to another folder.")

    @classmethod
    def cache_limit(cls, found: str, variable: str) -> BadLocation:
        """The size limit of that folder is no number."""
        return cls(f"{variable} is {found!r}; it must be a number of bytes.", hint=f"{variable}=1073741824.")


class TableTaken(TimelyError, ValueError):
    """A flow with another checkpoint has written to the output's table or folder."""

    condition = "TABLE_TAKEN"

    @classmethod
    def by(cls, table: str, *, found: str, mine: str) -> TableTaken:
        """`found` and `mine` are the two checkpoints' ids."""
        msg = (
            f"{table} was written by the flow with checkpoint id {found}; this one is {mine}, "
            "and its epochs start again."
        )
        return cls(msg, hint="resume the old checkpoint, write to another place, or pass overwrite=True.")


class OutputMismatch(TimelyError, ValueError):
    """An output does not fit its table or folder."""

    condition = "OUTPUT_MISMATCH"

    @classmethod
    def keys(cls, table: str, keys: list[str], columns: list[str]) -> OutputMismatch:
        """Some keys are not columns of the stream."""
        msg = f"{table}: keys {keys} must be columns of the stream, which has {columns}."
        return cls(msg, hint="check to_delta(keys=...).")

    @classmethod
    def reserved(cls, table: str, column: str) -> OutputMismatch:
        """The stream has a column that the output adds itself."""
        msg = f"{table}: the stream has a column {column!r}, which the output adds."
        return cls(msg, hint="rename it with select.")

    @classmethod
    def columns(cls, table: str, *, found: list[str], expected: list[str]) -> OutputMismatch:
        """The existing table has other columns."""
        msg = f"{table} exists with columns {found}; the stream writes {expected}."
        return cls(msg, hint="write to another table, or pass overwrite=True.")

    @classmethod
    def nested(cls, path: str, columns: list[str]) -> OutputMismatch:
        """A csv file cannot have these columns."""
        msg = f"{path}: columns {columns} are nested, which csv has no form for."
        return cls(msg, hint='to_files(format="parquet"), or select what is in them.')

    @classmethod
    def occupied(cls, path: str, names: list[str]) -> OutputMismatch:
        """The folder has files that no flow wrote."""
        msg = f"{path} holds other files, such as {names[0]!r}, which would be read with the epochs."
        return cls(msg, hint="write to a folder of the output's own.")

    @classmethod
    def shared(cls, path: str, first: str, second: str) -> OutputMismatch:
        """Two outputs of a flow would write the same files."""
        msg = f"{path} is the folder of output {first!r}; output {second!r} would overwrite its files."
        return cls(msg, hint="a folder for each, or concat the streams first.")

    @classmethod
    def no_transaction(cls, table: str, refused: Sequence[str]) -> OutputMismatch:
        """The session refuses the settings by which MERGE identifies a transaction."""
        msg = f"{table}: an epoch cannot be written exactly once, because {'; '.join(refused)}."
        hint = "allow these settings, or leave out to_delta(keys=...), whose appends do not need them."
        return cls(msg, hint=hint)

    @classmethod
    def no_delta(cls, table: str) -> OutputMismatch:
        """The session has no Delta Lake."""
        msg = f"{table}: this Spark session has no Delta Lake."
        hint = "timely_spark.configure(SparkSession.builder, delta=True), and install timely-spark[delta]."
        return cls(msg, hint=hint)


class EpochClosed(TimelyError, ValueError):
    """A send, or another call, needs an epoch that the input has closed."""

    condition = "EPOCH_CLOSED"

    @classmethod
    def on_input(cls, name: str, *, asked: int, epoch: int) -> EpochClosed:
        """`asked` is below the input's `epoch`."""
        msg = f"Input {name!r} is at epoch {epoch}; epoch {asked} is closed."
        hint = "after a restart continue from handle.epoch, the first epoch not durably closed."
        return cls(msg, hint=hint)

    @classmethod
    def entirely(cls, name: str) -> EpochClosed:
        """The input was closed."""
        msg = f"Input {name!r} is closed."
        return cls(msg, hint="send before close().")

    @classmethod
    def by_the_clock(cls, name: str, verb: str) -> EpochClosed:
        """The method needs manual epochs."""
        msg = f"Input {name!r} follows the flow's clock, so {verb} has no meaning."
        return cls(msg, hint='flow.input(name, schema, epochs="manual").')


def _who(owner: Mapping[str, object]) -> str:
    place = f"process {owner.get('pid')} on {owner.get('host')}, started {owner.get('started')}"
    return f"run {owner.get('run')} ({place})"


class SentElsewhere(TimelyError, FileExistsError):
    """Another process sends into the same input."""

    condition = "SENT_ELSEWHERE"

    @classmethod
    def entry(cls, name: str, number: int) -> SentElsewhere:
        """Another process has written entry `number`."""
        msg = f"Input {name!r}: entry {number} was sent by another process; this one is not."
        return cls(msg, hint="let one process at a time send into an input; a new start continues after it.")


class QueryFailed(TimelyError, RuntimeError):
    """The streaming query ended with an error of Spark."""

    condition = "QUERY_FAILED"

    @classmethod
    def because(cls, name: str, message: str) -> QueryFailed:
        """`message` is the first line of Spark's error."""
        msg = f"The query of {name!r} failed: {message}."
        return cls(msg, hint="the cause below is Spark's own exception.")
