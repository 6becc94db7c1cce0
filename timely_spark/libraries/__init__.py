"""Naiad's libraries (section 4), and those of other systems, each a module over collections and streams.

- `all_reduce`: arrays, reduced over all workers.
- `blocking`: pairs of records that agree in a key, for `entities`.
- `entities`: records that scored pairs connect, with ids that stay.
- `kafka`: topics that flows write, read back without repeats.
- `pregel`: vertex programs in supersteps, as in Pregel, GraphX and GraphFrames.

They are imported on first use, as `timely_spark.pregel`. Iterative MapReduce is a method of collections.
"""

from __future__ import annotations
