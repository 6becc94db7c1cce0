"""Transient records: those that no collection has at any time reach no function of the user.

Inputs change at one time what joins, unions and differences match as it arrives. So these send records that
they take back at the same time, which sums do not show. A function could: by an error, as for 1 / 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

import timely_spark as ts
from tests.test_named import COLLECTIONS, GRAPHS

Build = Callable[[Any, Any], Any]

VALUE, WIDE = "k long, v long", "k long, w long"


def shifting(x: Any) -> Any:
    """A variable that changes in three iterations."""
    variable = x.variable(x.scope.inner(name="loop", max_iterations=3, on_limit="return"))
    moved = variable.select("k", v=pc.bit_wise_and(pc.add(pc.field("v"), pc.field("k")), 3))
    variable.set(moved.distinct())
    return variable


def looped(step: Callable[[Any, Any], Any]) -> Build:
    """The function's collection inside a loop, of a variable that changes in three iterations."""

    def build(x: Any, y: Any) -> Any:
        variable = shifting(x)
        return step(variable, y.enter(variable.scope))

    return build


def both(x: Any, y: Any) -> Any:
    return y.select("k", v="w")


def joined(how: Any) -> Build:
    return lambda x, y: x.join(y, on="k", how=how)


#: collections of (k, v) and (k, w), in which a join or a difference is last
CASES: dict[str, Build] = {
    **{how: joined(how) for how in ("inner", "left", "right", "outer", "semi", "anti")},
    "semijoin": lambda x, y: x.semijoin(y, on="k"),
    "antijoin": lambda x, y: x.antijoin(y.select("k").distinct(), on="k", unique=True),
    "indexed": lambda x, y: x.arrange("k").join(y.arrange("k"), on="k", how="left"),
    "skewed": lambda x, y: x.join(y, on="k", how="left", skew=[1]),
    "broadcast": lambda x, y: x.broadcast_join(y, on="k"),
    "two joins": lambda x, y: x.join(y, on="k").join(both(x, y).select(w="v", u="k"), on="w"),
    "wcoj": lambda x, y: ts.wcoj([(x, {"k": "a", "v": "b"}), (y, {"k": "b", "w": "c"})]),
    "renamed": lambda x, y: x.join(y, on="k").select(a="w", b="v"),
    "projected": lambda x, y: x.join(y, on="k").select("v", "w"),
    "some": lambda x, y: x.join(y, on="k").where(pc.field("v") < pc.field("w")),
    "minus": lambda x, y: x.concat(both(x, y).negate()).concat(both(x, y)),
    "less": lambda x, y: x.concat(x.semijoin(y, on="k").negate()),
    "concat": lambda x, y: x.join(y, on="k").select("k", v="w").concat(x),
    "arranged": lambda x, y: x.join(y, on="k").arrange("v"),
    "windows": lambda x, y: x.join(y, on="k").window("v", ts.every(2)),
    "left behind": lambda x, y: shifting(x).leave(),
}
CASES |= {f"{name} in a loop": looped(build) for name, build in CASES.items() if name != "left behind"}
#: every operator and algorithm, from the test that names them; not those that send the changes elsewhere
OUTPUTS = {"capture", "to_memory", "subscribe", "foreach_epoch", "to_delta", "to_files", "to_kafka",
           "capture_to", "publish", "inspect"}  # fmt: skip
EVERY = {name: build for name, build in COLLECTIONS.items() if name not in OUTPUTS}
CASES |= {f"operator {name}": build for name, build in (EVERY | GRAPHS).items()}


def watched(build: Build) -> tuple[ts.Dataflow, list[tuple[Any, ...]], Counter[Any]]:
    """A flow; the records that a function behind it has got; and what each time's changes add up to."""
    flow = ts.Dataflow("watched")
    x = flow.input("x", f"{VALUE}, diff long", epochs="manual").collection(diff="diff")
    y = flow.input("y", f"{WIDE}, diff long", epochs="manual").collection(diff="diff")
    got: list[tuple[Any, ...]] = []
    sums: Counter[Any] = Counter()

    def added(time: Any, batch: pa.Table) -> pa.Table:
        for *row, diff in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            sums[(str(time), *row)] += diff
        return batch.slice(0, 0)

    def seen(row: Any) -> int:
        got.append(tuple(row))
        return 0

    made = build(x, y)
    made.map(seen, "n long").stream.probe()
    stream = made.stream
    stream.unary_notify(added, stream.schema, by=[made.schema.names[0]]).probe()
    return flow, got, sums


