"""Views in SQL: beside flows written by hand, and queries of TPC-H beside those who compute them anew.

- Views of a graph by the engine without Spark, one worker, in memory; beside flows of the same answers that
  are written by hand. A load, and then epochs of few changes. Processor time.
- From text to plan: the longest query of TPC-H.
- TPC-H: tables like its own, of which 1 % of the lines and orders change in an epoch; beside Spark and
  DuckDB, which compute the query anew. State in bytes for each row of a table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from statistics import median
from time import process_time
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import timely_spark as ts
from benchmarks import harness
from benchmarks.alone import Engine
from benchmarks.harness import Report
from benchmarks.resources import processor
from tests.support.tpch import queries, tables
from timely_spark.queries.scripts import planned
from timely_spark.runtime.process import task

#: Nodes and edges of the graph; rows of each of the five tables.
SIZE, QUICK = (20_000, 60_000), (300, 900)
SCALE, QUICK_SCALE = 0.1, 0.001
EPOCHS, FEW = 5, 20
#: how often each side runs, one after the other
TURNS = 5
EDGES = "src long, dst long, w long"
#: those of TPC-H that are maintained beside others
CHOSEN = (1, 3, 6, 12, 13, 18)


def _reach(edges: ts.Collection) -> ts.Collection:
    roots = edges.where(pc.field("src") == 0).select(node="src").distinct()

    def step(near: ts.Collection) -> ts.Collection:
        return near.join(edges, left="node", right="src").select(node="dst").concat(roots).distinct()

    return roots.iterate(step)


def _paths(edges: ts.Collection) -> ts.Collection:
    roots = edges.where(pc.field("src") == 0).select(node="src", d=pc.scalar(0)).distinct()

    def step(near: ts.Collection) -> ts.Collection:
        further = near.join(edges, left="node", right="src")
        return (
            further.select(node="dst", d=pc.add(pc.field("d"), pc.field("w")))
            .concat(roots)
            .min("d", keys="node")
        )

    return roots.iterate(step)


def _components(edges: ts.Collection) -> ts.Collection:
    both = edges.select("src", "dst").concat(edges.select(src="dst", dst="src"))
    own = both.select(node="src", label="src").distinct()

    def step(labels: ts.Collection) -> ts.Collection:
        met = labels.join(both, left="node", right="src").select("label", node="dst")
        return met.select("node", "label").concat(own).min("label", keys="node")

    return own.iterate(step)


def _generation(edges: ts.Collection) -> ts.Collection:
    plain = edges.where(pc.field("src") < pc.scalar(60)).select("src", "dst")
    siblings = plain.join(plain.select("src", other="dst"), "src").select(a="dst", b="other")

    def step(same: ts.Collection) -> ts.Collection:
        below = same.join(plain, left="a", right="src").select("b", c="dst")
        pairs = below.join(plain, left="b", right="src").select(a="c", b="dst")
        return pairs.concat(siblings).distinct()

    return siblings.distinct().iterate(step)


def _material(edges: ts.Collection) -> ts.Collection:
    tree = edges.where(pc.field("src") < pc.field("dst")).select("src", "dst")
    start = tree.where(pc.field("src") < 3).select(top="src", part="dst", level=pc.scalar(1))

    def step(parts: ts.Collection) -> ts.Collection:
        deeper = parts.where(pc.field("level") < 6).join(tree, left="part", right="src")
        return (
            deeper.select("top", part="dst", level=pc.add(pc.field("level"), 1)).concat(start).consolidate()
        )

    return start.iterate(step).count("n", keys=["top", "part"])


def _joins(edges: ts.Collection) -> ts.Collection:
    step = edges.select("src", "dst")
    paths = edges.where(pc.field("w") < 5).select(a="src", b="dst")
    for _ in range(4):
        paths = paths.join(step, left="b", right="src").select("a", b="dst")
    return paths.count("n", keys="a").top_k(10, "n")


_RECURSIVE = "WITH RECURSIVE "
#: by case the view, and the flow by hand
VIEWS: Mapping[str, tuple[str, Callable[[ts.Collection], ts.Collection]]] = {
    "reachability": (
        _RECURSIVE + "r(node) AS (SELECT src FROM edges WHERE src = 0 UNION "
        "SELECT dst FROM r JOIN edges ON node = src) SELECT node FROM r",
        _reach,
    ),
    "shortest paths": (
        _RECURSIVE + "r(node, d) USING KEY (node, min(d)) AS (SELECT src, 0L FROM edges WHERE src = 0 UNION "
        "SELECT dst, d + w FROM r JOIN edges ON node = src) SELECT node, d FROM r",
        _paths,
    ),
    "components": (
        _RECURSIVE + "both AS (SELECT src, dst FROM edges UNION ALL SELECT dst, src FROM edges), "
        "r(node, label) USING KEY (node, min(label)) AS (SELECT src, src FROM both UNION "
        "SELECT dst, label FROM r JOIN both ON node = src) SELECT node, label FROM r",
        _components,
    ),
    "same generation": (
        _RECURSIVE + "few AS (SELECT src, dst FROM edges WHERE src < 60), r(a, b) AS ("
        "SELECT x.dst, y.dst FROM few x JOIN few y ON x.src = y.src UNION "
        "SELECT x.dst, y.dst FROM r JOIN few x ON r.a = x.src JOIN few y ON r.b = y.src) SELECT a, b FROM r",
        _generation,
    ),
    "bill of material": (
        _RECURSIVE
        + "r(top, part, level) AS (SELECT src, dst, 1 FROM edges WHERE src < dst AND src < 3 UNION ALL "
        "SELECT top, dst, level + 1 FROM r JOIN edges ON part = src WHERE src < dst AND level < 6) "
        "SELECT top, part, count(*) AS n FROM r GROUP BY top, part",
        _material,
    ),
    "five joins, top 10": (
        """SELECT a.src AS a, count(*) AS n FROM edges a JOIN edges b ON a.dst = b.src
           JOIN edges c ON b.dst = c.src JOIN edges d ON c.dst = d.src JOIN edges e ON d.dst = e.src
           WHERE a.w < 5 GROUP BY a.src ORDER BY n DESC, a LIMIT 10""",
        _joins,
    ),
}


def changes(nodes: int, edges: int) -> list[pa.Table]:
    """The edges of a random graph, and epochs of few that come and go."""
    of = np.random.default_rng(5)
    rows = np.column_stack(
        [of.integers(0, nodes, (edges + EPOCHS * FEW, 2)), of.integers(1, 100, edges + EPOCHS * FEW)]
    )
    epochs, held = [], rows[:edges]
    for epoch in range(EPOCHS + 1):
        come = held if not epoch else rows[edges + (epoch - 1) * FEW : edges + epoch * FEW]
        gone = held[(epoch - 1) * FEW : epoch * FEW] if epoch else held[:0]
        both = np.concatenate([come, gone])
        diff = np.repeat([1, -1], [len(come), len(gone)])
        columns = (*both.T, diff)
        epochs.append(pa.table(dict(zip(("src", "dst", "w", "diff"), columns, strict=True))))
    return epochs


def maintained(
    view: Callable[..., ts.Collection], inputs: Mapping[str, list[pa.Table]]
) -> tuple[list[float], int, Any]:
    """Seconds of processor time for each epoch, bytes of state, and a sum over all changes of the answer."""
    flow = ts.Dataflow("view")
    relations = {
        name: flow.input(name, each[0].schema).collection(diff="diff") for name, each in inputs.items()
    }
    view(**relations).changes().capture("out")
    engine, seconds, rows = Engine(flow, 1), [], []
    for epoch in range(len(next(iter(inputs.values())))):
        began = process_time()
        out = engine.epoch(**{name: each[epoch] for name, each in inputs.items()})
        seconds.append(process_time() - began)
        rows += out
    engine.checkpoint()
    return seconds, engine.size(), answer(rows)


def answer(changes: list[pa.Table]) -> dict[str, int]:
    """The rows that are left, in any order of their columns' names."""
    total: dict[str, int] = {}
    for table in changes:
        names = table.schema.names[:-1]
        diffs = table.column(table.num_columns - 1).to_pylist()
        for row, diff in zip(table.select(names).to_pylist(), diffs, strict=True):
            key = str([row[name] for name in names])
            total[key] = total.get(key, 0) + diff
    return {key: n for key, n in total.items() if n}


