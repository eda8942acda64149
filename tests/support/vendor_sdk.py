"""A vendor's own SDK (npm, PyPI) that plays against one of our labs: a process that takes commands and reports events.

    with VendorSdk("mattermost.cjs", ["@mattermost/client@11.9.0"]) as sdk:
        sdk("connect", url=lab.settings["url"], token="…")      # a function of tests/real/sdk/mattermost.cjs
        sdk.told("message")                                     # what the SDK reported so far

The point: a lab and an adapter of ours share one reading of the vendor's documentation. The vendor's client does not.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.support.environments import environment, npm
from tests.support.labs.base import until

SCRIPTS = Path(__file__).parent.parent / "real" / "sdk"


class SdkError(Exception):
    """The SDK refused a command or the answer of the server."""


class VendorSdk:
    """A running script of tests/real/sdk with its packages installed: .cjs with those of npm, .py with those of PyPI."""

    def __init__(self, script: str, packages: Sequence[str], *, options: Sequence[str] = ()) -> None:
        given = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR", "LANG") if name in os.environ}
        given |= {"NO_PROXY": "127.0.0.1", "PYTHONUTF8": "1"}
        name = f"sdk-{Path(script).stem.replace('_', '-')}"
        if script.endswith(".py"):
            program = str(environment(name, packages, options=options) / "python")
        else:
            program = "node"
            given["NODE_PATH"] = str(npm(name, packages, options=options) / "node_modules")
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        words = [program, str(SCRIPTS / script)]
        self._process = subprocess.Popen(words, env=given, text=True, encoding="utf-8", **pipes)
        self._ids = itertools.count(1)
        self._answers: dict[int, dict[str, Any]] = {}
        self.events: list[tuple[str, Any]] = []
        self._errors: list[str] = []
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._read, self._read_errors)]
        for thread in self._threads:
            thread.start()
        self.wait("ready")

    def __call__(self, name: str, /, **args: Any) -> Any:
        """Run a command of the script; its value."""
        number = next(self._ids)
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"id": number, "name": name, "args": args}) + "\n")
        self._process.stdin.flush()
        until(lambda: number in self._answers or self._ended(), f"{name} is not answered")
        assert number in self._answers, f"the SDK ended: {self.output}"
        answer = self._answers.pop(number)
        if "error" in answer:
            raise SdkError(answer["error"])
        return answer["value"]

    def told(self, name: str) -> list[Any]:
        """The reports of the SDK under this name so far."""
        return [data for event, data in list(self.events) if event == name]

    def wait(self, name: str, count: int = 1) -> list[Any]:
        """The reports under this name when there are so many."""
        until(
            lambda: len(self.told(name)) >= count or self._ended(),
            lambda: f"{name} did not come {count} times: {self.events} {self.output}",
        )
        found = self.told(name)
        assert len(found) >= count, f"the SDK ended: {self.output}"
        return found

    def forget(self) -> None:
        """Drop the reports so far."""
        self.events.clear()

    @property
    def output(self) -> str:
        """The log of the SDK."""
        return "".join(self._errors)[-3000:]

    def _ended(self) -> bool:
        return self._process.poll() is not None and not self._threads[0].is_alive()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            item = json.loads(line)
            if "event" in item:
                self.events.append((item["event"], item["data"]))
            else:
                self._answers[item["id"]] = item

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        self._errors.extend(self._process.stderr)

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for thread in self._threads:
            thread.join(5)
        for pipe in (self._process.stdout, self._process.stderr):
            assert pipe is not None
            pipe.close()

    def __enter__(self) -> VendorSdk:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
