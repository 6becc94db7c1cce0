"""The logical graph: names, scopes, the user's lines, and checks when it is built."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import timely_spark as ts
from timely_spark.errors import BadArgument, GraphError, SchemaError
from timely_spark.graph import LogicalGraph, caller
from timely_spark.graph.caller import PACKAGE


def line() -> int:
    frame = inspect.currentframe()
    assert frame is not None
    assert frame.f_back is not None
    return frame.f_back.f_lineno


def test_a_step_remembers_the_users_line() -> None:
    flow = ts.Dataflow("where")
    x = flow.input("x", "n long")
    here, made = line(), x.distinct().min("n", keys=[])
    where = made.stage.where

    assert (where.file, where.line) == (__file__, here)
    assert caller().file == __file__


def test_a_program_whose_path_begins_as_the_package_s_is_the_user_s() -> None:
    file = f"{PACKAGE.removesuffix(os.sep)}_jobs/flow.py"
    program = compile("\nflow = ts.Dataflow('')", file, "exec")
    with pytest.raises(BadArgument, match=re.escape(f"({file}:2)")):
        exec(program, {"__name__": "flow", "ts": ts})


@pytest.mark.slow
def test_a_package_that_is_found_by_a_link_is_not_the_user_s_program(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(Path(ts.__file__).resolve().parents[1])
    program = tmp_path / "program.py"
    program.write_text("import timely_spark as ts\nts.Dataflow('')")
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "link")}
    done = subprocess.run(
        [sys.executable, str(program)], env=environment, capture_output=True, text=True, check=False
    )
    assert f"({program}:2)" in done.stderr


def test_names_are_derived_stable_and_given_once() -> None:
    def build() -> list[str]:
        flow = ts.Dataflow("names")
        x = flow.input("x", "n long")
        y = x.map(lambda row: row.n, "n long").map(lambda row: row.n, "n long").distinct(name="mine")
        y.loop(lambda z: z.distinct(), name="l").loop(lambda z: z.distinct()).capture()
        return [stage.name for stage in flow.graph.stages]

    names = build()
    assert names == build()
    assert len(names) == len(set(names))
    assert {"x", "map", "map_2", "mine", "l.distinct", "loop.distinct"} <= set(names)


def test_a_taken_or_invalid_name_is_refused_with_both_lines() -> None:
    flow = ts.Dataflow("taken")
    x = flow.input("x", "n long")
    x.distinct(name="mine")

    with pytest.raises(
        GraphError, match=r"(?s)'mine' has the name of the step at .*:\d+ \(.*test_graph\.py:\d+\)\nHint"
    ):
        x.distinct(name="mine")
    for name in ("", "a.b", "a/b"):
        with pytest.raises(GraphError, match="Hint: use letters"):
            x.distinct(name=name)


def test_a_derived_name_avoids_a_given_one() -> None:
    flow = ts.Dataflow("aside")
    x = flow.input("x", "n long")
    x.distinct(name="map_2")

    assert [x.map(lambda row: row.n, "n long").name for _ in range(3)] == ["map", "map_3", "map_4"]


def test_a_derived_name_changes_if_it_is_given_to_another_step_later() -> None:
    flow = ts.Dataflow("words")
    words = flow.input("words", "word string").collection()
    counts = words.count(keys="word")
    changes = counts.changes()
    assert (counts.index.name, changes.name) == ("count", "select_2")
    changes.capture("count")
    plan = flow.compile(2)
    changes.probe("select_2")

    assert (counts.index.name, changes.name) == ("count_2", "select_3")
    assert "count" in plan.by_name, "what was compiled stays as it was"
    assert [stage.name for stage in plan.stages if stage.operator == "select"][-1] == "select_2"
    made = ts.testing.run(flow, {"words": [["to", "be", "to"]]}, workers=2)
    assert made["count"].rows() == {0: [("be", 1, 1), ("to", 2, 1)]}


def test_derived_names_of_loops_probes_and_outputs_change_too() -> None:
    flow = ts.Dataflow("aside")
    x = flow.input("x", "n long")
    inside = flow.scope.inner()
    entered = x.enter(inside)
    probe = x.probe()
    x.capture()
    x.distinct(name="loop").capture("capture-x")
    x.distinct(name="probe")
    x.distinct(name="loop_2")

    assert (inside.name, entered.name, probe.name) == ("loop_3", "loop_3.enter", "probe_2")
    assert [output.name for output in flow.outputs] == ["capture-x_2", "capture-x"]
    out = ts.testing.run(flow, {"x": [[1]]})
    assert set(out) == {"capture-x", "capture-x_2"}
    x.enter(flow.scope.inner(name="given"), name="in")
    with pytest.raises(GraphError, match=r"'given' has the name of the step at"):
        x.distinct(name="given")


def test_scopes_are_nested_and_times_have_a_counter_for_each() -> None:
    flow = ts.Dataflow("scopes")
    inner = flow.scope.inner(name="a").inner(name="b")

    assert inner.graph_scope.depth == 2
    assert inner.name == "a.b"
    assert [scope.name for scope in inner.graph_scope.path] == ["", "a", "a.b"]
    entered = inner.enter(flow.input("x", "n long"))
    assert entered.scope.name == "a.b"
    assert entered.leave().leave().stage.scope is flow.graph.root
    assert inner.enter(entered) is entered


@pytest.mark.parametrize("kinds", [("clock", "manual"), ("manual", "clock")])
def test_a_flow_uses_one_kind_of_epoch(kinds: tuple[Any, Any]) -> None:
    flow = ts.Dataflow("kinds")
    flow.input("x", "n long", epochs=kinds[0])

    with pytest.raises(GraphError, match=r"one kind of epoch.*"):
        flow.input("y", "n long", epochs=kinds[1])
    with pytest.raises(GraphError, match=r"one kind of epoch.*"):
        flow.source("s", "at long", epoch="at")


def test_an_epoch_column_is_there_and_of_whole_numbers() -> None:
    flow = ts.Dataflow("column")
    for column in ("nothing", "s"):
        with pytest.raises(SchemaError, match="Hint: "):
            flow.source("x", "at long, s string", epoch=column)


def test_stages_and_edges_are_only_added() -> None:
    graph = LogicalGraph("plain")
    assert (graph.stages, graph.edges) == ([], [])
    flow = ts.Dataflow("x")
    x = flow.input("x", "n long")
    x.distinct().capture("out")
    before = list(flow.graph.stages), list(flow.graph.edges)
    flow.compile(3)
    flow.compile(1)
    assert (flow.graph.stages, flow.graph.edges) == before, "compiling changes nothing"
    with pytest.raises(AttributeError):
        x.stage.operator = "other"  # type: ignore[misc]
