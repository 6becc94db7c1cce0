"""Entity resolution, against networkx and a model of the rule of ids in plain Python."""

from __future__ import annotations

import argparse
import json
import os
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Mapping
from pathlib import Path
from typing import Any

import networkx as nx
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import timely_spark as ts
from tests.support.accumulated import after_each
from tests.support.rescaling import move
from tests.support.tables import rows_of
from timely_spark.testing import Simulation, run

KEYS = [["email"], ["phone"], ["name", "birthday"]]
SCHEMA = "id long, email string, phone long, name string, birthday string, diff long"
Row = tuple[Any, ...]


def flow_of(schema: str = SCHEMA, most: int = 4, keys: list[list[str]] = KEYS) -> ts.Dataflow:
    import entity_resolution as job

    flow = ts.Dataflow("entities")
    records = job.records_of(flow.input("records", schema, epochs="manual"), "id", keys)
    of, common = job.entities(records, keys, most)
    of.changes().capture("of")
    common.changes().capture("common")
    return flow


def drawn(seed: int, epochs: int) -> list[list[Row]]:
    """Records that come, go and change a value, some of them several times in an epoch."""
    draw = random.Random(seed)
    there: list[Row] = []
    of = []
    for epoch in range(epochs):
        now: list[Row] = []
        for _ in range(14 if epoch == 0 else draw.randrange(6)):
            if epoch and there and draw.random() < 0.6:
                row = there.pop(draw.randrange(len(there)))
                now.append((*row, -1))
                if draw.random() < 0.5:
                    continue
                identity = row[0]
            else:
                identity = draw.randrange(20)
            row = (
                identity,
                draw.choice([None, "", "a", "b", "c", "a:b"]) if draw.random() < 0.6 else None,
                draw.choice([None, *range(9)]),
                draw.choice([None, "Ann", "Ann:", "Bo"]),
                draw.choice([None, "x", ":x", "y"]),
            )
            there.append(row)
            now.append((*row, 1))
        of.append(now)
    return of


def values(row: Row) -> list[Hashable]:
    _, email, phone, name, birthday = row
    found = [(0, email)] if email else []
    found += [(1, phone)] if phone is not None else []
    return found + ([(2, name, birthday)] if name and birthday else [])


def groups(rows: list[Row], most: int) -> tuple[list[set[int]], set[Hashable]]:
    """The entities, by all pairs; and the values that too many share."""
    shared = defaultdict(set)
    for row in rows:
        for value in values(row):
            shared[value].add(row[0])
    common = {value for value, ids in shared.items() if len(ids) > most}
    graph = nx.Graph()
    graph.add_nodes_from(row[0] for row in rows)
    graph.add_edges_from(
        (a, b) for value, ids in shared.items() if value not in common for a in ids for b in ids
    )
    return list(nx.connected_components(graph)), common


class Model:
    """The rule: a group's id goes along with most of its records; of several the largest one stays."""

    REIGNS = 1000

    def __init__(self) -> None:
        #: by record the id that it holds: the records that had it (and REIGNS), its epoch and its founder
        self.held: dict[int, tuple[int, int, int]] = {}
        self.groups: list[set[int]] = []

    def rank(self, record: int) -> tuple[int, int, int]:
        size, since, founder = self.held[record]
        return -size, since, founder

    def step(self, epoch: int, groups: list[set[int]]) -> dict[int, str]:
        for group in self.groups:
            holder, *_ = ranked = sorted(group, key=self.rank)
            parts = [part for new in groups if (part := [one for one in ranked if one in new])]
            if parts:
                part = max(parts, key=lambda part: (len(part), -ranked.index(part[0])))
                heir = holder if holder in part else part[-1]
                self.held[heir] = self.REIGNS + len(part), *self.held[holder][1:]
                if heir != holder:
                    self.held[holder] = 0, epoch, holder
        known = set[int]().union(*self.groups)
        self.held = {
            one: self.held[one] if one in known else (0, epoch, one) for group in groups for one in group
        }
        self.groups, ids = groups, {}
        for group in groups:
            first, *others = sorted(group, key=self.rank)
            for one in others:
                self.held[one] = self.held[one][0] % self.REIGNS, *self.held[one][1:]
            _, since, founder = self.held[first]
            self.held[first] = self.REIGNS, since, founder
            ids |= dict.fromkeys(group, f"{founder}@{since}")
        return ids


