"""Subscribers that write to a database of the user's own, each epoch once."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, NoReturn, Protocol

import pyarrow as pa

from timely_spark.errors import BadArgument, TimelyError
from timely_spark.graph import caller


class Cursor(Protocol):
    """What is used of a DB-API 2.0 cursor (PEP 249)."""

    @property
    def rowcount(self) -> int:
        """Rows that the last statement changed."""

    def execute(self, operation: str, /) -> object:
        """Run a statement."""

    def fetchone(self) -> Any:
        """The next row, or None."""


class Connection(Protocol):
    """What is used of a DB-API 2.0 connection (PEP 249)."""

    def cursor(self) -> Any:
        """A new `Cursor`."""

    def commit(self) -> object:
        """Make what was written permanent."""

    def rollback(self) -> object:
        """Forget it."""

    def close(self) -> object:
        """End the connection."""


class EpochsTaken(TimelyError, ValueError):
    """A database counts, under this name, the epochs of another checkpoint."""

    condition = "EPOCHS_TAKEN"

    @classmethod
    def by(cls, name: str, *, found: str, mine: str) -> EpochsTaken:
        """`found` and `mine` are the two checkpoints' ids."""
        msg = (
            f"timely_epochs knows {name!r} as written by the flow with checkpoint id {found}; this one is "
            f"{mine}, and its epochs start again."
        )
        hint = f"resume the old checkpoint, choose another name, or delete the row of {name!r}."
        return cls(msg, hint=hint)


class NoTransaction(TimelyError, ValueError):
    """A connection makes each statement permanent by itself."""

    condition = "NO_TRANSACTION"

    @classmethod
    def of(cls, name: str, connection: object) -> NoTransaction:
        """`connection` is what `connect` gave."""
        kind = f"{type(connection).__module__}.{type(connection).__qualname__}"
        msg = f"once({name!r}): the {kind} that connect() gives is in autocommit mode."
        hint = "connect without autocommit: the epoch's number and your writes must be one transaction."
        return cls(msg, hint=hint)


@dataclass(frozen=True, slots=True)
class Once:
    """A subscriber made by `once`: call it with (epoch, table)."""

    connect: Callable[[], Connection]
    name: str
    function: Callable[[Any, int, pa.Table], object]
    #: the id of the checkpoint whose epochs these are
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

    def _refuse(self, what: str, expected: str, hint: str) -> NoReturn:
        value = getattr(self, what)
        raise BadArgument.kind(value, what=f"once: {what}", expected=expected, where=caller(), hint=hint)

    def of(self, checkpoint: str) -> Once:
        """The same, for the epochs of this checkpoint."""
        return replace(self, checkpoint=checkpoint)

    def __call__(self, epoch: int, table: pa.Table) -> None:
        """Write the epoch, unless it was written before.

        Raises:
            EpochsTaken: the epochs counted under this name are another checkpoint's.
            NoTransaction: the connection is in autocommit mode.
        """
        with closing(self.connect()) as connection:
            try:
                if self._begins(connection, epoch):
                    self.function(connection, epoch, table)
                    connection.commit()
            except BaseException:
                connection.rollback()
                raise

    def _begins(self, connection: Connection, epoch: int) -> bool:
        """Whether the epoch is new here; then its number is written, and whoever else comes must wait."""
        if _autocommits(connection):
            raise NoTransaction.of(self.name, connection)
        cursor: Cursor = connection.cursor()
        mine = f"name = '{self.name}'"
        last = self._last(connection, cursor, mine)
        # literals, which `__post_init__` has checked: drivers differ in how they mark parameters
        if last is None:
            cursor.execute(
                f"INSERT INTO timely_epochs VALUES ('{self.name}', '{self.checkpoint}', {epoch:d})"  # noqa: S608
            )
            return True
        if last[0] != self.checkpoint:
            raise EpochsTaken.by(self.name, found=last[0], mine=self.checkpoint)
        cursor.execute(
            f"UPDATE timely_epochs SET epoch = {epoch:d} WHERE {mine} AND epoch < {epoch:d}"  # noqa: S608
        )
        return cursor.rowcount != 0

    def _last(self, connection: Connection, cursor: Cursor, mine: str) -> tuple[str, int] | None:
        try:
            cursor.execute(f"SELECT checkpoint, epoch FROM timely_epochs WHERE {mine}")  # noqa: S608
        except Exception:  # noqa: BLE001 - each driver has its own; whatever else is wrong shows again at once
            connection.rollback()
            cursor.execute(
                "CREATE TABLE timely_epochs (name VARCHAR(200) NOT NULL PRIMARY KEY, "
                "checkpoint VARCHAR(64) NOT NULL, epoch BIGINT NOT NULL)"
            )
            connection.commit()
            return None
        found: tuple[str, int] | None = cursor.fetchone()
        return found


def _autocommits(connection: Any) -> bool:
    """By the driver's own word, where it has one: PEP 249 has none. The second is sqlite3's older one."""
    if getattr(connection, "autocommit", None) is True:
        return True
    return getattr(connection, "in_transaction", None) is False and connection.isolation_level is None


def once(
    connect: Callable[[], Connection], name: str, function: Callable[[Any, int, pa.Table], object]
) -> Once:
    """Make a subscriber write each epoch exactly once to a database: `subscribe(once(...))`.

    `subscribe` tells an epoch at least once: after a crash it may come again. Here the number of the epoch
    and what `function` writes are one transaction of your own database, so an epoch that it has is skipped,
    and of one that fails nothing stays. The numbers are kept in a table ``timely_epochs(name, checkpoint,
    epoch)``, which is made if it is not there.

    Args:
        connect: opens a connection to any database with a DB-API 2.0 driver (PEP 249), such as
            ``partial(psycopg.connect, "dbname=sales")``; not in autocommit mode.
        name: of this subscriber in the table: letters, digits and ``_ . -``.
        function: called with (connection, epoch, table); it writes, and leaves the commit to its caller.

    Returns:
        A function of (epoch, table); it can be pickled if its parts can.

    Raises:
        BadArgument: the name has other characters; `connect` or `function` is no function.

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

        What happens when an epoch comes again:

        >>> import pyarrow as pa
        >>> for epoch in (0, 1, 1):
        ...     subscriber(epoch, pa.table({"n": [epoch * 10]}))
        >>> with closing(connect()) as connection:
        ...     connection.execute("SELECT * FROM numbers").fetchall()
        [(0, 0), (1, 10)]
    """
    return Once(connect, name, function)
