"""What a person sees of a query: overviews, and `watch` in a notebook, a terminal and a log."""

from __future__ import annotations

import io
import os
import re
import signal
import sys
import threading
import time
import types
from dataclasses import replace
from typing import Any
from xml.etree import ElementTree as ET

import pytest

import timely_spark as ts
from tests.support.stepper import Begin, Stepper
from timely_spark.runtime.handle import display
from timely_spark.runtime.handle.log_view import LogView
from timely_spark.runtime.handle.overview import Overview
from timely_spark.runtime.handle.query import Query
from timely_spark.runtime.handle.starting import starting
from timely_spark.runtime.handle.usage import DRIVER, Processes, Usage
from timely_spark.runtime.query.live import BatchProgress, LoopProgress
from timely_spark.runtime.storage.log import RoundLog
from timely_spark.runtime.storage.manifest import Manifest

HOSTILE = "<script>alert(1)</script>\x1b[2J"
RUNNING = BatchProgress(
    epoch=6,
    rounds=12,
    records=3456,
    loops=(LoopProgress(loop=f"hops{HOSTILE}", epoch=6, iteration=40, changes=1200, total=50_000),),
)
OVERVIEW = Overview(
    name=HOSTILE, state=f"failed: {HOSTILE}\nHint", rate=1.5,
    manifest=Manifest(
        batch=5, micro_batch=5, plan="", run="", header="", runnable=False, released=[], frontier={},
        complete=False, captured={}, unreleased={}, garbage=[], kept_from=0, rounds=9, bound={},
        coordinator={
            "unreleased": {HOSTILE: [*range(20)]},
            "hot_keys": {"a": HOSTILE}, "negatives": {"a": [1, HOSTILE]},
            "expectations": {HOSTILE: {"checked": 3, "failed": 1, "first": [2, HOSTILE]}},
        },
        stats={"slow": HOSTILE}, latencies={"40": 3}, delivered={HOSTILE: [5, 2, 0.0]},
    ),
    held_back_by=[HOSTILE], running=RUNNING, steps=[(HOSTILE, "(5, 0)", None), ("b", "complete", 10)],
    recent=[], residency=HOSTILE, waiting={HOSTILE: HOSTILE},
    usage=Usage(when=0.0, processes={DRIVER: Processes(1, 2.0, 3)}, stored=4, cached=None),
)  # fmt: skip


class Shown(Query):
    """A query that runs for some looks; what Spark knows of it is made up."""

    name = "shown"

    def __init__(self, process: Stepper, looks: int = 3) -> None:
        self._context, self._watch, self.looks = process.context, LogView(process.context), looks
        self.error: ts.TimelyError | None = None
        self._deletes, self._started_after = None, -1

    @property
    def is_active(self) -> bool:
        self.looks -= 1
        return self.looks >= 0

    def exception(self) -> ts.TimelyError | None:
        return self.error

    def _durations(self) -> dict[int, int | None]:
        return dict.fromkeys(range(100), 10)


@pytest.fixture
def shown(begin: Begin) -> Shown:
    flow = ts.Dataflow("shown")
    x = flow.input("x", "n long", epochs="manual")
    x.loop(lambda n: n.where(lambda row: row.n > 0).select(n="n").concat(n).distinct()).capture("out")
    process = begin(flow)
    handle = process.handles["x"]
    handle.send([3])
    handle.advance_to(1)
    handle.send([4])
    process.batches()
    return Shown(process)


def test_an_overview_has_epochs_in_flight_steps_and_the_last_batches(shown: Shown) -> None:
    shown.looks = 100
    overview = Overview.of(shown)

    assert overview.state == "running"
    assert (overview.manifest.open_epochs, overview.held_back_by) == ([1], ["x"])
    assert overview.line().startswith("shown: running, batch ")
    assert [name for name, *_ in overview.steps] == [node.name for node in shown._context.plan.nodes]
    assert {name: at for name, at, _ in overview.steps}["out"] == "(1)"
    assert overview.rate == pytest.approx(
        sum(each.records for each in overview.recent) / (len(overview.recent) / 100)
    )
    assert [row[1] for row in overview._batches()][:1] == [overview.recent[0].rounds], "none were before it"
    text = "\n".join(table.text() for table in overview.tables())
    assert "held back by      x" in text
    assert re.search(r"epochs +each epoch is a micro-batch", text)
    ET.fromstring(shown._repr_html_())


