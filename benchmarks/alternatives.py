"""What Spark alone has for loops and for state of one's own: recursive queries, and transformWithState.

Reachability from a root, the answer checked against scipy, in one session:

- ours: a loop of streams, whose answer `capture` has; the time from `send` until the epoch is complete.
- WITH RECURSIVE: the query of the documentation over the same edges in Parquet files, by `toArrow()`; it has
  no other way than to begin anew. It follows every path, since in recursion it knows `UNION ALL` alone.

Counts by a function per key, as in `exchange`, whose sides, files and checks are used: all sides deliver to
the driver's Python process.

- ours: `stateful_map`, a call per key, and `stateful_map_batches`, a call per worker.
- transformWithState: a `StatefulProcessor` with one value, by rows and by pandas frames; its state store is
  RocksDB, as Spark demands.
- applyInPandasWithState: the older function per key.

Counts of 10 million keys, as in `exchange`, beside Spark's own with its state in RocksDB.

More than 1x: ours is faster.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import breadth_first_order

import timely_spark as ts
from benchmarks import exchange, harness
from benchmarks.exchange import TURN, Side
from benchmarks.harness import Report, median

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

#: Epochs after the first, and the runs of a query anew.
EPOCHS, RUNS = 7, 3
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
PROVIDER = "spark.sql.streaming.stateStore.providerClass"
QUERY = """
WITH RECURSIVE reached(node) AS (
  SELECT 0L UNION ALL SELECT edges.dst FROM reached JOIN edges ON edges.src = reached.node
) SELECT DISTINCT node FROM reached
"""

# -- recursive queries ---------------------------------------------------------------------------------------


def tree(nodes: int, first: int = 1) -> pa.Table:
    """Edges from a parent, any earlier node, to each node from `first` on."""
    ids = np.arange(first, nodes)
    parents = np.random.default_rng(first).integers(0, ids)
    return pa.table({"src": parents, "dst": ids})


def diamonds(layers: int) -> pa.Table:
    """Layers of two nodes behind the root, each with edges to both of the next: 2 ** layers paths."""
    edges = [(0, 1), (0, 2)]
    for layer in range(1, layers):
        edges += [(2 * layer - 1 + a, 2 * layer + 1 + b) for a in (0, 1) for b in (0, 1)]
    src, dst = zip(*edges, strict=True)
    return pa.table({"src": src, "dst": dst})


def anew(spark: SparkSession, edges: pa.Table, runs: int) -> list[float]:
    """Milliseconds of the recursive query, after one that is not counted; checks its answer."""
    folder = harness.folder()
    pq.write_table(edges, folder / "edges.parquet")
    spark.read.parquet(str(folder)).createOrReplaceTempView("edges")
    took = []
    for _ in range(runs + 1):
        began = time.perf_counter()
        rows = spark.sql(QUERY).toArrow()
        took.append(1000 * (time.perf_counter() - began))
        check(rows["node"], edges)
    return took[1:]


def loop(spark: SparkSession, epochs: list[pa.Table]) -> list[float]:
    """Milliseconds of each epoch of the flow, which reaches what the query does; checks its answer."""
    flow = ts.Dataflow("reached")
    edges = flow.input("edges", "src long, dst long")
    roots = flow.input("roots", "node long")

    def hop(reached: ts.Stream) -> ts.Stream:
        links = reached.scope.enter(edges)
        next_ = reached.join(links, left=["node"], right=["src"]).select(node="dst")
        return next_.concat(reached).distinct()

    roots.loop(hop).capture("reached")
    took = []
    with flow.start(spark, checkpoint=str(harness.folder())) as query:
        roots.send([0])
        harness.answered(query)
        for table in epochs:
            began = time.perf_counter()
            edges.send(table)
            harness.answered(query)
            took.append(1000 * (time.perf_counter() - began))
        nodes = query.captured("reached").table()["node"]
    check(nodes, pa.concat_tables(epochs))
    return took


def check(nodes: pa.ChunkedArray, edges: pa.Table) -> None:
    """What is reached from node 0, each node once, is what scipy reaches."""
    src, dst = edges["src"].to_numpy(), edges["dst"].to_numpy()
    size = int(max(src.max(), dst.max())) + 1
    graph = csr_matrix((np.ones(len(src)), (src, dst)), (size, size))
    expected = np.sort(breadth_first_order(graph, 0, return_predecessors=False))
    if not np.array_equal(np.sort(nodes.to_numpy()), expected):
        msg = f"{len(nodes)} nodes are reached, {len(expected)} were expected"
        raise AssertionError(msg)


# -- state of one's own --------------------------------------------------------------------------------------


def take(side: Side, frame: DataFrame) -> None:
    """Deliver to the driver's Python process."""
    side.last = frame.toArrow()


