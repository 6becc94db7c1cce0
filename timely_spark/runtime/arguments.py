"""Checks of the arguments of a start, other than numbers and triggers."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, NoReturn

from timely_spark.errors import BadArgument
from timely_spark.graph import caller


def check_arguments(*, session: Any, checkpoint: Any, name: Any, sources: Any, record: Any) -> None:
    """Check the kinds of a start's arguments; None stands for an argument's default.

    Raises:
        BadArgument: an argument is of another kind.
    """
    if session is not None and not hasattr(session, "readStream"):
        _refuse("session", session, "a SparkSession", "start(spark, checkpoint=...).")
    for argument, place in (("checkpoint", checkpoint), ("record", record)):
        if place is not None and (not isinstance(place, str | os.PathLike) or not os.fspath(place)):
            _refuse(argument, place, "a path or URI", f'start({argument}="/folder").')
    if name is not None and (not isinstance(name, str) or not name):
        _refuse("name", name, "a text", "leave it out for the flow's name.")
    if sources is not None and not isinstance(sources, Mapping):
        _refuse("sources", sources, "a mapping of names to DataFrames", 'start(sources={"name": frame}).')


def _refuse(argument: str, value: object, expected: str, hint: str) -> NoReturn:
    raise BadArgument.kind(value, what=argument, expected=expected, where=caller(), hint=hint)
