"""The console: the flows of checkpoints as a local page, live; it only reads files."""

from __future__ import annotations

import json
import re
import secrets
import socket
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from timely_spark.errors import TimelyError, with_hint
from timely_spark.runtime.handle.asked import Asked, TimeSpan
from timely_spark.runtime.handle.assets import SCRIPT, STYLE
from timely_spark.runtime.handle.history import LAST, History
from timely_spark.runtime.handle.page import Page
from timely_spark.runtime.handle.row_reasons import RowReasons
from timely_spark.runtime.handle.status import Status
from timely_spark.runtime.handle.together import capture_links, connected_flows, together_svg
from timely_spark.runtime.handle.usage import Usage
from timely_spark.runtime.storage.log import RoundLog
from timely_spark.show.table import escaped
from timely_spark.show.words import seconds_text

#: Seconds between two looks at a checkpoint, between two signs of life, and until a browser connects again.
_EVERY, _SIGN, _AGAIN = 1.0, 15.0, 600.0
#: The most pages that are kept up to date at once; others are shown as they are when they load.
_STREAMS = 64
#: The most boxes that an address opens.
_BOXES = 200
_LOOPBACK = {"localhost", "127.0.0.1", "::1"}
#: A page runs the console's own script and loads nothing else, whatever a checkpoint contains.
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'"
    ),
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
_FILES = {"/console.css": ("text/css", STYLE), "/console.js": ("text/javascript", SCRIPT)}
_SECTIONS = """<main><section id="first">{first}</section>
<div id="lost" class="say warn">No connection to the console's process: what is shown stands still.</div>
<section id="say">{say}</section>
<div class="columns"><section id="flow">{flow}</section><div><section id="step">{step}</section>
<section id="why">{why}</section><section id="epochs">{epochs}</section>
<section id="day">{day}</section>
<section id="loops">{loops}</section></div></div>
<section id="io">{io}</section><section id="sizes">{sizes}</section><section id="usage">{usage}</section>
<footer>Keys: n and p another flow, e open or close all boxes, Esc close a step; Tab walks through the steps.
The drawing: + and - (or Ctrl and the wheel) its size, 0 all of it, 1 as it was; the mouse moves it.
Time: draw across a chart with the mouse; or i and o the newest half or twice as much, comma and point earlier
and later, a all of it. Charts, loops, and the records and times of steps are of this time.
Times are UTC; counts are of the retained batches.</footer></main>"""
#: Of a checkpoint that no flow has yet: its state, and what the page does meanwhile.
_NOT_STARTED, _FOLLOWS = "not started", "While Spark starts there is none yet: this page follows."
_IDS = re.findall(r"{(\w+)}", _SECTIONS)
#: Seconds to wait for what a client still sends when it is answered, and so many bytes at most.
_LINGER, _UNREAD = 0.5, 1 << 20


