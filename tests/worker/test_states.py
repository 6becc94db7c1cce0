"""Every kind of state there is: a worker made anew after any round goes on as the one that never stopped."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable
from datetime import timedelta, timezone
from importlib import import_module
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

import timely_spark as ts
from tests.support.memory import Memory
from tests.support.turns import CHARACTERS, in_turn
from timely_spark.state import Arrangement, codec
from timely_spark.state.codec import Codec
from timely_spark.testing import Simulation
from timely_spark.times import Time
from timely_spark.worker import Budget, Worker, vertex_snapshot
from timely_spark.worker.notify import Pending
from timely_spark.worker.vertex_snapshot import changed

# -- values --------------------------------------------------------------------------------------------------

ZONES = st.one_of(
    st.none(),
    st.just(timezone.utc),
    st.integers(-23, 23).map(lambda hours: timezone(timedelta(hours=hours))),
    st.sampled_from(["Europe/Berlin", "America/St_Johns"]).map(ZoneInfo),
)
ATOMS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(CHARACTERS, max_size=5),
    st.binary(max_size=5),
    st.builds(Time, st.integers(0, 9), st.integers(0, 9)),
    st.datetimes(timezones=ZONES),
    st.dates(),
    st.times(),
    st.timedeltas(),
    st.decimals(allow_nan=False),
    npst.from_dtype(np.dtype("M8[us]")),
    npst.from_dtype(np.dtype("m8[s]")),
)
ARRAYS = st.one_of(
    npst.arrays(
        kind,
        npst.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3),
        elements={"alphabet": CHARACTERS} if kind == "U3" else None,
    )
    for kind in ("?", "i1", "<u4", ">i8", "f4", "f8", "c16", "M8[ns]", "m8[D]", "U3", "S2")
)
ROWS = st.lists(
    st.tuples(st.integers(0, 9), st.one_of(st.none(), st.text(CHARACTERS, max_size=3))), max_size=5
)
TABLES = ROWS.map(
    lambda rows: pa.table(
        {"k": pa.array([k for k, _ in rows], pa.int64()), "v": pa.array([v for _, v in rows], pa.string())}
    )
)


def arranged(tables: list[pa.Table]) -> Arrangement:
    made = Arrangement(["k"])
    for table in tables:
        made.insert(table)
    return made


def objects(items: list[Any]) -> np.ndarray[Any, Any]:
    made = np.empty(len(items), object)
    for i, item in enumerate(items):
        made[i] = item
    return made


DATA = st.one_of(
    TABLES,
    TABLES.map(lambda table: table.to_batches()[0] if table.num_rows else table),
    TABLES.map(lambda table: table.to_pandas()),
    TABLES.map(lambda table: table.to_pandas().set_index("k")),
    st.builds(
        lambda values, name: pd.Series(values, name=name, dtype="int64"), st.lists(st.integers(0, 9)), ATOMS
    ),
    st.lists(TABLES, max_size=4).map(arranged),
    ARRAYS,
)
KEYS = st.one_of(ATOMS, st.tuples(ATOMS, ATOMS), st.frozensets(st.integers(), max_size=3))
VALUES = st.recursive(
    st.one_of(ATOMS, DATA),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.tuples(inner, inner),
        st.dictionaries(KEYS, inner, max_size=3),
        st.sets(KEYS, max_size=3),
        st.lists(KEYS, max_size=4).map(Counter),
        st.dictionaries(KEYS, st.lists(inner, max_size=2), max_size=3).map(lambda d: defaultdict(list, d)),
        st.builds(deque, st.lists(inner, max_size=3), st.sampled_from([None, 2, 5])),
        st.lists(inner, max_size=3).map(objects),
    ),
    max_leaves=10,
)


@pytest.mark.slow
@settings(max_examples=max(25, settings().max_examples // 5))
@given(value=VALUES)
def test_every_allowed_value_is_restored_unchanged(value: Any, plain: Callable[[Any], Any]) -> None:
    one = Codec(ts.PRODUCT)
    written = one.write({"value": value})

    back = one.read(written)["value"]

    assert plain(back) == plain(value)
    assert one.write({"value": back}) == written, "it would be written as it was"


# -- vertices ------------------------------------------------------------------------------------------------


class Everything(ts.Vertex):
    """Keeps all kinds of things, and asks for all kinds of notifications."""

    initial = (0, 3)

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.seen: dict[Any, list[int]] = defaultdict(list)
        self.state = Arrangement(["k"])
        self.last: pa.Table | None = None
        self.sums = np.zeros(3)
        self.oldest: deque[int] = deque(maxlen=3)
        self.limit = 7

    def on_recv(self, edge: int, time: Any, batch: pa.Table) -> None:
        self.calls["recv", edge] += 1
        self.seen[time] += batch["v"].to_pylist()
        self.state.insert(batch)
        self.last = batch
        self.sums[edge] += sum(batch["v"].to_pylist())
        self.oldest.append(self._context.since())
        self.notify_at(time)
        self.notify_at(Time(time.epoch + 100), capability=None)
        self.notify_at(Time(time.epoch + 1), capability=Time(time.epoch + 2))

    def on_notify(self, time: Any) -> None:
        self.calls["notify"] += 1
        if arrived := self.seen.pop(time, []):
            total = sum(arrived) + int(self.sums.sum())
            self.send_by(0, Time(time.epoch + 1), pa.table({"k": [len(self.state)], "v": [total]}))


SCHEMA = "k long, v long"


EPOCHS = {"epochs": "clock"}


def inputs(flow: ts.Dataflow) -> list[ts.Stream]:
    return [flow.input(name, SCHEMA, **EPOCHS) for name in ("x", "y")]


def looped(flow: ts.Dataflow) -> ts.Stream:
    """Values grow by one in each iteration, so epochs meet in different iterations."""

    def body(n: ts.Stream) -> tuple[ts.Stream, ts.Stream]:
        best = n.group_by("k").aggregate(v=("max", "v"))
        return best.where(pc.field("v") < 4).select("k", v=pc.add(pc.field("v"), 1)), best

    return inputs(flow)[0].loop(body)


def over(operator: Callable[..., ts.Stream]) -> Callable[[ts.Dataflow], ts.Stream]:
    """A flow with one operator on both inputs."""
    return lambda flow: operator(*inputs(flow))


def joined(**options: Any) -> Callable[[ts.Dataflow], ts.Stream]:
    return over(lambda x, y: x.join(y.select(k="k", w="v"), on="k", **options).select(k="v", v="w"))


def sizes(time: Any, *tables: pa.Table) -> list[tuple[int, int]]:
    return [(time.epoch, sum(table.num_rows for table in tables))]


FLOWS: dict[str, Callable[[ts.Dataflow], ts.Stream]] = {
    "distinct per time": over(lambda x, y: x.concat(y).exchange("v").distinct(per="time")),
    "least of all": over(lambda x, y: x.concat(y).exchange("v").min("v").select(k="v", v="v")),
    "distinct": over(lambda x, y: x.concat(y).distinct().exchange("v").distinct()),
    "merge": over(lambda x, y: x.concat(y).merge("v", pc.max_element_wise, keys="k")),
    "merge in a loop": over(
        lambda x, y: x.loop(
            lambda n: n.select(k="v", v="k").concat(n).merge("v", pc.max_element_wise, keys="k")
        ).merge("v", pc.max_element_wise, keys="k")
    ),
    "count_distinct": over(lambda x, y: x.concat(y).count_distinct("n", keys="k", up_to=3)),
    "least": over(lambda x, y: x.min("v", keys=["k"]).concat(y.max("v", keys=["k"]))),
    "settled": over(lambda x, y: x.concat(y).max("v", keys=["k"]).settle()),
    "aggregate": over(lambda x, y: x.concat(y).group_by("k").aggregate(v=("sum", "v"))),
    "aggregate per time": over(lambda x, y: x.group_by("k").aggregate(v=("sum", "v"), per="time")),
    "mean": over(lambda x, y: x.group_by("k").aggregate(m=("mean", "v")).select(k="k", v="m")),
    "aggregate in a loop": looped,
    "aggregate in a scope": over(
        lambda x, y: (
            x.enter(x.scope.inner(time=ts.times.Descending), at=pc.add(pc.field("v"), pc.field("k")))
            .group_by("k")
            .aggregate(v=("sum", "v"))
            .leave()
        )
    ),
    "join": joined(),
    "join per time": joined(per="time"),
    "outer join": joined(per="time", how="outer"),
    "reduce": over(lambda x, y: x.group_by("k").reduce(lambda key, rows: [len(rows)], "v long")),
    "unary_notify": over(lambda x, y: x.unary_notify(sizes, SCHEMA, by="k")),
    "binary_notify": over(lambda x, y: x.binary_notify(y, sizes, SCHEMA, by=("k", "k"))),
    "user": over(lambda x, y: x.flow.vertex(Everything(), [x, y], SCHEMA, by=["k", "k"], name="user")),
    "expire": over(lambda x, y: x.expire(after=2).select(k="k", v="diff")),
    "aggregate expire": over(lambda x, y: x.group_by("k").aggregate(v=("sum", "v"), expire=2)),
    "distinct expire": over(lambda x, y: x.distinct(expire=2)),
    "min expire": over(lambda x, y: x.min("v", keys=["k"], expire=2)),
    "join expire": joined(expire=2),
    "outer join expire": joined(expire=2, how="outer"),
    "semi join expire": over(lambda x, y: x.join(y.select("k", name="keys"), on="k", expire=2, how="semi")),
}
for path in sorted((Path(__file__).parents[1] / "operators").glob("test_*.py")):
    if "\nTRIED = " in path.read_text(encoding="utf-8"):  # an operator whose test says how to try it
        FLOWS |= {
            name: over(build) for name, build in import_module(f"tests.operators.{path.stem}").TRIED.items()
        }


def flow_of(name: str) -> ts.Dataflow:
    flow = ts.Dataflow(name)
    FLOWS[name](flow).capture("out")
    return flow


class Resident:
    """Workers that are never made anew, beside those of a simulation, which are in every round."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation, self.plan = simulation, simulation.plan
        self.workers: dict[int, Worker] = {}
        #: what was seen in a state at least once
        self.seen: set[str] = set()
        simulation.on_step = self.step

    def step(self, batch: int, index: int, *parts: Any) -> None:
        _, rows, header, after, out = parts
        blobs: Any = self.simulation.blobs
        here = self.workers.setdefault(index, Worker(self.plan, None, index, blobs))
        assert here.step(batch, rows, header, self.simulation.schedule.given_budget).equals(out)
        assert here.checkpoint(f"{index}-{batch}") == after
        again = Worker(self.plan, after, index, blobs)
        assert (again.references, again.sizes, list(again.pending)) == (
            here.references,
            here.sizes,
            list(here.pending),
        )
        assert sorted(again.order[i][0] for i in range(len(again.order))) == sorted(o[0] for o in here.order)
        whole = again.checkpoint(inline=True)
        assert whole == here.checkpoint(inline=True)
        if blobs is not None:
            needed = type(blobs)({reference: blobs.get(reference) for reference in again.references})
            assert Worker(self.plan, after, index, needed).checkpoint(inline=True) == whole
            assert needed.read == again.references, "each of them is needed, and no other one"
        alone = Worker(self.plan, whole, index)
        assert not alone.references
        assert alone.checkpoint(inline=True) == whole
        self.note(again)

    def note(self, worker: Worker) -> None:
        """What kinds of state there were."""
        nodes = {self.plan.by_name[name] for name in worker.snapshots}
        self.seen |= {type(node.template).__name__ for node in nodes}
        self.seen |= {"capability None" for pending in worker.pending if pending.capability is None}
        self.seen |= {"left over"} if worker.queue else set()
        self.seen |= {"log"} if any(each.log for each in worker.snapshots.values()) else set()
        self.seen |= {"blobs"} if worker.references else set()


