"""The site: its navigation has every page, links lead somewhere, its reference has every public name."""

from __future__ import annotations

import inspect
import json
import pkgutil
import re
import sys
import types
from pathlib import Path
from runpy import run_path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

import timely_spark as ts

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
FENCED = re.compile(r"^ {0,3}```.*?^ {0,3}```", re.MULTILINE | re.DOTALL)
#: Characters in a cell of a table.
CELL = 200
INSERTED = re.compile(r"^::: (\S+)$", re.MULTILINE)


def prose(path: Path) -> str:
    return FENCED.sub("", path.read_text(encoding="utf-8"))


def anchors(path: Path) -> set[str]:
    """The anchors of the headings, as Markdown makes them of their text."""
    headings = re.findall(r"^#+ (.*)$", prose(path), flags=re.MULTILINE)
    plain = [re.sub(r"[^\w\s-]", "", re.sub(r"\]\([^)]*\)", "", text)).strip().lower() for text in headings]
    return {re.sub(r"[-\s]+", "-", text) for text in plain}


def is_public(name: str) -> bool:
    """Whether a dotted name, such as timely_spark.Query.ask, exists."""
    try:
        pkgutil.resolve_name(name)
    except (ImportError, AttributeError):
        return False
    return name.startswith("timely_spark.")


