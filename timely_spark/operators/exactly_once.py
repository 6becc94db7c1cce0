"""`once`: subscribers that write each epoch exactly once to the user's database."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, NoReturn, Protocol

import pyarrow as pa

from timely_spark.errors import TimelyError
from timely_spark.graph import refuse
from timely_spark.operators.rows import check_runs


class Connection(Protocol):
    """What is used of a DB-API 2.0 connection (PEP 249): of its cursors `execute`, `fetchone`, `rowcount`."""

    def cursor(self) -> Any: ...
    def commit(self) -> object: ...
    def rollback(self) -> object: ...
    def close(self) -> object: ...


class EpochsTaken(TimelyError, ValueError):
    """The database has, under this name, the epochs of another checkpoint."""


class NoTransaction(TimelyError, ValueError):
    """The connection is in autocommit mode."""


@dataclass(frozen=True, slots=True)
class ExactlyOnce:
    """A subscriber made by `once`: call it with (epoch, table)."""

    connect: Callable[[], Connection]
    name: str
    function: Callable[[Any, int, pa.Table], object]
    #: the id of the checkpoint that writes the epochs
    checkpoint: str = ""

    def __post_init__(self) -> None:
        name: Any = self.name
        if not isinstance(name, str) or not re.fullmatch(r"[\w.-]{1,200}", name, re.ASCII):
            self._refuse("name", "a name of the subscriber", "at most 200 letters, digits and '_', '.', '-'.")
        if not re.fullmatch(r"[\w-]{0,64}", self.checkpoint, re.ASCII):
            self._refuse("checkpoint", "the id of a checkpoint", "leave it out.")
        if not callable(self.connect):
            self._refuse("connect", "a function", 'partial(psycopg.connect, "dbname=sales").')
        if not callable(self.function):
            self._refuse("function", "a function", "it is called with (connection, epoch, table).")
        check_runs("once", self.function)

    def _refuse(self, argument: str, expected: str, hint: str) -> NoReturn:
        value = getattr(self, argument)
        refuse(value, what=f"once: {argument}", expected=expected, hint=hint)

    def of(self, checkpoint: str) -> ExactlyOnce:
        """A copy for the epochs of this checkpoint."""
        return replace(self, checkpoint=checkpoint)

    def __call__(self, epoch: int, table: pa.Table) -> None:
        """Write the epoch, unless it is in the database already."""
        with closing(self.connect()) as connection:
            try:
                if self._claim(connection, epoch):
                    self.function(connection, epoch, table)
                    connection.commit()
            except BaseException:
                connection.rollback()
                raise

    def _claim(self, connection: Connection, epoch: int) -> bool:
        """Write the epoch's number, which locks its row; False if the epoch was written before."""
        if _autocommits(connection):
            kind = f"{type(connection).__module__}.{type(connection).__qualname__}"
            msg = f"once({self.name!r}): the {kind} that connect() gives is in autocommit mode."
            hint = "connect without autocommit: the epoch's number and your writes must be one transaction."
            raise NoTransaction(msg, hint=hint)
        cursor = connection.cursor()
        condition = f"name = '{self.name}'"
        last = self._last(connection, cursor, condition)
        # literals, checked in `__post_init__`: drivers differ in how they mark parameters
        if last is None:
            cursor.execute(
                f"INSERT INTO timely_epochs VALUES ('{self.name}', '{self.checkpoint}', {epoch:d})"  # noqa: S608
            )
            return True
        if last[0] != self.checkpoint:
            msg = (
                f"table timely_epochs has {self.name!r} from the flow with checkpoint id {last[0]}; this "
                f"flow's is {self.checkpoint}, and its epochs start again."
            )
            hint = f"resume the old checkpoint, choose another name, or delete the row of {self.name!r}."
            raise EpochsTaken(msg, hint=hint)
        if epoch <= last[1]:  # some drivers do not count what an UPDATE has changed
            return False
        cursor.execute(
            f"UPDATE timely_epochs SET epoch = {epoch:d} WHERE {condition} AND epoch < {epoch:d}"  # noqa: S608
        )
        return bool(cursor.rowcount != 0)

    def _last(self, connection: Connection, cursor: Any, condition: str) -> tuple[str, int] | None:
        try:
            cursor.execute(f"SELECT checkpoint, epoch FROM timely_epochs WHERE {condition}")  # noqa: S608
        except Exception:  # noqa: BLE001 - no table yet; each driver has its own error class
            connection.rollback()
            cursor.execute(
                "CREATE TABLE timely_epochs (name VARCHAR(200) NOT NULL PRIMARY KEY, "
                "checkpoint VARCHAR(64) NOT NULL, epoch BIGINT NOT NULL)"
            )
            connection.commit()
            return None
        row: tuple[str, int] | None = cursor.fetchone()
        return row


def _autocommits(connection: Any) -> bool:
    """PEP 249 has no such attribute; most drivers have `autocommit`, older sqlite3 the second pair."""
    if getattr(connection, "autocommit", None) is True:
        return True
    return getattr(connection, "in_transaction", None) is False and connection.isolation_level is None


def once(
    connect: Callable[[], Connection], name: str, function: Callable[[Any, int, pa.Table], object]
) -> ExactlyOnce:
    """Make a subscriber write each epoch exactly once to a database: `subscribe(once(...))`.

    `subscribe` delivers an epoch at least once: after a crash it repeats epochs. Here the epoch's number and
    the writes of `function` are one transaction of your database, so an epoch in the database is skipped, and
    a failed one leaves nothing. The numbers are in a table ``timely_epochs(name, checkpoint, epoch)``, which
    is created if it is missing.

    Args:
        connect: opens a connection to any database with a DB-API 2.0 driver (PEP 249), such as
            ``partial(psycopg.connect, "dbname=sales")``; not in autocommit mode.
        name: the name of the subscriber in the table: letters, digits and ``_ . -``.
        function: called with (connection, epoch, table); it writes, and does not commit.

    Returns:
        A function of (epoch, table); it can be pickled if its parts can.

    Example:
        >>> import sqlite3, tempfile
        >>> from contextlib import closing
        >>> from functools import partial
        >>> import timely_spark as ts
        >>> def write(connection, epoch, table):
        ...     rows = [(epoch, n) for n in table["n"].to_pylist()]
        ...     connection.executemany("INSERT INTO numbers VALUES (?, ?)", rows)
        >>> connect = partial(sqlite3.connect, tempfile.mkdtemp() + "/sales.db")
        >>> with closing(connect()) as connection:
        ...     _ = connection.execute("CREATE TABLE numbers (epoch, n)")
        >>> subscriber = ts.once(connect, "numbers", write)
        >>> flow = ts.Dataflow("sales")
        >>> _ = flow.input("x", "n long").subscribe(subscriber)

        A repeated epoch is skipped:

        >>> import pyarrow as pa
        >>> for epoch in (0, 1, 1):
        ...     subscriber(epoch, pa.table({"n": [epoch * 10]}))
        >>> with closing(connect()) as connection:
        ...     connection.execute("SELECT * FROM numbers").fetchall()
        [(0, 0), (1, 10)]

    Raises:
        BadArgument: the name has other characters; `connect` or `function` is not a function.
    """
    return ExactlyOnce(connect, name, function)
