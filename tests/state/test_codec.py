"""What a vertex may keep comes back from its bytes as it was; nothing else is taken."""

from __future__ import annotations

import math
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import IntEnum
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import timely_spark as ts
from tests.support.turns import CHARACTERS
from timely_spark.errors import StateError
from timely_spark.state import Arrangement
from timely_spark.state.codec import Codec, pack_parts, unpack_parts
from timely_spark.times import Time
from timely_spark.times.lexicographic import Lexicographic

CODEC = Codec(ts.PRODUCT)

ATOMS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False),
    st.text(CHARACTERS, max_size=5),
    st.binary(max_size=5),
    st.builds(Time, st.integers(0, 9), st.integers(0, 9)),
)
KEYS = st.one_of(ATOMS, st.tuples(ATOMS, ATOMS), st.frozensets(st.integers(), max_size=3))
VALUES = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.tuples(inner, inner),
        st.dictionaries(KEYS, inner, max_size=4),
        st.sets(KEYS, max_size=4),
    ),
    max_leaves=12,
)


def typed(value: Any) -> Any:
    """A value with the types of all its parts, so that 1, 1.0 and True differ."""
    if isinstance(value, dict):
        return "dict", {typed(k): typed(v) for k, v in value.items()}
    if isinstance(value, set | frozenset):
        return type(value).__name__, frozenset(map(typed, value))
    if isinstance(value, Time):
        return "time", tuple(value)
    if isinstance(value, list | tuple):
        parts = tuple(map(typed, value))
        return type(value).__name__, parts if isinstance(value, tuple) else list(parts)
    return type(value).__name__, value


@pytest.mark.slow
@given(VALUES)
def test_plain_values_are_restored_unchanged(value: Any) -> None:
    assert typed(CODEC.read(CODEC.write(value))) == typed(value)


def test_equal_sets_give_equal_bytes() -> None:
    assert CODEC.write({"b", "a", "c"}) == CODEC.write({"c", "b", "a"})


def test_odd_floats_come_back() -> None:
    back = CODEC.read(CODEC.write([math.nan, math.inf, -math.inf, -0.0]))

    assert math.isnan(back[0])
    assert back[1:3] == [math.inf, -math.inf]
    assert math.copysign(1, back[3]) == -1


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6).reshape(2, 3),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.array([[1, None], [2, "x"]], object).T,
        np.array([1.5, math.nan], np.float32),
        np.array([True, False]),
        np.array("2024-02-29", "M8[us]"),
        np.array(["a", "bcd"]),
        np.zeros((0, 3), np.int8),
        np.arange(10)[::2],
        np.array([None, "x", (1, 2)], object),
    ],
    ids=lambda array: str(array.dtype),
)
def test_arrays_come_back_and_may_be_changed(array: Any) -> None:
    back = CODEC.read(CODEC.write(array))

    assert (back.dtype, back.flags.fnc) == (array.dtype, array.flags.fnc)
    np.testing.assert_array_equal(back, array)
    back[...] = back


def test_an_array_of_lists_of_one_length_stays_an_array_of_lists() -> None:
    array = np.empty(2, object)
    array[0], array[1] = [1, 2], [3, 4]

    assert CODEC.read(CODEC.write(array)).tolist() == [[1, 2], [3, 4]]


def test_counters_and_defaultdicts_stay_such_also_deep_inside() -> None:
    value = {"deep": [Counter("aab"), defaultdict(list, {1: [2]})], "own": defaultdict(lambda: 7, {1: 2})}

    back = CODEC.read(CODEC.write(value))

    assert back == {"deep": [Counter("aab"), {1: [2]}], "own": {1: 2}}
    back["deep"][0]["new"] += 1
    back["deep"][1]["new"].append(1)
    assert type(back["own"]) is dict, (
        "a function cannot be kept; as a field of the vertex it is the template's"
    )


class Cells(dict[int, int]):
    def __missing__(self, key: int) -> int:
        return key


class Named(ts.Vertex):
    def __init__(self) -> None:
        self.cells = Cells()

    def on_recv(self, edge: int, time: Any, batch: pa.Table) -> None:
        self.cells[time.epoch] = self.cells[7 + time.epoch]
        self.send_by(0, time, [(len(self.cells),)])


def test_a_dict_of_the_users_own_kind_stays_one_as_a_field() -> None:
    flow = ts.Dataflow("named")
    flow.vertex(Named(), flow.input("x", "n long"), "n long").capture("out")
    simulation = ts.testing.Simulation(flow, rounds_per_batch=1)
    for n in range(3):
        simulation.send("x", [n])
        simulation.run()
    assert simulation.captured["out"].rows() == {n: [(n + 1,)] for n in range(3)}


