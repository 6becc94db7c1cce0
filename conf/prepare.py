"""Fetch Delta's and Kafka's jars, archive the classes that Spark loads, and make a SPARK_HOME of links.

Later sessions find the jars in Ivy's cache, without a network.

No class of a jar is loaded before the jar has a checksum of `conf/jars.sha256`. After a change of versions
the message has the lines to add, once somebody has looked where the jars come from.

Archive and SPARK_HOME are those of `python -m timely_spark prepare` (`timely_spark/runtime/prepare.py`), but
for the jars.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterable
from pathlib import Path

from timely_spark.runtime.prepare import archive, link

#: As `sha256sum` writes them.
CHECKSUMS = Path(__file__).with_name("jars.sha256")

# The first session only fetches the jars, and loads no class of them. The second runs a small flow, so that
# the archive has the classes that a flow needs.
START = """
import runpy, sys, tempfile
from importlib.metadata import version
import pyarrow.compute as pc
import timely_spark as ts
from pyspark.sql import SparkSession

def builder():
    return SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")

delta = "io.delta:delta-spark_4.2_2.13:" + version("delta-spark")
spark = ts.configure(builder(), kafka=True, extra_packages=[delta]).getOrCreate()
runpy.run_path(sys.argv[1])["verify"](spark.conf.get("spark.jars").split(","))
spark.stop()

spark = ts.configure(builder(), delta=True, kafka=True).getOrCreate()
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


def verify(jars: Iterable[str]) -> None:
    """Check that each jar has a checksum of the list.

    Args:
        jars: paths, or URIs of files.

    Raises:
        RuntimeError: one has another; such jars are deleted.
    """
    listed = {line.split()[0] for line in CHECKSUMS.read_text(encoding="utf-8").splitlines()}
    paths = [Path(jar.removeprefix("file:")) for jar in jars]
    found = {jar: hashlib.sha256(jar.read_bytes()).hexdigest() for jar in paths}
    if other := [jar for jar, checksum in found.items() if checksum not in listed]:
        for jar in other:
            jar.unlink()
        lines = [f"{found[jar]}  {jar.name}" for jar in other]
        message = "these jars are not those of conf/jars.sha256, and were deleted:\n" + "\n".join(lines)
        raise RuntimeError(message)


def main(classes: str, home: str) -> int:
    """Start one session with Delta and Kafka, and run a flow; show what it printed only if it failed.

    Args:
        classes: the file of the archive.
        home: the folder of the SPARK_HOME.

    Returns:
        The exit code: 0 when the jars and the archive are there.
    """
    print(
        "fetching Delta's and Kafka's jars, and archiving Spark's classes (once)",
        flush=True,
    )
    # Ivy writes its hundreds of lines straight to the JVM's standard error.
    link(Path(home))
    environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"}
    tried = archive(Path(classes), Path(home), START, __file__, environment=environment)
    if tried.returncode != 0:
        print(tried.stdout, tried.stderr, sep="\n", file=sys.stderr)
        print("Spark did not start with its jars: is Maven Central reachable?", file=sys.stderr)
    return tried.returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