def check(out: Mapping[str, ts.testing.Captured], epochs: list[list[Row]]) -> None:
    """Compare each epoch with the model, and with what ids promise."""
    import entity_resolution as job

    model, before = Model(), dict[int, str]()
    for epoch, rows in enumerate(after_each(epochs)):
        parts, common = groups([*rows], 4)
        expected = model.step(epoch, parts)
        assert entities_at(out["of"], epoch) == expected
        assert len({*expected.values()}) == len(parts)
        said = {job.value_of(one, KEYS) for one in ts.snapshot(out["common"], at=epoch)["value"].to_pylist()}
        names = ["email", "phone", "name"]
        assert said == {
            f"{names[value[0]]} {str(value[1])!r}" + (f", birthday {value[2]!r}" if len(value) > 2 else "")
            for value in common
        }
        # an id goes on while a record is left that had it, unless it merged with another of as many records
        moves = Counter((had, expected[one]) for one, had in before.items() if one in expected)
        for ended in {*before.values()} - {*expected.values()}:
            parts = {now: size for (had, now), size in moves.items() if had == ended}
            assert not parts or any(
                moves[now, now] >= size == max(parts.values()) for now, size in parts.items()
            )
        was, now = (ids_of(of) for of in (before, expected))
        assert all(was[group] == now[group] for group in {*was} & {*now})
        before = expected


def ids_of(entities: dict[int, str]) -> dict[frozenset[int], str]:
    members = defaultdict(set)
    for record, entity in entities.items():
        members[entity].add(record)
    return {frozenset(group): entity for entity, group in members.items()}


@pytest.mark.slow
@pytest.mark.share(2)
@pytest.mark.parametrize(
    ("workers", "seed"),
    [
        (1, 0),
        *(pytest.param(n, seed, marks=pytest.mark.campaign) for n, seed in ((2, 1), (3, 2))),
        (3, 3),
    ],
)
def test_entities_and_their_ids_while_records_come_go_and_change(workers: int, seed: int) -> None:
    epochs = drawn(seed, 12)
    crashes = 0.2 if seed == 3 else 0.0
    check(run(flow_of(), {"records": epochs}, workers=workers, seed=seed, crashes=crashes), epochs)


@pytest.mark.slow
@pytest.mark.share(2)
@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.campaign) for seed in (2, 3))])
def test_ids_go_on_with_another_number_of_workers_also_while_records_move(seed: int) -> None:
    flow, draw, model = ts.Dataflow("ids"), random.Random(seed), Model()
    changes = flow.input("members", "record long, label string, diff long", epochs="manual")
    ts.stable_ids(changes.collection(diff="diff"), group="label").capture("of")
    simulation, label = Simulation(flow, workers=2), {}
    for epoch in range(12):
        before = dict(label)
        for record in draw.choices(range(15), k=8):
            label.pop(record, None)
            if draw.random() < 0.8:
                label[record] = draw.choice("abcde")
        rows = [(*one, 1) for one in label.items() - before.items()]
        simulation.send("members", rows + [(*one, -1) for one in before.items() - label.items()])
        simulation.advance_to("members", epoch + 1)
        for _ in range(1 + draw.randrange(4)):
            simulation.step()
        move(simulation, flow, (3, 1, 2)[epoch % 3])
        simulation.run()
        groups = [{one for one, of in label.items() if of == name} for name in {*label.values()}]
        assert entities_at(simulation.captured["of"], epoch) == model.step(epoch, groups)


def entities_at(captured: Any, epoch: int) -> dict[Any, str]:
    table = ts.snapshot(captured, at=epoch)
    return dict(zip(*(table[name].to_pylist() for name in ("record", "entity")), strict=True))


def states(epochs: list[list[Row]], schema: str, keys: list[list[str]]) -> list[dict[Any, str]]:
    """The entity of each record after each epoch."""
    out = run(flow_of(schema, 9, keys), {"records": epochs}, workers=2, seed=1)["of"]
    return [entities_at(out, epoch) for epoch in range(len(epochs))]


@pytest.mark.slow
def test_ids_after_a_merge_a_split_and_the_loss_of_the_eldest() -> None:
    """Ids are text here, and longer than one character each."""
    epochs = [
        [("ann", "x", 1), ("bob", "x", 1), ("cy", "y", 1), ("di", "y", 1)],
        [("bob", "x", -1), ("bob", "y", 1)],  # a changed value moves a record
        [("bob", "x", 1)],  # two rows of one record: a match of both
        [("bob", "x", -1)],  # which is withdrawn
        [("ann", "x", -1), ("cy", "y", -1), ("cy", "z", 1)],
        [("ann", "z", 1), ("bob", "y", -1), ("eve", "y", 1)],  # who comes again is new
        [("di", "y", -1), ("eve", "y", -1), ("ann", "z", -1), ("cy", "z", -1)],
    ]
    ann, cy = "ann@0", "cy@0"
    assert states(epochs, "id string, email string, diff long", [["email"]]) == [
        {"ann": ann, "bob": ann, "cy": cy, "di": cy},
        {"ann": ann, "bob": cy, "cy": cy, "di": cy},
        {"ann": cy, "bob": cy, "cy": cy, "di": cy},  # the larger keeps its id
        {"ann": ann, "bob": cy, "cy": cy, "di": cy},
        {"bob": cy, "di": cy, "cy": "cy@4"},  # also without the record that it is called after
        {"di": cy, "eve": cy, "cy": "cy@4", "ann": "cy@4"},
        {},
    ]


