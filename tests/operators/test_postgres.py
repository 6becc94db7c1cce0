"""`once` against a real PostgreSQL, whose server is killed in the middle; skipped where none is installed."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import timely_spark as ts

psycopg = pytest.importorskip("psycopg")

#: Seconds until the server must answer.
PATIENCE = 200


def program(name: str) -> str | None:
    """A program of PostgreSQL's server, which Debian keeps out of the path."""
    found = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), key=lambda path: int(path.parts[-3]))
    return shutil.which(name) or (str(found[-1]) if found else None)


class Postgres:
    """A server on a socket in a folder of its own; never as root, which it refuses."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.user = ["setpriv", "--reuid", "postgres", "--clear-groups"] if os.geteuid() == 0 else []
        if self.user:
            shutil.chown(folder, "postgres")
        setup = ["-D", f"{folder}/data", "-U", "test", "-A", "trust", "--no-sync"]
        subprocess.run([*self.user, program("initdb"), *setup], check=True, capture_output=True, cwd="/")
        self.connect = partial(psycopg.connect, f"host={folder} user=test dbname=postgres")

    def start(self) -> None:
        """Start it, and wait until it answers."""
        given = ["-D", f"{self.folder}/data", "-k", self.folder, "-c", "listen_addresses="]
        self.process = subprocess.Popen(
            [*self.user, "setpriv", "--pdeathsig", "KILL", program("postgres"), *given],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
        )
        until = time.monotonic() + PATIENCE
        with socket.socket(socket.AF_UNIX) as probe:
            while probe.connect_ex(f"{self.folder}/.s.PGSQL.5432") != 0:
                assert time.monotonic() < until, "PostgreSQL did not start"
                assert self.process.poll() is None, "PostgreSQL has ended"
                time.sleep(0.02)
        while not self._answers():
            assert time.monotonic() < until, "PostgreSQL does not answer"
            time.sleep(0.02)

    def _answers(self) -> bool:
        try:  # it is recovering
            self.connect().close()
        except psycopg.OperationalError:
            return False
        return True

    def stop(self, how: int = signal.SIGKILL) -> None:
        """End it; by SIGQUIT, all its processes at once, without a checkpoint."""
        self.process.send_signal(how)
        self.process.wait()


@pytest.fixture
def postgres() -> Iterator[Postgres]:
    if program("initdb") is None:
        pytest.skip("no PostgreSQL server is installed (Debian: apt install postgresql)")
    with tempfile.TemporaryDirectory(prefix="pg-") as folder:  # a socket's path is short
        server = Postgres(folder)
        server.start()
        try:
            yield server
        finally:
            server.stop(signal.SIGQUIT)


def write(connection: Any, epoch: int, table: pa.Table) -> None:
    rows = [(epoch, n) for n in table["n"].to_pylist()]
    connection.cursor().executemany("INSERT INTO numbers VALUES (%s, %s)", rows)


@pytest.mark.slow
def test_each_epoch_is_in_the_table_once_whatever_is_killed(postgres: Postgres) -> None:
    with postgres.connect() as connection:
        connection.execute("CREATE TABLE numbers (epoch bigint, n bigint CHECK (n < 100))")
    subscriber = ts.once(postgres.connect, "numbers", write).of("mine")
    for epoch in (0, 1, 1, 0, 2):
        subscriber(epoch, pa.table({"n": [10 * epoch, 10 * epoch + 1]}))
    with pytest.raises(psycopg.errors.CheckViolation):
        subscriber(3, pa.table({"n": [30, 100]}))

    def killed(connection: Any, epoch: int, table: pa.Table) -> None:
        write(connection, epoch, table)
        postgres.stop(signal.SIGQUIT)

    with pytest.raises(psycopg.OperationalError):
        ts.once(postgres.connect, "numbers", killed).of("mine")(3, pa.table({"n": [30]}))
    postgres.start()
    for epoch in (2, 3, 3):
        subscriber(epoch, pa.table({"n": [10 * epoch, 10 * epoch + 1]}))

    with postgres.connect() as connection:
        rows = connection.execute("SELECT * FROM numbers ORDER BY n").fetchall()
        assert rows == [(epoch, 10 * epoch + more) for epoch in range(4) for more in (0, 1)]
        assert connection.execute("SELECT * FROM timely_epochs").fetchall() == [("numbers", "mine", 3)]
    with pytest.raises(ts.TimelyError, match="autocommit mode"):
        ts.once(partial(postgres.connect, autocommit=True), "numbers", write)(4, pa.table({"n": [40]}))
