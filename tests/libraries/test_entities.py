"""Entities of scored pairs, against networkx and the rules in plain Python."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterable
from typing import Any

import networkx as nx
import pyarrow as pa
import pytest

import timely_spark as ts
from tests.support.accumulated import after, after_each
from timely_spark.errors import SchemaError, VertexError
from timely_spark.libraries.entities import _regrouped
from timely_spark.libraries.lineage import CHANGE
from timely_spark.testing import run

THRESHOLD, STEP, LARGEST = 0.5, 0.1, 4
EPOCHS = 4
Pair = tuple[int, int]
Link = tuple[int, int, float]


def flow_of(**options: Any) -> ts.Dataflow:
    flow = ts.Dataflow("entities")
    pairs = flow.input("pairs", "a long, b long, score double, diff long", epochs="manual")
    more = {
        name: flow.input(name, "a long, b long, diff long", epochs="manual").collection(diff="diff")
        for name in ("must_link", "cannot_link")
    }
    entities = ts.entities(
        pairs.collection(diff="diff"), threshold=THRESHOLD, max_size=LARGEST, step=STEP, **more, **options
    )
    for part in ("members", "held", "audit", "bridges"):
        getattr(entities, part).changes().capture(part)
    for part in ("lineage", "causes"):
        getattr(entities, part).capture(part)
    return flow


@pytest.mark.slow
def test_parts_that_nothing_reads_have_no_steps() -> None:
    def steps(*parts: str) -> list[str]:
        flow = ts.Dataflow("parts")
        pairs = flow.input("pairs", "a long, b long, score double").collection()
        found = ts.entities(pairs, threshold=THRESHOLD, name="people")
        for part in ("members", *parts):
            getattr(found, part).probe(f"of_{part}")
        return sorted(stage.name for stage in flow.compile().stages)

    assert not any("people_" in name for name in steps())
    assert steps("held", "audit", "lineage") == steps("lineage", "audit", "held")
    assert len(steps()) < 40 < len(steps("audit"))
    with pytest.raises(
        ts.TimelyError, match="take one of its parts: members, held, audit, lineage, causes, bridges"
    ):
        steps("links")


def drawn(draw: random.Random, epochs: int) -> dict[str, list[list[Any]]]:
    """Pairs that come, go and get other scores; and decisions about pairs."""
    present: dict[str, list[tuple[Any, ...]]] = {"pairs": [], "must_link": [], "cannot_link": []}
    out: dict[str, list[list[Any]]] = {name: [] for name in present}
    for epoch in range(epochs):
        for name, rows in present.items():
            most = 12 if name == "pairs" and epoch == 0 else 3 if name == "pairs" else 1
            changes = []
            for _ in range(draw.randint(0, most)):
                if rows and draw.random() < 0.5:
                    changes.append((*rows.pop(draw.randrange(len(rows))), -1))
                    continue
                row: tuple[Any, ...] = draw.randrange(12), draw.randrange(12)
                row += (draw.choice([None, math.nan, *(n / 20 for n in range(7, 21))]),) * (name == "pairs")
                rows.append(row)
                changes.append((*row, 1))
            out[name].append(changes)
    return out


def parts_of(nodes: Iterable[int], links: Iterable[Pair]) -> list[set[int]]:
    graph = nx.Graph()
    graph.add_nodes_from(nodes)
    graph.add_edges_from(links)
    return list(nx.connected_components(graph))


def allowed(links: dict[tuple[int, int, float], int], cannot: set[Pair]) -> set[tuple[int, int, float]]:
    """The rule: a refused entity holds its links in the lowest step, again and again."""
    used = set(links)
    while True:
        lowest = set()
        for part in parts_of([], [(a, b) for a, b, _ in used]):
            if len(part) > LARGEST or any(a in part and b in part for a, b in cannot):
                own = {link for link in used if link[0] in part and link[2] < math.inf}
                level = min((math.floor(score / STEP) for *_, score in own), default=None)
                lowest |= {link for link in own if math.floor(link[2] / STEP) == level}
        if not lowest:
            return used
        used -= lowest


def at(captured: ts.testing.Captured, epoch: int) -> list[tuple[Any, ...]]:
    """The rows of a log of changes up to and with an epoch."""
    changes = captured.rows().items()
    rows = after(change for number, some in changes if number <= epoch for change in some)
    assert min(rows.values(), default=0) >= 0
    return sorted(rows.elements(), key=str)


@pytest.mark.slow
@pytest.mark.share(2)
@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.campaign) for n in (1, 2)), 3])
def test_parts_held_links_and_figures_are_those_of_the_rule(seed: int) -> None:
    draw = random.Random(seed)
    changes = drawn(draw, EPOCHS)
    out = run(flow_of(), changes, workers=draw.choice([1, 3]), seed=seed, crashes=0.2 * (seed == 3))

    before: dict[int, str] = {}
    was_used: set[Link] = set()
    totals = (after_each(epochs, EPOCHS) for epochs in changes.values())
    for epoch, rows in enumerate(zip(*totals, strict=True)):
        present = {name: {*counts} for name, counts in zip(changes, rows, strict=True)}
        links = {row for row in present["pairs"] if row[2] is not None and row[2] >= THRESHOLD}
        links |= {(*pair, math.inf) for pair in present["must_link"]}
        used = allowed(dict.fromkeys(links, 1), present["cannot_link"])
        # a record has an entity while it is in a pair, or somebody decided about it
        nodes = {end for a, b, _ in present["pairs"] | links for end in (a, b)}
        members = dict(at(out["members"], epoch))

        entities: dict[str, set[int]] = {}
        for record, entity in members.items():
            entities.setdefault(entity, set()).add(record)
        expected = parts_of(nodes, [(a, b) for a, b, _ in used])
        assert sorted(map(sorted, entities.values())) == sorted(map(sorted, expected))
        assert at(out["held"], epoch) == sorted(
            ((a, b, score) for a, b, score in links if members[a] != members[b]), key=str
        )
        figures = {entity: row for entity, *row in at(out["audit"], epoch)}
        assert figures == {entity: audit(part, links) for entity, part in entities.items() if len(part) > 1}
        moved = Counter(
            (before.get(record), members.get(record))
            for record in before.keys() | members.keys()
            if before.get(record) != members.get(record)
        )
        lineage = {tuple(row[:2]): row[2] for row in out["lineage"].rows().get(epoch, [])}
        assert lineage == dict(moved)

        bridges = sorted((tuple(row) for row in at(out["bridges"], epoch)), key=str)
        assert bridges == sorted(
            (row for name, part in entities.items() for row in bridges_of(name, part, links)), key=str
        )
        is_used = {(a, b, score) for a, b, score in links if members[a] == members[b]}
        causes = {tuple(row) for row in out["causes"].rows().get(epoch, [])}
        expected_causes = deciding(is_used - was_used, members, before, joined=True)
        assert causes == expected_causes | deciding(was_used - is_used, before, members, joined=False)
        check_connect(causes, members, before, joined=True)
        check_connect(causes, before, members, joined=False)
        before, was_used = members, is_used


def deciding(links: set[Link], inner: dict[int, str], outer: dict[int, str], *, joined: bool) -> set[Any]:
    """The links that come (or go), between records of one entity that are not of one before (or after)."""
    return {
        (a, b, score, joined, inner[a], outer.get(a), outer.get(b))
        for a, b, score in links
        if a != b and (outer.get(a) is None or outer.get(a) != outer.get(b))
    }


def check_connect(causes: set[Any], inner: dict[int, str], outer: dict[int, str], *, joined: bool) -> None:
    """The law of causes: they connect the parts of each entity that are apart on the epoch's other side."""
    graph = nx.Graph()
    point = {record: outer.get(record, record) for record in inner}
    graph.add_nodes_from((inner[record], point[record]) for record in inner)
    for a, b, _, sign, entity, *_ in causes:
        if sign == joined:
            graph.add_edge((entity, point[a]), (entity, point[b]))
    assert len(list(nx.connected_components(graph))) == len(set(inner.values()))


