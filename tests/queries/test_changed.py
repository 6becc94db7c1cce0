"""A query that is changed at a restart continues with the same answer, or is refused."""

from __future__ import annotations

import pytest

import timely_spark as ts
from tests.support.rescaling import migrated
from timely_spark.coordinator.migration import FlowChanged
from timely_spark.testing import Simulation

REACH = """CREATE VIEW v AS WITH RECURSIVE r(x) RETURN AT RECURSION LIMIT {} AS (
    SELECT src FROM edges WHERE src < 3 UNION SELECT dst FROM r JOIN edges ON x = src) SELECT x FROM r"""
KINDS = "CREATE VIEW v AS SELECT y, count(*) AS n FROM edges JOIN VALUES {} k(x, y) ON src = x GROUP BY y"
RANGE = "CREATE VIEW v AS SELECT id, count(src) AS n FROM range({}) LEFT JOIN edges ON id = src GROUP BY id"
START = """CREATE VIEW v AS WITH RECURSIVE r(x) AS (
    VALUES ({}L) UNION SELECT dst FROM r JOIN edges ON x = src) SELECT x FROM r"""
ONE = "CREATE VIEW v AS SELECT {} AS x UNION ALL SELECT src FROM edges"
LARGE = (
    "CREATE VIEW v AS SELECT src, x FROM edges LATERAL VIEW {} explode(filter(array(dst), d -> d > 2)) AS x"
)
TWICE = "CREATE VIEW v AS SELECT src, id FROM edges, LATERAL range({})"
CHANGED = [
    (KINDS, "(1, 'a'), (2, 'b')", "(1, 'a'), (2, 'c')"),
    (KINDS, "(1, array('a'))", "(1, array('b'))"),
    (RANGE, "3", "4"),
    (START, "1", "2"),
    (ONE, "1L", "2L"),
    (LARGE, "", "OUTER"),
    (TWICE, "2", "3"),
    (REACH, "1", "3"),
    (REACH, "3", "1"),
]


def flow_of(text: str) -> ts.Dataflow:
    flow = ts.Dataflow("changed")
    flow.input("edges", "src long, dst long, diff long")
    for name, view in flow.sql(text).items():
        view.changes().capture(f"of {name}")
    return flow


def begun(text: str) -> Simulation:
    """A flow after an epoch."""
    simulation = Simulation(flow_of(text), workers=2)
    simulation.send("edges", [(1, 2, 1), (2, 3, 1), (3, 4, 1)])
    simulation.run()
    return simulation


@pytest.mark.slow
@pytest.mark.parametrize(("text", "first", "second"), CHANGED)
def test_what_was_sent_at_the_first_start_is_compared(text: str, first: str, second: str) -> None:
    old = begun(text.format(first))
    assert not migrated(old, flow_of(text.format(first)), 2).added
    with pytest.raises(FlowChanged, match="made by other steps than before"):
        migrated(old, flow_of(text.format(second)), 2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "second"),
    [
        (KINDS.format("(1, 'a'), (2, 'b')"), KINDS.format("(2, 'b'), /* last */ (1, 'a')")),
        (START.format(1), START.format(1).replace("r(x) AS", "r ( x ) /* from it */ AS")),
        (ONE.format("1L"), f"{ONE.format('1L')}; CREATE VIEW w AS SELECT dst FROM edges WHERE src > 1"),
    ],
)
def test_a_query_that_says_the_same_continues(first: str, second: str) -> None:
    made = migrated(begun(first), flow_of(second), 2, empty=True)
    assert (made.fed_otherwise, made.removed) == ((), {})
