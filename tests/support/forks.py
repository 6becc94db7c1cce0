"""A process whose forks are Spark's Python processes: see `timely_spark.runtime.forks`."""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path

from timely_spark.runtime.forks import listening, run, serve, write_program


def forked_by(folder: Path) -> Path:
    """A program for `PYSPARK_PYTHON`, whose server is a fork of this process and ends with it.

    This process has imported everything, and has no threads yet.
    """
    with listening(str(folder / "forks")) as listener:
        end, alive = os.pipe()  # the writer is closed when this process ends
        if os.fork() == 0:
            os.close(alive)
            os.dup2(end, 0)
            sys.stdin = os.fdopen(0, closefd=False)
            try:
                run(serve(listener))
            except Exception:  # noqa: BLE001 - what called this function is not to see it
                traceback.print_exc()
            finally:
                os._exit(0)
        os.close(end)
    return write_program(folder).rename(folder / "forks-python")  # `configure` keeps a name of one's own
