"""Local rounds of a batch, on Spark: fewer micro-batches, the same answers, also over a restart."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import timely_spark as ts
from timely_spark.errors import LogDamaged, TimelyError, VertexError
from timely_spark.runtime.storage.blobs import EMBEDDED, Blobs, file_of, size_of
from timely_spark.runtime.storage.files import Files
from timely_spark.runtime.storage.states import State, StateRefs
from timely_spark.state.codec import as_text
from timely_spark.worker import wire
from timely_spark.worker.wire import Failure

Flow = Callable[..., ts.Dataflow]
NODES = 60_000


def send(flow: ts.Dataflow, start: int, length: int) -> None:
    flow.handle("edges").send([(start + i, start + i + 1) for i in range(length)])
    flow.handle("roots").send([start])


def nodes(query: Any) -> list[int]:
    return sorted(node for rows in query.captured("out").rows().values() for (node,) in rows)


def jobs(spark: SparkSession, query: Any) -> int:
    return len(spark.sparkContext.statusTracker().getJobIdsForGroup(query.run_id))


def test_a_loop_takes_its_rounds_in_few_batches(spark: SparkSession, checkpoint: str, paths: Flow) -> None:
    flow = paths()
    send(flow, 0, 60)
    query = flow.start(spark, checkpoint=checkpoint, workers=3, trigger="available_now")
    query.await_termination(60)

    assert query.exception() is None
    assert nodes(query) == list(range(61))
    simulated = ts.testing.Simulation(paths(), workers=3)
    simulated.send("edges", [(i, i + 1) for i in range(60)])
    simulated.send("roots", [0])
    simulated.run()
    assert query.rounds == simulated.rounds > 20
    assert query.last_progress.epoch == 0, "all of them in one micro-batch"
    assert jobs(spark, query) == 1, "the driver's process has run the further rounds"


@pytest.mark.campaign  # tests/state has the cases
def test_large_states_go_by_reference(spark: SparkSession, checkpoint: str, paths: Flow) -> None:
    flow = paths()
    flow.handle("edges").send([(i, i + 1) for i in range(NODES)])
    flow.handle("roots").send([NODES - 20])
    with flow.start(spark, checkpoint=checkpoint, workers=3, rounds_per_batch=4) as query:
        assert query.wait_for(timeout=60)
        assert nodes(query) == list(range(NODES - 20, NODES + 1))
        assert query.last_progress.epoch > 1, "several micro-batches, with further rounds in each"
        assert query.rounds > 1 + query.last_progress.epoch
        blobs = Path(checkpoint) / "timely" / "blobs"
        before = {file.name: file.stat().st_size for file in blobs.iterdir()}
        assert min(before.values()) > EMBEDDED
        assert sum(before.values()) > 16 * NODES, "source and destination of each edge"
        flow.handle("roots").send([NODES - 40])  # it wakes one worker only
        assert query.wait_for(timeout=60)
        assert nodes(query) == list(range(NODES - 40, NODES + 1))
        new = [file.stat().st_size for file in blobs.iterdir() if file.name not in before]
        assert sum(new) < 0.1 * sum(before.values()), "what has not changed is not written again"

    (blobs / "0-999-0-77-0badcafe").write_bytes(b"left by a batch that ran again differently")
    again = paths()
    again.handle("roots").send([NODES - 60])
    with again.start(spark, checkpoint=checkpoint, workers=3, rounds_per_batch=1) as query:
        assert query.wait_for(timeout=60)
        assert nodes(query) == list(range(NODES - 60, NODES + 1))
        assert not (blobs / "0-999-0-77-0badcafe").exists()


def test_a_further_round_that_fails_names_step_and_line(
    spark: SparkSession, checkpoint: str, paths: Flow
) -> None:
    def step(row: Any) -> tuple[int]:
        if row.node == 9:
            msg = "nine"
            raise ValueError(msg)
        return (row.node,)

    flow = paths(step)
    send(flow, 0, 20)
    query = flow.start(spark, checkpoint=checkpoint, workers=3, trigger="available_now")
    with pytest.raises(VertexError, match=r"step.*nine") as caught:
        query.await_termination(60)
    assert "test_local_rounds.py" in str(caught.value)


def test_a_batch_that_fails_in_a_further_round_runs_again_whole(
    spark: SparkSession, checkpoint: str, tmp_path: Path, paths: Flow
) -> None:
    mended = str(tmp_path / "mended")

    def step(row: Any) -> tuple[int]:
        if row.node == 9 and not Path(mended).exists():
            msg = "not yet"
            raise RuntimeError(msg)
        return (row.node,)

    flow = paths(step)
    send(flow, 0, 20)
    query = flow.start(spark, checkpoint=checkpoint, workers=3, rounds_per_batch=4, trigger="available_now")
    with pytest.raises(VertexError, match="not yet"):
        query.await_termination(60)
    rounds = query.rounds
    Path(mended).touch()
    query = paths(step).start(
        spark, checkpoint=checkpoint, workers=3, rounds_per_batch=100, trigger="available_now"
    )
    query.await_termination(60)

    assert nodes(query) == list(range(21))
    assert 0 < rounds < query.rounds
    assert query._context.log.read(query.last_progress.epoch).stats["rounds"] > 4
    before = query._context.log.read(rounds // 4)
    assert before.stats["rounds"] == 4, "the batch that ran again kept to what was said before it"


def test_no_round_at_all_is_refused(spark: SparkSession, checkpoint: str, paths: Flow) -> None:
    with pytest.raises(TimelyError, match="rounds_per_batch=0"):
        paths().start(spark, checkpoint=checkpoint, workers=2, rounds_per_batch=0)


# -- blobs and states, without Spark -------------------------------------------------------------------------


def test_small_blobs_lie_in_their_reference_and_large_ones_in_files(tmp_path: Path) -> None:
    blobs = Blobs(Files(str(tmp_path)))
    for size in (0, 1, EMBEDDED, EMBEDDED + 1, 1_000_000):
        data = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
        reference = blobs.put("0-7-0", data)
        assert blobs.get(reference).to_pybytes() == data
        assert size_of(reference) == size
        assert (file_of(reference) is None) == (size <= EMBEDDED)
        assert blobs.put("0-7-0", data) == reference, "another attempt writes the same file"
    assert len(list((tmp_path / "blobs").iterdir())) == 2


def test_a_blob_that_is_gone_is_named(tmp_path: Path) -> None:
    blobs = Blobs(Files(str(tmp_path)))
    reference = blobs.put("0-7-0", b"x" * 2 * EMBEDDED)
    blobs.files.remove(file_of(reference) or "")
    with pytest.raises(LogDamaged, match="0-7-0"):
        blobs.get(reference)


def test_of_mapped_states_what_is_searched_is_not_counted_as_read(tmp_path: Path) -> None:
    blobs = Blobs(Files(str(tmp_path)))
    reference, index, log = (
        blobs.put(name, b"x" * n * EMBEDDED) for name, n in (("a", 2), ("b", 5), ("c", 3))
    )
    state = State(reference, as_text([index, log]), indexed=5 * EMBEDDED)

    assert state.read(mapped=True) == 5 * EMBEDDED
    assert state.read(mapped=False) == 10 * EMBEDDED
    states = StateRefs()
    states.enter(wire.table([(0, replace(state, ms=1.0))]))
    assert states.by_worker == {0: state}


def test_the_manifest_has_the_reference_of_each_state_and_gives_it_to_those_who_run() -> None:
    states = StateRefs()
    other = Failure({})  # a row of any other kind

    def wrote(worker: int, reference: bytes) -> None:
        states.enter(wire.table([(0, other), (worker, State(reference, ms=2.5))]))

    wrote(0, b"blobfilefirst")
    wrote(1, b"embedded...")
    assert states.rows().column("worker").to_pylist() == [0, 1]
    second = State(b"blobfilesecond", as_text([b"blobfilepart"]), {"step": 7}, ms=1.5)
    states.enter(wire.table([(0, second)]))
    assert (states.took, states.sizes) == ({0: 4.0, 1: 2.5}, {"step": 7})
    assert states.garbage == ["first"]
    assert StateRefs.of(states.rows()).by_worker == states.by_worker
    wrote(0, b"blobfilesecond")
    assert states.garbage == ["first", "part"]
