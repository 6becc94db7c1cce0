"""Spark sessions: settings for a new session, for an existing one, and for one query.

The gain of each setting was measured: a round of an empty operator takes 400 ms with defaults, 200 ms tuned.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from timely_spark.graph import refuse, with_checked_arguments
from timely_spark.runtime.arguments import check_session
from timely_spark.runtime.errors import NoSession, SparkMissing
from timely_spark.runtime.forks import PROGRAM, serve_forks
from timely_spark.runtime.prepare import (
    IN_SPARK,
    Prepared,
    fetched,
    has_installed_spark,
    has_settings,
    packages_of,
    place,
    prepared,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSource

_registered: WeakKeyDictionary[SparkSession, dict[str, list[str]]] = WeakKeyDictionary()
_changing: WeakKeyDictionary[SparkSession, threading.Lock] = WeakKeyDictionary()
_log = logging.getLogger(__name__)

NEEDED = (4, 2)
PARTITIONS = "spark.sql.shuffle.partitions"
#: Spark's default uses FileContext, which forks several processes per checkpoint file: 40 ms against 8 ms.
#: This one does not refuse an existing file, by which Spark detects a second driver; the round log's
#: `check_owner` does so instead.
FILE_MANAGER = {
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    )
}
#: Delta rebuilds a table's state with 50 tasks by default, after every commit: 2.4 s against 0.6 s per epoch
#: on 2 cores.
DELTA = {"spark.databricks.delta.snapshotPartitions": "2"}
_ENCRYPTED = (
    "spark.network.crypto.enabled",
    "spark.ssl.rpc.enabled",
    "spark.authenticate.enableSaslEncryption",
)
_HDFS_STORE = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
_STORE = "spark.sql.streaming.stateStore.providerClass"
#: What a flow's query needs, whatever the session has for its other queries: a state store for the few bytes
#: of each worker (RocksDB fails with `_RAW_FILES`, and the operator has no other formats), a log that lists
#: the offsets of sources by position, which `SparkLog` reads; and old dates in the one calendar of Arrow,
#: deltalake and other readers.
_OF_A_FLOW = {
    _STORE: _HDFS_STORE,
    "spark.sql.streaming.stateStore.checkpointFormatVersion": "1",
    "spark.sql.streaming.stateStore.encodingFormat": "unsaferow",
    "spark.sql.streaming.offsetLog.formatVersion": "1",
    "spark.sql.streaming.queryEvolution.enableSourceEvolution": "false",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.int96RebaseModeInWrite": "CORRECTED",
}
_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
#: Settings that take effect only before the JVM starts.
_AT_START = {
    "spark.python.unix.domain.socket.enabled": "true",  # Python's data path, without TCP
    "spark.ui.enabled": "false",
    "spark.locality.wait": "100ms",  # a state partition waits 3 s for a busy executor otherwise
}
#: No .crc files and no chmod processes. RocksDB's commit fails with this setting, so only the HDFS-backed
#: store gets it.
_RAW_FILES = {"spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem"}
#: Cheaper process starts; and a larger stack for the regular expression with which Spark reads a Python
#: traceback when a query is stopped in a batch.
_JAVA = {"launchMechanism": "-Djdk.lang.Process.launchMechanism=VFORK", "-Xss": "-Xss16m"}
#: By default the JVM optimises a method after 5,000 calls: half of a session's first seconds go there. With
#: ten times as many calls, a session begins in less processor time, and has its full speed a second later.
_OPTIMISED_LATER = (
    "-XX:Tier4InvocationThreshold=50000 -XX:Tier4MinInvocationThreshold=6000 "
    "-XX:Tier4CompileThreshold=150000 -XX:Tier4BackEdgeThreshold=400000"
)
_PROGRESS = "spark.ui.showConsoleProgress"
_PACKAGES = "spark.jars.packages"
#: Warnings and errors, without those that say nothing new of a healthy query.
_LOGGING = Path(__file__).with_name("log4j2.properties")
_JAVA_OPTIONS = ("spark.driver.extraJavaOptions", "spark.executor.extraJavaOptions")


def require_spark() -> None:
    """Check that PySpark is installed and new enough, and let Spark's workers run this Python."""
    try:
        from pyspark import __version__
    except ImportError as error:
        msg = "timely_spark needs PySpark 4.2 to run a flow, and none is installed."
        hint = (
            "pip install 'timely-spark[spark]' (a platform such as Databricks brings its own); "
            "timely_spark.testing runs a flow without Spark."
        )
        raise SparkMissing(msg, hint=hint) from error
    if tuple(int(part) for part in re.findall(r"\d+", __version__)[:2]) < NEEDED:
        msg = f"timely_spark needs PySpark 4.2 or newer; found {__version__}."
        hint = "pip install 'timely-spark[spark]', or choose a runtime with Spark 4.2."
        raise SparkMissing(msg, hint=hint)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


