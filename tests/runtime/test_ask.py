"""Questions about captured collections: answered at one epoch, as if the collection were recomputed."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Generator, Sequence
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import timely_spark as ts
from tests.support.accumulated import after
from tests.support.calls import calls
from timely_spark.compiler import compile_plan
from timely_spark.errors import BadArgument, SchemaError, TimelyError
from timely_spark.graph import as_table
from timely_spark.runtime.handle.indexes import Answer, Indexes, how_old
from timely_spark.runtime.handle.input_handle import InputHandle
from timely_spark.runtime.storage.entries import Entry
from timely_spark.runtime.storage.log import RoundLog
from timely_spark.state.arrangement import Arrangement

AGES = pa.schema([("name", pa.string()), ("age", pa.int64()), ("diff", pa.int64())])
TOWNS = pa.schema([("age", pa.int64()), ("town", pa.string()), ("diff", pa.int64())])

Changes = dict[int, list[tuple[object, ...]]]


class Outputs:
    """Two captured collections, complete up to an epoch each."""

    def __init__(self, ages: Changes, towns: Changes) -> None:
        self.changes = {"ages": ages, "towns": towns}
        self.schemas = {"ages": AGES, "towns": TOWNS}
        self.done = {"ages": -1, "towns": -1}
        self.asked = Indexes(self.schemas, self.complete, self.released)
        self.read = self.looked = 0

    def complete(self, names: Sequence[str]) -> int:
        return min(self.done[name] for name in names)

    def released(self, name: str, after: int, until: int) -> Generator[tuple[int, pa.Table], None, None]:
        self.looked += 1
        for epoch, rows in sorted(self.changes[name].items()):
            if after < epoch <= min(until, self.done[name]):
                self.read += 1
                yield epoch, as_table(rows, self.schemas[name])

    def ask(self, *names: str, question: object = None, keys: Sequence[str] | None = None) -> Answer:
        return self.asked.answer(names, question, keys, diff="diff")

    def at(self, name: str, epoch: int) -> Counter[tuple[object, ...]]:
        return +after(change for at, rows in self.changes[name].items() if at <= epoch for change in rows)


def histories(first: object, second: object) -> st.SearchStrategy[Changes]:
    change = st.tuples(st.sampled_from(first), st.sampled_from(second), st.sampled_from([1, 1, 2, -1]))  # type: ignore[arg-type]
    return st.dictionaries(st.integers(0, 6), st.lists(change, max_size=6), max_size=6)


def test_a_notebook_shows_an_answer_as_a_table() -> None:
    for epoch, cell in ((3, ">3</td>"), (None, ">null</td>")):
        shown = Answer(epoch, pa.table({"node": [1], "<b>": ["x & y"]}))._repr_html_()

        assert cell in shown
        assert "&lt;b&gt;" in shown
        assert "x &amp; y" in shown


def test_changes_are_looked_for_only_when_an_epoch_has_completed() -> None:
    outputs = Outputs({0: [("ann", 1, 1)], 2: [("ann", 1, -1)]}, {})
    for done, looked in ((0, 1), (0, 1), (1, 2), (2, 3), (2, 3)):
        outputs.done["ages"] = done
        answer = outputs.ask("ages", question=["ann"], keys=["name"])
        assert (answer.epoch, outputs.looked) == (done, looked)
        assert answer.table["age"].to_pylist() == [1 if done < 2 else None]


@pytest.mark.slow
@given(
    histories(["ann", "bob", None], [1, 2]),
    histories([1, 2, 3], ["Rome", "Oslo"]),
    st.lists(st.tuples(st.booleans(), st.integers(1, 3)), max_size=8),
)
def test_an_answer_is_that_of_the_collections_at_one_epoch(
    ages: Changes, towns: Changes, advances: list[tuple[bool, int]]
) -> None:
    outputs = Outputs(ages, towns)
    for first, by in advances:
        outputs.done["ages" if first else "towns"] += by
        alone = outputs.ask("ages", question=["bob", "eve", "ann"], keys=["name"])
        done = outputs.done["ages"]
        assert alone.epoch == (done if done >= 0 else None)
        names = alone.table.column("name").to_pylist()  # in the order of the question; a name's rows in any
        assert names == [name for name in ("bob", "eve", "ann") for _ in ages_of(outputs, name, done)]
        assert Counter(tuple(row.values()) for row in alone.table.to_pylist()) == Counter(
            (name, age) for name in set(names) for age in ages_of(outputs, name, done)
        )

        both = outputs.ask("ages", "towns", question={"name": ["bob", "bob"]})
        epoch = outputs.complete(["ages", "towns"])
        assert Counter(tuple(row.values()) for row in both.table.to_pylist()) == Counter(
            ("bob", age, town)
            for age in 2 * ages_of(outputs, "bob", epoch)
            for town in [t for a, t in outputs.at("towns", epoch).elements() if a == age] or [None]
        )
        assert both.table.schema.names == ["name", "age", "town"]

        whole = outputs.ask("towns")
        assert Counter(whole.rows()) == outputs.at("towns", outputs.done["towns"])


def ages_of(outputs: Outputs, name: str, epoch: int) -> list[object]:
    """The ages of a name at an epoch, or None if it has none."""
    return sorted(age for n, age in outputs.at("ages", epoch).elements() if n == name) or [None]  # type: ignore[type-var]


def test_a_look_up_reads_a_key_of_one_change_and_adds_nothing_up() -> None:
    outputs = Outputs({0: [(name, 1, 1) for name in "abcd"], 1: [("d", 1, -1), ("d", 2, 1)]}, {})
    outputs.done = {"ages": 1, "towns": 1}

    def price(name: str) -> int:
        return calls(lambda: outputs.ask("ages", question={"name": [name]}))

    price("a")  # reads the epochs
    assert price("b") < 60 < price("d")
    assert outputs.ask("ages", question={"name": ["b", "d"]}).rows() == [("b", 1), ("d", 2)]


def test_each_epoch_is_read_once_by_an_index() -> None:
    outputs = Outputs({epoch: [("ann", epoch, 1)] for epoch in range(5)}, {})
    outputs.done = {"ages": 2, "towns": 0}
    for _ in range(3):
        outputs.ask("ages", question={"name": ["ann"]})
    assert outputs.read == 3
    outputs.done["ages"] = 4
    assert outputs.ask("ages", question={"name": ["ann"]}).rows() == [("ann", age) for age in range(5)]
    assert outputs.read == 5


@pytest.mark.parametrize("merges", range(1, 5))
def test_an_interrupted_question_changes_no_later_answer_and_holds_no_lock(
    monkeypatch: pytest.MonkeyPatch, merges: int
) -> None:
    outputs = Outputs({epoch: [("ann", epoch, 1)] for epoch in range(4)}, {})
    outputs.done["ages"] = 3
    merge, closed = Arrangement._merge, list[str]()

    def interrupted(self: Arrangement, compact: object) -> None:
        nonlocal merges
        merges -= 1
        if not merges:
            raise KeyboardInterrupt
        merge(self, compact)  # type: ignore[arg-type]

    def released(name: str, after: int, until: int) -> Generator[tuple[int, pa.Table], None, None]:
        try:
            yield from outputs.released(name, after, until)
        finally:
            closed.append(name)

    monkeypatch.setattr(Arrangement, "_merge", interrupted)
    outputs.asked.released = released
    with pytest.raises(KeyboardInterrupt) as caught:  # a notebook keeps the error, and its frames
        outputs.ask("ages", question={"name": ["ann"]})
    assert closed == ["ages"]
    assert outputs.ask("ages", question={"name": ["ann"]}).rows() == [("ann", age) for age in range(4)]
    assert caught.traceback


@pytest.mark.slow
def test_changes_that_nobody_can_tell_apart_are_merged() -> None:
    outputs = Outputs({epoch: [("ann", 1, 1 if epoch % 2 == 0 else -1)] for epoch in range(999)}, {})
    for done in range(0, 999, 10):
        outputs.done = {"ages": done, "towns": done}
        assert outputs.ask("ages", question={"name": ["ann"]}).rows() == [("ann", 1)]
    (index,) = outputs.asked._indexes.values()
    assert len(index.changes) < 100


@pytest.mark.parametrize(
    ("question", "keys"),
    [
        ({"name": ["ann", "zoe"]}, None),
        (pa.table({"name": ["ann", "zoe"]}), None),
        (pa.record_batch({"name": ["ann", "zoe"]}), None),
        (pd.DataFrame({"name": ["ann", "zoe"]}, index=[7, 8]), None),
        (pd.DataFrame({"name": ["ann", "zoe"], "why": ["?", "!"]}).set_index("name"), None),
        ([{"name": "ann"}, {"name": "zoe"}], None),
        (["ann", "zoe"], ["name"]),
        ([("ann",), ("zoe",)], ["name"]),
        ({"name": ["ann", "zoe"], "why": ["?", "!"]}, None),
        (pa.table({"name": pa.array(["ann", "zoe"]).dictionary_encode()}), None),
    ],
)
def test_a_question_may_have_many_forms(question: object, keys: list[str] | None) -> None:
    outputs = Outputs({0: [("ann", 33, 1)]}, {})
    outputs.done = {"ages": 0, "towns": 0}
    answer = outputs.ask("ages", question=question, keys=keys)
    assert answer.epoch == 0
    assert [(r["name"], r["age"]) for r in answer.table.to_pylist()] == [("ann", 33), ("zoe", None)]
    assert answer.to_pandas()["name"].tolist() == ["ann", "zoe"]
    assert {*answer.table.schema.names} <= {"name", "why", "age"}


@pytest.mark.parametrize(
    ("names", "question", "keys", "text"),
    [
        (["ages"], {"nam": ["ann"]}, None, "no column of"),
        (["ages"], {"age": ["33"]}, None, "column 'age' has values of type string, not int64"),
        (["ages"], ["ann"], ["nam"], r"has \['nam'\], not each one column"),
        (["ages"], ["ann"], ["age"], "do not fit"),
        (["ages"], 7, None, "no table of questions"),
        (["ages"], ["ann"], None, "no table of questions"),
        (["ages"], {"name": 5}, None, "no table of questions"),
        (["ages"], pa.table([["ann"], ["zoe"]], names=["name", "name"]), None, "are not unique"),
    ],
)
def test_a_question_that_cannot_be_asked(
    names: list[str], question: object, keys: list[str] | None, text: str
) -> None:
    outputs = Outputs({0: [("ann", 33, 1)]}, {})
    with pytest.raises(SchemaError, match=text) as error:
        outputs.ask(*names, question=question, keys=keys)
    assert "Hint:" in str(error.value)


def test_an_output_that_is_no_collection() -> None:
    outputs = Outputs({}, {})
    with pytest.raises(SchemaError, match="no column 'change' of differences"):
        outputs.asked.answer(["ages"], None, None, diff="change")


def test_a_column_of_the_records_is_not_taken_for_the_differences() -> None:
    flow = ts.Dataflow("ages")
    ages = flow.input("x", "name string, age long").collection()
    ages.where("age > 3").capture("ages", diff="change")
    ages.changes().expire(after=1).capture("window")
    renamed = ages.changes("change").where("age > 3").select("name", "age", d="change")
    renamed.exchange("name").capture("renamed")
    made = ts.testing.run(flow, {"x": [[("ann", 5)]]})
    assert (made["ages"].diff, made["window"].diff, made["renamed"].diff) == ("change", None, "d")
    with pytest.raises(SchemaError, match=r"no columns \['age'\]"):
        ts.snapshot(made["renamed"], diff="age")
    outputs = Outputs({}, {})
    outputs.asked.differences = compile_plan(flow.graph, 2).differences
    assert outputs.asked.differences == {"ages": "change", "renamed": "d"}
    with pytest.raises(SchemaError, match="no column 'age' of differences"):
        outputs.asked.answer(["ages"], None, None, diff="age")


@pytest.mark.parametrize("within", ["soon", "-1s", -1, float("nan"), float("inf"), [1]])
def test_an_age_that_is_none(within: object) -> None:
    with pytest.raises(BadArgument, match="within"):
        how_old(fresh=False, within=within)  # type: ignore[arg-type]
    with pytest.raises(TimelyError, match="within"):
        how_old(fresh=True, within="1s")


def test_a_journal_knows_what_was_sent_some_time_ago(
    tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    from timely_spark.runtime.storage import entries

    now = [100.0]
    monkeypatch.setattr(entries.time, "monotonic", lambda: now[0])
    handle = InputHandle("x", "n long")
    handle.send([0])
    journal = handle.journal(RoundLog(str(tmp_path)))
    journal.write()
    handle.bind(journal)
    for now[0] in (110.0, 110.001, 120.0):
        handle.send([1])
    now[0] = 121.0
    assert [journal.as_of(seconds).sent for seconds in (0, 1, 5, 10.9995, 11, 21, 22)] == [
        4,
        4,
        3,
        3,
        3,
        1,
        0,
    ]


@pytest.mark.slow
def test_a_position_that_is_asked_for_while_another_thread_sends_has_all_that_was_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sends within a moment count as one: at no time is the one before missing."""
    journal = InputHandle("x", "n long").journal(RoundLog(str(tmp_path)))
    write = journal.log.files.write_table
    monkeypatch.setattr(journal.log.files, "write_table", lambda name, table, **_: write(name, table))
    entry, sends = Entry("send", None, pa.table({"n": [0]})), 500
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    thread = threading.Thread(target=lambda: [journal.append(entry) for _ in range(sends)])
    try:
        thread.start()
        last = 0
        while last < sends:
            assert thread.is_alive() or journal.position.sent == sends
            before = journal.position.sent  # of an entry that is sent
            last = journal.as_of(0.0).sent
            assert last >= before - 1, "the position moves, and then its record"
            journal.as_of(3600.0)
    finally:
        thread.join()
        sys.setswitchinterval(interval)
