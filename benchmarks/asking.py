"""Questions to a running query: fresh, within a second, and stale (Naiad section 6.4, figure 8).

Posts stream in at a steady rate: who mentions whom, and a hashtag. The flow keeps the components of the
graph of mentions, and the most frequent hashtag of each. Every tenth of a second somebody asks for the top
hashtag of a user's component: fresh (of all that was sent until the question), within one second, or stale
(of the newest complete epoch). The three kinds take turns, each question in a thread of its own, so that
none waits for the one before. Latency is from the question to its answer.

The baseline of the stale and the bounded answers are the fresh ones of the same run.

Then one thread looks up a thousand components a second, stale, beside the same posts. The latency of a
look-up is from the moment at which it was due, so one that waits for those before it counts as long.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

import timely_spark as ts
from benchmarks import harness
from benchmarks.harness import BASELINE, OURS, Report, quantile

if TYPE_CHECKING:
    from collections.abc import Mapping

USERS, TAGS = 50_000, 500
#: Posts a second, and seconds between two sends and between two questions.
RATE, SEND, ASK = 2_000, 0.25, 0.1
#: Look-ups a second.
LOOK_UPS = 1_000
KINDS: Mapping[str, dict[str, Any]] = {"fresh": {"fresh": True}, "within 1 s": {"within": "1s"}, "stale": {}}


def mentions() -> tuple[ts.Dataflow, ts.Input]:
    """The flow: components of who mentions whom, and the most frequent hashtag of each."""
    flow = ts.Dataflow("mentions")
    sent = flow.input("posts", "user long, mentioned long, tag long")
    posts = sent.collection()
    component = ts.graphs.connected_components(posts, src="user", dst="mentioned")
    component.select(user="node", component="component").capture("component")
    of = posts.select(user="user", tag="tag").join(component, left="user", right="node")
    of.count("posts", keys=["component", "tag"]).top_k(1, "posts", keys="component").capture("top")
    return flow, sent


def posts(draw: np.random.Generator, count: int) -> pa.Table:
    """Posts of random users, few of whom write most."""
    user, mentioned = (USERS * draw.random((2, count)) ** 2).astype(np.int64)
    tag = (TAGS * draw.random(count) ** 2).astype(np.int64)
    return pa.table({"user": user, "mentioned": mentioned, "tag": tag})


def look_ups(
    report: Report, query: ts.Query, sent: ts.Input, draw: np.random.Generator, seconds: float
) -> None:
    """Measure a thousand look-ups a second, beside posts at their rate."""
    ended = threading.Event()
    tables = [posts(draw, int(RATE * SEND)) for _ in range(int(seconds / SEND))]
    users = draw.integers(USERS, size=int(seconds * LOOK_UPS))

    def send() -> None:
        for table in tables:
            sent.send(table)
            if ended.wait(SEND):
                return

    sender = threading.Thread(target=send)
    sender.start()
    took, began = [], time.perf_counter()
    for number, user in enumerate(users.tolist()):
        due = began + number / LOOK_UPS
        if (early := due - time.perf_counter()) > 0:
            time.sleep(early)
        query.ask("component", {"user": [user]})
        took.append(1000 * (time.perf_counter() - due))
    ended.set()
    sender.join()
    for name, q, aim in (("median", 0.5, ""), ("p99", 0.99, "<=20")):
        case = f"{LOOK_UPS:,} look-ups a second, {name}"
        report.add(case, ours=quantile(took, q), aim=aim, questions=len(took))


def run(quick: bool) -> Report:
    """Measure, and write the report."""
    report = Report("asking", "Questions to a running query", quick=quick)
    seconds = 6 if quick else 60
    draw = np.random.default_rng(7)
    session = harness.spark("asking")
    flow, sent = mentions()
    took: dict[str, list[float]] = defaultdict(list)
    with flow.start(session, workers=2) as query:
        sent.send(posts(draw, 10_000 if quick else 50_000))
        query.ask(["component", "top"], {"user": [0]}, fresh=True)

        def ask(kind: str) -> None:
            began = time.perf_counter()
            query.ask(["component", "top"], {"user": draw.integers(USERS, size=1)}, **KINDS[kind])
            took[kind].append(1000 * (time.perf_counter() - began))

        asked: list[threading.Thread] = []
        began = time.monotonic()
        sends = 0
        while (now := time.monotonic() - began) < seconds:
            if now >= sends * SEND:
                sent.send(posts(draw, int(RATE * SEND)))
                sends += 1
            if now >= len(asked) * ASK:
                asked.append(threading.Thread(target=ask, args=(list(KINDS)[len(asked) % len(KINDS)],)))
                asked[-1].start()
            time.sleep(0.005)
        for one in asked:
            one.join()
        look_ups(report, query, sent, draw, seconds / 2)
        batches = [p.duration_ms for p in query.recent_progress if p.duration_ms is not None]
    session.stop()
    fresh = took["fresh"]
    for kind, times in took.items():
        for name, q in {"median": 0.5, "p95": 0.95}.items():
            aim = ">=5x" if (kind, name) == ("stale", "p95") else ""
            baseline, against = (None, "") if kind == "fresh" else (quantile(fresh, q), "fresh")
            report.add(
                f"{kind}, {name}", ours=quantile(times, q), baseline=baseline, against=against, aim=aim,
                questions=len(times),
            )  # fmt: skip
    middle = quantile(batches, 0.5)
    report.note(f"{RATE} posts a second in {len(batches)} micro-batches; their median is {middle:.0f} ms.")

    def draw_all(axes: Any) -> None:
        for (kind, times), colour in zip(took.items(), (BASELINE, "#7fa8d0", OURS), strict=True):
            axes.plot(sorted(times), np.linspace(0, 1, len(times)), label=kind, color=colour)
        axes.set(xscale="log", xlabel="latency (ms)", ylabel="share of questions", title="Questions answered")
        axes.legend()

    report.plot("latency", draw_all)
    report.write()
    return report
