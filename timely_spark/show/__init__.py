"""A flow as text (`explain`) and as a drawing. Does not import `runtime`."""

from __future__ import annotations

from timely_spark.show.explain import explain
from timely_spark.show.mermaid import to_mermaid

__all__ = ["explain", "to_mermaid"]
