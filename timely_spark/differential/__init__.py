"""Incremental collections: operators on streams of changes, also in loops (differential dataflow).

- `collections`: `Collection`, the user's handle, and loop variables.
- `linear`: operators that treat each change independently, and `consolidate`.
- `joins`, `reductions`, `reducers`: operators that keep a trace of changes at partially ordered times.
- `arranged`: shared arrangements.
- `loops`: iteration.
- `outputs`: how changes leave the flow.
- `snapshots`: a collection at an epoch, from its changes.
- `trace`: changes and traces as columns.
"""

from __future__ import annotations

from timely_spark.differential.collections import Collection, Variable, collection
from timely_spark.differential.snapshots import snapshot
from timely_spark.differential.trace import DIFF, consolidate

__all__ = ["DIFF", "Collection", "Variable", "collection", "consolidate", "snapshot"]
