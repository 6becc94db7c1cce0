"""Parallel rounds: processes with a share of the workers each do what one process with all of them does."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import timely_spark as ts
from tests.support.hops import spread
from timely_spark.coordinator import (
    Coordinator,
    RoundLimits,
    RoundResult,
    Share,
    local_rounds,
    merged_snapshot,
    run_local_rounds,
    run_workers,
)
from timely_spark.errors import VertexError
from timely_spark.testing import Simulation
from timely_spark.worker import Worker, wire
from timely_spark.worker.wire import ELSEWHERE, Failure, Message, Report

Edges = list[tuple[int, int]]


def labels(fail_at: int | None = None) -> ts.Dataflow:
    flow = ts.Dataflow("labels")
    edges = flow.input("edges", "src long, dst long")

    def step(proposed: ts.Stream) -> tuple[ts.Stream, ts.Stream]:
        sent, least = spread(edges)(proposed)
        return (sent.map(check, "node long, label long") if fail_at is not None else sent), least

    def check(row: Any) -> tuple[int, int]:
        assert (row.node, row.label) != (fail_at, 0), "the failing node"
        return row.node, row.label

    least = edges.select(node="src", label="src").loop(step)
    least.group_by("label").aggregate(nodes="count").capture("sizes")
    least.probe("reached")
    return flow


def first_round(
    edges: Edges, workers: int, fail_at: int | None = None
) -> tuple[Coordinator, RoundResult, dict[int, bytes]]:
    simulation = Simulation(labels(fail_at), workers=workers, rounds_per_batch=1)
    simulation.send("edges", edges)
    simulation.step()
    states = {worker: state for worker, state in enumerate(simulation.states) if state is not None}
    return simulation.coordinator, simulation.result, states


def late_clicks() -> tuple[Coordinator, RoundResult, dict[int, bytes]]:
    """A batch in which windows find late records, in its second round."""
    flow = ts.Dataflow("windows")
    clicks = flow.input("clicks", "at long, page long", epochs="manual")
    clicks.window("at", ts.every(10)).closed.capture("closed")
    simulation = Simulation(flow, workers=2, rounds_per_batch=1)
    for epoch, first in enumerate((100, 0)):
        simulation.send("clicks", [(first + i, i) for i in range(20)], epoch=epoch)
        simulation.advance_to("clicks", epoch + 1)
    simulation.step()
    states = {worker: state for worker, state in enumerate(simulation.states) if state is not None}
    return simulation.coordinator, simulation.result, states


class Mailboxes:
    """Processes of one program: threads that meet at a barrier."""

    def __init__(self, processes: int) -> None:
        self.parts: dict[tuple[int, int], pa.Table] = {}
        self.met = threading.Barrier(processes, timeout=20)

    def swap(self, rank: int) -> Callable[[list[pa.Table], list[int]], list[pa.Table]]:
        def swapped(parts: list[pa.Table], group: list[int]) -> list[pa.Table]:
            self.parts |= {(rank, to): part for to, part in zip(group, parts, strict=True)}
            self.met.wait()
            received = [self.parts.pop((sender, rank)) for sender in group]
            self.met.wait()
            return received

        return swapped


def together(
    coordinator: Coordinator,
    result: RoundResult,
    states: dict[int, bytes],
    processes: int,
    bound: RoundLimits,
    *,
    places: tuple[int, ...] = (),
) -> list[tuple[Coordinator, RoundResult, dict[int, bytes]] | VertexError]:
    ranks = Share(0, processes, places=places).ranks
    boxes, found = Mailboxes(len(ranks)), list[Any]([None]) * processes

    def process(rank: int) -> None:
        own = Coordinator.decode(coordinator.plan, coordinator.encode())
        share = Share(rank, processes, boxes.swap(rank), places)
        hosted = {worker: state for worker, state in states.items() if share.hosts(worker)}
        try:
            last, workers = run_local_rounds(own, result, hosted, bound, share=share)
        except VertexError as error:
            found[rank] = error
            return
        assert all(share.hosts(index) for index in workers)
        found[rank] = own, last, {index: worker.checkpoint() for index, worker in workers.items()}

    with ThreadPoolExecutor(len(ranks)) as pool:
        list(pool.map(process, ranks))
    return [found[rank] for rank in ranks]


def coordinator_of(shares: Any) -> Coordinator:
    """The coordinator of all workers."""
    first, *_ = coordinators = [share[0] for share in shares]
    return Coordinator.decode(first.plan, merged_snapshot([each.encode() for each in coordinators]))


def in_order(rows: pa.Table) -> list[dict[str, Any]]:
    return sorted(rows.to_pylist(), key=lambda row: (row["worker"], str(sorted(row.items(), key=str))))


nodes = st.integers(0, 9)


def placements(workers: int, processes: int) -> st.SearchStrategy[tuple[int, ...]]:
    return st.tuples(*[st.integers(0, processes - 1)] * workers)


@pytest.mark.slow
@given(
    st.lists(st.tuples(nodes, nodes), min_size=1, max_size=25),
    st.integers(2, 5),
    st.integers(2, 6),
    st.integers(1, 12),
    st.data(),
)
def test_parallel_rounds_equal_local_rounds(
    edges: Edges, workers: int, processes: int, rounds: int, data: st.DataObject
) -> None:
    bound = RoundLimits.any_size(rounds)
    coordinator, result, states = first_round(edges, workers)
    places = data.draw(st.just(()) | placements(workers, processes))
    with mock.patch.object(local_rounds, "MANY", data.draw(st.sampled_from([4, 16]), label="many")):
        shares = together(coordinator, result, states, processes, bound, places=places)
    alone, changed = run_local_rounds(coordinator, result, states, bound)

    merged = dict[int, bytes]()
    assert coordinator_of(shares).encode() == coordinator.encode()
    for own, last, states_of_share in shares:  # type: ignore[misc] # none has failed
        of_workers = {"pending": [], "left": [], "elsewhere": []}
        known, all_known = own.encode() | of_workers, coordinator.encode() | of_workers
        assert known == all_known, "each process knows the progress of all"
        assert own.pending_count == coordinator.pending_count
        assert last.encode() == alone.encode()
        merged |= states_of_share
    assert merged == {index: worker.checkpoint() for index, worker in changed.items()}
    for name in ("rows", "outputs"):
        parts = [getattr(share[1], name) for share in shares]  # type: ignore[index]
        assert in_order(pa.concat_tables(parts)) == in_order(getattr(alone, name))


def test_late_records_of_all_processes_are_counted() -> None:
    bound = RoundLimits.any_size(10)
    coordinator, result, states = late_clicks()
    shares = together(coordinator, result, states, 2, bound)
    alone, _ = run_local_rounds(coordinator, result, states, bound)

    assert list(alone.late.values()) == [20]
    assert [share[1].late for share in shares] == [alone.late] * 2  # type: ignore[index]
    assert coordinator_of(shares).encode() == coordinator.encode()


def test_hot_keys_of_all_processes_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("worker", "coordinator"):
        monkeypatch.setattr(f"timely_spark.{module}.hot_keys.MANY", 10)
    bound = RoundLimits.any_size(10)
    coordinator, result, states = first_round([(1, i) for i in range(100)], 4)
    shares = together(coordinator, result, states, 2, bound)
    run_local_rounds(coordinator, result, states, bound)

    assert coordinator.hot_keys
    assert [share[0].hot_keys for share in shares] == [coordinator.hot_keys] * 2  # type: ignore[index]


@pytest.mark.slow
@pytest.mark.parametrize("processes", [2, 3])
def test_all_processes_raise_the_error_of_a_vertex(processes: int) -> None:
    coordinator, result, states = first_round([(i, i + 1) for i in range(30)], 3, fail_at=30)
    errors = together(coordinator, result, states, processes, RoundLimits.any_size(100))
    assert {type(error) for error in errors} == {VertexError}
    assert len({str(error) for error in errors}) == 1
    assert "the failing node" in str(errors[0])


def test_a_process_sends_messages_to_their_worker_only_and_one_report_to_all() -> None:
    coordinator, result, states = first_round([(i, i + 1) for i in range(20)], 4)
    written = run_workers(result.rows, lambda i, rows: Worker(coordinator.plan, states[i], i).step(0, rows))
    messages = wire.only(written, Message)
    assert messages.num_rows >= 2
    sent = list[pa.Table]()

    def swap(parts: list[pa.Table], _: list[int]) -> list[pa.Table]:
        sent.extend(parts)
        return parts  # as if the other process had written the same

    kept = Share(0, 2, swap).exchange(written)
    assert kept.num_rows == sum(part.num_rows for part in sent)
    assert wire.places(kept, Message).tolist() == [*range(messages.num_rows)], (
        "they are not copied to be read"
    )
    for rank, part in enumerate(sent):
        own = messages.filter(pa.array(worker % 2 == rank for worker in messages["worker"].to_pylist()))
        assert in_order(wire.only(part, Message)) == in_order(own)
    assert len(wire.read(sent[0], Report)) == len(states)
    ((sender, report),) = wire.read(wire.without(sent[1], Message), Report)
    assert sender == ELSEWHERE
    assert report.encode() == added_up(written).encode()


@pytest.mark.slow
@pytest.mark.share(1)
@pytest.mark.parametrize(("processes", "messages"), [(4, 3), (12, 11), (17, 16), (20, 7), (64, 14)])
def test_many_processes_send_to_those_of_their_row_and_column_only(processes: int, messages: int) -> None:
    boxes, sent = Mailboxes(processes), Counter[int]()

    def process(rank: int) -> pa.Table:
        swap = boxes.swap(rank)

        def counting(parts: list[pa.Table], group: list[int]) -> list[pa.Table]:
            sent[rank] += len(group) - 1
            return swap(parts, group)

        to_each = [(to, Message(channel=0, time=[0], sender=rank, payload=b"")) for to in range(processes)]
        failed = [(rank, Failure({"error": "it"}))] if rank == 3 else []
        rows = wire.table([*to_each, *failed, (rank, Report(left=1, ticks=[rank]))])
        return Share(rank, processes, counting).exchange(rows)

    with ThreadPoolExecutor(processes) as pool:
        for rank, rows in enumerate(pool.map(process, range(processes))):
            received = wire.read(rows, Message)
            assert sorted((to, one.sender) for to, one in received) == [(rank, n) for n in range(processes)]
            assert len(wire.read(rows, Failure)) == 1
            total = added_up(rows)
            assert (total.left, total.ticks) == (processes, [*range(processes)])
    assert {*sent.values()} == {messages}


@pytest.mark.slow
def test_what_processes_add_up_is_safe_only_together() -> None:
    coordinator, result, states = first_round([(i, i + 1) for i in range(20)], 4)
    workers = [Worker(coordinator.plan, states[i], i) for i in range(4)]
    alone, overtaken = counts(coordinator), False
    while result.awake:
        header, sums = result.header, counts(coordinator)
        written = run_workers(result.rows, lambda i, rows: workers[i].step(0, rows, header))  # noqa: B023
        parts = [added_up(Share(rank, 2).own(written)) for rank in (0, 1)]
        for into, part in ((sums, parts[0]), (sums, parts[1]), (alone, parts[0])):
            for at, time, n in part.deltas:
                into[at, str(time)] += n
        result = coordinator.apply_round(0, written)
        assert +sums == counts(coordinator)
        assert min(sums.values()) >= 0, "no decrement has overtaken its increment"
        overtaken |= min(alone.values()) < 0
    assert overtaken, "one process's decrements need the increments of the other"


@pytest.mark.slow
@given(
    st.lists(st.tuples(nodes, nodes), min_size=1, max_size=25),
    st.integers(2, 6),
    st.integers(1, 6),
    st.data(),
)
@settings(max_examples=20)
def test_the_sum_of_sums_is_the_sum_of_all_reports(
    edges: Edges, workers: int, processes: int, data: st.DataObject
) -> None:
    coordinator, result, _ = first_round(edges, workers)
    every = [Worker(coordinator.plan, None, i) for i in range(workers)]
    written = run_workers(result.rows, lambda i, rows: every[i].step(0, rows, result.header))
    parts = [added_up(Share(rank, processes).own(written)) for rank in range(processes)]
    cut = data.draw(st.integers(1, processes))
    halves = [Report.sum(parts[:cut]), *([Report.sum(parts[cut:])] if parts[cut:] else [])]
    for found in (Report.sum(parts), Report.sum(data.draw(st.permutations(halves)))):
        assert found.encode() == added_up(written).encode()


def added_up(rows: pa.Table) -> Report:
    return Report.sum(report for _, report in wire.read(rows, Report))


@pytest.mark.parametrize("size", [1, 1 << 18])
def test_messages_of_many_processes_are_one_piece_if_they_are_small(size: int) -> None:
    message = Message(channel=0, time=[0], sender=1, payload=bytes(size))
    tables = [wire.table([(number, message)]) for number in range(12)]
    rows = wire.together(tables)
    assert rows.equals(pa.concat_tables(tables))
    assert rows["payload"].num_chunks == (1 if size == 1 else 12)


def counts(coordinator: Coordinator) -> Counter[Any]:
    return Counter({(at, str(time.encode())): n for (at, time), n in coordinator.tracker.active.items()})
