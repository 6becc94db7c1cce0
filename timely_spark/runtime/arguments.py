"""Checks of the arguments of a start, other than numbers; and triggers as Spark's writer takes them."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from timely_spark.graph import is_text, refuse

_UNIT = r"(?:(?:micro|milli)?second|minute|hour|day|week)s?"
_INTERVAL = re.compile(rf"(?:interval\s+)?(?:\d+(?:\.\d+)?\s+{_UNIT}\s*)+", re.IGNORECASE)
_TRIGGERS = (
    'give None (always on), "available_now" (until nothing is left), or how often, such as "5 seconds".'
)
#: Spark's triggers that cannot run a flow.
_UNFIT = {
    "once": "Spark's once is a single micro-batch, which may end in the middle of a loop.",
    "continuous": "Spark's continuous processing knows no stateful operator.",
    "realtime": "Spark's real-time mode knows no operator in Python.",
}


def check_arguments(
    *,
    session: Any,
    checkpoint: Any,
    name: Any,
    sources: Any,
    record: Any,
    log_to: Any,
    new_steps: Any,
) -> None:
    """Check the kinds of a start's arguments; None stands for an argument's default."""
    if session is not None:
        check_session(session, "call start(spark, checkpoint=...).")
    for argument, place in (("checkpoint", checkpoint), ("record", record), ("log_to", log_to)):
        if place is not None and (not isinstance(place, str | os.PathLike) or not os.fspath(place)):
            refuse(place, what=argument, expected="a path or URI", hint=f'write start({argument}="/folder").')
    if name is not None and not is_text(name):
        refuse(name, what="name", expected="a text", hint="leave it out for the flow's name.")
    if new_steps is not None and not (isinstance(new_steps, str) and new_steps == "empty"):
        hint = 'leave it out; or write new_steps="empty", to start new steps without the past.'
        refuse(new_steps, what="new_steps", expected='None or "empty"', hint=hint)
    if sources is not None and not (isinstance(sources, Mapping) and all(map(is_text, sources))):
        hint = 'write start(sources={"name": frame}).'
        refuse(sources, what="sources", expected="a mapping of names to DataFrames", hint=hint)


def check_session(session: Any, hint: str) -> None:
    """Check that an argument is a session, not its class or its builder."""
    if isinstance(session, type) or not hasattr(session, "readStream"):
        refuse(session, what="session", expected="a SparkSession", hint=hint)


def trigger_of(trigger: Any) -> dict[str, Any]:
    """The arguments of Spark's `trigger`; none if the flow is always on. Also accepts Spark's own arguments.

    >>> trigger_of("available_now"), trigger_of({"availableNow": True}), trigger_of("5 seconds")
    ({'availableNow': True}, {'availableNow': True}, {'processingTime': '5 seconds'})
    """
    if trigger is None:
        return {}
    named: Any = trigger
    if isinstance(trigger, str):
        word = _plain(trigger)
        named = {word: True} if word in {"availablenow", *_UNFIT} else {"processingTime": trigger}
    if not isinstance(named, Mapping) or len(named) != 1:
        expected = "a text, or a mapping of one of Spark's kinds of trigger to its value,"
        return refuse(trigger, what="trigger", expected=expected, hint=_TRIGGERS)
    ((key, value),) = named.items()
    kind = _plain(str(key))
    if kind in _UNFIT:
        hint = f"{_UNFIT[kind]} {_TRIGGERS}"
        return refuse(trigger, what="trigger", expected="a trigger that runs loops to their end", hint=hint)
    if kind == "availablenow" and value is True:
        return {"availableNow": True}
    if kind == "processingtime" and isinstance(value, str) and _INTERVAL.fullmatch(value.strip()):
        return {"processingTime": value.strip()}
    expected = "True" if kind == "availablenow" else "a number and a unit of time"
    return refuse(trigger, what="trigger", expected=expected, hint=_TRIGGERS)


def _plain(word: str) -> str:
    return re.sub(r"[\s_-]", "", word).lower()
