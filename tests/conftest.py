"""What every test may ask for: one Spark session and one broker for all, a checkpoint, and `--campaign`."""

from __future__ import annotations

import gc
import inspect
import os
import re
import shutil
import sys
import tempfile
from collections import Counter, defaultdict
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

from tests.support.sessions import hasten
from tests.support.stand_ins import CheckedPatch
from tests.support.turns import share

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

    from tests.support.broker import Broker
    from timely_spark import Dataflow

# Each process that Spark starts imports the package: compile it once, wherever bytecode is usually off.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# Before any JVM starts: Spark's Python workers are this interpreter, and its sockets stay on this machine.
os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
# The tests' files are in memory where there is room: some disks take milliseconds to sync or remove a file.
# All processes of the run inherit the folder, and JVMs load libraries from it. The first process holds a lock
# on it and removes it; what a killed run has left, the next one removes.
MEMORY, ROOM, OWN = "/dev/shm", 8 << 30, None
if (
    "TMPDIR" not in os.environ
    and os.access(MEMORY, os.W_OK)
    and shutil.disk_usage(MEMORY).free > ROOM
    and not os.statvfs(MEMORY).f_flag & os.ST_NOEXEC
):
    import fcntl

    def locked(folder: str | Path) -> bool:
        try:
            fcntl.flock(os.open(folder, os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True

    for left in filter(locked, Path(MEMORY).glob("timely-tests-*")):
        shutil.rmtree(left, ignore_errors=True)
    made = tempfile.mkdtemp(prefix="made-for-tests-", dir=MEMORY)
    locked(made)  # before another run can find it
    OWN = os.environ["TMPDIR"] = made.replace("made-for-tests", "timely-tests")
    os.rename(made, OWN)  # noqa: PTH104 - texts
    Path(OWN).chmod(0o711)  # a server of another user's has a folder in it
    tempfile.tempdir = None  # found anew
hasten()

# No deadline: the machine is small and shared. A campaign looks at many more examples, new ones each time.
settings.register_profile("timely", deadline=None, max_examples=10, derandomize=bool(os.environ.get("CI")))
settings.register_profile("campaign", deadline=None, max_examples=5_000, derandomize=False)


@pytest.fixture(scope="session")
def component_sizes() -> Callable[[], Dataflow]:
    """Makes a flow with a loop of exchanges: the nodes by the least node that leads to them, and how many."""
    import timely_spark as ts
    from tests.support.hops import spread

    def make() -> Dataflow:
        flow = ts.Dataflow("components")
        edges = flow.input("edges", "src long, dst long")

        labels = edges.select(node="src", label="src").loop(spread(edges))
        labels.capture("labels")
        labels.group_by("label").aggregate(nodes="count").capture("sizes")
        return flow

    return make


@pytest.fixture
def small_snapshots(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is published has snapshots of small epochs, too."""
    from timely_spark.runtime.storage.published import Published

    monkeypatch.setattr(Published.compact, "__defaults__", (0,))


@pytest.fixture
def shallow() -> Iterator[int]:
    """Half of the frames that a stack has usually: what recurses too deep does so with half as much."""
    usual = sys.getrecursionlimit()
    sys.setrecursionlimit(usual // 2)
    yield usual // 2
    sys.setrecursionlimit(usual)


@pytest.fixture(scope="session")
def paths() -> Callable[..., Dataflow]:
    """Makes a flow that hops along paths and keeps all nodes; a hop may pass through a function."""
    import timely_spark as ts

    def make(step: Callable[[Any], Any] | None = None) -> Dataflow:
        flow = ts.Dataflow("paths")
        edges, roots = flow.input("edges", "src long, dst long"), flow.input("roots", "node long")

        def hop(reached: ts.Stream) -> ts.Stream:
            links = reached.scope.enter(edges)
            targets = reached.join(links, left=["node"], right=["src"]).select(node="dst")
            targets = targets if step is None else targets.map(step, "node long", name="step")
            return targets.concat(reached).distinct(name="near")

        roots.loop(hop, name="hops").capture("out")
        return flow

    return make


@pytest.fixture(scope="session")
def interrupted_at() -> Callable[..., bool]:
    """Calls a function, and interrupts it at the n-th line of some files; whether there were fewer."""

    def call_until(line: int, call: Callable[[], object], *, files: tuple[str, ...]) -> bool:
        seen = 0

        def trace(frame: Any, event: str, _: Any) -> Any:
            nonlocal seen
            if not any(part in frame.f_code.co_filename for part in files):
                return None
            if event == "line":
                seen += 1
                if seen == line:
                    sys.settrace(None)
                    raise KeyboardInterrupt
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            call()
        except KeyboardInterrupt:
            return False
        finally:
            sys.settrace(before)
        return True

    return call_until


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--campaign", action="store_true", help="run the long randomised tests too")


def pytest_configure(config: pytest.Config) -> None:
    # Under CI the same examples every time.
    settings.load_profile("campaign" if config.getoption("--campaign") else "timely")


def pytest_unconfigure() -> None:
    if OWN is not None:
        shutil.rmtree(OWN, ignore_errors=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what uses Spark or a broker, and run it first; leave out the campaigns unless they were asked for.

    Of several processes the first one then has the long tests that start processes of their own, and all of
    the common session and of the broker: one warm JVM each. The others begin with the shortest tests, and
    take from the end of the first one's when they have none left: the slow tests without Spark, and at last
    some of the common session's. Tests of the broker and of Delta tables come before others of the session: a
    second broker, and Delta's first statements in another session, cost more than most tests. Then files with
    many tests come before others, as such tests are short: what another process takes is worth a session.
    """
    for item in items:
        names = getattr(item, "fixturenames", ())
        if "spark" in names:
            item.add_marker("spark")
        elif "broker" in names:
            item.add_marker("slow")
    _share(items)
    if not config.getoption("--campaign"):
        campaigns = [item for item in items if item.get_closest_marker("campaign")]
        config.hook.pytest_deselected(items=campaigns)
        items[:] = [item for item in items if not item.get_closest_marker("campaign")]
    turns = {item: (_turn(item), item.path) for item in items}
    many = Counter(turns.values())
    items.sort(key=lambda item: (turns[item][0], _warmth(item), -many[turns[item]]))


#: The tests here are laws, and what is slow of them has cases by the hundred: one of eight runs by default.
LAWS = {"coordinator", "differential", "graphs", "laws", "oracle", "times", "worker"}


def _share(items: list[pytest.Item]) -> None:
    """Leave to the campaign the cases that are not in a function's share."""
    cases: dict[str, dict[str, pytest.Item]] = defaultdict(dict)
    parts: dict[str, int] = {}
    for item in items:
        function, mark = item.nodeid.partition("[")[0], item.get_closest_marker("share")
        if mark or (item.get_closest_marker("slow") and item.path.parent.name in LAWS):
            parts[function] = mark.args[0] if mark else 8
            if not item.get_closest_marker("campaign"):
                cases[function][item.nodeid] = item
    for function, of in cases.items():
        for name in of.keys() - share(of, parts[function]):
            of[name].add_marker("campaign")


def _turn(item: pytest.Item) -> int:
    """When a test has its turn."""
    if {"spark", "broker"}.intersection(getattr(item, "fixturenames", ())):
        return 1
    return 0 if item.get_closest_marker("spark") else 2 if item.get_closest_marker("slow") else 3


def _warmth(item: pytest.Item) -> int:
    """What a test of the common session needs that is slow the first time: a broker, Delta, or neither."""
    if "broker" in getattr(item, "fixturenames", ()):
        return 0
    return 1 if _turn(item) == 1 and _meets_delta(item.path) else 2


@cache
def _meets_delta(path: Path) -> bool:
    """Whether a file names Delta, or looks at tables by `rows_of` of `tests/support/tables.py`."""
    text = path.read_bytes()
    return b"delta" in text or b"rows_of" in text


#: An expression of `-m` that only leaves out.
LEAVES_OUT = re.compile(r"not \w+(?: and not \w+)*")


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(collector: pytest.Module, obj: object) -> list[pytest.Item] | None:
    """Make no cases of functions that this run leaves out: they are half of all cases."""
    config, expression = collector.config, collector.config.getoption("markexpr")
    left_out = {*expression.split()} - {"not", "and"} if LEAVES_OUT.fullmatch(expression) else set[str]()
    if not config.getoption("--campaign"):
        left_out.add("campaign")
    if not inspect.isfunction(obj):
        return None
    marks = {mark.name for mark in [*getattr(obj, "pytestmark", ()), *collector.iter_markers()]}
    names = marks | ({"spark", "broker"} & {*inspect.signature(obj).parameters})
    return [] if names & left_out else None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[object]:
    """Collect without the garbage collector, which finds nothing then: a fifth of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """Thousands of collected tests stay: without this, walking over them is an eighth of all time."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


#: Delta Lake is made for one version of Spark each. On others (`make test-spark`) its tests are skipped, and
#: those of Kafka's connector, which may come later than Spark.
JARS = find_spec("delta") is not None
MISSING = ("Delta Lake", "'delta'", "delta-spark", "source: delta", "source: kafka", "no Kafka connector")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Iterator[None]:
    """Skip what fails because Delta Lake or Kafka's connector is not installed."""
    try:
        yield
    except Exception as error:
        if not JARS and any(sign in str(error) for sign in MISSING):
            pytest.skip("needs jars that are made for another Spark")
        raise


pytest_runtest_call = pytest_runtest_setup


@pytest.fixture
def monkeypatch() -> Iterator[pytest.MonkeyPatch]:
    """Pytest's, whose functions fail the test when they are called otherwise than they can be."""
    with CheckedPatch.context() as patch:
        yield patch


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The tuned session on two cores that all tests share: leave its configuration as it was."""
    from pyspark.sql import SparkSession

    import timely_spark
    from tests.support.sessions import SHORT

    local = {
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
        **SHORT,
    }
    builder = SparkSession.builder.master("local[2]").appName("timely_spark tests")
    builder = timely_spark.configure(builder, delta=JARS, kafka=JARS).config(map=local)
    session = builder.getOrCreate()
    yield session
    session.stop()


@pytest.fixture(autouse=True)
def _active_session(request: pytest.FixtureRequest) -> None:
    """Make the common session the active one: a test before may have used another, in another time zone."""
    if "spark" in request.fixturenames:
        session = request.getfixturevalue("spark")
        session._jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(session._jsparkSession)
        type(session)._activeSession = session


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """The broker of Kafka that all tests share: each has topics of its own."""
    from tests.support.broker import Broker

    with Broker(tmp_path_factory.mktemp("kafka")) as broker:
        yield broker


@pytest.fixture
def checkpoint(tmp_path: Path) -> Iterator[str]:
    """A place for one query's checkpoint; what still runs when the test ends is stopped, passed or not."""
    yield str(tmp_path / "checkpoint")
    if "pyspark" in sys.modules:  # not in the tests without Spark
        from pyspark.sql import SparkSession

        session = SparkSession.getActiveSession()
        for query in session.streams.active if session else ():
            query.stop()
