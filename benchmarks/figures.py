"""Tables of README and of pages in docs, made of the committed results: `python -m benchmarks.figures`.

Each line names a case of a benchmark and its baselines in the same run; the table has nothing else in it, so
it says what the results say (`tests/docs/test_figures.py`), and when that was measured.
"""

from __future__ import annotations

import json
import math
import re
from functools import cache
from typing import Any, NamedTuple

from benchmarks.harness import RESULTS, ROOT, markdown_table

README, DOCS = ROOT / "README.md", ROOT / "docs"
ALTERNATIVES, SIZING, DIFFERENTIAL, BY_HAND = (
    DOCS / "alternatives.md",
    DOCS / "sizing.md",
    DOCS / "from-differential.md",
    DOCS / "from-foreachbatch.md",
)
BEGIN, END = "<!-- measured -->\n", "<!-- /measured -->\n"

_MILLION = "uniform 1,000,000 / 5,000,000"
#: What is measured, in the words of a reader; the benchmark and its case; the baselines, and their names in
#: the table. A baseline that begins with "case:" is what this library takes in another case of the benchmark.
LINES: tuple[tuple[str, str, str, dict[str, str]], ...] = (
    (
        "a loop of 100 iterations that wait for each other: an iteration",
        "loops",
        "100 barriers, each",
        {"foreachBatch": "a loop in `foreachBatch`"},
    ),
    (
        "a loop of 60 hops that do not wait: a hop",
        "loops",
        "60 hops, each",
        {"foreachBatch": "a loop in `foreachBatch`"},
    ),
    *(
        (
            f"running counts, an epoch of a million rows, {keys} keys",
            "exchange",
            f"{keys} keys, 1,000,000 rows an epoch, by columns",
            {"native": "`groupBy().count()`"},
        )
        for keys in ("10 million", "1 million", "10 thousand")
    ),
    (
        "running counts, an epoch of 1,000 changes, 10 million keys",
        "state",
        "1,000 changes of 10,000,000 keys",
        {"of 100,000 keys": "this library with 100 thousand keys"},
    ),
    *(
        (
            f"components of 1 M nodes, 5 M edges: {what}",
            "graphs",
            f"{_MILLION}, {case}",
            {
                "foreachBatch": "a loop in `foreachBatch`",
                "GraphX": "GraphX",
                "differential": "differential (Rust)",
                "scipy": "scipy",
            },
        )
        for what, case in (
            ("load", "load"),
            ("1,000 inserts, 1,000 deletes", "1,000 inserts + 1,000 deletes"),
            ("one insert", "one insert"),
            ("peak memory", "peak memory"),
        )
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
            f"{what} of 100 k nodes, 500 k edges, skewed: 1,000 changes",
            "kernels",
            f"{kernel}, R-MAT 100,000 / 500,000, 1,000 changes",
            {"GraphX, anew": "GraphX"},
        )
        for what, kernel in (("PageRank to a thousandth", "PRtol 0.001"), ("CDLP", "CDLP 10"))
    ),
    (
        "from the arrival of a file to the Delta commit, median",
        "latency",
        "latency, median",
        {"plain streaming query": "a plain streaming query"},
    ),
    *(
        (what, "resident", case, {"a micro-batch an epoch": "each epoch a micro-batch"})
        for what, case in (
            ("one change through a search of 500 k edges, median", "one change, median"),
            ("one change through a search of 500 k edges, p99", "one change, p99"),
            ("1,000 inserts and 1,000 deletes there", "1,000 inserts and deletes, median"),
            ("from a file to the Delta commit, without waiting for others", "file to Delta commit, median"),
        )
    ),
    (
        "reachability in a tree of 100 k nodes: 1,000 inserts",
        "alternatives",
        "reachability in a tree of 100,000 nodes: 1,000 more",
        {"WITH RECURSIVE, anew": "`WITH RECURSIVE`"},
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
        'loading a join with `skew="auto"`, half of 2 M records on one key',
        "skew",
        'join, skew="auto": load',
        {"no hot key": "this library, no hot key", "case:join: load": "hot key, without `skew=`"},
    ),
    *(
        (
            f"first epoch of counts in a new session, with `start()`{when}",
            "cold",
            f"counts{also}: start and first epoch",
            {f"case:groupBy().count(){also}: start and first epoch": "`groupBy().count()`"},
        )
        for when, also in (("", ""), (", after `prepare`", ", prepared"))
    ),
)

