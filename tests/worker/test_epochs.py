"""Which epochs are released, what a column's epochs may be, how a source ends: against what was sent."""

from __future__ import annotations

import itertools
import json
import random
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import timely_spark as ts
from timely_spark.coordinator import Coordinator
from timely_spark.coordinator.coordinator import MAX_EMPTY, epochs_to_release
from timely_spark.errors import GraphError
from timely_spark.runtime.sources.arrivals import File, quarantined
from timely_spark.testing import Simulation
from timely_spark.worker import pack, pack_input, pack_quarantined, wire
from timely_spark.worker import pack as packing
from timely_spark.worker.epoch_columns import joined
from timely_spark.worker.wire import InputBatch

HUGE = 2**62


def manual() -> Simulation:
    flow = ts.Dataflow("manual")
    flow.input("x", "n long", epochs="manual").exchange("n").capture("out")
    return Simulation(flow, workers=2)


def column(jump: int = 1_000, workers: int = 2, **options: Any) -> Simulation:
    flow = ts.Dataflow("column")
    source = flow.source("s", "at long, n long", epoch="at", max_jump=jump)
    source.exchange("n").capture("out")
    source.late.capture("late")
    return Simulation(flow, workers=workers, **options)


def said(simulation: Simulation, name: str = "out") -> list[int]:
    return list(simulation.captured[name].epochs)


def rows(simulation: Simulation, name: str = "out") -> list[tuple[Any, ...]]:
    return [row for epoch in simulation.captured[name].rows().values() for row in epoch]


def test_spans_of_tasks_are_joined_in_whatever_order_they_come() -> None:
    for spans in itertools.permutations([[1, 9, 2], [2, 3, 1], [10, 11, 4], [30, 31, 1]]):
        assert joined(spans, jump=1) == [[1, 11, 7], [30, 31, 1]]


# -- every epoch that is passed is released --------------------------------------------------------------


def test_each_epoch_that_an_input_advances_past_is_released_once_in_order() -> None:
    simulation = manual()
    simulation.send("x", [7])
    for epoch, released in ((4, 4), (6, 6), (9, 9)):
        simulation.advance_to("x", epoch)
        simulation.run()
        assert said(simulation) == list(range(released))
    simulation.close("x")
    simulation.run()

    assert said(simulation) == list(range(10)), "the epoch at which an input is closed is over, too"
    assert rows(simulation) == [(7,)]


def test_a_jump_costs_one_round_and_a_bounded_number_of_releases() -> None:
    simulation = manual()
    simulation.send("x", [1], epoch=3)
    simulation.send("x", [2], epoch=10**9)
    simulation.run()
    before = simulation.rounds
    simulation.advance_to("x", 2 * 10**9)
    simulation.run()

    assert simulation.rounds - before == 1
    assert said(simulation) == [0, 1, 2, 3, 10**9 - 1, 10**9, 2 * 10**9 - 1]
    assert rows(simulation) == [(1,), (2,)]
    assert len(json.dumps(simulation.coordinator.encode())) < 1_000
    simulation.advance_to("x", 2 * 10**9 + MAX_EMPTY)
    simulation.run()
    assert said(simulation)[-MAX_EMPTY:] == list(range(2 * 10**9, 2 * 10**9 + MAX_EMPTY)), (
        "up to so many one by one"
    )
    simulation.advance_to("x", HUGE - 1)
    simulation.run()
    assert said(simulation)[-1] == HUGE - 2


def test_an_epoch_waits_for_the_slowest_input_and_is_released_by_it() -> None:
    flow = ts.Dataflow("two")
    a, b = (flow.input(name, "n long", epochs="manual") for name in "ab")
    a.concat(b).capture("out")
    simulation = Simulation(flow, workers=2)
    simulation.advance_to("a", 5)
    simulation.run()
    assert said(simulation) == []
    simulation.advance_to("b", 2)
    simulation.run()
    assert said(simulation) == [0, 1]
    simulation.close("b")
    simulation.run()
    assert said(simulation) == [0, 1, 2, 3, 4]


