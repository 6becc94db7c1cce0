"""Stable matchings of preferences that change, against the sequential algorithm of Gale and Shapley."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

import timely_spark as ts
from timely_spark.errors import GraphError, SchemaError
from timely_spark.graphs import stable_matching

SCHEMA = "src long, dst long, src_rank long, dst_rank long"


def gale_shapley(edges: list[tuple[Any, ...]]) -> Iterable[tuple[Any, Any]]:
    """One proposal after another."""
    lists: dict[Any, list[Any]] = {}
    for src, dst, first, second in sorted({*edges}, key=lambda edge: (edge[2], edge[1], edge[3])):
        lists.setdefault(src, []).append((second, src, first, dst))
    held: dict[Any, Any] = {}
    free = sorted(lists)
    while free:
        proposes = free.pop()
        if not lists[proposes]:
            continue
        proposal = lists[proposes].pop(0)
        dst = proposal[-1]
        if dst in held and held[dst] < proposal:
            free.append(proposes)
            continue
        if dst in held:
            free.append(held[dst][1])
        held[dst] = proposal
    return [(proposal[1], dst) for dst, proposal in held.items()]


def changing(n: int, epochs: int, seed: int) -> list[list[tuple[Any, ...]]]:
    """Preferences, some equal; in each epoch some pairs go and others come."""
    draw = np.random.default_rng(seed)
    pairs = [
        (a, b, *ranks)
        for (a, b), ranks in zip(np.ndindex(n, n), draw.integers(0, 6, (n * n, 2)).tolist(), strict=True)
    ]
    draw.shuffle(pairs)
    there = [tuple(map(int, pair)) for pair in pairs[: n * n * 2 // 3]]
    waiting = [tuple(map(int, pair)) for pair in pairs[n * n * 2 // 3 :]]
    of = [[(*pair, 1) for pair in there]]
    for _ in range(epochs):
        gone, come = [there.pop(0) for _ in range(3)], [waiting.pop(0) for _ in range(2)]
        of.append([*((*pair, -1) for pair in gone), *((*pair, 1) for pair in come)])
        there += come
    return of


@pytest.mark.slow
@pytest.mark.parametrize(
    "how",
    [
        {"workers": 1},
        {"workers": 3, "seed": 1},
        {"workers": 2, "together": True},
        {"workers": 8, "crashes": 0.05, "seed": 2},
    ],
)
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.campaign)])
def test_pairs_come_and_go(follows, how, seed) -> None:
    rows = follows(stable_matching, gale_shapley, {"pairs": (SCHEMA, changing(6, 4, seed))}, **how)

    assert sum(map(len, rows.values())) > 8


@pytest.mark.slow
def test_all_agree_on_whom_they_prefer(follows) -> None:
    """Of equal lists every one but the first is refused again and again."""
    pairs = [(a, b, b, a, 1) for a in range(5) for b in range(5)]

    follows(stable_matching, gale_shapley, {"pairs": (SCHEMA, [pairs, [(0, 0, 0, 0, -1)]])}, workers=2)


def test_invalid_arguments_are_refused() -> None:
    pairs = ts.Dataflow("refused").input("pairs", SCHEMA).collection()

    with pytest.raises(SchemaError, match=r"(?s)src_rank and dst_rank are .*test_matching.*Hint"):
        stable_matching(pairs, src_rank="dst_rank")
    with pytest.raises(SchemaError, match=r"(?s)asks for columns \['x'\].*Hint"):
        stable_matching(pairs, src_rank="x")
    with pytest.raises(GraphError, match=r"(?s)not a collection.*test_matching.*Hint"):
        stable_matching(pairs.stream)
