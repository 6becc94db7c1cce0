"""What the user said: frozen stages, edges and loop contexts, checked when built. Imports only times."""

from __future__ import annotations

from timely_spark.graph.arguments import frame_schema, known, whole
from timely_spark.graph.graph import (
    Edge,
    Graph,
    Kind,
    Partition,
    Refines,
    Scope,
    Stage,
    caller,
    check_columns,
    names,
)
from timely_spark.graph.naming import Name, composed
from timely_spark.graph.schema import SchemaLike, as_schema, as_table, check_given, check_names, describe
from timely_spark.graph.sql import identifier
from timely_spark.graph.suggest import Suggests
from timely_spark.graph.told import told
from timely_spark.graph.vertex import Context, Forward, Stateless, Vertex

__all__ = [
    "Context",
    "Edge",
    "Forward",
    "Graph",
    "Kind",
    "Name",
    "Partition",
    "Refines",
    "SchemaLike",
    "Scope",
    "Stage",
    "Stateless",
    "Suggests",
    "Vertex",
    "as_schema",
    "as_table",
    "caller",
    "check_columns",
    "check_given",
    "check_names",
    "composed",
    "describe",
    "frame_schema",
    "identifier",
    "known",
    "names",
    "told",
    "whole",
]
