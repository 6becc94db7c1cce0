"""What can be seen of a checkpoint's retained rounds, without Spark and without the flow's code."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import timely_spark as ts
from timely_spark.__main__ import main
from timely_spark.errors import BadArgument, UnknownName
from timely_spark.runtime.errors import OtherFlow
from timely_spark.runtime.handle.status import Status


def counting() -> ts.Dataflow:
    flow = ts.Dataflow("counting")
    words = flow.input("words", "word string, diff long")
    words.collection(diff="diff").count("n", keys="word", name="counted").capture("out")
    return flow


@pytest.mark.slow
def test_the_state_at_every_retained_round_is_the_collection_then(begin: Any, tmp_path: Path) -> None:
    flow = counting()
    process = begin(flow, workers=3, rounds=100, keep=5)
    draw, sent = random.Random(3), Counter[str]()
    at: dict[int, Counter[str]] = {-1: Counter()}
    for batch in range(12):
        rows = [(draw.choice("abcdefg"), draw.choice([1, 1, -1])) for _ in range(5)]
        process.handles["words"].send(rows)
        for word, diff in rows:
            sent[word] += diff
        process.batches()
        at[max(at) + 1] = Counter(sent)
        assert batch in at

    look = ts.inspect(str(tmp_path))

    assert look.retained == range(6, 12)
    assert look.rounds()["round"].to_pylist() == list(look.retained)
    for number in look.retained:
        trace = look.at(number).state("counted")["input"]
        total: Counter[str] = Counter()
        for row in trace.to_pylist():
            assert 0 <= row["epoch"] <= number
            total[row["word"]] += row["diff"]
        assert {w: n for w, n in total.items() if n} == {w: n for w, n in at[number].items() if n}
        assert set(trace["worker"].to_pylist()) <= {0, 1, 2}
        assert (
            sum(look.at(number).sizes()["bytes"].to_pylist())
            == look.rounds()["state_bytes"][number - 6].as_py()
        )


def test_columns_of_records_stay_what_they_are_called_beside_those_of_a_trace(
    begin: Any, tmp_path: Path
) -> None:
    """A column `time` was shown as `iteration`, and one such as `iterations` was taken for a loop's."""
    columns = ("time", "worker", "epoch", "diff", "iterations")
    flow = ts.Dataflow("names")
    x = flow.input("x", ", ".join(f"{name} long" for name in columns)).select(*columns, change=pc.scalar(1))
    start = x.collection(diff="change")
    start.iterate(lambda x: x.concat(start).distinct(name="once"), name="turns").capture("out", diff="change")
    process = begin(flow)
    process.feed("x", [(1, 2, 3, 4, 5)])

    look = ts.inspect(str(tmp_path)).at()

    (row,) = look.state("turns.once")["output"].to_pylist()
    shown = {"time": 1, "worker_": 2, "epoch_": 3, "diff_": 4, "iterations": 5}
    assert row == {"worker": 0, **shown, "epoch": 0, "iteration1": 0, "diff": 1}
    (change,) = look.changing("turns").changes.to_pylist()
    assert change == {"iteration": 0, **shown, "diff": 1}


def test_the_bytes_of_state_after_a_changed_start_are_those_of_the_steps_that_there_are_now(
    begin: Any, tmp_path: Path
) -> None:
    def flow(*steps: str) -> ts.Dataflow:
        flow = ts.Dataflow("changed")
        numbers = flow.input("numbers", "n long")
        for step in steps:
            numbers.collection(name=f"{step} changes").count(keys="n", name=step).capture(f"{step} out")
        return flow

    process = begin(flow("counted", "other"))
    process.feed("numbers", [1, 2, 3])
    assert set(ts.inspect(str(tmp_path)).at().manifest.state_bytes) == {"counted", "other"}
    begin(flow("other"))

    look = ts.inspect(str(tmp_path))
    sizes = look.at().sizes()["bytes"].to_pylist()
    assert sum(sizes) == look.rounds()["state_bytes"][-1].as_py()
    assert set(json.loads(Status.of(str(tmp_path)).json())["state_bytes"]) == {"other"}