def changes(states: list[Counter[Any]]) -> list[list[tuple[int, int, int]]]:
    """The changes between the states, none of a record that comes and goes at one time."""
    made, before = [], Counter[Any]()
    for state in states:
        rows = {*state, *before}
        made.append([(*row, state[row] - before[row]) for row in sorted(rows) if state[row] != before[row]])
        before = state
    return made


STATES = st.lists(
    st.dictionaries(st.tuples(st.integers(0, 2), st.integers(0, 2)), st.integers(1, 2), max_size=4).map(
        Counter
    ),
    min_size=1,
    max_size=4,
)


def check(name: str, left: Any, right: Any, workers: int, seed: int) -> None:
    flow, got, sums = watched(CASES[name])
    ts.testing.run(flow, {"x": changes(left), "y": changes(right)}, workers=workers, seed=seed)

    assert {*got} <= {tuple(row) for (_, *row), diff in sums.items() if diff}


@pytest.mark.slow
@given(
    name=st.sampled_from(sorted(CASES)),
    left=STATES,
    right=STATES,
    workers=st.integers(1, 3),
    seed=st.integers(0, 1 << 16),
)
def test_a_function_gets_records_that_a_collection_has(
    name: str, left: Any, right: Any, workers: int, seed: int
) -> None:
    check(name, left, right, workers, seed)


@pytest.mark.slow
@pytest.mark.share(8)
@pytest.mark.parametrize("name", CASES)
def test_when_both_sides_change_at_one_time(name: str) -> None:
    left = [{(0, 1): 1, (1, 1): 1}, {(0, 2): 1, (1, 0): 1, (2, 2): 1}, {(0, 1): 1, (2, 1): 1}]
    right = [{(0, 0): 1, (1, 1): 2}, {(0, 1): 1, (2, 0): 1}, {(0, 2): 1, (1, 0): 1, (2, 1): 1}]
    check(name, [*map(Counter, left)], [*map(Counter, right)], 2, 3)


INVERSES = [
    lambda every: every.map(lambda row: (row.node, 12 // row.d), "node long, part long"),
    lambda every: every.select("node", part="12 div d"),
    lambda every: every.where("12 div d > 0").select("node", part="12 div greatest(d, 1)"),
]


@pytest.mark.slow
@pytest.mark.share(1)
@pytest.mark.parametrize("inverse", INVERSES, ids=["function", "select", "where"])
def test_the_inverse_of_a_degree_after_a_left_join(inverse: Any) -> None:
    flow = ts.Dataflow("inverse")
    nodes = flow.input("nodes", "node long").collection()
    edges = flow.input("edges", "src long, diff long").collection(diff="diff")
    degrees = edges.select(node="src").count("degree", keys="node")
    every = nodes.join(degrees, on="node", how="left").select("node", d=pc.coalesce(pc.field("degree"), 0))
    _ = inverse(every).changes().capture("out")
    degree_by_degree = [[(1, 1), (2, 1)], [(1, 2), (2, -1), (2, 3)], [(1, -1)]]
    inputs: dict[str, Any] = {"nodes": [[1, 2], [], []], "edges": degree_by_degree}
    made = ts.testing.run(flow, inputs, workers=2)["out"].rows()
    assert made == {0: [(1, 12, 1), (2, 12, 1)], 1: [(1, 4, 1), (1, 12, -1), (2, 4, 1), (2, 12, -1)],
                    2: [(1, 4, -1), (1, 6, 1)]}  # fmt: skip
    with pytest.raises(ts.TimelyError, match=r"(?i)division"):
        ts.testing.run(flow, {"nodes": [[1, 2, 3]], "edges": [degree_by_degree[0]]}, workers=2)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.campaign) for n in range(1, 5))])
