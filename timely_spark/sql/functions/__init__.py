"""The functions of expressions, entered into the table when this folder is imported."""

from __future__ import annotations

from timely_spark.sql.functions import (
    arithmetic,
    casts,
    codes,
    collections,
    comparison,
    dates,
    digests,
    documents,
    formats,
    hashes,
    maths,
    printed,
    strings,
)

__all__ = [
    "arithmetic",
    "casts",
    "codes",
    "collections",
    "comparison",
    "dates",
    "digests",
    "documents",
    "formats",
    "hashes",
    "maths",
    "printed",
    "strings",
]
