"""`hermes acp`: what an editor's user chooses, what "always" allows, files and pictures, and MCP servers the editor names."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest

from hermes_state import SessionDB
from tests.chat.conftest import *  # noqa: F403  the model server and the home that points to it
from tests.chat.server import Call, ModelServer
from tests.serve.test_acp_server import PIXEL, Editor, acp, connected, stored
from tests.support.program import PROGRAM, environment


async def test_the_model_and_the_mode_are_chosen(server: ModelServer, home: Path, tmp_path: Path) -> None:
    server.models = ("test-model", "other-model", "text-embedding-x")
    (tmp_path / "x").write_text("x")
    editor = Editor("no")
    async with connected(home, editor) as (agent, _):
        made = await agent.new_session(cwd=str(tmp_path), mcp_servers=[])
        session = made.session_id
        modes = [one.id for one in made.modes.available_modes]
        assert modes == ["ask", "all", "never"] and made.modes.current_mode_id == "ask"

        await agent.prompt(session_id=session, prompt=[acp.text_block("/model other")])
        await agent.set_session_mode(session_id=session, mode_id="all")
        server.scripts = [[Call("terminal", command="true")], ["Done."]]
        await agent.prompt(session_id=session, prompt=[acp.text_block("do nothing")])
        assert len(editor.asked) == 1 and "true" in editor.asked[0]
        assert {body["model"] for body in server.requests} == {"other-model"}

        await agent.set_session_mode(session_id=session, mode_id="never")
        server.scripts = [[Call("terminal", command=f"rm {tmp_path / 'x'}")], ["Done."]]
        await agent.prompt(session_id=session, prompt=[acp.text_block("remove it")])
        assert len(editor.asked) == 1 and not (tmp_path / "x").exists()

        for wrong in (
            agent.set_session_mode(session_id=session, mode_id="reckless"),
            agent.set_session_mode(session_id="nothing", mode_id="all"),
        ):
            with pytest.raises(acp.RequestError, match="no mode|not open"):
                await wrong
        with SessionDB(home / "state.db", read_only=True) as db:
            assert db.chosen_model(session) == "other-model"
        again = await agent.load_session(cwd=str(tmp_path), session_id=session, mcp_servers=[])
        assert again.modes.current_mode_id == "ask"  # the model is kept, the mode is not
        server.scripts = [["Here."]]
        await agent.prompt(session_id=session, prompt=[acp.text_block("who answers?")])
        assert server.requests[-1]["model"] == "other-model"

        other = await agent.new_session(cwd=str(tmp_path), mcp_servers=[])  # a choice is for one session
        server.scripts = [["Here."]]
        await agent.prompt(session_id=other.session_id, prompt=[acp.text_block("and here?")])
        assert other.modes.current_mode_id == "ask" and server.requests[-1]["model"] == "test-model"


async def test_always_allows_the_same_command_in_this_session_alone(
    server: ModelServer, home: Path, tmp_path: Path
) -> None:
    (tmp_path / "victim").mkdir()
    remove = [Call("terminal", command="rm -rf victim")]
    editor = Editor("always")
    async with connected(home, editor) as (agent, _):
        first = (await agent.new_session(cwd=str(tmp_path), mcp_servers=[])).session_id
        server.scripts = [remove, ["Done."], remove, [Call("terminal", command="rm -rf other")], ["Done."]]
        await agent.prompt(session_id=first, prompt=[acp.text_block("remove it")])
        await agent.prompt(session_id=first, prompt=[acp.text_block("again, and the other")])
        assert ["victim" in one for one in editor.asked] == [True, False]
        second = (await agent.new_session(cwd=str(tmp_path), mcp_servers=[])).session_id
        server.scripts = [remove, ["Done."]]
        await agent.prompt(session_id=second, prompt=[acp.text_block("remove it")])
        assert ["victim" in one for one in editor.asked] == [True, False, True]
        started = {one.tool_call_id for _, one in editor.updates if one.session_update == "tool_call"}
        assert set(editor.calls) <= started  # the question belongs to a call that the editor shows


async def test_files_and_pictures_of_a_question_are_kept_and_replayed(
    server: ModelServer, home: Path, tmp_path: Path
) -> None:
    (tmp_path / "a picture.png").write_bytes(base64.b64decode(PIXEL))
    (tmp_path / "long.txt").write_text("begin " + "x" * 300_000)
    (tmp_path / "a.bin").write_bytes(b"\0\1")
    uri = {name: (tmp_path / name).as_uri() for name in ("a picture.png", "long.txt", "a.bin", "nothing.txt")}
    blocks = [acp.text_block("look"), *(acp.resource_link_block(name, where) for name, where in uri.items())]
    editor = Editor()
    async with connected(home, editor) as (agent, _):
        session = str((await agent.new_session(cwd=str(tmp_path), mcp_servers=[])).session_id)
        server.scripts = [["I see."]]
        await agent.prompt(session_id=session, prompt=blocks)
        for wrong in ([acp.audio_block(PIXEL, "audio/wav")], [], [acp.text_block(" ")]):
            with pytest.raises(acp.RequestError, match="not audio|empty"):
                await agent.prompt(session_id=session, prompt=wrong)
        with pytest.raises(acp.RequestError):
            await agent.list_sessions(cursor="-1")
        here = await agent.list_sessions(cwd=str(tmp_path))
        assert [one.session_id for one in here.sessions] == [session]
        assert (await agent.list_sessions(cwd=str(tmp_path / "elsewhere"))).sessions == []

        editor.updates.clear()
        await agent.load_session(cwd=str(tmp_path), session_id=session, mcp_servers=[])
        asked = [one.content for _, one in editor.updates if one.session_update == "user_message_chunk"]
        assert [one.data for one in asked if one.type == "image"] == [PIXEL]
        assert "begin xxx" in "".join(one.text for one in asked if one.type == "text")
    parts = server.requests[0]["messages"][-1]["content"]
    assert [one["type"] for one in parts].count("image_url") == 1
    text = "\n".join(one["text"] for one in parts if one["type"] == "text")
    assert "begin xxx" in text and "[cut here]" in text and len(text) < 210_000
    assert f"[file {tmp_path}/a.bin]" in text and f"[file {tmp_path}/nothing.txt]" in text
    assert [role for role, _ in stored(home, session)] == ["user", "assistant"]


async def test_mcp_servers_that_the_editor_names_are_tools_of_that_session(
    server: ModelServer, home: Path, tmp_path: Path
) -> None:
    with SessionDB(home / "state.db") as db:
        db.create_session("old", "cli")
        db.append_message("old", "user", "the tokenizer")
    env = [acp.schema.EnvVariable(name=name, value=value) for name, value in environment(home).items()]

    def named(name: str, command: str, *words: str) -> Any:
        return acp.schema.McpServerStdio(name=name, command=command, args=list(words), env=env)

    editor = Editor()
    async with connected(home, editor) as (agent, _):
        servers = [named("past", *PROGRAM, "mcp"), named("broken", str(tmp_path / "nothing"))]
        session = (await agent.new_session(cwd=str(tmp_path), mcp_servers=servers)).session_id
        server.scripts = [["Hello."]]
        await agent.prompt(session_id=session, prompt=[acp.text_block("hello")])
        offered = [one["function"]["name"] for one in server.requests[-1]["tools"]]
        name = next(one for one in offered if one.endswith("search_sessions"))
        assert "broken" in editor.shown("agent_thought_chunk")
        server.scripts = [[Call(name, query="tokenizer")], ["Found."]]
        await agent.prompt(session_id=session, prompt=[acp.text_block("what about the tokenizer?")])
        plain = (await agent.new_session(cwd=str(tmp_path), mcp_servers=[])).session_id
        server.scripts = [["Hello."]]
        await agent.prompt(session_id=plain, prompt=[acp.text_block("hello")])
        assert name not in [one["function"]["name"] for one in server.requests[-1]["tools"]]
    results = [one for body in server.requests for one in body["messages"] if one["role"] == "tool"]
    assert "<quoted-history>" in results[0]["content"] and "tokenizer" in results[0]["content"]


async def test_what_began_on_the_phone_and_was_compressed_is_loaded_whole_and_continued(
    server: ModelServer, home: Path, tmp_path: Path
) -> None:
    texts = [f"said {number}" for number in range(6)]
    with SessionDB(home / "state.db") as db:
        db.create_session("phone", "telegram", user_id="42")
        db.create_session("milliseconds", "import", started_at=1.7e12)  # no calendar has this year
        ids = [db.append_message("phone", ("user", "assistant")[n % 2], text) for n, text in enumerate(texts)]
        db.compress_session("phone", "phone-2", summary="the summary", head_until=ids[1], tail_from=ids[4])
        db.append_message("phone-2", "user", "said after")
    editor = Editor()
    async with connected(home, editor) as (agent, _):
        listed = (await agent.list_sessions()).sessions
        assert [(one.session_id, one.updated_at is None) for one in listed] == [
            ("milliseconds", True),
            ("phone-2", False),
        ]
        await agent.load_session(cwd=str(tmp_path), session_id="phone", mcp_servers=[])
        shown = [one.content.text for _, one in editor.updates]
        assert sorted(shown) == sorted([*texts, "the summary", "said after"])  # each once
        server.scripts = [["And on."]]
        await agent.prompt(session_id="phone", prompt=[acp.text_block("go on")])
    assert stored(home, "phone-2")[-2:] == [("user", "go on"), ("assistant", "And on.")]
    with SessionDB(home / "state.db", read_only=True) as db:
        row = db.get_session("phone-2")
        assert row is not None and row["source"] == "telegram" and len(db.get_messages("phone")) == 6
