"""Random programs of every operator: the answer depends on no workers, schedule, crash, move or batching.

A program is made of the cases of `tests/test_named.py`, in which no public operator is missing, and of some
more: each takes two streams or collections that there are, and what it makes is captured, cut down to two
small columns, and there for the next ones. Records come and go. Where no other answer is at hand, a program's
is its own: that of one worker, of another schedule, of all epochs at once, and of changes that were added up.
"""

from __future__ import annotations

import random
import re
import sys
import tempfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import timely_spark as ts
from tests.support.rescaling import Moving, move
from tests.support.sizes import lowered
from tests.test_named import ALL as NAMED
from tests.test_named import Case, Pass
from timely_spark.coordinator.migration import FlowChanged
from timely_spark.differential import DIFF
from timely_spark.operators.retractions import retractions_in
from timely_spark.testing import run

KV, CHANGES = "k long, v long", "k long, v long, diff long"
Rows = dict[str, dict[int, list[Any]]]


def own_times(x: ts.Stream, kind: Any) -> ts.Stream:
    """Records per time of a scope that has times of its own."""
    scope = x.scope.inner(name="own", time=kind)
    inside = x.enter(scope, at="v", name="in").group_by("k").count("n", per="time", name="it")
    return inside.leave(name="back")


def improved(x: ts.Stream) -> ts.Stream:
    """What improves is shown as it arrives, too."""
    best = x.exchange("v", name="far").min("v", keys="k", name="it")
    best.to_memory("shown", release="arrival")
    return best


MORE: dict[str, Any] = {
    "descending times": Case(lambda x, _: own_times(x, ts.times.Descending)),
    "inner times": Case(lambda x, _: own_times(x, int)),
    "a monotone stream with releases": Case(lambda x, _: improved(x)),
    "components by place": Case(
        lambda x, _: ts.graphs.connected_components(x, src="k", dst="v", spread=True, name="it"),
        collections=True,
    ),
    "hot keys": Case(
        lambda x, y: x.join(y, on="k", how="left", skew=[0, 3], name="hot").max(
            "v", keys="k", skew=[1], name="it"
        ),
        collections=True,
    ),
}
ALL: dict[str, Any] = NAMED | MORE
#: Each worker has a copy, so the number of workers is a part of the question.
COPIES = {"Stream.broadcast", "all_reduce"}
#: Why a flow cannot go on with other workers: records in flight without a known key, state without a method.
IN_FLIGHT = "of unknown partitioning"
UNABLE = re.compile(r"step '([^']+)'[^;]* does not say how to partition")
#: Within a tolerance ranks depend on which changes are computed together: on how they come in epochs, and on
#: which epochs are in flight together. Epochs one after the other have one answer.
APPROXIMATE = {"graphs.pagerank in steps"}
#: Outputs keep their names in regions, so a program has one of them.
OUTPUTS = re.compile(r"(Stream|Collection)\.(probe|inspect|capture|to_|subscribe|foreach|publish)")
#: A program in another process takes a while to begin.
SELDOM = {"Stream.pipe"}


