"""The errors of the runtime, by what went wrong between a flow and Spark."""

from __future__ import annotations

import re
from collections.abc import Mapping

from timely_spark.errors import SchemaError, TimelyError, Where
from timely_spark.graph import caller


class SparkMissing(TimelyError, ImportError):
    """PySpark is not installed, or is older than 4.2."""


class NoSession(TimelyError, RuntimeError):
    """No Spark session was given and none is active."""


class SourceMismatch(SchemaError):
    """A source has no streaming DataFrame, or one with other columns than were declared."""


class BadFile(TimelyError, OSError):
    """A file of a source is missing, damaged or has other columns; or there is no file."""


class BadTopic(TimelyError, OSError):
    """A topic of a source is missing, cannot be read, or has lost messages; or its brokers are silent."""


class BadRecord(TimelyError, ValueError):
    """A message of a source cannot be decoded."""


class TableUnsupported(TimelyError, NotImplementedError):
    """A Delta table has a feature that only Spark's reader knows."""

    condition = "TABLE_UNSUPPORTED"


class OtherFlow(TimelyError, ValueError):
    """The checkpoint has another format, or belongs to another flow or to a plain query."""

    @classmethod
    def format_is(cls, root: str, written: object, current: int) -> OtherFlow:
        """This version cannot read the format of the round log in a folder."""
        msg = f"{root} has format {written!r}; this version of timely_spark reads {current}."
        return cls(msg, hint="start the version that wrote it, or give a new checkpoint.")

    @classmethod
    def committed(cls, checkpoint: str, micro_batch: int) -> OtherFlow:
        """A run that was presumed dead has ended a micro-batch while this one started."""
        msg = (
            f"Checkpoint {checkpoint}: micro-batch {micro_batch} was committed by the run before while this "
            "one started."
        )
        return cls(msg, hint="start again: the flow then continues from that batch.")

    @classmethod
    def none_at(cls, checkpoint: str, where: Where | None = None) -> OtherFlow:
        """There is no checkpoint of a flow."""
        msg = f"{checkpoint} holds no checkpoint of a flow"
        hint = "give the directory of start(checkpoint=...); the first start makes it."
        return cls(msg, where=where, hint=hint)


class LostOwnership(TimelyError, RuntimeError):
    """Another query was started on the same checkpoint and has taken it over."""

    @classmethod
    def to(cls, checkpoint: str, *, term: int, owner: Mapping[str, object]) -> LostOwnership:
        """`owner` is the run that owns the checkpoint now."""
        msg = f"The run of term {term} lost checkpoint {checkpoint} to {_who(owner)}."
        return cls(
            msg,
            hint="let one process at a time start the flow; to run it here, stop the other and start again.",
        )


class CheckpointInUse(TimelyError, RuntimeError):
    """A running driver uses this checkpoint."""

    @classmethod
    def by(cls, checkpoint: str, owner: Mapping[str, object]) -> CheckpointInUse:
        """`owner` is the run that uses the checkpoint."""
        msg = f"Checkpoint {checkpoint} is in use by {_who(owner)}; a second query cannot be started on it."
        hint = "stop() that query, or end its process; if it is dead, the checkpoint is free at once."
        return cls(msg, hint=hint)


class InputsInUse(TimelyError, RuntimeError):
    """The flow's input handles send to a query that is running; a second query cannot share them."""


class QueryEnded(TimelyError, RuntimeError):
    """A method needs a running query, and the query has ended."""

    @classmethod
    def verb(cls, name: str, verb: str, why: str, *, where: Where) -> QueryEnded:
        """`verb` is the method; `why` is the reason."""
        msg = f"{name}: {verb} of a query that has ended: {why}"
        return cls(msg, where=where, hint=f"call {verb} of the query that runs now.")


class NameTaken(TimelyError, ValueError):
    """A query of this name is running in the session."""


class QueryRefused(TimelyError, ValueError):
    """Spark does not start the query."""


class Unpicklable(TimelyError, TypeError):
    """A step cannot be pickled for Spark's tasks."""


