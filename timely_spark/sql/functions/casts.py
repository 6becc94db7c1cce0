"""CAST and TRY_CAST."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from timely_spark.sql.registry import Failures, Value, function
from timely_spark.sql.types import name_of


def _no_value(failures: Failures, rows: Any, to: pa.DataType, what: str) -> None:
    failures.at(rows, f"{what} is not {name_of(to)}", "use try_cast, which gives null there.")


def _cast(a: Value, *, result: pa.DataType, failures: Failures) -> Any:
    """The values of one type as those of another."""
    return a.cast(result)


function("cast")(_cast)
function("try_cast", tries=True)(_cast)
