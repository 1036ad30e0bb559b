"""A headless Chromium driven over its DevTools protocol; no driver and no download of its own."""

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
from typing import Any

from websockets.sync.client import connect

FLAGS = (
    "--headless",
    "--no-sandbox",  # Chromium's own sandbox does not start as root, which containers are
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--remote-debugging-port=0",
)


class Browser:
    """One browser with one page; every request and every dialog of the page is remembered."""

    def __init__(self, executable: str) -> None:
        self.requests: list[str] = []
        self.dialogs: list[str] = []
        self.errors: list[str] = []
        self._next = 0
        self._profile = tempfile.mkdtemp(prefix="cachewatch-chromium-")
        self._process = subprocess.Popen(
            [executable, *FLAGS, f"--user-data-dir={self._profile}", "about:blank"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        port_file = Path(self._profile, "DevToolsActivePort")
        deadline = time.monotonic() + 60
        while not port_file.exists() or len(port_file.read_text().splitlines()) < 2:
            if time.monotonic() > deadline or self._process.poll() is not None:
                self.close()
                raise RuntimeError("Chromium did not start")
            time.sleep(0.1)
        port, path = port_file.read_text().splitlines()[:2]
        self._socket = connect(f"ws://127.0.0.1:{port}{path}", max_size=None, proxy=None)
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command to the page and wait for its answer."""
        return self._call(method, self._session, **params)

    def open(
        self, address: str, width: int = 1280, height: int = 900, mobile: bool = False, scheme: str = "light"
    ) -> None:
        """Open an address in a window of a size and colour scheme, and wait until it has loaded."""
        self.requests.clear()
        self.dialogs.clear()
        self.errors.clear()
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=mobile)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.call("Page.navigate", url=address)
        self.wait_for("document.readyState === 'complete'")

    def evaluate(self, expression: str) -> Any:
        """Run JavaScript in the page and give back its value."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise AssertionError(answer["exceptionDetails"].get("exception", {}).get("description", "script failed"))
        return answer["result"].get("value")

    def wait_for(self, expression: str, seconds: float = 30.0) -> None:
        """Wait until an expression is true."""
        deadline = time.monotonic() + seconds
        while not self.evaluate(f"Boolean({expression})"):
            assert time.monotonic() < deadline, f"never true: {expression}\n{self.text()[:3000]}"
            time.sleep(0.1)

    def click(self, words: str) -> None:
        """Click in the middle of the smallest element that shows just these words."""
        place = self.evaluate(
            "(() => { const found = [...document.querySelectorAll('body *')].filter((e) => e.innerText !== undefined &&"
            f" e.innerText.trim() === {json.dumps(words)} && e.getClientRects().length).pop();"
            " if (!found) return null; found.scrollIntoView({block: 'center', behavior: 'instant'});"
            " const r = found.getBoundingClientRect(); return [r.x + r.width / 2, r.y + r.height / 2]; })()"
        )
        assert place is not None, f"nothing shows {words!r}\n{self.text()[:2000]}"
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=place[0], y=place[1], button="left", clickCount=1)

    def write(self, selector: str, words: str) -> None:
        """Write into the first field of a selector, as a person's keys would."""
        self.evaluate(f"document.querySelector({json.dumps(selector)}).focus()")
        self.call("Input.insertText", text=words)

    def text(self) -> str:
        """What the page shows."""
        return str(self.evaluate("document.body ? document.body.innerText : ''"))

    def screenshot(self, path: Path, whole: bool = False) -> None:
        """Write what is seen, or the whole page, as PNG."""
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(data))

    def pdf(self) -> bytes:
        """Print the page."""
        return base64.b64decode(self.call("Page.printToPDF", printBackground=True)["data"])

    def close(self) -> None:
        """End the browser."""
        with contextlib.suppress(Exception):
            self._call("Browser.close")
            self._socket.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self._profile, ignore_errors=True)

    def _call(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        self._next += 1
        number = self._next
        message: dict[str, Any] = {"id": number, "method": method, "params": params}
        if session is not None:
            message["sessionId"] = session
        self._socket.send(json.dumps(message))
        while True:
            answer = json.loads(self._socket.recv(timeout=60))
            if answer.get("id") == number:
                if "error" in answer:
                    raise AssertionError(f"{method}: {answer['error']['message']}")
                result: dict[str, Any] = answer["result"]
                return result
            self._note(answer)

    def _note(self, event: dict[str, Any]) -> None:
        params = event.get("params", {})
        if event.get("method") == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif event.get("method") == "Page.javascriptDialogOpening":
            self.dialogs.append(params["message"])
            self._next += 1
            dismiss = {"id": self._next, "method": "Page.handleJavaScriptDialog", "params": {"accept": False}}
            self._socket.send(json.dumps({**dismiss, "sessionId": self._session}))
        elif event.get("method") == "Runtime.exceptionThrown":
            self.errors.append(params["exceptionDetails"].get("text", ""))


def find_chromium() -> str | None:
    """Find Debian's Chromium, or another."""
    names = ("chromium", "chromium-browser", "google-chrome")
    return os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, names)), None)
