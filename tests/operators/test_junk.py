"""Whatever a public operator is given, it takes it, or says in a typed error what is wrong with it."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import pyarrow.compute as pc
import pytest

import timely_spark as ts
from timely_spark.errors import TimelyError

#: by name, what makes a value that no argument of an operator should be
JUNK: dict[str, Any] = {
    "None": lambda flow: None,
    "a number": lambda flow: 7,
    "half": lambda flow: 2.5,
    "a column that is not there": lambda flow: "nothing",
    "an empty text": lambda flow: "",
    "a list": lambda flow: [1, None],
    "a mapping": lambda flow: {"a": 3},
    "a function of nothing": lambda flow: lambda: None,
    "a generator": lambda flow: (n for n in [1]),
    "an object": lambda flow: object(),
    "a class": lambda flow: int,
    "an expression": lambda flow: pc.field("nothing"),
    "a stream of another flow": lambda flow: stream(ts.Dataflow("other")),
    "a collection of another flow": lambda flow: collection(ts.Dataflow("other")),
    "a stream": lambda flow: stream(flow, "beside"),
    "a collection": lambda flow: collection(flow, "beside"),
}
#: what reads a row, makes nothing, or starts something
LEFT_OUT = {"then", "check_others", "like", "check", "together", "send", "advance_to", "close", "handle"}


def stream(flow: ts.Dataflow, name: str = "x") -> Any:
    return flow.input(name, "n long, s string")


def collection(flow: ts.Dataflow, name: str = "x") -> Any:
    return stream(flow, name).collection()


def operators(kind: type) -> Iterator[str]:
    for name, _ in inspect.getmembers(kind, inspect.isfunction):
        if not name.startswith("_") and name not in LEFT_OUT:
            yield name


CASES = [("stream", name) for name in operators(ts.Stream)]
CASES += [("collection", name) for name in operators(ts.Collection)]
MAKE = {"stream": stream, "collection": collection}


@pytest.mark.parametrize(("kind", "operator"), CASES)
def test_junk_is_taken_or_told(kind: str, operator: str) -> None:
    bare = []
    parameters = list(inspect.signature(getattr(MAKE[kind](ts.Dataflow("x")), operator)).parameters.values())
    for parameter in parameters:
        for what, make in JUNK.items():
            flow = ts.Dataflow("junk")
            of = MAKE[kind](flow)
            junk = make(flow)
            positional: list[Any] = []
            named: dict[str, Any] = {}
            for each in parameters:
                value = junk if each is parameter else _fitting(each, of)
                if value is _LEAVE or each.kind is inspect.Parameter.VAR_KEYWORD:
                    if each is parameter:
                        named["new"] = junk
                elif each.kind is inspect.Parameter.KEYWORD_ONLY:
                    named[each.name] = value
                else:
                    positional.append(value)
            try:
                getattr(of, operator)(*positional, **named)
            except TimelyError as error:
                if "Hint: " not in str(error) or "test_junk.py:" not in str(error):
                    bare.append(f"{parameter.name}={what}: no line or hint: {type(error).__name__}: {error}")
            except Exception as error:  # noqa: BLE001 - all that comes is told
                bare.append(f"{parameter.name}={what}: {type(error).__name__}: {error}")
    assert not bare, "\n".join(bare)


_LEAVE = object()


def _fitting(parameter: inspect.Parameter, of: Any) -> Any:
    """Something that the parameter takes, where it has no default."""
    if parameter.default is not inspect.Parameter.empty:
        return _LEAVE if parameter.kind is inspect.Parameter.KEYWORD_ONLY else parameter.default
    fitting = {
        "function": lambda row: row,
        "step": lambda one: one,
        "predicate": lambda row: True,
        "schema": "n long, s string",
        "keys": "n",
        "value": "n",
        "column": "n",
        "other": of,
        "others": of,
        "iteration": "n",
        "table": "t",
        "path": "/nowhere",
        "k": 3,
        "name": "named",
        "after": 3,
        "by_epochs": 1,
        "columns": "n",
    }
    return of.scope.inner() if parameter.name == "scope" else fitting.get(parameter.name, _LEAVE)
