"""How flows scale on a cluster: the same epochs on several numbers of workers, with counts to come out.

    python jobs/scaling.py --checkpoint DIR [--workers 1 4 16] [--records N] [--weak] [--spread] [--resident]

Flows: "words", counted by word and then by count; "ranks", five iterations of PageRank; "components",
connected components. Prints for each flow and number of workers the median seconds of an epoch of N records;
how many times as fast that is as with the first number of workers; and the rounds. With `--weak` each worker
has N records, and the ratio is the efficiency. `--spread`: components with `spread=True`. `--resident`:
micro-batches stay.

Another result than the one that is known beforehand is an error. So is another number of rounds than the
simulator's; with `--spread` they depend on the graph. All machines reach DIR, which gets a checkpoint for
each run.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import Counter
from collections.abc import Callable

import cli
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

import timely_spark as ts

EPOCHS = 4
#: The nodes of a component; how often a word comes; the records of an epoch for each worker of the simulator.
SIZE, TIMES, SIMULATED = 16, 4, 2_048

Build = Callable[[ts.Collection], ts.Collection]


def words(records: ts.Collection) -> ts.Collection:
    """How many words come how often."""
    word = pc.divide(pc.field("src"), TIMES // 2)
    return records.select(word=word).count("n", keys="word").count("number", keys="n")


def ranks(records: ts.Collection) -> ts.Collection:
    """How many nodes have a rank."""
    return ts.graphs.pagerank(records, 5).select(n=pc.scalar(1)).count("number", keys="n")


def components(records: ts.Collection) -> ts.Collection:
    """How many components have how many nodes."""
    return sizes(ts.graphs.connected_components(records, spread=False))


def spread_components(records: ts.Collection) -> ts.Collection:
    """The same with the nodes spread over all workers."""
    return sizes(ts.graphs.connected_components(records, spread=True))


def sizes(members: ts.Collection) -> ts.Collection:
    """How many components have how many nodes."""
    return members.count("n", keys="component").count("number", keys="n")


#: By flow, how many nodes there are for each of what is counted, and how often that comes.
KNOWN: dict[Build, tuple[int, int]] = {
    words: (TIMES // 2, TIMES),
    ranks: (1, 1),
    components: (SIZE, SIZE),
    spread_components: (SIZE, SIZE),
}


def edges(records: int, epoch: int) -> pa.Table:
    """Rings of `SIZE` nodes, and from each node an edge to another one of its ring; `records` in all."""
    node = np.arange(records // 2)
    ring, place = node - node % SIZE, node % SIZE
    chord = np.random.default_rng(epoch).integers(0, SIZE, len(node))
    src, dst = np.tile(node, 2), np.append(ring + (place + 1) % SIZE, ring + chord)
    return pa.table({"src": src + epoch * len(node), "dst": dst + epoch * len(node)})


def flow_of(build: Build) -> ts.Dataflow:
    """The flow, from an input to a capture."""
    flow = ts.Dataflow(build.__name__)
    build(flow.input("edges", "src long, dst long").collection()).changes().capture("out")
    return flow


def rounds_of(build: Build, workers: int) -> int:
    """The rounds of an epoch in the simulator."""
    simulation = ts.testing.Simulation(flow_of(build), workers=workers)
    for epoch in range(2):
        before = simulation.rounds
        simulation.send("edges", edges(SIMULATED * workers, epoch))
        simulation.run()
    return simulation.rounds - before


def measured(
    spark: SparkSession, build: Build, workers: int, records: int, args: argparse.Namespace
) -> tuple[float, int]:
    """The median seconds of an epoch but the first, and its rounds; its results are checked."""
    flow, seconds = flow_of(build), []
    checkpoint = f"{args.checkpoint}/{build.__name__}-{workers}-{records}"
    with flow.start(spark, checkpoint=checkpoint, workers=workers, resident=args.resident or None) as query:
        cli.watch_meanwhile(query, args)
        for epoch in range(EPOCHS):
            before, began = query.rounds, time.perf_counter()
            flow.handle("edges").send(edges(records, epoch))
            query.wait_for("out")
            seconds.append(time.perf_counter() - began)
        rounds, results = query.rounds - before, Counter[tuple[int, int]]()
        for rows in query.captured("out").rows().values():
            for n, number, diff in rows:
                results[n, number] += diff
    each, times = KNOWN[build]
    check(build, workers, "results", +results, Counter({(times, EPOCHS * (records // 2) // each): 1}))
    return statistics.median(seconds[1:]), rounds


def check(build: Build, workers: int, what: str, result: object, due: object) -> None:
    """Raise an error if something is not as it must be."""
    if result != due:
        msg = f"{build.__name__} on {workers} workers: {what} are {result}, and must be {due}"
        raise ts.TimelyError(msg, hint="report it, with the checkpoint's folder timely/.")


def parser() -> argparse.ArgumentParser:
    """The parser of the job's arguments."""
    parser = cli.described(__doc__)
    parser.add_argument("--checkpoint", required=True, metavar="DIR", help="where the checkpoints are")
    parser.add_argument("--workers", nargs="+", type=cli.positive, default=[1, 2, 4], metavar="N")
    parser.add_argument("--records", type=cli.positive, default=1_000_000, metavar="N", help="of an epoch")
    for name in ("weak", "spread", "resident"):
        parser.add_argument(f"--{name}", action="store_true", help="see above")
    cli.progress(parser)
    return parser


def main() -> None:
    """Run the job."""
    args = parser().parse_args()
    spark = cli.session("scaling", delta=False, verbose=args.verbose)
    for build in (words, ranks, spread_components if args.spread else components):
        first = 0.0
        for workers in args.workers:
            records = args.records * (workers if args.weak else 1) // (2 * SIZE) * 2 * SIZE
            seconds, rounds = measured(spark, build, workers, records, args)
            if build is not spread_components:
                check(build, workers, "rounds", rounds, rounds_of(build, workers))
            first = first or seconds
            text = f"{seconds:.3f} s, {first / seconds:.2f} times as fast, {rounds} rounds"
            print(f"{build.__name__}, {records:,} records, {workers} workers: {text}", flush=True)


if __name__ == "__main__":
    cli.run(main)
