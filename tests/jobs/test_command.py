"""`timely-spark job`: the programs that there are, and how one is run."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import timely_spark as ts
from timely_spark import __main__ as command
from timely_spark.__main__ import main

JOBS = Path(__file__).parents[2] / "jobs"


def test_without_arguments_it_says_which_commands_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2

    text = capsys.readouterr().err
    assert all(f"\n    {command} " in text for command in ("status", "run", "ui", "job", "prepare"))


def test_the_list_has_each_program_with_a_line_about_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["job"]) == 0

    lines = capsys.readouterr().out.splitlines()
    programs = {
        path.stem for path in JOBS.glob("*.py") if "cli.run(main)" in path.read_text(encoding="utf-8")
    }
    assert {line.split()[0] for line in lines} >= programs >= {"wordcount", "pagerank"}
    assert all(len(line.split()) > 3 for line in lines)


def test_a_program_replaces_the_command_and_gets_its_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[Any] = []
    monkeypatch.setattr(os, "execv", lambda path, argv: ran.append((path, argv)))
    main(["job", "wordcount", "--input", "in", "--help"])

    assert ran == [(sys.executable, [sys.executable, str(JOBS / "wordcount.py"), "--input", "in", "--help"])]


def test_another_name_is_told_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["job", "page_rank"]) == 1

    assert capsys.readouterr().err == (
        "job 'page_rank': there is no such program\nHint: did you mean pagerank?\n"
    )


@pytest.fixture
def interrupted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bool]]:
    """Starts of Spark that are interrupted, and go on until the test ends: was the main thread in them?"""
    starts, ended = list[bool](), threading.Event()

    def start() -> None:
        starts.append(threading.current_thread() is threading.main_thread())
        os.kill(os.getpid(), signal.SIGINT)
        ended.wait(20)

    builder = SimpleNamespace(getOrCreate=start)
    for owner in (command, ts):
        monkeypatch.setattr(owner, "configure", lambda *_, **__: builder)
    monkeypatch.setattr(command, "quietly", nullcontext)
    yield starts
    ended.set()
    for thread in threading.enumerate():
        if thread.name == "timely-wait":
            thread.join()


def test_an_interrupt_while_spark_starts_ends_the_command_outside_of_pyspark(
    interrupted: list[bool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import cli

    monkeypatch.setattr(cli, "quietly", nullcontext)
    (tmp_path / "views.sql").write_text(
        "CREATE TABLE t (a bigint) USING csv LOCATION 'in';\n"
        "CREATE MATERIALIZED VIEW v LOCATION 'out' AS SELECT a FROM t;\n"
    )

    assert main(["run", str(tmp_path / "views.sql"), "--checkpoint", str(tmp_path / "check")]) == 130
    with pytest.raises(SystemExit, match="130"):
        cli.run(lambda: cli.session("counts", delta=False) and None)
    assert interrupted == [False, False]
