"""Functions of a key's records, per time and with a state, against a dictionary."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import timely_spark as ts
from tests.support.turns import HOW
from timely_spark.errors import GraphError, SchemaError, VertexError
from timely_spark.testing import Simulation, run


def total(key: Any, rows: list[Any], state: Any) -> Any:
    """The sum so far; the state is forgotten when the sum is a multiple of five."""
    made = (state.total if state else 0) + sum(row.v for row in rows)
    return [(made, len(rows))], None if made % 5 == 0 else made


def latest(batch: pa.Table, state: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Per key the two greatest values so far: several rows of state."""
    both = pa.concat_tables([batch, state]).to_pandas().drop_duplicates()
    kept = both.sort_values(["k", "v"]).groupby("k", dropna=False).tail(2)
    return kept.groupby("k", as_index=False, dropna=False).agg(n=("v", "size"), least=("v", "min")), kept


#: for the tests of all operators
TRIED = {
    "stateful_map": lambda x, _: x.stateful_map(
        total, "total long, n long", keys="k", state="total long", name="it"
    ),
    "stateful_map_batches": lambda x, _: x.stateful_map_batches(
        latest, "n long, least long", keys="k", state="v long", expire=2, name="it"
    ),
}

ROWS = st.lists(st.tuples(st.sampled_from(["a", "b", None]), st.integers(-2, 4)), max_size=5)


def by_key(rows: Any) -> dict[Any, list[int]]:
    groups = defaultdict(list)
    for k, v in rows:
        groups[k].append(v)
    return groups


