"""Scopes: the root, loops, and scopes with an inner time; inside, times have one coordinate more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from timely_spark.errors import Where
from timely_spark.graph.naming import Name
from timely_spark.times import PRODUCT, Times, refined


@dataclass(frozen=True, slots=True, eq=False)
class LoopContext:
    """The root, a loop context (Naiad section 2.1), or a scope with an inner time.

    Times inside have one coordinate more than outside: a loop's counter, or a value of the inner time's type.
    """

    #: None means the root
    title: Name | None
    parent: LoopContext | None
    #: the largest value of the loop counter; None means no limit
    limit: int | None
    where: Where
    #: what happens when the limit drops records: "return" (nothing), "warn" or "raise"
    on_limit: str = "return"
    #: the type of the inner time; None if the scope is a loop, or the root
    inner: type[Any] | None = None
    #: whether many iterations are a sign that it does not end; not if the counter rises from epoch to epoch
    watched: bool = True
    #: the kind of time of the root
    outermost: Times = PRODUCT

    @property
    def name(self) -> str:
        """The loop's full name, with the loops around it; empty for the root."""
        return self.title.full if self.title is not None else ""

    @property
    def depth(self) -> int:
        """How many loop counters a time has in this scope."""
        return 0 if self.parent is None else self.parent.depth + 1

    @property
    def times(self) -> Times:
        """The kind of time in this scope."""
        if self.parent is None:
            return self.outermost
        outside = self.parent.times
        return outside if self.inner is None else refined(outside, self.depth, self.inner)

    @property
    def in_loop(self) -> bool:
        """Whether the scope is a loop, or inside one."""
        return any(scope.inner is None for scope in self.path[1:])

    @property
    def noun(self) -> str:
        """The kind of the scope."""
        if self.inner is not None:
            return f"scope, inner times {self.inner.__name__}"
        return "loop" if self.limit is None else f"loop, at most {self.limit + 1} iterations"

    @property
    def titled(self) -> str:
        """The name of the scope and what it is, for drawings."""
        kind, comma, more = self.noun.partition(",")
        return f"{kind} {self.name}{comma}{more}"

    @property
    def path(self) -> tuple[LoopContext, ...]:
        """The scopes from the root to this one."""
        return (self,) if self.parent is None else (*self.parent.path, self)
