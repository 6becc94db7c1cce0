"""Exposure curves, against brute force over all users."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import timely_spark as ts
from tests.support.tables import rows_of
from timely_spark.testing import run

USERS = ["ann", "bo", "cy", "di", "eve", "fay"]
Line = tuple[str, str, int]


def brute(posts: list[Line], follows: list[Line]) -> set[tuple[str, int, int, int]]:
    """For each tag and k: users who were exposed to k users at some moment, and those who then adopted."""
    uses = [(user, tag, at) for user, text, at in posts for tag in text.replace("#", "").split()]
    moments = sorted({at for *_, at in [*uses, *follows]})
    found = set()
    for tag in {tag for _, tag, _ in uses}:
        exposed, adopted = Counter[int](), Counter[int]()
        for user in USERS:
            first = min((at for one, of, at in uses if (one, of) == (user, tag)), default=None)
            # the exposure just before each moment until the first use, and after the last moment
            until = [*moments, moments[-1] + 1] if first is None else [at for at in moments if at <= first]
            reached = [
                len(
                    {
                        other
                        for one, other, since in follows
                        if one == user and since < now
                        if any((by, of) == (other, tag) and at < now for by, of, at in uses)
                    }
                )
                for now in until
            ]
            exposed.update(range(1, max(reached, default=0) + 1))
            if first is not None:
                adopted[reached[-1]] += 1
        found |= {(tag, k, exposed[k], adopted[k]) for k in exposed}
    return found


@pytest.mark.slow
@pytest.mark.share(2)
@pytest.mark.parametrize(
    ("workers", "seed"),
    [(1, 0), (3, 3), *(pytest.param(n, seed, marks=pytest.mark.campaign) for n, seed in ((2, 1), (3, 2)))],
)
def test_curves_are_those_of_brute_force_while_posts_and_edges_come_and_go(workers: int, seed: int) -> None:
    import k_exposure

    draw = random.Random(seed)
    there: dict[str, list[Line]] = {"posts": [], "follows": []}
    expected: list[set[tuple[str, int, int, int]]] = []
    epochs: dict[str, list[list[tuple[str, str, int, int]]]] = {name: [] for name in there}
    for epoch in range(8):
        for name, lines in there.items():
            now = []
            for _ in range(20 if epoch == 0 else 4):
                if epoch and draw.random() < 0.4:
                    now.append((*lines.pop(draw.randrange(len(lines))), -1))
                    continue
                other = draw.choice(USERS) if name == "follows" else draw.choice(["#a", "#b", "#a #b", ""])
                lines.append((draw.choice(USERS), other, draw.randrange(9)))
                now.append((*lines[-1], 1))
            epochs[name].append(now)
        expected.append(brute(there["posts"], there["follows"]))
    flow = ts.Dataflow("k_exposure")
    posts = flow.input("posts", "user string, text string, at long, diff long")
    follows = flow.input("follows", "user string, followed string, at long, diff long")
    k_exposure.k_exposure(posts, follows).capture("out")

    out = run(flow, epochs, workers=workers, seed=seed)["out"]

    assert any(adopted and k > 1 for curves in expected for _, k, _, adopted in curves)
    for epoch, curves in enumerate(expected):
        assert at(out, epoch) == sorted(curves)


def at(captured: Any, epoch: int) -> list[tuple[Any, ...]]:
    table = ts.snapshot(captured, at=epoch)
    columns = (table[name].to_pylist() for name in ("tag", "k", "exposed", "adopted"))
    return sorted(zip(*columns, strict=True))


@pytest.mark.campaign
@pytest.mark.timeout(240)
def test_curves_in_delta(spark: SparkSession, tmp_path: Path, here: Callable[..., str]) -> None:
    follows = [(user, other, 0) for user in USERS[3:] for other in USERS[:3]]
    posts = [(user, "#a", at) for at, user in enumerate(["ann", "di", "bo", "eve", "cy", "fay"], start=1)]
    for name, other, lines in (("posts", "text", posts), ("follows", "followed", follows)):
        (tmp_path / name).mkdir()
        made = [json.dumps(dict(zip(("user", other, "at"), line, strict=True))) for line in lines]
        (tmp_path / name / "0.json").write_text("\n".join(made))
    args = ["--posts", tmp_path / "posts", "--follows", tmp_path / "follows", "--output", tmp_path / "out"]

    here("k_exposure", *args, "--current", tmp_path / "now")

    now = {*rows_of(tmp_path / "now", "tag", "k", "exposed", "adopted")}
    assert now == {("a", 1, 3, 1), ("a", 2, 2, 1), ("a", 3, 1, 1)}
    assert now == brute(posts, follows)
