"""Tables of README and docs/alternatives.md, made of the committed results: `python -m benchmarks.figures`.

Each line names a case of a benchmark and its baselines in the same run; the table has nothing else in it, so
it says what the results say (`tests/docs/test_figures.py`), and when that was measured.
"""

from __future__ import annotations

import json
import math
from functools import cache
from typing import Any

from benchmarks.harness import RESULTS, ROOT, markdown_table

README, ALTERNATIVES = ROOT / "README.md", ROOT / "docs" / "alternatives.md"
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


#: The tables of pages: the page, the marks around each, and what makes it.
TABLES = (
    (README, BEGIN, table),
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
