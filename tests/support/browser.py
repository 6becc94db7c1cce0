"""A headless Chromium, driven over a pipe by its own protocol, as far as tests of a page need it."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium-headless-shell", "chromium", "google-chrome"))), None
)
#: Why a test that needs one is skipped.
NONE = "no Chromium: `apt-get install chromium` (.ci/run does that, where there is apt)"


class Browser:
    """A browser with one page. `complaints` has its errors: of the script, and of what the page forbids."""

    def __init__(self, profile: Path) -> None:
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()
        flags = [
            "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--remote-debugging-pipe",
            f"--user-data-dir={profile}", "about:blank",
        ]  # fmt: skip
        fixed = f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}'  # the pipe is where Chromium expects it
        self._process = subprocess.Popen(
            ["bash", "-c", fixed, "bash", str(CHROMIUM), *flags],
            pass_fds=(theirs_in, theirs_out), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(theirs_in)
        os.close(theirs_out)
        self._rest, self._number, self._session = b"", 0, ""
        self.complaints: list[str] = []
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self._call(f"{domain}.enable")

    def close(self) -> None:
        """End the browser."""
        self._process.kill()
        self._process.wait()
        os.close(self._in)
        os.close(self._out)

    def open(self, url: str, *, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """Open a page, and forget the complaints of the one before."""
        self._call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1,
            mobile=width < 500,
        )  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._call("Emulation.setEmulatedMedia", features=[scheme])
        self._call(
            "Page.navigate", url="about:blank"
        )  # its connections end before the complaints are cleared
        self.complaints.clear()
        self._call("Page.navigate", url=url)
        self.until(f"document.readyState === 'complete' && location.href === {json.dumps(url)}")

    def ask(self, expression: str) -> Any:
        """The value of a script's expression."""
        found = self._call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def until(self, expression: str, seconds: float = 60.0) -> None:
        """Wait until an expression is true."""
        limit = time.monotonic() + seconds
        while not self.ask(expression):
            assert time.monotonic() < limit, (
                f"{expression} is not true:\n{self.ask('document.body.innerText')}"
            )
            time.sleep(0.05)

    def press(self, key: str) -> None:
        """Press a key."""
        for kind in ("keyDown", "keyUp"):
            self._call("Input.dispatchKeyEvent", type=kind, key=key)

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        """Move the mouse, press or release its button, or turn its wheel (with Ctrl, if modifiers=2)."""
        button = {"button": "left", "clickCount": 1, "buttons": 1} if kind != "mouseWheel" else {}
        self._call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **button, **more)

    def picture(self) -> bytes:
        """What is seen, as PNG."""
        return base64.b64decode(self._call("Page.captureScreenshot")["data"])

    def _call(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        asked = {"id": self._number, "method": method, "params": params}
        asked |= {"sessionId": self._session} if self._session else {}
        os.write(self._out, json.dumps(asked).encode() + b"\0")
        while (answer := self._read()).get("id") != self._number:
            if answer.get("method") == "Log.entryAdded":
                self.complaints.append(str(answer["params"]["entry"]["text"]))
            elif answer.get("method") == "Runtime.exceptionThrown":
                self.complaints.append(str(answer["params"]["exceptionDetails"]))
        assert "error" not in answer, answer
        return dict(answer["result"])

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            more = os.read(self._in, 1 << 20)
            assert more, "the browser has ended"
            self._rest += more
        message, _, self._rest = self._rest.partition(b"\0")
        found: dict[str, Any] = json.loads(message)
        return found
