"""Joins of many relations that change, against joins of pandas."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import timely_spark as ts
from tests.support.accumulated import after_each
from tests.support.turns import in_turn
from timely_spark.differential.prefixes import Match
from timely_spark.errors import GraphError, SchemaError
from timely_spark.testing import Simulation, run

Rows = list[tuple[Any, ...]]

#: patterns over one relation: a text has a word of two attributes for each use of it
SHAPES = {
    "path": "ab bc",
    "cycle of 3": "ab bc ca",
    "triangle": "ab bc ac",
    "triangle with a tail": "ab bc ac cd",
    "cycle of 4": "ab bc cd da",
    "diamond": "ab bc cd da ac",
    "4-clique": "ab ac ad bc bd cd",
    "both directions": "ab ba",
    "twice": "ab ab bc",
    "loop and edge": "aa ab",
    "star": "ab ac ad",
}


def uses(of: Any, shape: str) -> list[Any]:
    """The relation's uses in a pattern."""
    return [(of, {"src": a, "dst": b}) for a, b in shape.split()]


def joined(frames: Sequence[tuple[pd.DataFrame, Mapping[str, str]]]) -> pd.DataFrame:
    """The natural join by pandas."""

    def frame(rows: pd.DataFrame, columns: Mapping[str, str]) -> pd.DataFrame:
        made = pd.DataFrame()
        for column, attribute in columns.items():
            if attribute in made:
                equal = rows[column] == made[attribute]
                rows, made = rows[equal], made[equal]
            else:
                made[attribute] = rows[column]
        return made

    return reduce(lambda a, b: a.merge(b), (frame(*one) for one in frames))


def oracle(shape: str, without: str = "") -> Any:
    def result(edges: Rows) -> Iterable[tuple[Any, ...]]:
        frame = pd.DataFrame(edges, columns=["src", "dst"])
        if not len(frame):
            return []
        made = joined(uses(frame, shape))
        there = {*edges}
        return [
            row
            for row in made.itertuples(index=False, name=None)
            if not any(
                tuple(dict(zip(made.columns, row, strict=True))[a] for a in one) in there
                for one in without.split()
            )
        ]

    return result


def changing(nodes: int, edges: int, epochs: int, seed: int = 0) -> list[Rows]:
    """Random insertions and deletions of pairs, some of them repeated."""
    draw = np.random.default_rng(seed)
    present: Rows = []
    of: list[Rows] = []
    for epoch in range(epochs):
        now: Rows = []
        for _ in range(4 if epoch else edges):
            if epoch and present and draw.random() < 0.55:
                now.append((*present.pop(draw.integers(len(present))), -1))
            else:
                present.append(tuple(draw.integers(0, nodes, 2).tolist()))
                now.append((*present[-1], 1))
        of.append(now)
    return of


def check(algorithm: Any, result: Any, inputs: Mapping[str, tuple[str, list[Rows]]], **how: Any) -> int:
    """Check the accumulated changes at each epoch. Returns the number of changes."""
    flow = ts.Dataflow("check")
    given = [
        flow.input(name, f"{schema}, diff long").collection(diff="diff")
        for name, (schema, _) in inputs.items()
    ]
    algorithm(*given).changes().capture("out")
    changes = run(flow, {name: epochs for name, (_, epochs) in inputs.items()}, **how)["out"].rows()
    number = max(len(epochs) for _, epochs in inputs.values())
    totals = (after_each(of, number) for of in (changes, *(epochs for _, epochs in inputs.values())))
    for epoch, (found, *accumulated) in enumerate(zip(*totals, strict=True)):
        expected = Counter(tuple(one) for one in result(*(list(rows.elements()) for rows in accumulated)))
        assert found == expected, f"epoch {epoch}"
    return sum(map(len, changes.values()))


WAYS = [{"workers": 2, "seed": 1}, {"workers": 1}, {"workers": 3, "together": True}]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "how"), in_turn(SHAPES, WAYS))
def test_pairs_come_and_go(name, how) -> None:
    given = {"edges": ("src long, dst long", changing(6, 14, 4, seed=3))}

    assert check(lambda edges: ts.wcoj(uses(edges, SHAPES[name])), oracle(SHAPES[name]), given, **how)


