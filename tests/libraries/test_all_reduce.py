"""AllReduce: against numpy, on all workers, in one exchange and in two."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import timely_spark as ts
from timely_spark.errors import GraphError, SchemaError, TimelyError
from timely_spark.testing import Simulation, run

NUMPY: dict[str, Any] = {"sum": np.sum, "mean": np.mean, "min": np.min, "max": np.max}


def reduced(kind: str, **options: Any) -> ts.Dataflow:
    flow = ts.Dataflow("reduced")
    ts.all_reduce(flow.input("x", f"n long, v array<{kind}>"), "v", **options).capture("out")
    return flow


@pytest.mark.slow
@given(
    arrays=st.integers(0, 9).flatmap(
        lambda n: st.lists(st.lists(st.integers(-(2**40), 2**40), min_size=n, max_size=n), max_size=6)
    ),
    op=st.sampled_from(sorted(NUMPY)),
    parts=st.sampled_from([None, 1, 3, 16, [5, 5, 1]]),
    workers=st.sampled_from([1, 2, 3, 8]),
    seed=st.sampled_from([None, 1, 2]),
)
def test_every_worker_has_the_result(arrays, op, parts, workers, seed) -> None:
    flow = reduced("long", op=op, parts=parts)
    epochs = [list(enumerate(arrays)), [], [(0, [7])]]

    rows = run(flow, {"x": epochs}, workers=workers, seed=seed)["out"].rows()

    expected = NUMPY[op](np.array(arrays), axis=0).tolist() if arrays else None
    assert rows.get(0, []) == ([(expected,)] * workers if arrays else [])
    assert rows.get(1, []) == []
    assert rows[2] == [([7],)] * workers


@pytest.mark.slow
@pytest.mark.parametrize("parts", [None, 5])
def test_doubles_are_the_same_on_all_workers_to_the_last_bit(parts: int | None) -> None:
    draw = np.random.default_rng(1)
    arrays = draw.normal(size=(40, 33)) * 10.0 ** draw.integers(-9, 9, (40, 33))
    given = {"x": [[(n, row) for n, row in enumerate(arrays.tolist())]]}

    rows = run(reduced("double", parts=parts), given, workers=4)["out"].rows()[0]

    assert len(rows) == 4
    assert len({str(row) for row in rows}) == 1
    np.testing.assert_allclose(rows[0][0], arrays.sum(axis=0), rtol=1e-12)
    assert rows == run(reduced("double", parts=parts), given, workers=4, crashes=0.3, seed=2)["out"].rows()[0]


@pytest.mark.parametrize(("parts", "rounds"), [(None, 1), (4, 2)])
def test_one_exchange_or_two(parts: int | None, rounds: int) -> None:
    flow = ts.Dataflow("rounds")
    x = (
        flow.input("x", "n long, v array<long>")
        .exchange("n")
        .unary_notify(lambda time, batch: batch.select(["v"]), "v array<long>", name="mine")
    )
    ts.all_reduce(x, "v", parts=parts).capture("out")
    simulation = Simulation(flow, workers=4)
    simulation.send("x", [(n, [n, 1]) for n in range(20)])
    simulation.run()

    assert simulation.captured["out"].rows() == {0: [([190, 20],)] * 4}
    assert simulation.rounds == 1 + rounds


def test_nan_spreads() -> None:
    given = {"x": [[(0, [float("nan"), 1.0]), (1, [2.0, 3.0])]]}

    for op in NUMPY:
        ((first, second),) = (row[0] for row in run(reduced("double", op=op), given)["out"].rows()[0])
        assert np.isnan(first)
        assert not np.isnan(second)


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ([[1], [1, 2]], "1 and 2 elements"),
        ([[1], None], "a null array"),
        ([[1, None], [2, 3]], "a null element"),
    ],
)
@pytest.mark.parametrize("workers", [1, 3])
def test_other_lengths_and_nulls_are_errors(arrays: list[Any], says: str, workers: int) -> None:
    with pytest.raises(TimelyError, match=rf"(?s)all_reduce got .*{says}.*Hint"):
        run(reduced("long"), {"x": [list(enumerate(arrays))]}, workers=workers)


@pytest.mark.slow
@pytest.mark.parametrize("op", ["sum", "mean"])
@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("parts", [None, 2])
@pytest.mark.parametrize(("value", "more"), [(2**63 - 1, 1), (-(2**63), -1), (2**62, 2**62)])
def test_sums_of_longs_do_not_wrap_around(op: Any, workers: int, parts: Any, value: int, more: int) -> None:
    with pytest.raises(TimelyError, match=r"(?s)all_reduce: a sum of longs is beyond 64 bits.*Hint"):
        run(reduced("long", op=op, parts=parts), {"x": [[(0, [0, value]), (1, [0, more])]]}, workers=workers)
    fits = {"x": [[(0, [value - more]), (1, [more])]]}
    if op == "sum" and abs(value - more) < 2**63:
        assert (
            run(reduced("long", parts=parts), fits, workers=workers)["out"].rows()[0]
            == [([value],)] * workers
        )


@pytest.mark.parametrize(
    "wrong", [{"op": "median"}, {"parts": 0}, {"parts": []}, {"parts": 2.5}, {"parts": ["a"]}]
)
def test_wrong_arguments_are_refused(wrong: dict[str, Any]) -> None:
    x = ts.Dataflow("refused").input("x", "n long, v array<long>, s array<string>")

    with pytest.raises(GraphError, match=r"(?s)all_reduce: (op|parts)=.*test_all_reduce.*Hint"):
        ts.all_reduce(x, "v", **wrong)


def test_other_columns_are_refused() -> None:
    x = ts.Dataflow("refused").input("x", "n long, v array<long>, s array<string>")

    for column in ("n", "s"):
        with pytest.raises(SchemaError, match=r"(?s)not an array of numbers.*test_all_reduce.*Hint"):
            ts.all_reduce(x, column)
    with pytest.raises(SchemaError, match=r"(?s)asks for columns \['w'\].*Hint"):
        ts.all_reduce(x, "w")
    with pytest.raises(GraphError, match=r"(?s)got a Collection.*Hint"):
        ts.all_reduce(x.collection(), "v")