@pytest.mark.slow
@pytest.mark.parametrize(
    "seed", [*range(10), *(pytest.param(n, marks=pytest.mark.campaign) for n in range(10, 40))]
)
def test_each_epoch_is_released_once_in_order_with_all_its_records(seed: int) -> None:
    """Random programs of send, advance and close, on random schedules, with crashes."""
    draw = random.Random(seed)
    flow = ts.Dataflow("law")
    names = ["a", "b"][: draw.randint(1, 2)]
    streams = [flow.input(name, "n long", epochs="manual").exchange("n") for name in names]
    both = streams[0].concat(*streams[1:])
    both.capture("direct")
    both.delay(3).group_by("n").count().capture("later")
    simulation = Simulation(flow, workers=draw.randint(1, 3), seed=seed, crashes=draw.choice([0, 0.3]))
    stands, sent = dict.fromkeys(names, 0), defaultdict(list)
    for n in range(25):
        name = draw.choice(names)
        if draw.random() < 0.6:
            epoch = stands[name] + draw.choice([0, 0, 1, 5, 300])
            simulation.send(name, [n], epoch=epoch)
            sent[epoch].append((n,))
        else:
            stands[name] += draw.choice([0, 1, 2, 90, 1_000])
            simulation.advance_to(name, stands[name])
        for _ in range(draw.randint(0, 3)):
            simulation.step()
        complete = min(stands.values())
        if draw.random() < 0.2:
            simulation.run()
            assert all(epoch < complete for epoch in said(simulation, "direct"))
            assert complete == 0 or said(simulation, "direct")[-1] == complete - 1, "none is kept back"
    for name in names:
        simulation.close(name)
    simulation.run()

    last = max([*stands.values(), *sent])
    for output, shift, most in (("direct", 0, last), ("later", 3, max([last, *(at + 3 for at in sent)]))):
        released = said(simulation, output)
        assert released == sorted(set(released))
        full = {at for at, of in simulation.captured[output].rows().items() if of}
        assert full == {at + shift for at in sent}
        skipped = [b - a for a, b in zip([-1, *released], released, strict=False) if b - a > 1]
        assert all(gap > MAX_EMPTY for gap in skipped), "only long runs of empty epochs are passed over"
        assert released[-1] == most
    direct = {at: of for at, of in simulation.captured["direct"].rows().items() if of}
    assert direct == {at: sorted(of) for at, of in sent.items()}


def test_of_a_long_run_of_empty_epochs_the_last_is_released() -> None:
    assert list(epochs_to_release([], after=-1, until=0)) == []
    assert list(epochs_to_release([], after=-1, until=MAX_EMPTY)) == list(range(MAX_EMPTY))
    assert list(epochs_to_release([], after=-1, until=MAX_EMPTY + 1)) == [MAX_EMPTY]
    assert list(epochs_to_release([5, 2, 9], after=2, until=7)) == [2, 3, 4, 5, 6], (
        "what was brought is never left out"
    )


def test_an_output_complete_in_an_early_round_of_a_batch_and_one_in_a_late_round_are_both_released() -> None:
    def build() -> ts.Dataflow:
        flow = ts.Dataflow("rounds")
        x = flow.input("x", "n long")
        x.capture("early")
        x.loop(lambda v: v.where(lambda row: row.n > 0).map(lambda row: row.n - 1, "n long").exchange("n"),
               name="down").capture("late")  # fmt: skip
        return flow

    found = []
    for rounds_per_batch in (1, 100):
        simulation = Simulation(build(), workers=3, rounds_per_batch=rounds_per_batch)
        simulation.send("x", [9])
        simulation.run()
        batches = {name: [b for b, result in simulation.log for sink, _ in result.released if sink == name]
                   for name in ("early", "late")}  # fmt: skip
        found.append({name: captured.rows()[0] for name, captured in simulation.captured.items()})
        assert simulation.rounds > 3
        if rounds_per_batch == 1:
            assert batches["early"][0] < batches["late"][0]
        else:
            assert batches == {"early": [0], "late": [0]}
            ((_, result),) = simulation.log
            assert result.released == [("early", 0), ("late", 0)]

    assert found[0] == found[1] == {"early": [(9,)], "late": [(n,) for n in range(9)]}


# -- epochs of a column ----------------------------------------------------------------------------------


