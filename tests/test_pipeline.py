"""Views of a folder, in SQL and in Python: their order, what is refused, what tells one from another."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, TypeAlias
from unittest import mock

import pytest

import timely_spark as ts
from tests.support.rescaling import migrated
from tests.support.sql_text import read_sql
from timely_spark.__main__ import main
from timely_spark.coordinator.migration import FlowChanged
from timely_spark.errors import GraphError
from timely_spark.pipeline import checkpoints_in, read_pipeline
from timely_spark.runtime.errors import CheckpointInUse
from timely_spark.runtime.storage.files import Files
from timely_spark.runtime.storage.lock import Lock
from timely_spark.runtime.storage.log import RoundLog
from timely_spark.runtime.storage.manifest import FORMAT
from timely_spark.sql_file import columns_ddl, read_statements
from timely_spark.testing import Simulation

TABLES = """
CREATE MATERIALIZED VIEW sizes LOCATION '/out/sizes' AS SELECT part, count(*) AS n FROM Parts GROUP BY part;
CREATE VIEW large AS
  WITH transfers AS (SELECT * FROM transfers WHERE amount >= :least) SELECT * FROM transfers;
CREATE TABLE transfers (payer bigint, payee bigint, amount bigint, diff bigint) USING csv LOCATION '/in';
"""
VIEWS = """import timely_spark as ts

@ts.view(table="/out/parts", keys=["node"])
def parts(links):
    return ts.graphs.connected_components(links).select(node="node", part="component")

@ts.view
def links(large, *, least: int):
    assert least == "5"
    return large.select(src="payer", dst="payee")
