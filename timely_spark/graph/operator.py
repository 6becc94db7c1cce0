"""`operator`: a function that becomes a method of streams, or of collections."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from timely_spark.graph.locate_errors import located_method
from timely_spark.graph.naming import composed

Operator = TypeVar("Operator", bound=Callable[..., Any])

_SECTION = re.compile(r"\n\n(?=(?:Args|\*\*Columns|Example|Raises):)")


def operator(owner: type, *, also: str | None = None, body: bool = False) -> Callable[[Operator], Operator]:
    """Decorate a function: it becomes a method of the class `owner`. Its first argument is the instance.

    If the operator has the argument `name`, and adds several steps, they are named after it: see `composed`.
    Not if it is a loop: the steps of its `body`, a function of the user's, have names of their own.
    If `owner._explained_by` has a method of this name, the docstring gets from there what it lacks.

    Type checkers read the methods in `timely_spark/methods.pyi`, which `make methods` writes.

    >>> class Stream: ...
    >>> @operator(Stream, also="filter")
    ... def where(stream, predicate):
    ...     return predicate
    >>> Stream().where("n > 1"), Stream().filter("n < 4")
    ('n > 1', 'n < 4')
    """

    def add(plain: Operator) -> Operator:
        function: Any = plain if body else composed(plain)
        method = located_method(function)
        if (twin := getattr(getattr(owner, "_explained_by", None), function.__name__, None)) is not None:
            method.__doc__ = _completed(function, twin)
        for name in filter(None, (function.__name__, also)):
            if name in vars(owner):
                msg = f"{function.__module__}.{name}: {owner.__name__} has a method {name!r} already"
                raise TypeError(msg)
            setattr(owner, name, method)
        return function  # type: ignore[no-any-return]

    return add


def _completed(function: Callable[..., Any], twin: Callable[..., Any]) -> str:
    r"""A docstring with the sections, and the arguments, that only the twin's explains.

    >>> def one(x, *, y):
    ...     "Do.\n\nArgs:\n    y: why.\n    z: no.\n\nRaises:\n    ValueError: never."
    >>> def other(x, *, y):
    ...     "Do it.\n\nArgs:\n    x: which."
    >>> _completed(other, one)
    'Do it.\n\nArgs:\n    x: which.\n    y: why.\n\nRaises:\n    ValueError: never.'
    """
    (_, twins), (prose, own) = (_sections(inspect.getdoc(each) or "") for each in (twin, function))
    explained = _arguments(twins) | _arguments(own)
    listed = [explained[name] for name in inspect.signature(function).parameters if name in explained]
    sections = twins | own | {"Args": "\n    ".join(["Args:", *listed]) if listed else ""}
    order = [sections.get(head) for head in ("Args", "**Columns", "Example", "Raises")]
    return "\n\n".join([prose, *filter(None, order)])


def _sections(doc: str) -> tuple[str, dict[str, str]]:
    """The prose before the sections, and each section by its head."""
    prose, *sections = _SECTION.split(doc)
    return prose, {section.partition(":")[0]: section for section in sections}


def _arguments(sections: dict[str, str]) -> dict[str, str]:
    _, *each = re.split(r"\n    (?=\w+: )", sections.get("Args", ""))
    return {one.partition(":")[0]: one for one in each}


def load_operators(package: str, path: Iterable[str]) -> None:
    """Import every module of a package, so that its operators are methods; `path`: its `__path__`."""
    for module in pkgutil.iter_modules(path, f"{package}."):
        importlib.import_module(module.name)
