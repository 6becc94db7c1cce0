"""Views of SQL and of Python keep Delta tables, and continue from their checkpoint."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.support.sql_text import read_sql
from tests.support.tables import rows_of
from timely_spark.pipeline import read_pipeline

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
pytestmark = pytest.mark.spark

RINGS = """
CREATE TABLE transfers (payer bigint, payee bigint, amount bigint, diff bigint)
  USING csv LOCATION '{folder}/in';
CREATE MATERIALIZED VIEW rings LOCATION '{folder}/rings' AS
WITH RECURSIVE reach(a, b) AS (
  SELECT payer, payee FROM transfers WHERE amount >= 1000
  UNION SELECT reach.a, t.payee FROM reach JOIN transfers t ON reach.b = t.payer WHERE t.amount >= 1000)
SELECT x.a AS account, min(x.b) AS ring FROM reach x JOIN reach y ON x.a = y.b AND x.b = y.a GROUP BY x.a
"""


@pytest.mark.campaign  # the README's below are the same
def test_rings_of_transfers_follow_the_files(spark, tmp_path):
    def start(sql):
        file = read_sql(sql.format(folder=tmp_path))
        (query,) = file.start(
            spark, checkpoint=tmp_path / "check", name="rings", workers=2, trigger="available_now"
        )
        return query

    def run(name, transfers, sql=RINGS):
        (tmp_path / "in").mkdir(exist_ok=True)
        text = "payer,payee,amount,diff\n" + "".join(f"{','.join(map(str, row))}\n" for row in transfers)
        (tmp_path / "in" / f".{name}").write_text(text)
        (tmp_path / "in" / f".{name}").rename(tmp_path / "in" / f"{name}.csv")
        start(sql).await_termination()
        return rows_of(tmp_path / "rings", "account", "ring")

    ring = [(1, 2, 5000, 1), (2, 3, 5000, 1), (3, 1, 5000, 1), (3, 4, 9000, 1), (4, 3, 10, 1)]
    assert run("a", ring) == [(1, 1), (2, 1), (3, 1)]
    # another text of the same plan continues
    changes = [(3, 1, 5000, -1), (4, 3, 2000, 1), (5, 6, 9000, 1)]
    assert run("b", changes, RINGS.replace("x.a", "x . a")) == [(3, 3), (4, 3)]


def test_the_readme_is_all_that_it_takes(spark, tmp_path):
    text = README.read_text(encoding="utf-8").partition("## Or in SQL")[2].replace("data/", f"{tmp_path}/")
    sql, commands = (one.partition("```")[0] for one in re.split(r"```(?:sql)?\n", text)[1:4:2])
    tables = []
    for line in commands.splitlines():
        if line.startswith("python -m timely_spark run"):
            (query,) = read_sql(sql, {"least": "1000"}).start(
                spark, checkpoint=tmp_path / "check", tell=lambda _: None, trigger="available_now"
            )
            query.await_termination()
            tables.append(rows_of(tmp_path / "rings", "account"))
        elif not line.startswith("pip"):
            subprocess.run(line, shell=True, check=True)
    assert tables == [[(1,), (2,), (3,)], []]


@pytest.mark.campaign
def test_the_command_follows_files_until_it_is_ended(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "rings.sql").write_text(RINGS.format(folder=tmp_path))
    command = ["-m", "timely_spark", "run", "rings.sql", "--checkpoint", "check", "--follow"]
    running = subprocess.Popen([sys.executable, *command], cwd=tmp_path)
    ring = "1,2,5000,1\n2,1,5000,1\n"
    try:
        for name, text, accounts in (("a", ring, [(1,), (2,)]), ("b", "2,1,5000,-1\n", [])):
            (tmp_path / "in" / f".{name}").write_text(f"payer,payee,amount,diff\n{text}")
            (tmp_path / "in" / f".{name}").rename(tmp_path / "in" / f"{name}.csv")
            end = time.monotonic() + 120
            table = tmp_path / "rings"
            while not (DeltaTable.is_deltatable(str(table)) and rows_of(table, "account") == accounts):
                assert running.poll() is None
                assert time.monotonic() < end
                time.sleep(0.5)
    finally:
        running.terminate()
    assert running.wait(60) in {0, -signal.SIGTERM, 128 + signal.SIGTERM}


VIEWS = """
CREATE TABLE paid (payer bigint, amount bigint, diff bigint) USING csv LOCATION '{folder}/in';
CREATE VIEW large AS SELECT payer, amount FROM paid WHERE amount >= 10;
CREATE MATERIALIZED VIEW total LOCATION '{folder}/total' AS
  SELECT payer, sum(amount) AS x FROM large GROUP BY payer;