"""
VIEW = "import timely_spark as ts\n@ts.view\ndef "
KEPT = "CREATE MATERIALIZED VIEW y AS SELECT * FROM x"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "tables.sql").write_text(TABLES)
    (tmp_path / "views.py").write_text(VIEWS)
    for left_out in ("_draft.py", ".hidden.sql", "notes.txt"):
        (tmp_path / left_out).write_text("no view")
    return tmp_path


def read(folder: Path, **more: str) -> None:
    """Read the folder with further files: `a_py="..."` is `a.py`."""
    for name, text in more.items():
        (folder / ".".join(name.rsplit("_", 1))).write_text(text)
    read_pipeline(folder, {"least": "5"}).flow()


@pytest.mark.slow
def test_functions_and_queries_read_each_other(folder: Path) -> None:
    pipeline = read_pipeline(folder, {"least": "5"})
    assert list(pipeline.definitions) == ["transfers", "large", "links", "parts", "sizes"]
    assert pipeline.outputs == {"parts": ("/out/parts", ("node",)), "sizes": ("/out/sizes", ())}

    flow = ts.Dataflow("bank")
    transfers = flow.input("transfers", "payer long, payee long, amount long").collection()
    plain = {"parts": parts(transfers), "sizes": parts(transfers).count(keys="part")}
    for name, one in plain.items():
        one.changes().capture(name)
    (folder / "in").mkdir()
    (folder / "in" / "first.csv").write_text("payer,payee,amount,diff\n")
    (folder / "more" / "tables.sql").write_text(TABLES.replace("/in", f"{folder}/in"))
    piped, views = read_pipeline(folder, {"least": "5"}).flow("bank")
    for name, one in views.items():
        one.changes().capture(name)

    rows = [[(1, 2, 5), (3, 4, 9), (2, 3, 4)], [(4, 1, 7)]]
    made = ts.testing.run(piped, {"transfers": [[(*row, 1) for row in epoch] for epoch in rows]})
    expected = ts.testing.run(flow, {"transfers": rows})
    assert {name: made[name].rows() for name in plain} == {name: expected[name].rows() for name in plain}
    assert expected["sizes"].rows()[1]
    assert flow.compile(1).unnamed != ()
    assert piped.compile(1).unnamed == ()  # a step is named after its view


def parts(transfers: ts.Collection) -> ts.Collection:
    links = transfers.where("amount >= 5").select(src="payer", dst="payee")
    return ts.graphs.connected_components(links).select(node="node", part="component")


def test_the_command_explains_the_order_and_refuses_without_a_checkpoint(folder: Path, capsys: Any) -> None:
    command = ["run", str(folder), "--set", "least=5"]
    assert main([*command, "--explain"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[3] == f"parts ({folder}/views.py:3) reads links; kept in /out/parts by node"
    assert "Aggregation count(*) by part: stores sums by part" in "\n".join(lines[5:])
    assert main(command) == 1
    assert "--checkpoint" in capsys.readouterr().err
    assert main(["run", f"{folder}/none"]) == 1
    assert f"run {folder}/none: No such file or directory\nHint: give a folder" in capsys.readouterr().err
    (folder / "wrong.py").write_text("def f(:")
    assert main(["run", f"{folder}/wrong.py"]) == 1
    assert f'File "{folder}/wrong.py", line 1\n' in capsys.readouterr().err
    for code in ('raise ConnectionError("no answer")', 'open("/no/such.csv")'):
        (folder / "wrong.py").write_text(code)
        with pytest.raises(OSError, match=r"no answer|such\.csv"):  # with the traceback of the program
            main(["run", f"{folder}/wrong.py"])
    (folder / "wrong.py").unlink()
    assert main(["run", f"{folder}/wrong.py"]) == 1
    assert f"run {folder}/wrong.py: No such file or directory\nHint: give" in capsys.readouterr().err
    (folder / "picture.png").write_bytes(b"\x89PNG")
    assert main(["run", f"{folder}/picture.png"]) == 1
    assert f"{folder}/picture.png is not a text in UTF-8" in capsys.readouterr().err
    (folder / "views.py").write_text(VIEWS.replace("large.select", "large.selects"))
    assert main([*command, "--explain"]) == 1
    assert f"({folder}/views.py:10)\nHint: did you mean select" in capsys.readouterr().err


MISTAKES = [
    ("a_sql", "CREATE VIEW x AS SELECT *\nFROM large WHERE amount > :most", r"no value for :most, in line 2"),
    ("a_py", f"{VIEW}LARGE(parts): ...", r"large is defined twice, at .*/a\.py:2 and .*/tables\.sql:3"),
    ("views_py", VIEWS + VIEWS, r"parts is defined twice, at .*/views\.py:3 and .*/views\.py:13"),
    (
        "views_py",
        VIEWS.replace("(links)", "(link)"),
        r"view parts \(.*/views\.py:3\) reads link, .*\nHint: .*links",
    ),
    (
        "a_sql",
        "CREATE VIEW x AS\nSELECT * FROM larg",
        r"no table larg, in line 2, (.|\n)*/a\.sql:2:15(.|\n)*mean large",
    ),
    (
        "a_sql",
        f"CREATE VIEW x AS\nSELECT no FROM large;{KEPT}",
        r"no column no, in line 2, (.|\n)*/a\.sql:2:8",
    ),
    (
        "views_py",
        VIEWS.replace("(large", "(sizes"),
        r"read each other: (\w+ \(.*:\d\)(, which reads )?){4}\nHint",
    ),
    ("a_sql", "CREATE VIEW x AS SELECT * FROM x", r"x \(.*/a\.sql:1\), which reads x \(.*/a\.sql:1\)"),
    (
        "views_py",
        VIEWS.replace("least: int", "most"),
        r"links \(.*\): no value for most\nHint: give --set most=",
    ),
    ("views_py", VIEWS.replace("return large", "large"), r"links \(.*\) returned NoneType\nHint: return a"),
    ("views_py", VIEWS.replace("(links)", "(links, spark)"), r"view parts \(.*\) needs a session"),
    ("views_py", VIEWS.replace("(links)", "(links, *more)"), r"view parts takes \*more \(.*/views\.py:3\)"),
    ("views_py", VIEWS.replace(', keys=["node"]', ""), r"'/out/parts' without keys \(.*/views\.py:3\)"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "text", "problem"), MISTAKES, ids=range(len(MISTAKES)))
def test_a_mistake_is_told_with_its_file_and_line(folder: Path, name: str, text: str, problem: str) -> None:
    with pytest.raises(ts.TimelyError, match=problem):
        read(folder, **{name: text})


def test_a_folder_that_keeps_nothing_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(f"{VIEW}a(flow): ...")
    with pytest.raises(
        ts.TimelyError, match=r"keeps nothing\nHint: .*MATERIALIZED VIEW, or @ts\.view\(table"
    ):
        read_pipeline(tmp_path, {})


def test_a_function_opens_inputs_and_its_file_may_be_imported_by_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "sources_of_test.py").write_text(
        f"{VIEW}edges(flow):\n    return flow.input('edges', 'src long, dst long, diff long')"
    )
    (tmp_path / "views.py").write_text(
        "import timely_spark as ts\nimport sources_of_test\n@ts.view(table='/out', keys='src')\n"
        "def degrees(edges):\n    return edges.count(keys='src')"
    )
    flow, views = read_pipeline(tmp_path, {}).flow()
    views["degrees"].changes().capture("seen")
    out = ts.testing.run(flow, {"edges": [[(1, 2, 1), (1, 3, 1)], [(1, 2, -1)]]})["seen"]
    assert out.rows() == {0: [(1, 2, 1)], 1: [(1, 1, 1), (1, 2, -1)]}


def test_a_view_is_another_one_if_its_text_or_what_it_reads_changes(folder: Path) -> None:
    def plans(**more: str) -> dict[str, str]:
        for name, text in more.items():
            (folder / name.replace("_", ".")).write_text(text)
        return read_pipeline(folder, {"least": "5"})._planned(None, {}).fingerprints()

    before = plans()
    assert plans(views_py=f"# a comment\n{VIEWS}") == before
    after = plans(views_py=VIEWS.replace('dst="payee"', 'dst="payee + 0"'))
    assert set(after.items()).isdisjoint(before.items())
    (folder / "more" / "tables.sql").write_text(TABLES.replace("count(*)", "count(part)"))
    assert plans(views_py=VIEWS)["parts"] == before["parts"]
    assert plans()["sizes"] != before["sizes"]


def test_a_query_in_a_flow_of_its_own_reads_what_a_function_reads_elsewhere(folder: Path) -> None:
    (folder / "in").mkdir()
    tables = TABLES.replace("/in", f"{folder}/in")
    payers = "CREATE MATERIALIZED VIEW payers LOCATION '/out/payers' AS SELECT DISTINCT payer FROM large;"
    (folder / "more" / "tables.sql").write_text(tables + payers)
    flow, views = read_pipeline(folder, {"least": "5"}).flow(views={"payers"})
    views["payers"].changes().capture("payers")
    out = ts.testing.run(flow, {"transfers": [[(1, 2, 5, 1), (1, 3, 6, 1), (2, 3, 4, 1)]]})["payers"]
    assert out.rows() == {0: [(1, 1)]}


def test_sql_that_keeps_nothing_is_refused() -> None:
    with pytest.raises(ts.TimelyError, match="the text keeps nothing"):
        read_sql("CREATE VIEW a AS SELECT 1")


def test_a_column_of_messages_may_have_any_name() -> None:
    (table,) = read_statements("CREATE TABLE t (`a b` BIGINT, `c``d` STRING) USING kafka", {})
    assert columns_ddl(table.tree) == "`a b` BIGINT, `c``d` STRING"
    assert table.schema.names == ["a b", "c`d"]


def test_a_folder_may_be_called_by_a_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "2024").mkdir()
    monkeypatch.chdir(tmp_path)
    script = read_sql(
        "CREATE TABLE t (n BIGINT) USING csv OPTIONS (files_per_epoch 2) LOCATION '2024';"
        "CREATE MATERIALIZED VIEW v LOCATION 'out' AS SELECT DISTINCT n FROM t"
    )
    assert script.outputs == {"v": ("./out", ())}  # a folder beside it, and not a table called out
    flow, _ = script.flow()
    assert flow.frames["t"].files_per_epoch == 2


@pytest.mark.parametrize(
    ("value", "kind"),
    [("-5", "int32"), ("-.5", "decimal128(1, 1)"), ("--5", "string"), ("\u0663", "string")],
)
def test_a_parameter_is_a_number_if_sql_writes_it_as_one(value: str, kind: str) -> None:
    tables = "CREATE TABLE t (n BIGINT) USING csv LOCATION '/in'; CREATE MATERIALIZED VIEW v LOCATION '/out'"
    _, views = read_sql(f"{tables} AS SELECT DISTINCT :value AS value FROM t", {"value": value}).flow()
    assert str(views["v"].schema.field("value").type) == kind


Run: TypeAlias = Callable[..., dict[str, set[str]]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Start a pipeline of views, given by their queries, without Spark.

    Returns by number of a checkpoint the numbers of those whose tables its flow may replace.
    """
    started: dict[str, set[str]] = {}

    def start(flow: ts.Dataflow, _: Any, *, checkpoint: str) -> AbstractContextManager[None]:
        log, number = RoundLog(checkpoint), Path(checkpoint).name
        if log.identity() is None:
            own = {"id": str(uuid.UUID(int=int(number))), "name": flow.name, "partitions": 1}
            log.files.write_json("flow.json", {"format": FORMAT, **own})
        ids = {one for output in flow.outputs for one in output.options["overwrite"]}
        started[number] = {str(uuid.UUID(one).int) for one in ids}
        return nullcontext()

    def run(**views: str) -> dict[str, set[str]]:
        started.clear()
        text = f"CREATE TABLE paid (payer bigint, diff bigint) USING csv LOCATION '{tmp_path}/in';"
        for view, query in views.items():
            text += f"CREATE MATERIALIZED VIEW {view} LOCATION '{tmp_path}/{view}' AS {query};"
        spark: Any = None
        read_sql(text).start(spark, checkpoint=tmp_path / "check", tell=lambda _: None)
        return dict(started)

    monkeypatch.setattr(ts.Dataflow, "start", start)
    return run


