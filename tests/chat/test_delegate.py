"""delegate: sub-agents side by side in sessions of their own, in the parent's total, ended with it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.chat.server import Call, Gate, ModelServer
from tests.support.program import run
from tests.support.screen import Screen

Open = Callable[..., Screen]
Look = Callable[[Callable[[Any], Any]], Any]


class Team(ModelServer):
    """A parent that gives two tasks, and two sub-agents, each of which the test lets go on."""

    def __init__(self) -> None:
        super().__init__()
        self.gates = {"left": Gate(), "right": Gate()}

    def script_for(self, body: dict[str, Any]) -> list[Any]:
        if "max_tokens" in body or "stream_options" not in body:
            return super().script_for(body)
        self.requests.append(body)
        last = body["messages"][-1]
        text = str(last["content"])
        for name, gate in self.gates.items():
            if text.startswith(f"count the {name}"):
                return [gate, Call("terminal", command=f"echo {name} side")]
            if last["role"] == "tool" and text.startswith(f"{name} side"):
                return [f"The {name} one is done."]
        if last["role"] == "tool":
            return ["Both are back."]
        return [Call("delegate", task="count the left"), Call("delegate", task="count the right")]


@pytest.fixture
def server(home: Path) -> Iterator[Team]:
    with Team() as one:
        (home / "config.yaml").write_text(one.config())
        yield one


def test_sub_agents_work_side_by_side_in_sessions_of_their_own(
    server: Team, open_screen: Open, look: Look, home: Path
) -> None:
    screen = open_screen(width=100)
    screen.line("count both")
    assert all(gate.reached.wait(60) for gate in server.gates.values())  # both ask before either has an answer
    for gate in server.gates.values():
        gate.open.set()
    text = screen.wait_for("Both are back.")
    assert re.search(r"✓ delegate  count the left  \S+\n", text) and re.search(r"✓ delegate  count the right", text)
    results = [one["content"] for one in server.requests[-1]["messages"] if one["role"] == "tool"]
    assert [result.split("\n")[0] for result in results] == ["The left one is done.", "The right one is done."]
    offered = [{tool["function"]["name"] for tool in one["tools"]} for one in server.requests]
    assert "delegate" in offered[0] and "delegate" not in offered[1] and "terminal" in offered[1]
    screen.line("/usage")
    text = screen.wait_for("Counted")
    assert re.search(r"Model calls +6\n", text) and "3 sessions: this one and 2 sub-agents" in text
    listed = json.loads(run("sessions", "list", "--json", home=home).out)
    assert len(listed) == 1 and listed[0]["kind"] is None
    every = json.loads(run("sessions", "list", "--all", "--json", home=home).out)
    helpers = [row for row in every if row["kind"] == "subagent"]
    assert {row["parent_session_id"] for row in helpers} == {listed[0]["id"]} and len(helpers) == 2
    assert {row["end_reason"] for row in helpers} == {"subagent_done"}
    assert look(lambda db: [db.get_messages(row["id"])[-1]["content"][-12:] for row in helpers]) == ["one is done."] * 2


def test_ctrl_c_ends_the_sub_agents(server: Team, open_screen: Open, look: Look) -> None:
    screen = open_screen(width=100)
    screen.line("count both")
    assert all(gate.reached.wait(60) for gate in server.gates.values())
    screen.press("C-c")
    text = screen.wait_for("Stopped.")
    assert re.search(r"✗ delegate  count the left  stopped", text)
    assert len(server.requests) == 3  # nothing was asked after that
