"""The logical graph: frozen stages, edges and loop contexts, checked when built. Imports only times."""

from __future__ import annotations

from timely_spark.graph.arguments import (
    OnLimit,
    absolute,
    check_columns,
    check_limit,
    find,
    frame_schema,
    integer,
    names,
    nanoseconds,
    no_items,
    no_truth_value,
    path_text,
    refuse,
    seconds,
    with_checked_arguments,
    word,
)
from timely_spark.graph.caller import caller, offset, placed, start_of_text, with_cell
from timely_spark.graph.expressions import (
    Expression,
    check_quotients,
    columns_in,
    never_fails,
    project,
    projected,
)
from timely_spark.graph.graph import LogicalGraph
from timely_spark.graph.locate_errors import locate_errors
from timely_spark.graph.loop_context import LoopContext
from timely_spark.graph.naming import Name, composed, is_text
from timely_spark.graph.operator import load_operators, operator
from timely_spark.graph.projection import ColumnProjection, SqlExpression
from timely_spark.graph.quoting import identifier
from timely_spark.graph.records import as_table
from timely_spark.graph.schema import (
    SchemaLike,
    as_schema,
    check_names,
    check_reserved,
    columns_of,
    describe,
)
from timely_spark.graph.stage import Edge, FoundKeys, Kind, Monotone, Partition, Skew, Stage, Way
from timely_spark.graph.suggest import Several, Suggests
from timely_spark.graph.vertex import Context, Forward, Partitioner, Stateless, States, Vertex

__all__ = [
    "ColumnProjection",
    "Context",
    "Edge",
    "Expression",
    "Forward",
    "FoundKeys",
    "Kind",
    "LogicalGraph",
    "LoopContext",
    "Monotone",
    "Name",
    "OnLimit",
    "Partition",
    "Partitioner",
    "SchemaLike",
    "Several",
    "Skew",
    "SqlExpression",
    "Stage",
    "Stateless",
    "States",
    "Suggests",
    "Vertex",
    "Way",
    "absolute",
    "as_schema",
    "as_table",
    "caller",
    "check_columns",
    "check_limit",
    "check_names",
    "check_quotients",
    "check_reserved",
    "columns_in",
    "columns_of",
    "composed",
    "describe",
    "find",
    "frame_schema",
    "identifier",
    "integer",
    "is_text",
    "load_operators",
    "locate_errors",
    "names",
    "nanoseconds",
    "never_fails",
    "no_items",
    "no_truth_value",
    "offset",
    "operator",
    "path_text",
    "placed",
    "project",
    "projected",
    "refuse",
    "seconds",
    "start_of_text",
    "with_cell",
    "with_checked_arguments",
    "word",
]
