"""Look at a Delta table that a job has written: its columns, its size per epoch, and the newest records.

python jobs/look.py TABLE [--rows N]
"""

from __future__ import annotations

import argparse

import cli
from pyspark.sql import functions as f


def main() -> None:
    """Show it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("table", type=cli.directory)
    parser.add_argument("--rows", type=cli.positive, default=20, help="default: %(default)s")
    args = parser.parse_args()
    table = cli.session("look").read.format("delta").load(args.table)
    table.printSchema()
    table.groupBy("epoch").agg(f.count("*").alias("records")).orderBy("epoch").show(args.rows)
    table.orderBy(f.desc("epoch"), *table.columns[1:]).show(args.rows, truncate=60)


if __name__ == "__main__":
    cli.run(main)
