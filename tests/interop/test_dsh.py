"""Sessions of DeepSeek Harness."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import zstandard

from tests.interop.importing import brought_in, sessions, told
from tests.support import program


def event(number: int, kind: str, **data: Any) -> dict[str, Any]:
    return {"type": kind, "seq": number, "time": 1772359200000 + number * 1000, "data": data}


def said(number: int, role: str, *blocks: Any, **more: Any) -> dict[str, Any]:
    told = {"id": f"m{number}", "role": role, "content": list(blocks), "source": {"kind": "user"}}
    if role == "user":
        return event(number, "user/message", **{**told, **more})
    return event(
        number,
        "assistant/message",
        turn=1,
        message={**told, "source": {"kind": "model", "model": "deepseek-v4"}},
        **more,
    )


def talk() -> list[Any]:
    call = {"type": "tool-call", "id": "c1", "name": "bash", "arguments": '{"command": "ls"}'}
    result = {
        "type": "tool-result",
        "toolCallId": "c1",
        "isError": False,
        "content": [{"type": "text", "text": "a.py"}],
    }
    used = {"inputTokens": 120, "outputTokens": 7, "cacheReadTokens": 20}
    return [
        {"type": "session", "version": 4, "id": "s1", "createdAt": 1772359200000, "cwd": "/work/d", "delegationDepth": 0},
        event(1, "session/title", title="Listing"), event(2, "step/start", turn=1),
        said(3, "user", {"type": "text", "text": "which files?"}),
        said(4, "user", {"type": "text", "text": "a mount"}, source={"kind": "plugin"}),
        said(5, "assistant", {"type": "reasoning", "text": "I list them."}, {"type": "text", "text": "Looking."}, call, usage=used),
        event(6, "tool/call", callId="c1", name="bash", arguments="{}"), event(7, "tool/result", message={"content": [result]}),
        said(8, "assistant", {"type": "text", "text": "One file."}, {"type": "hologram"}),
    ]  # fmt: skip


def packed(path: Path, records: list[Any]) -> Path:
    """A frame of zstd for each record."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(zstandard.compress(json.dumps(one).encode() + b"\n") for one in records))
    return path


def test_a_packed_session_and_what_is_added_to_it(tmp_path: Path) -> None:
    home, folder = tmp_path / "home", tmp_path / ".dsh" / "sessions" / "work" / "session-s1"
    packed(folder / "session.jsonl.zstd", talk()[:4])
    file = packed(folder / "session.v4.jsonl.zstd", talk())
    done = program.run("sessions", "import", "--found", "--yes", home=home, env={"HOME": str(tmp_path)})
    assert done.status == 0 and "1 session with 4 messages imported" in done.out and "block hologram" in done.err, done
    session = sessions(home)["dsh-s1"]
    assert (session["title"], session["cwd"], session["model"]) == ("Listing", "/work/d", "deepseek-v4")
    assert told(session) == [
        ("user", "which files?"),
        ("assistant", "Looking."),
        ("tool", "a.py"),
        ("assistant", "One file."),
    ]
    _, reply, result, _ = session["messages"]
    assert (reply["reasoning"], reply["input_tokens"], reply["cache_read_tokens"]) == ("I list them.", 100, 20)
    assert json.loads(reply["tool_calls"][0]["function"]["arguments"]) == {"command": "ls"}
    assert (result["tool_call_id"], result["tool_name"]) == ("c1", "bash")
    packed(file, [*talk(), said(9, "user", {"type": "text", "text": "and now?"}), event(10, "hologram/x")])
    printed = brought_in(file, home)
    assert "1 session updated" in printed and "hologram/x" in printed
    file.write_bytes(file.read_bytes()[:-5])
    assert "cut off" in brought_in(file, home, status=1)
