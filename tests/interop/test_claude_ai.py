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
    assert "1 session with 3 messages imported" in brought_in(tmp_path / "data.zip", home)
    session = sessions(home)["claude-ai-c1"]
    assert told(session) == [("user", "hi there\n\n[file a.txt]\ninside"), ("assistant", "Hello."), ("tool", "found")]
    assert session["messages"][1]["reasoning"] == "hm" and hidden(session) == ["Another hello."]
    file = lines(tmp_path / "conversations.jsonl", [{**whole, "uuid": "c2"}])
    assert "1 session with 3 messages imported" in brought_in(file, home)
