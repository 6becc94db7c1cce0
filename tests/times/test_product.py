"""The default kind of time: cases published by timely, and what must be refused."""

from __future__ import annotations

import copy
import json
import pickle
from typing import Any

import pytest

from timely_spark.errors import InvalidTime, TimelyError
from timely_spark.times import LEXICOGRAPHIC, MAX, PRODUCT, Lexicographic, Summary, Time


def more(n: int) -> Summary:
    """Timely's summary for plain integers."""
    return PRODUCT.delay(0, n)


def test_timely_docs_of_path_summaries() -> None:
    assert more(5).results_in(Time(3)) == Time(8)
    assert more(MAX - 2).results_in(Time(3)) is None
    assert more(5).followed_by(more(MAX - 3)) is None
    assert PRODUCT.identity(0).results_in(Time(3)) == Time(3)
    assert more(0) == PRODUCT.identity(0)


def test_a_sum_never_exceeds_the_largest_coordinate() -> None:
    assert more(5).results_in(Time(MAX - 5)) == Time(MAX)
    assert more(5).results_in(Time(MAX - 4)) is None
    assert PRODUCT.feedback(1).results_in(Time(0, MAX)) is None
    assert PRODUCT.leave(1).results_in(Time(0, MAX)) == Time(0)
    twice = more(MAX // 2).followed_by(more(MAX // 2))
    assert twice is not None
    assert twice.results_in(Time(1)) == Time(MAX)
    assert twice.results_in(Time(2)) is None


def test_incomparable_times_are_neither_before_nor_after() -> None:
    a, b = Time(1, 5), Time(2, 4)

    assert not a <= b
    assert not a >= b
    assert not a < b
    assert not a > b
    assert Time(1, 4) < a < Time(2, 5)
    assert Time(1, 4) <= a <= Time(1, 5)


def test_a_time_is_its_coordinates() -> None:
    time = Time(7, 3, 4)

    assert (time.epoch, time.counters) == (7, (3, 4))
    assert time == (7, 3, 4)
    assert hash(time) == hash((7, 3, 4))
    assert repr(time) == "Time(7, 3, 4)"
    assert json.dumps(time.encode()) == "[7, 3, 4]"
    assert PRODUCT.decode([7, 3, 4]) == time
    assert PRODUCT.epoch(7) == Time(7)


@pytest.mark.parametrize("time", [Time(3), Time(3, 0, 5), Lexicographic(3, 1, 2)])
def test_times_and_kinds_survive_copies(time: Time) -> None:
    cloudpickle = pytest.importorskip("pyspark.cloudpickle")
    for twin in (
        copy.deepcopy(time),
        copy.copy(time),
        *(p.loads(p.dumps(time)) for p in (pickle, cloudpickle)),
    ):
        assert twin == time
        assert type(twin) is type(time)
    for kind in (PRODUCT, LEXICOGRAPHIC):
        assert pickle.loads(pickle.dumps(kind)) == kind
        assert cloudpickle.loads(cloudpickle.dumps(kind.feedback(1, 3))) == kind.feedback(1, 3)
    assert PRODUCT != LEXICOGRAPHIC


@pytest.mark.parametrize("coordinates", [(-1,), (0, -1), (MAX + 1,), (0, MAX + 1)])
def test_a_coordinate_out_of_range_is_refused(coordinates: tuple[int, ...]) -> None:
    with pytest.raises(InvalidTime, match="Hint: "):
        Time(*coordinates)


@pytest.mark.parametrize("wrong", [(1.5,), ("3",), (None,), (0, (0,))])
def test_a_coordinate_is_an_integer(wrong: tuple[Any, ...]) -> None:
    with pytest.raises(InvalidTime, match=r"(?s)^Time\(.* not integers.*\nHint: .*Time\(0, 2\)"):
        Time(*wrong)


def test_times_of_different_loop_contexts_do_not_compare() -> None:
    for call in (
        lambda: Time(1) <= Time(1, 0),
        lambda: Time(1).join(Time(1, 0)),
        lambda: Time(1).meet(Time(1, 0)),
        lambda: Lexicographic(1, 0) <= Lexicographic(1, 0, 0),
        lambda: PRODUCT.leave(1).results_in(Time(1)),
        lambda: PRODUCT.leave(1).followed_by(PRODUCT.leave(1)),
        lambda: Summary((MAX,), (0, 0), ()),
        lambda: PRODUCT.leave(0),
        lambda: PRODUCT.feedback(0),
        lambda: PRODUCT.delay(0, -1),
    ):
        with pytest.raises(InvalidTime):
            call()
    with pytest.raises(TypeError):
        assert Time(1) <= 1  # type: ignore[operator]
    assert not PRODUCT.identity(0).less_equal(PRODUCT.identity(1))


def test_errors_are_timely_errors_and_can_be_pickled() -> None:
    with pytest.raises(InvalidTime) as caught:
        Time(-1)
    twin = pickle.loads(pickle.dumps(caught.value))

    assert isinstance(twin, (TimelyError, ValueError))
    assert str(twin) == str(caught.value)


def test_a_limit_holds_at_the_feedback_and_after_leaving() -> None:
    feedback, out = PRODUCT.feedback(1, limit=3), PRODUCT.leave(1)
    feedback_then_leave = feedback.followed_by(out)

    assert feedback.results_in(Time(0, 2)) == Time(0, 3)
    assert feedback.results_in(Time(0, 3)) is None
    assert feedback_then_leave is not None
    assert feedback_then_leave.results_in(Time(0, 2)) == Time(0)
    assert feedback_then_leave.results_in(Time(0, 3)) is None
    three = feedback.followed_by(feedback).followed_by(feedback)
    assert three.results_in(Time(0, 0)) == Time(0, 3)
    assert three.followed_by(feedback) is None
    assert PRODUCT.enter(0).followed_by(three).followed_by(feedback) is None
    assert out.less_equal(feedback_then_leave)
    assert not feedback_then_leave.less_equal(out)


def test_a_loop_of_zero_iterations_lets_nothing_pass() -> None:
    none = PRODUCT.feedback(1, limit=0)

    assert none.results_in(Time(0, 0)) is None
    assert none.followed_by(PRODUCT.leave(1)) is None
    assert PRODUCT.enter(0).followed_by(none) is None
    assert PRODUCT.feedback(1).less_equal(none)
    assert not none.less_equal(PRODUCT.feedback(1))


def test_steps_of_nested_loops() -> None:
    around = PRODUCT.leave(2).followed_by(PRODUCT.feedback(1)).followed_by(PRODUCT.enter(1))

    assert around.results_in(Time(4, 1, 7)) == Time(4, 2, 0)
    assert PRODUCT.enter(1).followed_by(PRODUCT.leave(2)) == PRODUCT.identity(1)
    assert PRODUCT.feedback(2).results_in(Time(4, 1, 7)) == Time(4, 1, 8)
    assert PRODUCT.delay(2, 3).results_in(Time(4, 1, 7)) == Time(7, 1, 7)
    assert not around.less_equal(PRODUCT.feedback(2))
    assert not PRODUCT.feedback(2).less_equal(around)
    assert PRODUCT.coarse(Time(4, 1, 7), frozenset({0})) == Time(4, 0, 7)
    assert PRODUCT.coarse(Time(4, 1, 7), frozenset()) == Time(4, 1, 7)


@pytest.mark.parametrize("times", [PRODUCT, LEXICOGRAPHIC])
def test_paths_between_other_loop_contexts_are_not_compared(times: Any) -> None:
    enter, both = times.enter(0), times.identity(1)

    assert enter.increments + enter.appended == both.increments + both.appended == (0, 0)
    assert not enter.less_equal(both)
    assert not both.less_equal(enter)
    assert not times.leave(1).less_equal(both)


def test_a_summary_is_of_tuples_and_its_steps_are_within_the_range() -> None:
    made = Summary((MAX,), [1], [2])  # type: ignore[arg-type]

    assert {made} == {Summary((MAX,), (1,), (2,))}
    for increments, appended in (((MAX + 1,), ()), ((), (MAX + 1,)), ((-1,), ()), ((), (-1,))):
        with pytest.raises(InvalidTime, match="Hint: "):
            Summary((MAX,), increments, appended)


def test_a_plain_tuple_is_compared_by_coordinates_too() -> None:
    assert Time(1, 2) >= (0, 1)
    assert not Time(1, 2) >= (0, 5)
    assert not Time(1, 2) <= (2, 0)
    assert not Time(1, 2) > (0, 5)
