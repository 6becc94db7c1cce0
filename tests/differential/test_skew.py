"""Hot keys: the answers are those without `skew`, and every worker has its share of the records."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

import timely_spark as ts
from tests.support.rescaling import move
from timely_spark.compiler.plan import Node
from timely_spark.coordinator.migration import FlowChanged
from timely_spark.differential import Collection
from timely_spark.differential.reduce import Reduce
from timely_spark.differential.skew import named_keys
from timely_spark.errors import GraphError, SchemaError
from timely_spark.graph import Partition
from timely_spark.state.exchange import partitioned
from timely_spark.testing import Simulation, run
from timely_spark.worker import Budget, Worker

pytestmark = pytest.mark.filterwarnings("ignore:step .*more was removed")

HOT = [0, None]


def near(x: Collection, y: Collection, skew: list[Any] | None) -> Collection:
    """The nodes that are reached from 0, over the arranged links of the outer scope."""
    links = x.select("k", "v").arrange("k", skew=skew)
    roots = y.select("k").where(pc.field("k") == 0).distinct()

    def step(reached: Collection) -> Collection:
        return reached.join(links, on="k").select(k="v").concat(roots.enter(reached.scope)).distinct()

    return roots.iterate(step)


Case = Callable[[Collection, Collection, Any], Collection]
CASES: dict[str, Case] = {
    "inner": lambda x, y, skew: x.join(y, on="k", skew=skew),
    "left": lambda x, y, skew: x.join(y, on="k", how="left", skew=skew),
    "right": lambda x, y, skew: x.join(y, on="k", how="right", skew=skew),
    "a column twice": lambda x, y, skew: x.join(
        y.select("k", "w"), left=["k", "k"], right=["k", "w"], skew=skew and [(0, 0), (1, 1)]
    ),
    "outer": lambda x, y, skew: x.join(y, on="k", how="outer", skew=skew),
    "semi": lambda x, y, skew: x.join(y, on="k", how="semi", skew=skew),
    "anti": lambda x, y, skew: x.join(y, on="k", how="anti", skew=skew),
    "semijoin": lambda x, y, skew: x.semijoin(y, on="k", skew=skew),
    "antijoin": lambda x, y, skew: x.antijoin(y, on="k", skew=skew),
    "arranged left": lambda x, y, skew: x.arrange("k", skew=skew).join(y, on="k", how="outer"),
    "arranged right": lambda x, y, skew: y.join(x.arrange("k", skew=skew), on="k", how="outer"),
    "arranged both": lambda x, y, skew: x.arrange("k", skew=skew).join(y.arrange("k", skew=skew), on="k"),
    "arranged other": lambda x, y, skew: x.join(y.arrange("k"), on="k", skew=skew),
    "arranged count": lambda x, _, skew: x.arrange("k", skew=skew).count(),
    "arranged top_k": lambda x, _, skew: x.arrange("k", skew=skew).top_k(2, "v"),
    "arranged reduce": lambda x, _, skew: x.arrange("k", skew=skew).reduce(
        lambda _, rows: [len(rows)], "n long", keys="k"
    ),
    "arranged": lambda x, _, skew: x.arrange("k", skew=skew),
    "min": lambda x, _, skew: x.min("v", keys="k", skew=skew),
    "max": lambda x, _, skew: x.max("v", keys="k", skew=skew),
    "top_k": lambda x, _, skew: x.top_k(2, "v", keys="k", descending=False, skew=skew),
    "loop": near,
}


def flow_of(case: Case, skew: Any, kind: str = "long") -> ts.Dataflow:
    flow = ts.Dataflow("skewed")
    x = flow.input("x", "k long, v long, diff long").collection(diff="diff")
    y = flow.input("y", f"k {kind}, w long, diff long").collection(diff="diff")
    case(x, y, skew).changes(name="all").capture("out")
    return flow


KEY = st.sampled_from([0, 0, 0, 1, 2, None])
RECORD = st.tuples(KEY, st.one_of(st.none(), st.integers(0, 4)), st.sampled_from([1, 1, 2, -1]))
EPOCHS = st.lists(st.lists(RECORD, max_size=6), min_size=3, max_size=3)


def drawn(epochs: int, rows: int, seed: int = 7) -> dict[str, list[list[Any]]]:
    """Records that come, and go again in the last epoch; most have a hot key."""
    draw, keys = np.random.default_rng(seed), [0, 0, 0, None, 1, 2]
    sides: dict[str, list[list[Any]]] = {}
    for side in "xy":
        made = [
            [(keys[k], v, n) for k, v, n in draw.integers(0, [6, 5, 3], (rows, 3)).tolist()]
            for _ in range(epochs - 1)
        ]
        sides[side] = [*made, [(k, v, -n) for k, v, n in made[0]]]
    return sides


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_the_answer_is_that_without_hot_keys(case: str) -> None:
    inputs = drawn(3, 12)

    skewed = run(flow_of(CASES[case], HOT), inputs, workers=3, seed=1)["out"].rows()

    assert skewed == run(flow_of(CASES[case], None), inputs)["out"].rows()
    assert skewed[0]


@pytest.mark.slow
@given(
    case=st.sampled_from(sorted({*CASES} - {"loop"})),
    xs=EPOCHS,
    ys=EPOCHS,
    workers=st.sampled_from([1, 2, 5]),
    seed=st.sampled_from([None, 1, 2]),
)
def test_the_answer_is_that_without_hot_keys_for_all_inputs(case, xs, ys, workers, seed) -> None:
    inputs = {"x": xs, "y": ys}

    skewed = run(flow_of(CASES[case], HOT), inputs, workers=workers, seed=seed)["out"].rows()

    assert skewed == run(flow_of(CASES[case], None), inputs)["out"].rows()


RESCALED = ["inner", "outer", "arranged left", "arranged right", "min", "arranged top_k", "loop"]


@pytest.mark.slow
@pytest.mark.parametrize("case", RESCALED)
def test_crashes_and_other_numbers_of_workers_change_nothing(case: str) -> None:
    inputs = drawn(4, 9)
    flow = flow_of(CASES[case], HOT)
    moved = Simulation(flow, workers=2, seed=3)
    for epoch, workers in enumerate([3, 1, 5, 2]):
        for side in "xy":
            moved.send(side, inputs[side][epoch])
        moved.run()
        move(moved, flow, workers)

    plain = run(flow_of(CASES[case], None), inputs)["out"].rows()
    assert [one for one in moved.captured["out"].rows().values() if one] == [
        one for one in plain.values() if one
    ]
    assert run(flow, inputs, workers=3, seed=1, crashes=0.3)["out"].rows() == plain


def test_new_workers_get_one_copy_of_what_is_joined_with_hot_keys() -> None:
    flow = flow_of(CASES["inner"], HOT)
    simulation = Simulation(flow, workers=2)
    simulation.send("x", [(0, n, 1) for n in range(6)])
    simulation.send("y", [(0, 7, 1), (1, 8, 1)])
    simulation.run()

    made = move(simulation, flow, 3)

    (join,) = (node for node in made.coordinator.plan.nodes if node.stage.operator == "join")
    sides = [worker.vertex(join).sides for worker in made.workers]  # type: ignore[attr-defined]
    assert sorted(w for _, right in sides for rows in right.batches() for w in rows["w"].to_pylist()) == [
        7, 7, 7, 8,
    ]  # fmt: skip
    assert sum(len(left) for left, _ in sides) == 6


@pytest.mark.slow
@pytest.mark.parametrize("case", ["inner", "arranged left", "min", "top_k"])
def test_no_worker_has_more_than_one_and_a_half_of_its_share(case: str) -> None:
    draw, workers, n, stored = np.random.default_rng(3), 8, 1 << 15, []
    keys = np.where(np.arange(n) % 2, 0, draw.integers(1, 1 << 40, n))
    rows = pa.table({"k": keys, "v": draw.integers(0, 1 << 40, n), "diff": np.ones(n, np.int64)})
    for skew in (HOT, None):
        flow = flow_of(CASES[case], skew)
        simulation = Simulation(flow, workers=workers)
        simulation.send("x", rows)
        simulation.run()
        parts = move(simulation, flow, workers).workers
        stored.append([sum(kept(part, node) for node in part.plan.nodes) for part in parts])

    spread, alone = (max(each) / sum(each) for each in stored)
    assert spread < 1.5 / workers < 0.4 < alone


def kept(worker: Worker, node: Node) -> int:
    """The records of the input that a vertex keeps."""
    vertex: Any = worker.vertex(node)
    if node.stage.operator == "join":
        return len(vertex.sides[0])
    return len(getattr(vertex, "input" if isinstance(vertex, Reduce) else "state", ()))


def named(case: Case) -> Callable[[Any], ts.Dataflow]:
    def flow(skew: Any) -> ts.Dataflow:
        flow = ts.Dataflow("named")
        x, y = (flow.input(n, "k long, v long, diff long").collection(diff="diff", name=n + n) for n in "xy")
        case(x, y, skew).changes(name="all").capture("out")
        return flow

    return flow


MOVED: dict[str, Case] = {
    "left": lambda x, y, skew: x.join(
        y.select("k", w="v", name="w"), on="k", how="left", skew=skew, name="it"
    ),
    "loop": near,
    "arranged": lambda x, y, skew: y.select("k", w="v").join(x.arrange("k", skew=skew), on="k"),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", MOVED)
def test_a_restart_with_other_hot_keys_changes_nothing(case: str) -> None:
    inputs = drawn(6, 9)
    moved = Simulation(named(MOVED[case])(None), workers=3, seed=3)
    for epoch, skew in enumerate([[0], [0, None], None, [1, 2], [2], None]):
        for side in "xy":
            moved.send(side, inputs[side][epoch])
        moved.run()
        made = move(moved, named(MOVED[case])(skew), 3 - epoch % 2)
        assert made.hot_keys

    plain = run(named(MOVED[case])(None), inputs)["out"].rows()
    assert [of for of in moved.captured["out"].rows().values() if of] == [of for of in plain.values() if of]


REFUSED: dict[str, Case] = {
    "min": lambda x, _, skew: x.min("v", keys="k", skew=skew, name="it"),
    "another trace": lambda x, y, skew: x.arrange("k", skew=skew, name="left").join(
        y.select("k", w="v").arrange("k", name="right"), on="k", name="it"
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_other_hot_keys_are_refused_where_steps_store_something_else(case: str) -> None:
    simulation = Simulation(named(REFUSED[case])(None), workers=2)
    simulation.send("x", [(0, 1, 1), (5, 1, 1)])
    simulation.send("y", [(0, 1, 1)])
    simulation.run()

    with pytest.raises(FlowChanged, match=r"step 'it' .* holds state, and has changed"):
        move(simulation, named(REFUSED[case])([0]), 2)


def test_other_hot_keys_are_refused_while_records_are_in_flight() -> None:
    simulation = Simulation(named(MOVED["left"])(None), workers=2, budget=Budget(steps=1), rounds_per_batch=1)
    simulation.send("x", [(n, 1, 1) for n in range(5)])
    simulation.step()

    with pytest.raises(
        FlowChanged, match=r"(?s)in flight, and its hot keys have.*Hint: first run the old flow to its end"
    ):
        move(simulation, named(MOVED["left"])([0]), 2)


def test_explain_says_where_hot_keys_go(capsys: pytest.CaptureFixture[str]) -> None:
    flow_of(CASES["inner"], [0, 7, 8, 9]).explain(workers=2)

    text = capsys.readouterr().out
    assert "by k; hot keys (" in text
    assert "... 4 in all" in text
    assert "by k, v at the source" in text
    assert "broadcast at the source" in text


def test_equal_hot_keys_make_equal_plans() -> None:
    schema = pa.schema([("k", pa.int32()), ("v", pa.string())])

    assert named_keys("join", schema, ["k"], [3, 1, 3, None]) == named_keys(
        "join", schema, ["k"], {None, 1, 3}
    )
    assert named_keys("join", schema, ["k"], []) is named_keys("join", schema, ["k"], None) is None
    assert named_keys("join", schema, ["k", "v"], [(1, "a")]) != named_keys(
        "join", schema, ["k", "v"], [(1, "b")]
    )
    pair = named_keys("join", schema, ["k", "v"], [(1, "a")])
    assert pair is not None
    assert pair.shown == "(1, 'a')"


def test_equal_keys_of_other_types_are_hot() -> None:
    doubles = pa.schema([("k", pa.float64()), ("v", pa.int64())])
    skew = named_keys("join", doubles, ["k"], [0, float("nan")])
    assert skew is not None
    table = pa.table({"k": [0.0, -0.0, float("nan"), 1.0], "v": [1, 2, 3, 4]})

    parts = partitioned(table, Partition(("k",), skew=skew.copied), 2)

    assert sorted(v for part in parts.values() for v in part["v"].to_pylist()) == [1, 1, 2, 2, 3, 3, 4]
    shorts = run(flow_of(CASES["inner"], HOT, "int"), drawn(2, 9), workers=3)["out"].rows()
    assert shorts == run(flow_of(CASES["inner"], None, "int"), drawn(2, 9))["out"].rows()


@pytest.mark.parametrize("skew", [0, "0", ["a"], [1.5], [[0]], [(0, 1)], 3.0, True])
@pytest.mark.parametrize("case", ["inner", "arranged", "min", "top_k"])
def test_what_is_no_list_of_keys_is_refused(case: str, skew: Any) -> None:
    with pytest.raises(SchemaError, match=r"(?s)skew=.*\(k int64\).*test_skew.*Hint: list the hot keys"):
        flow_of(CASES[case], skew)


def test_only_one_side_is_spread() -> None:
    flow = ts.Dataflow("sides")
    x, y = (flow.input(name, "k long").collection() for name in "xy")

    with pytest.raises(GraphError, match=r"(?s)left side is arranged.*test_skew.*Hint: give skew="):
        x.arrange("k").join(y, on="k", skew=[0])
    with pytest.raises(GraphError, match=r"(?s)right side is arranged with hot keys.*Hint"):
        x.join(y.arrange("k", skew=[0]), on="k", skew=[0])
    nested = flow.input("n", "k long, v array<long>").collection()
    with pytest.raises(SchemaError, match=r"(?s)nested columns \['v'\].*Hint"):
        nested.arrange("k", skew=[0])
