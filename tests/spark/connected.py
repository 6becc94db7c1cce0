"""A client of a Spark Connect server, which uses the whole public API; it prints what it saw as JSON."""

from __future__ import annotations

import json
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

import timely_spark as ts

SEEN: dict[str, Any] = {}


def session(url: str) -> Any:
    from pyspark.sql import SparkSession

    warnings.simplefilter("error")
    return ts.configure(SparkSession.builder.remote(url), delta=True).getOrCreate()


def a_long_stay(url: str, folder: str) -> None:
    """A micro-batch that stays, without input, for longer than the server keeps a session that is idle."""
    flow = ts.Dataflow("staying")
    words = flow.input("words", "word string")
    words.group_by("word").count().capture("counts")

    def last(query: Any) -> Any:
        words.send(["a"])
        assert query.wait_for(timeout=60)
        return [row for rows in query.captured("counts").rows().values() for row in rows][-1]

    with flow.start(session(url), checkpoint=f"{folder}/staying", workers=2, resident=True) as query:
        last(query)
        time.sleep(20)
        SEEN["counts"] = last(query)
        SEEN["micro-batches"] = len(list(Path(f"{folder}/staying/offsets").glob("[0-9]*")))
        time.sleep(20)  # the stay ends, and another one begins
        SEEN["again"] = last(query)
    print(json.dumps(SEEN))


def main(url: str, folder: str) -> None:
    spark = session(url)
    SEEN["tune"] = ts.tune(spark)
    flow = ts.Dataflow("connected")
    edges = flow.input("edges", "src long, dst long, diff int", epochs="manual")
    changes = edges.collection(diff="diff")
    parts = ts.graphs.connected_components(changes, src="src", dst="dst")
    parts.capture("parts")
    parts.changes("d").to_files(f"{folder}/files", name="files")
    parts.count("n").changes("d").subscribe(print_to(f"{folder}/subscribed"), name="subscribed")
    parts.changes("d").foreach_epoch(appended(f"{folder}/foreach"), name="foreach")
    parts.changes("d").to_memory("viewed")
    probe = parts.changes("d").probe("seen")
    query = flow.start(spark, checkpoint=f"{folder}/checkpoint", workers=2)
    edges.send([(1, 2, 1), (3, 4, 1)])
    edges.advance_to(1)
    query.wait_for(epoch=0, timeout=120)
    SEEN["first"] = sorted(map(list, query.captured("parts").rows()[0]))
    SEEN["asked"] = query.ask("parts", {"node": [4]}).rows()
    edges.send([(2, 3, 1)])
    edges.close()
    query.wait_for(epoch=1, timeout=120)
    SEEN["probe"] = query.probe(probe.name).less_than(1)
    SEEN["frontier"] = bool(query.frontier())
    SEEN["rounds"] = query.status["rounds"] > 0
    query.stop()
    SEEN["components"] = sorted(
        {row["component"] for row in ts.snapshot(query.captured("parts")).to_pylist()}
    )
    SEEN["written"] = spark.read.parquet(f"{folder}/files").count() > 0
    SEEN["view"] = spark.table("viewed").count() > 0
    SEEN["subscribed"] = Path(f"{folder}/subscribed").read_text(encoding="utf-8").split()
    SEEN["foreach"] = sorted(path.name for path in Path(f"{folder}/foreach").iterdir())
    SEEN["inspected"] = ts.inspect(f"{folder}/checkpoint").flow
    of_frames(spark, folder)
    of_epochs(spark, folder)
    of_commands(spark, folder)
    print(json.dumps(SEEN))


def of_frames(spark: Any, folder: str) -> None:
    """Sources: a streaming DataFrame, files, and Delta by path and by name."""
    spark.range(5).selectExpr("id AS n").coalesce(1).write.parquet(f"{folder}/numbers")
    spark.sql(f"CREATE TABLE numbers (n long) USING delta LOCATION '{folder}/table'")
    spark.sql("INSERT INTO numbers VALUES (1), (2)")
    flow = ts.Dataflow("sources")
    frame = spark.readStream.schema("n long").parquet(f"{folder}/numbers")
    sources = {
        "frame": flow.source("frame", frame),
        "files": flow.files("files", f"{folder}/numbers"),
        "path": flow.delta("path", f"{folder}/table"),
        "name": flow.table("name", "numbers"),
    }
    for name, stream in sources.items():
        stream.map(lambda row: (row.n + 1,), "n long").capture(f"of {name}")
    of_operators(flow, sources["frame"], folder)
    query = flow.start(spark, checkpoint=f"{folder}/sources", trigger="available_now")
    query.await_termination()
    SEEN["own"] = query.last_progress is not None
    for name in (*sources, "outer", "upserts", "scope", "pipe", "state", "asof", "window"):
        SEEN[name] = sorted(row[0] for rows in query.captured(f"of {name}").rows().values() for row in rows)


