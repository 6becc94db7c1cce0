"""The progress of a process's workers, added up: nothing is lost, and nothing counts twice."""

from __future__ import annotations

from typing import Any

from timely_spark.coordinator.accumulated import Accumulated
from timely_spark.worker import wire
from timely_spark.worker.convergence import Convergence
from timely_spark.worker.hot_keys import Load
from timely_spark.worker.loops import LoopCounts
from timely_spark.worker.wire import Output, Report


def report(**more: Any) -> Report:
    nothing: dict[str, Any] = {
        "deltas": [],
        "pending": [],
        "left": 0,
        "ticks": [],
        "advanced": {},
        "seen": {},
        "late": {},
    }
    rest: dict[str, Any] = {"refused": {}, "loops": LoopCounts({}, [], []), "loads": [], "stats": {}}
    return Report(**nothing | rest | more)


def fed(epoch: int, records: int) -> list[Any]:
    counts = Convergence()
    counts.add("hops", epoch, 1, records)
    return counts.encode()


LOAD = Load(3, 0, 1 << 16, "7", 0.9)
#: of four workers
REPORTS = [
    report(
        deltas=[(1, [0, 2], 5), (2, [0], -1)],
        pending=[(4, [3], 1)],
        left=7,
        loops=LoopCounts({"hops": 9, "inner": 1}, [], [("hops", 0, 9, 2, "x")], fed(0, 10)),
        late={"windows": 1},
        stats={"calls": 2},
    ),
    report(
        deltas=[(1, [0, 2], -5), (2, [0], 3), (2, [1], 1)],
        pending=[(4, [3], -1), (4, [4], 2)],
        loops=LoopCounts({"hops": 4, "inner": 6}, [("hops", 0, 10_000, "y")], [], fed(0, 5)),
        stats={"calls": 3, "bytes": 8},
    ),
    report(deltas=[(2, [1], 1)], left=1, loads=[LOAD], late={"windows": 4, "days": 2}),
    report(loops=LoopCounts({}, [], [], fed(1, 1))),
]
OUTPUTS = [
    (worker, Output(sink="out", epoch=epoch, payload=b"")) for worker, epoch in ((0, 3), (1, 3), (2, 4))
]
WANTED = Accumulated(
    deltas=[(2, [0], 2), (2, [1], 2)],
    pending=[(4, [4], 2)],
    left=2,
    outputs=[("out", 3), ("out", 4)],
    loops=[
        (-1, LoopCounts({"hops": 9, "inner": 6}, [], [], [*fed(0, 15), *fed(1, 1)])),
        (0, LoopCounts({}, [], [("hops", 0, 9, 2, "x")])),
        (1, LoopCounts({}, [("hops", 0, 10_000, "y")], [])),
    ],
    loads=[LOAD],
    late={"windows": 5, "days": 2},
    stats={"calls": 5, "bytes": 8},
)


def of(workers: range) -> Accumulated:
    reports = [(worker, REPORTS[worker]) for worker in workers]
    return Accumulated.of(wire.table([*reports, *(each for each in OUTPUTS if each[0] in workers)]))


def test_reports_are_added_up_and_so_are_the_sums_of_processes() -> None:
    assert of(range(4)).encode() == WANTED.encode()
    for cut in range(5):
        assert Accumulated.sum([of(range(cut)), of(range(cut, 4))]).encode() == WANTED.encode()


def test_a_sum_is_what_was_sent() -> None:
    ((sender, found),) = wire.read(wire.table([(2, WANTED)]), Accumulated)

    assert (sender, found.encode()) == (2, WANTED.encode())
    assert Accumulated.sum([found]).encode() == WANTED.encode()