@pytest.mark.slow
def test_messages_in_flight_and_pointstamps(begin: Any, tmp_path: Path) -> None:
    flow = ts.Dataflow("hops")
    numbers = flow.input("numbers", "n long")

    def step(each: ts.Stream) -> tuple[ts.Stream, ts.Stream]:
        more = (
            each.where(pc.field("n") < 40)
            .select(n=pc.field("n") + 1)
            .exchange("n", name="moved")
            .distinct(name="seen")
        )
        return more, more

    numbers.loop(step, name="count up").capture("out")
    process = begin(flow, workers=2, rounds=1, keep=50)
    process.handles["numbers"].send([(1,)])
    assert process.batch()
    assert process.batch()

    now = ts.inspect(str(tmp_path)).at()

    assert now.round == 1
    inflight = now.messages()
    assert inflight.num_rows == now.pending().filter(pc.field("messages") > 0).num_rows == 1
    (step_name,) = set(inflight["step"].to_pylist())
    (record,) = now.records(step_name).to_pylist()
    assert record["time"].startswith("(0, ")
    assert record["n"] > 1
    assert "test_inspection.py" in now.pending()["where"][0].as_py()
    while process.batch():
        pass
    done = ts.inspect(str(tmp_path)).at()
    assert done.messages().num_rows == done.pending().num_rows == 0
    assert ts.inspect(str(tmp_path)).at(1).records(step_name).num_rows == 1, "as it was"
    between = ts.inspect(str(tmp_path)).at(5)
    seen = sorted(n for table in between.state(step_name).values() for n in table["n"].to_pylist())
    assert seen == [*range(2, between.records(step_name)["n"][0].as_py())]


@dataclass(frozen=True)
class Seen:
    """A value of a user's class."""

    n: int


class Keeps(ts.Vertex):
    """A vertex with all sorts of state."""

    pickles = "to show that nothing is unpickled here"

    def __init__(self) -> None:
        self.last, self.all, self.by, self.own = 0, [], {}, None  # type: ignore[var-annotated]
        self.code: Callable[[], int] | None = None
        self.seen: Seen | None = None

    def on_recv(self, edge: int, time: Any, batch: pa.Table) -> None:
        for n in batch["n"].to_pylist():
            self.last, self.seen = n, Seen(n)
            self.all.append(n)
            self.by[n] = {"at": time}
            self.own = Trap()


class Trap:
    """Unpickling it fails."""

    def __setstate__(self, state: object) -> None:
        raise AssertionError

    def __reduce__(self) -> Any:
        return (_fail, ())


def _fail() -> None:
    raise AssertionError


class Logs(Keeps):
    """A vertex whose calls are logged."""

    logged, pickles = True, ""


def test_the_state_of_a_users_vertex(begin: Any, tmp_path: Path) -> None:
    flow = ts.Dataflow("own")
    numbers = flow.input("numbers", "n long")
    flow.vertex(Keeps(), numbers, "n long", name="kept").capture("out")
    flow.vertex(Logs(), numbers, "n long", name="logged").capture("logs")
    process = begin(flow, workers=1, rounds=100)
    process.feed("numbers", [(4,), (5,)])

    now = ts.inspect(str(tmp_path)).at()

    state = {name: table.drop_columns(["worker"]).to_pylist() for name, table in now.state("kept").items()}
    assert state["last"] == [{"value": "5"}]
    assert state["all"] == [{"value": "4"}, {"value": "5"}]
    assert state["by"][0] == {"key": "4", "value": "{'at': (0,)}"}
    assert "pickled" in state["own"][0]["value"]
    assert {"key": "n", "value": "5"} in state["seen"]
    assert now.state("logged")["calls"].to_pylist() == [{"worker": 0, "time": "(0)", "input": 0, "rows": 2}]


def test_what_is_not_there(begin: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(OtherFlow, match="no checkpoint"):
        ts.inspect(str(tmp_path / "nowhere"))
    flow = counting()
    process = begin(flow)
    process.feed("words", [("a", 1)])
    look = ts.inspect(str(tmp_path))
    assert "rounds -1 to 0" in repr(look)
    with pytest.raises(UnknownName, match="no retained round 7"):
        look.at(7)
    with pytest.raises(BadArgument, match="round"):
        look.at(0.5)  # type: ignore[arg-type]
    with pytest.raises(UnknownName, match="did you mean 'counted'"):
        look.at().state("count")
    assert look.at(-1).state("counted") == {}

    assert main(["inspect", str(tmp_path)]) == 0
    assert main(["inspect", str(tmp_path), "--round", "0"]) == 0
    assert main(["inspect", str(tmp_path), "--step", "counted"]) == 0
    out = capsys.readouterr().out
    assert "state_bytes" in out
    assert "diff" in out
    assert main(["inspect", str(tmp_path), "--step", "nothing"]) == 1
    assert "Hint" in capsys.readouterr().err
    assert main(["inspect", str(tmp_path), "--round", "99"]) == 1
    said = (
        "flow 'counting' has no retained round 99\nHint: give one from -1 to 0; start(keep=...) keeps more.\n"
    )
    assert capsys.readouterr().err == said


def test_what_was_opened_before_shows_the_rounds_that_came_later(begin: Any, tmp_path: Path) -> None:
    process = begin(counting(), workers=1)
    look = ts.inspect(str(tmp_path))
    assert look.at().round == -1
    for number in range(3):
        process.feed("words", [("a", 1)])
        assert look.at().round == number
        assert look.rounds()["round"].to_pylist() == list(range(-1, number + 1))
