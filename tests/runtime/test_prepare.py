"""What lets Spark start sooner: made whole or not used, and never instead of what the user has set."""

from __future__ import annotations

import os
import shutil
import sys
import zipfile
from importlib.machinery import SourceFileLoader
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import pyspark
import pytest
from pyspark.sql import SparkSession

from timely_spark.__main__ import main
from timely_spark.errors import TimelyError
from timely_spark.runtime import prepare, session
from timely_spark.runtime.prepare import Prepared, place, prepared
from timely_spark.runtime.session import configure

OPTIONS = "spark.driver.extraJavaOptions"


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's folder, and an environment in which configure may set SPARK_HOME."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setenv("PYSPARK_PYTHON", "a user's choice")
    for name in ("SPARK_HOME", *prepare._ELSEWHERE):
        monkeypatch.setenv(name, "to be restored")
        del os.environ[name]
    return tmp_path


@pytest.fixture(autouse=True)
def spark_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small Spark."""
    folder = tmp_path / "pyspark"
    for part in ("bin", "jars", "sbin", "python/lib"):
        (folder / part).mkdir(parents=True)
    for name in ("pyspark.zip", "py4j-0-src.zip"):
        with zipfile.ZipFile(folder / "python" / "lib" / name, "w") as out:
            out.writestr("package/__init__.py", "")
    for name in ("slf4j-api-2.0.17.jar", "netty-4.2-linux.jar", "netty-4.2-osx.jar"):
        (folder / "jars" / name).touch()
    monkeypatch.setattr(prepare, "_pyspark", lambda: folder)
    return folder


@pytest.fixture
def fetched(tmp_path: Path) -> list[Path]:
    """Jars of packages: of Delta, of the Kafka connector, and one that Spark has in another version."""
    pytest.importorskip("delta")
    (tmp_path / "ivy").mkdir()
    names = [
        f"io.delta_delta-spark_4.2_2.13-{version('delta-spark')}.jar",
        f"org.apache.spark_spark-sql-kafka-0-10_2.13-{pyspark.__version__}.jar",
        "org.slf4j_slf4j-api-2.0.13.jar",
    ]
    jars = [tmp_path / "ivy" / name for name in names]
    for jar in jars:
        jar.touch()
    return jars


@pytest.fixture
def ready(monkeypatch: pytest.MonkeyPatch, fetched: list[Path]) -> Prepared:
    """What the command makes, by a run that writes no real archive."""

    def run(command: list[str], *, env: dict[str, str], **_: object) -> object:
        if option := env["SPARK_SUBMIT_OPTS"].partition("ArchiveClassesAtExit=")[2]:
            Path(option.partition('"')[0]).write_text("classes")
        else:
            for jar in fetched:
                jar.touch()
            Path(command[3]).write_text(",".join(f"file:{jar}" for jar in fetched))
        return type("Ended", (), {"returncode": 0})

    monkeypatch.setattr(prepare.subprocess, "run", run)
    made = place()
    made.make()
    return made


def options_of(master: str | None = "local[2]", **more: str) -> dict[str, str]:
    builder = SparkSession.Builder()
    for key, value in {"spark.master": master, **more}.items():
        if value is not None:
            builder.config(key, value)
    return dict(configure(builder)._options)


@pytest.mark.parametrize("master", ["local", "local[2]", None])
def test_a_session_on_this_machine_uses_it(master: str | None, ready: Prepared) -> None:
    options = options_of(master)

    assert f"-XX:SharedArchiveFile={ready.archive}" in options[OPTIONS]
    assert "SharedArchiveFile" not in options["spark.executor.extraJavaOptions"]
    assert os.environ["SPARK_HOME"] == str(ready.home)
    assert options_of(master) == options, "nor does a second session differ"


@pytest.mark.parametrize("master", ["spark://host:7077", "yarn", "local-cluster[2,1,1024]"])
def test_a_cluster_does_not(master: str, ready: Prepared) -> None:
    options = options_of(master)[OPTIONS]
    assert "SharedArchiveFile" not in options
    assert "-XX:Tier" not in options
    assert "SPARK_HOME" not in os.environ


@pytest.mark.parametrize("name", ["MASTER", "PYSPARK_GATEWAY_PORT", "PYSPARK_SUBMIT_ARGS", "SPARK_CONF_DIR"])
def test_nor_a_session_whose_master_may_be_elsewhere(
    name: str, ready: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "spark-defaults.conf").touch()
    monkeypatch.setenv(name, str(tmp_path))

    assert "SharedArchiveFile" not in options_of(None)[OPTIONS]
    assert "SharedArchiveFile" in options_of()[OPTIONS]


def test_a_spark_home_or_archive_of_the_users_stays(ready: Prepared, monkeypatch: pytest.MonkeyPatch) -> None:
    own = "-XX:SharedArchiveFile=own.jsa -XX:TieredStopAtLevel=1"
    options = options_of(**{OPTIONS: own})[OPTIONS]
    assert [options.count(name) for name in ("SharedArchiveFile", "-XX:Tier")] == [1, 1]

    monkeypatch.setenv("SPARK_HOME", "/opt/spark")
    assert "SharedArchiveFile" not in options_of()[OPTIONS]
    assert os.environ["SPARK_HOME"] == "/opt/spark"


def test_python_processes_are_forked_on_this_machine_only(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options_of()
    assert os.environ["PYSPARK_PYTHON"] == "a user's choice"
    monkeypatch.setattr(session, "serve_forks", lambda folder: str(folder / "spark-python"))
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    for _ in range(2):
        options_of()
        assert Path(os.environ["PYSPARK_PYTHON"]).is_relative_to(data)
    options_of("spark://host:7077")
    assert os.environ["PYSPARK_PYTHON"] == sys.executable


def test_a_cluster_does_not_inherit_the_forks_of_a_session_on_this_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    forks = "/home/ann/.local/share/timely_spark/1a2b/spark-python"

    def run_by(master: str, python: str) -> str:
        context = SimpleNamespace(master=master, pythonExec=python)
        session.same_python(SimpleNamespace(sparkContext=context))  # type: ignore[arg-type]
        return context.pythonExec

    monkeypatch.setenv("PYSPARK_PYTHON", forks)
    assert run_by("spark://host:7077", forks) == sys.executable
    assert run_by("spark://host:7077", "python3") == "python3"
    assert run_by("local[2]", "python3") == run_by("local[2]", forks) == forks


def test_nothing_is_used_where_nothing_was_made() -> None:
    assert prepared() is None
    assert "SharedArchiveFile" not in options_of()[OPTIONS]
    assert "SPARK_HOME" not in os.environ


@pytest.mark.parametrize("damage", ["archive", "zip", "index", "jars"])
def test_what_is_not_whole_is_not_used(damage: str, ready: Prepared, spark_folder: Path) -> None:
    assert prepared() == ready
    if damage == "archive":
        ready.archive.write_text("class")
    elif damage == "zip":
        shutil.rmtree(ready.home / "python" / "lib" / "pyspark.zip")
    elif damage == "index":
        (ready.folder / "index.json").write_text("{")
    else:
        (spark_folder / "jars" / "slf4j-api-2.0.17.jar").unlink()

    assert prepared() is None
    ready.make()
    assert prepared() == ready


def test_a_run_that_fails_is_told_and_leaves_nothing_to_use(
    ready: Prepared, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failed = type("Ended", (), {"returncode": 1, "stdout": "", "stderr": "JAVA_HOME is not set"})
    monkeypatch.setattr(prepare.subprocess, "run", lambda *_, **__: failed)

    assert main(["prepare"]) == 1
    assert "JAVA_HOME is not set" in capsys.readouterr().err
    assert prepared() is None


PACKAGES = "spark.jars.packages"


def test_a_session_fetches_no_jar_that_its_spark_has(
    ready: Prepared, fetched: list[Path], spark_folder: Path
) -> None:
    def packages(master: str = "local[2]", **settings: str) -> list[str]:
        builder = SparkSession.Builder().master(master)
        for key, value in settings.items():
            builder.config(key, value)
        builder = configure(builder, delta=True, kafka=True, extra_packages=["a:b:1"], quiet=False)
        return str(builder._options[PACKAGES]).split(",")

    delta = f"io.delta:delta-spark_4.2_2.13:{version('delta-spark')}"
    kafka = f"org.apache.spark:spark-sql-kafka-0-10_2.13:{pyspark.__version__}"
    assert packages() == [delta, kafka, "a:b:1"]
    assert packages(**{PACKAGES: "c:d:2"}) == ["c:d:2", delta, kafka, "a:b:1"], "what the builder has stays"
    assert packages(**{PACKAGES: f"{kafka},a:b:1"}) == [kafka, "a:b:1", delta], "each once"
    assert main(["prepare", "--delta", "--kafka"]) == 0
    assert packages() == ["a:b:1"]
    assert packages("spark://host:7077") == [delta, kafka, "a:b:1"], "executors have another Spark"
    own = {jar.name for jar in (spark_folder / "jars").iterdir()}
    assert {jar.name for jar in (ready.home / "jars").iterdir()} == own | {jar.name for jar in fetched[:2]}, (
        "of two versions Spark's own counts, as in a session with packages"
    )

    fetched[0].unlink()  # somebody has cleared Ivy's cache
    assert prepared() is None
    del os.environ["SPARK_HOME"]
    assert packages() == [delta, kafka, "a:b:1"]


def test_packages_are_fetched_once_and_not_by_each_session(
    ready: Prepared, fetched: list[Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ivy prints 80 lines at the start of a session that has packages; one that has jars resolves nothing."""

    def options(master: str = "local[2]", **settings: str) -> dict[str, str]:
        builder = SparkSession.Builder().master(master)
        for key, value in settings.items():
            builder.config(key, value)
        return dict(configure(builder, delta=True, extra_packages=["a:b:1"])._options)

    def lines() -> int:
        return capsys.readouterr().err.count("from Maven, once on this machine")

    jars = [str(jar) for jar in fetched]
    assert options()["spark.jars"].split(",") == jars
    assert PACKAGES not in options()
    assert lines() == 1
    assert options(**{"spark.jars": "own.jar"})["spark.jars"].split(",") == ["own.jar", *jars]
    assert lines() == 0
    assert options(**{"spark.jars.repositories": "https://other"})["spark.jars"].split(",") == jars
    assert lines() == 1, "another place may have other jars"
    fetched[0].unlink()  # somebody has cleared Ivy's cache
    assert options()["spark.jars"].split(",") == jars
    assert lines() == 1

    for master, more in (("yarn", {}), ("local[2]", {PACKAGES: "c:d:2"})):
        assert PACKAGES in options(master, **more), "Spark fetches what is not for this machine, or not ours"
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", "-Dhttps.proxyHost=proxy")
    assert PACKAGES in options()
    monkeypatch.delenv("SPARK_SUBMIT_OPTS")
    fetched[0].unlink()
    failed = type("Ended", (), {"returncode": 1, "stdout": "", "stderr": "no network"})
    monkeypatch.setattr(prepare.subprocess, "run", lambda *_, **__: failed)
    assert PACKAGES in options(), "Spark says why"
    assert lines() == 1


