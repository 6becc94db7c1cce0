"""Keyed state: hashing and equality of keys, arrangements, their bytes, and repartitioning when rescaled.

Operators, collections and workers build on it. It knows graphs and times, and only Arrow.
"""

from __future__ import annotations

from timely_spark.state.arrangement import Arrangement

__all__ = ["Arrangement"]
