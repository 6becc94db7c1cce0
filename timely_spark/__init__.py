"""timely_spark: Naiad's timely dataflow on Spark Structured Streaming: loops, logical time, completion.

- `times`: what a time is.
- `graph`: what the user said.
- `progress`: what may still happen.
- `worker`: one worker's round, and the driver's turn between rounds.
- `operators`: what streams can do.
- `dataflow`: the handles a user holds.
- `differential`: incremental collections.
- `graphs`: graph algorithms on collections of edges.
- `testing`: the whole of it on simulated workers, without Spark.
- `show`: a flow as text and pictures.
- `runtime`: the only part that knows Spark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from timely_spark import graphs, testing
from timely_spark.dataflow import Dataflow, Input
from timely_spark.differential import Collection, snapshot
from timely_spark.errors import TimelyError
from timely_spark.graph import Vertex
from timely_spark.operators import Probe
from timely_spark.operators.once import once
from timely_spark.streams import Scope, Stream, Variable
from timely_spark.times import LEXICOGRAPHIC, PRODUCT, Time

if TYPE_CHECKING:
    from timely_spark.runtime.handle import Query
    from timely_spark.runtime.session import configure, tune

__version__ = "0.1.0"

__all__ = [
    "LEXICOGRAPHIC",
    "PRODUCT",
    "Collection",
    "Dataflow",
    "Input",
    "Probe",
    "Query",
    "Scope",
    "Stream",
    "Time",
    "TimelyError",
    "Variable",
    "Vertex",
    "configure",
    "graphs",
    "once",
    "snapshot",
    "testing",
    "tune",
]


def __dir__() -> list[str]:
    """The names of the API; modules that are imported on the way are no part of it."""
    return [*__all__, "__version__"]


def __getattr__(name: str) -> Any:
    """What needs Spark is imported when it is first used."""
    if name in {"configure", "tune"}:
        from timely_spark.runtime import session

        return getattr(session, name)
    if name == "Query":
        from timely_spark.runtime.handle import Query

        return Query
    msg = f"module 'timely_spark' has no attribute {name!r}"
    raise AttributeError(msg)
