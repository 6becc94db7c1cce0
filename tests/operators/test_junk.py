"""Public operators accept arguments of any kind, or raise a typed error."""

from __future__ import annotations

import contextlib
import functools
import inspect
import io
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import write_deltalake
from pyspark.sql import SparkSession

import timely_spark as ts
from timely_spark.errors import TimelyError

#: by name, what makes a value that no argument of an operator should be
JUNK: dict[str, Any] = {
    "None": lambda flow: None,
    "a number": lambda flow: 7,
    "half": lambda flow: 2.5,
    "a column that is not there": lambda flow: "nothing",
    "an empty text": lambda flow: "",
    "a list": lambda flow: [1, None],
    "a mapping": lambda flow: {"a": 3},
    "a function of nothing": lambda flow: lambda: None,
    "a generator": lambda flow: (n for n in [1]),
    "an object": lambda flow: object(),
    "a class": lambda flow: int,
    "an expression": lambda flow: pc.field("nothing"),
    "a stream of another flow": lambda flow: stream(ts.Dataflow("other")),
    "a collection of another flow": lambda flow: collection(ts.Dataflow("other")),
    "a stream": lambda flow: stream(flow, "beside"),
    "a collection": lambda flow: collection(flow, "beside"),
}
#: what reads a row, makes nothing, or starts something
LEFT_OUT = {
    "then", "check_outside", "like", "together",
    "send", "advance_to", "close", "handle",
}  # fmt: skip


def stream(flow: ts.Dataflow, name: str = "x") -> Any:
    return flow.input(name, "n long, s string")


def collection(flow: ts.Dataflow, name: str = "x") -> Any:
    return stream(flow, name).collection()


def operators(kind: type) -> Iterator[str]:
    for name, _ in inspect.getmembers(kind, inspect.isfunction):
        if not name.startswith("_") and name not in LEFT_OUT:
            yield name


CASES = [("stream", name) for name in operators(ts.Stream)]
CASES += [("collection", name) for name in operators(ts.Collection)]
MAKE = {"stream": stream, "collection": collection}


@contextlib.contextmanager
def bare_errors(bare: list[str], case: str, file: str) -> Iterator[None]:
    """Write down what is no typed error, or has no hint, or names no line of the file."""
    try:
        yield
    except TimelyError as error:
        if "Hint: " not in str(error) or f"{Path(file).name}:" not in str(error):
            bare.append(f"{case}: no line or hint: {type(error).__name__}: {error}")
    except Exception as error:  # noqa: BLE001 - every exception is checked
        bare.append(f"{case}: {type(error).__name__}: {error}")


@pytest.mark.slow
@pytest.mark.share(6)
@pytest.mark.parametrize(("kind", "operator"), CASES)
def test_operators_accept_junk_or_raise_a_typed_error(kind: str, operator: str) -> None:
    bare = []
    parameters = list(inspect.signature(getattr(MAKE[kind](ts.Dataflow("x")), operator)).parameters.values())
    for parameter in parameters:
        for what, make in JUNK.items():
            flow = ts.Dataflow("junk")
            of = MAKE[kind](flow)
            junk = make(flow)
            positional: list[Any] = []
            named: dict[str, Any] = {}
            for each in parameters:
                value = junk if each is parameter else _fitting(each, of)
                if value is _LEAVE or each.kind is inspect.Parameter.VAR_KEYWORD:
                    if each is parameter:
                        named["new"] = junk
                elif each.kind is inspect.Parameter.KEYWORD_ONLY:
                    named[each.name] = value
                else:
                    positional.append(value)
            with bare_errors(bare, f"{parameter.name}={what}", __file__):
                getattr(of, operator)(*positional, **named)
    assert not bare, "\n".join(bare)


_LEAVE = object()


def _fitting(parameter: inspect.Parameter, of: Any) -> Any:
    """Something that the parameter takes, where it has no default."""
    if parameter.default is not inspect.Parameter.empty:
        return _LEAVE if parameter.kind is inspect.Parameter.KEYWORD_ONLY else parameter.default
    fitting = {
        "function": lambda row: row,
        "step": lambda one: one,
        "predicate": lambda row: True,
        "schema": "n long, s string",
        "keys": "n",
        "value": "n",
        "column": "n",
        "other": of,
        "others": of,
        "iteration": "n",
        "mapper": lambda row: [row],
        "merge": pc.max_element_wise,
        "reached": lambda row: True,
        "reducer": lambda key, rows: [1],
        "mapped": "n long, s string",
        "reduced": "m long",
        "converged": lambda before, after: after,
        "table": "t",
        "path": "/nowhere",
        "k": 3,
        "name": "named",
        "after": 3,
        "by_epochs": 1,
        "columns": "n",
    }
    return of.scope.inner() if parameter.name == "scope" else fitting.get(parameter.name, _LEAVE)