EDGES = "src long, dst long"
NEGATED = [("ab bc", "ac"), ("ab", "ba"), ("ab bc", "ac ca"), ("ab ac", "bc aa")]


@pytest.mark.slow
@pytest.mark.parametrize(("shape", "without", "how"), in_turn(NEGATED, WAYS))
def test_relations_that_must_not_match(shape, without, how) -> None:
    given = {"edges": (EDGES, changing(6, 14, 5, seed=4))}

    assert check(
        lambda edges: ts.wcoj(uses(edges, shape), without=uses(edges, without)),
        oracle(shape, without), given, **how,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    "shape",
    [
        pytest.param(
            shape,
            id=name,
            marks=[pytest.mark.campaign] if name in {"diamond", "cycle of 4", "4-clique"} else [],
        )
        for name, shape in SHAPES.items()
    ],
)
@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.campaign) for n in (1, 2))])
def test_epochs_in_flight_together_and_in_crashes(shape, seed) -> None:
    given = {"edges": (EDGES, changing(6, 14, 4, seed=seed))}
    how = {"seed": seed, "together": True, "crashes": 0.05}

    check(lambda edges: ts.wcoj(uses(edges, shape)), oracle(shape), given, workers=2 + len(shape) % 3, **how)


#: relations of several widths: name -> schema, and how they are joined
WIDE: dict[str, dict[str, str]] = {
    "a column of its own": {"r": "a long, b long, p string", "s": "b long, c long", "t": "a long, c long"},
    "two of their own": {"r": "a long, b long, p string", "s": "b long, q string", "t": "a long, q2 string"},
    "three shared": {"r": "a long, b long, c long", "s": "b long, c long, d long", "t": "a long, d long"},
    "one is a filter": {"r": "a long, b long", "s": "b long"},
    "wide at once": {
        "r": "a long",
        "s": "a long, b long, c long",
        "t": "b long, c long, d long",
        "u": "d long",
    },
    "by texts": {"r": "a string, b long", "s": "b long, c string", "t": "c string, a string"},
    "one alone": {"r": "a long, b string"},
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "schemas",
    [
        pytest.param(
            schemas, id=name, marks=[] if name in {"one is a filter", "wide at once"} else [pytest.mark.slow]
        )
        for name, schemas in WIDE.items()
    ],
)
def test_relations_of_any_width(schemas) -> None:
    draw = np.random.default_rng(5)
    inputs = {}
    for name, schema in schemas.items():
        kinds = [column.split()[1] for column in schema.split(", ")]
        values = draw.integers(0, 4, (40, len(kinds))).tolist()
        rows = [
            tuple("xyzw"[v] if k == "string" else v for v, k in zip(row, kinds, strict=True))
            for row in values
        ]
        epochs = [[(*row, 1) for row in rows[:30]]]
        epochs += [[(*rows[30 + i], 1), (*rows[i], -1)] for i in range(3)]
        inputs[name] = (schema, epochs)

    def by_pandas(*relations: Rows) -> Iterable[tuple[Any, ...]]:
        frames = []
        for rows, schema in zip(relations, schemas.values(), strict=True):
            names = [column.split()[0] for column in schema.split(", ")]
            frames.append((pd.DataFrame(rows, columns=names), dict(zip(names, names, strict=True))))
        return joined(frames).itertuples(index=False, name=None)

    assert check(lambda *relations: ts.wcoj(relations), by_pandas, inputs, workers=3, seed=2)


def test_nulls_join_nothing_and_may_be_in_columns_of_one_relation() -> None:
    flow = ts.Dataflow("nulls")
    r = flow.input("r", "a long, b long, p string").collection()
    s = flow.input("s", "b long, c long").collection()
    ts.wcoj([r, s]).changes().capture("out")
    ts.wcoj([r], without=[s.select("b")]).changes().capture("without")

    rows = run(flow, {"r": [[(1, None, "x"), (None, 2, None)]], "s": [[(None, 3), (2, None)]]}, workers=2)

    assert rows["out"].rows() == {0: [(None, 2, None, None, 1)]}
    assert rows["without"].rows() == {0: [(1, None, "x", 1)]}


