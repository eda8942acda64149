"""The line of a tool call says how it ended: a failure, a stop and a no are never a tick."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.chat.server import Call, ModelServer
from tests.support.screen import Screen

Open = Callable[..., Screen]
Look = Callable[[Callable[[Any], Any]], Any]


def test_a_failing_command_has_a_cross_and_its_exit_status(server: ModelServer, open_screen: Open) -> None:
    server.scripts = [
        [
            Call("terminal", command="false"),
            Call("terminal", command="echo out; exit 3"),
            Call("terminal", command="kill -KILL $$"),
            Call("terminal", command="sleep 60", timeout=0.2),
            Call("terminal", command="true"),
            Call("no_such_tool"),
        ],
        ["Tried."],
    ]
    screen = open_screen("--yes")
    screen.line("try these")
    text = screen.wait_for("Tried.")
    lines = [line.strip() for line in text.splitlines() if re.match(r"\s+[✓✗] ", line)]
    assert [re.sub(r"\d+\.\ds$", "…", line) for line in lines] == [
        "✗ terminal  false  exit 1  …",
        "✗ terminal  echo out; exit 3  exit 3  …",
        "✗ terminal  kill -KILL $$  ended by SIGKILL  …",
        "✗ terminal  sleep 60  timed out  …",
        "✓ terminal  true  …",
        "✗ no_such_tool  failed  …",
    ]
    results = [message["content"] for message in server.requests[1]["messages"] if message["role"] == "tool"]
    assert results[:2] == ["(no output)\n[exit status 1]", "out\n[exit status 3]"]  # what the model gets is as before


def test_calls_stand_in_the_order_they_were_made(server: ModelServer, open_screen: Open, tmp_path: Path) -> None:
    wait = f"while [ ! -e {tmp_path}/go ]; do sleep 0.05; done"
    server.scripts = [[Call("terminal", command=wait), Call("terminal", command=f"touch {tmp_path}/go")], ["Tried."]]
    screen = open_screen("--yes", width=160)
    screen.line("try these")
    lines = [line for line in screen.wait_for("Tried.").splitlines() if "✓ terminal" in line]
    assert "while" in lines[0] and "touch" in lines[1]


def test_a_command_stopped_by_ctrl_c_says_stopped(server: ModelServer, open_screen: Open) -> None:
    server.scripts = [[Call("terminal", command="echo begun; sleep 60")]]
    screen = open_screen()
    screen.line("wait")
    screen.wait_for("terminal  echo begun")
    screen.press("C-c")
    text = screen.wait_for("Stopped.")
    assert re.search(r"✗ terminal  echo begun; sleep 60  stopped  \d+\.\ds", text)
    assert "✓" not in text
