"""Archives that let Spark start sooner: `python -m timely_spark prepare` makes, `configure` uses them.

- An archive of classes. A JVM maps them from it, instead of loading and verifying some 20,000 from jars.
- A SPARK_HOME of links, in which folders stand for `pyspark.zip` and its like. Spark puts them first on the
  path of its Python processes. Of the zip, which has sources only, each of the five that a session's first
  query starts would compile PySpark again; and each process reads a zip's directory a dozen times, in 0.2 s.

Nothing depends on either: without them, or with an archive of another Java, Spark runs as ever.
"""

from __future__ import annotations

import compileall
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from timely_spark.errors import TimelyError

#: The archive's JVM says so if another one is given to it; that is no reason to print.
_SILENT = "-Xlog:cds=off -Xlog:cds+dynamic=off"
#: What would send the run below elsewhere.
_ELSEWHERE = ("MASTER", "PYSPARK_SUBMIT_ARGS", "SPARK_REMOTE", "SPARK_SUBMIT_OPTS")

#: What a SPARK_HOME has besides its libraries; there may be settings in `conf` one day.
_LIBRARIES = "python/lib"
_PARTS = ("bin", "conf", "data", "examples", "jars", "licenses", "sbin", "python/pyspark")

#: A small flow: the archive has the classes that it needs.
_FLOW = """
import pyarrow.compute as pc
import timely_spark as ts
from pyspark.sql import SparkSession

spark = ts.configure(SparkSession.builder.master("local[2]")).getOrCreate()
flow = ts.Dataflow("prepare")
numbers = flow.input("numbers", "n long")
counted = numbers.loop(lambda n: n.where(pc.field("n") < 3).select(n=pc.add(pc.field("n"), 1)))
counted.to_memory("counted")
query = flow.start(spark, workers=2)
for _ in range(3):
    numbers.send([(1,), (2,)])
    query.wait_for()
spark.table("counted").collect()
query.stop()
spark.stop()
"""


@dataclass(frozen=True, slots=True)
class Prepared:
    """The folder of one PySpark, for one Python."""

    folder: Path

    @property
    def home(self) -> Path:
        """The SPARK_HOME."""
        return self.folder / "spark"

    @property
    def archive(self) -> Path:
        """The archive of classes."""
        return self.folder / "classes.jsa"

    @property
    def java_options(self) -> str:
        """The JVM options for the archive, as Spark's settings take them."""
        return f'"-XX:SharedArchiveFile={self.archive}" {_SILENT}'

    @property
    def complete(self) -> bool:
        """Whether all is there, as it was made: a JVM may crash on a part of an archive."""
        try:
            return (
                bool(json.loads(self._index.read_bytes()) == self._made()) and (self.home / "jars").is_dir()
            )
        except (OSError, ValueError):
            return False

    @property
    def _index(self) -> Path:
        return self.folder / "index.json"

    def _made(self) -> dict[str, object]:
        libraries = sorted(path.name for path in (self.home / _LIBRARIES).iterdir())
        return {"archive": self.archive.stat().st_size, "libraries": libraries}

    def make(self) -> None:
        """Make it, or make it again.

        Raises:
            TimelyError: Spark does not run here.
        """
        self._index.unlink(missing_ok=True)
        link(self.home)
        environment = {name: value for name, value in os.environ.items() if name not in _ELSEWHERE}
        new = self.archive.with_suffix(".new")
        tried = archive(new, self.home, _FLOW, environment=environment)
        if tried.returncode != 0 or not new.exists():
            msg = f"a small flow did not run on Spark:\n{tried.stdout}{tried.stderr}"
            raise TimelyError(msg, hint="check that JAVA_HOME, or the PATH, has Java 17 or newer.")
        new.replace(self.archive)
        self._index.write_text(json.dumps(self._made()))


def prepared() -> Prepared | None:
    """The archive for this PySpark and Python; None if it is not complete."""
    try:
        folder = place()
    except (ImportError, RuntimeError):  # no PySpark; no home directory
        return None
    return folder if folder.complete else None


def place() -> Prepared:
    """The folder for this PySpark and Python, in the user's folder for the data of programs."""
    from pyspark import __version__

    versions = f"{_pyspark()} {sys.implementation.cache_tag}"
    digest = hashlib.sha256(versions.encode()).hexdigest()[:8]
    data = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
    return Prepared(data / "timely_spark" / f"spark-{__version__}-{digest}")


def _pyspark() -> Path:
    """The folder of the installed PySpark, which is a SPARK_HOME."""
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        msg = "No module named 'pyspark'"
        raise ImportError(msg)
    return Path(spec.origin).resolve().parent


def link(home: Path) -> None:
    """Make `home` a SPARK_HOME of links into the installed PySpark, with folders for its zips of Python."""
    spark, libraries = _pyspark(), home / _LIBRARIES
    libraries.mkdir(parents=True, exist_ok=True)
    for part in _PARTS:
        (home / part).unlink(missing_ok=True)
        (home / part).symlink_to(spark / part)
    for path in (spark / _LIBRARIES).glob("*.zip"):
        _unpack(path, libraries / path.name)


def _unpack(source: Path, target: Path) -> None:
    """Make of a zip of Python modules a folder of the same name, with their bytecode."""
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        new = Path(folder) / "new"
        with zipfile.ZipFile(source) as archive:
            archive.extractall(new)
        compileall.compile_dir(new, quiet=2, stripdir=str(new), prependdir=str(target))
        if target.exists():
            target.rename(Path(folder) / "old")
        new.rename(target)


def archive(
    path: Path, home: Path, program: str, *arguments: str, environment: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run a program on the Spark of `home`. Its JVM archives the classes that it has loaded."""
    environment = {
        **environment,
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_HOME": str(home),
        "SPARK_SUBMIT_OPTS": f'"-XX:ArchiveClassesAtExit={path}" -Xlog:disable',
    }
    # a process of its own: its JVM writes the archive when it ends, and holds the pipes until then
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)  # noqa: S603 - our own text
