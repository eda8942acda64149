"""A page in a real browser, without a network: what it shows, measures, asks for and complains about.

Chromium is spoken to over its debugging pipe (JSON, parted by NUL), so no further library is needed.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

from tests.support.waiting import until

_OPTIONS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-dev-shm-usage",
    "--no-first-run", "--remote-debugging-pipe",
)  # fmt: skip


def _high(descriptor: int) -> int:
    """Move a descriptor to a number of at least 10: the browser expects its own pipes as 3 and 4."""
    other = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 10)
    os.close(descriptor)
    return other


class Browser:
    """A browser with one tab, or more. Without Chromium the test is skipped, unless HERMES_TEST_REQUIRE=all."""

    def __init__(self) -> None:
        program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
        if program is None:
            if os.environ.get("HERMES_TEST_REQUIRE") == "all":
                pytest.fail("chromium is not installed")
            pytest.skip("chromium is not installed")
        self._folder = tempfile.mkdtemp(prefix="browser-")
        read, self._to = map(_high, os.pipe())
        self._from, write = map(_high, os.pipe())
        options = [*_OPTIONS, f"--user-data-dir={self._folder}", "about:blank"]
        self._process = subprocess.Popen(
            ["bash", "-c", f'exec "$@" 3<&{read} 4>&{write}', "bash", program, *options],
            pass_fds=(read, write), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(read)
        os.close(write)
        self._left, self._number, self._session = b"", 0, ""
        self.events: list[dict[str, Any]] = []
        targets = self.call("Target.getTargets")["targetInfos"]
        self.attach(next(one["targetId"] for one in targets if one["type"] == "page"))
        self.call("Emulation.setFocusEmulationEnabled", enabled=True)  # the clipboard serves only a page with the focus

    def attach(self, target: str) -> None:
        """Go on with a tab, shown or not."""
        self._session = ""
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Log", "Runtime"):
            self.call(f"{domain}.enable")

    def new_tab(self, address: str) -> str:
        """Open an address in a tab and show it: the others are hidden, except the first, which keeps the focus. Its name."""
        target: str = self.call("Target.createTarget", url=address)["targetId"]
        self.attach(target)
        return target

    def show_tab(self, name: str) -> None:
        """Show a tab that was opened before."""
        self.call("Target.activateTarget", targetId=name)
        self.attach(name)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the debugging protocol; its result."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self._number:
            self.events.append(answer)
        assert "error" not in answer, answer
        result: dict[str, Any] = answer["result"]
        return result

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._left:
            some = os.read(self._from, 1 << 20)
            assert some, "the browser is gone"
            self._left += some
        one, _, self._left = self._left.partition(b"\0")
        found: dict[str, Any] = json.loads(one)
        return found

    def shows(self, text: str) -> None:
        """Wait until the page of `hermes web` shows this."""
        self.wait(f"document.querySelector('main').innerText.includes({text!r})")

    def open(self, place: Path | str, width: int, *, dark: bool = False) -> None:
        """Show a file or an address in a window so many pixels wide, and wait until all of it is there."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 500
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.events.clear()
        self.call("Page.navigate", url=place if isinstance(place, str) else place.resolve().as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._next())

    def value(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page."""
        try:
            told = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        except AssertionError as error:
            if "Cannot find default execution context" in str(error):  # a new tab has no page yet
                return None
            raise
        return told["result"].get("value")

    def wait(self, expression: str) -> Any:
        """The value of a line of JavaScript as soon as it is true."""
        return until(lambda: self.value(expression), lambda: f"{expression}\n{self.value('document.body.innerText')}")

    def click(self, selector: str, text: str = "") -> None:
        """Click on the first element of this selector (with this text), as soon as it is there and can be seen."""
        wanted = (
            f"[...document.querySelectorAll({json.dumps(selector)})].find(one => one.checkVisibility() &&"
            f" one.textContent.includes({json.dumps(text)}))"
        )
        place = (  # its middle, once nothing lies over it
            f"(() => {{ const one = {wanted}; if (!one) return null; one.scrollIntoView({{block: 'center'}});"
            " const box = one.getBoundingClientRect(), x = box.x + box.width / 2, y = box.y + box.height / 2;"
            " return one.contains(document.elementFromPoint(x, y)) && [x, y]; })()"
        )
        spot = self.wait(place)
        while (now := self.wait(place)) != spot:  # until what comes above it has come
            spot = now
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=spot[0], y=spot[1])
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=spot[0], y=spot[1], button="left", clickCount=1)

    def wheel(self, pixels: int) -> None:
        """Turn the wheel: down, or up with a negative number."""
        self.call("Input.dispatchMouseEvent", type="mouseWheel", x=300, y=400, deltaX=0, deltaY=pixels)

    def type(self, text: str) -> None:
        """Type a text where the cursor is."""
        self.call("Input.insertText", text=text)

    def key(self, key: str) -> None:
        """Press a key: a letter, or Enter, Escape …"""
        codes = {"Enter": 13, "Escape": 27, "Tab": 9, "End": 35, "Home": 36, "PageUp": 33, "PageDown": 34}
        told: dict[str, Any] = {"key": key, "windowsVirtualKeyCode": codes.get(key, ord(key[0].upper()))}
        if key == "Enter":
            told["text"] = "\r"
        elif len(key) == 1:
            told["text"] = key
        self.call("Input.dispatchKeyEvent", type="keyDown", **told)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key)

    def hold(self, pattern: str) -> None:
        """Keep back the answers of addresses like this one (with `*`), until `release`. To be called before the page is opened."""
        self.call("Fetch.enable", patterns=[{"urlPattern": pattern, "requestStage": "Response"}])

    def held(self, count: int = 1) -> list[str]:
        """The requests whose answers are kept back, as soon as there are so many."""

        def paused() -> list[str]:
            self.value("1")
            events = [event["params"] for event in self.events if event.get("method") == "Fetch.requestPaused"]
            return [one["requestId"] for one in events]

        until(
            lambda: len(paused()) >= count,
            lambda: f"{len(paused())} of {count} requests\n{self.value('document.body.innerText')}",
        )
        return paused()

    def release(self) -> None:
        """Let the answers through that were kept back, and all that follow."""
        self.held()
        self.call("Fetch.disable")
        self.events = [event for event in self.events if event.get("method") != "Fetch.requestPaused"]

    def problems(self) -> list[str]:
        """The problems that the page reported: errors of scripts, and what the browser refused to load or run."""
        found = []
        for event in self.events:
            told = event.get("params", {})
            if event.get("method") == "Runtime.exceptionThrown":
                found.append(str(told["exceptionDetails"].get("exception", {}).get("description") or told))
            elif event.get("method") == "Log.entryAdded" and told["entry"]["level"] == "error":
                found.append(f"{told['entry']['text']} {told['entry'].get('url', '')}")
        return found

    def picture(self, file: Path) -> None:
        """Save what is seen as a PNG file."""
        file.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def asked_for(self) -> list[str]:
        """Every address the page wanted something from."""
        wanted = [event for event in self.events if event.get("method") == "Network.requestWillBeSent"]
        return [event["params"]["request"]["url"] for event in wanted]

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._to)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._from)
        shutil.rmtree(self._folder, ignore_errors=True)
