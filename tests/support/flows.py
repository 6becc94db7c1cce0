"""The dataflows that are killed: acyclic, looping, nested, with the program's own epochs, staying, to Delta.

Input is the same in every run. From files, one of each source per micro-batch, so an epoch is a micro-batch;
or said by the program, whose script goes on where its durable entries end.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import timely_spark as ts
from tests.support.hops import hop, spread

Files = Mapping[str, Sequence[pa.Table]]
#: (input, verb, argument): each is one durable entry.
Script = Sequence[tuple[str, str, Any]]


@dataclass(frozen=True)
class Scenario:
    """A dataflow and its input."""

    build: Callable[[Path], ts.Dataflow]
    files: Callable[[], Files] = dict
    script: Script = ()
    delta: bool = False
    #: whether micro-batches stay resident, also on a cluster; else only where they do by default
    stays: bool = False

    @cached_property
    def by_batch(self) -> bool:
        """Whether an epoch is a micro-batch: then even the number of batches is that of the unfailed run."""
        return not self.script

    def write(self, home: Path) -> None:
        """Writes the input files, in the order in which Spark shall take them."""
        for source, tables in self.files().items():
            folder = home / "input" / source
            folder.mkdir(parents=True)
            for number, table in enumerate(tables):
                pq.write_table(table, folder / f"{number:03}.parquet")
                os.utime(folder / f"{number:03}.parquet", (1_600_000_000 + number,) * 2)

    def columns(self) -> dict[str, str]:
        """Each source's columns, as Spark says them."""
        return {
            source: ", ".join(f"{column.name} long" for column in tables[0].schema)
            for source, tables in self.files().items()
        }


