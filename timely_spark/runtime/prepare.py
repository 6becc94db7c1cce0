"""Archives that let Spark start sooner: `python -m timely_spark prepare` makes, `configure` uses them.

- An archive of classes. A JVM maps them from it, instead of loading and verifying some 20,000 from jars.
- A SPARK_HOME of links, in which folders stand for `pyspark.zip` and its like. Spark puts them first on the
  path of its Python processes. A session's first query starts five. From the zip, which has sources only,
  each would compile PySpark again, and read the zip's directory a dozen times, in 0.2 s.
- Jars of Delta and of the Kafka connector among those of that SPARK_HOME. A session with packages resolves
  and copies three dozen jars at its start, and classes of such jars come from no archive.

Nothing depends on either: without them, or with an archive of another Java, Spark runs as ever. Where they
are missing, `fetched` has the jars of packages, so that no later session resolves them.
"""

from __future__ import annotations

import compileall
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from timely_spark.errors import TimelyError
from timely_spark.runtime.errors import SparkMissing
from timely_spark.runtime.storage.files import Files
from timely_spark.runtime.storage.lock import Lock

#: The archive's JVM says so if another one is given to it; that is not a reason to print.
_SILENT = "-Xlog:cds=off -Xlog:cds+dynamic=off"
#: A JVM that runs once, for seconds: optimised code would take longer to make than it saves.
_SHORT = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
#: Variables that may say where a session is, and with which settings.
_PLACES = ("MASTER", "PYSPARK_GATEWAY_PORT", "PYSPARK_SUBMIT_ARGS", "SPARK_REMOTE")
#: What would send the run below elsewhere.
_ELSEWHERE = (*_PLACES, "SPARK_SUBMIT_OPTS")

#: What a SPARK_HOME has besides its libraries; there may be settings in `conf` one day.
_LIBRARIES = "python/lib"
_PARTS = ("bin", "conf", "data", "examples", "licenses", "sbin", "python/pyspark")

#: What Delta and the Kafka connector need and Spark has: 50 MB, which would be sent to every executor.
IN_SPARK = {
    "spark.jars.excludes": (
        "org.apache.hadoop:hadoop-client-runtime,org.apache.hadoop:hadoop-client-api,"
        "org.scala-lang:scala-library"
    )
}
#: Names the jars of a session with packages, and loads no class of them.
_NAME_JARS = """
import json, pathlib, sys
from pyspark.sql import SparkSession

builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
for key, value in json.loads(sys.argv[2]).items():
    builder = builder.config(key, value)
spark = builder.getOrCreate()
pathlib.Path(sys.argv[1]).write_text(spark.conf.get("spark.jars", ""))
spark.stop()
"""
#: A small flow: the archive has the classes that it needs.
_FLOW = """
import sys, tempfile
import pyarrow.compute as pc
import timely_spark as ts
from pyspark.sql import SparkSession

delta = "delta" in sys.argv
spark = ts.configure(SparkSession.builder.master("local[2]"), delta=delta).getOrCreate()
flow = ts.Dataflow("prepare")
numbers = flow.input("numbers", "n long")
counted = numbers.loop(lambda n: n.where(pc.field("n") < 3).select(n=pc.add(pc.field("n"), 1)))
counted.to_memory("counted")
with tempfile.TemporaryDirectory() as folder:
    if delta:
        counted.to_delta(folder + "/table")
        counted.to_delta(folder + "/current", keys=["n"], name="current")
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
        """Whether the archive has all its files unchanged: a JVM may crash on a part of an archive."""
        try:
            return bool(json.loads(self._index.read_bytes()) == self._contents())
        except (OSError, ValueError):
            return False

    @property
    def _index(self) -> Path:
        return self.folder / "index.json"

    def _contents(self) -> dict[str, object]:
        libraries, jars = (
            sorted(path.name for path in (self.home / part).iterdir() if path.exists())
            for part in (_LIBRARIES, "jars")
        )
        return {"archive": self.archive.stat().st_size, "libraries": libraries, "jars": jars}

    def make(self, packages: Sequence[str] = ()) -> None:
        """Make it, or make it again.

        Args:
            packages: "delta" and "kafka", whose jars are added.

        Raises:
            TimelyError: Spark does not run here, the packages cannot be had, or another process makes it.
        """
        with _locked(self.folder):
            self._index.unlink(missing_ok=True)
            _make(self.home, self.archive, packages)
            self._index.write_text(json.dumps(self._contents()))


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


def packages_of(names: Iterable[str]) -> list[tuple[str, str, str]]:
    """The group, name and version of Delta ("delta") and of the Kafka connector ("kafka") for this PySpark.

    Raises:
        SparkMissing: delta-spark is not installed.
    """
    from pyspark import __version__ as spark

    packages = []
    if "delta" in names:
        try:
            version = metadata.version("delta-spark")
        except metadata.PackageNotFoundError as error:
            msg = "configure(delta=True) needs delta-spark, and it is not installed."
            raise SparkMissing(msg, hint="pip install 'timely-spark[delta]'.") from error
        packages.append(("io.delta", f"delta-spark_{'.'.join(spark.split('.')[:2])}_2.13", version))
    if "kafka" in names:
        packages.append(("org.apache.spark", "spark-sql-kafka-0-10_2.13", spark))
    return packages


def has_settings() -> bool:
    """Whether the environment, or a file of Spark's, has settings for new sessions, such as a master."""
    defaults = Path(os.environ.get("SPARK_CONF_DIR") or _home() / "conf") / "spark-defaults.conf"
    return defaults.exists() or any(name in os.environ for name in _PLACES)


