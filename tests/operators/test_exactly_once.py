"""A subscriber that writes each epoch once to a database of the user's own."""

from __future__ import annotations

import pickle
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import timely_spark as ts
from timely_spark.errors import GraphError
from timely_spark.operators.exactly_once import EpochsTaken, ExactlyOnce, NoTransaction

ROWS = pa.table({"n": [1, 2]})


def write(connection: Any, epoch: int, table: pa.Table) -> None:
    cursor = connection.cursor()
    for n in table["n"].to_pylist():
        cursor.execute(f"INSERT INTO numbers VALUES ({epoch}, {n})")
    if epoch == 13:
        msg = "unlucky"
        raise ArithmeticError(msg)


class Strict:
    """Behaves as psycopg does: a statement that fails spoils its transaction, and `autocommit` is a bool."""

    autocommit = False

    def __init__(self, path: str) -> None:
        self.inner, self.spoilt = sqlite3.connect(path), False

    def cursor(self) -> Strict:
        self.made = self.inner.cursor()
        return self

    def execute(self, text: str) -> None:
        if self.spoilt:
            msg = "current transaction is aborted"
            raise sqlite3.InternalError(msg)
        try:
            self.made.execute(text)
        except sqlite3.Error:
            self.spoilt = True
            raise

    def fetchone(self) -> Any:
        return self.made.fetchone()

    @property
    def rowcount(self) -> int:
        return self.made.rowcount

    def commit(self) -> None:
        self.inner.commit()

    def rollback(self) -> None:
        self.spoilt = False
        self.inner.rollback()

    def close(self) -> None:
        self.inner.close()


@pytest.fixture
def path(tmp_path: Path) -> str:
    path = str(tmp_path / "user.db")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE numbers (epoch, n)")
    return path


def rows(path: str, query: str = "SELECT * FROM numbers ORDER BY epoch, n") -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(query).fetchall()


class Uncounted(Strict):
    """Its driver does not count what a statement has changed, as PEP 249 allows."""

    rowcount = -1


@pytest.mark.parametrize("connect", [sqlite3.connect, Strict, Uncounted])
def test_a_repeated_epoch_is_skipped(path: str, connect: Callable[[str], Any]) -> None:
    for epoch in (0, 0, 1, 4, 1, 4):  # a new one each time, as after a restart
        ts.once(partial(connect, path), "numbers", write).of("mine")(epoch, ROWS)

    assert rows(path) == [(epoch, n) for epoch in (0, 1, 4) for n in (1, 2)]
    assert rows(path, "SELECT * FROM timely_epochs") == [("numbers", "mine", 4)]


@pytest.mark.parametrize("connect", [sqlite3.connect, Strict])
def test_a_failed_epoch_leaves_nothing(path: str, connect: Callable[[str], Any]) -> None:
    subscriber = ts.once(partial(connect, path), "numbers", write)
    subscriber(12, ROWS)
    with pytest.raises(ArithmeticError, match="unlucky"):
        subscriber(13, ROWS)

    assert rows(path) == [(12, 1), (12, 2)]
    replace(subscriber, function=lambda connection, *_: write(connection, 0, ROWS))(13, ROWS)
    assert len(rows(path)) == 4, "it was not taken for written"


def test_subscribers_have_separate_epochs_and_another_checkpoint_is_refused(path: str) -> None:
    one, two = (ts.once(partial(sqlite3.connect, path), name, write).of("mine") for name in ("one", "two"))
    for subscriber in (one, two):
        subscriber(3, ROWS)

    assert len(rows(path)) == 4
    with pytest.raises(EpochsTaken, match=r"'one' from the flow .* id mine; this flow's is yours"):
        one.of("yours")(0, ROWS)
    assert len(rows(path)) == 4


def test_autocommit_is_refused_before_anything_is_written(path: str) -> None:
    with pytest.raises(NoTransaction, match=r"sqlite3\.Connection .* autocommit mode"):
        ts.once(partial(sqlite3.connect, path, isolation_level=None), "numbers", write)(0, ROWS)
    strict = Strict(path)
    strict.autocommit = True
    with pytest.raises(NoTransaction, match="autocommit"):
        ts.once(lambda: strict, "numbers", write)(0, ROWS)

    assert rows(path) == []
    assert rows(path, "SELECT * FROM sqlite_master WHERE name = 'timely_epochs'") == []


def test_a_subscriber_can_be_pickled_if_its_parts_can(path: str) -> None:
    made = ts.once(partial(sqlite3.connect, path), "numbers", write)
    subscriber: ExactlyOnce = pickle.loads(pickle.dumps(made))
    subscriber(0, ROWS)

    assert len(rows(path)) == 2


def test_invalid_names_and_release_by_arrival_are_refused(path: str) -> None:
    with pytest.raises(ValueError, match="Hint: at most 200 letters"):
        ts.once(partial(sqlite3.connect, path), "it's", write)
    stream = ts.Dataflow("early").input("x", "n long")
    with pytest.raises(GraphError, match=r"(?s)release='arrival'.*\nHint"):
        stream.subscribe(ts.once(partial(sqlite3.connect, path), "numbers", write), release="arrival")


@pytest.mark.parametrize("checkpoint", ["x', 'y", "a b", "x" * 65])
def test_an_invalid_checkpoint_id_reaches_no_sql(checkpoint: str) -> None:
    with pytest.raises(ValueError, match=r"once: checkpoint=.*the id of a checkpoint was expected"):
        ts.once(lambda: None, "name", lambda *_: None).of(checkpoint)  # type: ignore[arg-type]


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_an_epoch_that_is_interrupted_is_rolled_back(error: type[BaseException], path: str) -> None:
    """Ctrl-C comes while the function runs: a connection that others go on with has nothing of the epoch."""
    calls: list[str] = []

    class Shared(Strict):
        def rollback(self) -> None:
            calls.append("rollback")
            super().rollback()

        def close(self) -> None:
            """It goes back to a pool."""

    shared = Shared(path)

    def interrupted(connection: Any, epoch: int, table: pa.Table) -> None:
        write(connection, epoch, table)
        raise error

    with pytest.raises(error):
        ExactlyOnce(lambda: shared, "sales", interrupted).of("c1")(0, ROWS)
    ExactlyOnce(lambda: shared, "sales", write).of("c1")(0, ROWS)
    shared.inner.close()

    assert calls[:1] == ["rollback"]
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT * FROM numbers").fetchall() == [(0, 1), (0, 2)]