# -- flows, scopes, graphs, and functions --------------------------------------------------------------------


class Passes(ts.Vertex):
    def on_recv(self, edge: int, time: Any, batch: Any) -> None:
        self.send_by(edge, time, batch)


def of_flow(method: str, **fitting: Any) -> Callable[[ts.Dataflow], tuple[Any, dict[str, Any]]]:
    def made(flow: ts.Dataflow) -> tuple[Any, dict[str, Any]]:
        x = stream(flow)
        x.capture("out")
        given = {name: value(x) if callable(value) else value for name, value in fitting.items()}
        return getattr(flow, method), given

    return made


def of_scope(method: str, *given: str) -> Callable[[ts.Dataflow], tuple[Any, dict[str, Any]]]:
    return lambda flow: (getattr(flow.scope.inner(name="l"), method), dict.fromkeys(given, stream(flow)))


def of_graph(name: str) -> Callable[[ts.Dataflow], tuple[Any, dict[str, Any]]]:
    def made(flow: ts.Dataflow) -> tuple[Any, dict[str, Any]]:
        function = getattr(ts.graphs, name)
        edges = flow.input("edges", "src long, dst long, weight long").collection()
        nodes = flow.input("nodes", "node long").collection()
        both = {
            "edges": edges,
            "roots": nodes,
            "labels": nodes,
            "pattern": "(a)-[e]->(b)",
            "nodes": nodes,
            "distances": edges,
            "pairs": edges,
        }
        return function, {key: both[key] for key in inspect.signature(function).parameters if key in both}

    return made


def captured() -> Any:
    flow = ts.Dataflow("words")
    flow.input("words", "word string, diff long").collection(diff="diff").capture("log")
    return ts.testing.run(flow, {"words": [[("to", 2)]]})["log"]


def of_run(function: Any, **fitting: Any) -> Callable[[ts.Dataflow], tuple[Any, dict[str, Any]]]:
    def made(flow: ts.Dataflow) -> tuple[Any, dict[str, Any]]:
        stream(flow).capture("out")
        return function, {"flow": flow, **fitting}

    return made


def of_simulation(method: str, **fitting: Any) -> Callable[[ts.Dataflow], tuple[Any, dict[str, Any]]]:
    def made(_: ts.Dataflow) -> tuple[Any, dict[str, Any]]:
        flow = ts.Dataflow("simulated")
        flow.input("x", "n long", epochs="manual").capture("out")
        return getattr(ts.testing.Simulation(flow), method), fitting

    return made


def of_input(method: str, **fitting: Any) -> Callable[[ts.Dataflow], tuple[Any, dict[str, Any]]]:
    manual = lambda: ts.Dataflow("sent").input("x", "n long", epochs="manual")  # noqa: E731
    return lambda _: (getattr(manual(), method), fitting)


def of_pregel(flow: ts.Dataflow) -> tuple[Any, dict[str, Any]]:
    edges = flow.input("edges", "src long, dst long").collection()
    nodes = flow.input("nodes", "node long, v long").collection()
    return ts.pregel, {"nodes": nodes, "edges": edges, "vprog": list, "send_msg_to_dst": "src_v"}


@functools.cache
def folders() -> Path:
    """A folder of files, a Delta table, a capture and a published arrangement."""
    top = Path(tempfile.mkdtemp())
    (top / "in").mkdir()
    (top / "in" / "a.csv").write_text("n\n1\n")
    write_deltalake(top / "table", pa.table({"n": [1]}))
    flow = ts.Dataflow("shares")
    x = flow.input("x", "n long", epochs="manual")
    x.capture_to(top / "captured")
    x.collection().arrange("n").publish(top / "published")
    ts.testing.run(flow, {"x": [[1]]})
    return top


def of_folder(
    method: str, place: str, argument: str = "path", **fitting: Any
) -> Callable[[ts.Dataflow], tuple[Any, dict[str, Any]]]:
    def made(flow: ts.Dataflow) -> tuple[Any, dict[str, Any]]:
        return of_flow(method, name="y", **{argument: str(folders() / place)}, **fitting)(flow)

    return made


