"""What is asked of arguments: numbers, names of what there is, and DataFrames."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import pyarrow as pa

from timely_spark.errors import BadArgument, SchemaError, UnknownName, Where
from timely_spark.graph.graph import caller
from timely_spark.graph.schema import as_schema

T = TypeVar("T")


def whole(what: str, value: Any, *, least: int = 1) -> int:
    """A whole number, as an int: `1`, numpy's, but neither `True` nor `1.0` nor `"1"`.

    >>> whole("workers", 2)
    2

    Raises:
        BadArgument: the value is something else, or below `least`.
    """
    if isinstance(value, bool | type) or not hasattr(value, "__index__") or value.__index__() < least:
        raise BadArgument.whole(what, value, least=least, where=caller())
    return int(value)


def known(things: Mapping[str, T], name: Any, *, kind: str, flow: str) -> T:
    """The thing of a name.

    >>> known({"edges": 1}, "edges", kind="input", flow="paths")
    1

    Raises:
        UnknownName: there is none.
    """
    if not isinstance(name, str) or name not in things:
        raise UnknownName.of(name, things, kind=kind, flow=flow, where=caller())
    return things[name]


def frame_schema(source: str, frame: Any, where: Where) -> pa.Schema:
    """The columns of a DataFrame that becomes a source.

    Raises:
        SchemaError: a column is of a type that a flow does not take.
    """
    fields = []
    for column in frame.schema.fields:
        try:
            fields += [*as_schema({column.name: column.dataType})]
        except SchemaError as error:  # noqa: PERF203 - the first one that fails is the last
            raise SchemaError.column(source, column.name, column.dataType.simpleString(), where) from error
    return as_schema(pa.schema(fields))


def most_epochs(inputs: Any) -> int:
    """How many epochs the longest of some inputs has, each of which lists what comes in epoch 0, 1, ....

    >>> most_epochs({"x": [[1], [2, 3]], "y": [[]]})
    2

    Raises:
        BadArgument: they are no such lists.
    """
    hint = '{"x": [[1, 2], [3]]}: records 1 and 2 in epoch 0, and 3 in epoch 1.'
    if not isinstance(inputs, Mapping):
        raise BadArgument.kind(inputs, what="inputs", expected="a mapping", where=caller(), hint=hint)
    for name, of in inputs.items():
        if not isinstance(of, Sequence) or isinstance(of, str | bytes):
            expected, what = "a list with the records of each epoch", f"inputs[{name!r}]"
            raise BadArgument.kind(of, what=what, expected=expected, where=caller(), hint=hint)
    return max(map(len, inputs.values()), default=0)


def check_schedule(seed: Any, crashes: Any, *, flow: Any, fits: bool) -> None:
    """Checks what a simulation is given; `fits`: whether `flow` is one.

    Raises:
        BadArgument: one of them is something else.
    """
    likely = isinstance(crashes, int | float) and 0 <= crashes < 1
    drawn = isinstance(seed, int | float | str | bytes | bytearray | None)
    run = 'flow = ts.Dataflow("numbers"); ...; ts.testing.run(flow, {"x": [[1, 2]]}).'
    rare = "say how likely an attempt at a batch is to crash: crashes=0.2."
    usual = "seed=1, or None for the schedule that Spark has."
    for what, value, good, expected, hint in (
        ("flow", flow, fits, "a Dataflow", run),
        ("seed", seed, drawn, "a number or a text", usual),
        ("crashes", crashes, likely, "a probability below 1", rare),
    ):
        if not good:
            raise BadArgument.kind(value, what=what, expected=expected, where=caller(), hint=hint)
