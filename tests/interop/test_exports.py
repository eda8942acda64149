"""Data exports of ChatGPT and Claude.ai, and Pi's sessions."""

from __future__ import annotations

import base64
import io
import json
import zipfile
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from hermes.interop.histories.exports import elements
from tests.interop.importing import PIXEL, brought_in, hidden, lines, sessions, told


def node(
    name: str, parent: str | None, children: list[str], role: str | None, parts: list[Any], **more: Any
) -> dict[str, Any]:
    kind = more.pop("kind", "text")
    content = {"content_type": kind, "parts": parts, **more.pop("content", {})}
    told_ = None if role is None else {"id": name, "author": {"role": role}, "create_time": 1772700000.0 + len(name),
                                       "content": content, "metadata": {"model_slug": "gpt-5"}, **more}  # fmt: skip
    return {"id": name, "parent": parent, "children": children, "message": told_}


def chatgpt() -> list[Any]:
    picture = {"content_type": "image_asset_pointer", "asset_pointer": "file-service://file-ABC"}
    mapping = {
        "root": node("root", None, ["u1"], None, []),
        "u1": node("u1", "root", ["a1", "a2"], "user", ["what is this?", picture], kind="multimodal_text"),
        "a1": node("a1", "u1", [], "assistant", ["A first answer."]),
        "a2": node(
            "a2", "u1", ["a3"], "assistant", [], kind="code", content={"language": "python", "text": "print(1)"}
        ),
        "a3": node("a3", "a2", [], "assistant", ["A better answer."]),
    }
    one = {"conversation_id": "conv-1", "title": "A dot", "create_time": 1772700000.5, "update_time": 1772700100.0,
           "current_node": "a3", "mapping": mapping, "default_model_slug": "gpt-5"}  # fmt: skip
    return [one, {**one, "conversation_id": "conv-2", "title": "A dot again"}]


def test_chatgpts_export_as_zip_shards_and_file(tmp_path: Path) -> None:
    for number, (name, shards) in enumerate({"a.zip": [chatgpt()], "b.zip": [[c] for c in chatgpt()]}.items()):
        home = tmp_path / f"home{number}"
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            for place, shard in enumerate(shards):
                member = "conversations.json" if len(shards) == 1 else f"conversations-{place:03}.json"
                archive.writestr(member, json.dumps(shard))
            archive.writestr("file-ABC-dot.png", base64.b64decode(PIXEL))
        assert "2 sessions with 6 messages imported" in brought_in(tmp_path / name, home)
        session = sessions(home)["chatgpt-conv-1"]
        assert (session["title"], session["model"]) == ("A dot", "gpt-5")
        assert told(session)[1:] == [("assistant", "```python\nprint(1)\n```"), ("assistant", "A better answer.")]
        assert "attachment:sha256:" in session["messages"][0]["content"][1]["image_url"]["url"]
        assert hidden(session) == ["A first answer."]
    home = tmp_path / "bare"
    (tmp_path / "conversations.json").write_text(json.dumps(chatgpt(), indent=1))
    assert "2 sessions with 6 messages imported" in brought_in(tmp_path / "conversations.json", home)
    assert "not in the export" in sessions(home)["chatgpt-conv-1"]["messages"][0]["content"]


def test_an_export_that_ends_in_the_middle_costs_that_conversation(tmp_path: Path) -> None:
    text = json.dumps(chatgpt())
    (tmp_path / "conversations.json").write_text(text[: len(text) * 3 // 4])
    printed = brought_in(tmp_path / "conversations.json", tmp_path / "home", status=1)
    assert "1 session with 3 messages imported" in printed and "ends in the middle" in printed


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


def test_pi(tmp_path: Path) -> None:
    home = tmp_path / "home"

    def entry(kind: str, name: str, parent: str | None, **more: Any) -> dict[str, Any]:
        return {"type": kind, "id": name, "parentId": parent, "timestamp": "2026-03-07T10:00:00.000Z", **more}

    reply = {"role": "assistant", "model": "sonnet", "stopReason": "toolUse", "timestamp": 1772877601000,
             "usage": {"input": 1, "output": 2, "cacheRead": 3, "cacheWrite": 0, "cost": {"total": 0.5}},
             "content": [{"type": "text", "text": "I look."}, {"type": "toolCall", "id": "t1", "name": "bash", "arguments": {"c": "ls"}}]}  # fmt: skip
    file = lines(tmp_path / "2026_pi.jsonl", [
        {"type": "session", "version": 3, "id": "pi-1", "timestamp": "2026-03-07T10:00:00.000Z", "cwd": "/work/pi"},
        entry("message", "00000001", None, message={"role": "user", "content": "ls please"}),
        entry("message", "00000002", "00000001", message=reply),
        entry("message", "00000003", "00000002", message={"role": "toolResult", "toolCallId": "t1", "toolName": "bash", "content": [{"type": "text", "text": "a"}]}),
        entry("message", "00000004", "00000003", message={"role": "user", "content": "left"}),
        entry("label", "00000005", "00000003", label="x"),
        entry("message", "00000006", "00000003", message={"role": "user", "content": "kept"}),
    ])  # fmt: skip
    assert "1 session with 4 messages imported" in brought_in(file, home)
    session = sessions(home)["pi-pi-1"]
    assert told(session) == [("user", "ls please"), ("assistant", "I look."), ("tool", "a"), ("user", "kept")]
    assert hidden(session) == ["left"] and session["messages"][1]["cost_usd"] == 0.5 and session["cwd"] == "/work/pi"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)  # fmt: skip


class Chunks(io.BytesIO):
    """A stream that gives few bytes at a time, whatever is asked for."""

    def read(self, size: int | None = -1) -> bytes:
        return super().read(3)


@given(st.lists(st.dictionaries(st.text(), json_values), max_size=5), st.booleans(), st.sampled_from([None, 1]))
def test_elements_of_an_array_come_one_by_one_as_they_are(values: list[Any], ascii_: bool, indent: int | None) -> None:
    data = json.dumps(values, ensure_ascii=ascii_, indent=indent).encode("utf-8", "surrogatepass")
    assert [value for value, _ in elements(Chunks(data))] == values
    for value in values:
        assert [one for one, _ in elements(io.BytesIO(json.dumps(value).encode()))] == [value]
