"""Fetch Delta's jars into Ivy's cache, so that every later session finds them without a network."""

from __future__ import annotations

import os
import subprocess
import sys

START = """
from delta import configure_spark_with_delta_pip
from pyspark.sql import SparkSession

builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
configure_spark_with_delta_pip(builder).getOrCreate().stop()
"""


def main() -> int:
    """Start one session with Delta; show what Ivy said only if it failed.

    Returns:
        The exit code: 0 when the jars are there.
    """
    print("fetching Delta's jars (once)", flush=True)
    # In a process of its own, because Ivy writes its hundreds of lines straight to the JVM's standard error.
    environment = os.environ | {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    tried = subprocess.run(  # noqa: S603 - our own text, our own interpreter
        [sys.executable, "-c", START], env=environment, capture_output=True, text=True, check=False
    )
    if tried.returncode != 0:
        print(tried.stdout, tried.stderr, sep="\n", file=sys.stderr)
        print("Delta's jars could not be fetched: is Maven Central reachable?", file=sys.stderr)
    return tried.returncode


if __name__ == "__main__":
    sys.exit(main())