@with_checked_arguments
def configure(
    builder: SparkSession.Builder,
    *,
    delta: bool = False,
    kafka: bool = False,
    extra_packages: Sequence[str] = (),
    quiet: bool = True,
) -> SparkSession.Builder:
    """A builder with tuned settings; settings that the builder has already do not change.

    What `python -m timely_spark prepare` has made is used if the session is on this machine (the builder's
    master is `local[...]`, or nothing names one), unless the environment has a SPARK_HOME: it is set then, in
    this process and those that it starts. Jars of Delta and Kafka that such a session's SPARK_HOME has are
    not fetched. Others are fetched by this call, once on a machine, in a Spark of their own. A Spark Connect
    server has its settings and packages from its own start: its sessions stay as they are.

    Args:
        builder: `SparkSession.builder`, with your own settings.
        delta: also set up Delta Lake (needs the extra `delta`; its jars come from Maven).
        kafka: also set up Spark's Kafka connector (its jars come from Maven).
        extra_packages: Maven coordinates beside those that the builder has, for example of a JDBC driver.
        quiet: leave out progress bars, the lines of Ivy about packages, and the warnings that Spark repeats
            at each start and stop of a healthy query. Logging settings of your own (a `log4j2` file of
            Spark's, or a Java option) stay.

    Example:
        >>> from pyspark.sql import SparkSession
        >>> spark = configure(SparkSession.builder.master("local[2]")).getOrCreate()  # doctest: +SKIP

    Raises:
        SparkMissing: PySpark, or with `delta` delta-spark, is not installed; or PySpark is older than 4.2.
        BadArgument: an argument is of another kind.
    """
    require_spark()
    _check_arguments(builder, extra_packages)
    options: Mapping[str, object] = builder._options  # noqa: SLF001 - the only way not to overwrite the user's choice
    if "spark.remote" in options or "SPARK_REMOTE" in os.environ:
        return builder  # the server has its settings already, and packages; `start` sets those of the query
    cores = str(os.cpu_count() or 2)
    confs = {PARTITIONS: cores, **FILE_MANAGER, **_AT_START}
    if options.get(_STORE, _HDFS_STORE) == _HDFS_STORE:
        confs |= _RAW_FILES
    builder = _with_java_options(builder, options, _prepared(options), quiet=quiet)
    _choose_python(options)
    if delta:
        confs |= {
            "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
            **DELTA,
        }
    packages = _listed(options, _PACKAGES)
    if delta or kafka:
        packages += _packages(options, delta=delta, kafka=kafka)
        confs |= IN_SPARK
    packages = list(dict.fromkeys([*packages, *extra_packages]))  # the builder may have been here before
    for key, value in confs.items():
        if key not in options:
            builder = builder.config(key, value)
    if packages and quiet and _PACKAGES not in options and _on_this_machine(options):
        about = {key: str(options[key]) for key in options if key.startswith("spark.jars.")}
        if jars := fetched(packages, {**about, _JAVA_OPTIONS[0]: str(options[_JAVA_OPTIONS[0]])}):
            jars = list(dict.fromkeys([*_listed(options, "spark.jars"), *jars]))
            return builder.config("spark.jars", ",".join(jars))
    return builder.config(_PACKAGES, ",".join(packages)) if packages else builder


def _listed(options: Mapping[str, object], key: str) -> list[str]:
    """The values of a setting that is a list."""
    return [value for value in str(options.get(key, "")).split(",") if value]


def _check_arguments(builder: Any, packages: Any) -> None:
    """Check the kinds of the arguments of `configure`."""
    if not hasattr(builder, "_options"):
        hint = "write configure(SparkSession.builder).getOrCreate(); tune(spark) is for a session."
        refuse(builder, what="builder", expected="a SparkSession.Builder", hint=hint)
    if not isinstance(packages, list | tuple) or not all(isinstance(each, str) for each in packages):
        hint = 'write extra_packages=["group:artifact:version"].'
        refuse(packages, what="extra_packages", expected="a list of texts", hint=hint)