def test_one_row_that_jumps_too_far_does_not_stall_the_flow() -> None:
    simulation = column()
    simulation.send("s", [(1_700_000_000, 1), (1_700_000_000, 2), (HUGE - 1, 3)])
    simulation.run()
    assert simulation.result.late == {"s": 1}
    for step in range(1, 4):
        simulation.send("s", [(1_700_000_000 + step * 1_000, step)])
        simulation.run()

    assert simulation.result.late == {"s": 1}
    assert rows(simulation) == [(1_700_000_000, 1), (1_700_000_000, 2),
                                (1_700_001_000, 1), (1_700_002_000, 2)]  # fmt: skip
    assert rows(simulation, "late") == [(HUGE - 1, 3)]
    assert said(simulation)[0] == 1_700_000_000, "none before the first that was seen"


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_epochs_in_time_do_not_depend_on_the_order_of_rows(workers: int) -> None:
    """Tasks with different maxima: epochs far apart may be in time, if others lie between them."""
    ladder = [(at, at) for at in range(500, 20_000, 900)]
    far = [(40_000, -1), (90_000, -2)]
    verdicts = set()
    for seed in range(12):
        draw = random.Random(seed)
        simulation = column(workers=workers, seed=seed, crashes=0.2 * (seed % 2))
        simulation.send("s", [(0, 0)])
        simulation.run()
        batch = [*ladder, *far]
        draw.shuffle(batch)
        for start in range(0, len(batch), 5):
            simulation.send("s", batch[start : start + 5])
        while simulation._input:
            simulation.step()
        simulation.run()
        simulation.close("s")
        simulation.run()
        verdicts.add((tuple(rows(simulation)), tuple(rows(simulation, "late")), simulation.result.late["s"]))

    assert verdicts == {(((0, 0), *ladder), tuple(far), 2)}


def test_rows_without_an_epoch_are_late_and_refused_rows_are_counted() -> None:
    simulation = column()
    simulation.send("s", [(None, 1), (-5, 2), (HUGE, 3), (2**63 - 1, 4)])
    simulation.run()
    assert (said(simulation), simulation.result.late) == ([], {"s": 4})
    assert simulation.log[0][1].refused["s"].without == 4
    simulation.send("s", [(10**12, 5), (10**12 + 1, 6), (7, 8), (None, 9)])
    simulation.run()

    assert simulation.result.late == {"s": 5}, "the first epoch may be any, and lesser ones of its batch, too"
    refused = [result.refused for _, result in simulation.log if result.refused]
    assert len(refused) == 1, "told once, until it is ten times as much"
    simulation.send("s", [(10**12 + 5_000, n) for n in range(6)])
    simulation.run()
    refusal = simulation.log[-1][1].refused["s"]
    assert (refusal.far, refusal.least, refusal.above) == (6, 10**12 + 5_000, 10**12 + 1)
    source = simulation.plan.source("s").stage
    text = refusal.text("s", source.where, source.max_jump)
    assert "6 rows with epochs from 1000000005000 on" in text
    assert "test_epochs.py:" in text
    assert text.endswith("raise max_jump in flow.source(...).")


def test_unsigned_and_narrow_epoch_columns() -> None:
    flow = ts.Dataflow("unsigned")
    at = pa.schema([("at", pa.uint64()), ("n", pa.int64())])
    flow.source("s", at, epoch="at").capture("out")
    simulation = Simulation(flow)
    simulation.send("s", pa.table({"at": pa.array([3, 2**64 - 1, None, 4], pa.uint64()), "n": [1, 2, 3, 4]}))
    simulation.run()

    assert rows(simulation) == [(3, 1)]
    assert simulation.result.late == {"s": 2}


@pytest.mark.parametrize("wrong", [0, -1, 1.5, True, "9", None, 2**62])
def test_a_jump_is_a_number_of_epochs(wrong: Any) -> None:
    with pytest.raises(GraphError, match=r"(?s)source 's': max_jump=.*test_epochs.py:\d+.*Hint: "):
        ts.Dataflow("x").source("s", "at long", epoch="at", max_jump=wrong)


def test_the_jump_may_change_with_a_restart() -> None:
    assert column(5).plan.fingerprint == column(6).plan.fingerprint


@pytest.mark.slow
def test_many_epochs_of_a_batch_are_packed_by_one_sort(monkeypatch: pytest.MonkeyPatch) -> None:
    """By counts: no row is looked at once per epoch, and there are batches for workers, not for epochs."""
    epochs = 4_000
    at = np.random.default_rng(1).permutation(np.repeat(np.arange(epochs), 2))
    table = pa.table({"at": at, "n": np.arange(2 * epochs)})
    seen = [0, 0]
    partition = packing.__globals__["partitioned"]

    def counted(part: pa.Table, *how: Any) -> Any:
        seen[0] += 1
        seen[1] += part.num_rows
        return partition(part, *how)

    monkeypatch.setitem(packing.__globals__, "partitioned", counted)
    simulation = column(workers=2)
    packed = pack(simulation.plan, "s", table, shard=0)
    batches = [batch for _, batch in wire.read(packed, InputBatch)]

    assert seen[0] <= 2
    assert seen[1] <= 2 * table.num_rows
    assert packed.num_rows <= 8
    (out,) = [i for i in simulation.plan.source("s").entries if i not in simulation.plan.source("s").late]
    counts = [pair for batch in batches if batch.channel == out for pair in batch.epochs or ()]
    assert sum(n for _, n in counts) == table.num_rows
    simulation.send("s", table)
    simulation.run()
    assert simulation.result.stats["steps"] <= 2 * epochs + 2
    assert said(simulation) == list(range(epochs - 1))


