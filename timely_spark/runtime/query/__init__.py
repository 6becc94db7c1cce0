"""The one streaming query: its operator, its source, and the driver behind foreachBatch."""

from __future__ import annotations
