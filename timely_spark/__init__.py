"""Loops, logical time and completion in Spark Structured Streaming: Naiad's timely dataflow, in Python.

Where to begin; `help` of each name has an example:

- A flow: `Dataflow`; its inputs `Dataflow.files`, `delta`, `table`, `source` and `input`; `Dataflow.start`,
  which gives a `Query`.
- Records that only come: `Stream`, and `Stream.loop`. Records that come and go: `Stream.collection`,
  `Collection`, and `Collection.iterate`.
- Queries in SQL, recursion included: `sql`.
- Graphs: `graphs`, `pregel`; `maintain`, from a streaming DataFrame to a Delta table in one call.
- Outputs: `Stream.to_delta`, `to_files`, `to_kafka`, `subscribe`, `foreach_epoch`, `capture`.
- A running flow: `Query.watch`, `wait_for`, `ask`, `why`, `explain_row`; `inspect` of a checkpoint.
- Sessions: `configure` for a new one, `tune` for an existing one. Tests without Spark: `testing.run`.
- Expressions in Spark's SQL are texts, wherever a column is computed; `function` adds one to them.
- Operators of your own: `Vertex`, `ExternalVertex`; algorithms: `authors`.

Example:
    Epoch 0 has two words, and epoch 1 counts one of them again:

    >>> import timely_spark as ts
    >>> flow = ts.Dataflow("counts")
    >>> _ = flow.input("words", "word string").group_by("word").count().capture("counts")
    >>> ts.testing.run(flow, {"words": [["a", "b"], ["a"]]})["counts"].rows()
    {0: [('a', 1), ('b', 1)], 1: [('a', 2)]}

The folders, for who changes the library:

- `times`: timestamps, path summaries and antichains.
- `graph`: the logical graph: stages, edges, loop contexts, vertices.
- `sql`: expressions in Spark's SQL.
- `progress`: could-result-in, and the progress tracker.
- `state`: keyed state: arrangements, hashing, repartitioning.
- `compiler`: from the graph to the physical plan.
- `worker`: one worker's round.
- `coordinator`: the driver's part of each round.
- `operators`: the operators of streams.
- `streams`, `inputs`, `dataflow`: the user's handles.
- `differential`: incremental collections.
- `authors`: what algorithms are made of.
- `queries`: SQL over collections.
- `graphs`: graph algorithms on collections of edges.
- `libraries`: Pregel, AllReduce, and other models of computation, over collections and streams.
- `testing`: flows on simulated workers, without Spark.
- `show`: a flow as text and as a drawing.
- `runtime`: the only part that uses Spark.
- `demo`: a first flow to look at, by `python -m timely_spark demo`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from timely_spark.dataflow import Dataflow
from timely_spark.differential import Collection, snapshot, wcoj
from timely_spark.errors import TimelyError
from timely_spark.graph import Vertex
from timely_spark.input_streams import Input
from timely_spark.operators.event_time import every, sessions
from timely_spark.operators.exactly_once import once
from timely_spark.operators.outputs import Probe
from timely_spark.operators.pipe import ExternalVertex
from timely_spark.queries.sql import explain_sql, sql
from timely_spark.streams import Scope, Stream, Variable
from timely_spark.times import LEXICOGRAPHIC, PRODUCT, Time
from timely_spark.views import view

if TYPE_CHECKING:
    from timely_spark import authors, graphs, testing
    from timely_spark.change_events import debezium
    from timely_spark.libraries import kafka
    from timely_spark.libraries.all_reduce import all_reduce
    from timely_spark.libraries.blocking import blocking
    from timely_spark.libraries.entities import entities, stable_ids
    from timely_spark.libraries.pregel import pregel
    from timely_spark.maintained import maintain
    from timely_spark.runtime.handle.inspection import inspect
    from timely_spark.runtime.handle.query import Query
    from timely_spark.runtime.metrics import opentelemetry_metrics, progress_of, prometheus_metrics
    from timely_spark.runtime.session import configure, tune
    from timely_spark.sql.users import function

__version__ = "0.1.0"

__all__ = [
    "LEXICOGRAPHIC",
    "PRODUCT",
    "Collection",
    "Dataflow",
    "ExternalVertex",
    "Input",
    "Probe",
    "Query",
    "Scope",
    "Stream",
    "Time",
    "TimelyError",
    "Variable",
    "Vertex",
    "all_reduce",
    "authors",
    "blocking",
    "configure",
    "debezium",
    "entities",
    "every",
    "explain_sql",
    "function",
    "graphs",
    "inspect",
    "kafka",
    "maintain",
    "once",
    "opentelemetry_metrics",
    "pregel",
    "progress_of",
    "prometheus_metrics",
    "sessions",
    "snapshot",
    "sql",
    "stable_ids",
    "testing",
    "tune",
    "view",
    "wcoj",
]

#: The names that are imported on first use, by their modules.
_ON_FIRST_USE = {
    "Query": "runtime.handle.query",
    "all_reduce": "libraries.all_reduce",
    "blocking": "libraries.blocking",
    "configure": "runtime.session",
    "debezium": "change_events",
    "function": "sql.users",
    "inspect": "runtime.handle.inspection",
    "maintain": "maintained",
    "opentelemetry_metrics": "runtime.metrics",
    "entities": "libraries.entities",
    "stable_ids": "libraries.entities",
    "pregel": "libraries.pregel",
    "progress_of": "runtime.metrics",
    "prometheus_metrics": "runtime.metrics",
    "tune": "runtime.session",
}
#: The same of modules.
_MODULES = {"authors": "authors", "graphs": "graphs", "kafka": "libraries.kafka", "testing": "testing"}


def __dir__() -> list[str]:
    """The names of the API, without imported modules."""
    return [*__all__, "__version__"]


def __getattr__(name: str) -> Any:
    """Import algorithms, libraries, the simulator, and names that need Spark, on first use."""
    if name in _MODULES:
        return import_module(f"timely_spark.{_MODULES[name]}")
    if name in _ON_FIRST_USE:
        return getattr(import_module(f"timely_spark.{_ON_FIRST_USE[name]}"), name)
    msg = f"module 'timely_spark' has no attribute {name!r}"
    raise AttributeError(msg)
