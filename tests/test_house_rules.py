"""The house rules of CONTRIBUTING.md that a machine can check, beyond what ruff and mypy say."""

from __future__ import annotations

import ast
import contextlib
import inspect
import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import timely_spark
from tests.support import package
from tests.support.package import MODULES, PACKAGE
from timely_spark.captured import Captured
from timely_spark.differential import CollectionVariable
from timely_spark.operators.group_by import Grouped
from timely_spark.runtime.handle.input_handle import InputHandle

#: Lines of a module; of one that is a single class, which a reader takes as one thing.
LONGEST, LONGEST_CLASS = 600, 800


def longest(module: ast.Module) -> int:
    defined = [node for node in module.body if isinstance(node, ast.ClassDef | ast.FunctionDef)]
    return LONGEST_CLASS if len(defined) == 1 and isinstance(defined[0], ast.ClassDef) else LONGEST


@pytest.fixture(scope="module")
def parsed() -> dict[Path, ast.Module]:
    """The modules, by their path in the package."""
    return {path.relative_to(PACKAGE): package.parsed(path) for path in MODULES}


@pytest.fixture(scope="module")
def nodes(parsed: dict[Path, ast.Module]) -> dict[Path, list[ast.AST]]:
    """All of each module's syntax tree, the outer before the inner."""
    return {path: list(ast.walk(tree)) for path, tree in parsed.items()}


SAYING_NOTHING = {"utils", "util", "helpers", "common", "misc", "core"}


def test_a_module_is_named_after_a_concept_short_and_documented(parsed: dict[Path, ast.Module]) -> None:
    lines = {path: (PACKAGE / path).read_text(encoding="utf-8").splitlines() for path in parsed}

    assert [path for path, tree in parsed.items() if not ast.get_docstring(tree)] == []
    assert [path for path in parsed if "from __future__ import annotations" not in lines[path]] == []
    assert [path for path, tree in parsed.items() if len(lines[path]) > longest(tree)] == []
    names = {path: {part.strip("_") for part in path.with_suffix("").parts} for path in parsed}
    assert [path for path in parsed if names[path] & SAYING_NOTHING] == []


def test_labels_decide_nothing(nodes: dict[Path, list[ast.AST]]) -> None:
    """No comparison in the package looks at a stage's label or detail."""
    deciding = []
    for path, walked in nodes.items():
        for node in walked:
            asked = [node.left, *node.comparators] if isinstance(node, ast.Compare) else []
            asked += [node.subject] if isinstance(node, ast.Match) else []
            labels = [
                one for one in asked if isinstance(one, ast.Attribute) and one.attr in {"operator", "detail"}
            ]
            deciding += [f"{path}:{one.lineno}" for one in labels]
    assert deciding == []


#: Functions that mean the same for other things: a program, the rows of a query or of a simulation.
ALIKE = {"consolidate", "explain_row", "inspect", "main", "run"}


def _aliases(module: ast.Module) -> Iterator[str]:
    """The names that a module gives to types."""
    for node in module.body:
        targets = [*getattr(node, "targets", ()), getattr(node, "target", None)]
        for name in map(_bound, filter(None, targets)):
            if name[:1].isupper() and not name.isupper():
                yield name


def test_one_name_means_one_thing(parsed: dict[Path, ast.Module], nodes: dict[Path, list[ast.AST]]) -> None:
    classes = Counter(node.name for of in nodes.values() for node in of if isinstance(node, ast.ClassDef))
    classes.update(name for tree in parsed.values() for name in _aliases(tree))
    defined = [
        {node.name for node in tree.body if isinstance(node, ast.FunctionDef)} for tree in parsed.values()
    ]
    functions = Counter(name for names in defined for name in names if not name.startswith("_"))

    assert [name for name, times in classes.items() if times > 1] == []
    twice = {name for name, times in functions.items() if times > 1}
    twice -= set(dir(timely_spark.Collection))
    assert twice == ALIKE - set(dir(timely_spark.Collection)), "choose a name that no other function has"


def test_public_names_are_sorted_as_ruff_sorts_them() -> None:
    names = list(timely_spark.__all__)

    # constants, then classes, then functions
    assert names == sorted(names, key=lambda name: (not name.isupper(), not name[0].isupper(), name))


def called_by_users() -> Iterator[tuple[str, list[inspect.Parameter]]]:
    """The functions of the API, and the methods of its classes and of what these return."""
    things = [getattr(timely_spark, name) for name in timely_spark.__all__]
    for module in (timely_spark, timely_spark.graphs, timely_spark.testing):
        for name in module.__all__:
            if inspect.isfunction(thing := getattr(module, name)):
                yield name, list(inspect.signature(thing).parameters.values())
    more = (timely_spark.testing.Simulation, Captured, Grouped, InputHandle, CollectionVariable)
    for of in (*filter(inspect.isclass, things), *more):
        for name in dir(of):
            method = getattr(of, name)
            is_ours = getattr(method, "__module__", None) is not None  # not Exception.add_note
            if not name.startswith("_") and inspect.isroutine(method) and is_ours:
                own = inspect.isfunction(method)  # of a class method, `cls` is bound
                yield f"{of.__name__}.{name}", list(inspect.signature(method).parameters.values())[own:]


#: The sections of a docstring, in their order.
SECTIONS = ["Args", "Returns", "Columns", "Example", "Raises", "Source"]
HEAD = re.compile(rf"^(?:\*\*)?({'|'.join(SECTIONS)}):", re.MULTILINE)


