"""Python processes of Spark that are forked from one that has imported what they need.

Spark starts a Python process for each streaming query, and a daemon for each kind of task: five processes for
a first epoch, which import PySpark, pyarrow, pandas and this package one after the other. A server, a process
of its own, imports them once while the JVM starts. Spark starts a small program instead of Python, which asks
the server for a fork, and stands for it until it ends.

The program becomes Python itself where no server answers within a minute: for anything but PySpark's modules,
in another environment (imports may have read it), and if an import has started a thread, since a lock that
another thread holds would stay locked in a fork.
"""

from __future__ import annotations

import atexit
import fcntl
import gc
import hashlib
import importlib
import json
import os
import re
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import IO

import numpy as np

#: The variable with the place at which a driver's server listens.
SERVER = "TIMELY_SPARK_FORKS"
#: The name and the text of what Spark starts instead of Python.
PROGRAM = "spark-python"
_TEXT = """#!{python} -IS
import json, os, socket, sys

try:
    if sys.argv[1] != "-m" or not sys.argv[2].startswith("pyspark."):
        raise OSError
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.settimeout(60)
        server.connect(os.environ[{server!r}])
        request = json.dumps([sys.argv[2:], os.getcwd(), dict(os.environ)]).encode()
        socket.send_fds(server, [request], [0, 1, 2])
        if server.recv(1):
            server.settimeout(None)
            server.recv(1)
            sys.exit()
except (IndexError, KeyError, OSError):
    pass
os.execv({python!r}, [{python!r}, *sys.argv[1:]])
"""
#: What the processes of a source and of tasks import.
IMPORTED = (
    "pandas",
    "pyspark.sql.worker.plan_data_source_read",
    "pyspark.worker",
    "timely_spark.runtime.query.flow_reader",
    "timely_spark.runtime.query.streaming",
)
#: What Spark gives its Python processes; and a variable without which pyarrow starts a thread.
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
    "PYTHONHASHSEED": "0",
}
#: Variables that no import reads: those of a shell, of Spark, and the paths that a fork takes over.
_UNREAD = re.compile(r"_?(PY)?SPARK_|PYTHON(_|PATH$|UNBUFFERED$)|(_|PWD|OLDPWD|SHLVL)$")


def serve_forks(folder: Path) -> str | None:
    """Start this process's server, unless it has one; the program, which `folder` gets.

    Returns:
        None where the program cannot run.
    """
    if not sys.platform.startswith("linux") or not re.fullmatch(r"[^\s]{1,100}", sys.executable):
        return None  # what a first line of a program cannot name
    digest = hashlib.sha256(sys.executable.encode()).hexdigest()[:8]  # environments may share a PySpark
    with suppress(OSError):
        program = write_program(folder / digest)
        if os.access(program, os.X_OK):
            _start_server(os.getpid())
            return str(program)
    return None


def write_program(folder: Path) -> Path:
    """Write what Spark shall start instead of Python."""
    program = folder / PROGRAM
    text = _TEXT.format(python=sys.executable, server=SERVER)
    if not program.exists() or program.read_text("utf-8") != text:
        folder.mkdir(parents=True, exist_ok=True)
        new = program.with_suffix(f".{os.getpid()}")
        new.write_text(text, "utf-8")
        new.chmod(0o700)
        new.replace(program)
    return program


@cache
def _start_server(driver: int) -> None:
    """Start the server of this process, which ends with it."""
    folder = tempfile.mkdtemp(prefix="timely-forks-")
    with listening(f"{folder}/server") as listener:
        server = subprocess.Popen(  # noqa: S603 - our own module
            [sys.executable, "-m", __name__, str(listener.fileno())],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[listener.fileno()],
            env=ENVIRONMENT | os.environ,
            start_new_session=True,  # an interrupt of the terminal is not for it
        )

    def end() -> None:
        if os.getpid() == driver:
            server.kill()  # it may still import; and a child of this process may hold its standard input
            server.wait()
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(end)


