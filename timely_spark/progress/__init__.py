"""Progress: the could-result-in relation, and the trackers of frontiers, flat or scope by scope.

A location is a number; the compiler assigns numbers to vertices. Pure: imports times only. Sources: Naiad
sections 2.3 and 3.3; timely's ``progress/reachability``.
"""

from __future__ import annotations

from timely_spark.progress.operate import Operate, Operator, Progress
from timely_spark.progress.reachability import Edge, Reachability
from timely_spark.progress.scopes import Route, Scopes
from timely_spark.progress.subgraph import OUTSIDE, Connection, Subgraph
from timely_spark.progress.tracker import Tracker

__all__ = (
    "OUTSIDE",
    "Connection",
    "Edge",
    "Operate",
    "Operator",
    "Progress",
    "Reachability",
    "Route",
    "Scopes",
    "Subgraph",
    "Tracker",
)
