"""call: concurrency, order, retries, time limits, and recorded answers."""

from __future__ import annotations

import asyncio
import errno
import itertools
import sys
import threading
import time as clock
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import timely_spark as ts
from timely_spark.errors import BadArgument, GraphError, LogDamaged, StorageFailed, VertexError
from timely_spark.operators import call as module
from timely_spark.operators.call import Answers
from timely_spark.testing import Recorded, Simulation, run
from timely_spark.times import Time
from timely_spark.worker.wire import Header

REFUSED = "refused"
TRIED = {"call": lambda x, _: x.call(lambda batch: batch, "k long, v long", name="it")}


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_FIRST_PAUSE", 0.0)


def doubled(batch: pa.Table) -> pa.Table:
    return pa.table({"n": batch["n"], "twice": pc.multiply(batch["n"], 2)})


def flow(function: Callable[..., Any], **options: Any) -> ts.Dataflow:
    made = ts.Dataflow("asks")
    made.input("x", "n long").call(function, "n long, twice long", name="ask", **options).capture("out")
    return made


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("rows", [1, 3, 100])
def test_each_record_is_asked_about_once_and_answered_at_its_time(workers: int, rows: int) -> None:
    asked: Counter[int] = Counter()

    def ask(batch: pa.Table) -> pa.Table:
        assert 0 < batch.num_rows <= rows
        asked.update(batch["n"].to_pylist())
        return doubled(batch)

    epochs = [list(range(10)), [], [10, 11]]
    outputs = run(flow(ask, rows=rows), {"x": epochs}, workers=workers)["out"].rows()

    assert outputs == {i: [(n, 2 * n) for n in epoch] for i, epoch in enumerate(epochs)}
    assert asked == Counter(range(12))


@pytest.mark.parametrize("kind", ["async", "threads"])
def test_calls_are_open_at_a_time_up_to_the_bound(kind: str) -> None:
    lock, together = threading.Lock(), threading.Barrier(4)
    now = most = 0

    def enter(change: int) -> None:
        nonlocal now, most
        with lock:
            now += change
            most = max(most, now)

    async def wait(batch: pa.Table) -> pa.Table:
        enter(+1)
        while most < 4:  # noqa: ASYNC110 - until four are open
            await asyncio.sleep(0.001)
        enter(-1)
        return doubled(batch)

    def block(batch: pa.Table) -> pa.Table:
        enter(+1)
        together.wait(timeout=20)
        enter(-1)
        return doubled(batch)

    function = wait if kind == "async" else block
    outputs = run(flow(function, rows=1, concurrency=4), {"x": [list(range(8))]})["out"].rows()
    assert (outputs, most) == ({0: [(n, 2 * n) for n in range(8)]}, 4)


def test_when_a_round_ends_no_call_is_open_and_its_epoch_is_complete_when_it_is_answered() -> None:
    log: list[Any] = []

    async def ask(batch: pa.Table) -> pa.Table:
        log.append(("asked", batch["n"].to_pylist(), sim.captured["out"].rows()))
        await asyncio.sleep(0.002)
        log.append("answered")
        return doubled(batch)

    made = ts.Dataflow("asks")
    x = made.input("x", "n long", epochs="manual")
    x.call(ask, "n long, twice long").capture("out")
    sim = Simulation(made)
    sim.on_step = lambda *_: log.append("the round ends")
    for epoch in range(2):
        sim.send("x", [epoch], epoch=epoch)
    sim.advance_to("x", 2)
    sim.run()
    # the question of epoch 1 waits for the answer of epoch 0, and the round for both
    assert log == [("asked", [0], {}), "answered", ("asked", [1], {}), "answered", "the round ends"]
    assert sim.captured["out"].rows() == {0: [(0, 0)], 1: [(1, 2)]}


def test_a_call_is_repeated_and_then_fails_with_the_step_and_the_line() -> None:
    tries = itertools.count(1)

    def flaky(batch: pa.Table) -> pa.Table:
        if next(tries) % 3:
            raise ConnectionError(REFUSED)
        return doubled(batch)

    assert run(flow(flaky), {"x": [[1], [2]]})["out"].rows() == {0: [(1, 2)], 1: [(2, 4)]}
    assert next(tries) == 7
    tries = itertools.count(1)
    with pytest.raises(VertexError, match=r"(?s)step 'ask' .*test_call.py.*ConnectionError: refused"):
        run(flow(flaky, attempts=2), {"x": [[1]]})


def test_a_function_that_asks_an_iterator_at_its_end_fails_at_once() -> None:
    with pytest.raises(VertexError, match=r"step 'ask' .*<lambda> \(.*test_call.py:.*StopIteration\nHint: "):
        run(flow(lambda batch: next(iter([])), attempts=2), {"x": [[1]]})


