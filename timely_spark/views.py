"""Views as functions of Python: what `view` records while a pipeline reads a file."""

from __future__ import annotations

import inspect
import runpy
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeVar, overload

from timely_spark.errors import GraphError, Where
from timely_spark.graph import caller, locate_errors, refuse

F = TypeVar("F", bound=Callable[..., Any])

#: Arguments that are not the names of tables and views: the pipeline's flow, and Spark's session.
GIVEN = ("flow", "spark")


@dataclass(frozen=True)
class FunctionView:
    """A table or view that a function makes."""

    function: Callable[..., Any]
    #: the Delta table that keeps it, and its keys; None if nothing keeps it
    output: tuple[str, tuple[str, ...]] | None
    where: Where

    @property
    def name(self) -> str:
        """The name by which others read it."""
        return self.function.__name__

    @property
    def arguments(self) -> tuple[str, ...]:
        """The names of what the function gets, `GIVEN` among them."""
        return tuple(one.name for one in _parameters(self.function) if one.kind is one.POSITIONAL_OR_KEYWORD)

    @property
    def reads(self) -> frozenset[str]:
        """The names of the tables and views that it reads."""
        return frozenset(self.arguments) - {*GIVEN}

    @property
    def options(self) -> dict[str, Any]:
        """The names of its keyword-only arguments, which `--set` gives, and their defaults."""
        return {one.name: one.default for one in _parameters(self.function) if one.kind is one.KEYWORD_ONLY}


_defined: ContextVar[list[FunctionView] | None] = ContextVar("defined", default=None)


@overload
def view(function: F, /) -> F: ...
@overload
def view(*, table: str, keys: str | Iterable[str]) -> Callable[[F], F]: ...
@locate_errors
def view(function: Any = None, /, *, table: str | None = None, keys: str | Iterable[str] = ()) -> Any:
    """A function as a table or view of a pipeline, which is a folder: `python -m timely_spark run FOLDER`.

    The function's name is the view's. It gets collections: the tables and views of the folder that are named
    as its arguments, whether functions or SQL define them. An argument ``flow`` is the pipeline's `Dataflow`,
    with which it opens an input; ``spark`` is the session. Keyword-only arguments are texts that ``--set
    NAME=VALUE`` gives. The function itself does not change, so that a test calls it with collections.

    Args:
        function: returns a collection or a stream. The rows of a stream count by ``diff`` if it has that
            column.
        table: the Delta table that keeps the view, as for `Stream.to_delta`; without it nothing is kept, and
            others read the view.
        keys: the columns that identify a row of a kept view.

    Example:
        >>> import timely_spark as ts
        >>> @ts.view(table="out/degrees", keys="src")
        ... def degrees(edges):
        ...     return edges.count(keys="src")
        >>> flow = ts.Dataflow("test")
        >>> _ = degrees(flow.input("edges", "src long, dst long").collection()).changes().capture("out")
        >>> ts.testing.run(flow, {"edges": [[(1, 2), (1, 3)]]})["out"].rows()
        {0: [(1, 2, 1)]}

    Raises:
        GraphError: one of `table` and `keys` is missing, or the function takes ``*arguments``.
    """
    where = caller()
    names = (keys,) if isinstance(keys, str) else tuple(keys)
    if (table is None) != (not names):
        msg = f"view: keys={keys!r} without a table" if names else f"view: table={table!r} without keys"
        raise GraphError(msg, where=where, hint="a view is kept by both: view(table=..., keys=...).")

    def defined(function: F) -> F:
        if not inspect.isfunction(inspect.unwrap(function)):
            refuse(function, what="view", expected="a function", hint="write @ts.view above a function.")
        marked = FunctionView(function, None if table is None else (table, names), _where(function))
        if wrong := [one for one in _parameters(function) if one.kind not in _NAMED]:
            msg = f"view {marked.name} takes {wrong[0]}"
            raise GraphError(msg, where=marked.where, hint="name each table that it reads as an argument.")
        if (views := _defined.get()) is not None:
            views.append(marked)
        return function

    return defined if function is None else defined(function)


_NAMED = {inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY}


def views_of_file(path: str) -> list[FunctionView]:
    """The views that a file of Python defines; it runs as a program, under the name ``__pipeline__``.

    A class or function of the file is pickled with its code, because its module cannot be imported.
    """
    views: list[FunctionView] = []
    token = _defined.set(views)
    try:
        runpy.run_path(path, run_name="__pipeline__")
    finally:
        _defined.reset(token)
    return [one for one in views if one.where.file == path]


def _parameters(function: Callable[..., Any]) -> Iterable[inspect.Parameter]:
    return inspect.signature(function).parameters.values()


def _where(function: Callable[..., Any]) -> Where:
    code = inspect.unwrap(function).__code__
    return Where(code.co_filename, code.co_firstlineno)