def test_stages_before_the_first_exchange_get_one_epoch_at_a_time() -> None:
    flow = ts.Dataflow("stages")
    source = flow.source("s", "at long, n long", epoch="at")
    made = source.map_batches(lambda t: pa.table({"sum": [sum(t["n"].to_pylist())]}), "sum long")
    made.exchange("sum").capture("out")
    simulation = Simulation(flow, workers=2)
    simulation.send("s", [(2, 10), (1, 1), (2, 20), (1, 2), (3, 5)])
    simulation.close("s")
    simulation.run()

    assert simulation.captured["out"].rows() == {1: [(3,)], 2: [(30,)], 3: [(5,)]}


# -- the end of a source ---------------------------------------------------------------------------------


def test_closing_a_source_completes_its_last_epoch_and_later_rows_are_late() -> None:
    simulation = column()
    simulation.send("s", [(3, 1), (4, 2)])
    simulation.run()
    assert said(simulation) == [3]
    simulation.close("s")
    simulation.run()
    assert said(simulation) == [3, 4]
    assert simulation.result.complete
    assert simulation.result.frontier["out"] == []
    for n in (5, 6):
        simulation.send("s", [(n, n), (None, n)])
        snapshot = json.loads(json.dumps(simulation.coordinator.encode()))
        simulation.coordinator = Coordinator.decode(simulation.plan, snapshot)
        simulation.run()

    assert said(simulation) == [3, 4]
    assert simulation.result.late == {"s": 4}
    assert {at: len(of) for at, of in simulation.captured["late"].rows().items() if of} == {5: 2, 6: 2}


@pytest.mark.slow
def test_rows_in_the_batch_of_a_close_are_in_time_and_notifications_follow_late_rows() -> None:
    flow = ts.Dataflow("behind")
    source = flow.source("s", "at long, n long", epoch="at")
    source.group_by("n").count().capture("out")
    source.late.group_by("n").count().capture("late")
    for seed in range(10):
        simulation = Simulation(flow, workers=3, seed=seed, crashes=0.2)
        simulation.send("s", [(1, n) for n in range(4)])
        simulation.close("s")
        simulation.run()
        assert simulation.captured["out"].rows() == {1: [(n, 1) for n in range(4)]}
        for _ in range(2):
            simulation.send("s", [(1, n) for n in range(4)])
            simulation.run()
        counted = [of for of in simulation.captured["late"].rows().values() if of]
        assert counted == [[(n, 1) for n in range(4)], [(n, 2) for n in range(4)]]


class Punctual(ts.Vertex):
    """Asks for the next epoch, and receives nothing that it was told is over."""

    def __init__(self) -> None:
        self.over = -1

    def on_recv(self, edge: int, time: Any, batch: pa.Table) -> None:
        assert time.epoch > self.over, f"{time} after the notification of {self.over}"
        self.notify_at(ts.Time(time.epoch + 1))
        self.send_by(0, time, batch)

    def on_notify(self, time: Any) -> None:
        self.over = time.epoch


@pytest.mark.parametrize("workers", [1, 3])
def test_late_rows_of_a_closed_source_are_never_complete(workers: int) -> None:
    flow = ts.Dataflow("punctual")
    source = flow.source("s", "at long, n long", epoch="at")
    late = flow.vertex(Punctual(), source.late, "at long, n long", by="n", name="punctual")
    late.capture("late")
    simulation = Simulation(flow, workers=workers)
    simulation.send("s", [(1, 1), (None, 2)])
    simulation.close("s")
    for n in range(4):
        simulation.run()
        simulation.send("s", [(5, n), (5, n + 1)])
    simulation.run()

    assert simulation.result.late == {"s": 9}
    assert len(rows(simulation, "late")) == 9


