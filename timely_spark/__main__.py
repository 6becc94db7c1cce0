"""The command line, `timely-spark`: `demo`, `job`, `run`, `status`, `inspect`, `skip`, `ui`, `prepare`."""

from __future__ import annotations

import argparse
import ast
import contextlib
import errno
import os
import shlex
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import pyarrow as pa

from timely_spark import __version__
from timely_spark.captured import as_pandas
from timely_spark.demo import flow as demo
from timely_spark.errors import BadArgument, TimelyError, with_hint
from timely_spark.graph import seconds
from timely_spark.graph.arguments import nearest
from timely_spark.pipeline import Pipeline, checkpoints_in, read_pipeline
from timely_spark.runtime.handle.console import Server
from timely_spark.runtime.handle.inspection import inspect
from timely_spark.runtime.handle.interrupts import wait_in_a_thread
from timely_spark.runtime.handle.query import Query
from timely_spark.runtime.handle.status import Status
from timely_spark.runtime.prepare import place
from timely_spark.runtime.session import configure, quietly, require_spark
from timely_spark.runtime.sources.skipped import skip
from timely_spark.show.table import counted

#: Before each answer of `--watch` on a terminal: home, and clear to the end.
_CLEAR = "\x1b[H\x1b[J"
#: The errors that mean: the address is right, and the port is not.
_PORT = {errno.EADDRINUSE, errno.EACCES}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command and gives the exit code: 2 without arguments, after saying which commands there are.

    Example:
        >>> main(["status", "/no/such/checkpoint"])
        1
    """
    try:
        try:
            parser, words = _parser(), sys.argv[1:] if arguments is None else arguments
            if not words:
                parser.print_help(sys.stderr)
                return 2
            options = parser.parse_args(words)
            return int(options.run(options))
        except TimelyError as error:
            return _failed(_message(error))
        except KeyboardInterrupt:
            return 128 + signal.SIGINT
        finally:
            sys.stdout.flush()
    except BrokenPipeError:  # the reader, as `head`, has read enough; Python flushes once more when it ends
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE


def _parser() -> argparse.ArgumentParser:
    typed = "timely-spark" if Path(sys.argv[0]).name == "timely-spark" else "python -m timely_spark"
    parser = argparse.ArgumentParser(
        prog=typed, description="Run timely dataflows on Spark, and look at them."
    )
    parser.add_argument("--version", action="version", version=f"timely_spark {__version__}")
    commands = parser.add_subparsers(dest="command", required=True)
    status = commands.add_parser(
        "status",
        help="what a checkpoint's flow is doing, and what holds its oldest epoch back",
        description="Reads a checkpoint, of a running flow or not; needs neither Spark nor the flow's code.",
    )
    status.set_defaults(run=_watched)
    status.add_argument("checkpoint", help="the directory (or URI) given to start(), or to run")
    status.add_argument("--json", action="store_true", help="print JSON")
    status.add_argument(
        "--expand",
        nargs="?",
        action="append",
        metavar="NAME",
        help="show the steps of a box; without a name of all boxes",
    )
    status.add_argument(
        "--watch",
        nargs="?",
        type=_duration,
        const=2.0,
        metavar="SECONDS",
        help="look again every so many seconds (2), until interrupted",
    )
    query = commands.add_parser(
        "run",
        aliases=["sql"],
        help="keep the views of a folder or of a file, in SQL and in Python, in Delta tables",
        description="Runs the CREATE TABLE, CREATE VIEW and CREATE MATERIALIZED VIEW of files of SQL, and "
        "the functions with @view of files of Python; started again it continues from the checkpoint.",
    )
    query.set_defaults(run=_ran)
    query.add_argument("path", help="the folder, or one file")
    query.add_argument("--checkpoint", metavar="DIR", help="where the state is kept, from which it continues")
    query.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="the value of a parameter"
    )
    query.add_argument("--explain", action="store_true", help="print the plan, and start nothing")
    query.add_argument("--follow", action="store_true", help="keep running, and read what arrives")
    query.add_argument("--workers", type=int, metavar="N", help="workers (by default the session's cores)")
    look = commands.add_parser(
        "inspect",
        help="the retained rounds of a checkpoint; with --step a step's state at one of them",
        description="Reads a checkpoint, of a running flow or not; needs neither Spark nor the flow's code.",
    )
    look.set_defaults(run=partial(_shown, text=_inspected))
    look.add_argument("checkpoint", help="the directory (or URI) given to start(), or to run")
    look.add_argument("--round", type=int, metavar="N", help="a batch (the newest)")
    look.add_argument("--step", metavar="NAME", help="the step whose state and records in flight are shown")
    look.add_argument("--limit", type=int, default=20, metavar="ROWS", help="rows of a table (%(default)s)")
    left_out = commands.add_parser(
        "skip",
        help="let a flow that has failed go on without a file, an entry or a Delta version",
        description=(
            "Decides that an input's file, entry of a handle or version of a Delta table is never read: one "
            "that a micro-batch cannot read. It counts as skipped in status. The flow must not be running."
        ),
    )
    left_out.set_defaults(run=partial(_shown, text=_skipped))
    left_out.add_argument("checkpoint", help="the directory (or URI) given to start(), or to run")
    which = left_out.add_mutually_exclusive_group(required=True)
    which.add_argument("--file", metavar="NAME", help="the path of a file, or the end of its path")
    which.add_argument("--entry", type=int, metavar="N", help="the number of an entry of a handle")
    which.add_argument("--version", type=int, metavar="N", help="the version of a Delta table")
    left_out.add_argument("--input", metavar="NAME", help="the input, if it is not the only one")
    serve = commands.add_parser(
        "ui",
        help="the console, a local page of checkpoints: state, lateness, drawing, epochs, loops; live",
        description="Reads checkpoints, of running flows or not; needs neither Spark nor the flows' code.",
    )
    serve.set_defaults(run=_served)
    serve.add_argument("checkpoint", nargs="+", help="the directories (or URIs) given to start(), or to run")
    serve.add_argument("--address", default="127.0.0.1", help="others need the URL's token (%(default)s)")
    serve.add_argument("--port", type=int, default=8265, help="0: any that is free (%(default)s)")
    serve.add_argument(
        "--slo",
        type=_duration,
        metavar="DURATION",
        help="red where an answer is due for longer, as 2s or 500ms",
    )
    shown = commands.add_parser(
        "demo",
        help="loops over a real graph: the imports of the Python packages on this machine",
        description="Streams what pyspark imports, and what that imports, through two loops; needs Spark.",
    )
    shown.set_defaults(run=_demonstrated)
    demo.add_arguments(shown)
    job = commands.add_parser(
        "job",
        help="one of the programs that are ready to run; without a name, their list",
        description="Runs a program of the folder jobs: its own --help says what it reads and writes.",
        usage=f"{typed} job [NAME [ARGUMENT...]]",
    )
    job.set_defaults(run=_worked)
    job.add_argument("name", nargs="?", help="the program")
    job.add_argument("arguments", nargs=argparse.REMAINDER, help="its arguments")
    ready = commands.add_parser(
        "prepare",
        help="once per machine: let Spark's sessions on it start sooner",
        description=(
            "Archives the classes that Spark loads, and unpacks and compiles the zip that its Python "
            "processes import, in ~/.local/share/timely_spark; takes about a minute, and 250 MB. Sessions "
            "that timely_spark.configure makes on this machine use them. To be repeated after an upgrade of "
            "Java, Python or Spark."
        ),
    )
    for name, of in (("delta", "Delta Lake"), ("kafka", "Spark's Kafka connector")):
        ready.add_argument(
            f"--{name}", dest="packages", action="append_const", const=name, default=[],
            help=f"also the jars of {of}, which a session would resolve and copy at its start",
        )  # fmt: skip
    ready.set_defaults(run=_prepared)
    return parser


def _failed(text: object) -> int:
    print(text, file=sys.stderr)  # noqa: T201 - a command
    return 1


def _ran(options: argparse.Namespace) -> int:
    try:
        return _run_pipeline(options)
    except TimelyError as error:
        place = None if error.where is None else Path(error.where.file).resolve()
        if place is None or not place.is_relative_to(Path(options.path).resolve()):
            raise
        return _failed(error)  # a line of the pipeline leads to it


def _run_pipeline(options: argparse.Namespace) -> int:
    if wrong := [one for one in options.set if "=" not in one]:
        return _failed(f"--set {wrong[0]}: write --set name=value")
    try:
        pipeline = read_pipeline(options.path, dict(one.split("=", 1) for one in options.set))
    except OSError as error:
        if any(frame.f_code.co_name == "<module>" for frame, _ in traceback.walk_tb(error.__traceback__)):
            raise  # a program of the folder's
        hint = "give a folder of files of SQL and Python, or one such file."
        return _failed(with_hint(f"run {error.filename}: {error.strerror}", hint))
    except SyntaxError as error:  # in a file of Python
        return _failed("".join(traceback.format_exception_only(error)).rstrip())
    if options.explain:
        print(pipeline.explain(options.checkpoint))  # noqa: T201
        return 0
    if options.checkpoint is None:
        return _failed("--checkpoint DIR: say where the state is kept")
    require_spark()
    from pyspark.sql import SparkSession

    name = Path(options.path).resolve().stem
    builder = SparkSession.builder.appName(name).config("spark.log.level", "ERROR")
    kafka = any(one.format == "kafka" for one in pipeline.tables)
    print(f"{name}: starting Spark; a first epoch takes seconds more", file=sys.stderr, flush=True)  # noqa: T201
    builder = configure(builder, delta=True, kafka=kafka)  # which may say that it fetches jars
    # in a thread: a JVM whose start is interrupted in PySpark does not end with this process
    queries = wait_in_a_thread(partial(_started, pipeline, builder, name, options))
    with contextlib.ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(len(queries)))
        for running in queries:
            stack.enter_context(running)
        stack.enter_context(contextlib.suppress(KeyboardInterrupt))
        for future in [pool.submit(_epochs, running) for running in queries]:
            future.result()
    for name, (table, _) in pipeline.outputs.items():
        print(f"{name}: {table}")  # noqa: T201
    return 0


def _started(pipeline: Pipeline, builder: Any, name: str, options: argparse.Namespace) -> list[Query]:
    """The queries of a pipeline, in a new session."""
    with quietly():
        spark = builder.getOrCreate()
    return pipeline.start(
        spark,
        checkpoint=options.checkpoint,
        name=name,
        tell=partial(print, flush=True),
        workers=options.workers,
        trigger=None if options.follow else "available_now",
    )


def _epochs(running: Query) -> None:
    """Print the epochs of a query until it ends."""
    newest = -1
    for done in running.epochs():
        if done.epoch > newest:  # it comes once for each output
            print(f"epoch {done.epoch}: {done.milliseconds} ms", flush=True)  # noqa: T201
            newest = done.epoch
    running.await_termination()
    if newest < 0:
        print(f"{running.name}: no new input", flush=True)  # noqa: T201


def _jobs() -> dict[str, Path]:
    """The programs of the folder jobs, which a wheel installs beside the package, by their names."""
    sources = Path(__file__).parents[1] / "jobs"
    paths = list[Path]()
    if (sources / "cli.py").is_file():
        paths = [*sources.glob("*.py")]
    else:
        with contextlib.suppress(metadata.PackageNotFoundError):  # it is in a zip
            files = metadata.files("timely-spark") or []
            paths = [Path(str(one.locate())) for one in files if one.match("*/timely_spark/jobs/*.py")]
    return {path.stem: path for path in sorted(paths) if "__main__" in path.read_text(encoding="utf-8")}


def _worked(options: argparse.Namespace) -> int:
    jobs = _jobs()
    if options.name is None:
        docs = (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) for path in jobs.values())
        for name, doc in zip(jobs, docs, strict=True):
            print(f"{name:22}{(doc or '').partition(chr(10))[0]}")  # noqa: T201
        return 0
    if (path := jobs.get(options.name)) is not None:
        sys.stdout.flush()
        os.execv(sys.executable, [sys.executable, str(path), *options.arguments])  # noqa: S606 - our own
    meant = nearest(options.name, jobs) or f"one of {', '.join(jobs)}"
    return _failed(with_hint(f"job {options.name!r}: there is no such program", f"did you mean {meant}?"))


def _served(options: argparse.Namespace) -> int:
    checkpoints = [one for folder in options.checkpoint for one in checkpoints_in(folder)]
    try:
        server = Server(checkpoints, address=options.address, port=options.port, slo=options.slo)
    except (OSError, OverflowError, UnicodeError) as error:
        hint = "choose another --address."
        if isinstance(error, OverflowError) or getattr(error, "errno", None) in _PORT:
            hint = "choose another --port; 0 takes one that is free."
        return _failed(with_hint(f"cannot listen at {options.address}:{options.port}: {error}", hint))
    print(f"{server.url}    (Ctrl-C ends it)", flush=True)  # noqa: T201
    with server, contextlib.suppress(KeyboardInterrupt):
        server.serve_forever()
    return 0


def _prepared(options: argparse.Namespace) -> int:
    try:
        require_spark()
        ready = place()
        ready.make(options.packages)
    except OSError as error:
        return _failed(error)
    text = f"""{ready.folder} is ready: timely_spark.configure uses it.
