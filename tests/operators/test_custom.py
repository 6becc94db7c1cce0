"""unary, binary, their buffered forms, and vertices of one's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import timely_spark as ts
from tests.support.rescaling import move
from timely_spark.errors import CapabilityError, GraphError, SchemaError, StateError, VertexError
from timely_spark.testing import Simulation, run

WORKERS = pytest.mark.parametrize("workers", [1, 2, 3])


@WORKERS
def test_buffering_operators_get_a_time_once_and_whole(workers: int) -> None:
    flow = ts.Dataflow("buffered")
    x, y = (flow.input(name, "k long, n long", epochs="manual") for name in "xy")
    moved = x.exchange("n").map(lambda row: row, "k long, n long")

    def sizes(time: Any, batch: pa.Table) -> list[Any]:
        return [(time.epoch, k, batch["k"].to_pylist().count(k)) for k in sorted(set(batch["k"].to_pylist()))]

    def both(time: Any, left: pa.Table, right: pa.Table) -> list[Any]:
        keys = sorted({*left["k"].to_pylist(), *right["k"].to_pylist()})
        return [(k, left["k"].to_pylist().count(k), right["k"].to_pylist().count(k)) for k in keys]

    moved.unary_notify(sizes, "epoch long, k long, n long", by=["k"]).select("k", "n").capture("one")
    moved.binary_notify(y, both, "k long, l long, r long", by=(["k"], ["k"])).capture("both")
    inputs: Any = {"x": [[(1, i) for i in range(9)] + [(2, 0)], [], [(1, 1)]], "y": [[(2, 7)], [(3, 7)], []]}
    result = run(flow, inputs, workers=workers, together=True)

    assert result["one"].rows() == {0: [(1, 9), (2, 1)], 1: [], 2: [(1, 1)]}
    assert result["both"].rows() == {0: [(1, 9, 0), (2, 1, 1)], 1: [(3, 0, 1)], 2: [(1, 1, 0)]}


def test_functions_may_return_tables_frames_rows_or_none() -> None:
    gives = [
        lambda time, batch: batch,
        lambda time, batch: batch.to_pandas(),
        lambda time, batch: batch.to_pylist(),
        lambda time, batch: [(n,) for n in batch["n"].to_pylist()],
        lambda time, batch: batch["n"].to_pylist(),
        lambda time, batch: pd.DataFrame({"other": 1, "n": batch["n"].to_pandas()}),
    ]
    for give in gives:
        flow = ts.Dataflow("gives")
        flow.input("x", "n long").unary(give, "n long").capture("out")
        assert run(flow, {"x": [[1, 2]]})["out"].rows() == {0: [(1,), (2,)]}
    flow = ts.Dataflow("nothing")
    flow.input("x", "n long").unary(lambda time, batch: None, "n long").capture("out")
    assert run(flow, {"x": [[1, 2]]})["out"].rows() == {0: []}


class Untold(Exception):
    def __str__(self) -> str:
        return str(1 // 0)


@pytest.mark.parametrize(("error", "told"), [(StopIteration("end"), "Stop.*: end"), (Untold(), "Untold")])
@pytest.mark.parametrize("operator", ["unary", "unary_notify"])
def test_any_exception_is_an_error_of_the_step(operator: str, error: Exception, told: str) -> None:
    def fails(time: Any, batch: pa.Table) -> None:
        raise error

    flow = ts.Dataflow("fails")
    getattr(flow.input("x", "n long"), operator)(fails, "n long", name="it").capture("out")
    with pytest.raises(VertexError, match=rf"step 'it' .*in fails .*{told}\nHint: "):
        run(flow, {"x": [[1]]})


def test_results_of_another_schema_are_an_error_of_the_step() -> None:
    flow = ts.Dataflow("bad")
    flow.input("x", "n long").unary(
        lambda time, batch: pa.table({"m": ["x"]}), "n long", name="bad"
    ).capture()

    with pytest.raises(VertexError, match=r"(?s)step 'bad'.*SchemaError.*Hint"):
        run(flow, {"x": [[1]]})


@WORKERS
def test_binary_passes_the_side(workers: int) -> None:
    flow = ts.Dataflow("sides")
    x, y = flow.input("x", "n long"), flow.input("y", "n long")
    tag = lambda side, time, batch: [(side, time.epoch, n) for n in batch["n"].to_pylist()]  # noqa: E731
    x.binary(y, tag, "side long, e long, n long", by=(["n"], ["n"])).capture("out")

    rows = run(flow, {"x": [[5], [6]], "y": [[], [7]]}, workers=workers)["out"].rows()
    assert {e: [(side, n) for side, _, n in of] for e, of in rows.items()} == {
        0: [(0, 5)],
        1: [(0, 6), (1, 7)],
    }


class Delayed(ts.Vertex):
    """Answers two epochs later; asks with a capability later than the guarantee."""

    def __init__(self) -> None:
        self.held: dict[Any, int] = {}

    def on_recv(self, edge: int, time: Any, batch: pa.Table) -> None:
        self.held[time] = self.held.get(time, 0) + batch.num_rows
        self.notify_at(time, capability=ts.Time(time.epoch + 2))

    def on_notify(self, time: Any) -> None:
        self.send_by(0, ts.Time(time.epoch + 2), pa.table({"rows": [self.held.pop(time)]}))


@WORKERS
def test_a_capability_later_than_the_guarantee(workers: int) -> None:
    flow = ts.Dataflow("later")
    x = flow.input("x", "n long", epochs="manual")
    flow.vertex(Delayed(), x, "rows long", by=[["n"]]).aggregate(rows=("sum", "rows"), per="time").capture(
        "out"
    )

    rows = run(flow, {"x": [[1, 2, 3], [4], [], [], []]}, workers=workers)["out"].rows()
    assert rows == {0: [], 1: [], 2: [(3,)], 3: [(1,)], 4: []}


def test_several_outputs_of_several_schemas() -> None:
    class Split(ts.Vertex):
        def on_recv(self, edge: int, time: Any, batch: pa.Table) -> None:
            self.send_by(0, time, batch)
            self.send_by(1, time, pa.table({"text": [str(n) for n in batch["n"].to_pylist()]}))

    flow = ts.Dataflow("split")
    numbers, texts = flow.vertex(Split(), flow.input("x", "n long"), ["n long", "text string"])
    numbers.capture("numbers")
    texts.capture("texts")
    result = run(flow, {"x": [[1, 2]]}, workers=2)

    assert (result["numbers"].rows(), result["texts"].rows()) == ({0: [(1,), (2,)]}, {0: [("1",), ("2",)]})


def test_by_no_columns_one_worker_has_all_records() -> None:
    class Sum(ts.Vertex):
        total = 0

        def on_recv(self, edge: int, time: ts.Time, batch: pa.RecordBatch) -> None:
            self.total += sum(batch["n"].to_pylist())
            self.notify_at(time)

        def on_notify(self, time: ts.Time) -> None:
            self.send_by(0, time, [(self.total,)])

    flow = ts.Dataflow("by nothing")
    numbers = flow.input("n", "n long").exchange("n")
    numbers.unary_notify(lambda time, batch: [(batch.num_rows,)], "rows long", by=[]).capture("rows")
    flow.vertex(Sum(), numbers, "total long", by=[]).capture("total")

    out = run(flow, {"n": [range(10)]}, workers=3)

    assert out["rows"].rows() == {0: [(10,)]}
    assert out["total"].rows() == {0: [(45,)]}


def test_wrong_partition_columns_are_refused_when_the_graph_is_built() -> None:
    flow = ts.Dataflow("bad")

    with pytest.raises(SchemaError, match="Hint: "):
        flow.vertex(Delayed(), flow.input("x", "n long"), "rows long", by=[["m"]])


def test_what_is_guaranteed_is_of_the_first_output() -> None:
    x = ts.Dataflow("promises").input("x", "n long")

    x.flow.vertex(Delayed(), x, "rows long", guarantees="rows")
    for outputs in ([], ["n long", "rows long"]):
        with pytest.raises(SchemaError, match=r"asks for columns \['rows'\], output 0 has"):
            x.flow.vertex(Delayed(), x, outputs, guarantees="rows")


def test_pandas_and_arrow_inputs_have_equal_results() -> None:
    flow = ts.Dataflow("inputs")
    flow.input("x", "n long, s string").capture("out")
    rows = [(1, "a"), (2, None)]
    forms = [
        rows,
        [{"n": 1, "s": "a"}, {"s": None, "n": 2}],
        pd.DataFrame({"s": ["a", None], "n": [1, 2]}),
        pa.table({"s": ["a", None], "n": pa.array([1, 2], pa.int8())}),
    ]

    assert [run(flow, {"x": [form]})["out"].rows() for form in forms] == [{0: rows}] * 4


def test_what_is_no_time_is_refused_with_its_step() -> None:
    calls: list[Callable[[Any, Any], None]] = [
        lambda it, time: it.send_by(0, time.epoch, [1]),
        lambda it, time: it.send_by(0, None, [1]),
        lambda it, time: it.notify_at(time.epoch),
        lambda it, time: it.notify_at(time, capability=3),
    ]
    for call in calls:

        class Slips(ts.Vertex):
            def on_recv(self, edge: int, time: Any, batch: pa.Table) -> None:
                call(self, time)  # noqa: B023 - called in this iteration

            def on_notify(self, time: Any) -> None:
                pass

        flow = ts.Dataflow("slips")
        flow.vertex(Slips(), flow.input("x", "n long"), "n long", name="slips").capture("out")
        with pytest.raises(VertexError, match=r"step 'slips'.*which is not a time"):
            run(flow, {"x": [[1]]})


@pytest.mark.parametrize("edge", [1, -1, "out", 0.0, None])
def test_an_output_is_a_number(edge: Any) -> None:
    class Sends(ts.Vertex):
        def on_recv(self, _: int, time: Any, batch: pa.Table) -> None:
            self.send_by(edge, time, batch)

    flow = ts.Dataflow("sends")
    flow.vertex(Sends(), flow.input("x", "n long"), "n long").capture("out")
    with pytest.raises(VertexError, match=r"sends by output .*, it has 1"):
        run(flow, {"x": [[1]]})


def test_vertices_that_cannot_run_are_refused_when_the_flow_is_built() -> None:
    def passes(*_: Any) -> None:
        pass

    slips: dict[str, dict[str, Any]] = {
        r"on_recv does not take \(edge, time, batch\)": {"on_recv": lambda self, time, batch: None},
        r"on_notify does not take \(time\)": {"on_recv": passes, "on_notify": lambda self: None},
        "initial is 5": {"on_recv": passes, "on_notify": passes, "initial": 5},
        "initial is .'a'": {"on_recv": passes, "on_notify": passes, "initial": ["a"]},
        r"initial is \(-1,\)": {"on_recv": passes, "on_notify": passes, "initial": (-1,)},
    }
    for message, fields in slips.items():
        flow = ts.Dataflow("slips")
        with pytest.raises(GraphError, match=message):
            flow.vertex(type("Slips", (ts.Vertex,), fields)(), flow.input("x", "n long"), "n long")


def test_a_vertex_that_is_not_called_has_no_worker() -> None:
    class Early(ts.Vertex):
        def __init__(self) -> None:
            self.mine = self.worker

    with pytest.raises(CapabilityError, match=r"uses its worker \(worker\) while it is not called.*\n.*Hint"):
        Early()


def test_a_vertex_without_on_recv_may_tell_time_and_takes_no_records() -> None:
    class Tells(ts.Vertex):
        initial = (0, 1)

        def on_notify(self, time: Any) -> None:
            self.send_by(0, time, [time.epoch])

    flow = ts.Dataflow("tells")
    flow.vertex(Tells(), flow.input("x", "n long", epochs="manual"), "n long").capture("out")
    assert run(flow, {"x": [[], []]})["out"].rows() == {0: [(0,)], 1: [(1,)]}
    with pytest.raises(VertexError, match="Tells gets records and has no on_recv"):
        run(flow, {"x": [[1]]})


class Slots(ts.Vertex):
    __slots__ = ("total",)

    def __init__(self) -> None:
        self.total = 0


class OneByTwoNames(ts.Vertex):
    def __init__(self) -> None:
        self.rows: list[int] = []
        self.latest = self.rows


class OfItsOwn(OneByTwoNames):
    """Writes and restores both names together."""

    def checkpoint(self) -> dict[str, Any]:
        return {"rows": self.rows}

    def restore(self, state: Any) -> None:
        self.rows = self.latest = state["rows"]


@pytest.mark.parametrize(
    ("vertex", "told"),
    [(Slots(), "keeps total in slots"), (OneByTwoNames(), r"\.rows and \.latest are one")],
)
def test_state_that_a_checkpoint_does_not_see_is_refused(vertex: ts.Vertex, told: str) -> None:
    flow = ts.Dataflow("unseen")
    numbers = flow.input("x", "n long")
    with pytest.raises(GraphError, match=rf"(?s){told}.*test_custom.py.*Hint: .*checkpoint\(\)"):
        flow.vertex(vertex, numbers, "n long")
    flow.vertex(OfItsOwn(), numbers, "n long")


class OfTheClass(ts.Vertex):
    seen: ClassVar[list[int]] = []
    names: ClassVar[list[str]] = ["n"]

    def on_recv(self, edge: int, time: Any, batch: pa.Table) -> None:
        self.seen.extend(batch[self.names[0]].to_pylist())


def test_state_in_a_class_is_found_by_the_simulator() -> None:
    """A simulated crash does not lose it, a real one does."""
    flow = ts.Dataflow("class")
    flow.vertex(OfTheClass(), flow.input("x", "n long"), "n long", name="kept").capture("out")
    with pytest.raises(
        StateError, match=r"(?s)'kept' \(.*test_custom.py.*changes OfTheClass.seen.*Hint: set"
    ):
        run(flow, {"x": [[1]]})
    OfTheClass.seen.clear()
    assert run(flow, {"x": [[]]})["out"].rows() == {0: []}


class Reusing(ts.Vertex):
    """Doubles numbers, always in the same array."""

    def __init__(self) -> None:
        self.doubled = _doubling()

    def on_recv(self, edge: int, time: Any, batch: pa.Table) -> None:
        self.send_by(0, time, self.doubled(batch))

    def checkpoint(self) -> dict[str, Any]:
        return {}


def _doubling() -> Callable[[pa.Table], pa.Table]:
    array = np.zeros(1, np.int64)

    def doubled(batch: pa.Table) -> pa.Table:
        array[:] = 2 * batch["n"].to_numpy()
        return batch.set_column(batch.schema.get_field_index("n"), "n", pa.array(array))

    return doubled


class ReusingBatches(ts.authors.Stateless):
    """Doubles numbers where they are sent, always in the same array."""

    def __init__(self) -> None:
        self.doubled = _doubling()

    def apply(self, batch: pa.Table) -> tuple[pa.Table, ...]:
        return (self.doubled(batch),)


class ReusingBefore(ts.Vertex):
    """Gets numbers that are doubled where they are sent, always in the same array."""

    def __init__(self) -> None:
        self.doubled = _doubling()

    def before_exchange(self, edge: int, batch: pa.Table) -> pa.Table:
        return self.doubled(batch)

    def on_recv(self, edge: int, time: Any, batch: pa.Table) -> None:
        self.send_by(0, time, batch)

    def checkpoint(self) -> dict[str, Any]:
        return {}


def _of_time() -> Callable[[Any, pa.Table], pa.Table]:
    doubled = _doubling()
    return lambda _, batch: doubled(batch)


def _of_columns(name: str) -> str:
    doubled = _doubling()
    ts.function(name, "long", lambda numbers: doubled(pa.table({"n": numbers}))["n"].chunk(0))
    return f"{name}(n)"


REUSING: dict[str, Callable[[ts.Dataflow, ts.Stream], ts.Stream]] = {
    "vertex": lambda flow, x: flow.vertex(Reusing(), x, "n long"),
    "per batch": lambda flow, x: flow.vertex(ReusingBatches(), x, "n long"),
    "before exchange": lambda flow, x: flow.vertex(ReusingBefore(), x, "n long", by=[]),
    "unary": lambda _, x: x.unary(_of_time(), "n long"),
    "unary_notify": lambda _, x: x.unary_notify(_of_time(), "n long"),
    "map_batches": lambda _, x: x.map_batches(_doubling(), "n long"),
    "group": lambda _, x: (
        x.select("n", k=pc.scalar(1)).group_by("k").reduce_batches(_doubling(), "n long").select("n")
    ),
    "call": lambda _, x: x.call(_doubling(), "n long", rows=1),
    "SQL": lambda _, x: x.select(n=_of_columns("reusing")),
}


@pytest.mark.slow
@pytest.mark.parametrize("way", REUSING)
def test_a_function_may_write_to_the_array_again_that_it_has_returned(way: str) -> None:
    flow = ts.Dataflow("reusing")
    numbers = flow.input("x", "n long", epochs="manual").distinct()
    REUSING[way](flow, numbers).capture("out")
    simulation = Simulation(flow, workers=2)
    for n in range(5):
        simulation.send("x", [n], epoch=n)
    simulation.advance_to("x", 5)
    simulation.run()  # all epochs in one round

    assert simulation.captured["out"].rows() == {n: [(2 * n,)] for n in range(5)}


#: steps that wait until a time is complete, with one input
WAITING: dict[str, Callable[[ts.Stream], ts.Stream]] = {
    "consolidate": lambda x: x.collection().consolidate().stream,
    "distinct": lambda x: x.distinct(per="time"),
    "count of a collection": lambda x: x.collection().count(keys="k").stream,
    "count": lambda x: x.group_by("k").count(),
    "count per time": lambda x: x.group_by("k").count(per="time"),
    "top_k": lambda x: x.top_k(1, "v", keys="k"),
    "union": lambda x: x.union(x),
    "expire": lambda x: x.expire(1),
    "sessions": lambda x: x.min("v", keys="k", expire=1),
    "stateful_map": lambda x: x.stateful_map(
        lambda key, rows, state: ([len(rows)], len(rows)), "n long", keys="k", state="n long"
    ),
    "unary_notify": lambda x: x.unary_notify(lambda _, batch: batch, x.schema),
    "settle": lambda x: x.distinct().settle(),
    "merge": lambda x: x.merge("v", pc.max_element_wise, keys="k"),
}


def test_a_worker_may_have_no_records_of_a_time_that_is_complete() -> None:
    """Each of other workers hears of the times that wait; one of three gets the records."""
    flow = ts.Dataflow("waiting")
    x = flow.input("x", "k long, v long", epochs="manual")
    for name, build in WAITING.items():
        build(x).capture(name)
    simulation = Simulation(flow, workers=1)
    simulation.send("x", [(1, 2)], epoch=0)
    simulation.run()
    move(simulation, flow, 3)
    simulation.close("x")
    simulation.run()
    for name, output in run(flow, {"x": [[(1, 2)]]}).items():
        assert [*filter(None, simulation.captured[name].rows().values())] == [
            *filter(None, output.rows().values())
        ]
