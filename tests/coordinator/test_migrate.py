"""Another flow, or another number of workers, on what one has left: what goes on, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import timely_spark as ts
from tests.support.rescaling import continued, migrated, plain
from timely_spark.coordinator.differences import Differences, compare
from timely_spark.coordinator.lacking import lacking_by_output
from timely_spark.coordinator.migration import FlowChanged
from timely_spark.errors import VertexError
from timely_spark.testing import Simulation
from timely_spark.times import LEXICOGRAPHIC, Descending
from timely_spark.worker import Budget

#: rounds are batches, so a batch ends in the middle of a loop
go_on = partial(continued, rounds_per_batch=1)


def refused(old: Simulation, flow: ts.Dataflow, workers: int = 2, *, empty: bool = False) -> str:
    with pytest.raises(FlowChanged) as raised:
        migrated(old, flow, workers, empty=empty)
    text = str(raised.value)
    assert "\nHint: " in text
    return text


def built(*build: Callable[[ts.Stream], Any], epochs: Any = "manual") -> ts.Dataflow:
    """A flow of one input from which some things are made, in this order."""
    flow = ts.Dataflow("flow")
    x = flow.input("x", "k long, v long", epochs=epochs)
    for one in build:
        one(x)
    return flow


def counts(x: ts.Stream) -> None:
    x.group_by("k").count(name="counts").capture("counted")


def totals(x: ts.Stream) -> None:
    x.group_by("k").aggregate(total=("sum", "v"), name="totals").capture("totalled")


def unnamed(x: ts.Stream) -> None:
    x.group_by("k").count().capture("counted")


def slow(x: ts.Stream) -> None:
    """Takes a round for each iteration."""
    less = lambda r: (r.k, r.v - 1)  # noqa: E731
    down = x.loop(
        lambda n: n.exchange("v").map(less, "k long, v long", name="less").where(pc.field("v") >= 0),
        name="iterations",
    )
    down.group_by("k").count(name="iterations-counted").capture("slowly")


def send(simulation: Simulation, rows: Sequence[Any], *, epoch: int, run: bool = True) -> None:
    simulation.send("x", rows, epoch=epoch)
    simulation.advance_to("x", epoch + 1)
    simulation.step()
    if run:
        simulation.run()


def started(*build: Callable[[ts.Stream], Any], run: bool = True) -> Simulation:
    simulation = Simulation(built(*build), workers=2, rounds_per_batch=1)
    send(simulation, [(1, 5), (2, 5), (1, 7)], epoch=0, run=run)
    return simulation


# -- what is said of a plan ----------------------------------------------------------------------------------


def test_a_description_is_plain_json_without_lines_of_code() -> None:
    description = built(counts, slow).compile(2).described()

    assert plain(description) == description
    assert __file__ not in json.dumps(description)
    assert "test_migrate" not in json.dumps(description)
    again = built(counts, slow).compile(2)
    assert again.described() == description
    assert not compare(plain(description), again)


def test_differences_are_by_step() -> None:
    before = plain(built(counts, totals).compile(2).described())
    differ = compare(before, built(lambda x: x.distinct(name="counts").capture("counted"), slow).compile(3))

    assert bool(differ)
    assert differ.flow
    assert differ.workers == (2, 3)
    assert differ.removed == ("totals", "totalled")
    assert {"slowly", "iterations-counted"} <= set(differ.added)
    assert differ.changed["counts"]["operator"] == ("aggregate", "distinct")
    assert "operator" not in differ.changed["counted"]
    for workers in (1, 3):
        assert not compare(before, built(counts, totals).compile(workers)).flow


# -- another flow --------------------------------------------------------------------------------------------


def test_an_added_step_starts_empty_if_the_user_says_so_and_others_continue() -> None:
    old = started(counts)
    text = refused(old, built(counts, totals))
    assert f"new: step 'totals' ({__file__}:" in text
    assert 'new_steps="empty"' in text
    go_on(Simulation(built(counts), workers=2), built(counts, totals))  # nothing has passed
    new, made = go_on(old, built(counts, totals), empty=True)
    assert made.added == ("totals", "totalled")
    assert made.removed == {}
    send(new, [(1, 1)], epoch=1)

    assert new.captured["counted"].rows() == {1: [(1, 3)]}
    assert new.captured["totalled"].rows() == {1: [(1, 1)]}
    assert made.lacking == {"totals": 1} == new.coordinator.encode()["lacking"]
    assert lacking_by_output(new.plan, made.lacking) == {"totalled": "totals from epoch 1 on"}
    later, made = go_on(new, built(counts, totals, lambda x: x.capture("all")))
    assert made.lacking == {"totals": 1}, "also after further restarts"
    assert later.plan.fingerprint != new.plan.fingerprint
    assert made.begins == {"all": 2}


def checked(name: str = "positive", action: Any = "drop") -> Callable[[ts.Stream], Any]:
    return lambda x: (
        x.collection().expect(name, "v > 0", action=action).count(name="counts").capture("counted")
    )


def test_an_expectation_of_a_collection_with_another_name_would_count_later_records_only() -> None:
    old = started(checked())
    text = refused(old, built(checked("other")))
    assert "new: step 'other'" in text
    assert "if one is step 'positive', which was removed, give it that name" in text
    assert "made by other steps" in refused(old, built(checked("other", "keep")), empty=True)
    _, made = go_on(old, built(checked("other")), empty=True)
    assert made.lacking.keys() == {"other"}


@pytest.mark.slow
@pytest.mark.share(1)
@pytest.mark.parametrize("after", ["drop", "quarantine", "fail"])
@pytest.mark.parametrize("before", ["drop", "quarantine", "fail"])
def test_actions_that_send_the_same_records_may_be_exchanged(before: str, after: str) -> None:
    new, made = go_on(started(checked(action=before)), built(checked(action=after)))
    assert made.lacking == {}
    send(new, [(1, 1)], epoch=1)
    assert new.captured["counted"].rows() == {1: [(3, -1), (4, 1)]}
    assert new.coordinator.expectations["positive"].checked == 4
    assert "made by other steps" in refused(new, built(checked(action="keep")))


def test_only_a_removed_step_of_the_same_operator_is_said_to_be_renamed() -> None:
    text = refused(started(counts), built(lambda x: x.distinct(name="others").capture("counted")))
    assert "new: step 'others'" in text
    assert "give it that name" not in text


def test_a_removed_step_is_reported_with_its_contents() -> None:
    old = started(counts, totals)
    new, made = go_on(old, built(counts))
    assert made.removed == {"totals": ["state"], "totalled": []}
    send(new, [(1, 1)], epoch=1)

    assert new.captured["counted"].rows() == {1: [(1, 3)]}


def test_a_step_of_another_name_is_another_step() -> None:
    old = started(counts)
    new, made = go_on(
        old, built(lambda x: x.group_by("k").count(name="others").capture("counted")), empty=True
    )
    assert (made.added, made.removed) == (("others",), {"counts": ["state"]})
    text = refused(old, built(lambda x: x.group_by("k").count(name="others").capture("counted")))
    assert "if one is step 'counts', which was removed, give it that name" in text
    send(new, [(1, 1)], epoch=1)

    assert new.captured["counted"].rows() == {1: [(1, 1)]}


@pytest.mark.slow
def test_the_order_of_building_does_not_matter() -> None:
    old = started(counts, totals, slow, run=False)
    assert old.result.rows.num_rows, "something is in flight"
    new, made = go_on(old, built(slow, totals, counts))
    assert (made.added, made.removed) == ((), {})
    new.run()
    send(new, [(1, 1)], epoch=1)
    straight = started(counts, totals, slow)
    send(straight, [(1, 1)], epoch=1)

    for name in ("counted", "totalled", "slowly"):
        description = old.captured[name].rows() | new.captured[name].rows()
        assert description == straight.captured[name].rows()


def test_a_changed_step_is_refused_with_both_sides() -> None:
    old = started(counts)
    text = refused(old, built(lambda x: x.group_by("v").count(name="counts").capture("counted")))

    assert f"step 'counts' ({__file__}:" in text
    assert "holds state, and has changed" in text
    assert "partitioned was ['by k'], is ['by v']" in text
    assert "outputs was ['k int64, count int64'], is ['v int64, count int64']" in text
    assert "give them new names" in text
    assert text.endswith("or start with a new checkpoint.")


def test_the_same_step_on_other_columns_is_refused() -> None:
    old = started(counts)
    wider = ts.Dataflow("flow")
    wider.input("x", "k long, v long", epochs="manual").select("k", v="k", w="v").group_by("k").count(
        name="counts"
    ).capture("counted")

    assert "inputs was ['k int64, v int64'], is ['k int64, v int64, w int64']" in refused(old, wider)


def test_a_changed_step_without_contents_is_accepted() -> None:
    def chosen(column: str) -> Callable[[ts.Stream], Any]:
        return lambda x: (
            x.select("k", v=column)
            .unary_notify(lambda time, batch: batch, "k long, v long", by="k", name="step")
            .capture("out")
        )

    old = started(chosen("v"))
    new, made = go_on(old, built(chosen("k")))
    assert (made.added, made.removed) == ((), {})
    send(new, [(1, 7)], epoch=1)

    assert new.captured["out"].rows() == {1: [(1, 1)]}


def test_a_derived_name_is_refused_in_a_changed_flow() -> None:
    old = started(unnamed)
    new, _ = go_on(old, built(unnamed, totals), empty=True)  # the same step, as there is no other of its kind
    send(new, [(1, 1)], epoch=1)
    assert new.captured["counted"].rows() == {1: [(1, 3)]}
    others = lambda x: x.where(pc.field("v") > 9).group_by("k").count().capture("few")  # noqa: E731
    for text in (
        refused(old, built(others, unnamed)),
        refused(old, built(lambda x: x.select("k", "v").group_by("k").count().capture("too"), unnamed)),
    ):
        assert "step 'aggregate' " in text
        assert "name='aggregate'" in text
    assert "(new: 'select'" in text, "what makes it another flow"
    both = lambda x: (x.distinct().capture("once"), unnamed(x))  # noqa: E731
    text = refused(started(both), built(others, both))
    assert "step 'aggregate' " in text
    assert "distinct" not in text, "it has the name that it had"

    named = lambda x: x.group_by("k").count(name="aggregate").capture("counted")  # noqa: E731
    new, _ = go_on(old, built(named, totals), empty=True)
    send(new, [(1, 1)], epoch=1)
    assert new.captured["counted"].rows() == {1: [(1, 3)]}
    go_on(old, built(unnamed), workers=3)


def test_steps_without_contents_are_added_and_removed_without_names() -> None:
    old = started(counts)
    more = lambda x: counts(x.select("k", w="v").select("k", v="w").where(pc.field("k") > 0))  # noqa: E731
    new, made = go_on(old, built(lambda x: x.select("k").capture("keys"), more))
    assert {"select", "select_2", "select_3", "where"} <= set(made.added)
    send(new, [(1, 1)], epoch=1)

    assert new.captured["counted"].rows() == {1: [(1, 3)]}


def test_a_step_in_an_unnamed_loop_is_unnamed() -> None:
    def loop(name: str | None) -> Callable[[ts.Stream], Any]:
        return lambda x: x.loop(lambda n: n.distinct(name="seen"), name=name).capture("out")

    old = started(loop(None))
    other = lambda x: loop(None)(x.where(pc.field("v") > 5))  # noqa: E731
    assert "step 'loop.seen'" in refused(old, built(lambda x: other(x.select("k", "v")), counts))
    go_on(old, built(loop(None), counts), empty=True)  # it is the only loop of its kind
    go_on(old, built(loop("loop"), counts), empty=True)


def test_records_in_flight_are_never_dropped() -> None:
    old = started(counts, slow, run=False)
    text = refused(old, built(counts))
    assert "step 'iterations." in text
    assert "is not in the flow any more" in text
    assert 'start(trigger="available_now")' in text
    old.run()

    _, made = go_on(old, built(counts))
    assert made.removed["iterations-counted"] == ["state"]


def test_epochs_held_back_by_a_removed_step_are_released_in_the_next_round() -> None:
    def waiting(x: ts.Stream) -> None:
        x.concat(x.unary_notify(lambda time, batch: batch, "k long, v long", name="waits")).capture("out")

    old = Simulation(built(waiting), rounds_per_batch=1)
    old.send("x", [(1, 1)], epoch=0)
    old.step()
    old.schedule.given_budget = Budget(steps=0)
    old.advance_to("x", 1)
    old.step()
    assert old.coordinator.unreleased["out"] == {0}, "all but the notification was done"
    new, made = go_on(old, built(lambda x: x.capture("out")), workers=1)
    assert made.removed["waits"] == ["state", "1 notification"]
    assert made.result.released == []
    assert new.coordinator.unreleased["out"] == {0}
    new.run()

    assert new.captured["out"].rows() == {0: [(1, 1)]}


def test_another_flow_or_another_kind_of_time_is_refused() -> None:
    old = started(counts)
    other = ts.Dataflow("other", times=LEXICOGRAPHIC)
    counts(other.input("x", "k long, v long", epochs="manual"))
    text = refused(old, other)

    assert "its name is 'other', the checkpoint's is 'flow'" in text
    assert "its kind of time is 'Lexicographic', the checkpoint's is 'Time'" in text
    assert "step" not in text, "of another flow its steps say nothing"


def scoped(time: Any) -> ts.Dataflow:
    flow = ts.Dataflow("flow")
    x = flow.input("x", "k long, v long", epochs="manual")
    inside = x.enter(x.scope.inner(name="s", time=time), at="v")
    inside.group_by("k").count(name="counts").leave().capture("out")
    x.distinct(name="once").capture("all")
    return flow


def test_other_inner_times_are_refused_and_a_scope_may_be_added_or_go() -> None:
    def plain() -> ts.Dataflow:
        flow = ts.Dataflow("flow")
        flow.input("x", "k long, v long", epochs="manual").distinct(name="once").capture("all")
        return flow

    old = Simulation(scoped(Descending), workers=2, rounds_per_batch=1)
    old.send("x", [(1, 5)])
    old.run()
    text = refused(old, scoped(int))
    assert "s.counts" in text
    assert "loops was ['s by Descending'], is ['s by int']" in text

    new, made = go_on(old, plain(), workers=1)
    assert "s.counts" in made.removed
    back, _ = go_on(new, scoped(Descending), workers=2, empty=True)
    back.send("x", [(1, 7)])
    back.advance_to("x", 1)
    back.run()
    assert back.captured["all"].rows() == {0: [(1, 5), (1, 7)]}
    assert back.captured["out"].rows() == {0: [(1, 1)]}


# -- inputs and outputs --------------------------------------------------------------------------------------


def two(*names: str, frames: bool = True) -> ts.Dataflow:
    flow = ts.Dataflow("flow")
    for name in names:
        x = flow.source(name, "k long") if frames else flow.input(name, "k long", epochs="manual")
        x.group_by("k").count(name=f"{name}-counts").capture(f"{name}-out")
    return flow


def test_dataframe_sources_keep_their_names_and_order() -> None:
    old = Simulation(two("a", "b"), workers=2, rounds_per_batch=1)
    for names in (("b", "a"), ("a",), ("a", "b", "c")):
        text = refused(old, two(*names))
        assert "DataFrame sources" in text
        assert "[['a', 'clock'], ['b', 'clock']]" in text
        assert str([[name, "clock"] for name in names]) in text
    go_on(old, two("a", "b"))


def test_sources_that_this_package_reads_come_and_go_and_one_of_another_origin_is_refused(
    tmp_path: Path,
) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / "one.csv").write_text("k\n1\n")

    def reads(*names: str) -> ts.Dataflow:
        flow = ts.Dataflow("flow")
        for name in names:
            x = flow.files(name, tmp_path / name, format="csv", schema="k long")
            x.group_by("k").count(name=f"{name}-counts").capture(f"{name}-out")
        return flow

    old = Simulation(reads("a"), workers=2, rounds_per_batch=1)
    for _ in range(3):
        old.send("a", [1])
        old.run()
    new, made = go_on(old, reads("b", "a"))
    assert new.coordinator.inputs == {"a": old.batch, "b": old.batch}
    back, made = go_on(new, reads("a"))
    assert set(made.removed) == {"b", "b-counts", "b-out"}
    back.send("a", [1])
    back.run()
    assert back.captured["a-out"].rows()[old.batch] == [(1, 4)]
    for frames, kind in ((True, ["clock", "dataframe"]), (False, ["manual", "handle"])):
        text = refused(old, two("a", frames=frames))
        assert f"its epochs and origin were ['clock', 'journal'], are {kind}" in text


def test_handles_are_added_and_removed_and_a_new_one_begins_at_the_oldest_epoch() -> None:
    old = Simulation(two("a", "b", frames=False), workers=2, rounds_per_batch=1)
    for name, epoch in (("a", 3), ("b", 5)):
        old.advance_to(name, epoch)
        old.run()
    new, made = go_on(old, two("b", "c", frames=False))
    assert new.coordinator.inputs == {"b": 5, "c": 3}
    assert set(made.removed) == {"a", "a-counts", "a-out"}
    new.send("c", [7], epoch=3)
    new.advance_to("c", 4)
    new.run()
    assert new.captured["c-out"].rows() == {3: [(7, 1)]}


def test_a_new_input_with_clock_epochs_begins_at_the_next_batch() -> None:
    old = Simulation(built(counts, epochs="clock"), rounds_per_batch=1)
    for _ in range(4):
        old.send("x", [(1, 1)])
        old.run()
    more = built(counts, epochs="clock")
    more.input("y", "k long").group_by("k").count(name="y-counts").capture("y-out")
    new, _ = go_on(old, more, workers=1)
    assert new.coordinator.inputs == {"x": old.batch, "y": old.batch}
    new.send("y", [3])
    new.send("x", [(1, 1)])
    new.run()
    assert new.captured["y-out"].rows() == {old.batch: [(3, 1)]}
    assert new.captured["counted"].rows() == {old.batch: [(1, 5)]}


def test_an_input_of_one_name_and_other_columns_is_refused() -> None:
    old = started(counts)
    flow = ts.Dataflow("flow")
    flow.input("x", "k long, v string", epochs="manual").group_by("k").count(name="others").capture("out")

    assert "step 'x'" in (text := refused(old, flow))
    assert "outputs was ['k int64, v int64'], is ['k int64, v string']" in text
    assert "give the new input another name" in text


def test_a_new_output_gets_no_released_epochs() -> None:
    old = started(counts)
    for epoch in (1, 2):
        send(old, [(1, 1)], epoch=epoch)
    assert old.coordinator.last_released == {"counted": 2}
    new, _ = go_on(old, built(counts, lambda x: x.capture("all")))
    assert new.coordinator.last_released == {"counted": 2, "all": 2}
    assert new.result.frontier == {"counted": [[3]], "all": [[3]]}
    _, made = go_on(old, built(counts, lambda x: x.distinct(per="time", name="each").capture("all")))
    assert made.begins == {"all": 3}, "of outputs only"
    send(new, [(4, 4)], epoch=3)

    assert new.captured["all"].rows() == {3: [(4, 4)]}


def test_a_new_channel_with_records_of_a_complete_epoch_is_refused() -> None:
    def flow(*, joined: bool) -> ts.Dataflow:
        made = ts.Dataflow("flow")
        a, b = (made.input(name, "k long", epochs="manual") for name in "ab")
        (b.concat(a) if joined else b).group_by("k").count(name="counts").capture("out")
        a.probe("a-seen")
        return made

    old = Simulation(flow(joined=False), workers=2, rounds_per_batch=1)
    old.advance_to("a", 1)
    old.advance_to("b", 4)
    old.run()
    text = refused(old, flow(joined=True))
    assert "step 'counts'" in text
    assert "epoch 1 over a new channel" in text
    assert "with all inputs at one epoch" in text
    old.advance_to("a", 4)
    old.run()
    go_on(old, flow(joined=True))


def test_a_changed_step_without_contents_remembers_no_complete_epochs() -> None:
    def flow(*, changed: bool) -> ts.Dataflow:
        made = ts.Dataflow("flow")
        a, b = (made.input(name, "k long", epochs="manual") for name in "ab")
        of = ("sum", "k") if changed else "count"
        counts = (b.concat(a) if changed else b).group_by("k").aggregate(n=of, name="counts")
        counts.capture("sums" if changed else "counted")
        a.probe("a-seen")
        return made

    old = Simulation(flow(changed=False), workers=2, rounds_per_batch=1)
    old.advance_to("a", 1)
    old.advance_to("b", 4)
    old.run()
    new, _ = go_on(old, flow(changed=True))
    new.send("a", [3])
    for name in "ab":
        new.close(name)
    new.run()

    assert new.captured["sums"].rows()[1] == [(3, 3)]


class Starts(ts.Vertex):
    """Says at some epochs, asked for from the start, on which worker it is."""

    initial = (0, 1, 2, 3)

    def on_recv(self, edge: int, time: Any, batch: pa.Table) -> None:
        """Nothing."""

    def on_notify(self, time: Any) -> None:
        self.send_by(0, time, pa.table({"worker": [self.worker]}))


def starts(x: ts.Stream) -> None:
    x.flow.vertex(Starts(), x, "worker long", name="starts").capture("started")


def test_a_new_vertex_gets_initial_notifications_of_open_epochs() -> None:
    old = started(counts)
    send(old, [(1, 1)], epoch=1)
    new, _ = go_on(old, built(counts, starts), workers=3, empty=True)
    for epoch in (2, 3, 4):
        send(new, [(1, 1)], epoch=epoch)

    assert new.captured["started"].rows() == {2: [(0,), (1,), (2,)], 3: [(0,), (1,), (2,)], 4: []}
    assert new.captured["counted"].rows()[4] == [(1, 6)]


def test_a_worker_that_never_ran_keeps_its_initial_notifications() -> None:
    old = Simulation(built(starts), workers=2, rounds_per_batch=1)
    assert old.states == [None, None]
    new, _ = go_on(old, built(starts), workers=3)
    send(new, [], epoch=0)

    assert new.captured["started"].rows() == {0: [(0,), (1,), (2,)]}


# -- another number of workers -------------------------------------------------------------------------------


class Seen(ts.Vertex):
    """Passes what it has not seen; keeps it in a way of its own."""

    def __init__(self) -> None:
        self.keys: set[int] = set()

    def on_recv(self, edge: int, time: Any, batch: pa.Table) -> None:
        new = {*batch["k"].to_pylist()} - self.keys
        self.keys |= new
        self.send_by(0, time, pa.table({"k": pa.array(sorted(new), pa.int64())}))


class Repartitioned(Seen):
    """Repartitions its own state."""

    def repartition(self, states: Any, workers: int, partition: Any) -> list[dict[str, Any]]:
        keys = set.union(*(state["keys"] for state in states))
        return [{"keys": {*one["k"].to_pylist()}} for one in partition(0, pa.table({"k": sorted(keys)}))]


class Logged(Repartitioned):
    logged = True


def seen(kind: type[Seen], *, by: Any = "k") -> Callable[[ts.Stream], Any]:
    return lambda x: x.flow.vertex(kind(), x, "k long", by=by, name="seen").capture("out")


def test_state_of_unknown_partitioning_is_refused_by_name() -> None:
    old = started(seen(Seen))
    text = refused(old, built(seen(Seen)), workers=3)

    assert "step 'seen'" in text
    assert "does not say how to partition that over 3 workers instead of 2" in text
    assert "write repartition()" in text
    assert "start with workers=2" in text
    go_on(old, built(seen(Seen)))


def test_a_vertex_without_state_needs_no_repartition_method() -> None:
    old = Simulation(built(seen(Seen)), workers=2, rounds_per_batch=1)
    send(old, [], epoch=0)
    new, _ = go_on(old, built(seen(Seen)), workers=3)
    send(new, [(1, 1), (1, 2)], epoch=1)

    assert new.captured["out"].rows() == {1: [(1,)]}


@pytest.mark.parametrize("kind", [Repartitioned, Logged])
def test_a_vertex_may_repartition_its_own_state(kind: type[Seen]) -> None:
    old = started(seen(kind))
    for workers in (1, 3, 8):
        new, _ = go_on(old, built(seen(kind)), workers=workers)
        send(new, [(k, 0) for k in range(10)], epoch=1)
        assert new.captured["out"].rows() == {1: [(0,), *((k,) for k in range(3, 10))]}


def test_an_error_in_repartition_names_the_step() -> None:
    class Wrong(Seen):
        def repartition(self, states: Any, workers: int, partition: Any) -> list[dict[str, Any]]:
            return [{"keys": set()}]

    with pytest.raises(VertexError, match="step 'seen'"):
        migrated(started(seen(Wrong)), built(seen(Wrong)), 3)


def test_without_a_repartition_method_all_workers_must_have_the_same_notifications() -> None:
    class Waits(ts.Vertex):
        def on_recv(self, edge: int, time: Any, batch: pa.Table) -> None:
            self.notify_at(ts.Time(time.epoch + 1))

        def on_notify(self, time: Any) -> None:
            self.send_by(0, time, pa.table({"n": [1]}))

    waits = lambda x: x.flow.vertex(Waits(), x, "n long", by="k", name="waits").capture("out")  # noqa: E731
    old = Simulation(built(waits), workers=2, rounds_per_batch=1)
    send(old, [(1, 1)], epoch=0)

    assert "step 'waits'" in (text := refused(old, built(waits), workers=3))
    assert "1 notification," in text


def test_broadcast_copies_are_not_repartitioned() -> None:
    def delivered(x: ts.Stream) -> None:
        far = x.exchange("v").map(lambda r: (r.k, r.v), "k long, v long").broadcast()
        far.unary_notify(lambda time, batch: batch, "k long, v long", name="waits").capture("out")

    old = started(delivered, run=False)
    for workers in (1, 3):
        assert "every worker has a copy" in refused(old, built(delivered), workers=workers)
    old.run()
    go_on(old, built(delivered), workers=3)


def test_batches_of_unknown_partitioning_are_refused() -> None:
    def far(x: ts.Stream) -> None:
        made = x.exchange("v").map(lambda r: (r.k,), "k long")
        made.unary_notify(lambda time, batch: [batch.num_rows], "n long", name="sizes").capture("out")

    old = Simulation(built(far), workers=2, rounds_per_batch=1)
    old.send("x", [(1, 5), (2, 6)])
    old.run()
    text = refused(old, built(far), workers=3)
    assert "step 'sizes'" in text
    assert "holds state of input 0" in text
    assert 'start(trigger="available_now")' in text
    go_on(old, built(far), workers=1)
    old.advance_to("x", 1)
    old.run()
    go_on(old, built(far), workers=3)


def test_batches_left_by_a_budget_continue_on_other_workers() -> None:
    def far(x: ts.Stream) -> None:
        kept = x.exchange("k").map(lambda r: (r.k, r.v), "k long, v long")
        kept.group_by("k").count(name="counts").capture("out")

    flow = built(far)
    old = Simulation(flow, workers=2, budget=Budget(steps=1), rounds_per_batch=1)
    for epoch in range(3):
        old.send("x", [(k, epoch) for k in range(6)], epoch=epoch)
        old.advance_to("x", epoch + 1)
        old.step()
    assert old.result.stats["left"]
    new, made = go_on(old, built(far), workers=5)
    assert made.result.stats["left"] == len({w for w, worker in enumerate(made.workers) if worker.queue})
    new.run()

    description = old.captured["out"].rows() | new.captured["out"].rows()
    assert description == {epoch: [(k, epoch + 1) for k in range(6)] for epoch in range(3)}


@pytest.mark.slow
def test_another_flow_on_another_number_of_workers() -> None:
    old = started(counts, slow, run=False)
    new, made = go_on(old, built(slow, totals, counts), workers=5, empty=True)
    assert made.worker_counts == (2, 5)
    assert made.added == ("totals", "totalled")
    new.run()
    send(new, [(1, 1)], epoch=1)
    straight = started(counts, slow)
    send(straight, [(1, 1)], epoch=1)

    for name in ("counted", "slowly"):
        assert (old.captured[name].rows() | new.captured[name].rows()) == straight.captured[name].rows()


# -- what is only shown --------------------------------------------------------------------------------------


def pairs_by(function: Callable[[Any], Any]) -> Callable[[ts.Stream], None]:
    """Functions of the user's wherever one may stand, with nothing named behind them."""

    def build(x: ts.Stream) -> None:
        y = x.exchange("k").map(function, "k long, v long").where(lambda row: function(row)[0] >= 0)
        z = y.flat_map(lambda row: [function(row)], "k long, v long").branch(function).trues
        z.group_by("k").count().capture("counted")
        z.collection().map(function, "k long, v long").count(keys="k").changes().capture("changes")

    return build


