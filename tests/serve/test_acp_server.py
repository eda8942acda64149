"""`hermes acp`: an editor talks, cancels, is asked for permission, loads and lists sessions, through the protocol's own client."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from hermes_state import SessionDB
from tests.chat.conftest import *  # noqa: F403  the model server and the home that points to it
from tests.chat.server import Call, ModelServer
from tests.support.forking import Forked
from tests.support.optional import library
from tests.support.program import PROGRAM, environment

acp = library("acp")
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


class Editor:  # what acp.Client asks for, without loading it for every test process
    """An editor that keeps what it is shown."""

    def __init__(self, answer: str | list[str] | None = "yes") -> None:
        """`answer` is that to a question, or to each: an option, "no: REASON", "cancelled", or None for none at all."""
        self.updates: list[tuple[str, Any]] = []
        self.asked: list[str] = []
        self.calls: list[str] = []  # the tool calls that the questions are about
        self.requests: list[Any] = []
        self.is_asked = asyncio.Event()
        self.answer = answer

    async def session_update(self, session_id: str, update: Any, **kwargs: Any) -> None:
        self.updates.append((session_id, update))

    async def request_permission(self, session_id: str, tool_call: Any, options: Any, **kwargs: Any) -> Any:
        self.asked.append(tool_call.title)
        self.calls.append(tool_call.tool_call_id)
        self.requests.append(tool_call)
        self.is_asked.set()
        answer = self.answer.pop(0) if isinstance(self.answer, list) else self.answer
        if answer is None:
            await asyncio.Event().wait()
        if answer == "cancelled":
            return acp.RequestPermissionResponse(outcome=acp.schema.DeniedOutcome(outcome="cancelled"))
        option, _, reason = str(answer).partition(": ")
        meta = {"reason": reason} if reason else None
        outcome = acp.schema.AllowedOutcome(outcome="selected", option_id=option, field_meta=meta)
        return acp.RequestPermissionResponse(outcome=outcome)

    def shown(self, kind: str = "agent_message_chunk") -> str:
        return "".join(one.content.text for _, one in self.updates if one.session_update == kind)


@asynccontextmanager
async def connected(home: Path, editor: Editor) -> AsyncIterator[tuple[Any, Any]]:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    process = Forked([*PROGRAM, "acp"], env=environment(home), bufsize=0, **pipes)
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=50_000_000)
    heard, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), process.stdout)
    saying, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, process.stdin)
    writer = asyncio.StreamWriter(saying, protocol, reader, loop)
    agent = acp.connect_to_agent(editor, writer, reader, use_unstable_protocol=True)
    try:
        await agent.initialize(protocol_version=acp.PROTOCOL_VERSION)
        yield agent, process
    finally:
        await agent.close()
        saying.close()  # the editor is gone: so is the program
        try:
            await asyncio.to_thread(process.wait, 20)
        finally:
            process.kill()
            heard.close()


def stored(home: Path, session_id: str) -> list[tuple[str, Any]]:
    with SessionDB(home / "state.db", read_only=True) as db:
        return [(one["role"], one["content"]) for one in db.get_messages(session_id)]


def test_a_prompt_is_answered_kept_and_continued_from_its_history(
    server: ModelServer, home: Path, tmp_path: Path
) -> None:
    (tmp_path / "a.txt").write_text("the file's text")

    async def talk() -> str:
        editor = Editor()
        async with connected(home, editor) as (agent, _):
            session = (await agent.new_session(cwd=str(tmp_path), mcp_servers=[])).session_id
            server.scripts = [["It is ", "four."]]
            blocks = [acp.text_block("two and two?"), acp.resource_link_block("a.txt", (tmp_path / "a.txt").as_uri())]
            answer = await agent.prompt(session_id=session, prompt=blocks)
            assert (answer.stop_reason, editor.shown()) == ("end_turn", "It is four.")
            listed = await agent.list_sessions()
            assert [(one.session_id, one.cwd) for one in listed.sessions] == [(session, str(tmp_path))]
        return str(session)

    session = asyncio.run(talk())
    assert "the file's text" in server.requests[0]["messages"][-1]["content"]
    assert stored(home, session)[-1] == ("assistant", "It is four.")
    with SessionDB(home / "state.db") as db:
        row = db.get_session(session)
        assert row is not None and (row["source"], row["cwd"]) == ("acp", str(tmp_path))
        db.append_message(session, "user", "said in the terminal")

    async def load() -> None:
        editor = Editor()
        async with connected(home, editor) as (agent, _):
            await agent.load_session(cwd=str(tmp_path), session_id=session, mcp_servers=[])
            assert "two and two?" in editor.shown("user_message_chunk") and "It is four." in editor.shown()
            assert "said in the terminal" in editor.shown("user_message_chunk")
            server.scripts = [["And on."]]
            await agent.prompt(session_id=session, prompt=[acp.text_block("and?"), acp.image_block(PIXEL, "image/png")])
            with pytest.raises(acp.RequestError):
                await agent.load_session(cwd=str(tmp_path), session_id="nothing", mcp_servers=[])

    asyncio.run(load())
    assert stored(home, session)[-1] == ("assistant", "And on.")


@pytest.mark.parametrize(("answer", "is_there"), [("yes", False), ("no", True)])
async def test_a_dangerous_command_asks_the_editor(
    server: ModelServer, home: Path, tmp_path: Path, answer: str, is_there: bool
) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "x").write_text("x")
    editor = Editor(answer)
    async with connected(home, editor) as (agent, _):
        session = (await agent.new_session(cwd=str(tmp_path), mcp_servers=[])).session_id
        server.scripts = [[Call("terminal", command=f"rm -rf {victim}")], ["Done."]]
        await agent.prompt(session_id=session, prompt=[acp.text_block("remove it")])
        assert len(editor.asked) == 1 and "rm -rf" in editor.asked[0]
        kinds = [one.session_update for _, one in editor.updates]
        assert "tool_call" in kinds and "tool_call_update" in kinds
    assert victim.exists() == is_there
