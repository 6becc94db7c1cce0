"""Tables of README and of pages in docs, made of the committed results: `python -m benchmarks.figures`.

Each line names a case of a benchmark and its baselines in the same run; the table has nothing else in it, so
it says what the results say (`tests/docs/test_figures.py`), and when that was measured.
"""

from __future__ import annotations

import json
import math
import re
from functools import cache
from typing import Any

from benchmarks.harness import RESULTS, ROOT, markdown_table

README, DOCS = ROOT / "README.md", ROOT / "docs"
ALTERNATIVES, SIZING = DOCS / "alternatives.md", DOCS / "sizing.md"
BEGIN, END = "<!-- measured -->\n", "<!-- /measured -->\n"

_MILLION = "uniform 1,000,000 / 5,000,000"
#: what is measured, as people say it; the benchmark, its case; the baselines, and how people call them
LINES: tuple[tuple[str, str, str, dict[str, str]], ...] = (
    (
        "an iteration of a loop with a barrier, 100 of them",
        "loops",
        "100 barriers, each",
        {"foreachBatch": "by hand in foreachBatch"},
    ),
    (
        "a hop of an asynchronous loop, 60 of them",
        "loops",
        "60 hops, each",
        {"foreachBatch": "by hand in foreachBatch"},
    ),
    *(
        (
            f"counts of Parquet files: an epoch of a million rows, {keys} keys",
            "exchange",
            f"{keys} keys, 1,000,000 rows an epoch, by columns",
            {"native": "Spark's own"},
        )
        for keys in ("10 million", "1 million", "10 thousand")
    ),
    (
        "counts: an epoch of a thousand changes, 10 million keys",
        "state",
        "1,000 changes of 10,000,000 keys",
        {"of 100,000 keys": "with 100 thousand keys"},
    ),
    *(
        (
            f"components of 1 M nodes, 5 M edges: {what}",
            "graphs",
            f"{_MILLION}, {case}",
            {"GraphX": "GraphX anew", "differential": "differential (Rust)", "scipy": "scipy anew"},
        )
        for what, case in (
            ("all edges at once", "load"),
            ("1,000 edges come, 1,000 go", "1,000 inserts + 1,000 deletes"),
            ("one edge comes", "one insert"),
        )
    ),
    *(
        (
            f"{name}, 100 k nodes, 500 k edges, the engine alone: 1,000 edges come, 1,000 go",
            "engine",
            f"{name}, uniform 100,000 / 500,000, 1,000 inserts + 1,000 deletes",
            {"differential": "differential (Rust)", "scipy": "scipy or numpy anew"},
        )
        for name in ("bfs", "sssp", "pagerank", "triangles")
    ),
    (
        "PageRank of 1 M nodes, 5 M edges, an iteration",
        "bulk",
        "PageRank, 1,000,000 nodes, 5,000,000 edges, an iteration",
        {"GraphX": "GraphX"},
    ),
    (
        "logistic regression of 1 M x 100, an iteration",
        "bulk",
        "logistic regression, 1,000,000 x 100, an iteration",
        {"Spark MLlib": "Spark MLlib"},
    ),
    *(
        (
            f"{what} of 100 k nodes, 500 k edges, skewed: 1,000 edges change",
            "kernels",
            f"{kernel}, R-MAT 100,000 / 500,000, 1,000 changes",
            {"GraphX, anew": "GraphX anew"},
        )
        for what, kernel in (("PageRank to a thousandth", "PRtol 0.001"), ("CDLP", "CDLP 10"), ("LCC", "LCC"))
    ),
    (
        "from arrival to the Delta commit, median",
        "latency",
        "latency, median",
        {"plain streaming query": "a plain streaming query"},
    ),
    (
        "reachability in a tree of 100 k nodes: 1,000 more come",
        "alternatives",
        "reachability in a tree of 100,000 nodes: 1,000 more",
        {"WITH RECURSIVE, anew": "`WITH RECURSIVE` anew"},
    ),
    (
        "a Python function per key, 10 thousand keys, an epoch of 200 k rows",
        "alternatives",
        "10 thousand keys, 200,000 rows an epoch: stateful_map",
        {
            "transformWithState": "`transformWithState`",
            "transformWithStateInPandas": "in pandas",
            "applyInPandasWithState": "`applyInPandasWithState`",
        },
    ),
    (
        "counts: an epoch of a thousand changes, 1 million keys",
        "durable",
        "1,000 changes of 1,000,000 counts",
        {"in memory": "checkpoint in memory"},
    ),
)

