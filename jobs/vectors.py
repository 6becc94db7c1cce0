"""What the jobs over vectors have in common: labelled vectors from a file, and their arrival in epochs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import cli
import numpy as np
import pyspark

import timely_spark as ts

#: 150 irises of Fisher (1936), scaled to [-1, 1]: it comes with PySpark
IRISES = Path(pyspark.__file__).parent / "data" / "mllib" / "sample_multiclass_classification_data.txt"


def arguments(description: str | None) -> argparse.ArgumentParser:
    """A parser with the arguments that all jobs over vectors take."""
    parser = cli.described(description)
    parser.add_argument(
        "--data", type=Path, default=IRISES, metavar="FILE", help="vectors (default: PySpark's irises)"
    )
    parser.add_argument("--epochs", type=cli.positive, default=1, metavar="K", help="default: %(default)s")
    parser.add_argument("--workers", type=cli.positive, default=2, help="default: %(default)s")
    cli.progress(parser)
    return parser


def read(path: Path) -> tuple[list[str], np.ndarray[Any, Any]]:
    """The labels and vectors of a file in LIBSVM's format: ``label 1:value 2:value ...``."""
    labels, rows = [], []
    try:
        for line in path.read_text(encoding="utf-8").splitlines():
            if not (cells := line.split()):
                continue
            labels.append(cells[0])
            pairs = [cell.split(":") for cell in cells[1:]]
            rows.append({int(at) - 1: float(value) for at, value in pairs})
    except (OSError, ValueError) as error:
        message = f"{path} cannot be read: {error}"
        raise ts.TimelyError(message, hint="each line is 'label 1:value 2:value ...'.") from error
    if not rows or min(map(min, filter(None, rows)), default=-1) < 0:
        message = f"{path} has no vectors whose features are numbered from 1 up"
        raise ts.TimelyError(message, hint="each line is 'label 1:value 2:value ...'.")
    vectors = np.zeros((len(rows), 1 + max(max(row, default=0) for row in rows)))
    for place, row in enumerate(rows):
        vectors[place, list(row)] = list(row.values())
    if not np.isfinite(vectors).all():
        message = f"{path} has values that are not finite"
        raise ts.TimelyError(message, hint="leave these vectors out.")
    return labels, vectors


def run(flow: ts.Dataflow, records: dict[str, list[list[Any]]], args: argparse.Namespace) -> Any:
    """Send each input's records of each epoch; gives the output ``out``, when all epochs are complete."""
    spark = cli.session(flow.name, delta=False, verbose=args.verbose)
    handles = [(flow.handle(name), of) for name, of in records.items()]
    with flow.start(spark, workers=args.workers) as query:
        cli.watch_meanwhile(query, args)
        for epoch in range(args.epochs):
            for handle, of in handles:
                if epoch < len(of):
                    handle.send(of[epoch])
                handle.advance_to(epoch + 1)
        for handle, _ in handles:
            handle.close()
        query.process_all_available()
        return query.captured("out")