def bridges_of(entity: str, part: set[int], links: set[Link]) -> list[tuple[Any, ...]]:
    """The rows of bridges of an entity."""
    best: dict[Pair, float] = {}
    for a, b, score in links:
        if a in part and b in part and a != b:
            pair = min(a, b), max(a, b)
            best[pair] = max(best.get(pair, score), score)
    graph, rows = nx.Graph([*best]), []
    for pair in list(nx.bridges(graph)):
        a, b = sorted(pair)
        graph.remove_edge(a, b)
        side = len(nx.node_connected_component(graph, a))
        graph.add_edge(a, b)
        rows.append((entity, a, b, best[a, b], min(side, len(part) - side)))
    return rows


def audit(part: set[int], links: set[tuple[int, int, float]]) -> list[Any]:
    """records, links, weakest, density of an entity."""
    graph = nx.Graph()
    for a, b, score in links:
        if a in part and b in part and a != b:
            best = max(score, graph.edges[a, b]["score"] if graph.has_edge(a, b) else -math.inf)
            graph.add_edge(a, b, score=best)
    strongest = nx.maximum_spanning_tree(graph, weight="score")
    weakest = min(score for *_, score in strongest.edges.data("score"))
    size, number = len(part), graph.number_of_edges()
    return [size, number, weakest, 2 * number / (size * (size - 1))]


