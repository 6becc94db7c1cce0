"""Frontiers: the examples of timely's documentation."""

from __future__ import annotations

import pytest

from timely_spark.times import Antichain, MutableAntichain, Time


def at(*epochs: int) -> list[Time]:
    return [Time(epoch) for epoch in epochs]


def test_timely_docs_of_insert_and_extend() -> None:
    frontier: Antichain[Time] = Antichain()

    assert frontier.insert(Time(2)) is True
    assert frontier.insert(Time(3)) is False

    frontier = Antichain()
    assert frontier.extend(at(3)) is True
    assert frontier.extend(at(2, 5)) is True
    assert frontier.extend(at(3, 4)) is False
    assert frontier.elements == (Time(2),)


def test_timely_docs_of_less_than_and_less_equal() -> None:
    two, empty = Antichain(at(2)), Antichain[Time]()

    assert [two.less_than(time) for time in at(3, 2, 1)] == [True, False, False]
    assert [two.less_equal(time) for time in at(3, 2, 1)] == [True, True, False]
    assert not any(empty.less_than(time) or empty.less_equal(time) for time in at(0, 3))


def test_equality_ignores_order() -> None:
    one, other = Time(1, 5), Time(2, 4)

    assert Antichain([one, other]) == Antichain([other, one])
    assert Antichain([one]) != Antichain([one, other])
    assert Antichain([one]) != [one]
    with pytest.raises(TypeError):
        hash(Antichain([one]))


def test_an_empty_frontier_is_complete_and_false() -> None:
    assert not Antichain()
    assert len(Antichain(at(2))) == 1
    assert Antichain(at(1)).dominates(Antichain())
    assert not Antichain[Time]().dominates(Antichain(at(1)))
    assert list(Antichain(at(1))) == at(1)


def test_a_returned_frontier_does_not_change() -> None:
    counted = MutableAntichain([(Time(1), 1)])
    before = counted.frontier()
    before.insert(Time(0))
    twin = before.copy()
    counted.update_iter([(Time(1), -1)])

    assert before == twin == Antichain(at(0))
    assert counted.frontier() == Antichain()


def test_timely_docs_of_mutable_antichain() -> None:
    counted = MutableAntichain([(Time(1), 1)])

    assert counted.update_iter([(Time(1), -1), (Time(2), 7)]) == [(Time(1), -1), (Time(2), 1)]
    assert counted.frontier() == Antichain(at(2))


def test_counts_that_cancel_take_no_memory() -> None:
    counted = MutableAntichain([(Time(1), 1)])
    for _ in range(1000):
        counted.update_iter([(Time(9), 1), (Time(9), -1)])

    assert len(counted) == 1


def test_timely_docs_of_change_batches() -> None:
    counted: MutableAntichain[Time] = MutableAntichain()
    counted.update_iter([(Time(17), 1)])
    assert dict(counted.counts) == {Time(17): 1}
    counted.update_iter([(Time(17), -1)])
    assert len(counted) == 0
    counted.update_iter([(Time(17), 1), (Time(17), -1), (Time(14), -1)])
    assert dict(counted.counts) == {Time(14): -1}


def test_a_negative_count_is_kept_and_is_no_frontier() -> None:
    counted: MutableAntichain[Time] = MutableAntichain()

    assert counted.update_iter([(Time(3), -1)]) == []
    assert counted.frontier() == Antichain()
    assert counted.update_iter([(Time(3), 1)]) == []
    assert len(counted) == 0
    assert counted.update_iter([(Time(3), -1), (Time(3), 2)]) == [(Time(3), 1)]


def test_only_changes_between_zero_and_positive_are_reported() -> None:
    counted = MutableAntichain([(Time(3), 1)])

    assert counted.update_iter([(Time(3), 1)]) == []
    assert counted.update_iter([(Time(5), 1)]) == []
    assert counted.update_iter([(Time(3), -1)]) == []
    assert counted.update_iter([(Time(3), -1)]) == [(Time(3), -1), (Time(5), 1)]
    assert repr(counted) == "MutableAntichain([(Time(5), 1)])"


def test_changes_leave_out_the_elements_that_stay() -> None:
    counted = MutableAntichain([(Time(1, 5), 1), (Time(2, 4), 1), (Time(1, 6), 1)])

    assert counted.update_iter([(Time(3, 3), 1)]) == [(Time(3, 3), 1)]
    assert counted.update_iter([(Time(1, 5), -1), (Time(3, 3), -1)]) == [
        (Time(1, 5), -1), (Time(3, 3), -1), (Time(1, 6), 1),
    ]  # fmt: skip
    assert counted.update(Time(2, 4), -1) == [(Time(2, 4), -1)]
    assert counted.frontier() == Antichain([Time(1, 6)])
