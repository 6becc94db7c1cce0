"""Upserts against the definition: of each key the record with the greatest sequence, unless it deletes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

import timely_spark as ts
from timely_spark.errors import GraphError, SchemaError

LOG = "k string, version long, v long, deleted boolean"
RECORDS = st.tuples(
    st.sampled_from(["a", "b", None]),
    st.none() | st.integers(0, 4),
    st.none() | st.integers(0, 2),
    st.none() | st.booleans(),
)
EPOCHS = st.lists(st.lists(RECORDS, max_size=6), min_size=1, max_size=5)


def order(record: Any) -> Any:
    _, version, v, deleted = record
    return [(one is not None, one) for one in (version, bool(deleted), v, deleted)]


@pytest.mark.slow
@given(epochs=EPOCHS, workers=st.sampled_from([1, 2, 3, 8]), seed=st.none() | st.integers(0, 10_000))
def test_of_each_key_the_latest_record_is_there(
    *, epochs: Any, play: Callable[..., Any], came_to: Callable[..., Any], **how: Any
) -> None:
    flow = ts.Dataflow("latest")
    log = flow.input("log", LOG, epochs="manual")
    log.upserts("k", "version", apply_as_deletes=pc.field("deleted")).changes().capture("out")

    made = play(flow, {"log": epochs}, crashes=0.2 if how["seed"] is not None else 0.0, **how)

    latest: dict[Any, Any] = {}
    for records, there in zip(epochs, came_to(made["out"]), strict=True):
        for record in records:
            latest[record[0]] = max(latest.get(record[0], record), record, key=order)
        assert there == Counter(record for record in latest.values() if not record[3])


def test_a_record_that_comes_again_or_late_changes_nothing() -> None:
    flow = ts.Dataflow("again")
    log = flow.input("log", LOG)
    log.upserts(["k"], ["version"], apply_as_deletes=pc.field("deleted")).select("k", "v").capture("out")
    log.upserts("k", "version").select("k", "v").capture("none deletes")
    gone = ("a", 3, None, True)

    out = ts.testing.run(
        flow,
        {
            "log": [
                [("a", 2, 7, None)],
                [("a", 2, 7, None), ("a", 1, 5, None)],
                [gone],
                [("a", 2, 7, None), gone],
            ]
        },
    )

    assert out["none deletes"].rows() == {
        0: [("a", 7, 1)],
        1: [],
        2: [("a", None, 1), ("a", 7, -1)],
        3: [],
    }
    assert out["out"].rows() == {0: [("a", 7, 1)], 1: [], 2: [("a", 7, -1)], 3: []}


def test_columns_and_conditions_are_checked() -> None:
    flow = ts.Dataflow("checked")
    log = flow.input("log", LOG)

    for arguments, of in [
        (("k", []), "name columns that order"),
        (("k", "k"), "name columns that order"),
        (([], "version"), "name the key columns"),
        ((["k", "k"], "version"), "name the key columns, each once"),
        (("id", "version"), "asks for columns"),
    ]:
        with pytest.raises(SchemaError, match=of):
            log.upserts(*arguments)
    with pytest.raises(SchemaError, match="give a condition"):
        log.upserts("k", "version", apply_as_deletes=pc.field("v"))
    with pytest.raises(SchemaError, match="nested"):
        flow.input("nested", "k long, version long, of array<long>").upserts("k", "version")
    with pytest.raises(GraphError, match="inside loop"):
        log.loop(lambda x: x.concat(x.upserts("k", "version").changes().select(*log.schema.names)))
