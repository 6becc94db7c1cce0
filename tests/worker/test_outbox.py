"""An outbox gives each worker what it would be given if its records were combined apart."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import timely_spark as ts
from timely_spark.compiler.plan import Channel, Plan
from timely_spark.state.arrow import from_bytes
from timely_spark.state.exchange import partitioned
from timely_spark.times import Time
from timely_spark.worker.outbox import Outbox

Rows = list[tuple[int, int]]

PLANS: dict[tuple[str, int], Plan] = {}


def flow(kind: str) -> ts.Dataflow:
    built = ts.Dataflow(kind)
    records = built.input("x", "k long, v long").filter(lambda row: True, name="each")
    if kind == "least":
        records.min("v", keys=["k"]).capture("out")
    elif kind == "in a loop":
        records.loop(lambda stream: (stream.min("v", keys=["k"], name="least"),) * 2).capture("out")
    elif kind == "in a loop, not combined":
        others = built.input("y", "k long, w long")

        def step(least: ts.Stream) -> ts.Stream:
            joined = least.join(least.scope.enter(others), on="k").select(k="w", v="v")
            return joined.concat(least).min("v", keys=["k"])

        records.loop(step).capture("out")
    elif kind == "not combined":
        records.exchange("k").map(tuple, "k long, v long").capture("out")
    else:
        records.broadcast().map(tuple, "k long, v long").capture("out")
    return built


def an_exchange(plan: Plan) -> Channel:
    return next(channel for channel in plan.channels if channel.exchange is not None)


def table(rows: Rows) -> pa.Table:
    return pa.table({"k": [k for k, _ in rows], "v": [v for _, v in rows]})


def combined_apart(plan: Plan, channel: Channel, sent: list[tuple[Any, pa.Table]], worker: int) -> Any:
    """By receiver and time, the records of each receiver, combined."""
    node, found = plan.nodes[channel.target], dict[tuple[int, Any], list[tuple[Any, pa.Table]]]()
    combine = node.template.combine
    for time, batch in sent:
        assert channel.exchange is not None
        for to, part in partitioned(batch, channel.exchange, plan.workers).items():
            key = plan.times.coarse(time, node.ignored_counters) if combine else time
            if to != worker:
                found.setdefault((to, key), []).append((time, part))
    result = {}
    for (to, _), parts in found.items():
        latest = parts[0][0]
        for time, _ in parts:
            latest = latest.join(time)
        whole = pa.concat_tables([part for _, part in parts])
        result[to, latest] = (whole if combine is None else combine(channel.input, whole)).to_pylist()
    return result


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["least", "in a loop", "in a loop, not combined", "not combined", "to all"])
@settings(max_examples=25)
@given(
    sent=st.lists(
        st.tuples(st.integers(0, 2), st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3)), min_size=1))
    ),
    workers=st.sampled_from([2, 3, 9]),
)
def test_each_worker_gets_its_records_as_if_combined_apart(
    kind: str, sent: list[tuple[int, Rows]], workers: int
) -> None:
    plan = PLANS.setdefault((kind, workers), flow(kind).compile(workers=workers))
    channel, worker = an_exchange(plan), 1
    times = [Time(0, n) if "loop" in kind else Time(n) for n, _ in sent]
    batches = [(time, table(rows)) for time, (_, rows) in zip(times, sent, strict=True)]
    outbox = Outbox(plan, worker)
    own = [outbox.add(channel, time, batch) for time, batch in batches]

    assert channel.exchange is not None
    for (_, batch), kept in zip(batches, own, strict=True):
        mine = partitioned(batch, channel.exchange, workers).get(worker)
        assert (kept is None) == (mine is None)
        assert kept is None or mine is None or kept.equals(mine)
    found = {
        (to, time): (rows, sorted(from_bytes(payload).to_pylist(), key=str))
        for _, time, to, rows, payload in outbox.messages()
    }
    expected = combined_apart(plan, channel, batches, worker)
    assert found == {key: (len(rows), sorted(rows, key=str)) for key, rows in expected.items()}


def test_records_for_all_workers_are_encoded_once() -> None:
    plan = flow("to all").compile(workers=5)
    outbox = Outbox(plan, 0)
    outbox.add(an_exchange(plan), Time(0), table([(1, 2)]))
    payloads = [payload for *_, payload in outbox.messages()]
    assert len(payloads) == 4
    assert len({id(payload) for payload in payloads}) == 1


def test_changes_that_cancel_each_other_are_no_message() -> None:
    built = ts.Dataflow("none")
    changes = built.input("x", "k long, change long").collection(diff="change")
    changes.map(lambda row: (row.k,), "k long").distinct().changes().capture("out")
    plan = built.compile(workers=2)
    channel, outbox = an_exchange(plan), Outbox(plan, 0)
    batch = pa.table({"k": range(10), "__timely_diff": [1] * 10})
    outbox.add(channel, Time(0), batch)
    assert [rows for *_, rows, _ in outbox.messages()]
    outbox = Outbox(plan, 0)
    outbox.add(channel, Time(0), batch)
    outbox.add(channel, Time(0), batch.set_column(1, "__timely_diff", pa.array([-1] * 10)))
    assert not list(outbox.messages())


def test_no_record_is_lost_where_some_batches_have_hot_keys() -> None:
    built = ts.Dataflow("hot")
    large, small = (built.input(name, f"k long, {name} long").collection() for name in ("large", "small"))
    large.join(small, on="k", skew=[0]).changes().capture("out")
    plan, found = built.compile(workers=3), list[tuple[int, dict[str, Any]]]()
    by = [channel for channel in plan.channels if channel.exchange is not None and channel.exchange.skew]
    for channel in by:
        outbox = Outbox(plan, 0)
        assert channel.exchange is not None
        assert channel.exchange.skew is not None
        side = "large" if channel.exchange.skew.spread else "small"
        for keys in ([0, 1, 2], [3, 4, 5, 6]):  # with the hot key, and without
            batch = pa.table({"k": keys, side: keys, "__timely_diff": [1] * len(keys)})
            outbox.add(channel, Time(0), batch)
            for to, part in partitioned(batch, channel.exchange, 3).items():
                found += [(to, row) for row in part.to_pylist() if to != 0]
        for _, _, to, rows, payload in outbox.messages():
            sent = from_bytes(payload).to_pylist()
            assert rows == len(sent)
            for row in sent:
                found.remove((to, row))
        assert found == []
        outbox = Outbox(plan, 0)
        for diff in (1, -1):
            changes = batch.set_column(2, "__timely_diff", pa.array([diff] * batch.num_rows))
            outbox.add(
                channel, Time(0), pa.concat_tables([changes, changes.set_column(0, "k", pa.array([0] * 4))])
            )
        assert not list(outbox.messages()), "changes that cancel each other"
    assert len(by) == 2
