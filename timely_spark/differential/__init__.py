"""Incremental collections: operators on streams of changes, also in loops (differential dataflow).

A function decorated with `operator(Collection)` is a method of `Collection`; every module of this folder is
found and imported here.

- `collections`: `Collection`, the user's handle, and loop variables.
- `linear`: operators that treat each change independently, and `consolidate`.
- `joins`, `reductions`: operators that keep a trace of changes at partially ordered times. `reduce` is the
  vertex of all reductions, `working` what it keeps in memory, and `reducers` what each computes.
- `sets`, `asof`, `windows`: reductions with a logic of their own; `upserts`: keyed state.
- `consolidation`: each time's changes consolidated, and transient records, which need it.
- `arranged`: shared arrangements; `imported`: those of other flows.
- `skew`: hot keys, which are spread over all workers; `broadcasts`: small sides, which all workers have.
- `loops`, `map_reduce`: iteration.
- `delta_queries`, `prefixes`: `wcoj`, joins of many relations at once.
- `outputs`, `lift`: how changes leave the flow.
- `snapshots`: a collection at an epoch, from its changes.
- `trace`: changes and traces as columns.
"""

from __future__ import annotations

from timely_spark.differential.collections import Collection, CollectionVariable
from timely_spark.differential.delta_queries import wcoj
from timely_spark.differential.snapshots import snapshot
from timely_spark.differential.trace import DIFF
from timely_spark.graph import load_operators

__all__ = ["DIFF", "Collection", "CollectionVariable", "snapshot", "wcoj"]

load_operators(__name__, __path__)
