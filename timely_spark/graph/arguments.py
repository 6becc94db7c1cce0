"""Checks of arguments: numbers, names, DataFrames."""

from __future__ import annotations

import contextlib
import difflib
import functools
import inspect
import math
import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import timedelta
from fractions import Fraction
from numbers import Number, Real
from typing import Any, Literal, NoReturn, TypeAlias, TypeVar, cast

import numpy as np
import pyarrow as pa

from timely_spark.errors import BadArgument, GraphError, SchemaError, TimelyError, UnknownName, Where
from timely_spark.graph.caller import caller
from timely_spark.graph.schema import as_schema, columns_of, is_key_type
from timely_spark.times import EPOCHS, is_integer

T = TypeVar("T")

#: annotations of arguments that are True or False
_FLAGS = {"bool", "bool | None"}

OnLimit: TypeAlias = Literal["return", "warn", "raise"]
"""The reaction if a loop's `max_iterations` drops records."""


def no_items(kind: str, column: object) -> NoReturn:
    """Refuse `stream["column"]`, and with it `for record in stream`."""
    msg = f"a {kind} has no items: it has no records until the flow runs"
    hint = "name a column as pc.field('n') (pyarrow.compute as pc); see records by capture or inspect."
    if isinstance(column, str):
        hint = in_expressions(column)
    raise GraphError(msg, where=caller(), hint=hint)


def in_expressions(column: str) -> str:
    """How a column is named in an expression."""
    named = f"pc.field({column!r})"
    return f"name a column as {named} (pyarrow.compute as pc), as in where({named} > 1)."


def no_truth_value(kind: str) -> NoReturn:
    """Refuse `if stream:`."""
    msg = f"a {kind} has no truth value: it has no records until the flow runs"
    raise GraphError(msg, where=caller(), hint="compare it with None; or keep records by where(...).")


def with_checked_arguments(of: T) -> T:
    """Let a function, or the public methods of a class, name its arguments if it is called with others.

    Arguments that are True or False are checked, too: see `flag_check`.

    >>> class Query:
    ...     def step(self, timeout=None): ...
    >>> with_checked_arguments(Query)().step(seconds=3)
    Traceback (most recent call last):
    timely_spark.errors.BadArgument: step: got an unexpected keyword argument 'seconds' (...)
    Hint: check the arguments: step(timeout)
    """
    if not isinstance(of, type):
        function: Any = of
        return cast("T", _checked(function))
    for name in dir(of):
        if not name.startswith("_") and inspect.isfunction(method := getattr(of, name)):
            setattr(of, name, _checked(method))
    return of


def _checked(function: Callable[..., Any]) -> Callable[..., Any]:
    signature, check_flags = inspect.signature(function), flag_check(function)

    @functools.wraps(function)
    def called(*args: Any, **options: Any) -> Any:
        check_flags(args, options)
        try:
            return function(*args, **options)
        except TypeError:
            try:
                signature.bind(*args, **options)  # takes longer than a look-up
            except TypeError as error:
                names = [name for name in signature.parameters if name != "self"]
                msg = f"{function.__name__}: {error}"
                hint = arguments_hint(function.__name__, names, error)
                raise BadArgument(msg, where=caller(), hint=hint) from None
            raise

    return called


def flag_check(function: Callable[..., Any]) -> Callable[[Sequence[Any], Mapping[str, Any]], None]:
    """What checks a call's arguments that are True or False by their annotation: a text would count as True.

    >>> def start(*, replace: bool = False): ...
    >>> flag_check(start)((), {"replace": "no"})
    Traceback (most recent call last):
    timely_spark.errors.BadArgument: start: replace='no': True or False was expected (...)
    Hint: leave it out, or write replace=True.
    """
    parameters = inspect.signature(function).parameters
    places = [name for name, of in parameters.items() if of.kind <= of.POSITIONAL_OR_KEYWORD]
    #: those that are True or False, and whether they may be None
    flags = {name: of.annotation != "bool" for name, of in parameters.items() if of.annotation in _FLAGS}

    def check(args: Sequence[Any], options: Mapping[str, Any]) -> None:
        for argument, value in (*zip(places, args, strict=False), *options.items()):
            if argument in flags and not (
                isinstance(value, bool | np.bool_) or (flags[argument] and value is None)
            ):
                expected = "None, True or False" if flags[argument] else "True or False"
                hint = f"leave it out, or write {argument}=True."
                refuse(value, what=f"{function.__name__}: {argument}", expected=expected, hint=hint)

    return check if flags else lambda _args, _options: None


