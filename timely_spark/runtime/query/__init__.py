"""The one streaming query: its operator, its feedback source, and the driver behind foreachBatch."""

from __future__ import annotations
