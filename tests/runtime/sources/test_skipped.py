"""What a user lets a flow go on without: only what no complete micro-batch has read, and it is counted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from timely_spark.__main__ import main
from timely_spark.runtime.errors import BadFile
from timely_spark.runtime.handle.input_handle import InputHandle
from timely_spark.runtime.sources import skipped
from timely_spark.runtime.sources.account import Account
from timely_spark.runtime.sources.arrivals import File
from timely_spark.runtime.sources.journal import FileJournal
from timely_spark.runtime.sources.skipped import Skipped, skip
from timely_spark.runtime.storage.entries import read_entry
from timely_spark.runtime.storage.log import RoundLog

NONE: dict[str, Any] = {"file": None, "entry": None, "version": None, "source": None}


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RoundLog:
    """A checkpoint in which batch 1 is complete, and batch 2 is planned."""
    inputs = [["sent", "clock", "handle"], ["in", "clock", "journal"], ["table", "clock", "journal"]]
    log = RoundLog(str(tmp_path))
    monkeypatch.setattr(RoundLog, "identity", lambda _: {"id": "x"})
    monkeypatch.setattr(RoundLog, "newest", lambda _: 1)
    monkeypatch.setattr(RoundLog, "read", lambda *_: object())
    monkeypatch.setattr(RoundLog, "chosen", lambda _: (_manifest(1), None))
    monkeypatch.setattr(RoundLog, "flow", lambda *_: {"described": {"inputs": inputs}})
    sent = InputHandle("sent", "n long", epochs="manual")
    sent.open(log)
    sent.send([0])
    journal = FileJournal(log.files, "in")
    for batch in (["a.csv", "sub/b.csv"], ["odd # 100%\\n.csv", "c.csv", "other/c.csv"]):
        journal.append([File(1, f"/in/{name}", 1) for name in batch])
    return log


def test_a_file_that_is_planned_is_skipped_and_counted(
    log: RoundLog, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["skip", log.checkpoint, "--file", "odd # 100%\\n.csv"]) == 0
    assert "of source 'in' is skipped" in capsys.readouterr().out
    assert skip(log.checkpoint, **NONE | {"file": "other/c.csv"})
    assert Skipped.of(log.files, "in").files == {"/in/odd # 100%\\n.csv": 1, "/in/other/c.csv": 1}
    of_files = Account.of(log, _manifest(2), [["sent", "", "handle"], ["in", "", "journal"]])["in"]
    assert (of_files.listed, of_files.entered, of_files.skipped) == (5, 3, 2)
    assert of_files.names["/in/other/c.csv"] == "was skipped"


def _manifest(batch: int) -> Any:
    sources = {"in": {"files": batch - 1}, "table": {"version": 6 + batch}}
    fields = {"batch": batch, "read": {}, "late": {}, "entries": {"sent": 0}, "sources": sources}
    return type("Manifest", (), fields)()


@pytest.mark.parametrize(
    ("what", "told"),
    [
        ({"file": "a.csv"}, "was read by a batch that is complete"),
        ({"file": "c.csv"}, "(?s)2 files called.*give the whole path"),
        ({"file": "none.csv"}, "(?s)no files called.*Hint: give one of them: /in/c.csv"),
        ({"entry": 0}, "(?s)entry 0 of input 'sent' was read .*the next one is 1"),
        ({"entry": 1}, "(?s)input 'sent' has no entry 1: the newest is 0.*Hint: give the number"),
        ({"version": 7}, "(?s)version 7 of input 'table' was read"),
        ({"entry": 3, "source": "in"}, "no inputs that can be meant"),
    ],
)
def test_what_was_read_and_what_there_is_not_is_refused(
    log: RoundLog, what: dict[str, Any], told: str
) -> None:
    with pytest.raises(BadFile, match=told):
        skip(log.checkpoint, **NONE | what)
    assert log.files.names("skipped") == []


def test_a_version_is_skipped(log: RoundLog) -> None:
    text = skip(log.checkpoint, **NONE | {"version": 8})
    assert text == "version 8 of source 'table' is skipped; those up to 7 were read"
    skip(log.checkpoint, **NONE | {"version": 9, "source": "table"})
    assert Skipped.of(log.files, "table").versions == (8, 9)


@pytest.mark.parametrize("harm", ["damaged", "missing", "none"])
def test_an_entry_is_replaced_by_one_that_says_nothing(log: RoundLog, harm: str) -> None:
    handle = InputHandle("sent", "n long", epochs="manual")
    handle.open(log)
    for n in range(3):
        handle.send([n])
        handle.advance_to(n + 1)
    if harm == "damaged":
        log.files.write("inputs/sent/3.arrow", b"half")
    elif harm == "missing":
        log.files.remove("inputs/sent/3.arrow")
    skip(log.checkpoint, **NONE | {"entry": 3})
    assert [read_entry(log, "sent", n).kind for n in (2, 3, 4)] == ["advance", "skipped", "advance"]
    assert log.files.exists("skipped/sent-3.arrow") == (harm != "missing")
    again = InputHandle("sent", "n long", epochs="manual")
    again.open(log)
    assert again.epoch == 3
    (sent,) = (Account.of(log, _manifest(1), [["sent", "", "handle"]])).values()
    assert (sent.listed, sent.entered, sent.skipped) == (1, 1, 0)


def test_the_newest_entry_is_skipped_at_the_position_before_it(log: RoundLog) -> None:
    handle = InputHandle("sent", "n long", epochs="manual")
    handle.open(log)
    handle.advance_to(4)
    handle.send(pa.table({"n": [1]}))
    log.files.write("inputs/sent/2.arrow", b"")
    skip(log.checkpoint, **NONE | {"entry": 2})
    again = InputHandle("sent", "n long", epochs="manual")
    again.open(log)
    assert (again.epoch, again.sent) == (4, 3)


def test_a_running_flow_is_left_alone(log: RoundLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(skipped.Lock, "acquire", lambda _: False)
    assert main(["skip", log.checkpoint, "--version", "8"]) == 1
    assert log.files.names("skipped") == []
