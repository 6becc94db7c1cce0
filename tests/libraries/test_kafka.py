"""Reading a topic back in a stream: each record once, whatever was written again and however it is read."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

import timely_spark as ts
from tests.support.rescaling import move
from timely_spark.errors import BadArgument, GraphError, SchemaError
from timely_spark.testing import Simulation

COLUMNS = "topic string, partition int, flow string, epoch long, record string, n long"
Row = tuple[Any, ...]


def written(r: random.Random, flow: str, partitions: int) -> tuple[list[list[Row]], Counter[Row]]:
    """What a flow leaves in each partition, some epochs in several tries, and the records without repeats."""
    logs: list[list[Row]] = [[] for _ in range(partitions)]
    records: Counter[Row] = Counter()
    for epoch in sorted(r.sample(range(100), 8)):
        rows = [("t", n % partitions, flow, epoch, f"{n}", n % 5) for n in range(r.randrange(12))]
        records.update(rows)
        for _ in range(r.choice([0, 0, 1, 2])):  # tries that fail after a part
            for row in r.sample(rows, r.randrange(len(rows) + 1)):
                logs[row[1]].append(row)
        for row in r.sample(rows, len(rows)):
            logs[row[1]].append(row)
        if rows and r.random() < 0.3:  # a killed driver's task goes on for a while
            logs[rows[0][1]].append(rows[0])
    return logs, records


def merged(r: random.Random, *logs: list[Row]) -> list[Row]:
    places = [i for i, log in enumerate(logs) for _ in log]
    r.shuffle(places)
    left = [iter(log) for log in logs]
    return [next(left[i]) for i in places]


@pytest.mark.slow
@pytest.mark.share(3)
@pytest.mark.parametrize("seed", range(6))
def test_each_record_passes_once(seed: int) -> None:
    r = random.Random(seed)
    (one, mine), (two, theirs) = (written(r, flow, 3) for flow in ("one", "two"))
    foreign = [("t", 0, None, None, None, 7), ("t", 0, None, None, None, 7)]
    logs = [merged(r, *pair) for pair in zip(one, two, strict=True)]
    read = merged(r, *logs, foreign)  # in each partition in its order
    flow = ts.Dataflow("read back")
    ts.kafka.drop_repeats(flow.source("records", COLUMNS)).capture("out")
    crashes = r.choice([0, 0.2])
    simulation = Simulation(flow, workers=r.choice([1, 2, 3, 8]), seed=seed, crashes=crashes)
    while read:
        size = r.randrange(1, 30)
        simulation.send("records", read[:size])
        read = read[size:]
        simulation.run()
        if not crashes and r.random() < 0.3:
            move(simulation, flow, r.choice([1, 2, 3, 8]))

    out = [row for rows in simulation.captured["out"].rows().values() for row in rows]
    assert Counter(out) == mine + theirs + Counter(foreign)


def test_wrong_columns_loops_and_other_things_are_refused() -> None:
    flow = ts.Dataflow("wrong")
    with pytest.raises(SchemaError, match=r"asks for columns \['topic', "):
        ts.kafka.drop_repeats(flow.source("a", "n long"))
    with pytest.raises(SchemaError, match="Hint: give the columns the types that"):
        ts.kafka.drop_repeats(flow.source("b", COLUMNS.replace("epoch long", "epoch string")))
    with pytest.raises(GraphError, match="inside loop"):
        flow.source("c", COLUMNS).loop(ts.kafka.drop_repeats)
    for call in (ts.kafka.drop_repeats, ts.kafka.origin):
        with pytest.raises(BadArgument, match="DataFrame"):
            call(7)
