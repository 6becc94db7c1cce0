"""Peers: tasks that exchange tables directly, lose each other, or never meet."""

from __future__ import annotations

import multiprocessing
import os
import secrets
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import Any

import pyarrow as pa
import pytest

from timely_spark.runtime.errors import PeerLost, PeersUnreachable
from timely_spark.runtime.query import peers as peers_module
from timely_spark.runtime.query.peers import (
    LARGEST,
    STRANGERS,
    Address,
    Peers,
    address_in,
    signed,
)
from timely_spark.state.arrow import from_bytes, to_bytes

SCHEMA = pa.schema([("n", pa.int64()), ("payload", pa.binary())])
TOKEN = secrets.token_bytes(32)
HOST = "127.0.0.1"


def peers(tasks: int, silence: float = 5.0) -> list[Peers]:
    return [Peers(rank, tasks, HOST, TOKEN, SCHEMA, silence=silence) for rank in range(tasks)]


def alone() -> Peers:
    return Peers(0, 2, HOST, TOKEN, SCHEMA, silence=5.0)


def table(n: int, size: int = 0) -> pa.Table:
    return pa.table({"n": [n], "payload": [bytes(size)]}, schema=SCHEMA)


def at_once(work: Callable[[Peers], Any], all_of_them: list[Peers]) -> list[Any]:
    """What `work` returns or raises for each, in threads."""
    found = list[Any]([None]) * len(all_of_them)

    def run(each: Peers) -> None:
        try:
            with each:
                found[each.rank] = work(each)
        except OSError as error:
            found[each.rank] = error

    with ThreadPoolExecutor(len(all_of_them)) as pool:
        list(pool.map(run, all_of_them))
    return found


@pytest.mark.parametrize("tasks", [2, pytest.param(5, marks=pytest.mark.slow)])
@pytest.mark.parametrize("size", [0, 3 << 20])
def test_each_task_gets_a_table_from_each(tasks: int, size: int) -> None:
    them = peers(tasks)

    def work(own: Peers) -> list[list[tuple[int, int]]]:
        own.connect(lambda rank: them[rank].address)
        found = []
        for number in range(3):
            sent = [table(1000 * number + 10 * own.rank + to, size) for to in range(tasks)]
            received = own.swap(sent)
            found.append([(each["n"][0].as_py(), len(each["payload"][0].as_py())) for each in received])
        return found

    assert at_once(work, them) == [
        [[(1000 * number + 10 * sender + to, size) for sender in range(tasks)] for number in range(3)]
        for to in range(tasks)
    ]


def test_empty_tables_and_tables_of_several_batches_arrive_whole() -> None:
    them, several = peers(2), pa.concat_tables([table(1), table(2), table(3)])
    large = pa.concat_tables(
        [pa.concat_tables([table(n, 70_000) for n in (4, 5, 6)]).combine_chunks()[1:], several]
    )

    def work(own: Peers) -> list[list[int]]:
        own.connect(lambda rank: them[rank].address)
        tables = [several, large] if own.rank else [SCHEMA.empty_table()] * 2
        return [each["n"].to_pylist() for sent in tables for each in own.swap([sent, sent])]

    assert at_once(work, them) == [[[], [1, 2, 3], [], [5, 6, 1, 2, 3]]] * 2


def test_the_first_tasks_exchange_while_the_last_one_speaks_with_each() -> None:
    them = peers(3)

    def work(own: Peers) -> list[int]:
        own.connect(lambda rank: them[rank].address)
        if own.rank == 2:
            for rank in (0, 1):
                own.send(rank, table(100 + rank))
            return [own.receive(rank)["n"][0].as_py() for rank in (0, 1)]
        given = own.receive(2)["n"][0].as_py()
        found = [each["n"][0].as_py() for each in own.swap([table(given), table(given + 10)])]
        own.send(2, table(sum(found)))
        return found

    assert at_once(work, them) == [[100, 101], [110, 111], [201, 221]]


