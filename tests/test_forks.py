"""A Python process of Spark that is forked is as one that was started."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.support.forks import forking

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc"),
]


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with forking(tmp_path_factory.mktemp("forks")) as program:
        assert program != sys.executable
        yield program


@pytest.fixture(autouse=True)
def _forked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORKED", "yes")


def test_a_fork_has_the_environment_of_the_program_and_prints_where_it_does(python: str) -> None:
    for home in ("/one", "/two"):
        command, environment = [python, "-m", "pyspark.find_spark_home"], os.environ | {"SPARK_HOME": home}
        assert subprocess.check_output(command, env=environment, text=True) == f"{home}\n"


def test_any_other_program_and_that_of_another_jvm_run_in_python_itself(
    python: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = [python, "-c", "import sys; print(sys.executable)"]
    assert subprocess.check_output(command, text=True) == f"{sys.executable}\n"
    monkeypatch.delenv("FORKED")
    command = [python, "-m", "pyspark.find_spark_home"]
    environment = os.environ | {"PYTHONVERBOSE": "1"}
    said = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stderr
    assert "import 'pyspark'" in said


def test_a_fork_ends_with_the_program_that_stands_for_it(python: str) -> None:
    command = [python, "-m", "pyspark.daemon", "pyspark.worker"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as daemon:
        assert daemon.stdin is not None
        assert daemon.stdout is not None
        assert len(daemon.stdout.read(4)) == 4, "its port"
        daemon.kill()
        assert daemon.stdout.read() == b""
