"""The operators of streams, as functions over the graph: each adds one stage and returns its output.

They are the methods of `Stream` too. May import the worker's vectorised parts, nothing of Spark.
"""

from __future__ import annotations

from timely_spark.operators.aggregate import Grouped, aggregate, group_by
from timely_spark.operators.custom import add_vertex, binary, binary_notify, unary, unary_notify
from timely_spark.operators.join import join
from timely_spark.operators.least import distinct, max, min, settle
from timely_spark.operators.output import Output, Watch
from timely_spark.operators.route import broadcast, concat, delay, exchange
from timely_spark.operators.rows import Branches, branch, flat_map, map, map_batches, select, where
from timely_spark.operators.provisional import settle_graph

__all__ = [
    "Branches",
    "Grouped",
    "Output",
    "Watch",
    "add_vertex",
    "aggregate",
    "binary",
    "binary_notify",
    "branch",
    "broadcast",
    "concat",
    "delay",
    "distinct",
    "exchange",
    "flat_map",
    "group_by",
    "join",
    "map",
    "map_batches",
    "max",
    "min",
    "select",
    "settle",
    "settle_graph",
    "unary",
    "unary_notify",
    "where",
]
