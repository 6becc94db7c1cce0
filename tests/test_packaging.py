"""What is shipped: wheel, source archive, the versions they need and the jars.

The wheel alone does the hello, in an environment that has never seen the sources.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path
from runpy import run_path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import timely_spark
from tests.support.workflow import jobs_of

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
    """The wheel of `make dist`; else one built here, with the build backend that is installed."""
    folder = Path(os.environ.get("DIST") or tmp_path_factory.mktemp("wheel"))
    if "DIST" not in os.environ:
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


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source archive, likewise."""
    folder = Path(os.environ.get("DIST") or tmp_path_factory.mktemp("source"))
    if "DIST" not in os.environ:
        options = ["--no-isolation", "--sdist", "--outdir", folder]
        _run(sys.executable, "-m", "build", *options, ROOT, cwd=folder)
    (built,) = folder.glob("timely_spark-*.tar.gz")
    return built


def _declared() -> list[Requirement]:
    """What pyproject.toml asks for: the package, its extras, and the tools of development."""
    tomllib = pytest.importorskip("tomllib", reason="Python 3.10 has no reader of TOML")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    extras = project["project"]["optional-dependencies"].values()
    asked = [project["project"]["dependencies"], *extras, project["dependency-groups"]["dev"]]
    return [Requirement(text) for texts in asked for text in texts]


LOCK = (ROOT / "conf" / "requirements.lock").read_text(encoding="utf-8")


def test_the_lock_has_a_version_with_hashes_of_all_that_is_asked_for() -> None:
    pins = [Requirement(line.rstrip(" \\")) for line in LOCK.splitlines() if re.match(r"\w", line)]
    locked = {canonicalize_name(pin.name): pin for pin in pins if not pin.marker or pin.marker.evaluate()}

    for asked in _declared():
        (pin,) = locked[canonicalize_name(asked.name)].specifier
        assert pin.operator == "=="
        assert pin.version in asked.specifier, f"{asked}: make lock"
    assert LOCK.count("--hash=sha256:") >= len(pins)
    assert "://" not in LOCK, "a place, where only names and checksums belong"


def test_the_description_has_no_link_into_the_repository() -> None:
    """A page of a registry has none of the repository's other files beside it."""
    standalone = run_path(str(ROOT / "conf" / "description.py"))["standalone"]
    shown = standalone((ROOT / "README.md").read_text(encoding="utf-8"))

    links = re.findall(r"\]\(([^)]*)\)", shown)
    assert links
    assert all(link.startswith("https://") for link in links)
    paths = re.findall(r" \(`([\w/.-]+)`\)", shown)
    assert "docs/start.md" in paths
    assert all((ROOT / path).exists() for path in paths)


def test_the_workflows_run_here_too_and_ask_make_for_what_there_is() -> None:
    jobs = [job for workflow in ("check", "release") for job in jobs_of(workflow)]
    targets = re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)

    some = {"all make=lint", "python python=3.13", "spark python=3.13 spark=4.3.0", "build"}
    assert some <= set(map(str, jobs))
    runs = [job.filled(step["run"]) for job in jobs for step in job.steps if "run" in step]
    assert {run.split()[1] for run in runs if run.startswith("make ")} <= set(targets)
    assert not any("${{" in run for run in runs)


def test_a_jar_that_is_not_listed_is_deleted(tmp_path: Path) -> None:
    verify = run_path(str(ROOT / "conf" / "prepare.py"))["verify"]
    (jar := tmp_path / "delta.jar").write_bytes(b"something else")

    with pytest.raises(RuntimeError, match=r"(?s)not those of conf/jars.sha256.*[0-9a-f]{64}  delta.jar"):
        verify([jar])
    assert not jar.exists()


def test_the_changelog_and_the_citation_know_the_version() -> None:
    changes, cited = ((ROOT / name).read_text(encoding="utf-8") for name in ("CHANGELOG.md", "CITATION.cff"))

    assert f"\n## [{timely_spark.__version__}]" in changes or "\n## [Unreleased]" in changes
    assert f"\nversion: {timely_spark.__version__}\n" in cited


@pytest.mark.slow
def test_the_source_archive_holds_what_a_build_and_the_tests_need(source: Path) -> None:
    with tarfile.open(source) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}

    tops = {name.partition("/")[0] for name in names}
    assert {"pyproject.toml", "PKG-INFO", "LICENSE", "Makefile", "conf", "jobs", "docs", "tests"} <= tops
    files = {path.relative_to(ROOT).as_posix() for path in (ROOT / "timely_spark").rglob("*.py*")}
    assert {name for name in files if "__pycache__" not in name} <= names
    assert not {name for name in names if "__pycache__" in name or ".venv" in name or name.endswith(".jsa")}


@pytest.mark.slow
def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()

    assert "timely_spark/py.typed" in names
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"timely_spark"}
    (metadata,) = [name for name in names if name.endswith(".dist-info/METADATA")]
    described = zipfile.ZipFile(wheel).read(metadata).decode()
    assert "Paths are those of the source archive." in described
    assert "](docs/" not in described
    jobs = {Path(name).name for name in names if "/share/timely_spark/jobs/" in name}
    assert jobs == {path.name for path in ROOT.glob("jobs/*.py")}


@pytest.mark.campaign
@pytest.mark.slow
def test_the_wheel_can_be_imported_unopened(wheel: Path, tmp_path: Path) -> None:
    printed = _run(sys.executable, "-c", IMPORT_ALL, cwd=tmp_path, path=str(wheel))

    assert printed.startswith(str(wheel)), "a file read by its path breaks --py-files"


@pytest.mark.campaign
@pytest.mark.slow
def test_the_installed_wheel_is_what_is_imported(clean_python: Path, tmp_path: Path) -> None:
    printed = _run(clean_python, "-c", IMPORT_ALL, cwd=tmp_path)

    assert Path(printed.strip()).is_relative_to(clean_python.parents[1])


@pytest.mark.campaign
@pytest.mark.spark
def test_the_installed_wheel_says_hello(clean_python: Path, tmp_path: Path) -> None:
    assert "connected_components" in _run(clean_python.with_name("timely-spark"), "job", cwd=tmp_path)
    assert _run(clean_python, "-m", "timely_spark", "job", "hello", cwd=tmp_path).strip()


@pytest.mark.campaign
@pytest.mark.spark
def test_the_installed_wheel_shows_its_demo(clean_python: Path, tmp_path: Path) -> None:
    printed = _run(
        clean_python, "-m", "timely_spark", "demo", "--modules", "1", "--epochs", "2", cwd=tmp_path
    )

    assert "networkx agrees" in printed
    assert "<svg" in (tmp_path / "out" / "imports.html").read_text(encoding="utf-8")
