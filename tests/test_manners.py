"""What the package looks like from outside: its names, its command."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import timely_spark as ts
from tests.test_imports import OPTIONAL
from timely_spark.__main__ import main


def test_dir_shows_the_api_and_nothing_else() -> None:
    assert set(dir(ts)) == {*ts.__all__, "__version__"}
    assert all(getattr(ts, name) is not None for name in dir(ts))


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert capsys.readouterr() == (f"timely_spark {ts.__version__}\n", "")


#: What takes longer to load than the package itself. Pandas is half a second on a busy machine.
HEAVY = OPTIONAL | {
    "asyncio", "pandas", "pyspark", "py4j", "pyarrow.dataset", "pyarrow.parquet", "timely_spark.graphs",
    "timely_spark.testing", "hypothesis", "pytest",
}  # fmt: skip


@pytest.mark.slow
def test_the_package_loads_nothing_heavy() -> None:
    text = "import sys, timely_spark; print(*sys.modules); import timely_spark.__main__; print(*sys.modules)"
    asked = [sys.executable, "-c", text]
    lines = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.splitlines()
    loaded, by_command = (set(line.split()) for line in lines)
    assert HEAVY & loaded == set()
    assert {"pandas", "pyspark"} & by_command == set()
    assert len(loaded) < 500, sorted(loaded)


@pytest.mark.parametrize("seconds", ["0", "-1", "soon", "nan", "inf"])
def test_watching_needs_a_number_of_seconds(seconds: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["status", "/nowhere", f"--watch={seconds}"])
    assert f"{seconds!r} is not a number of seconds above 0" in capsys.readouterr().err


def test_the_status_is_printed_again_and_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr("time.sleep", sleep)

    assert main(["status", "/no/such/checkpoint", "--watch"]) == 0
    assert pauses == [2.0] * 3
    assert capsys.readouterr().err.count("holds no checkpoint of a flow") == 3


def test_the_status_of_a_file_asks_for_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()

    assert main(["status", str(tmp_path / "file")]) == 1
    assert capsys.readouterr().err.endswith("Hint: give the folder of a checkpoint, not a file.\n")


@pytest.fixture
def finished(spark: SparkSession, checkpoint: str) -> Path:
    """The checkpoint of a flow that has run."""
    flow = ts.Dataflow("finished")
    numbers = flow.input("numbers", "n long")
    numbers.group_by("n").count(name="counts").capture("out")
    with flow.start(spark, checkpoint=checkpoint, workers=2) as query:
        numbers.send([1, 2, 3])
        query.wait_for()
    return Path(checkpoint)


def test_the_status_of_a_checkpoint_that_nobody_may_write_to(
    finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path: path.stat().st_mtime_ns for path in finished.rglob("*")}
    for path in [finished, *before]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        assert main(["status", str(finished)]) == 0
    finally:
        for path in [finished, *before]:
            path.chmod(0o755 if path.is_dir() else 0o644)

    assert "flow 'finished', 2 workers" in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in finished.rglob("*")} == before


def test_the_status_of_a_damaged_checkpoint_is_what_is_damaged(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [path.relative_to(finished) for path in (finished / "timely").rglob("*") if path.is_file()]
    output = 0
    for file in files:
        for damage in (b"", b"{", b"null", b"[]", None):
            copy = tmp_path / "copy"
            shutil.copytree(finished, copy)
            if damage is None:
                (copy / file).unlink()
            else:
                (copy / file).write_bytes(damage)
            code = main(["status", str(copy)])
            out, errors = capsys.readouterr()
            assert (out, errors) != ("", "")
            assert (code == 0) == (errors == "")
            assert "Traceback" not in errors
            assert not errors or str(copy) in errors
            output += code
            shutil.rmtree(copy)

    assert output >= 10, "flow.json and the newest manifest are read for certain"