class Server(ThreadingHTTPServer):
    """Serves the pages of checkpoints; `url` is where they are.

    On the loopback address whoever uses the machine may look, and no web page of another name can (its
    requests carry that name). On any other address the URL has a token.

    Raises:
        OSError: the port is in use.
    """

    daemon_threads = True

    def __init__(
        self,
        checkpoints: Sequence[str],
        *,
        address: str,
        port: int,
        slo: float | None = None,
        reasons: RowReasons | None = None,
    ) -> None:
        self.checkpoints, self.slo = checkpoints, slo
        #: why rows are in outputs, if the only flow is that of this program
        self.reasons = reasons
        self.token = "" if address in _LOOPBACK else secrets.token_urlsafe(16)
        self.closing, self.streams = threading.Event(), threading.BoundedSemaphore(_STREAMS)
        self._usages = [deque[Usage](maxlen=LAST) for _ in checkpoints]
        self._histories: dict[int, History] = {}
        self._looking = [threading.Lock() for _ in checkpoints]
        super().__init__((address, port), _Handler)
        self.url = f"http://{address}:{self.server_port}{Asked(token=self.token).path()}"

    def shutdown(self) -> None:
        """End the streams, and the server."""
        self.closing.set()
        super().shutdown()

    def shutdown_request(self, request: Any) -> None:
        """Close a connection when the client has read the answer: one with unread input takes it along."""
        with suppress(OSError):
            request.shutdown(socket.SHUT_WR)
            request.settimeout(_LINGER)
            remaining = _UNREAD
            while remaining > 0 and (data := request.recv(1 << 16)):
                remaining -= len(data)
        self.close_request(request)

    def look(self, asked: Asked) -> Page:
        """A flow as it is now."""
        with self._looking[asked.flow]:
            status = Status.of(self.checkpoints[asked.flow])
            clocked = status.after.summary.clocked
            history = self._histories.get(asked.flow)
            if history is None or history.clocked != clocked:
                history = self._histories[asked.flow] = History(clocked)
            history.look(status.after.log, status.after.manifest)
            return Page(
                status, History(clocked, history.batches, history.hour), asked, self.slo, reasons=self.reasons
            )

    def sections(self, asked: Asked) -> dict[str, str]:
        """The sections of a page, and the list of flows."""
        sections, damage = dict.fromkeys(_IDS, ""), ""
        try:
            page = self._with_usages(self.look(asked))
            sections = page.sections(self._together(page))
        except TimelyError as error:
            damage = with_hint(error.message, error.hint)  # its line is one of the server
        except Exception as error:  # noqa: BLE001 - whatever half a file leads to; the next look may find it whole
            damage = f"{self.checkpoints[asked.flow]} is damaged: {type(error).__name__}: {error}"
        if damage:
            kind = "warn" if self._is_empty(asked.flow) else "bad"
            follows = f"\n{_FOLLOWS}" * (kind == "warn")
            sections["say"] = f'<div class="say {kind}"><pre>{escaped(damage + follows)}</pre></div>'
        briefs = [self.brief(number) for number in range(len(self.checkpoints))]
        order = sorted(range(len(briefs)), key=lambda number: briefs[number][1] != "bad")
        ways = _ways(order, asked.flow)
        flows = "".join(self._card(asked, number, ways, briefs[number]) for number in order)
        name, _, state = briefs[asked.flow]
        return {"title": escaped(f"{name}: {state}"), "flows": flows, **sections}

    def _with_usages(self, page: Page) -> Page:
        """The page with what its flow takes of this machine, now and at the looks before."""
        with self._looking[page.asked.flow]:
            usages = self._usages[page.asked.flow]
            if not usages or time.time() - usages[-1].when >= _EVERY:
                usages.append(page.status.usage)
            return replace(page, usages=tuple(usages))

    def _together(self, page: Page) -> str:
        """The drawing of the flows that share captures with the one that is shown; empty if none does."""
        owners = [RoundLog(checkpoint).owner() for checkpoint in self.checkpoints]
        links = capture_links(owners)
        numbers = connected_flows(page.asked.flow, links)
        if len(numbers) == 1:
            return ""
        others = [
            self.look(replace(page.asked, flow=one, step="")) for one in numbers if one != page.asked.flow
        ]
        parts = {one.asked.flow: (one.sketch, one.marks()) for one in (page, *others)}
        return together_svg(parts, links)

    def brief(self, number: int) -> tuple[str, str, str]:
        """A flow's name, the kind of its verdict, and its state."""
        try:
            page = self.look(Asked(flow=number))
        except Exception as error:  # noqa: BLE001 - its own page says more
            if self._is_empty(number):
                return self.checkpoints[number], "warn", _NOT_STARTED
            return self.checkpoints[number], "bad", type(error).__name__
        late = f", {seconds_text(page.verdict.late)} behind" if page.verdict.late else ""
        return page.status.after.flow, page.verdict.kind, f"{page.status.state}{late}"

    def _is_empty(self, number: int) -> bool:
        """Whether no flow has started there yet; a damaged checkpoint is another matter."""
        with suppress(TimelyError, ValueError, KeyError):
            log = RoundLog(self.checkpoints[number])
            return log.identity() is None and log.newest() is None
        return False

    def _card(self, asked: Asked, number: int, ways: Mapping[str, int], brief: tuple[str, str, str]) -> str:
        own, (name, kind, state) = number == asked.flow, brief
        steps = " ".join(way for way, to in ways.items() if to == number)  # of two flows the other is both
        key = f' data-key="{steps}"' * bool(steps and not own)
        current = ' aria-current="page"' * own
        path = escaped(asked.path(flow=number, step="", open=()))
        return (
            f'<a class="{kind}" href="{path}"{current}{key} title="{escaped(self.checkpoints[number])}">'
            f"{escaped(name)}<small>{escaped(state)}</small></a>"
        )


def _ways(order: list[int], flow: int) -> dict[str, int]:
    """The flows beside one, by the keys that lead there."""
    at = order.index(flow)
    return {"next": order[(at + 1) % len(order)], "before": order[at - 1]}


