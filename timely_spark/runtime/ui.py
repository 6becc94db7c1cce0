"""`python -m timely_spark ui`: the flows of checkpoints as a local page, live; it only reads files."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlencode, urlsplit

from timely_spark.errors import TimelyError
from timely_spark.runtime.handle.inspection import inspect
from timely_spark.runtime.handle.overview import loops_table, steps, steps_table
from timely_spark.runtime.handle.status import AGAIN, Status
from timely_spark.runtime.storage.log import FIRST
from timely_spark.show.table import Table, counted, escaped, listed

#: Seconds after which a browser loads the page again.
_EVERY = 2
_ROUNDS = 10
#: What is shown of `Inspection.rounds`, and under which title.
_COLUMNS = {
    "round": "micro-batch", "local_rounds": "rounds so far", "released": "complete",
    "epochs": "in flight", "messages": "messages", "notifications": "notifications",
    "state_bytes": "bytes of state",
}  # fmt: skip
_LOOPBACK = {"localhost", "127.0.0.1", "::1"}
#: A page runs no script and loads nothing, whatever a checkpoint contains.
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'",
    "Content-Type": "text/html; charset=utf-8",
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;max-width:64em;margin:1.5em auto;padding:0 1em;color:#222}
nav a{margin-right:1em} pre{background:#f6f6f6;padding:.6em;overflow:auto} td,th{border-bottom:1px solid #eee}
table{border-collapse:collapse;margin-bottom:1em} th{white-space:nowrap}
.running{color:#00703c} .not{color:#a33}
"""


class Server(ThreadingHTTPServer):
    """Serves the pages of checkpoints; `url` is where they are.

    On the loopback address whoever uses the machine may look, and no web page of another name can (its
    requests carry that name). On any other address the URL has a token.

    Raises:
        OSError: the port is in use.
    """

    daemon_threads = True

    def __init__(self, checkpoints: Sequence[str], *, address: str, port: int) -> None:
        self.checkpoints = checkpoints
        self.token = None if address in _LOOPBACK else secrets.token_urlsafe(16)
        super().__init__((address, port), _Handler)
        self.url = f"http://{address}:{self.server_port}{self.path(0)}"

    def path(self, flow: int) -> str:
        """The path of a checkpoint's page."""
        return "/?" + urlencode({"flow": flow} | ({"token": self.token} if self.token else {}))


class _Handler(BaseHTTPRequestHandler):
    server: Server
    #: seconds after which a client that sends nothing loses its thread
    timeout = 10

    def do_GET(self) -> None:
        try:
            asked = urlsplit(self.path)
            given = {name: values[-1] for name, values in parse_qs(asked.query, max_num_fields=9).items()}
        except ValueError:  # half an IPv6 address, or too many fields
            self._answer(404, "no such page")
            return
        flow = given.get("flow", "0")
        if not self._allowed(given.get("token", "")):
            self._answer(403, "not allowed: open the address that the command has printed")
        elif asked.path != "/" or (number := self._flow(flow)) is None:
            self._answer(404, "no such page")
        else:
            self._answer(200, page(self.server, number))

    def _flow(self, text: str) -> int | None:
        """The number of a checkpoint; None if there is no such one."""
        numbers = {str(number): number for number in range(len(self.server.checkpoints))}
        return numbers.get(text)

    def _allowed(self, token: str) -> bool:
        if self.server.token is not None:
            return secrets.compare_digest(token.encode(), self.server.token.encode())
        try:
            return urlsplit(f"//{self.headers.get('Host', '')}").hostname in _LOOPBACK
        except ValueError:
            return False

    def _answer(self, code: int, text: str) -> None:
        body = text.encode("utf-8", "replace")
        self.send_response(code)
        for name, value in {**_HEADERS, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing: there is a request every two seconds."""


def page(server: Server, flow: int) -> str:
    """The page of one checkpoint, with links to the others."""
    links = "".join(
        f'<a href="{escaped(server.path(i))}">{"<b>" * (i == flow)}{escaped(place)}{"</b>" * (i == flow)}</a>'
        for i, place in enumerate(server.checkpoints)
    )
    checkpoint = server.checkpoints[flow]
    try:
        body = "\n".join(_flow(checkpoint))
    except TimelyError as error:
        body = f"<pre>{escaped(str(error))}</pre>"
    except Exception as error:  # noqa: BLE001 - whatever half a file leads to; the next look may find it whole
        body = f"<pre>{escaped(f'{checkpoint} is damaged: {type(error).__name__}: {error}')}</pre>"
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"/>'
        f'<meta http-equiv="refresh" content="{_EVERY}"/><title>timely_spark</title>'
        f"<style>{_STYLE}</style></head><body><nav>{links}</nav>\n{body}\n</body></html>"
    )


def _flow(checkpoint: str) -> Iterator[str]:
    status = Status.of(checkpoint)
    after, manifest = status.after, status.after.manifest
    kind = "running" if status.running else "not"
    yield f'<h1>{escaped(after.flow)} <small class="{kind}">{status.state}</small></h1>'
    if status.failure is not None:
        failed = status.failure
        yield f"<p>Failed at {escaped(failed['when'])}:</p><pre>{escaped(failed['error'])}</pre>"
        yield f"<p>{AGAIN}</p>"
    messages, size, notifications = status.pending
    yield (
        f"<p>{counted(status.workers, 'worker')}; micro-batch {manifest.batch}, "
        f"{counted(manifest.rounds, 'round')}{', complete' * manifest.complete}; "
        f"{messages} in flight ({size}), {notifications}.</p>"
    )
    yield f"<p>{escaped(status.residency)}; {manifest.took}.</p>"
    yield f"<h2>Epochs in flight: {listed(manifest.open_epochs) or 'none'}</h2>"
    if (open_ := status.why or status.now) is not None:  # `why` tells of the running micro-batch, too
        yield f"<pre>{escaped(str(open_))}</pre>"
    yield from (f"<p>{escaped(text)}</p>" for text in status.warnings)
    if status.now is not None:
        yield loops_table(status.now).html()
    inputs = [
        [name, "closed" if at is None else at, manifest.late.get(name, 0), line]
        for name, (at, line) in after.inputs.items()
    ]
    yield Table(["input", "epoch", "late rows", "line"], inputs, "Inputs").html()
    yield steps_table(steps(manifest, after.frontier)).html()
    look = inspect(checkpoint).rounds(last=_ROUNDS).to_pylist()
    rounds = [row for row in look[::-1] if row["round"] > FIRST]
    cells = [
        [", ".join(map(str, row[name])) if name in {"epochs", "released"} else row[name] for name in _COLUMNS]
        for row in rounds
    ]
    if cells:
        yield Table(list(_COLUMNS.values()), cells, "Last micro-batches").html()
    yield f"<h2>The flow</h2>{after.description.get('drawing', '')}"
