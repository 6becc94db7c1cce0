"""The price of a round: a loop of ours with a trivial vertex against the bare loop of the same shape.

With several workers one small record per worker goes round a ring of them, so every iteration crosses workers
and takes a round. With one worker no iteration would; there both are driven by Spark's `rate-micro-batch`
source, a row per micro-batch. The bare loop (bare.py) is what a round costs without us. Both queries live in
one session and spin in turns, a few iterations each, with the same confs, partitions and rows per round; a
round lasts from the end of one batch's marker to the end of the next. 0.91x means: ours takes 1.1 times as
long as the bare loop.

The default session and the tuned one have a JVM each, in turns; their rounds are those of young JVMs.
"within a micro-batch" is the time of a whole run divided by its rounds, where several rounds share a batch.

The plot stacks where the time goes: mean of the middle half of the rounds by duration, so that the parts add
up. Some parts cannot be measured one by one from outside: "before the operator" is the start of the job, the
source's tasks, the shuffle, and the handshake with the Python workers; "after" is the state store's commit
and the collect.

"cpu" is the processor time per round of all processes, which other work on the machine disturbs less than the
wall clock; "operator cpu" that of the operator's function (all workers), "driver cpu" that of the driver's
Python between the collect and the end of the marker: what we add to Spark's own.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.harness import Report, median, quantile
from benchmarks.spin import Bare, Ours, Plain, measure, one_round_each, within

Rounds = Sequence[dict[str, float]]
AIM = ">=0.91x"
#: What a round is made of, from the bottom of the plot up, and its colours: Spark's in greys and greens.
PARTS = {
    "ask the sources": "#c7c7c7",
    "offset log": "#8c8c8c",
    "planning": "#5f7f6b",
    "call of foreachBatch": "#86a892",
    "before the operator": "#aecbb8",
    "operator": "#d1495b",
    "after the operator": "#cfe3d6",
    "driver: turn": "#edae49",
    "driver: manifest": "#f6d89a",
    "commit log": "#707070",
    "between batches": "#e4e4e4",
}


def middle(rounds: Sequence[dict[str, float]]) -> dict[str, float]:
    """Mean parts of the middle half of the rounds by duration."""
    ranked = sorted(rounds, key=lambda one: one["whole"])
    cut = len(ranked) // 4
    half = ranked[cut : len(ranked) - cut]
    return {part: sum(one[part] for one in half) / len(half) for part in half[0]}


def run(quick: bool) -> Report:
    """Measure, and write the report."""
    report = Report("round", "The price of a round", quick=quick)
    turns, iterations = (3, 6) if quick else (4, 10)
    places = [(2, 2)] if quick else [(w, p) for p in (2, 1) for w in (2, 4, 8, 1)]
    bars: dict[str, dict[str, float]] = {}
    session = harness.spark("round")
    if not quick:  # the JVM compiles for its first hundred rounds
        measure(session, 2, 2, turns=turns, iterations=iterations, kinds=[Ours, Bare])
    for workers, partitions in places:
        case = f"{_count(workers, 'worker')}, {_count(partitions, 'partition')}"
        ours, bare = measure(
            session, workers, partitions, turns=turns, iterations=iterations, kinds=[Ours, Bare]
        )
        _row(report, case, (ours, bare), aim=AIM)
        bars[f"{workers}w {partitions}p\nours"] = middle(ours)
        bars[f"{workers}w {partitions}p\nbare"] = middle(bare)
        if workers > 1:
            shared = within(session, workers, partitions, iterations=2 * iterations, turns=1 if quick else 2)
            note = "" if one_round_each() else "each round is a micro-batch still"
            report.add(
                f"{case}, within a micro-batch", ours=median(wholes(shared)), baseline=median(wholes(bare)),
                against="bare loop", note=note, **_spread(shared * 2 * iterations, bare),
            )  # fmt: skip
    session.stop()
    if not quick:
        bars |= _sessions(report, turns, iterations)
    for name, spent in list(bars.items())[:2]:
        line = ", ".join(f"{part} {spent[part]:.1f}" for part in (*PARTS, "operator cpu", "driver cpu"))
        report.note(f"{' '.join(name.split())}, ms of {spent['whole']:.0f}: {line}.")
    report.note("With one worker a row per micro-batch drives both; with more, a ring of messages.")
    report.plot("parts", lambda axes: _draw(axes, bars), size=(2.5 + 0.6 * len(bars), 5))
    report.write()
    return report


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def wholes(rounds: Rounds) -> list[float]:
    """How long each took."""
    return [one["whole"] for one in rounds]


def _spread(ours: Rounds, bare: Rounds) -> dict[str, float]:
    return {
        "rounds": len(ours),
        "p95": quantile(wholes(ours), 0.95),
        "least": min(wholes(ours)),
        "bare p95": quantile(wholes(bare), 0.95),
        "bare least": min(wholes(bare)),
        "cpu": median(one["cpu"] for one in ours),
        "bare cpu": median(one["cpu"] for one in bare),
    }


def _row(report: Report, case: str, pair: tuple[Rounds, Rounds], aim: str = "") -> None:
    ours, bare = pair
    report.add(
        case, ours=median(wholes(ours)), baseline=median(wholes(bare)), against="bare loop", aim=aim,
        **_spread(ours, bare),
        **{f"ours: {part}": ms for part, ms in middle(ours).items()},
        **{f"bare: {part}": ms for part, ms in middle(bare).items()},
    )  # fmt: skip


def _draw(axes: Any, bars: dict[str, dict[str, float]]) -> None:
    places = [number + 0.3 * (number // 2) for number in range(len(bars))]
    bottom = [0.0] * len(bars)
    for part, colour in PARTS.items():
        heights = [max(0.0, parts[part]) for parts in bars.values()]
        axes.bar(places, heights, bottom=bottom, color=colour, label=part, width=0.9)
        bottom = [low + height for low, height in zip(bottom, heights, strict=True)]
    axes.set_xticks(places, list(bars), fontsize=7)
    axes.set_ylabel("ms per round")
    handles, names = axes.get_legend_handles_labels()
    axes.legend(handles[::-1], names[::-1], fontsize=7, loc="upper left", bbox_to_anchor=(1, 1))


def _sessions(report: Report, turns: int, iterations: int) -> dict[str, dict[str, float]]:
    """Rows of the default session, and of the tuned against it: JVMs of their own, in turns."""
    by_name: dict[str, list[dict[str, float]]] = defaultdict(list)
    for kind in ("tuned", "default") * 2:
        for name, rounds in _apart(kind, turns // 2, iterations).items():
            by_name[f"{kind} {name}"] += rounds
    ours = by_name["default Ours"]
    _row(report, "default session, 2 workers, 2 partitions", (ours, by_name["default Bare"]))
    _row(report, "the same, bare loop without our confs", (ours, by_name["default Plain"]))
    tuned = by_name["tuned Ours"]
    report.add(
        "tuned session, 2 workers, 2 partitions", ours=median(wholes(tuned)), baseline=median(wholes(ours)),
        against="ours in the default session", **_spread(tuned, ours),
    )  # fmt: skip
    return {name.lower().replace(" ", "\n"): middle(rounds) for name, rounds in by_name.items()}


def _apart(kind: str, turns: int, iterations: int) -> dict[str, list[dict[str, float]]]:
    """The rounds of each kind of loop, in a JVM of its own."""
    path = harness.folder() / f"{kind}.json"
    command = [sys.executable, "-m", "benchmarks.round", kind, str(path), str(turns), str(iterations)]
    subprocess.run(command, cwd=harness.ROOT, check=True, timeout=300)
    content: dict[str, list[dict[str, float]]] = json.loads(path.read_text(encoding="utf-8"))
    return content


def _main(kind: str, path: str, turns: str, iterations: str) -> None:
    session = harness.spark(f"round, {kind}", tuned=kind == "tuned")
    kinds = [Ours, Bare] if kind == "tuned" else [Ours, Bare, Plain]
    measured = measure(session, 2, 2, turns=int(turns), iterations=int(iterations), kinds=kinds)
    rounds = {one.__name__: each for one, each in zip(kinds, measured, strict=True)}
    Path(path).write_text(json.dumps(rounds), encoding="utf-8")


if __name__ == "__main__":
    _main(*sys.argv[1:])
