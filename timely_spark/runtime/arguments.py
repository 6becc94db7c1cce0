"""Checks of the arguments of a start and of questions, other than numbers and triggers."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from timely_spark.graph import refuse


def check_arguments(
    *, session: Any, checkpoint: Any, name: Any, sources: Any, record: Any, log_to: Any = None
) -> None:
    """Check the kinds of a start's arguments; None stands for an argument's default."""
    if session is not None and not hasattr(session, "readStream"):
        refuse(session, what="session", expected="a SparkSession", hint="start(spark, checkpoint=...).")
    for argument, place in (("checkpoint", checkpoint), ("record", record), ("log_to", log_to)):
        if place is not None and (not isinstance(place, str | os.PathLike) or not os.fspath(place)):
            refuse(place, what=argument, expected="a path or URI", hint=f'start({argument}="/folder").')
    if name is not None and (not isinstance(name, str) or not name):
        refuse(name, what="name", expected="a text", hint="leave it out for the flow's name.")
    if sources is not None and not isinstance(sources, Mapping):
        refuse(
            sources,
            what="sources",
            expected="a mapping of names to DataFrames",
            hint='start(sources={"name": frame}).',
        )