def ours(function: str, spark: SparkSession, side: Side) -> None:
    """The flow, with one of our two operators for state of one's own."""
    flow = ts.Dataflow(function)
    keys = flow.source("keys", exchange._read(spark, side))  # noqa: SLF001
    options: Any = {"keys": "key", "state": "n long"}
    if function == "stateful_map":
        out = keys.stateful_map(count_rows, "count long", **options)
    else:
        out = keys.stateful_map_batches(count_batch, "count long", **options)

    def deliver(_: int, table: pa.Table) -> None:
        side.last = table

    out.subscribe(deliver)
    query = flow.start(spark, checkpoint=str(harness.folder()))
    side.stop, side.progress = query.stop, lambda: query._query.recentProgress  # noqa: SLF001


def count_rows(_: Any, rows: list[Any], state: Any) -> tuple[list[int], int]:
    """A call per key."""
    n = len(rows) + (state.n if state else 0)
    return [n], n


def count_batch(batch: pa.Table, state: pa.Table) -> tuple[pa.Table, pa.Table]:
    """A call per worker."""
    new = batch.group_by("key").aggregate([([], "count_all")]).rename_columns(["key", "n"])
    total = pa.concat_tables([new, state.select(["key", "n"])]).group_by("key").aggregate([("n", "sum")])
    total = total.rename_columns(["key", "n"])
    return total.rename_columns(["key", "count"]), total


def processor(rows: bool) -> Any:
    """The same as a processor of Spark's; defined here, so that it is pickled whole."""
    from pyspark.sql import Row
    from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

    class Counts(StatefulProcessor):
        def init(self, handle: StatefulProcessorHandle) -> None:
            self.n = handle.getValueState("n", "n long")

        def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803
            n = sum(self.sizes(rows)) + (self.n.get()[0] if self.n.exists() else 0)
            self.n.update((n,))
            yield self.row(key[0], n)

        def close(self) -> None: ...

    class Rows(Counts):
        def sizes(self, rows: Iterator[Row]) -> Iterator[int]:
            return (1 for _ in rows)

        def row(self, key: int, n: int) -> Row:
            return Row(key=key, count=n)

    class Frames(Counts):
        def sizes(self, rows: Iterator[pd.DataFrame]) -> Iterator[int]:
            return (len(frame) for frame in rows)

        def row(self, key: int, n: int) -> pd.DataFrame:
            return pd.DataFrame({"key": [key], "count": [n]})

    return Rows() if rows else Frames()


def with_state(method: str, spark: SparkSession, side: Side) -> None:
    """transformWithState, of rows or of pandas frames."""
    with in_rocks_db(spark):
        grouped: Any = exchange._read(spark, side).groupBy("key")  # noqa: SLF001
        of = processor(method == "transformWithState")
        frame = getattr(grouped, method)(of, "key long, count long", "update", "none")
        exchange._start(side, frame, partial(take, side))  # noqa: SLF001


def native(spark: SparkSession, side: Side) -> None:
    """Spark's own count, its state in RocksDB."""
    with in_rocks_db(spark):
        exchange.native(spark, side)


@contextmanager
def in_rocks_db(spark: SparkSession) -> Iterator[None]:
    """Queries that are started meanwhile keep their state in RocksDB, as long as they run."""
    before = spark.conf.get(PROVIDER)
    spark.conf.set(PROVIDER, ROCKSDB)
    try:
        yield
    finally:
        spark.conf.set(PROVIDER, before)


