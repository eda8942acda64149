"""`hermes acp`: what is refused, in one plain line each, while the process keeps running; and nothing else is printed."""

from __future__ import annotations

import asyncio
import base64
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from hermes_state import SessionDB
from tests.chat.conftest import *  # noqa: F403  the model server and the home that points to it
from tests.chat.server import Call, Gate, ModelServer
from tests.serve.test_acp_server import PIXEL, Editor, acp, connected
from tests.support.program import PROGRAM, environment

SVG = base64.b64encode(b'<svg xmlns="http://www.w3.org/2000/svg"/>').decode()


class Wire:
    """The protocol, line by line."""

    def __init__(self, home: Path) -> None:
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        self.process = subprocess.Popen([*PROGRAM, "acp"], env=environment(home), text=True, **pipes)
        self.number = 0
        self.heard: list[dict[str, Any]] = []

    def __call__(self, method: str, params: Any = None) -> dict[str, Any]:
        self.number += 1
        self.line(json.dumps({"jsonrpc": "2.0", "id": self.number, "method": method, "params": params}))
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.heard.append(json.loads(line))  # nothing but the protocol is printed
            if self.heard[-1].get("id") == self.number and "method" not in self.heard[-1]:
                return self.heard[-1]
        raise AssertionError("the program has ended")

    def line(self, text: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()

    def close(self) -> str:
        out, err = self.process.communicate(timeout=120)
        assert not out and self.process.returncode == 0
        return str(err)


def test_what_is_wrong_is_refused_in_one_line_and_the_program_goes_on(
    server: ModelServer, home: Path, tmp_path: Path
) -> None:
    wire = Wire(home)
    wire("initialize", {"protocolVersion": 1})
    session = wire("session/new", {"cwd": str(tmp_path), "mcpServers": []})["result"]["sessionId"]

    def prompt(*blocks: Any) -> tuple[str, Any]:
        return "session/prompt", {"sessionId": session, "prompt": list(blocks)}

    def picture(data: str, mime: str = "image/png") -> dict[str, str]:
        return {"type": "image", "data": data, "mimeType": mime}

    large = base64.b64encode(base64.b64decode(PIXEL) + bytes(10_000_000)).decode()
    blob = {"uri": "file:///a.svg", "mimeType": "image/svg+xml", "blob": SVG}
    for (method, params), word in (
        (prompt({"type": "text"}), "missing"),
        (prompt({"type": "bogus", "text": "x"}), "not valid"),
        (prompt("text"), "not valid"),
        (prompt(), "empty"),
        (("session/prompt", {"sessionId": session}), "prompt"),
        (("session/prompt", None), "not valid"),
        (("session/prompt", ["x"]), "not valid"),
        (("session/prompt", {"sessionId": "nothing", "prompt": [{"type": "text", "text": "x"}]}), "not open"),
        (("session/load", {"sessionId": "nothing", "cwd": str(tmp_path), "mcpServers": []}), "nothing"),
        (("session/new", {"cwd": "src", "mcpServers": []}), "absolute"),
        (("session/new", {"mcpServers": []}), "cwd"),
        (("session/list", {"cwd": "src"}), "absolute"),
        (("session/list", None), "parameters are not valid"),
        (("session/set_mode", {"sessionId": session, "modeId": "reckless"}), "reckless"),
        (prompt(picture(SVG, "image/svg+xml")), "svg"),
        (prompt({"type": "resource", "resource": blob}), "PNG"),
        (prompt(picture(SVG)), "PNG"),
        (prompt(picture("no base64!")), "base64"),
        (prompt(picture(large)), "10,000,000"),
    ):
        error = wire(method, params)["error"]
        assert word in error["message"] and "\n" not in error["message"] and "pydantic" not in json.dumps(error), error
        assert error["code"] == -32602
    server.scripts = [["Noted."]]
    link = {"type": "resource_link", "uri": "http://[not-an-address", "name": "x"}
    assert wire(*prompt(link))["result"]["stopReason"] == "end_turn"  # an address that can't be read is still a name
    assert "not-an-address" in server.requests[-1]["messages"][-1]["content"]
    assert wire("no/such/method", {})["error"]["code"] == -32601
    for line in ("no JSON", "[]", "7", '"text"', "null"):
        wire.line(line)

    server.scripts = [["Still here."]]
    assert wire(*prompt({"type": "text", "text": "hi"}))["result"]["stopReason"] == "end_turn"
    blocks = [picture(PIXEL, "image/jpeg"), picture(base64.b64encode(b"GIF89a").decode(), "image/gif")]
    assert wire(*prompt(*blocks))["result"]["stopReason"] == "end_turn"
    urls = [one["image_url"]["url"] for one in server.requests[-1]["messages"][-1]["content"]]
    assert [one.partition(";")[0] for one in urls] == ["data:image/png", "data:image/gif"]  # as the bytes say
    assert "Traceback" not in wire.close()


@pytest.mark.parametrize("how", ["delete_session", "trash_session"])
@pytest.mark.parametrize("when", ["reply", "tool"])
async def test_a_session_that_is_gone_in_the_middle_of_a_turn_ends_it_with_an_error(
    server: ModelServer, home: Path, tmp_path: Path, how: str, when: str
) -> None:
    gate = Gate()
    command = Call("terminal", command="while [ ! -e go ]; do sleep 0.1; done")
    server.scripts = [["one ", gate, "two"]] if when == "reply" else [[command], ["Done."]]
    editor = Editor()
    async with connected(home, editor) as (agent, _):
        session = (await agent.new_session(cwd=str(tmp_path), mcp_servers=[])).session_id
        await agent.set_session_mode(session_id=session, mode_id="never")
        prompt = asyncio.create_task(agent.prompt(session_id=session, prompt=[acp.text_block("hi")]))
        async with asyncio.timeout(60):
            while not {"agent_message_chunk", "tool_call"} & {one.session_update for _, one in editor.updates}:
                await asyncio.sleep(0.02)
        with SessionDB(home / "state.db") as db:
            assert getattr(db, how)(session)
        gate.open.set()
        (tmp_path / "go").touch()
        with pytest.raises(acp.RequestError, match="deleted"):
            await asyncio.wait_for(prompt, 60)
        other = (await agent.new_session(cwd=str(tmp_path), mcp_servers=[])).session_id
        server.scripts = [["Hello."]]
        answer = await agent.prompt(session_id=other, prompt=[acp.text_block("hi")])
        assert answer.stop_reason == "end_turn"
