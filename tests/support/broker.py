"""A real Kafka broker on this machine, in KRaft mode: one process, on loopback.

    python -m tests.support.broker

fetches its jars (`make install` does so), by the Ivy that PySpark brings, from where Spark fetches packages.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from runpy import run_path
from types import TracebackType

#: The version of the client in Spark's connector.
BROKER = ("org.apache.kafka", "kafka_2.13", "3.9.2")
PREPARE = Path(__file__).parents[2] / "conf" / "prepare.py"
CLASSPATH = Path(sys.prefix) / f"kafka-{BROKER[2]}.classpath"
JAVA = str(Path(os.environ["JAVA_HOME"]) / "bin" / "java") if "JAVA_HOME" in os.environ else "java"
#: A small JVM that starts quickly, and dies with this process (util-linux).
JVM = ("setpriv", "--pdeathsig", "KILL", JAVA, "-Xmx320m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
#: Seconds until the broker must answer.
PATIENCE = 200
_CONFIGURATION = """
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{control}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{control}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
log.dirs={folder}/log
num.partitions=2
broker.session.timeout.ms=3000
broker.heartbeat.interval.ms=200
offsets.topic.num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
"""


def classpath() -> str:
    """The broker's jars, fetched if they are not there yet."""
    if CLASSPATH.exists():
        text = CLASSPATH.read_text().strip()
        if all(map(os.path.exists, text.split(os.pathsep))):
            return text
    import pyspark

    (ivy,) = Path(pyspark.__file__).parent.glob("jars/ivy-*.jar")
    fetched = CLASSPATH.with_suffix(f".{os.getpid()}")
    wanted = ["-dependency", *BROKER, "-confs", "default", "-cachepath", str(fetched)]
    done = subprocess.run(
        [JAVA, "-jar", str(ivy), *wanted], capture_output=True, text=True, check=False, timeout=240
    )
    if done.returncode or not fetched.exists():
        message = f"Kafka's jars were not fetched: is Maven Central reachable?\n{done.stdout[-2000:]}"
        raise RuntimeError(message)
    run_path(str(PREPARE))["verify"](map(Path, fetched.read_text().strip().split(os.pathsep)))
    fetched.replace(CLASSPATH)
    return CLASSPATH.read_text().strip()


class Broker:
    """Started when entered, ended when left; `kill` and `start` in between, on the same port and data."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        port, control = _free_port(), _free_port()
        self.servers = f"127.0.0.1:{port}"
        self._address = ("127.0.0.1", port)
        self._properties = folder / "server.properties"
        self._properties.write_text(_CONFIGURATION.format(port=port, control=control, folder=folder))
        self._process: subprocess.Popen[bytes] | None = None
        format_ = ["kafka.tools.StorageTool", "format", "-t", "MkU3OEVBNTcwNTJENDM2Qg", "-c"]
        subprocess.run(
            [*JVM, "-cp", classpath(), *format_, str(self._properties)], check=True, capture_output=True
        )

    def __enter__(self) -> Broker:  # noqa: PYI034 - Self is in typing from 3.11 only
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def start(self) -> None:
        """Start it, and wait until it answers."""
        with (self.folder / "broker.log").open("ab") as log:
            command = [*JVM, "-cp", classpath(), "kafka.Kafka", str(self._properties)]
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        until = time.monotonic() + PATIENCE
        with socket.socket() as client:
            while time.monotonic() < until and self._process.poll() is None:
                if client.connect_ex(self._address) == 0:
                    return
                time.sleep(0.05)
        message = f"Kafka did not start:\n{(self.folder / 'broker.log').read_text()[-2000:]}"
        raise RuntimeError(message)

    def kill(self) -> None:
        """End it by SIGKILL."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


if __name__ == "__main__":
    classpath()