#: Benchmarks whose baseline is ours as well, under another condition.
_OF_OURS = frozenset({"durable", "state"})


def table() -> str:
    """The table as Markdown, the best figure of each line in bold; under it when each benchmark was run."""
    rows: list[list[str]] = []
    dates: dict[str, list[str]] = {}
    for what, benchmark, case, baselines in LINES:
        if not (RESULTS / f"{benchmark}.json").exists():  # not measured yet
            continue
        found = _results(benchmark)
        dates.setdefault(found["date"][:10], []).append(benchmark)
        compared = {row["against"]: row for row in found["rows"] if row["case"] == case}
        values, unit = {"": next(iter(compared.values()))["ours"]}, next(iter(compared.values()))["unit"]
        for against, called in baselines.items():
            row = compared.get(against) or next(row for row in compared.values() if against in row["details"])
            values[called] = row["baseline"] if against in compared else row["details"][against]
        best = None if benchmark in _OF_OURS else min(values.values())
        figures = {
            called: f"**{_figure(value, unit)}**" if value == best else _figure(value, unit)
            for called, value in values.items()
        }
        others = ", ".join(f"{called} {figure}" for called, figure in figures.items() if called)
        rows.append([what, figures[""], others])
    measured = "; ".join(f"{date} {', '.join(dict.fromkeys(dates[date]))}" for date in sorted(dates))
    return markdown_table(["", "ours", "others"], rows) + f"\nMeasured: {measured}.\n"


@cache
def _results(benchmark: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / f"{benchmark}.json").read_text(encoding="utf-8"))
    return found


def _figure(value: float, unit: str) -> str:
    """Two to three digits of a time, in the unit in which people say it."""
    seconds = value / 1000 if unit == "ms" else value
    scaled, unit = (seconds, "s") if seconds >= 1 else (1000 * seconds, "ms")
    digits = max(0, 1 - math.floor(math.log10(scaled))) if scaled < 100 else 0
    return f"{scaled:.{digits}f} {unit}"


def recursion() -> str:
    """Loops beside recursive queries, as Markdown."""
    rows = [
        [row["case"], _figure(row["ours"], "ms"), _figure(row["baseline"], "ms")]
        for row in _alternatives()
        if row["against"].startswith("WITH RECURSIVE")
    ]
    return markdown_table(["", "a flow", "`WITH RECURSIVE`, anew"], rows) if rows else _NOT_YET


def state() -> str:
    """State of one's own beside Spark's, as Markdown."""
    cases: dict[str, dict[str, float]] = {}
    for row in _alternatives():
        case, _, ours = row["case"].rpartition(": ")
        if not row["against"].startswith(("WITH RECURSIVE", "RocksDB")):
            cases.setdefault(case, {}).update({ours: row["ours"], row["against"]: row["baseline"]})
    if not cases:
        return _NOT_YET
    sides = list(dict.fromkeys(side for values in cases.values() for side in values))
    rows = [[case, *(_figure(values[side], "ms") for side in sides)] for case, values in cases.items()]
    return markdown_table(["an epoch", *(f"`{side}`" for side in sides)], rows)


_NOT_YET = "Not measured yet.\n"


def _alternatives() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    return _results("alternatives")["rows"] if (RESULTS / "alternatives.json").exists() else found


# -- scaling -------------------------------------------------------------------------------------------------

