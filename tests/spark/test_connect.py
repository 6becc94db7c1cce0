"""The public API by Spark Connect: against a server, from a client without a JVM."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("grpc")

#: Seconds until the server must answer.
PATIENCE = 120
SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"


#: Timeouts of a server that are far shorter than a stay of 30 seconds.
SHORT = {
    "spark.connect.session.manager.defaultSessionTimeout": "8s",
    "spark.connect.session.manager.maintenanceInterval": "1s",
    "spark.connect.execute.manager.detachedTimeout": "4s",
    "spark.connect.execute.manager.maintenanceInterval": "1s",
    "spark.connect.execute.reattachable.senderMaxStreamDuration": "4s",
}


@pytest.fixture
def server(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    """A Connect server with Delta on this machine, and perhaps with further settings; its address."""
    import pyspark

    home = Path(pyspark.__file__).parent
    confs = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.warehouse.dir": str(tmp_path / "warehouse"),
        "spark.jars.packages": f"io.delta:delta-spark_4.2_2.13:{version('delta-spark')}",
        **getattr(request, "param", {}),
    }
    given = [part for key, value in confs.items() for part in ("--conf", f"{key}={value}")]
    log = tmp_path / "server.log"
    command = [str(home / "bin" / "spark-submit"), "--master", "local[2]", *given, "--class", SERVER]
    with log.open("wb") as out:
        process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", *command, "spark-internal"],
            env=os.environ | {"SPARK_HOME": str(home)},  # a full one: PySpark's zip is on the workers' path
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            cwd=tmp_path,
        )
    try:
        until = time.monotonic() + PATIENCE
        while not (found := re.search(r"started at: \S*?:(\d+)", log.read_text())):
            running = process.poll() is None and time.monotonic() < until
            assert running, log.read_text()[-3000:]
            time.sleep(0.1)
        yield f"sc://127.0.0.1:{found[1]}"
    finally:
        process.kill()
        process.wait()


def seen_by(program: str, server: str, folder: Path) -> dict[str, Any]:
    """What a client has seen that runs a function of `connected.py`."""
    command = [sys.executable, str(Path(__file__).parent / "connected.py"), program, server, str(folder)]
    done = subprocess.run(command, env=os.environ, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, f"{done.stderr[-4000:]}\n{(folder / 'server.log').read_text()[-3000:]}"
    seen: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return seen


@pytest.mark.campaign  # half a minute in which nothing happens
@pytest.mark.spark
@pytest.mark.parametrize("server", [SHORT], indirect=True)
def test_a_stay_is_longer_than_the_timeouts_of_sessions(server: str, tmp_path: Path) -> None:
    seen = seen_by("a_long_stay", server, tmp_path)
    assert seen == {"counts": ["a", 2], "micro-batches": 1, "again": ["a", 3]}


@pytest.mark.campaign  # a server, a client and two queries of their own
@pytest.mark.spark
def test_the_whole_api(server: str, tmp_path: Path) -> None:
    seen = seen_by("main", server, tmp_path)
    assert seen["first"] == [[1, 1, 1], [2, 1, 1], [3, 3, 1], [4, 3, 1]]
    assert (seen["asked"], seen["components"]) == ([[4, 3]], [1])
    assert (seen["subscribed"], seen["foreach"]) == (["0", "1"], ["0", "1"])
    assert (seen["probe"], seen["frontier"], seen["inspected"]) == (False, True, "connected")
    assert seen["written"] and seen["view"] and seen["rounds"]  # noqa: PT018 - one output each
    assert (seen["counts"], seen["epochs"]) == (["a", 10], 10)
    assert seen["micro-batches"] <= 3, "Spark has planned fewer than there were epochs"
    assert (seen["endless"], seen["cancelled"], seen["later"]) == (False, True, True)
    assert (seen["small"], seen["stopping"] < 20) == ([0, 1, 2], True)  # a stay takes 30 seconds
    assert seen["frame"] == seen["files"] == [1, 2, 3, 4, 5]
    assert seen["path"] == seen["name"] == [2, 3]
    for name in ("outer", "scope", "pipe", "state", "asof"):
        assert seen[name] == [0, 1, 2, 3, 4], name
    assert (seen["upserts"], seen["window"], seen["own"]) == ([3, 4], [], True)
    assert all("session starts" in line for line in seen["tune"])