def _packages(options: Mapping[str, object], *, delta: bool, kafka: bool) -> list[str]:
    """The Maven coordinates of what a session needs and its SPARK_HOME, if it is on this machine, lacks."""
    packages = packages_of([name for name, asked in (("delta", delta), ("kafka", kafka)) if asked])
    home = os.environ.get("SPARK_HOME")
    local = bool(home) and _on_this_machine(options)
    jars = [jar.name for jar in Path(home or "", "jars").glob("*.jar")] if local else []
    names = {*jars, *(jar.partition("_")[2] for jar in jars)}  # those of Ivy begin with a group
    return [
        f"{group}:{name}:{version}"
        for group, name, version in packages
        if f"{name}-{version}.jar" not in names
    ]


def _on_this_machine(options: Mapping[str, object]) -> bool:
    """Whether the builder's master is this machine, as Spark's default is where nothing else has settings."""
    master = options.get("spark.master")
    return not has_settings() if master is None else bool(re.match(r"local($|\[)", str(master)))


def _choose_python(options: Mapping[str, object]) -> None:
    """Let Spark's Python processes on this machine be forks, unless the user has chosen their Python."""
    if not _chosen_by_user(os.environ["PYSPARK_PYTHON"]):
        forks = None
        if _on_this_machine(options) and "PYSPARK_GATEWAY_PORT" not in os.environ:
            with suppress(RuntimeError):  # there is no home directory
                if has_installed_spark():  # else Spark's Python is another one's
                    forks = serve_forks(place().folder)
        os.environ["PYSPARK_PYTHON"] = forks or sys.executable


def _chosen_by_user(python: str) -> bool:
    return python != sys.executable and Path(python).name != PROGRAM


def _prepared(options: Mapping[str, object]) -> Prepared | None:
    """Settings that let a session on this machine start sooner; sets SPARK_HOME, unless the user has one."""
    if _on_this_machine(options) and (ready := prepared()):
        home = str(ready.home)
        if os.environ.setdefault("SPARK_HOME", home) == home:
            return ready
    return None


def _with_java_options(
    builder: SparkSession.Builder, configured: Mapping[str, object], ready: Prepared | None, *, quiet: bool
) -> SparkSession.Builder:
    settings = os.environ.get("SPARK_CONF_DIR") or f"{os.environ.get('SPARK_HOME')}/conf"
    if quiet and _PROGRESS not in configured:
        builder = builder.config(_PROGRESS, "false")
    quiet = quiet and _LOGGING.is_file() and not any(Path(settings).glob("log4j2.*"))
    for key in _JAVA_OPTIONS:
        options = str(configured.get(key, ""))
        more = [option for mark, option in _JAVA.items() if mark not in options]
        if ready is not None and key == _JAVA_OPTIONS[0] and "SharedArchiveFile" not in options:
            more.append(ready.java_options)
        if key == _JAVA_OPTIONS[0] and _on_this_machine(configured) and "-XX:Tier" not in options:
            more.append(_OPTIMISED_LATER)
        if quiet and key == _JAVA_OPTIONS[0] and "log4j" not in options:
            more.append(f"-Dlog4j2.configurationFile={_LOGGING.as_uri()}")
        if more:
            builder = builder.config(key, " ".join([options, *more]).strip())
    return builder


@contextmanager
def quietly() -> Iterator[None]:
    """Hide the output of the starting JVM about its jars, unless it fails to start."""
    sys.stderr.flush()
    terminal = os.dup(2)
    with tempfile.TemporaryFile() as output:
        os.dup2(output.fileno(), 2)
        try:
            yield
        except BaseException:
            output.seek(0)
            os.write(terminal, output.read())
            raise
        finally:
            os.dup2(terminal, 2)
            os.close(terminal)


@with_checked_arguments
def tune(session: SparkSession) -> list[str]:
    """Tune an existing session for all its queries; returns the settings that cannot change.

    `start` does the same for its own query only, and then restores the session.

    Args:
        session: the session, classic or of Spark Connect.

    Returns:
        One line per setting that cannot change: its name, and the reason.

    Example:
        >>> tune(spark)  # doctest: +SKIP
        ['spark.ui.enabled: must be set before the session starts; use timely_spark.configure']

    Raises:
        BadArgument: it is not a session.
    """
    check_session(session, "call tune(spark); configure(SparkSession.builder) is for a new session.")
    confs = {PARTITIONS: str(cores(session) or os.cpu_count() or 2), **FILE_MANAGER}
    missed = [f"{key}: {reason}" for key, _, reason in _set(session, confs) if reason]
    for key, value in {**_AT_START, **_RAW_FILES}.items():
        if session.conf.get(key, None) != value:
            missed.append(f"{key}: must be set before the session starts; use timely_spark.configure")
    return missed