def arguments_hint(function: str, names: Sequence[str], error: Exception) -> str:
    """The arguments of a function that was called with others, and the one that was meant.

    >>> arguments_hint("step", ["timeout"], TypeError("got an unexpected keyword argument 'time_out'"))
    'did you mean timeout=? check the arguments: step(timeout)'
    """
    unknown = re.search(r"unexpected keyword argument '(\w+)'", str(error))
    meant = nearest(unknown[1], names) if unknown else None
    guess = f"did you mean {meant}=? " if meant else ""
    return f"{guess}check the arguments: {function}({', '.join(names)})"


def similar(name: str, names: Iterable[str]) -> list[str]:
    """The names that are most like another, at most three, whatever their case and underscores.

    >>> similar("PageRank", ["page_rank", "landmarks"])
    ['page_rank']
    """

    def folded(text: str) -> str:
        return text.lower().replace("_", "")

    every = {folded(one): one for one in names}
    return [every[one] for one in difflib.get_close_matches(folded(name), every)]


def nearest(name: str, names: Iterable[str]) -> str | None:
    """The name that is most like another; None if no name is like it.

    >>> nearest("scr", ["src", "dst"])
    'src'
    """
    return next(iter(similar(name, names)), None)


def integer(
    what: str,
    value: Any,
    *,
    least: int | None = 1,
    most: int | None = EPOCHS - 1,
    step: str = "",
    error: type[TimelyError] = BadArgument,
    hint: str = "",
) -> int:
    """Check an integer, also of numpy; not `True`, `1.0` or `"1"`. `step`: the step that has the argument.

    >>> import numpy as np
    >>> integer("workers", 2), integer("k", np.int64(3), step="k_core")
    (2, 3)
    >>> integer("round", -1, least=0, step="inspect")
    Traceback (most recent call last):
    timely_spark.errors.BadArgument: inspect: round=-1 is not an integer from 0 on and below 2**62 (...)
    Hint: give an integer.
    """
    if is_integer(value, least, most):
        return int(value)
    span = "" if least is None else f" from {least}"
    span += "" if most is None else f" to {most:,}" if most < EPOCHS - 1 else " on and below 2**62"
    msg = f"{step}: " * bool(step) + f"{what}={value!r} is not an integer{span}"
    raise error(msg, where=caller(), hint=hint or "give an integer.")


def seconds(what: str, duration: Any, *, above: bool = False) -> float:
    """Check a duration: seconds, a text with units, or a `timedelta`; if `above`, more than none.

    >>> seconds("within", 2), seconds("within", "500ms"), seconds("keep", timedelta(days=7))
    (2.0, 0.5, 604800.0)
    """
    with contextlib.suppress(ValueError, TypeError, OverflowError):
        length = nanoseconds(duration)
        value = float(duration if length is None else length / 10**9)
        is_length = length is not None or not isinstance(duration, str | bool)
        if is_length and (0 < value < math.inf or (value == 0 and not above)):
            return value
    hint = f'give {what}=1, {what}="1s" or {what}="2 minutes".'
    expected = "seconds" + ", above 0" * above + ", or a number and a unit of time,"
    return refuse(duration, what=what, expected=expected, hint=hint)


_NANOSECONDS = {
    name: n
    for names_, n in (
        ("nanosecond ns", 1),
        ("microsecond us", 10**3),
        ("millisecond ms", 10**6),
        ("second sec s", 10**9),
        ("minute min m", 60 * 10**9),
        ("hour h", 3600 * 10**9),
        ("day d", 86_400 * 10**9),
        ("week w", 7 * 86_400 * 10**9),
    )
    for name in names_.split()
}
_LENGTH = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]+)\s*")


