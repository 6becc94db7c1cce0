"""What `make mutate` changes is code, and a change gets into functions that are there already."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path
from typing import Any

import pytest

from tests.mutate import FOLDERS, all_mutations, drawn
from tests.support.equivalent import EQUIVALENT
from tests.support.mutations import PACKAGE, Mutation, mutated, mutations_of, put

SAMPLE = '''
"""Nothing of this is changed: 1 + 1."""

def wrapped(function):
    def call(*args):
        return function(*args) + 1
    return call

class Log:
    def __init__(self, limit: int = 3) -> None:
        self.rows, self.limit = [], limit

    def add(self, row: int) -> None:
        """Add 1 row."""
        if row < 0 and self.limit:
            raise ValueError(f"{row + 1}")
        self.rows.append(row)
        self.limit -= 1

    def total(self):
        return sum(row for row in self.rows if row > 1)

    def __repr__(self):
        return str(1 + 1)

@wrapped
def less(a, b):
    return a - b

def of_type(value):
    match value:
        case 1:
            return "one"
    return max(value, 7)
'''


def names(found: tuple[Mutation, ...]) -> set[str]:
    return {f"{one.function} {one.kind} {one.number}" for one in found}


def test_signs_conditions_calls_and_deltas_are_changed_but_no_words() -> None:
    found = mutations_of(SAMPLE, "sample.py")

    assert names(found) == {
        "wrapped.call flip a sign 1",
        "wrapped.call change a number 1",
        "Log.add return early 1",
        "Log.add leave out a branch 1",
        "Log.add always take a branch 1",
        "Log.add forget a condition 1",
        "Log.add forget the first condition 1",
        "Log.add change a comparison 1",
        "Log.add change a number 1",
        "Log.add leave out a call 1",
        "Log.add drop a delta 1",
        "Log.add flip a sign 1",
        "Log.add change a number 2",
        "Log.total forget a filter 1",
        "Log.total change a comparison 1",
        "Log.total change a number 1",
        "less flip a sign 1",
        "of_type change a function 1",
        "of_type change a number 1",
    }


def loaded(folder: Path) -> Any:
    path = folder / "sample.py"
    path.write_text(SAMPLE)
    spec = importlib.util.spec_from_file_location("sample", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def seen(module: Any) -> list[Any]:
    """What the sample does."""
    log, said = module.Log(), list[Any]()
    for row in (-5, 1, 2, 2, -5, 0):
        try:
            log.add(row)
        except ValueError:  # noqa: PERF203 - of each
            said.append("refused")
    return [
        *said,
        log.rows,
        log.limit,
        log.total(),
        module.less(3, 1),
        module.of_type(1),
        module.of_type(7.5),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("one", mutations_of(SAMPLE, "sample.py"), ids=lambda one: one.name)
def test_a_change_gets_into_what_is_loaded_and_is_seen(one: Mutation, tmp_path: Path) -> None:
    module = loaded(tmp_path)
    before = seen(module)

    assert put(SAMPLE, one, str(tmp_path / "sample.py")) == len(one.within)

    assert seen(module) != before


@pytest.mark.slow
def test_a_change_keeps_the_variables_of_a_closure(tmp_path: Path) -> None:
    (one,) = [one for one in mutations_of(CLOSED, "closed.py") if one.kind == "drop a delta"]
    path = tmp_path / "closed.py"
    path.write_text(CLOSED)
    space: dict[str, Any] = {}
    exec(compile(CLOSED, str(path), "exec"), space)
    count = space["counter"]()

    assert count() == 1
    assert put(CLOSED, one, str(path)) == 2
    assert count() == 1


CLOSED = """
def counter():
    n = 0

    def count():
        nonlocal n
        n += 1
        return n

    return count
"""


@pytest.fixture(scope="module")
def found() -> list[Mutation]:
    """All changes that are made of the package."""
    return all_mutations()


@pytest.mark.campaign
@pytest.mark.slow
def test_all_changes_have_names_of_their_own_and_folders_take_turns(found: list[Mutation]) -> None:
    assert len({one.name for one in found}) == len(found) > 4000
    first = drawn(found, seed=0)[: 5 * len(FOLDERS)]
    assert first == drawn(reversed(found), seed=0)[: len(first)]
    for folder in FOLDERS:
        assert sum(one.file.startswith(folder) for one in first) == 5


@pytest.mark.campaign
@pytest.mark.slow
def test_what_is_changed_can_be_compiled_and_is_another_program(found: list[Mutation]) -> None:
    for one in drawn(found, seed=1)[:20]:
        source = (PACKAGE / one.file).read_text()
        tree = mutated(source, one)
        compile(tree, one.file, "exec")
        assert ast.dump(tree) != ast.dump(ast.parse(source)), one


@pytest.mark.slow
def test_what_is_known_to_change_nothing_is_still_there() -> None:
    files = {name.partition("::")[0] for name in EQUIVALENT}
    assert all(file.startswith(FOLDERS) for file in files)
    names = {one.name for file in files for one in mutations_of((PACKAGE / file).read_text(), file)}
    assert EQUIVALENT.keys() - names == set()