#: What README shows of these lines, by subject: the words of the line, and the baseline of Spark's.
SHOWN: dict[str, tuple[tuple[str, str], ...]] = {
    "Loops": (
        ("a loop of 100 iterations that wait for each other: an iteration", "a loop in `foreachBatch`"),
        ("a loop of 60 hops that do not wait: a hop", "a loop in `foreachBatch`"),
        ("reachability in a tree of 100 k nodes: 1,000 inserts", "`WITH RECURSIVE`"),
        ("logistic regression of 1 M x 100, an iteration", "Spark MLlib"),
    ),
    "Streams": (
        ("running counts, an epoch of a million rows, 10 million keys", "`groupBy().count()`"),
        ("running counts, an epoch of a million rows, 10 thousand keys", "`groupBy().count()`"),
        (
            "a Python function per key, 10 thousand keys, an epoch of 200 k rows",
            "`transformWithState`",
        ),
    ),
    "Latencies": (
        ("one change through a search of 500 k edges, median", "each epoch a micro-batch"),
        ("one change through a search of 500 k edges, p99", "each epoch a micro-batch"),
        ("1,000 inserts and 1,000 deletes there", "each epoch a micro-batch"),
        ("from a file to the Delta commit, without waiting for others", "each epoch a micro-batch"),
    ),
    "Graphs": (
        ("components of 1 M nodes, 5 M edges: load", "GraphX"),
        ("components of 1 M nodes, 5 M edges: 1,000 inserts, 1,000 deletes", "GraphX"),
        ("components of 1 M nodes, 5 M edges: one insert", "GraphX"),
        ("CDLP of 100 k nodes, 500 k edges, skewed: 1,000 changes", "GraphX"),
    ),
}

#: Baselines that do not run on Spark.
_ELSEWHERE = frozenset({"differential (Rust)", "scipy"})

#: Benchmarks whose baseline is this library as well, under another condition.
_OF_OURS = frozenset({"state", "skew", "resident"})


class Line(NamedTuple):
    """A line's figures, by who has them ("" is this library), and the rows of the case by baseline."""

    figures: dict[str, float]
    compared: dict[str, dict[str, Any]]
    date: str

    @property
    def unit(self) -> str:
        return next(iter(self.compared.values()))["unit"]


def _line(benchmark: str, case: str, baselines: dict[str, str]) -> Line:
    results = _results(benchmark)
    compared = {row["against"]: row for row in results["rows"] if row["case"] == case}
    figures = {"": next(iter(compared.values()))["ours"]}
    for against, called in baselines.items():
        if against.startswith("case:"):
            other = against.removeprefix("case:")
            figures[called] = next(row["ours"] for row in results["rows"] if row["case"] == other)
        else:
            row = compared.get(against) or next(row for row in compared.values() if against in row["details"])
            figures[called] = row["baseline"] if against in compared else row["details"][against]
    return Line(figures, compared, results["date"][:10])


def costs() -> str:
    """README's tables as Markdown. The factor is Spark's time over this library's."""
    lines = {what: (benchmark, case, baselines) for what, benchmark, case, baselines in LINES}
    tables = []
    for subject, shown in SHOWN.items():
        rows = []
        for what, spark in shown:
            line = _line(*lines[what])
            elsewhere = {value: called for called, value in line.figures.items() if called in _ELSEWHERE}
            best = min(elsewhere, default=None)
            rows.append(
                [
                    what,
                    _figure(line.figures[""], line.unit),
                    f"{spark} {_figure(line.figures[spark], line.unit)}",
                    "" if best is None else f"{elsewhere[best]} {_figure(best, line.unit)}",
                    _factor(line.figures[spark] / line.figures[""]),
                ]
            )
        tables.append(markdown_table([subject, "timely_spark", "Spark", "best elsewhere", "factor"], rows))
    return "\n".join(tables)


def _factor(ratio: float) -> str:
    return f"{ratio:,.0f}" if ratio >= 10 else f"{ratio:.1f}" if ratio >= 1.05 else f"{ratio:.2f}"


