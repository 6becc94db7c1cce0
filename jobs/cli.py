"""What the jobs have in common: arguments, the session, progress on the console, an exit code."""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import timely_spark as ts
from timely_spark.errors import without_stack
from timely_spark.runtime.errors import BadFile
from timely_spark.runtime.handle.interrupts import wait_in_a_thread
from timely_spark.runtime.session import quietly
from timely_spark.show.table import counted

#: arguments that name what a job reads, and what it writes
_READ, _WRITTEN = ("edges", "posts", "follows", "records", "input"), ("output", "current", "checkpoint")


class Parser(argparse.ArgumentParser):
    """A parser that also checks arguments against each other: no place may be read and written, or twice."""

    def parse_known_args(self, *arguments: Any, **options: Any) -> Any:
        """Parse, and check the places."""
        args, rest = super().parse_known_args(*arguments, **options)
        if not rest:
            self._check_places(vars(args))
        return args, rest

    def _check_places(self, args: dict[str, Any]) -> None:
        read, written = (
            {name: place for name in names if (place := _local(args.get(name))) is not None}
            for names in (_READ, _WRITTEN)
        )
        for name, place in written.items():
            if place.exists() and not place.is_dir() and not isinstance(args[name], Path):
                self.error(f"argument --{name}: {args[name]!r} is a file, no directory")
            for other, there in {**read, **written}.items():
                if other != name and (there == place or there in place.parents):
                    what = f"--{name} {args[name]!r}" + (" is" if there == place else " is inside of")
                    self.error(f"{what} --{other} {args[other]!r}: give each a directory of its own")


def _local(place: Any) -> Path | None:
    """A directory of this machine; None: a URI, a table of a catalog, or nothing."""
    text = str(place)
    if place is None or "://" in text or _in_catalog(text):
        return None
    return Path(text).resolve()