def views(report: Report, *, quick: bool) -> None:
    """Views beside flows by hand."""
    inputs = {"edges": changes(*(QUICK if quick else SIZE))}
    for name, (query, by_hand) in VIEWS.items():
        sides: dict[str, Callable[[ts.Collection], ts.Collection]] = {
            "view": lambda edges, text=query: ts.sql(text, edges=edges),
            "hand": by_hand,
        }
        runs = {side: [] for side in sides}
        for _ in range(1 if quick else TURNS):
            for side, view in sides.items():
                with task():
                    runs[side].append(maintained(view, inputs))
        (_, size, ours), (_, _, hand) = runs["view"][0], runs["hand"][0]
        assert ours == hand, f"{name}: the view and the flow differ"
        for what, at in (("load", slice(1)), (f"{FEW} + {FEW} changes", slice(1, None))):
            seconds = {
                side: median(one for each, _, _ in of for one in each[at]) for side, of in runs.items()
            }
            report.add(
                f"{name}, {what}",
                ours=1000 * seconds["view"],
                baseline=1000 * seconds["hand"],
                against="by hand",
                aim=">=0.91x",
            )
        report.add(f"{name}, state", ours=size / inputs["edges"][0].num_rows, unit="bytes/row")


TRIANGLES = """SELECT {} x.src AS a, y.src AS b, z.src AS c FROM edges x
    JOIN edges y ON x.dst = y.src JOIN edges z ON y.dst = z.src AND z.dst = x.src"""


