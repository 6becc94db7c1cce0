"""Import cycles: what files import, and the cycles as the files change."""

from __future__ import annotations

import argparse
import os
import random
import re
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import networkx as nx
import pytest
from pyspark.sql import SparkSession

import timely_spark as ts
from tests.support.accumulated import after_each
from tests.support.tables import rows_of

ROOT = Path(__file__).parents[2]


def write(root: Path, files: Mapping[str, str | bytes | None]) -> None:
    """Write files, or with None remove them."""
    for name, text in files.items():
        file = root / name
        if text is None:
            file.unlink()
            continue
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text if isinstance(text, bytes) else text.encode())


def test_imports_are_named_as_python_names_them(tmp_path: Path) -> None:
    from imports import sources

    write(tmp_path, {
        "a/__init__.py": "from . import b\nfrom .b import *\nimport os.path as p",
        "a/b/__init__.py": "from .. import c\nfrom ..c import thing",
        "a/b/d.py": "def later():\n  from ...x import y\nfrom .e import f\nfrom .... import far",
        "script.py": "import a.b.d\nfrom . import nothing\nif TYPE_CHECKING:\n  import t\nelse:\n  import u",
    })  # fmt: skip
    found = {source.module: set(source.names) for source in sources([tmp_path], {}).values()}
    assert found == {
        "a": {"a:b", "a.b", "os.path"},
        "a.b": {"a:c", "a.c:thing"},
        "a.b.d": {"...x:y", "a.b.e:f", "....:far"},
        "script": {"a.b.d", ".:nothing", "t", "u"},
    }
    found = {source.module: set(source.names) for source in sources([tmp_path], {}, top_level=True).values()}
    assert found["a.b.d"] == {"a.b.e:f", "....:far"}
    assert found["script"] == {"a.b.d", ".:nothing", "u"}


def test_a_root_may_be_a_package_and_lie_in_another(tmp_path: Path) -> None:
    from imports import sources

    texts = [
        "a/__init__.py",
        "a/b/__init__.py",
        "a/b/c.py",
        "tools/x.py",
        ".hidden/y.py",
        "env/z.py",
        "n/a.txt",
    ]
    write(tmp_path, {**dict.fromkeys(texts, ""), "env/pyvenv.cfg": ""})

    def modules(*roots: str) -> set[str]:
        return {source.module for source in sources([tmp_path / root for root in roots], {}).values()}

    assert modules("") == {"a", "a.b", "a.b.c", "tools.x"}
    assert modules("a/b") == {"a.b", "a.b.c"}
    assert modules("", "tools") == modules("tools", "") == {"a", "a.b", "a.b.c", "x"}


def test_unreadable_files_are_reported_and_the_others_are_read(tmp_path: Path) -> None:
    from imports import sources

    write(tmp_path / "one", {
        "old.py": "print 'two'", "bytes.py": b"x = '\xff'", "null.py": b"\0", "m.py": "import m",
        "m/__init__.py": "import old", "deep.py": "(" * 500 + ")" * 500,
        "good.py": b"# coding: latin-1\nimport \xe9",
    })  # fmt: skip
    write(tmp_path / "two", {"good.py": "import m"})
    (tmp_path / "one" / "gone.py").symlink_to(tmp_path / "nowhere")
    Path(os.fsdecode(bytes(tmp_path / "one" / "x") + b"\xff.py")).write_text("import")
    found = sources([tmp_path / "one", tmp_path / "two"], {})
    problems = {Path(file).relative_to(tmp_path).as_posix(): source.problem for file, source in found.items()}

    assert sorted(file for file, problem in problems.items() if problem is None) == [
        "one/good.py",
        "one/m/__init__.py",
    ]
    assert "old.py, line 1" in str(problems["one/old.py"])
    assert problems["one/m.py"] == f"m is {tmp_path / 'one/m/__init__.py'}"
    assert problems["two/good.py"] == f"good is {tmp_path / 'one/good.py'}"
    assert all(source.names == () for source in found.values() if source.problem is not None)
    assert re.fullmatch(r"SyntaxError: .* \(x\\udcff\.py, line 1\)", problems["one/x\\udcff.py"] or "")
    assert len(found) == 9


def test_only_what_changed_is_read_anew(tmp_path: Path) -> None:
    from import_cycles import difference
    from imports import sources

    write(tmp_path, {"a.py": "import b", "b.py": "import a, c"})
    before = sources([tmp_path], {})
    write(tmp_path, {"a.py": "import b", "b.py": "import a, d", "c.py": ""})
    after = sources([tmp_path], before)

    assert after[str(tmp_path / "a.py")] is before[str(tmp_path / "a.py")]
    rows = sorted((row[1], row[3] or "", row[5]) for row in difference(before, after))
    assert rows == [
        ("b", "", -1),
        ("b", "", 1),
        ("b", "a", -1),
        ("b", "a", 1),
        ("b", "c", -1),
        ("b", "d", 1),
        ("c", "", 1),
    ]
    assert difference(after, sources([tmp_path], after)) == []


