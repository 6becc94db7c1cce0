"""Triggers: from the forms of `start` to the arguments of Spark's writer."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NoReturn

from timely_spark.graph import refuse

_UNIT = r"(?:(?:micro|milli)?second|minute|hour|day|week)s?"
_INTERVAL = re.compile(rf"(?:interval\s+)?(?:\d+(?:\.\d+)?\s+{_UNIT}\s*)+", re.IGNORECASE)
_HINT = 'None (always on), "available_now" (until nothing is left), or how often, such as "5 seconds".'


def trigger_of(trigger: Any) -> dict[str, Any]:
    """The arguments of Spark's `trigger`; empty: always on. Also accepts Spark's own arguments.

    >>> trigger_of("available_now"), trigger_of({"availableNow": True}), trigger_of("5 seconds")
    ({'availableNow': True}, {'availableNow': True}, {'processingTime': '5 seconds'})
    """
    if trigger is None:
        return {}
    if isinstance(trigger, str):
        word = _plain(trigger)
        return _named(trigger, word, True) if word in _KINDS else _named(trigger, "processingtime", trigger)  # noqa: FBT003 - as Spark says it
    if isinstance(trigger, Mapping) and len(trigger) == 1:
        ((key, value),) = trigger.items()
        return _named(trigger, _plain(str(key)), value)
    return _refused(trigger, "a text, or a mapping of one of Spark's kinds of trigger to its value,", _HINT)


def _named(trigger: object, kind: str, value: object) -> dict[str, Any]:
    if kind in _UNFIT:
        return _refused(trigger, "a trigger that runs loops to their end", f"{_UNFIT[kind]} {_HINT}")
    if kind == "availablenow":
        if value is not True:
            return _refused(trigger, "True", _HINT)
        return {"availableNow": True}
    if kind == "processingtime" and isinstance(value, str) and _INTERVAL.fullmatch(value.strip()):
        return {"processingTime": value.strip()}
    return _refused(trigger, "a number and a unit of time", _HINT)


def _refused(trigger: object, expected: str, hint: str) -> NoReturn:
    refuse(trigger, what="trigger", expected=expected, hint=hint)


def _plain(word: str) -> str:
    return re.sub(r"[\s_-]", "", word).lower()


#: Spark's triggers that cannot run a flow.
_UNFIT = {
    "once": "Spark's once is a single micro-batch, which may end in the middle of a loop.",
    "continuous": "Spark's continuous processing knows no stateful operator.",
    "realtime": "Spark's real-time mode knows no operator in Python.",
}
_KINDS = {"availablenow", *_UNFIT}
