"""What every benchmark needs: a report (table, JSON, plots), a Spark session, quantiles, a folder.

How to read a report: `ours` and `baseline` were measured in the same run on the same machine. The ratio says
how many times better ours is: baseline / ours, or ours / baseline for what should be large (units that end in
"/s"). Counts (rounds, rows, files) have none. An aim with an x is about the ratio, one without about `ours`.
"""

from __future__ import annotations

import atexit
import json
import math
import os
import re
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from unittest import mock

from benchmarks.machine import ROOT, commit, machine, versions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from timely_spark.runtime.handle.query import Query

RESULTS = Path(__file__).parent / "results"
#: Results of quick runs, which are not kept in git.
QUICK = RESULTS / "quick"
#: Units without a ratio.
COUNTS = frozenset({"", "batches", "count", "epochs", "files", "messages", "rounds", "rows", "steps"})
_AIM = re.compile(r"^\s*(>=|<=|>|<|=)\s*([\d.]+)\s*(x?)")
#: Colours of a plot's ours and baseline.
OURS, BASELINE = "#1f5fa8", "#b0b0b0"


class Report:
    """One benchmark's figures: a table, JSON, plots."""

    def __init__(self, name: str, title: str, *, quick: bool) -> None:
        self.name, self.title, self.quick = name, title, quick
        self.folder = QUICK if quick else RESULTS
        self.rows: list[dict[str, Any]] = []
        self.notes: list[str] = []
        self.plots: list[str] = []
        self.tables: list[tuple[list[str], list[list[str]]]] = []
        self._machine = machine()
        self._began = time.perf_counter()

    def add(
        self,
        case: str,
        *,
        ours: float,
        baseline: float | None = None,
        against: str = "",
        unit: str = "ms",
        aim: str = "",
        note: str = "",
        **details: float | str,
    ) -> None:
        """One row. An aim is such as ">=0.9x" (of the ratio) or "<=5" (of ours); other text is for people."""
        ratio = _ratio(ours, baseline, unit)
        row = {"case": case, "ours": ours, "baseline": baseline, "against": against, "unit": unit}
        judged = {"ratio": ratio, "aim": aim, "met": met(aim, ours, ratio)}
        self.rows.append(row | judged | {"note": note, "details": details})

    def note(self, text: str) -> None:
        """A sentence under the table."""
        self.notes.append(text)

    def table(self, names: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        """A table of text after the notes."""
        self.tables.append((list(names), [list(row) for row in rows]))

    def plot(self, suffix: str, draw: Callable[[Any], None], *, size: tuple[float, float] = (7, 4)) -> None:
        """A PNG: `draw` gets the axes. Without matplotlib there is a note instead.

        For several axes: `axes.figure.clear()`, then `axes.figure.subplots(...)`.
        """
        try:
            import matplotlib as mpl
        except ImportError:
            self.note(f"{suffix}: not drawn, matplotlib is not installed.")
            return
        mpl.use("Agg")
        from matplotlib import pyplot as plt

        figure, axes = plt.subplots(figsize=size, layout="constrained")
        try:
            draw(axes)
            self.folder.mkdir(parents=True, exist_ok=True)
            path = self.folder / f"{self.name}-{suffix}.png"
            figure.savefig(path, dpi=100, metadata={"Software": None})  # the same figures, the same file
            self.plots.append(path.name)
        finally:
            plt.close(figure)

    def write(self) -> None:
        """Prints the table, and writes JSON and Markdown."""
        text = self.markdown()
        print(text, flush=True)
        self.folder.mkdir(parents=True, exist_ok=True)
        content = {
            "name": self.name,
            "title": self.title,
            "quick": self.quick,
            "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "seconds": round(time.perf_counter() - self._began, 1),
            "commit": commit(),
            "machine": self._machine,
            "versions": versions(),
            "rows": self.rows,
            "notes": self.notes,
            "tables": self.tables,
            "plots": self.plots,
        }
        text_json = json.dumps(_plain(content), indent=1)
        (self.folder / f"{self.name}.json").write_text(text_json + "\n", encoding="utf-8")
        (self.folder / f"{self.name}.md").write_text(text, encoding="utf-8")

    def markdown(self) -> str:
        """The table with its notes and plots."""
        shared = [key for key in (self.rows[0]["details"] if self.rows else ()) if self._everywhere(key)]
        baselines = any(row["baseline"] is not None for row in self.rows)
        columns: list[tuple[str, Callable[[dict[str, Any]], str]]] = [
            ("case", lambda row: row["case"]),
            ("ours", lambda row: _figure(row["ours"])),
        ]
        if baselines:
            columns += [
                ("baseline", lambda row: _figure(row["baseline"])),
                ("unit", lambda row: row["unit"]),
                ("ratio", lambda row: times(row["ratio"])),
                ("against", lambda row: row["against"]),
            ]
        else:
            columns.append(("unit", lambda row: row["unit"]))
        if any(row["aim"] for row in self.rows):
            columns += [("aim", lambda row: row["aim"]), ("met", lambda row: yes_or_no(row["met"]))]
        columns += [(key, lambda row, key=key: _figure(row["details"][key])) for key in shared]
        if any(row["note"] for row in self.rows):
            columns.append(("note", lambda row: row["note"]))
        table = markdown_table(
            [name for name, _ in columns], [[get(row) for _, get in columns] for row in self.rows]
        )
        notes = "".join(f"- {note}\n" for note in self.notes)
        tables = "\n".join(markdown_table(names, rows) for names, rows in self.tables)
        plots = "".join(f"![{name}]({name})\n" for name in self.plots)
        m = self._machine
        where = f"{m['cpu']}, {m['cores']} cores, {m['memory_gb']} GB, load {m['load']} at the start"
        quick = " (quick run: indicative only)" if self.quick else ""
        parts = [f"## {self.title}{quick}\n\n{table}", notes, tables, plots, f"{where}.\n"]
        return "\n".join(part for part in parts if part)

    def _everywhere(self, key: str) -> bool:
        return all(key in row["details"] for row in self.rows)


# -- aims and ratios -----------------------------------------------------------------------------------------


def _ratio(ours: float, baseline: float | None, unit: str) -> float | None:
    if baseline is None or unit in COUNTS or not ours or not baseline:
        return None
    return ours / baseline if unit.endswith("/s") else baseline / ours


def met(aim: str, ours: float, ratio: float | None) -> bool | None:
    """Whether an aim is met; None where a machine cannot tell."""
    parts = _AIM.match(aim)
    if parts is None or (parts[3] and ratio is None):
        return None
    value, bound = (ratio if parts[3] and ratio is not None else ours), float(parts[2])
    tests = {">=": value >= bound, "<=": value <= bound, ">": value > bound, "<": value < bound}
    return tests.get(parts[1], value == bound)


# -- text ----------------------------------------------------------------------------------------------------


def markdown_table(names: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown, aligned so that it can be read as plain text, too."""
    cells = [list(names), *([str(cell).replace("|", "\\|") for cell in row] for row in rows)]
    widths = [max(3, *(len(row[i]) for row in cells)) for i in range(len(names))]
    lines = ["| " + " | ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) + " |" for row in cells]
    lines.insert(1, "|" + "|".join("-" * (w + 2) for w in widths) + "|")
    return "\n".join(lines) + "\n"


def times(ratio: float | None) -> str:
    """A ratio as people read it."""
    return "" if ratio is None else f"{ratio:.2f}x" if ratio < 10 else f"{ratio:.0f}x"


def yes_or_no(value: bool | None) -> str:
    """As a table cell."""
    return "" if value is None else "yes" if value else "NO"


def _figure(value: float | str | None) -> str:
    if value is None or isinstance(value, str | bool):
        return "" if value is None else str(value)
    if isinstance(value, int) or not math.isfinite(value) or float(value).is_integer():
        return f"{value:,.0f}" if math.isfinite(value) else str(value)
    size = abs(value)
    return f"{value:,.0f}" if size >= 1000 else f"{value:.1f}" if size >= 10 else f"{value:.3g}"


def _plain(value: Any) -> Any:
    """As JSON has it: numbers of other libraries as ours, and none where there is none."""
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    value = value.item() if hasattr(value, "item") else value
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value if value is None or isinstance(value, bool | int | str) else str(value)


# -- statistics ----------------------------------------------------------------------------------------------


def median(values: Iterable[float]) -> float:
    """The median; NaN of nothing."""
    listed = list(values)
    return statistics.median(listed) if listed else math.nan


def quantile(values: Iterable[float], q: float) -> float:
    """The q-quantile, between the two nearest values; NaN of nothing."""
    ordered = sorted(values)
    if not ordered:
        return math.nan
    at = q * (len(ordered) - 1)
    low = math.floor(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Growth per unit of x, by least squares; NaN of fewer than two points."""
    if len(points) < 2:
        return math.nan
    mean_x, mean_y = (statistics.fmean(values) for values in zip(*points, strict=True))
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / spread if spread else math.nan


# -- where it runs -------------------------------------------------------------------------------------------


def folder() -> Path:
    """A fresh temporary directory, removed at exit."""
    path = Path(tempfile.mkdtemp(prefix="timely-bench-"))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path


def spark(
    name: str,
    *,
    cores: int = 2,
    tuned: bool = True,
    delta: bool = False,
    kafka: bool = False,
    confs: Mapping[str, str] = MappingProxyType({}),
) -> SparkSession:
    """A session on this machine, `timely_spark.configure`d or with Spark's defaults.

    One kind per process: a JVM keeps the file system class and the Java options of its first session.
    """
    from pyspark.sql import SparkSession

    import timely_spark

    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    # Spark's workers import a benchmark's functions from where this process has them
    paths = [*os.environ.get("PYTHONPATH", "").split(os.pathsep), str(ROOT)]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(filter(None, paths)))
    local = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.log.level": "ERROR",
        "spark.sql.streaming.numRecentProgressUpdates": "10000",
        "spark.sql.warehouse.dir": str(folder()),
        "spark.ui.showConsoleProgress": "false",
        **confs,
    }
    builder = SparkSession.builder.master(f"local[{cores}]").appName(name).config(map=local)
    if tuned:
        builder = timely_spark.configure(builder, delta=delta, kafka=kafka)
    else:
        from timely_spark.runtime.session import require_spark

        require_spark()  # this Python for Spark's workers
        if delta:
            from delta import configure_spark_with_delta_pip

            extension, catalog = "io.delta.sql.DeltaSparkSessionExtension", "DeltaCatalog"
            builder = builder.config("spark.sql.extensions", extension)
            builder = builder.config(
                "spark.sql.catalog.spark_catalog", f"org.apache.spark.sql.delta.catalog.{catalog}"
            )
            builder = configure_spark_with_delta_pip(builder)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    atexit.register(session.stop)
    return session


def answered(
    query: Query, target: str | None = None, *, epoch: int | None = None, timeout: float = 600
) -> None:
    """Wait until a query has answered all that it was sent: without an answer there is no figure."""
    if not query.wait_for(target, epoch=epoch, timeout=timeout):
        msg = f"no answer of {query.name!r} in {timeout:g} s"
        raise TimeoutError(msg) from query.exception()


@contextmanager
def timed(
    owner: Any, name: str, *, per_second: float = 1.0, clock: Callable[[], float] = time.perf_counter
) -> Iterator[list[float]]:
    """The time of each call of a function of `owner`, in units of which a second has `per_second`."""
    times: list[float] = []
    function = getattr(owner, name)

    def call(*args: Any, **options: Any) -> Any:
        began = clock()
        result = function(*args, **options)
        times.append(per_second * (clock() - began))
        return result

    with mock.patch.object(owner, name, call):
        yield times
