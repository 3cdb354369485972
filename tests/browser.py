"""A real browser for tests: headless Chromium, driven through its DevTools protocol.

    with Browser() as browser:
        page = browser.open(path.as_uri())
        page.evaluate("document.title")
        assert page.troubles() == []

Debian and Ubuntu have it as ``apt-get install chromium``.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from websockets.sync.client import connect

NAMES = ("chromium", "chromium-browser", "google-chrome")
HOW = "no Chromium: apt-get install chromium"
TIME_LIMIT = 60.0


def found() -> str | None:
    """Return the path of the browser, or None."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """Chromium with a temporary profile."""

    def __enter__(self) -> Browser:
        program = found()
        assert program is not None, HOW
        self._profile = tempfile.mkdtemp()
        options = ["--headless=new", "--remote-debugging-port=0", f"--user-data-dir={self._profile}", "--no-first-run"]
        options += ["--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking", "--hide-scrollbars"]
        options += ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
        self._process = subprocess.Popen(
            [program, *options, "about:blank"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        port = Path(self._profile) / "DevToolsActivePort"
        wait(lambda: port.exists() and len(port.read_text().split()) == 2)
        number, path = port.read_text().split()
        self._open = contextlib.ExitStack()
        self._link = self._open.enter_context(connect(f"ws://127.0.0.1:{number}{path}", max_size=None))
        self._number, self._events, self._session = 0, list[dict[str, Any]](), ""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()
        self._process.terminate()
        self._process.wait(TIME_LIMIT)
        shutil.rmtree(self._profile, ignore_errors=True)

    def open(self, address: str, width: int = 1200, height: int = 900, dark: bool = False) -> Page:
        """Open a new page and record its console messages."""
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = Page(self, session)
        for domain in ("Page", "Runtime", "Log"):
            page.send(f"{domain}.enable")
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        page.send("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        page.send("Emulation.setEmulatedMedia", features=[scheme])
        page.send("Page.navigate", url=address)
        page.wait("document.readyState === 'complete'")
        return page

    def send(self, method: str, session: str = "", **parameters: Any) -> Any:
        """Send a command and wait for the reply; record events that arrive meanwhile."""
        self._number += 1
        question = {"id": self._number, "method": method, "params": parameters}
        self._link.send(json.dumps(question | ({"sessionId": session} if session else {})))
        while True:
            answer = json.loads(self._link.recv(timeout=TIME_LIMIT))
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self._events.append(answer)

    def events(self, session: str) -> list[dict[str, Any]]:
        """Return the events of a page so far."""
        self.send("Runtime.evaluate", session, expression="0")  # events sent before this reply have then arrived
        return [event for event in self._events if event.get("sessionId") == session]


class Page:
    """One page of the browser."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser, self._session = browser, session

    def send(self, method: str, **parameters: Any) -> Any:
        """Call a method of the DevTools protocol."""
        return self._browser.send(method, self._session, **parameters)

    def evaluate(self, script: str) -> Any:
        """Evaluate an expression, and await it if it is a promise."""
        found = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise RuntimeError(found["exceptionDetails"]["exception"].get("description", script))
        return found["result"].get("value")

    def wait(self, script: str) -> None:
        """Wait until an expression is true."""
        try:
            wait(lambda: self.evaluate(script))
        except TimeoutError:
            raise TimeoutError(f"{script} did not become true; troubles: {self.troubles()}") from None

    def click(self, x: float, y: float) -> None:
        """Click at a point of the window."""
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            more = {} if kind == "mouseMoved" else {"button": "left", "clickCount": 1}
            self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def press(self, key: str) -> None:
        """Press a key, for instance ArrowLeft."""
        codes = {"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, "Enter": 13, "Tab": 9}
        for kind in ("keyDown", "keyUp"):
            code = {"windowsVirtualKeyCode": codes[key]}
            self.send("Input.dispatchKeyEvent", type=kind, key=key, code=key, **code)

    def troubles(self) -> list[str]:
        """Return console errors and warnings, uncaught exceptions, and dialogs that opened."""
        said = []
        for event in self._browser.events(self._session):
            about = event["params"]
            if event["method"] == "Runtime.exceptionThrown":
                details = about["exceptionDetails"]
                said.append(details.get("exception", {}).get("description", details["text"]))
            elif event["method"] == "Runtime.consoleAPICalled" and about["type"] in ("error", "warning", "assert"):
                said.append(" ".join(str(part.get("value", part.get("description"))) for part in about["args"]))
            elif event["method"] == "Log.entryAdded" and about["entry"]["level"] in ("error", "warning"):
                said.append(about["entry"]["text"])
            elif event["method"] == "Page.javascriptDialogOpening":
                said.append(f"a dialogue: {about['message']}")
        return said

    def picture(self, path: Path, whole: bool = False) -> None:
        """Take a screenshot of the window or of the whole page."""
        if whole:
            size = self.send("Page.getLayoutMetrics")["cssContentSize"]
            clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
            data = self.send("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)["data"]
        else:
            data = self.send("Page.captureScreenshot", format="png")["data"]
        path.write_bytes(base64.b64decode(data))


def wait(condition: Any) -> None:
    """Wait until the condition holds; raise TimeoutError after a while."""
    end = time.monotonic() + TIME_LIMIT
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError("the browser took too long")
        time.sleep(0.02)