"""
MOST = """
CREATE MATERIALIZED VIEW most LOCATION '{folder}/most' AS
  SELECT payer, max(amount) AS x FROM large GROUP BY payer;
"""


@pytest.mark.campaign  # tests/test_pipeline.py has the cases; the page's folder below rebuilds its views
def test_a_changed_file_keeps_the_views_that_did_not_change_and_says_what_it_rebuilds(spark, tmp_path):
    (tmp_path / "in").mkdir()
    told = []

    def total(view):
        return rows_of(tmp_path / view, "payer", "x")

    def run(number, sql, *paid):
        text = "".join(f"{payer},{amount},1\n" for payer, amount in paid)
        (tmp_path / "in" / f"{number}.csv").write_text("payer,amount,diff\n" + text)
        told.clear()
        file = read_sql(sql.format(folder=tmp_path))
        checkpoint = tmp_path / "check"
        queries = file.start(
            spark, checkpoint=checkpoint, tell=told.append, workers=1, trigger="available_now"
        )
        for query in queries:
            query.await_termination()
        return len(queries)

    assert run(1, VIEWS, (1, 20)) == 1
    assert told == ["total: built"]

    # a new view is built from the first record; the old one continues, with the first file's rows once
    assert run(2, VIEWS + MOST, (1, 30), (2, 10)) == 2
    assert told == ["most: built"]
    assert total("total") == [(1, 50), (2, 10)]
    assert total("most") == [(1, 30), (2, 10)]

    # a view that a changed one reads is another plan; one that the file lacks stops, and its table stays
    assert run(3, VIEWS.replace(">= 10", ">= 15") + MOST.replace("max", "min"), (3, 12)) == 1
    assert told == [
        "total: rebuilt, as it or what it reads changed", "most: rebuilt, as it or what it reads changed"
    ]  # fmt: skip
    assert total("total") == [(1, 50)]
    assert total("most") == [(1, 20)]

    # the flow of both cannot continue without the first, whose steps the second reads
    alone = VIEWS.partition("CREATE MATERIALIZED")[0].replace(">= 10", ">= 15") + MOST.replace("max", "min")
    assert run(4, alone, (3, 40)) == 1
    assert told[0] == "total: no longer kept"
    assert total("most") == [(1, 20), (3, 40)]
    assert total("total") == [(1, 50)]

    # a view that comes back replaces the table that it had
    assert run(5, VIEWS + MOST.replace("max", "min"), (3, 60)) == 1
    assert told[0] == "total: built"
    assert total("total") == [(1, 50), (2, 10), (3, 112)]


def test_the_folder_of_the_page_keeps_its_tables_and_rebuilds_what_changes(spark, tmp_path):
    page = (ROOT / "docs" / "pipelines.md").read_text(encoding="utf-8").replace("data/", f"{tmp_path}/")
    folder = tmp_path / "bank"
    folder.mkdir()
    for name, language in (("tables.sql", "sql"), ("groups.py", "python")):
        (folder / name).write_text(page.partition(f"```{language}\n")[2].partition("```")[0])
    (tmp_path / "transfers").mkdir()
    told = []

    def run(number, *transfers):
        text = "payer,payee,amount,diff\n" + "".join(f"{','.join(map(str, row))}\n" for row in transfers)
        (tmp_path / "transfers" / f"{number}.csv").write_text(text)
        told.clear()
        queries = read_pipeline(folder, {"least": "1000"}).start(
            spark, checkpoint=tmp_path / "check", tell=told.append, workers=1, trigger="available_now"
        )
        for query in queries:
            query.await_termination()
        return [rows_of(tmp_path / table) for table in ("groups", "sizes")]

    groups = [(1, 1), (2, 1), (3, 3), (4, 3)]
    assert run(1, (1, 2, 5000, 1), (3, 4, 2000, 1), (2, 3, 10, 1)) == [groups, [(1, 2), (3, 2)]]
    assert told == ["groups: built", "sizes: built"]
    assert run(2, (2, 3, 1500, 1), (1, 2, 5000, -1)) == [[(2, 2), (3, 2), (4, 2)], [(2, 3)]]
    assert told == []

    file = folder / "groups.py"
    file.write_text(file.read_text().replace("(large)\n", '(large.where("src > 2"))\n'))
    assert run(3, (5, 6, 5000, 1)) == [[(3, 3), (4, 3), (5, 5), (6, 5)], [(3, 2), (5, 2)]]
    assert told == [f"{view}: rebuilt, as it or what it reads changed" for view in ("groups", "sizes")]
