"""The exceptions of the library: one root, and each also a subclass of a fitting builtin exception.

A message names the actual and the expected value, and ends in ``Hint: ...`` with a remedy. Errors travel from
Python workers to the driver, so they can be pickled, with their attributes.
"""

from __future__ import annotations

import errno
import os
import re
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from typing import Self

_JVM_STACK = re.compile(r"\s+at |\s+\.\.\. \d+ |Driver stacktrace:")


@dataclass(frozen=True, slots=True)
class Where:
    """A line of the user's source, for error messages; a place in a text of SQL has a column.

    >>> str(Where("job.py", 12)), str(Where("views.sql", 3, 8))
    ('job.py:12', 'views.sql:3:8')
    """

    file: str
    line: int
    column: int | None = None

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" + ("" if self.column is None else f":{self.column}")


class TimelyError(Exception):
    """The root of all errors of this library.

    The message is followed by the user's line, if known, and the hint, if given.

    >>> print(TimelyError("no such stage: 'a'", where=Where("job.py", 12), hint="the stages are 'b', 'c'"))
    no such stage: 'a' (job.py:12)
    Hint: the stages are 'b', 'c'
    """

    #: A stable name of the error, for programs and for searching: that of its class, as GRAPH of GraphError.
    condition: ClassVar[str] = "TIMELY_ERROR"

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        words = re.findall("[A-Z][a-z]+", cls.__name__.removesuffix("Error"))
        cls.condition = "_".join(words).upper()

    def __init__(self, message: str, *, where: Where | None = None, hint: str | None = None) -> None:
        text = message if where is None else f"{message} ({where})"
        super().__init__(with_hint(text, hint))
        self.message, self.where, self.hint = message, where, hint


def with_hint(text: str, hint: str | None) -> str:
    """A text, and below it a remedy, if there is one: the one way to write it, also in warnings.

    >>> print(with_hint("no such stage: 'a'", "the stages are 'b', 'c'"))
    no such stage: 'a'
    Hint: the stages are 'b', 'c'
    """
    return text if hint is None else f"{text}\nHint: {hint}"


def split_hint(text: str) -> tuple[str, str]:
    """The text of an error, and its hint, which is empty if the error has none.

    >>> split_hint(with_hint("step 'a' failed", "correct it."))
    ("step 'a' failed", 'correct it.')
    """
    message, _, hint = text.partition("\nHint: ")
    return message.strip(), hint.strip()


class InvalidTime(TimelyError, ValueError):
    """A time or path summary that is out of range, or of another loop context than expected.

    >>> InvalidTime.out_of_range((0, -1), 9).condition
    'INVALID_TIME'
    """

    @classmethod
    def out_of_range(cls, values: Iterable[int], largest: int) -> Self:
        """An epoch or loop counter is negative or too large."""
        msg = f"an epoch and a loop counter lie between 0 and {largest}, got {tuple(values)}"
        return cls(msg, hint="number epochs from 0 upwards.")

    @classmethod
    def depths_differ(cls, left: object, right: object) -> Self:
        """Two times, or a time and a summary, are of different loop contexts."""
        msg = f"{left!r} and {right!r} differ in their number of loop counters, so in their loop contexts"
        return cls(msg, hint="bring both into one context with enter or leave first.")


class CyclicTime(TimelyError, ValueError):
    """A cycle of the graph along which time does not advance, so that no time on it could be complete.

    Naiad section 2.1: could-result-in is a partial order because every cycle passes a feedback.

    >>> CyclicTime.around([0, 2]).locations
    [0, 2]
    """

    #: The locations of one such cycle, in the order of its edges.
    locations: list[int]

    @classmethod
    def around(cls, locations: Sequence[int]) -> Self:
        """The error for the cycle through these locations."""
        path = " -> ".join(map(str, (*locations, locations[0])))
        error = cls(
            f"the cycle of locations {path} does not advance time: messages could return no later",
            hint="every cycle must pass a feedback (of the loop that it stays in) or a delay.",
        )
        error.locations = list(locations)
        return error


class BadArgument(TimelyError, ValueError):
    """An argument is not one of the allowed values.

    >>> isinstance(BadArgument("workers=0: it must be at least 1"), ValueError)
    True
    """


