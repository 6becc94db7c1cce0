"""The local page: what it shows of a running flow, whom it answers, and what a hostile checkpoint may do."""

from __future__ import annotations

import gc
import html
import json
import re
import socket
import threading
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from urllib.parse import parse_qsl, urlsplit
from xml.etree import ElementTree as ET

import pytest

import timely_spark as ts
from tests.support.browser import CHROMIUM, NONE, Browser
from timely_spark.__main__ import main
from timely_spark.errors import GraphError
from timely_spark.provenance import captured_inputs, inputs_before
from timely_spark.runtime.handle import console
from timely_spark.runtime.handle.asked import Asked, TimeSpan
from timely_spark.runtime.handle.charts import line_chart
from timely_spark.runtime.handle.console import Server
from timely_spark.runtime.handle.history import LAST, History, PastBatch
from timely_spark.runtime.handle.row_reasons import RowReasons
from timely_spark.runtime.handle.verdict import Verdict, _reasons
from timely_spark.runtime.storage.hours import hours
from timely_spark.runtime.storage.lock import Lock
from timely_spark.runtime.storage.log import RoundLog, failure_file
from timely_spark.runtime.storage.manifest import Manifest
from timely_spark.show.words import seconds_text


@pytest.fixture
def serve() -> Iterator[Any]:
    started = []

    def start(*checkpoints: str, address: str = "127.0.0.1", **options: Any) -> Server:
        server = Server(checkpoints, address=address, port=0, **options)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        started.append((server, thread))
        return server

    yield start
    for server, thread in started:
        server.shutdown()
        thread.join()
        server.server_close()


def get(url: str, **headers: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers)) as answer:
            assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def held_back() -> ts.Dataflow:
    flow = ts.Dataflow("<b>held</b>")
    words = flow.input("words", "word string", epochs="manual")
    words.collection().count("n", keys="word", name="counted").changes().capture("out")
    return flow


def components() -> ts.Dataflow:
    flow = ts.Dataflow("rings")
    edges = flow.input("edges", "src long, dst long").collection()
    ts.graphs.strongly_connected_components(edges, name="parts").changes().capture("out")
    return flow


def test_the_page_shows_the_flow_as_it_is_at_each_look(begin: Any, serve: Any, tmp_path: Path) -> None:
    process = begin(held_back(), workers=2)
    server = serve(str(tmp_path))
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}

    _, empty = get(server.url)
    assert "nothing waits" in empty
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
    process.feed("words", [("a",)])
    code, shown = get(server.url)

    assert code == 200
    ET.fromstring(shown.removeprefix("<!DOCTYPE html>"))
    for text in (
        "epoch 0 is held back by",
        "input words (",
        "advance or close it",
        "counted",
        "<svg",
        "1 entry, 1 record",
        "<dt>started</dt>",
        "each epoch is a micro-batch",
        "<td>none</td><td>0</td>",  # the output: nothing is delivered
        "&lt;b&gt;held",
        '<title id="title">&lt;b&gt;held',
    ):
        assert text in shown
    assert "<b>held" not in shown


@pytest.mark.slow
def test_a_click_opens_a_box_and_tells_of_a_step(begin: Any, serve: Any, tmp_path: Path) -> None:
    process = begin(components(), workers=2, rounds=100)
    process.feed("edges", [(1, 2), (2, 1), (2, 3)])
    server = serve(str(tmp_path))

    closed = server.sections(Asked(0))
    (count,) = re.findall(r"strongly_connected_components: (\d+) steps…", closed["flow"])
    assert "parts.loop" not in closed["flow"] + closed["sizes"]
    assert "open=%2A%2F" in closed["flow"]
    opened = server.sections(Asked(0, ("parts", "no such")))
    assert "loop parts.loop.loop" in opened["flow"]
    assert "parts.loop.loop.min" in opened["sizes"]
    box = server.sections(Asked(0, (), "parts"))["step"]
    assert f"show its {count} steps" in box
    assert "State by worker" in box
    assert "vertices, " in box
    assert " exchanges between them" in box
    assert "open=parts" in box
    step = server.sections(Asked(0, ("parts",), "parts.distinct"))["step"]
    plan = "from edges: partitioned by src, dst at the source, free; runs in the source"
    for text in ("distinct", "test_console.py:", "parts.where (by src, dst)", plan, "state: ", "<td>1</td>"):
        assert text in step
    assert re.search(r"epoch 0: arrived .*, begun .*, complete .* in batch \d+, .* rounds", closed["epochs"])
    edges = [re.findall(r"(\d+) records in the last", closed["flow"])]
    assert edges[0][0] == "3"  # on the arrow from the input
    assert server.sections(Asked(0, (), "<script>"))["step"] == ""


