"""Naiad's evaluation (Figures 6a to 6e, 7a to 7c, and 8): the paper's figures beside ours, one plot for each.

Ours are read from the results of the benchmarks that measure them, which are run first where they are
missing; ``make bench ARGS="loops progress scaling bulk exposure asking naiad"`` measures all again. The
paper's 64 computers are not here: speed-ups of more workers than cores are *predicted*, from measured prices
and counts as `scaling` says, and marked. Graphs and records are smaller than the paper's, so that the plots
compare shapes, not systems.
"""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Callable
from typing import Any

from benchmarks.harness import BASELINE, OURS, Report

MEASURED, PREDICTED, PAPER = "measured here", "predicted", "Naiad"
COMPUTERS = 64


class Results:
    """The rows of other benchmarks, by case."""

    def __init__(self, report: Report, *, quick: bool) -> None:
        self.report, self.quick, self.by_benchmark = report, quick, dict[str, dict[str, dict[str, Any]]]()

    def rows(self, name: str) -> dict[str, dict[str, Any]]:
        """The rows of a benchmark, which is run if it has no results."""
        if name not in self.by_benchmark:
            path = self.report.folder / f"{name}.json"
            if not path.exists():
                importlib.import_module(f"benchmarks.{name}").run(self.quick)
            content = json.loads(path.read_text(encoding="utf-8"))
            self.by_benchmark[name] = {row["case"]: row for row in content["rows"]}
            self.report.note(f"{name}: measured {content['date'][:16]}, commit {content['commit']}.")
        return self.by_benchmark[name]

    def by_workers(self, workload: str, size: str) -> dict[int, float]:
        """Predicted seconds by the number of workers, of the largest input of a workload."""
        pattern = re.compile(rf"{workload}, ([\d,]+) records {size}, (\d+) workers, predicted")
        cases = [
            (parts, row) for case, row in self.rows("scaling").items() if (parts := pattern.fullmatch(case))
        ]
        sizes = {int(parts[1].replace(",", "")) for parts, _ in cases}
        return {
            int(parts[2]): row["ours"]
            for parts, row in cases
            if int(parts[1].replace(",", "")) == max(sizes, default=0)
        }

    def value(self, name: str, case: str, key: str = "ours") -> float:
        """A figure of a benchmark, by the beginning of its case."""
        return float(next(row[key] for one, row in self.rows(name).items() if one.startswith(case)))


Bars = list[tuple[str, float, str]]
"""What a bar is of, its height, and whose it is."""


def drawn(bars: Bars, title: str, unit: str) -> Callable[[Any], None]:
    """Bars of the paper, of this machine and of predictions, which are hatched."""

    def draw(axes: Any) -> None:
        for place, (_, height, whose) in enumerate(bars):
            hatch = "//" if whose == PREDICTED else None
            colour = BASELINE if whose == PAPER else OURS
            axes.bar(place, height, color=colour, hatch=hatch, edgecolor="white")
            axes.annotate(f"{height:,.3g}", (place, height), ha="center", va="bottom")
        axes.set_xticks(
            range(len(bars)),
            [f"{label}, {whose}".replace(", ", ",\n") for label, _, whose in bars],
            fontsize=8,
        )
        axes.set_ylabel(unit)
        axes.set_title(title)
        if max(height for _, height, _ in bars) > 30 * min(height for _, height, _ in bars):
            axes.set_yscale("log")

    return draw


def figures(results: Results) -> list[tuple[str, str, str, Bars]]:
    """By figure its title, its unit and its bars."""
    value, by_workers = results.value, results.by_workers

    def times(workload: str, size: str) -> Bars:
        seconds = by_workers(workload, size)
        one = seconds.pop(1)
        strong = size == "in all"
        return [
            (f"{workload}, {n} workers", one / took if strong else took / one, PREDICTED)
            for n, took in sorted(seconds.items())
            if n <= COMPUTERS
        ]

    exchanged = [("16 bytes", 16 / 1e6), ("1 MB", 1.0), ("16 MB", 16.0), ("64 MB", 64.0)]
    rates: Bars = [
        (f"two processes, {size}", mb / value("scaling", f"price of an exchange of {size}"), MEASURED)
        for size, mb in exchanged
    ]
    traffic: Bars = [
        (
            f"{case} workers",
            value("progress", f"traffic: components, {case} workers", "baseline")
            / value("progress", f"traffic: components, {case} workers"),
            MEASURED,
        )
        for case in ("8", "64")
    ]
    return [
        ("6a", "All-to-all exchange: throughput grows with the batch", "MB each way in a millisecond", rates),
        ("6b", "A barrier of all workers", "ms", [
            ("64 computers, median", 0.75, PAPER),
            ("2 workers, of 100", value("loops", "100 barriers, each"), MEASURED),
        ]),
        ("6c", "Progress traffic: accumulated, how many times less", "times", [
            ("components, at least", 10, PAPER), ("components, at most", 100, PAPER), *traffic,
        ]),
        ("6d", "Strong scaling: times as fast as one", "times", [
            ("words, 64 computers", 46, PAPER), *times("words", "in all"),
            ("components, 64 computers", 38, PAPER), *times("components", "in all"),
        ]),
        ("6e", "Weak scaling: times as long as one", "times", [
            ("words, 64 computers", 1.23, PAPER), *times("words", "for each"),
            ("components, 64 computers", 1.44, PAPER), *times("components", "for each"),
        ]),
        ("7a", "PageRank, seconds for an iteration, 5 M edges", "s", [
            ("GraphX", value("bulk", "PageRank", "baseline"), MEASURED),
            ("ours", value("bulk", "PageRank"), MEASURED),
        ]),
        ("7b", "Logistic regression, seconds for an iteration", "s", [
            ("Spark MLlib", value("bulk", "logistic regression", "baseline"), MEASURED),
            ("ours", value("bulk", "logistic regression"), MEASURED),
        ]),
        ("7c", "k-exposure: ms for an epoch", "ms", [
            ("median, 32 computers", 40, PAPER), ("10 posts", value("exposure", "10 posts"), MEASURED),
            ("1,000 posts", value("exposure", "1,000 posts"), MEASURED),
        ]),
        ("8", "Queries on mentions and components: ms until an answer", "ms", [
            ("fresh, below", 1000, PAPER), ("1 s stale, mostly below", 10, PAPER),
            *((case, value("asking", case), MEASURED) for case in (
                "fresh, median", "fresh, p95", "within 1 s, median", "within 1 s, p95",
                "stale, median", "stale, p95",
            )),
        ]),
    ]  # fmt: skip


def run(quick: bool) -> Report:
    """Collect the figures, and draw them."""
    report = Report("naiad", "Naiad's evaluation: the paper's figures and ours", quick=quick)
    for figure, title, unit, bars in figures(Results(report, quick=quick)):
        for label, height, whose in bars:
            if whose != PAPER:
                report.add(f"{figure}: {label}", ours=height, unit=unit, note=f"{title}; {whose}")
        said = ", ".join(f"{label} {height:g} {unit}" for label, height, whose in bars if whose == PAPER)
        if said:
            report.note(f"{figure}, Naiad: {said}.")
        report.plot(figure, drawn(bars, f"Figure {figure}. {title}", unit), size=(8, 4))
    report.write()
    return report
