"""`hermes acp` with a client of others: npm's acpx goes through every method, and kill -9 in a prompt loses nothing."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.chat.conftest import *  # noqa: F403  the model server and the home that points to it
from tests.chat.server import Call, Gate, ModelServer
from tests.serve.test_acp_server import stored
from tests.support.node import node_folder, npm_program
from tests.support.optional import library
from tests.support.program import PROGRAM, environment
from tests.support.sizes import THOROUGH

pytestmark = pytest.mark.thorough

library("acp")
ACPX = "acpx@0.19.1"
Lines = list[dict[str, Any]]


class Acpx:
    """acpx in a folder, with its own home; each call gives the JSON lines it printed."""

    def __init__(self, home: Path, folder: Path) -> None:
        self.home, self.folder = home, folder
        given = environment(home, {"HOME": str(folder / "user")})
        (folder / "user").mkdir()
        self.env = given | {"PATH": os.pathsep.join([str(node_folder() / "bin"), given["PATH"]])}
        agent = shlex.join([*PROGRAM, "acp"])
        self.words = [*npm_program("acpx", ACPX, "acpx"), "--agent", agent, "--format", "json", "--ttl", "60"]

    def start(self, *words: str) -> subprocess.Popen[str]:
        pipes: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen([*self.words, *words], env=self.env, cwd=self.folder, text=True, **pipes)

    def __call__(self, *words: str) -> Lines:
        return self.finished(self.start(*words))

    def finished(self, process: subprocess.Popen[str], *, ok: bool = True) -> Lines:
        out, err = process.communicate(timeout=120)
        assert (process.returncode == 0) == ok, out[-2000:] + err[-2000:]
        return [json.loads(line) for line in out.splitlines() if line.startswith("{")]

    def running(self) -> dict[int, str]:
        """The processes that this acpx started and that still run: their ids and commands."""
        found = {}
        mark = f"HOME={self.folder / 'user'}".encode()
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and mark in (entry / "environ").read_bytes().split(b"\0"):
                    found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue  # it has ended
        return found


@pytest.fixture
def acpx(home: Path, tmp_path: Path) -> Iterator[Acpx]:
    one = Acpx(home, tmp_path)
    yield one
    for number in one.running():
        try:
            os.kill(number, signal.SIGKILL)
        except ProcessLookupError:
            pass


def said(lines: Lines, kind: str = "agent_message_chunk") -> str:
    updates = [one["params"]["update"] for one in lines if one.get("method") == "session/update"]
    return "".join(one["content"]["text"] for one in updates if one["sessionUpdate"] == kind)


def until_shown(prompt: subprocess.Popen[str], text: str) -> Lines:
    """The lines of acpx up to the one that shows this text, which is stored by then."""
    assert prompt.stdout is not None
    lines: Lines = []
    for line in prompt.stdout:
        lines += [json.loads(line)] if line.startswith("{") else []
        if text in said(lines):
            break
    return lines


def stop_reason(lines: Lines) -> str:
    return next(one["result"]["stopReason"] for one in lines if "stopReason" in (one.get("result") or {}))


@pytest.mark.skipif(not THOROUGH, reason="a dozen processes of acpx; HERMES_TEST_SIZE=all")
def test_acpx_goes_through_every_method(server: ModelServer, home: Path, acpx: Acpx) -> None:
    server.models = ("test-model", "other-model")
    server.scripts = [["Hello ", "there."]]
    once = acpx("exec", "hi")
    assert (said(once), stop_reason(once)) == ("Hello there.", "end_turn")

    acpx("sessions", "new", "--name", "a")
    server.scripts = [["The first."]]
    first = acpx("prompt", "-s", "a", "one")
    assert said(first) == "The first."
    session = next(one["params"]["sessionId"] for one in first if one.get("method") == "session/update")
    listed = acpx("sessions", "list", "--filter-cwd", str(acpx.folder))[0]["sessions"]
    assert session in [one["sessionId"] for one in listed] and len(listed) == 2

    acpx("prompt", "-s", "a", "/model other-model")
    assert acpx("set-mode", "-s", "a", "all")[0]["modeId"] == "all"

    (acpx.folder / "x").write_text("x")
    for policy, is_there in (("--deny-all", True), ("--approve-all", False)):
        server.scripts = [[Call("terminal", command="rm x")], ["Done."]]
        prompt = acpx.start(policy, "prompt", "-s", "a", f"remove it, {policy}")
        answered = acpx.finished(prompt, ok=not is_there)  # acpx fails when everything was denied
        asked = [one for one in answered if one.get("method") == "session/request_permission"]
        kinds = [one["kind"] for one in asked[0]["params"]["options"]]
        assert kinds == ["allow_once", "allow_always", "reject_once"] and (acpx.folder / "x").exists() == is_there
    assert server.requests[-1]["model"] == "other-model"

    gate = Gate()
    server.scripts = [["half an answer ", gate]]
    prompt = acpx.start("prompt", "-s", "a", "go on")
    shown = until_shown(prompt, "half an answer ")
    assert acpx("cancel", "-s", "a")[0]["cancelled"] is True
    gate.open.set()
    assert said(shown) == "half an answer " and stop_reason(acpx.finished(prompt)) == "cancelled"
    acpx("sessions", "close", "a")
    roles = [role for role, _ in stored(home, session)]
    assert roles == ["user", "assistant", *(["user", "assistant", "tool", "assistant"] * 2), "user", "assistant"]
    assert stored(home, session)[-2:] == [("user", "go on"), ("assistant", "half an answer ")]