class NotComplete(TimelyError, TimeoutError):
    """An answer needs an epoch that is not complete; or a function waits for its own micro-batch."""

    @classmethod
    def at(cls, names: Sequence[str], epoch: int, timeout: float | None, *, where: Where) -> NotComplete:
        """`names` are the outputs, complete until `epoch`, after `timeout` or when the query ended."""
        after = "when the query ended" if timeout is None else f"after {timeout} s, or when the query ended,"
        until = f"complete until epoch {epoch}" if epoch >= 0 else "complete for no epoch"
        msg = f"ask({', '.join(map(repr, names))}): {after} this was {until}, and not for all that was sent"
        hint = "ask without fresh= and within=, which answers at once from that epoch; or wait longer."
        return cls(msg, where=where, hint=hint)

    @classmethod
    def open(
        cls, names: Sequence[str], epoch: int, inputs: Mapping[str, int], *, where: Where
    ) -> NotComplete:
        """Records were sent up to `epoch`; `inputs` have closed only the epochs before theirs."""
        name, first = min(inputs.items(), key=lambda pair: pair[1])
        msg = (
            f"ask({', '.join(map(repr, names))}): records were sent to epoch {epoch}, and input {name!r} has "
            f"not closed epoch {first}"
        )
        hint = f"advance_to({epoch + 1}) on {name!r} first; or ask without fresh= and within=."
        return cls(msg, where=where, hint=hint)

    @classmethod
    def yet(cls, what: str, epoch: int, *, where: Where) -> NotComplete:
        """`what` asks for a later epoch than `epoch`, the last one that is complete (-1 if none is)."""
        until = f"complete until epoch {epoch}" if epoch >= 0 else "complete for no epoch"
        hint = "ask for that epoch or one before it; or query.wait_for(epoch) first."
        return cls(f"{what}: this is {until}", where=where, hint=hint)


class UnknownName(TimelyError, KeyError):
    """The flow has nothing of this name."""

    __str__ = Exception.__str__  # a KeyError would show its message quoted


class GraphError(TimelyError, ValueError):
    """The graph is invalid; found while it is built or compiled."""


class CycleError(GraphError):
    """A cycle of steps does not advance time; the message names the steps with the user's lines."""


class NoSuchMethod(TimelyError, AttributeError):
    """An object has no method or property of this name.

    >>> isinstance(NoSuchMethod("a Stream has no 'agg'"), AttributeError)
    True
    """


class SchemaError(TimelyError, TypeError):
    """Columns or types do not fit."""


class SqlError(SchemaError):
    """A text in SQL cannot be parsed, or does not fit the columns; the message shows the place in it."""


class ExpressionError(TimelyError, ArithmeticError):
    """An expression has no value for a record: a number is too large, or a text is not of the type."""


class CapabilityError(TimelyError, RuntimeError):
    """A vertex sends, or requests a notification, at a time for which it has no capability."""


class StateError(TimelyError, TypeError):
    """A vertex's state cannot be written or read."""


class RecordError(Exception):
    """A user's function failed on `record`; the cause is its exception. `VertexError` shows both.

    `meaning` explains the record, if the function's arguments differ from it.
    """

    def __init__(self, record: object, meaning: str = "") -> None:
        super().__init__(record, meaning)
        self.record, self.meaning = record, meaning


_RESTORE = "restore the whole checkpoint from a backup, or start on a new one"


class LogDamaged(TimelyError, RuntimeError):
    """A file of the checkpoint is missing or damaged; the message names the file."""

    @classmethod
    def no_manifest(cls, root: str, batch: int) -> Self:
        """The manifest of `batch` is missing, and there is no substitute."""
        return cls.no_file(root, f"the manifest of batch {batch}, rounds/*/{batch}.arrow")

    @classmethod
    def unreadable(cls, root: str, name: str, reason: object) -> Self:
        """A file cannot be parsed."""
        msg = f"{root}: {name} cannot be read: {str(reason).partition(chr(10))[0]}."
        if isinstance(reason, NotADirectoryError):
            return cls(msg, hint="give the folder of a checkpoint, not a file.")
        return cls(msg, hint=f"{_RESTORE}; and check the disk.")

    @classmethod
    def altered(cls, root: str, name: str, *, expected: object, computed: object) -> Self:
        """A file's content differs from its checksum."""
        msg = f"{root}: {name} is damaged: its checksum is {computed}, expected was {expected}."
        return cls(msg, hint=f"{_RESTORE}; and check the disk.")

    @classmethod
    def no_file(cls, root: str, name: str) -> Self:
        """A file to which a manifest or an offset refers is missing."""
        return cls(f"{root} does not hold {name}.", hint=f"{_RESTORE}.")

    @classmethod
    def escapes(cls, root: str, name: str) -> Self:
        """A file name is invalid, or leads out of the checkpoint."""
        msg = f"{name!r} is not the name of a file below {root}."
        hint = "restore the whole checkpoint from a backup, and check who may write there."
        return cls(msg, hint=hint)


