"""A table that follows a stream: the same as networkx after each epoch, with deletions; its errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import networkx as nx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import timely_spark as ts
from tests.support.tables import rows_of
from timely_spark.coordinator.migration import FlowChanged

pytestmark = pytest.mark.spark
NO_FRAME = {"frame": None, "algorithm": None}


def arrive(folder: Path, *edges: tuple[int, int, int]) -> None:
    folder.mkdir(exist_ok=True)
    columns = dict(zip(("a", "b", "diff"), zip(*edges, strict=True), strict=True))
    pq.write_table(
        pa.table({name: list(values) for name, values in columns.items()}), folder / f"{len(edges)}.parquet"
    )


def components(graph: nx.Graph) -> set[tuple[int, int]]:
    return {(node, min(part)) for part in nx.connected_components(graph) for node in part}


def test_the_table_is_the_result_after_each_run_and_takes_deletions(
    spark: SparkSession, checkpoint: str, tmp_path: Path
) -> None:
    first = [(1, 2, 1), (2, 3, 1), (5, 4, 1)]
    second = [(2, 3, -1), (3, 4, 1)]
    graph, table = nx.Graph(), str(tmp_path / "parts")
    for edges in (first, second):
        arrive(tmp_path / "edges", *edges)
        frame = spark.readStream.schema("a long, b long, diff long").parquet(str(tmp_path / "edges"))
        query = ts.maintain(
            frame,
            ts.graphs.connected_components,
            table,
            checkpoint=checkpoint,
            workers=2,
            trigger="available_now",
            src="a",
            dst="b",
        )
        query.await_termination()
        graph.add_edges_from(edge[:2] for edge in edges if edge[2] > 0)
        graph.remove_edges_from(edge[:2] for edge in edges if edge[2] < 0)

        assert {*rows_of(table, "node", "component")} == components(graph)
        assert query.name == "connected_components"


def test_a_further_frame_is_a_collection(spark: SparkSession, checkpoint: str, tmp_path: Path) -> None:
    arrive(tmp_path / "edges", (1, 2, 1), (2, 3, 1), (5, 6, 1))
    arrive(tmp_path / "roots", (1, 0, 1), (5, 0, 1), (5, 0, -1))
    streams = spark.readStream.schema("a long, b long, diff long")
    edges = streams.parquet(str(tmp_path / "edges")).selectExpr("a src", "b dst", "diff more")
    roots = streams.parquet(str(tmp_path / "roots")).selectExpr("a node", "diff more")
    query = ts.maintain(
        edges, ts.graphs.bfs, str(tmp_path / "near"), checkpoint=checkpoint, workers=2,
        trigger="available_now", keys="node", diff="more", roots=roots,
    )  # fmt: skip
    query.await_termination()

    assert rows_of(tmp_path / "near", "node", "distance") == [(1, 0), (2, 1), (3, 2)]


def test_a_query_in_sql_is_kept_and_takes_deletions(
    spark: SparkSession, checkpoint: str, tmp_path: Path
) -> None:
    table = str(tmp_path / "degrees")
    for edges, degrees in (
        ([(1, 2, 1), (1, 3, 1), (2, 3, 1)], {(1, 2), (2, 1)}),
        ([(1, 2, -1), (2, 3, -1)], {(1, 1)}),
    ):
        arrive(tmp_path / "edges", *edges)
        frame = spark.readStream.schema("a long, b long, diff long").parquet(str(tmp_path / "edges"))
        query = ts.maintain(
            sql="SELECT a, count(*) AS n FROM edges GROUP BY a",
            tables={"edges": frame},
            table=table,
            checkpoint=checkpoint,
            keys="a",
            workers=2,
            trigger="available_now",
        )
        query.await_termination()
        assert {*rows_of(table, "a", "n")} == degrees

    with pytest.raises(ts.TimelyError, match=r"(?s)no column x, in line 1.*Hint: "):
        ts.maintain(sql="SELECT x FROM edges", tables={"edges": frame}, table=table, checkpoint=checkpoint)
    with pytest.raises(FlowChanged, match=r"(?s)'result.where'.*Hint: go on with the query.* another table"):
        ts.maintain(
            sql="SELECT a, count(*) AS n FROM edges WHERE b > 2 GROUP BY a",
            tables={"edges": frame}, table=table, checkpoint=checkpoint, keys="a",
        )  # fmt: skip


def test_a_query_counts_rows_by_the_column_of_differences_where_there_is_one(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[ts.Dataflow] = []
    monkeypatch.setattr(ts.Dataflow, "start", lambda self, *_, **__: started.append(self))
    frame = spark.readStream.format("rate").load()
    tables = {"x": frame.selectExpr("value a", "value change"), "y": frame.selectExpr("value a")}
    query = "SELECT a FROM x UNION ALL SELECT a FROM y"
    ts.maintain(sql=query, tables=tables, table="/nowhere", checkpoint="/nowhere", diff="change")

    made = ts.testing.run(started[0], {"x": [[(1, 1), (2, 2)], [(1, -1)]], "y": [[5]]})
    assert made["table"].rows() == {0: [(1, 1), (2, 2), (5, 1)], 1: [(1, -1)]}


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"frame": 1}, "frame"),
        ({"algorithm": "pagerank"}, "algorithm"),
        ({"algorithm": lambda edges: edges.changes()}, "collection"),
        ({"algorithm": ts.graphs.bfs, "roots": 3}, "bfs got an int"),
        ({"diff": "weight"}, "weight"),
        ({"keys": ["nobody"]}, "nobody"),
        ({"workers": 0}, "workers"),
        ({"sql": "SELECT 1"}, "frame, algorithm beside sql"),
        ({"tables": {}}, "tables without sql"),
        ({**NO_FRAME, "sql": "SELECT src FROM t", "trigger_": "once"}, "trigger_ beside sql"),
        ({**NO_FRAME, "sql": "SELECT src FROM t", "diff": "change"}, "a column of t was expected"),
    ],
)
def test_mistakes_are_told_before_anything_starts(
    spark: SparkSession, checkpoint: str, wrong: dict[str, Any], says: str
) -> None:
    frame = spark.readStream.format("rate").load().selectExpr("value src", "value + 1 dst")
    given = {"frame": frame, "algorithm": ts.graphs.connected_components, "table": "/nowhere"} | wrong
    if given["frame"] is None:
        given["tables"] = {"t": frame}

    with pytest.raises(ts.TimelyError, match=rf"(?s){says}.*test_maintained.py.*Hint: "):
        ts.maintain(**given, checkpoint=checkpoint)
    assert not Path(checkpoint).exists()


def test_a_static_frame_is_refused(spark: SparkSession, checkpoint: str) -> None:
    with pytest.raises(ts.TimelyError, match="not streaming"):
        ts.maintain(
            spark.range(3).selectExpr("id src", "id dst"), ts.graphs.triangles, "/t", checkpoint=checkpoint
        )
