"""The compiler: from a graph to the physical plan that workers and the coordinator read.

`compile` decides which stages become vertices and which channels exchange; `plan` is the result;
`partitioning` derives the partitioning of each edge; a checkpoint has a plan's `identity` and `summary`.
"""

from __future__ import annotations

from timely_spark.compiler.compile import compile_plan
from timely_spark.compiler.plan import Node, Plan

__all__ = ["Node", "Plan", "compile_plan"]