def test_testing_run_closes_sources_with_an_epoch_column() -> None:
    flow = ts.Dataflow("run")
    flow.source("s", "at long, n long", epoch="at").capture("out")
    assert ts.testing.run(flow, {"s": [[(1, 1)], [(2, 2), (4, 4)]]}, workers=2)["out"].rows() == {
        1: [(1, 1)], 2: [(2, 2)], 3: [], 4: [(4, 4)]
    }  # fmt: skip


def test_when_sources_are_exhausted_all_begun_epochs_complete() -> None:
    flow = ts.Dataflow("ended")
    a, b = (flow.source(name, "at long, n long", epoch="at") for name in "ab")
    a.concat(b).capture("out")
    simulation = Simulation(flow, workers=2)
    simulation.send("a", [(3, 1), (5, 2)])
    simulation.run()
    assert said(simulation) == []
    result = simulation.coordinator.apply_round(
        simulation.batch, simulation.waiting[0].slice(0, 0), ended=True
    )

    assert result.released == [("out", 3), ("out", 4), ("out", 5)]
    assert simulation.coordinator.inputs == {"a": 6, "b": 6}
    simulation.result, simulation.waiting, simulation.batch = result, [result.rows], simulation.batch + 1
    simulation.send("a", [(5, 3), (7, 4)])
    simulation.send("b", [(6, 5), (8, 6)])
    simulation.run()
    assert simulation.result.late == {"a": 1}
    simulation.close("a")
    simulation.close("b")
    simulation.run()
    assert rows(simulation)[-3:] == [(6, 5), (7, 4), (8, 6)]


# -- quarantined files ---------------------------------------------------------------------------------------


def quarantining(folder: str, **more: Any) -> Simulation:
    flow = ts.Dataflow("bad")
    source = flow.files("in", folder, schema="at long", on_bad_file="quarantine", **more)
    source.exchange("at").capture("out")
    source.quarantined.select("path", "reason").exchange("path").capture("bad")
    return Simulation(flow, workers=2, seed=7)


def quarantine(simulation: Simulation, *paths: str) -> None:
    """A batch in which Spark's tasks have read these bad files."""
    if files := [File(1, path, 1, bad="half of it") for path in paths]:
        simulation._input.append(pack_quarantined(simulation.plan, "in", quarantined(files)))


def test_quarantined_files_are_told_in_the_epoch_of_their_batch(tmp_path: Path) -> None:
    simulation = quarantining(str(tmp_path))
    for good, bad in (([1, 2], ["a", "b"]), ([], ["c"]), ([3], [])):
        simulation.send("in", good)
        quarantine(simulation, *bad)
        simulation.run()
    assert simulation.captured["bad"].rows() == {
        0: [("a", "half of it"), ("b", "half of it")],
        1: [("c", "half of it")],
        2: [],
    }
    assert simulation.captured["out"].rows() == {0: [(1,), (2,)], 1: [], 2: [(3,)]}
    assert simulation.result.read == {"in": 3}


def test_with_an_epoch_column_quarantined_files_are_told_as_late_records_are(tmp_path: Path) -> None:
    simulation = quarantining(str(tmp_path), epoch="at")
    for good, bad in (([5], []), ([], ["a"]), ([5, 7], ["b"]), ([9], [])):
        simulation.send("in", good)
        quarantine(simulation, *bad)
        simulation.run()
    simulation._input.append(pack_input(simulation.plan, "in", [(1, "close", None, None)]))
    simulation.run()
    quarantine(simulation, "c")  # of a closed source, too, each batch ends the epoch of such rows
    simulation.run()
    found = {epoch: rows for epoch, rows in simulation.captured["bad"].rows().items() if rows}
    assert found == {
        5: [("a", "half of it"), ("b", "half of it")],
        10: [("c", "half of it")],
    }
    assert simulation.captured["out"].rows()[5] == [(5,), (5,)]
    assert simulation.result.late["in"] == 0


def test_quarantine_may_begin_at_a_restart(tmp_path: Path) -> None:
    def built(way: Any) -> Any:
        flow = ts.Dataflow("bad")
        source = flow.files("in", tmp_path, schema="at long", on_bad_file=way)
        source.distinct(name="once").capture("out")
        return flow.compile(2)

    assert built("fail").fingerprint == built("quarantine").fingerprint
    flow = ts.Dataflow("bad")
    with pytest.raises(GraphError, match=r"(?s)does not quarantine .*on_bad_file"):
        _ = flow.files("in", tmp_path, schema="at long").quarantined