def test_sections_of_docstrings_have_one_order(nodes: dict[Path, list[ast.AST]]) -> None:
    documented = (ast.FunctionDef, ast.ClassDef)
    texts = {
        f"{path}: {node.name}": ast.get_docstring(node) or ""
        for path, of in nodes.items()
        for node in of
        if isinstance(node, documented)
    }
    found = {name: [SECTIONS.index(head) for head in HEAD.findall(text)] for name, text in texts.items()}

    assert [name for name, sections in found.items() if sections != sorted({*sections})] == []


def test_a_public_method_is_explained_by_itself_or_by_what_it_overrides(
    parsed: dict[Path, ast.Module],
) -> None:
    classes = {
        one.name: one for tree in parsed.values() for one in tree.body if isinstance(one, ast.ClassDef)
    }
    methods = {
        name: {one.name: one for one in of.body if isinstance(one, ast.FunctionDef)}
        for name, of in classes.items()
    }

    def is_explained(name: str, method: ast.FunctionDef) -> bool:
        if name not in classes:
            return False
        if ast.get_docstring(methods[name].get(method.name, method)):
            return True
        bases = {ast.unparse(base).partition("[")[0].rpartition(".")[2] for base in classes[name].bases}
        return any(is_explained(base, method) for base in bases - {name})

    lacking = [
        f"{name}.{one.name}"
        for name, of in methods.items()
        for one in of.values()
        if not name.startswith("_") and not one.name.startswith("_") and ast.unparse(one.body[-1]) != "..."
        if not is_explained(name, one)
    ]
    assert lacking == []


def test_arguments_after_the_second_are_keyword_only_or_required() -> None:
    together = {"maintain(table=)"}  # the three first are given together; or sql= instead
    wrong = [
        called
        for name, parameters in called_by_users()
        for one in parameters[2:]
        if one.kind is one.POSITIONAL_OR_KEYWORD and one.default is not one.empty
        if (called := f"{name}({one.name}=)") not in together
    ]

    assert wrong == [], "put a * before it"


def test_a_hint_is_given_to_the_error_and_not_written_into_its_text(
    nodes: dict[Path, list[ast.AST]],
) -> None:
    documented, wrong = (ast.Module, ast.ClassDef, ast.FunctionDef), []
    for path, of in nodes.items():
        docstrings = {node.body[0].value for node in of if isinstance(node, documented) and node.body
                      and isinstance(node.body[0], ast.Expr)}  # fmt: skip
        wrong += [
            f"{path}:{node.lineno}"
            for node in of
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
            if "Hint:" in node.value and node not in docstrings and path.name != "errors.py"
        ]

    assert wrong == [], "give it as hint=..., or to with_hint"


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else getattr(node, "attr", "")


def _raised(nodes: list[ast.AST], errors: set[str]) -> Iterator[ast.Call]:
    """The calls that make an error of the library, by its name or as `cls` in its own body."""
    owners = [node for node in nodes if isinstance(node, ast.ClassDef) and node.name in errors]
    for of, names in [(nodes, errors), *((ast.walk(owner), {"cls"}) for owner in owners)]:
        for node in of:
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names:
                yield node


def test_every_error_has_a_hint(nodes: dict[Path, list[ast.AST]]) -> None:
    classes = [node for of in nodes.values() for node in of if isinstance(node, ast.ClassDef)]
    errors = {"TimelyError"}
    for _ in range(5):  # subclasses of subclasses
        errors |= {one.name for one in classes if errors.intersection(map(_name, one.bases))}
    calls = [(path, call) for path, of in nodes.items() for call in _raised(of, errors)]
    without = [
        f"{path}:{call.lineno}"
        for path, call in calls
        if not any(word.arg in {"hint", None} for word in call.keywords)  # None: **more
        or any(word.arg == "hint" and ast.unparse(word.value) in {"None", "''"} for word in call.keywords)
    ]

    assert len(calls) > 200
    assert without == []


def _bound(node: ast.AST) -> str:
    """The name of an argument, a variable, an attribute or a function that a node binds; else empty."""
    if isinstance(node, ast.FunctionDef):
        return node.name
    if isinstance(node, ast.arg):
        return node.arg
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
        return node.attr
    return node.id if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) else ""


#: Words that say nothing of a value: its noun does.
NO_NOUNS = {"alike", "found", "made", "given", "kept", "known", "told", "mine", "theirs"}


ROOT = PACKAGE.parent


def _programs() -> Iterator[tuple[str, ast.AST]]:
    """What users read: jobs, settings, benchmarks, cells of notebooks, and blocks of pages that are whole."""
    for path in sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("notebooks/*.ipynb")]):
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".md":
            parts = package.blocks(text)
        else:
            cells = json.loads(text)["cells"]
            parts = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
        for part in parts:
            with contextlib.suppress(SyntaxError):  # a magic of a notebook
                yield path.name, ast.parse(part)
    for path in [*ROOT.glob("jobs/*.py"), *ROOT.glob("conf/*.py"), *ROOT.glob("benchmarks/**/*.py")]:
        yield path.name, ast.parse(path.read_text(encoding="utf-8"))


def test_a_value_in_a_program_that_users_read_is_named_by_a_noun() -> None:
    named = {(name, word) for name, tree in _programs() for word in NO_NOUNS & {*map(_bound, ast.walk(tree))}}

    assert named == set(), "name it by what it is: accounts, totals, results, options"


def test_a_value_is_named_by_a_noun(nodes: dict[Path, list[ast.AST]]) -> None:
    named = [
        f"{path}:{getattr(node, 'lineno', 0)}: {name}"
        for path, of in nodes.items()
        for node in of
        if (name := _bound(node)).lstrip("_") in NO_NOUNS
    ]
    assert named == [], "name it by what it is: groups, matches, options, a result"
