"""Timestamps, path summaries, and frontiers (antichains).

A time is an epoch and one counter per surrounding loop, or inner time per scope; a path summary maps times
along a path of the graph; an antichain has the minimal elements of a set of times. Pure: imports errors only.
Sources: Naiad section 2.1; timely's ``order``, ``progress/timestamp`` and ``progress/frontier``.
"""

from __future__ import annotations

from timely_spark.times.epochs import EPOCHS, as_epoch, is_integer
from timely_spark.times.frontier import Antichain, MutableAntichain
from timely_spark.times.laws import broken_law, only_epochs
from timely_spark.times.lexicographic import LEXICOGRAPHIC, Lexicographic
from timely_spark.times.product import MAX, PRODUCT, NestedTimes, Summary, Time
from timely_spark.times.refined import Descending, RefinedTime, RefinedTimes, broken_inner_law, refined
from timely_spark.times.timestamp import CompactingTimes, InnerTime, Ordered, PathSummary, Times, Timestamp

__all__ = (
    "EPOCHS",
    "LEXICOGRAPHIC",
    "MAX",
    "PRODUCT",
    "Antichain",
    "CompactingTimes",
    "Descending",
    "InnerTime",
    "Lexicographic",
    "MutableAntichain",
    "NestedTimes",
    "Ordered",
    "PathSummary",
    "RefinedTime",
    "RefinedTimes",
    "Summary",
    "Time",
    "Times",
    "Timestamp",
    "as_epoch",
    "broken_inner_law",
    "broken_law",
    "is_integer",
    "only_epochs",
    "refined",
)
