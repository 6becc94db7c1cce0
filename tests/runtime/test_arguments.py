"""Arguments of a start, without Spark: taken or refused in our words, before anything is begun."""

from __future__ import annotations

import inspect
import pickle
import threading
from contextlib import suppress
from typing import Any

import pytest
from pyspark.sql.types import LongType, NullType, StructField, StructType

import timely_spark as ts
from tests.operators.test_junk import JUNK, bare_errors
from tests.support.stepper import Begin
from timely_spark.errors import BadArgument, SchemaError, UnknownName
from timely_spark.runtime.arguments import trigger_of
from timely_spark.runtime.errors import Unpicklable
from timely_spark.runtime.handle.query import Query
from timely_spark.runtime.run_context import packed


def flow() -> ts.Dataflow:
    made = ts.Dataflow("small")
    made.input("numbers", "n long").exchange("n").capture("out")
    return made


@pytest.mark.parametrize(
    ("given", "options"),
    [
        (None, {}),
        ("available_now", {"availableNow": True}),
        ("availableNow", {"availableNow": True}),
        ({"availableNow": True}, {"availableNow": True}),
        ("1 second", {"processingTime": "1 second"}),
        ("interval 1 minute 30 seconds", {"processingTime": "interval 1 minute 30 seconds"}),
        ({"processingTime": "0 seconds"}, {"processingTime": "0 seconds"}),
        ({"processing_time": "250 milliseconds"}, {"processingTime": "250 milliseconds"}),
    ],
)
def test_both_spellings_of_a_trigger_are_taken(given: Any, options: dict[str, Any]) -> None:
    assert trigger_of(given) == options


@pytest.mark.parametrize(
    "given",
    [
        "once", {"once": True}, "continuous", {"continuous": "1 second"}, {"realTime": "5 minutes"},
        "5s", "soon", "-1 seconds", "", 5, True, {}, {"availableNow": False}, {"processingTime": 5},
        {"every": "1 second"}, {"availableNow": True, "processingTime": "1 second"},
    ],
)  # fmt: skip
def test_other_triggers_are_refused(given: Any) -> None:
    with pytest.raises(BadArgument, match=r"(?s)trigger=.*test_arguments\.py:\d+.*Hint: .*available_now"):
        trigger_of(given)


@pytest.mark.parametrize("workers", [0, -1, 1.5, 2.0, "2", True, [2], 65_537, 10**30])
def test_workers_are_a_whole_number(workers: Any) -> None:
    wrong = rf"(?s)workers={workers!r}.*test_arguments\.py:\d+.*Hint: ".replace("[", r"\[")
    with pytest.raises(BadArgument, match=wrong):
        flow().compile(workers)
    with pytest.raises(BadArgument, match=wrong):
        flow().start(workers=workers)
    with pytest.raises(BadArgument, match=wrong):
        ts.testing.run(flow(), {}, workers=workers)


@pytest.mark.parametrize("argument", ["partitions", "rounds_per_batch"])
@pytest.mark.parametrize("value", [0, 1.5, "2"])
def test_other_numbers_are_whole_too(argument: str, value: Any) -> None:
    class Session:
        readStream = None  # noqa: N815 - Spark's name

    with pytest.raises(BadArgument, match=rf"(?s){argument}={value!r}.*Hint: "):
        flow().start(Session(), workers=1, **{argument: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("inputs", [[1], {"numbers": 5}, {"numbers": "12"}, {"numbers": {0: [1]}}, None])
def test_inputs_of_a_simulation_are_lists_of_epochs(inputs: Any) -> None:
    with pytest.raises(BadArgument, match=r"(?s)inputs.*test_arguments\.py:\d+\)\nHint: .*epoch 0"):
        ts.testing.run(flow(), inputs)


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("session", "/tmp/x"),
        ("checkpoint", 5),
        ("checkpoint", ""),
        ("name", 7),
        ("sources", [1]),
        ("record", 1),
        ("replace", "no"),
        ("resident", "yes"),
    ],
)
def test_arguments_of_another_kind_are_refused_by_name(argument: str, value: Any) -> None:
    with pytest.raises(
        BadArgument, match=rf"(?s){argument}=.* was expected \(.*test_arg.*\.py:\d+\)\nHint: "
    ):
        flow().start(**{argument: value}, workers=1)


def test_a_text_is_not_true_or_false_for_a_query_either() -> None:
    query: Any = None
    with pytest.raises(BadArgument, match=r"(?s)ask: fresh='no'.*test_arguments\.py:\d+\)\nHint: "):
        Query.ask(query, "out", fresh="no")  # type: ignore[arg-type]