def test_the_navigation_has_every_page_and_no_other() -> None:
    nav = re.findall(
        r"^ +- .*: (\S+\.md)\b|^ +- (\S+\.md)$",
        (ROOT / "mkdocs.yml").read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    listed = sorted("".join(pair) for pair in nav)

    assert listed == [str(page.relative_to(DOCS)) for page in PAGES], "add the page to nav in mkdocs.yml"


@pytest.mark.parametrize(
    "page", [*PAGES, ROOT / "README.md", ROOT / "CONTRIBUTING.md"], ids=lambda page: page.name
)
def test_links_lead_to_files_and_headings(page: Path) -> None:
    for link in LINK.findall(prose(page)):
        if link.startswith("https://"):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page

        assert target.is_file(), f"{page.name}: {link}"
        assert target.is_relative_to(DOCS) or not page.is_relative_to(DOCS), f"{link} is not in the site"
        if anchor.startswith("timely_spark."):
            assert target.parent.name == "api", f"{page.name}: {link}"
            assert is_public(anchor), f"{page.name}: {link}"
        elif anchor:
            assert anchor in anchors(target), f"{page.name}: {link}"


@pytest.mark.parametrize(
    "page", [*PAGES, ROOT / "README.md", ROOT / "CONTRIBUTING.md"], ids=lambda page: page.name
)
def test_a_cell_of_a_table_is_short(page: Path) -> None:
    rows = [line for line in prose(page).splitlines() if line.startswith("|")]

    assert [cell for row in rows for cell in row.split("|") if len(cell) > CELL] == [], (
        "write it below the table"
    )


def test_texts_of_errors_are_those_of_the_code() -> None:
    """The first column of "By symptom": what is in backticks and has several words is in the sources."""
    section = (
        (DOCS / "operating.md").read_text(encoding="utf-8").split("\n## By symptom\n")[1].split("\n## ")[0]
    )
    first = [row.split(" | ")[0] for row in section.splitlines() if row.startswith("| ")]
    texts = [text.strip(". ") for cell in first for text in re.findall(r"`([^`]+ [^`]+)`", cell)]
    sources = "".join(
        path.read_text(encoding="utf-8") for path in sorted((ROOT / "timely_spark").rglob("*.py"))
    )

    assert len(texts) >= 15
    assert [text for text in texts if text not in sources] == []


def test_the_columns_of_graph_algorithms_are_those_of_their_docstrings() -> None:
    section = (DOCS / "graphs.md").read_text(encoding="utf-8").split("\n## Which columns come out\n")[1]
    rows = re.findall(r"^\| (`.*?) \| .*? \| (`.*?) \| ", section.split("\n## ")[0], re.MULTILINE)
    shown = {
        name: re.findall(r"`(\w+)`", columns)
        for names, columns in rows
        for name in re.findall(r"`(\w+)`", names)
    }
    documented = {}
    for name in {*ts.graphs.__all__} - {"motifs"}:  # its columns are named by the pattern
        out = (inspect.getdoc(getattr(ts.graphs, name)) or "").split("**Columns:**")[1].split(" Out: ")[1]
        documented[name] = re.findall(
            r"``(\w+)``", out.replace("\n", " ").split("Example:")[0].split("Raises:")[0]
        )

    assert shown == documented, "docs/graphs.md lists what docstrings have behind `Out:` in double backticks"


def test_the_reference_has_every_public_name() -> None:
    inserted = {
        name
        for page in DOCS.joinpath("api").glob("*.md")
        for name in INSERTED.findall(page.read_text(encoding="utf-8"))
    }

    public = {*ts.__all__, *(f"testing.{name}" for name in ts.testing.__all__)} - {"testing"}
    missing = {f"timely_spark.{name}" for name in public} - inserted

    assert missing == set(), "add a line `::: timely_spark.name` to a page in docs/api"
    assert [name for name in inserted if not is_public(name)] == []


def test_a_graph_algorithm_in_a_module_of_its_name_has_a_line_of_its_own() -> None:
    """The line of the package has all algorithms, but takes such a name for that of the module."""
    text = (DOCS / "api" / "graphs.md").read_text(encoding="utf-8")
    hidden = {module.name for module in pkgutil.iter_modules(ts.graphs.__path__)} & {*ts.graphs.__all__}

    missing = {name for name in hidden if f"::: timely_spark.graphs.{name}.{name}\n" not in text}
    assert missing == set(), "add a line `::: timely_spark.graphs.name.name` to docs/api/graphs.md"


@pytest.mark.parametrize("name", ["databricks", "cluster"])
def test_a_bundle_for_databricks_parses_and_its_files_exist(name: str) -> None:
    folder = ROOT / "conf" / name
    bundle = yaml.safe_load((folder / "databricks.yml").read_text(encoding="utf-8"))
    resources = bundle["resources"]

    assert (folder / bundle["artifacts"]["timely_spark"]["path"] / "pyproject.toml").is_file()
    for job in resources["jobs"].values():
        for task in job["tasks"]:
            assert (folder / task["spark_python_task"]["python_file"]).is_file()
    for policy in resources.get("cluster_policies", {}).values():
        assert json.loads(policy["definition"])


@pytest.fixture
def reference(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The names of `conf/reference.py`, without the tools that make the site."""
    for name, attributes in {
        "griffe": {"Extension": object, "Class": object},
        "mkdocs": {},
        "mkdocs.exceptions": {"PluginError": ValueError},
    }.items():
        module = types.ModuleType(name)
        vars(module).update(attributes)
        monkeypatch.setitem(sys.modules, name, module)
    return run_path(str(ROOT / "conf" / "reference.py"))


def test_the_reference_lists_no_internals(reference: dict[str, Any]) -> None:
    def listed(exports: list[str] | None, *, init: bool = False) -> list[str]:
        own, imported = (SimpleNamespace(is_alias=alias, is_module=False) for alias in (False, True))
        folder = SimpleNamespace(is_alias=False, is_module=True)
        members = {"bfs": own, "caller": imported, "TYPE_CHECKING": own, "paths": folder}
        module = SimpleNamespace(exports=exports, is_init_module=init, members=members)
        reference["Reference"]().on_module(mod=module)
        return [*members]

    assert listed(None) == ["bfs", "paths"]
    assert listed(["caller", "bfs"]) == ["bfs", "caller", "paths"]
    assert listed(["bfs"]) == ["bfs", "paths"]

    def bases(kind: type) -> list[str]:
        own = SimpleNamespace(bases=[f"{base.__module__}.{base.__qualname__}" for base in kind.__bases__])
        reference["Reference"]().on_class(cls=own)
        return own.bases

    assert bases(ts.Stream) == []
    assert bases(ts.errors.SchemaError) == ["timely_spark.errors.TimelyError", "builtins.TypeError"]


def test_an_example_that_is_not_rendered_as_code_ends_the_build(reference: dict[str, Any]) -> None:
    check, page = reference["on_post_page"], SimpleNamespace(url="api/flow.html")

    assert check("<p>a</p><pre>&gt;&gt;&gt; 1</pre>", page=page)
    for grey in ("<p>&gt;&gt;&gt; 1 1</p>", "<blockquote><p>1</p></blockquote>"):
        with pytest.raises(ValueError, match=r"api/flow\.html: an example is not rendered as code"):
            check(grey, page=page)
    for example in (ts.Query, ts.Dataflow.input, ts.graphs.pagerank):
        lines, code = reference["fenced"](inspect.getdoc(example) or "").splitlines(), False
        assert sum(">>>" in line for line in lines) > 0
        for line in lines:
            code ^= line.strip().startswith("```")
            assert code or ">>>" not in line