def test_a_java_without_archives_is_named(
    ready: Prepared, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(prepare.subprocess, "run", lambda *_, **__: type("Ended", (), {"returncode": 0}))

    assert main(["prepare"]) == 1
    assert "its Java has written no archive of classes" in capsys.readouterr().err
    assert prepared() is None


def test_the_command_says_what_spark_submit_needs(
    ready: Prepared, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["prepare"]) == 0
    said = capsys.readouterr().out
    assert f"SPARK_HOME={ready.home}" in said
    assert str(ready.archive) in said


class Compiled(SourceFileLoader):
    """A loader of modules that are compiled already."""

    def source_to_code(self, *_: object, **__: object) -> NoReturn:
        pytest.fail("a module is compiled")


def test_folders_with_bytecode_stand_for_the_zips(ready: Prepared, spark_folder: Path) -> None:
    source = spark_folder / "python" / "lib" / "pyspark.zip"
    with zipfile.ZipFile(source, "w") as out:
        out.writestr("package/module.py", "def fail():\n    raise ValueError\n")
        out.writestr("package/other.py", "print 'of another Python'")
    ready.make()
    made = ready.home / "python" / "lib" / source.name
    module = made / "package" / "module.py"
    code = Compiled("package.module", str(module)).get_code("package.module")

    assert code is not None
    assert code.co_filename == str(module), "where a traceback finds the line"
    assert (made / "package" / "other.py").read_text() == "print 'of another Python'"
    assert not (made / "package" / "__init__.py").exists(), "nothing stays of what was there"


def test_the_home_has_the_installed_sparks_parts(ready: Prepared, spark_folder: Path) -> None:
    (spark_folder / "conf").mkdir()  # settings that come later count, too

    (spark_folder / "python" / "pyspark").mkdir()

    shutil.rmtree(ready.home / "jars")
    (ready.home / "jars").symlink_to(spark_folder / "jars")  # as an earlier version did
    ready.make()
    for part in ("bin", "conf", "sbin", "python/pyspark", "jars/slf4j-api-2.0.17.jar"):
        assert (ready.home / part).samefile(spark_folder / part)
    assert {path.name for path in (ready.home / "python" / "lib").iterdir()} == {
        "pyspark.zip",
        "py4j-0-src.zip",
    }


def test_two_processes_do_not_prepare_one_folder_at_once(
    ready: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second is refused at each step of the first, and leaves what the first makes alone."""
    refused: list[str] = []
    again = prepare.subprocess.run

    def run(command: list[str], **options: object) -> object:
        for second in (ready.make, lambda: prepare.prepare(ready.home, ready.archive, [])):
            with pytest.raises(TimelyError, match="another process prepares") as error:
                second()
            refused.append(str(error.value))
        return again(command, **options)

    monkeypatch.setattr(prepare.subprocess, "run", run)
    ready.make(["delta"])
    assert len(refused) == 4
    assert all("Hint: wait until" in text for text in refused)
    assert ready.complete