PAYERS, COUNTS = "SELECT DISTINCT payer FROM paid", "SELECT payer, count(*) AS n FROM paid GROUP BY payer"


def test_a_view_that_comes_back_replaces_the_table_that_it_had(run: Run) -> None:
    assert run(a=PAYERS, b=COUNTS) == {"1": set()}
    run(a=PAYERS)
    assert run(a=PAYERS, b=COUNTS) == {"1": {"1"}, "2": {"1"}}  # not a table that another program wrote


def test_a_flow_never_gets_the_checkpoint_of_one_whose_views_are_gone(run: Run) -> None:
    run(a=PAYERS)
    assert {*run(a=PAYERS, b=COUNTS)} == {"1", "2"}
    run(a=PAYERS)
    assert {*run(a=PAYERS, c=COUNTS)} == {"1", "3"}


def test_commands_find_the_flows_in_the_folder_of_a_run(run: Run, tmp_path: Path, capsys: Any) -> None:
    run(a=PAYERS, b=COUNTS)
    run(a=PAYERS, c=COUNTS)
    first, second = (f"{tmp_path}/check/{number}" for number in (1, 2))
    assert checkpoints_in(f"{tmp_path}/check") == [first, second]
    assert checkpoints_in(first) == [first]

    assert main(["status", f"{tmp_path}/check"]) == 1
    assert f"of 2 flows\nHint: give one of them: {first}, {second}.\n" in capsys.readouterr().err
    run(a=PAYERS)
    assert main(["inspect", f"{tmp_path}/check"]) == 1
    assert f"{first} holds no checkpoint" in capsys.readouterr().err  # no batch has run


