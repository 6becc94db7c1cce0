"""What is asked of arguments: numbers, and names of what there is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from timely_spark.errors import BadArgument, UnknownName
from timely_spark.graph.graph import caller

T = TypeVar("T")


def whole(what: str, value: Any, *, least: int = 1) -> int:
    """A whole number, as an int: `1`, numpy's, but neither `True` nor `1.0` nor `"1"`.

    >>> whole("workers", 2)
    2

    Raises:
        BadArgument: the value is something else, or below `least`.
    """
    if isinstance(value, bool) or not hasattr(value, "__index__") or value.__index__() < least:
        raise BadArgument.whole(what, value, least=least, where=caller())
    return int(value)


def known(things: Mapping[str, T], name: str, *, kind: str, flow: str) -> T:
    """The thing of a name.

    >>> known({"edges": 1}, "edges", kind="input", flow="paths")
    1

    Raises:
        UnknownName: there is none.
    """
    if name not in things:
        raise UnknownName.of(name, things, kind=kind, flow=flow, where=caller())
    return things[name]
