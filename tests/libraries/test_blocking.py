"""Blocking, against the definition in plain Python, under insertions and deletions."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator
from typing import Any

import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import timely_spark as ts
from timely_spark.errors import BadArgument, GraphError, SchemaError

SCHEMA = "id long, name string, city string, n double, tags array<string>, diff long"
RULES = ["name", ["city", "name"], "tags", [pc.field("n") * 2, "tags"]]
LARGEST = 3


def blocks(record: tuple[Any, ...]) -> Iterator[tuple[int, Any]]:
    """The blocks of a record: the number of a rule, and a value that is equal where texts are."""
    _, name, city, n, tags = record

    def good(value: Any) -> bool:
        return value is not None and value == value and str(value).strip() != ""  # noqa: PLR0124 - NaN

    for rule, values in enumerate([[name], [(city, name)], tags or [], [(n, tag) for tag in tags or []]]):
        for value in values:
            if all(map(good, value if isinstance(value, tuple) else (value,))):
                yield rule, value


def expected(records: dict[int, Any]) -> tuple[dict[tuple[int, int], int], dict[tuple[int, Any], int]]:
    """The least rule of each pair, and the sizes of blocks that are too large."""
    members: dict[tuple[int, Any], set[int]] = {}
    for number, record in records.items():
        for block in blocks(record):
            members.setdefault(block, set()).add(number)
    pairs: dict[tuple[int, int], int] = {}
    for (rule, _), own in members.items():
        if len(own) <= LARGEST:
            for pair in itertools.combinations(sorted(own), 2):
                pairs[pair] = min(rule, pairs.get(pair, rule))
    return pairs, {block: len(own) for block, own in members.items() if len(own) > LARGEST}


def drawn(draw: random.Random, number: int) -> tuple[Any, ...]:
    texts = [None, "", " ", "a", "b|", "|b", "b\\", "b"]
    tags = draw.choice([None, [], [draw.choice(texts) for _ in range(3)]])
    return number, draw.choice(texts), draw.choice(texts), draw.choice([None, math.nan, 0.0, -0.0, 2.5]), tags


@pytest.mark.slow
@settings(max_examples=settings().max_examples // 2)
@given(seed=st.integers(0, 1 << 32))
def test_pairs_are_those_of_the_present_records_at_every_epoch(seed: int) -> None:
    draw = random.Random(seed)
    flow = ts.Dataflow("blocking")
    stream = flow.input("records", SCHEMA, epochs="manual")
    records = stream.collection(diff="diff")
    candidates = ts.blocking(records, RULES, max_size=LARGEST, columns=["name"])
    candidates.pairs.changes().capture("pairs")
    candidates.large.changes().capture("large")
    present: dict[int, Any] = {}
    epochs, states = [], []
    for _ in range(4):
        changes = []
        for number in draw.sample(range(8), draw.randint(0, 5)):
            if number in present:
                changes.append((*present.pop(number), -1))
            if draw.random() < 0.7:
                present[number] = drawn(draw, number)
                changes.append((*present[number], 1))
        epochs.append(changes)
        states.append(dict(present))

    out = ts.testing.run(flow, {"records": epochs}, workers=draw.choice([1, 3]), seed=seed)

    for epoch, now in enumerate(states):
        pairs, large = expected(now)
        rows = ts.snapshot(out["pairs"], at=epoch).to_pylist()
        assert {(row["a"], row["b"]): row["rule"] for row in rows} == pairs
        assert len(rows) == len(pairs)
        assert all(row["name_a"] == now[row["a"]][1] and row["name_b"] == now[row["b"]][1] for row in rows)
        sizes = sorted(
            (row["rule"], row["records"]) for row in ts.snapshot(out["large"], at=epoch).to_pylist()
        )
        assert sizes == sorted((rule, size) for (rule, _), size in large.items())


def test_a_large_block_is_told_with_its_value_and_its_pairs_come_when_it_is_smaller() -> None:
    flow = ts.Dataflow("large")
    records = flow.input("records", "id string, city string, year int, diff long").collection(diff="diff")
    candidates = ts.blocking(records, [["city", "year"]], max_size=2)
    candidates.pairs.capture("pairs")
    candidates.large.capture("large")
    come = [(name, "a|b", 1990, 1) for name in "xyz"]

    out = ts.testing.run(flow, {"records": [come, [("y", "a|b", 1990, -1)]]})

    assert out["large"].rows() == {0: [(0, "a\\|b|1990", 3, 1)], 1: [(0, "a\\|b|1990", 3, -1)]}
    assert out["pairs"].rows() == {0: [], 1: [("x", "z", 0, 1)]}


def test_what_cannot_be_blocks_is_refused_when_the_flow_is_built() -> None:
    flow = ts.Dataflow("refused")
    stream = flow.input("records", "id long, name string, raw binary, parts array<struct<x: long>>")
    records = stream.collection()
    for rules in ([], "name", ["name", []]):
        with pytest.raises(BadArgument, match=r"(?s)blocking: rules=.*Hint: give a list"):
            ts.blocking(records, rules, max_size=2)
    with pytest.raises(BadArgument, match=r"blocking: max_size=1 is not an integer from 2"):
        ts.blocking(records, ["name"], max_size=1)
    for rule in ("raw", "parts"):
        with pytest.raises(SchemaError, match=rf"(?s)blocking: the values of {rule} are .*Hint: make texts"):
            ts.blocking(records, ["name", [rule, "name"]], max_size=2)
    with pytest.raises(SchemaError, match=r"(?s)'blocking' asks for columns \['nam'\].*did you mean 'name'"):
        ts.blocking(records, ["name"], max_size=2, columns=["nam"])
    with pytest.raises(GraphError, match="collection"):
        ts.blocking(stream, ["name"], max_size=2)  # type: ignore[arg-type]