async def cancelled(batch: pa.Table) -> pa.Table:
    raise asyncio.CancelledError


async def cancels_itself(batch: pa.Table) -> pa.Table:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(60)
    return batch


@pytest.mark.parametrize("function", [cancelled, cancels_itself])
def test_a_call_that_is_cancelled_from_inside_is_an_error_of_its_step(function: Any) -> None:
    """A client of the network may do so; a task that is cancelled has no error of its own."""
    place = rf".*in {function.__name__} \(.*test_call\.py:"
    if sys.version_info < (
        3,
        11,
    ):  # whose `wait_for` raises another error, without the function's frame
        place = ""
    told = rf"step 'ask' {place}.*CancelledError\nHint: "
    with pytest.raises(VertexError, match=told):
        run(flow(function, attempts=1), {"x": [[1]]})


def test_a_call_that_takes_too_long_is_asked_again() -> None:
    tries = itertools.count(1)

    async def slow(batch: pa.Table) -> pa.Table:
        if next(tries) < 2:
            await asyncio.sleep(60)
        return doubled(batch)

    began = clock.monotonic()
    assert run(flow(slow, timeout=0.05, attempts=20), {"x": [[1]]})["out"].rows() == {0: [(1, 2)]}
    released = threading.Event()

    def hangs(batch: pa.Table) -> pa.Table:
        released.wait(60)
        return doubled(batch)

    with pytest.raises(VertexError, match=r"2 calls had no answer within 0.05 s"):
        run(flow(hangs, timeout=0.05, attempts=2), {"x": [[1]]})
    released.set()
    assert clock.monotonic() - began < 30


def test_wrong_answers_name_the_step() -> None:
    with pytest.raises(VertexError, match=r"(?s)'ask'.*SchemaError"):
        run(flow(lambda batch: pa.table({"m": batch["n"]})), {"x": [[1]]})
    assert run(flow(lambda _: []), {"x": [[1, 2]]})["out"].rows() == {0: []}


def test_answers_that_were_recorded_are_not_asked_for_again(tmp_path: Path) -> None:
    asked: Counter[int] = Counter()
    broken = True

    def ask(batch: pa.Table) -> list[tuple[int, int]]:
        (n,) = batch["n"].to_pylist()
        asked[n] += 1
        if broken and n == 3:
            raise ConnectionError(REFUSED)
        return [(n, asked.total())]  # another answer to each call

    made = flow(ask, rows=1, attempts=1, record=str(tmp_path / "answers"))
    with pytest.raises(VertexError, match="refused"):
        run(made, {"x": [[1, 2, 3, 4]]})
    first = Counter(asked)
    assert first == Counter([1, 2, 3, 4])
    broken = False
    rows = run(made, {"x": [[1, 2, 3, 4]]})["out"].rows()[0]
    assert asked - first == Counter([3])
    assert dict(rows)[3] == 5
    assert all(value <= 4 for n, value in rows if n != 3)


def test_a_recorded_answer_that_is_damaged_is_no_error_of_the_step(tmp_path: Path) -> None:
    made = flow(lambda batch: [(n, n) for n in batch["n"].to_pylist()], record=str(tmp_path))
    run(made, {"x": [[1]]})
    (answer,) = tmp_path.rglob("*.arrow")
    answer.write_bytes(b"")  # as after a loss of power
    with pytest.raises(LogDamaged, match=rf"{answer} cannot be read: "):
        run(made, {"x": [[1]]})


