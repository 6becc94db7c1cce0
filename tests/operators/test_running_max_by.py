"""running_max_by: whole records, ties, nulls, epochs, loops; the same for all schedules."""

from __future__ import annotations

import math
import random
from typing import Any

import pyarrow.compute as pc
import pytest

import timely_spark as ts
from timely_spark.errors import SchemaError
from timely_spark.testing import run

#: How the tests of all operators (names, states) try this one, on two streams (k long, v long).
TRIED = {"running_max_by": lambda x, _: x.running_max_by("v", keys="k", name="it")}


def bids() -> ts.Dataflow:
    flow = ts.Dataflow("bids")
    source = flow.input("bids", "item string, bidder string, price double, n long")
    source.running_max_by("price", keys="item").capture("out")
    return flow


def test_a_record_passes_whole_if_its_value_exceeds_those_of_earlier_epochs() -> None:
    epochs = [
        [("vase", "Bo", 7.0, 1), ("vase", "Ann", 5.0, 2), ("jug", None, -1.0, None)],
        [("vase", "Cy", 7.0, 3), ("jug", "Cy", -2.0, 4)],
        [("vase", "Di", 8.0, 5)],
    ]
    assert run(bids(), {"bids": epochs}, workers=3)["out"].rows() == {
        0: [("jug", None, -1.0, None), ("vase", "Bo", 7.0, 1)],
        1: [],
        2: [("vase", "Di", 8.0, 5)],
    }


def test_null_and_nan_are_no_values_and_null_is_a_key() -> None:
    epochs = [[(None, "a", 1.0, 1), (None, "b", math.nan, 2), ("x", "c", None, 3), ("y", "d", math.nan, 4)]]
    assert run(bids(), {"bids": epochs}, workers=2)["out"].rows() == {0: [(None, "a", 1.0, 1)]}


def test_of_records_with_the_greatest_value_the_least_other_columns_decide() -> None:
    epochs = [[("x", "b", 1.0, 1), ("x", "a", 1.0, 9), ("x", "a", 1.0, 3), ("x", None, 1.0, 0)]]
    assert run(bids(), {"bids": epochs})["out"].rows() == {0: [("x", "a", 1.0, 3)]}


def expected(epochs: list[list[tuple[Any, ...]]]) -> dict[int, list[tuple[Any, ...]]]:
    """The same by a loop over the records."""
    best: dict[str, float] = {}
    result = {}
    for epoch, records in enumerate(epochs):
        passed = {}
        for record in sorted(records, key=lambda one: (-one[2], one[1], one[3])):
            if record[0] not in passed and record[2] > best.get(record[0], -math.inf):
                passed[record[0]] = record
        best |= {item: record[2] for item, record in passed.items()}
        result[epoch] = sorted(passed.values())
    return result


@pytest.mark.parametrize("seed", range(5))
def test_the_result_depends_neither_on_workers_nor_on_the_order_of_arrival(seed: int) -> None:
    random_ = random.Random(seed)
    epochs = [
        [
            (random_.choice("xyz"), random_.choice("abc"), float(random_.randrange(6)), random_.randrange(3))
            for _ in range(12)
        ]
        for _ in range(4)
    ]
    for workers in (1, 2, 3):
        shuffled = [random_.sample(records, len(records)) for records in epochs]
        made = run(bids(), {"bids": shuffled}, workers=workers, seed=seed, crashes=0.2)
        assert made["out"].rows() == expected(epochs), f"{seed=} {workers=}"


def test_a_loop_ends_once_no_value_improves() -> None:
    """The widest paths: a path is as wide as its narrowest edge."""
    flow = ts.Dataflow("widest")
    edges, roots = flow.input("edges", "src long, dst long, width long"), flow.input("roots", "node long")

    def widen(paths: ts.Stream) -> tuple[ts.Stream, ts.Stream]:
        best = paths.running_max_by("wide", keys="node", name="best")
        onward = best.join(paths.scope.enter(edges), left="node", right="src")
        narrowest = pc.min_element_wise(pc.field("wide"), pc.field("width"))
        return onward.select(node="dst", via="node", wide=narrowest), best

    first = roots.select(node="node", via="node", wide=pc.scalar(100))
    first.loop(widen).max("wide", keys="node").capture("out")
    links = [(0, 1, 2), (0, 2, 5), (2, 1, 4), (1, 3, 9), (3, 0, 9)]
    for workers in (1, 3):
        made = run(flow, {"edges": [links], "roots": [[0]]}, workers=workers)
        assert made["out"].rows() == {0: [(0, 100), (1, 4), (2, 5), (3, 4)]}


@pytest.mark.parametrize(
    ("schema", "value", "keys"),
    [
        ("k long, v long", "nothing", "k"),
        ("k long, v long", "v", "nothing"),
        ("k long, v long", "v", "v"),
        ("k long, v array<long>", "v", "k"),
        ("k long, v long, others array<long>", "v", "k"),
    ],
)
def test_wrong_columns_are_refused_when_the_graph_is_built(schema: str, value: str, keys: str) -> None:
    with pytest.raises(SchemaError, match=r"running_max_by(.|\n)*Hint: "):
        ts.Dataflow("bad").input("x", schema).running_max_by(value, keys=keys)


def test_it_reads_final_values_of_what_may_still_improve() -> None:
    """A least cost may improve within an epoch, and only the final one counts."""
    flow = ts.Dataflow("of the least")
    steps, roots = (
        flow.input("steps", "a long, b long, cost long"),
        flow.input("roots", "node long, cost long"),
    )

    def relax(near: ts.Stream) -> tuple[ts.Stream, ts.Stream]:
        best = near.min("cost", keys="node")
        far = best.join(near.scope.enter(steps).select("a", "b", more="cost"), left="node", right="a")
        return far.select(node="b", cost=pc.field("cost") + pc.field("more")), best

    roots.loop(relax).running_max_by("cost", keys="node").capture("out")
    links = [(0, 1, 90), (0, 2, 1), (2, 3, 1), (3, 1, 1)]  # node 1 is first at 90, then at 3
    for workers in (1, 3):
        made = run(flow, {"steps": [links], "roots": [[(0, 0)]]}, workers=workers)
        assert made["out"].rows() == {0: [(0, 0), (1, 3), (2, 1), (3, 2)]}
