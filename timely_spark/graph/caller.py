"""The line of the user's code: where a step was made, and where a mistake was."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import FrameType

from timely_spark.errors import Where

#: The folder of the package, as code objects name it: links are not followed.
PACKAGE = f"{Path(__file__).parents[1]}{os.sep}"


def caller() -> Where:
    """The line of the user's code that called into the package."""
    frame = sys._getframe(1)  # noqa: SLF001 - inspect.stack() reads every source file on the way
    while frame.f_back is not None and _ours(frame):
        frame = frame.f_back
    return Where(frame.f_code.co_filename, frame.f_lineno)


def _ours(frame: FrameType) -> bool:
    """Whether a frame runs code of the package, code that `dataclass` generated for it, or `functools`."""
    file, module = frame.f_code.co_filename, str(frame.f_globals.get("__name__"))
    generated = file == "<string>" and module.startswith("timely_spark.")
    return file.startswith(PACKAGE) or generated or module == "functools"
