"""The examples of a running query's methods, which are one program on Spark."""

from __future__ import annotations

from pathlib import Path

#: the modules of `timely_spark/runtime/handle` whose examples go on with that of `Query`
MODULES = ("query", "probe", "questions", "reasons", "display", "pointstamps")


def of_running_query(path: Path) -> bool:
    """Whether a file's examples are parts of the program, and cannot run alone.

    >>> (
    ...     of_running_query(Path("timely_spark/runtime/handle/probe.py")),
    ...     of_running_query(Path("tests/probe.py")),
    ... )
    (True, False)
    """
    return path.parent.name == "handle" and path.stem in MODULES and path.suffix == ".py"