def drive(simulation: Simulation, epochs: int = 4) -> dict[int, list[Any]]:
    """Records of each epoch as they come; where inputs are manual, two epochs together."""
    random = np.random.default_rng(3)
    manual = simulation.plan.source("x").epochs == "manual"
    for epoch in range(epochs):
        for name in ("x", "y"):
            rows = [tuple(map(int, row)) for row in random.integers(0, 4, (8, 2))]
            simulation.send(name, rows, epoch=epoch if manual else None)
            if manual and epoch % 2:
                simulation.advance_to(name, epoch + 1)
        for _ in range(epoch):
            simulation.step()
    if manual:
        for name in ("x", "y"):
            simulation.close(name)
    simulation.run()
    return simulation.captured["out"].rows()


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hardly anything is so small that it is not kept apart."""
    monkeypatch.setattr(codec, "BLOB_BYTES", 400)
    monkeypatch.setattr(vertex_snapshot, "LOG_BYTES", 3_000)


@pytest.mark.slow
@pytest.mark.share(6)
@pytest.mark.parametrize(("name", "how"), in_turn(FLOWS, ["full", "logged"]))
@pytest.mark.usefixtures("small")
def test_a_worker_restored_after_any_round_equals_one_that_never_stopped(
    name: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ts.Vertex, "logged", how == "logged")
    seen: set[str] = set()
    answers = []
    for workers, seed, budget, blobs in (
        (1, None, Budget(bytes=1), None),
        (2, 0, Budget(steps=2), Memory()),
        (3, 1, Budget(), Memory()),
    ):
        simulation = Simulation(
            flow_of(name), workers=workers, seed=seed, budget=budget, blobs=blobs, rounds_per_batch=1
        )
        resident = Resident(simulation)
        answers.append(list(drive(simulation).values()))
        seen |= resident.seen
    assert "left over" in seen
    assert ("log" in seen) == (how == "logged")
    assert "blobs" in seen or how == "full"
    assert answers[0]
    assert any(answers[0])


@pytest.mark.slow
@pytest.mark.share(6)
@pytest.mark.parametrize("seeds", [[0], pytest.param([1, 2, 3], marks=pytest.mark.campaign)], ids=str)
@pytest.mark.parametrize("name", FLOWS)
@pytest.mark.usefixtures("small")
def test_logged_or_in_full_crashed_or_not_the_states_and_the_outputs_are_the_same(
    name: str, seeds: list[int], plain: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    crashed = 0
    for seed in seeds:
        found = []
        for logged, crashes, blobs in ((False, 0, None), (True, 0.4, Memory()), (True, 0, None)):
            monkeypatch.setattr(ts.Vertex, "logged", logged)
            simulation = Simulation(
                flow_of(name), workers=2, seed=seed, crashes=crashes, blobs=blobs, rounds_per_batch=3
            )
            states: dict[tuple[int, int], Any] = {}

            def decode(batch: int, index: int, *parts: Any, of: Any = simulation, to: Any = states) -> None:
                worker = Worker(of.plan, parts[3], index, of.blobs)
                nodes = [of.plan.by_name[name] for name in worker.snapshots]
                held = {node.name: changed(worker.vertex(node), node.template) for node in nodes}
                # a vertex whose state is the template's leaves nothing behind, but perhaps its log
                to[batch, index] = {name: plain(state) for name, state in held.items() if state}

            simulation.on_step = decode
            found.append((drive(simulation), states))
            crashed += simulation.crashed
        assert found[0] == found[1] == found[2]
        # a call is answered within its round, and the program that is piped through keeps no state
        assert any(found[0][1].values()) is (name not in {"call", "pipe"})
    assert crashed


@pytest.mark.slow
@pytest.mark.share(3)
@pytest.mark.parametrize(
    ("name", "how"),
    in_turn(["user", "aggregate per time", "join per time", "binary_notify", "settled"], ["full", "logged"]),
)
@pytest.mark.usefixtures("small")
def test_restored_workers_are_equal_with_manual_inputs_and_several_open_epochs(
    name: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ts.Vertex, "logged", how == "logged")
    monkeypatch.setitem(EPOCHS, "epochs", "manual")
    answers, seen = [], set()
    for workers, budget in ((1, Budget()), (3, Budget(steps=1))):
        simulation = Simulation(
            flow_of(name), workers=workers, budget=budget, blobs=Memory(), rounds_per_batch=1
        )
        resident = Resident(simulation)
        answers.append(drive(simulation))
        seen |= resident.seen
    assert "left over" in seen
    assert name not in {"user", "join per time"} or "capability None" in seen
    assert answers[0]


def test_initial_notifications_are_in_the_state_until_delivered() -> None:
    simulation = Simulation(flow_of("user"), workers=2)
    simulation.send("x", [(0, 1)])
    simulation.step()
    (node,) = [node for node in simulation.plan.nodes if node.name == "user"]
    restored = [
        Worker(simulation.plan, state, i).pending for i, state in enumerate(simulation.states) if state
    ]

    assert restored
    for pending in restored:
        assert Pending(node.index, Time(3), Time(3)) in list(pending)
        assert Pending(node.index, Time(0), Time(0)) not in list(pending)


def test_the_flows_cover_every_vertex_with_state() -> None:
    def below(kind: type) -> set[type]:
        return {kind}.union(*map(below, kind.__subclasses__()))

    stateless = below(ts.graph.Stateless) | {ts.Vertex}
    # those of collections are stopped and taken up again in the tests of their own
    own = {kind for kind in below(ts.Vertex) - stateless if kind.__module__.startswith("timely_spark.op")}
    templates = {type(node.template) for name in FLOWS for node in flow_of(name).compile(1).nodes}

    keeps_nothing = {
        "OutputVertex",
        "ChangesOutput",
        "ProbeVertex",
        "_OnRecv",
        "Sessions",
        "Growing",
        "Joined",
        "EnterAt",
    }
    assert {kind.__name__ for kind in own - templates} <= keeps_nothing
