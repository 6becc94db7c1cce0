"""The job that measures a cluster: its counts come out, and it fails if they do not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

import timely_spark as ts

CONF = Path(__file__).parents[2] / "conf" / "cluster"


@pytest.mark.slow
@pytest.mark.campaign  # the simulator's counts are Spark's in tests/spark
def test_its_counts_come_out_on_spark(here: Callable[..., str]) -> None:
    lines = here("scaling", "--workers", "1", "2", "--records", "4000", "--weak").splitlines()

    assert [line.split(" workers: ")[0] for line in lines] == [
        f"{flow}, {4000 * workers // 32 * 32:,} records, {workers}"
        for flow in ("words", "ranks", "components")
        for workers in (1, 2)
    ]
    assert [line.split(", ")[-1] for line in lines] == [f"{rounds} rounds" for rounds in (1, 2, 1, 7, 1, 4)]


def test_a_count_that_does_not_come_out_is_an_error() -> None:
    import scaling

    with pytest.raises(ts.TimelyError, match="words on 4 workers: rounds are 3, and must be 2"):
        scaling.check(scaling.words, 4, "rounds", 3, scaling.rounds_of(scaling.words, 4))


@pytest.mark.slow
@pytest.mark.share(2)
@pytest.mark.parametrize("epoch", [0, 1])
def test_components_have_the_known_size(epoch: int) -> None:
    import scaling

    for build, (each, times) in scaling.KNOWN.items():
        rows = ts.testing.run(scaling.flow_of(build), {"edges": [scaling.edges(320, epoch)]}, workers=3)
        assert rows["out"].rows() == {0: [(times, 160 // each, 1)]}


def test_the_files_for_clusters_give_arguments_that_it_takes() -> None:
    import scaling

    parts = yaml.safe_load_all((CONF / "kubernetes.yml").read_text(encoding="utf-8"))
    (pod,) = (part["spec"]["template"]["spec"] for part in parts if part["kind"] == "Job")
    command = pod["containers"][0]["command"]
    bundle = yaml.safe_load((CONF / "databricks.yml").read_text(encoding="utf-8"))
    (task,) = bundle["resources"]["jobs"]["scaling"]["tasks"]

    for given in (
        command[command.index("jobs/scaling.py") + 1 :],
        task["spark_python_task"]["parameters"],
    ):
        assert scaling.parser().parse_args(given).workers == [1, 4, 16, 64]