def test_a_peer_that_ends_is_lost_at_once() -> None:
    them = peers(3)

    def work(own: Peers) -> None:
        own.connect(lambda rank: them[rank].address)
        if own.rank == 1:
            return
        while True:
            own.swap([table(0)] * 3)

    found = at_once(work, them)
    assert [type(error) for error in found] == [PeerLost, type(None), PeerLost]
    assert any("lost task 1" in str(error) for error in found)
    assert not any("is silent" in str(error) for error in found)


def swaps(theirs: Connection, token: bytes) -> None:
    """A process of its own, which can be stopped."""
    with Peers(1, 2, HOST, token, SCHEMA, silence=1.0) as own:
        theirs.send(own.address)
        address = theirs.recv()
        own.connect(lambda _: address)
        theirs.recv()
        own.swap([table(1)] * 2)
        time.sleep(60)


@pytest.mark.slow
def test_a_peer_without_a_sign_of_life_is_lost() -> None:
    # forked it would close the connections of this process's threads to the JVM
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    child = spawn.Process(target=swaps, args=(theirs, TOKEN))
    child.start()
    try:
        with Peers(0, 2, HOST, TOKEN, SCHEMA, silence=1.0) as own:
            ours.send(own.address)
            address = ours.recv()
            own.connect(lambda _: address)
            time.sleep(1.5)  # longer than the silence: signs of life arrive
            ours.send("swap")
            assert own.swap([table(0)] * 2)[1] == table(1)
            os.kill(child.pid or 0, signal.SIGSTOP)
            with pytest.raises(PeerLost, match=r"lost task 1.*is silent for 1 s"):
                own.swap([table(0)] * 2)
    finally:
        child.kill()
        child.join()
        ours.close()
        theirs.close()


def test_a_port_that_is_refused_keeps_the_tasks_apart() -> None:
    them = peers(2)

    def work(own: Peers) -> None:
        own.connect(lambda rank: refused if rank == 1 else them[0].address, within=0.5)

    with socket.socket() as taken:  # nobody else gets the port, and nobody listens there
        taken.bind((HOST, 0))
        refused: Address = taken.getsockname()[:2]
        found = at_once(work, them)
    assert [type(error) for error in found] == [PeersUnreachable, PeersUnreachable]
    assert "cannot reach task 1" in str(found[0])
    assert str(refused[1]) in str(found[0])


def test_an_address_of_an_earlier_attempt_is_read_again() -> None:
    them, until = peers(2), time.monotonic() + 0.5

    def work(own: Peers) -> list[int]:
        own.connect(lambda rank: earlier if time.monotonic() < until else them[rank].address)
        return [each["n"][0].as_py() for each in own.swap([table(own.rank)] * 2)]

    with socket.socket() as taken:
        taken.bind((HOST, 0))
        earlier: Address = taken.getsockname()[:2]
        assert at_once(work, them) == [[0, 1]] * 2


def test_a_stranger_is_not_heard() -> None:
    them = peers(2)

    def work(own: Peers) -> list[int]:
        for begin in (secrets.token_bytes(72), b"GET / HTTP/1.1\r\n\r\n", bytes(7) + b"\7" + TOKEN * 2, b""):
            stranger = socket.create_connection(them[1 - own.rank].address)
            stranger.sendall(begin)
            stranger.close()
        own.connect(lambda rank: them[rank].address)
        return [each["n"][0].as_py() for each in own.swap([table(own.rank)] * 2)]

    assert at_once(work, them) == [[0, 1]] * 2