class StorageFailed(TimelyError, OSError):
    """A file system refuses a checkpoint's or an output's file; start again when the cause is removed.

    >>> import errno
    >>> print(StorageFailed.of("/data/x/flow.json", OSError(errno.ENOSPC, "No space left on device")))
    /data/x/flow.json cannot be written: No space left on device (ENOSPC)
    Hint: free space there, and start again: nothing that was complete is lost.
    """

    @classmethod
    def of(cls, path: str, error: BaseException, verb: str = "written") -> Self:
        """The error of a file: `verb` says what was tried."""
        number = getattr(error, "errno", None) or 0
        reason = getattr(error, "strerror", None) or str(error).partition("\n")[0]
        code = f" ({errno.errorcode[number]})" if number in errno.errorcode else ""
        remedy = _REMEDIES.get(number, "check the disk or the mount, and the rights on it")
        failed = cls(
            f"{path} cannot be {verb}: {reason}{code}",
            hint=f"{remedy}, and start again: nothing that was complete is lost.",
        )
        failed.errno = number or None
        return failed

    @classmethod
    @contextmanager
    def owning(cls, path: str, verb: str = "written") -> Iterator[None]:
        """Raise what the file system says in the body as this error, of the path."""
        try:
            yield
        except cls:
            raise
        except OSError as error:
            raise cls.of(path, error, verb) from error

    @classmethod
    def by_spark(cls, text: str, what: str) -> Self | None:
        """The error for a text of Spark's or Delta's about a full or broken disk; None if it is another.

        >>> StorageFailed.by_spark(
        ...     "java.io.IOException: Disk quota exceeded", "output 'out', /data/out"
        ... ).errno
        122
        >>> StorageFailed.by_spark("no such column", "output 'out'")
        """
        for number in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO):
            if (reason := os.strerror(number)).lower() in text.lower():
                return cls.of(what, OSError(number, reason))
        return None


#: What to do about an error of the operating system.
_REMEDIES = {
    errno.ENOSPC: "free space there",
    errno.EDQUOT: "free space there, or raise the quota",
    errno.EROFS: "mount it for writing",
    errno.EACCES: "give this process the right to read and write there",
    errno.EPERM: "give this process the right to read and write there",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ENFILE: "raise the machine's limit of open files",
}


#: What a function of a step may raise that is an error of the step. Spark would say of `sys.exit()` only
#: that a process has ended.
RAISED = (Exception, SystemExit, GeneratorExit)


class VertexError(TimelyError, RuntimeError):
    """A step failed at run time: the message has the exception, the step, the time and the user's lines.

    For a function of one record it also shows the record; for a function of batches, some of the records.

    Attributes:
        step: the step's name.
        cause: the exception, as text.
        trace: its traceback, as text.
    """

    step: str
    cause: str
    trace: str
    _parts: dict[str, str | None]
    _context: str

    @classmethod
    def from_exception(
        cls, step: str, where: Where | None, error: BaseException, *, time: str | None = None, rows: str = ""
    ) -> Self:
        """The error for an exception that a step raised; `rows`: some of its input."""
        of_function = isinstance(error, RecordError)
        if isinstance(error, RecordError) and (cause := error.__cause__) is not None:
            rows, error = f"{_fields(error.record)}{error.meaning}", cause
        line = user_line(error) or user_line(error.__cause__ or error)  # of a function that SQL calls
        return cls.decode(
            {
                "step": step,
                "where": str(where),
                "time": time,
                "cause": without_stack(error),
                "trace": "".join(traceback.format_exception(error)),
                "line": line,
                # the records help only if a function of the user's failed, or has returned what it must not
                "rows": rows if line or of_function else "",
            }
        )

    def encode(self) -> dict[str, str | None]:
        """The error as plain JSON."""
        return dict(self._parts)

    @classmethod
    def decode(cls, parts: Mapping[str, str | None], context: str = "") -> Self:
        """The error that `encode` wrote; `context`: the part of the run in which it was raised."""
        kind: Any = LimitReached if parts.get("kind") == LimitReached.condition else cls
        error: Self = kind(kind.text_of(parts, context))
        error.step, error.cause, error.trace = (parts[key] or "" for key in ("step", "cause", "trace"))
        error._parts, error._context = dict(parts), context
        return error

    @classmethod
    def text_of(cls, parts: Mapping[str, str | None], context: str) -> str:
        """The message."""
        texts = {key: text or "" for key, text in parts.items()}
        at = "".join(
            [
                f" at {texts['time']}" if texts["time"] else "",
                f" in {context}" if context else "",
                f", in {texts['line']}" if texts.get("line") else "",
                f", with {texts['rows']}" if texts.get("rows") else "",
            ]
        )
        text = f"step {texts['step']!r} ({texts['where']}) failed{at}: {texts['cause']}"
        if "Hint:" in texts["cause"]:
            return text
        return with_hint(text, "correct the cause and start again; this error's `trace` has the traceback.")

    def __reduce__(self) -> tuple[Any, ...]:
        return VertexError.decode, (self.encode(), self._context)


