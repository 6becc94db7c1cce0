"""The jobs by spark-submit on a standalone cluster whose machines have Spark's Python and nothing of ours."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import subprocess
import sysconfig
import time
import venv
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import networkx as nx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from tests.docs.test_examples import files
from tests.support import standalone
from tests.support.broker import Broker
from tests.support.points import kill_session

ROOT = Path(__file__).parents[2]
JOBS = ROOT / "jobs"
#: For processes that live for seconds: the options of tests/conftest.py.
YOUNG = os.environ["SPARK_SUBMIT_OPTS"]

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SPARK_HOME with PySpark's zips, as clusters have them, and the jars whose classes are archived."""
    home = tmp_path_factory.mktemp("home")
    for part in ("bin", "python"):
        (home / part).symlink_to(standalone.installed() / part)
    (home / "jars").symlink_to(Path(os.environ.get("SPARK_HOME", standalone.installed())) / "jars")
    return home


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, home: Path) -> Iterator[Any]:
    with standalone.Cluster(tmp_path_factory.mktemp("cluster"), daemons=YOUNG, home=home) as running:
        yield running


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter with all that Spark needs, and without this package.

    Our libraries are lent to it by a .pth line. In a folder lent so Python reads no .pth files, and the
    editable install of this project is one.
    """
    home = tmp_path_factory.mktemp("bare")
    venv.create(home, with_pip=False, symlinks=True)
    (site,) = home.glob("lib/python*/site-packages")
    lent = dict.fromkeys(sysconfig.get_path(kind) for kind in ("purelib", "platlib"))
    (site / "lent.pth").write_text("\n".join(lent), encoding="utf-8")
    python = home / "bin" / "python"
    code = "import importlib.util, pyarrow; assert importlib.util.find_spec('timely_spark') is None"
    subprocess.run([python, "-I", "-c", code], check=True)
    return python


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """timely_spark.zip, as the README says."""
    folder = tmp_path_factory.mktemp("package")
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "timely_spark", folder / "sources" / "timely_spark", ignore=ignore)
    return Path(shutil.make_archive(str(folder / "timely_spark"), "zip", folder / "sources"))


@pytest.fixture
def module(tmp_path: Path) -> Callable[[str], Path]:
    """An archive with `vertices.py` as a module of the given name."""

    def archive(name: str) -> Path:
        (tmp_path / name).mkdir()
        shutil.copy(Path(__file__).with_name("vertices.py"), tmp_path / name / f"{name}.py")
        return Path(shutil.make_archive(str(tmp_path / name), "zip", tmp_path / name))

    return archive


@pytest.fixture
def submit(
    request: pytest.FixtureRequest, bare_python: Path, home: Path, tmp_path: Path
) -> Iterator[Callable[..., Any]]:
    """spark-submit in client mode, from an empty directory; what still runs when the test ends is ended.

    Without a master it starts the cluster.
    """
    started: list[Any] = []
    (empty := tmp_path / "empty").mkdir()

    def start(job: Path, *args: Any, shipped: list[Any], path: str = "", master: str = "") -> Any:
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        environment |= {"PYTHONPATH": path} if path else {}
        environment |= dict.fromkeys(("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"), str(bare_python))
        confs = {
            "spark.cores.max": 2,
            "spark.scheduler.minRegisteredResourcesRatio": 1,  # nothing runs before both executors are there
            "spark.executor.memory": "512m",
            "spark.driver.memory": "512m",
            "spark.executor.defaultJavaOptions": YOUNG,
            "spark.driver.defaultJavaOptions": YOUNG,
        }
        master = master or request.getfixturevalue("cluster").url
        local = {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_LOCAL_DIRS": str(tmp_path / "local")}
        local["SPARK_HOME"] = str(home)
        options = [option for name, value in confs.items() for option in ("--conf", f"{name}={value}")]
        spark_submit = home / "bin" / "spark-submit"
        command = [
            *standalone.TIED, "bash", spark_submit, "--master", master,
            "--properties-file", ROOT / "conf" / "timely.properties", *options, *shipped,
            job, *args,
        ]  # fmt: skip
        with (tmp_path / "stderr").open("wb") as errors:
            running = subprocess.Popen(
                list(map(str, command)), cwd=empty, env=environment | local,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, text=True,
                start_new_session=True,
            )  # fmt: skip
        started.append(running)
        return running

    yield start
    for running in started:
        kill_session(running.pid)
        running.stdout.close()
        running.wait()


def finished(running: Any, folder: Path) -> str:
    """What it printed until it ended well."""
    printed = running.communicate()[0]
    assert running.returncode == 0, printed + (folder / "stderr").read_text(encoding="utf-8")[-5000:]
    return printed


def delta_rows(table: Path) -> list[dict[str, Any]]:
    """The rows of a Delta table to which files were only added."""
    commits = sorted((table / "_delta_log").glob("*.json"))
    actions = [json.loads(line) for commit in commits for line in commit.read_text().splitlines()]
    assert not any("remove" in action for action in actions)
    files = [table / action["add"]["path"] for action in actions if "add" in action]
    return [row for file in files for row in pq.ParquetFile(file).read().to_pylist()]


def in_order(folder: Path) -> None:
    """Give the files times by which Spark takes them in the order of their names."""
    for number, file in enumerate(sorted(folder.iterdir())):
        os.utime(file, (1_600_000_000 + number,) * 2)


@pytest.mark.campaign  # a page of tests/docs adds a module to its session; executors get the package below
@pytest.mark.parametrize("where", [{"master": "local[2]"}, {}], ids=["local", "cluster"])
def test_vertices_of_modules_that_are_shipped(
    submit: Any, package: Path, module: Any, tmp_path: Path, where: dict[str, str]
) -> None:
    shipped = ["--py-files", f"{package},{module('first')}"]

    job = Path(__file__).with_name("shipped.py")
    printed = finished(
        submit(job, tmp_path / "checkpoints", module("later"), shipped=shipped, **where), tmp_path
    )

    said = printed.splitlines()
    assert f"found in {package}" in said[0]
    assert said[1:] == [
        "totals {0: [(14,)]}",
        "totals {0: [(14,)]}",
        "totals {0: [(14,)], 1: [(14,)]}",
    ]


@pytest.mark.campaign
def test_word_count_with_the_package_in_py_files(submit: Any, package: Path, tmp_path: Path) -> None:
    texts = ["To be, or not to be", "that is the question", "the question is not to be"]
    (tmp_path / "in").mkdir()
    for number, text in enumerate(texts):
        (tmp_path / "in" / f"{number}.txt").write_text(text, encoding="utf-8")
    in_order(tmp_path / "in")

    args = ["--input", tmp_path / "in", "--output", tmp_path / "out", "--checkpoint", tmp_path / "ck"]
    printed = finished(
        submit(JOBS / "wordcount.py", *args, "--files-per-epoch", 1, shipped=["--py-files", package]),
        tmp_path,
    )

    assert re.findall(r"^epoch (\d+):", printed, re.MULTILINE) == ["0", "1", "2"]
    total: Counter[str] = Counter()
    expected = []
    for epoch, text in enumerate(texts):
        new = re.findall(r"\w+", text.lower())
        total.update(new)
        expected += [(epoch, word, total[word]) for word in set(new)]
    assert sorted(tuple(row.values()) for row in delta_rows(tmp_path / "out")) == sorted(expected)


def of_killed(
    submit: Any, cluster: Any, package: Path, tmp_path: Path, kind: str, *confs: str, workers: int
) -> tuple[str, dict[str, str], int]:
    """What `killed.py` printed, also by the first word of a line; and in how many executors its tasks ran."""
    missing = workers - sum(name.startswith("worker") for name in cluster.processes)  # another test kills one
    cluster.add(*(f"worker-{kind}-{number}" for number in range(missing)))
    (noted := tmp_path / "noted").mkdir()
    confs = (f"spark.cores.max={workers}", *confs)
    shipped = ["--py-files", package, *(option for conf in confs for option in ("--conf", conf))]

    printed = finished(submit(Path(__file__).with_name("killed.py"), kind, noted, shipped=shipped), tmp_path)

    assert (noted / "killed").exists()
    executors = sum(file.name.startswith("executor-") for file in noted.iterdir())
    return printed, dict(line.split(" ", 1) for line in printed.splitlines() if " " in line), executors


@pytest.mark.campaign
def test_a_loop_whose_executors_exchange_directly_while_one_is_killed(
    submit: Any, cluster: Any, package: Path, tmp_path: Path
) -> None:
    printed, found, executors = of_killed(submit, cluster, package, tmp_path, "parallel", workers=2)

    assert "the parallel rounds of batch 0 run again: " in printed
    assert found["reached"] == "all True"
    assert int(found["rounds"]) > 20 * int(found["epochs"]), "the rounds of an epoch are in its micro-batch"
    assert executors == 3, "two took part, and a third one took the place of the killed one"


@pytest.mark.campaign  # three executors, and a fourth; tests/spark has the same with one task
def test_tasks_that_stay_go_on_when_an_executor_is_killed(
    submit: Any, cluster: Any, package: Path, tmp_path: Path
) -> None:
    printed, found, executors = of_killed(submit, cluster, package, tmp_path, "staying", workers=3)

    assert (found["reached"], found["epochs"]) == ("all True", "25")
    assert "a task that hosts workers was lost" in printed
    assert "tasks of Spark's that stay" in found["residency"]
    assert int(found["micro-batches"]) <= 5, "Spark has planned far fewer than there were epochs"
    assert executors >= 2, "two took part"


@pytest.mark.campaign  # a minute without work
def test_tasks_that_stay_outlive_decommissioning_and_speculation_and_are_given_back_at_rest(
    submit: Any, cluster: Any, package: Path, tmp_path: Path
) -> None:
    speculative = (
        "spark.speculation=true", "spark.speculation.interval=50ms", "spark.speculation.multiplier=1.1",
        "spark.speculation.quantile=0.1", "spark.speculation.minTaskRuntime=10ms",
    )  # fmt: skip
    printed, found, _ = of_killed(
        submit, cluster, package, tmp_path, "decommissioned", "spark.decommission.enabled=true", *speculative,
        workers=3,
    )  # fmt: skip

    assert (found["reached"], found["epochs"]) == ("all True", "26")
    assert "was lost" not in printed, "a task goes on in an executor that is to go"
    assert "Decommission" in (tmp_path / "stderr").read_text(encoding="utf-8")
    assert (found["jobs-at-work"], found["jobs-at-rest"]) == ("1", "0")
    assert 1 <= int(found["jobs-since"]) <= 3, "tasks are taken again"
    assert "tasks of Spark's that stay" in found["residency"]


@pytest.mark.campaign
def test_components_from_an_archive_while_a_worker_is_killed(
    submit: Any, cluster: Any, package: Path, tmp_path: Path
) -> None:
    draw = random.Random(7)
    edges = [[(draw.randrange(80), draw.randrange(80)) for _ in range(20)] for _ in range(5)]
    (tmp_path / "in").mkdir()
    for number, drawn in enumerate(edges):
        table = pa.table(dict(zip(("src", "dst"), zip(*drawn, strict=True), strict=True)))
        pq.write_table(table, tmp_path / "in" / f"{number}.parquet")
    in_order(tmp_path / "in")
    before = cluster.executors("worker-0")
    # unpacked on each executor, beside which its Python looks; the driver has to be told by itself
    shipped = ["--archives", f"{package}#package", "--conf", "spark.executorEnv.PYTHONPATH=package"]
    args = ["--edges", tmp_path / "in", "--output", tmp_path / "out", "--checkpoint", tmp_path / "ck"]

    running = submit(
        JOBS / "connected_components.py", *args, "--files-per-epoch", 1, shipped=shipped, path=str(package)
    )
    first = running.stdout.readline()
    worked = cluster.executors("worker-0") != before
    cluster.kill("worker-0")
    printed = finished(running, tmp_path)

    assert worked, "no executor was lost"
    assert "Lost executor" in (tmp_path / "stderr").read_text(encoding="utf-8"), "it was over already"
    assert re.findall(r"^epoch (\d+):", first + printed, re.MULTILINE) == ["0", "1", "2", "3", "4"]
    changes = delta_rows(tmp_path / "out")
    for epoch in range(5):
        graph = nx.Graph([edge for drawn in edges[: epoch + 1] for edge in drawn])
        expected = {(node, min(part)): 1 for part in nx.connected_components(graph) for node in part}
        answer: Counter[tuple[int, int]] = Counter()
        for row in changes:
            if row["epoch"] <= epoch:
                answer[row["node"], row["component"]] += row["diff"]
        assert {record: times for record, times in answer.items() if times} == expected


@pytest.mark.campaign
def test_the_job_of_the_story_reads_kafka_and_writes_delta(
    submit: Any, package: Path, tmp_path: Path, spark: SparkSession
) -> None:
    page = (ROOT / "docs" / "story.md").read_text(encoding="utf-8")
    job = tmp_path / "rings.py"
    job.write_text(files(page)["rings.py"])
    paid = spark.createDataFrame(
        [(1, 2, 1), (2, 3, 1), (3, 1, 1), (4, 1, 1)], "src long, dst long, diff long"
    )
    jars = re.search(r"--packages (\S+)", page)
    assert jars is not None

    with Broker(tmp_path) as broker:
        to = {"kafka.bootstrap.servers": broker.servers, "topic": "transfers"}
        paid.selectExpr("to_json(struct(*)) AS value").write.format("kafka").options(**to).save()
        shipped = ["--conf", f"spark.jars.packages={jars[1]}", "--py-files", package]
        running = submit(job, broker.servers, tmp_path / "rings", 2, shipped=shipped)
        table, found = tmp_path / "rings" / "table", set[int]()
        until = time.monotonic() + 200
        while time.monotonic() < until and running.poll() is None and not found:
            time.sleep(1)
            if any(table.glob("_delta_log/*.json")):
                found = {row.node for row in spark.read.format("delta").load(str(table)).collect()}

    assert found == {1, 2, 3}, (tmp_path / "stderr").read_text(encoding="utf-8")[-5000:]


@pytest.mark.campaign  # whether Spark starts a second attempt in time is up to its clock
def test_a_task_that_is_run_twice_by_speculation_counts_once(
    submit: Any, package: Path, tmp_path: Path
) -> None:
    confs = {
        "spark.speculation": "true",
        "spark.speculation.interval": "100ms",
        "spark.speculation.multiplier": "1.1",
        "spark.speculation.quantile": "0.5",
    }
    shipped = [option for name, value in confs.items() for option in ("--conf", f"{name}={value}")]
    (attempts := tmp_path / "attempts").mkdir()
    job = Path(__file__).with_name("speculated.py")

    printed = finished(submit(job, attempts, shipped=["--py-files", package, *shipped]), tmp_path)

    assert printed.splitlines() == ["captured True"]
    second = [file.name for file in attempts.iterdir() if not file.name.endswith("-0")]
    assert second, "no task was run twice"
