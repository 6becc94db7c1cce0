"""The jobs over vectors: k-means and logistic regression, against numpy, on PySpark's irises."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import timely_spark as ts
from tests.support.turns import in_turn
from timely_spark.testing import run


def lloyd(points: np.ndarray[Any, Any], centres: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Lloyd's algorithm in numpy."""
    for _ in range(1000):
        far = np.zeros((len(points), len(centres)))
        for axis in range(points.shape[1]):
            step = points[:, axis, None] - centres[None, :, axis]
            far = far + step * step
        nearest = far.argmin(axis=1)
        moved = centres.copy()
        for centre in {*nearest.tolist()}:
            moved[centre] = points[nearest == centre].sum(axis=0) / (nearest == centre).sum()
        if (moved == centres).all():
            return centres
        centres = moved
    pytest.fail("it does not end")


def irises() -> np.ndarray[Any, Any]:
    import vectors

    return np.rint(vectors.read(vectors.IRISES)[1] * 1e6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("workers", "together"),
    [(3, True), *(pytest.param(n, False, marks=pytest.mark.campaign) for n in (1, 2, 3))],
)
def test_centres_are_those_of_lloyd_to_the_last_bit_while_points_come_and_go(
    workers: int,
    together: bool,  # noqa: FBT001
) -> None:
    import kmeans

    points = irises()
    rows = [(n, *row) for n, row in enumerate(points.astype(int).tolist())]
    axes = ["a", "b", "c", "d"]
    flow = ts.Dataflow("irises")
    columns = "a long, b long, c long, d long"
    there = flow.input("points", f"point long, {columns}, diff long").collection(diff="diff")
    start = flow.input("centres", "centre long, a double, b double, c double, d double").collection()
    kmeans.kmeans(there, start).changes().capture("out")
    epochs = [
        [(*row, 1) for row in rows[:120]],
        [(*row, 1) for row in rows[120:]],
        [(*row, -1) for row in rows[50:90]],
    ]
    at = [points[:120], points, np.concatenate([points[:50], points[90:]])]
    if together:  # points come and go in one epoch
        epochs[1:], at[1:] = [epochs[1] + epochs[2]], at[2:]
    first = [(n, *map(float, row[1:])) for n, row in enumerate(rows[:60:20])]

    out = run(
        flow, {"points": epochs, "centres": [first, *([] for _ in epochs[1:])]}, workers=workers, seed=workers
    )["out"]

    for epoch, present in enumerate(at):
        table = ts.snapshot(out, at=epoch).sort_by("centre")
        found = np.stack([table[axis].to_numpy() for axis in axes], axis=1)
        assert (found == lloyd(present, points[:60:20])).all()


def test_a_centre_without_points_stays_and_ties_go_to_the_least() -> None:
    import kmeans

    flow = kmeans.flow_of(["x"])
    points, centres = [(1, 0), (2, 4)], [(0, 2), (1, 2), (7, 100)]

    out = run(flow, {"points": [points], "centres": [centres]}, workers=2)["out"]

    # both points are as far from 0 as from 1
    assert out.rows()[0] == [(0, 2.0, 1), (1, 2.0, 1), (7, 100.0, 1)]


def test_files_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    import vectors

    for text in ("", "1 0:3", "1 a:b", "1 1:nan", "x"):
        (tmp_path / "data").write_text(text)
        with pytest.raises(ts.TimelyError, match=r"(?s)data .*Hint"):
            vectors.read(tmp_path / "data")
    with pytest.raises(ts.TimelyError, match=r"(?s)gone .*Hint"):
        vectors.read(tmp_path / "gone")


def minimum(x: np.ndarray[Any, Any], y: np.ndarray[Any, Any], ridge: float) -> np.ndarray[Any, Any]:
    """The weights by scipy's BFGS and Newton steps of its own: where the gradient vanishes."""
    from scipy.optimize import root

    x = np.hstack([np.ones((len(x), 1)), x])
    penalty = np.append(0.0, np.full(x.shape[1] - 1, ridge))
    found = root(
        lambda w: x.T @ (1 / (1 + np.exp(-x @ w)) - y) + penalty * w, np.zeros(x.shape[1]), tol=1e-13
    )
    assert np.abs(found.fun).max() < 1e-9
    return found.x


@pytest.mark.slow
@pytest.mark.share(3)
@pytest.mark.parametrize(
    ("how", "label"),
    in_turn([{"workers": 1}, {"workers": 3, "seed": 1, "together": True}, {"workers": 8}], ["1", "2"]),
)
def test_weights_are_those_of_scipy(how: dict[str, Any], label: str) -> None:
    import logistic_regression
    import vectors

    labels, x = vectors.read(vectors.IRISES)
    y = np.array([float(one[:1] == label) for one in labels])
    flow = ts.Dataflow("irises")
    points = flow.input("points", "x array<double>, y double")
    logistic_regression.logistic_regression(points, 4, 0.5).capture("out")
    rows = list(zip(x.tolist(), y.tolist(), strict=True))

    out = run(flow, {"points": [rows[::3], rows[1::3], rows[2::3]]}, **how)["out"].rows()

    for epoch in range(3):
        chosen = [n for n in range(len(rows)) if n % 3 <= epoch]
        found = [weight for _, weight in sorted(out[epoch])]
        assert found == pytest.approx(minimum(x[chosen], y[chosen], 0.5), abs=1e-8)


def test_there_are_no_more_clusters_than_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    import kmeans

    monkeypatch.setattr(sys, "argv", ["kmeans", "--clusters", "151"])
    with pytest.raises(ts.TimelyError, match=r"(?s)--clusters 151: there are only 150 vectors.*Hint: "):
        kmeans.main()


@pytest.mark.share(2)
@pytest.mark.spark
@pytest.mark.timeout(240)
@pytest.mark.parametrize("name", ["kmeans", "logistic_regression"])
def test_a_job_prints_its_answer(name: str, here: Callable[..., str]) -> None:
    import vectors

    lines = here(name, keeps=False).splitlines()

    printed = [float(word) for line in lines for word in line.split()[1:] if "." in word]
    labels, x = vectors.read(vectors.IRISES)
    if name == "kmeans":
        points = np.rint(x * 1e6)
        expected = (lloyd(points, points[:3]) / 1e6).ravel()
    else:
        expected = minimum(x, np.array([float(label == "2") for label in labels]), 1.0)
    assert printed == pytest.approx(expected.tolist(), abs=1e-6)
