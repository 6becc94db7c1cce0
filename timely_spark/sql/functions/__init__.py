"""The functions of expressions, entered into the table when this folder is imported."""

from __future__ import annotations

from timely_spark.sql.functions import arithmetic, casts, comparison, strings

__all__ = ["arithmetic", "casts", "comparison", "strings"]
