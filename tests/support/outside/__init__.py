"""Other systems' own tests of SQL: `python -m tests.support.outside SYSTEM PLACE [PATTERN ...]`.

- `epochs`: queries over tables whose rows arrive in random epochs; some are deleted and sent again.
- `cases`: a file's queries, compared after the last epoch, and counts of what came of them.
- `spark`: Spark's `sql-tests`, whose `results/*.sql.out` have queries with their answers.
- `duck`: files whose answers DuckDB computes: sqllogictest files (`logic`), and the queries of `tpcds`.

A place is a folder, or an archive of `tests/oracle/outside`. For each query that is refused or differs
it prints why, and at the end counts: by file, as `counts.txt` there has them, and in all.
"""

from __future__ import annotations