@pytest.mark.parametrize("workers", [1, 2])
def test_the_natural_pagerank_of_pregel(workers: int, seed: int) -> None:
    flow = ts.Dataflow("ranks")
    edges = flow.input("edges", "src long, dst long, diff long").collection(diff="diff")
    degrees = edges.select(node="src").count("degree", keys="node")
    every = edges.select(node="src").concat(edges.select(node="dst")).distinct()
    nodes = every.join(degrees, on="node", how="left")
    nodes = nodes.select("node", degree=pc.coalesce(pc.field("degree"), 0), rank=pc.scalar(1))
    rank = pc.add(pc.coalesce(pc.field("msg"), 0), 1)
    graph = ts.pregel(
        nodes,
        edges,
        with_vertex_column={"rank": (pc.scalar(1), rank), "degree": ("degree", "degree")},
        send_msg_to_dst=pc.divide(pc.multiply(pc.field("src_rank"), 60), pc.field("src_degree")),
        max_iterations=3,
        on_limit="return",
    )
    _ = graph.nodes.changes().capture("out")
    inputs: dict[str, Any] = {"edges": [[(1, 2, 1), (2, 1, 1)], [(1, 3, 1)], [(1, 2, -1), (3, 1, 1)]]}
    made = ts.testing.run(flow, inputs, workers=workers, seed=seed)["out"]
    assert len(ts.snapshot(made)) == 3


def test_an_expression_that_cannot_fail_waits_for_nothing() -> None:
    flow = ts.Dataflow("plain")
    x = flow.input("x", VALUE).collection()
    joined = x.join(x.select("k", w="v"), on="k")
    joined.where(pc.field("v") < pc.field("w")).select("k", u=pc.max_element_wise(pc.field("v"), 0))
    steps = [stage.operator for stage in flow.graph.stages]
    assert "consolidate" not in steps

    joined.select("k", u=pc.field("v") + 1)
    joined.where(lambda row: row.v > 1)
    steps = [stage.operator for stage in flow.graph.stages]
    assert steps.count("consolidate") == 1, "both read it"


#: steps that send the changes of a time once, when it is complete
CONSOLIDATED: dict[str, Callable[[ts.Stream], ts.Collection]] = {
    "upserts": lambda x: x.upserts("k", "v"),
    "count": lambda x: x.collection().count(keys="k"),
    "consolidate": lambda x: x.collection().consolidate(),
    "where": lambda x: x.collection().distinct().where(pc.field("v") > 0),
    "select of all": lambda x: x.collection().distinct().select("v", w="k"),
    "negate": lambda x: x.collection().distinct().negate(),
    "components": lambda x: ts.graphs.connected_components(x.collection(), src="k", dst="v"),
}
#: steps behind which there may be several changes of a record
SEVERAL: dict[str, Callable[[ts.Stream], ts.Collection]] = {
    "collection": lambda x: x.collection(),
    "select of records": lambda x: x.collection().select("k", "v"),
    "select of some": lambda x: x.collection().distinct().select("v"),
    "concat": lambda x: x.collection().distinct().concat(x.collection().distinct()),
}


@pytest.mark.parametrize("case", CONSOLIDATED)
def test_changes_that_are_consolidated_are_not_consolidated_again(case: str) -> None:
    flow = ts.Dataflow("once")
    CONSOLIDATED[case](flow.input("x", VALUE)).changes().probe("changes")
    steps = [stage.operator for stage in flow.graph.stages]
    assert steps.count("consolidate") == (case == "consolidate")


@pytest.mark.parametrize("case", SEVERAL)
def test_changes_of_a_record_are_added_up_wherever_there_may_be_several(case: str) -> None:
    flow = ts.Dataflow("several")
    SEVERAL[case](flow.input("x", VALUE)).changes().capture("out")
    changes = ts.testing.run(flow, {"x": [[(1, 5), (1, 5), (2, 5)]]})["out"].rows()[0]
    assert len({row[:-1] for row in changes}) == len(changes)


def test_changes_of_several_sources_of_which_one_is_on_one_worker() -> None:
    flow = ts.Dataflow("components")
    pairs = flow.input("pairs", "src long, dst long").collection()
    removed = flow.input("removed", "component long").collection()
    groups = ts.graphs.connected_components(pairs)
    _ = groups.antijoin(removed, on="component", unique=True).changes().capture("left")
    inputs = {"pairs": [[(n, n + 1) for n in range(0, 40, 2)]], "removed": [[*range(0, 40, 4)]]}

    out = ts.testing.run(flow, inputs, workers=3)

    assert out["left"].rows() == {0: [row for n in range(2, 40, 4) for row in ((n, n, 1), (n + 1, n, 1))]}
