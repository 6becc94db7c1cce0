"""Stream operators: functions over the graph. Each adds a stage and returns its output.

A function decorated with `operator(Stream)` is a method of `Stream`; every module of this folder is found and
imported here. May import `streams` and the layers below it, and no Spark.
"""

from __future__ import annotations

from timely_spark.graph import load_operators

load_operators(__name__, __path__)