class Unnamed(Named):
    def checkpoint(self) -> Any:
        return [("cells", 1)]


def test_a_state_without_names_is_refused() -> None:
    flow = ts.Dataflow("unnamed")
    flow.vertex(Unnamed(), flow.input("x", "n long"), "n long", name="pairs").capture("out")
    told = r"(?s)step 'pairs' .*checkpoint\(\) of Unnamed returned \[.*, not a dict.*Hint: return"
    with pytest.raises(ts.TimelyError, match=told):
        ts.testing.run(flow, {"x": [[1]]})


class Single(ts.Vertex):
    """Adds in single precision, as numpy does."""

    def __init__(self) -> None:
        self.total = np.float32(0)

    def on_recv(self, edge: int, time: Any, batch: pa.Table) -> None:
        self.total += np.float32(0.1)
        self.send_by(0, time, pa.table({"total": [float(self.total)]}))


def test_a_scalar_of_numpy_goes_on_with_its_own_arithmetic() -> None:
    """A number of Python's would make the answer depend on where the workers were restored."""
    found = []
    for rounds in (1, 100):
        flow = ts.Dataflow("single")
        flow.vertex(Single(), flow.input("x", "n long"), "total double").capture("out")
        simulation = ts.testing.Simulation(flow, rounds_per_batch=rounds)
        for _ in range(9):
            simulation.send("x", [1])
            simulation.run()
        found.append(simulation.captured["out"].rows())
    assert found[0] == found[1]


def test_tables_frames_and_arrangements_come_back() -> None:
    table = pa.table({"k": ["a", "b"], "v": [1, None]})
    frame = pd.DataFrame({"x": [1, 2]}, index=["p", "q"])
    state = Arrangement(["k"])
    state.insert(table)

    back = CODEC.read(
        CODEC.write({"t": table, "b": table.to_batches()[0], "f": frame, "s": frame["x"], "a": state})
    )

    assert back["t"].equals(table)
    assert back["b"].equals(table.to_batches()[0])
    pd.testing.assert_frame_equal(back["f"], frame)
    assert back["s"].tolist() == [1, 2]
    assert back["a"].lookup(pa.table({"k": ["a"]}), ["k"])[1].to_pylist() == [{"k": "a", "v": 1}]


def test_integers_beside_missing_values_stay_exact_in_frames() -> None:
    far = 2**53 + 1
    frame = pd.DataFrame(
        {"id": pd.Series([far, None], dtype=object), "n": pd.Series([far, None], dtype="Int64")}
    )

    back = CODEC.read(CODEC.write({"f": frame, "s": frame["id"]}))

    for column in (back["f"]["id"], back["f"]["n"], back["s"]):
        assert int(column[0]) == far  # numpy takes a double for equal
        assert pd.isna(column[1])
    assert back["f"]["n"].dtype == "Int64"


OBJECTS: dict[str, list[Any]] = {
    "dicts": [{"x": 1}, {"y": 2}],
    "sets": [{1}, {2}],
    "lists": [[1], [2, 3]],
    "tuples": [(1, 2), None],
    "numbers and texts": [1, "x"],
    "bytes and texts": [b"a", "b"],
    "integers": [1 << 70, 2],
    "numbers": [1, 2.5],
    "times with a zone": [time(1, tzinfo=timezone.utc), None],
    "texts": ["a", None],
}


@pytest.mark.parametrize("kind", OBJECTS)
def test_objects_in_frames_come_back_as_they_were(kind: str) -> None:
    column = pd.Series(OBJECTS[kind], dtype=object)
    frame = pd.DataFrame({"n": [1.5, 2.5], "o": column, "m": [1, 2]}, index=["p", "q"][: len(column)])
    frame["o"] = column.to_numpy()
    value = {"f": frame, "s": frame["o"], "c": frame.rename(columns={"o": 7})[[7]]}

    back = CODEC.read(CODEC.write(value))

    for one in (back["f"]["o"], back["s"], back["c"][7]):
        assert one.tolist() == OBJECTS[kind]
        assert [type(each) for each in one] == [type(each) for each in OBJECTS[kind]]
        assert one.index.tolist() == ["p", "q"]
    assert back["f"].columns.tolist() == ["n", "o", "m"]


