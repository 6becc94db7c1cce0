"""A running query says why a row is there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import timely_spark as ts
from tests.support.hops import hop_from

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def test_a_query_explains_a_row_and_what_changed_last(spark: SparkSession, checkpoint: str) -> None:
    flow = ts.Dataflow("reasons")
    sent = flow.input("edges", "src long, dst long, diff long")
    sent.capture("log")
    edges, roots = sent.collection(diff="diff"), flow.input("roots", "node long").collection()

    roots.iterate(hop_from(roots, edges), name="hops").capture("near")
    with flow.start(spark, workers=2, checkpoint=checkpoint) as query:
        sent.send([(1, 2, 1), (2, 3, 1), (9, 3, 1)])
        flow.handle("roots").send([1])
        assert query.wait_for(timeout=60)
        sent.send([(2, 3, -1), (1, 9, 1)])
        assert query.wait_for(timeout=60)

        why = query.explain_row("near", {"node": 3}, inputs={"edges": "log", "roots": [[1]]})

        assert why.present
        assert sorted(why.inputs["edges"]["dst"].to_pylist()) == [3, 9]
        assert query.changing("hops").cycle is None