def _home() -> Path:
    """The SPARK_HOME of new sessions."""
    return Path(os.environ.get("SPARK_HOME") or _pyspark())


def has_installed_spark() -> bool:
    """Whether new sessions run the JVM's part of the PySpark that this process imports."""
    return (_home() / "bin").resolve() == _pyspark() / "bin"


def fetched(packages: Sequence[str], settings: Mapping[str, str]) -> list[str]:
    """The jars of packages and of all that they need, fetched once on this machine.

    A session with packages prints what Ivy does, some 80 lines at each start, and no setting of Spark's turns
    that off. A session with these jars has nothing to fetch, and needs no network.

    Args:
        packages: coordinates in Maven.
        settings: the session's settings ``spark.jars.*``, and Java's options.

    Returns:
        Their paths. Empty if the session has to fetch them itself: one of them is a snapshot, which changes,
        or Spark has settings that are not in `settings`, or the packages cannot be had.
    """
    changing = any(package.endswith("-SNAPSHOT") for package in packages)
    if changing or has_settings() or "SPARK_SUBMIT_OPTS" in os.environ:
        return []
    own = {key: value for key, value in settings.items() if key.startswith("spark.jars.")}
    digest = hashlib.sha256(json.dumps([*packages, own], sort_keys=True).encode()).hexdigest()[:8]
    try:
        index = place().folder / f"jars-{digest}.json"
        with suppress(OSError, ValueError):
            if all(map(os.path.exists, jars := json.loads(index.read_bytes()))):
                return list(jars)
        index.parent.mkdir(parents=True, exist_ok=True)
        sys.stderr.write(f"fetching {', '.join(packages)} from Maven, once on this machine\n")
        jars = list(map(str, _fetch(_home(), packages, {**IN_SPARK, **settings}, dict(os.environ))))
        index.write_text(json.dumps(jars))
    except (OSError, RuntimeError, TimelyError):  # RuntimeError: there is no home directory
        return []
    return jars if all(map(os.path.exists, jars)) else []