@pytest.mark.parametrize(
    ("frame", "said"),
    [
        (pd.DataFrame([[1, 2]], columns=["a", "a"]), "a pandas frame or series .*Duplicate column names"),
        (pd.DataFrame([[1, 2]], columns=[0, "b"]), r"its columns \[0, 'b'\] have names of several types"),
        (pd.Series([1 + 2j]), "a pandas frame or series cannot be kept as state"),
        (pd.Series([pd.Period("2020"), pd.Period("2020-01")], dtype=object), "a value of type Period"),
    ],
)
def test_frames_and_arrays_that_would_change_are_refused(frame: Any, said: str) -> None:
    with pytest.raises(StateError, match=f"(?s){said}.*\nHint: keep "):
        CODEC.write({"v": frame})


@pytest.mark.skipif(not hasattr(np.dtypes, "StringDType"), reason="numpy 2 has texts of any length")
def test_arrays_of_numpys_texts_are_refused() -> None:
    with pytest.raises(StateError, match="a value of type ndarray"):
        CODEC.write(np.array(["a"], np.dtypes.StringDType()))


def test_a_record_batch_without_rows_comes_back_as_one() -> None:
    batch = pa.RecordBatch.from_pylist([], pa.schema([("n", pa.int64())]))
    assert CODEC.read(CODEC.write(batch)).equals(batch)


def test_times_are_the_flows_own() -> None:
    back = Codec(ts.LEXICOGRAPHIC).read(Codec(ts.LEXICOGRAPHIC).write({Lexicographic(1, 2): "x"}))

    assert back == {Lexicographic(1, 2): "x"}
    assert type(next(iter(back))) is Lexicographic


@dataclass(frozen=True)
class Unknown:
    """No vertex refers to it, so nothing could make one of what was stored."""

    n: int


ELSE = [
    Unknown(1),
    print,
    1j,
    {"deep": [complex]},
    pa.scalar(1),
    np.longdouble(1),
    np.ma.array([1, 2], mask=[True, False]),
    np.zeros(2, [("a", "i4"), ("b", "f8")]),
]


@pytest.mark.parametrize("value", ELSE, ids=str)
def test_anything_else_is_refused_with_a_hint(value: Any) -> None:
    with pytest.raises(StateError, match=r"(?s)cannot be kept as state.*\nHint: .*`pickles`"):
        CODEC.write(value)


@pytest.mark.parametrize("value", ELSE, ids=str)
def test_other_values_are_pickled_with_a_reason_for_writing_and_reading(value: Any) -> None:
    written = CODEC.write([value], pickles="a test wants it")

    (back,) = CODEC.read(written, pickles="a test wants it")
    assert (type(back), repr(back)) == (type(value), repr(value))
    with pytest.raises(StateError, match=r"(?s)holds something pickled.*Hint: .*`pickles`"):
        CODEC.read(written)


@given(st.lists(st.binary(max_size=20), max_size=6))
def test_parts_are_packed_on_boundaries_of_eight_bytes(parts: list[bytes]) -> None:
    packed = pack_parts(parts)

    assert [bytes(part) for part in unpack_parts(packed)] == parts
    assert len(packed) % 8 == 0


class Kept(ts.Vertex):
    """Counts in all kinds of state, and tells how often it was called."""

    def __init__(self) -> None:
        self.calls = 0
        self.flag = False
        self.counter: Counter[str] = Counter()
        self.lists: dict[int, list[int]] = defaultdict(list)
        self.scale = (1, 2)

    def on_recv(self, edge: int, time: Any, batch: pa.Table) -> None:
        self.calls = (self.calls + 1) % 3
        self.flag = not self.flag
        self.counter["n"] += 1
        self.lists[time.epoch % 2].append(time.epoch)
        said = (self.calls, self.flag, self.counter["n"], len(self.lists[0]), self.scale[1])
        self.send_by(0, time, pa.table({name: [value] for name, value in zip("abcde", said, strict=True)}))