def test_the_file_system_owns_the_error_of_an_answer_that_it_refuses(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    for record in (tmp_path / "file", tmp_path / "file" / "below"):
        made = flow(lambda batch: [(n, n) for n in batch["n"].to_pylist()], record=str(record))
        with pytest.raises(StorageFailed, match=rf"(?s)call: record: .*{record.name}.*\nHint: ") as error:
            run(made, {"x": [[1]]})
        assert isinstance(error.value.__cause__, OSError)


def test_the_file_system_owns_the_error_of_a_round_that_cannot_be_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    table = pa.table({"n": [1]})
    recorded = Recorded(
        batch=0, worker=0, header=Header(batch=0), state=None, rows=table, new_state=b"", out=table
    )
    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(StorageFailed, match=r"(?s)record='.*/r'.*\(ENOSPC\)\nHint: free space") as error:
        recorded.write(str(tmp_path / "r"))
    assert error.value.errno == errno.ENOSPC


@pytest.mark.slow
@pytest.mark.parametrize("epochs", ["clock", "manual"])
@pytest.mark.parametrize("seed", [1, 6, 8])
def test_a_repeated_batch_has_the_same_answers(tmp_path: Path, seed: int, epochs: Any) -> None:
    # the simulator repeats batches and workers' steps, and compares: answers that vary are a difference. In
    # a batch several epochs may be complete, and it may be rolled back when later ones have asked
    count = itertools.count()
    made = ts.Dataflow("varying")

    def step(n: ts.Stream) -> ts.Stream:
        ask = lambda batch: [(n, next(count)) for n in batch["n"].to_pylist()]  # noqa: E731 - short
        answers = n.call(ask, "n long, answer long", rows=2, record=str(tmp_path / "a"), name="ask")
        answers.leave().capture("out")
        return answers.where(pc.field("n") < 20).select(n=pc.add(pc.field("n"), 10)).exchange("n")

    made.input("x", "n long", epochs=epochs).loop(step, name="up")
    inputs: Any = {"x": [[1, 2, 15], [21, 3], [], [4, 5]]}
    result = run(made, inputs, workers=1 + seed % 3, seed=seed, together=seed % 2 == 1, crashes=0.4)
    rows = [row for rows in result["out"].rows().values() for row in rows]
    assert Counter(n for n, _ in rows) == Counter(
        [1, 11, 21, 2, 12, 22, 15, 25, 21, 3, 13, 23, 4, 14, 24, 5, 15, 25]
    )


@pytest.mark.slow
@pytest.mark.parametrize("keep", [3, 9])
def test_answers_are_kept_as_long_as_their_micro_batch_can_run_again(tmp_path: Path, keep: int) -> None:
    made = flow(lambda batch: [(n, n) for n in batch["n"].to_pylist()], record=str(tmp_path / "a"))
    simulation = Simulation(replace(made.compile(1), keep=keep))
    for n in range(15):
        simulation.send("x", [n])
        simulation.run()
    assert sorted(int(each.name) for each in (tmp_path / "a").iterdir()) == [*range(14 - keep, 15)]


def test_only_folders_of_earlier_micro_batches_are_deleted(tmp_path: Path) -> None:
    for folder in ("3", "4", "5", "3.bak", "notes"):
        (tmp_path / folder).mkdir()
    for file in ("2", "README"):
        (tmp_path / file).write_text("of a user")
    Answers(str(tmp_path), 9, Time(0)).sweep(5)
    assert {each.name for each in tmp_path.iterdir()} == {"5", "3.bak", "notes", "2", "README"}


def test_a_function_that_returns_a_coroutine_is_waited_for() -> None:
    async def ask(batch: pa.Table) -> list[tuple[int, int]]:
        return [(n, n + 1) for n in batch["n"].to_pylist()]

    asks = lambda batch: ask(batch)  # noqa: E731, PLW0108 - as users write it
    assert run(flow(asks), {"x": [[1]]})["out"].rows() == {0: [(1, 2)]}


def test_calls_in_a_loop_are_of_their_iteration() -> None:
    made = ts.Dataflow("loop")

    def step(n: ts.Stream) -> ts.Stream:
        less = lambda batch: pa.table({"n": pc.subtract(batch["n"], 1)})  # noqa: E731 - short
        return n.call(less, "n long", rows=2).where(pc.field("n") >= 0)

    made.input("x", "n long").loop(step, name="down").capture("out")
    assert run(made, {"x": [[3], [1]]}, workers=2)["out"].rows() == {0: [(0,), (1,), (2,)], 1: [(0,)]}


def test_wrong_arguments_are_refused() -> None:
    x = ts.Dataflow("wrong").input("x", "n long")
    for options in ({"rows": 0}, {"concurrency": 0}, {"attempts": 1.5}):
        with pytest.raises(BadArgument, match="an integer from 1 on"):
            x.call(doubled, "n long", **options)
    for timeout in (0, "1", -1, True, float("nan")):
        with pytest.raises(BadArgument, match=r"(?s)timeout=.*test_call.py.*Hint: give timeout=1"):
            x.call(doubled, "n long", timeout=timeout)
    for options in ({"record": 3}, {"record": ""}):
        with pytest.raises(GraphError, match=r"(?s)call: .*test_call.py.*Hint: give"):
            x.call(doubled, "n long", **options)
    x.call(doubled, "n long, twice long", record="answers", name="first")
    for record in ("answers", "./others/../answers"):
        with pytest.raises(GraphError, match=r"(?s)answers' is the folder of step 'first'.*Hint: give each"):
            x.call(doubled, "n long, twice long", record=record)
    for options in ({"record": "others"}, {}, {}):
        x.call(doubled, "n long, twice long", **options)
    with pytest.raises(GraphError, match="not a function"):
        x.call(None, "n long")
