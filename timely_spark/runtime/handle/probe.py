"""`Probe`: the frontier at one place of a running flow."""

from __future__ import annotations

from typing import Any, Protocol

from timely_spark.times import Antichain


class Observed(Protocol):
    """The part of a query that a probe reads."""

    def frontier(self, name: str | None = None) -> Any: ...  # noqa: D102
    def time(self, time: Any) -> Any: ...  # noqa: D102
    def wait_for(  # noqa: D102
        self, target: Any = None, *, epoch: int | None = None, timeout: float | None = None
    ) -> bool: ...


class Probe:
    """The frontier at a probe or output of a running flow (Naiad section 4.1; timely's probe)."""

    def __init__(self, query: Observed, name: str) -> None:
        self.query, self.name = query, name

    def frontier(self) -> Antichain[Any]:
        """The least times that may still appear; empty: complete."""
        found: Antichain[Any] = self.query.frontier(self.name)
        return found

    def less_than(self, time: Any) -> bool:
        """Whether a time strictly before `time` (an epoch, or a time of the flow) may still appear."""
        return self.frontier().less_than(self.query.time(time))

    def less_equal(self, time: Any) -> bool:
        """Whether `time`, or one before it, may still appear."""
        return self.frontier().less_equal(self.query.time(time))

    def wait_for(self, epoch: int | None = None, timeout: float | None = None) -> bool:
        """Wait until an epoch is complete here; see `Query.wait_for`."""
        return self.query.wait_for(self, epoch=epoch, timeout=timeout)
