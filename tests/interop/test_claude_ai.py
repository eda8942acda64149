"""Claude.ai's data export."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

from tests.interop.importing import brought_in, hidden, lines, sessions, told


def test_claude_ais_export(tmp_path: Path) -> None:
    home = tmp_path / "home"
    first = {"uuid": "m1", "sender": "human", "text": "hi", "content": [{"type": "text", "text": "hi there"}],
             "created_at": "2026-03-06T10:00:00Z", "attachments": [{"file_name": "a.txt", "extracted_content": "inside"}]}  # fmt: skip
    second = {"uuid": "m2", "sender": "assistant", "parent_message_uuid": "m1", "created_at": "2026-03-06T10:00:05Z", "text": "",
              "content": [{"type": "thinking", "thinking": "hm"}, {"type": "tool_use", "id": "t1", "name": "web", "input": {}},
                          {"type": "tool_result", "tool_use_id": "t1", "name": "web", "content": [{"type": "text", "text": "found"}]},
                          {"type": "text", "text": "Hello."}]}  # fmt: skip
    other = {**second, "uuid": "m3", "content": [{"type": "text", "text": "Another hello."}]}
    whole = {"uuid": "c1", "name": "Greeting", "created_at": "2026-03-06T10:00:00Z", "updated_at": "2026-03-06T10:00:05Z",
             "current_leaf_message_uuid": "m2", "chat_messages": [first, second, other]}  # fmt: skip
    with zipfile.ZipFile(tmp_path / "data.zip", "w") as archive:
        archive.writestr("users.json", "[]")
        archive.writestr("conversations.json", json.dumps([whole]))
    assert "1 session with 4 messages imported" in brought_in(tmp_path / "data.zip", home)
    session = sessions(home)["claude-ai-c1"]
    shown = [
        ("user", "hi there\n\n[file a.txt]\ninside"),
        ("assistant", None),
        ("tool", "found"),
        ("assistant", "Hello."),
    ]
    assert told(session) == shown
    assert session["messages"][1]["reasoning"] == "hm" and hidden(session) == ["Another hello."]
    file = lines(tmp_path / "conversations.jsonl", [{**whole, "uuid": "c2"}])
    assert "1 session with 4 messages imported" in brought_in(file, home)


def test_a_tools_input_does_not_make_it_an_export_of_chatgpt(tmp_path: Path) -> None:
    home = tmp_path / "home"
    root = "00000000-0000-4000-8000-000000000000"
    used = [{"type": "tool_use", "id": "t1", "name": "rename", "input": {"mapping": {"a": "b"}}}]
    said = [{"uuid": f"m{n}", "sender": "human", "parent_message_uuid": parent, "text": f"said {n}",
             "created_at": f"2026-03-06T10:0{n}:00Z"} for n, parent in enumerate((root, "m0", "lost", "m2"))]  # fmt: skip
    said[1] |= {"sender": "assistant", "content": used}
    (tmp_path / "my export.txt").write_text(json.dumps([{"uuid": "c1", "name": "Names", "chat_messages": said}]))
    assert "1 session with 4 messages imported" in brought_in(tmp_path / "my export.txt", home)
    session = sessions(home)["claude-ai-c1"]
    assert [text for _, text in told(session)] == ["said 0", "said 1", "said 2", "said 3"] and not hidden(session)


def test_text_after_a_tools_result_stands_after_it(tmp_path: Path) -> None:
    home = tmp_path / "home"

    def step(number: int) -> list[dict[str, object]]:
        return [{"type": "text", "text": f"I look {number}."}, {"type": "tool_use", "id": f"t{number}", "name": "web", "input": {}},
                {"type": "tool_result", "tool_use_id": f"t{number}", "content": f"found {number}"}]  # fmt: skip

    reply = {"uuid": "m2", "sender": "assistant", "created_at": "2026-03-06T10:00:05Z",
             "content": [*step(1), *step(2), {"type": "text", "text": "Both found."}]}  # fmt: skip
    asked = {"uuid": "m1", "sender": "human", "text": "look twice", "created_at": "2026-03-06T10:00:00Z"}
    late = {"uuid": "c1", "name": "Looking", "created_at": "2026-03-06T11:00:00Z", "chat_messages": [asked, reply]}
    brought_in(lines(tmp_path / "conversations.jsonl", [late]), home)
    session = sessions(home)["claude-ai-c1"]
    assert [text for _, text in told(session)] == [
        "look twice",
        "I look 1.",
        "found 1",
        "I look 2.",
        "found 2",
        "Both found.",
    ]
    assert [[call["id"] for call in one.get("tool_calls") or ()] for one in session["messages"][1:4:2]] == [
        ["t1"],
        ["t2"],
    ]
    assert [one["tool_name"] for one in session["messages"] if one["role"] == "tool"] == ["web", "web"]
    assert session["started_at"] == session["messages"][0]["timestamp"]  # not when the export says it was made