def listening(place: str) -> socket.socket:
    """A socket for a server, where the programs of this process and its children ask."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(place)
    listener.listen()  # who asks before all is imported waits
    os.environ[SERVER] = place
    return listener


def serve(listener: socket.socket) -> list[str]:
    """Fork for each program that asks, until standard input ends; in each fork return its arguments."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    os.register_at_fork(after_in_child=np.random.seed)  # Python does so for its own `random` only
    own = _read_by_imports(os.environ)
    gc.freeze()
    while listener.fileno() in select.select([listener.fileno(), 0], [], [])[0]:
        connection, _ = listener.accept()
        files: list[int] = []
        with connection, suppress(OSError, ValueError):  # what asks may have ended
            try:
                request, files, _, _ = socket.recv_fds(connection, 1 << 20, 3)
                arguments, folder, environment = json.loads(request)
                if _read_by_imports(ENVIRONMENT | environment) == own and os.fork() == 0:
                    _become(connection, files, folder, environment)
                    return list(arguments)
            finally:
                for file in files:
                    os.close(file)
    sys.exit()


def _read_by_imports(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if not _UNREAD.match(name)}


def _become(connection: socket.socket, files: list[int], folder: str, environment: dict[str, str]) -> None:
    """Take the place of the process at the other end, or end: then it becomes Python itself."""
    try:
        for number, file in enumerate(files):
            os.dup2(file, number)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        # its end is a SIGTERM for this process, as which Spark has ended it
        fcntl.fcntl(connection, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(connection, fcntl.F_SETSIG, signal.SIGTERM)
        fcntl.fcntl(connection, fcntl.F_SETFL, os.O_ASYNC | fcntl.fcntl(connection, fcntl.F_GETFL))
        os.chdir(folder)
        own, path = os.environ.get("PYTHONPATH"), environment.get("PYTHONPATH")
        first = [] if getattr(sys.flags, "safe_path", False) else [folder]
        sys.path[:] = first + _entries(path) + [entry for entry in sys.path if entry not in _entries(own)]
        os.environ.clear()
        os.environ.update(environment)
        connection.send(b".")
        connection.detach()
    except BaseException:  # noqa: BLE001 - a fork that goes on would be a second server
        os._exit(1)


def _entries(path: str | None) -> list[str]:
    return path.split(os.pathsep) if path else []


def run(arguments: list[str]) -> None:
    """Be the program that a fork stands for."""
    with suppress(OSError):
        Path("/proc/self/comm").write_text(arguments[0], "utf-8")  # what `ps` and `usage` see of it
    if arguments[0] == "pyspark.daemon":
        arguments = [arguments[0], _until_closed(*arguments[1:])]
    sys.argv = arguments
    # it is among the imported modules, unless the daemon's processes run it
    warnings.filterwarnings("ignore", category=RuntimeWarning, module="runpy")
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


def _until_closed(name: str = "pyspark.worker") -> str:
    """The name of a module for PySpark's daemon: a worker's, whose process ends if the JVM closes its socket.

    Spark closes the sockets of workers that were idle for a minute, of tasks that it cancels, and all of them
    with the session. A worker answers with an error. A unix socket refuses that, and the daemon would print a
    traceback; TCP accepts it, and nobody reads it.
    """
    module = ModuleType(f"{name} until its socket is closed")  # the daemon asks for a name of PySpark's

    def main(infile: IO[bytes], outfile: IO[bytes]) -> None:
        try:
            importlib.import_module(name).main(infile, outfile)
        finally:
            try:
                outfile.flush()
            except BrokenPipeError:
                os._exit(1)  # as the daemon does, which prints before

    vars(module)["main"] = main
    sys.modules[module.__name__] = module
    return module.__name__


def main() -> None:
    """The server: import what forks need, and serve."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with socket.socket(fileno=int(sys.argv[1])) as listener:
        place = Path(listener.getsockname())
        try:
            for module in IMPORTED:
                importlib.import_module(module)
            if len(os.listdir("/proc/self/task")) > 1:
                sys.exit()
            arguments = serve(listener)
        except BaseException:  # the server ends, also if its process was killed
            with suppress(OSError):
                place.unlink()
                place.parent.rmdir()
            raise
    run(arguments)


if __name__ == "__main__":
    main()
