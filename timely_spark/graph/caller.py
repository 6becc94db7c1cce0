"""The user's line: where a step was made, and where a mistake was. In a text of SQL it has a column."""

from __future__ import annotations

import linecache
import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import FrameType
from typing import Any

from timely_spark.errors import Where

#: The folder of the package, as code objects name it: links are not followed.
PACKAGE = f"{Path(__file__).parents[1]}{os.sep}"
#: A function and its line: the file is the second part.
_LINE = re.compile(r"(.* \()(.*)(:\d+\))")
_PLACE: ContextVar[Where | None] = ContextVar("_PLACE", default=None)


def caller() -> Where:
    """The line of the user's code that called into the package, or the place that `placed` sets.

    Example:
        >>> from timely_spark.errors import GraphError
        >>> raise GraphError("peel: epsilon=-1", where=caller(), hint="give a number of at least 0.")
        Traceback (most recent call last):
        timely_spark.errors.GraphError: peel: epsilon=-1 (<doctest timely_spark.graph.caller.caller[1]>:1)
        Hint: give a number of at least 0.
    """
    if (place := _PLACE.get()) is not None:
        return place
    frame = _user_frame()
    return Where(_cell(frame.f_code.co_filename) or frame.f_code.co_filename, frame.f_lineno)


@contextmanager
def placed(where: Where | None) -> Iterator[None]:
    """Let `caller` be a place in a text of SQL; None leaves it as it is."""
    before = _PLACE.set(where or _PLACE.get())
    try:
        yield
    finally:
        _PLACE.reset(before)


def start_of_text(text: Any) -> Where:
    """Where in the user's program a text begins; the line of the call if the program computes the text."""
    where = caller()
    lines = linecache.getlines(where.file) or linecache.getlines(_user_frame().f_code.co_filename)
    source = "".join(lines)
    if where.column is not None or source.count(str(text)) != 1:
        return where
    return offset(Where(where.file, 1, 1), source, source.find(str(text)))


def offset(where: Where, text: str, start: int) -> Where:
    r"""The place of an offset in a text that begins at a place; this place itself if it has no column.

    >>> str(offset(Where("views.sql", 3, 8), "SELECT a,\n  b", 12))
    'views.sql:4:3'
    """
    if where.column is None:
        return where
    *before, last = text[:start].split("\n")
    return Where(where.file, where.line + len(before), len(last) + (1 if before else where.column))


def _user_frame() -> FrameType:
    """The innermost frame that runs code of the user's."""
    frame = sys._getframe(1)  # noqa: SLF001 - inspect.stack() reads every source file on the way
    while frame.f_back is not None and _ours(frame):
        frame = frame.f_back
    return frame


def _cell(file: str) -> str | None:
    """`In[3]` for the name under which IPython compiles a cell, which is not a file; None for others."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    name_of = getattr(getattr(shell, "compile", None), "format_code_name", None)
    cell = None if name_of is None else name_of(file)
    return None if cell is None else str(cell[1])


def with_cell(parts: Mapping[str, str | None]) -> dict[str, str | None]:
    """The parts of a `VertexError` of a worker, which knows no cells: with a function's line in its cell."""
    line = _LINE.fullmatch(parts.get("line") or "")
    cell = None if line is None else _cell(line[2])
    return dict(parts) if line is None or cell is None else {**parts, "line": f"{line[1]}{cell}{line[3]}"}


def _ours(frame: FrameType) -> bool:
    """Whether a frame runs code of the package, code that `dataclass` generated for it, or `functools`."""
    file, module = frame.f_code.co_filename, str(frame.f_globals.get("__name__"))
    generated = file == "<string>" and module.startswith("timely_spark.")
    return file.startswith(PACKAGE) or generated or module == "functools"
