"""`hermes acp`: slash commands that the editor offers, and what they do."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from hermes_state import SessionDB
from tests.chat.conftest import *  # noqa: F403  the model server and the home that points to it
from tests.chat.server import Call, Gate, ModelServer
from tests.serve.test_acp_server import Editor, acp, connected, stored


async def test_commands_are_offered_and_work(server: ModelServer, home: Path, tmp_path: Path) -> None:
    (folder := tmp_path / "project").mkdir()
    server.models = ("test-model", "other-model")
    editor = Editor()
    async with connected(home, editor) as (agent, _):
        session = str((await agent.new_session(cwd=str(folder), mcp_servers=[])).session_id)

        async def said(text: str, stop_reason: str = "end_turn") -> str:
            editor.updates.clear()
            answer = await agent.prompt(session_id=session, prompt=[acp.text_block(text)])
            assert answer.stop_reason == stop_reason
            return editor.shown()

        async with asyncio.timeout(60):
            while not (known := [one for _, one in editor.updates if hasattr(one, "available_commands")]):
                await asyncio.sleep(0.02)
        offered = {one.name: one for one in known[0].available_commands}
        assert {"title", "why", "search", "recall", "handoff", "undo", "retry", "compress"} <= set(offered)
        assert not {"new", "resume", "branch", "quit", "clear", "copy", "queue"} & set(offered)
        assert offered["title"].input.root.hint == "[text]" and offered["status"].input is None

        assert "Named early" in await said("/title Named early")
        server.scripts = [[Call("write_file", path="a.txt", content="a\n")], ["It is four."]]
        assert await said("two and two?") == "It is four."
        assert "Named early" in await said("/status")
        assert session in await said("/why a.txt") or "two and two" in editor.shown()
        assert "four" in await said("/search four") and "/resume" not in editor.shown()
        server.scripts = [[Call("write_file", path="a.txt", content="b\n")], ["It is still four."]]
        assert await said("/retry") == "It is still four."
        assert "other-model" in await said("/model other")
        assert "does not work" in await said("/new") and "no command" in await said("/nonsense")
        assert "platform" in await said("/handoff telegram")
        server.scripts = [["A path."], ["A slash."]]
        assert await said("/etc/hosts is a file") == "A path."
        assert await said("//title is a command") == "A slash."
        assert "Undid" in await said("/undo") and len(editor.asked) == 0
        assert "Undid" in await said("/undo 2") and "a.txt" in editor.asked[0]
        assert "/title" in await said("/help")
    assert (folder / "a.txt").read_text() == "a\n"  # /undo asked, and the editor's user said yes
    assert stored(home, session) == []
    with SessionDB(home / "state.db") as db:
        assert db.get_session_title(session) == "Named early"
        db.unrewind(session)
    assert ("user", "/title is a command") not in stored(home, session)


async def test_a_command_is_stopped(server: ModelServer, home: Path, tmp_path: Path) -> None:
    gate = Gate()
    editor = Editor()
    async with connected(home, editor) as (agent, _):
        session = (await agent.new_session(cwd=str(tmp_path), mcp_servers=[])).session_id
        server.scripts = [["One."], ["Tw", gate]]
        await agent.prompt(session_id=session, prompt=[acp.text_block("count")])
        retry = asyncio.create_task(agent.prompt(session_id=session, prompt=[acp.text_block("/retry")]))
        assert await asyncio.to_thread(gate.reached.wait, 60)
        with pytest.raises(acp.RequestError, match="under way"):
            await agent.prompt(session_id=session, prompt=[acp.text_block("/status")])
        with pytest.raises(acp.RequestError, match="under way"):
            await agent.load_session(session_id=session, cwd=str(tmp_path), mcp_servers=[])
        await agent.cancel(session_id=session)
        assert (await asyncio.wait_for(retry, 60)).stop_reason == "cancelled"
        gate.open.set()
