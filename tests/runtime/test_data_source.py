"""The data source of Spark: what each of its processes imports, and that its reader is the flow's."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark import cloudpickle
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow

import timely_spark as ts
from tests.support.stepper import Begin
from timely_spark.runtime.query.data_source import timely_source

#: What Spark's process does that plans the reading: it has PySpark, and the instance that another one made.
PLANS = """
import sys
from pyspark import cloudpickle
from pyspark.sql.types import StructType
with open(sys.argv[1], "rb") as file:
    source = cloudpickle.load(file)
reader = source.streamReader(StructType())
with open(sys.argv[1], "wb") as file:
    cloudpickle.dump(reader, file)
print(*(name for name in sys.modules if name.split(".")[0] in ("timely_spark", "pyarrow", "numpy")))
"""


def test_a_process_that_reads_imports_from_where_the_driver_does(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = ts.Dataflow("f")
    flow.input("x", "n long").distinct().capture("out")
    source = timely_source(["/of/the/driver"])({"context": begin(flow).context.to_option()})
    own = list(sys.path)
    monkeypatch.setattr(sys, "path", [*own])
    for _ in range(2):
        source.flow_reader()  # type: ignore[attr-defined]
        assert sys.path == [*own, "/of/the/driver"]


@pytest.mark.slow
def test_planning_its_reading_imports_nothing_that_reading_needs(begin: Begin, tmp_path: Path) -> None:
    flow = ts.Dataflow("f")
    flow.input("x", "n long").distinct().capture("out")
    process, pickled = begin(flow), tmp_path / "pickled"
    options = {"context": process.context.to_option()}
    pickled.write_bytes(cloudpickle.dumps(timely_source([])(options)))
    command = [sys.executable, "-c", PLANS, str(pickled)]
    planned = subprocess.run(command, capture_output=True, text=True, check=True)
    reader = cloudpickle.loads(pickled.read_bytes())

    assert planned.stdout.split() == [], "the first epoch waits for this process"
    assert isinstance(reader, SupportsTriggerAvailableNow)
    start = reader.initialOffset()
    assert start == process.reader.initial_offset()
    limit = reader.getDefaultReadLimit()
    reader.prepareForTriggerAvailableNow()
    process.handles["x"].send([1])
    end = reader.latestOffset(start, limit)
    assert end == process.reader.latest_offset(start) != start
    (share,) = pickle.loads(pickle.dumps(reader.partitions(start, end)))
    assert list(reader.read(share)) == list(process.reader.between(start, end)) != []
    reader.commit(end)
