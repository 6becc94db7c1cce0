"""What can go wrong between a flow and Spark: each error names what was got and expected, and a way out."""

from __future__ import annotations

from timely_spark.errors import SchemaError, TimelyError, Where


class SparkMissing(TimelyError, ImportError):
    """PySpark is not installed."""

    condition = "SPARK_MISSING"

    @classmethod
    def not_importable(cls) -> SparkMissing:
        """Nothing named pyspark can be imported."""
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
        hint = "pip install 'timely-spark[delta]'."
        return cls(msg, hint=hint)


class SparkTooOld(TimelyError, RuntimeError):
    """The installed Spark lacks what the feedback source needs."""

    condition = "SPARK_TOO_OLD"

    @classmethod
    def found(cls, version: str) -> SparkTooOld:
        """`version` is what was found."""
        msg = f"timely_spark needs PySpark 4.2 or newer; found {version}."
        hint = "pip install 'timely-spark[spark]', or choose a runtime with Spark 4.2."
        return cls(msg, hint=hint)


class NoSession(TimelyError, RuntimeError):
    """No Spark session was given and none is active."""

    condition = "NO_SESSION"

    @classmethod
    def active(cls) -> NoSession:
        """Neither an argument nor an active session."""
        msg = "No Spark session was given and none is active."
        hint = "start(spark, ...), where spark = timely_spark.configure(SparkSession.builder).getOrCreate()."
        return cls(msg, hint=hint)


class NotStreaming(TimelyError, TypeError):
    """A source is something other than a streaming DataFrame."""

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
        """The flow declares sources for which no DataFrame was given (or the other way round)."""
        msg = (
            f"The flow's sources and the DataFrames given differ: without a DataFrame {names}, given {given}."
        )
        hint = "one streaming DataFrame per flow.source(name, ...)."
        return cls(msg, hint=hint)


class SourceMismatch(SchemaError):
    """A source was declared with other columns than the DataFrame that is bound to it has."""

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
    """The checkpoint belongs to another flow."""

    condition = "OTHER_FLOW"

    @classmethod
    def in_checkpoint(cls, checkpoint: str, *, found: str, given: str, differ: list[str]) -> OtherFlow:
        """`found` wrote the checkpoint, `given` wants to use it; the steps `differ`."""
        steps = f" They differ in the steps {', '.join(differ)}." if differ else ""
        msg = f"Checkpoint {checkpoint} was written by {found}; it cannot be resumed by {given}.{steps}"
        hint = "start with a new checkpoint, or with the flow as it was."
        return cls(msg, hint=hint)

    @classmethod
    def not_ours(cls, checkpoint: str) -> OtherFlow:
        """Spark ran some other query on this checkpoint."""
        msg = f"Checkpoint {checkpoint} already holds a streaming query which no flow started."
        hint = "give the flow a checkpoint directory of its own."
        return cls(msg, hint=hint)

    @classmethod
    def format_is(cls, found: object, known: int) -> OtherFlow:
        """The layout of the round log is one that this version does not read."""
        msg = f"The checkpoint has format {found!r}; this version of timely_spark reads {known}."
        hint = "resume it with the version that wrote it."
        return cls(msg, hint=hint)


class LostOwnership(TimelyError, RuntimeError):
    """Another query was started on the same checkpoint and has taken it over."""

    condition = "LOST_OWNERSHIP"

    @classmethod
    def to(cls, checkpoint: str, *, mine: str, other: str) -> LostOwnership:
        """`other` is the run that owns the checkpoint now."""
        msg = f"Run {mine} lost checkpoint {checkpoint} to run {other}, started later."
        hint = "one query per checkpoint; stop the other one first."
        return cls(msg, hint=hint)


