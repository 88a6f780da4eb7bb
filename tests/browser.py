"""A headless Chromium that opens a page and tells what it saw, by its debugging pipe.

The protocol is Chrome's DevTools protocol: JSON messages that end with a NUL byte, read by the
browser from descriptor 3 and written to descriptor 4.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
TIMEOUT_S = 60.0
INSTALL = "no chromium here: apt-get install --no-install-recommends chromium"
OPTIONS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run",
           "--disable-background-networking", "--remote-debugging-pipe")  # fmt: skip


def executable() -> str | None:
    return shutil.which("chromium")


def artefacts() -> Path:
    """The folder for what people look at: $ORCHESTRATE_ARTEFACTS, else .artefacts/."""
    folder = Path(os.environ.get("ORCHESTRATE_ARTEFACTS", ROOT / ".artefacts"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@dataclass
class Browser:
    """One page of a running browser. complaints: console messages, faults and failed requests."""

    reading: int
    writing: int
    session: str = ""
    number: int = 0
    rest: bytes = b""
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    loaded: int = 0

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """What the browser answers. Fails if it refuses, or says nothing for a minute."""
        self.number += 1
        message: dict[str, Any] = {"id": self.number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.writing, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self.number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                result: dict[str, Any] = answer["result"]
                return result

    def show(self, page: Path, *, width: int = 1280, dark: bool = False) -> None:
        """Open a page, and wait until it is drawn."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        before = self.loaded
        self.call("Page.navigate", url=page.resolve().as_uri())
        while self.loaded == before:
            self._next()

    def value(self, expression: str) -> Any:
        """What a line of JavaScript comes to in the page."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def screenshot(self, path: Path) -> bytes:
        """The whole page as a PNG."""
        taken = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        data = base64.b64decode(taken["data"])
        path.write_bytes(data)
        return data

    def _next(self) -> dict[str, Any]:
        """The next message; an event is noted."""
        deadline = time.monotonic() + TIMEOUT_S
        while b"\0" not in self.rest:
            ready, _, _ = select.select([self.reading], [], [], deadline - time.monotonic())
            assert ready, "the browser says nothing"
            data = os.read(self.reading, 1 << 20)
            assert data, "the browser has gone"
            self.rest += data
        text, _, self.rest = self.rest.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        self._note(message.get("method", ""), message.get("params", {}))
        return message

    def _note(self, method: str, params: dict[str, Any]) -> None:
        if method == "Page.loadEventFired":
            self.loaded += 1
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif method in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded",
                        "Network.loadingFailed"):  # fmt: skip
            self.complaints.append(f"{method}: {json.dumps(params)[:2000]}")


@contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    """A browser with an empty page; `folder` holds its profile. It is gone afterwards."""
    program = executable()
    assert program is not None
    theirs, writing = os.pipe()
    reading, their_end = os.pipe()
    script = f'exec "$0" "$@" 3<&{theirs} 4>&{their_end}'
    arguments = [program, *OPTIONS, f"--user-data-dir={folder}", "about:blank"]
    with (folder / "browser.log").open("wb") as log:
        process = subprocess.Popen(
            ["bash", "-c", script, *arguments], pass_fds=(theirs, their_end), stdout=log, stderr=log
        )
    os.close(theirs)
    os.close(their_end)
    try:
        yield _attached(Browser(reading, writing))
    finally:
        process.terminate()
        process.wait(timeout=TIMEOUT_S)
        os.close(reading)
        os.close(writing)


def _attached(made: Browser) -> Browser:
    target = made.call("Target.createTarget", url="about:blank")["targetId"]
    attached = made.call("Target.attachToTarget", targetId=target, flatten=True)
    made.session = attached["sessionId"]
    for domain in ("Page", "Runtime", "Log", "Network"):
        made.call(f"{domain}.enable")
    return made
