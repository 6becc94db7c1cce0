"""Output partitioning derived from the graph; and keyed state repartitioned."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import timely_spark as ts
from timely_spark.compiler.partitioning import ANYWHERE, BROADCAST
from timely_spark.graph import Partition
from timely_spark.state import Arrangement
from timely_spark.state.exchange import partitioned
from timely_spark.state.repartition import repartition

BY_K = Partition(("k",))


def same(row: Any) -> Any:
    return row


WAYS: dict[str, tuple[Callable[[ts.Stream], ts.Stream], Partition | None]] = {
    "from a source": (lambda x: x, ANYWHERE),
    "from a source, by batches": (lambda x: x.map(same, "k long, v long"), ANYWHERE),
    "exchanged": (lambda x: x.exchange("k"), BY_K),
    "renamed": (lambda x: x.exchange("k").select(n="k", v="v"), Partition(("n",))),
    "dropped": (lambda x: x.exchange("k").select("v"), None),
    "computed": (lambda x: x.exchange("k").select(k=pc.field("k"), v="v"), None),
    "filtered": (lambda x: x.exchange("k").where(pc.field("v") > 0), BY_K),
    "by a function": (lambda x: x.exchange("k").map(same, "k long, v long"), None),
    "copied": (lambda x: x.broadcast().map(same, "k long, v long"), BROADCAST),
    "aggregated": (lambda x: x.exchange("v").group_by("k").count(), BY_K),
    "two that agree": (lambda x: x.exchange("k").concat(x.select("k", v="k").exchange("k")), BY_K),
    "two that do not": (lambda x: x.exchange("k").concat(x.exchange("v")), None),
    "one that is copied": (lambda x: x.exchange("k").concat(x.broadcast()), BROADCAST),
    "a loop that keeps to it": (
        lambda x: x.exchange("k").loop(
            lambda n: n.where(pc.field("v") > 3), max_iterations=3, on_limit="return"
        ),
        BY_K,
    ),
    "a loop that does not": (
        lambda x: x.exchange("k").loop(lambda n: n.exchange("v"), max_iterations=3, on_limit="return"),
        Partition(("v",)),
    ),
    "what comes round": (
        lambda x: x.exchange("k").loop(
            lambda n: (n.map(same, "k long, v long"), n), max_iterations=3, on_limit="return"
        ),
        None,
    ),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("workers", [1, 3])
def test_output_partitioning_is_derived_from_the_graph_whatever_the_number_of_workers(
    way: str, workers: int
) -> None:
    flow = ts.Dataflow("flow")
    build, expected = WAYS[way]
    build(flow.input("x", "k long, v long")).unary(lambda _, batch: None, "n long", name="reader").capture(
        "out"
    )

    assert flow.compile(workers).partitioning["reader", 0] == expected


def test_state_is_repartitioned_like_the_input_that_it_came_from() -> None:
    def rows(*pairs: tuple[int, int]) -> pa.Table:
        return pa.table({"a": [a for a, _ in pairs], "b": [b for _, b in pairs]})

    def parts_by(column: str, table: pa.Table) -> dict[int, pa.Table]:
        return partitioned(table, Partition((column,)), 3)

    def partition(input_: int, table: pa.Table) -> list[pa.Table]:
        parts = parts_by("ab"[input_], table)
        return [parts.get(worker, table.slice(0, 0)) for worker in range(3)]

    many = rows(*((i, 100 - i) for i in range(40)))
    states = [
        {"kept": Arrangement(("a",)), "sides": [Arrangement(("a",)), Arrangement(("b",))], "came": {}},
        {
            "kept": Arrangement(("a",)),
            "sides": [Arrangement(("a",)), Arrangement(("b",))],
            "came": {5: [many], 6: [[], [rows((1, 2))]], 7: [rows((3, 4))]},
        },
    ]
    for state, part in zip(states, (many.slice(0, 9), many.slice(9)), strict=True):
        state["kept"].insert(part)  # type: ignore[attr-defined]
        for side in state["sides"]:
            side.insert(part)
    made = repartition(ts.Vertex(), states, 3, partition)

    by_a, by_b = parts_by("a", many), parts_by("b", many)
    for worker in range(3):
        kept, (left, right), arrived = (made[worker][name] for name in ("kept", "sides", "came"))
        for arrangement, parts in ((kept, by_a), (left, by_a), (right, by_b)):
            assert pa.concat_tables(arrangement.batches()).sort_by("a") == parts[worker].sort_by("a")
        assert pa.concat_tables(arrived[5]) == by_a[worker]
    assert [worker for worker in range(3) if 6 in made[worker]["came"]] == [*parts_by("b", rows((1, 2)))]
    assert [worker for worker in range(3) if 7 in made[worker]["came"]] == [*parts_by("a", rows((3, 4)))]
    assert next(one["came"][6] for one in made if 6 in one["came"]) == [[], [rows((1, 2))]]
