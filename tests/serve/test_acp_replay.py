"""`hermes acp`: a session that is loaded looks as it did while it ran; kinds, places and diffs of tool calls; permissions."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from hermes_state import SessionDB
from tests.chat.conftest import *  # noqa: F403  the model server and the home that points to it
from tests.chat.server import Call, Gate, ModelServer, Thought
from tests.serve.test_acp_server import Editor, acp, connected, stored

Shown = list[tuple[str, Any]]


def shown(editor: Editor) -> Shown:
    """The agent's part of what an editor shows, in order: texts whole, and each call as it is after its last update."""
    out: Shown = []
    calls: dict[str, dict[str, Any]] = {}
    for _, one in editor.updates:
        told = one.model_dump(mode="json", exclude_none=True, exclude={"session_update"})
        kind = one.session_update
        if kind in ("agent_message_chunk", "agent_thought_chunk"):
            if out and out[-1][0] == kind:
                out[-1] = kind, out[-1][1] + told["content"]["text"]
            else:
                out.append((kind, told["content"]["text"]))
        elif kind == "tool_call":
            call = told.pop("tool_call_id")
            calls[call] = told
            out.append(("recalled" if call.startswith("recalled") else call, told))
        elif kind == "tool_call_update":
            calls[told.pop("tool_call_id")].update(told)
    return out


async def talked(
    home: Path, folder: Path, text: str, answer: str | list[str] = "yes", mode: str = "ask"
) -> tuple[str, Editor]:
    editor = Editor(answer)
    async with connected(home, editor) as (agent, _):
        session = str((await agent.new_session(cwd=str(folder), mcp_servers=[])).session_id)
        await agent.set_session_mode(session_id=session, mode_id=mode)
        assert (await agent.prompt(session_id=session, prompt=[acp.text_block(text)])).stop_reason == "end_turn"
    return session, editor


async def loaded(home: Path, folder: Path, session: str) -> Editor:
    editor = Editor()
    async with connected(home, editor) as (agent, _):
        await agent.load_session(cwd=str(folder), session_id=session, mcp_servers=[])
    return editor


async def test_a_loaded_session_looks_as_it_did_while_it_ran(server: ModelServer, home: Path, tmp_path: Path) -> None:
    (folder := tmp_path / "project").mkdir()
    with SessionDB(home / "state.db") as db:
        db.create_session("earlier", "cli", cwd=str(folder))
        db.set_session_title("earlier", "The zeppelin parser")
        db.append_message("earlier", "user", "which parser does the zeppelin project use?")
        db.append_message("earlier", "assistant", "The zeppelin project uses the lark parser with a cache.")
    (folder / "old.txt").write_text("one\ntwo\nthree\n")
    (folder / "sub").mkdir()
    server.scripts = [
        [Thought("Let me "), Thought("see."), "I look ", "around.", Call("terminal", command="echo out; exit 3"),
         Call("read_file", path="old.txt", offset=2)],
        [Call("edit_file", path="old.txt", old="two", new="2"), Call("write_file", path="new.txt", content="new\n"),
         Call("session_search", query="zeppelin"), Call("memory", action="nonsense"), Call("no_such_tool", word="x")],
        ["Now I remove it.", Call("terminal", command=f"cd {folder / 'sub'}")],
        [Call("terminal", command="rm ../old.txt")],
        [Call("write_file", path="here.txt", content="x")],
        ["All ", "done."],
    ]  # fmt: skip
    question = "which parser does the zeppelin project use, and how is it set up?"
    session, live = await talked(home, folder, question, "no")
    live, replay = shown(live), shown(await loaded(home, folder, session))
    assert replay == live
    assert (folder / "old.txt").exists()  # declined

    assert live[0][0] == "recalled" and "zeppelin" in live[0][1]["title"] and live[0][1]["kind"] == "search"
    assert live[1:3] == [("agent_thought_chunk", "Let me see."), ("agent_message_chunk", "I look around.")]
    assert live[-1] == ("agent_message_chunk", "All done.")
    calls = [told for key, told in live if key.startswith("call_")]
    assert [(one["raw_input"], one["kind"], one["status"]) for one in calls] == [
        ({"command": "echo out; exit 3"}, "execute", "failed"),
        ({"path": "old.txt", "offset": 2}, "read", "completed"),
        ({"path": "old.txt", "old": "two", "new": "2"}, "edit", "completed"),
        ({"path": "new.txt", "content": "new\n"}, "edit", "completed"),
        ({"query": "zeppelin"}, "search", "completed"),
        ({"action": "nonsense"}, "think", "failed"),
        ({"word": "x"}, "other", "failed"),
        ({"command": f"cd {folder / 'sub'}"}, "execute", "completed"),
        ({"command": "rm ../old.txt"}, "execute", "failed"),
        ({"path": "here.txt", "content": "x"}, "edit", "completed"),
    ]
    assert "declined" in calls[8]["content"][0]["content"]["text"]
    assert "echo out" in calls[0]["title"] and "old.txt" in calls[1]["title"]
    old, new = str(folder / "old.txt"), str(folder / "new.txt")
    assert calls[1]["locations"] == [{"path": old, "line": 2}]
    changed = {"type": "diff", "path": old, "old_text": "one\ntwo\nthree\n", "new_text": "one\n2\nthree\n"}
    assert calls[2]["content"] == [changed] and calls[2]["locations"] == [{"path": old, "line": 2}]
    assert calls[3]["content"] == [{"type": "diff", "path": new, "new_text": "new\n"}]
    assert calls[9]["locations"][0]["path"] == str(folder / "sub" / "here.txt")


