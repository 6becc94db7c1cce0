"""Mentions, hashtags and questions, against networkx and counting."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import networkx as nx
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import timely_spark as ts
from tests.support.accumulated import after_each
from timely_spark.testing import run

NAME = r"(?<![\w@#])[{}](\w+)"


def answers(posts: list[tuple[str, str]]) -> tuple[dict[str, str], dict[str, tuple[str, int]]]:
    """The component of each user, and the top hashtag of each component, by Python's re and networkx."""
    graph, tags = nx.Graph(), Counter[tuple[str, str]]()
    for user, text in posts:
        graph.add_edges_from((user.lower(), name.lower()) for name in re.findall(NAME.format("@"), text))
        graph.add_node(user.lower())
        tags.update((user.lower(), tag.lower()) for tag in re.findall(NAME.format("#"), text))
    component = {user: min(part) for part in nx.connected_components(graph) for user in part}
    counts = Counter[tuple[str, str]]()
    for (user, tag), count in tags.items():
        counts[component[user], tag] += count
    top: dict[str, tuple[str, int]] = {}
    for (part, tag), count in sorted(counts.items(), key=lambda one: (one[0][0], -one[1], one[0][1])):
        top.setdefault(part, (tag, count))
    return component, top


def drawn(seed: int, epochs: int) -> list[list[tuple[str, str, int]]]:
    """Posts, of which some are withdrawn."""
    draw, there, of = random.Random(seed), [], []
    words = ["@bo", "@ANN", "x@cy", "@di,@eve", "#a", "#B", "#b#c", "#Ä_1", "##no", "so", "(#b)", "@", "#"]
    for epoch in range(epochs):
        now = []
        for _ in range(8 if epoch == 0 else draw.randrange(4)):
            if epoch and there and draw.random() < 0.5:
                now.append((*there.pop(draw.randrange(len(there))), -1))
                continue
            text = draw.choice([" ", "\n"]).join(draw.choices(words, k=draw.randrange(4)))
            there.append((draw.choice(["ann", "Bo", "cy", "di", "eve", "fay", "gus"]), text))
            now.append((*there[-1], 1))
        of.append(now)
    return of


@pytest.mark.slow
@pytest.mark.share(3)
@pytest.mark.parametrize(
    ("workers", "seed"), [(1, 0), *(pytest.param(*of, marks=pytest.mark.slow) for of in ((2, 1), (3, 2)))]
)
def test_components_and_their_top_hashtags_while_posts_come_and_go(workers: int, seed: int) -> None:
    import mentions

    epochs = drawn(seed, 10)
    flow = ts.Dataflow("mentions")
    component, top = mentions.mentions(flow.input("posts", "user string, text string, diff long"))
    component.capture("component")
    top.capture("top")
    out = run(flow, {"posts": epochs}, workers=workers, seed=seed)
    for epoch, posts in enumerate(after_each(epochs)):
        parts, tags = answers(list(posts.elements()))
        assert dict(rows(out["component"], epoch, "user", "component")) == parts
        found = rows(out["top"], epoch, "component", "tag", "occurrences")
        assert {part: (tag, count) for part, tag, count in found} == tags


def rows(captured: Any, epoch: int, *columns: str) -> list[tuple[Any, ...]]:
    table = ts.snapshot(captured, at=epoch)
    return list(zip(*(table[name].to_pylist() for name in columns), strict=True))


def test_names_in_texts_of_any_script_and_none() -> None:
    import posts

    flow = ts.Dataflow("names")
    stream = flow.input("posts", "user string, text string, at long")
    posts.named(stream, "#").changes().capture("tags")
    given = [("ann", "#Größe, #größe #日本 a#no ##no #", 7), ("bo", None, 8), ("cy", "", 9)]
    assert run(flow, {"posts": [given]})["tags"].rows() == {
        0: [("größe", "ann", 7, 2), ("日本", "ann", 7, 1)]
    }


def test_lines_that_are_no_posts_are_said() -> None:
    import posts

    stream = ts.Dataflow("wrong").input("posts", "user string, body string")
    with pytest.raises(ts.TimelyError, match=r"not \['text'\]"):
        posts.fitting(stream, {"user": "string", "text": "string"})
    with pytest.raises(ts.TimelyError, match="user is null"):
        posts.checked(pa.table({"user": pa.array([None], pa.string()), "text": ["#a"]}))
    good = pa.table({"user": ["ann"], "text": pa.array([None], pa.string())})
    assert posts.checked(good) is good


@pytest.mark.campaign
@pytest.mark.timeout(240)
def test_questions_are_answered(spark: SparkSession, tmp_path: Path, here: Callable[..., str]) -> None:
    (tmp_path / "in").mkdir()
    posts = [("ann", "@bo #x #y"), ("Bo", "#y"), ("cy", "@di")]
    lines = (json.dumps({"user": user, "text": text}) + "\n" for user, text in posts)
    (tmp_path / "in" / "0.json").write_text("".join(lines))
    (tmp_path / "asked").write_text("ann\n\n@Bo\ndi\nnobody\n")

    said = here("mentions", "--posts", tmp_path / "in", "--questions", tmp_path / "asked").splitlines()

    stale, fresh = said[:4], said[4:]
    assert [line.partition(":")[0] for line in stale] == ["ann", "bo", "di", "nobody"]
    assert all("(stale, " in line for line in stale)
    assert fresh == [
        "ann: component of ann, #y 2 times (fresh, epoch 0)",
        "bo: component of ann, #y 2 times (fresh, epoch 0)",
        "di: component of cy, without hashtags (fresh, epoch 0)",
        "nobody: unknown (fresh, epoch 0)",
    ]