@pytest.mark.slow
def test_status_has_a_row_for_a_call_and_opens_it(
    begin: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    process = begin(components(), workers=2, rounds=100)
    process.feed("edges", [(1, 2), (2, 1)])

    shown = []
    for more in ([], ["--expand", "parts"], ["--expand"]):
        assert main(["status", str(tmp_path), *more]) == 0
        shown.append(capsys.readouterr().out)
    assert re.search(r"^  parts +\(\d+\) +[\d,]+ bytes of state$", shown[0], re.MULTILINE)
    assert "parts.loop" not in shown[0]
    assert "parts.loop.loop.min" in shown[1]
    assert "parts.loop.loop.min" in shown[2]
    assert main(["status", str(tmp_path), "--expand", "part"]) == 1
    assert "box of several steps" in capsys.readouterr().err


def test_a_late_flow_is_red_with_the_reason_and_what_to_do(begin: Any, serve: Any, tmp_path: Path) -> None:
    process = begin(held_back(), workers=2)
    process.feed("words", [("a",)])
    lock = Lock(RoundLog(str(tmp_path)).files)
    assert lock.acquire()
    try:
        patient, late = serve(str(tmp_path), slo=3600.0), serve(str(tmp_path), slo=0.0)
        assert patient.look(Asked(0)).verdict.kind == "good"
        verdict, status = (page := late.look(Asked(0))).verdict, page.status
    finally:
        lock.release()

    assert (verdict.kind, verdict.do) == ("bad", "advance or close it.")
    assert re.fullmatch(
        r"The oldest epoch has waited .+ for its answer, 0 s are asked for: "
        r"input 'words' \(.+\) is still at epoch 0\.",
        verdict.says,
    )
    for page, look in {
        None: "spark.ui.enabled",
        "http://127.0.0.1:4040": "look at Spark's own page for",
    }.items():
        runs = replace(status, why=None, now=None, owner={"page": page})
        assert look in next(_reasons(runs, {}))[1]
    stopped = late.look(Asked(0)).verdict
    assert "the flow is stopped" in stopped.says


def test_a_failure_has_its_line_its_time_and_what_to_do(begin: Any, serve: Any, tmp_path: Path) -> None:
    begin(held_back(), workers=1)
    log = RoundLog(str(tmp_path))
    text = "step 'counted' (job.py:4) failed: <b>no</b>\nHint: correct the function."
    report = {"kind": "VertexError", "text": text, "vertex": None, "rank": 0, "at": 1e9}
    log.files.write_json(failure_file(max(log.files.numbers("terms"))), report)

    page = get(serve(str(tmp_path)).url)[1]

    assert "Failed at 2001-09-09 01:46:40 UTC: step &#x27;counted&#x27; (job.py:4) failed" in page
    assert "Correct the function." in page
    assert "nothing waits" not in page
    assert "<b>no" not in page
    assert [page.count(text) for text in ("(job.py:4) failed", "Correct the function", "<pre>")] == [1, 1, 0]


def endless() -> ts.Dataflow:
    flow = ts.Dataflow("endless")
    x = flow.input("x", "n long")
    x.loop(lambda each: each.select(n="n + 1").exchange("n"), name="grows").capture("out")
    return flow


@pytest.mark.slow
def test_a_loop_that_does_not_converge_is_told(begin: Any, serve: Any, tmp_path: Path) -> None:
    process = begin(endless(), workers=2, rounds=40, keep=10)
    process.handles["x"].send([(i,) for i in range(20)])
    for _ in range(3):
        process.batch()

    server = serve(str(tmp_path))
    verdict = server.look(Asked(0)).verdict
    assert verdict.kind == "bad"
    assert verdict.says.startswith("Loop 'grows' does not converge: epoch 0 is at iteration ")
    assert "an iteration still changes 20 records" in verdict.says
    assert "query.cancel(0)" in verdict.do
    assert "loop grows: changed records by iteration" in server.sections(Asked(0))["loops"]
    history = server.look(Asked(0)).history
    second = TimeSpan(history.batches[1].began + 1e-4, history.batches[1].ended + 1e-4)
    seen = server.look(Asked(0, span=second)).seen
    (whole,), (part,) = (each.convergence().values() for each in (history, seen))
    assert whole[0][0] < part[0][0] < part[0][-1] < whole[0][-1]


def test_twenty_flows_are_on_one_page_and_one_that_cannot_be_read_harms_none(
    begin: Any, serve: Any, tmp_path: Path
) -> None:
    begin(held_back(), workers=1)
    server = serve(*[str(tmp_path)] * 19, "/no/such")

    flows = server.sections(Asked(3))["flows"]
    assert flows.count("&lt;b&gt;held") == 19
    assert "not started" in flows
    assert [flows.count(each) for each in ('data-key="next"', 'data-key="before"', "aria-current")] == [
        1,
        1,
        1,
    ]


def test_flows_that_share_captures_are_one_drawing(begin: Any, serve: Any, tmp_path: Path) -> None:
    for number, about in enumerate([{"captures": {"out": "/data/c"}}, {"replays": {"words": "/data/c"}}, {}]):
        begin(held_back(), workers=1, path=tmp_path / str(number))
        files = RoundLog(str(tmp_path / str(number))).files
        term = f"terms/{files.numbers('terms')[-1]}.json"
        files.write_json(term, {**(files.json(term) or {}), **about})
    server = serve(*(str(tmp_path / str(number)) for number in range(3)))

    drawn = [server.sections(Asked(flow))["flow"] for flow in range(3)]
    assert [text.count("flow &lt;b&gt;held") for text in drawn] == [4, 4, 1]
    assert "captured" in drawn[0]
    assert "flow=1&amp;step=counted" in drawn[0]  # a click leads to the other flow's page
    assert "captured" not in drawn[2]
    ET.fromstring(drawn[0].partition('class="drawn">')[2].removesuffix("</div>"))


def reached(folder: Path | None = None) -> ts.Dataflow:
    flow = ts.Dataflow("reached")
    edges = flow.input("edges", "src long, dst long, diff long, seen date")
    edges.capture("log")
    near = edges.collection(diff="diff").select("dst", "seen", name="ends")
    near.distinct(name="once").changes().capture("near")
    near.count("n", keys="dst", name="counted").capture("counts")  # one box: the changes, and the output
    if folder is not None:
        near.changes().capture_to(folder, name="folder")
    return flow


def answered(reasons: RowReasons, row: str) -> str:
    reasons.ask("near", row)
    while (answer := reasons.answer("near", row)) is None or answer.text is None:
        threading.Event().wait(0.001)
    return answer.text


@pytest.mark.slow
def test_the_program_says_why_a_row_is_there(begin: Any, tmp_path: Path) -> None:
    process = begin(reached(tmp_path / "folder"), workers=2)
    day = date(2026, 11, 27)
    process.feed("edges", [(1, 2, 1, day), (1, 3, 1, day), (4, 3, 1, day), (4, 5, 1, None)])
    query = process.query()
    reasons = RowReasons(query)

    rows = {values["dst"]: text for text, values in reasons.rows("near")}
    assert (len(rows), rows[3]) == (3, '{"dst": 3, "seen": "2026-11-27"}')
    assert reasons.rows("once") == []
    assert {values["dst"]: text for text, values in reasons.rows("folder")} == rows
    why = answered(reasons, rows[3])
    assert why.startswith(
        "(dst=3, seen=datetime.date(2026, 11, 27)) is in 'near' at epoch 0, because of\n  edges: (src="
    )
    assert "is not in 'near'" in answered(reasons, '{"dst": 9}')
    assert answered(reasons, '{"dst": 5, "seen": null}').count("edges: ") == 1
    assert answered(reasons, "<b>{").endswith('Hint: write some of the columns, as {"node": 3}.')
    assert "has (dst int64, seen date32[day]" in answered(reasons, '{"d": 9}')
    assert "'2026' is not a value of 'seen'" in answered(reasons, '{"seen": "2026"}')
    for n in range(20):
        answered(reasons, str(n))
    assert reasons.answer("near", rows[3]) is None
    del query
    gc.collect()
    assert "ReferenceError" in answered(reasons, '{"dst": 2}')
    assert reasons.rows("near") == []


def test_one_question_is_answered_at_a_time(begin: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    query, asked, goes_on = begin(reached(), workers=1).query(), threading.Event(), threading.Event()

    def slow(output: str, row: Any) -> str:
        asked.set()
        goes_on.wait()
        return "because"

    monkeypatch.setattr(query, "explain_row", slow)
    reasons = RowReasons(query)
    reasons.ask("near", "1")
    asked.wait()
    reasons.ask("near", "2")
    first = reasons.answer("near", "1")
    assert first is not None
    assert first.text is None
    assert reasons.answer("near", "2") is None
    goes_on.set()
    assert answered(reasons, "1") == "because"

    asked.clear()  # the page is loaded again: no batch was done, so the answer stays
    assert answered(reasons, "1") == "because"
    assert not asked.is_set()
    monkeypatch.setattr(query, "explain_row", lambda *_: 1 / 0)  # what fails may be well the next time
    assert "ZeroDivisionError" in answered(reasons, "2")
    monkeypatch.setattr(query, "explain_row", slow)
    assert answered(reasons, "2") == "because"


@pytest.mark.slow
def test_the_page_has_a_link_for_each_row_and_its_answer(begin: Any, serve: Any, tmp_path: Path) -> None:
    process = begin(reached(), workers=1)
    process.feed("edges", [(1, 2, 1, None)])
    query = process.query()
    server = serve(str(tmp_path), reasons=(reasons := RowReasons(query)))
    row = '{"dst": 2, "seen": null}'

    page = server.sections(Asked(0, step="near"))["why"]
    (link,) = re.findall(r'<td><a href="/([^"]*)">why', page)
    assert "<td>2</td><td>null</td>" in page
    get(f"{server.url.partition('?')[0]}{html.unescape(link)}", **{"Sec-Fetch-Site": "cross-site"})
    assert reasons.answer("near", row) is None  # a page of another site starts no work here
    assert "Another question" in server.sections(Asked(0, step="near", row="<b>"))["why"]
    code, page = get(f"{server.url.partition('?')[0]}{html.unescape(link)}")
    assert (code, "runs on parts of its inputs" in page or "asked at" in page) == (200, True)
    answered(reasons, row)
    get(f"{server.url}&step=capture&row=2")
    assert reasons.answer("counts", "2") is not None  # the output in the box that was clicked
    page = server.sections(Asked(0, step="near", row=row))["why"]
    assert "is in &#x27;near&#x27; at epoch 0, because of\n  edges: (src=1" in page
    assert "after batch 0: " in page
    process.feed("edges", [(2, 3, 1, None)])
    page = server.sections(Asked(0, step="near", row=row))["why"]
    assert "after batch 0; batches were done since then: load the page again: " in page
    ET.fromstring(f"<div>{page}</div>")
    assert "query.explain_row(&#x27;near&#x27;" in serve(str(tmp_path)).sections(Asked(0, step="near"))["why"]


def test_an_input_that_is_not_captured_is_told(begin: Any) -> None:
    flow = held_back()
    flow.input("others", "word string", epochs="manual").capture("log")
    process = begin(flow, workers=1)
    query = process.query()

    with pytest.raises(GraphError, match=r"(?s)input 'words' leads to 'out'.*Hint: capture the input's"):
        query.explain_row("out", ("a", 1))
    assert not query.explain_row("out", ("a", 1), inputs={"words": [[]]}).present
    both = ts.Dataflow("both")
    a, b = both.input("a", "n long"), both.input("b", "n long")
    a.concat(b).capture("all")
    assert captured_inputs(both.compile()) == {}
    a.capture("log of a")
    assert captured_inputs(both.compile()) == {"a": "log of a"}
    assert inputs_before(both.compile(), "all") == ["a", "b"]
    assert inputs_before(both.compile(), "log of a") == ["a"]


def test_health_is_a_code_with_names_for_who_may_look(begin: Any, serve: Any, tmp_path: Path) -> None:
    begin(held_back(), workers=1)
    well, ill = serve(str(tmp_path)), serve(str(tmp_path), "/no/such", address="0.0.0.0")
    there, outside = (f"http://127.0.0.1:{one.server_port}/healthz" for one in (well, ill))

    assert get(there) == (200, "well\n<b>held</b>: stopped\n")
    assert get(there, Host="evil.example") == (200, "well\n")
    assert get(outside) == (503, "not well\n")
    code, text = get(f"{outside}?token={ill.token}")
    assert (code, text.splitlines()[-1]) == (503, "/no/such: not started")


@pytest.mark.slow
def test_what_changes_is_sent_to_the_page(begin: Any, serve: Any, tmp_path: Path) -> None:
    process = begin(held_back(), workers=1)
    server = serve(str(tmp_path))
    with urllib.request.urlopen(server.url.replace("/?", "/events?")) as events:
        first = json.loads(events.readline().removeprefix(b"data: "))
        assert set(first) >= {"first", "flow", "io"}
        process.feed("words", [("a",)])
        assert events.readline() == b"\n"
        while "say" not in (then := json.loads(events.readline().removeprefix(b"data: "))):
            assert events.readline() == b"\n"
    assert "epoch 0 is held back by" in then["say"]
    assert set(then) < set(first)  # not what is as it was


def test_the_page_has_what_processes_take_over_time(
    begin: Any, serve: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(held_back(), workers=1)
    server = serve(str(tmp_path))
    monkeypatch.setattr(console, "_EVERY", 0.0)

    lock = Lock(RoundLog(str(tmp_path)).files)
    assert lock.acquire()
    first, second = (server.sections(Asked(0))["usage"] for _ in range(2))
    lock.release()

    assert re.search(r"driver( \(\d+\))?: ", first)  # this process, and what other tests have started
    assert "memory of processes" in first
    assert "cores" not in first  # it takes two looks
    assert "cores" in second
    ET.fromstring(f"<div>{second}</div>")


@pytest.mark.slow
def test_the_history_is_that_of_the_checkpoint(begin: Any, tmp_path: Path) -> None:
    for _ in range(2):
        process = begin(components(), workers=2, rounds=100, keep=50)
        for _ in range(2):
            process.feed("edges", [(1, 2), (2, 1)])
    log = RoundLog(str(tmp_path))
    newest = log.newest()
    assert newest is not None
    manifest = log.read(newest)
    assert manifest is not None

    history = History(clocked=True).look(log, manifest)

    assert len({batch.run for batch in history.batches}) == 2
    assert [epoch.epoch for epoch in history.epochs()] == sorted(
        {e for b in history.batches for _, e in b.released}
    )
    assert all(epoch.seconds > 0 for epoch in history.epochs())
    assert sum(epoch.rounds or 0 for epoch in history.epochs()) <= manifest.rounds
    entered = [c.index for c in process.world.plan.channels if c.source is None]
    assert sum(history.moved()[channel] for channel in entered) == 8
    assert history.spent()["out"] > 0
    assert any(batch.memory_bytes for batch in history.batches)
    assert set(history.took()) == {0, 1}
    again = list(history.batches)
    assert history.look(log, manifest).batches == again


@pytest.mark.slow
def test_a_span_of_time_is_looked_at(begin: Any, serve: Any, tmp_path: Path) -> None:
    process = begin(components(), workers=2, rounds=100, keep=100)
    for n in range(3):
        process.feed("edges", [(n, n + 1), (n + 1, n)])
    server = serve(str(tmp_path))
    first, second, _ = server.look(Asked(0)).history.batches
    span = TimeSpan(second.began + 1e-4, second.ended + 1e-4)

    asked = Asked(0, span=span)
    assert TimeSpan.read(dict(parse_qsl(urlsplit(asked.path()).query))) == pytest.approx(span, abs=1e-3)
    page, sections = server.look(asked), server.sections(asked)
    assert page.seen.moved() == Counter(second.moved)
    assert re.findall("<title>epoch ([0-9]+):", sections["epochs"]) == ["1"]
    assert re.findall('data-key="([a-z]+)"', sections["epochs"]) == ["in", "out", "earlier", "later", "all"]
    assert "in 1 batches" in sections["flow"]
    before = server.sections(Asked(0, span=TimeSpan(first.began - 9, first.began - 1)))
    assert "records a batch" not in before["epochs"]
    assert 'data-key="all"' in before["epochs"]
    code, whole = get(f"{server.url}&since=9&until=nan")
    assert (code, "all times: <a" in whole) == (200, True)


@pytest.mark.slow
def test_a_page_that_is_open_for_long_has_all_batches(begin: Any, serve: Any, tmp_path: Path) -> None:
    """Epochs take milliseconds, and the console looks once a second: many batches lie between two looks."""
    process = begin(held_back(), workers=1)
    server = serve(str(tmp_path))
    server.look(Asked(0))
    for _ in range(3):
        for _ in range(4):
            process.feed("words", [("a",)])
        batches = server.look(Asked(0)).history.batches

    numbers = [batch.number for batch in batches]
    assert len(numbers) >= 12
    assert numbers == list(range(numbers[-1] + 1))


def test_an_open_console_remembers_latencies_for_an_hour(monkeypatch: pytest.MonkeyPatch) -> None:
    """The retained batches may be of the last second; p50, p99 and their line are of the last hour."""
    monkeypatch.setattr("timely_spark.runtime.handle.history.HOUR", 20.0)
    fields = {
        "stats": {},
        "rounds": 1,
        "open_epochs": [],
        "state_bytes": {},
        "memory_bytes": {},
        "run": "",
        "milliseconds": 9,
    }

    class Log:
        files = SimpleNamespace(numbers=lambda _: [0])

        def read(self, number: int) -> Any:
            released = [("out", number)]
            of = {"batch": number, "written": number / 8, "released": released, "arrived": None}
            return SimpleNamespace(**of, **fields)

    history, log = History(clocked=True), cast("RoundLog", Log())
    for second in range(1, 31):
        history.look(log, cast("Manifest", log.read(second * 8)))

    ends = [ended for ended, _ in history.hour]
    assert ends == [10.25, 10.5, 10.75] + [second / 4 for second in range(44, 121)]
    assert len(history.batches) == LAST


@pytest.mark.slow
def test_the_last_hour_is_compared_with_one_of_the_day_before(
    begin: Any, serve: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batches of a day ago are removed; a file has the counts of the hours."""
    process = begin(held_back(), workers=1, keep=2)
    server, clock, shown = serve(str(tmp_path)), SimpleNamespace(now=0.0), []
    monkeypatch.setattr("timely_spark.runtime.storage.manifest.time.time", lambda: clock.now)
    for hour, batches in {0: 1, 1: 2, 2: 1, 24: 1, 25: 4}.items():
        for second in range(batches):
            clock.now = 1_800_000_000.0 + 3600 * hour + second
            process.feed("words", [("a",)])
        shown.append("Since yesterday" in server.sections(Asked(0))["day"])

    table = " ".join(re.sub("<[^>]+>", " ", server.sections(Asked(0))["day"]).split())

    assert shown == [False, False, True, True, True]
    assert table.startswith("Since yesterday since 08:00 2027-01-15 09:00 to 10:00 change batches a second ")
    assert "rows an hour 4 2 +100 %" in table
    log = RoundLog(str(tmp_path))
    assert [hour.batch for hour in hours(log.files)] == [0, 1, 3, 4, 5]
    log.files.write("hours.json", b"{")
    assert server.sections(Asked(0))["day"] == ""


def test_a_flow_that_answers_is_well(tmp_path: Path) -> None:
    history = History(clocked=True)
    batch = PastBatch(
        number=0, arrived=0.5, began=1.0, ended=2.5, rounds=1, records=3, released=[("out", 0)],
        open_epochs=[], iterations=[], state_bytes={}, memory_bytes={}, moved={}, spent={}, took={}, run="",
    )  # fmt: skip
    history.batches = [batch]

    assert [(one.arrived, one.began, one.ended, one.seconds) for one in history.epochs()] == [
        (0.5, 1.0, 2.5, 1.5)
    ]
    assert history.open_since(3) is None
    assert Verdict("good", 0.0).says == ""


def test_a_checkpoint_that_cannot_be_read_is_told_and_the_others_are_shown(
    begin: Any, serve: Any, tmp_path: Path
) -> None:
    begin(held_back(), workers=1)
    server = serve("/no/such", str(tmp_path))

    assert "/no/such holds no checkpoint of a flow\nHint: " in get(server.url)[1]  # no line of this package's
    assert "this page follows" in get(server.url)[1]
    assert "nothing waits" in get(server.url.replace("flow=0", "flow=1"))[1]
    (flow,) = (tmp_path / "timely" / "flows").iterdir()
    flow.write_text("{")
    damaged = get(server.url.replace("flow=0", "flow=1"))[1]
    assert "restore the whole checkpoint" in damaged
    assert "this page follows" not in damaged


@pytest.mark.parametrize("path", ["/?flow=2", "/?flow=-1", "/?flow=x", "/etc/passwd"])
def test_there_are_no_other_pages(serve: Any, path: str) -> None:
    server = serve("/no/such", "/no/other")

    assert get(f"http://127.0.0.1:{server.server_port}{path}") == (404, "no such page")


def test_another_name_or_no_token_is_refused(serve: Any) -> None:
    here, everywhere = serve("/no/such"), serve("/no/such", address="0.0.0.0")
    outside = f"http://127.0.0.1:{everywhere.server_port}/"

    assert get(here.url, Host="evil.example:80")[0] == 403
    assert get(here.url, Host="localhost:1")[0] == 200
    assert [get(outside)[0], get(f"{outside}?token=x")[0]] == [403, 403]
    assert get(everywhere.url.replace("0.0.0.0", "127.0.0.1"))[0] == 200


def test_a_port_in_use_is_told(serve: Any, capsys: pytest.CaptureFixture[str]) -> None:
    port = serve("/no/such").server_port

    assert main(["ui", "/no/such", "--port", str(port)]) == 1
    assert re.search(
        rf"cannot listen at 127.0.0.1:{port}: .*\nHint: choose another --port", capsys.readouterr().err
    )
    for address in ("192.0.2.1", "::1", "a..b"):
        assert main(["ui", "/no/such", "--port", "0", "--address", address]) == 1
        assert "Hint: choose another --address" in capsys.readouterr().err


def ask(server: Server, request: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=20) as connection:
        connection.sendall(request)
        connection.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: connection.recv(1 << 16), b""))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (b"GET /?flow=" + b"9" * 5000 + b" HTTP/1.0\r\nHost: localhost\r\n\r\n", b"404"),
        ("GET /?flow=\u0663 HTTP/1.0\r\nHost: localhost\r\n\r\n".encode(), b"404"),
        (b"GET /?flow=%D9%A3 HTTP/1.0\r\nHost: localhost\r\n\r\n", b"404"),
        (b"GET /?flow=00 HTTP/1.0\r\nHost: localhost\r\n\r\n", b"404"),
        (b"GET /?" + b"a=1&" * 5000 + b" HTTP/1.0\r\nHost: localhost\r\n\r\n", b"404"),
        (b"GET //[ HTTP/1.0\r\nHost: localhost\r\n\r\n", b"40"),
        (b"GET http://[::1/ HTTP/1.0\r\nHost: localhost\r\n\r\n", b"404"),
        (b"GET / HTTP/1.0\r\nHost: [\r\n\r\n", b"403"),
        (b"GET /../../etc/passwd HTTP/1.0\r\nHost: localhost\r\n\r\n", b"404"),
        (b"GET /?flow=../../etc HTTP/1.0\r\nHost: localhost\r\n\r\n", b"404"),
        (b"GET / HTTP/1.0\r\nHost: localhost\r\n" + b"x: y\r\n" * 1000 + b"\r\n", b"431"),
        (b"GET / HTTP/1.0\r\nx: " + b"y" * 100_000 + b"\r\n\r\n", b"431"),
        (b"GET /" + b"a" * 100_000 + b" HTTP/1.0\r\n\r\n", b"414"),
        (b"POST / HTTP/1.0\r\nHost: localhost\r\n\r\n", b"501"),
        (b"\x16\x03\x01\x00", b""),
    ],
)
def test_junk_is_refused_and_the_server_lives_on(
    serve: Any, capfd: pytest.CaptureFixture[str], request_: bytes, code: bytes
) -> None:
    server = serve("/no/such")

    answer = ask(server, request_)

    assert code in answer.partition(b"\r\n")[0]
    assert b"/no/such" not in answer
    assert get(server.url)[0] == 200
    assert "Traceback" not in capfd.readouterr().err


def test_a_client_that_sends_nothing_loses_its_thread(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console._Handler, "timeout", 0.05)
    server = serve("/no/such")
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=20) as connection:
        connection.sendall(b"GET / HT")
        assert connection.recv(100) == b""
    assert get(server.url)[0] == 200


@pytest.mark.parametrize("name", ["console.css", "console.js"])
def test_style_and_script_are_the_packages_own(serve: Any, name: str) -> None:
    server = serve("/no/such")

    code, text = get(f"http://127.0.0.1:{server.server_port}/{name}")

    assert code == 200
    assert "://" not in text
    assert "eval" not in text


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip(NONE)
    opened = Browser(tmp_path_factory.mktemp("profile"))
    yield opened
    opened.close()


@pytest.mark.slow
def test_a_browser_shows_each_change_under_the_rules_that_the_page_sets(
    begin: Any, serve: Any, browser: Browser, tmp_path: Path
) -> None:
    process = begin(components(), workers=2, rounds=100)
    server = serve(str(tmp_path), str(tmp_path))

    browser.open(server.url)
    assert "nothing waits" in browser.ask("document.querySelector('#first').innerText")
    process.handles["edges"].send([(1, 2), (2, 1)])
    browser.until(
        "document.querySelector('#io')?.innerText.includes('1 entry')"
    )  # the page was not loaded again
    process.batches()
    browser.until("document.querySelector('#io')?.innerText.includes('1 entry, 2 records')")

    browser.ask("[...document.querySelectorAll('#flow a')].find(a => a.ariaLabel === 'parts').focus()")
    process.feed("edges", [(2, 3)])
    browser.until("document.querySelector('#io')?.innerText.includes('2 entries, 3 records')")
    assert browser.ask("document.activeElement.ariaLabel") == "parts"  # it keeps the place of the keyboard
    browser.ask("document.activeElement.dispatchEvent(new MouseEvent('click', {bubbles: true}))")
    loaded = "document.readyState === 'complete'"  # only then keys are heard
    opened = r"/show its \d+ steps/.test(document.querySelector('#step')?.innerText)"
    browser.until(f"{loaded} && {opened}")
    for key, place in {
        "Escape": "!location.search.includes('step')",
        "e": "location.search.includes('open')",
    }.items():
        browser.press(key)
        browser.until(f"{loaded} && {place}")
    assert "parts.loop.loop" in browser.ask("document.querySelector('#flow').textContent")
    assert_the_drawing_moves(browser, lambda: process.feed("edges", [(3, 4)]))
    assert_a_time_is_chosen(browser, loaded)
    browser.press("n")
    browser.until("location.search.startsWith('?flow=1')")
    query = process.query()
    browser.open(f"{serve(str(tmp_path), reasons=RowReasons(query)).url}&step=out")
    browser.ask("document.querySelector('input').focus()")
    for letter in "{n}":  # not the key to another flow
        browser.press(letter)
    assert "step=out" in browser.ask("location.search")
    browser.ask("document.querySelector('input').value = '{\"node\": 1}'")
    browser.press("Enter")
    browser.until(f"{loaded} && document.querySelector('#why').innerText.includes('edges')")
    assert browser.complaints == []


def assert_the_drawing_moves(browser: Browser, update: Callable[[], Any]) -> None:
    """Its size and place stay when an update comes; a click that moves it opens nothing."""
    wide, place = (
        "document.querySelector('.drawn svg').clientWidth",
        "document.querySelector('.drawn').scrollLeft",
    )
    address, before = browser.ask("location.href"), browser.ask(wide)
    for key in "++":
        browser.press(key)
    assert browser.ask(wide) == pytest.approx(before * 1.25**2, abs=2)
    steps = "document.querySelector('.drawn .step rect').getBoundingClientRect().height"
    large = browser.ask(steps)
    box = "document.querySelector('.drawn').getBoundingClientRect()"
    x, y = browser.ask(f"{box}.left") + 200, browser.ask(f"{box}.top") + 100
    browser.mouse("mouseWheel", x, y, deltaX=0, deltaY=-150, modifiers=2)
    browser.until(f"{wide} > {before * 2}")
    start = browser.ask(place)
    browser.mouse("mousePressed", x, y)
    browser.mouse("mouseMoved", x - 90, y)
    browser.mouse("mouseReleased", x - 90, y)
    browser.until(f"{place} === {start + 90}")
    update()
    browser.until("document.querySelector('#io')?.innerText.includes('3 entries')")
    assert (browser.ask(place), browser.ask("location.href")) == (start + 90, address)
    browser.press("0")
    assert browser.ask(wide) <= browser.ask("document.querySelector('.drawn').clientWidth")
    browser.press("1")
    assert large == pytest.approx(browser.ask(steps) * 1.25**2, rel=0.01)
    assert browser.ask(f"{wide} - document.querySelector('.drawn svg').viewBox.baseVal.width") == 0


def assert_a_time_is_chosen(browser: Browser, loaded: str) -> None:
    """By the mouse, across a chart: the page stays in its place; and by keys."""
    chart = "document.querySelector('#epochs svg.timeline')"
    browser.ask(f"{chart}.scrollIntoView({{block: 'center'}})")
    box = f"{chart}.getBoundingClientRect()"
    x, y, wide = (browser.ask(f"{box}.{each}") for each in ("left", "top", "width"))
    place = browser.ask("scrollY")
    browser.mouse("mousePressed", x + 0.995 * wide, y + 10)  # the last epoch is there
    browser.mouse("mouseMoved", x + 0.6 * wide, y + 10)
    assert browser.ask("document.querySelector('rect.chosen').getBoundingClientRect().width") > 0.25 * wide
    browser.mouse("mouseReleased", x + 0.6 * wide, y + 10)
    browser.until(f"{loaded} && location.search.includes('since=')")
    browser.until(f"Math.abs(scrollY - {place}) < 50")
    ends = f"{chart}.dataset.span.split(' ').slice(0, 2).map(Number)"
    since, until = browser.ask(ends)
    halves = [(since + until) / 2, until]
    browser.press("i")
    browser.until(f"{loaded} && Math.abs({ends}[0] - {halves[0]}) < 0.002")
    assert browser.ask(ends) == pytest.approx(halves, abs=0.002)
    browser.press("a")
    browser.until(f"{loaded} && !location.search.includes('since=')")


@pytest.mark.slow
@pytest.mark.share(2)
@pytest.mark.parametrize("width", [1280, 390])
def test_no_page_is_wider_than_its_window(
    begin: Any, serve: Any, browser: Browser, tmp_path: Path, width: int
) -> None:
    process = begin(components(), workers=2, rounds=100)
    process.feed("edges", [(1, 2), (2, 1)])
    grows = begin(endless(), path=tmp_path / "grows", workers=2, rounds=40)
    grows.handles["x"].send([(i,) for i in range(20)])
    for _ in range(3):
        grows.batch()
    places = [str(tmp_path), str(tmp_path / "grows"), "/no/such"]
    server = serve(*places, *places[:1] * 17, slo=0.0)

    for flow in range(3):
        browser.open(server.url.replace("flow=0", f"flow={flow}"), width=width, dark=bool(flow % 2))
        assert browser.ask("document.documentElement.scrollWidth") <= width
        ground = browser.ask("getComputedStyle(document.body).backgroundColor")
        assert (ground == "rgb(13, 17, 23)") == bool(flow % 2)
        assert len(browser.picture()) > 5000
    assert browser.complaints == []


def test_a_limit_far_above_all_values_does_not_flatten_them() -> None:
    for limit, drawn in ((0.04, True), (2.0, False)):
        chart = line_chart("latency", {"": [(0, 0.01), (1, 0.02)]}, x="time", y=seconds_text, limit=limit)
        assert ('class="limit"' in chart) == drawn
        assert (f"the limit is {seconds_text(limit)}" in chart) != drawn
        assert f">{seconds_text(limit if drawn else 0.02)}</text>" in chart


def test_a_long_line_says_its_highest_value_of_each_part_of_the_axis() -> None:
    values = [(float(n), n % 7 / 100) for n in range(500)] + [(500.0, 0.9)]

    chart = line_chart("latency", {"p50": values, "p99": [(0.0, 0.5)]}, x="batch", y=seconds_text)

    said = re.findall('<rect class="at"[^>]*><title>([^<]*)</title>', chart)
    assert len(said) == 60
    assert said[0] == "p50 batch 6: 60 ms\np99 batch 0: 500 ms"
    assert said[-1] == "p50 batch 500: 900 ms"


def test_half_of_an_odd_count_is_not_shown_as_another_count() -> None:
    chart = line_chart("records", {"": [(0, 1), (1, 3)]}, x="batch")
    assert re.findall(r'text-anchor="end">(\d+)</text>', chart)[:3] == ["0", "2", "4"]