@pytest.mark.slow
def test_null_nan_and_empty_text_match_nothing() -> None:
    nan = float("nan")
    rows = [(1, None, nan, 1), (2, None, nan, 1), (3, "", 1.5, 1), (4, "", 1.5, 1), (2**62, "a", None, 1)]
    (found,) = states([rows], "id long, email string, score double, diff int", [["email"], ["score"]])
    assert found == {1: "1@0", 2: "2@0", 3: "3@0", 4: "3@0", 2**62: f"{2**62}@0"}


def test_what_cannot_be_matched_is_said() -> None:
    import entity_resolution as job

    flow = ts.Dataflow("wrong")
    stream = flow.input("records", "id double, email string, tags array<string>, n long")
    for identity, keys, says in [
        ("id", [["email"]], "'id', the records' id, is double"),
        ("n", [["mail"]], r"the job needs \['n', 'mail'\]"),
        ("n", [["email", "tags"]], "none nested"),
    ]:
        with pytest.raises(ts.TimelyError, match=says):
            job.records_of(stream, identity, keys)
    with pytest.raises(ts.TimelyError, match=r"'record': None, .*has no id"):
        job.checked(pa.table({"record": pa.array([1, None]), "key email": ["a", "b"]}))
    with pytest.raises(argparse.ArgumentTypeError, match="does not list keys"):
        job.listed("email,,phone")
    assert job.listed("email,name+birthday") == [["email"], ["name", "birthday"]]


@pytest.mark.campaign  # its notebook, and tables by key in tests/spark
@pytest.mark.timeout(240)
@pytest.mark.parametrize("current", [False, pytest.param(True, marks=pytest.mark.campaign)])
def test_entities_in_delta(
    spark: SparkSession, tmp_path: Path, here: Callable[..., str], *, current: bool
) -> None:
    (tmp_path / "in").mkdir()
    rows = [
        [(1, "a", "5", 1), (2, None, "5", 1), (3, "c", "5", 1), (4, "c", "7", 1), (5, "a", "7", 1)],
        [(5, "a", "7", -1), (3, "c", "5", -1), (1, "a", "5", -1), (6, "a", "5", 1)],
    ]
    for epoch, records in enumerate(rows):
        file = tmp_path / "in" / f"{epoch}.json"
        names = ("id", "email", "phone", "diff")
        file.write_text("".join(json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in records))
        os.utime(file, (1_600_000_000 + epoch,) * 2)
    args = ["--records", tmp_path / "in", "--format", "json", "--files-per-epoch", 1, "--keys", "email,phone"]
    args += ["--schema", "id long, email string, phone string, diff long", "--most", 2]
    args += ["--current", tmp_path / "now"] if current else []

    said = here("entity_resolution", *args, "--output", tmp_path / "out", "--workers", 2)

    assert "epoch 0: phone '5' is shared by more than 2 records: it matches nothing\n" in said
    assert "epoch 1: phone '5' is shared by at most 2 again\n" in said
    log = spark.read.format("delta").load(str(tmp_path / "out"))
    first = {1: "1@0", 2: "2@0", 3: "1@0", 4: "1@0", 5: "1@0"}
    assert {row.record: row.entity for row in ts.snapshot(log, at=0).collect()} == first
    last = {2: "2@0", 4: "1@0", 6: "2@0"}  # 4 inherits
    assert {row.record: row.entity for row in ts.snapshot(log).collect()} == last
    if current:
        assert dict(rows_of(tmp_path / "now", "record", "entity")) == last


@pytest.mark.parametrize("first", ["a", "b"])
@pytest.mark.parametrize("schema", [None, "id long, email string, diff long"])
def test_files_with_and_without_the_column_diff_come_in_any_order(
    tmp_path: Path, first: str, schema: str | None
) -> None:
    import entity_resolution as job

    from timely_spark.runtime.sources.arrivals import Part

    contents = {"a": "id,email\n1,x\n", "b": "id,email,diff\n1,x,-1\n"}
    for at, name in enumerate([first, *({"a", "b"} - {first})]):
        (tmp_path / f"{name}.csv").write_text(contents[name])
        os.utime(tmp_path / f"{name}.csv", (at, at))
    flow = ts.Dataflow("files")
    args = argparse.Namespace(
        format="csv", records=str(tmp_path), schema=schema, files_per_epoch=None, id="id", keys=[["email"]]
    )
    job.read_records(flow, args).changes().capture("out")
    source: Any = flow.frames["records"]
    parts = [Part(f"{tmp_path}/{name}.csv", 0, 99) for name in ("a", "b")]
    read = source.folder.read(parts, flow.compile(1).source("records").stage.outputs[0], ["id", "diff"])
    assert [row for batch in read for row in batch.to_pylist()] == [
        {"id": 1, "diff": 1},
        {"id": 1, "diff": -1},
    ]
