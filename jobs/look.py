"""Look at a Delta table that a job has written: its columns, and the newest records of its epochs.

python jobs/look.py TABLE [--rows N]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import cli
from pyspark.sql import functions as f

from timely_spark.graph import identifier


def main() -> None:
    """Show it."""
    parser = cli.described(__doc__)
    parser.add_argument("table", type=delta_table)
    parser.add_argument("--rows", type=cli.positive, default=20, help="default: %(default)s")
    args = parser.parse_args()
    table = cli.session("look", verbose=args.verbose).read.format("delta").load(args.table)
    table.printSchema()
    # Spark orders by no map
    orders = [one.name for one in table.schema if "map<" not in one.dataType.simpleString()]
    if "epoch" not in table.columns:
        table.orderBy(*map(identifier, orders)).show(args.rows, truncate=60)  # what --current keeps
        return
    table.groupBy("epoch").agg(f.count("*").alias("records")).orderBy("epoch").show(args.rows)
    rest = [identifier(name) for name in orders if name != "epoch"]
    table.orderBy(f.desc("epoch"), *rest).show(args.rows, truncate=60)


def delta_table(text: str) -> str:
    """A Delta table: a directory with a log of Delta's."""
    if "://" not in text and not (Path(text) / "_delta_log").is_dir():
        message = f"{text!r} is not a Delta table: there is no {Path(text) / '_delta_log'}"
        raise argparse.ArgumentTypeError(message)
    return text


if __name__ == "__main__":
    cli.run(main)