@pytest.mark.slow
def test_an_overview_reads_only_the_batches_that_it_shows(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`watch` makes one twice a second."""
    flow = ts.Dataflow("many")
    flow.input("x", "n long").capture("out")
    process = begin(flow, keep=50)
    for n in range(20):
        process.feed("x", [n])
    reads, read = list[int](), RoundLog.read
    monkeypatch.setattr(RoundLog, "read", lambda log, batch: (reads.append(batch), read(log, batch))[1])
    assert [each.epoch for each in Overview.of(Shown(process)).recent] == list(range(14, 20))
    assert sorted(set(reads)) == list(range(14, 20))


def test_nothing_hostile_reaches_the_page_or_the_terminal() -> None:
    tags = {element.tag for element in ET.fromstring(OVERVIEW.html()).iter()}

    assert tags <= {"div", "b", "i", "table", "thead", "tbody", "tr", "th", "td"}
    assert "\n" not in OVERVIEW.line()
    assert "iteration 40, 1,200 changes" in OVERVIEW.line()
    assert "driver: 2.0 s, 3 B" in OVERVIEW.html()
    assert "0, 1, 2, 3, 4, 5, 6, 7, and 12 more" in OVERVIEW.line()


def test_a_query_whose_checkpoint_is_gone_still_has_a_repr(
    shown: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(_: Any) -> None:
        raise ConnectionRefusedError(HOSTILE)

    monkeypatch.setattr(Overview, "of", gone)

    assert repr(shown).startswith("Query(shown: ConnectionRefusedError: <script>")
    assert "\x1b" not in repr(shown)
    assert "<script" not in shown._repr_html_()
    ET.fromstring(shown._repr_html_())


# -- watch ---------------------------------------------------------------------------------------------------


def test_in_a_log_there_is_a_line_for_each_batch(shown: Shown, capsys: pytest.CaptureFixture[str]) -> None:
    shown.looks = 40
    shown.watch(every=0.001)

    first, last = capsys.readouterr().out.splitlines()  # no batch has ended meanwhile
    assert first.startswith("shown: running")
    assert last.startswith("shown: ended")


def test_watching_ends_with_an_epoch_or_a_length_of_time(
    shown: Shown, capsys: pytest.CaptureFixture[str]
) -> None:
    shown.looks = 1_000_000
    shown.watch(every=0.001, until=0)  # complete already: one look
    shown.watch(every=0.001, until=7, seconds="20ms")
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert all(line.startswith("shown: running") for line in lines)

    for wrong in ({"seconds": "soon"}, {"until": -1}):
        with pytest.raises(ts.TimelyError, match="Hint: "):
            shown.watch(**wrong)  # type: ignore[arg-type]


def test_a_failure_is_shown_at_the_end(shown: Shown, capsys: pytest.CaptureFixture[str]) -> None:
    shown.error = ts.TimelyError("step 'a' failed", hint="mend it.")
    shown.watch(every=0.001)

    assert "failed: step 'a' failed" in capsys.readouterr().out.splitlines()[-1]


def test_in_a_terminal_one_line_is_replaced(shown: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stdout", Terminal())
    monkeypatch.setenv("COLUMNS", "30")
    shown.looks = 12
    shown.watch(every=0.001)

    text = sys.stdout.getvalue()  # type: ignore[attr-defined]
    assert text.count("\n") == 1
    assert text.endswith("\n")
    lines = [line.removesuffix("\x1b[K") for line in text.strip().split("\r") if line]
    assert len(lines) > 2
    assert max(map(len, lines)) <= 29


def test_a_start_says_what_it_waits_for_and_its_line_is_removed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("timely_spark.runtime.handle.starting._EVERY", 0.001)
    with starting("hello") as says:
        says("starts Spark's query")
    assert capsys.readouterr().out == ""  # a log

    written = io.StringIO()
    written.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr(sys, "stdout", written)
    with starting("hello") as says:
        says("prepares output 'out'")
        while "output" not in written.getvalue():
            time.sleep(0.001)

    assert "\rhello: starts, 0 s: prepares output 'out'\x1b[K" in written.getvalue()
    assert written.getvalue().endswith("\r\x1b[K")


class Hung(io.StringIO):
    """A terminal that nobody has any more."""

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self.tried = text
        raise BrokenPipeError


def test_a_start_needs_nobody_who_sees_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("timely_spark.runtime.handle.starting._EVERY", 0.001)
    closed, hung = io.StringIO(), Hung()
    closed.close()
    for stdout in (None, closed, hung):
        monkeypatch.setattr(sys, "stdout", stdout)
        with starting("hello"):
            while stdout is hung and not hasattr(hung, "tried"):
                time.sleep(0.001)


def test_in_a_notebook_one_output_is_updated(shown: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    shows: list[tuple[str, str]] = []

    class Handle:
        def update(self, html: str) -> None:
            shows.append(("update", html))

    def show(html: str, *, display_id: bool) -> Handle:
        assert display_id
        shows.append(("display", html))
        return Handle()

    ipython, pages = types.ModuleType("IPython"), types.ModuleType("IPython.display")
    ipython.get_ipython = lambda: types.SimpleNamespace(kernel=object())  # type: ignore[attr-defined]
    pages.HTML, pages.display = str, show  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", pages)
    shown.looks = 12
    shown.watch(every=0.001)

    assert [how for how, _ in shows] == ["display", *["update"] * (len(shows) - 1)]
    assert len(shows) > 2
    for _, html in shows:
        ET.fromstring(html)
    assert "running" in shows[0][1]
    assert "ended" in shows[-1][1]


def test_an_interrupt_ends_the_display_and_puts_the_handler_back(
    shown: Shown, capsys: pytest.CaptureFixture[str]
) -> None:
    canceled: list[int] = []
    before = signal.signal(
        signal.SIGINT, lambda *_: canceled.append(1)
    )  # as PySpark's, which cancels all jobs
    try:
        own = signal.getsignal(signal.SIGINT)
        shown.looks = 1_000_000

        def interrupt() -> None:
            while signal.getsignal(signal.SIGINT) is own:
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGINT)

        interrupting = threading.Thread(target=interrupt)
        interrupting.start()
        shown.watch(every=0.01)
        interrupting.join()

        assert signal.getsignal(signal.SIGINT) is own
    finally:
        signal.signal(signal.SIGINT, before)

    assert canceled == []
    assert "the query runs on" in capsys.readouterr().err


def test_it_can_be_watched_from_another_thread(shown: Shown, capsys: pytest.CaptureFixture[str]) -> None:
    thread = threading.Thread(target=shown.watch, kwargs={"every": 0.001})
    thread.start()
    thread.join(20)

    assert "ended" in capsys.readouterr().out


def test_the_line_says_where_a_running_batch_stands() -> None:
    manifest = replace(OVERVIEW.manifest, coordinator={"unreleased": {}})
    shown = replace(OVERVIEW, manifest=manifest, name="fraud", state="running", waiting={"in": "3 files"})
    line = shown.line()

    assert line.startswith("fraud: running, batch 5, 9 rounds, 2 records/s, 3.2 ms a batch, ")
    assert "p99 3.2 ms, 3 files of in waiting; now batch 6, round 12, hops" in line


def test_displays_are_chosen_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    show = display.shower()
    for _ in range(2):
        show(OVERVIEW, False)  # noqa: FBT003

    assert sys.stdout.getvalue().count("\n") == 1  # type: ignore[attr-defined]