@pytest.mark.slow
@pytest.mark.parametrize("without", ["", "ba"])
def test_inside_a_loop_it_is_the_same(without) -> None:
    given = {"edges": (EDGES, changing(6, 14, 4, seed=6))}

    def closed(edges: ts.Collection) -> ts.Collection:
        """Pairs and the pairs two steps apart that no pair closes backwards, over and over."""

        def step(now: ts.Collection) -> ts.Collection:
            found = ts.wcoj(uses(now, "ac cb"), without=uses(now, without))
            return now.concat(found.select(src="a", dst="b")).distinct()

        return edges.distinct().iterate(step, max_iterations=3)

    def by_hand(edges: Rows) -> Iterable[tuple[Any, ...]]:
        now = {*edges}
        for _ in range(3):
            now |= {(a, b) for a, c in now for d, b in now if c == d and not (without and (b, a) in now)}
        return now

    assert check(closed, by_hand, given, workers=2, seed=3)


def test_exchanges_of_the_triangle() -> None:
    """Two indexes, and for each delta query one each to count, to propose and to check."""
    flow = ts.Dataflow("triangle")
    edges = flow.input("edges", EDGES).collection()
    ts.wcoj(uses(edges, "ab bc ac")).stream.capture("out")

    exchanged = [channel for channel in flow.compile(2).channels if channel.exchange is not None]

    assert len(exchanged) == 2 + 3 * 3


def test_a_hub_costs_the_lesser_degree_and_nothing_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """A star of 1,000 in both directions has a million pairs of edges."""
    flow = ts.Dataflow("star")
    edges = flow.input("edges", EDGES).collection()
    ts.wcoj(uses(edges, "ab bc ca")).changes().capture("out")
    simulation = Simulation(flow)
    spokes = [(0, node) for node in range(1, 1001)] + [(node, 0) for node in range(1, 1001)]
    simulation.send("edges", [*spokes, (17, 18)])
    found = []
    matched = Match._matched

    def counted(*given: Any) -> Any:
        found.append(matched(*given).num_rows)
        return matched(*given)

    monkeypatch.setattr(Match, "_matched", counted)

    simulation.run()

    assert simulation.captured["out"].rows() == {0: [(0, 17, 18, 1), (17, 18, 0, 1), (18, 0, 17, 1)]}
    assert sum(found) < 20_000
    assert len(simulation.states[0] or b"") < 500_000


def test_invalid_arguments_are_refused() -> None:
    flow = ts.Dataflow("refused")
    r, s = flow.input("r", "a long, b long").collection(), flow.input("s", "c long, b string").collection()

    for without in ([], [r]):
        with pytest.raises(GraphError, match=r"(?s)wcoj: there are no relations.*test_wcoj.*Hint"):
            ts.wcoj([], without=without)
    with pytest.raises(
        GraphError, match=r"(?s)wcoj: the relations fall apart: \(a, b\) \(c\).*test_wcoj.*Hint"
    ):
        ts.wcoj([r, (s, {"c": "c"})])
    with pytest.raises(SchemaError, match=r"(?s)'b' is int64 and, as column 'b', string.*test_wcoj.*Hint"):
        ts.wcoj([r, s])
    with pytest.raises(SchemaError, match=r"(?s)'c' is an attribute of `without` only.*test_wcoj.*Hint"):
        ts.wcoj([r], without=[s])
    with pytest.raises(SchemaError, match=r"(?s)asks for columns \['x'\].*test_wcoj.*Hint"):
        ts.wcoj([(r, {"x": "a"})])
    with pytest.raises(GraphError, match=r"(?s)not a collection.*test_wcoj.*Hint"):
        ts.wcoj([r, r.stream])


def test_a_null_matches_nothing_also_where_another_attribute_has_none() -> None:
    kinds = pa.schema([pa.field("a", pa.int64(), nullable=False), pa.field("b", pa.int64())])
    flow = ts.Dataflow("nulls")
    x, y = (flow.input(name, kinds).collection() for name in "xy")
    ts.wcoj([(x, {"a": "p", "b": "q"}), (y, {"a": "p", "b": "q"})]).capture("out")

    assert run(flow, {"x": [[(1, None), (2, 3)]], "y": [[(1, None), (2, 3)]]})["out"].rows() == {
        0: [(2, 3, 1)]
    }
