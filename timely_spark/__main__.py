"""The command line: `python -m timely_spark status CHECKPOINT`, and `--version`."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

from timely_spark import __version__
from timely_spark.errors import TimelyError
from timely_spark.runtime.handle.status import Status

#: Before each answer of `--watch` on a terminal: home, and clear to the end.
_CLEAR = "\x1b[H\x1b[J"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command and gives the exit code.

    Example:
        >>> main(["status", "/no/such/checkpoint"])
        1
    """
    parser = argparse.ArgumentParser(prog="timely_spark", description="Look at timely dataflows on Spark.")
    parser.add_argument("--version", action="version", version=f"timely_spark {__version__}")
    commands = parser.add_subparsers(dest="command", required=True)
    status = commands.add_parser(
        "status",
        help="what a checkpoint's flow is doing, and what holds its oldest epoch back",
        description="Reads a checkpoint, of a running flow or not; needs neither Spark nor the flow's code.",
    )
    status.add_argument("checkpoint", help="the directory (or URI) given to start()")
    status.add_argument("--json", action="store_true", help="print JSON")
    status.add_argument(
        "--watch",
        nargs="?",
        type=_seconds,
        const=2.0,
        metavar="SECONDS",
        help="look again every so many seconds (2), until interrupted",
    )
    given = parser.parse_args(arguments)
    if given.watch is None:
        return _status(given)
    try:
        while True:
            print(_CLEAR if sys.stdout.isatty() else "", end="")  # noqa: T201 - a command
            _status(given)
            sys.stdout.flush()
            time.sleep(given.watch)
    except KeyboardInterrupt:
        return 0


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        message = f"{text!r} is no number of seconds above 0"
        raise argparse.ArgumentTypeError(message)
    return seconds


def _status(given: argparse.Namespace) -> int:
    try:
        found = Status.of(given.checkpoint)
    except TimelyError as error:
        print(error, file=sys.stderr)  # noqa: T201
        return 1
    except Exception as error:  # noqa: BLE001 - whatever half a file leads to: a command shows no traceback
        print(f"{given.checkpoint} is damaged: {type(error).__name__}: {error}", file=sys.stderr)  # noqa: T201
        return 1
    print(found.json() if given.json else found)  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
