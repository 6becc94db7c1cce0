"""How many functions of the engine something calls: a price that no machine's speed changes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import timely_spark as ts

PACKAGE = str(Path(ts.__file__).parent)
#: What only simulates is none of the engine.
SIMULATES = tuple(f"{PACKAGE}/{name}.py" for name in ("testing", "schedules", "simulated"))


def calls(run: Callable[[], object]) -> int:
    """The calls of functions of the engine, without comprehensions, which newer Pythons do not call."""
    count = 0

    def called(frame: FrameType, event: str, _: object) -> None:
        nonlocal count
        code = frame.f_code
        engine = code.co_filename.startswith(PACKAGE) and not code.co_filename.startswith(SIMULATES)
        count += event == "call" and engine and not code.co_name.startswith("<")

    sys.setprofile(called)
    try:
        run()
    finally:
        sys.setprofile(None)
    return count
