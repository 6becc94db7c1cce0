"""State as a log of immutable batches: what is written is what has changed, and all of it comes back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import timely_spark as ts
from tests.support.memory import Memory
from timely_spark.errors import StateError
from timely_spark.state import Arrangement, codec
from timely_spark.state.codec import BLOB_BYTES, Codec
from timely_spark.testing import Simulation

KEYS = 200_000


def counts() -> ts.Dataflow:
    flow = ts.Dataflow("counts")
    flow.input("keys", "key long").group_by("key").count().capture("out")
    return flow


def send(simulation: Simulation, keys: Any) -> None:
    simulation.send("keys", pa.table({"key": pa.array(keys, pa.int64())}))
    simulation.run()


@pytest.mark.slow
def test_a_small_change_writes_a_small_part_of_a_large_state() -> None:
    blobs, random = Memory(), np.random.default_rng(0)
    simulation = Simulation(counts(), workers=2, blobs=blobs)
    send(simulation, np.arange(KEYS))
    whole = blobs.written + sum(len(state or b"") for state in simulation.states)
    assert whole > 8 * KEYS, "H of the key, at least"
    blobs.written, inline, epochs = 0, 0, 10
    for _ in range(epochs):
        send(simulation, random.integers(0, KEYS, KEYS // 400))
        inline += sum(len(state or b"") for state in simulation.states)
    # a change of 1/400 of the state; geometric merging writes each record a few times
    assert (blobs.written + inline) / epochs < 0.05 * whole
    total = sum(simulation.captured["out"].epochs[epochs].column(1).to_pylist())
    assert total >= KEYS // 400


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.campaign) for n in (1, 2, 3))])
def test_what_is_kept_apart_changes_no_answer(
    workers: int,
    seed: int,
    component_sizes: Callable[[], ts.Dataflow],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(codec, "BLOB_BYTES", 200)

    answers = []
    for blobs in (None, Memory()):
        random = np.random.default_rng(seed)
        simulation = Simulation(component_sizes(), workers=workers, seed=seed, blobs=blobs)
        for _ in range(5):
            pairs = random.integers(0, 60, (30, 2))
            simulation.send("edges", [tuple(map(int, pair)) for pair in pairs])
            simulation.run()
        answers.append(list(simulation.captured["sizes"].rows().values()))
        if blobs is not None:
            assert blobs.content, "something was kept apart"
    assert answers[0] == answers[1]


def test_a_batch_is_written_once_and_known_again() -> None:
    times = counts().compile(1).times
    blobs = Memory()
    state = Arrangement(["k"])
    state.insert(pa.table({"k": np.arange(50_000), "v": np.arange(50_000)}))
    writer = Codec(times, blobs)
    first = writer.write({"a": state})
    sizes = writer.blob_sizes
    assert len(sizes) == len(blobs.content) == 1
    state.insert(pa.table({"k": [7], "v": [-1]}))
    second = writer.write({"a": state})
    assert writer.blob_sizes == sizes
    assert len(blobs.content) == 1, "the large batch is there already"
    assert len(second) < 5_000

    again = Codec(times, blobs).read(second)["a"]
    at, rows = again.lookup(pa.table({"k": [7, 49_999]}), ["k"])
    assert at.tolist() == [0, 0, 1]
    assert sorted(rows["v"].to_pylist()) == [-1, 7, 49_999]
    reader = Codec(times, blobs)
    assert reader.write({"a": reader.read(first)["a"]}) == first
    assert len(blobs.content) == 1
    reader.inline = True
    alone = Codec(times).read(reader.write({"a": again}))["a"]
    assert len(alone) == 50_001
    with pytest.raises(StateError, match="blobs"):
        Codec(times).read(first)


def test_each_blob_of_a_state_has_a_name_of_its_own() -> None:
    blobs = Memory()
    writer = Codec(counts().compile(1).times, blobs)
    writer.name_blobs("0-7")
    for _ in range(2):
        writer.put(bytes(BLOB_BYTES))
    assert len(blobs.content) == 2, "content of one size and checksum may differ"


def test_whoever_shares_a_batch_keeps_it_by_himself() -> None:
    times = counts().compile(1).times
    shared = Arrangement(["k"])
    shared.insert(pa.table({"k": np.arange(50_000)}))
    one, two = Memory(), Memory()
    Codec(times, one).write(shared)
    writer = Codec(times, two)
    writer.write(shared)
    assert set(writer.blob_sizes) == set(two.content)


def test_a_batch_of_which_nothing_is_left_finds_nothing() -> None:
    state = Arrangement(["k"], [pa.table({"k": pa.array([], pa.int64())})])
    at, _ = state.lookup(pa.table({"k": [1]}), ["k"])
    assert not len(at)
