"""What a wait waits for: everything that the inputs of the output had when it was called."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pytest

import timely_spark as ts
from tests.support.stepper import Begin, Stepper
from timely_spark.errors import BadArgument, NotComplete, SchemaError, UnknownName, Where
from timely_spark.runtime.errors import BadFile
from timely_spark.runtime.handle.idle import Idle
from timely_spark.runtime.handle.query import Query
from timely_spark.runtime.sources.arrivals import File
from timely_spark.runtime.sources.delta_log import DeltaSource
from timely_spark.runtime.sources.folder import FileSource
from timely_spark.runtime.sources.journal import FileJournal
from timely_spark.runtime.sources.present import present
from timely_spark.runtime.sources.skipped import Skipped
from timely_spark.runtime.storage.files import Files
from timely_spark.runtime.storage.stores import Local

RUNNING = SimpleNamespace(isActive=True, exception=lambda: None)


def query_of(process: Stepper, sources: dict[str, Any] | None = None) -> Query:
    pairs: Any = [(handle, handle._target) for handle in process.handles.values()]
    return Query(RUNNING, process.context, inputs=pairs, sources=sources)  # type: ignore[arg-type]


def manual() -> ts.Dataflow:
    """Each of two inputs leads to an output of its own, and both lead to a third."""
    flow = ts.Dataflow("two")
    edges = [flow.input(name, "n long, diff long", epochs="manual") for name in ("a", "b")]
    one, other = (each.collection(diff="diff") for each in edges)
    one.capture("of_a")
    other.capture("of_b")
    one.concat(other).capture("both")
    return flow


def test_a_fresh_answer_waits_for_the_inputs_that_lead_to_its_output(begin: Begin) -> None:
    process = begin(manual())
    a, b = process.handles["a"], process.handles["b"]
    b.advance_to(1)
    a.send([(1, 1)])
    a.advance_to(1)
    a.send([(2, 1)])
    a.advance_to(2)
    query = query_of(process)
    with pytest.raises(NotComplete, match="complete for no epoch"):
        query.ask("of_a", fresh=True, timeout=0)
    with pytest.raises(NotComplete, match="sent to epoch 1, and input 'b' has not closed epoch 1"):
        query.ask(["both", "of_a"], fresh=True)
    process.batches()
    answer = query.ask("of_a", fresh=True, timeout=0)
    assert (answer.epoch, answer.rows()) == (1, [(1,), (2,)])
    assert query.wait_for("of_b", timeout=0)
    b.advance_to(2)
    with pytest.raises(NotComplete, match="complete until epoch 0"):
        query.ask("both", fresh=True, timeout=0)
    process.batches()
    assert query.ask("both", fresh=True, timeout=0).rows() == [(1,), (2,)]


def test_a_record_of_an_open_epoch_is_no_missing_record(begin: Begin) -> None:
    process = begin(manual())
    a = process.handles["a"]
    a.advance_to(3)
    a.send([(1, 1)])
    process.batches()
    query = query_of(process)
    with pytest.raises(NotComplete, match="'a' has not closed epoch 3") as error:
        query.ask("of_a", [1], keys="n", fresh=True)
    assert "advance_to(4) on 'a'" in str(error.value)
    assert query.ask("of_a", [1], keys="n").epoch == 2, "a stale answer says of which epoch it is"
    assert query.wait_for("of_a", timeout=0), "the epochs that are closed"
    a.send([(2, 1)], epoch=7)
    a.close()
    assert not query.wait_for("of_a", timeout=0), "a close ends the epochs of all that was sent"
    process.batches()
    assert query.ask("of_a", fresh=True, timeout=0).rows() == [(1,), (2,)]
    assert query.ask("of_a").epoch == 7


def test_questions_without_rows_and_reasons_at_an_epoch_that_is_not_complete(begin: Begin) -> None:
    """Nothing has run, an epoch is open, or a later one was asked for: it is told."""
    flow = ts.Dataflow("asked")
    edges = flow.input("edges", "src long, dst long, diff long", epochs="manual")
    edges.capture("log")
    edges.collection(diff="diff").capture("out")
    process = begin(flow)
    query = query_of(process)
    for _ in range(2):
        assert query.ask("out", [], keys="src").rows() == query.ask("out", {"src": []}).rows() == []
        process.feed("edges", [(1, 2, 1)])
    with pytest.raises(NotComplete, match=r"explain_row.'out', at=None.: this is complete for no epoch"):
        query.explain_row("out", {"src": 1})
    process.handles["edges"].advance_to(1)
    process.feed("edges", [(1, 2, -2)])
    why = query.explain_row("out", {"src": 1})
    assert (why.present, why.at) == (True, 0)
    with pytest.raises(NotComplete, match=r"at=1.: this is complete until epoch 0"):
        query.explain_row("out", {"src": 1}, at=1)
    with pytest.raises(SchemaError, match=r"not \[\(1,\)\]"):
        query.explain_row("out", (1,))


def test_a_question_that_is_refused_keeps_no_other_thread_waiting(begin: Begin) -> None:
    process = begin(manual())
    for epoch in range(3):
        process.handles["a"].send([(epoch, 1)])
        process.handles["a"].advance_to(epoch + 1)
        process.batches()
    query = query_of(process)
    with pytest.raises(SchemaError, match="ask") as refused:  # a notebook keeps it
        query.ask("of_a", {"n": ["text"]}, at=1)
    other = threading.Thread(target=query._watch.newest, daemon=True)
    other.start()
    other.join(5)
    assert not other.is_alive(), refused


def test_a_restarted_handle_knows_that_an_open_epoch_has_records(begin: Begin) -> None:
    process = begin(manual())
    process.handles["a"].send([(1, 1)], epoch=4)
    process.handles["a"].advance_to(2)
    process.batches()
    query = query_of(begin(manual()))
    with pytest.raises(NotComplete, match="sent to epoch 4, and input 'a' has not closed epoch 2"):
        query.ask("of_a", fresh=True)


@pytest.mark.slow
def test_an_answer_at_an_epoch_is_that_of_the_collection_then(begin: Begin) -> None:
    process = begin(manual())
    a = process.handles["a"]
    query = query_of(process)
    for epoch in range(5):
        a.send([(epoch, 1), (max(epoch - 2, 0), -1)])
        a.advance_to(epoch + 1)
        process.batches()
        assert query.ask("of_a", at=epoch).rows() == query.ask("of_a").rows()
    for epoch in (3, 0, 4, 2):
        expected = ts.snapshot(query.captured("of_a"), at=epoch)
        answer = query.ask("of_a", at=epoch)
        assert (answer.epoch, answer.rows()) == (epoch, sorted((n,) for n in expected["n"].to_pylist()))
        assert query.ask("of_a", [4], keys="n", at=epoch).rows() == [(4,)]
    assert query.ask("of_a", {"n": [4]}).epoch == 4, "the index of the newest is as it was"
    for verb in (lambda: query.ask("of_a", at=99), lambda: ts.snapshot(query.captured("of_a"), at=99)):
        with pytest.raises(NotComplete, match=r"at=99\): this is complete until epoch 4"):
            verb()
    with pytest.raises(BadArgument, match="at=3"):
        query.ask("of_a", at=3, fresh=True)


def test_a_question_reads_files_only_after_a_batch_and_lists_no_folder(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = begin(manual())
    a, query = process.handles["a"], query_of(process)
    for epoch in range(3):
        a.send([(epoch, 1)])
        a.advance_to(epoch + 1)
        process.batches()
        query.ask("of_a", [epoch], keys="n")
    used: list[tuple[str, str]] = []
    for name in ("read", "mapped", "size", "names"):
        real = getattr(Local, name)
        monkeypatch.setattr(
            Local, name, lambda store, path, n=name, real=real: used.append((n, path)) or real(store, path)
        )
    assert query.ask("of_a", [2, 3], keys="n").rows() == [(2,), (3,)]
    assert not used
    a.send([(3, 1)])
    a.advance_to(4)
    process.batches()
    used.clear()
    assert query.ask("of_a", [3], keys="n").epoch == 3
    assert sorted(Path(path).parent.parent.name for _, path in used) == ["captured", "rounds"]
    assert not [path for name, path in used if name == "names"]


def test_what_is_waited_for_is_fixed_at_the_call_although_the_flow_goes_on(begin: Begin) -> None:
    flow = ts.Dataflow("on")
    flow.input("x", "n long").capture("out")
    process = begin(flow)
    query, x = query_of(process), process.handles["x"]
    until = query._sent.epoch(["out"])
    x.send([1])
    later = query._sent.epoch(["out"])
    assert (until(), later()) == (-1, None)
    process.batches()
    assert later() == 0
    x.send([2])
    process.poll()
    assert (until(), later()) == (-1, 0), "the next batch has begun, and was not asked for"
    process.finish(process.run())
    assert later() == 0


def test_a_dataframe_is_read_by_a_batch_that_began_later_or_if_spark_finds_nothing(begin: Begin) -> None:
    flow = ts.Dataflow("frames")
    flow.source("frame", "n long").capture("out")
    process = begin(flow)
    query = query_of(process, {"frame": object()})
    found = [False]
    query._sent.idle.since_now = lambda: lambda: found[0]  # type: ignore[method-assign, union-attr]
    until = query._sent.epoch(["out"])

    def at(batch: int) -> int | None:
        newest = SimpleNamespace(batch=batch, micro_batch=batch, entries={}, sources={})
        query._watch.newest = lambda: newest  # type: ignore[method-assign, assignment, return-value]
        return until()

    assert at(-1) is None, "batch 0 may have been planned before"
    assert at(0) is None
    assert at(1) == 1
    process.world.add("commits/6", "v1\n{}")  # of micro-batches in which nothing has happened
    until = query._sent.epoch(["out"])
    assert at(7) is None, "micro-batch 7 may have been planned before"
    assert at(8) == 8
    until, found[0] = query._sent.epoch(["out"]), True
    assert at(0) == 0


class Spark:
    """A query that finds nothing new as often as it is let."""

    def __init__(self) -> None:
        self.isActive, self.may, self.waits = True, threading.Semaphore(0), threading.Semaphore(0)

    def processAllAvailable(self) -> None:  # noqa: N802
        self.waits.release()
        assert self.may.acquire(timeout=60)

    def exception(self) -> None:
        return None


def eventually(true: Callable[[], bool]) -> bool:
    waiting = threading.Event()
    return any(true() or waiting.wait(0.002) for _ in range(5000))


def test_spark_has_looked_after_the_call_before_it_counts_as_idle() -> None:
    spark = Spark()
    idle = Idle(spark, ends=False, remote=False)  # type: ignore[arg-type]
    first = idle.since_now()
    assert not first()
    assert spark.waits.acquire(timeout=60)
    second = idle.since_now()  # while a look is on its way
    for looks in (1, 2):
        spark.may.release()
        assert spark.waits.acquire(timeout=60)
        assert (first(), second()) == (looks == 2, False)
    spark.may.release()
    assert eventually(second)
    spark.isActive = False
    spark.may.release(2)
    assert not idle.since_now()(), "it was stopped, perhaps with more to read"
    ended = Idle(spark, ends=True, remote=False)  # type: ignore[arg-type]
    assert ended.since_now()(), "it ended of itself, when it had read everything"


def test_the_files_that_are_there_are_awaited_one_by_one(tmp_path: Path) -> None:
    files, root = Files(str(tmp_path)), []
    folder: Any = SimpleNamespace(source="in", where=Where("job.py", 1), files=lambda: list(root))
    source, journal = FileSource(folder), FileJournal(files, "in")

    def arrive(name: str) -> File:
        root.append(File(len(root), f"/in/{name}", 1))
        return root[-1]

    nothing = present(source, "in", files)
    a, b = arrive("a"), arrive("b")
    both = present(source, "in", files)
    c = arrive("c")
    assert nothing({"files": -1})
    assert not both({"files": -1})
    journal.append([b])
    assert not both({"files": 0})
    journal.append([a])
    assert not both({"files": 0}), "it is planned, and its batch has not begun"
    assert both({"files": 1})
    assert both({"files": 2})
    three = present(source, "in", files)
    assert not three({"files": 1})
    root.remove(c)
    assert not three({"files": 1}), "until the folder is looked at again"
    journal.append([arrive("d")])
    assert three({"files": 2}), "a file that was removed is read by nobody"


def test_a_version_that_was_skipped_is_not_awaited(tmp_path: Path) -> None:
    log, bad = Mock(), BadFile("version 2 removes rows")
    log.newest.return_value = 2
    log.files.side_effect = lambda version: ["a"] if version < 2 else (_ for _ in ()).throw(bad)
    source: Any = Mock(DeltaSource, log=log, from_version=None)
    with pytest.raises(BadFile, match="removes rows"):
        present(source, "in", Files(str(tmp_path)))({"version": 1})
    Skipped(versions=(2,)).write(Files(str(tmp_path)), "in")
    assert present(source, "in", Files(str(tmp_path)))({"version": 1})
    assert not present(source, "in", Files(str(tmp_path)))({"version": 0})


def test_calls_with_other_arguments_name_those_that_there_are(begin: Begin) -> None:
    process = begin(manual())
    query: Any = query_of(process)
    for call, name in [
        (
            lambda: query.ask("of_a", freshly=True),
            "keys, fresh, within, at, timeout, diff)",
        ),
        (
            lambda: query.wait_for("of_a", seconds=3),
            "Hint: check the arguments: wait_for(target, epoch, timeout)",
        ),
        (lambda: query.why(1, 2), "why(epoch)"),
        (lambda: query.awaitTermination(seconds=1), "await_termination(timeout)"),
        (process.handles["a"].send, "send(records, epoch)"),
    ]:
        with pytest.raises(BadArgument) as error:
            call()
        assert str(error.value).endswith(name)
        assert "test_sent.py" in str(error.value)


def test_an_audit_tells_what_became_of_all_that_was_sent(begin: Begin) -> None:
    process = begin(manual())
    process.handles["a"].send([(1, 1), (2, 1)])
    process.handles["a"].advance_to(1)
    query = query_of(process)
    told = {"a": "0 entries, 0 records, 2 entries waiting", "b": "0 entries, 0 records"}
    assert {name: str(each) for name, each in query.audit().items()} == told
    process.batches()
    audit = query.audit()
    assert (audit["a"].entered, audit["a"].listed, audit["a"].rows, audit["a"].late) == (2, 2, 2, 0)
    assert str(audit["a"]) == "2 entries, 2 records"


@pytest.mark.slow
def test_threads_that_ask_see_one_epoch_each_and_none_goes_back(begin: Begin) -> None:
    process = begin(manual())
    a, query = process.handles["a"], query_of(process)
    wrong: list[object] = []
    done = threading.Event()

    def asks() -> None:
        last = -1
        while not done.is_set():
            epoch = query.ask("of_a").epoch
            now = -1 if epoch is None else epoch
            then = [] if epoch is None else query.ask("of_a", at=epoch // 2).rows()
            if now < last or then != [(n,) for n in range(now // 2 + 1)]:
                wrong.append((last, now, then))
            last = now

    askers = [threading.Thread(target=asks) for _ in range(3)]
    for asker in askers:
        asker.start()
    for epoch in range(12):
        a.send([(epoch, 1)])
        a.advance_to(epoch + 1)
        process.batches()
    done.set()
    for asker in askers:
        asker.join()
    assert not wrong
    empty: list[Any] = [[], 3]
    for nothing in empty:
        with pytest.raises((BadArgument, UnknownName)):
            query.ask(nothing, fresh=True)


def test_a_dataframe_of_spark_is_not_sent(begin: Begin) -> None:
    frame: Any = SimpleNamespace(sparkSession=None, toArrow=None)
    with pytest.raises(ts.TimelyError, match=r"a Spark DataFrame is not sent.*\n.*frame.toArrow\(\)"):
        begin(manual()).handles["a"].send(frame)


def test_what_has_no_records_yet_has_no_truth_value() -> None:
    edges = ts.Dataflow("truth").input("edges", "n long, diff long")
    for given, kind in ((edges, "stream"), (edges.collection(diff="diff"), "collection")):
        with pytest.raises(ts.TimelyError, match=rf"a {kind} has no truth value"):
            _ = "some" if given else "none"


def test_answers_keep_the_ids_of_records_beside_a_missing_one(begin: Begin) -> None:
    flow = ts.Dataflow("ids")
    flow.input("x", "k long, id long, ok boolean, diff long").collection(diff="diff").capture("out")
    process = begin(flow)
    big = 2**53 + 1
    process.feed("x", [(1, big, True, 1)])
    frame = query_of(process).ask("out", [1, 2], keys="k").to_pandas()
    assert json.loads(frame.to_json(orient="values")) == [[1, big, True], [2, None, None]]
    assert frame["id"].dtype == "Int64"
    assert pa.Table.from_pandas(frame)["id"].to_pylist() == [big, None]
    assert "<NA>" in str(frame)
