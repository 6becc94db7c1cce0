"""Input handles and their entries in the log, without Spark."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from timely_spark.errors import InvalidTime, SchemaError
from timely_spark.runtime.errors import EpochClosed, SentElsewhere
from timely_spark.runtime.handle.input_handle import InputHandle
from timely_spark.runtime.storage.entries import close_source, read_entry
from timely_spark.runtime.storage.files import Files
from timely_spark.runtime.storage.log import RoundLog

Epochs = Literal["clock", "manual"]


@pytest.fixture
def log(tmp_path: Path) -> RoundLog:
    return RoundLog(str(tmp_path))


def handle(epochs: Epochs = "manual") -> InputHandle:
    return InputHandle("x", "n long, s string", epochs=epochs)


def entries(log: RoundLog) -> list[tuple[str, int | None, int]]:
    found = [read_entry(log, "x", number) for number in log.files.numbers("inputs/x")]
    return [(entry.kind, entry.epoch, entry.table.num_rows) for entry in found]


def test_entries_sent_before_the_start_are_written_at_the_start(log: RoundLog) -> None:
    x = handle()
    x.send([(1, "a")])
    x.advance_to(2)
    assert x.sent == 0

    x.open(log)

    assert entries(log) == [("send", 0, 1), ("advance", 2, 0)]
    assert x.sent == 2


def test_rows_pandas_and_arrow_are_taken(log: RoundLog) -> None:
    x = handle("clock")
    x.open(log)
    x.send([(1, "a"), {"n": 2, "s": None}])
    x.send(pd.DataFrame({"s": ["b"], "n": [3]}))
    x.send(pa.table({"n": [4], "s": ["c"]}))

    rows = [row["n"] for number in range(3) for row in read_entry(log, "x", number).table.to_pylist()]
    assert rows == [1, 2, 3, 4]
    with pytest.raises(SchemaError):
        x.send([(1, 2, 3)])


def test_after_a_restart_the_handle_stands_at_the_first_open_epoch(log: RoundLog) -> None:
    x = handle()
    x.open(log)
    x.send([(1, "a")])
    x.advance_to(3)
    x.send([(1, "a")], epoch=8)

    again = handle()
    again.open(log)

    assert again.epoch == 3
    with pytest.raises(EpochClosed, match="is at epoch 3; epoch 2 is closed"):
        again.send([(1, "b")], epoch=2)
    with pytest.raises(EpochClosed):
        again.advance_to(1)
    again.send([(1, "b")])
    assert entries(log)[-1] == ("send", 3, 1)


def test_on_another_checkpoint_a_handle_begins_anew(tmp_path: Path) -> None:
    x = handle()
    first, second = RoundLog(str(tmp_path / "first")), RoundLog(str(tmp_path / "second"))
    x.open(first)
    x.advance_to(5)
    x.close()

    x.open(second)

    assert (x.epoch, x.is_closed, x.sent) == (0, False, 0)
    x.send([(1, "a")])
    assert entries(second) == [("send", 0, 1)]


def test_what_was_buffered_for_a_closed_epoch_is_refused_at_the_start(log: RoundLog) -> None:
    first = handle()
    first.open(log)
    first.advance_to(2)
    again = handle()
    again.send([(1, "a")])

    with pytest.raises(EpochClosed, match="epoch 0 is closed"):
        again.open(log)


def test_a_closed_input_stays_closed(log: RoundLog) -> None:
    x = handle()
    x.open(log)
    x.close()
    x.close()
    again = handle()
    again.open(log)

    assert again.is_closed
    assert entries(log) == [("close", 0, 0)]
    with pytest.raises(EpochClosed, match="closed"):
        again.send([(1, "a")])


def test_the_clock_moves_no_handle() -> None:
    x = handle("clock")

    for verb in (lambda: x.advance_to(1), x.close, lambda: x.send([(1, "a")], epoch=1)):
        with pytest.raises(EpochClosed, match="clock"):
            verb()


def test_a_second_sender_gets_an_error(log: RoundLog) -> None:
    one, two = handle("clock"), handle("clock")
    one.open(log)
    two.open(log)
    one.send([(1, "a")])

    with pytest.raises(SentElsewhere, match=r"(?s)'.*' *: entry 0 .*Hint"):
        two.send([(2, "b")])


@pytest.mark.parametrize(
    "wrong", [2**62, 2**63, 1.5, 2.0, True, "3", -1, b"1", float("nan"), np.array([True])[0]]
)
def test_what_is_no_epoch_is_refused_before_anything_is_written(log: RoundLog, wrong: Any) -> None:
    x = handle()
    x.open(log)
    for verb in (lambda: x.send([(1, "a")], epoch=wrong), lambda: x.advance_to(wrong)):
        with pytest.raises(
            InvalidTime, match=r"(?s)input 'x'.*is not an epoch \(.*test_inputs.py:\d+\).*Hint: "
        ):
            verb()
    with pytest.raises(InvalidTime, match="None"):
        x.advance_to(None)  # type: ignore[arg-type]

    assert (entries(log), x.epoch, x.sent) == ([], 0, 0)


def test_numpy_integers_are_epochs_and_the_largest_one_is_durable(log: RoundLog) -> None:
    x = handle()
    x.open(log)
    x.send([(1, "a")], epoch=np.uint64(2**62 - 1))  # type: ignore[arg-type]
    x.advance_to(np.int8(3))  # type: ignore[arg-type]

    assert entries(log) == [("send", 2**62 - 1, 1), ("advance", 3, 0)]
    again = handle()
    again.open(log)
    assert (again.epoch, type(x.epoch)) == (3, int)


# -- starts that fail, and what they leave -----------------------------------------------------------------


@dataclass
class Query:
    """A query, as a handle sees it."""

    is_active: bool = True
    name: str = "q"
    checkpoint: str = ""

    def stop(self) -> None:
        self.is_active = False


def test_a_start_that_is_not_carried_through_leaves_the_handle_and_the_log(log: RoundLog) -> None:
    x = handle()
    x.send([(1, "a")])
    x.advance_to(2)

    end = x.journal(log)
    end.write()
    assert entries(log) == [("send", 0, 1), ("advance", 2, 0)], "durable before Spark looks"
    assert (x.sent, x.epoch) == (0, 2), "the handle knows nothing of it"
    end.undo()

    assert entries(log) == []
    assert x.sent == 0
    x.open(log)
    assert entries(log) == [("send", 0, 1), ("advance", 2, 0)], "what waited has waited on"


def test_entries_which_a_batch_has_taken_are_not_taken_back_and_not_sent_twice(log: RoundLog) -> None:
    x = handle("clock")
    x.send([(1, "a")])
    x.send([(2, "b")])
    end = x.journal(log)
    end.write()
    taken = json.dumps({"round": -1, "inputs": {"x": 0}, "sources": {}})
    Files(log.checkpoint).write("offsets/0", f"v1\n{{}}\n{taken}".encode())

    end.undo()

    assert len(entries(log)) == 2
    x.send([(3, "c")])
    x.open(log)
    assert [read_entry(log, "x", n).table.column("n")[0].as_py() for n in range(x.sent)] == [1, 2, 3]


def test_a_full_disk_at_the_start_loses_nothing(log: RoundLog, monkeypatch: pytest.MonkeyPatch) -> None:
    x = handle("clock")
    for n in range(3):
        x.send([(n, "a")])
    write, left = Files.write_table, [2]

    def full(files: Files, *args: Any, **kwargs: Any) -> None:
        left[0] -= 1
        if not left[0]:
            raise OSError(errno.ENOSPC, "no space left")
        write(files, *args, **kwargs)

    monkeypatch.setattr(Files, "write_table", full)
    with pytest.raises(OSError, match="no space"):
        x.open(log)
    x.open(log)

    assert [read_entry(log, "x", n).table.column("n")[0].as_py() for n in range(x.sent)] == [0, 1, 2]


def test_what_is_refused_at_the_start_waits_on(tmp_path: Path) -> None:
    first = handle()
    first.open(RoundLog(str(tmp_path / "first")))
    first.advance_to(2)
    again = handle()
    again.send([(1, "a")])
    with pytest.raises(EpochClosed):
        again.open(RoundLog(str(tmp_path / "first")))

    again.open(other := RoundLog(str(tmp_path / "other")))

    assert entries(other) == [("send", 0, 1)]


def test_after_a_query_without_checkpoint_what_is_sent_waits_for_the_next_start(tmp_path: Path) -> None:
    x, query = handle(), Query()
    end = x.journal(log := RoundLog(str(tmp_path / "first")))
    x.bind(end, query, forgotten=True)
    x.advance_to(3)
    assert x.query is query
    query.stop()

    assert x.query is None
    assert (x.epoch, x.sent, x.is_closed) == (0, 0, False), "that flow is forgotten"
    x.send([(1, "a")])

    assert entries(log) == [("advance", 3, 0)]
    x.open(other := RoundLog(str(tmp_path / "second")))
    assert entries(other) == [("send", 0, 1)]


def test_after_a_query_with_a_checkpoint_what_is_sent_is_durable_there(log: RoundLog) -> None:
    x, query = handle(), Query()
    x.bind(x.journal(log), query)
    query.stop()

    x.send([(1, "a")])

    assert entries(log) == [("send", 0, 1)]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # a file is closed late
@pytest.mark.parametrize("epochs", ["clock", "manual"])
def test_an_interrupt_anywhere_leaves_an_entry_whole_or_not_at_all(
    tmp_path: Path, epochs: Epochs, interrupted_at: Callable[..., bool]
) -> None:
    """At each line of the library that a send passes, one after the other."""
    done, line = False, 0
    while not done:
        line += 1
        x, log = handle(epochs), RoundLog(str(tmp_path / str(line)))
        x.open(log)
        x.send([(0, "a")])
        done = interrupted_at(
            line,
            lambda x=x: x.advance_to(2) if epochs == "manual" else x.send([(1, "b")]),
            files=("timely_spark/runtime",),
        )
        there = entries(log)

        assert (x.sent, x.epoch) == (len(there), 2 if ("advance", 2, 0) in there else 0)
        x.send([(2, "c")])
        x.send([(3, "d")])
        assert entries(log) == [*there, *[("send", x.epoch if epochs == "manual" else None, 1)] * 2]
    assert line > 20, "it did pass many lines"


def test_a_link_that_was_made_and_reported_as_there_is_ones_own(
    log: RoundLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = handle("clock")
    x.open(log)
    write = Files.write_table

    def twice(files: Files, *args: Any, **kwargs: Any) -> None:
        write(files, *args, **kwargs)
        write(files, *args, **kwargs)

    monkeypatch.setattr(Files, "write_table", twice)
    x.send([(1, "a")])

    assert x.sent == 1 == len(entries(log))


def test_a_source_is_closed_by_one_entry_however_often_and_by_whomever(log: RoundLog) -> None:
    close_source(log, "x")
    close_source(RoundLog(log.checkpoint), "x")

    assert log.entries("x") == [0]
    entry = read_entry(log, "x", 0)
    assert (entry.kind, entry.epoch, entry.table.num_rows) == ("close", None, 0)


def offsets(log: RoundLog, batch: int, *sources: dict[str, Any]) -> None:
    text = "\n".join(["v1", "{}", *(json.dumps(each) for each in sources)])
    Files(log.checkpoint).write(f"offsets/{batch}", text.encode())


def test_what_is_available_has_been_read_when_a_batch_only_asked(log: RoundLog) -> None:
    """By Spark's own log, and so the same when the batch runs again."""
    quiet: dict[str, Any] = {"round": 0, "inputs": {}, "sources": {"in": {"files": 3}}}
    offsets(log, 0, quiet, {"logOffset": 0})
    offsets(log, 1, quiet | {"asked": 0}, {"logOffset": 1})
    offsets(log, 2, quiet | {"asked": 1}, {"logOffset": 1})
    offsets(log, 3, quiet | {"asked": 1, "round": 2}, {"logOffset": 1})
    offsets(log, 4, quiet | {"asked": 1, "round": 2}, {"logOffset": 2})
    offsets(log, 6, quiet | {"asked": 5, "round": 2}, {"logOffset": 2})
    offsets(log, 7, quiet | {"asked": 6, "round": 2, "sources": {"in": {"files": 4}}}, {"logOffset": 2})

    # a source brought something with 1, 4 and 7, nobody asked with 3, and before 0 and 6 nothing is known
    assert [batch for batch in range(8) if log.at_the_end(batch)] == [2]
