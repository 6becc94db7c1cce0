"""`Begin`: the version or time from which a source is read; and the times in users' texts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

import pyarrow as pa

from timely_spark.graph import integer, refuse

#: The moment from which times are counted, and the unit of times in logs.
UNIX_EPOCH, MILLISECOND = datetime(1970, 1, 1, tzinfo=timezone.utc), timedelta(milliseconds=1)
_WITH_OFFSET, _WITHOUT = pa.timestamp("us", "UTC"), pa.timestamp("us")


@dataclass(frozen=True, slots=True)
class Begin:
    """The begin of a reader: a version, or the first one since a time; else all rows.

    Example:
        >>> Begin.of(None, "2026-11-22T08:00:00+01:00").moment.hour
        7
    """

    version: int | None
    time: str | None
    #: the time; the user's text is by the clock of the active session, else of this machine
    moment: datetime | None

    @classmethod
    def of(cls, version: int | None, time: str | None) -> Begin:
        """The beginning that `from_version` and `from_time` say; only one of them may be given."""
        if version is not None:
            version = integer("from_version", version, least=0)
        if time is None:
            return cls(version, None, None)
        if version is not None:
            refuse(time, what="from_time", expected="None beside from_version", hint="leave one of them out.")
        value: Any = time
        moment = read_time(value) if isinstance(value, str) else None
        if moment is None:
            hint = (
                'write from_time="2026-11-22 08:00:00", also with an offset, as "2026-11-22T08:00:00+01:00".'
            )
            refuse(value, what="from_time", expected="a time as text", hint=hint)
        return cls(None, time, moment)

    def options(self) -> Mapping[str, Any]:
        """The options of Spark's reader."""
        options = {"startingVersion": self.version, "startingTimestamp": self.time}
        return {option: value for option, value in options.items() if value is not None}


def read_time(text: str) -> datetime | None:
    """A time as Spark reads it; None if the text is not a time, or not always the same one, as "now" is."""
    if not re.match(r"\s*[+-]?\d{4}", text):
        return None
    try:
        from pyspark.sql import SparkSession
    except ImportError:
        session = None
    else:
        session = SparkSession.getActiveSession()
    if session is not None:
        from pyspark.sql import functions

        read_by_spark = functions.unix_micros(functions.lit(text).try_cast("timestamp"))
        row = session.sql("SELECT 1").select(read_by_spark).first()
        micros = None if row is None else row[0]
        return None if micros is None else UNIX_EPOCH + timedelta(microseconds=micros)
    for kind in (_WITH_OFFSET, _WITHOUT):
        with suppress(pa.ArrowInvalid):
            read: datetime = pa.scalar(text).cast(kind).as_py()
            return read.astimezone(timezone.utc)  # a time without an offset is of this machine
    return None
