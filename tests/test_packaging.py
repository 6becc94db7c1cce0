"""What is shipped: the wheel alone, in an environment that has never seen the sources, does the hello."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

IMPORT_ALL = """
import importlib, pkgutil, sys, timely_spark
for module in pkgutil.walk_packages(timely_spark.__path__, "timely_spark."):
    importlib.import_module(module.name)
print(timely_spark.__file__)
"""


def _run(*command: str | Path, cwd: Path, path: str = "") -> str:
    """Run a command away from the sources; what it printed is the story if it fails."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"PYTHONPATH": path} if path else {}
    environment |= {"PYSPARK_PYTHON": str(command[0]), "PYSPARK_DRIVER_PYTHON": str(command[0])}
    quiet = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True}
    done = subprocess.run(command, cwd=cwd, env=environment, check=False, **quiet)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from the sources with the build backend that is installed here."""
    folder = tmp_path_factory.mktemp("wheel")
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--quiet", "--wheel-dir", folder]
    _run(sys.executable, "-m", "pip", "wheel", *options, ROOT, cwd=folder)
    (built,) = folder.glob("timely_spark-*.whl")
    return built


@pytest.fixture(scope="module")
def clean_python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a new environment with the wheel in it.

    Its dependencies are ours, lent by a .pth line. Python reads no .pth files in a folder lent so, and the
    editable install of this project is one: its sources stay out of reach (checked below).
    """
    home = tmp_path_factory.mktemp("clean")
    venv.create(home, with_pip=False, symlinks=True)
    python = home / "bin" / "python"
    options = ["--no-deps", "--no-index", "--quiet"]
    _run(sys.executable, "-m", "pip", "--python", python, "install", *options, wheel, cwd=home)
    (site,) = home.glob("lib/python*/site-packages")
    lent = dict.fromkeys(sysconfig.get_path(kind) for kind in ("purelib", "platlib"))
    (site / "lent.pth").write_text("\n".join(lent), encoding="utf-8")
    return python


@pytest.mark.slow
def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()

    assert "timely_spark/py.typed" in names
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"timely_spark"}


@pytest.mark.slow
def test_the_wheel_can_be_imported_unopened(wheel: Path, tmp_path: Path) -> None:
    printed = _run(sys.executable, "-c", IMPORT_ALL, cwd=tmp_path, path=str(wheel))

    assert printed.startswith(str(wheel)), "a file read by its path breaks --py-files"


@pytest.mark.slow
def test_the_installed_wheel_is_what_is_imported(clean_python: Path, tmp_path: Path) -> None:
    printed = _run(clean_python, "-c", IMPORT_ALL, cwd=tmp_path)

    assert Path(printed.strip()).is_relative_to(clean_python.parents[1])


@pytest.mark.campaign
@pytest.mark.spark
def test_the_installed_wheel_says_hello(clean_python: Path, tmp_path: Path) -> None:
    assert _run(clean_python, ROOT / "jobs" / "hello.py", cwd=tmp_path).strip()


@pytest.mark.campaign
@pytest.mark.spark
def test_the_installed_wheel_shows_its_demo(clean_python: Path, tmp_path: Path) -> None:
    lent = sysconfig.get_path("purelib")  # where the demo finds packages, which a new environment lacks
    (clean_python.parents[1] / "pyspark").symlink_to(Path(lent, "pyspark"))
    printed = _run(
        clean_python, "-m", "timely_spark", "demo", "--modules", "1", "--epochs", "2", cwd=tmp_path
    )

    assert "networkx agrees" in printed
    assert "<svg" in (tmp_path / "out" / "imports.html").read_text(encoding="utf-8")
