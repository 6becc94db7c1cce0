"""Incremental collections: changes in, changes out, in loops too (differential dataflow).

- `collections`: the handle a user holds, `Collection`, and loop variables.
- `linear`: what treats each change by itself, and `consolidate`.
- `joins`, `reductions`, `reducers`: what keeps a history, at partially ordered times.
- `arranged`: a history that many operators share.
- `loops`: iteration.
- `outputs`: how changes leave the flow.
- `snapshots`: a collection as it was, out of its changes.
- `trace`: changes and histories as columns.
"""

from __future__ import annotations

from timely_spark.differential.collections import Collection, Variable, collection
from timely_spark.differential.snapshots import snapshot
from timely_spark.differential.trace import DIFF, consolidate

__all__ = ["DIFF", "Collection", "Variable", "collection", "consolidate", "snapshot"]
