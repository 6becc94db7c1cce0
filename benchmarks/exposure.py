"""Exposure of users to hashtags (`jobs/k_exposure.py`; Naiad section 6.3, figure 7c), epoch after epoch.

20,000 users follow 10 others each, and have written 50,000 posts with one of 500 hashtags each; few users and
few tags have most. Then posts come, 1,000 in an epoch (three times) and 10 (three times). After each epoch
the curves of all tags must be those of the baseline.

- ours: the job's flow, the engine without Spark, one worker, in memory.
- pandas: the same joins and counts, of all posts so far, anew.

All this is processor time, which other work on the machine disturbs less than the wall clock.
"""

from __future__ import annotations

import sys
from collections import Counter
from time import process_time

import numpy as np
import pandas as pd
import pyarrow as pa

import timely_spark as ts
from benchmarks.alone import Engine
from benchmarks.harness import Report, median
from benchmarks.machine import ROOT
from timely_spark.runtime.process import task

#: Users, follows of each, posts of the load, tags.
SIZE, QUICK = (20_000, 10, 50_000, 500), (1_000, 5, 2_000, 50)
EPOCHS = {"1,000 posts": (1_000, 3), "10 posts": (10, 3)}
LOAD, SEED = "load", 7


def posts(draw: np.random.Generator, users: int, tags: int, at: int, count: int) -> pd.DataFrame:
    """Posts with a hashtag each, of rising times."""
    user, tag = (of * draw.random(count) ** 2 for of in (users, tags))
    names = {"user": user.astype(np.int64), "tag": tag.astype(np.int64)}
    return pd.DataFrame(
        {column: one.astype(str) for column, one in names.items()} | {"at": at + np.arange(count)}
    )


def anew(written: pd.DataFrame, follows: pd.DataFrame) -> Counter[tuple[str, int, int, int]]:
    """The curves: tag, k, exposed, adopted."""
    uses = written.groupby(["user", "tag"], as_index=False)["at"].min()
    others = uses.rename(columns={"user": "followed", "at": "used"})
    seen = follows.merge(others, on="followed")
    seen["since"] = seen[["edge", "used"]].max(axis=1)
    seen = seen.merge(uses, on=["user", "tag"], how="left")
    seen["adopts"] = seen["at"].notna()
    before = seen[~seen["adopts"] | (seen["since"] < seen["at"])]
    counts = before.groupby(["user", "tag", "adopts"]).size().rename("k").reset_index()
    users = counts.groupby(["tag", "k", "adopts"]).size().unstack(fill_value=0)
    curves = Counter[tuple[str, int, int, int]]()
    for tag, of in users.groupby(level="tag"):
        by_k = of.droplevel("tag")
        by_k = by_k.reindex(range(1, by_k.index.max() + 1), fill_value=0)
        adopted = by_k[True] if True in by_k else 0 * by_k[False]
        exposed = by_k.sum(axis=1)[::-1].cumsum()[::-1]
        rows = zip(by_k.index.tolist(), exposed.tolist(), adopted.tolist(), strict=True)
        curves.update((tag, *row) for row in rows)
    return curves


def run(quick: bool) -> Report:
    """Measure, and write the report."""
    sys.path.append(str(ROOT / "jobs"))
    from k_exposure import FOLLOWS, POSTS, k_exposure

    report = Report("exposure", "Exposure of users to hashtags", quick=quick)
    users, each, count, tags = QUICK if quick else SIZE
    draw = np.random.default_rng(SEED)
    follows = pd.DataFrame(
        {
            "user": np.repeat(np.arange(users), each).astype(str),
            "followed": (users * draw.random(users * each) ** 2).astype(np.int64).astype(str),
            "edge": np.zeros(users * each, np.int64),
        }
    ).drop_duplicates()
    flow = ts.Dataflow("exposure")
    inputs = {
        name: flow.input(name, ", ".join(f"{column} {kind}" for column, kind in columns.items()))
        for name, columns in {"posts": {**POSTS}, "follows": {**FOLLOWS}}.items()
    }
    k_exposure(inputs["posts"], inputs["follows"]).changes().capture("out")
    written, now = posts(draw, users, tags, 1, 0), Counter[tuple[str, int, int, int]]()
    took: dict[str, list[tuple[float, float]]] = {}
    with task():
        engine = Engine(flow, 1)
        kinds = [(LOAD, count), *((kind, n) for kind, (n, times) in EPOCHS.items() for _ in range(times))]
        for kind, size in kinds:
            come = posts(draw, users, tags, 1 + len(written), size)
            table = pa.table({"user": come["user"], "text": "#" + come["tag"], "at": come["at"]})
            edges = follows if kind == LOAD else follows[:0]
            new_follows = pa.table(
                {"user": edges["user"], "followed": edges["followed"], "at": edges["edge"]}
            )
            began = process_time()
            out = engine.epoch(posts=table, follows=new_follows)
            ours = process_time() - began
            for change in out:
                for *row, diff in zip(*(column.to_pylist() for column in change.columns), strict=True):
                    now[tuple(row)] += diff
            written = pd.concat([written, come])
            began = process_time()
            expected = anew(written, follows)
            took.setdefault(kind, []).append((ours, process_time() - began))
            assert {row: n for row, n in now.items() if n} == expected, f"{kind}: pandas says otherwise"
    for kind, pairs in took.items():
        ours, baseline = (1000 * median(side) for side in zip(*pairs, strict=True))
        report.add(kind, ours=ours, baseline=baseline, against="pandas, anew", epochs=len(pairs))
    few = median(ours for ours, _ in took["1,000 posts"])
    report.note(f"{1_000 / few:,.0f} posts a second of one core, in epochs of 1,000; processor time.")
    report.write()
    return report