def cycles(report: Report, *, quick: bool) -> None:
    """Joins in a cycle with the hint `WCOJ`, beside the same text without it."""
    many, of = 300 if quick else 12_000, np.random.default_rng(1)
    ends = of.integers(0, many // 4, (many, 2))
    hub = np.where(of.random((many, 2)) < 0.1, 0, ends)
    for name, drawn in (("a hub", hub), ("none", ends)):
        rows = np.unique(drawn[drawn[:, 0] != drawn[:, 1]], axis=0)
        of.shuffle(rows)
        parts = (rows[: -EPOCHS * FEW], *np.split(rows[-EPOCHS * FEW :], EPOCHS))
        epochs = [_counted(pa.table({"src": one[:, 0], "dst": one[:, 1]}), 1) for one in parts]
        runs = []
        for hint in ("/*+ WCOJ */", ""):
            text = TRIANGLES.format(hint)
            with task():
                runs.append(maintained(lambda edges, text=text: ts.sql(text, edges=edges), {"edges": epochs}))
        (ours, size, by_hint), (plain, more, by_joins) = runs
        assert by_hint == by_joins, "the hint changes rows"
        case = f"triangles with {name}"
        for what, at in (("load", slice(1)), (f"{FEW} changes", slice(1, None))):
            seconds = [1000 * median(one[at]) for one in (ours, plain)]
            report.add(f"{case}, {what}", ours=seconds[0], baseline=seconds[1], against="without the hint")
        report.add(
            f"{case}, state",
            ours=size / many,
            baseline=more / many,
            unit="bytes/row",
            against="without the hint",
        )


def planning(report: Report) -> None:
    """From text to plan."""
    number, text = max(queries().items(), key=lambda one: len(one[1]))
    flow = ts.Dataflow("plan")
    inputs = {name: flow.input(name, table.schema).collection() for name, table in tables(0.0001).items()}
    seconds = []
    for _ in range(7):
        began = process_time()
        planned(text, inputs)
        seconds.append(process_time() - began)
    report.add(f"text to plan, query {number}", ours=1000 * median(seconds[1:]), aim="<=50")


def tpch(report: Report, *, quick: bool) -> None:
    """TPC-H under changes of 1 %."""
    data = tables(QUICK_SCALE if quick else SCALE, 11)
    epochs = {name: [_counted(table, 1)] for name, table in data.items()}
    held = dict(data)
    of = np.random.default_rng(3)
    for name, table in data.items():
        moved = max(table.num_rows // 200, 1) if name in {"lineitem", "orders"} else 0
        at = of.choice(table.num_rows, 2 * moved, replace=False) if moved else np.zeros(0, np.int64)
        # these were not there at first, and those are deleted
        late, gone = table.take(pa.array(at[:moved])), table.take(pa.array(at[moved:]))
        first = np.setdiff1d(np.arange(table.num_rows), at[:moved])
        epochs[name] = [
            _counted(table.take(pa.array(first)), 1),
            pa.concat_tables([_counted(late, 1), _counted(gone, -1)]),
        ]
        held[name] = table.take(pa.array(np.setdiff1d(np.arange(table.num_rows), at[moved:])))
    session = harness.spark("sql")
    for name, table in held.items():
        session.createDataFrame(table).cache().createOrReplaceTempView(name)
        session.table(name).count()
    rows = sum(table.num_rows for table in data.values())
    with duckdb.connect() as duck:
        for name, table in held.items():
            duck.register(f"given_{name}", table)
            duck.execute(f"CREATE TABLE {name} AS SELECT * FROM given_{name}")
        for number in CHOSEN[:2] if quick else CHOSEN:
            text = queries()[number]
            with task():
                ours, size, _ = maintained(lambda query=text, **relations: ts.sql(query, **relations), epochs)
            began = process_time()
            duck.execute(text).fetchall()
            by_duck = process_time() - began
            session.sql(text).collect()
            began = processor()
            session.sql(text).collect()
            by_spark = processor() - began
            for system, baseline in (("DuckDB, anew", by_duck), ("Spark, anew", by_spark)):
                report.add(
                    f"TPC-H {number}, 1 %", ours=1000 * ours[1], baseline=1000 * baseline, against=system
                )
            report.add(f"TPC-H {number}, state", ours=size / rows, unit="bytes/row")
    session.stop()


def _counted(table: pa.Table, diff: int) -> pa.Table:
    return table.append_column("diff", pa.array(np.full(table.num_rows, diff)))


def run(quick: bool) -> Report:
    """All of it."""
    report = Report("sql", "Views in SQL", quick=quick)
    views(report, quick=quick)
    cycles(report, quick=quick)
    planning(report)
    tpch(report, quick=quick)
    report.note("Processor time. State is that of the checkpoint, without compression of the whole.")
    report.write()
    return report