def test_nothing_is_told_of_views_that_do_not_start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        msg = "the table has other columns"
        raise GraphError(msg, where="x.sql:1", hint="drop it.")

    monkeypatch.setattr(ts.Dataflow, "start", refuse)
    table = f"CREATE TABLE paid (payer bigint, diff bigint) USING csv LOCATION '{tmp_path}';"
    spark: Any = None
    views = read_sql(table + f"CREATE MATERIALIZED VIEW counts AS {COUNTS}")
    with pytest.raises(GraphError, match="other columns"):
        views.start(spark, checkpoint=tmp_path / "check", tell=pytest.fail)


@pytest.mark.parametrize("before", [{}, {"a": PAYERS}])
def test_a_start_that_is_refused_changes_nothing(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, before: dict[str, str]
) -> None:
    if before:
        run(**before)

    def files() -> dict[str, bytes]:
        return {str(one): one.read_bytes() for one in (tmp_path / "check").rglob("*.json")}

    saved = files()
    for refusal in (CheckpointInUse("it runs", hint="stop it."), KeyboardInterrupt()):
        with monkeypatch.context() as patch:
            patch.setattr(ts.Dataflow, "start", mock.Mock(side_effect=refusal))
            with pytest.raises(type(refusal)):
                run(b=COUNTS)
        assert files() == saved
    assert {*run(**before, b=COUNTS)} == ({"1", "2"} if before else {"1"})

    starting = Lock(Files(tmp_path / "check"))
    assert starting.acquire()
    with pytest.raises(CheckpointInUse):
        run(a=COUNTS)
    starting.release()


