"""Python processes of Spark that are forked from one that has imported what they need.

Spark starts a Python process for each streaming query, and a daemon for each kind of task. Importing PySpark,
pyarrow and this package was a third of what a test of a short query took. `PYTHON` is the program that Spark
starts instead of Python: it asks a server for a fork, and stands for it until it ends.

The server has one thread, as a lock that another thread holds would stay locked in a fork. It is a process of
its own (`forking`), or a fork of one that has imported everything and has no threads yet (`forked_by`).
"""

from __future__ import annotations

import fcntl
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

#: It becomes Python itself for anything but PySpark's modules, without a server, and for a JVM that has no
#: variable FORKED in its environment.
PYTHON = """#!{python} -IS
import json, os, socket, sys

with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
    try:
        if "FORKED" not in os.environ or sys.argv[1] != "-m" or not sys.argv[2].startswith("pyspark."):
            raise OSError
        connection.connect({place!r})
        request = json.dumps([sys.argv[2:], os.getcwd(), dict(os.environ)]).encode()
        socket.send_fds(connection, [request], [0, 1, 2])
    except OSError:
        os.execv({python!r}, [{python!r}, *sys.argv[1:]])
    connection.recv(1)
"""
#: What the processes of a source and of tasks import. None of these runs as a program itself.
IMPORTED = (
    "pandas",
    "pyspark.sql.worker.plan_data_source_read",
    "pyspark.worker",
    "timely_spark.runtime.query.flow_reader",
)
#: so that numpy and pyarrow start no threads; and what Spark gives its Python processes
ENVIRONMENT = {
    "OPENBLAS_NUM_THREADS": "1",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
    "PYTHONHASHSEED": "0",
}


def write_program(folder: Path) -> tuple[Path, Path]:
    """Write a program for `PYSPARK_PYTHON`; it, and where its server shall listen."""
    program, place = folder / "python", folder / "forks"
    program.write_text(PYTHON.format(python=sys.executable, place=str(place)), encoding="utf-8")
    program.chmod(0o755)
    return program, place


def forked_by(folder: Path) -> Path:
    """A program for `PYSPARK_PYTHON`, whose server is a fork of this process and ends with it."""
    program, place = write_program(folder)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(place))
        listener.listen()
        end, alive = os.pipe()  # the writer is closed when this process ends
        if os.fork() == 0:
            os.close(alive)
            os.dup2(end, 0)
            sys.stdin = os.fdopen(0, closefd=False)
            try:
                run(serve(listener))
            except Exception:  # noqa: BLE001 - what called this function is not to see it
                traceback.print_exc()
            finally:
                os._exit(0)
        os.close(end)
    return program


@contextmanager
def forking(folder: Path) -> Iterator[str]:
    """A program for `PYSPARK_PYTHON`, and its server; Python itself where the server does not start."""
    program, place = write_program(folder)
    command = [sys.executable, "-m", "tests.support.forks", str(place)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, **pipes, env=os.environ | ENVIRONMENT) as server:
        assert server.stdout is not None
        try:
            yield str(program) if server.stdout.read(1) else sys.executable
        finally:
            server.communicate()


def fork_for_each(place: str) -> list[str]:
    """Import what forks need, say that it serves, and do so; in each fork return its arguments."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(place)
        for module in IMPORTED:
            importlib.import_module(module)
        if len(os.listdir("/proc/self/task")) > 1:  # noqa: PTH208
            sys.exit()
        listener.listen()
        os.write(sys.stdout.fileno(), b".")
        return serve(listener)


def serve(listener: socket.socket) -> list[str]:
    """Fork for each program that asks, until standard input ends; in each fork return its arguments."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while listener in select.select([listener, 0], [], [])[0]:
        connection, _ = listener.accept()
        if os.fork() == 0:
            return become(connection)
        connection.close()
    sys.exit()


def become(connection: socket.socket) -> list[str]:
    """Take the place of the process at the other end; return its arguments."""
    request, files, _, _ = socket.recv_fds(connection, 1 << 20, 3)
    arguments, folder, environment = json.loads(request)
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    # its end is a SIGTERM for this process, as which Spark has ended it
    fcntl.fcntl(connection, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(connection, fcntl.F_SETSIG, signal.SIGTERM)
    fcntl.fcntl(connection, fcntl.F_SETFL, os.O_ASYNC | fcntl.fcntl(connection, fcntl.F_GETFL))
    connection.detach()
    os.chdir(folder)
    own = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:] = [
        folder,
        *environment.get("PYTHONPATH", "").split(os.pathsep),
        *(entry for entry in sys.path if entry not in own),
    ]
    os.environ.clear()
    os.environ.update(environment)
    return arguments


def run(arguments: list[str]) -> None:
    """Be the program that a fork stands for."""
    sys.argv = arguments
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    run(fork_for_each(sys.argv[1]))
