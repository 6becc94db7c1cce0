"""Sources whose tasks read files as columns and pack them at once, without Spark's rows in between."""

from __future__ import annotations