#: What to do about a step that makes too much at one time.
FEWER = (
    "a join multiplies the records that a key has on both sides: join by more columns, or reduce a side "
    "before; or let an epoch have less (files_per_epoch, max_bytes_per_epoch, smaller sends)"
)


class LimitReached(VertexError):
    """A loop with ``on_limit="raise"`` has reached `max_iterations`, or a step sends more than `epoch_limit`.

    `epoch_limit` is for what a step sends at one time: in an epoch, or in an iteration of a loop.

    >>> error = LimitReached.of("hops", Where("job.py", 3), "near", epoch=2, iteration=5, rows="{'n': 1}")
    >>> print(error)
    loop 'hops' (job.py:3) ended at its limit after 5 iterations of epoch 2; 'near' would go on with {'n': 1}
    Hint: start again with on_limit="warn" to drop these records; a larger limit needs a new checkpoint.
    >>> error.loop, error.epoch
    ('hops', 2)

    Attributes:
        loop: the loop's name; empty if it is not feedback that is too large.
        epoch: the epoch.
    """

    @classmethod
    def of(cls, loop: str, where: Where, step: str, *, epoch: int, iteration: int, rows: str) -> LimitReached:
        """The error of a loop."""
        cause = (
            f"loop {loop!r} ({where}) ended at its limit after {iteration} iterations of epoch {epoch}; "
            f"{step!r} would go on with {rows}"
        )
        return cls._because(step, cause, loop, epoch)

    @classmethod
    def grown(
        cls,
        loop: str,
        where: Where,
        step: str,
        *,
        epoch: int,
        iteration: int,
        size: str,
        limit: str,
        evidence: str,
    ) -> LimitReached:
        """The error of a loop with an iteration that is too large."""
        cause = (
            f"loop {loop!r} ({where}) has grown too large: {step!r} hands {size} to iteration {iteration} of "
            f"epoch {epoch}, and {limit}; {evidence}"
        )
        return cls._because(step, cause, loop, epoch, grown="yes")

    @classmethod
    def large(
        cls, step: str, where: Where | None, *, epoch: int, at: str, size: str, limit: str, evidence: str
    ) -> LimitReached:
        """The error of a step that sends too much at one time."""
        cause = f"step {step!r} ({where}) sends {size} at {at}, and {limit}; {evidence}"
        return cls._because(step, cause, "", epoch, grown="yes")

    @classmethod
    def _because(cls, step: str, cause: str, loop: str, epoch: int, **more: str) -> LimitReached:
        parts = {"kind": cls.condition, "step": step, "cause": cause, "trace": "", "loop": loop}
        return cls.decode({**parts, "epoch": str(epoch), **more})

    @classmethod
    def text_of(cls, parts: Mapping[str, str | None], context: str) -> str:
        hint = (
            'start again with on_limit="warn" to drop these records; a larger limit needs a new checkpoint.'
        )
        if parts.get("grown") and not parts["loop"]:
            hint = f"{FEWER}; or start more workers; or give start() or testing.run a larger epoch_limit."
        elif parts.get("grown"):
            hint = (
                "end the body of the loop with distinct() (or min, max, reduce), which drops what has come "
                "before; or bound it with max_iterations; or give start() or testing.run a larger "
                "epoch_limit."
            )
        return with_hint(f"{parts['cause']}{f' ({context})' if context else ''}", hint)

    @property
    def loop(self) -> str:
        """The loop's name."""
        return str(self._parts["loop"])

    @property
    def epoch(self) -> int:
        """The epoch."""
        return int(str(self._parts["epoch"]))


def shorten(value: object, most: int = 60) -> str:
    """A value's text, shortened for a message.

    >>> shorten("a" * 100, most=12)
    "'aaaaaaaa..."
    """
    text = repr(value)
    return text if len(text) <= most else f"{text[: most - 3]}..."


