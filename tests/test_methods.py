"""`timely_spark/methods.pyi` tells type checkers of the operators; `make methods` writes it by this file.

That they see them, with their arguments, `make lint` checks by `tests/support/typed.py`.
"""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Callable
from inspect import Parameter
from pathlib import Path
from typing import Any

import pytest

import timely_spark as ts
from timely_spark.graph import operator

STUB = Path(__file__).parents[1] / "timely_spark" / "methods.pyi"
CLASSES = {"StreamMethods": ts.Stream, "CollectionMethods": ts.Collection}


def operators(of: type) -> dict[str, Callable[..., Any]]:
    """The methods that other modules added to a class, by name."""
    functions = {name: member for name, member in vars(of).items() if inspect.isfunction(member)}
    return {
        name: member
        for name, member in sorted(functions.items())
        if member.__module__ not in (of.__module__, "dataclasses")
    }


def declared(name: str, member: Callable[..., Any]) -> str:
    """A method's line in the stub: the function that it is, or the signature of one lifted from streams."""
    function = getattr(member, "__wrapped__", member)
    if "__signature__" not in vars(function):
        return f"{name} = {function.__module__}.{function.__name__}"
    signature, listed = inspect.signature(function), ["self"]
    for one in list(signature.parameters.values())[1:]:
        if one.kind is Parameter.KEYWORD_ONLY and "*" not in listed:
            listed.append("*")
        listed.append(f"{one.name}: {one.annotation}" + " = ..." * (one.default is not Parameter.empty))
    return f"def {name}({', '.join(listed)}) -> {signature.return_annotation}: ..."


def expected() -> str:
    """The text of the stub."""
    found = {name: operators(of) for name, of in CLASSES.items()}
    modules = sorted({function.__module__ for of in found.values() for function in of.values()})
    lines = [
        "# Written by `make methods`. Operators add themselves to streams and collections, but type checkers"
    ]
    lines += ["# do not see it: they read this file. Only here a name may come from a layer above."]
    lines += [
        "import os",
        "from collections.abc import Callable, Mapping",
        "from typing import Literal",
        "",
        "import pyarrow as pa",
        "from pyspark.sql import Column, DataFrame",
        "",
    ]
    lines += [f"import {module}" for module in modules]
    lines += [
        "from timely_spark.dataflow import Dataflow as Dataflow",
        "from timely_spark.differential.collections import Collection",
        "from timely_spark.graph import Suggests",
        "from timely_spark.input_streams import Input as Input",
        "from timely_spark.operators.outputs import Release",
        "from timely_spark.runtime.handle.query import Query as Query",
    ]
    for name, functions in found.items():
        lines += ["", f"class {name}(Suggests):", "    __slots__ = ()"]
        lines += [f"    {declared(method, function)}" for method, function in functions.items()]
    ruff = [sys.executable, "-m", "ruff", "format", "--stdin-filename", STUB, "-"]
    return subprocess.run(ruff, input="\n".join(lines), capture_output=True, text=True, check=True).stdout


def test_type_checkers_see_every_operator() -> None:
    listed, due = STUB.read_text(encoding="utf-8").splitlines(), expected().splitlines()
    missing = "\n".join(line for line in due if line not in listed)
    unknown = "\n".join(line for line in listed if line not in due)
    assert listed == due, f"timely_spark/methods.pyi: run `make methods`\nadd:\n{missing}\nremove:\n{unknown}"


def test_a_second_operator_of_one_name_is_refused() -> None:
    def where(stream: ts.Stream) -> ts.Stream:
        return stream

    with pytest.raises(TypeError, match=r"Stream has a method 'where' already"):
        operator(ts.Stream)(where)


if __name__ == "__main__":
    STUB.write_text(expected(), encoding="utf-8")