def nanoseconds(length: Any) -> Fraction | None:
    """A length of time: a `timedelta`, or text of numbers, each with a unit; None if it is neither.

    >>> [str(nanoseconds(text)) for text in ("90 seconds", "1h 30min", "0.5 us", "5", "1 month", "1 M")]
    ['90000000000', '5400000000000', '500', 'None', 'None', 'None']
    """
    if isinstance(length, timedelta):
        return Fraction(length // timedelta(microseconds=1) * 1000)
    if not isinstance(length, str):
        return None
    total, rest = Fraction(0), length.strip()
    while match := _LENGTH.match(rest):
        unit = match[2] if len(match[2]) == 1 else match[2].lower()  # M may be a month
        size = _NANOSECONDS.get(unit) or _NANOSECONDS.get(unit.removesuffix("s"))
        if size is None:
            return None
        total, rest = total + Fraction(match[1]) * size, rest[match.end() :]
    return None if rest or not length.strip() else total


def refuse(value: object, *, what: str, expected: str, hint: str) -> NoReturn:
    """Raise a `BadArgument`: argument `what` is of another kind than expected."""
    msg = f"{what}={value!r}: {expected} was expected"
    raise BadArgument(msg, where=caller(), hint=hint)


def word(
    what: str,
    value: Any,
    words: Collection[str],
    *,
    step: str = "",
    error: type[TimelyError] = BadArgument,
    hint: str = "",
) -> None:
    """Check that an argument is one of some words. `step`: the step that has the argument.

    >>> word("format", "arow", ["parquet", "arrow"], step="to_files")
    Traceback (most recent call last):
    timely_spark.errors.BadArgument: to_files: format='arow' is not 'parquet' or 'arrow' (...)
    Hint: did you mean 'arrow'?
    """
    if isinstance(value, str) and value in words:
        return
    *others, last = map(repr, words)
    msg = f"{step}: " * bool(step) + f"{what}={value!r} is not {', '.join(others)} or {last}"
    close = nearest(value, words) if isinstance(value, str) else None
    meant = "write one of them." if close is None else f"did you mean {close!r}?"
    raise error(msg, where=caller(), hint=hint or meant)


def path_text(path: Any, hint: str, *, what: str = "path") -> str:
    """Check a path, which is a text or a `PathLike`, and not empty.

    >>> path_text("/data", "give a folder")
    '/data'
    """
    if not isinstance(path, str | os.PathLike) or not os.fspath(path):
        refuse(path, what=what, expected="a path", hint=hint)
    return os.fspath(path)


def absolute(path: str) -> str:
    """A path made absolute by this process's working directory, which tasks do not share; a URI unchanged.

    >>> absolute("/data"), absolute("s3://bucket/data"), absolute("dbfs:/x")
    ('/data', 's3://bucket/data', 'dbfs:/x')
    >>> absolute("out/found") == os.path.abspath("out/found")
    True
    >>> absolute("~/found") == os.path.expanduser("~/found")
    True
    """
    if not path:
        refuse(path, what="path", expected="a path", hint="give a folder of the output's own.")
    # links stay as they are
    return path if _URI.match(path) else os.path.abspath(os.path.expanduser(path))  # noqa: PTH100, PTH111


#: A URI; one letter before the colon is a drive.
_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")


def find(things: Mapping[str, T], name: Any, *, kind: str, flow: str) -> T:
    """Look up a thing by its name.

    >>> find({"edges": 1}, "edges", kind="input", flow="paths")
    1
    >>> find({"edges": 1}, "edge", kind="input", flow="paths")
    Traceback (most recent call last):
    timely_spark.errors.UnknownName: flow 'paths' has no input 'edge' (...)
    Hint: did you mean 'edges'? There are ['edges'].
    """
    if isinstance(name, str) and name in things:
        return things[name]
    names = sorted(things)
    guess = f"did you mean {meant!r}? " if (meant := nearest(str(name), names)) else ""
    msg = f"flow {flow!r} has no {kind} {name!r}"
    raise UnknownName(
        msg, where=caller(), hint=f"{guess}There are {names}." if names else f"it has no {kind}."
    )


def names(step: str, columns: str | Iterable[str] | None) -> tuple[str, ...]:
    """Normalise a user's column names: one name, several, or None.

    Example:
        >>> names("join", "id"), names("join", ["src", "dst"])
        (('id',), ('src', 'dst'))
    """
    listed = (columns,) if isinstance(columns, str) else () if columns is None else columns
    result: tuple[Any, ...] = tuple(listed) if hasattr(listed, "__iter__") else (listed,)
    if not all(isinstance(column, str) for column in result):
        msg = f"{step}: {columns!r} are not column names"
        raise SchemaError(msg, where=caller(), hint="give a column's name, or a list of names.")
    return result


def has_equality(kind: pa.DataType) -> bool:
    """Whether values of a type have equality and a hash, as arrays, maps and structs of such have.

    >>> has_equality(pa.list_(pa.float64())), has_equality(pa.list_(pa.month_day_nano_interval()))
    (True, False)
    """
    if pa.types.is_union(kind) or not pa.types.is_nested(kind):
        return is_key_type(kind)
    return all(has_equality(kind.field(n).type) for n in range(kind.num_fields))


def check_columns(
    step: str,
    schema: pa.Schema,
    columns: Sequence[str] | Mapping[str, str],
    *,
    keys: bool = False,
    nested: bool = False,
    of: str = "its input",
) -> None:
    """Check that a schema, by default of the step's input, has the columns, and that they can be keys.

    Args:
        columns: the columns; or by argument the column that it names.
        keys: whether the columns are keys: their values must have equality.
        nested: whether keys may be nested, as they need no order.
        of: what has the schema, in the words of the error.

    Example:
        >>> check_columns("peel", pa.schema([("src", pa.int64())]), {"src": "scr"})
        Traceback (most recent call last):
        timely_spark.errors.SchemaError: step 'peel' asks for columns ['scr'], its input has (src int64) (...)
        Hint: did you mean 'src'? say which columns are meant: peel(..., src=...).

    Raises:
        SchemaError: a column is missing, or cannot be a key.
    """
    arguments = columns if isinstance(columns, Mapping) else {}
    columns = [*(arguments.values() or columns)]
    missing = [column for column in names(step, columns) if schema.get_field_index(column) < 0]
    if missing:
        msg = f"step {step!r} asks for columns {missing}, {of} has {columns_of(schema)}"
        hints = [f"did you mean {meant!r}?"] if (meant := nearest(missing[0], schema.names)) else []
        if arguments:
            named = ", ".join(f"{argument}=..." for argument in arguments)
            hints.append(f"say which columns are meant: {step}(..., {named}).")
        hint = " ".join(hints) or "check the spelling, or select the column first."
        raise SchemaError(msg, where=caller(), hint=hint)
    refused = {column: schema.field(column).type for column in columns if keys}
    fits = has_equality if nested else is_key_type
    refused = {column: kind for column, kind in refused.items() if not fits(kind)}
    if refused:
        what = (
            "nested columns" if all(map(pa.types.is_nested, refused.values())) else "columns without equality"
        )
        msg = f"step {step!r} compares {what} {[*refused]}"
        raise SchemaError(msg, where=caller(), hint="select flat columns, or a text form of them.")


def frame_schema(source: str, frame: Any, where: Where) -> pa.Schema:
    """The schema of a DataFrame that becomes a source."""
    fields = []
    for column in frame.schema.fields:
        try:
            fields += [*as_schema({column.name: column.dataType})]
        except SchemaError as error:  # noqa: PERF203 - fails at the first
            kind = column.dataType.simpleString()
            msg = f"source {source!r}: column {column.name!r} is of type {kind}, which a flow does not take"
            hint = "cast the column, or drop it, in the DataFrame."
            raise SchemaError(msg, where=where, hint=hint) from error
    return as_schema(pa.schema(fields))


def most_epochs(inputs: Any, source: Callable[[Any], object]) -> int:
    """The number of epochs of the longest input; each input lists its records of epoch 0, 1, ....

    `source` looks an input up by its name, and raises an error if there is none.

    >>> most_epochs({"x": [[1], [2, 3]], "y": [[]]}, "xy".index)
    2
    """
    hint = '{"x": [[1, 2], [3]]}: records 1 and 2 in epoch 0, and 3 in epoch 1.'
    if not isinstance(inputs, Mapping):
        refuse(inputs, what="inputs", expected="a mapping", hint=hint)
    for name, epochs in inputs.items():
        source(name)
        if not isinstance(epochs, Sequence) or isinstance(epochs, str | bytes):
            expected, what = "a list with the records of each epoch", f"inputs[{name!r}]"
            refuse(epochs, what=what, expected=expected, hint=hint)
        for epoch, records in enumerate(epochs):
            if isinstance(records, Number | None):
                expected = f"a list with the records of epoch {epoch}"
                refuse(records, what=f"inputs[{name!r}][{epoch}]", expected=expected, hint=hint)
    return max(map(len, inputs.values()), default=0)


def check_schedule(seed: Any, crashes: Any, *, flow: Any, fits: bool) -> None:
    """Check the arguments of a simulation; `fits`: whether `flow` is a flow."""
    valid_crashes = isinstance(crashes, Real) and 0 <= float(crashes) < 1
    valid_seed = isinstance(seed, int | float | str | bytes | bytearray | None) or is_integer(
        seed, None, None
    )
    flow_hint = 'flow = ts.Dataflow("numbers"); ...; ts.testing.run(flow, {"x": [[1, 2]]}).'
    crashes_hint = "give the probability that an attempt at a batch crashes: crashes=0.2."
    seed_hint = "seed=1, or None for the schedule of Spark."
    for what, value, valid, expected, hint in (
        ("flow", flow, fits, "a Dataflow", flow_hint),
        ("seed", seed, valid_seed, "a number or a text", seed_hint),
        ("crashes", crashes, valid_crashes, "a probability below 1", crashes_hint),
    ):
        if not valid:
            refuse(value, what=what, expected=expected, hint=hint)


def check_limit(max_iterations: Any, on_limit: Any) -> int | None:
    """The largest loop counter that a user's arguments allow, None for no limit."""
    limit = None
    if max_iterations is not None:
        limit = integer("max_iterations", max_iterations, step="loop", error=GraphError) - 1
    if on_limit not in (None, "return", "warn", "raise") or (
        on_limit not in (None, "return") and max_iterations is None
    ):
        msg = f"loop: on_limit={on_limit!r} with max_iterations={max_iterations!r}"
        hint = 'with max_iterations, on_limit may be "return", "warn" or "raise".'
        raise GraphError(msg, where=caller(), hint=hint)
    return limit
