"""`operator`: a function that becomes a method of streams, or of collections."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from timely_spark.graph.locate_errors import located_method

Operator = TypeVar("Operator", bound=Callable[..., Any])


def operator(of: type, *, also: str | None = None) -> Callable[[Operator], Operator]:
    """Decorate a function: it becomes a method of the class `of`, whose instance is its first argument.

    Type checkers read the methods in `timely_spark/methods.pyi`, which `make methods` writes.

    >>> class Stream: ...
    >>> @operator(Stream, also="filter")
    ... def where(stream, predicate):
    ...     return predicate
    >>> Stream().where("n > 1"), Stream().filter("n < 4")
    ('n > 1', 'n < 4')
    """

    def add(function: Operator) -> Operator:
        for name in filter(None, (function.__name__, also)):
            if name in vars(of):
                msg = f"{function.__module__}.{name}: {of.__name__} has a method {name!r} already"
                raise TypeError(msg)
            setattr(of, name, located_method(function))
        return function

    return add


def load_operators(package: str, path: Iterable[str]) -> None:
    """Import every module of a package, so that its operators are methods; `path`: its `__path__`."""
    for module in pkgutil.iter_modules(path, f"{package}."):
        importlib.import_module(module.name)
