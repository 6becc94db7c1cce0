"""What nodes are called makes no difference: names in the same order give the same answer, renamed."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from itertools import product
from typing import Any

import pyarrow as pa
import pytest

import timely_spark as ts
from tests.support.turns import in_turn
from timely_spark.graphs import (
    bfs,
    cdlp,
    connected_components,
    core_numbers,
    lcc,
    minimum_spanning_forest,
    pagerank,
    sssp,
    strongly_connected_components,
    triangles,
)
from timely_spark.testing import run

NODES = 8
#: For each type of a node the names of nodes 0 to 7, in order.
IDS: dict[str, tuple[pa.DataType, Callable[[int], Any]]] = {
    "negative": (pa.int64(), lambda n: n - 4),
    "the least": (pa.int64(), lambda n: n - (1 << 63)),
    "2^53": (pa.int64(), lambda n: n + (1 << 53) - 3),
    "2^62": (pa.int64(), lambda n: n + (1 << 62) - 3),
    "the greatest": (pa.int64(), lambda n: n + (1 << 63) - NODES),
    "far apart": (pa.int64(), lambda n: (n - 4) << 60),
    "int8": (pa.int8(), lambda n: 36 * n - 128),
    "int32": (pa.int32(), lambda n: n - (1 << 31)),
    "uint32": (pa.uint32(), lambda n: n + (1 << 32) - NODES),
    "uint64": (pa.uint64(), lambda n: n + (1 << 64) - NODES),
    "uint64 around 2^63": (pa.uint64(), lambda n: n + (1 << 63) - 3),
    "uint64 far apart": (pa.uint64(), lambda n: n << 61),
    "text": (pa.string(), lambda n: f"{'y' * n}x"),
    "double": (pa.float64(), lambda n: n / 4 - 1),
    "decimal": (pa.decimal128(38, 0), lambda n: n + 10**37),
}
#: More types, of which `connected_components` and `bfs` are asked in the campaign.
MORE: dict[str, tuple[pa.DataType, Callable[[int], Any]]] = {
    "uint8": (pa.uint8(), lambda n: n + 248),
    "int16": (pa.int16(), lambda n: n - (1 << 15)),
    "large text": (pa.large_string(), lambda n: f"{'y' * n}x"),
    "view": (pa.string_view(), lambda n: f"{'y' * n}x"),
    "bytes": (pa.binary(), lambda n: bytes([30 * n, 255 - n, 0])),
    "fixed": (pa.binary(2), lambda n: bytes([30 * n, 0])),
    "codes": (pa.dictionary(pa.int32(), pa.string()), lambda n: f"{'y' * n}x"),
    "date": (pa.date32(), lambda n: date(1969, 12, 28) + timedelta(n)),
    "time": (pa.timestamp("us"), lambda n: datetime(1970, 1, 1) + timedelta(0, 0, n - 4)),  # noqa: DTZ001
    "clock": (pa.time64("us"), lambda n: time(1, n)),
    "duration": (pa.duration("us"), lambda n: timedelta(n - 4)),
    "wide decimal": (pa.decimal256(50, 0), lambda n: n + 10**45),
    "float": (pa.float32(), lambda n: n / 4 - 1),
}


def components_in_a_loop(edges: ts.Collection) -> ts.Collection:
    loop = edges.scope.inner()
    return connected_components(edges.enter(loop)).leave()


def from_first(algorithm: Callable[..., ts.Collection]) -> Callable[[ts.Collection], ts.Collection]:
    def applied(edges: ts.Collection) -> ts.Collection:
        return algorithm(edges, edges.select(node="src").min("node", keys=[]).distinct())

    return applied


#: Each with how many columns of its answer are nodes.
ALGORITHMS: dict[str, tuple[Callable[[ts.Collection], ts.Collection], int]] = {
    "connected": (connected_components, 2),
    "connected in a loop": (components_in_a_loop, 2),
    "strong": (strongly_connected_components, 2),
    "bfs": (from_first(bfs), 1),
    "sssp": (from_first(sssp), 1),
    "pagerank": (lambda edges: pagerank(edges, iterations=2), 1),
    "shares": (lambda edges: pagerank(edges, 2, start="uniform", dangling="spread"), 1),
    "triangles": (triangles, 3),
    "lcc": (lambda edges: lcc(edges, directed=True), 1),
    "cdlp": (lambda edges: cdlp(edges, 3), 2),
    "cores": (core_numbers, 1),
    "forest": (minimum_spanning_forest, 2),
}


def answered(
    algorithm: Callable[[ts.Collection], ts.Collection],
    edges: list[list[tuple[Any, ...]]],
    kind: pa.DataType,
    call: Callable[[int], Any],
) -> dict[int, list[tuple[Any, ...]]]:
    """The changes of the answer when node n is called `call(n)`."""
    flow = ts.Dataflow("ids")
    schema = pa.schema([("src", kind), ("dst", kind), ("weight", pa.int64()), ("diff", pa.int64())])
    algorithm(flow.input("edges", schema).collection(diff="diff")).changes().capture("out")
    given = [[(call(a), call(b), 1, diff) for a, b, diff in epoch] for epoch in edges]
    return run(flow, {"edges": given})["out"].rows()


#: What the loops are asked, which take longer.
SOME = ("negative", "2^53", "the greatest", "uint64 far apart", "text")


@pytest.fixture(scope="module")
def plainly() -> Callable[..., dict[int, list[tuple[Any, ...]]]]:
    """The answer with small numbers, computed once."""
    known: dict[str, dict[int, list[tuple[Any, ...]]]] = {}

    def plain(algorithm: str, edges: list[list[tuple[Any, ...]]]) -> dict[int, list[tuple[Any, ...]]]:
        if algorithm not in known:
            known[algorithm] = answered(ALGORITHMS[algorithm][0], edges, pa.int64(), lambda n: n + 1)
        return known[algorithm]

    return plain


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "ids"),
    [
        *(("connected", ids) for ids in IDS),
        *(pytest.param(*both, marks=pytest.mark.campaign) for both in product(["connected", "bfs"], MORE)),
        *in_turn([name for name in ALGORITHMS if name != "connected"], SOME),
    ],
)
def test_renaming_nodes_in_order_renames_the_result(algorithm, ids, changing, plainly) -> None:
    (function, nodes), (kind, call) = ALGORITHMS[algorithm], (IDS | MORE)[ids]
    edges = changing(NODES, 16, 2, seed=6)

    plain = plainly(algorithm, edges)
    found = answered(function, edges, kind, call)

    renamed = {
        epoch: sorted((*(call(node - 1) for node in row[:nodes]), *row[nodes:]) for row in rows)
        for epoch, rows in plain.items()
    }
    assert {epoch: sorted(rows) for epoch, rows in found.items()} == renamed
    assert any(renamed.values())