def table() -> str:
    """All lines as Markdown, the best figure of each in bold; under them when each benchmark was run."""
    rows: list[list[str]] = []
    dates: dict[str, list[str]] = {}
    for what, benchmark, case, baselines in LINES:
        if not (RESULTS / f"{benchmark}.json").exists():  # not measured yet
            continue
        line = _line(benchmark, case, baselines)
        dates.setdefault(line.date, []).append(benchmark)
        best = None if benchmark in _OF_OURS else min(line.figures.values())
        shown = {
            called: f"**{_figure(value, line.unit)}**" if value == best else _figure(value, line.unit)
            for called, value in line.figures.items()
        }
        others = ", ".join(f"{called} {figure}" for called, figure in shown.items() if called)
        failed = {row["aim"]: row for row in line.compared.values() if row["met"] is False}
        aims = ", ".join(_aim(aim, row["unit"]) for aim, row in failed.items())
        rows.append([what, shown[""], others, aims])
    measured = "; ".join(f"{date} {', '.join(dict.fromkeys(dates[date]))}" for date in sorted(dates))
    return markdown_table(["", "timely_spark", "others", "missed aim"], rows) + f"\nMeasured: {measured}.\n"


def by_hand() -> str:
    """Loops in `foreachBatch` beside flows, as Markdown."""
    rows = []
    for what, benchmark, case, baselines in LINES:
        line = _line(benchmark, case, baselines)
        if (spark := line.figures.get("a loop in `foreachBatch`")) is not None:
            rows.append([what, *(_figure(one, line.unit) for one in (spark, line.figures[""]))])
    return markdown_table(["", "`foreachBatch`", "a flow"], rows)


def _aim(aim: str, unit: str) -> str:
    """An aim as people read it: "at most 5 s", "at least 4 times as fast"."""
    for sign, words in (("<=", "at most"), (">=", "at least"), ("<", "less than")):
        if aim.startswith(sign):
            number = aim.removeprefix(sign)
            if number == "1x":
                return f"{words} as fast"
            share, unit = number[-1] == "x", _UNITS.get(unit, unit)
            return f"{words} {number[:-1]} times as fast" if share else f"{words} {number} {unit}"
    return aim


def missed() -> str:
    """Every aim that the committed results miss, beside its baselines, as Markdown."""
    rows: dict[tuple[str, str], list[str]] = {}
    for path in sorted(RESULTS.glob("*.json")):
        results = _results(path.stem)
        for row in results["rows"]:
            if row["met"] is not False:
                continue
            figure = _figure(row["ours"], row["unit"])
            line = rows.setdefault(
                (path.stem, row["case"]), [f"`{path.stem}`: {row['case']}", figure, "", ""]
            )
            if row["baseline"] is not None:
                baseline = f"{row['against']} {_figure(row['baseline'], row['unit'])}"
                line[2] += f", {baseline}" if line[2] else baseline
            line[3] = _aim(row["aim"], row["unit"])
    return markdown_table(["benchmark and case", "timely_spark", "baselines", "aim"], list(rows.values()))


@cache
def _results(benchmark: str) -> dict[str, Any]:
    results: dict[str, Any] = json.loads((RESULTS / f"{benchmark}.json").read_text(encoding="utf-8"))
    return results


_UNITS = {"bytes an edge": "B/edge"}


def _figure(value: float, unit: str) -> str:
    """Two to three digits of a time, in the unit in which people say it; other numbers with their unit."""
    unit = _UNITS.get(unit, unit)
    if unit not in {"ms", "s"}:
        return f"{value:.3g} {unit}" if value < 100 else f"{value:,.0f} {unit}"
    seconds = value / 1000 if unit == "ms" else value
    scaled, unit = (seconds, "s") if seconds >= 1 else (1000 * seconds, "ms")
    digits = max(0, 1 - math.floor(math.log10(scaled))) if scaled < 100 else 0
    return f"{scaled:.{digits}f} {unit}"


#: Epochs of the benchmark of the engine, in the words of a reader.
_EPOCHS = {
    "load": "load",
    "1,000 inserts + 1,000 deletes": "1,000 inserts, 1,000 deletes",
    "one insert": "one insert",
}


def engine() -> str:
    """The engine without Spark beside differential dataflow, as Markdown."""
    rows = []
    for row in _results("engine")["rows"]:
        name, _, rest = row["case"].partition(", uniform 100,000 / 500,000, ")
        if rest in _EPOCHS and row["against"] == "differential":
            scipy = row["details"].get("scipy")
            figures = [row["ours"], row["baseline"], *([] if scipy is None else [scipy])]
            rows.append([f"{name}, {_EPOCHS[rest]}", *(_figure(one, row["unit"]) for one in figures)])
    return markdown_table(["", "timely_spark", "differential (Rust)", "scipy or numpy"], rows)


