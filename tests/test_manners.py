"""What the package looks like from outside: its names, its command."""

from __future__ import annotations

import subprocess
import sys

import pytest

import timely_spark as ts
from timely_spark.__main__ import main


def test_dir_shows_the_api_and_nothing_else() -> None:
    assert set(dir(ts)) == {*ts.__all__, "__version__"}
    assert all(getattr(ts, name) is not None for name in dir(ts))


def test_the_version_is_told() -> None:
    asked = [sys.executable, "-m", "timely_spark", "--version"]
    told = subprocess.run(asked, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True)
    assert (told.stdout, told.stderr) == (f"timely_spark {ts.__version__}\n", "")


@pytest.mark.parametrize("seconds", ["0", "-1", "soon", "nan", "inf"])
def test_watching_needs_a_number_of_seconds(seconds: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["status", "/nowhere", f"--watch={seconds}"])
    assert f"{seconds!r} is no number of seconds above 0" in capsys.readouterr().err


def test_the_status_is_told_again_and_again(
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