def test_a_refused_start_of_a_flow_that_is_rebuilt_changes_nothing(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run(a=PAYERS, b=COUNTS)
    saved = (tmp_path / "check" / "views.json").read_text()
    refusals = [FlowChanged("x", hint="y."), CheckpointInUse("it runs", hint="stop it.")]
    monkeypatch.setattr(ts.Dataflow, "start", mock.Mock(side_effect=refusals))
    with pytest.raises(CheckpointInUse):
        run(b=COUNTS)
    assert (tmp_path / "check" / "views.json").read_text() == saved


def test_views_that_share_steps_may_change_places(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    plans = set()

    def start(flow: ts.Dataflow, _: Any, **__: Any) -> AbstractContextManager[None]:
        plans.add(flow.compile(2).fingerprint)
        return nullcontext()

    monkeypatch.setattr(ts.Dataflow, "start", start)
    table = f"CREATE TABLE paid (payer bigint, diff bigint) USING csv LOCATION '{tmp_path}';"
    shared = f"CREATE VIEW counts AS {COUNTS};"
    few, many = (
        f"CREATE MATERIALIZED VIEW {of} AS SELECT n, max(payer) AS x FROM counts WHERE n {than} 5 GROUP BY n;"
        for of, than in (("many", ">"), ("few", "<"))
    )
    for text in (table + shared + many + few, few + many + shared + table):
        spark: Any = None
        read_sql(text).start(spark, checkpoint=tmp_path / "check", tell=pytest.fail if plans else str)
    assert len(plans) == 1


def test_tables_may_change_places(tmp_path: Path) -> None:
    tables = [
        f"CREATE TABLE {name} (a bigint, {name}_b bigint, diff bigint) USING csv LOCATION '{tmp_path}';"
        for name in ("t", "u")
    ]
    view = """CREATE MATERIALIZED VIEW v LOCATION '/v' AS
        SELECT DISTINCT a, t_b, u_b FROM t JOIN u USING (a) UNION SELECT 1L, 2L, 3L"""
    first, second = (read_sql("".join(text)).flow()[0] for text in ([*tables, view], [*tables[::-1], view]))
    simulation = Simulation(first, workers=2)
    for table in ("t", "u"):
        simulation.send(table, [(1, 2, 1)])
    simulation.run()
    assert not migrated(simulation, second, 2).fed_otherwise


def test_a_flow_of_other_functions_says_how_to_rebuild(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    changed = mock.Mock(side_effect=FlowChanged("x", hint="new_steps"))
    monkeypatch.setattr(ts.Dataflow, "start", changed)
    with pytest.raises(FlowChanged, match=r"(?s)^x\nHint: change the text of a view"):
        run(a=PAYERS)


def test_two_views_in_one_table_are_refused(folder: Path) -> None:
    more = '@ts.view(table="/out/parts", keys=["node"])\ndef others(links):\n    return links\n'
    with pytest.raises(ts.TimelyError, match=r"parts \(.*views.py:3\) are both kept in /out/parts") as error:
        read(folder, more_py="import timely_spark as ts\n" + more)
    assert "Hint: give each view a table of its own" in str(error.value)