class _Handler(BaseHTTPRequestHandler):
    server: Server
    #: seconds after which a client that sends nothing loses its thread
    timeout = 10

    def do_GET(self) -> None:
        try:
            url = urlsplit(self.path)
            query = parse_qs(url.query, max_num_fields=_BOXES)
        except ValueError:  # half an IPv6 address, or too many fields
            self._answer(404, "no such page")
            return
        last = {name: values[-1] for name, values in query.items()}
        allowed = self._allowed(last.get("token", ""))
        if url.path == "/healthz":
            self._health(allowed=allowed)
        elif not allowed:
            self._answer(403, "not allowed: open the address that the command has printed")
        elif url.path in _FILES:
            kind, text = _FILES[url.path]
            self._answer(200, text, kind)
        elif url.path not in {"/", "/events"} or (flow := self._flow(last.get("flow", "0"))) is None:
            self._answer(404, "no such page")
        else:
            opened = tuple(dict.fromkeys(query.get("open", ())))
            step, row = last.get("step", ""), last.get("row", "")
            asked = Asked(flow, opened, step, self.server.token, row, TimeSpan.read(last))
            if url.path == "/":
                self._ask(asked)
                self._answer(200, self._page(asked), "text/html")
            else:
                self._stream(asked)

    def _health(self, *, allowed: bool) -> None:
        """Say whether all flows are well; also which one is not, if the client may look at the page."""
        flows = [self.server.brief(number) for number in range(len(self.server.checkpoints))]
        code = 503 if any(kind == "bad" or state == _NOT_STARTED for _, kind, state in flows) else 200
        lines = [f"{name}: {state}" for name, _, state in flows] if allowed else []
        self._answer(code, "\n".join(["well" if code == 200 else "not well", *lines, ""]))

    def _ask(self, asked: Asked) -> None:
        """Begin to answer a question about a row, unless a page of another site has asked it."""
        own = self.headers.get("Sec-Fetch-Site", "none") in {"none", "same-origin"}
        if not (asked.row and own and self.server.reasons is not None):
            return
        with suppress(TimelyError):  # the page says it
            if (output := self.server.look(asked).output) is not None:
                self.server.reasons.ask(output, asked.row)

    def _flow(self, text: str) -> int | None:
        """The number of a checkpoint; None if there is no such one."""
        numbers = {str(number): number for number in range(len(self.server.checkpoints))}
        return numbers.get(text)

    def _allowed(self, token: str) -> bool:
        if self.server.token:
            return secrets.compare_digest(token.encode(), self.server.token.encode())
        try:
            return urlsplit(f"//{self.headers.get('Host', '')}").hostname in _LOOPBACK
        except ValueError:
            return False

    def _page(self, asked: Asked) -> str:
        sections = self.server.sections(asked)
        token = f"?{urlencode({'token': asked.token})}" * bool(asked.token)
        return (
            '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"/>'
            '<meta name="viewport" content="width=device-width,initial-scale=1"/>'
            f'<title id="title">{sections["title"]}</title>'
            f'<link rel="stylesheet" href="/console.css{token}"/>'
            f'<script src="/console.js{token}" defer=""></script>'
            f'</head><body><nav id="flows">{sections["flows"]}</nav>\n'
            f"{_SECTIONS.format(**sections)}\n</body></html>"
        )

    def _stream(self, asked: Asked) -> None:
        """Send the sections that change, until the client goes away."""
        server = self.server
        if not server.streams.acquire(blocking=False):
            self._answer(503, "too many pages are open")
            return
        try:
            self._head(200, "text/event-stream")
            until, sign, before = time.monotonic() + _AGAIN, 0.0, dict[str, str]()
            while time.monotonic() < until and not server.closing.is_set():
                now = server.sections(asked)
                changed = {name: text for name, text in now.items() if before.get(name) != text}
                before = now
                if changed:
                    self.wfile.write(f"data: {json.dumps(changed)}\n\n".encode("utf-8", "replace"))
                elif time.monotonic() > sign:
                    self.wfile.write(b": still there\n\n")
                else:
                    server.closing.wait(_EVERY)
                    continue
                sign = time.monotonic() + _SIGN
                self.wfile.flush()
                server.closing.wait(_EVERY)
        except OSError:  # the page was closed
            pass
        finally:
            server.streams.release()

    def _answer(self, code: int, text: str, kind: str = "text/plain") -> None:
        body = text.encode("utf-8", "replace")
        self._head(code, kind, **{"Content-Length": str(len(body))})
        self.wfile.write(body)

    def _head(self, code: int, kind: str, **more: str) -> None:
        self.send_response(code)
        for name, value in {**_HEADERS, "Content-Type": f"{kind}; charset=utf-8", **more}.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing: there are requests all the time."""