def own_settings(session: SparkSession, *, local: bool) -> dict[str, str]:
    """The settings that a flow's query needs, and the session has otherwise.

    Args:
        local: whether the checkpoint is on this machine's file system.
    """
    settings = (FILE_MANAGER if local else {}) | {
        key: value for key, value in _OF_A_FLOW.items() if session.conf.get(key, value) != value
    }
    if int(session.conf.get(_ROWS, None) or 1) <= 0:  # no limit, which Spark's sources in Python refuse
        settings[_ROWS] = "10000"
    return settings


@contextmanager
def applied(session: SparkSession, confs: Mapping[str, str]) -> Iterator[list[str]]:
    """Set confs while a query is started, which copies them; then restore the session's values.

    Threads that do so with one session take turns: else one would restore another's values.

    Yields:
        One line per conf that could not be set.
    """
    with _changing.setdefault(session, threading.Lock()):
        done = _set(session, confs)
        try:
            yield [f"{key}: {reason}" for key, _, reason in done if reason]
        finally:
            for key, old, reason in done:
                if reason:
                    continue
                if old is None:
                    session.conf.unset(key)
                else:
                    session.conf.set(key, old)


def _set(session: SparkSession, confs: Mapping[str, str]) -> list[tuple[str, str | None, str]]:
    """Set confs; returns (conf, its old value, the reason why it could not be set or "")."""
    done: list[tuple[str, str | None, str]] = []
    for key, value in confs.items():
        old = None
        try:
            old = session.conf.get(key, None)
            session.conf.set(key, value)
        except Exception as error:  # noqa: BLE001 - platforms refuse confs with errors of many kinds; this is best effort
            reason = str(error).partition("\n")[0]
            _log.debug("conf %s was not set: %s", key, reason)
            done.append((key, old, reason or type(error).__name__))
        else:
            done.append((key, old, ""))
    return done


def register(session: SparkSession, source: type[DataSource]) -> None:
    """Register a Python data source with the session.

    Spark warns of a repeated registration, so it is repeated only if `sys.path` has changed: a registration
    has the --py-files of its time, and `addPyFile` adds others.
    """
    paths = _registered.setdefault(session, {})
    if paths.get(source.name()) != sys.path:
        try:
            session.dataSource.register(source)
        except Exception as error:
            if "DATA_SOURCE_ALREADY_EXISTS" not in str(error):
                raise
            # Spark looks for the name in the active session, which has it, where this is another one
            with _active_in_jvm(session):
                session.dataSource.register(source)
        paths[source.name()] = [*sys.path]


@contextmanager
def _active_in_jvm(session: SparkSession) -> Iterator[None]:
    """Let the JVM's active session, which each thread has of its own, be this one; not under Connect.

    The JVM looks there for the names of registered sources. PySpark's active session, which is that of the
    process, does not change.
    """
    jvm = getattr(session, "_jvm", None)
    if jvm is None:
        yield
        return
    sessions = jvm.org.apache.spark.sql.classic.SparkSession
    active = sessions.getActiveSession()
    sessions.setActiveSession(session._jsparkSession)  # noqa: SLF001 - PySpark has no other way to set it
    try:
        yield
    finally:
        if active.isDefined():
            sessions.setActiveSession(active.get())
        else:
            sessions.clearActiveSession()


def active_session(session: SparkSession | None) -> SparkSession:
    """The given session, or the active one."""
    from pyspark.sql import SparkSession

    session = session if session is not None else SparkSession.getActiveSession()
    if session is None:
        msg = "No Spark session was given and none is active."
        hint = "call start(timely_spark.configure(SparkSession.builder).getOrCreate(), ...)."
        raise NoSession(msg, hint=hint)
    if has_stopped(session):
        msg = "The Spark session was stopped."
        hint = "make another: spark = timely_spark.configure(SparkSession.builder).getOrCreate()."
        raise NoSession(msg, hint=hint)
    return session


def same_python(session: SparkSession) -> None:
    """Let the workers of a session that was made before `require_spark` run this Python, too.

    PySpark reads PYSPARK_PYTHON when it makes the context; without the variable, workers run the first
    `python3` of the PATH, which may not have this library. A user's own choice does not change. Clusters do
    not change either: their machines may not have this Python. But they certainly lack the program of forks,
    which a session that was made without `configure` inherits from one on this machine.
    """
    python = os.environ.get("PYSPARK_PYTHON", "")
    if _chosen_by_user(python):
        return
    try:
        context = session.sparkContext
        if not str(context.master).startswith("local"):
            python = sys.executable if Path(context.pythonExec).name == PROGRAM else context.pythonExec
        if context.pythonExec != python:
            _log.info("Spark's workers ran %s; now they run %s", context.pythonExec, python)
            context.pythonExec = python
    except Exception:  # noqa: BLE001 - no context under Connect; this is best effort
        _log.debug("the workers' Python was not set", exc_info=True)