class BadLocation(TimelyError, ValueError):
    """A location cannot be reached."""

    @classmethod
    def incomplete(cls, location: str) -> BadLocation:
        """The location has no bucket or no path, or its path leaves the root."""
        msg = f"{location!r} names no place: a bucket or a path is missing, or has a part '.' or '..'."
        hint = "give /folder, s3://bucket/folder, abfss://container@account.dfs.core.windows.net/x."
        return cls(msg, hint=hint)


class TableTaken(TimelyError, ValueError):
    """A flow with another checkpoint has written to the output's table or folder."""

    @classmethod
    def by(cls, table: str, *, other: str, own: str) -> TableTaken:
        """`other` and `own` are the two checkpoints' ids."""
        msg = (
            f"{table} was written by the flow with checkpoint id {other}; this one is {own}, "
            "and its epochs start again."
        )
        return cls(msg, hint="resume the old checkpoint, write to another place, or pass overwrite=True.")


class OutputMismatch(TimelyError, ValueError):
    """An output does not fit its table or folder."""

    @classmethod
    def lost(cls, table: str) -> OutputMismatch:
        """The table or folder is not the one that has the epochs delivered before."""
        msg = (
            f"{table} lacks epochs that this checkpoint has delivered: it was removed, recreated or "
            "overwritten by another flow, or the output wrote to another place before."
        )
        hint = (
            "restore it with its properties; or begin with a new checkpoint; or give the output another "
            "name=, under which only later epochs are written."
        )
        return cls(msg, hint=hint)

    @classmethod
    def unreadable(cls, path: str, reason: object) -> OutputMismatch:
        """The file that names the folder's owner is damaged."""
        msg = f"{path}, which names the output that owns this folder, cannot be read: {reason}"
        hint = "restore it from a backup, and check the disk; or give the output another name and folder."
        return cls(msg, hint=hint)

    @classmethod
    def columns(cls, output: str, *, stored: str, now: str) -> OutputMismatch:
        """The epochs that the output has stored have other columns than the stream."""
        msg = f"Output {output!r} has stored epochs with the columns {stored}; the stream has {now}"
        hint = "give the output another name (and, if it writes to a folder, another folder)."
        return cls(msg, hint=hint)

    @classmethod
    def in_one_folder(cls, path: str, first: str, second: str) -> OutputMismatch:
        """Two outputs of a flow, or of flows that had the checkpoint, write to one folder."""
        msg = f"{path} is the folder of output {first!r}; output {second!r} would overwrite its files."
        return cls(msg, hint="give each output a folder, or concat the streams first.")

    @classmethod
    def taken_away(cls, table: str) -> OutputMismatch:
        """Another writer has restored an earlier version of a Delta table, or overwritten it."""
        msg = (
            f"{table} lacks epochs that this checkpoint has delivered: another writer restored an "
            "earlier version of it, or overwrote it."
        )
        hint = (
            "RESTORE it to the version before that, by its number in DESCRIBE HISTORY, and start again; or "
            "begin with a new checkpoint and another table."
        )
        return cls(msg, hint=hint)

    @classmethod
    def shared(cls, place: str) -> OutputMismatch:
        """Another run of the same checkpoint, or of a copy of it, has written to the table or folder."""
        msg = (
            f"{place} was written by another run of this output while this one runs: this checkpoint, or "
            "the one of the other run, is a copy; or the other one stalled, and ended late."
        )
        hint = (
            "start again if the other run has ended; else stop one of the two, and check the last epochs of "
            "the output. A flow on a copied checkpoint gives its outputs other names and places."
        )
        return cls(msg, hint=hint)

    @classmethod
    def ahead(cls, place: str, epoch: int, batch: int) -> OutputMismatch:
        """A table or folder has epochs of this output that the checkpoint has not begun."""
        msg = (
            f"{place} has epoch {epoch} of this output, and this checkpoint has begun none after {batch}: it "
            "is a copy or a backup, and another run has gone on from there, or it was rolled back."
        )
        hint = (
            "start on the checkpoint that has gone on; or begin with a new checkpoint, and another table or "
            "folder."
        )
        return cls(msg, hint=hint)

    @classmethod
    def ended(cls, folder: str, epoch: int) -> OutputMismatch:
        """A capture has ended, so its readers have closed their inputs; and there is a later epoch."""
        msg = (
            f"{folder} has the end of its capture, since all inputs were closed, and epoch {epoch} comes now"
        )
        hint = "capture to another folder, by an output of another name; readers of this one have ended."
        return cls(msg, hint=hint)