def of_epochs(spark: Any, folder: str) -> None:
    """Epochs inside a micro-batch that stays, in the server."""
    flow = ts.Dataflow("staying")
    words = flow.input("words", "word string")
    words.group_by("word").count().capture("counts")
    with flow.start(spark, checkpoint=f"{folder}/staying", workers=2, resident=True) as query:
        for _ in range(10):
            words.send(["a"])
            query.wait_for(timeout=120)
        SEEN["counts"] = [row for rows in query.captured("counts").rows().values() for row in rows][-1]
        SEEN["epochs"] = query.last_progress.epoch + 1
        SEEN["micro-batches"] = len(list(Path(f"{folder}/staying/offsets").glob("[0-9]*")))


def of_commands(spark: Any, folder: str) -> None:
    """Cancel and stop, while a micro-batch stays in a loop without an end."""
    flow = ts.Dataflow("commands")
    numbers = flow.input("numbers", "n long")
    up = numbers.loop(lambda n: n.exchange("n").select(n=pc.add(pc.field("n"), 1)), name="up")
    up.where(pc.field("n") < 3).capture("small")
    query = flow.start(spark, checkpoint=f"{folder}/commands", workers=2, resident=True)
    numbers.send([5])
    began = time.monotonic()
    while not query.status["rounds"] and time.monotonic() < began + 120:
        time.sleep(0.1)
    SEEN["endless"] = query.wait_for(epoch=0, timeout=1)
    query.cancel(0)
    SEEN["cancelled"] = query.wait_for(epoch=0, timeout=20)
    numbers.send([-1])
    SEEN["later"] = query.wait_for(timeout=60)
    SEEN["small"] = sorted(row[0] for rows in query.captured("small").rows().values() for row in rows)
    began = time.monotonic()
    query.stop()
    SEEN["stopping"] = time.monotonic() - began


#: A program that gives back what it gets.
ECHO = """
import json, sys
pipe, out = sys.stdin.buffer, sys.stdout.buffer
for line in pipe:
    message = json.loads(line)
    body = pipe.read(message.get("bytes", 0))
    if message["verb"] == "recv":
        head = {"verb": "send", "output": 0, "time": message["time"], "bytes": len(body)}
        out.write(json.dumps(head).encode() + b"\\n" + body)
    out.write(b'{"verb": "done", "version": 1, "bytes": 0}\\n')
    out.flush()
"""


def of_operators(flow: ts.Dataflow, numbers: ts.Stream, folder: str) -> None:
    """One of each kind that brings something of its own to the server; numbers are n = 0 to 4."""
    few = numbers.where(pc.field("n") > 3).select(m="n").collection()
    numbers.collection().join(few, left="n", right="m", how="outer").select("n").capture("of outer")
    parity = numbers.map(lambda row: (row.n % 2, row.n), "k long, n long")
    parity.upserts("k", "n").select("n").capture("of upserts")
    flow.scope.inner(name="turn", time=int).enter(numbers, at="n").leave().capture("of scope")
    Path(f"{folder}/echo.py").write_text(ECHO, encoding="utf-8")
    numbers.pipe([sys.executable, f"{folder}/echo.py"], "n long", by="n").capture("of pipe")
    numbers.stateful_map(lambda key, _, __: ([key.n], 1), "m long", keys="n", state="s long").capture(
        "of state"
    )
    numbers.asof_join(parity.select(n="n", last="n"), "n").select("n").capture("of asof")
    numbers.window("n", ts.every(2)).late.select("n").capture("of window")


def print_to(path: str) -> Any:
    def note(epoch: int, table: Any) -> None:
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(f"{epoch}\n")

    return note


def appended(path: str) -> Any:
    return lambda frame, epoch: frame.write.mode("overwrite").parquet(f"{path}/{epoch}")


if __name__ == "__main__":
    {"main": main, "a_long_stay": a_long_stay}[sys.argv[1]](*sys.argv[2:])