def function_text(function: object) -> str:
    """A user's function for a message: its name and line."""
    code = getattr(function, "__code__", None)
    name = getattr(function, "__name__", type(function).__name__)
    return name if code is None else f"{name} ({Where(code.co_filename, code.co_firstlineno)})"


def without_stack(error: BaseException) -> str:
    r"""An exception's type and message; of Spark's errors without a plan, of the JVM's the last cause alone.

    >>> Py4JJavaError = type("Py4JJavaError", (Exception,), {"java_exception": None})
    >>> text = "An error occurred while calling o7.execute.\n: a.b.TaskFailed: no\n\tat a.b.C.d(C.scala:7)"
    >>> without_stack(Py4JJavaError(f"{text}\nCaused by: a.b.Negative: k is -3\nin row 2\n\t... 5 more\n"))
    'a.b.Negative: k is -3\nin row 2'
    >>> without_stack(OSError("no more room"))
    'OSError: no more room'
    """
    try:
        text = f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 - the text of a user's exception may fail
        return type(error).__name__
    if hasattr(error, "getSqlState"):  # Spark's; behind the sentence is the query's plan
        return text.partition(";\n")[0]
    if not hasattr(error, "java_exception"):
        return text
    cause = re.split(r"^(?:Caused by)?: ", text, flags=re.MULTILINE)[-1]
    lines = (line for line in cause.splitlines() if not _JVM_STACK.match(line))
    return "\n".join(filter(None, lines))


def excerpt(table: Any) -> str:
    """Some records of an Arrow table as text, without reserved columns; empty if there are no others.

    >>> import pyarrow as pa
    >>> excerpt(pa.table({"n": [1, 2, 3, 4], "__timely_diff": [1] * 4}))
    "{'n': 1}, {'n': 2}, {'n': 3} and 1 more"
    >>> excerpt(pa.table({"__timely_diff": [1]}))
    ''
    """
    shown = table.select([name for name in table.schema.names if not name.startswith("__timely_")])
    if not shown.schema.names:
        return ""
    first = zip(*map(values_of, shown.slice(0, 3).columns), strict=True)
    rows = ["{" + _items(zip(shown.schema.names, row, strict=True)) + "}" for row in first]
    more = table.num_rows - len(rows)
    return ", ".join(rows) + (f" and {more} more" if more > 0 else "")


def values_of(column: Any) -> list[Any]:
    """The values of an Arrow column in Python: numpy's dates, if some are outside of the years 1 to 9999.

    >>> import pyarrow as pa
    >>> values_of(pa.array([1, None, 3_000_000], pa.date32()))
    [np.datetime64('1970-01-02'), None, np.datetime64('10183-09-21')]
    """
    try:
        return list(column.to_pylist())
    except (ValueError, OverflowError):
        if column.type.num_fields:  # nested: Arrow's own text
            texts = (str(column.slice(i, 1)) for i in range(len(column)))
            return [" ".join(text.split()) for text in texts]
        return [None if value != value else value for value in column.to_numpy(zero_copy_only=False)]  # noqa: PLR0124 - NaT


def row_texts(table: Any) -> list[str]:
    """The records of an Arrow table as texts, to compare them: nested ones have no hash; NaN is itself."""
    return [str(row) for row in zip(*map(values_of, table.columns), strict=True)]


def _items(pairs: Iterable[tuple[str, object]]) -> str:
    text = ", ".join(f"{name!r}: {shorten(value)}" for name, value in pairs)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _fields(record: Any) -> str:
    """A named tuple as text for a message."""
    names = getattr(record, "_fields", None)
    return f"{{{_items(zip(names, tuple(record), strict=True))}}}" if names else shorten(record)


def user_line(error: BaseException) -> str:
    """The line of the user's function in which an exception was raised; empty if there was none."""
    frames = list(traceback.walk_tb(error.__traceback__))
    ours = [place for place, (frame, _) in enumerate(frames) if _module(frame) == __name__.partition(".")[0]]
    for frame, line in frames[ours[-1] + 1 if ours else 0 :]:
        if _module(frame) not in _LIBRARIES:
            return f"{frame.f_code.co_name} ({Where(frame.f_code.co_filename, line)})"
    return ""


def _module(frame: Any) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


#: libraries that this one calls: an error in them belongs to the step that called them
_LIBRARIES = frozenset({"asyncio", "pyarrow", "numpy", "pandas", "json", "pickle", "copy"})
#: the most characters of a record in a message
_LONGEST = 500
