"""What lets Spark start sooner here: `python -m timely_spark prepare` makes it, and `configure` uses it.

- An archive of classes. A JVM maps them from it, instead of loading and verifying some 20,000 from jars.
- A SPARK_HOME of links, whose `pyspark.zip` has bytecode. Spark puts that zip first on the path of its Python
  processes; with sources only, each of the five that a session's first query starts compiles PySpark anew.

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
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from py_compile import PycInvalidationMode

from timely_spark.errors import TimelyError

#: The archive's JVM says so if another one is given to it; that is no reason to print.
_SILENT = "-Xlog:cds=off -Xlog:cds+dynamic=off"
#: What would send the run below elsewhere.
_ELSEWHERE = ("MASTER", "PYSPARK_SUBMIT_ARGS", "SPARK_REMOTE", "SPARK_SUBMIT_OPTS")

#: What a SPARK_HOME has besides `python/lib`; there may be settings in `conf` one day.
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
        """What gives the archive to a JVM, as Spark's settings want it."""
        return f'"-XX:SharedArchiveFile={self.archive}" {_SILENT}'

    @property
    def whole(self) -> bool:
        """Whether all is there, as it was made: a JVM may crash on a part of an archive."""
        try:
            sizes = json.loads((self.folder / "sizes.json").read_bytes())
            return bool(sizes == self._sizes()) and (self.home / "jars").is_dir()
        except (OSError, ValueError):
            return False

    def _sizes(self) -> dict[str, int]:
        zips = sorted((self.home / "python" / "lib").glob("*.zip"))
        return {path.name: path.stat().st_size for path in (self.archive, *zips)}

    def make(self) -> None:
        """Make it, or make it anew.

        Raises:
            TimelyError: Spark does not run here.
        """
        index, archive = self.folder / "sizes.json", self.archive.with_suffix(".new")
        index.unlink(missing_ok=True)
        _link(_pyspark(), self.home)
        environment = {name: value for name, value in os.environ.items() if name not in _ELSEWHERE}
        environment |= {
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_HOME": str(self.home),
            "SPARK_SUBMIT_OPTS": f'"-XX:ArchiveClassesAtExit={archive}" -Xlog:disable',
        }
        # a process of its own: its JVM writes the archive when it ends, and holds the pipes until then
        command = [sys.executable, "-c", _FLOW]
        tried = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)  # noqa: S603 - our own text
        if tried.returncode != 0 or not archive.exists():
            msg = f"a small flow did not run on Spark:\n{tried.stdout}{tried.stderr}"
            raise TimelyError(msg, hint="Spark 4.2 needs Java 17 or newer, found by JAVA_HOME or the PATH.")
        archive.replace(self.archive)
        index.write_text(json.dumps(self._sizes()))


def prepared() -> Prepared | None:
    """What was made for this PySpark and Python, if it is whole."""
    try:
        found = place()
    except (ImportError, RuntimeError):  # no PySpark; no home directory
        return None
    return found if found.whole else None


def place() -> Prepared:
    """Where it is for this PySpark and Python: in the user's folder for the data of programs."""
    from pyspark import __version__

    of = f"{_pyspark()} {sys.implementation.cache_tag}"
    digest = hashlib.sha256(of.encode()).hexdigest()[:8]
    data = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
    return Prepared(data / "timely_spark" / f"spark-{__version__}-{digest}")


def _pyspark() -> Path:
    """The folder of the installed PySpark, which is a SPARK_HOME."""
    found = find_spec("pyspark")
    if found is None or found.origin is None:
        msg = "No module named 'pyspark'"
        raise ImportError(msg)
    return Path(found.origin).resolve().parent


def _link(spark: Path, home: Path) -> None:
    """Make `home` like `spark`: of links, but for `python/lib`, whose zips have bytecode, too."""
    library = home / "python" / "lib"
    library.mkdir(parents=True, exist_ok=True)
    for part in _PARTS:
        (home / part).unlink(missing_ok=True)
        (home / part).symlink_to(spark / part)
    for path in (spark / "python" / "lib").glob("*.zip"):
        _with_bytecode(path, library / path.name)


def _with_bytecode(source: Path, target: Path) -> None:
    """Copy a zip of Python modules, and add their bytecode."""
    with tempfile.TemporaryDirectory() as folder:
        with zipfile.ZipFile(source) as given:
            given.extractall(folder)
        compileall.compile_dir(
            folder, quiet=2, legacy=True, stripdir=folder, prependdir=target,
            invalidation_mode=PycInvalidationMode.UNCHECKED_HASH,
        )  # fmt: skip
        made = target.with_suffix(".new")
        with zipfile.ZipFile(made, "w") as out:
            for path in sorted(Path(folder).rglob("*")):
                if path.is_file():
                    out.write(path, path.relative_to(folder))
    made.replace(target)