def test_a_column_of_an_unsupported_type_is_named_with_its_source() -> None:
    class Frame:
        isStreaming = True  # noqa: N815 - Spark's name
        schema = StructType([StructField("n", LongType()), StructField("v", NullType())])

    made = ts.Dataflow("types")
    with pytest.raises(SchemaError, match=r"source 's': column 'v' is of type void.*test_arguments\.py:\d+"):
        made.source("s", Frame())  # type: ignore[arg-type]


def test_a_source_that_is_refused_leaves_no_frame_for_the_next_of_its_name() -> None:
    class Frame:
        isStreaming = True  # noqa: N815 - Spark's name
        schema = StructType([StructField("n", LongType())])

    made = ts.Dataflow("again")
    with pytest.raises(SchemaError, match="nothing"):
        made.source("s", Frame(), epoch="nothing")  # type: ignore[arg-type]
    made.source("s", "n long")
    assert made.frames == {}


def test_an_unknown_input_is_named_with_the_existing_ones() -> None:
    unknown = (
        r"(?s)flow 'small' has no input 'number' \(.*test_arguments\.py:\d+\)\nHint: did you mean 'numbers'"
    )
    with pytest.raises(UnknownName, match=unknown):
        flow().handle("number")
    with pytest.raises(UnknownName, match=unknown):
        ts.testing.run(flow(), {"number": [[1]]})
    with pytest.raises(UnknownName, match=unknown):
        ts.testing.run(flow(), {"number": []})
    with pytest.raises(UnknownName, match=unknown):
        ts.testing.Simulation(flow()).send("number", [1])
    with pytest.raises(UnknownName, match=unknown):
        ts.testing.Simulation(flow()).close("number")
    assert issubclass(UnknownName, KeyError)


def test_a_step_that_cannot_be_sent_to_tasks_is_named() -> None:
    lock, made = threading.Lock(), ts.Dataflow("locked")

    def counted(row: Any) -> int:
        with lock:
            return int(row.n)

    numbers = made.input("x", "n long")
    numbers.map(lambda row: row.n, "n long", name="fine").exchange("n").map(
        counted, "n long", name="bad"
    ).capture("o")

    with pytest.raises(Unpicklable, match=r"(?s)step 'bad' .*lock.*test_arguments\.py:\d+\)\nHint: "):
        packed(made.compile(2))
    with pytest.raises(Unpicklable, match=r"(?s)flow 'locked' .*test_arguments\.py:\d+\)\nHint: call"):
        pickle.dumps(made)


#: what the other arguments are while one of a method is junk
FITTING = {
    "ask": {"name": "all", "question": [1], "keys": "n"},
    "explain_row": {"output": "all", "row": {"n": 1}, "inputs": {"x": "all"}},
}
METHODS = [name for name, _ in inspect.getmembers(Query, inspect.isfunction) if not name.startswith("_")]


@pytest.mark.slow
@pytest.mark.share(4)
@pytest.mark.parametrize("method", sorted({*METHODS} - {"ui"}))
def test_methods_of_a_query_accept_junk_or_raise_a_typed_error(
    method: str, begin: Begin, capsys: pytest.CaptureFixture[str]
) -> None:
    flow = ts.Dataflow("asked")
    x = flow.input("x", "n long, diff long")
    x.collection(diff="diff").capture("all")
    x.loop(lambda n: n.where("n < 0"), name="hops").capture("left")
    process = begin(flow)
    process.feed("x", [(1, 1), (2, 1)])
    query = process.query()
    bare = []
    for parameter in inspect.signature(getattr(query, method)).parameters:
        for what, junk in JUNK.items():
            if what == "an expression":  # which has no truth value, and no comparison that has
                continue
            with bare_errors(bare, f"{parameter}={what}", __file__), suppress(StopIteration):
                getattr(query, method)(**{**FITTING.get(method, {}), parameter: junk(ts.Dataflow("junk"))})
    capsys.readouterr()
    assert not bare, "\n".join(bare)


@pytest.mark.parametrize("keys", [["n", "n"], 3, ["n", None]])
def test_keys_of_a_question_are_columns_each_once(keys: Any, begin: Begin) -> None:
    flow = ts.Dataflow("asked")
    flow.input("x", "n long").collection().capture("all")
    query = begin(flow).query()
    with pytest.raises(SchemaError, match=r"(?s)ask.*test_arguments\.py:\d+.*Hint: give"):
        query.ask("all", [(1, 1)], keys=keys)
