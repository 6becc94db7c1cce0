"""The console in each state, in a browser; with PICTURES=docs/drawings these are the pictures of the docs."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import timely_spark as ts
from tests.support.browser import CHROMIUM, NONE, Browser
from timely_spark.runtime.handle.asked import Asked
from timely_spark.runtime.handle.console import Server
from timely_spark.runtime.handle.row_reasons import RowReasons
from timely_spark.runtime.storage.lock import Lock
from timely_spark.runtime.storage.log import RoundLog, failure_file

#: Compiled under a name of its own, which the pages show.
FLOWS = """
def hops():
    flow = ts.Dataflow("hops")
    links = flow.input("links", "src long, dst long")
    roots = flow.input("roots", "node long")
    near = ts.graphs.bfs(links.collection(), roots.collection(), name="near")
    near.count("nodes", keys="distance", name="by_distance").changes().capture("rings")
    return flow

def access():
    flow = ts.Dataflow("access")
    groups = flow.input("groups", "member string, of string")
    groups.capture("log")
    direct = groups.collection()
    def up(pairs):
        links = direct.select(of="member", above="of")
        return pairs.join(links, on="of").select("member", of="above").concat(direct).distinct()
    direct.iterate(up, name="closure").changes().capture("all groups")
    return flow

def rings():
    flow = ts.Dataflow("rings")
    payments = flow.input("payments", "src long, dst long").collection()
    ts.graphs.strongly_connected_components(payments, name="parts").changes().capture("rings")
    return flow

def orders(name="orders"):
    flow = ts.Dataflow(name)
    orders = flow.input("orders", "customer string, amount long", epochs="manual")
    orders.collection().sum("amount", keys="customer", name="totals").changes().capture("by customer")
    return flow

def interest():
    flow = ts.Dataflow("interest")
    accounts = flow.input("accounts", "balance long")
    grown = accounts.loop(lambda each: each.select(balance="balance + 1").exchange("balance"), name="grows")
    grown.capture("grown")
    return flow
"""
NAMES: dict[str, Any] = {"ts": ts}
exec(compile(FLOWS, "/srv/flows/payments.py", "exec"), NAMES)

pytestmark = [pytest.mark.slow, pytest.mark.campaign]


@pytest.fixture
def places(begin: Any, tmp_path: Path) -> Iterator[dict[str, str]]:
    """By flow its checkpoint: one works, one is idle, one waits, one does not converge, one has failed."""
    draw = random.Random(1)
    at = {name: str(tmp_path / name) for name in ("hops", "rings", "orders", "interest", "orders-eu")}
    hops = begin(NAMES["hops"](), workers=2, rounds=8, keep=100, path=Path(at["hops"]))
    hops.handles["roots"].send([(0,)])
    for epoch in range(6):
        hops.feed("links", [(draw.randrange(n + 1), n + 1) for n in range(30 * epoch, 30 * epoch + 30)])
    hops.handles["links"].send([(180 + n, 181 + n) for n in range(40)] + [(0, 180)])
    hops.batch()
    rings = begin(NAMES["rings"](), workers=2, rounds=100, keep=100, path=Path(at["rings"]))
    for _ in range(5):
        rings.feed("payments", [(draw.randrange(9), draw.randrange(9)) for _ in range(4)])
    orders = begin(NAMES["orders"](), workers=2, keep=100, path=Path(at["orders"]))
    orders.feed("orders", [("ann", 30), ("bob", 12)])
    interest = begin(NAMES["interest"](), workers=2, rounds=40, keep=100, path=Path(at["interest"]))
    interest.handles["accounts"].send([(n,) for n in range(20)])
    for _ in range(3):
        interest.batch()
    begin(NAMES["orders"]("orders-eu"), workers=2, path=Path(at["orders-eu"]))
    log = RoundLog(at["orders-eu"])
    text = (
        "step 'totals' (/srv/flows/payments.py:30) failed with {'customer': 'eve', 'amount': None}:\n"
        "TypeError: unsupported operand type(s) for +: 'int' and 'NoneType'\n"
        "Hint: correct the function, or the record at its source, and start again."
    )
    report = {"kind": "VertexError", "text": text, "vertex": None, "rank": 0, "at": 1795795200.0}
    log.files.write_json(failure_file(max(log.files.numbers("terms"))), report)
    with ExitStack() as held:
        for name in at.keys() - {"orders-eu"}:
            lock = Lock(RoundLog(at[name]).files)
            assert lock.acquire()
            held.callback(lock.release)
        yield at


def test_each_state_is_seen_in_a_browser(begin: Any, places: dict[str, str], tmp_path: Path) -> None:
    if CHROMIUM is None:
        pytest.skip(NONE)
    access = begin(NAMES["access"](), workers=2, path=tmp_path / "access")
    access.feed("groups", [("ann", "ops"), ("bob", "dev"), ("ops", "staff"), ("dev", "staff")])
    query = access.query()
    every = Server([*places.values()], address="127.0.0.1", port=0, slo=2.0)
    own = Server([str(tmp_path / "access")], address="127.0.0.1", port=0, reasons=RowReasons(query))
    twenty = Server([*places.values()] * 4, address="127.0.0.1", port=0, slo=2.0)
    browser = Browser(tmp_path / "profile")
    with ExitStack() as ending:
        ending.callback(browser.close)
        for server in (every, own, twenty):
            threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
            ending.callback(server.server_close)
            ending.callback(server.shutdown)

        def seen(name: str, server: Server, asked: Asked, text: str, **size: Any) -> None:
            browser.open(server.url.partition("/?")[0] + asked.path(row=asked.row), **size)
            browser.until(f"document.body.innerText.includes({text!r})")
            assert browser.complaints == []
            if folder := os.environ.get("PICTURES"):
                Path(folder, f"console-{name}.png").write_bytes(browser.picture())

        numbers = {name: number for number, name in enumerate(places)}
        late = "still at epoch 0"
        seen("working", every, Asked(numbers["hops"], step="near"), "is held back by")
        seen("idle", every, Asked(numbers["rings"]), "nothing waits")
        seen("late", every, Asked(numbers["orders"]), late)
        seen("diverging", every, Asked(numbers["interest"]), "does not converge")
        seen("failed", every, Asked(numbers["orders-eu"]), "unsupported operand", height=700)
        seen("twenty", twenty, Asked(numbers["orders"] + 15), late, height=700)
        seen("phone", every, Asked(numbers["hops"]), "is held back by", width=390, dark=True)
        row = '{"member": "ann", "of": "staff"}'
        seen("why", own, Asked(0, step="all groups", row=row), "is in 'all groups' at epoch 0, because of")
