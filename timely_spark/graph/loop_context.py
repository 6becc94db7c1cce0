"""Loop contexts: `Scope`, the root or a loop, inside which times have one counter more."""

from __future__ import annotations

from dataclasses import dataclass

from timely_spark.errors import Where
from timely_spark.graph.naming import Name


@dataclass(frozen=True, slots=True, eq=False)
class Scope:
    """A loop context, or the root. Times inside have one counter more than outside (Naiad section 2.1)."""

    #: None: the root
    title: Name | None
    parent: Scope | None
    #: the largest value of the loop counter; None: no limit
    limit: int | None
    where: Where
    #: what happens when the limit drops records: "return" (nothing), "warn" or "raise"
    on_limit: str = "return"

    @property
    def name(self) -> str:
        """The loop's full name, with the loops around it; empty for the root."""
        return self.title.full if self.title is not None else ""

    @property
    def depth(self) -> int:
        """How many loop counters a time has in this scope."""
        return 0 if self.parent is None else self.parent.depth + 1

    @property
    def path(self) -> tuple[Scope, ...]:
        """The scopes from the root to this one."""
        return (self,) if self.parent is None else (*self.parent.path, self)
