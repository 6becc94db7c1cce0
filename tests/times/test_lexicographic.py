"""Naiad's order beside the product order."""

from __future__ import annotations

import itertools

import pytest

from timely_spark.errors import InvalidTime
from timely_spark.times import LEXICOGRAPHIC, PRODUCT, Antichain, Lexicographic, Time


@pytest.mark.parametrize(
    ("left", "right", "product", "lexicographic"),
    [
        ((0, 5), (1, 2), False, False),  # with one loop the two orders agree
        ((0, 2), (1, 2), True, True),
        ((1, 0), (0, 7), False, False),
        ((0, 1, 5), (0, 2, 2), False, True),  # they differ from two counters on
        ((0, 2, 2), (0, 1, 5), False, False),
        ((0, 1, 5), (1, 2, 2), False, True),
        ((1, 1, 5), (0, 2, 2), False, False),
        ((0, 1, 2), (0, 1, 5), True, True),
    ],
)
def test_the_two_orders(
    left: tuple[int, ...], right: tuple[int, ...], *, product: bool, lexicographic: bool
) -> None:
    assert (Time(*left) <= Time(*right)) == product
    assert (Lexicographic(*left) <= Lexicographic(*right)) == lexicographic


def test_bounds() -> None:
    a, b = Lexicographic(0, 2, 2), Lexicographic(1, 1, 5)

    assert a.join(b) == Lexicographic(1, 2, 2)
    assert a.meet(b) == Lexicographic(0, 1, 5)
    assert type(a.join(b)) is Lexicographic
    assert isinstance(LEXICOGRAPHIC.enter(0).results_in(LEXICOGRAPHIC.epoch(3)), Lexicographic)


def test_fewer_epochs_do_not_make_up_for_more_iterations() -> None:
    enter, iteration = LEXICOGRAPHIC.enter(0), LEXICOGRAPHIC.feedback(1)
    next_iteration = enter.followed_by(iteration)
    next_epoch = LEXICOGRAPHIC.delay(0, 1).followed_by(enter)

    assert not next_iteration.less_equal(next_epoch)
    assert not next_epoch.less_equal(next_iteration)
    assert next_iteration.less_equal(next_epoch.followed_by(iteration))


def test_between_two_locations_one_summary_is_least_where_the_product_order_has_several() -> None:
    found = []
    for kind in (PRODUCT, LEXICOGRAPHIC):
        inner = kind.feedback(2)
        outer = kind.leave(2).followed_by(kind.feedback(1)).followed_by(kind.enter(1))
        found.append(len(Antichain([outer, inner])))

    assert found == [2, 1]


def test_only_the_outermost_loop_may_have_a_limit() -> None:
    with pytest.raises(InvalidTime, match="Hint: limit only the outermost"):
        LEXICOGRAPHIC.feedback(2, limit=4)

    assert LEXICOGRAPHIC.feedback(1, limit=4).results_in(Lexicographic(0, 4)) is None


@pytest.mark.parametrize("counters", [1, 2, 3])
def test_both_orders_and_their_bounds_on_all_small_times(counters: int) -> None:
    for a, b in itertools.product(
        itertools.product(range(3 if counters < 3 else 2), repeat=1 + counters), repeat=2
    ):
        by_coordinate = all(x <= y for x, y in zip(a, b, strict=True))
        by_epoch_then_counters = a[0] <= b[0] and (a[1:] < b[1:] or a[1:] == b[1:])
        one, other = Lexicographic(*a), Lexicographic(*b)

        assert Time(*a).less_equal(Time(*b)) == by_coordinate
        assert one.less_equal(other) == by_epoch_then_counters
        later, earlier = (b[1:], a[1:]) if a[1:] < b[1:] else (a[1:], b[1:])
        assert one.join(other) == (max(a[0], b[0]), *later)
        assert one.meet(other) == (min(a[0], b[0]), *earlier)
        assert Time(*a).join(Time(*b)) == tuple(map(max, a, b))
        assert Time(*a).meet(Time(*b)) == tuple(map(min, a, b))