class EpochClosed(TimelyError, ValueError):
    """A send, or another call, needs an epoch that the input has closed."""

    @classmethod
    def on_input(cls, name: str, *, asked: int, epoch: int) -> EpochClosed:
        """`asked` is below the input's `epoch`."""
        msg = f"Input {name!r} is at epoch {epoch}; epoch {asked} is closed"
        hint = f"send at epoch {epoch} or later; after a restart continue from the input's `epoch`."
        return cls(msg, where=caller(), hint=hint)

    @classmethod
    def entirely(cls, name: str) -> EpochClosed:
        """The input was closed."""
        msg = f"Input {name!r} is closed"
        return cls(msg, where=caller(), hint="send before close().")

    @classmethod
    def by_the_clock(cls, name: str, verb: str) -> EpochClosed:
        """The method needs manual epochs."""
        msg = f"Input {name!r} follows the flow's clock, so {verb} has no meaning"
        return cls(msg, where=caller(), hint='declare it with flow.input(name, schema, epochs="manual").')

    @classmethod
    def by_the_capture(cls, name: str) -> EpochClosed:
        """The input replays a capture."""
        msg = f"Input {name!r} replays a capture, so close() has no meaning"
        hint = "close the inputs of the flow that captures: the replay ends with them."
        return cls(msg, where=caller(), hint=hint)


#: How py4j begins the text of an error of Java's.
_CALLED = re.compile(r"An error occurred while calling \S+\.\n: ")


def first_line(message: str) -> str:
    r"""The first line of Spark's error; of one that a process of Python's raised, with the exception.

    >>> traced = ["[A] No: Traceback (most recent call last):", "  File ...", "OSError: no room", "SQLSTATE"]
    >>> first_line("\n".join(traced)), first_line("[B] no table\n== Plan ==")
    ('[A] No: OSError: no room', '[B] no table')
    >>> first_line("An error occurred while calling o80.save.\n: java.io.IOException: no room\n\tat A.b")
    'java.io.IOException: no room'
    """
    message = _CALLED.sub("", message)
    first, _, rest = message.partition("\n")
    before, traceback, _ = first.partition("Traceback (most recent call last):")
    raised = (line for line in rest.splitlines() if line and not line[0].isspace())
    return before + next(raised, traceback) if traceback else first


def _who(owner: Mapping[str, object]) -> str:
    place = f"process {owner.get('pid')} on {owner.get('host')}, started {owner.get('started')}"
    return f"run {owner.get('run')} ({place})"


class SentElsewhere(TimelyError, FileExistsError):
    """Another process sends into the same input."""


class QueryFailed(TimelyError, RuntimeError):
    """The streaming query ended with an error of Spark."""

    @classmethod
    def because(cls, name: str, message: str, *, stopped: bool = False) -> QueryFailed:
        """`message` is a line of Spark's error; `stopped` says that the session was stopped."""
        if stopped:
            msg = f"The query of {name!r} ended because its Spark session was stopped."
            return cls(msg, hint="stop() the query before spark.stop(); start it again in a new session.")
        msg = f"The query of {name!r} failed: {message.rstrip('.')}."
        hint = "correct what Spark's exception says, the cause of this one, and start again."
        if "failed to connect back" in message:  # Spark waits for each of its Python processes for 10 s
            hint = "the machine was too busy to start Spark's Python processes: start again, fewer at once."
        if "DELTA_SOURCE_IGNORE_DELETE" in message or "DELTA_SOURCE_TABLE_IGNORE_CHANGES" in message:
            hint = "read its changes (changes=True) as .collection(diff='diff'), with a new checkpoint."
        return cls(msg, hint=hint)


class PeersUnreachable(OSError):
    """The tasks of a stage cannot reach each other."""


class PeerLost(ConnectionError):
    """A task of a stage has ended, or gives no sign of life."""