@pytest.mark.slow
@settings(max_examples=settings().max_examples // 2)
@given(epochs=st.lists(ROWS, min_size=1, max_size=7), expire=st.none() | st.integers(1, 2), **HOW)
def test_each_record_changes_the_state_of_its_key_once(*, epochs: Any, expire: Any, **how: Any) -> None:
    flow = ts.Dataflow("stateful")
    x = flow.input("x", "k string, v long", epochs="manual")
    keyed = {"keys": "k", "expire": expire}
    x.stateful_map(total, "total long, n long", state="total long", **keyed).capture("totals")
    x.stateful_map_batches(latest, "n long, least long", state="v long", **keyed).capture("latest")

    made = run(flow, {"x": epochs}, crashes=0.2 if how["seed"] is not None else 0.0, **how)

    sums: dict[Any, int] = {}
    values: dict[Any, list[int]] = {}
    seen: dict[Any, int] = {}
    for epoch, rows in enumerate(epochs):
        totals, greatest = [], []
        for key, of in by_key(rows).items():
            if expire is not None and epoch - seen.get(key, epoch) > expire:
                sums.pop(key, None), values.pop(key, None)
            seen[key] = epoch
            sums[key] = sums.get(key, 0) + sum(of)
            totals.append((key, sums[key], len(of)))
            if sums[key] % 5 == 0:
                del sums[key]
            values[key] = sorted({*values.get(key, []), *of})[-2:]
            greatest.append((key, len(values[key]), values[key][0]))
        assert sorted(made["totals"].rows().get(epoch, []), key=str) == sorted(totals, key=str)
        assert sorted(made["latest"].rows().get(epoch, []), key=str) == sorted(greatest, key=str)


@pytest.mark.slow
@given(epochs=st.lists(ROWS, min_size=1, max_size=4), **HOW)
def test_a_reduction_is_of_each_time_by_itself(*, epochs: Any, **how: Any) -> None:
    flow = ts.Dataflow("reduced")
    x = flow.input("x", "k string, v long", epochs="manual")
    x.group_by("k").reduce(lambda key, rows: sorted({row.v for row in rows}), "v long").capture("set")
    x.group_by().reduce(lambda key, rows: [(len(rows), len(key))], "n long, m long").capture("all")
    count = lambda batch: batch.group_by("k").aggregate([([], "count_all")]).rename_columns(["k", "n"])  # noqa: E731
    x.group_by("k").reduce_batches(count, "n long").capture("counts")

    made = run(flow, {"x": epochs}, crashes=0.2 if how["seed"] is not None else 0.0, **how)

    for epoch, rows in enumerate(epochs):
        groups = by_key(rows)
        expected = {
            "set": [(key, v) for key, of in groups.items() for v in {*of}],
            "counts": [(key, len(of)) for key, of in groups.items()],
            "all": [(len(rows), 0)] if rows else [],
        }
        for name, of in expected.items():
            assert sorted(made[name].rows().get(epoch, []), key=str) == sorted(of, key=str)


def test_records_that_are_only_keys_are_counted() -> None:
    flow = ts.Dataflow("keys")
    x = flow.input("x", "k long")
    x.group_by("k").reduce(lambda key, rows: [len(rows)], "n long").capture("each")
    x.stateful_map(lambda key, rows, state: ([], len(rows)), "n long", keys="k", state="n long").capture(
        "none"
    )
    x.group_by().reduce(lambda key, rows: [len(rows)], "n long").capture("all")

    made = run(flow, {"x": [[1, 1, 2]]}, workers=2)
    assert made["each"].rows() == {0: [(1, 2), (2, 1)]}
    assert (made["none"].rows(), made["all"].rows()) == ({0: []}, {0: [(3,)]})


def test_in_a_loop_a_reduction_is_of_each_iteration() -> None:
    flow = ts.Dataflow("loop")

    def step(n: ts.Stream) -> tuple[ts.Stream, ts.Stream]:
        best = n.group_by("k").reduce(lambda key, rows: [sum(row.v for row in rows)], "v long")
        return best.where(lambda row: row.v < 8).concat(best.where(lambda row: row.v < 8)), best

    flow.input("x", "k long, v long").loop(step).capture("out")
    for workers in (1, 3):
        made = run(flow, {"x": [[(1, 1), (1, 2), (2, 4)]]}, workers=workers)
        assert made["out"].rows() == {0: [(1, 3), (1, 6), (1, 12), (2, 4), (2, 8)]}


@pytest.mark.slow
def test_a_key_that_is_forgotten_leaves_nothing_behind_and_state_is_not_its_history() -> None:
    flow = ts.Dataflow("small")
    x = flow.input("x", "k long, v long")
    keep = lambda key, rows, state: ([], rows[0].v or None)  # noqa: E731
    x.stateful_map(keep, "n long", keys="k", state="v long").capture("out")
    simulation, sizes = Simulation(flow, workers=1), []
    for epoch in range(60):
        simulation.send("x", [(k, epoch + 1) for k in range(100)])
        simulation.run()
        sizes.append(len(simulation.states[0] or b""))
    for _ in range(3):
        simulation.send("x", [(k, 0) for k in range(100)])
        simulation.run()

    assert max(sizes) <= 8 * sizes[0]
    assert len(simulation.states[0] or b"") < sizes[0]


@pytest.mark.parametrize("operator", ["stateful_map", "stateful_map_batches"])
@pytest.mark.parametrize(
    ("schema", "options", "error"),
    [
        ("n long", {"keys": "q"}, SchemaError),
        ("n long", {"keys": []}, SchemaError),
        ("n long", {"keys": ["k", "k"]}, SchemaError),
        ("n long", {"keys": "many"}, SchemaError),
        ("k long", {"keys": "k"}, SchemaError),
        ("n long", {"state": "k long"}, SchemaError),
        ("n long", {"state": "n array<long>"}, SchemaError),
        ("__timely_n long", {}, SchemaError),
        ("n long", {"expire": 0}, GraphError),
        ("n long", {"expire": True}, GraphError),
    ],
)
def test_wrong_arguments_are_refused_when_the_graph_is_built(
    operator: str, schema: str, options: Any, error: Any
) -> None:
    x = ts.Dataflow("bad").input("x", "k long, v long, many array<long>")
    with pytest.raises(error, match=rf"(?s){operator}.*test_group_map.py.*Hint: "):
        getattr(x, operator)(lambda *_: None, schema, **{"keys": "k", "state": "s long"} | options)


def test_states_are_for_times_in_order() -> None:
    flow = ts.Dataflow("loop")
    x = flow.input("x", "k long, v long").enter(flow.scope.inner(name="loop"))
    with pytest.raises(GraphError, match=r"(?s)stateful_map: .*inside loop 'loop'.*Hint: "):
        x.stateful_map(total, "n long", keys="k", state="s long")
    own = ts.Dataflow("own", times=ts.LEXICOGRAPHIC).input("x", "k long, v long")
    assert own.stateful_map(total, "n long", keys="k", state="s long").schema.names == ["k", "n"]
    with pytest.raises(GraphError, match=r"(?s)stateful_map got 7, not a function.*Hint: "):
        own.stateful_map(7, "n long", keys="k", state="s long")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda key, rows, state: [1], "returned .*not results and state"),
        (lambda key, rows, state: ([1], "s", 0), "returned .*not results and state"),
        (lambda key, rows, state: (1 // 0, None), "ZeroDivisionError"),
        (lambda key, rows, state: ((1 // 0 for _ in rows), None), "ZeroDivisionError"),
        (lambda key, rows, state: (["x"], None), "do not fit the schema"),
        (lambda key, rows, state: ([1], "x"), "do not fit the schema"),
    ],
)
def test_a_wrong_function_is_an_error_that_names_the_step(function: Any, message: str) -> None:
    flow = ts.Dataflow("wrong")
    flow.input("x", "k long").stateful_map(function, "n long", keys="k", state="s long").capture("out")
    with pytest.raises(VertexError, match=rf"(?s)'stateful_map'.*test_group_map.py.*{message}"):
        run(flow, {"x": [[1]]})


@pytest.mark.parametrize("which", [0, 1])
def test_rows_of_foreign_keys_are_refused(which: int) -> None:
    def foreign(batch: pa.Table, state: pa.Table) -> Any:
        tables = [pa.table({"k": [1], "n": [1]}), pa.table({"k": [1], "n": [1]})]
        tables[which] = pa.table({"k": [1, 7], "n": [1, 1]})
        return tuple(tables)

    flow = ts.Dataflow("wrong")
    flow.input("x", "k long").stateful_map_batches(foreign, "n long", keys="k", state="n long").capture("out")
    with pytest.raises(VertexError, match=r"(?s)rows for 1 keys that it did not get"):
        run(flow, {"x": [[1]]})
