"""Other systems' own tests of SQL, from a checkout: `python -m tests.support.outside SYSTEM FOLDER`.

- `epochs`: queries over tables whose rows arrive in random epochs; some are deleted and sent again.
- `cases`: a file's queries, compared after the last epoch, and counts of what came of them.
- `spark`: Spark's `sql-tests`, whose `results/*.sql.out` have queries with their answers.
- `duck`: files whose answers DuckDB computes: sqllogictest files (`logic`), and the queries of `tpcds`.

It prints for each query that is refused or differs why, and counts. Nothing of theirs is kept here.
"""

from __future__ import annotations
