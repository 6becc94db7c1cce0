"""The functions of expressions, entered into the table when this folder is imported, with all its modules."""

from __future__ import annotations

from timely_spark.graph import load_operators

load_operators(__name__, __path__)