def expected(root: Path) -> dict[str, str]:
    """The cycles by networkx, of files with lines of two kinds."""
    modules = {
        file.relative_to(root).with_suffix("").as_posix().replace("/", "."): file
        for file in root.rglob("*.py")
    }
    modules = {name.removesuffix(".__init__"): file for name, file in modules.items()}
    graph = nx.DiGraph()
    for module, file in modules.items():
        for line in file.read_text().splitlines():
            _, package, *name = (
                line.replace("import ", "").split() if line.startswith("from") else line.split()
            )
            ways = [".".join([package, *name]), package]
            graph.add_edges_from((module, way) for way in [way for way in ways if way in modules][:1])
    parts = [part for part in nx.strongly_connected_components(graph) if len(part) > 1]
    loops = [{module} for module in graph if graph.has_edge(module, module)]
    return {module: min(part) for part in [*loops, *parts] for module in part}


@pytest.mark.slow
@pytest.mark.parametrize(("count", "seed"), [(4, 7), pytest.param(6, 5, marks=pytest.mark.campaign)])
def test_cycles_follow_the_files(tmp_path: Path, count: int, seed: int) -> None:
    """Modules come and go, too, and with them the meaning of what others import."""
    from import_cycles import READ, difference, import_cycles, lines
    from imports import sources

    draw = random.Random(seed)
    names = [f"{package}.{module}" for package in "pqr" for module in "abcde"]
    files = ["p/__init__.py", "q/__init__.py", *(f"{name.replace('.', '/')}.py" for name in names)]
    before: dict[str, Any] = {}
    epochs, wanted = [], []
    for _ in range(count):
        for file in draw.sample(files, 9):
            imports = [f"import {name}" for name in [*names, "p", "q", "r", "os"]]
            imports += [f"from {name} import {of}" for name in "pqr" for of in "abcdexyz"]
            write(tmp_path, {file: "\n".join(draw.choices(imports, k=2))})
        for file in draw.sample(sorted(tmp_path.rglob("*.py")), 2):
            file.unlink()
        after = sources([tmp_path], before)
        epochs.append(difference(before, after))
        wanted.append(expected(tmp_path))
        before = after

    flow = ts.Dataflow("cycles")
    import_cycles(flow.input("files", f"{READ}, diff long").collection(diff="diff")).changes().capture("out")
    found = ts.testing.run(flow, {"files": epochs}, workers=2, seed=3)["out"].rows()
    for now, cycles in zip(after_each(found, len(wanted)), wanted, strict=True):
        assert now == dict.fromkeys(cycles.items(), 1)
    assert max(map(len, wanted)) > 3
    by_cycle = {cycle: [m for m, of in wanted[-1].items() if of == cycle] for cycle in wanted[-1].values()}
    assert sum(line.endswith(("modules", "1 module")) for line in lines(by_cycle, before)) == len(by_cycle)


def test_a_shortest_cycle_is_reported() -> None:
    from import_cycles import lines, shortest
    from imports import Source

    imports = {"a": ["b"], "b": ["c", "d"], "c": ["b"], "d": ["e", "a"], "e": ["a"]}
    assert shortest("a", imports) == ["a", "b", "d", "a"]
    files = {
        name: Source(name, name, "", names)
        for name, names in [("x", ("x",)), ("y", ("y", "z:w")), ("z", ("y", "x"))]
    }
    text = [*lines({"x": ["x"], "y": ["y", "z"]}, files)]
    assert text == ["y: 2 modules", "    y -> z -> y", "x: 1 module", "    x -> x"]


class Killed(Exception):
    pass


@pytest.mark.campaign
@pytest.mark.timeout(300)
def test_a_run_goes_on_where_the_one_before_was_stopped(
    spark: SparkSession, tmp_path: Path, checkpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import import_cycles as job
    from pyspark import cloudpickle

    cloudpickle.register_pickle_by_value(job)  # as running it as the main program does
    root, out = tmp_path / "src", str(tmp_path / "out")
    args = argparse.Namespace(
        root=[str(root)], output=out, current=None, checkpoint=checkpoint, workers=2, top_level=False
    )

    def changes() -> list[list[tuple[str, str, int]]]:
        epochs: dict[int, list[tuple[str, str, int]]] = defaultdict(list)
        for epoch, *change in rows_of(out, "epoch", "module", "cycle", "diff"):
            epochs[epoch].append(tuple(change))
        return [sorted(epochs[epoch]) for epoch in sorted(epochs)]

    send = ts.Input.send

    def send_and_die(stream: ts.Input, records: Any) -> None:
        send(stream, records)
        raise Killed

    write(root, {"a.py": "from b import c", "b.py": "import a", "s.py": "import s", "x.py": "print 'x'"})
    monkeypatch.setattr(ts.Input, "send", send_and_die)
    with pytest.raises(Killed):
        next(job.passes(spark, args))
    monkeypatch.setattr(ts.Input, "send", send)
    write(root, {"b/__init__.py": "", "b/c.py": "import d", "b.py": None, "d.py": "import a", "s.py": None})
    files = next(job.passes(spark, args))  # what was sent, and what has changed since

    assert changes() == [
        [("a", "a", 1), ("b", "a", 1), ("s", "s", 1)],
        [("b", "a", -1), ("b.c", "a", 1), ("d", "a", 1), ("s", "s", -1)],
    ]
    assert [source.module for source in files.values() if source.problem] == ["x"]
    assert job.sent(spark, job.kept(args)) == files
