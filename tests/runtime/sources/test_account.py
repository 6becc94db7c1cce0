"""What became of all that inputs were given: each thing once, by the log of a checkpoint."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest

import timely_spark as ts
from timely_spark import testing
from timely_spark.errors import LogDamaged
from timely_spark.runtime.sources.account import Account, write_ignored, write_names, write_waiting
from timely_spark.runtime.sources.arrivals import File
from timely_spark.runtime.sources.journal import FileCounts, FileJournal
from timely_spark.runtime.storage.log import RoundLog
from timely_spark.runtime.storage.manifest import Manifest


def files(first: int, last: int) -> list[File]:
    return [File(n, f"/in/{n}", 1) for n in range(first, last)]


def test_the_files_up_to_a_batch_are_counted_by_what_became_of_them(tmp_path: Path) -> None:
    log = RoundLog(str(tmp_path))
    for first, last in ((0, 3), (3, 4)):
        journal = FileJournal(log.files, "in")  # a restart continues the sums
        journal.append([*files(first, last), File(9, f"/bad/{first}", 1, bad="no Parquet")])
    assert FileCounts.of(log.files, "in", 0) == FileCounts(4, 3, 1)
    assert FileCounts.of(log.files, "in", 1) == FileCounts.of(log.files, "in") == FileCounts(6, 4, 2)
    assert FileCounts.of(log.files, "in", -1) == FileCounts.of(log.files, "other") == FileCounts()
    with pytest.raises(LogDamaged, match=r"2\.arrow"):
        FileCounts.of(log.files, "in", 2)


def manifest_of(**more: Any) -> Manifest:
    plain = dict.fromkeys(Manifest.__dataclass_fields__.keys() - {"written", "format"}, None)
    return Manifest(**{**plain, "batch": 1, "late": {}, "read": {}, **more})  # type: ignore[arg-type]


def test_the_accounts_of_a_flow_are_those_of_its_sources_at_a_manifest(tmp_path: Path) -> None:
    log = RoundLog(str(tmp_path))
    for journaled in (files(0, 3), files(3, 4)):
        FileJournal(log.files, "in").append(journaled)
    write_ignored(log.files, "in", {f"/in/link{n:03}": "is a link" for n in range(200)})
    replay = {"epoch": 7, "epochs": 3, "complete": 0}
    ends = {"entries": {"sent": 4}, "sources": {"in": {"files": 0}, "all": replay}}
    inputs = [["sent", "clock", "handle"], ["frame", "clock", "dataframe"], ["in", "clock", "journal"]]
    inputs.append(["all", "manual", "journal"])
    manifest = manifest_of(**ends, read={"in": 30, "frame": 7}, late={"in": 2})
    accounts = Account.of(log, manifest, inputs)
    assert accounts == {
        "sent": Account(unit="entry", listed=5, entered=5),
        "in": replace(accounts["in"], unit="file", listed=3, entered=3, rows=30, late=2, ignored=200),
        "all": Account(unit="epoch", listed=3, entered=3),
        "frame": Account(rows=7),
    }
    assert str(accounts["in"]) == "3 files, 30 records, 2 late, 200 names ignored"
    assert str(accounts["sent"]) == "5 entries, 0 records"
    for number in range(5, 8):
        log.files.write(f"inputs/sent/{number}.arrow", b"an entry")
    assert str(Account.of(log, manifest, inputs)["sent"]) == "5 entries, 0 records, 3 entries waiting"
    assert Account.of(log, manifest_of(entries={}, sources={}), inputs)["sent"].waiting == 0, "0 is gone"
    assert accounts["in"].names["/in/link000"] == "is a link"
    assert len(accounts["in"].names) == 100


def test_what_is_written_for_people_stops_no_flow_when_it_is_damaged(tmp_path: Path) -> None:
    """Half a file may be there after a loss of power."""
    files = RoundLog(str(tmp_path)).files
    writes = {
        "waiting": lambda: write_waiting(files, "in", 3),
        "files": lambda: write_ignored(files, "in", {"/in/a": "is empty"}),
        "lost": lambda: write_names(files, "lost", "in", {"a": "was deleted"}),
    }
    for write in writes.values():
        write()
    whole = {name: files.json(name) for name in files.names("ignored")}
    assert len(whole) == len(writes)
    for name in whole:
        files.write(name, b"")
    for write in writes.values():
        write()
    assert {name: files.json(name) for name in whole} == whole


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_the_records_that_inputs_have_read_are_counted_late_and_dropped_ones_too(seed: int) -> None:
    flow = ts.Dataflow("counts")
    source = flow.source("in", "t long, n long", epoch="t")
    source.where(pc.field("n") > 1).distinct().capture("out")
    source.late.capture("late")
    simulation = testing.Simulation(flow, workers=3, seed=seed)
    sent = 0
    for epochs in ([0, 0, 1], [5, 5, 6], [1, None, 6]):
        simulation.send("in", [(epoch, n) for n, epoch in enumerate(epochs)])
        simulation.run()
        sent += len(epochs)
    assert simulation.result.read == {"in": sent}
    assert simulation.result.late == {"in": 2}
