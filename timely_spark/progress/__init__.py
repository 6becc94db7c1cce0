"""What may still happen: which pointstamps could result in which, and what frontiers follow.

A location is a number; where it comes from in a dataflow is of no concern here. Pure: imports times (and
could import graph), nothing of Spark. Sources: Naiad sections 2.3 and 3.3; timely's
``progress/reachability``.
"""

from __future__ import annotations

from timely_spark.progress.reachability import Edge, Reachability
from timely_spark.progress.tracker import Tracker

__all__ = ("Edge", "Reachability", "Tracker")
