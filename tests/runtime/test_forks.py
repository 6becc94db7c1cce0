"""A Python process of Spark that is forked is as one that was started."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from timely_spark.runtime import forks

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc"),
]
HOME = ["-m", "pyspark.find_spark_home"]


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PYTEST_CURRENT_TEST")  # it changes all the time
        forks._start_server.cache_clear()
        program = forks.serve_forks(tmp_path_factory.mktemp("forks"))
    assert program is not None
    return program


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """A folder with another PySpark: who runs there and has none yet imports it."""
    (tmp_path / "pyspark").mkdir()
    (tmp_path / "pyspark" / "__init__.py").touch()
    (tmp_path / "pyspark" / "find_spark_home.py").write_text("print('Python itself')")
    return tmp_path


def said(*command: str, folder: Path, **variables: str) -> str:
    return subprocess.check_output(command, env=environment() | variables, cwd=folder, text=True)


def environment() -> dict[str, str]:
    """The environment of the server, as of a JVM that this process starts."""
    own = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
    return own | {"PYTHONHASHSEED": "0"}


def test_a_fork_has_the_environment_of_the_program_and_prints_where_it_does(python: str, other: Path) -> None:
    for home in ("/one", "/two"):
        assert said(python, *HOME, folder=other, SPARK_HOME=home) == f"{home}\n"


@pytest.mark.parametrize(
    "variables",
    [{"OMP_NUM_THREADS": "2"}, {"PYTHONHASHSEED": "1"}, {"TZ": "Asia/Tokyo"}, {forks.SERVER: "/no/such"}],
)
def test_where_imports_may_have_read_another_environment_python_itself_runs(
    variables: dict[str, str], python: str, other: Path
) -> None:
    assert said(python, *HOME, folder=other, **variables) == "Python itself\n"


def test_python_itself_runs_any_other_program(python: str, tmp_path: Path) -> None:
    assert said(python, "-c", "import sys; print(sys.executable)", folder=tmp_path) == f"{sys.executable}\n"


@contextmanager
def serving(place: Path, *imported: str, before: str = "") -> Iterator[subprocess.Popen[bytes]]:
    """A server that listens at a place."""
    program = f"""
import sys, threading
from timely_spark.runtime import forks
listener = forks.listening({str(place)!r})
{before}
sys.argv[1:], forks.IMPORTED = [str(listener.detach())], {imported!r}
forks.main()
"""
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdin=subprocess.PIPE, env=forks.ENVIRONMENT | environment()) as server:
        while server.poll() is None and not place.exists():
            pass
        yield server


def test_a_process_with_threads_is_not_forked(python: str, other: Path) -> None:
    thread = "threading.Thread(target=threading.Event().wait, daemon=True).start()"
    with serving(other / "server", before=thread) as server:
        assert said(python, *HOME, folder=other, **{forks.SERVER: str(other / "server")}) == "Python itself\n"
        assert server.wait(60) == 0


def test_forks_and_their_forks_draw_random_numbers_of_their_own(python: str, other: Path) -> None:
    text = """
import os, random, sys, numpy
assert "numpy.random" in sys.modules, "this is a fork"
reads, writes = os.pipe()
if os.fork() == 0:
    os.write(writes, f"{numpy.random.rand()} {random.random()}".encode())
    os._exit(0)
print(numpy.random.rand(), random.random(), os.read(reads, 100).decode())
"""
    (other / "pyspark" / "find_spark_home.py").write_text(text)
    with serving(other / "server", "numpy.random") as server:
        asked = {"folder": other, forks.SERVER: str(other / "server")}
        drawn = [number for _ in range(2) for number in said(python, *HOME, **asked).split()]
        server.kill()
    assert len(set(drawn)) == 8, drawn


def test_a_fork_ends_with_the_program_that_stands_for_it(python: str) -> None:
    command = [python, "-m", "pyspark.daemon", "pyspark.worker"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, **pipes, env=environment()) as daemon:
        assert daemon.stdin is not None
        assert daemon.stdout is not None
        assert len(daemon.stdout.read(4)) == 4, "its port"
        daemon.kill()
        assert daemon.stdout.read() == b""


def test_a_worker_whose_socket_is_closed_ends_without_a_traceback(python: str) -> None:
    command = [python, "-m", "pyspark.daemon", "pyspark.worker"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    folder = str(Path(os.environ[forks.SERVER]).parent)  # a path of 107 bytes at most
    unix = {"PYTHON_UNIX_DOMAIN_ENABLED": "true", "PYTHON_WORKER_FACTORY_SOCK_DIR": folder}
    more = {**unix, "SPARK_REUSE_WORKER": "1", "PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE": "1"}
    with subprocess.Popen(command, **pipes, env=environment() | more) as daemon:
        assert daemon.stdin is not None
        assert daemon.stdout is not None
        assert daemon.stderr is not None
        place = daemon.stdout.read(int.from_bytes(daemon.stdout.read(4), "big")).decode()
        with socket.socket(socket.AF_UNIX) as jvm:
            jvm.connect(place)
            worker = int.from_bytes(jvm.recv(4), "big")
        while Path(f"/proc/{worker}").exists():
            time.sleep(0.01)
        daemon.stdin.close()
        assert daemon.stderr.read() == b""


def test_the_server_ends_with_its_process(tmp_path: Path) -> None:
    program = """
import os, sys
from pathlib import Path
from timely_spark.runtime import forks
print(forks.serve_forks(Path(sys.argv[1])), os.environ[forks.SERVER])
"""
    python, place = said(sys.executable, "-c", program, str(tmp_path), folder=tmp_path).split()
    assert os.access(python, os.X_OK)
    assert not Path(place).parent.exists()


def test_a_killed_process_leaves_nothing(tmp_path: Path) -> None:
    program = """
import os, signal, sys
from pathlib import Path
from timely_spark.runtime import forks
print(forks.serve_forks(Path(sys.argv[1])), os.environ[forks.SERVER], flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    command = [sys.executable, "-c", program, str(tmp_path)]
    _, place = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False).stdout.split()
    deadline = time.monotonic() + 60
    while Path(place).parent.exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_fork_that_nobody_waits_for_ends(python: str) -> None:
    reads, writes = os.pipe()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asks:
        asks.connect(os.environ[forks.SERVER])
        request = json.dumps([HOME, os.getcwd(), environment()]).encode()  # noqa: PTH109
        socket.send_fds(asks, [request], [0, writes, 2])
    os.close(writes)
    with os.fdopen(reads) as output:
        assert output.read() == "", "nothing is printed, and no server holds the pipe"
    assert said(python, *HOME, folder=Path.cwd(), SPARK_HOME="/one") == "/one\n"


def test_a_process_ends_though_a_child_holds_its_server(tmp_path: Path) -> None:
    program = """
import atexit, os, sys, time
from pathlib import Path
from timely_spark.runtime import forks
reads, writes = os.pipe()
forks.serve_forks(Path(sys.argv[1]))
if (child := os.fork()) == 0:
    os.close(writes)
    os.read(reads, 1)
    os._exit(0)
"""
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True, timeout=60)