def recursion() -> str:
    """Loops beside recursive queries, as Markdown."""
    rows = [
        [row["case"], _figure(row["ours"], "ms"), _figure(row["baseline"], "ms")]
        for row in _alternatives()
        if row["against"].startswith("WITH RECURSIVE")
    ]
    return markdown_table(["", "a flow", "`WITH RECURSIVE`, recomputed"], rows) if rows else _NOT_YET


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


def cold() -> str:
    """The seconds of a new session, and of one after `prepare`, as Markdown."""
    seconds = {row["case"]: row["ours"] for row in _results("cold")["rows"]}
    programs = {
        "counts": "counts of a few words",
        "groupBy().count()": "the same by `groupBy().count()`",
        "components of 5,000,000 edges": "components of 5 million edges",
    }
    parts = ("session", "start()", "first epoch", "start and first epoch")
    rows = [
        [shown.format(words), *(f"{seconds[f'{case}{prepared}: {part}']:.1f}" for part in parts)]
        for prepared, shown in (("", "{}"), (", prepared", "after `prepare`: {}"))
        for case, words in programs.items()
    ]
    return markdown_table(["", "session", "`start()`", "first epoch", "`start()` and first epoch"], rows)


def waits() -> str:
    """What a person waits for, beside plain Spark, as Markdown."""
    if not (RESULTS / "waits.json").exists():
        return _NOT_YET
    rows = [
        [row["case"], _figure(row["ours"], "s"), f"{row['against']} {_figure(row['baseline'], 's')}"]
        if row["baseline"] is not None
        else [row["case"], _figure(row["ours"], "s"), ""]
        for row in _results("waits")["rows"]
    ]
    return markdown_table(["a wait", "timely_spark", "Spark alone"], rows)


def _alternatives() -> list[dict[str, Any]]:
    none: list[dict[str, Any]] = []
    return _results("alternatives")["rows"] if (RESULTS / "alternatives.json").exists() else none


# -- scaling -------------------------------------------------------------------------------------------------

#: The flows of the benchmark, as people call them.
_SCALED = {
    "words": "word count",
    "pagerank": "PageRank, 5 iterations",
    "forests": "components, with `spread=False`",
    "spread": "components, `connected_components(spread=True)`",
    "components": "components, by a loop of labels",
}
_PREDICTED = re.compile(r"(\w+), ([\d,]+) records (in all|for each), (\d+) workers, predicted")
#: The parts of a predicted epoch, in words.
_LIMITS = {
    "work": "more work",
    "imbalance": "the fullest worker",
    "micro-batch": "the micro-batch",
    "tasks": "parallel tasks",
    "coordinator": "coordinators",
    "exchanges": "exchanges",
}


def _scaled() -> dict[tuple[str, int], dict[str, dict[int, dict[str, Any]]]]:
    """By flow and records in all: the predictions, strong ("in all") and weak ("for each"), by workers.

    A weak line belongs where its largest number of workers has as many records.
    """
    lines: dict[tuple[str, int, str], dict[int, dict[str, Any]]] = {}
    for row in _results("scaling")["rows"]:
        if (parts := _PREDICTED.fullmatch(row["case"])) and "limit" in row["details"]:
            key = parts[1], int(parts[2].replace(",", "")), parts[3]
            lines.setdefault(key, {})[int(parts[4])] = row
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
        "efficiency",
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
    (README, BEGIN, costs),
    (SIZING, "<!-- measured: all -->\n", table),
    (SIZING, "<!-- measured: scaling -->\n", scaling),
    (SIZING, "<!-- measured: workers -->\n", workers),
    (SIZING, "<!-- measured: missed -->\n", missed),
    (SIZING, "<!-- measured: cold -->\n", cold),
    (SIZING, "<!-- measured: waits -->\n", waits),
    (DIFFERENTIAL, "<!-- measured: engine -->\n", engine),
    (BY_HAND, "<!-- measured: by hand -->\n", by_hand),
    (ALTERNATIVES, "<!-- measured: recursion -->\n", recursion),
    (ALTERNATIVES, "<!-- measured: state -->\n", state),
)


def main() -> None:
    """Put the tables into their pages."""
    for page, begin, table in TABLES:
        before, rest = page.read_text(encoding="utf-8").split(begin)
        _, after = rest.split(END, 1)
        page.write_text(f"{before}{begin}{table()}{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