#: The flows of the benchmark, as people call them.
_SCALED = {
    "words": "word count",
    "pagerank": "PageRank, 5 iterations",
    "forests": "components, `graphs.connected_components`",
    "components": "components, by a loop of labels",
}
_PREDICTED = re.compile(r"(\w+), ([\d,]+) records (in all|for each), (\d+) workers, predicted")
#: The parts of a predicted epoch, in words.
_LIMITS = {
    "work": "more work",
    "imbalance": "the fullest worker",
    "micro-batch": "the micro-batch",
    "tasks": "starting parallel tasks",
    "coordinator": "coordinators",
    "exchanges": "exchanges",
}


def _scaled() -> dict[tuple[str, int], dict[str, dict[int, dict[str, Any]]]]:
    """By flow and records in all: the predictions, strong ("in all") and weak ("for each"), by workers.

    A weak line belongs where its largest number of workers has as many records.
    """
    lines: dict[tuple[str, int, str], dict[int, dict[str, Any]]] = {}
    for row in _results("scaling")["rows"]:
        if (found := _PREDICTED.fullmatch(row["case"])) and "limit" in row["details"]:
            key = found[1], int(found[2].replace(",", "")), found[3]
            lines.setdefault(key, {})[int(found[4])] = row
    by: dict[tuple[str, int], dict[str, dict[int, dict[str, Any]]]] = {}
    for (flow, records, kind), rows in lines.items():
        many = records * max(rows) if kind == "for each" else records
        by.setdefault((flow, many), {})[kind] = rows
    return by


def scaling() -> str:
    """What 64 workers are predicted to do, as Markdown."""
    rows = []
    for (flow, records), kinds in _scaled().items():
        strong, weak = (kinds[kind][max(kinds["for each"])] for kind in ("in all", "for each"))
        limit = _LIMITS[weak["details"]["limit"].split()[0]]
        called = f"{_SCALED[flow]}, {_millions(records)}"
        rows.append([called, _times(strong["ratio"]), f"{weak['ratio']:.2f}", limit])
    names = [
        "predicted, 64 workers on 16 nodes",
        "times as fast as one",
        "as much data for each",
        "limited by",
    ]
    return markdown_table(names, rows) if rows else _NOT_YET


def workers() -> str:
    """What is predicted for each number of workers, as Markdown."""
    by = _scaled()
    if not by:
        return _NOT_YET
    counts = sorted({count for kinds in by.values() for rows in kinds.values() for count in rows} - {1})
    rows = []
    for (flow, records), kinds in by.items():
        strong, weak = kinds["in all"], kinds["for each"]
        fast = [_times(strong[count]["ratio"]) if count in strong else "" for count in counts]
        efficient = [f"{weak[count]['ratio']:.2f}" if count in weak else "" for count in counts]
        shown = [f"{many} / {few}" if few else many for many, few in zip(fast, efficient, strict=True)]
        one = f"{_figure(strong[1]['ours'], 's')}"
        processor = f"{strong[max(weak)]['details']['cpu']:.2f}"
        rows.append([_SCALED[flow], _millions(records), one, *shown, processor])
    names = ["", "records in all", "1 worker", *(f"{count} workers" for count in counts), "processor time"]
    return markdown_table(names, rows)


def _millions(records: int) -> str:
    return f"{records / 1e6:g} M"


def _times(ratio: float) -> str:
    return f"{ratio:.0f}" if ratio >= 10 else f"{ratio:.1f}"


#: The tables of pages: the page, the marks around each, and what makes it.
TABLES = (
    (README, BEGIN, table),
    (README, "<!-- measured: scaling -->\n", scaling),
    (SIZING, "<!-- measured: workers -->\n", workers),
    (ALTERNATIVES, "<!-- measured: recursion -->\n", recursion),
    (ALTERNATIVES, "<!-- measured: state -->\n", state),
)


def main() -> None:
    """Put the tables into their pages."""
    for page, begin, made in TABLES:
        before, rest = page.read_text(encoding="utf-8").split(begin)
        _, after = rest.split(END, 1)
        page.write_text(f"{before}{begin}{made()}{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
