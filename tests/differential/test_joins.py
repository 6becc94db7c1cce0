"""Joins of collections: what their other side may be."""

from __future__ import annotations

from typing import Any

import pytest

import timely_spark as ts
from timely_spark.errors import GraphError


@pytest.mark.parametrize("join", ["join", "semijoin", "antijoin", "broadcast_join"])
def test_the_other_side_is_a_collection_of_the_flow(join: str) -> None:
    x, other = (ts.Dataflow(name).input("x", "k long, v long").collection() for name in ("one", "two"))
    sides: list[tuple[Any, str]] = [
        (None, f"{join} got None, not a collection"),
        (x.stream, f"{join} got a Stream, not a collection"),
        (other.select("k", w="v"), f"{join}.*'one'.*'two'"),
    ]
    for side, message in sides:
        with pytest.raises(GraphError, match=rf"(?s){message}.*test_joins.py.*Hint: "):
            getattr(x, join)(side, on="k")
