"""Imports only point downwards, also lazy ones, and only `runtime` needs Spark: read from the sources."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import NamedTuple

import networkx as nx
import pytest

from tests.support.package import MODULES, PACKAGE, parsed
from timely_spark import authors

#: From the lowest to the highest; names in one row would not import each other.
LAYERS = (
    ("errors",),
    ("times",),
    ("graph",),
    ("sql",),
    ("progress",),
    ("state",),
    ("compiler",),
    ("worker",),
    ("coordinator",),
    ("show",),
    ("streams",),
    ("operators",),
    ("captured",),
    ("differential",),
    ("authors",),
    ("queries",),
    ("graphs",),
    ("libraries",),
    ("provenance",),
    ("runtime",),
    ("input_streams",),
    ("inputs",),
    ("dataflow",),
    ("views",),
    ("change_events",),
    ("maintained",),
    ("sql_file",),
    ("pipeline",),
    ("simulated",),
    ("crashes",),
    ("schedules",),
    ("testing",),
    ("__init__",),
    ("demo",),
    ("__main__",),
)
RANK = {name: rank for rank, row in enumerate(LAYERS) for name in row}

#: These decide, and never act: no import upwards and no pyspark, not even inside a function.
PURE = {"errors", "times", "graph", "sql", "progress", "state", "compiler", "worker", "coordinator"}

#: Fetched by nobody who does not use them: imported inside functions only.
OPTIONAL = {
    "delta", "networkx", "scipy", "matplotlib", "IPython", "ipywidgets", "rich",
    "prometheus_client", "opentelemetry", "sqlglot",
}  # fmt: skip


#: The imports of this package that stand in a function: from which module, which part, and why.
IN_FUNCTIONS = {
    ("timely_spark.dataflow", "runtime"): "a flow is built without Spark, which starting it needs",
    ("timely_spark.dataflow", "queries"): "a program without SQL needs no code for it",
    ("timely_spark.queries.sql", "queries"): "a program without SQL needs no code for it",
    ("timely_spark.inputs", "runtime"): "a program that reads no files needs no code for them",
    ("timely_spark.operators.sql", "sql"): "a program without texts in SQL needs no code for them",
    (
        "timely_spark.runtime.query.data_source",
        "runtime",
    ): "the code of a shipped class imports where it runs",
    ("timely_spark.runtime.query.streaming", "runtime"): "a data source of Spark is a subclass of pyspark's",
    ("timely_spark.runtime.sinks.sink", "runtime"): "a data source of Spark is a subclass of pyspark's",
}
#: What these modules need only when a flow starts or opens files: imported inside functions.
LAZY = {("dataflow", "runtime"), ("input_streams", "runtime"), ("inputs", "runtime")}
#: The parts of `runtime`, as `LAYERS`.
OF_RUNTIME = (
    ("errors", "arguments", "batches", "process"),
    ("storage",),
    ("forks", "prepare"),
    ("session",),
    ("run_context",),
    ("sinks",),
    ("sources",),
    ("query",),
    ("restore", "handle"),
    ("metrics", "start"),
)
#: Two modules of a folder that know each other: the first names the second in annotations only.
PAIRS = {
    ("timely_spark.compiler.identity", "timely_spark.compiler.plan"),
    ("timely_spark.worker.context", "timely_spark.worker.round"),
}
#: What only type checkers read (methods.pyi): the only place for names of layers above.
TYPED = "timely_spark.methods."


class Import(NamedTuple):
    """One imported name: where it stands, and whether it is needed to load the module."""

    name: str
    line: int
    #: in a function, or under TYPE_CHECKING
    lazy: bool
    in_function: bool = False


def _imports(tree: ast.AST, module: str, *, is_package: bool) -> list[Import]:
    """All imports of a module as absolute names; lazy are those in functions and under TYPE_CHECKING."""
    package = module if is_package else module.rpartition(".")[0]
    found: list[Import] = []

    def visit(node: ast.AST, *, lazy: bool, inside: bool = False) -> None:
        if isinstance(node, ast.Import):
            found.extend(Import(alias.name, node.lineno, lazy, inside) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            origin = ".".join([*base, *([node.module] if node.module else [])])
            # `from timely_spark import times` imports timely_spark.times, as far as layers are concerned
            found.extend(Import(f"{origin}.{alias.name}", node.lineno, lazy, inside) for alias in node.names)
        elif isinstance(node, ast.If) and getattr(node.test, "id", None) == "TYPE_CHECKING":
            for child in node.body:
                visit(child, lazy=True)
            for child in node.orelse:
                visit(child, lazy=lazy, inside=inside)
        elif not isinstance(node, ast.expr):  # an import is a statement
            inside = inside or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
            for child in ast.iter_child_nodes(node):
                visit(child, lazy=lazy or inside, inside=inside)

    visit(tree, lazy=False)
    return found


def _layer(name: str) -> str:
    """The layer a dotted name of this package belongs to.

    >>> _layer("timely_spark.times.frontier.Antichain")
    'times'
    """
    parts = name.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in RANK else "__init__"


def _wrong(found: list[Import], module: str) -> list[str]:
    """What a module imports against the rules, as `module, line: reason`."""
    layer = _layer(module)
    pure = layer in PURE
    wrong = []
    for name, line, lazy, _ in found:
        top = name.partition(".")[0]
        if top in OPTIONAL and not lazy:
            wrong.append(f"{module}, {line}: optional {top} is imported by loading the module")
        if top in {"pyspark", "py4j"} and layer != "runtime" and (pure or not lazy):
            wrong.append(f"{module}, {line}: {layer} imports {top}")
        if top == "timely_spark" and not (lazy and name.startswith(TYPED)):
            other = _layer(name)
            early = not lazy and (layer, other) in LAZY
            if early or (other != layer and RANK[other] >= RANK[layer]):
                wrong.append(f"{module}, {line}: {layer} imports {name}, which is not below it")
    return wrong


def _module(path: Path) -> tuple[str, bool]:
    """A file's module, and whether that is a package."""
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    is_package = parts[-1] == "__init__"
    return ".".join(parts[:-1] if is_package else parts), is_package


