"""Frozen dataclasses in a vertex's state: the allowed classes, and values restored from fields.

Bytes never choose code: a class name in the bytes is looked up among the classes to which the vertex's class
refers, and fields are set without calling `__init__`, `__post_init__` or any other method.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import typing
from collections.abc import Callable, Iterator, Mapping
from types import FunctionType
from typing import Any
from weakref import WeakKeyDictionary

from timely_spark.errors import StateError
from timely_spark.graph import Vertex

#: the results of `reachable`
_reachable: WeakKeyDictionary[type, dict[str, type]] = WeakKeyDictionary()


def is_frozen(kind: Any) -> bool:
    """Whether a class is a frozen dataclass whose values have no state other than their fields.

    >>> @dataclasses.dataclass(frozen=True)
    ... class Point:
    ...     x: int
    >>> is_frozen(Point), is_frozen(int)
    (True, False)
    """
    own: Any = vars(kind) if isinstance(kind, type) else {}
    frozen = "__dataclass_fields__" in own and own["__dataclass_params__"].frozen
    return frozen and kind.__new__ is object.__new__


def qualified(kind: type) -> str:
    """The name of a class in encoded states."""
    return f"{kind.__module__}.{kind.__qualname__}"


def reachable(vertex: type) -> Mapping[str, type]:
    """The frozen dataclasses to which a vertex's class refers, by qualified name.

    A class refers to the classes in its attributes and type hints, to those in the globals and closures of
    its methods, and to what these classes refer to.
    """
    if vertex not in _reachable:
        kinds: dict[str, type] = {}
        todo = [base for base in vertex.__mro__ if base not in (Vertex, object)]
        while todo:
            for kind in _referred(todo.pop()):
                if is_frozen(kind) and qualified(kind) not in kinds:
                    kinds[qualified(kind)] = kind
                    todo.append(kind)
        _reachable[vertex] = kinds
    return _reachable[vertex]


def fields_of(value: Any) -> dict[str, Any]:
    """The fields of a value that are set."""
    names = [field.name for field in dataclasses.fields(value)]
    return {name: getattr(value, name) for name in names if hasattr(value, name)}


def restored(vertex: type, name: str, values: Mapping[str, Any]) -> Any:
    """A value of the class with that name; fields that were added to the class get their defaults."""
    kind = _named(vertex, name)
    fields = {field.name: field for field in dataclasses.fields(kind)}
    if missing := [name for name in values if name not in fields]:
        state = f"the state holds a {name} with fields {list(values)}"
        msg = f"{state}; the class has {list(fields)}, and no {missing}"
        raise StateError(msg, hint="bring the fields back; or give the step another name: it starts empty.")
    value = object.__new__(kind)
    for field in fields.values():
        if field.name in values:
            object.__setattr__(value, field.name, values[field.name])
        elif field.default is not dataclasses.MISSING:
            object.__setattr__(value, field.name, field.default)
        elif field.default_factory is not dataclasses.MISSING:
            object.__setattr__(value, field.name, field.default_factory())
        elif field.init:
            msg = f"the state holds a {name} with fields {list(values)}; the class has {field.name!r}, too"
            raise StateError(msg, hint=f"give {field.name!r} a default.")
    return value


def _named(vertex: type, name: str) -> Any:
    kinds = reachable(vertex)
    # the class may have moved to another module
    moved = [kind for kind in kinds.values() if name.endswith(f".{kind.__qualname__}")]
    if name not in kinds and len(moved) != 1:
        msg = f"the state holds a {name}; the vertex {vertex.__name__} refers to no such frozen dataclass"
        hint = f"name the class in a type hint of {vertex.__name__}; {vertex.__name__} knows {sorted(kinds)}."
        raise StateError(msg, hint=hint)
    return kinds.get(name) or moved[0]


def _referred(kind: type) -> Iterator[Any]:
    """The objects to which one class refers directly."""
    yield from _in_hints(kind)
    for member in vars(kind).values():
        if isinstance(member, type):
            yield member
        for function in _functions(member):
            yield from _in_hints(function)
            yield from function.__globals__.values()
            for cell in function.__closure__ or ():
                with contextlib.suppress(ValueError):  # an empty cell
                    yield cell.cell_contents


def _functions(member: Any) -> Iterator[FunctionType]:
    parts = [member.fget, member.fset] if isinstance(member, property) else [member]
    for part in parts:
        function = inspect.unwrap(getattr(part, "__func__", part)) if part is not None else None
        if isinstance(function, FunctionType):
            yield function


def _in_hints(annotated: type | Callable[..., Any]) -> Iterator[Any]:
    try:
        hints = typing.get_type_hints(annotated)
    except Exception:  # noqa: BLE001 - a hint may name something that only a type checker imports
        hints = {
            name: hint for name, hint in getattr(annotated, "__annotations__", {}).items() if hint is not str
        }
    todo = list(hints.values())
    while todo:
        todo += typing.get_args(hint := todo.pop())
        yield hint