def test_records_without_pairs_and_ids_as_texts() -> None:
    flow = ts.Dataflow("texts")
    pairs = flow.input("pairs", "a string, b string, score double").collection()
    records = flow.input("records", "record string").collection()
    ts.entities(pairs, threshold=0.5, records=records, name="people").members.capture("members")

    out = run(flow, {"pairs": [[("x", "y", 0.9)]], "records": [["z", "x"]]})

    members = ts.snapshot(out["members"], at=0).to_pylist()
    assert {row["record"]: row["entity"] for row in members} == {"x": "x@0", "y": "x@0", "z": "z@0"}


@pytest.mark.parametrize(
    ("schema", "options", "says"),
    [
        ("a long, b string, score double", {}, "column 'b' of pairs is string, not int64"),
        ("a double, b double, score double", {}, "column 'a' of pairs is double, not long or string"),
        ("a long, b long, score long", {}, "column 'score' of pairs is int64, not double"),
        ("a long, b long", {}, "'score'"),
        ("a long, b long, score double", {"max_size": 0}, "max_size=0 is not an integer from 1"),
        ("a long, b long, score double", {"step": 0.0}, "step=0.0 is not a positive number"),
        ("a long, b long, score double", {"threshold": "high"}, "threshold='high' is not a number"),
    ],
)
def test_wrong_arguments_are_named(schema: str, options: dict[str, Any], says: str) -> None:
    pairs = ts.Dataflow("wrong").input("pairs", schema).collection()

    with pytest.raises(ts.TimelyError, match=says) as error:
        ts.entities(pairs, **{"threshold": 0.5, **options})

    assert "test_entities.py" in str(error.value)
    assert "Hint:" in str(error.value)


def test_pairs_in_a_loop_are_refused() -> None:
    flow = ts.Dataflow("loop")
    pairs = flow.input("pairs", "a long, b long, score double").collection()

    with pytest.raises(ts.TimelyError, match="and ids are made of the epochs"):
        pairs.iterate(lambda inner: ts.entities(inner, threshold=0.5).held)


def test_the_id_of_a_record_may_be_least_or_greatest() -> None:
    flow = ts.Dataflow("extreme")
    groups = flow.input("groups", "record long, group string, diff long").collection(diff="diff")
    ts.stable_ids(groups).capture("ids")
    least, greatest = -(2**63), 2**63 - 1

    out = run(flow, {"groups": [[(least, "x", 1), (greatest, "x", 1)], [(least, "x", -1)]]}, workers=3)

    assert ts.snapshot(out["ids"], at=0)["entity"].to_pylist() == [f"{least}@0"] * 2
    assert ts.snapshot(out["ids"], at=1).equals(pa.table({"record": [greatest], "entity": [f"{least}@0"]}))


