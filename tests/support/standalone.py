"""A Spark standalone cluster on this machine: a master and workers, each a process of its own.

    python -m tests.support.standalone start FOLDER [--workers 2] [--cores 1] [--memory 700m]
    python -m tests.support.standalone stop FOLDER

`start` prints the master's URL for `spark-submit --master`. The folder has logs, work directories and shuffle
files, and in `cluster.json` the processes; `stop` ends those.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import re
import subprocess
import time
from pathlib import Path
from types import TracebackType

from tests.support.points import kill_session

MASTER, WORKER = "org.apache.spark.deploy.master.Master", "org.apache.spark.deploy.worker.Worker"
#: Seconds until a process must have said that it is there.
PATIENCE = 200
#: Before a command: it is killed when this process ends, however that comes about (util-linux).
TIED = ("setpriv", "--pdeathsig", "KILL")


def installed() -> Path:
    """The installed PySpark, which is a SPARK_HOME."""
    import pyspark

    return Path(pyspark.__file__).parent


class Cluster:
    """Started when entered, ended when left; by its own processes only, and with all that they started.

    Every process leads a session (setsid), in which all its children stay: a worker's executors and their
    Python workers die with it. With `tied` they also die with this process, however it ends. Workers have
    addresses of their own, all of them this machine's, so that Spark takes them for different machines: it
    lets no task run twice on one. `daemons` are Java options of the master and the workers, `home` is the
    SPARK_HOME of all machines.
    """

    def __init__(
        self,
        folder: Path,
        *,
        workers: int = 2,
        cores: int = 1,
        memory: str = "700m",
        daemons: str = "",
        home: Path | None = None,
        tied: bool = True,
    ) -> None:
        self.folder, self.workers, self.daemons, self.tied = folder, workers, daemons, tied
        self.home = home or installed()
        self.resources = ["--cores", str(cores), "--memory", memory]
        self.url = ""
        self._addresses = (f"127.0.0.{number}" for number in itertools.count(1))
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Cluster:  # noqa: PYI034 - Self is in typing from 3.11 only
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._launch("master", MASTER, "127.0.0.1")
            self.url = self._said("master", r"Starting Spark master at (spark://\S+)")
            self.add(*(f"worker-{number}" for number in range(self.workers)))
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def add(self, *names: str) -> None:
        """Start workers, and wait until the master knows them."""
        for name in names:
            place = ["--work-dir", str(self.folder / name)]
            self._launch(name, WORKER, next(self._addresses), *place, *self.resources, self.url)
        for name in names:
            self._said(name, r"Successfully registered with master")

    def kill(self, name: str) -> None:
        """End a process by SIGKILL, with all that it started."""
        process = self.processes.pop(name)
        kill_session(process.pid)
        process.wait()

    def stop(self) -> None:
        """End what runs still."""
        for name in list(self.processes):
            self.kill(name)

    def executors(self, name: str) -> list[Path]:
        """The work directories of the executors that a worker has started so far."""
        return sorted(path.parent for path in (self.folder / name).glob("app-*/*/stderr"))

    def _launch(self, name: str, role: str, address: str, *args: str) -> None:
        spark_class = [*(TIED if self.tied else ()), "bash", str(self.home / "bin" / "spark-class"), role]
        place = ["--host", address, "--port", "0", "--webui-port", "0"]
        local = {
            "SPARK_HOME": str(self.home),
            "SPARK_LOCAL_IP": address,
            "SPARK_LOCAL_DIRS": str(self.folder / "local"),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": self.daemons,
            "SPARK_MASTER_OPTS": "-Dspark.master.rest.enabled=false",  # its port is a fixed one
        }
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [*spark_class, *place, *args],
                env={key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | local,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _said(self, name: str, pattern: str) -> str:
        log, until = self.folder / f"{name}.log", time.monotonic() + PATIENCE
        while time.monotonic() < until and self.processes[name].poll() is None:
            if found := re.search(pattern, log.read_text(encoding="utf-8", errors="replace")):
                return found[found.re.groups]
            time.sleep(0.05)
        message = f"{name} did not say {pattern!r} within {PATIENCE} s; see {log}:\n{log.read_text()[-2000:]}"
        raise RuntimeError(message)


def _is_ours(pid: int) -> bool:
    """Whether a process is a master or a worker still: its number may be another's by now."""
    with contextlib.suppress(OSError):
        return b"org.apache.spark.deploy" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


def main() -> None:
    """Start or stop one by hand."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=["start", "stop"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--workers", type=int, default=2, help="default: %(default)s")
    parser.add_argument("--cores", type=int, default=1, help="of each worker (default: %(default)s)")
    parser.add_argument("--memory", default="700m", help="of each worker (default: %(default)s)")
    args = parser.parse_args()
    notes = args.folder.resolve() / "cluster.json"
    if args.command == "stop":
        for pid in filter(_is_ours, json.loads(notes.read_text(encoding="utf-8"))):
            kill_session(pid)
        notes.unlink()
        return
    if notes.exists():
        parser.error(f"{notes} is there: stop that cluster first")
    size = {"workers": args.workers, "cores": args.cores, "memory": args.memory}
    cluster = Cluster(notes.parent, **size, tied=False).__enter__()
    notes.write_text(json.dumps([process.pid for process in cluster.processes.values()]), encoding="utf-8")
    print(cluster.url)


if __name__ == "__main__":
    main()
