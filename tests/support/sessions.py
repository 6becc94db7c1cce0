"""Settings of sessions that live for seconds."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

#: No code is made for queries that run once: that was a third of what the JVM did. Programs that are run as
#: users run them (pages, notebooks, jobs by spark-submit) have Spark's own settings.
SHORT = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.log.level": "ERROR",
}


def hasten() -> None:
    """Set the environment in which JVMs and Python start faster, where it has no such variables yet."""
    # Spark's Python processes import PySpark compiled, not from its zip (`conf/prepare.py`).
    if (lean := Path(sys.prefix) / "spark").is_dir():
        os.environ.setdefault("SPARK_HOME", str(lean))
    # Hundreds of short queries: compiling for a long run would take longer than they do (`conf/prepare.py`).
    os.environ.setdefault(
        "SPARK_SUBMIT_OPTS",
        "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=160m "
        "-XX:NewRatio=1 -XX:InitialRAMPercentage=50 "  # all of the heap at once, half of it for what is young
        f"-XX:SharedArchiveFile={Path(sys.prefix) / 'classes.jsa'} -Xlog:disable "
        f"-Djava.io.tmpdir={tempfile.gettempdir()}",
    )
    os.environ.setdefault("SPARK_LAUNCHER_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