@pytest.fixture(scope="module")
def written() -> dict[str, list[Import]]:
    """By module what it imports."""
    of = {path: _module(path) for path in MODULES}
    return {name: _imports(parsed(path), name, is_package=inner) for path, (name, inner) in of.items()}


@pytest.fixture(scope="module")
def imports(written: dict[str, list[Import]]) -> dict[str, list[Import]]:
    """By module its imports of this package, each by the name of the imported module."""
    found: dict[str, list[Import]] = {module: [] for module in written}
    for module, each in written.items():
        for one in each:
            name = one.name
            while name and name not in written:  # the name of a class or function in a module
                name = name.rpartition(".")[0]
            if name and name != module and not one.name.startswith(TYPED):
                found[module].append(one._replace(name=name))
    return found


def test_a_module_imports_only_what_is_below_it(written: dict[str, list[Import]]) -> None:
    assert [wrong for module, found in written.items() for wrong in _wrong(found, module)] == []


def test_a_part_of_the_runtime_imports_only_what_is_below_it(imports: dict[str, list[Import]]) -> None:
    rank = {name: rank for rank, row in enumerate(OF_RUNTIME) for name in row}
    pairs = {
        (module.split(".")[2], one.name.split(".")[2])
        for module, found in imports.items()
        for one in found
        if module.startswith("timely_spark.runtime.") and one.name.startswith("timely_spark.runtime.")
    }
    assert {part for pair in pairs for part in pair} <= rank.keys(), "give it a row in OF_RUNTIME"
    assert [(part, of) for part, of in pairs if part != of and rank[of] >= rank[part]] == []


def test_no_circle_of_modules_counting_lazy_imports(imports: dict[str, list[Import]]) -> None:
    edges = {(module, one.name) for module, found in imports.items() for one in found}
    graph = nx.DiGraph(sorted(edges - PAIRS))

    assert nx.is_directed_acyclic_graph(graph), nx.find_cycle(graph)
    assert edges >= PAIRS, "take out of PAIRS what is no longer imported"


def test_an_import_inside_a_function_has_its_reason(imports: dict[str, list[Import]]) -> None:
    inside = {
        (module, _layer(one.name)) for module, found in imports.items() for one in found if one.in_function
    }

    assert inside == set(IN_FUNCTIONS), "import it at the top, or give IN_FUNCTIONS the reason"


#: What the modules of `graphs` and `libraries` may import of this package: these, and public names of others.
AUTHORS = ("authors", "errors", "graphs", "libraries")
PUBLIC = {"Collection", "Stream", "Time", "Timestamp", "wcoj"}


def test_algorithms_and_libraries_are_made_of_public_names(written: dict[str, list[Import]]) -> None:
    internal = [
        f"{module}, {one.line}: {one.name}"
        for module, found in written.items()
        if _layer(module) in {"graphs", "libraries"}
        for one in found
        if one.name.startswith("timely_spark.") and _layer(one.name) not in AUTHORS
        if one.name.rpartition(".")[2] not in PUBLIC
    ]

    assert internal == [], "use public operators; or what authors has, if authors of algorithms need more"


def test_all_that_authors_has_is_used(written: dict[str, list[Import]]) -> None:
    used = {one.name for found in written.values() for one in found}

    assert [name for name in authors.__all__ if f"timely_spark.authors.{name}" not in used] == []


def test_every_part_of_the_package_has_its_layer() -> None:
    modules = {path.stem for path in PACKAGE.glob("*.py")}
    folders = {path.parent.name for path in PACKAGE.glob("*/*.py")}

    assert sorted((modules | folders) - set(RANK)) == [], "give it a row in LAYERS, and DESIGN its reason"


@pytest.mark.parametrize(
    ("module", "source", "wrong"),
    [
        ("timely_spark.times.order", "from timely_spark.errors import TimelyError", False),
        ("timely_spark.times.order", "from ..graph import node", True),
        ("timely_spark.times.order", "def f():\n    import pyspark", True),
        ("timely_spark.worker.round", "from timely_spark import progress", False),
        ("timely_spark.progress.tracker", "import timely_spark.worker.round", True),
        ("timely_spark.progress.tracker", "from timely_spark import Time", True),
        ("timely_spark.dataflow", "def start():\n    from timely_spark.runtime import start", False),
        ("timely_spark.dataflow", "from timely_spark.runtime import start", True),
        ("timely_spark.dataflow", "if TYPE_CHECKING:\n    from pyspark.sql import DataFrame", False),
        ("timely_spark.dataflow", "import pyspark", True),
        ("timely_spark.dataflow", "from timely_spark import testing", True),
        ("timely_spark.streams", "def f():\n    from timely_spark.differential import collection", True),
        ("timely_spark.streams", "if TYPE_CHECKING:\n    from timely_spark.dataflow import Dataflow", True),
        ("timely_spark.streams", "if TYPE_CHECKING:\n    from timely_spark.methods import Dataflow", False),
        ("timely_spark.runtime.session", "from pyspark.sql import SparkSession", False),
        ("timely_spark.runtime.session", "from delta import configure_spark_with_delta_pip", True),
    ],
)
def test_the_rules_themselves(module: str, source: str, *, wrong: bool) -> None:
    assert bool(_wrong(_imports(ast.parse(source), module, is_package=False), module)) == wrong
