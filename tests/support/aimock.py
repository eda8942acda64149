"""A fake model nobody here wrote: npm's @copilotkit/aimock, a real server on a real port, told by fixtures what to say.

    with Aimock([{"match": {"userMessage": "hello"}, "response": {"content": "Hi!"}}]) as mock:
        EndpointModel("fake", mock.base_url, "key")
        mock.requests()     # the bodies it was sent

A fixture is {"match": …, "response": …} and may have latency (milliseconds before each piece), chunkSize (characters a
piece), streamingProfile {"ttft", "tps"}, truncateAfterChunks, disconnectAfterMs, chaos. The first that matches counts.
match: userMessage (part of the last user message), systemMessage, toolCallId, toolName, toolResultContains, model,
hasToolResult (in this turn), turnIndex (assistant messages so far), sequenceIndex (the n-th such request).
response: content, toolCalls [{"name", "arguments", "id"}], reasoning, usage, finishReason, model; or error {"message",
"type", "code"} with status and retryAfter. A request nothing matches gets an error: say what it should be instead.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any

import pytest

from tests.support.environments import npm
from tests.support.ports import free_port
from tests.support.waiting import PATIENCE

VERSION = "1.43.0"
PACKAGE = "@copilotkit/aimock"
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # never through a proxy to this machine


def installed() -> Path:
    """The folder of the package, installed on first use by whichever test process comes first."""
    return npm("aimock", [f"{PACKAGE}@{VERSION}"], quick=True) / "node_modules" / PACKAGE


class Aimock:
    """The server, running until `close` (or the end of the `with` block)."""

    def __init__(self, fixtures: Sequence[dict[str, Any]], *, options: Sequence[str] = ()) -> None:
        package = installed()
        self._folder = TemporaryDirectory(prefix="aimock-")
        file = Path(self._folder.name) / "fixtures.json"
        file.write_text(json.dumps({"fixtures": list(fixtures)}))
        self._log = open(Path(self._folder.name) / "log", "w+")
        self._process: subprocess.Popen[bytes] | None = None
        for _ in range(5):  # another process may take the port between looking and listening
            self.port = free_port()
            self._process = subprocess.Popen(
                ["node", str(package / "dist" / "cli.js"), "--port", str(self.port), "--fixtures", str(file),
                 "--log-level", "warn", "--validate-on-load", *options],
                stdout=self._log, stderr=self._log, stdin=subprocess.DEVNULL, env={**os.environ, "AIMOCK_STRICT_TURN_INDEX": "1"},
            )  # fmt: skip
            if self._answers():
                return
            self.stop()
        raise RuntimeError(f"aimock does not start: {self.log()}")

    @property
    def root(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def base_url(self) -> str:
        """The OpenAI-compatible address."""
        return f"{self.root}/v1"

    def requests(self) -> list[dict[str, Any]]:
        """The bodies of the chat requests so far, in order."""
        return [entry["body"] for entry in self.journal() if entry["path"].endswith("/chat/completions")]

    def journal(self) -> list[dict[str, Any]]:
        """Every request, with its headers and what it was answered."""
        with _OPENER.open(f"{self.root}/__aimock/journal", timeout=10) as answer:
            entries: list[dict[str, Any]] = json.load(answer)
        return entries

    def log(self) -> str:
        """The log of the model server."""
        self._log.flush()
        return Path(self._log.name).read_text()[-2000:]

    def stop(self) -> None:
        """Stop answering; the port is free then."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def close(self) -> None:
        """Stop, and remove what it wrote."""
        self.stop()
        self._log.close()
        self._folder.cleanup()

    def __enter__(self) -> Aimock:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _answers(self) -> bool:
        assert self._process is not None
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                with _OPENER.open(f"{self.root}/health", timeout=5):
                    return self._process.poll() is None
            except OSError:
                time.sleep(0.05)
        return False


def fixtures_of(text: str, **more: Any) -> list[dict[str, Any]]:
    """One fixture that answers everything with this text."""
    return [{"match": {}, "response": {"content": text}, **more}]


@pytest.fixture
def aimock() -> Iterator[Any]:
    """aimock(fixtures) → a running server; all are stopped after the test."""
    running: list[Aimock] = []

    def start(fixtures: Sequence[dict[str, Any]], **kw: Any) -> Aimock:
        running.append(Aimock(fixtures, **kw))
        return running[-1]

    yield start
    for server in running:
        server.close()