class LogDamaged(TimelyError, RuntimeError):
    """A file that the round log should hold is not there."""

    condition = "LOG_DAMAGED"

    @classmethod
    def no_manifest(cls, root: str, batch: int) -> LogDamaged:
        """No manifest older than `batch` exists."""
        msg = f"{root} holds no manifest older than batch {batch}."
        hint = "the checkpoint was deleted in part; delete all of it, or restore all of it."
        return cls(msg, hint=hint)

    @classmethod
    def no_plan(cls, root: str, name: str) -> LogDamaged:
        """The plan of this run is gone."""
        msg = f"{root} no longer holds {name}."
        hint = "another start on the same checkpoint removes it; use one at a time."
        return cls(msg, hint=hint)

    @classmethod
    def no_file(cls, root: str, name: str) -> LogDamaged:
        """A file to which a manifest or an offset refers is gone."""
        msg = f"{root} does not hold {name}."
        hint = "the checkpoint was deleted in part; restore all of it."
        return cls(msg, hint=hint)


class TableTaken(TimelyError, ValueError):
    """The Delta table was written by a flow with another checkpoint."""

    condition = "TABLE_TAKEN"

    @classmethod
    def by(cls, table: str, *, found: str, mine: str) -> TableTaken:
        """`found` and `mine` are the two checkpoints' ids."""
        msg = (
            f"Table {table} was written by the flow with checkpoint id {found}; this one is {mine}, "
            "and its epochs start again."
        )
        hint = "resume the old checkpoint, write to another table, or pass overwrite=True."
        return cls(msg, hint=hint)


class OutputMismatch(TimelyError, ValueError):
    """An output and what it writes to disagree about the columns."""

    condition = "OUTPUT_MISMATCH"

    @classmethod
    def keys(cls, table: str, keys: list[str], columns: list[str]) -> OutputMismatch:
        """A key is no column of the stream."""
        msg = f"{table}: keys {keys} must be columns of the stream, which has {columns}."
        hint = "check to_delta(keys=...)."
        return cls(msg, hint=hint)

    @classmethod
    def reserved(cls, table: str, column: str) -> OutputMismatch:
        """The stream has a column that the output adds itself."""
        msg = f"{table}: the stream has a column {column!r}, which the output adds."
        hint = "rename it with select."
        return cls(msg, hint=hint)

    @classmethod
    def columns(cls, table: str, *, found: list[str], expected: list[str]) -> OutputMismatch:
        """The table that exists has other columns."""
        msg = f"{table} exists with columns {found}; the stream writes {expected}."
        hint = "write to another table, or pass overwrite=True."
        return cls(msg, hint=hint)

    @classmethod
    def no_delta(cls, table: str) -> OutputMismatch:
        """The session does not know Delta."""
        msg = f"{table}: this Spark session has no Delta Lake."
        hint = "timely_spark.configure(SparkSession.builder, delta=True), and install timely-spark[delta]."
        return cls(msg, hint=hint)


class EpochClosed(TimelyError, ValueError):
    """Something was sent at an epoch which the input has closed."""

    condition = "EPOCH_CLOSED"

    @classmethod
    def on_input(cls, name: str, *, asked: int, epoch: int) -> EpochClosed:
        """`asked` lies below the input's `epoch`."""
        msg = f"Input {name!r} stands at epoch {epoch}; epoch {asked} is closed."
        hint = "after a restart continue from handle.epoch, the first epoch not durably closed."
        return cls(msg, hint=hint)

    @classmethod
    def entirely(cls, name: str) -> EpochClosed:
        """The input was closed."""
        msg = f"Input {name!r} is closed."
        hint = "send before close()."
        return cls(msg, hint=hint)

    @classmethod
    def by_the_clock(cls, name: str, verb: str) -> EpochClosed:
        """The verb is one of manual epochs only."""
        msg = f"Input {name!r} follows the flow's clock, so {verb} has no meaning."
        hint = 'flow.input(name, schema, epochs="manual").'
        return cls(msg, hint=hint)


class QueryFailed(TimelyError, RuntimeError):
    """The streaming query ended with an error that is not one of ours."""

    condition = "QUERY_FAILED"

    @classmethod
    def because(cls, name: str, message: str) -> QueryFailed:
        """`message` is the first line of what Spark said."""
        msg = f"The query of {name!r} failed: {message}."
        hint = "the cause below is Spark's own exception."
        return cls(msg, hint=hint)
