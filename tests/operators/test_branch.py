"""branch: each record by one of two outputs."""

from __future__ import annotations

from typing import Any

import pyarrow.compute as pc
import pytest

import timely_spark as ts
from timely_spark.errors import SchemaError
from timely_spark.testing import run

#: How the tests of all operators (names, states) try this one, on two streams (k long, v long).
TRIED = {"branch": lambda x, _: x.branch(pc.field("v") > 1, name="it").falses.distinct(name="kept")}


@pytest.mark.parametrize(
    "predicate", [pc.field("n") > 1, lambda row: row.n is not None and row.n > 1], ids=["e", "f"]
)
def test_branch_gives_each_record_to_one_side(predicate: Any) -> None:
    flow = ts.Dataflow("branch")
    parts = flow.input("x", "n long").branch(predicate)
    parts.trues.capture("trues")
    parts.falses.exchange("n").capture("falses")
    result = run(flow, {"x": [[None, 1, 2]]}, workers=2)

    assert result["trues"].rows() == {0: [(2,)]}
    assert result["falses"].rows() == {0: [(None,), (1,)]}


def test_a_predicate_over_a_missing_column_is_refused_when_the_graph_is_built() -> None:
    with pytest.raises(SchemaError, match="Hint: "):
        ts.Dataflow("bad").input("x", "n long").branch(pc.field("nothing"))
