"""The local page: what it shows of a running flow, whom it answers, and what a hostile checkpoint may do."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

import timely_spark as ts
from timely_spark.__main__ import main
from timely_spark.runtime import ui


@pytest.fixture
def serve() -> Iterator[Any]:
    started = []

    def start(*checkpoints: str, address: str = "127.0.0.1") -> ui.Server:
        server = ui.Server(checkpoints, address=address, port=0)
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


def test_the_page_shows_the_flow_as_it_is_at_each_look(begin: Any, serve: Any, tmp_path: Path) -> None:
    process = begin(held_back(), workers=2)
    server = serve(str(tmp_path))
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}

    _, empty = get(server.url)
    assert "Epochs in flight: none" in empty
    assert "Last micro-batches" not in empty
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
    process.handles["words"].send([("a",)])
    process.batches()
    code, shown = get(server.url)

    assert code == 200
    ET.fromstring(shown.removeprefix("<!DOCTYPE html>"))
    for text in (
        "Epochs in flight: 0",
        "input words (",
        "advance or close it",
        "counted",
        "Last micro-batches",
        "rounds so far",
        "<svg",
        "&lt;b&gt;held",
    ):
        assert text in shown
    assert "<b>held" not in shown


def test_a_checkpoint_that_cannot_be_read_is_told_and_the_others_are_shown(
    begin: Any, serve: Any, tmp_path: Path
) -> None:
    begin(held_back(), workers=1)
    server = serve("/no/such", str(tmp_path))

    assert "/no/such holds no checkpoint of a flow" in get(server.url)[1]
    assert "Epochs in flight" in get(server.url.replace("flow=0", "flow=1"))[1]
    (flow,) = (tmp_path / "timely" / "flows").iterdir()
    flow.write_text("{")
    assert "restore the whole checkpoint" in get(server.url.replace("flow=0", "flow=1"))[1]


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
    assert f"cannot listen at 127.0.0.1:{port}" in capsys.readouterr().err


def test_the_drawing_is_not_in_the_status_for_programs(
    begin: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    begin(held_back(), workers=2)

    assert main(["status", "--json", str(tmp_path)]) == 0
    assert "drawing" not in json.loads(capsys.readouterr().out)


def ask(server: ui.Server, request: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=20) as connection:
        connection.sendall(request)
        connection.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: connection.recv(1 << 16), b""))


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
    monkeypatch.setattr(ui._Handler, "timeout", 0.05)
    server = serve("/no/such")
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=20) as connection:
        connection.sendall(b"GET / HT")
        assert connection.recv(100) == b""
    assert get(server.url)[0] == 200


CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed on this machine")
def test_a_browser_shows_it_under_the_rules_that_the_page_sets(
    begin: Any, serve: Any, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    begin(held_back(), workers=2)
    profile = tmp_path_factory.mktemp("profile")
    url = serve(str(tmp_path)).url
    flags = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}"]
    command = [str(CHROMIUM), *flags, "--enable-logging=stderr", "--dump-dom", url]
    browser = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)

    assert "Epochs in flight: none" in browser.stdout
    assert "<svg" in browser.stdout
    assert "Content Security Policy" not in browser.stderr, "its own style or drawing is forbidden"
