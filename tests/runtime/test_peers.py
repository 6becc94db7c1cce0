"""Peers: tasks that exchange tables directly, lose each other, or never meet."""

from __future__ import annotations

import multiprocessing
import os
import secrets
import signal
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from timely_spark.runtime.query.peers import Address, PeerLost, Peers, PeersUnreachable

SCHEMA = pa.schema([("n", pa.int64()), ("payload", pa.binary())])
TOKEN = secrets.token_bytes(32)
HOST = "127.0.0.1"


def peers(tasks: int, silence: float = 5.0) -> list[Peers]:
    return [Peers(rank, tasks, HOST, TOKEN, SCHEMA, silence=silence) for rank in range(tasks)]


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

    threads = [threading.Thread(target=run, args=(each,)) for each in all_of_them]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
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

    def work(own: Peers) -> list[list[int]]:
        own.connect(lambda rank: them[rank].address)
        sent = several if own.rank else SCHEMA.empty_table()
        return [each["n"].to_pylist() for each in own.swap([sent, sent])]

    assert at_once(work, them) == [[[], [1, 2, 3]]] * 2


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


@pytest.mark.slow
def test_a_peer_without_a_sign_of_life_is_lost() -> None:
    ours, theirs = multiprocessing.Pipe()
    child = os.fork()
    if child == 0:  # a process of its own, which can be stopped
        with Peers(1, 2, HOST, TOKEN, SCHEMA, silence=1.0) as own:
            theirs.send(own.address)
            address = theirs.recv()
            own.connect(lambda _: address)
            theirs.recv()
            own.swap([table(1)] * 2)
            time.sleep(60)
        os._exit(0)
    try:
        with Peers(0, 2, HOST, TOKEN, SCHEMA, silence=1.0) as own:
            ours.send(own.address)
            address = ours.recv()
            own.connect(lambda _: address)
            time.sleep(1.5)  # longer than the silence: signs of life arrive
            ours.send("swap")
            assert own.swap([table(0)] * 2)[1] == table(1)
            os.kill(child, signal.SIGSTOP)
            with pytest.raises(PeerLost, match=r"lost task 1.*is silent for 1 s"):
                own.swap([table(0)] * 2)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        ours.close()
        theirs.close()


def test_a_port_that_is_refused_keeps_the_tasks_apart() -> None:
    with socket.create_server((HOST, 0)) as server:
        refused: Address = server.getsockname()[:2]
    them = peers(2)

    def work(own: Peers) -> None:
        own.connect(lambda rank: refused if rank == 1 else them[0].address, within=0.5)

    found = at_once(work, them)
    assert [type(error) for error in found] == [PeersUnreachable, PeersUnreachable]
    assert "cannot reach task 1" in str(found[0])
    assert str(refused[1]) in str(found[0])


def test_an_address_of_an_earlier_attempt_is_read_again() -> None:
    with socket.create_server((HOST, 0)) as server:
        earlier: Address = server.getsockname()[:2]
    them, until = peers(2), time.monotonic() + 0.5

    def work(own: Peers) -> list[int]:
        own.connect(lambda rank: earlier if time.monotonic() < until else them[rank].address)
        return [each["n"][0].as_py() for each in own.swap([table(own.rank)] * 2)]

    assert at_once(work, them) == [[0, 1]] * 2


def test_a_stranger_is_not_heard() -> None:
    them = peers(2)

    def work(own: Peers) -> list[int]:
        for begin in (secrets.token_bytes(36), b"GET / HTTP/1.1\r\n\r\n", TOKEN + b"\0\0\0\7"):
            stranger = socket.create_connection(them[1 - own.rank].address)
            stranger.sendall(begin)
            stranger.close()
        own.connect(lambda rank: them[rank].address)
        return [each["n"][0].as_py() for each in own.swap([table(own.rank)] * 2)]

    assert at_once(work, them) == [[0, 1]] * 2
