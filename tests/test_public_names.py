"""How many names there are to learn, and that each has a use beside its own docstring."""

from __future__ import annotations

import inspect
import json
import re
from functools import cache
from pathlib import Path

from pyspark.sql.streaming.query import StreamingQuery

import timely_spark as ts
import timely_spark.errors
import timely_spark.runtime.errors
from tests.support.package import blocks
from timely_spark.differential import CollectionVariable
from timely_spark.input_streams import Source
from timely_spark.operators.group_by import Grouped

#: The most names: a feature whose names replace no others adds a row, and CHANGELOG says why.
MOST = {
    "the library": 270,
    "SQL, a language of its own: its entry and its errors": 6,
    "topics, read without Spark's connector: the source and its errors": 3,
    "pointstamps in view": 1,
    "the arrangement of another flow": 1,
    "entities of scored pairs, and ids that stay": 2,
    "the console of a query": 1,
    "a function as a view of a pipeline": 1,
    "expectations and their counts": 2,
    "change events of a database": 1,
    "candidates of entities": 1,
    "one of two ways, by the number of workers": 1,
    "texts in SQL as arguments of an algorithm of one's own": 1,
}

ROOT = Path(__file__).parents[1]
MODULES = (ts, ts.graphs, ts.testing, ts.authors, ts.kafka)
ERRORS = (timely_spark.errors, timely_spark.runtime.errors)
TIMES = {
    "Antichain", "CompactingTimes", "Descending", "InnerTime", "PathSummary", "RefinedTime", "Times",
    "Timestamp",
}  # fmt: skip
CLASSES = (
    ts.Dataflow, ts.Input, Source, ts.Scope, ts.Stream, Grouped, ts.Variable, ts.Collection,
    CollectionVariable, ts.Query, ts.Probe, ts.Vertex, ts.ExternalVertex, ts.testing.Simulation,
)  # fmt: skip
#: What handles know of themselves, and options of vertices: the reference explains them.
PROPERTIES = {
    "checkpoint", "epoch", "name", "schema", "scope", "set", "stream", "time", "waits", "worker", "workers",
}  # fmt: skip
#: What has no example that runs, and why.
NO_EXAMPLE = {
    **dict.fromkeys(
        ("Captured.to_spark", "Dataflow.table", "configure", "inspect", "maintain", "origin", "tune"),
        "the example is skipped: it needs a session, or the checkpoint of one; files that docs/features.md "
        "names use it",
    ),
    **dict.fromkeys(("DIFF", "GROUP"), "names of columns, which the example of `authors` has"),
    **dict.fromkeys(("Partitioner", "States"), "the types of `Vertex.repartition`, which has one"),
    "Arrangement.parts": "the batches with their hashes, for the library's own traces",
    "Input.handle": "what `Dataflow.handle` returns, which has one",
    "Recorded.of_step": "called by start(record=...)",
    "Recorded.read": "called by `recorded`",
    "Recorded.write": "called by start(record=...)",
}
#: A line of an example that is not skipped, and a docstring that refers to the example of another name.
CODE = re.compile(r"^ *(?:>>>|\.\.\.) (?!.*\+SKIP)(.*)$", re.MULTILINE)
SEE = re.compile(r"\bsee `(\w+)(?:\.(\w+))?`")
#: A row of docs/features.md: the task, the names, a page, and files that use the names.
ROW = re.compile(r"^\| [^|]+ \| ([^|]+) \| \[[^|]+\]\([^|)]+\) \| ([^|]+) \|$", re.MULTILINE)


def exceptions() -> set[str]:
    things = {thing for module in ERRORS for thing in vars(module).values() if inspect.isclass(thing)}
    return {thing.__name__ for thing in things if issubclass(thing, ts.TimelyError)}


def sparks() -> set[str]:
    """The names of Spark's StreamingQuery, also as Python writes them: who knows Spark knows them."""
    names = {name for name in dir(StreamingQuery) if not name.startswith("_")}
    return names | {re.sub(r"[A-Z]", lambda big: f"_{big[0].lower()}", name) for name in names}


