"""Changing graphs, and checks of an algorithm's result after each epoch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

import timely_spark as ts
from tests.support.accumulated import after_each
from timely_spark.testing import run

Epochs = list[list[tuple[Any, ...]]]


@pytest.fixture
def follows() -> Callable[..., dict[int, list[tuple[Any, ...]]]]:
    """Check an algorithm's accumulated changes at each epoch against an oracle.

    `inputs` has for each input a schema, and epochs of records with diffs. The oracle gets for each input the
    accumulated records, repeated by multiplicity.
    """

    def check(
        algorithm: Callable[..., ts.Collection],
        oracle: Callable[..., Iterable[tuple[Any, ...]]],
        inputs: Mapping[str, tuple[str, Epochs]],
        **how: Any,
    ) -> dict[int, list[tuple[Any, ...]]]:
        flow = ts.Dataflow("follows")
        given = [flow.input(name, f"{schema}, diff long") for name, (schema, _) in inputs.items()]
        algorithm(*(one.collection(diff="diff") for one in given)).changes().capture("out")
        epochs = {name: of for name, (_, of) in inputs.items()}
        rows = run(flow, epochs, **how)["out"].rows()

        assert all(diff for changes in rows.values() for *_, diff in changes)
        number = max(map(len, epochs.values()))
        totals = (after_each(changes, number) for changes in (rows, *epochs.values()))
        for epoch, (results, *accumulated) in enumerate(zip(*totals, strict=True)):
            records = oracle(*(list(one.elements()) for one in accumulated))
            expected = Counter(tuple(record) for record in records)
            assert results == expected, f"epoch {epoch}"
        return rows

    return check


@pytest.fixture
def changing() -> Callable[..., Epochs]:
    """Random insertions and deletions of edges: some repeated, some self-loops; deletes present ones."""

    def made(
        nodes: int, edges: int, epochs: int, *, changes: int = 4, seed: int = 0, weights: Sequence[Any] = ()
    ) -> Epochs:
        draw = np.random.default_rng(seed)
        present: list[tuple[Any, ...]] = []
        of: Epochs = []
        for epoch in range(epochs):
            now: list[tuple[Any, ...]] = []
            for _ in range(edges if epoch == 0 else changes):
                if epoch and present and draw.random() < 0.55:
                    now.append((*present.pop(draw.integers(len(present))), -1))
                    continue
                edge = tuple(draw.integers(0, nodes, 2).tolist())
                weight = (weights[draw.integers(len(weights))],) if len(weights) else ()
                present.append(edge + weight)
                now.append((*edge, *weight, 1))
            of.append(now)
        return of

    return made


@pytest.fixture
def window() -> Callable[..., Epochs]:
    """A random multigraph; an epoch adds an edge and deletes the oldest (as differential's tests do)."""

    def made(nodes: int, edges: int, rounds: int, *, seed: int = 0) -> Epochs:
        draw = np.random.default_rng(seed)
        all_ = [tuple(edge) for edge in draw.integers(0, nodes, (edges + rounds, 2)).tolist()]
        first = [(*edge, 1) for edge in all_[:edges]]
        return [first, *([(*all_[edges + i], 1), (*all_[i], -1)] for i in range(rounds))]

    return made


@pytest.fixture
def named() -> Callable[[Epochs], Epochs]:
    """The graph with texts as nodes, in another order than the numbers'."""

    def made(epochs: Epochs) -> Epochs:
        return [[(f"{a * 7 % 11}-{a}", f"{b * 7 % 11}-{b}", *rest) for a, b, *rest in of] for of in epochs]

    return made