@dataclass(frozen=True)
class Program:
    """Operators, each with the numbers of what it takes; 0 and 1 are the inputs."""

    seed: int
    steps: tuple[tuple[str, int, int], ...]

    @classmethod
    def of(cls, seed: int) -> Program:
        draw = random.Random(seed)
        names = draw.choices(list(ALL), [0.1 if name in SELDOM else 1 for name in ALL], k=draw.randint(1, 4))
        first = next((name for name in names if OUTPUTS.match(name)), None)
        names = [name for n, name in enumerate(names) if not OUTPUTS.match(name) or n == names.index(first)]
        return cls(
            seed, tuple((name, draw.randrange(2 + n), draw.randrange(2 + n)) for n, name in enumerate(names))
        )

    @property
    def of_collections(self) -> bool:
        """Whether it is a question to what its inputs have come to."""
        return all(ALL[name].collections and name not in APPROXIMATE for name, *_ in self.steps)

    def inputs(self) -> dict[str, list[Any]]:
        """For each input the changes of each epoch. No record is removed more often than it was inserted."""
        draw, removals = random.Random(f"inputs {self.seed}"), random.Random(f"removals {self.seed}")
        epochs, inputs = draw.randint(1, 4), dict[str, list[Any]]()
        for name in "xy":
            present, inputs[name] = list[list[int]](), []
            for _ in range(epochs):
                rows = [(draw.randint(0, 4), draw.randint(0, 4)) for _ in range(draw.choice([0, 1, 2, 5]))]
                added = [(*row, removals.choice([1, 1, 2, 3])) for row in rows]
                present += [row for *row, n in added for _ in range(n)]
                removals.shuffle(present)
                at = removals.choice([0, 0, 1, len(present) // 2, len(present)])
                removed, present = present[:at], present[at:]
                inputs[name].append([*added, *((*row, -1) for row in removed)])
        return inputs

    def flow(self, made: Callable[[str], None] = lambda _: None) -> ts.Dataflow:
        """The program, without the steps that may not take what they are given; `made` is told the others."""
        flow = ts.Dataflow("program")
        inputs = [flow.input(name, CHANGES, epochs="manual") for name in "xy"]
        streams: list[Any] = [
            one.where(pc.field("diff") > 0, name=f"added{number}").select("k", "v", name=f"kv{number}")
            for number, one in enumerate(inputs)
        ]
        collections: list[Any] = [
            one.collection("diff", name=f"c{number}") for number, one in enumerate(inputs)
        ]
        if self.seed % 2:
            collections = [one.distinct(name=f"d{number}") for number, one in enumerate(collections)]
        for number, (name, left, right) in enumerate(self.steps, 2):
            case = ALL[name]
            with flow.region(f"r{number}"):
                if case.collections:
                    other = collections[right].select("k", w="v", name="as-w")
                    result = case.build(collections[left], other)
                else:
                    result = case.build(streams[left], streams[right])
                made(name)
                if isinstance(result, ts.Collection):
                    changes = result.changes("diff-of-it", name="changes")
                    changes.capture(f"out{number}")
                    small = result.map_batches(smaller, KV, name="small")
                    streams.append(small.changes("n", name="small-changes").select("k", "v", name="kv"))
                    collections.append(small.distinct(name="once-more"))
                else:
                    result.capture(f"out{number}")
                    # most steps refuse records that are taken back
                    lasting = result if retractions_in(result) is None else streams[left]
                    streams.append(lasting.map_batches(smaller, KV, name="small"))
                    collections.append(streams[-1].collection(name="collected").distinct(name="once-more"))
        return flow


def smaller(batch: pa.Table) -> pa.Table:
    """Two columns of small numbers, of the first columns with integers."""
    kept = [
        pc.fill_null(pc.bit_wise_and(column.cast("int64"), 7), 0)
        for column in batch.columns
        if pa.types.is_integer(column.type)
    ]
    zero = pa.array([0] * batch.num_rows, pa.int64())
    first, second, *_ = [*kept, zero, zero]
    return pa.table({"k": first, "v": second})


def rounded(value: Any) -> Any:
    """Sums of floats depend on their order in the last digits."""
    if isinstance(value, float):
        return float(f"{value:.9g}")
    return [rounded(one) for one in value] if isinstance(value, list) else value


def played(flow: ts.Dataflow, inputs: Any, **how: Any) -> Rows:
    """What a flow that was not played before says: some outputs are one flow's."""
    return said(run(flow, inputs, warn_after=500, **how))


class _Moving(Moving):
    """It stays where it is refused; only a user's vertex may be without `repartition()`."""

    def stop(self) -> None:
        try:
            super().stop()
        except FlowChanged as refused:
            vertices = [self.simulation.plan.by_name[name].template for name in UNABLE.findall(str(refused))]
            if not all(isinstance(one, Pass) for one in vertices) or not (
                vertices or IN_FLIGHT in str(refused)
            ):
                raise


def moved(flow: ts.Dataflow, inputs: Any, workers: list[int], stops: set[int], seed: int | None) -> Rows:
    """What a flow says that goes on with the next of some numbers of workers after some of its batches.

    After the first epoch nothing is in flight, so there it does go on, but for a user's vertex.
    """
    moving = _Moving(flow, workers, stops.__contains__, seed=seed)
    for epoch in range(len(inputs["x"]) + 1):
        for name, epochs in inputs.items():
            if epoch == len(epochs):
                moving.simulation.close(name)
            else:
                moving.simulation.send(name, epochs[epoch], epoch=epoch)
                moving.simulation.advance_to(name, epoch + 1)
        moving.run()
        if epoch == 0 and not any(isinstance(node.template, Pass) for node in moving.simulation.plan.nodes):
            move(moving.simulation, flow, next(moving.workers))
    return said(moving.simulation.captured)


def said(made: Any) -> Rows:
    """The records of each output by epoch, and of changes what they come to."""
    found: Rows = {}
    for name, out in made.items():
        if name.startswith("out"):
            epochs = {epoch: [tuple(map(rounded, row)) for row in rows] for epoch, rows in out.rows().items()}
            if out.schema.names[-1] == DIFF:  # a collection's records, as it keeps them
                epochs = {epoch: [*totals(rows).items()] for epoch, rows in epochs.items()}
            found[name] = {epoch: sorted(rows, key=repr) for epoch, rows in epochs.items() if rows}
    return found


def check(seed: int) -> list[str]:
    """Check the program of a seed; returns its operators.

    Both runs of a program with ranks of a tolerance get their epochs one after the other: with epochs in
    flight together it may have other ranks.
    """
    program, draw = Program.of(seed), random.Random(f"schedule {seed}")
    inputs, workers, used = program.inputs(), draw.choice([2, 2, 3, 3, 5, 5, 8, 17]), list[str]()
    flow = program.flow(used.append)
    one = played(flow, inputs, workers=workers if COPIES & {*used} else 1)
    if program.of_collections:
        inputs = {name: [uncanonical(draw, rows) for rows in epochs] for name, epochs in inputs.items()}
    how: dict[str, Any] = {"workers": workers, "seed": draw.choice([None, seed])}
    how["together"] = draw.random() < 0.5
    how["together"] &= not APPROXIMATE & {*used}
    how["crashes"] = draw.choice([0.0, 0.2])
    assert played(program.flow(), inputs, **how) == one, f"{program}, {how}"
    if draw.random() < 0.3 and not COPIES & {*used}:
        how = {"workers": draw.choices([1, 2, 3, 5, 8, 16, 32], k=3), "seed": how["seed"]}
        how["stops"] = {draw.randint(0, 12) for _ in range(3)}
        assert moved(program.flow(), inputs, **how) == one, f"{program}, {how}"
    if program.of_collections:
        at_once = {name: [[row for rows in epochs for row in rows]] for name, epochs in inputs.items()}
        assert summed(played(program.flow(), at_once, workers=workers)) == summed(one), f"{program} at once"
    return used


def uncanonical(draw: random.Random, changes: list[Any]) -> list[Any]:
    """Other changes that come to the same: some as several, and opposite ones besides, in any order."""
    more = [
        (draw.randint(0, 4), draw.randint(0, 4), draw.choice([1, 2])) for _ in range(draw.choice([0, 0, 2]))
    ]
    more += [(k, v, -n) for k, v, n in more] + [(k, v, part * n) for k, v, n in changes for part in (2, -1)]
    return draw.sample(more, len(more))


def summed(outs: Rows) -> dict[str, Counter[Any]]:
    """What the changes of all epochs come to."""
    found: dict[str, Counter[Any]] = {}
    for name, epochs in outs.items():
        found[name] = totals(row for rows in epochs.values() for row in rows)
    return found


def totals(changes: Iterable[Any]) -> Counter[Any]:
    """How often each record is there after changes, whose last column says how often."""
    counts: Counter[Any] = Counter()
    for *row, diff in changes:
        counts[repr(row)] += diff
    return Counter({row: n for row, n in counts.items() if n})


@pytest.fixture(autouse=True)
def _own_folders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def test_no_operator_is_left_out_of_the_programs() -> None:
    """`tests/test_named.py` counts that no public operator is missing there."""
    drawn = {name for seed in range(2_000) for name, *_ in Program.of(seed).steps}

    assert drawn == set(ALL)
    assert {"Stream.window", "Stream.window of sessions", "pregel with mutations", *MORE} <= drawn
    assert {f"graphs.{name}" for name in ts.graphs.__all__} <= drawn


@pytest.mark.slow
def test_what_each_operator_of_streams_makes_is_there_for_the_next_ones() -> None:
    for name in (name for name, case in ALL.items() if not case.collections):
        assert Program(0, ((name, 0, 1),)).flow().outputs


@pytest.mark.slow
@pytest.mark.parametrize(
    "seed",
    [
        2,
        3,
        4,
        *(pytest.param(n, marks=pytest.mark.campaign) for n in range(5, 40)),
    ],
)
def test_a_program_s_answer_is_its_own_on_other_workers_schedules_and_in_one_batch(seed: int) -> None:
    check(seed)


@pytest.mark.slow
@pytest.mark.share(8)
@pytest.mark.parametrize(
    "name",  # `graphs/test_every_algorithm.py` has a law of each algorithm
    [pytest.param(name, marks=[pytest.mark.campaign] if name.startswith("graphs.") else []) for name in ALL],
)
def test_so_it_is_of_each_operator_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seed = zlib.crc32(name.encode())
    program = Program(seed, ((name, 0, 1),))
    monkeypatch.setattr(Program, "of", lambda _: program)

    assert check(seed) == [name]


@pytest.mark.campaign
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("first", range(0, 10_000, 250))
def test_ten_thousand_programs(first: int) -> None:
    """About three programs a second on each core."""
    drawn = Counter(name for seed in range(1_000_000 + first, 1_000_250 + first) for name in check(seed))

    assert len(drawn) > len(ALL) * 0.8


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::timely_spark.testing.LoopWarning")  # of few records, by lowered sizes
@pytest.mark.parametrize(
    "first", [0, *(pytest.param(n, marks=pytest.mark.campaign) for n in range(2_000_000, 2_002_000, 50))]
)
def test_an_answer_depends_on_no_size_from_which_another_way_pays(
    first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in range(first, first + (50 if first else 4)):
        program, draw, used = Program.of(seed), random.Random(f"sizes {seed}"), list[str]()
        how: dict[str, Any] = {"workers": draw.choice([1, 2, 3, 5]), "seed": draw.choice([None, seed])}
        inputs, one = program.inputs(), played(program.flow(used.append), program.inputs(), **how)
        how["together"] = draw.random() < 0.5 and not APPROXIMATE & {*used}
        how["crashes"] = 0.0 if how["seed"] is None else draw.choice([0.0, 0.3])
        with monkeypatch.context() as patch:
            sizes = lowered(draw, patch)
            assert played(program.flow(), inputs, **how) == one, f"{program}, {how}, {sizes}"


def test_a_program_whose_answer_depends_on_the_workers_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    program = Program(3, (("Stream.broadcast", 0, 1),))
    monkeypatch.setattr(Program, "of", lambda _: program)
    monkeypatch.setattr(sys.modules[__name__], "COPIES", set())

    with pytest.raises(AssertionError, match=r"Stream\.broadcast"):
        check(3)


def test_an_operator_without_repartition_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    program = Program(3, (("Dataflow.vertex", 0, 1),))
    monkeypatch.setattr(sys.modules[__name__], "Pass", ())  # as if the vertex were one of the package

    with pytest.raises(FlowChanged, match=r"step 'r2\.it' .* does not say how to partition"):
        moved(program.flow(), program.inputs(), [2, 3], {1, 2, 3}, None)
