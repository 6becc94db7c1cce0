"""How long the states of earlier micro-batches are kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import timely_spark as ts
from timely_spark.errors import BadArgument
from timely_spark.graph import seconds
from timely_spark.runtime.storage import manifest


@pytest.mark.slow
@pytest.mark.parametrize(("keep", "kept"), [(0.0, 2), (4.0, 4), (1e9, 7)])
def test_batches_are_kept_for_so_long_and_at_least_so_many(
    begin: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keep: float, kept: int
) -> None:
    now = [1_000.0]
    monkeypatch.setattr(manifest.time, "time", lambda: now[0])
    flow = ts.Dataflow("kept")
    flow.input("x", "n long").collection().count("times", keys="n", name="counted").capture("out")
    process = begin(flow, keep=1)
    object.__setattr__(process.driver.context, "keep_seconds", keep)
    for n in range(6):
        now[0] += 1.0
        process.feed("x", [n])
    look = ts.inspect(str(tmp_path))
    assert len(look.retained) == kept
    for number in look.retained:
        found = look.at(number).state("counted")
        assert found == {} if number < 0 else found["output"].num_rows == number + 1


@pytest.mark.slow
def test_a_clock_that_was_ahead_for_a_moment_keeps_no_batch_for_ever(
    begin: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1_000.0]
    monkeypatch.setattr(manifest.time, "time", lambda: now[0])
    flow = ts.Dataflow("ahead")
    flow.input("x", "n long").capture("out")
    process = begin(flow, keep=1)
    object.__setattr__(process.driver.context, "keep_seconds", 2.0)
    for n in range(9):
        now[0] = 1e9 if n == 2 else 1_000.0 + n
        process.handles["x"].send([n])
        process.batches()
    assert min(ts.inspect(str(tmp_path)).retained) > 2


@pytest.mark.parametrize("keep", ["for ever", -1, float("nan"), [1]])
def test_a_duration_that_is_none(keep: Any) -> None:
    with pytest.raises(BadArgument, match="keep"):
        seconds("keep", keep)
