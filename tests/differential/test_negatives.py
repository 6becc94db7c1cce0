"""More removed than inserted: counted where a record becomes negative, told once per step, or an error."""

from __future__ import annotations

import random
import warnings
from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow.compute as pc
import pytest

import timely_spark as ts
from tests.support.turns import in_turn
from timely_spark.errors import BadArgument, VertexError
from timely_spark.testing import Simulation

Build = Callable[[ts.Collection], ts.Collection]
Epochs = list[list[tuple[Any, ...]]]

TELLS: dict[str, Build] = {
    "count": lambda x: x.count(keys="k", name="it"),
    "distinct": lambda x: x.distinct(name="it"),
    "min": lambda x: x.min("v", keys="k", name="it"),
    "top_k": lambda x: x.top_k(1, "v", keys="k", name="it"),
    "max of an arrangement": lambda x: x.arrange("k").max("v", name="it"),
    "count of an arrangement": lambda x: x.arrange("k").count(name="it"),
    "reduce": lambda x: x.reduce(lambda _, rows: [len(rows)], "n long", keys="k", name="it"),
    "reduce_batches": lambda x: x.reduce_batches(
        lambda table: table.select(["k"]).append_column("n", table["count"]), "n long", keys="k", name="it"
    ),
    "max of integers": lambda x: x.select("v", "k").max("k", keys="v", name="it"),
}
SILENT: dict[str, Build] = {
    "sum": lambda x: x.sum("k", keys="v"),
    "mean": lambda x: x.mean("k", keys="v"),
    "threshold": lambda x: x.threshold(lambda counts: counts),
    "minus": lambda x: x.concat(x.negate(), x.negate()).distinct(),
    "behind a threshold": lambda x: x.threshold(lambda counts: -counts).count(keys="k"),
    "a loop": lambda x: x.iterate(lambda rows: rows.concat(x.where(pc.field("k") < 0)).distinct()),
}


def flow_of(build: Build, name: str = "negatives") -> ts.Dataflow:
    flow = ts.Dataflow(name)
    build(flow.input("x", "k long, v string, diff long").collection(diff="diff")).changes().capture("out")
    return flow


def told(build: Build, epochs: Epochs, **options: Any) -> tuple[list[str], dict[str, int]]:
    """The warnings, and by step the records that became negative."""
    simulation = Simulation(flow_of(build), **options)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for rows in epochs:
            simulation.send("x", rows)
            simulation.run()
    counts = {step: n for step, (n, _) in simulation.coordinator.negatives.items()}
    return [str(warning.message) for warning in caught], counts


#: the second epoch removes what was not inserted; the third and the fourth do not change that
ROWS: Epochs = [[(1, "a", 1)], [(1, "a", -1), (2, "b", -1)], [(2, "b", -1), (3, "c", 1)], [(2, "b", 1)]]


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("case", TELLS)
def test_a_record_that_becomes_negative_is_told_of_once(case: str, workers: int) -> None:
    (text,), counts = told(TELLS[case], ROWS, workers=workers)

    assert text.startswith("step 'it' (")
    assert "test_negatives.py" in text
    assert "more was removed than inserted: {" in text
    assert "'k': 2" in text
    assert "is there -1 times after epoch 1\nHint: look for deletes that are sent twice" in text
    assert counts == {"it": 1}


@pytest.mark.parametrize("case", TELLS)
def test_on_negative_raise_ends_the_flow_there(case: str) -> None:
    with pytest.raises(
        VertexError, match=r"(?s)step 'it' \(.*test_negatives.py:\d+\) .*'k': 2.*Hint: look for"
    ):
        ts.testing.run(flow_of(TELLS[case]), {"x": ROWS}, workers=2, on_negative="raise")


@pytest.mark.parametrize(
    "case", [case if case == "minus" else pytest.param(case, marks=pytest.mark.slow) for case in SILENT]
)
def test_where_negative_multiplicities_have_a_meaning_nothing_is_told(case: str) -> None:
    ts.testing.run(flow_of(SILENT[case]), {"x": ROWS}, workers=2, on_negative="raise")


@pytest.mark.slow
@pytest.mark.share(1)
@pytest.mark.parametrize("kind", ["long", "double", "decimal(20, 2)"])
def test_sums_and_means_of_more_removed_than_inserted_are_there(kind: str) -> None:
    """As in a minus b: a key has no row only if nothing is left of it."""
    flow = ts.Dataflow("balance")
    rows = flow.input("x", f"k string, v {kind}, note long, diff long").collection(diff="diff")
    rows.sum("v", keys="k").capture("sum")
    rows.mean("v", keys="k").capture("mean")
    parts = [("removed", 5, 0, -2), ("even", 5, 0, 1), ("even", 7, 0, -1), ("nulls", None, 0, -3)]
    parts += [("few", None, 0, 3), ("few", 4, 0, -1), ("nothing", 4, 0, 1), ("nothing", 4, 1, -1)]
    parts += [("signs", -5, 0, 1), ("signs", 5, 0, 1), ("signs", 0, 0, -2)]
    parts += [("large", 2**32, 0, 1), ("large", 2**31, 0, -2), ("large", 0, 0, 1)]
    of = {"long": int, "double": float}.get(kind, Decimal)
    changes = [(k, v if v is None else of(v), *rest) for k, v, *rest in parts]

    out = ts.testing.run(flow, {"x": [changes, [(*row, -diff) for *row, diff in changes]]}, workers=2)

    sums, means = ({row[0]: row[1] for row in out[name].rows()[0]} for name in ("sum", "mean"))
    assert sums == {"removed": -10, "even": -2, "nulls": None, "few": -4}
    assert means == {"removed": 5.0, "even": None, "nulls": None, "few": 4.0}
    assert {name: ts.snapshot(out[name]).num_rows for name in out} == {"sum": 0, "mean": 0}


