"""A flow as text and pictures: what was said, what it runs as, what a round can do. No `runtime`."""

from __future__ import annotations

from timely_spark.show.explain import explain
from timely_spark.show.mermaid import to_mermaid

__all__ = ["explain", "to_mermaid"]
