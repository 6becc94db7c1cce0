"""`JournaledSource`: what an input reads that this package reads itself, in tasks or in the driver."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

import pyarrow.compute as pc

from timely_spark.compiler.pushdown import Needed
from timely_spark.errors import Where

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: what each source of a flow reads, by its name
SourceFrames: TypeAlias = "Mapping[str, DataFrame | JournaledSource]"


@dataclass(frozen=True, kw_only=True)
class JournaledSource(ABC):
    """The origin of the records of an input.

    Law: the records between two offsets are the same in every process, whenever they are read. The offsets
    of an epoch are durable before anything of it is released.

    Args:
        columns: the columns that the flow reads.
        condition: true of all records that the flow reads; None if unknown.
        tasks: how many tasks run at once.
    """

    columns: Sequence[str] = ()
    condition: pc.Expression | None = None
    tasks: int = 1

    @property
    @abstractmethod
    def name(self) -> str:
        """The input's name."""

    @property
    @abstractmethod
    def where(self) -> Where:
        """The user's line."""

    @property
    def watched(self) -> str | None:
        """A local folder in which something changes when records arrive; None if there is none."""
        return None

    def watch(self, wake: Callable[[], None]) -> Callable[[], None]:
        """Call `wake` when records may have arrived, unless `watched` does; returns what ends the watch."""
        return _nothing

    @abstractmethod
    def check_exists(self) -> None:
        """Check that there is something to read."""

    def bind(self, checkpoint: str, read: Needed, tasks: int) -> JournaledSource:
        """The source for a run: what of it the flow reads, and in how many tasks."""
        return replace(self, columns=read.columns, condition=read.condition, tasks=tasks)


def _nothing() -> None:
    """End no watch."""
