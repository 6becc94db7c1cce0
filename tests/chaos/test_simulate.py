"""A sample of the simulator's campaign, and what it says when two runs differ."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.support import simulate
from timely_spark.testing import Simulation


@pytest.mark.slow
def test_random_flows_come_through_random_crashes(capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate.main(["--steps", "300"]) == 0
    printed = capsys.readouterr().out

    assert printed.endswith("no differences\n")
    counts = {what: int(n) for n, what in re.findall(r"(\d+) ([a-z ]+?)(?=[,;]|$)", printed, re.MULTILINE)}
    assert counts["rounds of workers"] >= 300
    assert counts["crashes"] > 10
    assert counts["recoveries"] >= counts["crashes"]


@pytest.mark.slow
def test_a_difference_ends_the_campaign_with_its_seed_which_shows_it_again(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    restore = Simulation._restore

    def forgets_a_state(self: Any, batch: Any) -> None:
        restore(self, batch)
        self.states[-1] = None

    monkeypatch.setattr(Simulation, "_restore", forgets_a_state)
    assert simulate.main(["--steps", "10000"]) == 1
    printed = capsys.readouterr().out
    found = re.search(r"DIFFERS: seed (\d+): .*[\s\S]*--seed \1\n$", printed)
    assert found is not None, printed

    assert simulate.main(["--seed", found[1]]) == 1
    monkeypatch.undo()
    assert simulate.main(["--seed", found[1]]) == 0