def test_a_collection_without_keys_is_told_of_as_a_whole() -> None:
    (text,), _ = told(lambda x: x.count(), [[(1, "a", -1)]])

    assert "more was removed than inserted: the collection has -1 records after epoch 0" in text


def test_it_is_counted_each_time_but_told_of_once() -> None:
    epochs: Epochs = [[(1, "a", -1), (2, "b", -2)], [(1, "a", 1)], [(1, "a", -1), (2, "b", 1)]]

    texts, counts = told(TELLS["distinct"], epochs)

    assert len(texts) == 1
    assert counts == {"it": 3}


def test_each_stage_of_a_reduction_in_parts_tells_of_its_records() -> None:
    texts, counts = told(
        lambda x: x.min("v", keys="k", skew=[2]), [[(2, "b", -1)], [(3, "c", -1)]], workers=2
    )

    assert ["{'k': 2, 'v': 'b'} is there" in text for text in texts] == [True, False]
    assert sum(counts.values()) == 2


def test_the_order_of_changes_within_an_epoch_is_no_matter() -> None:
    assert told(TELLS["distinct"], [[(1, "a", -1), (1, "a", 1)], [(1, "a", -1), (1, "a", 2)]]) == ([], {})


def drawn(seed: str | int) -> tuple[Epochs, int]:
    """Epochs of random changes, and how many records become negative in them."""
    draw, present, expected = random.Random(seed), Counter[tuple[Any, ...]](), 0
    epochs: Epochs = []
    for _ in range(20):
        before = Counter(present)
        epochs.append(rows := [(draw.randrange(2), draw.choice("abc"), draw.choice([1, -1])) for _ in "1234"])
        for k, v, diff in rows:
            present[k, v] += diff
        expected += sum(n < 0 <= before[row] for row, n in present.items())
    return epochs, expected


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "seed"), in_turn(["distinct", "top_k", "max of an arrangement", "reduce"], [None, 1, 2])
)
def test_as_many_are_counted_as_become_negative(case: str, seed: int | None) -> None:
    """Whatever the schedule, also after crashes."""
    epochs, expected = drawn(f"{case} {seed}")

    _, counts = told(TELLS[case], epochs, workers=2, seed=seed, crashes=0.0 if seed is None else 0.3)

    assert expected > 3
    assert counts == {"it": expected}


def indexed(collection: ts.Collection) -> ts.Collection:
    """As edges of an algorithm are."""
    rows = collection.select("k", "v")
    rows.checks_removals = True
    return rows.arrange("k", name="it")


@pytest.mark.parametrize("workers", [1, 2])
def test_an_index_of_edges_tells_of_a_record_that_becomes_negative(workers: int) -> None:
    (text,), counts = told(indexed, ROWS, workers=workers)

    assert "more was removed than inserted: {'k': 2, 'v': 'b'} is there -1 times after epoch 1" in text
    assert list(counts.values()) == [1]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_an_index_of_edges_counts_as_many_as_become_negative(seed: int) -> None:
    """Whatever the schedule, also after crashes; epochs are in flight together."""
    epochs, expected = drawn(seed)

    _, counts = told(indexed, epochs, workers=1 + seed % 3, seed=seed, crashes=0.3 if seed % 2 else 0.0)

    assert expected > 3
    assert sum(counts.values()) == expected


def test_an_index_of_edges_looks_up_no_record_of_a_key_with_very_many(monkeypatch: Any) -> None:
    monkeypatch.setattr("timely_spark.differential.arranged.LOOKED_UP", 2)

    many: Epochs = [[(1, "a", 1), (1, "b", 1)], [(1, "c", -1), (2, "c", -1)]]
    assert list(told(indexed, many)[1].values()) == [1]


def test_nulls_among_whole_numbers_lose_no_negative_record() -> None:
    build = TELLS["max of integers"]
    rows: Epochs = [[(1, "a", 1)], [(None, "a", 1), (2, "a", -1)], [(None, "a", -2)]]

    assert told(build, rows)[1] == {"it": 2}


@pytest.mark.parametrize("given", ["ignore", None, True])
def test_another_on_negative_is_refused(given: Any) -> None:
    with pytest.raises(BadArgument, match=r"(?s)on_negative=.* is not 'warn' or 'raise'.*Hint: "):
        ts.testing.run(flow_of(TELLS["count"]), {"x": ROWS}, on_negative=given)
