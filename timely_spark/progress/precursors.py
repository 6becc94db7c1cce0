"""Precursor counts: how many active pointstamps could result in each one (Naiad section 2.3)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from timely_spark.progress.reachability import Reachability


def precursors(reachability: Reachability, active: Iterable[tuple[int, Any]]) -> dict[tuple[int, Any], int]:
    """For each active pointstamp (location, time), how many other active ones could result in it.

    Law: the number is 0 if and only if nothing else that is active could result in it: then it is in Naiad's
    frontier, and a notification may be delivered. The tracker keeps frontiers instead of these counts. So
    this function compares all pairs, which is slow: it is for showing a flow to people.

    >>> from timely_spark.progress import Arc
    >>> from timely_spark.times import PRODUCT, Time
    >>> one = PRODUCT.identity(0)
    >>> graph = Reachability(2, [Arc(0, 1, one, False)], identities=[one, one])
    >>> precursors(graph, [(0, Time(1)), (1, Time(0)), (1, Time(2))])
    {(0, Time(1)): 0, (1, Time(0)): 0, (1, Time(2)): 2}
    """
    stamps = list(active)
    return {
        (to, at): sum(
            any(
                (arrives := path.results_in(time)) is not None and arrives.less_equal(at)
                for path in reachability.summaries(to).get(location, ())
            )
            for location, time in stamps
            if (location, time) != (to, at)
        )
        for to, at in stamps
    }
