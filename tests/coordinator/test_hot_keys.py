"""A key that gives one worker much more than its share is reported once, with the step and what to do."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import timely_spark as ts
from timely_spark.coordinator import Coordinator
from timely_spark.coordinator.hot_keys import hot_keys
from timely_spark.graph import as_schema, as_table
from timely_spark.testing import Simulation
from timely_spark.worker.hot_keys import Load

MANY = 1 << 10
ROWS = 8 * MANY
OR_AUTO = '; or let the run find them: skew="auto".'

Case = Callable[[ts.Collection, Any], ts.Collection]
CASES: dict[str, Case] = {
    "join": lambda x, skew: x.join(x.select("k").distinct(), on="k", skew=skew, name="it"),
    "semijoin": lambda x, skew: x.semijoin(x.select("k"), on="k", skew=skew, name="it"),
    "arrange": lambda x, skew: x.arrange("k", skew=skew, name="it"),
    "min": lambda x, skew: x.min("v", keys="k", skew=skew, name="it"),
    "top_k": lambda x, skew: x.top_k(1, "v", keys="k", skew=skew, name="it"),
}


@pytest.fixture(autouse=True)
def few_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("worker", "coordinator"):
        monkeypatch.setattr(f"timely_spark.{module}.hot_keys.MANY", MANY)


def flow_of(case: Case, skew: Any = None) -> ts.Dataflow:
    flow = ts.Dataflow("hot")
    case(flow.input("x", "k long, v long").collection(), skew).changes(name="all").probe("seen")
    return flow


def rows(hot: float, key: int = 7) -> pa.Table:
    """Records of which a share has one key, and the others as many keys as there are."""
    n = np.arange(ROWS)
    return pa.table({"k": np.where(n % 100 < hot * 100, key, n + ROWS), "v": n})


def found(flow: ts.Dataflow, table: pa.Table, workers: int = 4) -> dict[str, str]:
    simulation = Simulation(flow, workers=workers)
    simulation.send("x", table)
    simulation.run()
    return simulation.coordinator.hot_keys


@pytest.mark.parametrize("case", CASES)
def test_a_hot_key_is_reported_with_what_to_do(case: str) -> None:
    texts = found(flow_of(CASES[case]), rows(0.5))

    assert [*texts] == ["it"]
    assert f"step 'it' ({__file__}:" in texts["it"]
    assert "hot key k = 7: of 4 workers one got " in texts["it"]
    assert texts["it"].endswith(f"Hint: name such keys in your call of {case}: skew=[7]{OR_AUTO}")


@pytest.mark.slow
@pytest.mark.share(1)
@pytest.mark.parametrize("case", CASES)
def test_named_keys_are_spread_and_not_reported(case: str) -> None:
    assert not found(flow_of(CASES[case], [7]), rows(0.5))


def test_another_key_than_the_named_one_is_reported() -> None:
    assert "k = 7:" in found(flow_of(CASES["join"], [8]), rows(0.5))["it"]


@pytest.mark.parametrize("hot", [0, 0.05])
def test_keys_that_leave_each_worker_about_its_share_are_not_reported(hot: float) -> None:
    assert not found(flow_of(CASES["join"]), rows(hot))


@pytest.mark.parametrize("workers", [1, 2])
def test_half_of_the_records_on_one_key_are_too_many_for_one_of_two_workers(workers: int) -> None:
    assert bool(found(flow_of(CASES["join"]), rows(0.6), workers)) == (workers > 1)


def test_a_step_without_skew_has_no_hint() -> None:
    flow = ts.Dataflow("streams")
    flow.input("x", "k long, v long").exchange("k", "v", name="it").probe("seen")
    table = rows(0.5).set_column(1, "v", pa.array(np.zeros(ROWS, np.int64)))

    text = found(flow, table)["it"]

    assert "hot key k, v = (7, 0):" in text
    assert "Hint" not in text


@pytest.mark.parametrize(
    ("kind", "key", "listed"),
    [
        ("string", "it's", """skew=["it's"]"""),
        ("boolean", True, "skew=[True]"),
        ("string", "x" * 39, "skew=[...], a list of their values"),
        ("double", float("nan"), "skew=[...], a list of their values"),
        ("date", dt.date(2020, 1, 1), "skew=[...], a list of their values"),
        ("binary", b"a", "skew=[...], a list of their values"),
    ],
)
def test_the_hint_has_a_key_only_if_its_text_is_that_key(kind: str, key: Any, listed: str) -> None:
    flow = ts.Dataflow("kinds")
    flow.input("x", f"k {kind}, v long").collection().arrange("k", name="it").changes().probe("seen")
    table = as_table({"k": [key] * ROWS, "v": range(ROWS)}, as_schema(f"k {kind}, v long"))

    assert found(flow, table)["it"].endswith(
        f"Hint: name such keys in your call of arrange: {listed}{OR_AUTO}"
    )


def test_several_columns_are_named_by_tuples() -> None:
    flow = ts.Dataflow("pairs")
    flow.input("x", "k long, v long").collection().arrange(["k", "v"], name="it").changes().probe("seen")
    table = rows(1).set_column(1, "v", pa.array(np.zeros(ROWS, np.int64)))

    assert found(flow, table)["it"].endswith(f"skew=[(7, 0)]{OR_AUTO}")


def test_a_step_of_the_librarys_own_algorithm_has_no_hint() -> None:
    flow = ts.Dataflow("algorithm")
    edges = flow.input("x", "src long, dst long").collection()
    roots = edges.select(node="src").where(pc.field("node") < 0)
    ts.graphs.bfs(edges, roots, name="near").changes().probe("seen")
    n = np.arange(ROWS)

    texts = found(flow, pa.table({"src": np.full(ROWS, 7), "dst": n}))

    assert [text for text in texts.values() if "hot key src = 7:" in text]
    assert not [text for text in texts.values() if "Hint" in text]


def test_a_step_of_the_users_own_loop_has_a_hint() -> None:
    flow = ts.Dataflow("loop")
    edges = flow.input("x", "k long, v long").collection()
    none = edges.select(n="k").where(pc.field("n") < 0)
    step = lambda n: edges.join(n, left="k", right="n", name="it").select(n="v").concat(n).distinct()  # noqa: E731
    none.iterate(step).changes().probe("seen")

    assert [
        text for text in found(flow, rows(0.5)).values() if text.endswith(f"call of join: skew=[7]{OR_AUTO}")
    ]


def test_records_that_are_combined_before_the_exchange_are_no_load() -> None:
    assert not found(flow_of(lambda x, _: x.count(keys="k")), rows(1))


def test_a_reduction_without_keys_has_no_hot_key() -> None:
    assert not found(flow_of(lambda x, _: x.min("v")), rows(0))


def test_few_records_are_no_load() -> None:
    assert not found(flow_of(CASES["join"]), rows(0.9).slice(0, MANY - 1))


def test_broadcast_records_are_no_load() -> None:
    flow = ts.Dataflow("copies")
    flow.input("x", "k long, v long").broadcast().probe("seen")

    assert not found(flow, rows(1))


@pytest.mark.slow
def test_the_last_hot_key_of_a_step_stays_with_its_micro_batch_also_after_a_restart() -> None:
    simulation = Simulation(flow_of(CASES["join"]), workers=4)
    for epoch, table in enumerate([rows(0.5), rows(0.5, key=9), rows(0)]):
        simulation.send("x", table, epoch=epoch)
        simulation.run()
        simulation.coordinator = Coordinator.decode(simulation.plan, simulation.coordinator.encode())

    (text,) = simulation.coordinator.hot_keys.values()
    assert "hot key k = 9: of 4 workers" in text
    assert "of them have this key (batch 1)" in text


def test_the_share_counts_workers_that_report_nothing() -> None:
    plan = flow_of(CASES["join"]).compile(4)
    vertex = plan.by_name["it"].index
    most = Load(vertex, 0, 3 * MANY, "7", 0.5)

    assert "at least 2.0 times" in hot_keys(plan, [most], 0)["it"].text  # 3 of at most 6 times MANY
    assert not hot_keys(plan, [most, *[Load(vertex, 0, 2 * MANY, "8", 0.1)] * 3], 0)
    assert not hot_keys(plan, [Load(vertex, 0, 3 * MANY, "7", 0.4)], 0)
