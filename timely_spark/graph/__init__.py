"""The logical graph: frozen stages, edges and loop contexts, checked when built. Imports only times."""

from __future__ import annotations

from timely_spark.graph.arguments import OnLimit, check_limit, find, frame_schema, refuse, whole
from timely_spark.graph.graph import (
    Edge,
    Graph,
    Kind,
    Monotone,
    Partition,
    Scope,
    Stage,
    caller,
    check_columns,
    names,
)
from timely_spark.graph.locate_errors import locate_errors
from timely_spark.graph.naming import Name, composed
from timely_spark.graph.operator import load_operators, operator
from timely_spark.graph.schema import SchemaLike, as_schema, as_table, check_given, check_names, describe
from timely_spark.graph.sql import identifier
from timely_spark.graph.suggest import Suggests
from timely_spark.graph.vertex import Context, Forward, Partitioner, Stateless, States, Vertex

__all__ = [
    "Context",
    "Edge",
    "Forward",
    "Graph",
    "Kind",
    "Monotone",
    "Name",
    "OnLimit",
    "Partition",
    "Partitioner",
    "SchemaLike",
    "Scope",
    "Stage",
    "Stateless",
    "States",
    "Suggests",
    "Vertex",
    "as_schema",
    "as_table",
    "caller",
    "check_columns",
    "check_given",
    "check_limit",
    "check_names",
    "composed",
    "describe",
    "find",
    "frame_schema",
    "identifier",
    "load_operators",
    "locate_errors",
    "names",
    "operator",
    "refuse",
    "whole",
]
