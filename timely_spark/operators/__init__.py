"""Stream operators as functions over the graph: each adds a stage and returns its output.

They are also the methods of `Stream`. May import `state` and the layers below it, and no Spark.
"""

from __future__ import annotations

from timely_spark.operators.aggregate import Grouped, aggregate, group_by
from timely_spark.operators.custom import add_vertex, binary, binary_notify, unary, unary_notify
from timely_spark.operators.expire import expire
from timely_spark.operators.finalise import finalise_graph
from timely_spark.operators.join import join
from timely_spark.operators.loop import check_limit, enter, leave, loop
from timely_spark.operators.monotone import distinct, max, min, settle
from timely_spark.operators.output_vertex import Output, Watch
from timely_spark.operators.outputs import (
    OutputSpec,
    Probe,
    capture,
    foreach_epoch,
    inspect,
    probe,
    subscribe,
    to_delta,
    to_files,
    to_memory,
)
from timely_spark.operators.route import broadcast, concat, delay, exchange
from timely_spark.operators.rows import Branches, branch, flat_map, map, map_batches, select, where

__all__ = [
    "Branches",
    "Grouped",
    "Output",
    "OutputSpec",
    "Probe",
    "Watch",
    "add_vertex",
    "aggregate",
    "binary",
    "binary_notify",
    "branch",
    "broadcast",
    "capture",
    "check_limit",
    "concat",
    "delay",
    "distinct",
    "enter",
    "exchange",
    "expire",
    "finalise_graph",
    "flat_map",
    "foreach_epoch",
    "group_by",
    "inspect",
    "join",
    "leave",
    "loop",
    "map",
    "map_batches",
    "max",
    "min",
    "probe",
    "select",
    "settle",
    "subscribe",
    "to_delta",
    "to_files",
    "to_memory",
    "unary",
    "unary_notify",
    "where",
]
