"""Path summaries of a vertex: which input reaches which output, and from what time on."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import timely_spark as ts
from timely_spark.compiler.summary import PlanSummary, plan_summary
from timely_spark.errors import BadArgument, GraphError, VertexError
from timely_spark.show.explain import explain
from timely_spark.testing import Simulation, run
from timely_spark.times import PRODUCT


class Split(ts.Vertex):
    """Sends what arrives on input i by the outputs `to[i]`, some epochs later; perhaps in notifications."""

    def __init__(self, to: dict[int, dict[int, int]], *, wait: bool = False) -> None:
        self.to, self.wait = to, wait
        self.held: dict[Any, list[pa.Table]] = {}

    def on_recv(self, edge: int, time: Any, batch: pa.Table) -> None:
        if self.wait:
            self.held.setdefault(time, []).append(batch.append_column("edge", pa.array([edge] * len(batch))))
            self.notify_at(time)
        else:
            self.sent(edge, time, batch)

    def on_notify(self, time: Any) -> None:
        for batch in self.held.pop(time):  # once: also where both inputs asked
            self.sent(batch["edge"][0].as_py(), time, batch.select(["n"]))

    def sent(self, edge: int, time: Any, batch: pa.Table) -> None:
        for output, epochs in self.to[edge].items():
            self.send_by(output, ts.Time(time.epoch + epochs, *time.counters), batch)

    def repartition(self, states: Any, workers: int, partition: Any) -> Any:
        return [{"held": states[0]["held"] if not worker else {}} for worker in range(workers)]


def split(summaries: Any, vertex: Any = None, **options: Any) -> ts.Dataflow:
    """Two inputs, of which the program ends the epochs, and two outputs."""
    flow = ts.Dataflow("split")
    inputs = [flow.input(name, "n long", epochs="manual") for name in "ab"]
    vertex = vertex or Split({0: {0: 0}, 1: {1: 0}})
    outs = flow.vertex(vertex, inputs, ["n long"] * 2, summaries=summaries, name="split", **options)
    for name, out in zip("xy", outs, strict=True):
        out.capture(name)
    return flow


APART = {(0, 1): None, (1, 0): None}


@pytest.mark.parametrize("wait", [False, True])
@pytest.mark.parametrize("workers", [1, 2])
def test_an_output_is_complete_without_regard_to_inputs_that_do_not_reach_it(
    workers: int,
    wait: bool,  # noqa: FBT001
) -> None:
    for summaries, early in [(APART, not wait), ({}, False)]:
        sim = Simulation(split(summaries, Split({0: {0: 0}, 1: {1: 0}}, wait=wait)), workers=workers)
        sim.send("a", [1])
        sim.advance_to("a", 1)
        sim.run()
        # a notification waits for both inputs, as what it sends may depend on both
        assert sim.captured["x"].rows() == ({0: [(1,)]} if early else {})
        assert sim.captured["y"].rows() == {}
        sim.send("b", [2])
        sim.advance_to("b", 1)
        sim.run()
        assert [sim.captured[name].rows() for name in "xy"] == [{0: [(1,)]}, {0: [(2,)]}]


def test_a_delay_lets_the_epochs_before_be_complete() -> None:
    vertex = Split({0: {0: 3, 1: 0}, 1: {1: 0}})
    sim = Simulation(split({(0, 0): 3, (1, 0): None}, vertex))
    sim.send("a", [1])
    sim.run()
    assert sim.result.frontier == {"x": [[3]], "y": [[0]]}
    sim.advance_to("a", 2)
    sim.close("b")
    sim.run()
    assert sim.result.frontier == {"x": [[3]] if sim.waiting[0].num_rows else [[5]], "y": [[2]]}
    assert sim.captured["x"].rows()[3] == [(1,)]
    assert sim.captured["y"].rows() == {0: [(1,)], 1: []}


def test_what_both_inputs_asked_for_is_one_notification_which_may_send_what_either_may() -> None:
    class Both(ts.Vertex):
        def __init__(self) -> None:
            self.calls: list[Any] = []

        def on_recv(self, edge: int, time: Any, batch: pa.Table) -> None:
            self.notify_at(time)
            self.notify_at(time, capability=None)

        def on_notify(self, time: Any) -> None:
            self.calls.append(time)
            if self.calls.count(time) == 1:
                self.send_by(0, time, [(time.epoch,)])
                self.send_by(1, time, [(time.epoch,)])
                self.notify_at(ts.Time(time.epoch, *time.counters))  # with the same capability
            elif self.calls.count(time) == 2:  # the third one has no capability
                self.send_by(1, time, [(10,)])

    for seed in range(6):
        flow = split(APART, Both())
        sim = Simulation(flow, seed=seed, crashes=0.4)
        for name in "ab":
            sim.send(name, [1, 2])
            sim.close(name)
        sim.run()
        assert sim.captured["x"].rows() == {0: [(0,)]}
        assert sorted(sim.captured["y"].rows()[0]) == [(0,), (10,)]


def test_explain_and_the_reasons_of_an_open_epoch_show_the_paths() -> None:
    flow = split({(0, 0): 3, (1, 0): None}, Split({0: {0: 3}, 1: {1: 0}}, wait=True), by=["n", "n"])
    text = explain(flow)
    lines = ["input 0 reaches output 0 later, from (0) to (3)", "input 1 does not reach output 0"]
    assert "".join(f"    {line}\n" for line in lines) in text
    sim = Simulation(flow, workers=2)
    sim.send("b", [1])
    sim.advance_to("b", 1)
    sim.run()
    by_name = sim.plan.by_name
    assert sim.coordinator.holding(by_name["x"], 0) == []
    assert sim.coordinator.holding(by_name["x"], 3) == ["a"]
    assert sim.coordinator.holding(by_name["y"], 0) == ["a", "split"]
    summary = PlanSummary(plan_summary(sim.plan))
    (open_,) = summary.open_pointstamps(sim.coordinator.encode(), 0)
    assert (open_.step, open_.notifications, open_.path) == ("split", 1, ["split", "y"])
    assert summary.frontier(sim.coordinator.encode())["x"] == [[3]]


@pytest.mark.parametrize("wait", [False, True])
@pytest.mark.parametrize(
    ("to", "message"),
    [
        (
            {0: {0: 0, 1: 0}, 1: {}},
            "by output 1 at Time(0) due to input 0: as declared, input 0 does not reach",
        ),
        (
            {0: {0: 1}, 1: {}},
            "by output 0 at Time(1) due to input 0: as declared, it sends there from Time(2) on",
        ),
    ],
)
def test_what_is_sent_against_the_declaration_is_an_error_of_the_step(
    to: Any,
    message: str,
    wait: bool,  # noqa: FBT001
) -> None:
    summaries = {**APART, (0, 0): 0 if 1 in to[0] else 2}
    with pytest.raises(VertexError) as error:
        run(split(summaries, Split(to, wait=wait)), {"a": [[1]], "b": [[]]})
    assert message in str(error.value)
    assert "step 'split'" in str(error.value)
    assert "test_summaries.py" in str(error.value)
    assert "Hint: " in str(error.value)


def test_summaries_that_make_no_sense_are_refused() -> None:
    back = PRODUCT.leave(1)
    for bad, message in [
        ({(2, 0): None}, r"summaries has \(2, 0\); there are 2 inputs and 2 outputs"),
        ({(0, -1): None}, "there are 2 inputs and 2 outputs"),
        ({0: None}, "summaries has 0"),
        ({("a", 0): None}, "2 inputs and 2 outputs"),
        ({(0, 0): -1}, "is not a path"),
        ({(0, 0): True}, "is not a path"),
        ({(0, 0): "later"}, "is not a path"),
        ({(0, 0): back}, "is not a path"),
        ({(0, 0): PRODUCT.enter(0)}, "is not a path"),
    ]:
        with pytest.raises(GraphError, match=message) as error:
            split(bad)
        assert "Hint: " in str(error.value)
    with pytest.raises(BadArgument, match="summaries"):
        split([(0, 0)])

    class First(Split):
        initial = (0,)

    class Early(ts.graph.Stateless):
        pass

    for vertex in (First({}), Early()):
        with pytest.raises(GraphError, match="no summaries of an input bind it"):
            split(APART, vertex)
    assert split(None).compile().described() == split({}).compile().described()


def test_a_path_of_a_loop_is_declared_by_its_path_summary() -> None:
    class Next(ts.Vertex):
        """Counts down in the next iteration, and says so outside at once."""

        def on_recv(self, edge: int, time: Any, batch: pa.Table) -> None:
            self.send_by(1, time, batch)
            less = [(n - 1,) for n in batch["n"].to_pylist() if n]
            self.send_by(0, ts.Time(time.epoch, time.counters[0] + self.more), less)

        more = 1

    def loop(more: int, path: Any = None) -> ts.Dataflow:
        flow = ts.Dataflow("loop")
        scope = flow.scope.inner(name="down")
        again = scope.variable("n long")
        vertex = Next()
        vertex.more = more
        next_, seen = flow.vertex(
            vertex,
            scope.enter(flow.input("x", "n long")).concat(again),
            ["n long"] * 2,
            summaries={(0, 0): path or PRODUCT.feedback(1)},
            name="next",
        )
        again.feed(next_)
        seen.leave().capture("seen")
        return flow

    assert sorted(run(loop(1), {"x": [[3]]})["seen"].rows()[0]) == [(0,), (1,), (2,), (3,)]
    with pytest.raises(VertexError, match=r"from Time\(0, 1\) on"):
        run(loop(0), {"x": [[3]]})
    first_iteration = PRODUCT.leave(1).followed_by(PRODUCT.enter(0))
    deeper = PRODUCT.enter(1).followed_by(PRODUCT.feedback(2))
    for path in (first_iteration, deeper, PRODUCT.leave(1)):
        with pytest.raises(
            GraphError, match="is not a path from the times of its scope to the same or later"
        ):
            loop(1, path)


def test_a_changed_declaration_is_a_changed_step() -> None:
    one, other = (split(summaries).compile().described() for summaries in (APART, {(0, 1): None}))
    assert one["stages"]["split"]["parameters"] != other["stages"]["split"]["parameters"]


class Check(ts.Vertex):
    """Forwards; an error if something arrives at a time that was complete."""

    def __init__(self) -> None:
        self.done: list[Any] = []

    def on_recv(self, edge: int, time: Any, batch: pa.Table) -> None:
        assert not any(time.less_equal(done) for done in self.done), (time, self.done)
        self.send_by(0, time, batch)
        self.notify_at(time, capability=None)

    def on_notify(self, time: Any) -> None:
        self.done.append(time)


PATHS = st.dictionaries(
    st.tuples(st.integers(0, 1), st.integers(0, 1)), st.sampled_from([None, None, 0, 1, 2]), max_size=4
)


Delays = dict[tuple[int, int], list[int]]


def chain(steps: list[Any]) -> tuple[ts.Dataflow, Delays]:
    """Steps of two inputs and outputs, one after the other; by (input, output) the delays of all paths."""
    flow = ts.Dataflow("chain")
    pair: Any = tuple(flow.input(name, "n long", epochs="manual") for name in "ab")
    delays: Delays = {(0, 0): [0], (1, 1): [0]}
    for i, (summaries, wait, logged, exchanged) in enumerate(steps):
        to = [{b: n for b in range(2) if (n := summaries.get((a, b), 0)) is not None} for a in range(2)]
        vertex = Split(dict(enumerate(to)), wait=wait)
        vertex.logged = logged
        by = ["n", "n"] if exchanged else None
        pair = flow.vertex(vertex, pair, ["n long"] * 2, by=by, summaries=summaries, name=f"step{i}")
        pair = tuple(flow.vertex(Check(), one, "n long", by="n") for one in pair)
        after: Delays = defaultdict(list)
        for (source, a), past in delays.items():
            for b, n in to[a].items():
                after[source, b] += [one + n for one in past]
        delays = after
    for name, one in zip("xy", pair, strict=True):
        one.capture(name)
    return flow, delays


@pytest.mark.slow
@settings(max_examples=settings().max_examples // 2)
@given(
    st.lists(st.tuples(PATHS, st.booleans(), st.booleans(), st.booleans()), min_size=1, max_size=4),
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 1), st.integers(0, 9)), max_size=8),
    st.tuples(st.integers(0, 4), st.integers(0, 4)),
    st.integers(0, 99),
)
@example(  # what waits behind a notification that an input holds back keeps no query running
    steps=[
        ({(0, 1): None}, True, False, True),
        ({(0, 1): 1}, False, False, False),
        ({(1, 0): 1}, False, False, True),
    ],
    drawn=[(0, 0, 6), (0, 1, 1), (1, 1, 4)],
    ends=(1, 2),
    seed=96,
)
def test_random_chains_give_what_the_paths_say_under_all_schedules_and_crashes(
    steps: list[Any], drawn: list[tuple[int, int, int]], ends: tuple[int, int], seed: int
) -> None:
    flow, delays = chain(steps)
    sim = Simulation(flow, workers=1 + seed % 3, seed=seed, crashes=0.2 * (seed % 2))
    sent = sorted(one for one in drawn if one[0] < ends[one[1]])
    for epoch, source, n in sent:
        sim.advance_to("ab"[source], epoch)
        sim.send("ab"[source], [n])
    for source, end in enumerate(ends):
        sim.advance_to("ab"[source], end)
    sim.run(limit=500)
    if not any(wait for _, wait, _, _ in steps):
        assert not sim.coordinator.tracker.active
        for output, name in enumerate("xy"):
            least = [ends[s] + min(past) for (s, o), past in delays.items() if o == output]
            assert sim.result.frontier[name] == ([[min(least)]] if least else [])
    for name in "ab":
        sim.close(name)
    sim.run(limit=500)
    assert sim.result.complete
    for output, name in enumerate("xy"):
        wanted = [(e + delay, n) for e, source, n in sent for delay in delays.get((source, output), ())]
        found = sim.captured[name].rows()
        assert Counter((epoch, n) for epoch, rows in found.items() for (n,) in rows) == Counter(wanted)


def test_a_flow_rests_while_a_notification_waits_for_an_input_that_does_not_reach_what_it_keeps_open() -> (
    None
):
    """Input a holds the first step's notification back; its capability, due to b, holds back the check."""
    crossed = {(0, 0): None, (1, 1): 0, (0, 1): 1, (1, 0): 1}, True, False, False
    sim = Simulation(chain([crossed, ({(1, 1): None, (0, 1): 0, (1, 0): 2}, False, False, False)])[0])
    for epoch, name, n in ((0, "b", 8), (1, "b", 4)):
        sim.advance_to(name, epoch)
        sim.send(name, [n])
    sim.advance_to("a", 1)
    sim.advance_to("b", 2)

    sim.run(limit=20)

    assert sim.idle
    for name in "ab":
        sim.close(name)
    sim.run()
    assert sim.result.complete