def refuse_wheel(session: SparkSession, place: str = __file__) -> None:
    """Refuse a wheel of this package in --py-files: the driver imports from it, and Spark's tasks cannot.

    `place` is the file from which the driver has this package.
    """
    try:
        files = str(session.conf.get("spark.submit.pyFiles", "") or "").split(",")
    except Exception:  # noqa: BLE001 - an internal setting, which a platform may hide
        return
    for wheel in (path.rpartition("/")[2] for path in files if path.endswith(".whl")):
        if f"{wheel}/" in place.replace(os.sep, "/"):
            msg = f"--py-files has {wheel}, and Spark's tasks import from .zip, .egg and .py files only"
            hint = "copy the wheel to timely_spark.zip and give that; or install it on every machine."
            raise SparkMissing(msg, hint=hint)


def on_one_machine(session: SparkSession) -> bool:
    """Whether driver and executors surely share a file system; False under Connect, where it is unknown."""
    try:
        return str(session.sparkContext.master).startswith("local")
    except Exception:  # noqa: BLE001 - no context under Connect
        return False


def is_local_server(session: SparkSession) -> bool:
    """Whether a Spark Connect server runs its driver and executors in one process."""
    try:
        return on_one_machine(session) is False and str(session.conf.get("spark.master")).startswith("local")
    except Exception:  # noqa: BLE001 - a server may hide its settings
        return False


def cores(session: SparkSession) -> int | None:
    """The number of tasks that run at once; None means unknown (Connect)."""
    try:
        return int(session.sparkContext.defaultParallelism)
    except Exception:  # noqa: BLE001 - JVM_ATTRIBUTE_NOT_SUPPORTED and its kin
        return None


def no_parallel_rounds(session: SparkSession) -> str:
    """The reason why Spark's tasks cannot exchange directly; empty if they can.

    Where Spark encrypts its own traffic, the tasks must not exchange data in the clear.
    """

    def is_on(key: str) -> bool:
        return str(session.conf.get(key, "false")).lower() == "true"

    if not slots(session):
        return "the number of Spark's slots is unknown (Spark Connect)"
    if is_on(dynamic := "spark.dynamicAllocation.enabled"):
        return f"Spark has no barrier stages with dynamic allocation: set {dynamic}=false"
    if encrypted := next(filter(is_on, _ENCRYPTED), None):
        return f"{encrypted} asks for encryption, and tasks would exchange data in the clear"
    return ""


def slots(session: SparkSession) -> int:
    """The number of tasks that a barrier stage may have now; 0 if it is unknown.

    A barrier stage with more tasks than slots would wait for ten minutes, and then fail.
    """
    try:
        context = session.sparkContext._jsc.sc()  # noqa: SLF001 - best effort: nothing public tells
        profile = context.resourceProfileManager().defaultResourceProfile()
        return max(1, int(context.maxNumConcurrentTasks(profile)))
    except Exception:  # noqa: BLE001 - no context under Connect
        return 0


def await_slots(session: SparkSession, tasks: int, within: float) -> None:
    """Wait until a barrier stage may have so many tasks, for so many seconds at most."""
    until = time.monotonic() + within
    while slots(session) < tasks and time.monotonic() < until:
        time.sleep(0.1)


def partitions_for(session: SparkSession, workers: int) -> int:
    """The number of shuffle partitions; each costs a task and a Python session in every round."""
    return max(1, min(workers, cores(session) or workers))


def page_of(session: SparkSession) -> str | None:
    """The address of Spark's own page; None if it has none, or a server knows it."""
    try:
        return session.sparkContext.uiWebUrl
    except Exception:  # noqa: BLE001 - Spark Connect has no SparkContext
        return None


def has_stopped(session: SparkSession | None) -> bool:
    """Whether the context of a session was stopped, and its queries with it; False under Connect."""
    if session is None:
        return False
    try:
        context = session.sparkContext
    except Exception:  # noqa: BLE001 - no context under Connect
        return False
    try:
        return int(context.defaultParallelism) < 0
    except Exception as error:  # noqa: BLE001 - a call that failed otherwise, as after an interrupt, tells nothing
        return isinstance(error, AttributeError) or "stopped SparkContext" in str(error)