def delivered(home: Path) -> Callable[[int, pa.Table], None]:
    """A subscriber that writes down each epoch, once for each time that it hears of it."""

    def tell(epoch: int, table: pa.Table) -> None:
        rows = sorted(zip(*(column.to_pylist() for column in table.columns), strict=True))
        line = json.dumps([epoch, rows]).encode() + b"\n"
        handle = os.open(home / "told", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(handle, line)
        os.close(handle)

    tell.path = home / "told"  # type: ignore[attr-defined]  # by which `points` tells the run
    return tell


# -- acyclic -------------------------------------------------------------------------------------------------


def _orders(bulk: int = 120_000) -> Files:
    chance = np.random.default_rng(1)
    sizes = (3000, bulk, 3000, 1, 4000, 3000)  # the second hands out more than fits into rows
    tables = [
        pa.table({"id": chance.integers(0, 9000, n), "amount": chance.integers(0, 100, n)}) for n in sizes
    ]
    dims = [
        pa.table({"id": np.arange(i * 1500, (i + 1) * 1500), "dim": np.arange(1500) % 7}) for i in range(6)
    ]
    return {"orders": tables, "dims": dims}


def _acyclic(home: Path) -> ts.Dataflow:
    flow = ts.Dataflow("acyclic")
    orders, dims = flow.source("orders", "id long, amount long"), flow.source("dims", "id long, dim long")
    orders.exchange("id", name="dealt").capture("raw")
    orders.group_by("id").aggregate(count="count", name="count").capture("totals")
    known = orders.select(id="id").distinct(name="once").join(dims, left=["id"], right=["id"], name="matched")
    known.capture("known")
    known.to_files(str(home / "files"), name="files")
    known.group_by("dim").aggregate(count="count", name="dims_known").subscribe(delivered(home), name="told")
    return flow


# -- loops ---------------------------------------------------------------------------------------------------

HOPS = 6


def _graph() -> Files:
    """Each epoch makes the path longer, brings a root of its own and much that cannot be reached."""
    order = list(range(1000))
    random.Random(2).shuffle(order)
    edges, roots = [], []
    for epoch in range(3):
        path = order[epoch * HOPS : (epoch + 1) * HOPS + 1]
        own = order[500 + 10 * epoch : 505 + 10 * epoch]
        noise = np.arange(6000) + 10_000 * (epoch + 1)
        pairs = [*pairwise(path), *pairwise(own)]
        edges.append(
            pa.table(
                {
                    "src": np.concatenate([[a for a, _ in pairs], noise]),
                    "dst": np.concatenate([[b for _, b in pairs], noise + 1]),
                }
            )
        )
        roots.append(pa.table({"node": pa.array([order[0], own[0]] if epoch != 1 else [own[0]], pa.int64())}))
    return {"edges": edges, "roots": roots}


def _looping(home: Path) -> ts.Dataflow:
    flow = ts.Dataflow("looping")
    edges, roots = flow.source("edges", "src long, dst long"), flow.source("roots", "node long")
    near = roots.loop(hop(edges), name="hops")
    near.capture("near")
    near.group_by().aggregate(count="count", name="count").subscribe(delivered(home), name="told")
    near.probe("seen")
    return flow


def _starts() -> Files:
    return {
        "starts": [
            pa.table(
                {"id": pa.array([7 * e, 7 * e + 3], pa.int64()), "n": pa.array([3, 4 - e % 2], pa.int64())}
            )
            for e in range(4)
        ]
    }


def _nested(home: Path) -> ts.Dataflow:
    """Counts down from n, and that for each n down from the first."""
    flow = ts.Dataflow("nested")

    def inner(x: ts.Stream) -> tuple[ts.Stream, ts.Stream]:
        m = pc.field("m")
        down = x.select(id="id", n="n", m=m - 1).distinct(name="down")
        return down.where(m > 0), down.where(m <= 0)

    def outer(x: ts.Stream) -> ts.Stream:
        over = x.select(id="id", n="n", m="n").loop(inner, name="inner")
        return over.select(id="id", n=pc.field("n") - 1).where(pc.field("n") > 0).distinct(name="less")

    flow.source("starts", "id long, n long").loop(outer, name="outer").capture("seen")
    return flow


# -- epochs of the program's own -----------------------------------------------------------------------------


def _script() -> Script:
    """Three epochs are closed; a fourth stays open, with data that waits for its end."""
    calls: list[tuple[str, str, Any]] = []
    for epoch in range(4):
        start = 100 * epoch
        calls += [
            ("edges", "send", [(start + i, start + i + 1) for i in range(6)]),
            ("roots", "send", [start]),
            ("edges", "send", [(n, n + 1) for n in range(20_000 * (epoch + 1), 20_000 * (epoch + 1) + 2500)]),
            ("roots", "send", [start + 3, 0]),
        ]
        if epoch < 3:
            calls += [("edges", "advance_to", epoch + 1), ("roots", "advance_to", epoch + 1)]
    return calls


def _manual(home: Path) -> ts.Dataflow:
    flow = ts.Dataflow("manual")
    edges = flow.input("edges", "src long, dst long", epochs="manual")
    roots = flow.input("roots", "node long", epochs="manual")
    near = roots.loop(hop(edges), name="hops")
    near.capture("near")
    near.group_by().aggregate(count="count", name="count").capture("number")
    edges.unary_notify(
        lambda time, batch: [(time.epoch, batch.num_rows)], "epoch_ long, n long", by="src", name="measured"
    ).capture("sizes")
    return flow


# -- many epochs in a micro-batch that stays -----------------------------------------------------------------

EPOCHS = 30


def _steps() -> Script:
    """A path that grows by two edges in each epoch, beside edges that nobody reaches."""
    calls: list[tuple[str, str, Any]] = []
    for epoch in range(EPOCHS):
        near, far = 2 * epoch, 10_000 * (epoch + 1)
        edges = [(near, near + 1), (near + 1, near + 2), *((far + n, far + n + 1) for n in range(50))]
        calls += [("edges", "send", edges), ("edges", "advance_to", epoch + 1)]
    return calls


def _staying(home: Path) -> ts.Dataflow:
    """To outputs that have each epoch at once, and to some that wait for a common commit."""
    flow = ts.Dataflow("staying")
    edges = flow.input("edges", "src long, dst long", epochs="manual")
    roots = edges.where(pc.field("src") == 0).select(node="src").distinct(name="roots")
    near = roots.loop(hop(edges), name="hops")
    near.capture("near")
    near.to_files(str(home / "files"), name="files")
    near.to_delta(str(home / "table"), name="log")
    near.group_by().aggregate(count="count", name="count").subscribe(delivered(home), name="told")
    return flow


# -- Delta ---------------------------------------------------------------------------------------------------


def _small_orders() -> Files:
    return {"orders": _orders(2000)["orders"]}


def _delta(home: Path) -> ts.Dataflow:
    flow = ts.Dataflow("delta")
    orders = flow.source("orders", "id long, amount long")
    totals = orders.select(id="id").exchange("id").group_by("id").aggregate(count="count", name="count")
    totals.to_delta(str(home / "table"), name="log")
    totals.to_delta(str(home / "current"), keys=["id"], epoch=True, name="current")
    totals.capture("totals")
    return flow


def _pieces() -> Files:
    """Pairs, then fours, then eights: each epoch joins pieces, whose nodes get other labels."""
    order = [*range(1, 600)]
    random.Random(3).shuffle(order)
    tables = []
    for epoch in range(3):
        pairs = [(order[i], order[i + (1 << epoch)]) for i in range(0, 560, 2 << epoch)]
        tables.append(pa.table({"src": [a for a, _ in pairs], "dst": [b for _, b in pairs]}))
    return {"edges": tables}


def _keyed(home: Path) -> ts.Dataflow:
    """A loop whose results change, in a current table and in the log of its changes."""
    flow = ts.Dataflow("keyed")
    edges = flow.source("edges", "src long, dst long")
    both = edges.concat(edges.select(src="dst", dst="src"))

    labels = both.select(node="src", label=pc.min_element_wise(pc.field("src"), pc.field("dst")))
    labels = labels.loop(spread(both), name="spread")
    labels.to_delta(str(home / "current"), keys=["node"], epoch=True, name="current")
    labels.to_delta(str(home / "table"), diff="diff", name="log")
    labels.capture("labels")
    return flow


SCENARIOS = {
    "acyclic": Scenario(_acyclic, _orders),
    "looping": Scenario(_looping, _graph),
    "nested": Scenario(_nested, _starts),
    "manual": Scenario(_manual, script=_script()),
    "staying": Scenario(_staying, script=_steps(), delta=True, stays=True),
    "delta": Scenario(_delta, _small_orders, delta=True),
    "keyed": Scenario(_keyed, _pieces, delta=True),
}