#: by what is called, what makes it and what its arguments are where they are not junk
CALLS = {
    "Dataflow": lambda flow: (ts.Dataflow, {"name": "flow"}),
    "source": of_flow("source", name="y", frame="n long"),
    "source with epochs": of_flow("source", name="y", frame="n long", epoch="n"),
    "input": of_flow("input", name="y", schema="n long"),
    "vertex": of_flow("vertex", vertex=Passes(), inputs=lambda x: x, outputs=lambda x: x.schema),
    "ExternalVertex": lambda flow: (ts.ExternalVertex, {"command": "cat"}),
    "compile": of_flow("compile"),
    "handle": of_flow("handle", name="x"),
    "explain": of_flow("explain"),
    "inner": of_scope("inner"),
    "scope.enter": of_scope("enter", "stream"),
    "variable": of_scope("variable", "initial"),
    **{name: of_graph(name) for name in ts.graphs.__all__},
    "pregel": of_pregel,
    "all_reduce": lambda flow: (ts.all_reduce, {"stream": flow.input("a", "v array<long>"), "value": "v"}),
    "wcoj": lambda flow: (ts.wcoj, {"relations": [collection(flow)]}),
    "snapshot": lambda flow: (ts.snapshot, {"changes": captured()}),
    "once": lambda flow: (ts.once, {"connect": list, "name": "n", "function": list}),
    "run": of_run(ts.testing.run, inputs={"x": [[(1, "a")]]}),
    "Simulation": of_run(ts.testing.Simulation),
    "Simulation.send": of_simulation("send", name="x", records=[1]),
    "Simulation.advance_to": of_simulation("advance_to", name="x", epoch=1),
    "Simulation.close": of_simulation("close", name="x"),
    "Simulation.cancel": of_simulation("cancel", epoch=0),
    "Simulation.run": of_simulation("run"),
    "send": of_input("send", records=[1]),
    "files": of_folder("files", "in", format="csv", schema="n long"),
    "delta": of_folder("delta", "table"),
    "replay": of_folder("replay", "captured"),
    "import_arrangement": of_folder("import_arrangement", "published", "published"),
    "kafka": of_flow("kafka", name="y", topics="topic", servers="nowhere:1"),
    "flow.sql": of_flow("sql", script="CREATE VIEW a AS SELECT n FROM x"),
    "sql": lambda flow: (ts.sql, {"query": "SELECT n FROM x", "x": stream(flow)}),
    "explain_sql": lambda flow: (ts.explain_sql, {"query": "SELECT n FROM x", "x": stream(flow)}),
    "region": of_flow("region", name="r"),
    "to_svg": of_flow("to_svg"),
    "maintain": lambda flow: (ts.maintain, {"checkpoint": "/nowhere"}),
    "configure": lambda flow: (ts.configure, {"builder": SparkSession.builder}),
    "tune": lambda flow: (ts.tune, {"session": None}),
    "inspect": lambda flow: (ts.inspect, {"checkpoint": "/nowhere"}),
    "recorded": lambda flow: (ts.testing.recorded, {"folder": "/nowhere"}),
    "prometheus_metrics": lambda flow: (ts.prometheus_metrics, {"port": 1 << 16}),
    "advance_to": of_input("advance_to", epoch=1),
}
#: arguments that stand for parts of the runtime, and what is only asked whether it is true
NOT_CHECKED = {"budget", "blobs", "given_epochs", "rounds_per_batch", "together"}


@pytest.mark.parametrize(
    "call",
    [
        ts.configure,
        lambda: ts.configure(SparkSession.builder, jars=[]),  # type: ignore[call-arg]
        lambda: ts.Dataflow("x").start(None, "/checkpoint"),  # type: ignore[misc]
        lambda: ts.Dataflow("x").start(folder="/checkpoint"),  # type: ignore[call-arg]
        lambda: ts.function("double"),  # type: ignore[call-arg]
        lambda: ts.view(5),  # type: ignore[type-var]
        lambda: ts.maintain(sql="SELECT 1", tables=5, table="t/t", checkpoint="/c"),  # type: ignore[arg-type]
        lambda: ts.Dataflow("x").start(resident=0),  # type: ignore[arg-type]
        lambda: ts.Dataflow("x").start(new_steps=pc.field("x")),  # type: ignore[arg-type]
    ],
)
def test_a_call_with_other_arguments_than_there_are_names_them(call: Callable[[], object]) -> None:
    with pytest.raises(TimelyError, match=r"(?s)test_junk\.py:\d+\)\nHint: (?!.*no attribute)"):
        call()


@pytest.mark.slow
@pytest.mark.share(18)
@pytest.mark.parametrize("called", CALLS)
def test_other_functions_accept_junk_or_raise_a_typed_error(called: str) -> None:
    bare = []
    function, _ = CALLS[called](ts.Dataflow("x"))
    for parameter in inspect.signature(function).parameters.values():
        for what, make in JUNK.items():
            if parameter.name in NOT_CHECKED:
                continue
            flow = ts.Dataflow("junk")
            function, fitting = CALLS[called](flow)
            case = bare_errors(bare, f"{parameter.name}={what}", __file__)
            with case, contextlib.redirect_stdout(io.StringIO()):
                function(**{**fitting, parameter.name: make(flow)})
    assert not bare, "\n".join(bare)
