"""Jobs in this process, in the session that all tests share."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

JOBS = Path(__file__).parents[2] / "jobs"


@pytest.fixture(autouse=True)
def _jobs_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(JOBS))


@pytest.fixture
def here(
    spark: SparkSession,
    checkpoint: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> Callable[..., str]:
    """Run a job in this process, in the session that all tests share; gives what it has printed."""

    def run(name: str, *args: Any, keeps: bool = True) -> str:
        import cli
        from pyspark import cloudpickle

        main = importlib.import_module(name)
        cloudpickle.register_pickle_by_value(main)  # as running it as the main program does
        monkeypatch.setattr(cli, "session", lambda *args, **options: spark)
        monkeypatch.setattr(sys, "argv", [name, *map(str, args), *["--checkpoint", checkpoint] * keeps])
        main.main()
        assert "without name=" not in caplog.text  # no user can name the steps of a job
        return capsys.readouterr().out

    return run