def described(description: str | None) -> argparse.ArgumentParser:
    """A parser with the argument that all jobs take."""
    program, name, text = Path(sys.argv[0]).resolve(), None, description or ""
    if program.parent.name == "jobs" and not (program.parents[1] / "pyproject.toml").exists():  # a wheel's
        name = f"timely-spark job {program.stem}"
        text = text.replace(f"python jobs/{program.name}", name)
    parser = Parser(prog=name, description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--verbose", action="store_true", help="show what Spark logs, with its progress bars")
    return parser


def arguments(description: str, source: str) -> argparse.ArgumentParser:
    """A parser with the arguments that all jobs over files take; `source` names the input's."""
    parser = described(description)
    parser.add_argument(
        f"--{source}", required=True, type=directory, metavar="DIR", help="directory of input files"
    )
    delivery(parser)
    parser.add_argument(
        "--files-per-epoch",
        type=positive,
        metavar="N",
        help="at most so many new files (of Delta: versions) an epoch",
    )
    parser.add_argument(
        "--follow", action="store_true", help="keep running, and read new files as they arrive"
    )
    return parser


def delivery(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that all jobs with a checkpoint take."""
    parser.add_argument("--output", required=True, type=table, metavar="DIR", help="the Delta table to write")
    parser.add_argument(
        "--checkpoint", required=True, metavar="DIR", help="where the job continues after a stop"
    )
    parser.add_argument("--workers", type=positive, default=2, help="workers (default: %(default)s)")
    progress(parser)


def progress(parser: argparse.ArgumentParser) -> None:
    """Add the argument of all jobs that run a query."""
    parser.add_argument(
        "--progress", action="store_true", help="show how far the query is: epochs, rounds, iterations"
    )


def table(text: str) -> str:
    """A Delta table: a directory, or by its dots the name of one in a catalog."""
    return text if "/" in text or _in_catalog(text) else f"./{text}"


def _in_catalog(text: str) -> bool:
    """Whether it names a table by its parts; `.` and `..` are directories."""
    return "/" not in text and "." in text.strip(".")


def read_table(spark: SparkSession, table: str) -> DataFrame:
    """What is in a Delta table."""
    return spark.read.format("delta").load(table) if "/" in table else spark.table(table)


def directory(text: str) -> str:
    """An existing directory."""
    if "://" not in text and not Path(text).is_dir():
        message = f"{text!r} is not a directory"
        raise argparse.ArgumentTypeError(message)
    return text


def files(
    flow: ts.Dataflow,
    name: str,
    path: str,
    columns: dict[str, str],
    *,
    format: str,
    most: int | None,
    defaults: dict[str, int] | None = None,
) -> ts.Stream:
    """The rows of files, with the newest file's columns; of a folder without files, with `columns`."""
    options: dict[str, Any] = {"format": format, "files_per_epoch": most, "defaults": defaults}
    try:
        return flow.files(name, path, **options)
    except BadFile:  # none; of a damaged file this is the error again
        return flow.files(name, path, schema=columns, **options)


def positive(text: str) -> int:
    """An integer of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        message = f"{text!r} is not a number of at least 1"
        raise argparse.ArgumentTypeError(message)
    return int(text)


def session(name: str, *, delta: bool = True, verbose: bool = False) -> SparkSession:
    """A tuned session; under spark-submit, the one that its properties made."""
    builder = SparkSession.builder.appName(name)
    builder = builder.config("spark.ui.showConsoleProgress", str(verbose).lower())
    if "SPARK_ENV_LOADED" in os.environ:  # by spark-submit, whose JVM has begun to log
        builder = builder if verbose else builder.config("spark.log.level", "ERROR")
    else:  # all runs on this machine, which needs no name then
        builder = builder.config("spark.driver.host", "127.0.0.1")
        builder = builder.config("spark.driver.bindAddress", "127.0.0.1")
    began = time.monotonic()
    say(f"{name}: starting Spark")
    builder = ts.configure(builder, delta=delta, quiet=not verbose)  # which may say that it fetches jars
    with nullcontext() if verbose else quietly():
        # in a thread: a JVM whose start is interrupted in PySpark does not end with this process
        spark = wait_in_a_thread(builder.getOrCreate)
        spark.createDataFrame([], "any int")  # makes the session the active one of this thread, too
    took = time.monotonic() - began
    say(f"{name}: Spark {spark.version} has started after {took:.0f} s; a first epoch takes seconds more")
    return spark


def say(text: str) -> None:
    """Say on standard error what the job does: standard output has its answers alone."""
    print(text, file=sys.stderr, flush=True)


def run(job: Callable[[], None]) -> None:
    """Run a job; on an error print it and leave with exit code 1, for all that was done is kept.

    The exit code of an error before Spark has started is 2, as that of wrong arguments.
    """
    try:
        job()
    except (ts.TimelyError, OSError) as error:
        say(f"error: {error}")
        raise SystemExit(1 if SparkSession.getActiveSession() is not None else 2) from None
    except (PySparkException, Py4JError) as error:  # as of a path that Spark cannot read
        say(f"error: {without_stack(error)}")
        raise SystemExit(1) from None
    except KeyboardInterrupt:
        say("stopped; the checkpoint, if one was given, has all that was done")
        raise SystemExit(130) from None


def watch(query: ts.Query, args: argparse.Namespace) -> None:
    """If that is asked for, show how far a query is until it ends."""
    if args.progress:
        query.watch()
        if query.is_active:  # an interrupt is for the job
            raise KeyboardInterrupt


def watch_meanwhile(query: ts.Query, args: argparse.Namespace) -> None:
    """If that is asked for, show how far a query is while the job goes on."""
    if args.progress:
        threading.Thread(target=query.watch, daemon=True).start()


def report(query: ts.Query, args: argparse.Namespace) -> None:
    """Print a line for each epoch as it completes, until the query ends."""
    watch(query, args)
    if getattr(args, "follow", False):
        say(f"it runs until Ctrl-C; `python -m timely_spark status {args.checkpoint}` shows how far it is")
    last = ""
    for done in query.epochs():
        line = f"epoch {done.epoch}: {counted(done.rounds, 'round')}, {done.milliseconds} ms"
        if line != last:  # as of an epoch that is complete at several outputs
            print(line, flush=True)
        last = line
    query.await_termination()
    if not last:
        print("no new input")
