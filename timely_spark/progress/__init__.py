"""Progress: the could-result-in relation, and the tracker of frontiers.

A location is a number; the compiler assigns numbers to vertices. Pure: imports times only. Sources: Naiad
sections 2.3 and 3.3; timely's ``progress/reachability``.
"""

from __future__ import annotations

from timely_spark.progress.precursors import precursors
from timely_spark.progress.reachability import Arc, Reachability
from timely_spark.progress.tracker import Tracker

__all__ = ("Arc", "Reachability", "Tracker", "precursors")
