"""Chats of Copilot in VS Code: one JSON object, or a log of changes to it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.interop.importing import brought_in, changed, hidden, lines, sessions, told
from tests.support import program

NAME = "66666666-2222-4333-8444-555555555555"
AT = 1772700000000
SESSION = f"vscode-copilot-{NAME}"


def request(number: int, asked: str, response: list[Any], **more: Any) -> dict[str, Any]:
    return {
        "requestId": f"request_{number}", "message": {"text": asked, "parts": []}, "variableData": {"variables": []},
        "response": response, "timestamp": AT + number * 1000, "modelId": "copilot/claude-sonnet-4", **more,
    }  # fmt: skip


def result(*rounds: dict[str, Any], results: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    return {"timings": {}, "metadata": {"toolCallRounds": list(rounds), "toolCallResults": results or {}, **more}}


EDIT = {"filePath": "/work/v/a.py", "oldString": "width = 1", "newString": "width = 2"}


def agent_request(number: int = 1) -> dict[str, Any]:
    """A request in which the model read a file, edited it, and said so."""
    tree = {
        "node": {
            "type": 1,
            "children": [{"type": 2, "text": "x = 1"}, {"type": 2, "text": "y", "lineBreakBefore": True}],
        }
    }
    rounds = [
        {"id": "r0", "response": "Reading.", "thinking": {"id": "h", "text": ["I read", "first."]}, "timestamp": AT + 1500,
         "toolCalls": [{"id": "t1", "name": "read_file", "arguments": json.dumps({"filePath": "/work/v/a.py"})}]},
        {"id": "r1", "response": "", "toolCalls": [{"id": "t2", "name": "replace_string_in_file", "arguments": json.dumps(EDIT)}]},
        {"id": "r2", "response": "Done.", "toolCalls": []},
    ]  # fmt: skip
    shown = [
        {"kind": "mcpServersStarting"}, {"kind": "thinking", "value": "I read first."}, {"value": "Reading."},
        {"kind": "toolInvocationSerialized", "toolId": "copilot_readFile", "toolCallId": "t1", "isComplete": True},
        {"kind": "textEditGroup", "uri": {"path": "/work/v/a.py"}, "edits": [[]]}, {"value": "Done."},
    ]  # fmt: skip
    results = {"t1": {"content": [{"$mid": 21, "value": tree}]}, "t2": {"content": [{"value": "edited"}]}}
    picture = [
        {"kind": "image", "name": "p.png", "value": {}, "mimeType": "image/png"},
        {"kind": "file", "name": "a.py"},
    ]
    told_ = result(
        *rounds, results=results, promptTokens=900, outputTokens=30, resolvedModel="claude-sonnet-4-20250514"
    )
    return request(number, "make x two", shown, result=told_, variableData={"variables": picture})


def whole(*requests: Any, **more: Any) -> dict[str, Any]:
    return {
        "version": 3, "requesterUsername": "me", "responderUsername": "GitHub Copilot", "initialLocation": "panel",
        "requests": list(requests), "sessionId": NAME, "creationDate": AT, "lastMessageDate": AT, **more,
    }  # fmt: skip


def log(*requests: Any, **more: Any) -> list[Any]:
    """The log that makes the same object: a beginning without requests, then each of them."""
    return [
        {"kind": 0, "v": whole()},
        *({"kind": 2, "k": ["requests"], "v": [one]} for one in requests),
        *({"kind": 1, "k": [key], "v": value} for key, value in more.items()),
    ]


def storage(home: Path, host: str = "Code") -> Path:
    folder = home / ".config" / host / "User" / "workspaceStorage" / "abc"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "workspace.json").write_text(json.dumps({"folder": "file:///work/v"}))
    return folder / "chatSessions"


def test_an_agents_chat(tmp_path: Path) -> None:
    home = tmp_path / "home"
    lines(storage(tmp_path) / f"{NAME}.json", [whole(agent_request(), customTitle="Two")])
    lines(
        storage(tmp_path, "VSCodium") / "other.jsonl",
        [{"kind": 0, "v": {**whole(request(1, "hi", [{"value": "Hello."}])), "sessionId": "o"}}],
    )
    done = program.run("sessions", "import", "--found", "--yes", home=home, env={"HOME": str(tmp_path)})
    assert done.status == 0 and "2 sessions with 8 messages imported" in done.out, done
    session = sessions(home)[SESSION]
    assert (session["title"], session["cwd"], session["started_at"]) == ("Two", "/work/v", AT / 1000)
    asked, reading, read, editing, edited, last = session["messages"]
    assert asked["content"] == "make x two\n\n[file p.png]\n\n[file a.py]"
    assert (reading["content"], reading["reasoning"], reading["timestamp"]) == (
        "Reading.",
        "I read\n\nfirst.",
        (AT + 1500) / 1000,
    )
    assert (read["content"], read["tool_call_id"], read["tool_name"]) == ("x = 1\ny", "t1", "read_file")
    call = editing["tool_calls"][0]["function"]
    assert (call["name"], json.loads(call["arguments"]), edited["content"]) == (
        "replace_string_in_file",
        EDIT,
        "edited",
    )
    assert (last["content"], last["input_tokens"], last["output_tokens"]) == ("Done.", 900, 30)
    assert last["model"] == "claude-sonnet-4-20250514" and changed(home) == {"/work/v/a.py": 1}


def test_a_log_of_changes_is_the_chat_it_makes(tmp_path: Path) -> None:
    """While a request runs only what the editor shows is there; the rounds come at its end and add to it."""
    file, home = storage(tmp_path) / f"{NAME}.jsonl", tmp_path / "home"
    begun = [*log(request(1, "make x two", [])), {"kind": 2, "k": ["requests", 0, "response"], "v": [{"value": "Read"}]},
             {"kind": 2, "k": ["requests", 0, "response"], "v": [{"value": "Reading."}, agent_request()["response"][3]], "i": 0}]  # fmt: skip
    lines(file, begun)
    brought_in(file, home)
    assert told(sessions(home)[SESSION]) == [("user", "make x two"), ("assistant", "Reading.")]
    ended = [
        {"kind": 1, "k": ["requests", 0, "result"], "v": agent_request()["result"]},
        {"kind": 1, "k": ["customTitle"], "v": "Two"},
    ]
    lines(file, [*begun, *ended])
    lines(file.with_suffix(".json"), [whole(request(1, "as it was before it became a log", []))])
    brought_in(file.parent, home)
    session = sessions(home)[SESSION]
    assert session["title"] == "Two"
    assert [content for _, content in told(session)] == ["make x two", "Reading.", "x = 1\ny", None, "edited", "Done."]
    assert "1 session already here" in brought_in(file.parent, home)


def test_requests_that_were_undone_are_hidden(tmp_path: Path) -> None:
    first, second, third = (request(n, f"question {n}", [{"value": f"answer {n}"}]) for n in (1, 2, 3))
    file = lines(
        tmp_path / "c.jsonl",
        [*log(first, second), {"kind": 2, "k": ["requests"], "i": 1}, {"kind": 2, "k": ["requests"], "v": [third]}],
    )
    brought_in(file, tmp_path / "home")
    session = sessions(tmp_path / "home")[SESSION]
    assert [content for _, content in told(session)] == ["question 1", "answer 1", "question 3", "answer 3"]
    assert hidden(session) == ["question 2", "answer 2"]


def test_chats_without_rounds(tmp_path: Path) -> None:
    """A chat that has no rounds is read from what the editor shows of it."""
    file = lines(tmp_path / "chat.json", [whole(
        request(1, "what is this?", [{"value": "See "}, {"kind": "inlineReference", "inlineReference": {"uri": {"path": "/work/v/a.py"}}},
                                     {"value": "."}, {"kind": "hologram"}], result=result({"response": "See `a.py`.", "toolCalls": []})),
        request(3, "run it", [{"kind": "toolInvocationSerialized", "toolId": "run_in_terminal", "toolCallId": "t9",
                               "toolSpecificData": {"kind": "terminal", "commandLine": {"original": "make"}},
                               "pastTenseMessage": {"value": "Ran make"}}, {"kind": "markdownContent", "value": {"value": "It ran."}}]),
        request(4, "and now?", [], result={"errorDetails": {"message": "quota"}}),
        request(5, "stopped", [{"value": "On it."}, {"kind": "toolInvocationSerialized", "toolCallId": "t1"}, {"value": "Half"}],
                result=result({"response": "On it.", "toolCalls": [{"id": "t1", "name": "ls", "arguments": "{}"}]})),
    )])  # fmt: skip
    printed = brought_in(file, tmp_path / "home")
    assert "part hologram" in printed
    session = sessions(tmp_path / "home")[SESSION]
    assert [content for role, content in told(session) if role != "user"] == [
        "See `a.py`.", None, "Ran make", "It ran.", "quota", "On it.", "Half",
    ]  # fmt: skip
    ran = next(one for one in session["messages"] if "run_in" in str(one.get("tool_calls")))
    assert "make" in ran["tool_calls"][0]["function"]["arguments"]


def test_a_damaged_log_costs_its_lines(tmp_path: Path) -> None:
    torn = [
        {"kind": 1, "k": ["requests", 7, "result"], "v": {}},
        "{torn",
        {"kind": 9},
        {"kind": 3, "k": ["customTitle"]},
    ]
    file = lines(tmp_path / "c.jsonl", [*log(request(1, "hi", [{"value": "Hello."}])), *torn])
    printed = brought_in(file, tmp_path / "home", status=1)
    assert (
        "1 session with 2 messages" in printed and "kind 9" in printed and "line 3" in printed and "line 4" in printed
    )