def test_a_renamed_function_is_no_difference() -> None:
    def swapped(row: Any) -> Any:
        return row.v, row.k

    def turned(row: Any) -> Any:
        return row.v, row.k

    old = started(pairs_by(swapped))
    for function in (turned, lambda row: (row.v, row.k)):
        assert not compare(plain(old.plan.described()), built(pairs_by(function)).compile(2))
    new, _ = go_on(old, built(pairs_by(turned)))
    send(new, [(2, 5)], epoch=1)

    assert new.captured["counted"].rows() == {1: [(2, 2)]}
    assert new.captured["changes"].rows() == {1: [(5, 2, -1), (5, 3, 1)]}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "after"),
    [
        (lambda x: x.min("v", keys="k", name="s"), lambda x: x.max("v", keys="k", name="s")),
        (lambda x: x.distinct(name="s"), lambda x: x.distinct(expire=2, name="s")),
        (lambda x: x.distinct(expire=3, name="s"), lambda x: x.distinct(expire=2, name="s")),
        (lambda x: x.expire(after=3, name="s"), lambda x: x.expire(after=2, name="s")),
        (
            lambda x: x.group_by("k").aggregate(a=("sum", "v"), name="s"),
            lambda x: x.group_by("k").aggregate(a=("max", "v"), name="s"),
        ),
        (
            lambda x: x.group_by("k").aggregate(a=("sum", "v"), name="s"),
            lambda x: x.group_by("k").aggregate(a=("sum", "v"), per="time", name="s"),
        ),
        (
            lambda x: x.join(x.select(a="v", w="k"), left="k", right="w", name="s"),
            lambda x: x.join(x.select(a="v", w="k"), left="v", right="w", name="s"),
        ),
        (
            lambda x: x.collection().top_k(2, "v", keys="k", name="s").changes(),
            lambda x: x.collection().top_k(3, "v", keys="k", name="s").changes(),
        ),
        (
            lambda x: x.collection().top_k(2, "v", keys="k", name="s").changes(),
            lambda x: x.collection().top_k(2, "v", keys="k", descending=False, name="s").changes(),
        ),
        (
            lambda x: x.collection().min("v", keys="k", name="s").changes(),
            lambda x: x.collection().max("v", keys="k", name="s").changes(),
        ),
        (
            lambda x: x.collection().arrange("k", name="s").count().changes(),
            lambda x: x.collection().arrange("v", name="s").count(keys="k").changes(),
        ),
        (
            lambda x: x.where(pc.field("k") > 0).distinct(name="s"),
            lambda x: x.where(pc.field("k") > 0).distinct().settle(name="s"),
        ),
    ],
)
def test_parameters_of_a_step_are_compared(before: Any, after: Any) -> None:
    old = started(lambda x: before(x).capture("out"))

    assert "step 's'" in refused(old, built(lambda x: after(x).capture("out")))


def test_another_zone_of_the_session_is_told() -> None:
    def words(old: str, new: str) -> str:
        changed = {"where": {part: ({part: old}, {part: new}) for part in ("predicate", "other")}}
        empty = frozenset[str]()
        parts = {"workers": (1, 1), "added": (), "removed": (), "hot_keys": False, "same": empty}
        return Differences(changed=changed, certain=empty, flow=True, **parts).in_words()

    zoned = "at > TIMESTAMP '2026-01-01' /* in Europe/Berlin */"
    assert words(zoned, zoned.partition(" /*")[0]) == (
        "changed: 'where'; times are read in UTC, before in Europe/Berlin, by spark.sql.session.timeZone"
    )
    assert words(zoned, "at IS NULL") == "changed: 'where'"