@pytest.mark.slow
@pytest.mark.parametrize("answers", ["nothing", "random", "reflected"])
def test_who_listens_without_the_token_learns_neither_the_token_nor_data(answers: str) -> None:
    heard = bytearray()
    with socket.create_server((HOST, 0)) as impostor, alone() as victim:

        def listen() -> None:
            connection, _ = impostor.accept()
            with connection:
                connection.sendall(secrets.token_bytes(32))
                while len(heard) < 72 and (more := connection.recv(4096)):
                    heard.extend(more)
                connection.sendall({"nothing": b"", "random": bytes(32), "reflected": heard[-32:]}[answers])
                connection.shutdown(socket.SHUT_WR)
                while more := connection.recv(4096):
                    heard.extend(more)

        listener = threading.Thread(target=listen)
        listener.start()
        given = iter([impostor.getsockname()[:2]])
        with pytest.raises(PeersUnreachable, match=r"token of this stage|closed the connection|no address"):
            victim.connect(lambda _: next(given, None), within=1.0)
        listener.join(10)

    assert len(heard) == 72, "a rank, a challenge and a proof of it"
    assert TOKEN not in heard


def test_an_address_holds_for_one_place_of_one_stage() -> None:
    address, place = ("10.0.0.7", 7077), "peers/0-1-2-3.json"
    content = signed(TOKEN, place, address)
    elsewhere = [{"host": "10.0.0.8"}, {"port": 7078}, {"port": "7077"}, {"proof": "\u00e9"}, {"proof": None}]

    assert address_in(TOKEN, place, content) == address
    assert address_in(secrets.token_bytes(32), place, content) is None
    assert address_in(TOKEN, "peers/0-1-2-4.json", content) is None
    assert [address_in(TOKEN, place, content | other) for other in elsewhere] == [None] * len(elsewhere)
    assert address_in(TOKEN, place, {}) is None


def _sends(content: bytes, size: int | None = None) -> Exception:
    """What a task raises if a peer that has the token sends some bytes after their length, or another one."""
    them, read = peers(2, silence=2.0), threading.Event()

    def work(own: Peers) -> None:
        own.connect(lambda rank: them[rank].address)
        if own.rank == 1:
            file = own._sending[0]._file
            file.write((len(content) if size is None else size).to_bytes(8, "big") + content)
            file.flush()
            read.wait(20)
            return
        try:
            own.swap([table(0)] * 2, within=20)
        finally:
            read.set()

    found: Exception = at_once(work, them)[0]
    return found


def test_a_peer_cannot_have_memory_read_by_a_forged_offset() -> None:
    before, offsets, after = to_bytes(table(1, 16)).rpartition(struct.pack("<ii", 0, 16))
    assert offsets
    forged = before + struct.pack("<ii", 4096, 8192) + after

    assert from_bytes(forged, validate=False)["n"].to_pylist() == [1], "all but an offset is right"
    assert "lost task 1" in str(found := _sends(forged))
    assert "ArrowInvalid" in str(found)


def test_what_a_peer_sends_has_a_largest_length_and_known_columns() -> None:
    assert f"at most {LARGEST} are allowed" in str(_sends(b"", LARGEST + 1))
    assert f"at most {LARGEST} are allowed" in str(_sends(b"", (1 << 64) - 1))
    assert "expected were ['n', 'payload']" in str(_sends(to_bytes(pa.table({"n": [1]}))))
    assert isinstance(_sends(b"no Arrow stream"), PeerLost)


def test_who_waits_for_a_table_hears_of_any_failure_to_read_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(content: bytes) -> pa.Table:
        if len(content) > 10_000:
            raise MemoryError
        return from_bytes(content)

    monkeypatch.setattr(peers_module, "from_bytes", full)
    assert "lost task 1, which has ended (MemoryError())" in str(_sends(to_bytes(table(1, 20_000))))


def test_connections_that_prove_nothing_are_limited() -> None:
    with alone() as own:
        threading.Thread(target=own._accept, daemon=True).start()
        crowd = [socket.create_connection(own.address, timeout=10) for _ in range(2 + STRANGERS)]
        greeted = [len(each.recv(32)) for each in crowd]
        with socket.create_connection(own.address, timeout=10) as refused:
            assert refused.recv(32) == b""
        for each in crowd:
            each.close()

    assert greeted == [32] * len(crowd)