For spark-submit on this machine:
  export SPARK_HOME={shlex.quote(str(ready.home))}
  export SPARK_SUBMIT_OPTS={shlex.quote(ready.java_options)}"""
    print(text)  # noqa: T201
    return 0


def _demonstrated(options: argparse.Namespace) -> int:
    try:
        demo.main(options)
    except KeyboardInterrupt:
        return 130
    return 0


def _message(error: TimelyError) -> str:
    """An error for a command line, where no line of a program leads to it."""
    return error.message if error.hint is None else with_hint(error.message, error.hint)


def _duration(text: str) -> float:
    try:
        return seconds("duration", text if text[-1:].isalpha() else f"{text} s", above=True)
    except BadArgument:
        message = f"{text!r} is not a number of seconds above 0"
        raise argparse.ArgumentTypeError(message) from None


def _inspected(options: argparse.Namespace) -> str:
    look = inspect(options.checkpoint)
    if options.step is None and options.round is None:
        return f"{look}\n{_rows(look.rounds(), options.limit)}"
    at = look.at(options.round)
    if options.step is None:
        tables = {"pending": at.pending(), "messages in flight": at.messages(), "state": at.sizes()}
    else:
        tables = {"records in flight": at.records(options.step), **at.state(options.step)}
    shown = (
        f"{name}  ({counted(table.num_rows, 'row')})"
        + f"\n{_rows(table, options.limit)}" * bool(table.num_rows)
        for name, table in tables.items()
    )
    return "\n".join([str(at), *shown])


def _rows(table: pa.Table, limit: int) -> str:
    return str(as_pandas(table.slice(max(table.num_rows - limit, 0))).to_string(index=False))


def _skipped(options: argparse.Namespace) -> str:
    return skip(
        options.checkpoint,
        file=options.file,
        entry=options.entry,
        version=options.version,
        source=options.input,
    )


def _status(options: argparse.Namespace) -> str:
    expand = False if options.expand is None else True if None in options.expand else options.expand
    status = Status.of(options.checkpoint, expand=expand)
    return status.json() if options.json else str(status)


def _watched(options: argparse.Namespace) -> int:
    if options.watch is None:
        return _shown(options, _status)
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            print(_CLEAR if sys.stdout.isatty() else "", end="")  # noqa: T201 - a command
            _shown(options, _status)
            sys.stdout.flush()
            time.sleep(options.watch)
    return 0


def _shown(options: argparse.Namespace, text: Callable[[argparse.Namespace], str]) -> int:
    try:
        options.checkpoint, *others = checkpoints = checkpoints_in(options.checkpoint)
        if others:
            msg = f"there are the checkpoints of {len(checkpoints)} flows"
            return _failed(with_hint(msg, f"give one of them: {', '.join(checkpoints)}."))
        shown = text(options)
    except TimelyError as error:
        return _failed(_message(error))
    except Exception as error:  # noqa: BLE001 - whatever half a file leads to: a command shows no traceback
        return _failed(f"{options.checkpoint} is damaged: {type(error).__name__}: {error}")
    print(shown)  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