def test_fields_that_return_to_their_initial_values_are_restored() -> None:
    flow = ts.Dataflow("kept")
    flow.vertex(Kept(), flow.input("x", "n long"), "a long, b boolean, c long, d long, e long").capture("out")

    rows = ts.testing.run(flow, {"x": [[1]] * 7})["out"].rows()

    assert rows == {i: [((i + 1) % 3, i % 2 == 0, i + 1, i // 2 + 1, 2)] for i in range(7)}


class Flips(ts.Vertex):
    def __init__(self) -> None:
        self.on = False

    def on_recv(self, edge: int, time: Any, batch: pa.Table) -> None:
        self.on = not self.on
        self.send_by(0, time, pa.table({"on": [self.on]}))


def test_a_state_that_returns_to_the_templates_is_not_the_old_one() -> None:
    flow = ts.Dataflow("flips")
    flow.vertex(Flips(), flow.input("x", "n long"), "on boolean").capture("out")

    assert list(ts.testing.run(flow, {"x": [[1]] * 4})["out"].rows().values()) == [[(True,)], [(False,)]] * 2


class Own(Flips):
    def __init__(self) -> None:
        super().__init__()
        self.seen = 0
        self.unpicklable = object()

    def on_recv(self, edge: int, time: Any, batch: pa.Table) -> None:
        self.seen += 1
        self.send_by(0, time, pa.table({"on": [self.seen > 1]}))

    def checkpoint(self) -> dict[str, Any]:
        return {"on": self.on, "twice": self.seen * 2}

    def restore(self, state: Any) -> None:
        self.on, self.seen = state["on"], state["twice"] // 2


def test_own_restore_gets_all_that_own_checkpoint_gave() -> None:
    flow = ts.Dataflow("own")
    flow.vertex(Own(), flow.input("x", "n long"), "on boolean").capture("out")

    assert list(ts.testing.run(flow, {"x": [[1]] * 3})["out"].rows().values()) == [
        [(False,)],
        [(True,)],
        [(True,)],
    ]


def test_workers_share_no_state() -> None:
    flow = ts.Dataflow("apart")
    flow.vertex(
        Kept(), flow.input("x", "n long").broadcast(), "a long, b boolean, c long, d long, e long"
    ).capture("out")

    assert ts.testing.run(flow, {"x": [[1]]}, workers=3)["out"].rows() == {0: [(1, True, 1, 1, 2)] * 3}


def test_state_that_cannot_be_kept_is_an_error_of_its_step() -> None:
    class Bad(ts.Vertex):
        def on_recv(self, edge: int, time: Any, batch: pa.Table) -> None:
            self.lock = object()

    flow = ts.Dataflow("bad")
    flow.vertex(Bad(), flow.input("x", "n long"), "n long", name="locked").capture("out")

    with pytest.raises(ts.TimelyError, match=r"step 'locked' .*test_codec\.py.*cannot be kept as state"):
        ts.testing.run(flow, {"x": [[1]]})


@pytest.mark.parametrize(
    "value",
    [
        datetime(2024, 2, 29, 1, 2, 3, 4),  # noqa: DTZ001 - one without a zone
        datetime(2024, 2, 29, tzinfo=timezone.utc),
        datetime(2024, 10, 27, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"), fold=1),
        date(2024, 2, 29),
        time(1, 2, 3, tzinfo=timezone(timedelta(hours=2))),
        timedelta(-1, 2, 3),
        Decimal("-1.50"),
        deque([1, (2, "a")], maxlen=3),
        np.datetime64("2024-02-29T01", "ns"),
        np.timedelta64(3, "s"),
        np.int64(3),
        np.uint8(255),
        np.float32(0.1),
        np.float64(-0.0),
        np.bool_(True),  # noqa: FBT003 - a value
        np.str_("a"),
        np.bytes_(b"a"),
        {np.int64(3): np.float32(0.5)},
        OrderedDict(b=1, a=2),
    ],
    ids=repr,
)
def test_moments_scalars_and_collections_come_back_as_they_were(value: Any) -> None:
    back = CODEC.read(CODEC.write({"x": [value]}))["x"][0]

    assert (type(back), repr(back)) == (type(value), repr(value))


def test_a_named_tuple_is_refused_as_it_would_lose_its_names() -> None:
    row = namedtuple("row", "a b")(1, 2)  # noqa: PYI024 - as the rows of map() are
    with pytest.raises(
        StateError, match=r"(?s)a value of type row cannot be kept.*Hint: keep tuple\(value\)"
    ):
        CODEC.write([row])
    with pytest.raises(StateError, match="Hint"):
        CODEC.write(pd.Timestamp("2024-02-29"))


class Level(IntEnum):
    HIGH = 1


@pytest.mark.parametrize(
    ("value", "instead"),
    [
        (Level.HIGH, "int"),
        ([Cells()], "dict"),
        (type("Stack", (list,), {})(), "list"),
        (type("Id", (str,), {})(), "str"),
    ],
)
def test_a_value_of_a_subclass_is_refused_as_it_would_come_back_without_its_methods(
    value: Any, instead: str
) -> None:
    with pytest.raises(StateError, match=rf"(?s)cannot be kept.*Hint: keep {instead}\(value\)"):
        CODEC.write([value])