def per_key(spark: SparkSession, side: Side) -> None:
    """The older function per key."""
    grouped = exchange._read(spark, side).groupBy("key")  # noqa: SLF001
    ddl = "key long, count long"
    frame = grouped.applyInPandasWithState(exchange.count, ddl, "n long", "update", "NoTimeout")
    exchange._start(side, frame, partial(take, side))  # noqa: SLF001


SIDES: dict[str, Callable[[SparkSession, Side], None]] = (
    {name: partial(ours, name) for name in ("stateful_map", "stateful_map_batches")}
    | {name: partial(with_state, name) for name in ("transformWithState", "transformWithStateInPandas")}
    | {"applyInPandasWithState": per_key}
)


# -- the report ----------------------------------------------------------------------------------------------


def recursion(spark: SparkSession, report: Report, *, quick: bool) -> None:
    """A tree that grows, and a graph of many paths."""
    nodes, more = (2_000, 100) if quick else (100_000, 1_000)
    epochs = [tree(nodes), *(tree(nodes + (i + 1) * more, nodes + i * more) for i in range(EPOCHS))]
    took, runs = loop(spark, epochs), 1 if quick else RUNS
    whole, grown = anew(spark, epochs[0], runs), anew(spark, pa.concat_tables(epochs), runs)
    layers = 6 if quick else 17
    cases = [
        (f"reachability in a tree of {nodes:,} nodes: all edges", took[:1], whole),
        (f"reachability in a tree of {nodes:,} nodes: {more:,} more", took[2:], grown),
        (
            f"reachability among {2 * layers + 1} nodes, {2**layers:,} paths",
            [loop(spark, [diamonds(layers)])[0] for _ in range(runs)],
            anew(spark, diamonds(layers), runs),
        ),
    ]
    for case, side, its in cases:
        report.add(case, ours=median(side), baseline=median(its), against="WITH RECURSIVE, anew")


def state(spark: SparkSession, report: Report, *, quick: bool) -> None:
    """Counts by functions of one's own."""
    cases = [("10 thousand keys", 10_000, 200_000), ("100 thousand keys", 100_000, 1_000)]
    for case, keys, rows in [("a thousand keys", 1_000, 2_000)] if quick else cases:
        took = exchange.measure(spark, SIDES, exchange.draw(keys, rows, 1 + TURN * (2 if quick else 3)))
        for side in ("stateful_map", "stateful_map_batches"):
            for its in list(SIDES)[2:]:
                report.add(
                    f"{case}, {rows:,} rows an epoch: {side}",
                    ours=median(took[side]),
                    baseline=median(took[its]),
                    against=its,
                )


def counts(spark: SparkSession, report: Report) -> None:
    """Spark's own count, in RocksDB."""
    keys, rows = 10_000_000, 1_000_000
    sides = {"ours": exchange.ours, "by columns": exchange.by_columns, "RocksDB": native}
    took = exchange.measure(spark, sides, exchange.draw(keys, rows, 1 + TURN * 3))
    for name in ("ours", "by columns"):
        report.add(
            f"10 million keys, {rows:,} rows an epoch: {name}",
            ours=median(took[name]),
            baseline=median(took["RocksDB"]),
            against="RocksDB",
            aim=">=4x",
        )


def run(quick: bool) -> Report:
    """All comparisons."""
    report = Report("alternatives", "Beside recursive queries and transformWithState", quick=quick)
    confs = {
        "spark.sql.streaming.pollingDelay": "100ms",
        "spark.driver.memory": "8g",
        "spark.sql.cteRecursionRowLimit": "-1",
        # RocksDB cannot use the one that `configure` chooses
        "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.LocalFileSystem",
    }
    spark = harness.spark("alternatives", cores=exchange.CORES, confs=confs)
    recursion(spark, report, quick=quick)
    state(spark, report, quick=quick)
    if not quick:
        counts(spark, report)
    report.note(
        "The recursive query may make any number of rows; by default it ends at a million, or 100 levels."
    )
    report.note("transformWithState's state store is RocksDB; that of all other sides is in the JVM's heap.")
    report.write()
    return report
