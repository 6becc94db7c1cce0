"""Counts of a prototype: reachability by a reduction that sends at once and retracts what is beaten.

Three protocols on the same graph, randomly partitioned; a worker takes the records it has in the order of
iterations, and those for other workers travel at the end of a round:

- *waits*: each iteration is complete before the next (`Collection.iterate`);
- *at once*: the first record of a node passes, whatever its iteration (`distinct` in `Stream.loop`);
- *retracting*: a record passes at once, and a record of an earlier iteration retracts it and all it led to.

Counts of rounds and records, which depend on no machine. `docs/loops.md` draws the conclusion.
"""

from __future__ import annotations

import heapq
import random

from benchmarks.harness import Report

Links = list[list[int]]


def random_graph(nodes: int, edges: int) -> Links:
    draw, links = random.Random(2), [list[int]() for _ in range(nodes)]
    for _ in range(edges):
        links[draw.randrange(nodes)].append(draw.randrange(nodes))
    return links


def grid(side: int) -> Links:
    steps = ((0, 1), (1, 0), (0, -1), (-1, 0))
    return [
        [
            (x + dx) * side + y + dy
            for dx, dy in steps
            if 0 <= x + dx < side and 0 <= y + dy < side
        ]
        for x in range(side)
        for y in range(side)
    ]  # fmt: skip


def waits(links: Links, owner: list[int]) -> tuple[int, int]:
    """Rounds and records, iteration by iteration."""
    reached, front, rounds, records = {0}, [0], 0, 0
    while front:
        sent = [(node, target) for node in front for target in links[node]]
        records += len(sent)
        rounds += any(owner[node] != owner[target] for node, target in sent)
        front = list(dict.fromkeys(target for _, target in sent if target not in reached))
        reached.update(front)
    return rounds, records


def at_once(links: Links, owner: list[int], workers: int, *, retracting: bool) -> tuple[int, int]:
    """Rounds and records, without waiting."""
    at: dict[int, int] = {}
    inbox: list[list[tuple[int, int]]] = [[] for _ in range(workers)]
    inbox[owner[0]].append((0, 0))
    rounds = records = 0
    while any(inbox):
        rounds += 1
        outbox: list[list[tuple[int, int]]] = [[] for _ in range(workers)]
        for worker, queue in enumerate(inbox):
            heapq.heapify(queue)
            while queue:
                iteration, node = heapq.heappop(queue)
                if node in at and not (retracting and iteration < at[node]):
                    continue
                records += (2 if node in at else 1) * len(links[node])
                at[node] = iteration
                for target in links[node]:
                    record = (iteration + 1, target)
                    if owner[target] == worker:
                        heapq.heappush(queue, record)
                    else:
                        outbox[owner[target]].append(record)
        inbox = outbox
    return rounds, records


def run(quick: bool) -> Report:
    """Two graphs, two and eight workers."""
    report = Report("retracting", "A reduction that retracts: records sent", quick=quick)
    size = 10 if quick else 1
    graphs = {
        f"random graph, {20_000 // size:,} nodes": random_graph(20_000 // size, 100_000 // size),
        f"grid, {10_000 // size:,} nodes": grid(round((10_000 / size) ** 0.5)),
    }
    for name, links in graphs.items():
        for workers in (2, 8):
            draw = random.Random(1)
            owner = [draw.randrange(workers) for _ in links]
            rounds, records = waits(links, owner)
            first_rounds, first = at_once(links, owner, workers, retracting=False)
            ours_rounds, ours = at_once(links, owner, workers, retracting=True)
            case = f"{name}, {workers} workers"
            rows = (("waits", rounds, records), ("at once", first_rounds, first))
            for against, their_rounds, baseline in rows:
                report.add(
                    case, ours=ours, baseline=baseline, against=against, unit="records",
                    rounds=ours_rounds, **{"its rounds": their_rounds},
                )  # fmt: skip
    report.note("*ours* is the retracting prototype, which was left out for what it sends (`docs/loops.md`).")
    report.write()
    return report
