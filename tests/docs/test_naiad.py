"""The page about Naiad: each word has a place and a test that are there; and timely's first program."""

from __future__ import annotations

import importlib
import re
from operator import attrgetter
from pathlib import Path

import pytest

import timely_spark as ts
from timely_spark.operators.group_by import Grouped
from timely_spark.testing import Simulation

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "naiad.md").read_text(encoding="utf-8")
WORDS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.partition("## Every noun and verb")[2].partition("\n## ")[0].splitlines()
    if line.startswith("| ") and not line.startswith("| word")
]


LINQ = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.partition("## Naiad's LINQ")[2].partition("\n## ")[0].splitlines()
    if line.startswith("| `")
]


def exists(name: str) -> bool:
    """Whether a name is below the package; `Coordinator.first` is below the room of coordinators."""
    for room in ("", ".coordinator", ".runtime.handle.query"):
        try:
            attrgetter(name)(importlib.import_module(f"timely_spark{room}"))
        except AttributeError:
            continue
        return True
    return False


@pytest.mark.parametrize("row", WORDS, ids=lambda row: row[0])
def test_a_word_has_a_place_and_a_test_or_a_reason(row: list[str]) -> None:
    _, here, modules, tests = row

    names = [name for name in re.findall(r"`([\w.]+)`", here) if name != "TCP_NODELAY"]
    assert [name for name in names if not exists(name)] == []
    for module in re.findall(r"`(\S+\.py)`", modules):
        assert any((ROOT / folder / module).exists() for folder in ("timely_spark", ".")), module
    assert tests or here.startswith(("none: ", "`python -m benchmarks"))


@pytest.mark.parametrize("row", LINQ, ids=lambda row: row[0])
def test_a_translation_of_linq_is_made_of_operators(row: list[str]) -> None:
    called = re.findall(r"(\w+)\(", " ".join(row[1:3]))
    assert called or row[2] == "`reduce_batches`"
    assert [name for name in called if not exists(f"Stream.{name}") and not hasattr(Grouped, name)] == []


def test_the_program_of_timelys_readme() -> None:
    flow = ts.Dataflow("hello")
    stream = flow.input("x", "n long", epochs="manual")
    inside = flow.scope.inner(name="subcomputation")
    stream.enter(inside).leave().inspect("hello")
    root = Simulation(flow)

    for round_ in range(3):
        root.send("x", [round_])
        root.advance_to("x", round_ + 1)
        assert root.step()
    root.close("x")
    while root.step():
        pass

    assert root.captured["hello"].rows() == {0: [(0,)], 1: [(1,)], 2: [(2,)]}
