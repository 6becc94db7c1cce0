"""Input handles and their entries in the log, without Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from timely_spark.errors import InvalidTime, SchemaError
from timely_spark.runtime.errors import EpochClosed, SentElsewhere
from timely_spark.runtime.inputs import InputHandle, read_entry
from timely_spark.runtime.log import RoundLog

Epochs = Literal["clock", "manual"]


@pytest.fixture
def log(tmp_path: Path) -> RoundLog:
    return RoundLog(str(tmp_path))


def handle(epochs: Epochs = "manual") -> InputHandle:
    return InputHandle("x", "n long, s string", epochs=epochs)


def entries(log: RoundLog) -> list[tuple[str, int | None, int]]:
    found = [read_entry(log, "x", number) for number in log.files.numbers("inputs/x")]
    return [(entry.kind, entry.epoch, entry.table.num_rows) for entry in found]


def test_what_is_said_before_the_start_is_written_at_the_start(log: RoundLog) -> None:
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
    with pytest.raises(EpochClosed, match="stands at epoch 3; epoch 2 is closed"):
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


def test_a_second_sender_is_told(log: RoundLog) -> None:
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
        with pytest.raises(InvalidTime, match=r"(?s)input 'x'.*is no epoch \(.*test_inputs.py:\d+\).*Hint: "):
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
