"""Placement: workers leave a process that stays slow for equal work, and only such a one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timely_spark.coordinator.placement import BATCHES, WORKED, Effort, Placement, slowness, total


def effort(seconds: float, *, records: int = 1000, calls: int = 10, sent: int = 0) -> Effort:
    return {"count": [round(seconds * 1e6), calls, records, sent]}


def windows(placement: Placement, of: dict[int, Effort], number: int = 1) -> list[str]:
    """What is said while the workers have these efforts, until processes have been compared so often."""
    return [text for _ in range(number * BATCHES) if (text := placement.enter(of))]


def test_the_workers_of_a_process_that_is_slow_twice_move_to_the_others() -> None:
    placement = Placement(8, 4)
    even = {worker: effort(1.0) for worker in range(8)}
    slow = even | {worker: effort(3.0) for worker in (1, 5)}

    assert windows(placement, slow) == windows(placement, even) == windows(placement, slow) == []
    assert placement.places == (0, 1, 2, 3) * 2
    (text,) = windows(placement, slow)

    assert text == placement.text
    assert (
        text == "process 1 took 3.0 times as long as others for equal work: workers 1, 5 have moved from it"
    )
    assert {*placement.places} == {0, 2, 3}
    assert [placement.places[worker] for worker in (0, 2, 3, 4, 6, 7)] == [0, 2, 3, 0, 2, 3], "these stay"
    assert windows(placement, even, 9) == []
    assert {*placement.places} == {0, 2, 3}, "they do not return by themselves"


def test_workers_that_are_as_slow_in_another_process_move_back_once_and_for_all() -> None:
    placement = Placement(4, 2)
    slow = {worker: effort(1.0 + 9 * (worker == 1)) for worker in range(4)}

    assert len(windows(placement, slow, 2)) == 1
    assert placement.places == (0, 0, 0, 0)
    assert windows(placement, slow, 2) == ["workers 1, 3 are as slow in other processes, and move back"]
    assert (placement.places, placement.text) == ((0, 1, 0, 1), "")
    assert windows(placement, slow, 9) == []


@pytest.mark.parametrize("more", [{"records": 20_000}, {"calls": 200}, {"sent": 50_000}])
def test_a_process_with_more_records_is_not_slow(more: dict[str, int]) -> None:
    """That of a hot key: moving it would not help."""
    placement = Placement(4, 2)
    hot = {worker: effort(1.0, sent=1000) for worker in range(4)} | {1: effort(20.0, **{"sent": 1000} | more)}
    assert windows(placement, hot, 5) == []


def test_small_batches_are_compared_when_there_is_a_second_of_work() -> None:
    placement, batches = Placement(2, 2), 0
    while not placement.enter({0: effort(0.01), 1: effort(0.05)}):
        batches += 1
    assert batches + 1 == 2 * round(WORKED / 1e6 / 0.05)


def test_processes_without_work_of_a_kind_are_not_compared() -> None:
    assert slowness(effort(9.0), {}) == 0.0
    assert slowness({}, effort(9.0)) == 0.0
    assert slowness(effort(9.0, sent=3), effort(1.0)) == 0.0
    mostly = {**effort(9.0), "rare": [1000, 1, 1, 1]}
    assert slowness(mostly, effort(1.0)) == 9.0
    assert slowness({**effort(1.0), "alone": [2_000_000, 1, 1, 1]}, effort(0.1)) == 0.0


def test_half_of_the_processes_stay_whatever_is_measured() -> None:
    placement = Placement(3, 3)
    slow = {0: effort(1.0), 1: effort(9.0), 2: effort(9.0)}
    assert windows(placement, slow, 4) == []


counts = st.integers(0, 1000)


@given(
    st.lists(st.tuples(*[st.integers(0, 100)] * 3), min_size=1, max_size=4),
    st.lists(st.lists(st.tuples(counts, counts, counts), min_size=4, max_size=4), min_size=2, max_size=4),
)
def test_no_process_of_equal_machines_is_slow_whatever_its_work(
    prices: list[tuple[int, ...]], work: list[list[tuple[int, ...]]]
) -> None:
    """Each call has a price, and each record that a step is given or sends."""
    efforts = [
        {
            str(step): [sum(price * n for price, n in zip(priced, own, strict=True)), *own]
            for step, (priced, own) in enumerate(zip(prices, process, strict=False))
        }
        for process in work
    ]
    for own in efforts:
        assert all(slowness(own, other) <= 1 + 1e-9 for other in efforts)
    assert slowness(total(efforts), total(efforts)) <= 1 + 1e-9