def prepare(
    home: Path,
    classes: Path,
    packages: Sequence[str],
    check: Callable[[Sequence[Path]], object] = lambda _: None,
) -> None:
    """Make a SPARK_HOME of links with the jars of packages, and an archive of the classes that it loads.

    Args:
        home: the folder.
        classes: the file of the archive.
        packages: "delta", "kafka".
        check: called with the packages' jars before a class of them is loaded; it raises if one is wrong.

    Raises:
        TimelyError: Spark does not run here, the packages cannot be had, or another process makes them.
    """
    with _locked(classes.parent):
        _make(home, classes, packages, check)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Refuse to prepare a folder that another process prepares: two JVMs would write one archive."""
    lock = Lock(Files(folder))
    if not lock.acquire():
        msg = f"another process prepares {folder}"
        raise TimelyError(msg, hint="wait until it has ended.")
    try:
        yield
    finally:
        lock.release()


def _make(
    home: Path,
    classes: Path,
    packages: Sequence[str],
    check: Callable[[Sequence[Path]], object] = lambda _: None,
) -> None:
    environment = {name: value for name, value in os.environ.items() if name not in _ELSEWHERE}
    _link(home)
    _link_jars(home, ())
    if packages:
        names = [":".join(package) for package in packages_of(packages)]
        jars = _fetch(home, names, IN_SPARK, environment)
        check(jars)
        _link_jars(home, jars)
    new = classes.with_suffix(".new")
    _archive(new, home, packages, environment)
    new.replace(classes)


def _link(home: Path) -> None:
    """Make `home` a SPARK_HOME of links into the installed PySpark, with folders for its zips of Python."""
    spark, libraries = _pyspark(), home / _LIBRARIES
    libraries.mkdir(parents=True, exist_ok=True)
    for part in _PARTS:
        (home / part).unlink(missing_ok=True)
        (home / part).symlink_to(spark / part)
    for path in (spark / _LIBRARIES).glob("*.zip"):
        _unpack(path, libraries / path.name)


def _link_jars(home: Path, packages: Iterable[Path]) -> None:
    """Give `home` Spark's jars and those of packages.

    Args:
        home: the folder.
        packages: further jars. What Spark has in another version is left out, as Spark's own classes come
            first in a session with packages, too.
    """
    jars = home / "jars"
    if jars.is_symlink():  # of an earlier version
        jars.unlink()
    shutil.rmtree(jars, ignore_errors=True)
    jars.mkdir()
    own = [*(_pyspark() / "jars").iterdir()]
    artifacts = {_artifact(jar.name) for jar in own}
    # Ivy's names begin with the group: com.example_name-1.0.jar
    more = [jar for jar in packages if _artifact(jar.name.partition("_")[2]) not in artifacts]
    for jar in (*own, *more):
        (jars / jar.name).symlink_to(jar)


def _artifact(jar: str) -> str:
    """The name of a jar without its version."""
    return re.split(r"-\d", jar, maxsplit=1)[0]


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


def _fetch(
    home: Path, packages: Sequence[str], settings: Mapping[str, str], environment: Mapping[str, str]
) -> list[Path]:
    """Have the Spark of `home` fetch packages and what they need from Maven, or Ivy's cache.

    Raises:
        TimelyError: it cannot.
    """
    with tempfile.TemporaryDirectory() as folder:
        jars = Path(folder) / "jars"
        settings = {**settings, "spark.jars.packages": ",".join(packages)}
        _run(_NAME_JARS, [str(jars), json.dumps(settings)], home, environment, "")
        return [Path(jar.removeprefix("file:")) for jar in jars.read_text().split(",") if jar]


def _archive(path: Path, home: Path, packages: Sequence[str], environment: Mapping[str, str]) -> None:
    """Run a small flow on the Spark of `home`. Its JVM archives the classes that it has loaded.

    Raises:
        TimelyError: Spark does not run, or its Java writes no archive.
    """
    _run(_FLOW, packages, home, environment, f'"-XX:ArchiveClassesAtExit={path}"')
    if not path.exists():
        msg = "Spark ran, and its Java has written no archive of classes"
        raise TimelyError(msg, hint="use a Java that shares class data, such as OpenJDK 17.")


def _run(
    program: str, arguments: Sequence[str], home: Path, environment: Mapping[str, str], java: str
) -> None:
    environment = {
        **environment,
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_SUBMIT_OPTS": f"{_SHORT} {java} -Xlog:disable",
    }
    # a process of its own: its JVM writes the archive when it ends, and holds the pipes until then
    command = [sys.executable, "-c", program, *arguments]
    tried = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)  # noqa: S603 - our own text
    if tried.returncode != 0:
        msg = f"a small program did not run on Spark:\n{tried.stdout}{tried.stderr}"
        hint = "check that JAVA_HOME, or the PATH, has Java 17 or newer"
        hint += ", and that Maven Central is reachable." if program == _NAME_JARS else "."
        raise TimelyError(msg, hint=hint)
