"""What a time is: timestamps, path summaries, and the frontiers (antichains) made of them.

A time is an epoch and one counter per loop around it; a path summary says what a path through the graph does
to times; an antichain holds the least of a set of times. Everything here is pure algebra and imports nothing
of the library but its errors.
Sources: Naiad section 2.1; timely's ``order``, ``progress/timestamp`` and ``progress/frontier``.
"""

from __future__ import annotations

from timely_spark.times.antichain import Antichain, MutableAntichain
from timely_spark.times.epochs import EPOCHS, as_epoch, is_whole
from timely_spark.times.laws import broken_law, only_epochs
from timely_spark.times.lexicographic import LEXICOGRAPHIC, Lexicographic, LexicographicSummary
from timely_spark.times.product import MAX, PRODUCT, NestedTimes, Summary, Time
from timely_spark.times.protocol import CompactingTimes, Ordered, PathSummary, Times, Timestamp

__all__ = (
    "EPOCHS",
    "LEXICOGRAPHIC",
    "MAX",
    "PRODUCT",
    "Antichain",
    "CompactingTimes",
    "Lexicographic",
    "LexicographicSummary",
    "MutableAntichain",
    "NestedTimes",
    "Ordered",
    "PathSummary",
    "Summary",
    "Time",
    "Times",
    "Timestamp",
    "as_epoch",
    "broken_law",
    "is_whole",
    "only_epochs",
)
