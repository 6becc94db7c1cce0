"""`QueryProbe`: the frontier at one place of a running flow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from timely_spark.times import Antichain, Timestamp

if TYPE_CHECKING:
    from timely_spark.methods import Query


class QueryProbe:
    """The frontier at a probe or output of a running flow (Naiad section 4.1; timely's probe)."""

    def __init__(self, query: Query, name: str) -> None:
        self.query, self.name = query, name

    def frontier(self) -> Antichain[Any]:
        """The least times that may still appear; none if it is complete.

        Example:
            >>> query.probe("log").frontier()
            Antichain([Time(1)])
        """
        frontier: Antichain[Any] = self.query.frontier(self.name)
        return frontier

    def less_than(self, time: Timestamp) -> bool:
        """Whether a time strictly before `time` (an epoch, or a time of the flow) may still appear.

        Example:
            >>> query.probe("log").less_than(2)
            True
        """
        return self.frontier().less_than(self.query.time(time))

    def less_equal(self, time: Timestamp) -> bool:
        """Whether `time`, or one before it, may still appear.

        Example:
            >>> query.probe("log").less_equal(0), query.probe("log").less_equal(1)
            (False, True)
        """
        return self.frontier().less_equal(self.query.time(time))

    def wait_for(self, epoch: int | None = None, timeout: float | None = None) -> bool:
        """Wait until an epoch is complete here; see `Query.wait_for`.

        Example:
            >>> query.probe("log").wait_for(epoch=0)
            True
        """
        return self.query.wait_for(self, epoch=epoch, timeout=timeout)