NAN = float("nan")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("record", "group", "epochs", "expected"),
    [
        ("long", "long", [[(1, None, 1), (2, 7, 1)], [(1, None, -1), (1, 7, 1)], [(1, 7, -1), (1, None, 1)]],
         [{2: "2@0"}, {1: "2@0", 2: "2@0"}, {2: "2@0"}]),
        ("long", "long", [[(None, 7, 1), (2, 7, 1)]], [{2: "2@0"}]),
        ("long", "double", [[(1, 0.0, 1), (2, -0.0, 1)], [(1, -0.0, -1)]],
         [{1: "1@0", 2: "1@0"}, {2: "1@0"}]),
        ("long", "double", [[(1, NAN, 1), (2, NAN, 1)]], [{1: "1@0", 2: "1@0"}]),
        ("double", "long", [[(0.0, 1, 1), (2.0, 1, 1)], [(-0.0, 1, -1)]],
         [{0.0: "0@0", 2.0: "0@0"}, {2.0: "0@0"}]),
    ],
)  # fmt: skip
def test_nulls_are_ignored_and_equal_numbers_are_one_key(
    record: str, group: str, epochs: Any, expected: list[Any]
) -> None:
    flow = ts.Dataflow("keys")
    x = flow.input("x", f"record {record}, group {group}, diff long").collection(diff="diff")
    ts.stable_ids(x).capture("ids")

    out = run(flow, {"x": epochs}, workers=2)["ids"]

    for epoch, ids in enumerate(expected):
        rows = ts.snapshot(out, at=epoch).to_pylist()
        assert sorted((row["record"], row["entity"]) for row in rows) == sorted(ids.items())


@pytest.mark.parametrize("rows", [[(1, 1, 2)], [(1, 1, 1), (1, 2, 1)]])
def test_a_record_in_several_rows_is_refused(rows: Any) -> None:
    flow = ts.Dataflow("several")
    ts.stable_ids(flow.input("x", "record long, group long, diff long").collection(diff="diff")).capture(
        "ids"
    )
    with pytest.raises(
        VertexError, match=r"(?s)test_entities.*stable_ids: a record has several rows.*Hint: "
    ):
        run(flow, {"x": [rows]})


@pytest.mark.parametrize("schema", ["record binary, group long", "record long, group struct<a: long>"])
def test_ids_are_of_flat_columns_and_records_with_a_text(schema: str) -> None:
    x = ts.Dataflow("bad").input("x", schema).collection()
    with pytest.raises(SchemaError, match=r"(?s)stable_ids.*test_entities\.py:\d+\)\nHint: "):
        ts.stable_ids(x)


def test_no_row_lacks_a_group_by_which_workers_share_the_rows() -> None:
    columns = [("group", pa.string()), ("record", pa.int64()), ("to", pa.string()), ("founder", pa.int64())]
    changes = pa.table({"record": [1, 2, 2, 3], "group": ["x", "x", "y", "y"], CHANGE: [1, -1, 1, -1]})

    rows = _regrouped(pa.schema(columns), None, changes).to_pylist()

    assert {row["record"]: (row["group"], row["to"], row["founder"]) for row in rows} == {
        1: ("x", "x", 1),  # it comes
        2: ("x", "y", None),  # it moves
        3: ("y", None, None),  # it goes
    }


@pytest.mark.slow
@pytest.mark.parametrize("seed", [None, 1, 2])
def test_ids_have_the_epochs_of_a_test_whatever_its_schedule(seed: int | None) -> None:
    flow = ts.Dataflow("ids")
    pairs = flow.input("pairs", "a long, b long, score double").collection()
    ts.entities(pairs, threshold=0.5).members.capture("members")
    inputs = {"pairs": [[(n, n + 10, 0.9)] for n in range(3)]}
    epochs = run(flow, inputs, workers=2, seed=seed)["members"].epochs
    assert [set(table["entity"].to_pylist()) for table in epochs.values()] == [{"0@0"}, {"1@1"}, {"2@2"}]