def test_a_question_shows_the_call_and_a_refusal_reaches_the_model(
    server: ModelServer, home: Path, tmp_path: Path
) -> None:
    outside = tmp_path / "outside.txt"
    (folder := tmp_path / "project").mkdir()
    (folder / "x").write_text("x")
    server.scripts = [
        [Call("terminal", command="rm x")],
        [Call("write_file", path=str(outside), content="secret plan\n")],
        ["Done."],
    ]
    _, editor = asyncio.run(talked(home, folder, "remove it", ["no: keep it for now", "no"]))
    assert (folder / "x").exists() and not outside.exists()
    command, write = editor.requests
    assert (command.kind, command.raw_input, command.title) == ("execute", {"command": "rm x"}, "terminal: rm x")
    assert "rm x" in command.content[0].content.text
    assert write.kind == "edit" and "+secret plan" in write.content[0].content.text
    told = [one["content"] for one in server.requests[-1]["messages"] if one["role"] == "tool"]
    assert "keep it for now" in told[0] and "declined" in told[0] and "declined" in told[1]


@pytest.mark.parametrize("answer", ["cancelled", None])
async def test_a_turn_that_is_cancelled_while_it_asks_ends_as_cancelled(
    server: ModelServer, home: Path, tmp_path: Path, answer: str | None
) -> None:
    (tmp_path / "x").write_text("x")
    server.scripts = [[Call("terminal", command="rm x")], ["Done."]]
    editor = Editor(answer)  # None: never answers
    async with connected(home, editor) as (agent, _):
        session = (await agent.new_session(cwd=str(tmp_path), mcp_servers=[])).session_id
        prompt = asyncio.create_task(agent.prompt(session_id=session, prompt=[acp.text_block("remove it")]))
        await editor.is_asked.wait()
        if answer is None:
            await agent.cancel(session_id=session)
        assert (await asyncio.wait_for(prompt, 60)).stop_reason == "cancelled"
        told = [one for _, one in editor.updates if one.session_update == "tool_call_update"]
        assert told[-1].status == "failed"
        server.scripts = [["And on."]]
        again = await agent.prompt(session_id=session, prompt=[acp.text_block("go on")])
        assert again.stop_reason == "end_turn"
    assert (tmp_path / "x").exists()


def test_after_a_kill_everything_that_was_shown_is_there_once(server: ModelServer, home: Path, tmp_path: Path) -> None:
    gate = Gate()
    server.scripts = [["I read. ", Call("read_file", path="nothing.txt")], ["half an ", "answer ", gate]]

    async def killed() -> tuple[str, Shown]:
        editor = Editor()
        async with connected(home, editor) as (agent, process):
            session = str((await agent.new_session(cwd=str(tmp_path), mcp_servers=[])).session_id)
            prompt = asyncio.create_task(agent.prompt(session_id=session, prompt=[acp.text_block("and die")]))
            async with asyncio.timeout(60):
                while "half an answer " not in editor.shown():
                    await asyncio.sleep(0.02)
            os.kill(process.pid, signal.SIGKILL)
            gate.open.set()
            with pytest.raises(Exception):  # noqa: B017  whatever the library says when its agent is gone
                await prompt
        return session, shown(editor)

    session, before = asyncio.run(killed())
    for _ in range(2):
        assert shown(asyncio.run(loaded(home, tmp_path, session))) == before
    assert stored(home, session)[-1] == ("assistant", "half an answer ")


async def test_a_plan_of_another_program_is_shown_as_a_plan(server: ModelServer, home: Path, tmp_path: Path) -> None:
    todos = [{"content": "read", "status": "completed"}, {"content": "write", "status": "in_progress"}, "no step"]
    steps = [{"step": "read", "status": "completed"}, {"step": "write", "status": "some day"}]
    made = {"TodoWrite": {"todos": todos}, "update_plan": {"plan": steps}, "todo_write": {"todos": "not a list"}}
    with SessionDB(home / "state.db") as db:
        db.create_session("imported", "claude-code")
        calls = [
            {"id": name, "type": "function", "function": {"name": name, "arguments": json.dumps(given)}}
            for name, given in made.items()
        ]
        db.append_message("imported", "assistant", "", tool_calls=calls)
    editor = await loaded(home, tmp_path, "imported")
    plans = [one for _, one in editor.updates if one.session_update == "plan"]
    assert [[(entry.content, entry.status) for entry in plan.entries] for plan in plans] == [
        [("read", "completed"), ("write", "in_progress")],
        [("read", "completed"), ("write", "pending")],
    ]


def test_a_call_whose_process_was_killed_is_shown_as_failed(server: ModelServer, home: Path, tmp_path: Path) -> None:
    server.scripts = [[Call("terminal", command="sleep 600")]]

    async def killed() -> str:
        editor = Editor()
        async with connected(home, editor) as (agent, process):
            session = str((await agent.new_session(cwd=str(tmp_path), mcp_servers=[])).session_id)
            await agent.set_session_mode(session_id=session, mode_id="never")
            prompt = asyncio.create_task(agent.prompt(session_id=session, prompt=[acp.text_block("wait")]))
            async with asyncio.timeout(60):
                while not any(one.session_update == "tool_call" for _, one in editor.updates):
                    await asyncio.sleep(0.02)
            os.kill(process.pid, signal.SIGKILL)
            with pytest.raises(Exception):  # noqa: B017
                await prompt
        return session

    session = asyncio.run(killed())
    ((_, call),) = shown(asyncio.run(loaded(home, tmp_path, session)))
    assert call["status"] == "failed" and call["raw_input"] == {"command": "sleep 600"}
