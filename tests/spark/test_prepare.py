"""The real thing: sessions that use what `python -m timely_spark prepare` has made."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyspark.worker
import pytest

FLOW = """
import pyarrow as pa
from pyspark.sql import SparkSession
import timely_spark as ts

spark = ts.configure(SparkSession.builder.master("local[2]")).getOrCreate()

def modules(batches):
    import pyspark.worker
    for batch in batches:
        yield pa.RecordBatch.from_pydict({"file": [pyspark.worker.__file__]})

print(spark.range(0, 1, 1, 1).mapInArrow(modules, "file string").head().file)
flow = ts.Dataflow("counts")
words = flow.input("words", "word string")
counted = words.group_by("word").count("n").capture("out")
query = flow.start(spark)
words.send([("a",), ("b",), ("a",)])
query.wait_for()
print(sorted(query.captured("out").rows()[0]))
query.stop()
spark.stop()
"""


@pytest.mark.spark
@pytest.mark.campaign
def test_a_prepared_session_maps_its_classes_and_compiles_no_module(tmp_path: Path) -> None:
    given = ("SPARK_HOME", "SPARK_SUBMIT_OPTS", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")
    environment = {name: value for name, value in os.environ.items() if name not in given}
    environment["XDG_DATA_HOME"] = str(tmp_path / "user's data")  # a space is no trouble

    def run(*arguments: str, **more: str) -> str:
        command = [sys.executable, *arguments]
        ran = subprocess.run(command, env=environment | more, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    run("-m", "timely_spark", "prepare")
    loaded = tmp_path / "loaded"
    file, counts = run("-c", FLOW, SPARK_SUBMIT_OPTS=f"-Xlog:class+load:file={loaded}").splitlines()

    (folder,) = (tmp_path / "user's data").glob("timely_spark/*/spark/python/lib/pyspark.zip")
    own, counted = run("-c", FLOW, PYSPARK_PYTHON=f"{sys.executable}3").splitlines()
    assert file == pyspark.worker.__file__, "of the process that was forked"
    assert own == f"{folder}/pyspark/worker.py"
    assert [*folder.glob("pyspark/__pycache__/worker.*.pyc")]
    assert counts == counted == "[('a', 2), ('b', 1)]"
    sources = [line.partition("source: ")[2] for line in loaded.read_text().splitlines()]
    assert sum("(top)" in source for source in sources) > len(sources) / 2, "classes of the archive"
