"""Fetch the jars of Delta and Kafka's connector, and write an archive of the classes that Spark loads.

Later sessions find the jars in Ivy's cache, without a network. A JVM that is given the archive
(`-XX:SharedArchiveFile`) maps Spark's classes instead of loading and verifying some 20,000 of them: a session
with its first epoch starts in a third of the CPU time. A JVM that the archive does not fit ignores it.
"""

from __future__ import annotations

import os
import subprocess
import sys

# A small flow, so that the classes are those that a flow needs.
START = """
import tempfile
import pyarrow.compute as pc
import timely_spark as ts
from pyspark.sql import SparkSession

builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
spark = ts.configure(builder, delta=True, kafka=True).getOrCreate()
flow = ts.Dataflow("prepare")
numbers = flow.input("numbers", "n long")
counted = numbers.loop(lambda n: n.where(pc.field("n") < 3).select(n=pc.add(pc.field("n"), 1)))
with tempfile.TemporaryDirectory() as folder:
    counted.to_delta(folder + "/table")
    query = flow.start(spark)
    numbers.send([(1,)])
    query.wait_for()
    query.stop()
spark.stop()
"""


def main(archive: str) -> int:
    """Start one session with Delta and Kafka, and run a flow; show what it printed only if it failed.

    Args:
        archive: the file of the archive.

    Returns:
        The exit code: 0 when the jars and the archive are there.
    """
    print(
        "fetching Delta's and Kafka's jars, and archiving Spark's classes (once)",
        flush=True,
    )
    # In a process of its own, because Ivy writes its hundreds of lines straight to the JVM's standard error.
    # The run ends when the JVM does, which holds the pipes: it writes the archive when it exits.
    environment = os.environ | {
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_SUBMIT_OPTS": f"-XX:ArchiveClassesAtExit={archive} -Xlog:disable",
    }
    tried = subprocess.run(  # noqa: S603 - our own text, our own interpreter
        [sys.executable, "-c", START], env=environment, capture_output=True, text=True, check=False
    )
    if tried.returncode != 0:
        print(tried.stdout, tried.stderr, sep="\n", file=sys.stderr)
        print("Spark did not start with these jars: is Maven Central reachable?", file=sys.stderr)
    return tried.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
