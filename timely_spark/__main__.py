"""The command line: `python -m timely_spark status CHECKPOINT`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command and gives the exit code.

    Example:
        >>> main(["status", "/no/such/checkpoint"])
        1
    """
    parser = argparse.ArgumentParser(prog="timely_spark", description="Look at timely dataflows on Spark.")
    commands = parser.add_subparsers(dest="command", required=True)
    status = commands.add_parser(
        "status",
        help="what a checkpoint's flow is doing, and what holds its oldest epoch back",
        description="Reads a checkpoint, of a running flow or not; needs neither Spark nor the flow's code.",
    )
    status.add_argument("checkpoint", help="the directory (or URI) given to start()")
    status.add_argument("--json", action="store_true", help="print JSON")
    return _status(parser.parse_args(arguments))


def _status(given: argparse.Namespace) -> int:
    from timely_spark.errors import TimelyError
    from timely_spark.runtime.status import Status

    try:
        found = Status.of(given.checkpoint)
    except TimelyError as error:
        print(error, file=sys.stderr)  # noqa: T201 - a command
        return 1
    print(found.json() if given.json else found)  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