def members(kind: type) -> set[str]:
    """The public methods and properties of a class of the library."""
    own = [one for one in kind.__mro__ if one.__module__.startswith("timely_spark.")]
    called = (property, staticmethod, classmethod)
    return {
        name
        for one in own
        for name, thing in vars(one).items()
        if not name.startswith("_") and (inspect.isroutine(thing) or isinstance(thing, called))
    } - sparks()


def named() -> set[str]:
    """What users and authors of algorithms import or call. A name counts once, wherever it is used."""
    return {name for module in MODULES for name in module.__all__}.union(TIMES, *map(members, CLASSES))


def words(path: Path) -> set[str]:
    """The words of a program: of a page those of its blocks of code, of a notebook those of its cells."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        text = "\n".join(line for cell in json.loads(text)["cells"] for line in cell["source"])
    if path.suffix == ".md":
        text = "\n".join(blocks(text, r"\w*"))
    return {*re.findall(r"\w+", text)}


def test_the_number_of_public_names_is_bounded() -> None:
    assert len(named() | exceptions()) <= sum(MOST.values()), (
        "can it replace another name? else add a row to MOST, and say why in CHANGELOG"
    )


def test_every_feature_has_a_row_whose_files_use_it() -> None:
    page = (ROOT / "docs" / "features.md").read_text(encoding="utf-8")
    rows = ROW.findall(page)
    assert len(rows) == page.count("\n| ") - page.count("\n| You want to "), "a row has four cells"
    listed, unused = set[str](), dict[str, set[str]]()
    for cell, files in rows:
        names = {name.rpartition(".")[2] for name in re.findall(r"`([\w.]+)`", cell)}
        listed |= names
        used = set().union(*(words(ROOT / file) for file in re.findall(r"`([^`]+)`", files)))
        if names - used:
            unused[files] = names - used

    functions = {name for name in named() - {*ts.authors.__all__} if name[0].islower()}
    assert functions - listed - PROPERTIES == set(), "add a row to docs/features.md"
    assert unused == {}, "a name without a use is one too many: use it, or remove it"


def test_the_page_of_authors_explains_each_name() -> None:
    assert [
        name for name in ts.authors.__all__ if not re.search(rf"`[^`]*\b{name}\b", ts.authors.__doc__)
    ] == []


@cache
def example(thing: object) -> str:
    """The code of the example in a docstring, or in that to which it refers."""
    text = inspect.cleandoc(thing.__doc__ or "")
    if (code := "\n".join(CODE.findall(text))) or not (see := SEE.search(text)):
        return code
    target = next((getattr(one, see[1]) for one in MODULES if hasattr(one, see[1])), None)
    return example(getattr(target, see[2], None) if see[2] else target)


def not_shown(kind: type) -> set[str]:
    """The methods and properties of a class that no example of it, of its bases or of their methods shows."""
    own = [one for one in kind.__mro__ if one.__module__.startswith("timely_spark.")]
    methods = {name: getattr(kind, name) for name in members(kind) - PROPERTIES}
    code = "\n".join(map(example, (*own, *(getattr(one, name, None) for one in own for name in methods))))
    shown = {*re.findall(r"(?:\.|def )(\w+)", code)}
    # an alias is shown by its function
    alike = {name: {name, getattr(method, "__name__", name)} for name, method in methods.items()}
    return {f"{kind.__name__}.{name}" for name, names in alike.items() if not names & shown}


def is_shown(name: str, thing: object) -> bool:
    """Whether there is an example of a class, or one that calls a function."""
    if inspect.isfunction(thing):
        return re.search(rf"\b{name}\b", example(thing)) is not None
    # a constant of the library's own class is explained by its class
    return example(thing if callable(thing) or inspect.ismodule(thing) else type(thing)) != ""


def test_every_public_name_and_method_has_an_example_that_runs() -> None:
    things = {name: getattr(module, name) for module in MODULES for name in module.__all__}
    without = {name for name, thing in things.items() if not is_shown(name, thing)}

    assert without.union(*map(not_shown, filter(inspect.isclass, things.values()))) == {*NO_EXAMPLE}
