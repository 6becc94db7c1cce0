"""Random schedules of the real round and coordinator, on small random graphs with up to two nested loops.

The vertices send, and ask for notifications, at random later times with all three kinds of capability; what
they do depends on (stage, worker, time, content) alone, so what happens must not depend on the schedule.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.random_flows import (
    Broken,
    check,
    check_many,
    no_arrivals,
    no_data_of_this_batch,
    no_open_inputs,
)
from timely_spark.coordinator import Coordinator
from timely_spark.worker import notify, received


@pytest.mark.slow
@pytest.mark.parametrize(
    "salts",
    [pytest.param(range(n, n + 3), marks=pytest.mark.campaign if n else ()) for n in range(0, 90, 3)],
    ids=str,
)
def test_what_happens_depends_on_no_schedule_and_no_law_is_broken(salts: range) -> None:
    assert sum(check(salt) for salt in salts) > 30, "too little happens to tell"


@pytest.mark.campaign
@pytest.mark.timeout(1800)
def test_what_happens_depends_on_no_schedule_in_many_cases() -> None:
    for salt in range(1_000, 6_000):
        check(salt)


# -- the check has teeth: wrong rules, each of which it must catch -------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rule", "first"), [(no_arrivals, 5), (no_open_inputs, 3), (no_data_of_this_batch, 8)]
)
def test_a_wrong_rule_of_notifications_is_caught(
    rule: Any, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notify, "lower_bounds", rule)
    with pytest.raises(Broken):
        check_many(first)


@pytest.mark.slow
def test_a_round_that_ignores_what_it_holds_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def first(self: Any, bounds: Any, *_: Any) -> Any:
        free = [p for p in self if not any(t.less_equal(p.guarantee) for t in bounds[p.node])]
        if not free:
            return None
        self._activate(free[-1])
        return free[-1]

    monkeypatch.setattr(notify.Notificator, "first", first)
    with pytest.raises(Broken):
        check_many(0)


@pytest.mark.slow
def test_a_further_round_that_takes_the_next_epoch_for_closed_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def next_batch(source: Any, position: Any, batch_id: int, *, first: bool = True) -> Any:
        return notify.input_frontier(source, position, batch_id + (not first))

    monkeypatch.setattr(received, "input_frontier", next_batch)
    with pytest.raises(Broken):
        check_many(10)


@pytest.mark.slow
def test_an_input_that_is_one_epoch_ahead_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    move = Coordinator._advance_input

    def ahead(self: Any, name: str, old: Any, new: Any) -> None:
        move(self, name, old, new and new + (old is not None))

    monkeypatch.setattr(Coordinator, "_advance_input", ahead)
    with pytest.raises(Broken):
        check_many(4)
