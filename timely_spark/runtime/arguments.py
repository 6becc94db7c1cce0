"""Arguments of a start that are neither numbers nor triggers: taken as they are, or refused by name."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, NoReturn

from timely_spark.errors import BadArgument
from timely_spark.graph import caller


def check_arguments(*, session: Any, checkpoint: Any, name: Any, sources: Any, record: Any) -> None:
    """Checks what kinds of thing were given; None stands for the default of each.

    Raises:
        BadArgument: one of them is something else.
    """
    if session is not None and not hasattr(session, "readStream"):
        _refuse("session", session, "a SparkSession", "start(spark, checkpoint=...).")
    for what, place in (("checkpoint", checkpoint), ("record", record)):
        if place is not None and (not isinstance(place, str | os.PathLike) or not os.fspath(place)):
            _refuse(what, place, "a path or URI", f'start({what}="/folder").')
    if name is not None and (not isinstance(name, str) or not name):
        _refuse("name", name, "a text", "leave it out for the flow's name.")
    if sources is not None and not isinstance(sources, Mapping):
        _refuse("sources", sources, "a mapping of names to DataFrames", 'start(sources={"name": frame}).')


def _refuse(what: str, value: object, expected: str, hint: str) -> NoReturn:
    raise BadArgument.kind(value, what=what, expected=expected, where=caller(), hint=hint)
