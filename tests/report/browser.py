"""A headless Chromium that loads a page and answers questions about it.

It is spoken to over a pipe in the Chrome DevTools Protocol (https://chromedevtools.github.io/
devtools-protocol/), so that pages are measured as they are, with no script of ours in them.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
MISSING = (
    "the page of a report is tested in headless Chromium, which is not installed: "
    "apt-get install --no-install-recommends chromium"
)
SECONDS = 60


class Browser:
    """One Chromium with an empty profile; a context manager."""

    def __init__(self) -> None:
        found = next(filter(None, map(shutil.which, NAMES)), None)
        if found is None:
            pytest.fail(MISSING)
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self._process, self._write, self._read = _start(found, self._profile.name)
        self._buffer = b""
        self._last = 0
        self._events: list[dict[str, Any]] = []

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # The browser's own children are in its group; a wait alone would leave them if it hangs.
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        os.close(self._write)
        os.close(self._read)
        self._profile.cleanup()

    def open(self, path: Path, *, dark: bool = False, width: int = 1240) -> Page:
        """Load a file and wait for it."""
        target = self.call("Target.createTarget", {"url": "about:blank"})["targetId"]
        attach = {"targetId": target, "flatten": True}
        page = Page(self, self.call("Target.attachToTarget", attach)["sessionId"])
        for domain in ("Page", "Runtime", "Log", "Network"):
            page.call(f"{domain}.enable")
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        page.call("Emulation.setEmulatedMedia", {"features": scheme})
        size = {"width": width, "height": 1400, "deviceScaleFactor": 1, "mobile": False}
        page.call("Emulation.setDeviceMetricsOverride", size)
        page.call("Page.navigate", {"url": path.as_uri()})
        page.wait_for("Page.loadEventFired")
        return page

    def call(
        self, method: str, params: dict[str, Any] | None = None, session: str | None = None
    ) -> dict[str, Any]:
        """One command of the protocol; its result."""
        self._last += 1
        message: dict[str, Any] = {"id": self._last, "method": method, "params": params or {}}
        if session is not None:
            message["sessionId"] = session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._write, data) :]
        while True:
            answer = self._receive()
            if answer.get("id") == self._last:
                assert "error" not in answer, f"{method}: {answer['error']}"
                result: dict[str, Any] = answer["result"]
                return result
            self._events.append(answer)

    def events(self, session: str) -> Sequence[dict[str, Any]]:
        """What the browser has told about a page so far."""
        return [event for event in self._events if event.get("sessionId") == session]

    def wait(self, session: str, method: str) -> None:
        """Wait for an event."""
        while not any(event["method"] == method for event in self.events(session)):
            self._events.append(self._receive())

    def _receive(self) -> dict[str, Any]:
        deadline = time.monotonic() + SECONDS
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], deadline - time.monotonic())
            assert ready, f"the browser said nothing for {SECONDS} s"
            received = os.read(self._read, 1 << 20)
            assert received, "the browser ended"
            self._buffer += received
        message, _, self._buffer = self._buffer.partition(b"\0")
        content: dict[str, Any] = json.loads(message)
        return content


class Page:
    """A loaded page."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser = browser
        self._session = session

    def call(self, method: str, params: dict[str, Any] | None = None) -> dict[str, Any]:
        return self._browser.call(method, params, self._session)

    def wait_for(self, event: str) -> None:
        self._browser.wait(self._session, event)

    def ask(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page."""
        answer = self.call("Runtime.evaluate", {"expression": expression, "returnByValue": True})
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def click(self, x: float, y: float) -> None:
        """A click of the left button at a point of the window."""
        for kind in ("mousePressed", "mouseReleased"):
            self.call(
                "Input.dispatchMouseEvent",
                {"type": kind, "x": x, "y": y, "button": "left", "clickCount": 1},
            )

    @property
    def problems(self) -> list[str]:
        """What it wrote to the console, errors and refused content among it."""
        self.ask("0")
        told = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")
        events = self._browser.events(self._session)
        return [json.dumps(event["params"]) for event in events if event["method"] in told]

    @property
    def requests(self) -> list[str]:
        """Addresses that it asked for."""
        events = self._browser.events(self._session)
        return [
            event["params"]["request"]["url"]
            for event in events
            if event["method"] == "Network.requestWillBeSent"
        ]


def _start(program: str, profile: str) -> tuple[subprocess.Popen[bytes], int, int]:
    """The process, where to write to it and where to read from it."""
    its_read, write = os.pipe()
    read, its_write = os.pipe()
    # Copies above 10, so that moving one to 3 does not close the other that lies at 3.
    sources = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10) for fd in (its_read, its_write)]

    def wire() -> None:
        os.dup2(sources[0], 3)
        os.dup2(sources[1], 4)

    process = subprocess.Popen(
        [
            program,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--remote-debugging-pipe",
            f"--user-data-dir={profile}",
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=(3, 4),
        preexec_fn=wire,
        start_new_session=True,
    )
    for descriptor in (its_read, its_write, *sources):
        os.close(descriptor)
    return process, write, read
